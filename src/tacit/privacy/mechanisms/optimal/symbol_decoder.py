"""Turn the symbols of all components into answers, in one pass over subjects.

This is for the usual case: every subject is drawn for, every context has channels of its own, with
at most one block, and all parts together fit into a word. An *entry* is a row of the flat tables:
one for each code of a component, and one for each of its contexts, where no symbol is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.booleans import transpose_square
from tacit.privacy.components import Question
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols

Whole = NDArray[np.int64]

_WORD = 64


class _FlatTables(NamedTuple):
    """The tables of all components, one after the other."""

    answers: NDArray[np.uint64]
    """`[entry]`: the answers of the parts, at the bits of their component."""
    chances: NDArray[np.float64]
    """For each entry, how likely each part of its component is."""
    codes: Whole
    """`[component]`: the number of codes."""
    first_entry: Whole
    first_chance: Whole
    widths: Whole
    """`[component]`: the number of parts."""


class SymbolDecoder:
    """Decodes the symbols of all components together.

    With `thresholds`, queries with parts in several components are decided by their posterior.
    Parts of different components are assumed to be independent.
    """

    def __init__(
        self,
        contexts: Sequence[Contexts],
        questions: Sequence[Question],
        thresholds: NDArray[np.float64] | None,
    ) -> None:
        self._contexts = contexts
        parts = [question.parts for question in questions]
        begins = np.cumsum([0, *(one.parts for one in contexts)])
        self._parts = int(begins[-1])
        self._begins = begins[:-1]
        single = [query for query, found in enumerate(parts) if len(found) == 1]
        several = [query for query, found in enumerate(parts) if len(found) > 1]
        self.fits = 0 < self._parts <= _WORD and not (several and thresholds is None)
        """Whether it can be used at all."""
        self._single = np.array(single, np.int64)
        self._bits = np.array([begins[parts[q][0][0]] + parts[q][0][1] for q in single], np.int64)
        self._several = np.array(several, np.int64)
        self._terms = np.array([term for q in several for term in parts[q]], np.int64).reshape(
            -1, 2
        )
        self._first_term = np.cumsum([0, *(len(parts[query]) for query in several)])
        self._every = np.array([questions[query].every for query in several], np.bool_)
        self._thresholds = np.empty(0) if thresholds is None else thresholds[several]
        self._tables: _FlatTables | None = None
        self._sizes: list[tuple[int, int]] = []

    def can_decode(self, drawn: Sequence[DrawnSymbols]) -> bool:
        """Return whether these symbols are of the usual case."""
        return self.fits and all(one.codes.shape[1] == 1 and not len(one.other) for one in drawn)

    def decode(self, drawn: Sequence[DrawnSymbols], slots: int, result: NDArray[np.uint64]) -> None:
        """Write `result[window][query][word]` for queries about private events."""
        tables = self._find_tables()
        _decode(
            np.stack([one.contexts for one in drawn]),
            np.stack([one.codes.reshape(-1) for one in drawn]),
            slots,
            *tables,
            self._parts,
            self._single,
            self._bits,
            self._several,
            self._terms,
            self._first_term,
            self._every,
            self._thresholds,
            result,
        )

    def _find_tables(self) -> _FlatTables:
        """Return the flat tables; they are made again when there are more contexts."""
        sizes = [one.table_sizes for one in self._contexts]
        if self._tables is None or sizes != self._sizes:
            self._sizes = sizes
            found = [one.list_entries() for one in self._contexts]
            shifts = self._begins.astype(np.uint64)
            answers = [own << shift for (own, _), shift in zip(found, shifts, strict=True)]
            entries = np.cumsum([0, *(len(own) for own in answers)])
            chances = [own.reshape(-1) for _, own in found]
            self._tables = _FlatTables(
                np.concatenate(answers),
                np.concatenate(chances),
                np.array([codes for codes, _ in sizes], np.int64),
                entries[:-1],
                np.cumsum([0, *(len(own) for own in chances)])[:-1],
                np.array([one.parts for one in self._contexts], np.int64),
            )
        return self._tables


@compiled
def _decode(
    contexts: NDArray[np.int32],
    codes: NDArray[np.int32],
    slots: int,
    answers: NDArray[np.uint64],
    chances: NDArray[np.float64],
    codes_of: Whole,
    first_entry: Whole,
    first_chance: Whole,
    widths: Whole,
    parts: int,
    single: Whole,
    bits: Whole,
    several: Whole,
    terms: Whole,
    first_term: Whole,
    every: NDArray[np.bool_],
    thresholds: NDArray[np.float64],
    result: NDArray[np.uint64],
) -> None:
    square = np.empty(_WORD, np.uint64)
    entries = np.empty((len(contexts), _WORD), np.int64)
    likely = np.empty(_WORD, np.float64)
    for window in range(len(result)):
        for word in range(result.shape[2]):
            first = window * slots + _WORD * word
            count = min(_WORD, slots - _WORD * word)
            square[:] = np.uint64(0)
            for component in range(len(contexts)):
                own, drawn = contexts[component], codes[component]
                known, begin = codes_of[component], first_entry[component]
                width, place = widths[component], first_chance[component]
                found = entries[component]
                for i in range(count):
                    # Whether there is a symbol is unpredictable, so select without a branch.
                    code = np.int64(drawn[first + i])
                    entry = code if code >= 0 else known + np.int64(own[first + i])
                    square[i] |= answers[np.uint64(begin + entry)]
                    found[i] = place + entry * width
            transpose_square(square, parts)
            for n in range(len(single)):
                result[window, single[n], word] = square[bits[n]]
            for n in range(len(several)):
                all_true = every[n]
                for i in range(count):
                    likely[i] = 1.0
                for term in range(first_term[n], first_term[n + 1]):
                    found, part = entries[terms[term, 0]], terms[term, 1]
                    if all_true:
                        for i in range(count):
                            likely[i] *= chances[np.uint64(found[i] + part)]
                    else:
                        for i in range(count):
                            likely[i] *= 1 - chances[np.uint64(found[i] + part)]
                yes = np.uint64(0)
                for i in range(count):
                    share = likely[i] if all_true else 1 - likely[i]
                    yes |= np.uint64(share >= thresholds[n]) << np.uint64(i)
                result[window, several[n], word] = yes
