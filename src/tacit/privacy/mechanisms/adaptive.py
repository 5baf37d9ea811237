"""Adaptive: move epsilon to the elements where it gains the most quality on history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import ClassVar, Final, Protocol

from tacit.privacy.elements import Elements, uniform_shares
from tacit.privacy.mechanisms.flips import Flips
from tacit.privacy.mechanisms.mechanism import PlanGoal
from tacit.privacy.mechanisms.objective import ElementObjective
from tacit.privacy.mechanisms.uniform import flip_uniformly
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.statistics import Statistics

GAIN = 1e-12
"""A step must gain more than this; a smaller gain may be a rounding error."""
HALVINGS = 4
"""How often the step is halved once no step improves."""
TRIALS = 500
"""The largest number of trials per element: a bound on time that is hardly ever reached."""
_LEAPS: Final = (1, 2, 4)
"""Once small steps do not improve, these parts of an epsilon are moved at once."""
_LOUDER: Final = (Fraction(2), Fraction(4))
"""Thresholds are also tried that are best with this many times the epsilon."""


class SearchState(Protocol):
    """The state of a search: an epsilon for each element, and the value of the objective."""

    @property
    def value(self) -> float:
        """The value to maximise, such as the expected Q on history."""

    def try_changes(self, changes: Mapping[str, float]) -> float:
        """Return the value with these epsilons for these elements; change nothing."""

    def move(self, changes: Mapping[str, float]) -> None:
        """Set the epsilons of these elements."""


class Objective(Protocol):
    """What a search maximises. Floats are enough: it chooses shares, not the exact flips."""

    def at(self, epsilons: Mapping[str, float]) -> SearchState:
        """Return the state with these epsilons of all private elements."""


@dataclass(frozen=True, eq=False)
class Adaptive(Flips):
    """Flip elements as `Uniform` does, with shares of epsilon that favour important elements.

    Guarantee: pattern-level epsilon-DP per subject, pattern and window, whatever history says.
    Neighbours: windows that differ anywhere inside the pattern's elements.
    Why: the shares of a pattern's elements never add up to more than its epsilon, and ratios
    multiply as in `Uniform`. The sums are exact, and the result is audited like any other.
    Spends: epsilon, once per window, whatever the number of queries.
    Paper: Algorithm 1. Differs: a step takes delta/(m-1) from each of the others, so that the
    sum stays the same (delta/m, as printed, breaks the guarantee); each step is tried on a copy;
    only strict improvements are accepted, so there are no cycles; shares stay uniform unless moved
    ones are better on held-out windows; an element with too little gives
    all it has, and the others give the rest; a pattern of one element does not change. If patterns
    share elements, each keeps its sum, and what a shared element leaves over can be used.
    Proof: docs/guarantee.md#adaptive

    The shares depend on history, which the guarantee does not cover.
    """

    name: ClassVar[str] = "adaptive"

    @classmethod
    def propose(cls, policy: Policy, statistics: Statistics, goal: PlanGoal) -> Iterator[Elements]:
        """Propose uniform shares, and shares moved to where history shows a gain."""
        even = flip_uniformly(policy)
        yield even
        panes = statistics.pane_counts
        yield move_shares(policy, ElementObjective.build(statistics, goal, even, panes))
        if goal.objective.separate:
            # At the threshold that is best for uniform shares, a query may not gain from any small
            # step, such as one that is always answered yes. So other thresholds are tried too.
            for factor in _LOUDER:
                louder = flip_uniformly(policy.scale(factor))
                yield move_shares(policy, ElementObjective.build(statistics, goal, louder, panes))
            read = ElementObjective.build(statistics, goal, even, panes, literal=True)
            yield move_shares(policy, read)


def move_shares(policy: Policy, objective: Objective, *, halvings: int = HALVINGS) -> Elements:
    """Return the elements of a policy with the shares of epsilon that maximise an objective."""
    search = _ShareSearch(policy, objective, halvings)
    leaping = True
    while leaping:
        for halving in range(halvings + 1):
            while search.sweep(2 ** (halvings - halving)):
                pass
        # Quality may be best where one element has most of the epsilon, with less in between.
        leaping = any(search.leap(part) for part in _LEAPS)
    return Elements.from_epsilons(policy, search.shares())


class _ShareSearch:
    """A search over shares in whole units, so that sums are exact and the grid is finite."""

    def __init__(self, policy: Policy, objective: Objective, halvings: int) -> None:
        start = uniform_shares(policy)
        smallest = {pattern: _step(pattern) / 2**halvings for pattern in policy.patterns}
        gifts = [step / max(1, len(pattern.elements) - 1) for pattern, step in smallest.items()]
        epsilons = [pattern.epsilon for pattern in policy.patterns]
        self._units = lcm(*(x.denominator for x in (*start.values(), *gifts, *epsilons)))
        self._shares = {name: self._whole(share) for name, share in start.items()}
        self._limits = [(sorted(p.elements), self._whole(p.epsilon)) for p in policy.patterns]
        self._steps = [self._whole(smallest[pattern]) for pattern in policy.patterns]
        self._within: dict[str, list[int]] = {name: [] for name in start}
        for number, (names, _) in enumerate(self._limits):
            for name in names:
                self._within[name].append(number)
        self._standing = objective.at({name: float(share) for name, share in start.items()})
        self._left = TRIALS * len(start)

    def shares(self) -> dict[str, Fraction]:
        """Return the epsilon of each element."""
        return {name: Fraction(share, self._units) for name, share in self._shares.items()}

    def sweep(self, scale: int) -> bool:
        """Improve pattern after pattern with steps of `scale` units; return whether any changed."""
        improved = False
        for number in range(len(self._limits)):
            while self._left > 0 and self._improve(number, scale * self._steps[number]):
                improved = True
        return improved

    def leap(self, divisor: int) -> bool:
        """Try to move a large part of each pattern's epsilon; return whether any changed."""
        moved = [
            self._improve(number, limit // divisor)
            for number, (_, limit) in enumerate(self._limits)
        ]
        return any(moved)

    def _improve(self, number: int, step: int) -> bool:
        """Take the best step towards one of a pattern's elements, if it improves the value."""
        best, value = None, self._standing.value + GAIN
        if self._left <= 0:
            return False
        for name in self._limits[number][0]:
            changes = self._raised(name, step)
            if changes:
                self._left -= 1
                found = self._standing.try_changes(self._floats(changes))
                if found > value:
                    best, value = changes, found
        if best is None:
            return False
        self._standing.move(self._floats(best))
        self._shares.update(best)
        return True

    def _raised(self, name: str, step: int) -> dict[str, int]:
        """Return the changed shares if one is raised by a step, as far as its patterns allow."""
        had = self._shares[name]
        most = min(self._limits[number][1] for number in self._within[name])
        changes = {name: min(had + step, most)}
        if changes[name] == had:
            return {}
        for number in self._within[name]:
            names, limit = self._limits[number]
            others = {other: changes.get(other, self._shares[other]) for other in names}
            excess = sum(others.values()) - limit
            del others[name]
            changes.update(_take(others, excess))
        return changes

    def _whole(self, amount: Fraction) -> int:
        return amount.numerator * (self._units // amount.denominator)

    def _floats(self, changes: Mapping[str, int]) -> dict[str, float]:
        return {name: share / self._units for name, share in changes.items()}


def _step(pattern: PrivatePattern) -> Fraction:
    """Return the paper's step, m * epsilon / 100, but at most a uniform share."""
    size = max(1, len(pattern.elements))
    return pattern.epsilon * min(Fraction(size, 100), Fraction(1, size))


def _take(shares: Mapping[str, int], amount: int) -> dict[str, int]:
    """Take an amount in equal parts; a share that is too small gives all of it."""
    givers = sorted((share, name) for name, share in shares.items() if share)
    changes = {}
    for place, (share, name) in enumerate(givers):
        if amount <= 0:
            break
        # In increasing order: the remaining shares are at least as large, and give the rest.
        part = min(share, amount // (len(givers) - place))
        changes[name] = share - part
        amount -= part
    return changes
