"""Counts with memory and limits over several windows: exact, all outcomes of all draws.

Each subject is a group of its own, so that one run tries a script for each. Which windows are
drawn, with which epsilon, and what is estimated depend on what was released before. Still, in every
outcome neighbours are told apart by no more than what was charged in the windows where they differ.
The mistakes that are planted below have to be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.connectors.frames import FrameSource
from tacit.durations import MICROSECONDS
from tacit.errors import PlanError, TacitError
from tacit.events.subjects import Subjects
from tacit.ledger.accounts import Accounts
from tacit.ledger.ledger import Ledger
from tacit.pipeline.accountant import Accountant, list_accounts
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.settlement import Settlement
from tacit.pipeline.versioned_windows import VersionedWindows
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy import count_channels, count_memory
from tacit.privacy.count_channels import CountChannel, make_count_channel
from tacit.privacy.count_memory import (
    CountFilter,
    CountMemory,
    CountSpending,
    GroupModel,
)
from tacit.privacy.mechanisms import counts
from tacit.privacy.mechanisms.counts import METHODS, CountRelease
from tacit.privacy.prices import NANO
from tacit.spec import groups
from tacit.spec.specification import Specification
from tacit.windows.schedule import Windows
from tests.differential.outputs import _empty_ledger
from tests.privacy.enumeration import ALONE, FIRST, Ints, registry, row_of
from tests.privacy.memories import (
    Broken,
    Likely,
    Stream,
    SubjectNoise,
    Told,
    Way,
    add_up,
    all_streams,
    batches,
    enumerate_runs,
    enumerate_streams,
    find_broken,
    limited,
)
from tests.privacy.streams import statistics_by_hand
from tests.privacy.test_memory_restarts import forget_progress
from tests.privacy.worlds import by_hand, specification

Patch = pytest.MonkeyPatch
DAY = MICROSECONDS["d"]


def remember(spec: Specification, spending: CountSpending | None) -> Plan:
    """A plan with a memory of counts that is made by hand."""
    statistics = statistics_by_hand(spec) if spec.windows.panes > 1 else by_hand(spec, {})
    plan = make_plan(spec, statistics, "uniform", "posterior")
    model = GroupModel(np.array([0.3]), 1.0, 2.0)
    memory = CountMemory({"": (model,)}, 2.0, 0.5, spending)
    return replace(plan, count_memories=dict.fromkeys(plan.counts, memory))


def spend(epsilon: str, *intervals: int, slow: int | None = None) -> CountSpending:
    """Spending with these intervals at the usual scale and the next ones; `slow` is below it."""
    more = [*intervals, *[intervals[-1]] * 5]
    return CountSpending(Fraction(epsilon), DAY, ((*[slow or intervals[0]] * 4, *more[:5]),))


@dataclass(frozen=True)
class Case:
    """A specification, and the streams that are compared."""

    spec: Specification
    spending: CountSpending | None = None
    public: Sequence[str] = ("s", "s", "s")
    limit: Fraction | None = None
    way: Way = field(default_factory=Way)
    small: int = 1 << 5
    """The sum of a row: much smaller than in real runs, and audited alike."""

    @property
    def streams(self) -> list[Stream]:
        """All private events in all windows."""
        return all_streams("a", self.public)

    def run(self) -> tuple[Likely, list[Broken]]:
        """What may be told about each stream, and the neighbours that are told apart."""
        plan = remember(self.spec, self.spending)
        likely = enumerated(plan, self.streams, self.way, self.small)
        return likely, find_broken(self.spec, likely, self.streams, limit=self.limit)


def slide(spec: Specification, panes: int) -> Specification:
    """The same with windows that slide."""
    windows = {"size": f"{panes} us", "slide": "1 us", "future": "10 s"}
    return spec.model_copy(update={"windows": Windows.model_validate(windows)})


COUNTED = specification([("a", "2")], ["s"], types="as", counts=["AND(a, s)"])
SEVERAL = specification([("a", "4")], ["s"], types="as", counts=["a", "AND(a, s)"])
MIXED = specification([("a", "4")], ["AND(a, s)"], types="as", counts=["a"])
CASES = {
    "every window": Case(COUNTED),
    "a limit that is reached": Case(limited(COUNTED, "4 per d"), limit=Fraction(4)),
    "a limit that is spread": Case(
        limited(COUNTED, "2 per d", "paced"), spend("0.5", 2, 1), limit=Fraction(2)
    ),
    "a limit that is spread and reached": Case(
        limited(COUNTED, "2 per d", "paced"), spend("0.75", 1, 2), limit=Fraction(2)
    ),
    "an engine for each window": Case(
        limited(COUNTED, "2 per d", "paced"),
        spend("0.5", 2, 1),
        limit=Fraction(2),
        way=Way(restored=True),
    ),
    "draws that are thrown away": Case(
        COUNTED, None, ("s", "s"), way=Way(redrawn=True), small=1 << 3
    ),
    "windows that cost nothing": Case(
        limited(COUNTED, "2 per d", "paced"), spend("0.5", 2, 1), ("s", "", "s"), Fraction(2)
    ),
    "windows that slide": Case(
        limited(slide(COUNTED, 2), "2 per d", "paced"),
        spend("0.4", 2, 1, slow=3),
        limit=Fraction(2),
        way=Way(restored=True),
        small=1 << 4,
    ),
    "windows that slide, and a limit that is reached": Case(
        limited(slide(COUNTED, 2), "1.5 per d"), None, ("s", "s"), Fraction(3, 2), small=1 << 3
    ),
    "several counts": Case(SEVERAL, None, ("s", ""), small=1 << 3),
    "several counts and a limit that is spread": Case(
        limited(SEVERAL, "4 per d", "paced"),
        spend("0.5", 2, 1, slow=3),
        limit=Fraction(4),
        small=1 << 3,
    ),
    "answers beside counts": Case(limited(MIXED, "5 per d"), None, ("s", "s"), limit=Fraction(5)),
}


class CountNoise(SubjectNoise):
    """Takes the draws of counts from scripts, one for each subject."""

    def __init__(self, scripts: Ints, subjects: int, small: int) -> None:
        super().__init__(scripts, subjects)
        self.small = small

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out whom each draw is for."""
        names = [str(number) for number in range(self.subjects)]
        slots = np.array([names.index(name) for name in sorted(names)])
        draw, places = CountRelease._draw, [np.empty(0, np.int64)]

        def drawing(
            this: Any,
            tally: Any,
            epsilon: Any,
            drawn: Any,
            chosen: Any = True,
        ) -> float:
            some = (tally[..., counts._OPEN] > 0) & chosen
            places[0] = slots[np.nonzero(some)[-1]]
            return draw(this, tally, epsilon, drawn, chosen)

        def counting(channel: CountChannel, inputs: Ints, _: object) -> Ints:
            kinds = np.array([self.kind(row_of(channel, int(true))) for true in inputs])
            return self.decide(places[0], kinds) - channel.reach

        def making(epsilon: Fraction) -> CountChannel:
            """A channel for a single subject, in a few numbers, so that it can be enumerated."""
            return make_count_channel.__wrapped__(epsilon, 1)

        with (
            patch.object(CountRelease, "_draw", drawing),
            patch.object(CountChannel, "draw", counting),
            patch.object(counts, "make_count_channel", making),
            patch.object(count_channels, "_TOTAL", self.small),
            patch.object(count_memory, "_LEARNING", 1.0),  # so that one draw changes what follows
            super().watching(),
        ):
            yield


