"""Generate seeded events: subjects, nearly sorted times, and a kind that is the event type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

WINDOW = 60_000_000
"""A minute, in microseconds."""
LATENESS = 10_000_000
DISORDER = 5_000_000
"""How far a time may be behind the latest one before it: within the lateness."""
START = 1_700_000_040_000_000
"""The start of a window."""
ROW_GROUP = 1 << 20
_FEW = 20
"""The first 1/n of the events are used for warming up."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of the data."""

    events: int
    subjects: int = 10_000
    windows: int = 60
    kinds: int = 20

    def of(self, events: int) -> Scale:
        """Return the same scale with another number of events."""
        return replace(self, events=events)


def events(scale: Scale, seed: int = 1, *, text: bool = False, shuffled: bool = False) -> pa.Table:
    """Generate all events in one contiguous table; subjects are numbers, or names with `text`.

    Each subject's events have the same delay: out of order between subjects, in order for each.
    With `shuffled`, each event has its own delay.
    """
    numbers = np.random.default_rng(seed)
    span = scale.windows * WINDOW
    arrivals = np.sort(numbers.integers(0, span, scale.events))
    subjects = numbers.integers(0, scale.subjects, scale.events, dtype=np.int32)
    if shuffled:
        delays = numbers.integers(0, DISORDER, scale.events)
    else:
        delays = numbers.integers(0, DISORDER, scale.subjects)[subjects]
    times = np.maximum(arrivals - delays, 0) + START
    kinds = numbers.integers(0, scale.kinds, scale.events, dtype=np.int8)
    return pa.table(
        {
            "subject": name(subjects) if text else subjects,
            "time": pa.array(times).view(pa.timestamp("us")),
            "kind": kinds,
        }
    )


def name(subjects: np.ndarray[tuple[int], np.dtype[np.int32]]) -> pa.Array:
    """Return names of subjects, such as `vehicle-000042`."""
    known = pa.array([f"vehicle-{number:06}" for number in range(int(subjects.max()) + 1)])
    return pa.DictionaryArray.from_arrays(subjects, known).cast(pa.string())


def batches(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Split the table into record batches, without a copy."""
    return list(table.combine_chunks().to_batches(size))


def flow(scale: Scale, size: int, seed: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield as many events as a stream, without keeping them in memory.

    One block is drawn; each batch is the block shifted in time and rotated over subjects.
    """
    numbers = np.random.default_rng(seed)
    pace = scale.windows * WINDOW // (scale.events // size)
    drift = np.sort(numbers.integers(0, pace, size))
    drift = drift - numbers.integers(0, DISORDER, size)
    subjects = numbers.integers(0, scale.subjects, size, dtype=np.int32)
    kinds = numbers.integers(0, scale.kinds, size, dtype=np.int8)
    for number in range(scale.events // size):
        times = np.maximum(drift + number * pace, 0) + START
        yield pa.record_batch(
            {
                "subject": (subjects + np.int32(number * 7919 % scale.subjects))
                % np.int32(scale.subjects),
                "time": pa.array(times).view(pa.timestamp("us")),
                "kind": kinds,
            }
        )


def parquet(scale: Scale, folder: Path, *, text: bool = False, compression: str = "snappy") -> Path:
    """Write the events to a Parquet file once, with PyArrow's defaults except the compression."""
    kind = "names" if text else "numbers"
    path = folder / f"{kind}-{scale.events}-{scale.subjects}-delayed-{compression}.parquet"
    if not path.exists():
        part = path.with_suffix(".part")
        table = events(scale, text=text)
        pq.write_table(table, part, row_group_size=ROW_GROUP, compression=compression)
        part.rename(path)
    return path


def long_parquet(scale: Scale, folder: Path) -> Path:
    """Write a file batch by batch, since it may not fit into memory."""
    path = folder / f"long-{scale.events}.parquet"
    if not path.exists():
        part = path.with_suffix(".part")
        schema = pa.schema(
            [("subject", pa.int32()), ("time", pa.timestamp("us")), ("kind", pa.int8())]
        )
        with pq.ParquetWriter(part, schema) as writer:
            for batch in flow(scale, min(ROW_GROUP, scale.events)):
                writer.write_batch(batch)
        part.rename(path)
    return path


@dataclass(frozen=True, slots=True)
class Parts:
    """Folders with the same events as CSV, in the same number of files."""

    named: Path
    """With a header."""
    bare: Path
    """Without one."""
    few: Path
    """The first events, without a header, for warming up."""


def parts(scale: Scale, folder: Path, files: int) -> Parts:
    """Write the events as CSV once: all events of a subject are in one file, as with brokers.

    Times are whole milliseconds, and no two of a subject are equal, so that there are no ties.
    """
    made = folder / f"csv-{scale.events}-{scale.subjects}-{files}"
    found = Parts(*(made / name for name in ("named", "bare", "few")))
    if not made.exists():
        frame = (
            pl.DataFrame(events(scale))
            .with_columns(pl.col("time").dt.epoch("ms"))
            .unique(["subject", "time"], keep="first", maintain_order=True)
        )
        part = made.with_suffix(".part")
        for each in (found.named, found.bare, found.few):
            (part / each.name).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            chosen, name = frame.filter(pl.col("subject") % files == number), f"{number}.csv"
            chosen.write_csv(part / "named" / name)
            chosen.write_csv(part / "bare" / name, include_header=False)
            chosen.head(len(chosen) // _FEW).write_csv(part / "few" / name, include_header=False)
        part.rename(made)
    return found


def draw_queries(number: int, kinds: int = 20, seed: int = 2) -> list[tuple[int, int, int]]:
    """Draw queries of three different kinds each."""
    numbers = np.random.default_rng(seed)
    drawn = [numbers.choice(kinds, 3, replace=False) for _ in range(number)]
    return [(int(a), int(b), int(c)) for a, b, c in drawn]
