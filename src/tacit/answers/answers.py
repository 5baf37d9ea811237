"""Answers in columns: one for each window, registered subject and query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.counts import CountAnswers
from tacit.answers.rows import AnswerBlock, RowBuilder, answer_schema, divide
from tacit.answers.values import find_chances, find_values, list_values
from tacit.errors import OptionError
from tacit.privacy.certainty import Certainty, ReorderedCertainty
from tacit.quantities import count
from tacit.spec.boolean_queries import QueryColumns, group_queries


@dataclass(frozen=True, slots=True, repr=False)
class Answers:
    """The answers of consecutive windows, 64 subjects per word: `bits[window][query][word]`.

    `queries` are boolean queries: a query with several values has one for each. Subject `s` is bit
    `s % 64` of word `s // 64`. A subject has answers from window `since` on, the first for which
    it is registered.
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
    """The subjects that do not pay: they are answered from public events and what was known before.

    None if no subject has a limit.
    """
    slide: int = 0
    """The time between the starts of overlapping windows; 0 means their size."""
    consumers: Sequence[str] = ()
    """The consumer of each query; empty if there is none, as for statistics."""
    counted: CountAnswers | None = None
    """The counts of these windows; None if no query counts subjects."""

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

    @property
    def columns(self) -> list[QueryColumns]:
        """The queries that the boolean queries belong to."""
        return group_queries(self.queries)

    @property
    def query_consumers(self) -> dict[str, str]:
        """The consumer of each query; empty if there is none."""
        if not self.consumers:
            return {}
        return {query.name: self.consumers[query.first] for query in self.columns}

    def __len__(self) -> int:
        return int(self.registered.sum()) * len(self.columns)

    def __repr__(self) -> str:
        return (
            f"Answers({count(self.windows, 'window')} x {count(len(self.subjects), 'subject')}"
            f" x {count(len(self.columns), 'query', 'queries')})"
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the answers as rows, sorted by window, subject and query, about a million each."""
        builder = RowBuilder(self.queries, self.consumers or [""] * len(self.queries))
        for windows, slots in divide(self.windows, len(self.subjects), len(self.queries)):
            yield builder.build(self._part(windows, slots)._block())

    def _part(self, windows: slice, slots: slice) -> Answers:
        """Return the answers of some windows and subjects; a word has the first subject's bit 0."""
        words = slice(slots.start // 64, -(-slots.stop // 64))
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
            counted=self.counted,
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

    @property
    def _confidences(self) -> NDArray[np.float32] | None:
        """`[window][subject][query]`: the confidence of protected answers."""
        if self.certainty is None:
            return None
        shape = (self.windows, len(self.subjects), len(self.queries))
        confidence = np.empty(shape, np.float32)
        for query in range(len(self.queries)):
            confidence[:, :, query] = self.confidence(query)
        return confidence

    def distribution(self, name: str) -> pl.DataFrame:
        """Return how likely each value of a query with several is: a row per window and subject."""
        query = next((one for one in self.columns if one.name == name and one.values), None)
        if query is None:
            raise OptionError(f"there is no query {name} with several values")
        windows, subjects = np.nonzero(self.registered)
        bits, sure = self.detected.transpose(0, 2, 1), self._confidences
        own = None if sure is None else sure[:, :, query.columns]
        chances = find_chances(query, bits[:, :, query.columns], own)[windows, subjects]
        starts = pl.Series("window_start", (self.first + windows) * self.step)
        return pl.DataFrame(
            [
                starts.cast(pl.Datetime("us", "UTC")),
                pl.Series("subject", _encode_names(self.subjects, subjects)),
                *(
                    pl.Series(value, np.ascontiguousarray(chances[:, place]))
                    for place, value in enumerate(query.values)
                ),
            ]
        )

    def _block(self) -> AnswerBlock:
        registered = self.registered
        return AnswerBlock(
            self.step * np.arange(self.first, self.first + self.windows),
            self.size,
            self.subjects,
            self.detected.transpose(0, 2, 1),
            None if registered.all() else registered,
            self._confidences,
            self.exhausted,
            self.private,
        )

    @property
    def _schema(self) -> pa.Schema:
        return answer_schema(
            protected=self.certainty is not None,
            private=self.private,
            limited=self.exhausted is not None,
            valued=any(query.values for query in self.columns),
        )

    def table(self) -> pa.Table:
        """Return the answers as an Arrow table with a row for each."""
        return pa.Table.from_batches(self.batches(), schema=self._schema)

    def counts(self) -> NDArray[np.int64]:
        """Return how often each boolean query was answered with yes."""
        known = np.zeros((self.windows, 64 * self.bits.shape[2]), dtype=np.bool_)
        known[:, : len(self.subjects)] = self.registered
        words = np.packbits(known, axis=1, bitorder="little").view("<u8")
        found = np.bitwise_count(self.bits & words[:, np.newaxis, :])
        totals: NDArray[np.int64] = found.sum(axis=(0, 2), dtype=np.int64)
        return totals

    def wide(self) -> pl.DataFrame:
        """Return a Polars frame with a row per window and subject, and a column per query."""
        windows, subjects = np.nonzero(self.registered)
        columns = self.columns
        known = list_values(columns)
        sure = self._confidences if known else None
        found = find_values(columns, self.detected.transpose(0, 2, 1), sure)
        names = np.array([*known, ""], np.object_)
        chosen, values = (part[windows, subjects] for part in (found.detected, found.values))
        starts = pl.Series("window_start", (self.first + windows) * self.step)
        return pl.DataFrame(
            [
                starts.cast(pl.Datetime("us", "UTC")),
                pl.Series("subject", _encode_names(self.subjects, subjects)),
                *(
                    pl.Series(query.name, names[values[:, place]].tolist(), pl.String)
                    if query.values
                    else pl.Series(query.name, np.ascontiguousarray(chosen[:, place]))
                    for place, query in enumerate(columns)
                ),
            ]
        )


def _encode_names(names: pa.Array, places: NDArray[np.int64]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), names)
