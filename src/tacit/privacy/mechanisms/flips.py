"""Flips: the common base of uniform and adaptive. Elements are flipped, then queries evaluated.

A subclass chooses the epsilon of each element. This class computes the expected quality, draws the
noise, and decodes noisy elements into answers.
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
from tacit.privacy.affected_queries import AffectedQuery, find_affected
from tacit.privacy.certainty import Certainty
from tacit.privacy.channel_audit import Ratio, multiply_ratios, row_ratio
from tacit.privacy.decoding import TableCertainty, TableDecoder, build_tables, compile_decoders
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
from tacit.privacy.statistics import AnyEvidence, Statistics
from tacit.windows.queries import Queries
from tacit.windows.sliding import combine_panes


class ChosenFlips(NamedTuple):
    """The flips of elements, and the posterior threshold for a yes."""

    elements: Elements
    threshold: float


@dataclass(frozen=True, eq=False)
class Flips(Mechanism):
    """Flip the presence of each private element once, and read queries from the noisy elements."""

    kind: ClassVar[str] = "elements"
    draws_panes = True

    elements: Elements
    affected: tuple[AffectedQuery, ...]
    literal: bool
    threshold: float
    right: tuple[Floats, ...]
    """For each affected query `[context][presence][answer]`: how likely the answer is right.

    A wide query has its literal answer in place of presence.
    """
    public: PublicTables
    """Answers once a limit is reached."""

    @classmethod
    @abstractmethod
    def choose(cls, policy: Policy, statistics: Statistics, goal: PlanGoal) -> ChosenFlips:
        """Choose the flips of the policy's elements."""

    @classmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Self, Confusion[Floats]]:
        """Choose the flips, then tabulate how noisy elements are decoded."""
        made, threshold = cls.choose(statistics.policy.scale(goal.share), statistics, goal)
        decode: Decode = "literal" if goal.literal else "posterior"
        counts = np.zeros((3, len(statistics.positives)))
        counts[0] = statistics.exact
        right = []
        for part, known in zip(statistics.affected, statistics.evidence, strict=True):
            flips = compute_flips(made, known, statistics.pane_counts)
            found = known.confusion(flips, decode, threshold)
            counts[:, part.query] += found.tp, found.fp, found.fn
            right.append(_compute_confidence(part, known, flips, decode))
        public = PublicTables.plan(statistics, 0.5 if goal.literal else threshold)
        planned = cls(made, statistics.affected, goal.literal, threshold, tuple(right), public)
        return planned, Confusion(*counts)

    @property
    def public_only(self) -> PublicTables:
        """Tables of each affected query's probability by context."""
        return self.public

    @property
    def flipped(self) -> list[str]:
        """The private elements that some query depends on; only these are flipped."""
        return sorted({name for part in self.affected for name in part.elements})

    @property
    def read_parts(self) -> tuple[AffectedQuery, ...]:
        """The queries that are evaluated on noisy windows, since they have no answer table."""
        return tuple(
            part for part in self.affected if part.wide or (self.literal and part.table is None)
        )

    def decoders(self) -> list[TableDecoder]:
        """Return the decoder of each affected query."""
        read_queries = {part.query for part in self.read_parts}
        return [
            self._decoder(part, right, read=part.query in read_queries)
            for part, right in zip(self.affected, self.right, strict=True)
        ]

    def _decoder(self, part: AffectedQuery, right: Floats, *, read: bool) -> TableDecoder:
        # The context is in the lowest bits of a cell, presence in the bits above.
        cells = right.transpose(1, 0, 2).reshape(-1, 2)
        noisy = (part.query,) if part.wide else part.elements
        yes = cells[:, 1] >= self.threshold
        if self.literal:
            yes = np.empty(0, np.bool_) if part.table is None else part.table.T.reshape(-1)
        unread = None if self.literal and read else yes
        return TableDecoder(part.query, (*part.signals, *noisy), cells, unread)

    def start(self, run: RunSetup) -> FlipProtector:
        """Start the protector: it flips in windows, or in panes if windows slide."""
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
        """Return the channels and the tables as plain data."""
        return {
            "elements": self.elements.to_dict(),
            "literal": self.literal,
            "threshold": self.threshold,
            "right": {
                str(part.query): right.tolist()
                for part, right in zip(self.affected, self.right, strict=True)
            },
            "alone": self.public.to_dict(),
        }

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Any],
        policy: Policy,
        queries: Sequence[Pattern],
        panes: int,  # noqa: ARG003 - noise is drawn once per pane
    ) -> Self:
        """Read what `to_dict` wrote, and audit the channels for the policy."""
        written = Elements.from_dict(plain["elements"])
        parts = find_affected(policy, queries)
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
        """Return whether every private element is flipped."""
        return self.elements.channels.keys() == policy.private

    def widest_ratio(self, changing: frozenset[str]) -> Ratio:
        """Multiply the ratios of the elements' flips, which are independent."""
        return multiply_ratios(
            row_ratio(channel.table, range(len(channel.table)))
            for channel in (self.elements.channels[name] for name in sorted(changing))
        )

    def channels(self) -> Iterator[NamedChannel]:
        """Yield the flip of each element."""
        for name, channel in self.elements.channels.items():
            yield NamedChannel(name, None, channel)

    @property
    def element_epsilons(self) -> dict[str, Fraction]:
        """The epsilon of each element."""
        return self.elements.epsilons


