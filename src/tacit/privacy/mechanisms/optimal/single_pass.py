"""Draw the symbols of all components and decode them, in one pass over subjects.

This is for the usual case: every subject is drawn for, every context has channels of its own, with
at most one block, and the columns and the parts of all components fit into a word each. In all
other cases `ChannelProtector` takes one step after the other; the answers have the same law.

An *entry* is a row of the decoding tables: one for each code of a component, and one for each of
its contexts, where no symbol is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.kernels import inlined, lean
from tacit.kernels.threads import Workers
from tacit.patterns.booleans import spread_square, transpose_square
from tacit.privacy.components import Question
from tacit.privacy.keys import find_keys
from tacit.privacy.mechanisms.mechanism import Columns
from tacit.privacy.mechanisms.optimal.contexts import Contexts, ContextTables, DrawnSymbols
from tacit.privacy.randomness import RandomSource
from tacit.privacy.sampling import Sampler, add_symbols, join_tables

Whole = NDArray[np.int64]

_WORD = 64
_LONGEST = 8
"""The random bytes that a draw needs at most."""
_UNKNOWN = -1
"""Returned in place of how far the pass came: there is a context without channels of its own."""
_FIRST_SHARE = 1.25
"""Random bytes for each subject and component at first: a draw nearly always needs one."""
_MOST_FAILURES = 6
"""After so many failures in a row, the number of calls until the next attempt grows no more."""
_FEWEST = 1 << 16
"""A thread takes at least so many subjects and windows: for fewer it takes longer to start."""


class _Components(NamedTuple):
    """The tables of all components, one after the other, and where each component's begin."""

    key_bits: NDArray[np.uint64]
    """`[component]`: the bits of a context's key; those of the private variables follow them."""
    value_bits: NDArray[np.uint64]
    keys: NDArray[np.int32]
    """The number of each context by its key, or by the hash of its key."""
    first_key: Whole
    hashed: NDArray[np.uint64]
    """`[component]`: the largest place in a table of hashes; 0 if the key is the place."""
    known: NDArray[np.uint64]
    """The keys of all contexts."""
    first_known: Whole
    rows: Whole
    """The row to draw from, by context and values of the variables."""
    first_row: Whole
    codes: NDArray[np.int32]
    """`[context]`: its first code."""
    guide: NDArray[np.int8]
    sums: NDArray[np.uint64]
    shifts: NDArray[np.uint64]


class _Entries(NamedTuple):
    """What all entries say, one component after the other."""

    answers: NDArray[np.uint64]
    """`[entry]`: the answers of the parts, at the bits of their component."""
    chances: NDArray[np.float64]
    """For each entry, how likely each part of its component is."""
    codes_of: Whole
    """`[component]`: the number of codes."""
    first_entry: Whole
    first_chance: Whole
    widths: Whole
    """`[component]`: the number of parts."""


class _Questions(NamedTuple):
    """How the answers of queries follow from the parts."""

    parts: int
    single: Whole
    """The queries with one part."""
    bits: Whole
    """For each of them the bit of its part."""
    several: Whole
    """The queries with parts in several components."""
    terms: Whole
    """Their parts, one after the other: component and number."""
    first_term: Whole
    every: NDArray[np.bool_]
    """Whether all parts are needed."""
    thresholds: NDArray[np.float64]


