"""Counts by a channel of their own: who is counted, what is drawn, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.kernels import compiled
from tacit.patterns.tree import elements
from tacit.privacy.affected_queries import AffectedQuery, find_affected
from tacit.privacy.certainty import Certainty
from tacit.privacy.count_answers import AnswerEstimator
from tacit.privacy.count_channels import make_count_channel
from tacit.privacy.count_memory import (
    CountFilter,
    CountHistory,
    CountMemory,
    CountReading,
    FilterState,
    noise_variance,
)
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    PatternIndex,
    Prices,
    RunMemory,
    WindowBits,
    pack_slots,
)
from tacit.privacy.noise import Noise
from tacit.privacy.openness import Openness
from tacit.privacy.policies import Policies
from tacit.privacy.prices import NANO, Claim
from tacit.privacy.sequences import to_local
from tacit.spec.groups import SubjectGroups
from tacit.spec.specification import Specification

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
_SUBJECTS, _LEFT_OUT, _DECIDED, _OPEN, _DETECTED = range(5)
"""What is tallied of a group: who is counted, who is left out because it does not pay, for how many
the pattern is detected whatever private events do, for how many it is open, and for how many of
these it is detected."""
_FIELDS: Final = 5
METHODS: Final = ("exact", "drawn", "none", "unbiased", "model")
"""How a count was made: public events decide it, it was drawn, nothing was drawn although it is
open, or it is estimated from released answers, with weights that are unbiased or with a model. In a
row without a count, `low` and `high` are what public events say: they hold for certain."""
_EXACT, _DRAWN, _NONE, _UNBIASED, _MODEL = range(len(METHODS))
MEMORY: Final = "counts"
"""The prefix under which counts are remembered, each by its number."""


@dataclass(frozen=True, slots=True)
class CountDraws:
    """Released counts: `[window][row]`, with a row for each count and group."""

    count: Numbers
    """A count where the method is `exact` or `drawn`."""
    low: Numbers
    """The true count is between `low` and `high`, with probability `confidence`."""
    high: Numbers
    confidence: NDArray[np.float32]
    subjects: Numbers
    """The number of subjects that are counted."""
    left_out: Numbers
    """The number of subjects that are not, since their limit is reached or saved for later."""
    estimate: Floats
    """The count of all registered subjects, those left out too, as the filter estimates it; NaN
    without memory."""
    estimate_low: Floats
    """The true count is between `estimate_low` and `estimate_high` in 95 of 100 windows."""
    estimate_high: Floats
    method: NDArray[np.uint8]
    """How the count was made, as a place in `METHODS`."""

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Where there is a count."""
        return np.asarray(self.method <= _DRAWN)

    @property
    def columns(self) -> list[NDArray[Any]]:
        """All fields, in order."""
        return [getattr(self, one.name) for one in fields(self)]

    def select(self, place: Any) -> CountDraws:
        """Return views of some windows or rows."""
        return CountDraws(*(column[place] for column in self.columns))


class CountLayout:
    """The rows of released counts: one for each count and group, in order."""

    def __init__(self, spec: Specification, groups: SubjectGroups) -> None:
        counted = spec.count_queries
        self._by = [query.by for query in counted]
        self._groups = groups
        found = [groups.list_groups(by) for by in self._by]
        self.rows = [
            slice(stop - len(own), stop)
            for own, stop in zip(found, np.cumsum([len(own) for own in found]), strict=True)
        ]
        """The rows of each count."""
        self.queries = [q.name for q, own in zip(counted, found, strict=True) for _ in own]
        self.consumers = [q.consumer for q, own in zip(counted, found, strict=True) for _ in own]
        self.groups: list[str | None] = [group for own in found for group in own]
        self._subjects: pa.Array = pa.array([], pa.large_string())
        self._places = np.empty((len(counted), 0), np.int32)
        """What `find_rows` found for `_subjects`."""

    def find_rows(self, subjects: pa.Array) -> NDArray[np.int32]:
        """Return `[count][slot]`: the row in which a subject is counted; -1 if there is none."""
        if not self._subjects.equals(subjects):
            self._subjects = subjects
            self._places = np.empty((len(self._by), len(subjects)), np.int32)
            for number, by in enumerate(self._by):
                own = self._groups.find_groups(by, subjects)
                self._places[number] = np.where(own < 0, -1, own + self.rows[number].start)
        return self._places


