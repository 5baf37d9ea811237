"""Flips: what uniform and adaptive share. Elements are flipped, and queries read from the result.

A subclass says how much epsilon each element gets. Everything else is here: what to expect, the
draws, and how noisy elements become answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.patterns.tree import Name, Pattern
from tacit.privacy.affected_queries import AffectedQuery, touched
from tacit.privacy.certainty import Certainty
from tacit.privacy.channel_audit import Ratio, multiply_ratios, row_ratio
from tacit.privacy.decoding import Decoded, TableDecoder, decoding_program, tables
from tacit.privacy.elements import Elements
from tacit.privacy.evidence import Decode, Evidence, best_threshold
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Floats,
    Mechanism,
    NamedChannel,
    PlanGoal,
    Protector,
    RunSetup,
    WindowBits,
    pack_slots,
)
from tacit.privacy.mechanisms.noisy_windows import NoisyWindows
from tacit.privacy.mechanisms.pane_noise import PaneNoise
from tacit.privacy.mechanisms.public_only import PublicTables
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policy
from tacit.privacy.quality import Confusion
from tacit.privacy.statistics import Found, Statistics
from tacit.windows.queries import Queries
from tacit.windows.sliding import either


class ChosenFlips(NamedTuple):
    """The flips of elements, and the posterior from which on the answer is yes."""

    elements: Elements
    threshold: float


@dataclass(frozen=True, eq=False)
class Flips(Mechanism):
    """Flip the presence of each private element once, and read queries from the noisy elements."""

    kind: ClassVar[str] = "elements"
    draws_panes = True

    elements: Elements
    touched: tuple[AffectedQuery, ...]
    literal: bool
    threshold: float
    right: tuple[Floats, ...]
    """For each touched query `[context][presence][answer]`: how likely the answer is right.

    A wide query has its literal answer in place of presence.
    """
    public: PublicTables
    """What answers once a limit is reached."""

    @classmethod
    @abstractmethod
    def choose(cls, policy: Policy, statistics: Statistics, goal: PlanGoal) -> ChosenFlips:
        """The flips of the policy's elements."""

    @classmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Self, Confusion[Floats]]:
        """Choose the flips, then tabulate how to read what comes out."""
        made, threshold = cls.choose(statistics.policy.scaled(goal.share), statistics, goal)
        decode: Decode = "literal" if goal.literal else "posterior"
        counts = np.zeros((3, len(statistics.positives)))
        counts[0] = statistics.exact
        right = []
        for part, known in zip(statistics.touched, statistics.evidence, strict=True):
            flips = flips_of(made, known, statistics.sightings)
            found = known.confusion(flips, decode, threshold)
            counts[:, part.query] += found.tp, found.fp, found.fn
            right.append(_right(part, known, flips, decode))
        public = PublicTables.plan(statistics, 0.5 if goal.literal else threshold)
        planned = cls(made, statistics.touched, goal.literal, threshold, tuple(right), public)
        return planned, Confusion(*counts)

    @property
    def public_only(self) -> PublicTables:
        """Tables of what is likely in each context."""
        return self.public

    @property
    def flipped(self) -> list[str]:
        """The private elements that some query looks at; no others are flipped."""
        return sorted({name for part in self.touched for name in part.elements})

    @property
    def read_parts(self) -> tuple[AffectedQuery, ...]:
        """The queries that must be read from noisy windows: no table tells their answers."""
        return tuple(
            part for part in self.touched if part.wide or (self.literal and part.table is None)
        )

    def decoders(self) -> list[TableDecoder]:
        """How each touched query is answered."""
        read_queries = {part.query for part in self.read_parts}
        return [
            self._decoder(part, right, read=part.query in read_queries)
            for part, right in zip(self.touched, self.right, strict=True)
        ]

    def _decoder(self, part: AffectedQuery, right: Floats, *, read: bool) -> TableDecoder:
        # The context has the lowest bits of a cell, presence those above.
        cells = right.transpose(1, 0, 2).reshape(-1, 2)
        noisy = (part.query,) if part.wide else part.elements
        yes = cells[:, 1] >= self.threshold
        if self.literal:
            yes = np.empty(0, np.bool_) if part.table is None else part.table.T.reshape(-1)
        unread = None if self.literal and read else yes
        return TableDecoder(part.query, (*part.signals, *noisy), cells, unread)

    def start(self, run: RunSetup) -> FlipProtector:
        """Flip in windows; or in panes, where windows slide."""
        reader = None
        if self.read_parts:
            patterns = [run.queries[part.query] for part in self.read_parts]
            reader = NoisyWindows(run.spec, patterns, self.elements.policy.private)
        panes = None
        if run.spec.windows.panes > 1:
            panes = PaneNoise(
                run.policy,
                tuple(run.spec.types[element] for element in self.flipped),
                [self.elements.channels[element] for element in self.flipped],
                len(run.spec.types),
                run.spec.windows.pane,
                run.noise,
            )
        return FlipProtector(self, run, reader, panes)

    def to_dict(self) -> dict[str, Any]:
        """The channels and the tables."""
        return {
            "elements": self.elements.to_dict(),
            "literal": self.literal,
            "threshold": self.threshold,
            "right": {
                str(part.query): right.tolist()
                for part, right in zip(self.touched, self.right, strict=True)
            },
            "alone": self.public.to_dict(),
        }

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Any],
        policy: Policy,
        queries: Sequence[Pattern],
        panes: int,  # noqa: ARG003 - each pane is drawn for once
    ) -> Self:
        """The channels that were written, audited for the policy."""
        written = Elements.from_dict(plain["elements"])
        parts = touched(policy, queries)
        right = tuple(np.array(plain["right"][str(part.query)], np.float64) for part in parts)
        for part, table in zip(parts, right, strict=True):
            cells = 2 if part.wide else 1 << len(part.elements)
            if table.shape != (1 << len(part.signals), cells, 2):
                raise PlanError("the plan's tables do not fit the specification; make a new plan")
        literal, threshold = bool(plain["literal"]), float(plain["threshold"])
        least = 0.5 if literal else threshold
        public = PublicTables.from_dict(plain.get("alone"), policy.private, parts, least)
        elements = Elements(policy, written.channels)
        return cls(elements, parts, literal, threshold, right, public)

    def fits(
        self,
        policy: Policy,
        queries: Sequence[Pattern],  # noqa: ARG002 - all elements are flipped, for any query
        panes: int,  # noqa: ARG002
    ) -> bool:
        """Whether every private element is flipped."""
        return self.elements.channels.keys() == policy.private

    def widest_ratio(self, changing: frozenset[str]) -> Ratio:
        """The flips of different elements are independent."""
        return multiply_ratios(
            row_ratio(channel.table, range(len(channel.table)))
            for channel in (self.elements.channels[name] for name in sorted(changing))
        )

    def channels(self) -> Iterator[NamedChannel]:
        """The flip of each element."""
        for name, channel in self.elements.channels.items():
            yield NamedChannel(name, None, channel)

    @property
    def element_epsilons(self) -> dict[str, Fraction]:
        """What each element was given."""
        return self.elements.epsilons


