"""Read sources: events in order of arrival, and how far each source has been read.

Files are merged by the progress of their event time, so that the order of arrival is the same
whenever they are read. Sources that bring tuples as they happen are taken as they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypedDict

import numpy as np

from tacit.errors import SourceError
from tacit.events.columntypes import ColumnTypes
from tacit.events.streams import Stream
from tacit.events.subjects import Subjects
from tacit.events.times import NO_TIME
from tacit.options import option
from tacit.pipeline.batches import EventBatch, MergedBatch, ReadPosition, Rows
from tacit.pipeline.compiled_spec import CompiledSpec, SourceColumns
from tacit.pipeline.confirmation import Confirmation, confirmed
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.engine import RefusedRows
from tacit.pipeline.merge import merge
from tacit.pipeline.prefetch import interleave, prefetch
from tacit.pipeline.sources import Batch, Source
from tacit.windows.clock import REASONS
from tacit.windows.jumps import Jumps

_AHEAD: Final = 2
PULSE: Final = 0.2
"""Seconds after which silence is reported at the latest."""


@dataclass(frozen=True, slots=True)
class Input:
    """A source of tuples for a stream."""

    stream: str
    source: Source


class Position(TypedDict):
    """How far a source has been read, as plain data."""

    token: Any
    """Where it is resumed; None is its beginning."""
    rows: int
    """Rows that were taken from there on."""
    progress: int | None
    """The largest event time among them, by the rules of `merge`; None in old checkpoints."""


Positions = dict[str, Position]


class EventExtractor(Protocol):
    """Makes events of rows: an engine does, and `RegistryExtractor`."""

    @property
    def learning(self) -> int:
        """Whether subjects are learned from what is extracted."""

    @property
    def jumps(self) -> Jumps | None:
        """How far the time of a source may jump; None where no tuple moves anything."""

    def columns(self, stream: str) -> tuple[str, ...]:
        """The columns of a stream that are read."""

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """The types that the columns of a source get."""

    def extract(self, rows: Rows) -> EventBatch:
        """The events that rows give."""


@dataclass(frozen=True, slots=True)
class RegistryExtractor:
    """Makes events of rows for a registry that is complete."""

    flow: CompiledSpec
    subjects: Subjects
    learning: int = 0

    @property
    def jumps(self) -> Jumps:
        """How far the time of a source may jump."""
        return Jumps.of(self.flow.spec.windows, alone=len(self.subjects) == 1)

    def columns(self, stream: str) -> tuple[str, ...]:
        """The columns of a stream that are read."""
        return self.flow.columns(stream)

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """The types that the columns of a source get."""
        return self.flow.column_types(stream, source)

    def extract(self, rows: Rows) -> EventBatch:
        """The events that rows give."""
        return self.flow.extract(rows, self.subjects, learn=False)


class Reader:
    """Reads the inputs of a run from where they were left.

    Lines that cannot be read, and rows that are refused, go to the dead letters. `resumable` says
    that a run goes on after a stop: then a pipe, which cannot be read again, is taken as it comes.

    Sources are read ahead. With `rejected`, batches with lines that cannot be read go there instead
    of to the dead letters, with the number of rows that were read up to their ends.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        inputs: Sequence[Input],
        extractor: EventExtractor,
        future: int,
        *,
        positions: Mapping[str, Position] | None = None,
        dead_letters: DeadLetters | None = None,
        progress: Callable[[Source, int], None] | None = None,
        resumable: bool = True,
        rejected: deque[tuple[int, Batch]] | None = None,
    ) -> None:
        self.inputs = inputs
        self.dead_letters = dead_letters or DeadLetters()
        self.unreadable = 0
        """Lines that could not be read."""
        self._rejected = rejected
        self._streams = streams
        self._extractor = extractor
        self._future = future
        self._report = progress
        self._resumable = resumable
        self._keys = [f"{input_.stream}={input_.source.name}" for input_ in inputs]
        twice = {key for key in self._keys if self._keys.count(key) > 1}
        if twice and resumable:
            raise SourceError(f"{min(twice)} is given twice; it would be counted twice")
        self.positions: Positions = dict(positions or {})
        """Those of sources that are not read this time are kept as they are."""
        self._receipts: dict[int, Any] = {}
        """By the number of the input, what is to be acknowledged."""
        self._acknowledged: dict[int, Any] = {}
        self.live = any(
            input_.source.live or (resumable and input_.source.once) for input_ in inputs
        )
        """Whether tuples are taken as they come."""

    @property
    def receipts(self) -> bool:
        """Whether there is anything to acknowledge."""
        return bool(self._receipts)

    @property
    def listening(self) -> bool:
        """Whether every source gets what is sent from now on."""
        return all(input_.source.listening for input_ in self.inputs)

    def acknowledge(self) -> None:
        """All that was taken so far is safe: tell the sources."""
        receipts, self._receipts = self._receipts, {}
        self._acknowledged |= receipts
        for number, receipt in receipts.items():
            self.inputs[number].source.acknowledge(receipt)

    def advance(self, batch: MergedBatch, inserted: int) -> None:
        """The first so many of these tuples are in the windows; a run that is resumed needs it."""
        if not self._resumable:
            return
        for rows, taken, progress in batch.inserted_rows(inserted):
            position = rows.position
            assert position is not None, "these rows were not read by a reader"
            number, receipt = position.number, position.receipt
            if _is_resumable(self.inputs[number].source, position.token):
                self.positions[self._keys[number]] = Position(
                    token=position.token, rows=position.before + taken, progress=progress
                )
            if taken == rows.table.num_rows and receipt is not None:
                self._receipts[number] = receipt
                if self._acknowledged.get(number) == receipt:
                    del self._receipts[number]

    def refuse(self, refused: RefusedRows) -> None:
        """Write rows that were not taken to the dead letters."""
        subject = self._streams[refused.rows.stream].subject
        for reason in np.unique(refused.reasons):
            chosen = refused.reasons == reason
            self.dead_letters.rows(
                refused.rows,
                refused.chosen[chosen],
                REASONS[int(reason)],
                refused.times[chosen],
                subject,
            )

    def read(
        self, patience: Callable[[], float] = lambda: PULSE
    ) -> Generator[MergedBatch | None, None, None]:
        """Tuples as they come; None where live sources are silent for `patience()` seconds."""
        for input_, key in zip(self.inputs, self._keys, strict=True):
            if key in self.positions:
                input_.source.resume(self.positions[key]["token"])
        yield from self._read_live(patience) if self.live else self._read_merged()

    def _read_merged(self) -> Iterator[MergedBatch]:
        """Each source is read and extracted in a thread of its own.

        While subjects are learned the registry changes, so that only one thread may use it.
        """
        extractor = self._extractor
        ahead = 0 if extractor.learning else _AHEAD
        begin = [self._progress(key) for key in self._keys]
        flows = []
        for number, front in enumerate(begin):
            flow: Iterator[EventBatch] = map(extractor.extract, self._rows(number))
            if extractor.jumps is not None:
                flow = confirmed(flow, extractor.jumps, front)
            flows.append(prefetch(flow, ahead))
        return merge(flows, self._future, begin)

    def _read_live(self, patience: Callable[[], float]) -> Iterator[MergedBatch | None]:
        flows = [self._rows(number) for number in range(len(self.inputs))]
        jumps, front = self._extractor.jumps, max(map(self._progress, self._keys))
        confirmation = None if jumps is None else Confirmation(jumps, front)
        for item in interleave(flows, _AHEAD * len(flows), patience):
            if item is None:
                yield None
                continue
            # Here and not in the threads: subjects may be learned, and only one may do that.
            batch = self._extractor.extract(item[1])
            pieces = [batch] if confirmation is None else confirmation.add(batch)
            for piece in pieces:
                waited = piece.rows is not batch.rows
                yield MergedBatch.of_one(self._extract_again(piece) if waited else piece)
        for piece in confirmation.finish() if confirmation is not None else ():
            yield MergedBatch.of_one(self._extract_again(piece))

    def _extract_again(self, batch: EventBatch) -> EventBatch:
        """Tuples that waited, with the events that they give by the specification of now."""
        masks = self._extractor.extract(batch.rows).masks
        return replace(batch, masks=masks[batch.first : batch.first + len(batch.times)])

    def _progress(self, key: str) -> int:
        position = self.positions.get(key)
        if position is None or position["progress"] is None:
            return NO_TIME
        return position["progress"]

    def _rows(self, number: int) -> Iterator[Rows]:
        """The rows of an input without those that were taken before."""
        input_, position = self.inputs[number], self.positions.get(self._keys[number])
        skip = 0 if position is None else position["rows"]
        token, since = None, 0
        for batch in self._batches(input_, skip):
            if batch.token != token:
                token, since = batch.token, 0
            count = batch.table.num_rows
            passed = min(skip, count)
            skip -= passed
            if not (passed and passed == count):
                rest = batch.slice(passed)
                place = ReadPosition(number, token, since + passed, rest.receipt)
                yield Rows(
                    input_.stream,
                    rest.table,
                    rest.source,
                    rest.first_row,
                    rest.places,
                    rest.raw,
                    place,
                )
            since += count
        if skip:
            raise SourceError(
                f"{input_.source.name} has {skip:,} rows fewer than this run has taken of it: it"
                " was cut short, or is another file. Give it back as it was, or begin another run"
                f" with {option('name')}"
            )

    def _batches(self, input_: Input, known: int) -> Iterator[Batch]:
        """The batches of a source; lines that cannot be read are dead letters.

        What was rejected among the first `known` rows was reported before.
        """
        extractor = self._extractor
        columns = extractor.columns(input_.stream)
        types = extractor.column_types(input_.stream, input_.source)
        keys = [self._streams[input_.stream].subject]
        for batch in input_.source.batches(columns, keys, types):
            rows = batch.table.num_rows
            known -= rows
            if batch.rejected and (known < 0 or known == rows == 0):
                self.unreadable += len(batch.rejected)
                if self._rejected is None:
                    self.dead_letters.lines(input_.stream, batch.source, batch.rejected)
                else:
                    self._rejected.append((-known, batch))
            yield batch
            if self._report is not None:
                self._report(input_.source, batch.position)


def _is_resumable(source: Source, token: Any) -> bool:
    """Whether a position means anything: a pipe brings what comes, as does a broker of none."""
    return not source.once if not source.live else token is not None