class CountStatus:
    """Decides for whom counts are open, with all private types of a subject unknown."""

    def __init__(self, spec: Specification, index: PatternIndex) -> None:
        patterns = tuple(spec.count_patterns.values())
        self.columns = index.columns(patterns)
        affected = [find_affected(policy, patterns) for policy in Policies(spec).policies]
        self.affected = {part.query for parts in affected for part in parts}
        """The counts that depend on private events, by number."""
        self._policies = [_PolicyStatus(parts, index) for parts in affected]

    @property
    def policies(self) -> int:
        """The number of policies."""
        return len(self._policies)

    def decide(self, matched: Columns, policies: NDArray[np.int32]) -> tuple[Columns, Columns]:
        """Return `[window][count][word]`: where a count is open, and where it is surely true."""
        bits = matched[:, self.columns]
        opened, decided = np.zeros_like(bits), np.zeros_like(bits)
        for number, status in enumerate(self._policies):
            own = policies == number
            if own.any():
                mask = pack_slots(own)
                found = status.decide(matched, bits)
                opened |= found[0] & mask
                decided |= found[1] & mask
        return opened, decided


class CountBits(NamedTuple):
    """For whom counted patterns are open, and for whom they are detected, in closed windows.

    This is private: it leaves the engine only through `CountRelease.draw_bits`.
    """

    first: int
    """The number of the first window."""
    opened: Columns
    """`[window][count][word]`: for whom the pattern depends on private events."""
    detected: Columns
    """`[window][count][word]`: for whom it is detected."""


class ReleasedBits(NamedTuple):
    """Answers about single subjects as they are released, from which counts are estimated."""

    bits: Columns
    """`[window][query][word]`"""
    certainty: Certainty
    policies: NDArray[np.int32]
    """The number of each subject's policy; another one for those that do not pay."""