def flips_of(made: Elements, known: Found, sightings: PaneCounts | None) -> Floats:
    """What noise does to the elements of a query in a window."""
    flips = made.flips(known.elements)
    return flips if sightings is None else sightings.noise(known.elements, flips)


def choose_threshold(
    made: Elements, statistics: Statistics, goal: PlanGoal, sightings: PaneCounts | None
) -> float:
    """The posterior from which on to answer yes, for the best quality on history."""
    pairs = [(known, flips_of(made, known, sightings)) for known in statistics.evidence]
    # The answers are read with it, so it must not be 0: that would answer yes to everything.
    return max(best_threshold(pairs, goal.alphas, float(statistics.exact.sum()))[0], 1e-9)


def _right(part: AffectedQuery, known: Found, flips: Floats, decode: Decode) -> Floats:
    """`[context][presence or literal answer][answer]`: how likely an answer is right."""
    if isinstance(known, Evidence):
        right = known.confidence(flips, decode).copy()
    else:
        posterior = known.posterior(flips)
        right = np.stack([1 - posterior, posterior], axis=-1)
        lacking = len(part.decided) - len(right)
        right = np.concatenate([right, np.full((lacking, 2, 2), 0.5)])
    for value in (0, 1):
        right[part.decided == value] = [1 - value, value]
    return right


