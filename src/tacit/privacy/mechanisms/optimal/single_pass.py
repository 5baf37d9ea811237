"""Draw the symbols of all components and decode them, in one pass over subjects.

This is for the usual case: every subject is drawn for, every context has channels of its own, with
at most one block, and the columns and the parts of all components fit into a word each. In all
other cases `ChannelProtector` takes one step after the other; the answers have the same law.

An *entry* is a row of the decoding tables: one for each code of a component, and one for each of
its contexts, where no symbol is drawn. A *cell* says what to do for a context and the values of its
variables: the row to draw from, and the entry of the row's first symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
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
from tacit.privacy.ranges import find_begins
from tacit.privacy.sampling import NO_CELL, Sampler, draw_entries, join_tables, make_cells

Whole = NDArray[np.int64]
Words = NDArray[np.uint64]
Chances = NDArray[np.float64]

_WORD = 64
_WORDS = 8
"""Words of subjects at a time: loops take long to begin, and their arrays stay in the cache."""
_BLOCK = _WORDS * _WORD
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
_NARROW = 12
"""Cells are tabulated by key and values if these have at most so many bits."""
_LANE = 16
"""The bits of a score. From half of their values on, the answer is yes."""
_LANES = _WORD // _LANE
_HALF = 1 << (_LANE - 1)


class _Components(NamedTuple):
    """The tables of all components, one after the other, and where each component's begin."""

    key_bits: Words
    """`[component]`: the bits of a context's key; those of the private variables follow them."""
    value_bits: Words
    cells: Words
    """By key and values, or, if keys are hashed, by the number of the context and values."""
    first_cell: Words
    hashed: Words
    """`[component]`: the largest place in a table of hashes; 0 if keys are not hashed."""
    keys: NDArray[np.int32]
    """The number of each context by the hash of its key."""
    first_key: Whole
    known: Words
    """The keys of all contexts."""
    first_known: Whole
    guide: NDArray[np.int8]
    sums: Words
    shifts: Words


class _Entries(NamedTuple):
    """What all entries say, one component after the other."""

    answers: Words
    """`[entry]`: the answers of the parts, at the bits of their component."""
    chances: Chances
    """For each part, how likely it is by the entries of its component."""
    first_chance: Whole
    """`[part]`: where its chances begin, less the number of entries before its component's."""


class _Questions(NamedTuple):
    """How the answers of queries follow from entries. Parts are numbered over all components."""

    parts: int
    single: Whole
    """The queries with one part."""
    bits: Whole
    """For each of them its part."""
    scored: Whole
    """Queries with two parts: the answer is yes if the scores of both entries add up to half."""
    scores: Words
    """`[group][entry]`: a lane for each of several queries."""
    scoring: NDArray[np.bool_]
    """`[group][component]`: whether a component's entries have scores."""
    several: Whole
    """All other queries with parts in several components."""
    terms: Whole
    """Their parts, one after the other: component and part."""
    first_term: Whole
    every: NDArray[np.bool_]
    """Whether all parts are needed."""
    thresholds: Chances


class _PassTables(NamedTuple):
    """All tables of a pass, and what entries mean as symbols."""

    components: _Components
    entries: _Entries
    questions: _Questions
    contexts: Sequence[NDArray[np.int32]]
    """For each component, the context of each of its entries."""
    codes: Sequence[int]
    """For each component, the number of its codes: its first entries."""
    first_entry: Sequence[int]

    def find_symbols(self, entries: NDArray[np.int32], component: int) -> DrawnSymbols:
        """Return the symbols of a component, given the entries of all."""
        own = entries[component] - np.int32(self.first_entry[component])
        codes = np.where(own < self.codes[component], own, np.int32(-1))
        nothing = np.empty((len(own), 0), np.uint64)
        contexts = self.contexts[component][own]
        return DrawnSymbols(contexts, codes.reshape(-1, 1), nothing, np.empty(0, np.int64))


