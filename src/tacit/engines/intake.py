"""What comes in, and how far each source has been taken: what a run needs to go on after a stop.

Files are merged by the progress of their event time, so that the order of arrival is the same
whenever they are read. Sources that bring tuples as they happen are taken as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypedDict

import numpy as np

from tacit.connectors.confirmation import Confirmation, confirmed
from tacit.connectors.merge import Merged, Timed, merge
from tacit.connectors.prefetch import mingle, prefetch
from tacit.connectors.sources import Batch, Source
from tacit.engines.local import Input, rows_of
from tacit.errors import SourceError
from tacit.events.times import NO_TIME
from tacit.options import option
from tacit.pipeline.arrivals import Arrivals, Rows
from tacit.spec.specification import Specification
from tacit.windows.jumps import Jumps

_AHEAD: Final = 2
PULSE: Final = 0.2
"""Seconds after which silence is told at the latest."""


class Position(TypedDict):
    """How far a source has been taken, as plain data."""

    token: Any
    """Where it is resumed; None is its beginning."""
    rows: int
    """Rows that were taken from there on."""
    progress: int | None
    """The largest event time among them, by the rules of `merge`; None in old checkpoints."""


Positions = dict[str, Position]


@dataclass(frozen=True, slots=True)
class _Origin:
    """A batch, and where its first row stands in its source."""

    rows: Rows
    place: int
    """The number of its input."""
    token: Any
    before: int
    receipt: Any


@dataclass(frozen=True, slots=True)
class Taken:
    """Tuples in order of arrival, and the batches that they are of."""

    arrivals: Arrivals
    merged: Merged

    @classmethod
    def of(cls, merged: Merged) -> Taken:
        """The same tuples as an engine takes them."""
        (masks,) = merged.columns
        rows = [origin.rows for origin in merged.origins]
        return cls(
            Arrivals(merged.slots, merged.times, masks, rows, merged.part, merged.row),
            merged,
        )

    def reached(self, laid: int) -> Iterator[tuple[_Origin, int, int]]:
        """For each batch how many of its rows are among the first `laid` tuples, and how far."""
        merged = self.merged
        for number, origin in enumerate(merged.origins):
            last = laid - 1
            if merged.part is not None:
                own = np.flatnonzero(merged.part[:laid] == number)
                last = int(own[-1]) if len(own) else -1
            if last < 0:
                rows = 0 if merged.row is None else None
            else:
                rows = last + 1 if merged.row is None else int(merged.row[last]) + 1
            if rows is None:
                continue  # none of it yet, or none of it since the last time
            yield origin, rows, merged.before if last < 0 else merged.reached(last)


class Extracting(Protocol):
    """What an intake asks of an engine."""

    @property
    def learning(self) -> int:
        """Whether subjects are learned from what is extracted."""

    @property
    def jumps(self) -> Jumps | None:
        """How far the time of a source may jump; None where no tuple moves anything."""

    def extract(self, rows: Rows) -> Arrivals:
        """The events that rows give."""


class Feeding(Protocol):
    """What an intake asks of whoever it is for."""

    @property
    def spec(self) -> Specification:
        """What is asked."""

    @property
    def inputs(self) -> Sequence[Input]:
        """Where tuples come from."""

    @property
    def engine(self) -> Extracting:
        """What makes events of them."""

    def batches(self, input_: Input, known: int = 0) -> Iterator[Batch]:
        """A source's rows, of which so many were known before."""