class FlipProtector(Protector):
    """Flips private elements, each once; queries are answered from what comes out."""

    def __init__(
        self, planned: Flips, run: RunSetup, reader: NoisyWindows | None, panes: PaneNoise | None
    ) -> None:
        self._noise = run.noise
        self._reader = reader
        self._panes = panes
        self._queries = len(run.queries)
        touched = {part.query for part in planned.touched}
        self._exact = [n for n in range(self._queries) if n not in touched]
        self._exact_columns = run.index.columns([run.queries[number] for number in self._exact])
        self._elements = planned.flipped
        self._channels = [planned.elements.channels[name] for name in self._elements]
        self._element_columns = run.index.columns([Name(name) for name in self._elements])
        signals = dict.fromkeys(signal for part in planned.touched for signal in part.signals)
        self._signal_columns = run.index.columns(list(signals))
        names: list[Hashable] = [*signals, *self._elements]
        self._read_queries = [part.query for part in planned.read_parts]
        names += self._read_queries
        numbers = {name: number for number, name in enumerate(names)}
        decoders = planned.decoders()
        self._tables = tables(decoders, numbers)
        decided = [decoder for decoder in decoders if decoder.yes is not None]
        self._decided = [decoder.query for decoder in decided]
        self._program = decoding_program(decided, numbers)

    @property
    def queries(self) -> Queries | None:
        """What is read from noisy windows."""
        return None if self._reader is None else self._reader.queries

    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """Flip, then answer."""
        bits = windows.bits
        result = np.empty((len(bits), self._queries, bits.shape[2]), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        noisy, read = self._draw(windows, own)
        columns = [bits[:, self._signal_columns], noisy]
        if read is not None:
            result[:, self._read_queries] = read
            columns.append(read)
        evidence = np.concatenate(columns, axis=1)
        if self._decided:
            result[:, self._decided] = self._program.run(evidence)
        return result, Decoded(self._tables, evidence)

    def _draw(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Columns | None]:
        """The noisy elements, and the queries that are read from noisy windows."""
        reader = self._reader
        if self._panes is None:
            noisy = self._flip(windows.bits, own)
            read = None if reader is None else self._read(reader, windows, noisy)
            return noisy, read
        panes = self._panes.flip(windows.closed, own)
        noisy = either(panes, len(panes) - len(windows.bits) + 1)
        if reader is None:
            return noisy, None
        full = self._fill_in(reader, panes)
        moments = self._panes.moments(windows.closed, full, reader.timed)
        return noisy, reader.answer_panes(windows.closed, windows.rows, full, moments)

    def _flip(self, bits: Columns, own: NDArray[np.bool_] | None) -> Columns:
        """The private elements' columns, each bit flipped or not, once and for all queries."""
        true = bits[:, self._element_columns]
        lanes = None
        if own is not None:
            words = pack_slots(own)
            lanes = np.ascontiguousarray(np.broadcast_to(words, true[:, 0].shape))
            true &= words  # the events of other subjects must not be used here
        noisy = [
            self._noise.flip(np.ascontiguousarray(true[:, n]), channel, lanes)
            for n, channel in enumerate(self._channels)
        ]
        return np.stack(noisy, axis=1) if noisy else true

    def _read(self, reader: NoisyWindows, windows: WindowBits, noisy: Columns) -> Columns:
        """The queries read literally."""
        full = self._fill_in(reader, noisy)
        return reader.answer(windows.closed, windows.rows, full, self._noise)

    def _fill_in(self, reader: NoisyWindows, noisy: Columns) -> Columns:
        """All private elements; those that no query looks at are not there."""
        full = np.zeros((len(noisy), len(reader.private), noisy.shape[2]), np.uint64)
        full[:, [reader.private.index(name) for name in self._elements]] = noisy
        return full
