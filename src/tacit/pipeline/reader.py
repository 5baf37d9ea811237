"""Read sources: yield events in order of arrival, and track the position in each source.

Files are merged by the progress of their event time, so the order of arrival is the same in every
run. Live sources are read as tuples arrive; the partitions of one are merged like files, without
waiting for those that are idle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NotRequired, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from tacit.errors import SourceError
from tacit.events.columntypes import ColumnTypes
from tacit.events.masks import EventMasks
from tacit.events.streams import Stream
from tacit.events.subjects import Subjects
from tacit.events.times import NO_TIME
from tacit.options import option
from tacit.pipeline.batches import (
    EventBatch,
    MergedBatch,
    ReadPosition,
    Rows,
    RowsOfPartition,
)
from tacit.pipeline.compiled_spec import CompiledSpec, SourceColumns
from tacit.pipeline.confirmation import Confirmation, confirm
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.engine import RefusedRows
from tacit.pipeline.merge import merge
from tacit.pipeline.partitions import PartitionMerge
from tacit.pipeline.prefetch import interleave, prefetch
from tacit.pipeline.sources import Batch, Rejected, Source
from tacit.windows.clock import REASONS
from tacit.windows.jumps import Jumps
from tacit.windows.runs import NO_EXTENTS, RunExtents
from tacit.windows.staging import StagedPresence

_AHEAD: Final = 2
IDLE_SECONDS: Final = 0.2
"""The longest time between two results of `Reader.read`, in seconds."""


@dataclass(frozen=True, slots=True)
class Input:
    """A source of tuples for a stream."""

    stream: str
    source: Source


class Position(TypedDict):
    """The position in a source up to which it was read, as plain data."""

    token: Any
    """Where to resume it; None is its beginning."""
    rows: int
    """Rows read from there on."""
    progress: int | None
    """The largest event time among them, by the rules of `merge`; None in old checkpoints."""
    lines: NotRequired[int]
    """Unreadable lines that were reported since the token; missing in old checkpoints."""
    partitions: NotRequired[dict[str, Position]]
    """The positions in its partitions, if it has any; the others are at `token`."""


Positions = dict[str, Position]


@dataclass(slots=True)
class InputStatus:
    """How far one input is read. It depends on the tuples: for the operator only."""

    stream: str
    source: str
    rows: int = 0
    """Rows read since this process started, including those that were refused later."""
    newest: int | None = None
    """The largest event time among them, in microseconds."""


class EventExtractor(Protocol):
    """Extracts events from rows: an engine, or a `RegistryExtractor`."""

    @property
    def learning(self) -> int:
        """Nonzero while subjects are learned from the rows."""

    @property
    def jumps(self) -> Jumps | None:
        """How far the time of a source may jump; None if windows close by the wall clock."""

    def columns(self, stream: str) -> tuple[str, ...]:
        """Return the columns of a stream that are read."""

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """Return the types to which the columns of a source are converted."""

    def extract(self, rows: Rows) -> EventBatch:
        """Extract the events from rows."""

    def stages(self, batch: EventBatch, *, ahead: bool) -> bool:
        """Return whether presence can be found before tuples are judged."""

    def stage(self, batch: EventBatch) -> StagedPresence:
        """Find the presence of tuples before they are judged."""


@dataclass(frozen=True, slots=True)
class RegistryExtractor:
    """Extracts events from rows, for a complete registry."""

    compiled: CompiledSpec
    subjects: Subjects
    learning: int = 0

    @property
    def jumps(self) -> Jumps:
        """How far the time of a source may jump."""
        return Jumps.of(self.compiled.spec.windows, alone=len(self.subjects) == 1)

    def columns(self, stream: str) -> tuple[str, ...]:
        """Return the columns of a stream that are read."""
        return self.compiled.columns(stream)

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """Return the types to which the columns of a source are converted."""
        return self.compiled.column_types(stream, source)

    def extract(self, rows: Rows) -> EventBatch:
        """Extract the events from rows."""
        return self.compiled.extract(rows, self.subjects, learn=False)

    def stages(self, batch: EventBatch, *, ahead: bool) -> bool:  # noqa: ARG002
        """Nothing is inserted here."""
        return False

    def stage(self, batch: EventBatch) -> StagedPresence:  # noqa: ARG002
        """Nothing is inserted here."""
        raise AssertionError("there are no windows")


class Reader:
    """Reads the inputs of a run from their last positions.

    Unreadable lines and refused rows go to the dead letters. With `resumable` the run can continue
    after a stop: then a pipe, which cannot be read again, is treated as a live source.
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
        resumable: bool = True,
    ) -> None:
        self.inputs = inputs
        self.dead_letters = dead_letters or DeadLetters()
        self.unreadable = 0
        """Lines that could not be read."""
        self.status = [InputStatus(one.stream, one.source.name) for one in inputs]
        """How far each input is read."""
        self._streams = streams
        self._extractor = extractor
        self._future = future
        self._read: dict[int, int] = {}
        """How much of each input has been read, by its number."""
        self._extracted = self._taken = 0
        """How many tuples were extracted, and how many of them the run has taken."""
        self._resumable = resumable
        self._keys = _keys(inputs)
        self.positions: Positions = dict(positions or {})
        """Positions of sources that this run does not read are kept."""
        self._receipts: dict[tuple[int, str | None], Any] = {}
        """What to acknowledge, by the number of the input and the partition."""
        self._acknowledged: dict[tuple[int, str | None], Any] = {}
        self._awaited: dict[tuple[int, str], bool] = {}
        """Whether a source expects more of a partition, by the number of the input and its name."""
        self.live = any(
            input_.source.live or (resumable and input_.source.once) for input_ in inputs
        )
        """Whether sources are read as tuples arrive."""

    @property
    def has_receipts(self) -> bool:
        """Whether there is anything to acknowledge."""
        return bool(self._receipts)

    @property
    def has_urgent_receipts(self) -> bool:
        """Whether somebody waits for an acknowledgement."""
        return any(not self.inputs[number].source.patient for number, _ in self._receipts)

    @property
    def listening(self) -> bool:
        """Whether every source receives the tuples that are sent from now on."""
        return all(input_.source.listening for input_ in self.inputs)

    @property
    def awaiting(self) -> bool:
        """Whether tuples that were sent before may still arrive: a broker has to be asked first."""
        return not self.listening or any(self._awaited.values())

    @property
    def share(self) -> float:
        """The share of the inputs that has been read; 0 if the size of one is unknown.

        Inputs that are measured differently, in rows and in bytes, count the same each.
        """
        sources = [input_.source for input_ in self.inputs]
        done = [self._read.get(number, 0) for number in range(len(sources))]
        totals = [source.total for source in sources if source.total is not None]
        if len(totals) < len(sources):
            return 0.0
        if len({source.unit for source in sources}) == 1:
            return min(1.0, sum(done) / max(1, sum(totals)))
        shares = [min(1.0, part / max(1, all_)) for part, all_ in zip(done, totals, strict=True)]
        return sum(shares) / len(shares)

    def acknowledge(self) -> None:
        """Acknowledge all tuples read so far: they are safe."""
        receipts, self._receipts = self._receipts, {}
        self._acknowledged |= receipts
        for (number, _), receipt in receipts.items():
            self.inputs[number].source.acknowledge(receipt)

    def advance(self, batch: MergedBatch, inserted: int) -> None:
        """Move the positions past the first `inserted` tuples, for a later resume.

        Unreadable lines before them go to the dead letters.
        """
        if not self._resumable and not batch.has_rejected:
            return
        for rows, taken, progress in batch.count_inserted(inserted):
            position = rows.position
            assert position is not None, "these rows were not read by a reader"
            position = self._report(rows, position, taken)
            if not self._resumable:
                continue
            number, receipt = position.number, position.receipt
            if position.partition is not None:
                self._advance_partition(rows, position, taken, progress)
            elif _is_resumable(self.inputs[number].source, position.token):
                self.positions[self._keys[number]] = Position(
                    token=position.token,
                    rows=position.before + taken,
                    progress=progress,
                    lines=position.lines,
                )
            if taken == rows.table.num_rows and receipt is not None:
                place = number, position.partition
                self._receipts[place] = receipt
                if self._acknowledged.get(place) == receipt:
                    del self._receipts[place]

    def _report(self, rows: Rows, position: ReadPosition, taken: int) -> ReadPosition:
        """Write unreadable lines to the dead letters, once the position is past them.

        Returns the position with the lines that are reported.
        """
        if not rows.rejected:
            return position
        lines = rows.rejected
        later: tuple[Rejected, ...] = ()
        if position.partition is not None:
            token, _ = _find_place(rows, position, taken)
            lines = tuple(line for line in rows.rejected if line.place < token)
            later = rows.rejected[len(lines) :]
        elif not taken and rows.table.num_rows:
            return position
        else:
            position = rows.position = replace(position, lines=position.lines + len(lines))
        rows.rejected = later
        if lines:
            self.unreadable += len(lines)
            self.dead_letters.add_lines(rows.stream, rows.source, lines)
        return position

    def _advance_partition(
        self, rows: Rows, position: ReadPosition, taken: int, progress: int
    ) -> None:
        """Move the position in a partition to the message of the next row, or past all."""
        if position.partition is None or position.after < 0:
            return  # it is not known yet where the partition begins
        key = self._keys[position.number]
        whole = self.positions.setdefault(key, Position(token=None, rows=0, progress=None))
        known = whole.setdefault("partitions", {})
        before = known.get(position.partition)
        token, within = _find_place(rows, position, taken)
        if before is not None and token < before["token"]:
            return  # a batch without tuples, from before those that are inserted
        own: int | None = progress
        if not taken:  # then `progress` is not that of this partition
            own = None if before is None else before["progress"]
        known[position.partition] = Position(token=token, rows=within, progress=own)

    def refuse(self, refused: RefusedRows) -> None:
        """Write refused rows to the dead letters."""
        subject = self._streams[refused.rows.stream].subject
        for reason in np.unique(refused.reasons):
            chosen = refused.reasons == reason
            self.dead_letters.add_rows(
                refused.rows,
                refused.chosen[chosen],
                REASONS[int(reason)],
                refused.times[chosen],
                subject,
            )

    def read(
        self, timeout: Callable[[], float] = lambda: IDLE_SECONDS
    ) -> Generator[MergedBatch | None, None, None]:
        """Yield tuples in order of arrival; None if no tuple arrives for `timeout()` seconds."""
        resume_inputs(self.inputs, self.positions)
        yield from self._read_live(timeout) if self.live else self._read_merged()

    def _read_merged(self) -> Iterator[MergedBatch]:
        """Read and extract each source in its own thread, and merge them.

        While subjects are learned the registry changes, so only one thread may use it.
        """
        extractor = self._extractor
        ahead = 0 if extractor.learning else _AHEAD
        begin = [self._progress(key) for key in self._keys]
        sources = []
        for number, front in enumerate(begin):
            extracted = prefetch(map(self._extract, self._rows(number)), ahead)
            events: Iterator[EventBatch] = map(self._prepare, extracted)
            if extractor.jumps is not None:
                events = confirm(events, extractor.jumps, front)
            sources.append(events)
        for batch in merge(sources, self._future, begin):
            self._taken += len(batch)
            yield batch

    def _read_live(self, timeout: Callable[[], float]) -> Iterator[MergedBatch | None]:
        sources = [self._rows(number) for number in range(len(self.inputs))]
        jumps, front = self._extractor.jumps, max(map(self._front, self._keys))
        confirmation = None if jumps is None else Confirmation[MergedBatch](jumps, front)
        partitions = PartitionMerge(self._future, self._partition_progress)
        for item in interleave(sources, _AHEAD * len(sources), timeout):
            # Here and not in the threads: only one thread may learn subjects.
            arrived = partitions.pop() if item is None else self._arrange(item[1], partitions)
            nothing = True
            for batch in arrived:
                pieces = [batch] if confirmation is None else confirmation.add(batch)
                for piece in pieces:
                    nothing = False
                    delayed = piece.origins is not batch.origins
                    yield self._extract_again(piece) if delayed else piece
            if nothing:  # the run has other things to do
                yield None
        for piece in confirmation.finish() if confirmation is not None else ():
            yield self._extract_again(piece)

    def _arrange(self, rows: Rows, partitions: PartitionMerge) -> Iterator[MergedBatch]:
        """Extract the events of rows; those of partitions may wait for each other."""
        batch = self._extract(rows)
        assert rows.position is not None, "these rows were not read by a reader"
        number, source = rows.position.number, self.inputs[rows.position.number].source
        if not rows.partitions:
            yield MergedBatch.from_batch(batch)
            return
        for part in rows.partitions:
            own = EventBatch(
                batch.times[part.begin : part.end],
                batch.slots[part.begin : part.end],
                batch.masks[part.begin : part.end],
                part.rows,
            )
            # Where windows close by the clock, waiting would only make tuples late.
            self._awaited[number, part.name] = part.awaited
            awaited = part.awaited and self._extractor.jumps is not None
            partitions.add(number, part.name, own, awaited=awaited)
        yield from partitions.pop()
        source.pause(partitions.find_crowded(number))

    def _extract(self, rows: Rows) -> EventBatch:
        """Extract the events of rows, and prepare them, or leave that to the run's thread."""
        batch = self._extractor.extract(rows)
        # If a batch waits already, the run is behind, and this thread can do some of its work.
        behind = self._extracted - self._taken >= len(batch.times)
        if behind or not self._stages(batch, ahead=False):
            batch = self._prepare(batch, ahead=behind)
        self._extracted += len(batch.times)
        return batch

    def _prepare(self, batch: EventBatch, *, ahead: bool = False) -> EventBatch:
        """Measure the runs of tuples and stage their presence, unless that is done."""
        if batch.extents is not NO_EXTENTS:
            return batch
        if self._stages(batch, ahead=ahead):
            staged = self._extractor.stage(batch)
            batch = replace(batch, extents=staged.extents, staged=staged)
        else:
            extents = RunExtents.measure(batch.times, batch.slots, registered=batch.registered)
            batch = replace(batch, extents=extents)
        assert batch.rows.position is not None, "these rows were not read by a reader"
        status = self.status[batch.rows.position.number]
        status.rows += batch.rows.table.num_rows
        newest = int(batch.extents.latest.max(initial=NO_TIME))
        if newest != NO_TIME:
            status.newest = newest if status.newest is None else max(status.newest, newest)
        return batch

    def _stages(self, batch: EventBatch, *, ahead: bool) -> bool:
        """Return whether to stage the presence of tuples; not of those that will be merged."""
        if self.live or len(self.inputs) > 1:
            return False
        return self._extractor.stages(batch, ahead=ahead)

    def _extract_again(self, batch: MergedBatch) -> MergedBatch:
        """Extract the events of delayed tuples again, by the current specification."""
        masks: NDArray[np.uint64] | None = None
        for rows, numbers, places in batch.trace(np.arange(len(batch))):
            found = self._extractor.extract(rows).masks.dense
            if masks is None:
                masks = np.empty((len(batch), found.shape[1]), np.uint64)
            masks[places] = found[numbers]
        return batch if masks is None else replace(batch, masks=EventMasks(masks))

    def _progress(self, key: str) -> int:
        return _progress_of(self.positions.get(key))

    def _partition_progress(self, number: int, name: str) -> int:
        """Return the progress of a partition where reading starts."""
        position = self.positions.get(self._keys[number])
        return _progress_of(None if position is None else position.get("partitions", {}).get(name))

    def _front(self, key: str) -> int:
        """Return the largest progress in a source and its partitions."""
        position = self.positions.get(key)
        if position is None:
            return NO_TIME
        return max(map(_progress_of, [position, *position.get("partitions", {}).values()]))

    def _rows(self, number: int) -> Iterator[Rows]:
        """Yield the rows of an input after its position."""
        input_, position = self.inputs[number], self.positions.get(self._keys[number])
        skip = 0 if position is None else position["rows"]
        places = {} if position is None else dict(position.get("partitions", {}))
        if places:
            skip = 0  # partitions are read after all rows at the token
        reported = None if position is None else position.get("lines")
        token, since, lines = None, 0, 0
        for batch in self._batches(number):
            if batch.partitions:
                yield self._divide(number, batch, places)
                continue
            if batch.token != token:
                token, since, lines = batch.token, 0, 0
            count = batch.table.num_rows
            passed = min(skip, count)
            skip -= passed
            # An old checkpoint does not count lines: those beside rows that were read are done.
            done = len(batch.rejected) if passed else 0
            if reported is not None:
                done = min(reported, len(batch.rejected))
                reported -= done
            if not (passed and passed == count):
                rest = batch.slice(passed)
                place = ReadPosition(
                    number, token, since + passed, rest.receipt, lines=lines + done
                )
                yield Rows(
                    input_.stream,
                    rest.table,
                    rest.source,
                    rest.first_row,
                    rest.places,
                    rest.raw,
                    place,
                    rejected=batch.rejected[done:],
                )
            since += count
            lines += len(batch.rejected)
        if skip:
            raise SourceError(
                f"{input_.source.name} has {skip:,} rows fewer than this run has read from it: it"
                " was cut short, or is another file. Restore the file, or start another run"
                f" with {option('name')}"
            )

    def _divide(self, number: int, batch: Batch, places: dict[str, Position]) -> Rows:
        """Return the rows of a batch with those of each partition after its position."""
        assert batch.places is not None, "rows of partitions have offsets"
        whole = Rows(
            self.inputs[number].stream,
            batch.table,
            batch.source,
            numbers=batch.places,
            raw=batch.raw,
            position=ReadPosition(number, None, 0, None),
        )
        parts = []
        for part in batch.partitions:
            position, passed = places.pop(part.name, None), 0
            if position is not None and part.begin < part.end:
                # The rest of a message, unless the broker has removed it.
                own = batch.places[part.begin : part.end]
                passed = min(position["rows"], int(own.searchsorted(position["token"], "right")))
            elif position is not None:
                places[part.name] = position
            begin = part.begin + passed
            count = part.end - begin
            place = ReadPosition(number, part.token, passed, part.receipt, part.name, part.after)
            rows = Rows(
                whole.stream,
                batch.table.slice(begin, count),
                whole.source,
                numbers=batch.places[begin : part.end],
                raw=None if batch.raw is None else batch.raw.slice(begin, count),
                position=place,
                rejected=part.rejected,
            )
            parts.append(RowsOfPartition(part.name, begin, part.end, rows, part.awaited))
        return replace(whole, partitions=tuple(parts))

    def _batches(self, number: int) -> Iterator[Batch]:
        """Yield the batches of a source."""
        input_, extractor = self.inputs[number], self._extractor
        columns = extractor.columns(input_.stream)
        types = extractor.column_types(input_.stream, input_.source)
        keys = [self._streams[input_.stream].subject]
        for batch in input_.source.batches(columns, keys, types):
            yield batch
            self._read[number] = batch.position