class SinglePass:
    """Draws and decodes all components together.

    With `thresholds`, queries with parts in several components are decided by their posterior.
    Parts of different components are assumed to be independent.
    """

    def __init__(
        self,
        contexts: Sequence[Contexts],
        questions: Sequence[Question],
        thresholds: NDArray[np.float64] | None,
        signals: Sequence[list[int]],
        variables: Sequence[list[int]],
    ) -> None:
        self._contexts = contexts
        begins = np.cumsum([0, *(one.parts for one in contexts)])
        self._begins = begins[:-1]
        self._questions = _list_questions(questions, thresholds, begins)
        pairs = [*zip(signals, variables, strict=True)]
        self._columns = np.array([n for one, other in pairs for n in [*one, *other]], np.int64)
        self._widths = np.array([(len(one), len(two)) for one, two in pairs], np.uint64)
        # A sampler of another kind, which tests have, draws in its own way.
        usual = all(type(one.sampler) is Sampler and one.sampler.private for one in contexts)
        fits = 0 < begins[-1] <= _WORD and len(self._columns) <= _WORD
        literal = thresholds is None and len(self._questions.several)
        self._usable = bool(usual and fits and not literal)
        self._sizes: list[tuple[int, int]] = []
        self._tables: tuple[_Components, _Entries] | None = None
        self._failures = 0
        self._calls_to_skip = 0
        """How many calls are answered in single steps before the next attempt."""

    def run(
        self,
        bits: Columns,
        slots: int,
        source: RandomSource,
        workers: Workers,
        result: NDArray[np.uint64],
    ) -> list[DrawnSymbols] | None:
        """Write `result[window][query][word]` for queries about private events.

        Return the symbols, or None if this is not the usual case. Whether it is depends only on
        public events; symbols that were drawn until then are forgotten.
        """
        if not self._usable:
            return None
        if self._calls_to_skip:
            self._calls_to_skip -= 1
            return None
        tables = self._find_tables(len(bits) * slots)
        if tables is None:
            return None
        numbers = allocate((len(self._contexts), len(bits) * slots), np.int32)
        codes = allocate(numbers.shape, np.int32)
        given: tuple[Any, ...] = (*tables[0], *tables[1], *self._questions, numbers, codes, result)

        def draw(unit: int, last: int) -> int:
            """Draw for the words of subjects up to the last; random bytes are asked for at need."""
            share, number = _FIRST_SHARE, len(self._contexts)
            room: tuple[Any, ...] = (
                np.empty((3, _WORD), np.uint64),
                np.empty((number, _WORD), np.int64),
                np.empty(_WORD, np.int64),
                np.empty(_WORD, np.float64),
                np.empty(number, np.int64),
            )
            while 0 <= unit < last:
                size = _WORD * _LONGEST + int(share * _WORD * (last - unit))
                octets = [source.draw_octets(size) for _ in self._contexts]
                unit = _draw(
                    bits,
                    self._columns,
                    slots,
                    unit,
                    last,
                    np.stack(octets),
                    *given,
                    *room,
                )
                share = _LONGEST
            return unit

        units = len(bits) * bits.shape[2]
        stretches = max(1, min(workers.threads, len(bits) * slots // _FEWEST))
        edges = pairwise(np.linspace(0, units, stretches + 1).astype(int).tolist())
        if min(workers.run([partial(draw, *edge) for edge in edges])) < 0:
            self._failures = min(self._failures + 1, _MOST_FAILURES)
            self._calls_to_skip = 2**self._failures - 1
            return None
        self._failures = 0
        for one in self._contexts:
            one.pass_windows(len(bits) * slots)
        nothing = np.empty((len(bits) * slots, 0), np.uint64)
        other = np.empty(0, np.int64)
        return [
            DrawnSymbols(own, drawn.reshape(-1, 1), nothing, other)
            for own, drawn in zip(numbers, codes, strict=True)
        ]

    def _find_tables(self, rows: int) -> tuple[_Components, _Entries] | None:
        """Return the tables, or None if there are none or they are large for so few rows."""
        sizes = [one.table_sizes for one in self._contexts]
        if self._tables is None or sizes != self._sizes:
            known = sum(one.sampler.rows for one in self._contexts)
            if known > rows or not all(one.has_single_blocks for one in self._contexts):
                return None
            found = [one.list_tables() for one in self._contexts]
            self._tables = _join_components(found, self._widths), self._join_entries(found)
            self._sizes = sizes
        return self._tables

    def _join_entries(self, found: Sequence[ContextTables]) -> _Entries:
        shifts = self._begins.astype(np.uint64)
        answers = [one.answers << shift for one, shift in zip(found, shifts, strict=True)]
        return _Entries(
            np.concatenate(answers),
            np.concatenate([one.chances.reshape(-1) for one in found]),
            np.array([len(one.answers) - len(one.codes) for one in found], np.int64),
            _find_begins(answers),
            _find_begins([one.chances.reshape(-1) for one in found]),
            np.array([one.parts for one in self._contexts], np.int64),
        )


def _list_questions(
    questions: Sequence[Question], thresholds: NDArray[np.float64] | None, begins: Whole
) -> _Questions:
    parts = [question.parts for question in questions]
    single = [query for query, found in enumerate(parts) if len(found) == 1]
    several = [query for query, found in enumerate(parts) if len(found) > 1]
    return _Questions(
        int(begins[-1]),
        np.array(single, np.int64),
        np.array([begins[parts[q][0][0]] + parts[q][0][1] for q in single], np.int64),
        np.array(several, np.int64),
        np.array([term for q in several for term in parts[q]], np.int64).reshape(-1, 2),
        np.cumsum([0, *(len(parts[query]) for query in several)]),
        np.array([questions[query].every for query in several], np.bool_),
        np.empty(0) if thresholds is None else thresholds[several],
    )


def _join_components(found: Sequence[ContextTables], widths: NDArray[np.uint64]) -> _Components:
    samplers = [one.sampler for one in found]
    offsets = np.cumsum([0, *(sampler.rows for sampler in samplers)])
    rows = [
        np.where(one.rows < 0, one.rows, one.rows + offset)
        for one, offset in zip(found, offsets.tolist(), strict=False)
    ]
    return _Components(
        widths[:, 0],
        widths[:, 1],
        np.concatenate([one.keys.places for one in found]),
        _find_begins([one.keys.places for one in found]),
        np.array([one.keys.largest_hash for one in found], np.uint64),
        np.concatenate([one.keys.known[:, 0] for one in found]),
        _find_begins([one.keys.known for one in found]),
        np.concatenate([own.reshape(-1) for own in rows]),
        _find_begins([own.reshape(-1) for own in rows]),
        np.concatenate([one.codes for one in found]),
        *join_tables(samplers),
    )


def _find_begins(arrays: Sequence[NDArray[np.generic]]) -> Whole:
    """Return where each array begins if they follow each other."""
    return np.cumsum([0, *map(len, arrays)])[:-1]


@lean
def _draw(
    bits: Columns,
    columns: Whole,
    slots: int,
    unit: int,
    last: int,
    octets: NDArray[np.uint8],
    key_bits: NDArray[np.uint64],
    value_bits: NDArray[np.uint64],
    keys: NDArray[np.int32],
    first_key: Whole,
    hashed: NDArray[np.uint64],
    known: NDArray[np.uint64],
    first_known: Whole,
    rows: Whole,
    first_row: Whole,
    first_codes: NDArray[np.int32],
    guide: NDArray[np.int8],
    sums: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
    answers: NDArray[np.uint64],
    chances: NDArray[np.float64],
    codes_of: Whole,
    first_entry: Whole,
    first_chance: Whole,
    widths: Whole,
    parts: int,
    single: Whole,
    part_bits: Whole,
    several: Whole,
    terms: Whole,
    first_term: Whole,
    every: NDArray[np.bool_],
    thresholds: NDArray[np.float64],
    numbers: NDArray[np.int32],
    codes: NDArray[np.int32],
    result: NDArray[np.uint64],
    words: NDArray[np.uint64],
    entries: NDArray[np.int64],
    drawn_from: Whole,
    likely: NDArray[np.float64],
    used: Whole,
) -> int:
    """Draw and decode from a word of subjects on, while enough random bytes are left.

    Return the number of the first word that is not done. `words`, `entries`, `drawn_from` and
    `likely` have room for a word of subjects, and `used` for each component.
    """
    one = np.uint64(1)
    square, decoded, places = words[0], words[1], words[2]
    used[:] = 0
    most = 0
    while unit < last and most + _WORD * _LONGEST <= octets.shape[1]:
        window, word = unit // bits.shape[2], unit % bits.shape[2]
        first = window * slots + _WORD * word
        count = min(_WORD, slots - _WORD * word)
        for column in range(len(columns)):
            square[column] = bits[window, columns[column], word]
        square[len(columns) :] = np.uint64(0)
        spread_square(square, len(columns))
        decoded[:] = np.uint64(0)
        begin = np.uint64(0)
        for component in range(len(numbers)):
            own = numbers[component, first : first + count]
            symbols = codes[component, first : first + count]
            width = key_bits[component]
            mask = ~np.uint64(0) if width == _WORD else (one << width) - one
            place, largest = first_key[component], hashed[component]
            context = first_known[component]
            if largest == 0:
                for i in range(count):
                    own[i] = keys[np.uint64(place) + ((square[i] >> begin) & mask)]
            else:
                find_keys(square[:count], begin, mask, keys[place:], largest, known[context:], own)
            least = np.int32(0)
            for i in range(count):
                least = min(least, own[i])
            if least < 0:
                return _UNKNOWN
            begin += width
            wide = value_bits[component]
            mask = (one << wide) - one
            base, there = np.uint64(first_row[component]), np.uint64(context)
            # Whether something is open is unpredictable, so the open ones are collected first.
            opened = np.uint64(0)
            for i in range(count):
                number64 = np.uint64(own[i])
                row = rows[base + (number64 << wide) + ((square[i] >> begin) & mask)]
                drawn_from[opened] = row
                places[opened] = np.uint64(i)
                opened += np.uint64(row >= 0)
                symbols[i] = first_codes[there + number64]
            begin += wide
            used[component] = add_symbols(
                drawn_from[:opened],
                places[:opened],
                symbols,
                octets[component],
                used[component],
                guide,
                sums,
                shifts,
            )
            most = max(most, used[component])
            found = entries[component]
            entry0, chance0 = first_entry[component], first_chance[component]
            codes0, parts0 = codes_of[component], widths[component]
            for i in range(count):
                code = np.int64(symbols[i])
                entry = code if code >= 0 else codes0 + np.int64(own[i])
                decoded[i] |= answers[np.uint64(entry0 + entry)]
                found[i] = chance0 + entry * parts0
        transpose_square(decoded, parts)
        for n in range(len(single)):
            result[window, single[n], word] = decoded[part_bits[n]]
        for n in range(len(several)):
            result[window, several[n], word] = _combine(
                entries[:, :count],
                chances,
                terms[first_term[n] : first_term[n + 1]],
                every[n],
                thresholds[n],
                likely,
            )
        unit += 1
    return unit


@inlined
def _combine(
    entries: NDArray[np.int64],
    chances: NDArray[np.float64],
    terms: Whole,
    every: bool,
    threshold: float,
    likely: NDArray[np.float64],
) -> np.uint64:
    """Return which subjects' posterior of all (or any) of the terms reaches the threshold."""
    count = entries.shape[1]
    likely[:count] = 1.0
    for term in range(len(terms)):
        found, part = entries[terms[term, 0]], terms[term, 1]
        if every:
            for i in range(count):
                likely[i] *= chances[np.uint64(found[i] + part)]
        else:
            for i in range(count):
                likely[i] *= 1 - chances[np.uint64(found[i] + part)]
    yes = np.uint64(0)
    for i in range(count):
        share = likely[i] if every else 1 - likely[i]
        yes |= np.uint64(share >= threshold) << np.uint64(i)
    return yes