class SinglePass:
    """Draws and decodes all components together.

    With `thresholds`, queries with parts in several components are decided by their posterior.
    Parts of different components are assumed to be independent.
    """

    def __init__(
        self,
        contexts: Sequence[Contexts],
        questions: Sequence[Question],
        thresholds: Chances | None,
        signals: Sequence[list[int]],
        variables: Sequence[list[int]],
    ) -> None:
        self._contexts = contexts
        self._questions = questions
        self._thresholds = np.empty(0) if thresholds is None else thresholds
        self._begins = np.cumsum([0, *(one.parts for one in contexts)])
        pairs = [*zip(signals, variables, strict=True)]
        self._columns = np.array([n for one, other in pairs for n in [*one, *other]], np.int64)
        self._widths = [(len(one), len(other)) for one, other in pairs]
        # A sampler of another kind, which tests have, draws in its own way.
        usual = all(type(one.sampler) is Sampler and one.sampler.private for one in contexts)
        fits = 0 < self._begins[-1] <= _WORD and len(self._columns) <= _WORD
        literal = thresholds is None and any(len(question.parts) > 1 for question in questions)
        self._usable = bool(usual and fits and not literal)
        self._sizes: list[tuple[int, int]] = []
        self._tables: _PassTables | None = None
        self._failures = 0
        self._calls_to_skip = 0
        """How many calls are answered in single steps before the next attempt."""

    def run(
        self,
        bits: Columns,
        slots: int,
        source: RandomSource,
        workers: Workers,
        result: Words,
        counted: NDArray[np.bool_] | None = None,
    ) -> Callable[[int], DrawnSymbols] | None:
        """Write `result[window][query][word]` for queries about private events.

        Return what gives the symbols of a component, or None if this is not the usual case. Whether
        it is depends only on public events; symbols that were drawn until then are forgotten.
        `counted` says which rows make time for new contexts; None is all.
        """
        if not self._usable:
            return None
        if self._calls_to_skip:
            self._calls_to_skip -= 1
            return None
        tables = self._find_tables(len(bits) * slots)
        if tables is None:
            return None
        entries = allocate((len(self._contexts), len(bits) * slots), np.int32)
        joined = *tables.components, *tables.entries, *tables.questions
        given: tuple[Any, ...] = (*joined, entries, result)

        def draw(unit: int, last: int) -> int:
            """Draw for blocks of subjects up to the last; random bytes are asked for at need."""
            share, number = _FIRST_SHARE, len(self._contexts)
            room: tuple[Any, ...] = (
                np.empty((3, _BLOCK), np.uint64),
                np.empty(_BLOCK),
                np.empty(number, np.int64),
            )
            while 0 <= unit < last:
                size = _BLOCK * _LONGEST + int(share * _BLOCK * (last - unit))
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

        units = len(bits) * -(-bits.shape[2] // _WORDS)
        stretches = max(1, min(workers.threads, len(bits) * slots // _FEWEST))
        edges = pairwise(np.linspace(0, units, stretches + 1).astype(int).tolist())
        if min(workers.run([partial(draw, *edge) for edge in edges])) < 0:
            self._failures = min(self._failures + 1, _MOST_FAILURES)
            self._calls_to_skip = 2**self._failures - 1
            return None
        self._failures = 0
        passed = len(bits) * slots if counted is None else int(np.count_nonzero(counted))
        for one in self._contexts:
            one.pass_windows(passed)
        return cache(partial(tables.find_symbols, entries))

    def _find_tables(self, rows: int) -> _PassTables | None:
        """Return the tables, or None if there are none or they are large for so few rows."""
        sizes = [one.table_sizes for one in self._contexts]
        if self._tables is None or sizes != self._sizes:
            known = sum(one.sampler.rows for one in self._contexts)
            if known > rows or not all(one.has_single_blocks for one in self._contexts):
                return None
            self._tables = self._join([one.list_tables() for one in self._contexts])
            self._sizes = sizes
        return self._tables

    def _join(self, found: Sequence[ContextTables]) -> _PassTables:
        first_entry = find_begins([len(one.answers) for one in found])
        return _PassTables(
            self._join_components(found, first_entry),
            self._join_entries(found, first_entry),
            self._list_questions(found, first_entry),
            [one.contexts for one in found],
            [len(one.answers) - len(one.codes) for one in found],
            first_entry.tolist(),
        )

    def _join_components(self, found: Sequence[ContextTables], first_entry: Whole) -> _Components:
        samplers = [one.sampler for one in found]
        first_row = find_begins([sampler.rows for sampler in samplers])
        rows = sum(sampler.rows for sampler in samplers)
        cells, hashed = [], []
        for one, (keys, values), row, entry in zip(
            found, self._widths, first_row.tolist(), first_entry.tolist(), strict=True
        ):
            closed = len(one.answers) - len(one.codes) + np.arange(len(one.codes))
            first = entry + np.where(one.codes < 0, closed, one.codes)
            own = np.where(one.rows < 0, rows, one.rows + row)
            made = make_cells(own, first[:, np.newaxis])
            narrow = keys + values <= _NARROW
            if narrow:
                every = np.arange(1 << keys, dtype=np.uint64)[:, np.newaxis]
                made = np.append(made, np.full((1, made.shape[1]), NO_CELL), axis=0)
                made = made[one.keys.look_up(every)].T
            cells.append(made.reshape(-1))
            hashed.append(0 if narrow else one.keys.largest_hash)
        return _Components(
            np.array([keys for keys, _ in self._widths], np.uint64),
            np.array([values for _, values in self._widths], np.uint64),
            np.concatenate(cells),
            find_begins(list(map(len, cells))).astype(np.uint64),
            np.array(hashed, np.uint64),
            np.concatenate([one.keys.places for one in found]),
            find_begins([len(one.keys.places) for one in found]),
            np.concatenate([one.keys.known[:, 0] for one in found]),
            find_begins([len(one.keys.known) for one in found]),
            *join_tables(samplers),
        )

    def _join_entries(self, found: Sequence[ContextTables], first_entry: Whole) -> _Entries:
        shifts = self._begins.astype(np.uint64)
        sizes = [one.chances.shape[0] for one in found for _ in range(one.chances.shape[1])]
        before = np.repeat(first_entry, [one.chances.shape[1] for one in found])
        return _Entries(
            np.concatenate([one.answers << n for one, n in zip(found, shifts, strict=False)]),
            np.concatenate([one.chances.T.reshape(-1) for one in found]),
            find_begins(sizes) - before,
        )

    def _list_questions(self, found: Sequence[ContextTables], first_entry: Whole) -> _Questions:
        asked = [question.parts for question in self._questions]
        owns = [slice(n, n + len(one.answers)) for n, one in zip(first_entry, found, strict=True)]
        two = [query for query, terms in enumerate(asked) if len(terms) == 2]
        scores = np.zeros((-(-len(two) // _LANES), owns[-1].stop), np.uint64)
        scoring = np.zeros((len(scores), len(found)), np.bool_)
        scored: list[int] = []
        for query in sorted(two, key=lambda query: asked[query]):  # those alike share a group
            one, other = (found[component].chances[:, part] for component, part in asked[query])
            every = self._questions[query].every
            made = _score(one, other, self._thresholds[query], every=every)
            if made is not None:
                group, lane = divmod(len(scored), _LANES)
                for (component, _), score in zip(asked[query], made, strict=True):
                    scores[group, owns[component]] += score << np.uint64(_LANE * lane)
                    scoring[group, component] = True
                scored.append(query)
        single = [query for query, terms in enumerate(asked) if len(terms) == 1]
        several = [q for q, terms in enumerate(asked) if len(terms) > 1 and q not in scored]
        terms = [(c, self._begins[c] + part) for query in several for c, part in asked[query]]
        return _Questions(
            int(self._begins[-1]),
            np.array(single, np.int64),
            np.array([self._begins[c] + part for q in single for c, part in asked[q]], np.int64),
            np.array(scored, np.int64),
            scores,
            scoring,
            np.array(several, np.int64),
            np.array(terms, np.int64).reshape(-1, 2),
            np.cumsum([0, *(len(asked[query]) for query in several)]),
            np.array([self._questions[query].every for query in several], np.bool_),
            self._thresholds[several],
        )


def _score(
    one: Chances, other: Chances, threshold: float, *, every: bool
) -> tuple[Words, Words] | None:
    """Score the chances of two parts: scores add up to at least half if the answer is yes.

    For the second part the score is the rank of its chance. For the first part it is half of all
    values, less the number of ranks that are too low. This is exact, since products and differences
    of floats grow with their operands. Return None if there are too many ranks.
    """
    values, ranks = np.unique(other, return_inverse=True)
    if len(values) > _HALF:
        return None
    low = np.zeros(len(one), np.int64)
    for bit in reversed(range(len(values).bit_length())):
        more = low + (1 << bit)
        value = values[np.minimum(more, len(values)) - 1]
        share = one * value if every else 1 - (1 - one) * (1 - value)
        low = np.where((more <= len(values)) & (share < threshold), more, low)
    return (_HALF - low).astype(np.uint64), ranks.astype(np.uint64)


@lean
def _draw(
    bits: Columns,
    columns: Whole,
    slots: int,
    unit: int,
    last: int,
    octets: NDArray[np.uint8],
    key_bits: Words,
    value_bits: Words,
    cells: Words,
    first_cell: Words,
    hashed: Words,
    keys: NDArray[np.int32],
    first_key: Whole,
    known: Words,
    first_known: Whole,
    guide: NDArray[np.int8],
    sums: Words,
    shifts: Words,
    answers: Words,
    chances: Chances,
    first_chance: Whole,
    parts: int,
    single: Whole,
    part_bits: Whole,
    scored: Whole,
    scores: Words,
    scoring: NDArray[np.bool_],
    several: Whole,
    terms: Whole,
    first_term: Whole,
    every: NDArray[np.bool_],
    thresholds: Chances,
    entries: NDArray[np.int32],
    result: Words,
    room: Words,
    likely: Chances,
    used: Whole,
) -> int:
    """Draw and decode from a block of subjects on, while enough random bytes are left.

    Return the number of the first block that is not done. `room` and `likely` have room for a
    block of subjects, and `used` for each component.
    """
    one = np.uint64(1)
    squares, decoded, own_cells = room[0], room[1], room[2]
    used[:] = 0
    most = 0
    blocks = -(-bits.shape[2] // _WORDS)
    while unit < last and most + _BLOCK * _LONGEST <= octets.shape[1]:
        window, begin_word = unit // blocks, unit % blocks * _WORDS
        words = min(_WORDS, bits.shape[2] - begin_word)
        count = min(_WORD * words, slots - _WORD * begin_word)
        first = window * slots + _WORD * begin_word
        for n in range(words):
            square = squares[n * _WORD : (n + 1) * _WORD]
            for column in range(len(columns)):
                square[column] = bits[window, columns[column], begin_word + n]
            square[len(columns) :] = np.uint64(0)
            spread_square(square, len(columns))
        decoded[:] = np.uint64(0)
        begin = np.uint64(0)
        for component in range(len(entries)):
            own = entries[component, first : first + count]
            width, wide, base = key_bits[component], value_bits[component], first_cell[component]
            largest = np.uint64(0)
            if hashed[component] == 0:
                mask = (one << (width + wide)) - one
                for i in range(count):
                    cell = cells[base + ((squares[i] >> begin) & mask)]
                    own_cells[i] = cell
                    largest = max(largest, cell)
            else:
                mask = ~np.uint64(0) if width == _WORD else (one << width) - one
                place, there = first_key[component], first_known[component]
                find_keys(
                    squares[:count],
                    begin,
                    mask,
                    keys[place:],
                    hashed[component],
                    known[there:],
                    own,
                )
                mask = (one << wide) - one
                for i in range(count):
                    values = (squares[i] >> (begin + width)) & mask
                    if own[i] < 0:
                        return _UNKNOWN
                    own_cells[i] = cells[base + (np.uint64(own[i]) << wide) + values]
            if largest == NO_CELL:
                return _UNKNOWN
            begin += width + wide
            used[component] = draw_entries(
                own_cells[:count], octets[component], used[component], guide, sums, shifts, own
            )
            most = max(most, used[component])
            for i in range(count):
                decoded[i] |= answers[np.uint64(own[i])]
        for n in range(words):
            square = decoded[n * _WORD : (n + 1) * _WORD]
            transpose_square(square, parts)
            for query in range(len(single)):
                result[window, single[query], begin_word + n] = square[part_bits[query]]
        drawn = entries[:, first : first + count]
        for group in range(len(scores)):
            squares[:] = np.uint64(0)
            for component in range(len(entries)):
                if scoring[group, component]:
                    for i in range(count):
                        squares[i] += scores[group, np.uint64(drawn[component, i])]
            for query in range(group * _LANES, min(len(scored), (group + 1) * _LANES)):
                top = np.uint64(_LANE * (query % _LANES) + _LANE - 1)
                for n in range(words):
                    yes = np.uint64(0)
                    for i in range(_WORD):
                        yes |= ((squares[_WORD * n + i] >> top) & one) << np.uint64(i)
                    result[window, scored[query], begin_word + n] = yes
        for query in range(len(several)):
            own_terms = terms[first_term[query] : first_term[query + 1]]
            for n in range(words):
                result[window, several[query], begin_word + n] = _combine(
                    drawn[:, _WORD * n : _WORD * (n + 1)],
                    own_terms,
                    chances,
                    first_chance,
                    every[query],
                    thresholds[query],
                    likely,
                )
        unit += 1
    return unit


@inlined
def _combine(
    entries: NDArray[np.int32],
    terms: Whole,
    chances: Chances,
    first_chance: Whole,
    every: bool,
    threshold: float,
    likely: Chances,
) -> np.uint64:
    """Return which subjects' posterior of all (or any) of the terms reaches the threshold."""
    count = entries.shape[1]
    likely[:count] = 1.0
    for term in range(len(terms)):
        found, begin = entries[terms[term, 0]], first_chance[terms[term, 1]]
        if every:
            for i in range(count):
                likely[i] *= chances[np.uint64(begin + found[i])]
        else:
            for i in range(count):
                likely[i] *= 1 - chances[np.uint64(begin + found[i])]
    yes = np.uint64(0)
    for i in range(count):
        share = likely[i] if every else 1 - likely[i]
        yes |= np.uint64(share >= threshold) << np.uint64(i)
    return yes