def check_different(inputs: Sequence[Input], *, resumable: bool) -> None:
    """Raise SourceError if a source is given twice and the run stores read positions."""
    keys = _keys(inputs)
    twice = {key for key in keys if keys.count(key) > 1}
    if twice and resumable:
        raise SourceError(f"{min(twice)} is given twice; its tuples would be counted twice")


def resume_inputs(inputs: Sequence[Input], positions: Mapping[str, Position]) -> None:
    """Let each source begin at its position when it is read next."""
    for input_, key in zip(inputs, _keys(inputs), strict=True):
        if key in positions:
            position = positions[key]
            input_.source.resume(position["token"])
            partitions = position.get("partitions", {})
            input_.source.resume_partitions(
                {name: one["token"] for name, one in partitions.items()}
            )


def _progress_of(position: Position | None) -> int:
    if position is None or position["progress"] is None:
        return NO_TIME
    return position["progress"]


def _find_place(rows: Rows, position: ReadPosition, taken: int) -> tuple[int, int]:
    """Return the offset of the next row's message, and how many of its rows are taken."""
    if taken == rows.table.num_rows:
        return position.after, 0
    assert rows.numbers is not None, "rows of a partition have offsets"
    token = int(rows.numbers[taken])
    first = int(rows.numbers.searchsorted(token))
    return token, taken - first + (position.before if not first else 0)


def _keys(inputs: Sequence[Input]) -> list[str]:
    """Return the names under which read positions are stored."""
    return [f"{input_.stream}={input_.source.name}" for input_ in inputs]


def _is_resumable(source: Source, token: Any) -> bool:
    """Return whether a source can be resumed: not a pipe, and not a broker without tokens."""
    return not source.once if not source.live else token is not None