def alone(spec: Specification) -> groups.SubjectGroups:
    """Every subject is a group of its own."""
    return groups.SubjectGroups({ALONE: {name: name for name in registry(spec)}})


class CountRunner:
    """An engine with the accountant of real runs, and accounts in memory."""

    def __init__(self, plan: Plan, noise: CountNoise, subjects: int) -> None:
        names = tuple(map(str, range(subjects)))
        spec = plan.spec.model_copy(update={"subjects": names})
        self.version = SpecVersion(spec, replace(plan, spec=spec))
        self.noise = noise
        self.engine = self._open(names)
        self.accounts = Accounts(
            np.arange(subjects), list_accounts(self.version, pa.array(names, pa.large_string()))
        )

    def _open(self, names: Sequence[str]) -> Engine:
        known = Subjects()
        known.add(names)
        with patch.object(groups.SubjectGroups, "read", alone):
            compiled: CompiledSpec = self.version.compile(self.noise)
        return Engine(compiled, known)

    def restart(self) -> None:
        """Go on with a new engine."""
        before = self.engine
        self.engine = self._open(())
        self.engine.restore(before.snapshot())
        self.engine.most_windows = before.most_windows

    def run(self, sent: Sequence[pa.RecordBatch], way: Way) -> Iterator[tuple[Any, Any]]:
        """Yield answers and charges, window by window."""
        self.engine.most_windows = 1
        for number in range(len(sent) + 1):
            if number == len(sent):
                windows = self.engine.flush()
            else:
                rows = Rows("p", sent[number])
                windows = self.engine.insert(MergedBatch.from_batch(self.engine.extract(rows)))
            for closed in windows:
                yield self._settle(closed, way)
            if way.restored and number < len(sent):
                self.restart()

    def _settle(self, closed: Any, way: Way) -> tuple[Any, Any]:
        lease: Any = None
        accountant = Accountant(self.engine, self.version, lease)
        accountant._slots = np.arange(len(self.accounts.ids))
        memory = self.engine.windows.memory
        with patch.object(Accountant, "_open_accounts", lambda *_: self.accounts):
            bill = accountant.bill(closed)
        if way.redrawn:
            self.engine.answer(closed, bill.exhausted, bill.uncounted)
            self.engine.windows.restore_memory(memory)
        charged = np.zeros((len(self.accounts.private), len(self.accounts.ids)), np.int64)
        names = [one.name for one in self.accounts.private]
        for charge in bill.charges:
            charged[names.index(charge.private)] += charge.amount * charge.ids
        return self.engine.answer(closed, bill.exhausted, bill.uncounted), charged


