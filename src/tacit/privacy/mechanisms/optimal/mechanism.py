"""Optimal: randomise the answers, and only those that are open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from tacit.errors import AuditError, PlanError
from tacit.patterns.tree import Pattern
from tacit.privacy.answer_tables import AnswerTable
from tacit.privacy.channel_audit import Ratio, largest_of, multiply_ratios
from tacit.privacy.channels import Channel
from tacit.privacy.components import Component, Exposure, find_exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.joint_counts import JointCounts
from tacit.privacy.mechanisms.adaptive import move_shares
from tacit.privacy.mechanisms.mechanism import (
    Floats,
    Mechanism,
    NamedChannel,
    PlanGoal,
    Protector,
    RunSetup,
)
from tacit.privacy.mechanisms.objective import ElementObjective
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, Context, read_literally
from tacit.privacy.mechanisms.optimal.channel_books import (
    ChannelBook,
    design_book,
    read_table,
    write_table,
)
from tacit.privacy.mechanisms.optimal.contexts import Contexts
from tacit.privacy.mechanisms.optimal.draw import ChannelProtector
from tacit.privacy.mechanisms.optimal.expectation import (
    EVALUATED,
    PlannedComponent,
    count_queries,
)
from tacit.privacy.mechanisms.optimal.joint_expectation import DrawnParts, count_several
from tacit.privacy.mechanisms.optimal.memory.model import ComponentMemory
from tacit.privacy.mechanisms.optimal.memory.planning import (
    MemoryPlan,
    PlannedParts,
    plan_memory,
)
from tacit.privacy.mechanisms.optimal.memory.protector import MemoryProtector
from tacit.privacy.mechanisms.optimal.part_tables import Words
from tacit.privacy.mechanisms.optimal.stakes import PartModel
from tacit.privacy.mechanisms.public_only import PublicContexts
from tacit.privacy.mechanisms.uniform import flip_uniformly
from tacit.privacy.noise import Noise
from tacit.privacy.pacing import Pacing
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.quality import Confusion
from tacit.privacy.randomness import SeededSource
from tacit.privacy.refinement import (
    check_refinement,
    refine_exposure,
    with_epsilons,
    with_shares,
)
from tacit.privacy.staircase import Design
from tacit.privacy.staircase import evaluate_channel as read_design
from tacit.privacy.statistics import Fold, Statistics
from tacit.privacy.thresholds import (
    PosteriorCounts,
    add_confusions,
    choose_thresholds,
    judge,
    read_public_thresholds,
    read_thresholds,
    write_public_thresholds,
)
from tacit.progress import scale_progress

_CAUTIONS: Final = (0.15, 0.3, 0.45, 0.6)
"""The first penalties of a false yes that are tried."""
_FOLLOWED: Final = 3
"""How often the gradient of the objective is then tried."""
_PARTS: Final = 50_000
"""The largest number of parts in all contexts of a component that have channels of their own."""


_REMEMBERING: Final = 0.5
"""The share of the work after which memory is planned."""
_REMEMBERED_FROM: Final = 0.001
"""By how much memory must be better on held-out windows to be used, besides chance."""
_COMPARED: Final = 1_000_000
"""The same where only stakes are compared, by the same draws."""


class Effort(NamedTuple):
    """How many contexts get channels of their own, and how many groups of a book.

    They are divided among the components.
    """

    contexts: int
    groups: int


class JudgedSize(NamedTuple):
    """How many parts of queries, and windows of history, may be judged by channels of their own."""

    parts: int
    windows: int


FULL: Final = Effort(1000, 12)
QUICK: Final = Effort(64, 0)
"""Enough to compare stakes."""
_REDESIGNED: Final = JudgedSize(128, 20_000)
"""Up to this size, each stretch of history is judged by channels that are designed without it.

