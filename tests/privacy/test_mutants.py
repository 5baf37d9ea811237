"""Mistakes that break the guarantee: `test_joint_guarantee`'s check finds each of them.

Every test first sees that the promise is kept, then plants a mistake and sees it broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.patterns.reference import Tuple
from tacit.patterns.residuals import Residual, find_residual
from tacit.patterns.tree import Pattern
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.planning.planner import make_plan
from tacit.privacy import components
from tacit.privacy.certainty import Certainty
from tacit.privacy.channel_audit import Audit
from tacit.privacy.channels import Channel
from tacit.privacy.elements import Elements, uniform_shares
from tacit.privacy.mechanisms import adaptive
from tacit.privacy.mechanisms.flips import FlipProtector
from tacit.privacy.mechanisms.noisy_windows import NoisyWindows
from tacit.privacy.mechanisms.optimal import blocks, channel_books
from tacit.privacy.mechanisms.optimal.book_draws import BookDraws
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.mechanisms.optimal.draw import ChannelProtector
from tacit.privacy.mechanisms.optimal.symbol_readings import SymbolReadings
from tacit.privacy.policies import Policies, Policy
from tacit.privacy.prior import LEAF
from tacit.privacy.staircase import ChannelProblem, Design, design
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tests.privacy.enumeration import ScriptedNoise, released, unpacked
from tests.privacy.worlds import (
    SUBJECTS,
    all_cases,
    broken,
    by_hand,
    random_cases,
    random_window,
    served_by_book,
    specification,
    survey_history,
)

Patch = pytest.MonkeyPatch


def breaks(
    spec: Specification,
    mechanism: str,
    decode: str = "posterior",
    statistics: list[Statistics] | None = None,
) -> list[str]:
    """The private patterns whose promise is not kept, with all windows of a small world."""
    plan = make_plan(spec, statistics or by_hand(spec, {}), mechanism, decode)
    small = len(spec.events) < 4
    return broken(spec, plan, all_cases(spec) if small else random_cases(0, spec))


def test_the_sum_of_shares_grows_in_the_paper_s_algorithm(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["a", "OR(a, AND(b, s))"], types="abs")
    rng = Random(1)
    pool = [random_window(rng, spec, "abs") for _ in range(20)]
    history = survey_history(spec, pool, rng.choices(range(20), k=10 * len(SUBJECTS)))
    assert not breaks(spec, "adaptive", "literal", history)

    def printed(policy: Policy, objective: Any) -> Elements:
        """Algorithm 1: delta to one element, delta/m from each of the others."""
        shares = uniform_shares(policy)
        (pattern,) = policy.patterns
        size = len(shares)
        delta = size * pattern.epsilon / 100
        standing = objective.at({name: float(share) for name, share in shares.items()})
        for _ in range(20):
            trials = []
            for chosen in shares:
                trial = {
                    name: share + delta if name == chosen else share - delta / size
                    for name, share in shares.items()
                }
                floats = {name: float(share) for name, share in trial.items()}
                trials.append((standing.try_changes(floats), floats, trial))
            value, floats, trial = max(trials, key=lambda tried: tried[0])
            if value <= standing.value:
                break
            standing.move(floats)
            shares = trial
        assert sum(shares.values()) > pattern.epsilon
        return Elements.from_epsilons(policy, shares)

    monkeypatch.setattr(adaptive, "move_shares", printed)
    monkeypatch.setattr(Elements, "_check", lambda *_: None)
    assert breaks(spec, "adaptive", "literal", history) == ["AND(a, b)"]


def test_elements_are_flipped_only_where_the_pattern_occurs(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["a", "AND(b, s)"], types="abs")
    assert not breaks(spec, "uniform", "literal")
    flipped = FlipProtector._flip

    def on_demand(self: FlipProtector, bits: Any, lanes: Any) -> Any:
        true = bits[:, self._element_columns]
        occurred = np.bitwise_and.reduce(true, axis=1)[:, np.newaxis]
        return flipped(self, bits, lanes) & occurred | true & ~occurred

    monkeypatch.setattr(FlipProtector, "_flip", on_demand)
    assert breaks(spec, "uniform", "literal")


def test_answers_are_drawn_only_where_something_happened(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["a", "AND(b, s)"], types="abs")
    assert not breaks(spec, "optimal")
    draw = Contexts.draw

    def on_demand(self: Contexts, signals: Any, values: Any, *given: Any) -> DrawnSymbols:
        drawn = draw(self, signals, values, *given)
        codes = np.where(values.any(axis=1)[:, np.newaxis], drawn.codes, np.int32(-1))
        return replace(drawn, codes=codes)

    monkeypatch.setattr(Contexts, "draw", on_demand)
    assert breaks(spec, "optimal")


def test_a_private_event_keeps_its_time(monkeypatch: Patch) -> None:
    spec = specification([("a", "1")], ["SEQ(a, s)"], types="as")
    assert not breaks(spec, "uniform", "literal")
    invented = NoisyWindows._draw_synthetic

    def real(self: NoisyWindows, closed: Any, noisy: Any, noise: Any) -> Iterator[Any]:
        keys = np.repeat(closed.keys, np.diff(closed.lists.starts))
        own = (closed.lists.masks & self._private_mask(1)).any(axis=1)
        kept = dict(zip(keys[own].tolist(), closed.lists.times[own].tolist(), strict=True))
        for event in invented(self, closed, noisy, noise):
            pairs = zip(event.here.tolist(), event.times.tolist(), strict=True)
            yield event._replace(times=np.array([kept.get(here, time) for here, time in pairs]))

    monkeypatch.setattr(NoisyWindows, "_draw_synthetic", real)
    assert breaks(spec, "uniform", "literal") == ["a"]


def test_private_events_stay_among_the_public_ones(monkeypatch: Patch) -> None:
    spec = specification([("a", "1")], ["SEQ(a, s)"], types="as")
    assert not breaks(spec, "uniform", "literal")
    monkeypatch.setattr(NoisyWindows, "_private_mask", lambda _, width: np.zeros(width, np.uint64))
    assert breaks(spec, "uniform", "literal") == ["a"]


def test_a_context_peeks_at_a_private_event(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["AND(a, b)", "AND(b, s)"], types="abs")
    assert not breaks(spec, "optimal")

    def peeking(pattern: Pattern, private: frozenset[str]) -> Residual:
        return find_residual(pattern, private - {"b"})

    monkeypatch.setattr(components, "find_residual", peeking)
    assert breaks(spec, "optimal")


@dataclass(frozen=True)
class Each(Certainty):
    """A certainty of its own for each query."""

    parts: Sequence[Certainty]

    def compute_confidence(self, query: int, *rest: Any) -> NDArray[np.float64]:
        """That of the query."""
        return self.parts[query].compute_confidence(query, *rest)


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_each_query_has_noise_of_its_own(monkeypatch: Patch, mechanism: str, decode: str) -> None:
    spec = specification([("a", "1")], ["a", "AND(a, s)"], types="as")
    assert not breaks(spec, mechanism, decode)
    guard = ChannelProtector if mechanism == "optimal" else FlipProtector
    protect = guard.protect

    def apart(self: Any, windows: Any, own: Any) -> tuple[Any, Certainty]:
        drawn = [protect(self, windows, own) for _ in range(2)]
        bits = np.stack([drawn[query][0][:, query] for query in range(2)], axis=1)
        return bits, Each([certainty for _, certainty in drawn])

    monkeypatch.setattr(guard, "protect", apart)
    assert breaks(spec, mechanism, decode) == ["a"]


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_silent_subjects_have_no_rows(monkeypatch: Patch, mechanism: str) -> None:
    spec = specification([("a", "1")], ["AND(a, s)"], types="as")
    assert not breaks(spec, mechanism)
    answer, table = WindowState.answer, Answers.table
    loud: list[tuple[int, str]] = []

    def hearing(self: WindowState, handed: ClosedWindows, *given: Any, **named: Any) -> Answers:
        names = self.subjects.names.to_pylist()
        for window, slot in np.argwhere(handed.panes.words.any(axis=2)).tolist():
            loud.append(((handed.panes.first + window) * self.size, names[slot]))
        return answer(self, handed, *given, **named)

    def thinned(self: Answers) -> Any:
        rows = pl.DataFrame(table(self))
        heard = pl.DataFrame(loud, schema=["start", "who"], orient="row").unique()
        return rows.with_columns(
            start=pl.col("window_start").to_physical(), who=pl.col("subject").cast(pl.String)
        ).join(heard, on=["start", "who"], how="semi")

    monkeypatch.setattr(WindowState, "answer", hearing)
    monkeypatch.setattr(Answers, "table", thinned)
    assert breaks(spec, mechanism) == ["a"]


def unaudited(monkeypatch: Patch) -> None:
    """Let every table pass."""
    monkeypatch.setattr(Audit, "check", lambda _: None)
    monkeypatch.setattr(Elements, "_check", lambda *_: None)


def test_a_flip_is_rounded_down(monkeypatch: Patch) -> None:
    spec = specification([("a", "1")], ["AND(a, s)"], types="as")
    assert not breaks(spec, "uniform")
    unaudited(monkeypatch)
    assert not breaks(spec, "uniform")
    flip = Channel.flip

    def down(epsilon: Any) -> Channel:
        upward = flip(epsilon)
        kept, flips = upward.table[0].tolist()
        table = [[kept + 1, flips - 1], [flips - 1, kept + 1]]
        return Channel(table, upward.neighbours)

    # Flips are made once and kept, so the kept ones must not be found.
    monkeypatch.setattr("tacit.privacy.elements._flip", down)
    assert breaks(spec, "uniform") == ["a"]


def test_a_table_is_rounded_away_from_privacy(monkeypatch: Patch) -> None:
    spec = specification([("a", "1")], ["AND(a, s)"], types="as")
    unaudited(monkeypatch)
    assert not breaks(spec, "optimal")

    def away(choice: ChannelProblem) -> Design:
        """A little more for what is likely: less than a float can tell."""
        made = design(choice)
        table = made.channel.table.astype(object)
        for row in table:
            row[row.argmax()] += 1 << 9
            row[row.argmin()] -= 1 << 9
        return replace(made, channel=Channel(table, made.channel.neighbours))

    monkeypatch.setattr(blocks, "design", away)
    assert breaks(spec, "optimal") == ["a"]


def test_confidence_knows_the_true_answer(monkeypatch: Patch) -> None:
    spec = specification([("a", "1")], ["a"], types="as")
    assert not breaks(spec, "uniform")
    protect = FlipProtector.protect

    @dataclass(frozen=True)
    class Knowing(Certainty):
        truth: NDArray[np.bool_]

        def compute_confidence(self, query: int, windows: slice, slots: slice, answers: Any) -> Any:
            del query
            return np.where(answers == self.truth[windows, slots], 0.75, 0.5)

    def knowing(self: FlipProtector, windows: Any, own: Any) -> tuple[Any, Certainty]:
        bits, _ = protect(self, windows, own)
        return bits, Knowing(unpacked(windows.bits[:, self._element_columns[0]]).astype(np.bool_))

    monkeypatch.setattr(FlipProtector, "protect", knowing)
    assert breaks(spec, "uniform") == ["a"]


def test_a_private_pattern_that_overlaps_is_forgotten(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "2"), ("b", "0.5")], ["AND(a, b)", "b"], types="abs")
    assert not breaks(spec, "optimal")
    find_classes = blocks._find_classes

    def forget(changes: Any, *rest: Any) -> Any:
        return find_classes(tuple(one for one in changes if one[1] != Fraction("0.5")), *rest)

    monkeypatch.setattr(blocks, "_find_classes", forget)
    assert breaks(spec, "optimal") == ["b"]


BLOCKS = specification(
    [("AND(a, b, c, d, e, f, g)", "3"), ("AND(a, g)", "0.5")],
    ["a", "AND(b, s)", "OR(c, AND(d, s))", "e", "OR(f, SEQ(g, s))"],
    types="abcdefgs",
)
"""Of the first pattern not all variables fit into one block."""


@pytest.fixture
def _book() -> Iterator[None]:
    with served_by_book():
        yield


@pytest.mark.usefixtures("_book")
def test_the_blocks_of_a_book_do_not_share_epsilon(monkeypatch: Patch) -> None:
    assert not breaks(BLOCKS, "optimal")
    find = channel_books._add_neighbours

    def whole(component: Any, variables: tuple[int, ...], _: Any) -> channel_books.VariableBlock:
        return find(component, variables, [variables])

    monkeypatch.setattr(channel_books, "_add_neighbours", whole)
    assert breaks(BLOCKS, "optimal") == ["AND(a, b, c, d, e, f, g)"]


@pytest.mark.usefixtures("_book")
def test_a_book_is_audited_for_the_neighbours_of_one_pattern_only(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "2"), ("b", "0.5")], ["AND(a, b)", "b"], types="abs")
    assert not breaks(spec, "optimal")
    find = channel_books._add_neighbours

    def first(component: Any, *rest: Any) -> channel_books.VariableBlock:
        return find(replace(component, patterns=component.patterns[:1]), *rest)

    monkeypatch.setattr(channel_books, "_add_neighbours", first)
    assert breaks(spec, "optimal") == ["b"]


@pytest.mark.usefixtures("_book")
def test_a_book_is_audited_for_values_that_differ_in_the_wrong_variables(
    monkeypatch: Patch,
) -> None:
    """Of a pattern's variables one is missing, so nothing bounds what is told about it."""
    spec = specification([("AND(a, b)", "1")], ["AND(a, s)", "AND(b, s)"], types="abs")
    assert not breaks(spec, "optimal")
    find = channel_books._add_neighbours

    def shifted(component: Any, *rest: Any) -> channel_books.VariableBlock:
        (pattern,) = component.patterns
        fewer = replace(pattern, elements=pattern.elements - {"b"})
        return find(replace(component, patterns=(fewer,)), *rest)

    monkeypatch.setattr(channel_books, "_add_neighbours", shifted)
    assert breaks(spec, "optimal") == ["AND(a, b)"]