class CountRelease:
    """Draws the counts of a specification.

    Guarantee: pattern-level epsilon-DP per subject, private pattern and window, for each count; the
    counts that depend on a private pattern, and what is left for its mechanism, add up to at most
    its epsilon.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: public events and limits decide who is open, who is left out, and to whom the count is
    exact. Neighbours differ in one subject's window, so the number of open subjects for which the
    pattern is detected differs by at most one, and this number leaves through a `CountChannel`.
    Which windows are drawn, with which epsilon, and what is estimated, follow from what was
    released before and from public events (`privacy/count_memory.py`).
    A count that is estimated from answers is a function of released answers and public events.
    Spends: the epsilon of the draw, for every open subject that is counted, once per window.
    Nothing where the pattern is decided, where the window is not drawn, or for an estimate from
    answers.
    Paper: not included. The noise is that of Ghosh, Roughgarden and Sundararajan (2009).
    Proof: docs/guarantee.md#counts
    """

    def __init__(
        self,
        spec: Specification,
        epsilons: Mapping[str, Fraction],
        layout: CountLayout,
        index: PatternIndex,
        noise: Noise,
        memories: Mapping[str, CountMemory] = MappingProxyType({}),
        estimators: Mapping[str, AnswerEstimator] = MappingProxyType({}),
    ) -> None:
        self.layout = layout
        self._source = noise.source
        self._status = CountStatus(spec, index)
        self._names = list(spec.count_patterns)
        self._elements = [frozenset(elements(one)) for one in spec.count_patterns.values()]
        self._epsilons = [epsilons.get(name, Fraction(0)) for name in self._names]
        for epsilon in filter(None, self._epsilons):
            make_count_channel(epsilon)
        self._estimators = [estimators.get(name) for name in self._names]
        if any(
            not self._epsilons[number] and self._estimators[number] is None
            for number in self._status.affected
        ):
            raise PrivacyError("a count that depends on private events has no epsilon")
        self._pane, self._zone = spec.windows.pane, spec.zone
        self._filters = [
            CountFilter(memories[name], layout.groups[rows], self._pane)
            if name in memories
            else None
            for name, rows in zip(self._names, layout.rows, strict=True)
        ]

    def price(
        self,
        windows: WindowBits,
        policies: NDArray[np.int32],
        claims: Sequence[Claim],
        subjects: pa.Array,
    ) -> Prices:
        """Return `[window][claim][subject]`: what the counts cost each claim, in nano-epsilon.

        It depends on public events, and on what was released before, alone.
        """
        opened, _ = self._decide(windows, policies)
        amounts = [self._price_rows(count, windows) for count in range(len(self._names))]
        return self._charge_open(opened, amounts, claims, subjects)

    def price_bits(
        self,
        bits: CountBits,
        claims: Sequence[Claim],
        subjects: pa.Array,
        memory: RunMemory | None = None,
    ) -> Prices:
        """Return what counts cost, as `price` does, in windows of which the bits are known."""
        amounts = [
            self._price_windows(count, bits.first, len(bits.opened), memory)
            for count in range(len(self._names))
        ]
        return self._charge_open(bits.opened, amounts, claims, subjects)

    def _charge_open(
        self,
        opened: Columns,
        amounts: Sequence[Numbers],
        claims: Sequence[Claim],
        subjects: pa.Array,
    ) -> Prices:
        """Charge every open subject what the count of its group costs, in `amounts` by row."""
        octets = np.ascontiguousarray(opened, "<u8").view(np.uint8)
        flags = np.unpackbits(octets, axis=-1, bitorder="little", count=len(subjects))
        prices = np.zeros((len(opened), len(claims), len(subjects)), np.int64)
        rows = self.layout.find_rows(subjects)
        for count, types in enumerate(self._elements):
            # A subject that is not registered has no group, and is not charged.
            each = amounts[count][rows[count]]
            for number, claim in enumerate(claims):
                if types & claim.elements:
                    prices[:, number] += flags[:, count] * each
        return prices

    def _price_rows(self, count: int, windows: WindowBits) -> Numbers:
        """Return by row what a count costs in windows that are priced together; 0 is not drawn."""
        return self._price_windows(count, windows.closed.first, len(windows.bits), windows.memory)

    def _price_windows(
        self, count: int, first: int, windows: int, memory: RunMemory | None
    ) -> Numbers:
        follower = self._filters[count]
        amounts = np.zeros(len(self.layout.queries), np.int64)
        rows, most = self.layout.rows[count], self._epsilons[count]
        if follower is None or follower.spending is None:
            amounts[rows] = price_count(most)
            return amounts
        assert windows == 1, "where there are limits, windows close one by one"
        state = follower.read(self._recall(count, memory))
        intervals = follower.choose_intervals(state, first, int(self._find_local(first, 1)[0]))
        for interval in np.unique(intervals[intervals > 0]).tolist():
            price = price_count(follower.find_epsilon(interval, most))
            amounts[rows][intervals == interval] = price
        return amounts

    def _recall(self, number: int, memory: RunMemory | None) -> NDArray[Any] | None:
        """Return what is remembered of a count."""
        return None if memory is None else memory.before.get(f"{MEMORY}.{number}")

    def _find_local(self, first: int, windows: int) -> Numbers:
        """Return when windows start, in local time."""
        starts = (first + np.arange(windows, dtype=np.int64)) * self._pane
        return to_local(starts, self._zone)

    def draw(
        self,
        windows: WindowBits,
        policies: NDArray[np.int32],
        since: NDArray[np.int64],
        subjects: pa.Array,
        memory: RunMemory | None = None,
        answers: ReleasedBits | None = None,
    ) -> CountDraws:
        """Draw the counts of all groups; `policies` are as in `Evaluator.answer`.

        Subjects that do not pay are left out before anything is drawn. `answers` are those of the
        same windows, for counts that are estimated from them.
        """
        bits, silent = self.read(windows, policies), policies >= self._status.policies
        return self.draw_bits(bits, silent, since, subjects, memory, answers)

    def read(self, windows: WindowBits, policies: NDArray[np.int32]) -> CountBits:
        """Return who is open and who has the patterns; `policies` are as in `draw`."""
        opened, decided = self._decide(windows, policies % self._status.policies)
        bits = windows.bits[:, self._status.columns]
        return CountBits(windows.closed.first, opened, (bits & opened) | (decided & ~opened))

    def draw_bits(
        self,
        bits: CountBits,
        silent: NDArray[np.bool_],
        since: NDArray[np.int64],
        subjects: pa.Array,
        memory: RunMemory | None = None,
        answers: ReleasedBits | None = None,
    ) -> CountDraws:
        """Draw counts, as `draw` does; `silent` marks the subjects that do not pay."""
        first, opened, detected = bits
        tally = tally_groups(
            self.layout, detected, opened, detected, silent, since, first, subjects
        )
        drawn = _start_draws(tally)
        local = self._find_local(first, len(tally))
        for place in range(len(self._names)):
            follower = self._filters[place]
            own = drawn.select((slice(None), self.layout.rows[place]))
            estimator = self._estimators[place]
            if estimator is not None:
                assert answers is not None, "windows are answered first"
                rows = self._place_answers(place, since, first, len(tally), subjects)
                self._estimate(estimator, answers, rows, tally[:, self.layout.rows[place]], own)
                continue
            if follower is None:
                self._draw(tally[:, self.layout.rows[place]], self._epsilons[place], own)
                _mark(own, tally[:, self.layout.rows[place], _OPEN] > 0)
                continue
            state = follower.read(self._recall(place, memory))
            state = self._follow(follower, state, tally, local.tolist(), place, first, own)
            if memory is not None:
                memory.after[f"{MEMORY}.{place}"] = state.to_array()
        return drawn

    def _place_answers(
        self, count: int, since: Numbers, first: int, windows: int, subjects: pa.Array
    ) -> Numbers:
        """Return `[window][slot]`: the row of a count that an answer belongs to, or -1."""
        rows = self.layout.find_rows(subjects)[count].astype(np.int64)
        rows = np.where(rows < 0, -1, rows - self.layout.rows[count].start)
        there = since <= first + np.arange(windows)[:, np.newaxis]
        return np.where(there, rows, -1)

    def _estimate(
        self,
        estimator: AnswerEstimator,
        answers: ReleasedBits,
        rows: Numbers,
        tally: Numbers,
        drawn: CountDraws,
    ) -> None:
        """Estimate a count from released answers; nothing is drawn, and nobody is left out."""
        slots = rows.shape[1]
        words = np.ascontiguousarray(answers.bits[:, estimator.query], "<u8").view(np.uint8)
        bits = np.unpackbits(words, axis=-1, bitorder="little", count=slots).view(np.bool_)
        sure = answers.certainty.compute_confidence(
            estimator.query, slice(0, len(bits)), slice(0, slots), bits
        ).astype(np.float32)
        found, modelled = estimator.estimate(bits, sure, answers.policies, rows, tally.shape[1])
        least = tally[..., _DECIDED]
        most = least + tally[..., _OPEN] + tally[..., _LEFT_OUT]
        drawn.subjects[:] += drawn.left_out
        drawn.left_out[:] = 0
        drawn.high[:] = most
        drawn.method[:] = np.where(most == least, _EXACT, np.where(modelled, _MODEL, _UNBIASED))
        estimates = drawn.estimate, drawn.estimate_low, drawn.estimate_high
        for part, values in zip(estimates, found, strict=True):
            part[:] = np.clip(values, least, most)

    def _follow(
        self,
        follower: CountFilter,
        state: FilterState,
        tally: Numbers,
        local: list[int],
        place: int,
        first: int,
        drawn: CountDraws,
    ) -> FilterState:
        """Draw a count with memory, window by window, and estimate it."""
        own = tally[:, self.layout.rows[place]]
        for window, start in enumerate(local):
            here, exact = drawn.select(window), own[window, :, _DECIDED]
            opened = own[window, :, _OPEN] + own[window, :, _LEFT_OUT]
            intervals = follower.choose_intervals(state, first + window, start)
            _leave_out(own[window], here, intervals == 0)
            noise = np.zeros(len(intervals))
            for interval in np.unique(intervals[own[window, :, _OPEN] > 0]).tolist():
                epsilon = follower.find_epsilon(interval, self._epsilons[place])
                chosen = intervals == interval
                noise[chosen] = self._draw(own[window], epsilon, here, chosen)
            _mark(here, own[window, :, _OPEN] > 0)
            counted = own[window, :, _OPEN]
            reading = CountReading(exact, opened, counted, here.count - exact, noise)
            state, found = follower.follow(state, start, reading, first + window + intervals)
            estimates = here.estimate, here.estimate_low, here.estimate_high
            for part, values in zip(estimates, found, strict=True):
                part[:] = values
        return state

    def _draw(
        self,
        tally: Numbers,
        epsilon: Fraction,
        drawn: CountDraws,
        chosen: NDArray[np.bool_] | bool = True,
    ) -> float:
        """Draw one count where somebody is open and counted; return the variance of its noise."""
        some = (tally[..., _OPEN] > 0) & chosen
        if not some.any():
            return 0.0
        assert epsilon, "a count that is never open has none"
        channel = make_count_channel(epsilon)
        exact, detected = tally[..., _DECIDED], tally[..., _DETECTED]
        drawn.count[some] = exact[some] + channel.draw(detected[some], self._source)
        most = exact + tally[..., _OPEN]
        for part, width in ((drawn.low, -channel.half_width), (drawn.high, channel.half_width)):
            part[some] = np.clip(drawn.count + width, exact, most)[some]
        drawn.confidence[some] = channel.coverage
        return noise_variance(channel)

    def _decide(self, windows: WindowBits, policies: NDArray[np.int32]) -> tuple[Columns, Columns]:
        """Return `[window][count][word]`: where a count is open, and where it is surely true."""
        return self._status.decide(windows.bits, policies)


