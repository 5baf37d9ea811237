"""Closed windows -> protected answers: what was asked of them, noise, and its decoding.

Nothing that depends on private events leaves but through `Noise`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.certainty import ByPolicy, Certainty, Exact, Shares
from tacit.answers.contexts import Contexts, Drawn
from tacit.answers.decoding import Decoded, decoding_program, tables
from tacit.errors import PrivacyError
from tacit.kernels import compiled
from tacit.patterns.booleans import to_columns
from tacit.patterns.tree import Name, Pattern
from tacit.pipeline.asking import Asking
from tacit.pipeline.flow import compiled_queries
from tacit.pipeline.pane_noise import PaneNoise, lanes_of
from tacit.pipeline.reading import Reading
from tacit.pipeline.silence import Silent, SilentComponents, SilentElements
from tacit.planning.schemes import ElementScheme, OptimalScheme, Scheme
from tacit.privacy.components import Question
from tacit.privacy.noise import Noise
from tacit.spec.specification import Specification
from tacit.windows.panes import Closed
from tacit.windows.sliding import either

Columns = NDArray[np.uint64]


class Asked:
    """The patterns that windows are asked for, each once: their bits are the release's input."""

    def __init__(self) -> None:
        self._numbers: dict[Pattern, int] = {}

    def column(self, pattern: Pattern) -> int:
        """The number of the pattern's bit column."""
        return self._numbers.setdefault(pattern, len(self._numbers))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """All of them, in order."""
        return tuple(self._numbers)


@dataclass(frozen=True, slots=True)
class Windows:
    """Closed windows, and the bits of what was asked of them: `[window][pattern][word]`."""

    bits: Columns
    closed: Closed
    rows: Mapping[str, pl.DataFrame]

    @property
    def slots(self) -> int:
        """How many subjects there are."""
        return int(self.closed.words.shape[1])


class Guard(ABC):
    """Protects the answers for the subjects of one policy."""

    @abstractmethod
    def protect(self, windows: Windows, own: NDArray[np.bool_] | None) -> tuple[Columns, Certainty]:
        """`bits[window][query][word]`; what is given for subjects that are not `own` is unused."""

    @property
    def reading(self) -> Reading | None:
        """What reads noisy windows, if these are read literally."""
        return None


class Open(Guard):
    """For subjects who keep nothing private."""

    def __init__(self, queries: Sequence[Pattern], asked: Asked) -> None:
        self._columns = [asked.column(query) for query in queries]

    def protect(
        self,
        windows: Windows,
        own: NDArray[np.bool_] | None,  # noqa: ARG002 - true answers look alike for all
    ) -> tuple[Columns, Certainty]:
        """The true answers: no private event can change them."""
        return windows.bits[:, self._columns], Exact()


class Silenced(Guard):
    """For subjects whose limit is reached: all that is shown to a `Silent` is what it asks for."""

    def __init__(self, silent: Silent, asked: Asked) -> None:
        self._silent = silent
        self._columns = [asked.column(pattern) for pattern in silent.asks]

    def protect(self, windows: Windows, own: NDArray[np.bool_] | None) -> tuple[Columns, Certainty]:
        """From public events and the prior alone."""
        slots = np.arange(windows.slots) if own is None else np.flatnonzero(own)
        return self._silent.answer(windows.bits[:, self._columns], slots, windows.slots)