def released(plan: Plan, streams: Sequence[Stream], noise: CountNoise, way: Way) -> list[Told]:
    """Run the engine on streams, each of a subject: what is told about each of them."""
    runner = CountRunner(plan, noise, len(streams) + 1)
    with noise.watching():
        found = list(runner.run(batches(plan.spec, streams), way))
    rows, said = [], []
    for answers, _ in found:
        table = pl.DataFrame(answers.counted.table()).drop("window_start", "window_end")
        table = table.sort(pl.col("group").cast(pl.Int64), "query")
        made = {name: float(number) for number, name in enumerate(METHODS)}
        method = pl.col("method").cast(pl.String).replace_strict(made, return_dtype=pl.Float64)
        table = table.with_columns(method).drop("group", "consumer", "query")
        # A group has a row for each count.
        numbers = table.fill_null(float("nan")).to_numpy().astype(np.float64)
        rows.append(numbers.reshape(len(streams) + 1, -1))
        said.append(answers.detected)
    counted, detected = np.stack(rows, axis=1), np.concatenate(said)
    charges = np.stack([amounts for _, amounts in found])
    return [
        Told(
            counted[number].tobytes() + detected[:, :, number].tobytes(),
            b"",
            (),
            tuple(map(tuple, charges[:, :, number].tolist())),
        )
        for number in range(len(streams))
    ]


def enumerated(plan: Plan, streams: Sequence[Stream], way: Way, small: int) -> Likely:
    """All that may be told about each of the streams."""
    return enumerate_streams(
        streams,
        lambda scripts, subjects: CountNoise(scripts, subjects, small),
        lambda some, noise: released(plan, some, noise, way),
    )


def breaks(name: str) -> list[Broken]:
    """The neighbours of a case that are told apart."""
    return CASES[name].run()[1]


@pytest.mark.parametrize("name", CASES)
def test_nothing_tells_neighbours_apart_by_more_than_was_charged(name: str) -> None:
    likely, broken = CASES[name].run()
    assert broken == []
    outcomes = {outcome for chances in likely for outcome in chances}
    charges = {one.charges for one in outcomes}
    # What is drawn, and with which epsilon, depends on what was released, where it is meant to.
    assert (len(charges) > 1) == (CASES[name].spending is not None)


def test_the_check_is_sharp() -> None:
    """One window's ratio is all of its epsilon, as far as a small table allows."""
    likely, _ = CASES["every window"].run()
    ratio = max(
        likely[one][outcome] / likely[other][outcome]
        for one in range(len(likely))
        for other in range(len(likely))
        for outcome in likely[one]
    )
    assert 0.6 * np.exp(6) < ratio <= np.exp(6)  # three windows with epsilon 2


