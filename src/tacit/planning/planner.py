"""The planner: history in, the best plan out; or the least epsilon for a required quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.options import command, option
from tacit.planning.alone import expected_alone, likely_contexts
from tacit.planning.drawing import Drawing
from tacit.planning.evidence import Decode, Evidence, best_threshold, cut_cells
from tacit.planning.objective import ElementObjective
from tacit.planning.plan import Expected, Plan
from tacit.planning.quality import Confusion, micro_alpha
from tacit.planning.schemes import ElementScheme, OpenScheme, OptimalScheme, Scheme
from tacit.planning.sightings import Sightings
from tacit.planning.survey import Found, Statistics, without_history
from tacit.privacy.adaptive import adaptive
from tacit.privacy.elements import Elements
from tacit.privacy.policies import Policies, Policy
from tacit.privacy.refinement import under, with_shares
from tacit.privacy.touched import Touched, touched
from tacit.privacy.uniform import uniform
from tacit.spec.specification import Specification

Mechanism = Literal["uniform", "adaptive", "optimal"]
MECHANISMS: Final[tuple[Mechanism, ...]] = ("uniform", "adaptive", "optimal")
Floats = NDArray[np.float64]

_CAUTIONS: Final = (0.15, 0.3, 0.45, 0.6)
_FOLLOWED: Final = 3
_SHOWN: Final = 0.2
"""Shares are moved for a gain in quality of at least this part of its sampling error."""
_COUNTS: Final = ("tp", "fp", "fn")
_KEPT: Final = 1000
"""The channels of so many contexts of a component are written into a plan."""


def make_plan(
    spec: Specification,
    statistics: Sequence[Statistics],
    mechanism: str | None = None,
    decode: str | None = None,
    share: Fraction = Fraction(1),
) -> Plan:
    """The best plan for the epsilons of a specification, or for a share of them.

    `statistics` are those of each policy's windows. `auto` takes the mechanism with the best
    expected quality.
    """
    chosen = mechanism or spec.mechanism
    decode = decode or spec.decode
    if chosen == "auto":
        plans = [make_plan(spec, statistics, name, decode, share) for name in MECHANISMS]
        return max(plans, key=lambda plan: plan.expected.quality if plan.expected else 0.0)
    alphas = tuple(query.alpha for query in spec.queries)
    literal = decode == "literal"
    panes = spec.windows.panes
    made = [_scheme(chosen, part, alphas, literal, share, panes) for part in statistics]
    windows = int(sum(part.windows for part in statistics))
    limited = {private.name for private in spec.private if private.limit is not None}
    past = [_past(limited, *both) for both in zip(statistics, made, strict=True)]
    return Plan(
        spec,
        chosen,
        decode,
        tuple(scheme for scheme, _ in made),
        windows,
        _expected(spec, [confusion for _, confusion in made]) if windows else None,
        share,
        _expected(spec, past) if windows and limited else None,
        columns=statistics[0].columns if statistics else {},
    )


def _expected(spec: Specification, confusions: Sequence[Confusion[Floats]]) -> Expected:
    """What to expect of all policies together."""
    names = tuple(query.name for query in spec.queries)
    counts = [np.sum([getattr(c, part) for c in confusions], axis=0) for part in _COUNTS]
    return Expected(names, tuple(query.alpha for query in spec.queries), Confusion(*counts))


def _past(
    limited: AbstractSet[str], statistics: Statistics, made: tuple[Scheme, Confusion[Floats]]
) -> Confusion[Floats]:
    """What to expect of a policy's windows once limits are reached, as far as it has any."""
    scheme, confusion = made
    names = {pattern.name for pattern in statistics.policy.patterns}
    if isinstance(scheme, OpenScheme) or not statistics.windows or limited.isdisjoint(names):
        return confusion
    return expected_alone(statistics, scheme)


def _planning() -> str:
    return command("tacit plan SPEC --history SOURCE -o PLAN", "tacit.plan(spec, history)")


