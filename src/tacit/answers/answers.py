"""Answers in columns: one for each window, registered subject and query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.privacy.certainty import Certainty, ReorderedCertainty
from tacit.quantities import count

_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Answers:
    """The answers of consecutive windows, 64 subjects per word: `bits[window][query][word]`.

    Subject `s` is bit `s % 64` of word `s // 64`. A subject has answers from window `since` on,
    the first for which it is registered.
    """

    queries: Sequence[str]
    size: int
    first: int
    subjects: pa.Array
    since: NDArray[np.int64]
    bits: NDArray[np.uint64]
    certainty: Certainty | None = None
    """The confidence of protected answers; None for true answers."""
    place: tuple[int, int] = (0, 0)
    """The first window and subject of these answers in `certainty`."""
    private: bool = True
    """Whether protected answers are private: not if their noise came from a seed."""
    exhausted: NDArray[np.bool_] | None = None
    """The subjects whose limit was reached: they are answered from public events and the prior.

    None if no subject has a limit.
    """
    slide: int = 0
    """The time between the starts of overlapping windows; 0 means their size."""
    consumers: Sequence[str] = ()
    """The consumer of each query; empty if there is none, as for statistics."""

    @property
    def step(self) -> int:
        """The time between window starts: window n starts n steps after the epoch."""
        return self.slide or self.size

    @property
    def windows(self) -> int:
        """The number of windows."""
        return len(self.bits)

    @property
    def registered(self) -> NDArray[np.bool_]:
        """`[window][subject]`: whether the subject has answers in the window."""
        numbers = np.arange(self.first, self.first + self.windows)
        return self.since[np.newaxis, :] <= numbers[:, np.newaxis]

    @property
    def detected(self) -> NDArray[np.bool_]:
        """`[window][query][subject]`: the answers."""
        return self._unpacked(self.bits)

    def __len__(self) -> int:
        return int(self.registered.sum()) * len(self.queries)

    def __repr__(self) -> str:
        return (
            f"Answers({count(self.windows, 'window')} x {count(len(self.subjects), 'subject')}"
            f" x {count(len(self.queries), 'query', 'queries')})"
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the answers as rows, sorted by window, subject and query, about a million each."""
        in_window = len(self.subjects) * len(self.queries)
        if in_window == 0:
            return
        windows = max(1, _ROWS // in_window)
        words = self.bits.shape[2] if windows > 1 else max(1, _ROWS // (64 * len(self.queries)))
        for window in range(0, self.windows, windows):
            for word in range(0, self.bits.shape[2], words):
                yield self._part(slice(window, window + windows), slice(word, word + words))._rows()

    def _part(self, windows: slice, words: slice) -> Answers:
        """Return the answers of some windows, for the subjects of some words."""
        slots = slice(64 * words.start, 64 * words.stop)
        return Answers(
            self.queries,
            self.size,
            self.first + windows.start,
            self.subjects[slots],
            self.since[slots],
            self.bits[windows, :, words],
            self.certainty,
            (self.place[0] + windows.start, self.place[1] + slots.start),
            self.private,
            None if self.exhausted is None else self.exhausted[slots],
            self.slide,
            self.consumers,
        )

    def reorder(self, slots: NDArray[np.int64]) -> Answers:
        """Return the answers of these subjects, in this order."""
        chosen = self.detected[:, :, slots]
        padded = np.zeros((*chosen.shape[:2], -(-len(slots) // 64) * 64), np.bool_)
        padded[:, :, : len(slots)] = chosen
        words = np.packbits(padded, axis=2, bitorder="little").view("<u8")
        certainty = None if self.certainty is None else ReorderedCertainty(slots, self.certainty)
        return Answers(
            self.queries,
            self.size,
            self.first,
            self.subjects.take(pa.array(slots)),
            self.since[slots],
            words.astype(np.uint64, copy=False),
            certainty,
            private=self.private,
            exhausted=None if self.exhausted is None else self.exhausted[slots],
            slide=self.slide,
            consumers=self.consumers,
        )

    def confidence(self, query: int) -> NDArray[np.float64]:
        """Return `[window][subject]`: how likely a query's answers are right, by the prior."""
        if self.certainty is None:
            return np.ones((self.windows, len(self.subjects)))
        windows = slice(self.place[0], self.place[0] + self.windows)
        slots = slice(self.place[1], self.place[1] + len(self.subjects))
        return self.certainty.compute_confidence(
            query, windows, slots, self._unpacked(self.bits[:, query])
        )

    def _unpacked(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Unpack words into a truth value for each subject."""
        octets = np.ascontiguousarray(words, "<u8").view(np.uint8)
        flat = np.unpackbits(octets, axis=-1, bitorder="little", count=len(self.subjects))
        return flat.view(np.bool_)

    def _rows(self) -> pa.RecordBatch:
        windows, subjects = np.nonzero(self.registered)
        number = len(self.queries)
        starts = np.repeat((self.first + windows) * self.step, number)
        instant = pa.timestamp("us", tz="UTC")
        sure = []
        if self.certainty is not None:
            confidence = np.stack([self.confidence(query) for query in range(number)], axis=1)
            sure = [pa.array(confidence[windows, :, subjects].ravel().astype(np.float32))]
            if self.exhausted is not None:
                sure.append(pa.array(np.repeat(self.exhausted[subjects], number)))
            if not self.private:
                sure.append(pa.array(np.zeros(len(starts), np.bool_)))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(starts).cast(instant),
                pa.array(starts + self.size).cast(instant),
                _named(self.subjects, np.repeat(subjects, number)),
                *build_query_columns(
                    self.queries,
                    self.consumers or [""] * number,
                    np.tile(np.arange(number, dtype=np.int32), len(windows)),
                ),
                pa.array(self.detected[windows, :, subjects].ravel()),
                *sure,
            ],
            schema=self._schema,
        )

    @property
    def _schema(self) -> pa.Schema:
        return answer_schema(
            protected=self.certainty is not None,
            private=self.private,
            limited=self.exhausted is not None,
        )

    def table(self) -> pa.Table:
        """Return the answers as an Arrow table with a row for each."""
        return pa.Table.from_batches(self.batches(), schema=self._schema)

    def counts(self) -> NDArray[np.int64]:
        """Return how often each query was answered with yes."""
        known = np.zeros((self.windows, 64 * self.bits.shape[2]), dtype=np.bool_)
        known[:, : len(self.subjects)] = self.registered
        words = np.packbits(known, axis=1, bitorder="little").view("<u8")
        found = np.bitwise_count(self.bits & words[:, np.newaxis, :])
        totals: NDArray[np.int64] = found.sum(axis=(0, 2), dtype=np.int64)
        return totals

    def wide(self) -> pl.DataFrame:
        """Return a Polars frame with a row per window and subject, and a column per query."""
        windows, subjects = np.nonzero(self.registered)
        chosen = self.detected[windows, :, subjects]
        starts = pl.Series("window_start", (self.first + windows) * self.step)
        return pl.DataFrame(
            [
                starts.cast(pl.Datetime("us", "UTC")),
                pl.Series("subject", _named(self.subjects, subjects)),
                *(
                    pl.Series(query, np.ascontiguousarray(chosen[:, number]))
                    for number, query in enumerate(self.queries)
                ),
            ]
        )


def answer_schema(
    *, protected: bool = False, private: bool = True, limited: bool = False
) -> pa.Schema:
    """Return the schema of answers.

    With limits, protected answers have a column `exhausted`. Answers whose noise came from a seed
    have a column `private`, which is false in every row.
    """
    sure = [("confidence", pa.float32())] if protected else []
    if protected and limited:
        sure.append(("exhausted", pa.bool_()))
    if protected and not private:
        sure.append(("private", pa.bool_()))
    return pa.schema(
        [
            ("window_start", pa.timestamp("us", tz="UTC")),
            ("window_end", pa.timestamp("us", tz="UTC")),
            ("subject", pa.dictionary(pa.int32(), pa.large_string())),
            ("consumer", pa.dictionary(pa.int32(), pa.string())),
            ("query", pa.dictionary(pa.int32(), pa.string())),
            ("detected", pa.bool_()),
            *sure,
        ]
    )


def build_query_columns(
    queries: Sequence[str], consumers: Sequence[str], places: NDArray[np.int32]
) -> tuple[pa.Array, pa.Array]:
    """Build the columns `consumer` and `query`, given the number of each row's query."""
    known = list(dict.fromkeys(consumers))
    numbers = np.array([known.index(consumer) for consumer in consumers], np.int32)
    return (
        pa.DictionaryArray.from_arrays(numbers[places], pa.array(known, pa.string())),
        pa.DictionaryArray.from_arrays(places, pa.array(queries, pa.string())),
    )


def _named(names: pa.Array, places: NDArray[np.int64]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), names)
