"""Schemes: what a plan does for the subjects of one policy, in full.

A scheme's tables say how well it does; its channels say what it gives away. Both are data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.answers.decoding import Decoder
from tacit.errors import PlanError
from tacit.patterns.tree import Pattern
from tacit.privacy.channels import Channel
from tacit.privacy.components import Exposure, exposure
from tacit.privacy.elements import Elements
from tacit.privacy.exponentials import written
from tacit.privacy.optimal import Context, Optimal
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.refinement import refined, with_shares
from tacit.privacy.staircase import read
from tacit.privacy.touched import Touched, touched


@dataclass(frozen=True, eq=False)
class OpenScheme:
    """Nothing that is asked depends on anything private: all answers are true."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {"kind": "open"}


@dataclass(frozen=True, eq=False)
class ElementScheme:
    """Flip the private elements (uniform, adaptive), and read queries from what comes out."""

    elements: Elements
    touched: tuple[Touched, ...]
    literal: bool
    threshold: float
    right: tuple[NDArray[np.float64], ...]
    """For each touched query `[context][presence][answer]`: how likely the answer is right.

    A wide query has its literal answer in place of presence.
    """
    alone: tuple[NDArray[np.float64], ...]
    """For each touched query `[context]`: how likely it is true by public events alone."""

    @property
    def flipped(self) -> list[str]:
        """The private elements that some query looks at; no others are flipped."""
        return sorted({name for part in self.touched for name in part.elements})

    @property
    def read_parts(self) -> tuple[Touched, ...]:
        """The queries that must be read from noisy windows: no table tells their answers."""
        return tuple(
            part for part in self.touched if part.wide or (self.literal and part.table is None)
        )

    def decoders(self) -> list[Decoder]:
        """How each touched query is answered."""
        read_queries = {part.query for part in self.read_parts}
        return [
            self._decoder(part, right, read=part.query in read_queries)
            for part, right in zip(self.touched, self.right, strict=True)
        ]

    def _decoder(self, part: Touched, right: NDArray[np.float64], *, read: bool) -> Decoder:
        # The context has the lowest bits of a cell, presence those above.
        cells = right.transpose(1, 0, 2).reshape(-1, 2)
        noisy = (part.query,) if part.wide else part.elements
        yes = cells[:, 1] >= self.threshold
        if self.literal:
            yes = np.empty(0, np.bool_) if part.table is None else part.table.T.reshape(-1)
        unread = None if self.literal and read else yes
        return Decoder(part.query, (*part.signals, *noisy), cells, unread)

    @property
    def silent_threshold(self) -> float:
        """From which probability on yes is said where nothing private is looked at."""
        return 0.5 if self.literal else self.threshold

    def silent_decoders(self) -> list[Decoder]:
        """How each touched query is answered from public events and the prior alone."""
        least = self.silent_threshold
        return [
            Decoder(part.query, part.signals, np.stack([1 - p, p], axis=-1), p >= least)
            for part, p in zip(self.touched, self.alone, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "kind": "elements",
            "elements": self.elements.to_dict(),
            "literal": self.literal,
            "threshold": self.threshold,
            "right": {
                str(part.query): right.tolist()
                for part, right in zip(self.touched, self.right, strict=True)
            },
            "alone": {
                str(part.query): likely.tolist()
                for part, likely in zip(self.touched, self.alone, strict=True)
            },
        }


@dataclass(frozen=True, eq=False)
class OptimalScheme:
    """Draw open answers from the best channels for their contexts (optimal)."""

    fine: Policy
    """The policy that is protected: refined where components are large."""
    exposure: Exposure
    priors: tuple[Prior, ...]
    """For each component."""
    stakes: tuple[NDArray[np.float64], ...]
    """For each component what a true yes earns in each part, and what a false one costs."""
    threshold: float
    """The posterior from which on yes is said."""
    literal: bool
    planned: tuple[Mapping[bytes, Context], ...]
    """For each component the contexts whose channels are made already, by packed signals."""

    @cached_property
    def optimals(self) -> tuple[Optimal, ...]:
        """The mechanism of each component."""
        return tuple(
            Optimal(component, prior, stakes)
            for component, prior, stakes in zip(
                self.exposure.components, self.priors, self.stakes, strict=True
            )
        )

    @property
    def silent_threshold(self) -> float:
        """From which probability on yes is said where nothing private is looked at."""
        return 0.5 if self.literal else self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "kind": "optimal",
            "threshold": self.threshold,
            "literal": self.literal,
            "epsilons": [written(pattern.epsilon) for pattern in self.fine.patterns],
            "components": [
                {
                    "prior": prior.to_dict(),
                    "stakes": stakes.tolist(),
                    "contexts": [_written(key, context) for key, context in planned.items()],
                }
                for prior, stakes, planned in zip(
                    self.priors, self.stakes, self.planned, strict=True
                )
            ],
        }


