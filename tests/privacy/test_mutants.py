"""Mistakes that break the guarantee: `test_joint_guarantee`'s check finds each of them.

Every test first sees that the promise is kept, then plants a mistake and sees it broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tacit.answers.answers import Answers
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
from tacit.privacy.mechanisms.optimal import blocks
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.mechanisms.optimal.draw import ChannelProtector
from tacit.privacy.policies import Policies, Policy
from tacit.privacy.staircase import ChannelProblem, Design, design
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tests.privacy.enumeration import unpacked
from tests.privacy.worlds import (
    SUBJECTS,
    all_cases,
    broken,
    by_hand,
    random_cases,
    random_window,
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

    def on_demand(self: FlipProtector, bits: Any, own: Any) -> Any:
        true = bits[:, self._element_columns]
        occurred = np.bitwise_and.reduce(true, axis=1)[:, np.newaxis]
        return flipped(self, bits, own) & occurred | true & ~occurred

    monkeypatch.setattr(FlipProtector, "_flip", on_demand)
    assert breaks(spec, "uniform", "literal")


def test_answers_are_drawn_only_where_something_happened(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "1")], ["a", "AND(b, s)"], types="abs")
    assert not breaks(spec, "optimal")
    draw = Contexts.draw

    def on_demand(self: Contexts, signals: Any, values: Any) -> DrawnSymbols:
        drawn = draw(self, signals, values)
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

    def hearing(
        self: WindowState, handed: ClosedWindows, exhausted: Any = None, **_: Any
    ) -> Answers:
        names = self.subjects.names.to_pylist()
        for window, slot in np.argwhere(handed.panes.words.any(axis=2)).tolist():
            loud.append(((handed.panes.first + window) * self.size, names[slot]))
        return answer(self, handed, exhausted)

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


def test_blocks_do_not_share_epsilon(monkeypatch: Patch) -> None:
    queries = ["a", "b", "c", "AND(d, s)", "SEQ(s, d)"]
    spec = specification([("AND(a, b, c, d)", "2")], queries, types="abcds")
    assert not breaks(spec, "optimal")
    numbers: list[int] = []

    def unshared(groups: list[blocks.ChannelBlock]) -> list[blocks.ChannelBlock]:
        numbers.append(len(groups))
        return groups

    monkeypatch.setattr(blocks, "_best_shares", unshared)
    assert breaks(spec, "optimal") == ["AND(a, b, c, d)"]
    assert max(numbers) > 1


def test_a_private_pattern_that_overlaps_is_forgotten(monkeypatch: Patch) -> None:
    spec = specification([("AND(a, b)", "2"), ("b", "0.5")], ["AND(a, b)", "b"], types="abs")
    assert not breaks(spec, "optimal")
    cliques = blocks._cliques

    def first(component: Any, *rest: Any) -> Any:
        return cliques(replace(component, patterns=component.patterns[:1]), *rest)

    monkeypatch.setattr(blocks, "_cliques", first)
    assert breaks(spec, "optimal") == ["b"]


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