def _start_draws(tally: Numbers) -> CountDraws:
    """Return what is known before anything is drawn."""
    exact = tally[..., _DECIDED]
    unknown = np.full(exact.shape, np.nan)
    return CountDraws(
        exact.copy(),
        exact.copy(),
        exact.copy(),
        np.ones(exact.shape, np.float32),
        tally[..., _SUBJECTS].copy(),
        tally[..., _LEFT_OUT].copy(),
        unknown,
        unknown.copy(),
        unknown.copy(),
        np.full(exact.shape, _EXACT, np.uint8),
    )


def _mark(drawn: CountDraws, made: NDArray[np.bool_]) -> None:
    """Note how each count was made, given where one was drawn.

    Where nothing was drawn although somebody is open, there is no count: subjects for which public
    events decide the pattern are not the group. What is certain of the group remains.
    """
    drawn.method[made] = _DRAWN
    none = ~made & (drawn.left_out > 0)
    drawn.method[none] = _NONE
    drawn.high[none] = (drawn.low + drawn.left_out)[none]


def add_methods(columns: Sequence[NDArray[Any]]) -> CountDraws:
    """Return counts that a former version released: it did not say how they were made.

    Where nothing was drawn, its confidence was 1.
    """
    method = np.full(columns[0].shape, _EXACT, np.uint8)
    drawn = CountDraws(*[*(column.copy() for column in columns), method])
    _mark(drawn, drawn.confidence < 1)
    return drawn


