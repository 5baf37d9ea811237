"""Adaptive: epsilon moves to the elements where it buys the most quality on history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import ClassVar, Final, Protocol

from tacit.privacy.elements import Elements, uniform_shares
from tacit.privacy.mechanisms.flips import ChosenFlips, Flips, choose_threshold
from tacit.privacy.mechanisms.mechanism import PlanGoal
from tacit.privacy.mechanisms.objective import ElementObjective
from tacit.privacy.mechanisms.uniform import Uniform
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.statistics import Statistics

GAIN = 1e-12
"""A step must gain more than this: less may be nothing but the rounding of floats."""
HALVINGS = 4
"""How often the step is halved once no step improves."""
TRIALS = 500
"""Trials for each element on average, at most: a bound on time that is hardly ever met."""


_SHOWN: Final = 0.2
"""Shares are moved for a gain in quality of at least this part of its sampling error."""


class SearchState(Protocol):
    """Where a search stands: an epsilon for each element, and its value."""

    @property
    def value(self) -> float:
        """What is to become large, such as the expected Q on history."""

    def tried(self, changes: Mapping[str, float]) -> float:
        """The value if these elements had these epsilons instead; nothing is kept."""

    def move(self, changes: Mapping[str, float]) -> None:
        """Give these elements these epsilons."""


class Objective(Protocol):
    """What a search makes large. Floats are enough: it decides on shares, not on a flip."""

    def at(self, epsilons: Mapping[str, float]) -> SearchState:
        """A standing with these epsilons, of all private elements."""


@dataclass(frozen=True, eq=False)
class Adaptive(Flips):
    """Flip elements as `Uniform` does, with shares of epsilon that fit what queries need.

    Guarantee: pattern-level epsilon-DP per subject, pattern and window, whatever history says.
    Neighbours: windows that differ anywhere inside the pattern's elements.
    Why: the shares of a pattern's elements never add up to more than its epsilon, and ratios
    multiply as in `Uniform`. The sums are exact, and the result is audited like any other.
    Spends: epsilon, once per window, whatever the number of queries.
    Paper: Algorithm 1. Differs: a step takes delta/(m-1) from each of the others, so that the
    sum stays (delta/m, as printed, breaks the guarantee); each step is tried and undone; only
    a strict improvement is taken, so there are no cycles; an element that has too little gives
    what it has, and the others the rest; a pattern of one element is left alone. Patterns that
    share elements keep all of their sums, and what a shared element leaves over may be used.
    Proof: docs/guarantee.md#adaptive

    The shares depend on history, which the guarantee does not cover.
    """

    name: ClassVar[str] = "adaptive"

    @classmethod
    def choose(cls, policy: Policy, statistics: Statistics, goal: PlanGoal) -> ChosenFlips:
        """Uniform shares, moved where history shows that it pays."""
        made, threshold = Uniform.choose(policy, statistics, goal)
        objective = ElementObjective(
            statistics.evidence,
            goal.alphas,
            exact=float(statistics.exact.sum()),
            decode="literal" if goal.literal else "posterior",
            threshold=threshold,
            sightings=statistics.sightings,
        )
        moved = move_shares(policy, objective)
        # A gain that history can hardly show is as likely none on other windows.
        least = _SHOWN / max(1.0, float(statistics.positives.sum())) ** 0.5
        if objective.value(_floats(moved)) <= objective.value(_floats(made)) + least:
            return ChosenFlips(made, threshold)
        return ChosenFlips(moved, choose_threshold(moved, statistics, goal, statistics.sightings))


def _floats(made: Elements) -> dict[str, float]:
    return {name: float(epsilon) for name, epsilon in made.epsilons.items()}


def move_shares(policy: Policy, objective: Objective, *, halvings: int = HALVINGS) -> Elements:
    """The elements of a policy, with the shares of epsilon that an objective likes best."""
    search = _Search(policy, objective, halvings)
    for halving in range(halvings + 1):
        while search.sweep(2 ** (halvings - halving)):
            pass
    return Elements.flipped(policy, search.shares())


class _Search:
    """Shares in whole units, all of which divide evenly: sums are exact, and the grid finite."""

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
        """The epsilon of each element."""
        return {name: Fraction(share, self._units) for name, share in self._shares.items()}

    def sweep(self, scale: int) -> bool:
        """Improve pattern after pattern, with steps so many times the smallest; False if none."""
        improved = False
        for number in range(len(self._limits)):
            while self._left > 0 and self._improve(number, scale * self._steps[number]):
                improved = True
        return improved

    def _improve(self, number: int, step: int) -> bool:
        """Take the best of the steps towards each of a pattern's elements, if it is any good."""
        best, value = None, self._standing.value + GAIN
        for name in self._limits[number][0]:
            changes = self._raised(name, step)
            if changes:
                self._left -= 1
                found = self._standing.tried(self._floats(changes))
                if found > value:
                    best, value = changes, found
        if best is None:
            return False
        self._standing.move(self._floats(best))
        self._shares.update(best)
        return True

    def _raised(self, name: str, step: int) -> dict[str, int]:
        """The shares that change if one is raised by a step, as far as its patterns allow."""
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
            changes.update(_taken(others, excess))
        return changes

    def _whole(self, amount: Fraction) -> int:
        return amount.numerator * (self._units // amount.denominator)

    def _floats(self, changes: Mapping[str, int]) -> dict[str, float]:
        return {name: share / self._units for name, share in changes.items()}


def _step(pattern: PrivatePattern) -> Fraction:
    """The paper's m * epsilon / 100, but no more than what a uniform share is."""
    size = max(1, len(pattern.elements))
    return pattern.epsilon * min(Fraction(size, 100), Fraction(1, size))


def _taken(shares: Mapping[str, int], amount: int) -> dict[str, int]:
    """What changes if an amount is taken in equal parts; who has too little gives all of it."""
    givers = sorted((share, name) for name, share in shares.items() if share)
    changes = {}
    for place, (share, name) in enumerate(givers):
        if amount <= 0:
            break
        # In order of what they have: those to come have at least as much, and give the rest.
        part = min(share, amount // (len(givers) - place))
        changes[name] = share - part
        amount -= part
    return changes
