"""The engine in pieces gives what the engine on one machine gives, whatever is lost on the way."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.answers.codec import unpack
from tacit.connectors.files import open_source
from tacit.engines.setup import assign
from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.counts import TupleCounts, sum_refusals
from tacit.engines.sharded.job import Partition, ShardedJob
from tacit.engines.sharded.layout import Layout
from tacit.engines.sharded.lines import ShardLine
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.saved_state import SavedState
from tacit.engines.sharded.shard import LateTuples, ShardAnswers, ShardGroup
from tacit.events.subjects import Subjects
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.refusals import Refusals
from tacit.pipeline.run import Run
from tacit.pipeline.sources import Batch, Source
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.simulated import Simulation, made
from tests.longer import longer

SPEC = """
version: 1
streams: {home: {subject: who, time: at, unit: s, columns: {level: integer}}}
windows: {size: 60 s, lateness: 25 s}
events:
  door: {stream: home, where: "kind = 0"}
  stove: {stream: home, where: "kind = 1"}
  bed: {stream: home, where: "kind = 2"}
  loud: {stream: home, where: "level > 6"}
queries:
  - {name: both, consumer: care, pattern: "AND(door, stove)"}
  - {name: order, consumer: care, pattern: "SEQ(door, stove, bed)"}
  - {name: nested, consumer: city, pattern: "OR(SEQ(door, NOT stove, bed), AND(loud, bed))"}
  - {name: soon, consumer: city, pattern: "SEQ(door, bed) WITHIN 10 s"}
  - {name: thrice, consumer: city, pattern: "SEQ(stove{3,})"}
  - {name: rising, consumer: city, pattern: "SEQ(door x, stove y) WHERE y.level > x.level"}
"""
SLIDING = SPEC.replace("size: 60 s", "size: 60 s, slide: 20 s")
KEY = ["window_start", "subject", "query"]


def written(folder: Path, seed: int, files: int, rows: int) -> list[tuple[str, Path]]:
    """Files of the same stretch of time, each out of order, with late, unfit and future tuples."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(files):
        times = 1_700_000_000 + np.sort(random.integers(100 * number, 900, rows))
        times += random.integers(-30, 31, rows)
        times[random.random(rows) < 0.01] += 50_000  # more than windows.jump, within windows.future
        times[random.random(rows) < 0.01] += 900_000
        frame = pl.DataFrame(
            {
                "who": [f"p{n}" if n else None for n in random.integers(0, 30, rows)],
                "at": times,
                "kind": random.integers(0, 4, rows),
                "level": random.integers(0, 10, rows),
            }
        )
        path = folder / f"{seed}-{number}.{('parquet', 'csv', 'jsonl')[number % 3]}"
        if path.suffix == ".parquet":
            frame.write_parquet(path)
        elif path.suffix == ".csv":
            frame.write_csv(path)
        else:
            frame.write_ndjson(path)
        found.append(("home", path))
    return found