def _leave_out(tally: Numbers, drawn: CountDraws, chosen: NDArray[np.bool_]) -> None:
    """Leave all open subjects of some groups out of a window that is not drawn."""
    out = np.where(chosen, tally[:, _OPEN], 0)
    drawn.subjects[:] -= out
    drawn.left_out[:] += out
    tally[:, _OPEN] -= out
    tally[chosen, _DETECTED] = 0


class _PolicyStatus:
    """Decides for the subjects of one policy which counts are open."""

    def __init__(self, affected: Sequence[AffectedQuery], index: PatternIndex) -> None:
        signals = tuple(dict.fromkeys(signal for part in affected for signal in part.signals))
        self._affected = [part.query for part in affected]
        self._signals = index.columns(signals)
        places = {signal: number for number, signal in enumerate(signals)}
        self._openness = Openness(affected, (), places) if affected else None

    def decide(self, matched: Columns, bits: Columns) -> tuple[Columns, Columns]:
        """Return which counts are open, and which are true whatever private events do."""
        opened, decided = np.zeros_like(bits), bits.copy()
        if self._openness is not None:
            found = self._openness.decide(np.ascontiguousarray(matched[:, self._signals]))
            opened[:, self._affected] = found.opened
            decided[:, self._affected] = found.true
        return opened, decided


