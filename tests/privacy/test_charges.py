"""A window costs what it reveals, exactly: prices against all outcomes of real runs.

Neighbours have the same price, and their outcomes differ by no more than it. Where the price is 0
they do not differ at all, and nothing is drawn. The mistakes that are planted below have to be
found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy import components
from tacit.privacy.mechanisms import flips
from tacit.privacy.mechanisms.optimal import contexts
from tacit.privacy.mechanisms.pane_noise import PaneNoise
from tacit.privacy.policies import declared_patterns
from tacit.privacy.prices import NANO, Claim
from tacit.spec.specification import Specification
from tests.privacy.enumeration import (
    FIRST,
    ScriptedNoise,
    TooManyOutcomesError,
    _laid,
    released,
    within,
)
from tests.privacy.streams import all_streams, enumerated, sliding
from tests.privacy.streams import by_hand as by_hand_sliding
from tests.privacy.test_joint_guarantee import SWEEP, each_draw, mechanisms, specifications
from tests.privacy.worlds import (
    SUBJECTS,
    Cases,
    _enumerated,
    all_cases,
    by_hand,
    planned,
    random_cases,
    random_specification,
    specification,
)

Patch = pytest.MonkeyPatch
Prices = NDArray[np.int64]


def claims(spec: Specification, plan: Plan) -> tuple[Claim, ...]:
    """What the account of each private pattern must be paid for."""
    return tuple(
        Claim(pattern.elements, int(-(-plan.spent_per_window(private) * NANO // 1)))
        for private, pattern in zip(spec.private, declared_patterns(spec), strict=True)
    )


@contextmanager
def priced(asked: Sequence[Claim]) -> Iterator[dict[int, Prices]]:
    """The prices of all windows that are answered, by window: `[claim][slot]`."""
    found: dict[int, Prices] = {}
    answer = ProtectedEvaluator.answer

    def spy(
        self: ProtectedEvaluator, closed: Any, rows: Any, policies: Any, memory: Any = None
    ) -> Any:
        prices = self.price(closed, rows, policies, asked, memory)
        found.update({closed.first + n: window.copy() for n, window in enumerate(prices)})
        return answer(self, closed, rows, policies, memory)

    with patch.object(ProtectedEvaluator, "answer", spy):
        yield found


def prices_of(spec: Specification, plan: Plan, cases: Cases) -> tuple[list[Prices], list[int]]:
    """What each of the windows costs each private pattern, and how much is drawn in it."""
    places, laid = _laid(np.arange(len(cases.windows)), cases.slots, len(SUBJECTS))
    noise = ScriptedNoise(np.empty((len(laid), 0), np.int64), len(SUBJECTS))
    with priced(claims(spec, plan)) as found:
        released(spec, plan, cases.windows, laid, noise)
    windows, slots = np.divmod(places, len(SUBJECTS))
    prices = [
        found[FIRST + window][:, slot]
        for window, slot in zip(windows.tolist(), slots.tolist(), strict=True)
    ]
    return prices, noise.drawn[places].tolist()


def undercharged(spec: Specification, plan: Plan, cases: Cases) -> list[str]:
    """The private patterns that pay less than is revealed, or whose neighbours pay differently."""
    cases, outcomes = _enumerated(spec, plan, cases)
    prices, _ = prices_of(spec, plan, cases)
    names = [private.name for private in spec.private]
    found = []
    for pattern, group in cases.groups:
        own = {int(prices[number][names.index(pattern.name)]) for number in group}
        everyone = {tuple(prices[number].tolist()) for number in group}
        price = max(own)
        right = len(everyone) == 1 and price <= pattern.epsilon * NANO + 1
        if not (right and within(outcomes.furthest(group), Fraction(price, NANO))):
            found.append(pattern.name)
    return list(dict.fromkeys(found))


@mechanisms
@settings(max_examples=12 * SWEEP, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_a_window_costs_what_it_reveals_and_neighbours_pay_the_same(
    mechanism: str, seed: int
) -> None:
    spec = random_specification(Random(seed))
    plan = planned(spec, mechanism, Random(seed).choice(("literal", "posterior")), seed)
    try:
        assert undercharged(spec, plan, random_cases(seed, spec)) == []
    except TooManyOutcomesError:
        reject()


@pytest.mark.cases(13)
@specifications
@each_draw
def test_special_cases_cost_what_they_reveal(
    spec: Specification, mechanism: str, decode: str
) -> None:
    plan = make_plan(spec, by_hand(spec, {}), mechanism, decode)
    assert undercharged(spec, plan, random_cases(0, spec)) == []


SPLIT = specification([("a", "1"), ("b", "1")], ["AND(a, b, s)"], types="abs")
"""One query about two components; nothing is open without `s`."""


@pytest.fixture
def apart(monkeypatch: Patch) -> None:
    """Components stay apart, however small they are."""
    monkeypatch.setattr(components, "MOST_JOINED", 0)


@pytest.mark.usefixtures("apart")
@each_draw
def test_where_nothing_is_charged_nothing_is_drawn(mechanism: str, decode: str) -> None:
    """A query that public events decide opens none of the components that it is about."""
    plan = make_plan(SPLIT, by_hand(SPLIT, {}), mechanism, decode)
    cases = all_cases(SPLIT)
    assert undercharged(SPLIT, plan, cases) == []
    prices, drawn = prices_of(SPLIT, plan, cases)
    for window, price, draws in zip(cases.windows, prices, drawn, strict=True):
        opened = any("s" in tuple_.types for tuple_ in window)
        assert price.tolist() == [opened * NANO] * 2
        assert (draws > 0) == opened


@pytest.mark.usefixtures("apart")
def test_a_draw_that_is_decided_part_by_part_is_found(monkeypatch: Patch) -> None:
    """The charge knows that the query is decided; a component that does not know draws."""
    plan = make_plan(SPLIT, by_hand(SPLIT, {}), "optimal", "posterior")
    cases = all_cases(SPLIT)
    prices, _ = prices_of(SPLIT, plan, cases)
    monkeypatch.setattr(components, "_decide_together", lambda parts, every, _: (parts, every))
    part_by_part = make_plan(SPLIT, by_hand(SPLIT, {}), "optimal", "posterior")
    charged, drawn = prices_of(SPLIT, part_by_part, cases)
    assert any(draws and not price.any() for price, draws in zip(prices, drawn, strict=True))
    assert any(not np.array_equal(one, other) for one, other in zip(prices, charged, strict=True))


SMALL = specification([("AND(a, b)", "1")], ["AND(a, s)", "SEQ(s, b)"], types="abs")


@mechanisms
def test_a_charge_of_nothing_where_something_is_open_is_found(
    monkeypatch: Patch, mechanism: str
) -> None:
    plan = make_plan(SMALL, by_hand(SMALL, {}), mechanism, "posterior")
    assert undercharged(SMALL, plan, all_cases(SMALL)) == []
    for module in (flips, contexts):
        monkeypatch.setattr(module, "price_ratio", lambda *_: 0)
    assert undercharged(SMALL, plan, all_cases(SMALL)) == ["AND(a, b)"]


# Sliding windows


def total_prices(
    spec: Specification, plan: Plan, public: frozenset[tuple[int, str]], panes: int
) -> tuple[int, Fraction | None]:
    """The sum over all windows, and the largest ratio between any two private streams."""
    streams = [one | public for one in all_streams(spec, "a", panes)]
    with priced(claims(spec, plan)) as found:
        outcomes = enumerated(spec, plan, streams, panes)
    sums = sum(prices[0, :-1] for prices in found.values())
    assert len(set(np.asarray(sums).tolist())) == 1  # private events change no price
    return int(np.asarray(sums)[0]), outcomes.furthest(range(len(streams)))


PUBLIC = [
    frozenset[tuple[int, str]](),
    frozenset({(0, "s")}),
    frozenset({(1, "s")}),
    frozenset({(0, "s"), (2, "s")}),
    frozenset({(0, "s"), (1, "s"), (2, "s")}),
]
"""At which times `s` opens the query; a pane has one."""
REVEALED = [0, 2, 3, 4, 4]
"""How many panes are in a window with `s`, where a window has two."""


@pytest.mark.parametrize(("public", "revealed"), list(zip(PUBLIC, REVEALED, strict=True)))
@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_all_that_windows_cost_together_covers_any_change_in_them(
    public: frozenset[tuple[int, str]], revealed: int, mechanism: str
) -> None:
    """Whatever private events do in all panes. A pane is charged once, when it is first used."""
    spec = sliding([("a", "1")], ["AND(a, s)"], panes=2)
    plan = by_hand_sliding(spec, mechanism, "posterior")
    price, ratio = total_prices(spec, plan, public, 3)
    assert within(ratio, Fraction(price, NANO))
    if mechanism == "optimal":
        opened = {window for time, _ in public for window in (time - 1, time)}
        assert price == len(opened) * NANO // 2
    else:
        assert price == revealed * NANO


@pytest.mark.parametrize("settled", [0, ~0], ids=["twice", "never"])
def test_a_pane_that_is_charged_twice_or_never_is_found(monkeypatch: Patch, settled: int) -> None:
    spec = sliding([("a", "1")], ["AND(a, s)"], panes=2)
    plan = by_hand_sliding(spec, "uniform", "posterior")
    known = PaneNoise._settled

    def mistaken(self: PaneNoise, paned: Any) -> Any:
        found = known(self, paned)
        if paned.before:
            found[: paned.count - 1] = np.uint64(settled % (1 << 64))
        return found

    monkeypatch.setattr(PaneNoise, "_settled", mistaken)
    if settled:
        price, ratio = total_prices(spec, plan, PUBLIC[2], 3)
        assert not within(ratio, Fraction(price, NANO))
    else:
        price, _ = total_prices(spec, plan, PUBLIC[-1], 3)
        assert price > 4 * NANO