def compute_flips(made: Elements, known: AnyEvidence, pane_counts: PaneCounts | None) -> Floats:
    """Return the flip probabilities of a query's elements in a window."""
    flips = made.flips(known.elements)
    return flips if pane_counts is None else pane_counts.window_flips(known.elements, flips)


def choose_threshold(
    made: Elements, statistics: Statistics, goal: PlanGoal, pane_counts: PaneCounts | None
) -> float:
    """Return the posterior threshold with the best quality on history."""
    pairs = [(known, compute_flips(made, known, pane_counts)) for known in statistics.evidence]
    # It must not be 0: that would answer yes to everything.
    return max(best_threshold(pairs, goal.alphas, float(statistics.exact.sum()))[0], 1e-9)


def _compute_confidence(
    part: AffectedQuery, known: AnyEvidence, flips: Floats, decode: Decode
) -> Floats:
    """Return `[context][presence or literal answer][answer]`: how likely an answer is right."""
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
    """Flips each private element once, and answers queries from the noisy elements."""

    def __init__(
        self, planned: Flips, run: RunSetup, reader: NoisyWindows | None, panes: PaneNoise | None
    ) -> None:
        self._noise = run.noise
        self._reader = reader
        self._panes = panes
        self._queries = len(run.queries)
        affected = {part.query for part in planned.affected}
        self._exact = [n for n in range(self._queries) if n not in affected]
        self._exact_columns = run.index.columns([run.queries[number] for number in self._exact])
        self._elements = planned.flipped
        self._channels = [planned.elements.channels[name] for name in self._elements]
        self._element_columns = run.index.columns([Name(name) for name in self._elements])
        signals = dict.fromkeys(signal for part in planned.affected for signal in part.signals)
        self._signal_columns = run.index.columns(list(signals))
        names: list[Hashable] = [*signals, *self._elements]
        self._read_queries = [part.query for part in planned.read_parts]
        names += self._read_queries
        numbers = {name: number for number, name in enumerate(names)}
        decoders = planned.decoders()
        self._tables = build_tables(decoders, numbers)
        decided = [decoder for decoder in decoders if decoder.yes is not None]
        self._decided = [decoder.query for decoder in decided]
        self._program = compile_decoders(decided, numbers)

    @property
    def queries(self) -> Queries | None:
        """The queries that are evaluated on noisy windows."""
        return None if self._reader is None else self._reader.queries

    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """Flip the elements, then answer the queries."""
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
        return result, TableCertainty(self._tables, evidence)

    def _draw(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Columns | None]:
        """Return the noisy elements, and the queries evaluated on noisy windows."""
        reader = self._reader
        if self._panes is None:
            noisy = self._flip(windows.bits, own)
            read = None if reader is None else self._read(reader, windows, noisy)
            return noisy, read
        panes = self._panes.flip(windows.closed, own)
        noisy = combine_panes(panes, len(panes) - len(windows.bits) + 1)
        if reader is None:
            return noisy, None
        full = self._fill_in(reader, panes)
        moments = self._panes.draw_times(windows.closed, full, reader.timed)
        return noisy, reader.answer_panes(windows.closed, windows.rows, full, moments)

    def _flip(self, bits: Columns, own: NDArray[np.bool_] | None) -> Columns:
        """Return the private elements' noisy columns; all queries use this one noisy copy."""
        true = bits[:, self._element_columns]
        lanes = None
        if own is not None:
            words = pack_slots(own)
            lanes = np.ascontiguousarray(np.broadcast_to(words, true[:, 0].shape))
            true &= words  # do not use the events of other subjects
        noisy = [
            self._noise.flip(np.ascontiguousarray(true[:, n]), channel, lanes)
            for n, channel in enumerate(self._channels)
        ]
        return np.stack(noisy, axis=1) if noisy else true

    def _read(self, reader: NoisyWindows, windows: WindowBits, noisy: Columns) -> Columns:
        """Evaluate the queries on noisy windows."""
        full = self._fill_in(reader, noisy)
        return reader.answer(windows.closed, windows.rows, full, self._noise)

    def _fill_in(self, reader: NoisyWindows, noisy: Columns) -> Columns:
        """Return all private elements; those that no query depends on are absent."""
        full = np.zeros((len(noisy), len(reader.private), noisy.shape[2]), np.uint64)
        full[:, [reader.private.index(name) for name in self._elements]] = noisy
        return full