def alone(spec: Specification, files: list[tuple[str, Path]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The answers and the dead letters of a run on one machine."""
    answers, letters, _ = counted(spec, files)
    return answers, letters


def counted(
    spec: Specification, files: list[tuple[str, Path]]
) -> tuple[pl.DataFrame, pl.DataFrame, Refusals]:
    """The answers, the dead letters and the counts of a run on one machine."""
    letters = io.BytesIO()
    inputs = assign(spec, [(stream, open_source(path)) for stream, path in files])
    run = Run(spec, inputs, dead_letters=DeadLetters.to_file(letters))
    answers = pl.concat([pl.DataFrame(part.table()) for part in run])
    return plain(answers), lettered(letters.getvalue()), run.refusals


def plain(answers: pl.DataFrame) -> pl.DataFrame:
    """Answers in one order and of one type."""
    columns = [pl.col(name).cast(pl.String) for name in ("subject", "query")]
    return answers.with_columns(columns).select([*KEY, "detected"]).sort(KEY)


def lettered(lines: bytes) -> pl.DataFrame:
    """Dead letters in one order."""
    return (
        pl.read_ndjson(lines, infer_schema_length=None).sort(pl.all()) if lines else pl.DataFrame()
    )


def collected(job: ShardedJob, lines: list[ShardLine]) -> pl.DataFrame:
    """What shards told, each window once for each shard."""
    told = [(line.window, shard) for line in lines if not line.finished for shard in line.shards]
    assert len(told) == len(set(told))
    bodies = {(line.window, line.shards): line.body for line in lines if not line.finished}
    names = job.subjects.names.cast(pa.large_string())
    tables = [unpack(body, 0, lambda ids: names.take(pa.array(ids)))[0] for body in bodies.values()]
    return plain(pl.concat([pl.DataFrame(table) for table in tables]))


@pytest.mark.parametrize("seed", [1, *longer(2, 4)])
@pytest.mark.parametrize("text", [SPEC, SLIDING], ids=["tumbling", "sliding"])
def test_true_answers_and_dead_letters_are_those_of_one_machine(
    tmp_path: Path, text: str, seed: int
) -> None:
    spec, random = loads(text), Random(seed)
    files = written(tmp_path, seed, 1 + seed % 3, 600)
    expected, refused, counts = counted(spec, files)
    job = made(spec, files, 1 + seed)
    run = Simulation(job, random, loss=0.4)
    found = collected(job, run.run())
    assert found.equals(expected)
    assert lettered(b"".join(run.letters)).equals(refused)
    assert sum_refusals(run.counts) == counts
    assert counts.refused
    assert run.losses
    assert not run.late


class Slow(Source):
    """A source that goes on for ever and has said what it has to say."""

    live = True
    ahead = 0

    def __init__(self, name: str, frames: list[pl.DataFrame]) -> None:
        self.name = name
        self.frames = frames
        self._begin = 0

    def schema(self) -> pa.Schema:
        """That of all frames."""
        return self.frames[0].to_arrow().schema

    def resume(self, token: object) -> None:
        """Begin with the frame of this number."""
        self._begin = int(str(token)) if token else 0

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Frame by frame, and then nothing but silence."""
        number = self._begin
        while True:
            frame = self.frames[number] if number < len(self.frames) else self.frames[0][:0]
            table = frame.to_arrow().combine_chunks().select(list(columns)).to_batches(1 << 20)
            if table:
                yield Batch(table[0], 1, number, self.name, token=number)
            number = min(number + 1, len(self.frames))
            empty = pa.RecordBatch.from_pylist([], frame.to_arrow().select(list(columns)).schema)
            yield Batch(empty, 1, number, self.name, token=number)
            time.sleep(0.01)


def at(*seconds: int) -> pl.DataFrame:
    """A tuple at each of these seconds, of two subjects in turn."""
    return pl.DataFrame(
        {
            "who": [f"p{1 + n % 2}" for n in range(len(seconds))],
            "at": [1_700_000_000 + s for s in seconds],
            "kind": [0] * len(seconds),
            "level": [0] * len(seconds),
        }
    )


def live_job(monkeypatch: pytest.MonkeyPatch, sources: Mapping[str, Slow]) -> ShardedJob:
    """A job of one shard that waits 200 ms for a source that is silent."""
    monkeypatch.setattr("tacit.engines.sharded.reader.open_input", lambda name, **_: sources[name])
    spec = loads(SPEC + "subjects: [p1, p2, p3]\n")
    subjects = Subjects()
    subjects.add(["p1", "p2", "p3"])
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    partitions = tuple(Partition("home", name) for name in sources)
    return ShardedJob(version, subjects, np.arange(3), partitions, 1, False, 200_000)


def test_a_partition_that_falls_silent_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then others' windows close; what it brings for them later is late, and nobody else's is."""
    sources = {
        "busy": Slow("busy", [at(0, 70, 130, 190, 250, 400)]),
        "quiet": Slow("quiet", [at(0, 1), at(61, 380)]),
    }
    job = live_job(monkeypatch, sources)
    busy, quiet = PartitionReader(job, 0), PartitionReader(job, 1)
    shard = ShardGroup(job, [0])

    def stepped(reader: PartitionReader) -> list[ShardAnswers | LateTuples]:
        pieces = [ShardBatch.from_bytes(piece) for _, piece in reader.step().batches]
        return [found for piece in pieces for found in shard.take(piece)]

    def until(reader: PartitionReader, wanted: type) -> list[ShardAnswers | LateTuples]:
        deadline = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline
            found = stepped(reader)
            if any(isinstance(one, wanted) for one in found):
                return found

    assert shard.counts == [TupleCounts("shard 0")]
    held = sources["quiet"].frames.pop()
    assert stepped(busy) == []
    assert stepped(quiet) == []
    begin = time.monotonic()
    closed = until(quiet, ShardAnswers)  # it says that it is idle
    assert time.monotonic() - begin > 0.15
    assert len(closed) == 6
    sources["quiet"].frames.append(held)
    late = until(quiet, LateTuples)
    assert [found.times.tolist() for found in late if isinstance(found, LateTuples)] == [
        [1_700_000_061_000_000]
    ]
    assert quiet.counts == TupleCounts("reader 1", 4)
    reason = {"late: its window is closed": 1}
    assert shard.counts == [TupleCounts("shard 0", -1, reason)]
    assert sum_refusals([busy.counts, quiet.counts, *shard.counts]) == Refusals(9, reason)
    saved = [SavedState.from_bytes(state) for state in shard.states()]
    assert ShardGroup(job, [0], saved).counts == shard.counts


def test_a_process_that_was_stopped_looks_for_tuples_again_before_a_source_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time in which nobody has looked says nothing about the source."""
    now = 0.0
    monkeypatch.setattr("tacit.engines.sharded.reader.time", SimpleNamespace(monotonic=lambda: now))
    sources = {"quiet": Slow("quiet", [at(61, 380), at(0, 1)])}
    reader = PartitionReader(live_job(monkeypatch, sources), 0)
    held = sources["quiet"].frames.pop()
    while not reader.step().batches:
        pass  # on a busy machine the first tuples take longer
    steps = 0
    while reader.blocks_others:
        now += 1000
        steps += 1
        reader.step()
    assert steps == 4
    sources["quiet"].frames.append(held)
    while not reader.blocks_others:  # it has read the tuples
        reader.step()
    now += 1000
    reader.step()
    assert reader.blocks_others


@pytest.mark.parametrize("seed", [0, *longer(1)])
def test_lines_that_cannot_be_read_are_reported_and_counted_once_whatever_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Readers read ahead: what they found there must not be told before its turn."""
    monkeypatch.setattr("tacit.connectors.file_pieces.PIECE", 2000)
    (_, source), *_ = reversed(written(tmp_path, seed, 3, 600))
    assert source.suffix == ".jsonl"
    lines = source.read_text().splitlines()
    lines = [f"{line}\n{{ no JSON {n}" if n % 7 == 0 else line for n, line in enumerate(lines)]
    source.write_text("\n".join(lines) + "\n")
    spec, files = loads(SPEC), [("home", source)]
    _, refused, counts = counted(spec, files)
    run = Simulation(made(spec, files, 3), Random(seed), loss=0.2)
    run.run()
    assert run.losses
    assert lettered(b"".join(run.letters)).equals(refused)
    assert sum_refusals(run.counts) == counts


def test_shards_of_subjects_who_never_send_have_their_answers_too(tmp_path: Path) -> None:
    names = [f"p{n}" for n in range(40)]
    spec = loads(f"{SPEC}subjects: [{', '.join(names)}]\n")
    files = written(tmp_path, 8, 2, 60)
    job = made(spec, files, 32)
    assert len(job.layout.nonempty) < 32
    found = collected(job, Simulation(job, Random(1)).run())
    assert found.equals(alone(spec, files)[0])
    assert found["subject"].n_unique() == 40


def test_who_is_in_which_shard_is_the_same_everywhere_and_even() -> None:
    subjects = Subjects()
    subjects.add([f"subject-{n}" for n in range(16_000)])
    layout = Layout(subjects, 16)
    sizes = np.bincount(layout.shard, minlength=16)
    assert sizes.min() > 850
    assert sizes.max() < 1150
    assert layout.shard[:8].tolist() == [11, 9, 15, 8, 14, 14, 8, 5]
    saved, texts = Subjects.from_state({"integers": np.array([7, 8])}), Subjects()
    texts.add(["7", "8"])
    assert Layout(saved, 64).shard.tolist() == Layout(texts, 64).shard.tolist()


def test_readers_send_what_patterns_look_at_and_all_after_a_silence(tmp_path: Path) -> None:
    """Others go on without a source that is silent: shards then have to see what is late."""
    begin, end = SPEC.index("  - {name: order"), SPEC.index("  - {name: thrice")
    spec = loads(SPEC[:begin] + SPEC[end : SPEC.index("  - {name: rising")])  # door and stove
    job = made(spec, written(tmp_path, 7, 1, 500), 3)
    fresh = PartitionReader(job, 0)
    saved = SavedState.from_bytes(fresh.state())
    heard = replace(saved, plain={**saved.plain, "was idle": True}).to_bytes()
    known = 1 << spec.types["door"] | 1 << spec.types["stove"]
    few, all_ = (_sent(reader) for reader in (fresh, PartitionReader(job, 0, heard)))
    assert 0 < len(few) < len(all_)
    assert sorted(few) == sorted(one for one in all_ if one[2] & known)


def _sent(reader: PartitionReader) -> list[tuple[int, int, int]]:
    """The tuples that a reader sends: the shard and the subject's place as one, time and mask."""
    found = []
    while not (step := reader.step()).done:
        for _, given in step.batches:
            piece = ShardBatch.from_bytes(given)
            slots = (piece.slots * 100 + np.repeat(piece.shards, piece.counts)).tolist()
            found += list(zip(slots, piece.times.tolist(), piece.masks[:, 0].tolist(), strict=True))
    return found


def letters_of(reader: PartitionReader, until: int) -> list[bytes]:
    """The dead letters of some steps, until there are so many, and of a few steps more."""
    found: list[bytes] = []
    deadline = time.monotonic() + 240
    more = 0
    while more < 4:
        found += reader.step().dead_letters.splitlines()
        more += len(found) >= until
        assert time.monotonic() < deadline, found
    return found


def test_an_unreadable_line_is_reported_once_whenever_the_reader_is_restored(
    tmp_path: Path,
) -> None:
    """Lines after the last row are read again: positions count rows."""
    spec = loads(f"{SPEC}subjects: [p1, p2]\n")
    path = tmp_path / "home.jsonl"
    row = '{{"who": "p1", "at": {}, "kind": 1, "level": 1}}\n'
    path.write_text("".join(row.format(1_700_000_000 + n) for n in range(20)))
    job = made(spec, [("home", path)], 2)
    job = replace(job, partitions=(Partition("home", str(path), True),))
    reader, found, expected = PartitionReader(job, 0), [], 0
    for text in ("{ 1\n{ 2\n", "{ 3\n", row.format(1_700_000_030) + "{ 4\n{ 5\n", "{ 6\n"):
        with path.open("a") as file:
            file.write(text)
        expected += text.count("{ ")
        found += letters_of(reader, text.count("{ "))
        assert len(found) == expected
        assert reader.counts.refused == {"not JSON": expected}
        again = reader.state()
        reader = PartitionReader(job, 0, again)
        assert reader.state() == again
        reader = PartitionReader(job, 0, reader.state())
    assert letters_of(PartitionReader(job, 0, reader.state()), 0) == []
    assert [json.loads(letter)["raw"] for letter in found] == [f"{{ {n}" for n in range(1, 7)]


def test_a_file_that_has_only_unreadable_lines_has_its_letters(tmp_path: Path) -> None:
    path = tmp_path / "home.jsonl"
    path.write_text("{ no JSON\n" * 9)
    job = made(loads(f"{SPEC}subjects: [p1, p2]\n"), [("home", path)], 2)
    run = Simulation(job, Random(1), loss=0.2)
    run.run()
    assert b"".join(run.letters).count(b"no JSON") == 9
