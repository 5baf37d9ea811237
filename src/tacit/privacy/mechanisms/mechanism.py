"""The interface of mechanisms: planning, draws and decoding for the subjects of one policy.

A `Mechanism` is data: the planner makes it from history, and a plan file stores it. When a run
starts, the mechanism returns a `Protector`, which draws noise for closed windows and decodes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.kernels.threads import ALL_CORES, Workers
from tacit.patterns.tree import Pattern
from tacit.privacy.answer_tables import AnswerTable
from tacit.privacy.certainty import Certainty
from tacit.privacy.channel_audit import Ratio
from tacit.privacy.channels import Channel
from tacit.privacy.noise import Noise
from tacit.privacy.pacing import Pacing, SpendingLimit
from tacit.privacy.policies import Policy
from tacit.privacy.prices import Claim
from tacit.privacy.quality import Confusion, QualityObjective
from tacit.privacy.statistics import Statistics
from tacit.progress import ProgressCallback, ignore_progress
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes
from tacit.windows.queries import Queries

if TYPE_CHECKING:
    from tacit.privacy.mechanisms.public_only import PublicOnly

Columns: TypeAlias = NDArray[np.uint64]
"""`[window][pattern][word]`: 64 subjects to a word."""
Floats: TypeAlias = NDArray[np.float64]
Prices: TypeAlias = NDArray[np.int64]
"""`[window][claim][subject]`, in nano-epsilon."""


class PatternIndex:
    """Numbers the patterns that are matched on true windows. Their bits are a release's input.

    >>> from tacit.patterns.tree import Name
    >>> index = PatternIndex()
    >>> index.column(Name("a")), index.column(Name("b")), index.column(Name("a"))
    (0, 1, 0)
    """

    def __init__(self) -> None:
        self._numbers: dict[Pattern, int] = {}

    def column(self, pattern: Pattern) -> int:
        """Return the number of a pattern's bit column; register it if it is new."""
        return self._numbers.setdefault(pattern, len(self._numbers))

    def columns(self, patterns: Sequence[Pattern]) -> list[int]:
        """Return the column numbers of several patterns."""
        return [self.column(pattern) for pattern in patterns]

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """All registered patterns, in order."""
        return tuple(self._numbers)