Beyond it that takes too long, and a fifth of history hardly changes a channel.
"""
_LEAST_CONTEXTS: Final = 4
"""The least number of contexts of a component."""


@dataclass(frozen=True, eq=False)
class Optimal(Mechanism):
    """Give the answers that private events cannot change; draw the others from the best channel.

    Guarantee: pattern-level epsilon-DP per subject, private pattern and window, jointly over
    all parts of all queries.
    Neighbours: windows that differ anywhere inside one private pattern's elements.
    Why: the context depends on public events only, so neighbours share it. In a context, all
    values that one private pattern can produce form a group of neighbours of the channel, which
    is audited for the pattern's epsilon; equivalent values are one class. If a context has several
    blocks, the epsilons of the blocks that a pattern may change add up to at most its own.
    Spends: epsilon, once per window, whatever the number of queries. With sliding windows, each
    window's draw gets a part of epsilon, so that all windows of an occurrence spend epsilon.
    Paper: not included. Differs: the paper flips every element; this draws answers from staircase
    channels (Kairouz, Oh, Viswanath 2014).
    Proof: docs/guarantee.md#optimal
    """

    name: ClassVar[str] = "optimal"
    kind: ClassVar[str] = "optimal"
    needs = "prior"

    fine: Policy
    """The policy that is protected: refined if components are large."""
    exposure: Exposure
    priors: tuple[Prior, ...]
    """For each component."""
    stakes: tuple[Floats, ...]
    """For each component and part, the reward of a true yes and the penalty of a false one."""
    thresholds: Floats
    """For each query, the posterior from which on the answer is yes."""
    literal: bool
    planned: tuple[Mapping[bytes, Context], ...]
    """For each component, the contexts that have channels of their own, by packed signals."""
    books: tuple[ChannelBook, ...]
    """For each component, the channels of all other contexts."""
    memory: tuple[ComponentMemory, ...] | None = None
    """For each component, what windows before tell about the next; None without memory."""
    pacing: Pacing | None = None
    public_thresholds: Floats | None = None
    """The thresholds of windows that are not paid for, which is without memory; None if the same.

    Probabilities lie closer together without a symbol, so another threshold is best.
    """
    limited: Confusion[Floats] | None = None
    """What to expect with limits; it is not written to plan files."""

    @classmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Optimal, Confusion[Floats]]:
        """Choose the stakes of queries, and design channels for the contexts of history."""
        whole = goal.progress
        if goal.memory:
            goal = replace(goal, progress=scale_progress(whole, 0.0, _REMEMBERING))
        fine = _divide_shares(statistics, goal)
        if not statistics.windows:
            weights = np.full((len(statistics.positives), 2), 0.5)
            made = cls._design(statistics, fine, weights, goal.literal)
            return made, made.expect(statistics)
        weights = _choose_weights(statistics, fine, goal)
        made = cls._design(statistics, fine, weights, goal.literal)
        if goal.literal:
            # Nothing but the channels comes from history, so it is hardly memorised.
            return made, made.expect(statistics)
        folds = statistics.folds or (Fold(statistics, statistics),)
        parts = sum(len(component.parts) for component in made.exposure.components)
        strictly = parts <= _REDESIGNED.parts and statistics.windows <= _REDESIGNED.windows
        counts = []
        for number, fold in enumerate(folds):
            goal.progress(0.6 + 0.4 * number / len(folds), "judging optimal")
            if strictly:
                own = cls._design(fold.training, fine, weights, goal.literal, judged=fold.held_out)
            else:
                own = made._decode_by(fold.training)
            counts.append(own.count_posteriors(fold.held_out))
        thresholds, expected = judge(counts, goal.objective)
        made = replace(made, thresholds=thresholds)
        if goal.limits:
            made = replace(made, public_thresholds=made._judge_public_only(folds, goal))
        if not goal.memory:
            return made, expected
        goal = replace(goal, progress=scale_progress(whole, _REMEMBERING, 1.0))
        return made._remember(statistics, goal, expected)

    def _judge_public_only(self, folds: Sequence[Fold], goal: PlanGoal) -> Floats:
        """Choose the thresholds of windows that are not paid for."""
        public = self.public_only
        counts = [
            replace(public, priors=fold.training.priors).count_posteriors(fold.held_out)
            for fold in folds
        ]
        return judge(counts, goal.objective).thresholds

    def _remember(
        self, statistics: Statistics, goal: PlanGoal, expected: Confusion[Floats]
    ) -> tuple[Optimal, Confusion[Floats]]:
        """Add memory if held-out windows are answered better with it."""
        policy = statistics.policy.scale(goal.share, goal.shares).per_window(goal.panes)
        found = plan_memory(
            self.parts, statistics, goal.objective, policy, goal.limits, progress=goal.progress
        )
        if found is None:
            return self, expected
        value = goal.objective.value
        # With limits most windows are answered from memory.
        better = value(found.expected) - value(expected)
        if found.limited is None and better <= _REMEMBERED_FROM + _find_error(found.expected):
            return self, expected
        return self.add_memory(found), found.expected

    def add_memory(self, found: MemoryPlan) -> Optimal:
        """Return the same with memory."""
        return replace(
            self,
            memory=found.components,
            thresholds=found.thresholds,
            pacing=found.pacing,
            limited=found.limited,
        )

    @property
    def parts(self) -> PlannedParts:
        """What memory is planned for."""
        return PlannedParts(self.exposure, self.component_channels, self.planned, self.books)

    def _decode_by(self, statistics: Statistics) -> Optimal:
        """Return the same channels, with symbols that are decoded by the priors of other windows.

        A group of contexts uses the channel that most of its windows have here.
        """
        planned, books = [], []
        for component, before, prior, stakes, contexts, book, history in zip(
            self.exposure.components,
            self.priors,
            statistics.priors,
            self.stakes,
            self.planned,
            self.books,
            statistics.contexts,
            strict=True,
        ):
            channels = ComponentChannels(component, prior, stakes)
            planned.append({key: _decode_context(channels, key, contexts[key]) for key in contexts})
            signals = history.signals[history.begins]
            windows = np.add.reduceat(history.windows, history.begins) if len(signals) else ()
            groups = before.group(signals), prior.group(signals)
            books.append(book.regroup(*groups, np.asarray(windows), prior.groups))
        return replace(self, priors=statistics.priors, planned=tuple(planned), books=tuple(books))

    @classmethod
    def _design(
        cls,
        statistics: Statistics,
        fine: Policy,
        weights: Floats,
        literal: bool,
        effort: Effort = FULL,
        model: PartModel | None = None,
        judged: Statistics | None = None,
    ) -> Optimal:
        """Design the channels for the stakes of queries, with thresholds of 1/2.

        With `judged`, only contexts that occur there get channels of their own.
        """
        model = model or _model_parts(statistics, fine)
        exposure, stakes = model.exposure, model.stakes(weights)
        planned, books = [], []
        contexts, groups = (-(-number // max(1, len(stakes))) for number in effort)
        for component, prior, own, history, used in zip(
            exposure.components,
            statistics.priors,
            stakes,
            statistics.contexts,
            [None] * len(stakes) if judged is None else judged.contexts,
            strict=True,
        ):
            channels = ComponentChannels(component, prior, own)
            planned.append(_design_contexts(channels, history, contexts, used))
            books.append(design_book(component, prior, own, history, groups))
        thresholds = np.full(len(statistics.positives), 0.5)
        return cls(
            fine,
            exposure,
            statistics.priors,
            tuple(stakes),
            thresholds,
            literal,
            tuple(planned),
            tuple(books),
        )

    @property
    def components(self) -> tuple[PlannedComponent, ...]:
        """What is planned for each component."""
        return tuple(map(PlannedComponent, self.component_channels, self.planned, self.books))

    def count_posteriors(self, statistics: Statistics, draws: int = EVALUATED) -> PosteriorCounts:
        """Count the windows of each query by posterior."""
        work = draws // max(1, len(self.books))
        parts = [
            component.count_posteriors(history, work, literal=self.literal)
            for component, history in zip(self.components, statistics.contexts, strict=True)
        ]
        counts = count_queries(self.exposure, parts, statistics.positives)
        if statistics.joint is not None:
            self._count_several(statistics.joint, statistics.windows, draws, counts)
        return counts

    def _count_several(
        self, joint: JointCounts, windows: float, draws: int, counts: PosteriorCounts
    ) -> None:
        """Count the windows of queries over several components by posterior."""
        noise = Noise(SeededSource(0))
        parts = [len(one.component.parts) for one in self.component_channels]
        contexts = {
            number: Contexts(
                self.component_channels[number],
                self.books[number],
                noise,
                None if self.literal else np.full(parts[number], 0.5),
                self.planned[number],
                design=False,
            )
            for number in joint.columns.signals
        }

        def read(component: int, signals: Words, values: Words) -> DrawnParts:
            own = contexts[component]
            return DrawnParts(own, own.draw(signals, values, len(values)), literal=self.literal)

        count_several(self.exposure, joint, windows, draws, read, counts)

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Compute the expected counts; windows that a book serves are drawn with a seed."""
        return self.count_posteriors(statistics).confusion(self.thresholds)

    def expect_public_only(self, statistics: Statistics) -> Confusion[Floats]:
        """Judge each fold by the priors of the others."""
        public = self.public_only
        if not statistics.folds:
            return public.expect(statistics)
        return add_confusions(
            [
                replace(public, priors=fold.training.priors).expect(fold.held_out)
                for fold in statistics.folds
            ]
        )

    @cached_property
    def component_channels(self) -> tuple[ComponentChannels, ...]:
        """The channel designer of each component."""
        return tuple(
            ComponentChannels(component, prior, stakes)
            for component, prior, stakes in zip(
                self.exposure.components, self.priors, self.stakes, strict=True
            )
        )

    def start(self, run: RunSetup) -> Protector:
        """Return a protector that draws symbols for the open answers of each window."""
        if self.memory is not None:
            return MemoryProtector(self, run)
        return ChannelProtector(self, run)

    @property
    def public_only(self) -> PublicContexts:
        """Answers by the prior, in the context of each component."""
        thresholds = self.thresholds if self.public_thresholds is None else self.public_thresholds
        if self.literal:
            thresholds = np.full(len(thresholds), 0.5)
        return PublicContexts(self.fine.private, self.exposure, self.priors, thresholds)

    def to_dict(self) -> dict[str, Any]:
        """Return the priors and the tables of the channels as plain data."""
        return {
            "thresholds": self.thresholds.tolist(),
            "literal": self.literal,
            "epsilons": [format_epsilon(pattern.epsilon) for pattern in self.fine.patterns],
            "components": [
                {
                    "prior": prior.to_dict(),
                    "stakes": stakes.tolist(),
                    "book": book.to_dict(),
                    **_write_contexts(planned),
                }
                for prior, stakes, planned, book in zip(
                    self.priors, self.stakes, self.planned, self.books, strict=True
                )
            ],
            **({} if self.memory is None else {"memory": [one.to_dict() for one in self.memory]}),
            **({} if self.pacing is None else {"pacing": self.pacing.to_dict()}),
            **write_public_thresholds(self.public_thresholds),
        }

    @classmethod
    def from_dict(
        cls, plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int
    ) -> Optimal:
        """Read what `to_dict` wrote, and audit each table for the epsilon of a window."""
        policy = policy.per_window(panes)
        coarse, found = refine_exposure(policy, queries)
        epsilons = [Fraction(text) for text in plain["epsilons"]]
        if any(epsilon < 0 for epsilon in epsilons):
            raise PlanError("the plan gives an element a negative epsilon; make a new plan")
        shares = {
            next(iter(pattern.elements)): epsilon
            for pattern, epsilon in zip(coarse.patterns, epsilons, strict=True)
        }
        fine = with_shares(policy, coarse, shares)
        found = found.replace_patterns(dict(zip(coarse.patterns, fine.patterns, strict=True)))
        if len(found.components) != len(plain["components"]):
            raise PlanError("the plan's components are not the specification's; make a new plan")
        priors, stakes, planned, books = [], [], [], []
        audited: dict[_Audited, Channel] = {}
        for component, part in zip(found.components, plain["components"], strict=True):
            prior = Prior.from_dict(part["prior"])
            widths = len(component.signals), len(component.variables)
            if (prior.width, len(prior.rates)) != widths:
                raise PlanError("the plan's priors do not fit the specification; make a new plan")
            own = np.array(part["stakes"], np.float64).reshape(len(component.parts), 2)
            priors.append(prior)
            stakes.append(own)
            channels = ComponentChannels(component, prior, own)
            planned.append(_read_contexts(channels, part, audited))
            books.append(_read_book(component, prior, own, part))
        made = cls(
            fine,
            found,
            tuple(priors),
            tuple(stakes),
            read_thresholds(plain, len(queries)),
            bool(plain["literal"]),
            tuple(planned),
            tuple(books),
            public_thresholds=read_public_thresholds(plain, len(queries)),
        )
        if "memory" not in plain:
            return made
        memory = tuple(
            ComponentMemory.from_dict(part, channels)
            for part, channels in zip(plain["memory"], made.component_channels, strict=True)
        )
        pacing = Pacing.from_dict(plain["pacing"]) if "pacing" in plain else None
        return replace(made, memory=memory, pacing=pacing)

    def fits(self, policy: Policy, queries: Sequence[Pattern], panes: int) -> bool:
        """Return whether it refines the policy of a window and covers all queries."""
        if not _refines(self.fine, policy.per_window(panes)):
            return False
        return self.exposure == find_exposure(self.fine, queries)

    def widest_ratio(self, changing: frozenset[str]) -> Ratio:
        """Multiply the ratios of the components that the elements affect."""
        return multiply_ratios(
            largest_of(
                [
                    book.widest_ratio(changed),
                    *(context.find_ratio(changed) for context in planned.values()),
                    *(one.find_ratio(channels, changed) for one in remembered),
                ]
            )
            for channels, planned, book, remembered in zip(
                self.component_channels,
                self.planned,
                self.books,
                self._remembered,
                strict=True,
            )
            if (changed := channels.component.find_changed(changing))
        )

    @property
    def has_memory(self) -> bool:
        """Whether a run uses what was released before."""
        return self.memory is not None

    @property
    def _remembered(self) -> list[tuple[ComponentMemory, ...]]:
        """The memory of each component: one or none."""
        if self.memory is None:
            return [()] * len(self.books)
        return [(one,) for one in self.memory]

    def channels(self) -> Iterator[NamedChannel]:
        """Yield the channels of all contexts in the plan, and those for other contexts."""
        for channels, planned, book, remembered in zip(
            self.component_channels, self.planned, self.books, self._remembered, strict=True
        ):
            component = channels.component
            where = " with ".join(pattern.name for pattern in component.patterns)
            for own in book.channels:
                yield from (NamedChannel(where, None, channel) for channel in own)
            for key, context in planned.items():
                signals = np.unpackbits(np.frombuffer(key, np.uint8), count=len(component.signals))
                shown = _name_context(component, signals.astype(np.bool_))
                for _, design in context.blocks:
                    yield NamedChannel(where, shown, design.channel)
            for one in remembered:
                for there, _, blocks in one.list_contexts(channels):
                    shown = _name_context(component, there)
                    for own in blocks:
                        yield from (NamedChannel(where, shown, channel) for channel in own)

    def answer_tables(self, query: int, panes: int) -> Iterator[AnswerTable]:  # noqa: ARG002
        """Yield a table for each planned context, for queries in one component.

        With memory, the channel and the confidence depend on what was released before.
        """
        found = self.exposure.questions[query].parts
        if self.memory is not None or len(found) != 1:
            return
        component, part = found[0]
        for context in self.planned[component].values():
            for block, design in context.blocks:
                if part not in block.parts:
                    continue
                column = block.columns[block.parts.index(part)]
                counts = design.channel.table.astype(np.float64)
                posterior = design.posterior[:, column]
                yes = posterior >= self.thresholds[query]
                if self.literal:
                    yes = read_literally(counts.T, block.choice.answers)[:, column]
                yield AnswerTable(
                    counts / counts.sum(axis=1, keepdims=True),
                    block.choice.answers[:, column],
                    yes,
                    np.where(yes, posterior, 1 - posterior),
                )