def in_groups(spec: Specification) -> list[Statistics]:
    """Statistics with a prior that knows two groups of contexts, told apart by a signal."""
    (found,) = by_hand(spec, {})
    (prior,) = found.priors
    grouped = replace(
        prior,
        splits=np.array([0, LEAF, LEAF]),
        bounds=np.array([0, 1, 2]),
        values=np.eye(2, len(prior.rates), dtype=np.bool_),
        counts=np.array([30.0, 30.0]),
    )
    return [replace(found, priors=(grouped,))]


@pytest.mark.usefixtures("_book")
def test_the_group_of_a_context_follows_a_private_value(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["AND(a, s)", "OR(b, s)"], types="abs")
    statistics = in_groups(spec)
    assert not breaks(spec, "optimal", statistics=statistics)
    draw, find = BookDraws.draw, SymbolReadings.find_groups

    def peeking(self: BookDraws, chosen: Any, signals: Any, values: Any, codes: Any) -> None:
        own = (values[chosen, 0] & np.uint64(1)).astype(np.int64)
        monkeypatch.setattr(SymbolReadings, "find_groups", lambda *_: own)
        draw(self, chosen, signals, values, codes)
        monkeypatch.setattr(SymbolReadings, "find_groups", find)

    monkeypatch.setattr(BookDraws, "draw", peeking)
    assert breaks(spec, "optimal", statistics=statistics) == ["AND(a, b)"]