@dataclass(frozen=True, slots=True)
class RunMemory:
    """What protectors remember from window to window, as plain arrays by name.

    A protector reads `before` and writes `after`; it changes no array in place. The two are stored
    with the release, so a draw that is thrown away takes what was remembered of it with it.
    """

    before: Mapping[str, NDArray[Any]]
    after: dict[str, NDArray[Any]] = field(default_factory=dict)
    since: NDArray[np.int64] | None = None
    """By slot, the first window for which the subject is registered; None if all always are."""
    keys: NDArray[np.uint8] | None = None
    """By slot, a number that follows from the subject's name alone, to take samples."""

    def is_registered(self, slots: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
        """Return which of these subjects are registered for a window."""
        if self.since is None:
            return np.ones(len(slots), np.bool_)
        return np.asarray(self.since[slots] <= window)

    def is_sampled(self, slots: NDArray[np.int64], window: int, step: int) -> NDArray[np.bool_]:
        """Return one in `step` of these subjects, others for each window.

        `step` is a power of two.
        """
        keys = slots.astype(np.uint8) if self.keys is None else self.keys[slots]
        return np.asarray(keys & np.uint8(step - 1) == window % step)


def hash_names(names: pa.Array | Iterable[object]) -> NDArray[np.uint8]:
    """Return a number for each subject that follows from its name alone.

    >>> hash_names(["a", "b", "a"]).tolist() == hash_names(pa.array(["a", "b", "a"])).tolist()
    True
    """
    if not isinstance(names, pa.Array):
        names = pa.array([str(name) for name in names], pa.large_string())
    names = names.cast(pa.large_string())
    found = np.empty(len(names), np.uint8)
    _, ends, text = names.buffers()
    if len(names):
        first = names.offset
        octets = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
        _hash_texts(np.frombuffer(ends, np.int64)[first : first + len(names) + 1], octets, found)
    return found


@compiled
def _hash_texts(
    ends: NDArray[np.int64], octets: NDArray[np.uint8], found: NDArray[np.uint8]
) -> None:
    """Write a number for each text, by FNV-1a; the higher bits of its hash are folded in."""
    for i in range(len(found)):
        mixed = np.uint64(0xCBF29CE484222325)
        for place in range(ends[i], ends[i + 1]):
            mixed = (mixed ^ np.uint64(octets[place])) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(32)
        mixed ^= mixed >> np.uint64(16)
        found[i] = np.uint8((mixed ^ (mixed >> np.uint64(8))) & np.uint64(255))


@dataclass(frozen=True, slots=True)
class WindowBits:
    """Closed windows, and the true bits of the patterns matched on them."""

    bits: Columns
    closed: ClosedPanes
    rows: Mapping[str, pl.DataFrame]
    memory: RunMemory | None = None
    own: NDArray[np.bool_] | None = None
    """For protectors that remember: the subjects of the policy; None is all."""
    silent: NDArray[np.bool_] | None = None
    """For protectors that remember: the subjects for which nothing may be drawn; None is none."""

    @property
    def slots(self) -> int:
        """The number of subjects."""
        return int(self.closed.words.shape[1])

    def find_counted(self, slots: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return `[window and subject]`: whether these subjects are registered; None if all are.

        Other subjects have slots too, if they occurred too late to be learned: which ones is
        private, so nothing that is decided for all subjects may depend on their rows.
        """
        memory = self.memory
        if memory is None or memory.since is None:
            return None
        numbers = self.closed.first + np.arange(len(self.bits))
        found = memory.since[slots] <= numbers[:, np.newaxis]
        return None if found.all() else found.reshape(-1)


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """The parameters of a planning hook."""

    objective: QualityObjective
    """What to maximise."""
    literal: bool
    """Whether noisy output is read literally; otherwise it is decoded by its posterior."""
    share: Fraction = Fraction(1)
    """The share of every private pattern's epsilon that may be spent."""
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    """Private patterns with another share, by name."""
    panes: int = 1
    """The number of panes of a window; more than 1 if windows slide."""
    memory: bool = False
    """Whether what was released before may be used."""
    limits: Mapping[str, SpendingLimit] = field(default_factory=dict)
    """Private patterns with a limit, by name."""
    progress: ProgressCallback = ignore_progress
    """Called with the finished share of the work."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What a mechanism gets when a run starts."""

    spec: Specification
    queries: tuple[Pattern, ...]
    index: PatternIndex
    noise: Noise
    policy: str
    """A name for the policy, under which its draws are saved."""
    workers: Workers = ALL_CORES


class NamedChannel(NamedTuple):
    """A channel of a plan, for its audit."""

    where: str
    """The element that it flips, or the private patterns that it protects."""
    context: str | None
    """The public patterns detected in its context; None if it is used in all contexts."""
    channel: Channel


class Protector(ABC):
    """Protects the answers for the subjects of one policy, in a run."""

    remembers: ClassVar[bool] = False
    """Whether it uses `WindowBits.memory`. Then it also answers for subjects that do not pay."""

    @abstractmethod
    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """Return `bits[window][query][word]`, and their certainty.

        `own` marks the subjects whose answers are used; None is all. Draw nothing for others.
        """

    def price(self, windows: WindowBits, claims: Sequence[Claim]) -> Prices:
        """Return `[window][claim][subject]`: what `protect` costs each claim, in nano-epsilon.

        It must depend on public events, and on what was released before, alone. By default every
        window costs the most that it can.
        """
        most = np.array([claim.most for claim in claims], np.int64)
        shape = (len(windows.bits), len(claims), windows.slots)
        return np.broadcast_to(most[:, np.newaxis], shape)

    @property
    def queries(self) -> Queries | None:
        """The patterns that it matches on noisy windows, if any."""
        return None


class Mechanism(ABC):
    """A planned mechanism, which protects the subjects of one policy.

    The docstring of a subclass states its guarantee: Guarantee, Neighbours, Why, Spends, Paper,
    Differs, Proof.
    """

    name: ClassVar[str]
    """Its name in specifications and plans."""
    kind: ClassVar[str]
    """The tag of its data in a plan file; mechanisms with the same data share it."""
    needs: ClassVar[Literal["nothing", "prior", "history"]] = "history"
    """The minimum that a plan can be made from."""
    draws_panes: ClassVar[bool] = False
    """Whether noise is drawn once per pane, not once per window.

    With sliding windows, an occurrence changes each element in one pane, but in several windows.
    So a mechanism that draws per window gets a part of epsilon for each: `Policy.per_window`.
    """

    pacing: Pacing | None = None
    """How limits are paced, if that was planned."""
    limited: Confusion[Floats] | None = None
    """What to expect with limits, if the plan was made for them."""

    @property
    def has_memory(self) -> bool:
        """Whether a run uses what was released before."""
        return False

    @classmethod
    @abstractmethod
    def plan(cls, statistics: Statistics, goal: PlanGoal) -> tuple[Self, Confusion[Floats]]:
        """Plan the best mechanism for a policy; also return what to expect for each query.

        The expectation is that of windows which the plan was not made from: each fold of history
        is judged by a plan from the others.
        """

    @abstractmethod
    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Return the expected counts of each query on some windows, such as later ones."""

    def expect_public_only(self, statistics: Statistics) -> Confusion[Floats]:
        """Return what to expect once a limit is reached, judged on held-out windows if possible."""
        return self.public_only.expect(statistics)

    @abstractmethod
    def start(self, run: RunSetup) -> Protector:
        """Return the protector that draws and decodes in a run."""

    @property
    @abstractmethod
    def public_only(self) -> PublicOnly:
        """The mechanism that answers once a limit is reached."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the caller adds `kind`."""

    @classmethod
    @abstractmethod
    def from_dict(
        cls, plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int
    ) -> Self:
        """Read what `to_dict` wrote, and audit its channels for the specification's policy."""

    @abstractmethod
    def fits(self, policy: Policy, queries: Sequence[Pattern], panes: int) -> bool:
        """Return whether it protects all of this policy's patterns, whatever the plan claims."""

    @abstractmethod
    def widest_ratio(self, changing: frozenset[str]) -> Ratio:
        """Return the largest ratio between windows that differ only in these elements.

        The elements belong to one pattern. The ratio is that of one pane or window, whichever
        noise is drawn for. None is infinite.
        """

    @abstractmethod
    def channels(self) -> Iterator[NamedChannel]:
        """Yield all channels, for the audit."""

    @property
    def element_epsilons(self) -> dict[str, Fraction]:
        """The epsilon of each element, if elements have separate ones."""
        return {}

    def answer_tables(
        self,
        query: int,  # noqa: ARG002 - for subclasses
        panes: int,  # noqa: ARG002
    ) -> Iterable[AnswerTable]:
        """Return how the open answers to a query come about, context by context.

        None at all if answers do not follow from one table per context.
        """
        return ()


def pack_slots(own: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack one flag per subject into words."""
    padded = np.zeros(-(-len(own) // 64) * 64, np.bool_)
    padded[: len(own)] = own
    return np.packbits(padded, bitorder="little").view("<u8").astype(np.uint64, copy=False)
