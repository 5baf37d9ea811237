"""Sources that live, and tuples that wait until another one confirms their time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tacit.connectors.sources import Batch, Source
from tacit.engines.intake import Intake, Taken
from tacit.engines.local import Input
from tacit.pipeline.arrivals import Arrivals, Rows
from tacit.spec.reading import loads
from tacit.spec.specification import Specification
from tacit.windows.jumps import Jumps

SPEC = """
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 10 us}
events: {a: {stream: s}}
queries: [{name: q, consumer: c, pattern: a}]
"""


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


class Fed:
    """An engine and its run; how wide masks are depends on the specification of the moment."""

    learning = 0
    words = 1

    def __init__(self, source: Source) -> None:
        self.inputs = [Input("s", source)]
        self.spec: Specification = loads(SPEC)
        self.jumps: Jumps | None = Jumps(100, 1000)

    @property
    def engine(self) -> Fed:
        """It is both."""
        return self

    def extract(self, rows: Rows) -> Arrivals:
        """What the columns say."""
        slots, times = (rows.table.column(name).to_numpy() for name in ("who", "at"))
        masks = np.ones((len(slots), self.words), np.uint64)
        return Arrivals(slots.copy(), times.copy(), masks, (rows,))

    def batches(self, input_: Input, known: int = 0) -> Iterator[Batch]:
        """All of them."""
        return input_.source.batches(("who", "at"), ())


TUPLES = [(0, 0), (1, 1), (0, 500), (0, 501), (1, 502), (0, 900)]


def test_what_waits_is_neither_counted_nor_acknowledged_and_is_read_by_the_latest_events() -> None:
    """The specification changes while two tuples wait for a third."""
    source = Single(TUPLES)
    run = Fed(source)
    intake = Intake(run, {})
    places: list[tuple[int, int]] = []
    for taken in intake.flow():
        if taken is None:
            continue
        assert isinstance(taken, Taken)
        assert taken.arrivals.masks.shape == (len(taken.arrivals), run.words)
        intake.advance(taken, len(taken.arrivals))
        intake.acknowledge()
        places += zip(taken.arrivals.slots.tolist(), taken.arrivals.times.tolist(), strict=True)
        if places[-1] == TUPLES[1]:
            assert source.safe == [0, 1]
            assert intake.positions["s=single"] == {"token": 1, "rows": 1, "progress": 1}
            run.words = 2
    assert places == [*TUPLES[:-1], (-3, 900)]
    assert source.safe == [*range(6)]
    assert intake.positions["s=single"] == {"token": 5, "rows": 1, "progress": 502}