@pytest.mark.usefixtures("_book")
def test_a_book_is_used_only_where_something_happened(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["a", "AND(b, s)"], types="abs")
    assert not breaks(spec, "optimal")
    draw = BookDraws.draw

    def on_demand(self: BookDraws, chosen: Any, signals: Any, values: Any, codes: Any) -> None:
        draw(self, chosen[values[chosen].any(axis=1)], signals, values, codes)

    monkeypatch.setattr(BookDraws, "draw", on_demand)
    assert breaks(spec, "optimal") == ["AND(a, b)"]


@pytest.mark.usefixtures("_book")
def test_a_book_draws_where_nothing_is_open(monkeypatch: Patch) -> None:
    """Neighbours stay alike, but the draw is for nothing: the trace of the noise shows it."""
    spec = specification([("AND(a, b)", "1")], ["AND(a, s)", "AND(b, s)"], types="abs")
    windows = [[Tuple(0, frozenset("ab"))], [Tuple(0, frozenset("s"))]]

    def draws() -> list[int]:
        plan = make_plan(spec, by_hand(spec, {}), "optimal")
        noise = ScriptedNoise(np.empty((len(SUBJECTS), 0), np.int64), len(SUBJECTS))
        released(spec, plan, windows, np.arange(len(SUBJECTS)) % 2, noise)
        return [int(number) for number in noise.drawn[:2]]

    assert draws() == [0, 1]
    find = SymbolReadings.find_needed
    monkeypatch.setattr(SymbolReadings, "find_needed", lambda *given: np.ones_like(find(*given)))
    assert draws() == [1, 1]


def test_components_that_one_query_spans_stay_apart(monkeypatch: Patch) -> None:
    spec = specification([("a", "2"), ("b", "0.5")], ["SEQ(a, b)", "AND(b, s)"], types="abs")
    assert not breaks(spec, "optimal")
    monkeypatch.setattr(components._Groups, "join", lambda *_: None)
    monkeypatch.setattr(components, "_settle", lambda *_: True)
    assert breaks(spec, "optimal") == ["b"]


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_all_subjects_have_the_policy_of_those_whom_no_one_names(
    monkeypatch: Patch, mechanism: str
) -> None:
    spec = specification([("a", "2"), ("b", "0.5", "x")], ["AND(a, b)", "b"], types="abs")
    assert not breaks(spec, mechanism)
    monkeypatch.setattr(Policies, "assign", lambda _, subjects: np.zeros(len(subjects), np.int32))
    assert breaks(spec, mechanism) == ["b"]
