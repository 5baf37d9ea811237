"""Optimal: randomise the answers, and only those that are open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from tacit.errors import AuditError, PlanError
from tacit.patterns.tree import Pattern
from tacit.privacy.channel_audit import Ratio, largest_of, multiply_ratios, row_ratio
from tacit.privacy.channels import Channel
from tacit.privacy.components import Component, Exposure, find_exposure
from tacit.privacy.evidence import cut_cells
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.mechanisms.adaptive import move_shares
from tacit.privacy.mechanisms.flips import choose_threshold
from tacit.privacy.mechanisms.mechanism import (
    Floats,
    Mechanism,
    NamedChannel,
    PlanGoal,
    RunSetup,
)
from tacit.privacy.mechanisms.objective import ElementObjective
from tacit.privacy.mechanisms.optimal.blocks import ChannelBlock, ComponentChannels, Context
from tacit.privacy.mechanisms.optimal.draw import ChannelProtector
from tacit.privacy.mechanisms.optimal.expectation import OptimalExpectation
from tacit.privacy.mechanisms.public_only import PublicContexts
from tacit.privacy.mechanisms.uniform import flip_uniformly
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.quality import Confusion, micro_alpha
from tacit.privacy.refinement import check_refinement, refine, with_epsilons, with_shares
from tacit.privacy.staircase import evaluate_channel as read_design
from tacit.privacy.statistics import Statistics

_CAUTIONS: Final = (0.15, 0.3, 0.45, 0.6)
"""The first penalties of a false yes that are tried."""
_FOLLOWED: Final = 3
"""How often the best threshold is then tried as the penalty."""
_SAVED: Final = 1000
"""The number of a component's contexts whose channels are written into a plan."""


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
    threshold: float
    """The answer is yes from this posterior on."""
    literal: bool
    planned: tuple[Mapping[bytes, Context], ...]
    """For each component, the contexts whose channels were planned, by packed signals."""

    @classmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Optimal, Confusion[Floats]]:
        """Choose the penalty of a false yes (`caution`), and design the contexts of history."""
        caution, threshold = 0.5, 0.5
        fine = _share_out(statistics, goal)
        expectation = _expectation(statistics, fine)
        if statistics.windows:
            alpha = micro_alpha(goal.alphas)
            caution, threshold = _best_caution(expectation, alpha, goal.literal)
        final = OptimalExpectation(statistics, fine, caution)
        planned = tuple(
            {
                np.packbits(context.signals).tobytes(): channels.design_context(context.outline)
                for context in met[:_SAVED]
            }
            for channels, met in zip(final.channels(), final.contexts(), strict=True)
        )
        made = cls(
            fine,
            final.exposure,
            statistics.priors,
            tuple(final.stakes),
            threshold,
            goal.literal,
            planned,
        )
        return made, expectation.confusion(caution, None if goal.literal else threshold)

    @cached_property
    def component_channels(self) -> tuple[ComponentChannels, ...]:
        """The channel designer of each component."""
        return tuple(
            ComponentChannels(component, prior, stakes)
            for component, prior, stakes in zip(
                self.exposure.components, self.priors, self.stakes, strict=True
            )
        )

    def start(self, run: RunSetup) -> ChannelProtector:
        """Return a protector that draws symbols for the open answers of each window."""
        return ChannelProtector(self, run)

    @property
    def public_only(self) -> PublicContexts:
        """Answers by the prior, in the context of each component."""
        threshold = 0.5 if self.literal else self.threshold
        return PublicContexts(self.fine.private, self.exposure, self.priors, threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return the priors and the tables of the channels as plain data."""
        return {
            "threshold": self.threshold,
            "literal": self.literal,
            "epsilons": [format_epsilon(pattern.epsilon) for pattern in self.fine.patterns],
            "components": [
                {
                    "prior": prior.to_dict(),
                    "stakes": stakes.tolist(),
                    "contexts": [_write_context(key, context) for key, context in planned.items()],
                }
                for prior, stakes, planned in zip(
                    self.priors, self.stakes, self.planned, strict=True
                )
            ],
        }

    @classmethod
    def from_dict(
        cls, plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int
    ) -> Optimal:
        """Read what `to_dict` wrote, and audit each table for the epsilon of a window."""
        policy = policy.per_window(panes)
        coarse = refine(policy, queries)
        epsilons = [Fraction(text) for text in plain["epsilons"]]
        if any(epsilon < 0 for epsilon in epsilons):
            raise PlanError("the plan gives an element a negative epsilon; make a new plan")
        shares = {
            next(iter(pattern.elements)): epsilon
            for pattern, epsilon in zip(coarse.patterns, epsilons, strict=True)
        }
        fine = with_shares(policy, coarse, shares)
        found = find_exposure(fine, queries)
        if len(found.components) != len(plain["components"]):
            raise PlanError("the plan's components are not the specification's; make a new plan")
        priors = tuple(Prior.from_dict(part["prior"]) for part in plain["components"])
        for component, prior in zip(found.components, priors, strict=True):
            widths = prior.signals.shape[1], prior.values.shape[1]
            if widths != (len(component.signals), len(component.variables)):
                raise PlanError("the plan's priors do not fit the specification; make a new plan")
        bare = cls(
            fine,
            found,
            priors,
            tuple(np.array(part["stakes"], np.float64) for part in plain["components"]),
            float(plain["threshold"]),
            bool(plain["literal"]),
            tuple({} for _ in priors),
        )
        planned = []
        for channels, part in zip(bare.component_channels, plain["components"], strict=True):
            width = len(channels.component.signals)
            contexts = (_read_context(channels, one, width) for one in part["contexts"])
            planned.append(dict(contexts))
        return replace(bare, planned=tuple(planned))

    def fits(self, policy: Policy, queries: Sequence[Pattern], panes: int) -> bool:
        """Return whether it refines the policy of a window and covers all queries."""
        if not _refines(self.fine, policy.per_window(panes)):
            return False
        return self.exposure == find_exposure(self.fine, queries)

    def widest_ratio(self, changing: frozenset[str]) -> Ratio:
        """Multiply the ratios of the components that the elements affect."""
        return multiply_ratios(
            largest_of(_context_ratio(context, changed) for context in planned.values())
            for component, planned in zip(self.exposure.components, self.planned, strict=True)
            if (changed := _changed(component, changing))
        )

    def channels(self) -> Iterator[NamedChannel]:
        """Yield the channels of all contexts in the plan."""
        for component, planned in zip(self.exposure.components, self.planned, strict=True):
            where = " with ".join(pattern.name for pattern in component.patterns)
            for key, context in planned.items():
                signals = np.unpackbits(np.frombuffer(key, np.uint8), count=len(component.signals))
                found = [
                    repr(s) for s, there in zip(component.signals, signals, strict=True) if there
                ]
                for _, design in context.blocks:
                    yield NamedChannel(where, ", ".join(found), design.channel)


@lru_cache(2)
def _expectation(statistics: Statistics, fine: Policy) -> OptimalExpectation:
    """Build the expectation; cached, since plans for both decodings use the same contexts."""
    return OptimalExpectation(statistics, fine)


def _share_out(statistics: Statistics, goal: PlanGoal) -> Policy:
    """Return the policy that answers are drawn for; single elements get the shares of adaptive.

    With sliding windows, its epsilons are those of a single window.
    """
    policy = statistics.policy.scale(goal.share).per_window(goal.panes)
    fine = with_epsilons(statistics.fine, statistics.policy, policy)
    if statistics.fine == statistics.policy or not statistics.windows:
        return fine
    threshold = choose_threshold(flip_uniformly(policy), statistics, goal, None)
    objective = ElementObjective(
        statistics.evidence,
        goal.alphas,
        exact=float(statistics.exact.sum()),
        decode="posterior",
        threshold=threshold,
    )
    return with_shares(policy, fine, move_shares(policy, objective).epsilons)


def _best_caution(
    expectation: OptimalExpectation, alpha: float, literal: bool
) -> tuple[float, float]:
    """Return the best penalty of a false yes in channels, and the best posterior threshold.

    A few penalties are tried, each with its best threshold. If Q were linear, the best threshold
    would equal the penalty, so it is tried as the penalty next.
    """
    tried: dict[float, tuple[float, float]] = {}

    def look(caution: float) -> None:
        spreads = expectation.spreads(caution)
        cells = [spread.cells for spread in spreads if spread is not None]
        threshold, quality = cut_cells(cells, alpha, expectation.exact)
        if literal:
            quality = expectation.confusion(caution, None).total().quality(alpha)
        tried[caution] = quality, threshold

    def best() -> float:
        return max(tried, key=lambda caution: tried[caution][0])

    for caution in _CAUTIONS:
        look(caution)
    for _ in range(_FOLLOWED):
        following = round(min(0.99, max(0.01, tried[best()][1])), 3)
        if following in tried:
            break
        look(following)
    return best(), max(tried[best()][1], 1e-9)


def _refines(fine: Policy, policy: Policy) -> bool:
    """Return whether `fine` is the policy, possibly with some patterns as single elements."""
    try:
        check_refinement(policy, fine)
    except (AuditError, KeyError):
        return False
    return fine.private == policy.private


def _changed(component: Component, changing: frozenset[str]) -> frozenset[int]:
    """Return the variables that some elements may change."""
    return frozenset(
        number
        for number, variable in enumerate(component.variables)
        if not variable.elements.isdisjoint(changing)
    )


def _context_ratio(context: Context, changed: frozenset[int]) -> Ratio:
    """Multiply the ratios of a context's draws, which are independent."""
    return multiply_ratios(
        _block_ratio(block, design.channel, changed) for block, design in context.blocks
    )


def _block_ratio(block: ChannelBlock, channel: Channel, changed: frozenset[int]) -> Ratio:
    """Return the largest ratio of a channel between values that differ in these variables."""
    inside = sum(1 << place for place, v in enumerate(block.variables) if v in changed)
    if not inside:
        return Fraction(1)
    choices = np.arange(1 << len(block.variables))
    together = np.argsort(choices & ~inside, kind="stable")
    groups = np.sort(block.place[together].reshape(-1, 1 << inside.bit_count()), axis=1)
    return largest_of(
        row_ratio(channel.table, group.tolist()) for group in np.unique(groups, axis=0)
    )


def _write_context(key: bytes, context: Context) -> dict[str, Any]:
    return {
        "signals": key.hex(),
        "tables": [
            [[str(entry) for entry in row] for row in design.channel.table.tolist()]
            for _, design in context.blocks
        ],
    }


def _read_context(
    channels: ComponentChannels, plain: Mapping[str, Any], width: int
) -> tuple[bytes, Context]:
    """Read a context, and audit its tables against the specification."""
    key = bytes.fromhex(plain["signals"])
    signals: Bits = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
    outline = channels.outline(signals)
    blocks = []
    for block, table in zip(outline.blocks, plain["tables"], strict=True):
        entries = [[int(str(entry)) for entry in row] for row in table]
        channel = Channel(entries, block.choice.neighbours)
        blocks.append((block, read_design(block.choice, channel)))
    return key, Context(outline.decided, tuple(blocks))