def price_count(epsilon: Fraction) -> int:
    """Return what a count costs an open subject, in nano-epsilon, rounded up."""
    return ceil(epsilon * NANO)


def tally_groups(
    layout: CountLayout,
    bits: Columns,
    opened: Columns,
    decided: Columns,
    silent: NDArray[np.bool_],
    since: NDArray[np.int64],
    first: int,
    subjects: pa.Array,
) -> Numbers:
    """Return `[window][row][field]`: the subjects of each group, by what is known of them."""
    found = np.zeros((len(bits), len(layout.queries), _FIELDS), np.int64)
    rows = layout.find_rows(subjects)
    complete = _tally(
        np.ascontiguousarray(bits), opened, decided, rows, silent, since, first, found
    )
    if not complete:
        raise PrivacyError("a registered subject has no group; the registry file has changed")
    return found


def read_history(tally: Numbers, groups: Sequence[str | None], local: Numbers) -> CountHistory:
    """Return the true counts of windows; `local` is when they start."""
    names = tuple(group or "" for group in groups)
    exact, opened, detected = (tally[..., field] for field in (_DECIDED, _OPEN, _DETECTED))
    return CountHistory(names, local, exact, opened, detected)


@compiled
def _tally(
    bits: NDArray[np.uint64],
    opened: NDArray[np.uint64],
    decided: NDArray[np.uint64],
    rows: NDArray[np.int32],
    silent: NDArray[np.bool_],
    since: NDArray[np.int64],
    first: int,
    found: NDArray[np.int64],
) -> bool:
    """Count the registered subjects of each row; return whether all of them have one."""
    windows, counts, _ = bits.shape
    one = np.uint64(1)
    for window in range(windows):
        for count in range(counts):
            for slot in range(len(since)):
                if since[slot] > first + window:
                    continue
                row = rows[count, slot]
                if row < 0:
                    return False
                word, lane = slot >> 6, np.uint64(slot & 63)
                if (opened[window, count, word] >> lane) & one:
                    if silent[slot]:
                        found[window, row, _LEFT_OUT] += 1
                        continue
                    found[window, row, _OPEN] += 1
                    bit = (bits[window, count, word] >> lane) & one
                    found[window, row, _DETECTED] += np.int64(bit)
                else:
                    bit = (decided[window, count, word] >> lane) & one
                    found[window, row, _DECIDED] += np.int64(bit)
                found[window, row, _SUBJECTS] += 1
    return True


def count_exactly(
    layout: CountLayout,
    bits: Columns,
    since: NDArray[np.int64],
    first: int,
    subjects: pa.Array,
) -> CountDraws:
    """Return the true counts."""
    nobody = np.zeros(len(since), np.bool_)
    closed = np.zeros_like(bits)
    tally = tally_groups(layout, bits, closed, bits, nobody, since, first, subjects)
    drawn = _start_draws(tally)
    for part in (drawn.estimate, drawn.estimate_low, drawn.estimate_high):
        part[:] = drawn.count
    return drawn
