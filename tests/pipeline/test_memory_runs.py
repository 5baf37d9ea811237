"""Memory in runs: neighbours, reloads, new subjects, policies, rolled-back draws and shards."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.saved_state import SavedState
from tacit.engines.sharded.shard import ShardAnswers, ShardGroup
from tacit.errors import StaleError, StateError
from tacit.events.subjects import Subjects
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.pipeline.batches import Rows
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.versioned_windows import VersionedWindows
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory import protector
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter
from tacit.privacy.mechanisms.optimal.memory.planning import make_filters
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import RandomSource, SeededSource
from tacit.privacy.sampling import Sampler
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tests.differential.draws import FixedNoise
from tests.engines.sharded.simulated import made
from tests.engines.sharded.test_sharded import SLIDING, SPEC, written
from tests.privacy.memories import (
    Runner,
    Stream,
    Way,
    batches,
    limited,
    paced,
    plan_by_hand,
    remembering,
    with_memory,
)
from tests.privacy.streams import by_hand as by_hand_sliding
from tests.privacy.streams import sliding
from tests.privacy.worlds import by_hand

ONE = remembering([("AND(a, b)", "1")], ["a", "AND(b, s)", "OR(a, b)"])
Memory = dict[str, NDArray[Any]]


def same(one: Any, other: Any) -> bool:
    """Whether two memories are the same, byte for byte."""
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )


# With every symbol forced, neighbours are the same in every respect.


@pytest.mark.parametrize("kind", ["tumbling", "limited", "paced", "sliding"])
def test_with_every_symbol_forced_private_events_change_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ONE
    if kind == "sliding":
        spec = sliding([("AND(a, b)", "1")], ["a", "AND(b, s)"], panes=2)
    elif kind != "tumbling":
        spec = limited(ONE, "3 per d", "paced" if kind == "paced" else "every")
    plan = (
        with_memory(by_hand_sliding(spec, "optimal", "posterior"))
        if kind == "sliding"
        else plan_by_hand(spec)
    )
    if kind == "paced":
        plan = paced(plan, spec, 0.0165)
    choices: list[bytes] = []
    predict = BeliefFilter.predict

    def noted(self: BeliefFilter, *given: Any) -> Any:
        found = predict(self, *given)
        choices.append(found.chosen.tobytes())
        return found

    monkeypatch.setattr(BeliefFilter, "predict", noted)
    rng = Random(3)
    public = [[rng.choice(("", "s")) for _ in range(6)] for _ in range(9)]
    seen = []
    for _ in range(4):
        streams: list[Stream] = [
            tuple(rng.choice(("", "a", "b", "ab")) + shown for shown in own) for own in public
        ]
        choices.clear()
        runner = Runner(spec, plan, FixedNoise(), len(streams) + 1, (False, True))
        told = [
            (answers.detected.tobytes(), who.tobytes(), charges.tobytes(), len(answers))
            for answers, who, charges in runner.run(batches(spec, streams), Way())
        ]
        seen.append((told, list(choices), dict(runner.engine.window_state.memory)))
    for told, chosen, memory in seen[1:]:
        assert told == seen[0][0]
        assert chosen == seen[0][1]
        assert same(memory, seen[0][2])


class ConstantSource(RandomSource):
    """The same byte again and again: a draw follows from its row alone, in whichever order."""

    private = True  # so that threads are used

    def draw(self, number: int) -> bytes:
        """Return `number` times the byte."""
        return b"\x81" * number


@pytest.mark.parametrize("limit", ["", "3 per d"])
def test_stretches_of_subjects_make_no_difference(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = limited(ONE, limit, "paced") if limit else ONE
    plan = plan_by_hand(spec, profiles=2)
    if limit:
        plan = paced(plan, spec, 0.0165)
    rng = Random(4)
    streams: list[Stream] = [
        tuple(rng.choice(("", "a", "bs", "abs")) for _ in range(4)) for _ in range(333)
    ]
    seen = []
    for size in (64, 128, 1000):
        monkeypatch.setattr(protector, "_STRETCH", size)
        noise = Noise(ConstantSource())
        runner = Runner(spec, plan, noise, len(streams) + 1, (False, True))
        told = [
            (answers.detected.tobytes(), answers.confidence(1).tobytes(), charges.tobytes())
            for answers, _, charges in runner.run(batches(spec, streams), Way())
        ]
        seen.append((told, dict(runner.engine.window_state.memory)))
    for told, memory in seen[1:]:
        assert told == seen[0][0]
        assert same(memory, seen[0][1])


def test_windows_that_cost_nothing_are_the_same_whatever_is_private() -> None:
    """With real draws: no symbol is drawn, so nothing has to be forced."""
    spec = remembering([("a", "1")], ["AND(a, s)", "s"], "as")
    plan = plan_by_hand(spec)
    seen = set()
    for number, private in enumerate(product(("", "a"), repeat=3)):
        runner = Runner(spec, plan, Noise(SeededSource(number)), 2)
        for answers, _, charges in runner.run(batches(spec, [private]), Way()):
            sure = [answers.confidence(query).tobytes() for query in range(2)]
            seen.add((answers.first, answers.detected.tobytes(), *sure, charges.tobytes()))
            assert not charges.any()
    assert len(seen) == 3


# Versions, subjects and policies


def named(spec: Specification, names: tuple[str, ...]) -> Specification:
    """The same with these subjects; its fingerprint is another one."""
    return spec.model_copy(update={"subjects": names}).checked()


def versions_of(spec: Specification, plan: Plan, *, changed: bool) -> SpecVersion:
    """A next version: with another registry, or with another plan as well."""
    following = named(spec, ("0", "1", "2", "9"))
    if changed:
        plan = with_memory(make_plan(spec, by_hand(spec, {"a": 0.2}), "optimal"), 5)
    return SpecVersion(following, replace(plan, spec=following))


def test_memory_survives_the_moment_between_two_versions() -> None:
    """The old version is dropped before the first window of the new one is answered."""
    spec = named(ONE, ("0", "1", "2"))
    plan = plan_by_hand(spec)
    version, noise = SpecVersion(spec, plan), Noise(SeededSource(0))
    for changed in (False, True):
        subjects = Subjects()
        subjects.add(("0", "1", "2"))
        engine = Engine(version.compile(noise), subjects, version=version, noise=noise)
        sent = batches(spec, [("ab", "s", "a", "b", "s"), ("s",) * 5])
        for batch in sent[:2]:
            list(engine.push(Rows("p", batch)))
        engine.offer(versions_of(spec, plan, changed=changed))
        engine.advance()
        list(engine.push(Rows("p", sent[2])))  # closes the last window of the old version
        before = dict(engine.windows.memory[0])
        assert before
        while engine.due:
            engine.advance()
        assert engine.windows.next is None
        after = dict(engine.window_state.memory)
        assert (after == {}) if changed else same(after, before)


def test_new_subjects_start_from_the_prior_and_others_go_on() -> None:
    runner = Runner(ONE, plan_by_hand(ONE), Noise(SeededSource(0)), 3)
    windows = runner.run(batches(ONE, [("ab", "s", "a", "b"), ("s",) * 4]), Way())
    next(windows)
    assert len(runner.engine.window_state.memory["policy0.0.groups"]) == 3
    engine = runner.engine
    before = dict(engine.window_state.memory)
    engine.register(["new"])
    engine.window_state.make_room()
    state = engine.window_state
    assert len(state.since) == 4
    for closed in engine.flush():
        answers = engine.answer(closed)
        assert answers.detected.shape[2] == 4
    groups = state.memory["policy0.0.groups"]
    assert len(groups) == 4
    assert len(before["policy0.0.groups"]) == 3  # old arrays never change


def test_each_policy_has_a_memory_of_its_own_subjects() -> None:
    spec = remembering([("a", "1"), ("b", "0.5", "x")], ["AND(a, s)", "b"], "abs")  # type: ignore[list-item]
    plan = with_memory(make_plan(spec, by_hand(spec, {}), "optimal"))
    assert len(plan.mechanisms) == 2
    assert isinstance(spec.subjects, tuple)
    names = tuple(map(str, spec.subjects))
    frame = pl.DataFrame(
        {
            "who": [*names, *names, names[0]],
            "at": [2000] * len(names) + [2002] * len(names) + [2004],
            **{name: [1] * (2 * len(names) + 1) for name in "abs"},
            "v": [1.0] * (2 * len(names) + 1),
            "w": [1.0] * (2 * len(names) + 1),
        }
    )
    run = Run(spec, [Input("p", FrameSource(frame, "p"))], plan=plan, noise=Noise(SeededSource(1)))
    list(run)
    memory = run.engine.window_state.memory
    own = sum(name.startswith("x") for name in names)
    sizes = {len(part) for name, part in memory.items() if name.endswith(".groups")}
    assert sizes == {own, len(names) - own}
    policies = {name.partition(".")[0] for name in memory}
    assert policies == {"policy0", "policy1"}


def test_nobody_needs_to_have_a_policy() -> None:
    """All subjects are named: the policy of the others has a mechanism, and no subjects."""
    spec = remembering([("a", "1"), ("b", "0.5", "x")], ["AND(a, s)", "b"], "abs")  # type: ignore[list-item]
    assert isinstance(spec.subjects, tuple)
    named = tuple(str(name) for name in spec.subjects if str(name).startswith("x"))
    spec = spec.model_copy(update={"subjects": named})
    plan = with_memory(make_plan(spec, by_hand(spec, {}), "optimal"))
    assert len(plan.mechanisms) == 2
    frame = pl.DataFrame(pa.Table.from_batches(batches(spec, [("a", "abs", "s")])))
    frame = frame.with_columns(pl.lit(named[0]).alias("who"))
    run = Run(spec, [Input("p", FrameSource(frame, "p"))], plan=plan, noise=Noise(SeededSource(1)))
    assert sum(len(answers) for answers in run) == 3 * 2 * len(named)
    memory = run.engine.window_state.memory
    assert len(memory["policy0.0.groups"]) == 0
    assert len(memory["policy1.0.groups"]) == len(named)


# Draws that are thrown away, and restarts, with a ledger


class ChosenNoise(Noise):
    """Takes the first symbol of a channel, or the last one."""

    def __init__(self) -> None:
        super().__init__(SeededSource(0))
        self.last = True
        self.drawn = 0

    def new_sampler(self) -> Sampler:
        """A sampler that takes the first or the last symbol."""
        noise = self

        class Chosen(Sampler):
            def sample(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
                places = np.searchsorted(self.offsets, rows, "right") - 1
                noise.drawn += len(rows)
                widths = np.array([one.table.shape[1] - 1 for one in self.channels])
                return (widths[places] * noise.last).astype(np.int32)

        return Chosen((), self.source)


def ledger_run(folder: Path, noise: ChosenNoise, name: str, windows: int = 3) -> list[bytes]:
    """All answers of a run with a ledger."""
    spec = named(ONE, ("0", "1", "2"))
    plan = plan_by_hand(spec)
    streams: list[Stream] = [("ab", "s", "a"), ("s", "s", "s")]
    frame = pl.DataFrame(pa.Table.from_batches(batches(spec, streams)))
    with Ledger.open(str(folder / f"{name}.db")) as ledger:
        run = Run(spec, [Input("p", FrameSource(frame, "p"))], plan=plan, noise=noise,
                  ledger=ledger, name="run")  # fmt: skip
        found = [answers.detected.tobytes() for answers in run]
    assert len(found) <= windows
    return found


def test_draws_that_another_engine_makes_stale_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = ledger_run(tmp_path, ChosenNoise(), "steady")
    noise = ChosenNoise()
    commit = Lease.commit

    def failing(self: Lease, checkpoint: bytes, *drafts: Any) -> Any:
        if drafts and not noise.last:
            noise.last = True
            raise StaleError("others")
        found = commit(self, checkpoint, *drafts)
        noise.last = False
        return found

    monkeypatch.setattr(Lease, "commit", failing)
    noise.last = False  # the first draw of every window is thrown away
    assert ledger_run(tmp_path, noise, "stale") == steady
    monkeypatch.setattr(VersionedWindows, "restore_memory", lambda *_: None)
    noise.last = False
    assert ledger_run(tmp_path, noise, "forgotten") != steady  # a mistake would be seen


# Calibration


def test_confidence_is_right_overall_and_at_every_hour() -> None:
    """Values follow the model, and subjects are silent now and then: stated shares come true."""
    spec = remembering([("AND(a, b)", "2")], ["a", "AND(b, s)"], "abs")
    (mechanism,) = plan_by_hand(spec, 4, slots=48, profiles=2).mechanisms
    assert isinstance(mechanism, Optimal)
    assert mechanism.memory is not None
    (own,) = mechanism.memory
    (one,) = make_filters(mechanism.parts, [own.transitions], [own.candidates])
    rng = np.random.default_rng(5)
    subjects, windows, tables = 400, 240, own.transitions.tables
    width = len(one.tables.component.signals)
    state = one.start(subjects)
    profile = np.zeros(subjects, np.int64)
    values = np.zeros(subjects, np.int64)
    stated = np.zeros((24, 10, 3))
    """`[hour][tenth][stated, true, number]`"""
    for window in range(windows):
        hour = window % 168
        bits = rng.random((subjects, width)) < 0.6
        signals = (bits << np.arange(width)).sum(axis=1).astype(np.uint64)[:, np.newaxis]
        predicted = one.predict(state, signals, hour)
        switched = rng.random(subjects) < 0.005
        drawn = rng.choice(len(own.transitions.weights), subjects, p=own.transitions.weights)
        profile = np.where(switched | (window == 0), drawn, profile)
        cells = predicted.cells * own.transitions.layout.slots + predicted.slot
        rows = tables[cells, profile, values].astype(np.float64)
        if window == 0:
            start = own.transitions.start[own.transitions.layout.groups[predicted.groups]]
            rows = start[np.arange(subjects), profile].astype(np.float64)
        edges = np.cumsum(rows / rows.sum(axis=1, keepdims=True), axis=1)
        values = (rng.random((subjects, 1)) > edges).sum(axis=1).clip(0, rows.shape[1] - 1)
        silent = rng.random(subjects) < 0.3
        symbols = one.draw(predicted, values.astype(np.uint64)[:, np.newaxis], silent)
        updated = one.update(state, predicted, symbols)
        state = updated.state
        likely = updated.beliefs.sum(axis=1)[:, [1, 3]].sum(axis=1).astype(np.float64)
        truth = values & 1
        tenth = np.minimum(9, (likely * 10).astype(np.int64))
        np.add.at(stated[hour % 24], tenth, np.column_stack([likely, truth, np.ones(subjects)]))
    for part in (stated.sum(axis=0), stated.sum(axis=1), stated.reshape(-1, 3)):
        said, true, number = part[part[:, 2] > 50].T
        share = said / number
        # Neighbouring windows are not independent, so deviations are larger than by chance alone.
        spread = 6 * np.sqrt(share * (1 - share) / number) + 0.01
        assert (np.abs(true / number - share) <= spread).all()
    assert (stated.sum(axis=0)[:, 2] > 50).sum() >= 5  # from certain to uncertain


# Shards


@pytest.fixture(params=[SPEC, SLIDING], ids=["tumbling", "sliding"])
def shard_state(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, bytes, Any]:
    """A job with memory, the state of its shard in the middle, and the batches that follow."""
    private = "private: [{pattern: stove, epsilon: 1}]\n"
    spec = loads(request.param + private)
    plan = with_memory(by_hand_sliding(spec, "optimal", "posterior"))
    job = made(spec, written(tmp_path, 3, 1, 300), 1, protected=True,
               version=SpecVersion(spec, plan))  # fmt: skip
    reader, shard, later = PartitionReader(job, 0), ShardGroup(job, [0]), []
    state = None
    for _ in range(200):
        step = reader.step()
        for _, encoded in step.batches:
            given = ShardBatch.from_bytes(encoded)
            if state is None:
                answered = [one for one in shard.take(given) if isinstance(one, ShardAnswers)]
                if answered:
                    state = shard.states()[0]
            else:
                later.append(given)
        if not step.batches:
            break
    assert state is not None
    return job, state, later


@pytest.mark.cases(1)
def test_a_shard_goes_on_with_its_memory(shard_state: tuple[Any, bytes, Any]) -> None:
    job, state, later = shard_state
    saved = SavedState.from_bytes(state)
    beliefs = {name: part for name, part in saved.arrays.items() if name.startswith("memory.")}
    assert any(name.endswith(".beliefs") for name in beliefs)
    again = SavedState.from_bytes(ShardGroup(job, [0], [saved]).states()[0])
    assert same(beliefs, {n: p for n, p in again.arrays.items() if n.startswith("memory.")})
    name = next(name for name in beliefs if name.endswith(".beliefs"))
    damaged = replace(saved, arrays={**saved.arrays, name: saved.arrays[name][:, :, :1]})
    with pytest.raises(StateError):
        go_on(ShardGroup(job, [0], [damaged]), later)


def go_on(shard: ShardGroup, batches: list[ShardBatch]) -> list[Any]:
    """All answers to come."""
    return [answers for given in batches for answers in shard.take(given)]