Scheme: TypeAlias = OpenScheme | ElementScheme | OptimalScheme


def scheme_from_dict(
    plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int = 1
) -> Scheme:
    """The scheme that was written, for the policy and the panes that the specification says.

    What is protected comes from the specification, not from what was written: channels are
    audited against the neighbours and the epsilons that it asks for.
    """
    try:
        match plain["kind"]:
            case "open":
                scheme: Scheme = OpenScheme()
            case "elements":
                scheme = _elements(plain, policy, queries)
            case "optimal":
                scheme = _optimal(plain, policy.per_window(panes), queries)
            case _:
                raise PlanError("the plan was made by another version; make it anew")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PlanError(
            f"the plan is damaged ({type(error).__name__}); make it anew with tacit plan"
        ) from error
    if isinstance(scheme, OpenScheme) and touched(policy, queries):
        raise PlanError("the plan leaves private patterns unprotected; make it anew")
    return scheme


def _elements(plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern]) -> Scheme:
    written = Elements.from_dict(plain["elements"])
    parts = touched(policy, queries)
    right = tuple(np.array(plain["right"][str(part.query)], np.float64) for part in parts)
    for part, table in zip(parts, right, strict=True):
        cells = 2 if part.wide else 1 << len(part.elements)
        if table.shape != (1 << len(part.signals), cells, 2):
            raise PlanError("the plan's tables do not fit the specification; make it anew")
    return ElementScheme(
        Elements(policy, written.channels),
        parts,
        bool(plain["literal"]),
        float(plain["threshold"]),
        right,
        tuple(_alone(part, plain.get("alone")) for part in parts),
    )


def _alone(part: Touched, tables: Mapping[str, Any] | None) -> NDArray[np.float64]:
    """How likely a query is by public events alone; plans did not always say.

    What is decided comes from the specification: a plan can only say how likely the rest is.
    """
    likely = np.full(len(part.decided), 0.5)
    if tables is not None:
        likely = np.array(tables[str(part.query)], np.float64)
        if likely.shape != part.decided.shape or not ((likely >= 0) & (likely <= 1)).all():
            raise PlanError("the plan's tables do not fit the specification; make it anew")
    return np.where(part.decided < 0, likely, part.decided)


def _optimal(plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern]) -> Scheme:
    coarse = refined(policy, queries)
    epsilons = [Fraction(text) for text in plain["epsilons"]]
    if any(epsilon < 0 for epsilon in epsilons):
        raise PlanError("the plan gives an element less than no epsilon; make it anew")
    shares = {
        next(iter(pattern.elements)): epsilon
        for pattern, epsilon in zip(coarse.patterns, epsilons, strict=True)
    }
    fine = with_shares(policy, coarse, shares)
    found = exposure(fine, queries)
    if len(found.components) != len(plain["components"]):
        raise PlanError("the plan's components are not the specification's; make it anew")
    priors = tuple(Prior.from_dict(part["prior"]) for part in plain["components"])
    for component, prior in zip(found.components, priors, strict=True):
        widths = prior.signals.shape[1], prior.values.shape[1]
        if widths != (len(component.signals), len(component.variables)):
            raise PlanError("the plan's priors do not fit the specification; make it anew")
    bare = OptimalScheme(
        fine,
        found,
        priors,
        tuple(np.array(part["stakes"], np.float64) for part in plain["components"]),
        float(plain["threshold"]),
        bool(plain["literal"]),
        tuple({} for _ in priors),
    )
    planned = []
    for optimal, part in zip(bare.optimals, plain["components"], strict=True):
        width = len(optimal.component.signals)
        contexts = (_read_context(optimal, one, width) for one in part["contexts"])
        planned.append(dict(contexts))
    return replace(bare, planned=tuple(planned))


def _written(key: bytes, context: Context) -> dict[str, Any]:
    return {
        "signals": key.hex(),
        "tables": [
            [[str(entry) for entry in row] for row in design.channel.table.tolist()]
            for _, design in context.blocks
        ],
    }


def _read_context(optimal: Optimal, plain: Mapping[str, Any], width: int) -> tuple[bytes, Context]:
    """A context with the tables that were written, audited against the specification."""
    key = bytes.fromhex(plain["signals"])
    signals: Bits = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
    outline = optimal.outline(signals)
    blocks = []
    for block, table in zip(outline.blocks, plain["tables"], strict=True):
        entries = [[int(str(entry)) for entry in row] for row in table]
        channel = Channel(entries, block.choice.neighbours)
        blocks.append((block, read(block.choice, channel)))
    return key, Context(outline.decided, tuple(blocks))