def _find_error(expected: Confusion[Floats]) -> float:
    """Return about how far two simulated qualities are apart by chance."""
    total = expected.total()
    wrong = total.fp + total.fn
    return float(1.5 * np.sqrt(2 * wrong) / max(1.0, total.tp + total.fn))


def _name_context(component: Component, signals: Bits) -> str:
    """Return the public patterns that are detected in a context."""
    return ", ".join(
        repr(signal) for signal, there in zip(component.signals, signals, strict=True) if there
    )


def _divide_shares(statistics: Statistics, goal: PlanGoal) -> Policy:
    """Return the policy that answers are drawn for; single elements get the shares of adaptive.

    With sliding windows, its epsilons are those of a single window.
    """
    policy = statistics.policy.scale(goal.share, goal.shares).per_window(goal.panes)
    fine = with_epsilons(statistics.fine, statistics.policy, policy)
    if statistics.fine == statistics.policy or not statistics.windows:
        return fine
    objective = ElementObjective.build(
        statistics, goal, flip_uniformly(policy), None, literal=False
    )
    return with_shares(policy, fine, move_shares(policy, objective).epsilons)


def _model_parts(statistics: Statistics, fine: Policy) -> PartModel:
    exposure = statistics.exposure.with_epsilons(fine)
    return PartModel(exposure, statistics.priors, statistics.contexts)


