"""Flips: the common base of uniform and adaptive. Elements are flipped, then queries evaluated.

A subclass chooses the epsilon of each element. This class computes the expected quality, draws the
noise, and decodes noisy elements into answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.patterns.tree import Name, Pattern
from tacit.privacy.affected_queries import AffectedQuery, find_affected
from tacit.privacy.answer_tables import AnswerTable
from tacit.privacy.certainty import Certainty
from tacit.privacy.channel_audit import Ratio, multiply_ratios, row_ratio
from tacit.privacy.channels import Channel
from tacit.privacy.decoding import TableCertainty, TableDecoder, build_tables, compile_decoders
from tacit.privacy.elements import Elements
from tacit.privacy.evidence import Decode, Evidence, transition_probabilities
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Floats,
    Mechanism,
    NamedChannel,
    PlanGoal,
    Prices,
    Protector,
    RunSetup,
    WindowBits,
    pack_slots,
)
from tacit.privacy.mechanisms.noisy_windows import NoisyWindows
from tacit.privacy.mechanisms.pane_noise import PaneNoise
from tacit.privacy.mechanisms.public_only import PublicTables
from tacit.privacy.openness import Openness, reveal_panes
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policy
from tacit.privacy.prices import Claim, price_ratio
from tacit.privacy.quality import Confusion
from tacit.privacy.statistics import AnyEvidence, Fold, Statistics
from tacit.privacy.thresholds import (
    JudgedThresholds,
    PosteriorCounts,
    add_confusions,
    choose_thresholds,
    judge,
    read_public_thresholds,
    read_thresholds,
    write_public_thresholds,
)
from tacit.windows.queries import Queries
from tacit.windows.sliding import combine_panes


@dataclass(frozen=True, eq=False)
class Flips(Mechanism):
    """Flip the presence of each private element once, and read queries from the noisy elements."""

    kind: ClassVar[str] = "elements"
    draws_panes = True

    elements: Elements
    affected: tuple[AffectedQuery, ...]
    literal: bool
    thresholds: Floats
    """For each query, the posterior from which on the answer is yes."""
    right: tuple[Floats, ...]
    """For each affected query `[context][presence][answer]`: how likely the answer is right.

    A wide query has its literal answer in place of presence.
    """
    public: PublicTables
    """Answers once a limit is reached."""

    @classmethod
    @abstractmethod
    def propose(cls, policy: Policy, statistics: Statistics, goal: PlanGoal) -> Iterator[Elements]:
        """Yield flips of the policy's elements, the simplest first.

        The same number of proposals is made for any part of history.
        """

    @classmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Self, Confusion[Floats]]:
        """Choose flips by their quality on held-out windows; tabulate how they are decoded."""
        policy = statistics.policy.scale(goal.share, goal.shares)
        proposed = list(cls.propose(policy, statistics, goal))
        if not statistics.windows:
            thresholds = np.full(len(statistics.positives), 0.5)
            planned = cls._decode(proposed[0], statistics, goal.literal, thresholds)
            return planned, planned.expect(statistics)
        trials: list[list[tuple[Elements, Fold]]] = [[] for _ in proposed]
        for fold in statistics.folds or (Fold(statistics, statistics),):
            made = cls.propose(policy, fold.training, goal) if statistics.folds else proposed
            for trial, elements in zip(trials, made, strict=True):
                trial.append((elements, fold))
        judged = [_judge(trial, goal) for trial in trials]
        values = [goal.objective.value(found.confusion) for found in judged]
        # A more elaborate choice must be better.
        best = max(range(len(values)), key=lambda n: (round(values[n], 9), -n))
        # Folds may have chosen other flips: expect what the chosen ones get, for each query.
        final = [(proposed[best], fold) for _, fold in trials[best]]
        thresholds, expected = _judge(final, goal)
        planned = cls._decode(proposed[best], statistics, goal.literal, thresholds)
        if not goal.limits or goal.literal:
            return planned, expected
        counts = [
            PublicTables.plan(fold.training, thresholds).count_posteriors(fold.held_out)
            for _, fold in final
        ]
        public = replace(planned.public, thresholds=judge(counts, goal.objective).thresholds)
        return replace(planned, public=public), expected

    @classmethod
    def _decode(
        cls, made: Elements, statistics: Statistics, literal: bool, thresholds: Floats
    ) -> Self:
        """Tabulate how noisy elements are decoded."""
        decode: Decode = "literal" if literal else "posterior"
        right = tuple(
            _compute_confidence(
                part, known, compute_flips(made, known, statistics.pane_counts), decode
            )
            for part, known in zip(statistics.affected, statistics.evidence, strict=True)
        )
        public = PublicTables.plan(statistics, _public_thresholds(literal, thresholds))
        return cls(made, statistics.affected, literal, thresholds, right, public)

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Compute the expected counts in closed form."""
        if self.literal:
            return _read(self.elements, statistics)
        tables = [right[:, :, 1] for right in self.right]
        return _count_posteriors(self.elements, tables, statistics).confusion(self.thresholds)

    def expect_public_only(self, statistics: Statistics) -> Confusion[Floats]:
        """Judge each fold by the tables of the others."""
        if not statistics.folds:
            return self.public.expect(statistics)
        return add_confusions(
            [
                PublicTables.plan(fold.training, self.public.thresholds).expect(fold.held_out)
                for fold in statistics.folds
            ]
        )

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
        yes = cells[:, 1] >= self.thresholds[part.query]
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
            "thresholds": self.thresholds.tolist(),
            "right": {
                str(part.query): right.tolist()
                for part, right in zip(self.affected, self.right, strict=True)
            },
            "alone": self.public.to_dict(),
            **write_public_thresholds(self.public.thresholds),
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
        literal, thresholds = bool(plain["literal"]), read_thresholds(plain, len(queries))
        least = read_public_thresholds(plain, len(queries))
        if least is None:  # a plan of an earlier version
            least = _public_thresholds(literal, thresholds)
        public = PublicTables.from_dict(plain.get("alone"), policy.private, parts, least)
        elements = Elements(policy, written.channels)
        return cls(elements, parts, literal, thresholds, right, public)

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
            _flip_ratio(channel)
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

    def answer_tables(self, query: int, panes: int) -> Iterator[AnswerTable]:
        """Yield a table for each context in which presence alone decides the query.

        With sliding windows, a window's noise depends on how many panes an element is in.
        """
        for part, right, decoder in zip(self.affected, self.right, self.decoders(), strict=True):
            if part.query != query or panes > 1 or part.table is None or part.wide:
                continue
            assert decoder.yes is not None, "queries with a table are not read"
            moves = transition_probabilities(self.elements.flips(part.elements))
            answers = decoder.yes.reshape(len(moves), -1).T
            for context in np.flatnonzero(part.decided < 0).tolist():
                yes = answers[context]
                sure = right[context][np.arange(len(yes)), yes.astype(np.int64)]
                yield AnswerTable(moves, part.table[context], yes, sure)