class Intake:
    """The sources of a run, from where they were left."""

    def __init__(self, run: Feeding, positions: Mapping[str, Position]) -> None:
        self._run = run
        self._inputs = run.inputs
        self._keys = [f"{input_.stream}={input_.source.name}" for input_ in run.inputs]
        twice = {key for key in self._keys if self._keys.count(key) > 1}
        if twice:
            raise SourceError(f"{min(twice)} is given twice; it would be counted twice")
        self.positions: Positions = dict(positions)
        """Those of sources that are not read this time are kept as they are."""
        self._receipts: dict[int, Any] = {}
        """By the number of the input, what is to be acknowledged."""
        self._known: dict[int, Any] = {}
        """What was acknowledged last."""
        self.live = any(input_.source.live or input_.source.once for input_ in run.inputs)
        """Whether tuples are taken as they come."""

    @property
    def receipts(self) -> bool:
        """Whether there is anything to acknowledge."""
        return bool(self._receipts)

    def acknowledge(self) -> None:
        """All that was taken so far is safe: tell the sources."""
        receipts, self._receipts = self._receipts, {}
        self._known |= receipts
        for place, receipt in receipts.items():
            self._inputs[place].source.acknowledge(receipt)

    def advance(self, taken: Taken, laid: int) -> None:
        """The first so many of these tuples are in the engine's state."""
        for origin, rows, progress in taken.reached(laid):
            source = self._inputs[origin.place].source
            if _resumable(source, origin.token):
                position = Position(
                    token=origin.token, rows=origin.before + rows, progress=progress
                )
                self.positions[self._keys[origin.place]] = position
            if rows == origin.rows.table.num_rows and origin.receipt is not None:
                self._receipts[origin.place] = origin.receipt
                if self._known.get(origin.place) == origin.receipt:
                    del self._receipts[origin.place]

    def flow(
        self, patience: Callable[[], float] = lambda: PULSE
    ) -> Generator[Taken | None, None, None]:
        """Tuples as they come; None where sources that live are silent for `patience()` seconds."""
        for input_, key in zip(self._inputs, self._keys, strict=True):
            if key in self.positions:
                input_.source.resume(self.positions[key]["token"])
        yield from self._mingled(patience) if self.live else self._merged()

    def _merged(self) -> Iterator[Taken]:
        engine = self._run.engine
        ahead = 0 if engine.learning else _AHEAD
        begin = [self._progress(key) for key in self._keys]
        flows = []
        for place, front in enumerate(begin):
            flow: Iterator[Timed] = map(self._extracted, self._read(place))
            if engine.jumps is not None:
                flow = confirmed(flow, engine.jumps, front)
            flows.append(prefetch(flow, ahead))
        return map(Taken.of, merge(flows, self._run.spec.windows.jumps[1], begin))

    def _mingled(self, patience: Callable[[], float]) -> Iterator[Taken | None]:
        flows = [self._read(place) for place in range(len(self._inputs))]
        jumps, front = self._run.engine.jumps, max(map(self._progress, self._keys))
        confirmation = None if jumps is None else Confirmation(jumps, front)
        for item in mingle(flows, _AHEAD * len(flows), patience):
            if item is None:
                yield None
                continue
            # Here and not in the threads: subjects may be learned, and that is for one alone.
            timed = self._extracted(item[1])
            pieces = [timed] if confirmation is None else confirmation.add(timed)
            for piece in pieces:
                waited = piece.origin is not timed.origin
                yield Taken.of(Merged.of_one(self._again(piece) if waited else piece))
        for piece in confirmation.finish() if confirmation is not None else ():
            yield Taken.of(Merged.of_one(self._again(piece)))

    def _again(self, timed: Timed) -> Timed:
        """Tuples that waited, with the events that they give by the specification of now."""
        masks = self._run.engine.extract(timed.origin.rows).masks
        return replace(timed, columns=(masks[timed.first : timed.first + len(timed.times)],))

    def _progress(self, key: str) -> int:
        position = self.positions.get(key)
        if position is None or position["progress"] is None:
            return NO_TIME
        return position["progress"]

    def _extracted(self, origin: _Origin) -> Timed:
        events = self._run.engine.extract(origin.rows)
        return Timed(events.times, events.slots, (events.masks,), origin)

    def _read(self, place: int) -> Iterator[_Origin]:
        """The batches of a source without the rows that were taken before."""
        input_, position = self._inputs[place], self.positions.get(self._keys[place])
        skip = 0 if position is None else position["rows"]
        token, since = None, 0
        for batch in self._run.batches(input_, skip):
            if batch.token != token:
                token, since = batch.token, 0
            count = batch.table.num_rows
            passed = min(skip, count)
            skip -= passed
            if not (passed and passed == count):
                rest = batch.slice(passed)
                yield _Origin(rows_of(input_, rest), place, token, since + passed, rest.receipt)
            since += count
        if skip:
            raise SourceError(
                f"{input_.source.name} has {skip:,} rows fewer than this run has taken of it: it"
                " was cut short, or is another file. Give it back as it was, or begin another run"
                f" with {option('name')}"
            )


def _resumable(source: Source, token: Any) -> bool:
    """Whether a position means anything: a pipe brings what comes, as does a broker of none."""
    return not source.once if not source.live else token is not None
