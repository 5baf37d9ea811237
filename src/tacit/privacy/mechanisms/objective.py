"""The objective of adaptive: the expected quality of all queries, updated step by step.

A step changes a few elements, so only the queries that depend on them are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.kernels import compiled
from tacit.privacy.elements import Elements
from tacit.privacy.evidence import Decode, Evidence, Floats
from tacit.privacy.mechanisms.flips import choose_in_sample
from tacit.privacy.mechanisms.mechanism import PlanGoal
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.quality import Confusion, micro_alpha
from tacit.privacy.sampled_evidence import SampledEvidence
from tacit.privacy.statistics import Statistics

MASKS = 1 << 16
"""The number of noise masks in a search, for all sampled queries together."""

Whole = NDArray[np.int64]


def flip_probability(epsilon: float) -> float:
    """Return the flip probability for an epsilon, as a float, for planning."""
    ratio = exp(-epsilon)
    return ratio / (1 + ratio)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of all queries in flat arrays, for the kernels."""

    members: Whole
    """The numbers of the elements of query q are `members[bounds[q]:bounds[q + 1]]`."""
    bounds: Whole
    places: Whole
    """The numbers of query q begin at `numbers[places[q]]`, and end where those of q + 1 begin."""
    numbers: Floats
    touching: Whole
    """The queries that depend on element e are `touching[starts[e]:starts[e + 1]]`."""
    starts: Whole


@dataclass(frozen=True, slots=True)
class SeparateQualities:
    """For each query with evidence, how its own quality counts; see `QualityObjective`."""

    alphas: Floats
    shares: Floats
    caps: Floats
    exact: Floats
    """The number of windows in which it is true whatever private events do."""