class FlipGuard(Guard):
    """Flips private elements, each once; queries are answered from what comes out."""

    def __init__(
        self,
        scheme: ElementScheme,
        queries: Sequence[Pattern],
        asked: Asked,
        noise: Noise,
        reading: Reading | None,
        panes: PaneNoise | None = None,
    ) -> None:
        self._noise = noise
        self._reading = reading
        self._panes = panes
        self._queries = len(queries)
        touched = {part.query for part in scheme.touched}
        self._exact = [n for n in range(len(queries)) if n not in touched]
        self._exact_columns = [asked.column(queries[number]) for number in self._exact]
        self._elements = scheme.flipped
        self._channels = [scheme.elements.channels[name] for name in self._elements]
        self._element_columns = [asked.column(Name(name)) for name in self._elements]
        signals = dict.fromkeys(signal for part in scheme.touched for signal in part.signals)
        self._signal_columns = [asked.column(signal) for signal in signals]
        names: list[Hashable] = [*signals, *self._elements]
        self._read_queries = [part.query for part in scheme.read_parts]
        names += self._read_queries
        numbers = {name: number for number, name in enumerate(names)}
        decoders = scheme.decoders()
        self._tables = tables(decoders, numbers)
        decided = [decoder for decoder in decoders if decoder.yes is not None]
        self._decided = [decoder.query for decoder in decided]
        self._program = decoding_program(decided, numbers)

    @property
    def reading(self) -> Reading | None:
        """What reads noisy windows, if these are read literally."""
        return self._reading

    def protect(self, windows: Windows, own: NDArray[np.bool_] | None) -> tuple[Columns, Certainty]:
        """Flip, then answer."""
        bits = windows.bits
        result = np.empty((len(bits), self._queries, bits.shape[2]), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        noisy, read = self._seen(windows, own)
        columns = [bits[:, self._signal_columns], noisy]
        if read is not None:
            result[:, self._read_queries] = read
            columns.append(read)
        evidence = np.concatenate(columns, axis=1)
        if self._decided:
            result[:, self._decided] = self._program.run(evidence)
        return result, Decoded(self._tables, evidence)

    def _seen(
        self, windows: Windows, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Columns | None]:
        """The noisy elements, and the queries that are read from noisy windows."""
        reading = self._reading
        if self._panes is None:
            noisy = self._flipped(windows.bits, own)
            read = None if reading is None else self._read(reading, windows, noisy)
            return noisy, read
        panes = self._panes.flipped(windows.closed, own)
        noisy = either(panes, len(panes) - len(windows.bits) + 1)
        if reading is None:
            return noisy, None
        full = self._full(reading, panes)
        moments = self._panes.moments(windows.closed, full, reading.timed)
        return noisy, reading.answer_panes(windows.closed, windows.rows, full, moments)

    def _flipped(self, bits: Columns, own: NDArray[np.bool_] | None) -> Columns:
        """The private elements' columns, each bit flipped or not, once and for all queries."""
        true = bits[:, self._element_columns]
        lanes = None
        if own is not None:
            words = lanes_of(own)
            lanes = np.ascontiguousarray(np.broadcast_to(words, true[:, 0].shape))
            true &= words  # the others' events are nobody's business here
        noisy = [
            self._noise.flip(np.ascontiguousarray(true[:, n]), channel, lanes)
            for n, channel in enumerate(self._channels)
        ]
        return np.stack(noisy, axis=1) if noisy else true

    def _read(self, reading: Reading, windows: Windows, noisy: Columns) -> Columns:
        """The queries read literally."""
        full = self._full(reading, noisy)
        return reading.answer(windows.closed, windows.rows, full, self._noise)

    def _full(self, reading: Reading, noisy: Columns) -> Columns:
        """All private elements; those that no query looks at are not there."""
        full = np.zeros((len(noisy), len(reading.private), noisy.shape[2]), np.uint64)
        full[:, [reading.private.index(name) for name in self._elements]] = noisy
        return full


class OptimalGuard(Guard):
    """Answers what private events cannot change, and draws the rest from channels."""

    def __init__(
        self, scheme: OptimalScheme, queries: Sequence[Pattern], asked: Asked, noise: Noise
    ) -> None:
        self._questions = scheme.exposure.questions
        self._literal = scheme.literal
        self._threshold = scheme.threshold
        parts = [question.parts for question in self._questions]
        self._exact = [query for query, found in enumerate(parts) if not found]
        self._exact_columns = [asked.column(queries[query]) for query in self._exact]
        self._several = [query for query, found in enumerate(parts) if len(found) > 1]
        self._single: list[tuple[list[int], list[int]]] = [
            ([], []) for _ in scheme.exposure.components
        ]
        for query, found in enumerate(parts):
            if len(found) == 1:
                self._single[found[0][0]][0].append(query)
                self._single[found[0][0]][1].append(found[0][1])
        self._contexts = [
            Contexts(optimal, noise, None if scheme.literal else scheme.threshold, planned)
            for optimal, planned in zip(scheme.optimals, scheme.planned, strict=True)
        ]
        self._signals = [
            [asked.column(signal) for signal in component.signals]
            for component in scheme.exposure.components
        ]
        self._variables = [
            [asked.column(variable.atom) for variable in component.variables]
            for component in scheme.exposure.components
        ]

    def protect(self, windows: Windows, own: NDArray[np.bool_] | None) -> tuple[Columns, Certainty]:
        """Draw for every component, then put the queries together from their parts."""
        slots = np.arange(windows.slots) if own is None else np.flatnonzero(own)
        inputs = zip(self._contexts, self._inputs(windows, slots, own), strict=True)
        drawn = [contexts.draw(signals, variables) for contexts, (signals, variables) in inputs]
        parts = self._answers(drawn, windows, slots, own)
        shape = (len(windows.bits), len(self._questions), windows.bits.shape[2])
        certainty = Symbols(self._contexts, drawn, self._questions, len(windows.bits), slots)
        result = np.empty(shape, np.uint64)
        result[:, self._exact] = windows.bits[:, self._exact_columns]
        for component, (queries, numbers) in enumerate(self._single):
            result[:, queries] = parts[component][:, numbers]
        for query in self._several:
            question = self._questions[query]
            result[:, query] = self._combined(question, parts, certainty, query, windows.slots)
        return result, certainty

    def _inputs(
        self, windows: Windows, slots: NDArray[np.int64], own: NDArray[np.bool_] | None
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """For each component its signals and variables, as words by window and subject."""
        columns = [*self._signals, *self._variables]
        if sum(map(len, columns)) > 64:
            for pair in zip(self._signals, self._variables, strict=True):
                signals, variables = (_by_subject(windows, one, slots, own) for one in pair)
                yield signals, variables
            return
        # One turn of the bits for all components; each then takes its own.
        whole = _by_subject(windows, [n for one in columns for n in one], slots, own)
        found = np.empty((len(columns), len(whole), 1), np.uint64)
        if columns:
            _split(whole.reshape(-1), np.array([len(one) for one in columns]), found)
        yield from zip(found[: len(self._signals)], found[len(self._signals) :], strict=True)

    def _answers(
        self,
        drawn: Sequence[Drawn],
        windows: Windows,
        slots: NDArray[np.int64],
        own: NDArray[np.bool_] | None,
    ) -> list[Columns]:
        """The answers of each component's parts as bit columns."""
        pairs = list(zip(self._contexts, drawn, strict=True))
        edges = list(accumulate((contexts.parts for contexts in self._contexts), initial=0))
        if edges[-1] > 64:
            return [
                _by_window(contexts.words(one), contexts.parts, windows, slots, own)
                for contexts, one in pairs
            ]
        # One turn of the bits for all components; each then takes its own.
        words = np.zeros(len(windows.bits) * len(slots), np.uint64)
        for (contexts, one), begin in zip(pairs, edges, strict=False):
            contexts.add_words(one, begin, words)
        columns = _by_window(words.reshape(-1, 1), edges[-1], windows, slots, own)
        return [columns[:, begin:end] for begin, end in pairwise(edges)]

    def _combined(
        self,
        question: Question,
        parts: Sequence[Columns],
        certainty: Symbols,
        query: int,
        slots: int,
    ) -> Columns:
        """The answer to a query with parts in several components."""
        if self._literal:
            columns = [parts[component][:, part] for component, part in question.parts]
            combine = np.bitwise_and if question.every else np.bitwise_or
            joined: Columns = combine.reduce(columns)
            return joined
        likely = certainty.posterior(query)
        claims = np.zeros((len(likely), -(-slots // 64)), np.uint64)
        _claim(likely, self._threshold, certainty.slots, claims)
        return claims


@dataclass(frozen=True, slots=True, eq=False)
class Symbols(Certainty):
    """The symbols that were drawn for each component, for some of the subjects."""

    contexts: Sequence[Contexts]
    drawn: Sequence[Drawn]
    questions: Sequence[Question]
    windows: int
    slots: NDArray[np.int64]

    def posterior(
        self, query: int, windows: slice = slice(None), own: slice = slice(None)
    ) -> Shares:
        """`[window][own subject]`: how likely a query is true."""
        question = self.questions[query]
        likely = np.ones(len(range(self.windows)[windows]) * len(self.slots[own]))
        # Parts of different components are taken as independent.
        for component, part in question.parts:
            drawn = self._part(component, windows, own)
            self.contexts[component].weigh(drawn, part, likely, true=question.every)
        if not question.every:
            likely = 1 - likely
        return likely.reshape(len(range(self.windows)[windows]), -1)

    def _part(self, component: int, windows: slice, own: slice) -> Drawn:
        """What was drawn in some windows for some of the subjects."""
        drawn = self.drawn[component]
        if windows == own == slice(None):
            return drawn
        shape = (self.windows, len(self.slots))
        codes = drawn.codes.reshape(*shape, drawn.codes.shape[1])[windows, own]
        return Drawn(
            drawn.contexts.reshape(shape)[windows, own].ravel(),
            codes.reshape(-1, drawn.codes.shape[1]),
        )

    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """The posterior of the answer that was given."""
        likely = np.ones(answers.shape)
        if not self.questions[query].parts:
            return likely
        begin, end = np.searchsorted(self.slots, [slots.start, slots.stop])
        own = self.slots[begin:end] - slots.start
        if len(own):
            likely[:, own] = self.posterior(query, windows, slice(int(begin), int(end)))
        return np.where(answers, likely, 1 - likely)


class Release(Asking):
    """Turns what was asked of windows into protected answers, policy by policy."""

    protects = True

    def __init__(self, spec: Specification, schemes: Sequence[Scheme], noise: Noise) -> None:
        queries = tuple(spec.query_patterns.values())
        asked = Asked()
        self.private = noise.private
        self.guards = [
            _guard(scheme, spec, queries, asked, noise, f"policy{number}")
            for number, scheme in enumerate(schemes)
        ]
        limited = any(private.limit is not None for private in spec.private)
        twins = limited or spec.windows.panes > 1
        self.twins = [_twin(scheme, queries, asked) for scheme in schemes] if twins else []
        """What answers in place of each guard where private events are not looked at: for
        subjects whose limit is reached, and for all for a while after the terms have changed.
        """
        readings = [guard.reading.queries for guard in self.guards if guard.reading is not None]
        self._asked = compiled_queries(spec, asked.patterns, walk=not readings)
        super().__init__(
            [query.name for query in spec.queries],
            [self._asked, *readings],
            [query.consumer for query in spec.queries],
        )

    def answer(
        self, closed: Closed, rows: Mapping[str, pl.DataFrame], policies: NDArray[np.int32]
    ) -> tuple[Columns, Certainty]:
        """The protected answers, each subject's by its own policy."""
        windows = Windows(self._asked.answer(closed, rows), closed, rows)
        exhausted = int(policies.max(initial=0)) >= len(self.guards)
        if exhausted and not self.twins:
            raise PrivacyError("no private pattern has a limit, so nobody's can be reached")
        guards = [*self.guards, *self.twins] if exhausted else self.guards
        if len(guards) == 1:
            return guards[0].protect(windows, None)
        parts = [guard.protect(windows, policies == number) for number, guard in enumerate(guards)]
        result = np.zeros_like(parts[0][0])
        for number, (bits, _) in enumerate(parts):
            result |= bits & lanes_of(policies == number)
        return result, ByPolicy(policies, [certainty for _, certainty in parts])


def _guard(
    scheme: Scheme,
    spec: Specification,
    queries: Sequence[Pattern],
    asked: Asked,
    noise: Noise,
    name: str,
) -> Guard:
    if isinstance(scheme, OptimalScheme):
        return OptimalGuard(scheme, queries, asked, noise)
    if isinstance(scheme, ElementScheme):
        reading = None
        if scheme.read_parts:
            patterns = [queries[part.query] for part in scheme.read_parts]
            reading = Reading(spec, patterns, scheme.elements.policy.private)
        panes = _pane_noise(scheme, spec, noise, name) if spec.windows.panes > 1 else None
        return FlipGuard(scheme, queries, asked, noise, reading, panes)
    return Open(queries, asked)


def _pane_noise(scheme: ElementScheme, spec: Specification, noise: Noise, name: str) -> PaneNoise:
    flipped = scheme.flipped
    return PaneNoise(
        name,
        tuple(spec.types[element] for element in flipped),
        [scheme.elements.channels[element] for element in flipped],
        len(spec.types),
        spec.windows.pane,
        noise,
    )


def _twin(scheme: Scheme, queries: Sequence[Pattern], asked: Asked) -> Guard:
    if isinstance(scheme, OptimalScheme):
        return Silenced(SilentComponents(scheme, queries), asked)
    if isinstance(scheme, ElementScheme):
        return Silenced(SilentElements(scheme, queries), asked)
    return Open(queries, asked)


@compiled
def _split(whole: NDArray[np.uint64], widths: NDArray[np.int64], found: NDArray[np.uint64]) -> None:
    """Words cut into numbers of so many bits each, from the lowest on."""
    begin = np.uint64(0)
    for part in range(len(widths)):
        width = np.uint64(widths[part])
        mask = ~np.uint64(0) if width == 64 else (np.uint64(1) << width) - np.uint64(1)
        for i in range(len(whole)):
            found[part, i, 0] = (whole[i] >> begin) & mask
        begin += width


@compiled
def _claim(
    likely: NDArray[np.float64],
    threshold: float,
    slots: NDArray[np.int64],
    claims: NDArray[np.uint64],
) -> None:
    """Set the bits of the subjects for whom a query is likely enough."""
    for window in range(len(likely)):
        for i in range(len(slots)):
            slot = np.uint64(slots[i])
            yes = np.uint64(likely[window, i] >= threshold)
            claims[window, slot >> np.uint64(6)] |= yes << (slot & np.uint64(63))


def _by_window(
    words: NDArray[np.uint64],
    width: int,
    windows: Windows,
    slots: NDArray[np.int64],
    own: NDArray[np.bool_] | None,
) -> Columns:
    """The other way round: words for each window and subject as bit columns."""
    words = words.reshape(len(windows.bits), len(slots), words.shape[1])
    if own is not None:
        full = np.zeros((len(windows.bits), windows.slots, words.shape[2]), np.uint64)
        full[:, slots] = words
        words = full
    return to_columns(words, width)


def _by_subject(
    windows: Windows,
    columns: list[int],
    slots: NDArray[np.int64],
    own: NDArray[np.bool_] | None,
) -> NDArray[np.uint64]:
    """Some bits of what was asked as words for each window and subject."""
    words = to_columns(np.ascontiguousarray(windows.bits[:, columns]), windows.slots)
    if own is not None:
        words = words[:, slots]
    return words.reshape(len(words) * len(slots), -(-len(columns) // 64))
