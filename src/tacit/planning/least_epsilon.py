"""The least epsilon with which queries reach a required quality.

A plan for smaller epsilons is valid for larger ones too, so what can be reached never falls as
epsilons grow. But the plan that is found for one epsilon may miss a quality that a plan for a
smaller one reaches: searches therefore also look below an epsilon that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Final, Literal, TypeAlias

from tacit.errors import PlanError
from tacit.options import option
from tacit.patterns.tree import elements
from tacit.planning.plan import Expected, Plan
from tacit.planning.planner import choose_split, make_plan
from tacit.planning.requirements import find_lack
from tacit.privacy.policies import PrivatePattern, declared_patterns
from tacit.privacy.statistics import Statistics
from tacit.progress import ProgressCallback, ignore_progress, split_progress
from tacit.spec.epsilon_split import EpsilonSplit
from tacit.spec.mechanisms import AUTO, MECHANISMS
from tacit.spec.specification import Specification

Least: TypeAlias = Literal["total", "largest"]
"""What is least: the sum of all private patterns' epsilons, or the largest of them."""
Epsilons: TypeAlias = Mapping[str, Fraction]

_UNLIMITED: Final = 40
"""With this epsilon for each element in each window, noise is rarer than one in 10**17."""
_SMALLEST: Final = Fraction(1, 1000)
"""No smaller epsilon is tried."""
_PRECISION: Final = 1.002
"""The search ends when an epsilon is known up to this factor."""
_STEP: Final = 1.12
"""The factor between epsilons that are tried below one that is enough."""
_BELOW: Final = 10
"""How many of them are tried."""
_STEPS: Final = 40
"""The usual number of steps for each private pattern."""
_ROUNDS: Final = 3
"""How often each private pattern's epsilon is lowered in turn."""
_PARTS: Final = (0.5, 0.25, 0.1, 0.04, 0.015)
"""The parts of an epsilon that are traded for a little less of another one."""
_LESS: Final = Fraction(99, 100)
"""The share of the epsilons of optimal that must be enough for adaptive to be searched too."""
_TRADES: Final = 300
"""The largest number of trades that are tried."""


@dataclass(frozen=True, slots=True)
class LeastEpsilon:
    """The least epsilons for a required quality, or why no epsilon is enough."""

    epsilons: Epsilons | None
    """The needed epsilon of each private pattern; None if no epsilon is enough."""
    plan: Plan | None
    """The plan with these epsilons; None if they exceed the specification's."""
    expected: Expected
    """The expectation with these epsilons, or that without any noise."""
    mechanism: str
    """The mechanism that needs the least."""
    obstacle: str | None = None
    """If no epsilon is enough, the query that misses its quality by most."""
    reason: str | None = None
    """If no epsilon is enough, why."""

    @property
    def total(self) -> Fraction | None:
        """The sum of the needed epsilons."""
        return None if self.epsilons is None else sum(self.epsilons.values(), Fraction(0))

    @property
    def largest(self) -> Fraction | None:
        """The largest needed epsilon."""
        return None if self.epsilons is None else max(self.epsilons.values(), default=Fraction(0))


def find_least_epsilon(
    spec: Specification,
    statistics: Sequence[Statistics],
    required: Sequence[float | None],
    mechanism: str | None = None,
    decode: str | None = None,
    *,
    least: Least = "total",
    progress: ProgressCallback = ignore_progress,
) -> LeastEpsilon:
    """Find the least epsilons with which every query reaches its quality.

    Each private pattern's epsilon is found by itself. If epsilons within those of the
    specification are enough, only such are searched. `auto` takes the mechanism that needs least,
    and `optimal` takes `adaptive` if that needs less.
    """
    if all(quality is None for quality in required):
        raise PlanError(
            f"no quality is required: set {option('quality')}, or give queries a quality in the"
            " specification"
        )
    chosen = mechanism or spec.mechanism
    names = list(MECHANISMS) if chosen == AUTO else [chosen]
    parts = split_progress(progress, len(names))
    split, _ = choose_split(spec, statistics, chosen, decode)
    searches = [
        _EpsilonSearch(spec, statistics, required, name, decode, split, least, part)
        for name, part in zip(names, parts, strict=True)
    ]
    found = [search.run() for search in searches]
    if chosen == "optimal":
        other = _EpsilonSearch(
            spec, statistics, required, "adaptive", decode, split, least, ignore_progress
        )
        found += [other.run()] if other.needs_less(found[0]) else []
    possible = [one for one in found if one.epsilons is not None]
    if not possible:
        windows = sum(part.windows for part in statistics)
        return max(found, key=lambda one: find_lack(one.expected, required, windows)[0] * -1)
    granted = [one for one in possible if one.plan is not None] or possible
    return min(granted, key=lambda one: _size(one.epsilons or {}, least))