class ElementObjective:
    """The expected quality of queries as a function of the elements' epsilons.

    `evidence` is that of the queries that depend on private elements. The others are answered
    exactly: `exact` is the number of their true windows, and they count in `alphas` too. With
    `decode="posterior"`, the answer is yes from `threshold` on, whatever the epsilons: one for all
    queries with evidence, or one for each. With sliding windows, `pane_counts` gives the effect of
    pane flips on windows. The value is the micro Q, unless `separate` says how the quality of each
    query counts.
    """

    def __init__(
        self,
        evidence: Sequence[Evidence | SampledEvidence],
        alphas: Sequence[float],
        *,
        exact: float = 0.0,
        decode: Decode = "literal",
        threshold: float | Floats = 0.5,
        pane_counts: PaneCounts | None = None,
        separate: SeparateQualities | None = None,
    ) -> None:
        thresholds = np.broadcast_to(threshold, (len(evidence),)).tolist()
        for one in np.atleast_1d(threshold).tolist():
            if not 0 < one <= 1:
                raise PlanError(f"a threshold is more than 0 and at most 1; got {one:g}")
        self.decode: Decode = decode
        self.pane_counts = pane_counts
        self.alpha = micro_alpha(alphas)
        self.names = sorted({name for known in evidence for name in known.elements})
        self.numbers = {name: number for number, name in enumerate(self.names)}
        wide = [n for n, known in enumerate(evidence) if isinstance(known, SampledEvidence)]
        narrow = [n for n in range(len(evidence)) if n not in set(wide)]
        sampled = [known for known in evidence if isinstance(known, SampledEvidence)]
        self.outlined_thresholds = [thresholds[n] for n in wide]
        masks = min(4096, max(256, MASKS // max(1, len(sampled))))
        self.outlines = [known.outline(masks) for known in sampled]
        self.members = [self._numbers(known) for known in sampled]
        self.outlined: list[list[int]] = [[] for _ in self.names]
        for place, members in enumerate(self.members):
            for member in members:
                self.outlined[member].append(place)
        tabled = [known for known in evidence if isinstance(known, Evidence)]
        self.tables = self._build_tables(tabled, [thresholds[n] for n in narrow])
        self.separate = separate is not None
        self.own = np.zeros((len(evidence), 5))
        """For each query with evidence: alpha, share, cap, exact windows and positives."""
        if separate is not None:
            order = narrow + wide
            positives = separate.exact + [known.positives for known in evidence]
            columns = [separate.alphas, separate.shares, separate.caps, separate.exact, positives]
            self.own = np.ascontiguousarray(np.column_stack(columns)[order])
        self.exact = exact
        self.positives = exact + sum(known.positives for known in evidence)

    @classmethod
    def build(
        cls,
        statistics: Statistics,
        goal: PlanGoal,
        even: Elements,
        pane_counts: PaneCounts | None,
        *,
        literal: bool | None = None,
    ) -> ElementObjective:
        """Build the objective of a goal, with the thresholds that are best for given flips."""
        literal = goal.literal if literal is None else literal
        asked = [part.query for part in statistics.affected]
        thresholds = np.full(len(asked), 0.5)
        if not literal:
            thresholds = choose_in_sample(even, statistics, goal, pane_counts)[asked]
        objective = goal.objective
        separate = None
        if objective.separate:
            alphas = np.array(objective.alphas)[asked]
            shares, caps = objective.shares[asked], objective.caps[asked]
            separate = SeparateQualities(alphas, shares, caps, statistics.exact[asked])
        return cls(
            statistics.evidence,
            objective.alphas,
            exact=float(statistics.exact.sum()),
            decode="literal" if literal else "posterior",
            threshold=thresholds,
            pane_counts=pane_counts,
            separate=separate,
        )

    def at(self, epsilons: Mapping[str, float]) -> ElementState:
        """Return the state with these epsilons; elements that no query uses do not matter."""
        return ElementState(self, epsilons)

    def value(self, epsilons: Mapping[str, float]) -> float:
        """Return the expected quality with these epsilons."""
        return self.at(epsilons).value

    def quality(self, tp: float, fp: float, own: float) -> float:
        """Return the value for `tp` true and `fp` false claims of affected queries.

        `own` is the sum of what their own qualities count.
        """
        if self.separate:
            return own
        found = self.exact + tp
        return Confusion(found, fp, max(0.0, self.positives - found)).quality(self.alpha)

    def flips(self, epsilons: Iterable[tuple[str, float]]) -> Floats:
        """Return `[element]`: the probabilities of a false alarm and of a miss."""
        pairs = []
        for name, epsilon in epsilons:
            flip = flip_probability(epsilon)
            found = (
                (flip, flip)
                if self.pane_counts is None
                else self.pane_counts.window_flip(name, flip)
            )
            pairs.append(found)
        return np.array(pairs, np.float64).reshape(-1, 2)

    def _numbers(self, known: Evidence | SampledEvidence) -> Whole:
        return np.array([self.numbers[name] for name in known.elements], np.int64)

    def _build_tables(self, tabled: Sequence[Evidence], thresholds: Sequence[float]) -> _Tables:
        members = [self._numbers(known) for known in tabled]
        numbers = [self._table(*both) for both in zip(tabled, thresholds, strict=True)]
        touched = np.concatenate([np.zeros(0, np.int64), *members])
        queries = np.repeat(np.arange(len(members)), [len(part) for part in members])
        order = np.argsort(touched, kind="stable")
        return _Tables(
            touched,
            np.cumsum([0, *(len(part) for part in members)]),
            np.cumsum([0, *(len(part) for part in numbers)]),
            np.concatenate([np.zeros(0), *numbers]),
            queries[order].astype(np.int64),
            np.searchsorted(touched[order], np.arange(len(self.names) + 1)),
        )

    def _table(self, known: Evidence, threshold: float) -> Floats:
        if self.decode == "posterior":
            return _tabulate_decisions(known, threshold)
        return (known.yes_by_noise if self.pane_counts is None else known.read()).ravel()


def _tabulate_decisions(known: Evidence, threshold: float) -> Floats:
    """Return `[context][part][x]`: the decision value, and the windows of a true and false query.

    A posterior is at least the threshold if (1 - threshold) * true >= threshold * false, and
    noise acts on this difference as it does on windows. Contexts that were never seen have no
    weight and are left out.
    """
    seen = known.counts.sum(axis=(1, 2)) > 0
    false, true = known.expected[seen, 0], known.expected[seen, 1]
    decision = (1 - threshold) * true - threshold * false
    parts = [decision, known.counts[seen, 1], known.counts[seen, 0]]
    return np.stack(parts, axis=1).ravel()


class ElementState:
    """Flip probabilities of all elements, and each query's expected true and false claims."""

    def __init__(self, objective: ElementObjective, epsilons: Mapping[str, float]) -> None:
        self._objective = objective
        self._flips = objective.flips((name, epsilons[name]) for name in objective.names)
        queries = len(objective.tables.bounds) - 1
        self._claims = np.zeros((queries + len(objective.outlines), 2))
        self._seen = np.zeros(queries, np.int64)
        self._round = 0
        self._own = np.zeros(len(self._claims))
        self._totals = (0.0, 0.0, 0.0)
        self.move(epsilons)

    @property
    def value(self) -> float:
        """The expected quality."""
        return self._objective.quality(*self._totals)

    def try_changes(self, changes: Mapping[str, float]) -> float:
        """Return the expected quality with these epsilons for these elements; change nothing."""
        gained = self._apply(changes, keep=False)
        return self._objective.quality(*np.add(self._totals, gained).tolist())

    def move(self, changes: Mapping[str, float]) -> None:
        """Set the epsilons of these elements."""
        self._apply(changes, keep=True)
        # Summed again, so that rounding errors do not accumulate.
        tp, fp = self._claims.sum(axis=0).tolist()
        self._totals = tp, fp, float(self._own.sum())

    def _apply(self, changes: Mapping[str, float], *, keep: bool) -> tuple[float, float, float]:
        """Return the change of true and false claims, and of what queries count by themselves.

        With `keep`, store the new state.
        """
        numbers = self._objective.numbers
        known = [(name, epsilon) for name, epsilon in changes.items() if name in numbers]
        elements = np.array([numbers[name] for name, _ in known], np.int64)
        flips = self._objective.flips(known)
        before = self._flips[elements]
        self._flips[elements] = flips
        self._round += 1
        tables = self._objective.tables
        tp, fp, own = _update_claims(
            elements,
            self._flips,
            tables.members,
            tables.bounds,
            tables.places,
            tables.numbers,
            tables.touching,
            tables.starts,
            self._claims,
            self._objective.own,
            self._own,
            self._seen,
            self._round,
            self._objective.decode == "literal",
            self._objective.pane_counts is not None,
            keep,
        )
        if self._objective.outlines:
            more = self._apply_sampled(elements.tolist(), keep=keep)
            tp, fp, own = tp + more[0], fp + more[1], own + more[2]
        if not keep:
            self._flips[elements] = before
        return tp, fp, own

    def _apply_sampled(self, elements: Iterable[int], *, keep: bool) -> tuple[float, float, float]:
        """Do the same for sampled queries."""
        objective = self._objective
        flips = self._flips if objective.pane_counts is not None else self._flips[:, 0]
        first = len(objective.tables.bounds) - 1
        more_right, more_wrong, more_own = 0.0, 0.0, 0.0
        for place in sorted({q for element in elements for q in objective.outlined[element]}):
            right, wrong = objective.outlines[place].expect_claims(
                flips[objective.members[place]],
                objective.decode,
                objective.outlined_thresholds[place],
            )
            had = self._claims[first + place]
            more_right, more_wrong = more_right + right - had[0], more_wrong + wrong - had[1]
            own = _count_quality(objective.own, first + place, right, wrong)
            more_own += own - self._own[first + place]
            if keep:
                self._claims[first + place] = right, wrong
                self._own[first + place] = own
        return float(more_right), float(more_wrong), float(more_own)


@compiled
def _update_claims(
    elements: Whole,
    flips: Floats,
    members: Whole,
    bounds: Whole,
    places: Whole,
    numbers: Floats,
    touching: Whole,
    starts: Whole,
    claims: Floats,
    own_qualities: Floats,
    counted: Floats,
    seen: Whole,
    this_round: int,
    literal: bool,
    sliding: bool,
    keep: bool,
) -> tuple[float, float, float]:
    """Return the changes over all queries that use the elements."""
    more_right, more_wrong, more_own = 0.0, 0.0, 0.0
    work = np.empty((3, 64))
    for element in elements:
        for place in range(starts[element], starts[element + 1]):
            query = touching[place]
            if seen[query] == this_round:
                continue
            seen[query] = this_round
            own = members[bounds[query] : bounds[query + 1]]
            table = numbers[places[query] : places[query + 1]]
            if literal and sliding:
                right, wrong = _read_literal_sliding(own, flips, table)
            elif literal:
                right, wrong = _read_literal(own, flips, table, work[0])
            else:
                right, wrong = _decide_posterior(own, flips, table, work)
            more_right += right - claims[query, 0]
            more_wrong += wrong - claims[query, 1]
            counts = _count_quality(own_qualities, query, right, wrong)
            more_own += counts - counted[query]
            if keep:
                claims[query, 0] = right
                claims[query, 1] = wrong
                counted[query] = counts
    return more_right, more_wrong, more_own


@compiled
def _count_quality(own: Floats, query: int, right: float, wrong: float) -> float:
    """Return what a query's own quality counts, given its true and false claims."""
    alpha, share, cap, exact, positives = own[query]
    if share == 0.0:
        return 0.0
    tp = exact + right
    precision, recall = 1.0, 1.0
    if tp + wrong > 0:
        precision = tp / (tp + wrong)
    elif positives > 0:
        precision = 0.0
    if positives > 0:
        recall = tp / positives
    counted: float = share * min(cap, alpha * precision + (1 - alpha) * recall)
    return counted


@compiled
def _read_literal(own: Whole, flips: Floats, yes: Floats, chances: Floats) -> tuple[float, float]:
    """Return the expected claims of literal answers: yes counts, weighted by each noise."""
    size = 1
    chances[0] = 1.0
    for element in own:
        for z in range(size):
            chances[size + z] = chances[z] * flips[element, 0]
            chances[z] *= 1 - flips[element, 0]
        size *= 2
    right, wrong = 0.0, 0.0
    for z in range(size):
        wrong += chances[z] * yes[z]
        right += chances[z] * yes[size + z]
    return right, wrong


@compiled
def _read_literal_sliding(own: Whole, flips: Floats, read: Floats) -> tuple[float, float]:
    """Do the same where misses and false alarms differ: by true and noisy presence."""
    size = 1 << len(own)
    claims = np.zeros(2)
    place = 0
    for truth in range(2):
        for x in range(size):
            for y in range(size):
                chance = read[place]
                place += 1
                if chance == 0.0:
                    continue
                for bit in range(len(own)):
                    there, shown = x >> bit & 1, y >> bit & 1
                    changed = flips[own[bit], there]
                    chance *= changed if there != shown else 1 - changed
                claims[truth] += chance
    return claims[1], claims[0]


@compiled
def _decide_posterior(
    own: Whole, flips: Floats, table: Floats, work: Floats
) -> tuple[float, float]:
    """Return the expected claims of posterior answers: apply noise to all parts, then decide."""
    size = 1 << len(own)
    right, wrong = 0.0, 0.0
    for begin in range(0, len(table), 3 * size):
        for part in range(3):
            for x in range(size):
                work[part, x] = table[begin + part * size + x]
            half = 1
            for element in own:
                alarm, miss = flips[element, 0], flips[element, 1]
                for low in range(size):
                    if not low & half:
                        a, b = work[part, low], work[part, low | half]
                        if alarm == miss:
                            work[part, low] = a + alarm * (b - a)
                            work[part, low | half] = b + alarm * (a - b)
                        else:
                            work[part, low] = (1 - alarm) * a + miss * b
                            work[part, low | half] = alarm * a + (1 - miss) * b
                half *= 2
        for y in range(size):
            if work[0, y] >= 0:
                right += work[1, y]
                wrong += work[2, y]
    return right, wrong