def see_truth(monkeypatch: Patch) -> list[Any]:
    """Note in which groups the pattern is detected, whenever a window is priced or drawn."""
    decide, truth = CountRelease._decide, [np.empty(0, np.int64)]

    def seeing(self: CountRelease, windows: Any, policies: Any) -> Any:
        bits = np.ascontiguousarray(windows.bits[:, self._status.columns], "<u8").view(np.uint8)
        flags = np.unpackbits(bits, axis=-1, bitorder="little", count=windows.slots)[0, 0]
        order = np.argsort([str(slot) for slot in range(windows.slots)])
        truth[0] = flags[order].astype(np.int64)
        return decide(self, windows, policies)

    monkeypatch.setattr(CountRelease, "_decide", seeing)
    return truth


def test_a_filter_that_is_updated_with_the_true_count(monkeypatch: Patch) -> None:
    assert not breaks("every window")
    truth, follow = see_truth(monkeypatch), CountFilter.follow

    def peeking(self: CountFilter, state: Any, local: int, reading: Any, *rest: Any) -> Any:
        return follow(self, state, local, reading._replace(drawn=truth[0]), *rest)

    monkeypatch.setattr(CountFilter, "follow", peeking)
    assert breaks("every window")


def test_spending_that_looks_at_the_true_count(monkeypatch: Patch) -> None:
    name = "a limit that is spread"
    assert not breaks(name)
    truth, choose = see_truth(monkeypatch), CountFilter.choose_intervals

    def peeking(self: CountFilter, *given: Any) -> Any:
        return np.where(truth[0] > 0, choose(self, *given), 0)

    monkeypatch.setattr(CountFilter, "choose_intervals", peeking)
    assert breaks(name)


def test_a_scale_that_follows_the_true_count(monkeypatch: Patch) -> None:
    """The next window is drawn earlier if the pattern is there."""
    name = "a limit that is spread"
    truth, follow = see_truth(monkeypatch), CountFilter.follow

    def peeking(self: CountFilter, *given: Any) -> Any:
        state, found = follow(self, *given)
        return state._replace(paid=state.paid - truth[0]), found

    monkeypatch.setattr(CountFilter, "follow", peeking)
    assert breaks(name)


