"""What a mechanism is: a planning hook, draws and their decoding, for the subjects of one policy.

A `Mechanism` is data: the planner makes it from history, and a plan file holds it. A run starts
it, which gives a `Protector`: it draws noise for closed windows and decodes what was drawn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.patterns.tree import Pattern
from tacit.privacy.certainty import Certainty
from tacit.privacy.channel_audit import Ratio
from tacit.privacy.channels import Channel
from tacit.privacy.noise import Noise
from tacit.privacy.policies import Policy
from tacit.privacy.quality import Confusion
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes
from tacit.windows.queries import Queries

if TYPE_CHECKING:
    from tacit.privacy.mechanisms.public_only import PublicOnly

Columns: TypeAlias = NDArray[np.uint64]
"""`[window][pattern][word]`: 64 subjects to a word."""
Floats: TypeAlias = NDArray[np.float64]


class PatternIndex:
    """The patterns that are matched on true windows, each once. Their bits are a release's input.

    >>> from tacit.patterns.tree import Name
    >>> index = PatternIndex()
    >>> index.column(Name("a")), index.column(Name("b")), index.column(Name("a"))
    (0, 1, 0)
    """

    def __init__(self) -> None:
        self._numbers: dict[Pattern, int] = {}

    def column(self, pattern: Pattern) -> int:
        """The number of the pattern's bit column."""
        return self._numbers.setdefault(pattern, len(self._numbers))

    def columns(self, patterns: Sequence[Pattern]) -> list[int]:
        """The numbers of several."""
        return [self.column(pattern) for pattern in patterns]

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """All of them, in order."""
        return tuple(self._numbers)


@dataclass(frozen=True, slots=True)
class WindowBits:
    """Closed windows, and the true bits of the patterns that were matched on them."""

    bits: Columns
    closed: ClosedPanes
    rows: Mapping[str, pl.DataFrame]

    @property
    def slots(self) -> int:
        """How many subjects there are."""
        return int(self.closed.words.shape[1])


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """What a planning hook is asked for."""

    alphas: tuple[float, ...]
    """For each query how much precision counts in its quality."""
    literal: bool
    """Whether noisy output is read literally; else by its posterior."""
    share: Fraction = Fraction(1)
    """The share of every private pattern's epsilon that may be spent."""
    panes: int = 1
    """How many panes a window has; more than 1 where windows slide."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What a mechanism is given when a run starts."""

    spec: Specification
    queries: tuple[Pattern, ...]
    index: PatternIndex
    noise: Noise
    policy: str
    """A name for the policy, under which draws are kept."""


class NamedChannel(NamedTuple):
    """A channel of a plan, for its audit."""

    where: str
    """The element that it flips, or the private patterns that it is about."""
    context: str | None
    """The public patterns that are detected where it is used; None if it is used everywhere."""
    channel: Channel


class Protector(ABC):
    """Protects the answers for the subjects of one policy, in a run."""

    @abstractmethod
    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """`bits[window][query][word]`, and how sure they are.

        `own` says whose answers are used; None is everybody's. Draw nothing for the others.
        """

    @property
    def queries(self) -> Queries | None:
        """The patterns that it matches by itself on windows that it changed."""
        return None


class Mechanism(ABC):
    """What protects the subjects of one policy, as it was planned.

    A subclass says in its docstring what it guarantees: Guarantee, Neighbours, Why, Spends,
    Paper, Differs, Proof.
    """

    name: ClassVar[str]
    """As specifications and plans write it."""
    kind: ClassVar[str]
    """How a plan file marks the data of one policy; mechanisms with the same data share it."""
    needs: ClassVar[Literal["nothing", "prior", "history"]] = "history"
    """The least that a plan can be made from."""
    draws_panes: ClassVar[bool] = False
    """Whether noise is drawn for panes, each once, and not for whole windows.

    Where windows slide, an occurrence changes each element in one pane, but several windows. So
    a mechanism that draws for windows gets a part of epsilon for each: `Policy.per_window`.
    """

    @classmethod
    @abstractmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Self, Confusion[Floats]]:
        """The planning hook: the best for a policy, and what to expect of it for each query."""

    @abstractmethod
    def start(self, run: RunSetup) -> Protector:
        """Its draws and their decoding, in a run."""

    @property
    @abstractmethod
    def public_only(self) -> PublicOnly:
        """What answers in its place once a limit is reached."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON; `kind` is added to it."""

    @classmethod
    @abstractmethod
    def from_dict(
        cls, plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int
    ) -> Self:
        """What was written, for what the specification protects: channels are audited for it."""

    @abstractmethod
    def fits(self, policy: Policy, queries: Sequence[Pattern], panes: int) -> bool:
        """Whether it protects all of this policy's patterns, whatever a plan says about itself."""

    @abstractmethod
    def widest_ratio(self, changing: frozenset[str]) -> Ratio:
        """How far apart windows can be told that differ in these elements of one pattern alone.

        It is that of a single draw's unit: a pane or a window. None is no limit.
        """

    @abstractmethod
    def channels(self) -> Iterator[NamedChannel]:
        """All channels, for the audit."""

    @property
    def element_epsilons(self) -> dict[str, Fraction]:
        """The epsilon of each element, where each has its own."""
        return {}


def pack_slots(own: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Subjects as bits of words."""
    padded = np.zeros(-(-len(own) // 64) * 64, np.bool_)
    padded[: len(own)] = own
    return np.packbits(padded, bitorder="little").view("<u8").astype(np.uint64, copy=False)