def compute_flips(made: Elements, known: AnyEvidence, pane_counts: PaneCounts | None) -> Floats:
    """Return the flip probabilities of a query's elements in a window."""
    flips = made.flips(known.elements)
    return flips if pane_counts is None else pane_counts.window_flips(known.elements, flips)


def choose_in_sample(
    made: Elements, statistics: Statistics, goal: PlanGoal, pane_counts: PaneCounts | None
) -> Floats:
    """Return each query's best threshold on the windows that its posteriors come from."""
    tables = [
        known.posterior(compute_flips(made, known, pane_counts)) for known in statistics.evidence
    ]
    counts = _count_posteriors(made, tables, replace(statistics, pane_counts=pane_counts))
    return choose_thresholds(counts, goal.objective)


def _judge(trial: Sequence[tuple[Elements, Fold]], goal: PlanGoal) -> JudgedThresholds:
    """Judge flips on held-out windows; the decoder of each fold comes from the others."""
    if goal.literal:
        found = [_read(made, fold.held_out) for made, fold in trial]
        return JudgedThresholds(np.full(len(goal.objective.alphas), 0.5), add_confusions(found))
    counts = []
    for made, fold in trial:
        panes = fold.training.pane_counts
        tables = [
            known.posterior(compute_flips(made, known, panes)) for known in fold.training.evidence
        ]
        counts.append(_count_posteriors(made, tables, fold.held_out))
    return judge(counts, goal.objective)


def _count_posteriors(
    made: Elements, tables: Sequence[Floats], statistics: Statistics
) -> PosteriorCounts:
    """Count windows by posterior; `tables[affected query][context][output]` are posteriors."""
    counts = PosteriorCounts.zeros(len(statistics.positives))
    for query, positives in enumerate(statistics.exact.tolist()):
        counts.add_exact(query, positives)
    for part, known, table in zip(statistics.affected, statistics.evidence, tables, strict=True):
        flips = compute_flips(made, known, statistics.pane_counts)
        seen = known.count_outputs(flips)
        posterior = table[: len(seen)].ravel()
        counts.add(part.query, posterior, seen[:, 1].ravel(), seen[:, 0].ravel())
    return counts