def _choose_weights(statistics: Statistics, fine: Policy, goal: PlanGoal) -> Floats:
    """Return the gain of a true yes and the loss of a false one for each query.

    A few penalties of a false yes are tried, the same for all queries. Then weights follow the
    gradient of the objective: if it were linear, these would be best. Queries that lack quality
    count more from round to round.
    """
    objective = goal.objective
    scale = np.ones(len(statistics.positives))
    if objective.separate:
        scale = objective.shares / np.maximum(1.0, statistics.positives)
    scale = scale / max(scale.max(initial=0.0), 1e-300)
    tried: dict[bytes, tuple[float, Floats, Confusion[Floats]]] = {}
    model = _model_parts(statistics, fine)

    def attempt(weights: Floats) -> bool:
        key = weights.round(4).tobytes()
        if key in tried:
            return False
        goal.progress(0.6 * len(tried) / (len(_CAUTIONS) + _FOLLOWED), "planning optimal")
        made = Optimal._design(statistics, fine, weights, goal.literal, QUICK, model)
        counts = made.count_posteriors(statistics, _COMPARED)
        thresholds = np.full(len(weights), 0.5)
        if not goal.literal:
            thresholds = choose_thresholds(counts, objective)
        found = counts.confusion(thresholds)
        tried[key] = round(objective.value(found), 9), weights, found
        return True

    for caution in _CAUTIONS:
        attempt(np.outer(scale, [1 - caution, caution]))
    emphasis = np.ones(len(scale))
    for _ in range(_FOLLOWED):
        found = max(tried.values(), key=lambda trial: trial[0])[2]
        if objective.required is not None:
            lacking = objective.caps - found.quality(np.array(objective.alphas))
            emphasis *= np.exp(np.clip(10 * lacking, -1.0, 1.0))
        weights = objective.weights(found) * emphasis[:, np.newaxis]
        if not attempt(weights / max(weights.max(initial=0.0), 1e-300)):
            break
    return max(tried.values(), key=lambda trial: trial[0])[1]


