"""The guarantee over several windows with memory, end to end and exact.

All private events of three windows are run, and all outcomes of all draws: nothing is sampled.
Whatever is released or charged may depend on what was released before. Still, in every outcome
neighbours are told apart by no more than what was charged in the windows where they differ.
`test_memory_mutants` plants mistakes, and the same checks have to find each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from tacit.insight.audit import audit
from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory import learning
from tacit.privacy.prices import NANO
from tacit.spec.specification import Specification
from tests.privacy.enumeration import Ints
from tests.privacy.memories import (
    Broken,
    Likely,
    Stream,
    SubjectNoise,
    Told,
    Way,
    add_up,
    all_streams,
    enumerate_runs,
    enumerated,
    find_broken,
    limited,
    paced,
    plan_by_hand,
    released,
    remembering,
)
from tests.privacy.streams import sliding
from tests.privacy.worlds import served_by_book


@dataclass(frozen=True)
class Case:
    """A specification, and the streams that are compared."""

    spec: Specification
    hidden: str = "ab"
    public: Sequence[str] = ("s", "", "s")
    memory: dict[str, int] = field(default_factory=dict)
    way: Way = field(default_factory=Way)
    book: bool = False
    limit: Fraction | None = None
    ratio: float | None = None
    """Of pacing."""

    @property
    def streams(self) -> list[Stream]:
        """All private events in all windows; of many types, a few choices in each window."""
        if len(self.hidden) < 3:
            return all_streams(self.hidden, self.public)
        rng = Random(1)
        some = ["", self.hidden, "".join(rng.sample(self.hidden, 3))]
        return [
            tuple(private + shown for private, shown in zip(chosen, self.public, strict=True))
            for chosen in ((one, other, some[0]) for one in some for other in some)
        ]

    def plan(self) -> Plan:
        """Its plan, with memory."""
        plan = plan_by_hand(self.spec, **self.memory)
        return plan if self.ratio is None else paced(plan, self.spec, self.ratio)

    def run(self) -> tuple[Likely, list[Broken]]:
        """What may be told about each stream, and the neighbours that are told apart."""
        with served_by_book() if self.book else nullcontext():
            likely = enumerated(self.spec, self.plan(), self.streams, self.way)
        return likely, find_broken(self.spec, likely, self.streams, limit=self.limit)


ONE = remembering([("AND(a, b)", "1")], ["a", "AND(b, s)", "OR(a, b)"])
OVERLAP = remembering([("AND(a, b)", "2"), ("b", "0.5")], ["AND(a, b)", "b", "AND(a, s)"])
MANY = remembering(
    [("AND(a, b, c, d, e, f, g)", "3"), ("AND(a, g)", "0.5")],
    ["a", "AND(b, s)", "OR(c, AND(d, s))", "e", "OR(f, SEQ(g, s))"],
    types="abcdefgs",
)
SLIDING = sliding([("a", "1")], ["AND(a, s)"], panes=2, types="as")
CASES = {
    "one component": Case(ONE),
    "profiles": Case(ONE, memory={"profiles": 3}),
    "a new engine after each window": Case(ONE, way=Way(restored=True)),
    "draws that are thrown away": Case(ONE, way=Way(redrawn=True)),
    "channels of a book": Case(ONE, book=True),
    "two components": Case(remembering([("a", "1"), ("b", "0.5")], ["AND(a, b)", "OR(b, s)"])),
    "patterns that overlap": Case(OVERLAP),
    "windows that cost nothing": Case(remembering([("a", "1")], ["AND(a, s)"], "as"), "a"),
    "a belief about each variable": Case(MANY, "abcdefg", ("s", "", "")),
    "a limit": Case(limited(ONE, "2 per d"), limit=Fraction(2)),
    "a limit of less than a window": Case(limited(ONE, "0.5 per d"), limit=Fraction(1, 2)),
    "a limit and several patterns": Case(limited(OVERLAP, "2.2 per d"), limit=Fraction(11, 5)),
    "a limit and draws thrown away": Case(
        limited(ONE, "2 per d"), limit=Fraction(2), way=Way(redrawn=True)
    ),
    "pacing": Case(
        limited(ONE, "2 per d", "paced"), limit=Fraction(2), ratio=0.0165, public=("s", "s", "s")
    ),
    "pacing that explores": Case(
        limited(ONE, "3 per d", "paced"),
        limit=Fraction(3),
        ratio=0.02,
        public=("s", "s", "s"),
        way=Way(explored=(False, True, False)),
    ),
    "sliding windows": Case(SLIDING, "a", way=Way(restored=True)),
    "sliding windows and an occurrence": Case(
        sliding([("AND(a, b)", "1")], ["AND(a, s)", "b"], panes=2), public=("s", "")
    ),
    "pacing of sliding windows": Case(
        limited(SLIDING, "1.5 per d", "paced"), "a", limit=Fraction(3, 2), ratio=0.024
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_tells_neighbours_apart_by_more_than_was_charged(name: str) -> None:
    likely, broken = CASES[name].run()
    assert broken == []
    outcomes = {outcome for chances in likely for outcome in chances}
    assert len(outcomes) > 1 or name == "a limit of less than a window"
    # What is paid for depends on what was released, where it is meant to.
    assert (len({one.exhausted for one in outcomes}) > 1) == name.startswith("pacing")
    if name == "patterns that overlap":
        assert len({one.charges for one in outcomes}) > 1  # so do the channels
    if name == "windows that cost nothing":
        assert {one.charges for one in outcomes} == {((NANO,), (0,), (NANO,))}


def test_memory_is_used_and_no_window_is_worth_more_than_its_epsilon() -> None:
    """The check is sharp: one window's ratio is all of epsilon, three windows' thrice that."""
    case = CASES["one component"]
    likely = enumerated(case.spec, case.plan(), case.streams)
    told = {one: np.frombuffer(one.confidences, np.float32) for one in likely[0]}
    # The second window is answered with different confidence, by the symbol of the first.
    assert len({tuple(sure.reshape(3, -1)[1].tolist()) for sure in told.values()}) > 2
    for windows in (1, 3):
        ratio = max(
            likely[one].get(outcome, 0) / likely[other][outcome]
            for one in range(len(likely))
            for other in range(len(likely))
            if sum(map(str.__ne__, case.streams[one], case.streams[other])) == windows
            for outcome in likely[other]
        )
        assert 0.9999 * np.exp(windows) < ratio <= np.exp(windows)


def test_the_audit_covers_all_channels_that_memory_chooses_from() -> None:
    for case in CASES.values():
        plan = case.plan()
        (mechanism,) = plan.mechanisms
        assert isinstance(mechanism, Optimal)
        assert mechanism.memory is not None
        listed = {id(named.channel) for named in mechanism.channels()}
        for one in mechanism.memory:
            for blocks in one.candidates.contexts.values():
                assert all(id(channel) in listed for block in blocks for channel in block)
        for pattern in audit(plan).policies[0].patterns:
            assert pattern.whole is not None
            assert pattern.whole <= pattern.asked


def test_batches_restarts_and_thrown_away_draws_do_not_change_the_distribution() -> None:
    for name in ("profiles", "two components", "windows that cost nothing"):
        case = CASES[name]
        plan = case.plan()
        likely = enumerated(case.spec, plan, case.streams[:8])
        for way in (Way(together=True), Way(restored=True), Way(redrawn=True)):
            found = enumerated(case.spec, plan, case.streams[:8], way)
            assert list(map(shares, found)) == list(map(shares, likely))
        at_once = enumerated(case.spec, plan, case.streams[:8], Way(grouped=True))
        for one, other in zip(likely, at_once, strict=True):
            answered = {(told.answers, told.confidences): n for told, n in shares(one).items()}
            again = {(told.answers, told.confidences): n for told, n in shares(other).items()}
            assert again == answered


def shares(chances: dict[Told, int]) -> dict[Told, Fraction]:
    """The probability of each outcome."""
    return {told: Fraction(chance, sum(chances.values())) for told, chance in chances.items()}


def test_other_subjects_do_not_notice() -> None:
    """Whatever one subject sends and draws, another one's draws and answers stay the same."""
    for seed in range(3):
        rng = Random(seed)
        plan = plan_by_hand(ONE, seed)
        other = tuple(rng.choice(("", "a", "b", "abs", "s")) for _ in range(3))
        assert len(seen_of_another(plan, other, rng)) == 1


