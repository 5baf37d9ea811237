"""Sources that live, and tuples that wait until another one confirms their time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tacit.connectors.files import open_source
from tacit.events.columntypes import ColumnTypes
from tacit.events.masks import EventMasks
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import EventBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec, SourceColumns
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.reader import Input, Positions, Reader, RegistryExtractor
from tacit.pipeline.sources import Batch, Rejected, Source
from tacit.spec.yaml_reader import loads
from tacit.windows.jumps import Jumps
from tacit.windows.staging import StagedPresence

SPEC = loads("""
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 10 us}
events: {a: {stream: s}}
queries: [{name: q, consumer: c, pattern: a}]
""")


class Single(Source):
    """Each tuple in a batch of its own, with a receipt."""

    name = "single"
    live = True
    ahead = 0

    def __init__(self, tuples: Sequence[tuple[int, int]]) -> None:
        self._tuples = tuples
        self.safe: list[int] = []

    def schema(self) -> pa.Schema:
        """Slots and times."""
        return pa.schema({"who": pa.int32(), "at": pa.int64()})

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """One after the other."""
        for number, (who, at) in enumerate(self._tuples):
            table = pa.record_batch({"who": [who], "at": [at]}, schema=self.schema())
            yield Batch(table, 1, number, self.name, token=number, receipt=number)

    def acknowledge(self, receipt: int) -> None:
        """So many are safe."""
        self.safe.append(receipt)


class Extractor:
    """How wide masks are depends on the specification of the moment."""

    learning = 0
    words = 1
    jumps: Jumps | None = Jumps(100, 1000)

    def columns(self, stream: str) -> tuple[str, ...]:
        """All of them."""
        return ("who", "at")

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """As they are."""
        return ColumnTypes(SPEC.streams[stream], {})

    def extract(self, rows: Rows) -> EventBatch:
        """What the columns say."""
        slots, times = (rows.table.column(name).to_numpy() for name in ("who", "at"))
        masks = EventMasks(np.ones((len(slots), self.words), np.uint64))
        return EventBatch(times.copy(), slots.copy(), masks, rows)

    def stages(self, batch: EventBatch, *, ahead: bool) -> bool:
        """Nothing is found ahead."""
        return False

    def stage(self, batch: EventBatch) -> StagedPresence:
        """Nothing is found ahead."""
        raise AssertionError


TUPLES = [(0, 0), (1, 1), (0, 500), (0, 501), (1, 502), (0, 900)]


def test_what_waits_is_neither_counted_nor_acknowledged_and_is_read_by_the_latest_events() -> None:
    """The specification changes while two tuples wait for a third."""
    source, extractor = Single(TUPLES), Extractor()
    reader = Reader(SPEC.streams, [Input("s", source)], extractor, 1000)
    places: list[tuple[int, int]] = []
    for batch in reader.read():
        if batch is None:
            continue
        assert batch.masks.dense.shape == (len(batch), extractor.words)
        reader.advance(batch, len(batch))
        reader.acknowledge()
        places += zip(batch.slots.tolist(), batch.times.tolist(), strict=True)
        if places[-1] == TUPLES[1]:
            assert source.safe == [0, 1]
            assert reader.positions["s=single"] == {
                "token": 1,
                "rows": 1,
                "progress": 1,
                "lines": 0,
            }
            extractor.words = 2
    assert places == [*TUPLES[:-1], (-3, 900)]
    assert source.safe == [*range(6)]
    assert reader.positions["s=single"] == {
        "token": 5,
        "rows": 1,
        "progress": 502,
        "lines": 0,
    }


class Silent(Single):
    """One tuple, and then nothing, as long as anyone looks."""

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Empty batches follow the tuple."""
        for batch in super().read(columns, keys):
            yield batch
            for _ in range(9):
                yield Batch(batch.table.slice(0, 0), 1, batch.position, self.name, token=0)


def test_a_run_goes_on_in_silence_while_a_tuple_waits() -> None:
    """It may have to stop, or to close windows by the clock."""
    reader = Reader(SPEC.streams, [Input("s", Silent(TUPLES[:1]))], Extractor(), 1000)
    found = [None if batch is None else len(batch) for batch in reader.read()]
    assert found[:10] == [None] * 10
    assert 1 in found


SUBJECTS = Subjects()
SUBJECTS.add(pa.array(["0", "1"]))
EXTRACTOR = RegistryExtractor(CompiledSpec(SPEC), SUBJECTS)
LINES = b"""{"who": 0, "at": 1}
junk 1
{"who": 1, "at": 2}
junk 2
{"who": 0, "at": 3}
"""


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_unreadable_lines_are_reported_once_over_a_restart(tmp_path: Path, taken: int) -> None:
    """Two files, of which one holds no tuple at all."""
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").write_bytes(b"junk 3\n")
    letters = tmp_path / "letters"
    positions: Positions = {}
    mark = None
    for limit in (taken, 3 - taken):
        inputs = [Input("s", open_source(str(tmp_path / name))) for name in ("a.jsonl", "b.jsonl")]
        with DeadLetters(letters, keep=True) as dead_letters:
            dead_letters.rewind(mark)
            reader = Reader(
                SPEC.streams,
                inputs,
                EXTRACTOR,
                1000,
                positions=positions,
                dead_letters=dead_letters,
            )
            for batch in reader.read():
                assert batch is not None
                reader.advance(batch, min(limit, len(batch)))
                if len(batch) and limit < 3:
                    break
            positions, mark = json.loads(json.dumps([reader.positions, dead_letters.sync()]))
            dead_letters.add_lines("s", "a.jsonl", [Rejected(9, "not committed", "lost")])
        dead_letters = DeadLetters(letters, keep=True)
        dead_letters.rewind(mark)
    raw = [json.loads(line)["raw"] for line in letters.read_text().splitlines()]
    assert sorted(raw) == ["junk 1", "junk 2", "junk 3"]