def plan_without_history(
    spec: Specification,
    mechanism: str | None = None,
    decode: str | None = None,
    rates: Mapping[str, float] | None = None,
) -> Plan:
    """A plan from a prior that is given by hand: how likely each event type is in a window.

    Without any prior only `uniform` can do: it needs none, and says how sure its answers are
    as if each event were as likely as not.
    """
    chosen = mechanism or spec.mechanism
    queries = tuple(spec.query_patterns.values())
    policies = Policies(spec).policies
    if not any(touched(policy, queries) for policy in policies):
        chosen = "uniform"  # nothing that is asked is private, so nothing is needed
    if chosen == "auto" or (rates is None and chosen != "uniform"):
        needed = "history to compare mechanisms" if chosen == "auto" else "history or a prior"
        raise PlanError(
            f"the mechanism {chosen} needs {needed}: make a plan with {_planning()}, or use"
            f" {option('mechanism', 'uniform')}"
        )
    if chosen == "adaptive":
        raise PlanError(
            "the mechanism adaptive weighs elements by the quality that they give, which only "
            f"history shows: make a plan with {_planning()}"
        )
    panes = spec.windows.panes
    statistics = [without_history(policy, queries, rates or {}, panes) for policy in policies]
    return make_plan(spec, statistics, chosen, decode)


def _scheme(
    mechanism: str,
    statistics: Statistics,
    alphas: Sequence[float],
    literal: bool,
    share: Fraction,
    panes: int,
) -> tuple[Scheme, Confusion[Floats]]:
    if not statistics.touched:
        positives = statistics.positives
        return OpenScheme(), Confusion(positives, 0 * positives, 0 * positives)
    if mechanism == "optimal":
        return _optimal(statistics, alphas, literal, share, panes)
    return _elements(mechanism, statistics, alphas, literal, share)


def _elements(
    mechanism: str,
    statistics: Statistics,
    alphas: Sequence[float],
    literal: bool,
    share: Fraction,
) -> tuple[ElementScheme, Confusion[Floats]]:
    """Uniform or adaptive shares, and how to read what comes out."""
    policy = statistics.policy.scaled(share)
    evidence = statistics.evidence
    touched = [part.query for part in statistics.touched]
    exact = float(statistics.exact.sum())
    decode: Decode = "literal" if literal else "posterior"
    made = uniform(policy)
    sightings = statistics.sightings
    threshold = _threshold(evidence, made, alphas, exact, sightings) if statistics.windows else 0.5
    if mechanism == "adaptive":
        objective = ElementObjective(
            evidence,
            alphas,
            exact=exact,
            decode=decode,
            threshold=threshold,
            sightings=sightings,
        )
        moved = adaptive(policy, objective)
        # A gain that history can hardly show is as likely none on other windows.
        least = _SHOWN / max(1.0, float(statistics.positives.sum())) ** 0.5
        if objective.value(_floats(moved)) > objective.value(_floats(made)) + least:
            made = moved
            threshold = _threshold(evidence, made, alphas, exact, sightings)
    confusions = [
        known.confusion(_flips(made, known, sightings), decode, threshold) for known in evidence
    ]
    counts = np.zeros((3, len(statistics.positives)))
    counts[0] = statistics.exact
    for query, found in zip(touched, confusions, strict=True):
        counts[:, query] += found.tp, found.fp, found.fn
    right = tuple(
        _right(part, known, _flips(made, known, sightings), decode)
        for part, known in zip(statistics.touched, evidence, strict=True)
    )
    alone = tuple(map(likely_contexts, statistics.touched, evidence))
    scheme = ElementScheme(made, statistics.touched, literal, threshold, right, alone)
    return scheme, Confusion(*counts)


def _floats(made: Elements) -> dict[str, float]:
    return {name: float(epsilon) for name, epsilon in made.epsilons.items()}


def _threshold(
    evidence: Sequence[Found],
    made: Elements,
    alphas: Sequence[float],
    exact: float,
    sightings: Sightings | None = None,
) -> float:
    pairs = [(known, _flips(made, known, sightings)) for known in evidence]
    # The answers are read with it, so it must not be 0: that would say yes to all.
    return max(best_threshold(pairs, alphas, exact)[0], 1e-9)


def _flips(made: Elements, known: Found, sightings: Sightings | None) -> Floats:
    """What noise does to the elements of a query in a window."""
    flips = made.flips(known.elements)
    return flips if sightings is None else sightings.noise(known.elements, flips)


def _right(part: Touched, known: Found, flips: Floats, decode: Decode) -> Floats:
    """`[context][presence or literal answer][answer]`: how likely an answer is right."""
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


def _optimal(
    statistics: Statistics, alphas: Sequence[float], literal: bool, share: Fraction, panes: int
) -> tuple[OptimalScheme, Confusion[Floats]]:
    """The caution with the best expected quality, and the channels of history's contexts."""
    alpha = micro_alpha(alphas)
    caution, threshold = 0.5, 0.5
    fine = _shared(statistics, alphas, share, panes)
    drawing = _drawing(statistics, fine)
    if statistics.windows:
        caution, threshold = _best_caution(drawing, alpha, literal)
    final = Drawing(statistics, fine, caution)
    planned = tuple(
        {
            np.packbits(context.signals).tobytes(): optimal.made(context.outline)
            for context in met[:_KEPT]
        }
        for optimal, met in zip(final.optimals(), final.contexts(), strict=True)
    )
    scheme = OptimalScheme(
        fine, final.exposure, statistics.priors, tuple(final.stakes), threshold, literal, planned
    )
    return scheme, drawing.confusion(caution, None if literal else threshold)