def _size(epsilons: Epsilons, least: Least) -> tuple[Fraction, Fraction]:
    total = sum(epsilons.values(), Fraction(0))
    most = max(epsilons.values(), default=Fraction(0))
    return (total, most) if least == "total" else (most, total)


class _EpsilonSearch:
    """The search for one mechanism. Epsilons are by name of the private pattern."""

    def __init__(
        self,
        spec: Specification,
        statistics: Sequence[Statistics],
        required: Sequence[float | None],
        mechanism: str,
        decode: str | None,
        split: EpsilonSplit,
        least: Least,
        progress: ProgressCallback,
    ) -> None:
        self._spec, self._statistics, self._required = spec, statistics, required
        self._split = split
        self._mechanism, self._decode, self._least, self._progress = (
            mechanism,
            decode,
            least,
            progress,
        )
        self._patterns = {pattern.name: pattern for pattern in declared_patterns(spec)}
        self._declared = {name: pattern.epsilon for name, pattern in self._patterns.items()}
        self._tried: dict[tuple[Fraction, ...], tuple[Plan, bool]] = {}

    def run(self) -> LeastEpsilon:
        """Search, and make the plan if the specification grants the epsilons."""
        unlimited = {name: self._unlimited(own) for name, own in self._patterns.items()}
        granted = self._enough(self._declared)
        if not granted and not self._enough(unlimited):
            return self._explain(unlimited)
        bounds = self._declared if granted else unlimited
        found = self._lower_together(self._direction(bounds), bounds)
        found = self._trade(self._lower_each(found), bounds)
        plan = self._attempt(found)[0]
        assert plan.expected is not None
        fits = all(found[name] <= own for name, own in self._declared.items())
        return LeastEpsilon(found, plan if fits else None, plan.expected, plan.mechanism)

    def needs_less(self, found: LeastEpsilon) -> bool:
        """Return whether less is enough than what another mechanism needs."""
        if found.epsilons is None:
            return True
        return self._enough({name: own * _LESS for name, own in found.epsilons.items()})

    def _unlimited(self, pattern: PrivatePattern) -> Fraction:
        """Return an epsilon with which there is practically no noise."""
        panes = self._spec.windows.panes
        return Fraction(_UNLIMITED * len(pattern.elements) * pattern.count_windows(panes))

    def _attempt(self, epsilons: Epsilons) -> tuple[Plan, bool]:
        """Plan with these epsilons; return the plan, and whether it is enough."""
        key = tuple(epsilons.values())
        if key not in self._tried:
            plan = make_plan(
                self._spec,
                self._statistics,
                self._mechanism,
                self._decode,
                shares={name: own / self._declared[name] for name, own in epsilons.items()},
                required=self._required,
                fall_back=False,
                split=self._split,
            )
            assert plan.expected is not None
            lack, _ = find_lack(plan.expected, self._required, plan.windows)
            self._tried[key] = plan, lack <= 0
            steps = len(self._tried)
            # The number of steps is not known; most searches take fewer than this.
            share = min(0.99, steps / (_STEPS * len(self._patterns)))
            self._progress(share, f"searching for the least epsilon, step {steps}")
        return self._tried[key]

    def _enough(self, epsilons: Epsilons) -> bool:
        return self._attempt(epsilons)[1]

    def _direction(self, bounds: Epsilons) -> Epsilons:
        """Return the proportions in which all epsilons are lowered first."""
        if self._least == "total":
            return bounds if bounds is self._declared else self._declared
        return dict.fromkeys(bounds, Fraction(1))

    def _lower_together(self, direction: Epsilons, bounds: Epsilons) -> Epsilons:
        """Lower all epsilons in the same proportions as far as possible."""

        def scaled(factor: Fraction) -> Epsilons:
            return {
                name: max(_SMALLEST, min(bounds[name], _round(own * factor)))
                for name, own in direction.items()
            }

        high = max(bounds[name] / own for name, own in direction.items())
        low = min(_SMALLEST / own for name, own in direction.items())
        return scaled(self._least_factor(scaled, low, high))

    def _least_factor(
        self, scaled: Callable[[Fraction], Epsilons], low: Fraction, high: Fraction
    ) -> Fraction:
        """Return the least factor that is enough; `high` is."""
        if self._enough(scaled(low)):
            return low
        low, high = self._narrow(scaled, low, high)
        # The plan for a larger epsilon may miss what that for a smaller one reaches.
        for below in range(_BELOW, 0, -1):
            tried = high / Fraction(_STEP) ** below
            if tried > _SMALLEST and self._enough(scaled(tried)):
                return self._narrow(scaled, tried / Fraction(_STEP), tried)[1]
        return high

    def _narrow(
        self, scaled: Callable[[Fraction], Epsilons], low: Fraction, high: Fraction
    ) -> tuple[Fraction, Fraction]:
        """Bisect between a factor that is not enough and one that is."""
        while high > low * Fraction(_PRECISION):
            middle = Fraction((float(low) * float(high)) ** 0.5)
            if scaled(middle) in (scaled(low), scaled(high)):
                break
            if self._enough(scaled(middle)):
                high = middle
            else:
                low = middle
        return low, high

    def _lower_each(self, epsilons: Epsilons) -> Epsilons:
        """Lower each private pattern's epsilon while the others stay, the largest first."""
        for _ in range(_ROUNDS):
            before = _size(epsilons, "total")
            for name in sorted(epsilons, key=lambda name: (-epsilons[name], name)):
                epsilons = self._lower(epsilons, name)
            if float(before[0]) <= float(_size(epsilons, "total")[0]) * _PRECISION:
                break
        return epsilons

    def _lower(self, epsilons: Epsilons, name: str) -> Epsilons:
        """Lower the epsilon of one private pattern as far as possible."""

        def scaled(factor: Fraction) -> Epsilons:
            return {**epsilons, name: max(_SMALLEST, _round(epsilons[name] * factor))}

        slightly = scaled(1 / Fraction(_PRECISION) ** 2)
        if epsilons[name] <= _SMALLEST or slightly == epsilons or not self._enough(slightly):
            return epsilons
        factor = self._least_factor(scaled, _SMALLEST / epsilons[name], Fraction(1))
        return scaled(factor)

    def _trade(self, epsilons: Epsilons, bounds: Epsilons) -> Epsilons:
        """Raise one epsilon and lower another by more, as long as that is enough."""
        pairs = self._list_pairs()
        improved = bool(pairs)
        tries = _TRADES
        while improved and tries > 0:
            improved = False
            for raised, lowered in pairs:
                for part in _PARTS:
                    traded = self._exchange(epsilons, bounds, raised, lowered, part)
                    if traded is None:
                        continue
                    tries -= 1
                    if self._enough(traded):
                        epsilons = self._lower(traded, lowered)
                        improved = True
                        break
        return epsilons

    def _list_pairs(self) -> list[tuple[str, str]]:
        """Return the private patterns that some query with a required quality depends on, by two.

        Others cannot be traded: each has to be enough for its own queries.
        """
        asked = [
            set(elements(pattern))
            for pattern, quality in zip(
                self._spec.query_patterns.values(), self._required, strict=True
            )
            if quality is not None
        ]
        own = {name: set(pattern.elements) for name, pattern in self._patterns.items()}
        return [
            (one, other)
            for one, other in permutations(own, 2)
            if own[one] & own[other] or any(own[one] & q and own[other] & q for q in asked)
        ]

    def _exchange(
        self, epsilons: Epsilons, bounds: Epsilons, raised: str, lowered: str, part: float
    ) -> Epsilons | None:
        """Raise one epsilon by a part of another, and lower that one by a little more."""
        most = bounds[raised]
        if self._least == "largest":
            most = min(most, max(epsilons.values()))
        amount = epsilons[lowered] * Fraction(part)
        more = _round(epsilons[raised] + amount)
        gained = Fraction(_PRECISION - 1) * sum(epsilons.values())
        # Rounding up makes it a little more than the amount.
        less = epsilons[lowered] - (more - epsilons[raised]) - gained
        less = _round(less) if less > 0 else Fraction(0)
        if more > most or less < _SMALLEST:
            return None
        return {**epsilons, raised: more, lowered: less}

    def _explain(self, unlimited: Epsilons) -> LeastEpsilon:
        """Say which query misses its quality even without noise, and why."""
        plan = self._attempt(unlimited)[0]
        assert plan.expected is not None
        lacking, query = find_lack(plan.expected, self._required, plan.windows)
        asked = {
            name
            for one in self._spec.boolean_queries
            if one.query == query
            for name in elements(one.pattern)
        }
        touching = [name for name, own in self._patterns.items() if own.elements & asked]
        reason = (
            f"without any noise on {' and '.join(touching)}, {query} still lacks {lacking:.3g} of"
            " its quality: its answer depends on the order or attributes of private events, which"
            f" {plan.mechanism} does not use"
        )
        return LeastEpsilon(None, None, plan.expected, plan.mechanism, query, reason)


def _round(epsilon: Fraction) -> Fraction:
    """Round an epsilon up to four significant digits, so that it is a short decimal."""
    digits = 3 - _exponent(epsilon)
    scale = Fraction(10) ** digits
    return Fraction(-(-epsilon * scale // 1)) / scale


def _exponent(epsilon: Fraction) -> int:
    """Return the power of ten of the first digit."""
    return int(f"{float(epsilon):e}".split("e")[1])