def _design_contexts(
    channels: ComponentChannels, history: ContextCounts, most: int, used: ContextCounts | None
) -> dict[bytes, Context]:
    """Design the most common contexts that occurred more than once, within limits of size.

    With `used`, contexts that do not occur there are left out.
    """
    keys = None if used is None else set(map(bytes, np.packbits(used.signals[used.begins], axis=1)))
    most = max(_LEAST_CONTEXTS, min(most, _PARTS // max(1, len(channels.component.parts))))
    designed = {}
    for signals, windows in history.most_common(most):
        if windows < 2 and len(history.begins) > most:
            break
        key = np.packbits(signals).tobytes()
        if keys is not None and key not in keys:
            continue
        context = channels.context(signals)
        if context is not None:
            designed[key] = context
    return designed


def _decode_context(channels: ComponentChannels, key: bytes, context: Context) -> Context:
    """Return a context with the same channels, decoded by another prior."""
    width = len(channels.component.signals)
    signals = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
    blocks = []
    for block, design in context.blocks:  # classes do not depend on the prior
        likely = channels.prior.choice_probabilities(signals, block.variables)
        prior = np.bincount(block.place, likely, len(block.choice.prior)).astype(np.float64)
        problem = replace(block.choice, prior=prior)
        blocks.append((replace(block, choice=problem), read_design(problem, design.channel)))
    return Context(context.decided, tuple(blocks))


def _refines(fine: Policy, policy: Policy) -> bool:
    """Return whether `fine` is the policy, possibly with some patterns as single elements."""
    try:
        check_refinement(policy, fine)
    except (AuditError, KeyError):
        return False
    return fine.private == policy.private


def _write_contexts(planned: Mapping[bytes, Context]) -> dict[str, Any]:
    """Return the contexts as plain data; each table is written once."""
    numbers: dict[bytes, int] = {}
    tables: list[list[list[str]]] = []
    contexts = []
    for key, context in planned.items():
        own = []
        for _, design in context.blocks:
            content = repr(design.channel.table.shape).encode() + design.channel.table.tobytes()
            if content not in numbers:
                numbers[content] = len(tables)
                tables.append(write_table(design.channel))
            own.append(numbers[content])
        contexts.append({"signals": key.hex(), "channels": own})
    return {"tables": tables, "contexts": contexts}


_Audited: TypeAlias = tuple[tuple[tuple[int, ...], ...], int]
"""The table of a channel that was audited, and the identity of its neighbours."""


def _read_contexts(
    channels: ComponentChannels, plain: Mapping[str, Any], audited: dict[_Audited, Channel]
) -> dict[bytes, Context]:
    """Read contexts, and audit their tables against the specification.

    Contexts with the same classes share their neighbours; a channel keeps them, so that identity
    is enough to know what was audited already.
    """
    width = len(channels.component.signals)
    tables = [tuple(map(tuple, read_table(table))) for table in plain.get("tables", ())]
    designs: dict[tuple[int, int], Design] = {}
    found = {}
    for context in plain["contexts"]:
        key = bytes.fromhex(context["signals"])
        signals: Bits = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
        outline = channels.outline(signals)
        if outline is None:
            continue  # Plans of earlier versions have channels for some of these.
        blocks = []
        if "tables" in context:
            own = [read_table(table) for table in context["tables"]]
            made = [
                Channel(table, block.choice.neighbours)
                for table, block in zip(own, outline.blocks, strict=True)
            ]
        else:
            made = []
            for number, block in zip(context["channels"], outline.blocks, strict=True):
                same = tables[int(number)], id(block.choice.neighbours)
                if same not in audited:
                    audited[same] = Channel(same[0], block.choice.neighbours)
                made.append(audited[same])
        for block, channel in zip(outline.blocks, made, strict=True):
            place = id(block.choice), id(channel)
            if place not in designs:
                designs[place] = read_design(block.choice, channel)
            blocks.append((block, designs[place]))
        found[key] = Context(outline.decided, tuple(blocks))
    return found


def _read_book(
    component: Component, prior: Prior, stakes: Floats, plain: Mapping[str, Any]
) -> ChannelBook:
    """Read a book; plans of earlier versions have none, so that it is designed from the prior."""
    if "book" in plain:
        return ChannelBook.from_dict(plain["book"], component, prior.groups)
    nothing = ContextCounts.empty(len(component.signals), len(component.variables))
    return design_book(component, prior, stakes, nothing, 0)