@lru_cache(2)
def _drawing(statistics: Statistics, fine: Policy) -> Drawing:
    """Plans for both decodings look at the same contexts."""
    return Drawing(statistics, fine)


def _shared(statistics: Statistics, alphas: Sequence[float], share: Fraction, panes: int) -> Policy:
    """The policy that answers are drawn for; single elements have the shares of adaptive.

    Where windows slide, its epsilons are what a single window may give away.
    """
    policy = statistics.policy.scaled(share).per_window(panes)
    fine = under(statistics.fine, statistics.policy, policy)
    if statistics.fine == statistics.policy or not statistics.windows:
        return fine
    evidence, exact = statistics.evidence, float(statistics.exact.sum())
    threshold = _threshold(evidence, uniform(policy), alphas, exact)
    objective = ElementObjective(
        evidence, alphas, exact=exact, decode="posterior", threshold=threshold
    )
    return with_shares(policy, fine, adaptive(policy, objective).epsilons)


def _best_caution(drawing: Drawing, alpha: float, literal: bool) -> tuple[float, float]:
    """What a false yes should cost channels, and the posterior from which on to say yes.

    A few costs are tried. For each the best threshold follows, and the threshold that is best
    is what a false yes costs where Q is linear, so it is tried as a cost next.
    """
    tried: dict[float, tuple[float, float]] = {}

    def look(caution: float) -> None:
        spreads = drawing.spreads(caution)
        cells = [spread.cells for spread in spreads if spread is not None]
        threshold, quality = cut_cells(cells, alpha, drawing.exact)
        if literal:
            quality = drawing.confusion(caution, None).total().quality(alpha)
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


@dataclass(frozen=True, slots=True)
class Least:
    """The least epsilon for a required quality, or the reason why none is enough."""

    factor: Fraction | None
    """How many times the specification's epsilons are needed; None if none is enough."""
    plan: Plan | None
    """The plan with that epsilon, if the specification grants it."""
    expected: Expected
    """What to expect at that epsilon, or the best that can be had."""
    obstacle: str | None = None
    """The query that is furthest from its quality where none is enough."""


def least_epsilon(
    spec: Specification,
    statistics: Sequence[Statistics],
    required: Sequence[float | None],
    mechanism: str | None = None,
    decode: str | None = None,
    *,
    most: Fraction = Fraction(50),
    progress: Callable[[int], None] | None = None,
) -> Least:
    """The smallest factor on all epsilons with which every query reaches its quality.

    No private pattern is given more than an epsilon of `most`.
    """
    if all(quality is None for quality in required):
        raise PlanError(
            f"no quality is required: say {option('quality')}, or give queries a quality in the"
            " specification"
        )
    epsilons = [Fraction(private.epsilon) for private in spec.private]
    largest = most / max(epsilons, default=Fraction(1))
    steps = 0

    def attempt(factor: Fraction) -> tuple[Plan, float, str]:
        nonlocal steps
        steps += 1
        plan = make_plan(spec, statistics, mechanism, decode, factor)
        if progress is not None:
            progress(steps)
        assert plan.expected is not None
        short = [
            (wanted - row["quality"], row["query"])
            for wanted, row in zip(required, plan.expected.rows(), strict=True)
            if wanted is not None
        ]
        lacking, query = max(short)
        return plan, lacking, query

    best, lacking, query = attempt(largest)
    assert best.expected is not None
    if lacking > 0:
        return Least(None, None, best.expected, query)
    high, low = largest, largest / 2**20
    found = best
    for _ in range(_BISECTIONS):
        middle = _between(low, high)
        plan, lacking, _ = attempt(middle)
        if lacking <= 0:
            high, found = middle, plan
        else:
            low = middle
    assert found.expected is not None
    return Least(high, found if high <= 1 else None, found.expected)


_BISECTIONS: Final = 14


def _between(low: Fraction, high: Fraction) -> Fraction:
    """Between two factors by their ratio, as a short decimal."""
    middle = float(low) ** 0.5 * float(high) ** 0.5
    rounded = Fraction(f"{middle:.4g}")
    return rounded if low < rounded < high else (low + high) / 2
