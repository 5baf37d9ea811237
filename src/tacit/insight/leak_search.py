"""Compare public signals with private patterns, in all windows of history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.insight.association import (
    MOST_STEPS,
    Clusters,
    Targets,
    Words,
    bound_odds_ratio,
    compute_p_values,
    control_discoveries,
    count_signals,
    count_targets,
    find_clusters,
    score_pairs,
    score_signals,
)
from tacit.insight.leak_report import WHEN, Kind, Leak, LeakReport, When
from tacit.insight.shared_attributes import find_shared_attributes
from tacit.insight.window_columns import WindowColumns, shift_windows
from tacit.patterns.tree import Name, elements
from tacit.privacy.mechanisms.mechanism import PatternIndex
from tacit.privacy.policies import Policies, Policy
from tacit.spec.specification import Specification


@dataclass(frozen=True, slots=True)
class _Signal:
    kind: Kind
    name: str
    types: tuple[str, ...]
    column: int


@dataclass(frozen=True, slots=True)
class _Group:
    """The subjects of one policy: what is public for them, and what is private."""

    signals: tuple[_Signal, ...]
    private: tuple[tuple[int, int], ...]
    """The place of each private pattern, and its column."""


@dataclass(frozen=True, slots=True)
class _CandidateLeak:
    """A test that may become a finding."""

    private: int
    """The place of the private pattern."""
    kind: Kind
    signals: tuple[_Signal, ...]
    when: When
    p_value: float
    windows: _TestWindows


@dataclass(frozen=True, slots=True, eq=False)
class _TestWindows:
    """The windows of a test; a pair is joined when it is needed."""

    signals: tuple[Words, ...]
    present: Words
    valid: Words
    clusters: Clusters


class LeakSearch:
    """Compares the signals of each policy with its private patterns."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.index = PatternIndex()
        self._policies = Policies(spec).policies
        self._groups = [self._group(policy) for policy in self._policies]

    def _group(self, policy: Policy) -> _Group:
        names = {pattern.name for pattern in policy.patterns}
        private = tuple(
            (place, self.index.column(pattern))
            for place, pattern in enumerate(self.spec.private_patterns)
            if self.spec.private[place].name in names
        )
        found: dict[int, _Signal] = {}
        for name in self.spec.events:
            if name not in policy.private and private:
                column = self.index.column(Name(name))
                found[column] = _Signal("event", name, (name,), column)
        for query, pattern in self.spec.query_patterns.items():
            used = elements(pattern)
            if private and policy.private.isdisjoint(used):
                column = self.index.column(pattern)
                types = tuple(name for name in self.spec.events if name in used)
                found.setdefault(column, _Signal("query", query, types, column))
        return _Group(tuple(found.values()), private)

    def compare(self, columns: WindowColumns, rate: float, least: float) -> LeakReport:
        """Test everything, and report what is found."""
        singles: list[_CandidateLeak] = []
        pairs: list[_CandidateLeak] = []
        tests = {"signals": 0, "pairs": 0}
        clusters: list[Clusters] = []
        targets = sum(len(group.private) for group in self._groups)
        p_singles: list[NDArray[np.float64]] = []
        p_pairs: list[NDArray[np.float64]] = []
        for number, group in enumerate(self._groups):
            own = columns.policies == number
            if not own.any() or not group.signals:
                continue
            part = _PolicyWindows(group, columns.choose(own), self.spec.windows.panes)
            clusters.append(part.clusters)
            for place, column in group.private:
                tested = part.test(place, column, rate / 2, MOST_STEPS // targets)
                singles += tested.singles
                pairs += tested.pairs
                p_singles.append(tested.p_singles)
                p_pairs.append(tested.p_pairs)
        found: list[Leak] = []
        for name, candidates, p_values in (
            ("signals", singles, p_singles),
            ("pairs", pairs, p_pairs),
        ):
            every = np.concatenate([np.empty(0), *p_values])
            tests[name] = len(every)
            chosen = control_discoveries(every, rate / 2)
            limit = float(every[chosen].max(initial=-1.0))
            kept = [one for one in candidates if one.p_value <= limit]
            level = 1 - rate / 2 * int(chosen.sum()) / max(1, len(every))
            found += [self._leak(one, level) for one in kept]
        found = [leak for leak in found if leak.strength >= least]
        found.sort(key=lambda leak: (-leak.strength, leak.private, leak.signal, leak.when))
        return LeakReport(
            self.spec,
            tuple(find_shared_attributes(self.spec)),
            tuple(found),
            int(np.bitwise_count(columns.registered).sum()),
            columns.subjects,
            len(columns.policies),
            sum(one.number for one in clusters),
            all(one.whole for one in clusters),
            tests,
            rate,
        )

    def _leak(self, one: _CandidateLeak, level: float) -> Leak:
        columns, present, valid, clusters = (
            one.windows.signals,
            one.windows.present,
            one.windows.valid,
            one.windows.clusters,
        )
        seen = np.bitwise_and.reduce([*columns, valid])
        ratio = bound_odds_ratio(seen, present, valid, clusters, level)
        windows, with_signal, with_private, both = (
            int(np.bitwise_count(words).sum())
            for words in (valid, seen, present & valid, seen & present)
        )
        types = tuple(dict.fromkeys(name for signal in one.signals for name in signal.types))
        return Leak(
            private=self.spec.private[one.private].name,
            kind=one.kind,
            signal=" and ".join(signal.name for signal in one.signals),
            types=types,
            when=one.when,
            windows=windows,
            seen=with_signal,
            chance_seen=both / max(1, with_signal),
            chance_unseen=(with_private - both) / max(1, windows - with_signal),
            odds_ratio=ratio.value,
            low=ratio.low,
            high=ratio.high,
            p_value=one.p_value,
            queries=tuple(
                query
                for query, pattern in self.spec.query_patterns.items()
                if not set(types).isdisjoint(elements(pattern))
            ),
            place=one.private,
        )


@dataclass(frozen=True, slots=True)
class _TestedLeaks:
    singles: list[_CandidateLeak]
    pairs: list[_CandidateLeak]
    p_singles: NDArray[np.float64]
    p_pairs: NDArray[np.float64]


class _PolicyWindows:
    """The windows of one policy's subjects, one subject after the other."""

    def __init__(self, group: _Group, columns: WindowColumns, panes: int) -> None:
        subjects, words = columns.registered.shape
        self._group = group
        self._columns = columns
        self._panes = panes
        self.clusters = find_clusters(subjects, words)
        places = [signal.column for signal in group.signals]
        self._signals = np.ascontiguousarray(columns.bits[places].reshape(len(places), -1))

    def _targets(self, column: int) -> Targets:
        """Return the private pattern in the same window, after the signal, and before it.

        Overlapping windows are compared with the next one that does not overlap.
        """
        present, known = self._columns.bits[column], self._columns.registered
        shifts = {"same": 0, "before": -self._panes, "after": self._panes}
        return Targets(
            np.array([shift_windows(present, own).ravel() for own in shifts.values()]),
            np.array([(known & shift_windows(known, own)).ravel() for own in shifts.values()]),
        )

    def test(self, place: int, column: int, rate: float, most_steps: int) -> _TestedLeaks:
        """Test all signals and all pairs of event types against a private pattern."""
        targets = self._targets(column)
        counts = count_signals(self._signals, targets, self.clusters)
        tested = score_signals(counts, count_targets(targets, self.clusters), self.clusters)
        events = [n for n, one in enumerate(self._group.signals) if one.kind == "event"]
        pairs, statistic, _ = score_pairs(
            np.ascontiguousarray(self._signals[events]),
            targets,
            self.clusters,
            np.ascontiguousarray(counts[events]),
            most_steps,
        )
        p_singles, p_pairs = compute_p_values(tested), compute_p_values(statistic)
        singles = [
            self._candidate(place, (signal,), lag, p_value, targets)
            for signal, lag, p_value in _promising(p_singles, rate)
        ]
        both = [
            self._candidate(place, (events[one], events[two]), lag, p_value, targets)
            for pair, lag, p_value in _promising(p_pairs, rate)
            for one, two in [pairs[pair].tolist()]
        ]
        return _TestedLeaks(singles, both, p_singles.ravel(), p_pairs.ravel())

    def _candidate(
        self, place: int, numbers: tuple[int, ...], lag: int, p_value: float, targets: Targets
    ) -> _CandidateLeak:
        signals = tuple(self._group.signals[number] for number in numbers)
        return _CandidateLeak(
            place,
            signals[0].kind if len(signals) == 1 else "pair",
            signals,
            tuple(WHEN)[lag],
            p_value,
            _TestWindows(
                tuple(self._signals[number] for number in numbers),
                targets.present[lag],
                targets.valid[lag],
                self.clusters,
            ),
        )


def _promising(p_values: NDArray[np.float64], rate: float) -> Iterator[tuple[int, int, float]]:
    """Yield signal, lag and p-value of the tests that may become findings."""
    for signal, lag in np.argwhere(p_values <= rate).tolist():
        yield signal, lag, float(p_values[signal, lag])