def seen_of_another(plan: Plan, other: Stream, rng: Random) -> set[tuple[object, ...]]:
    """What is drawn for and told about a subject while another one changes."""
    seen: set[tuple[object, ...]] = set()
    for _ in range(6):
        stream = tuple(rng.choice(("", "a", "ab", "bs", "s")) for _ in range(3))
        script = [[rng.choice((0, 1)) for _ in range(3)], [1, 0, 1], [-1, -1, -1]]
        noise = SubjectNoise(np.array(script), 3)
        rows = released(ONE, plan, [stream, other], noise)
        seen.add((tuple(noise.trace(1)), rows[1]))
    return seen


# Learning: what is learned from one subject's symbols is used for all of them, so all that is
# released about everyone is one outcome, and each outcome needs a run of its own.


class RunNoise(SubjectNoise):
    """Takes outcomes from one script for all subjects."""

    def decide(self, places: Ints, kinds: Ints) -> Ints:
        """An outcome for each of some draws."""
        return super().decide(np.zeros_like(places), kinds)


@contextmanager
def quick_learning() -> Iterator[None]:
    """Learn from every window and every subject, as much as possible."""
    changed = {"_COUNTED": 1, "_REFRESHED": 1, "_STRENGTH": 0.05, "_LEAST": 0.0, "_BETTER": 0.0}
    with ExitStack() as stack:
        for name, value in changed.items():
            stack.enter_context(patch.object(learning, name, value))
        yield


LEARNING = remembering([("a", "1")], ["AND(a, s)"], "as")
OTHER: Stream = ("", "as", "")


def enumerated_together(
    spec: Specification, plan: Plan, streams: Sequence[Stream], other: Stream
) -> Likely:
    """All that may be told about each stream and another subject; the stream's charges first."""

    def release(script: Ints, stream: Stream) -> tuple[RunNoise, Told]:
        noise = RunNoise(script, 3)
        first, second = released(spec, plan, [stream, other], noise)
        both = Told(
            first.answers + second.answers,
            first.confidences + second.confidences,
            first.exhausted + second.exhausted,
            first.charges + second.charges,
        )
        return noise, both

    found = [
        outcome
        for number, stream in enumerate(streams)
        for outcome in enumerate_runs(number, partial(release, stream=stream))
    ]
    return add_up(len(streams), found)


@pytest.mark.parametrize("limit", [None, Fraction(2)])
def test_what_is_learned_tells_nothing_more(limit: Fraction | None) -> None:
    spec = LEARNING if limit is None else limited(LEARNING, "2 per d")
    streams = all_streams("a", ["s", "s", "s"])
    with quick_learning():
        plan = plan_by_hand(spec)
        both = enumerated_together(spec, plan, streams, OTHER)
    assert find_broken(spec, both, streams, limit=limit) == []
    # Something is learned: without it, the same symbols give other answers or confidences.
    plain = enumerated_together(spec, plan, streams[:1], OTHER)
    assert plain[0].keys() != both[0].keys()