def test_a_price_that_is_not_that_of_the_draw(monkeypatch: Patch) -> None:
    name = "a limit that is spread"
    price = CountRelease._price_rows
    monkeypatch.setattr(CountRelease, "_price_rows", lambda *given: price(*given) // 2)
    assert breaks(name)


def test_a_draw_that_was_thrown_away_is_remembered(monkeypatch: Patch) -> None:
    assert not breaks("draws that are thrown away")
    monkeypatch.setattr(VersionedWindows, "restore_memory", lambda *_: None)
    assert breaks("draws that are thrown away")


def test_those_who_do_not_pay_are_counted(monkeypatch: Patch) -> None:
    name = "a limit that is reached"
    assert not breaks(name)
    draw = CountRelease.draw

    def for_all(self: CountRelease, windows: Any, policies: Any, *rest: Any) -> Any:
        return draw(self, windows, policies % self._status.policies, *rest)

    monkeypatch.setattr(CountRelease, "draw", for_all)
    assert breaks(name)


def test_a_limit_that_is_forgotten_from_window_to_window(monkeypatch: Patch) -> None:
    name = "a limit that is spread and reached"
    assert not breaks(name)
    spent = "tacit.ledger.accounts.Accounts.spent"
    monkeypatch.setattr(spent, lambda self, *_: np.zeros(len(self.ids), np.int64))
    assert {one.windows for one in breaks(name)} >= {(0, 1, 2)}


def test_only_one_of_two_counts_is_charged(monkeypatch: Patch) -> None:
    assert not breaks("several counts")
    prepare = CountRelease.__init__

    def forgetting(self: CountRelease, *given: Any, **named: Any) -> None:
        prepare(self, *given, **named)
        self._elements[1] = frozenset()

    monkeypatch.setattr(CountRelease, "__init__", forgetting)
    assert breaks("several counts")


def test_counts_of_windows_that_slide_have_all_of_epsilon_each(monkeypatch: Patch) -> None:
    case = Case(slide(COUNTED, 2), None, ("s",), small=1 << 3)
    assert not case.run()[1]
    monkeypatch.setattr("tacit.spec.epsilon_split.count_touched_windows", lambda *_: 1)
    monkeypatch.setattr(Plan, "check_counts", lambda _: None)
    assert case.run()[1]


# Runs with a ledger that break down after each release


REGISTERED = COUNTED.model_copy(update={"subjects": ("0", "1")})
STREAMS: list[Stream] = [("s", "s"), ("s", "as")]


def told_about(stream: Stream, noise: CountNoise, ledger: Path, *, unbroken: bool = False) -> Told:
    """All that is released about a stream by engines that break down after each release."""
    frame = pl.DataFrame(pa.Table.from_batches(batches(REGISTERED, [stream])))
    plan = remember(REGISTERED, None)
    ledger.write_bytes(_empty_ledger())
    answers, charges = [b""] * len(stream), [0] * len(stream)
    for _ in range(2 * len(stream) + 1):
        with (
            patch.object(groups.SubjectGroups, "read", alone),
            noise.watching(),
            Ledger.open(str(ledger)) as opened,
        ):
            source = Input("p", FrameSource(frame, "p"))
            run = Run(REGISTERED, [source], plan=plan, noise=noise, ledger=opened, name="run")
            charged, found = 0, None
            for found in run:
                assert found.counted is not None
                row = pl.DataFrame(found.counted.table()).filter(group="0")
                numbers = row.select("count", "left_out", "^estimate.*$").to_numpy()
                answers[found.first - FIRST] += numbers.astype(np.float64).tobytes()
                # The other subject is not open, and pays nothing.
                charges[found.first - FIRST] += run.outcome.charged.get("a", 0) - charged
                charged = run.outcome.charged.get("a", 0)
                if not unbroken:
                    break
            if run.outcome.finished and (found is None or unbroken):
                break
    else:
        raise AssertionError("the run never ends")
    return Told(b"|".join(answers), b"", (), tuple((charge,) for charge in charges))


@pytest.fixture
def _one_by_one(monkeypatch: Patch) -> None:
    """Windows are released as they close."""
    monkeypatch.setattr(Settlement, "is_due", lambda self: self.pending)


@pytest.mark.usefixtures("_one_by_one")
def test_a_count_that_was_released_is_never_drawn_again(tmp_path: Path) -> None:
    def release(script: Ints, stream: Stream) -> tuple[CountNoise, Told]:
        full = np.concatenate([script, np.full((1, script.shape[1]), -1)])
        noise = CountNoise(full, 2, 1 << 3)
        told = told_about(stream, noise, tmp_path / "ledger.db")
        # Counts, estimates and charges are the same, byte for byte, as in a run that goes on.
        if stream is STREAMS[1]:
            same = CountNoise(full, 2, 1 << 3)
            assert told == told_about(stream, same, tmp_path / "ledger.db", unbroken=True)
        return noise, told

    found = [
        outcome
        for number, stream in enumerate(STREAMS)
        for outcome in enumerate_runs(number, partial(release, stream=stream))
    ]
    likely = add_up(len(STREAMS), found)
    assert find_broken(REGISTERED, likely, STREAMS) == []
    assert len({outcome for chances in likely for outcome in chances}) == 16


@pytest.mark.usefixtures("_one_by_one")
def test_a_count_that_is_drawn_again_after_a_restart(tmp_path: Path, monkeypatch: Patch) -> None:
    forget_progress(monkeypatch)

    def run() -> Told:
        noise = CountNoise(np.full((2, 0), -1), 2, 1 << 3)
        return told_about(STREAMS[0], noise, tmp_path / "ledger.db")

    with pytest.raises(TacitError):  # the ledger knows up to where windows were released
        run()
    monkeypatch.setattr("tacit.ledger.lease.Lease._check_next", lambda *_: None)
    assert run().charges == ((2 * NANO,), (4 * NANO,))  # more than epsilon: it is noticed


def test_a_damaged_memory_is_refused() -> None:
    spec = limited(COUNTED, "2 per d", "paced")
    plan = remember(spec, spend("0.5", 2, 1))
    written = plan.to_dict()
    read = Plan.from_dict(written, spec)
    assert read.to_dict() == written
    memory = written["count_memories"]["n0"]
    changes: list[dict[str, Any]] = [{"width": -1}, {"models": {}}, {"spending": {"nano": 0}}]
    for change in changes:
        with pytest.raises(PlanError):
            Plan.from_dict(written | {"count_memories": {"n0": memory | change}}, spec)
    with pytest.raises(PlanError, match="other counts"):
        Plan.from_dict(written | {"count_memories": {"x": memory}}, spec)