def _read(made: Elements, statistics: Statistics) -> Confusion[Floats]:
    """Return the expected counts of literal answers."""
    counts = np.zeros((3, len(statistics.positives)))
    counts[0] = statistics.exact
    for part, known in zip(statistics.affected, statistics.evidence, strict=True):
        flips = compute_flips(made, known, statistics.pane_counts)
        found = known.confusion(flips, "literal")
        counts[:, part.query] += found.tp, found.fp, found.fn
    return Confusion(*counts)


def _public_thresholds(literal: bool, thresholds: Floats) -> Floats:
    """Return the thresholds once a limit is reached: literal reading has none of its own."""
    return np.full(len(thresholds), 0.5) if literal else thresholds


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


def _flip_ratio(channel: Channel) -> Ratio:
    """Return the ratio of an element's flip."""
    return row_ratio(channel.table, range(len(channel.table)))


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
        self._affected = [part.query for part in planned.affected]
        places = {signal: number for number, signal in enumerate(signals)}
        self._openness = Openness(planned.affected, self._elements, places)
        self._ratios = [_flip_ratio(channel) for channel in self._channels]
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
        """Flip the elements that open queries depend on, then answer the queries."""
        bits = windows.bits
        result = np.empty((len(bits), self._queries, bits.shape[2]), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        signals = bits[:, self._signal_columns]
        found = self._openness.decide(signals)
        noisy, read = self._draw(windows, own, found.revealed)
        columns = [signals, noisy]
        if read is not None:
            result[:, self._read_queries] = read
            columns.append(read)
        evidence = np.concatenate(columns, axis=1)
        if self._decided:
            result[:, self._decided] = self._program.run(evidence)
        # Noise must not change what public events decide, however a query is read.
        result[:, self._affected] = result[:, self._affected] & found.opened | found.true
        return result, TableCertainty(self._tables, evidence)

    def price(self, windows: WindowBits, claims: Sequence[Claim]) -> Prices:
        """Charge for the elements that open queries depend on; for a pane when it is first used."""
        revealed = self._openness.decide(windows.bits[:, self._signal_columns]).revealed
        if self._panes is None:
            settled = np.zeros_like(revealed)
            fresh = reveal_panes(revealed, settled, 1, windows.slots)
        else:
            fresh = self._panes.count_fresh(windows.closed, revealed)
        prices = np.zeros((len(windows.bits), len(claims), windows.slots), np.int64)
        for number, claim in enumerate(claims):
            most = np.zeros(prices[:, number].shape, np.int64)
            for place, name in enumerate(self._elements):
                if name in claim.elements:
                    share = price_ratio(self._ratios[place], claim.most)
                    prices[:, number] += share * fresh[:, place]
                    np.maximum(most, fresh[:, place], out=most)
            # What an element reveals is part of what its pattern may reveal in a pane. Panes that
            # are new for one element are new for all that were revealed no later.
            np.minimum(prices[:, number], claim.most * most, out=prices[:, number])
        return prices

    def _draw(
        self, windows: WindowBits, own: NDArray[np.bool_] | None, revealed: Columns
    ) -> tuple[Columns, Columns | None]:
        """Return the noisy elements, and the queries evaluated on noisy windows."""
        reader = self._reader
        if self._panes is None:
            noisy = self._flip(
                windows.bits, revealed if own is None else revealed & pack_slots(own)
            )
            read = None if reader is None else self._read(reader, windows, noisy)
            return noisy, read
        panes = self._panes.flip(windows.closed, own, revealed)
        noisy = combine_panes(panes, len(panes) - len(windows.bits) + 1) & revealed
        if reader is None:
            return noisy, None
        full = self._fill_in(reader, panes)
        moments = self._panes.draw_times(windows.closed, full, reader.timed)
        return noisy, reader.answer_panes(windows.closed, windows.rows, full, moments)

    def _flip(self, bits: Columns, lanes: Columns) -> Columns:
        """Return the private elements' noisy columns; all queries use this one noisy copy.

        `lanes[window][element][word]` says for whom an element is used. Others have no event.
        """
        true = bits[:, self._element_columns] & lanes
        noisy = [
            self._noise.flip(
                np.ascontiguousarray(true[:, n]), channel, np.ascontiguousarray(lanes[:, n])
            )
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
