"""Counts by a channel of their own: who is counted, what is drawn, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.kernels import compiled
from tacit.patterns.tree import elements
from tacit.privacy.affected_queries import AffectedQuery, find_affected
from tacit.privacy.count_channels import CountChannel, make_count_channel
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    PatternIndex,
    Prices,
    WindowBits,
    pack_slots,
)
from tacit.privacy.noise import Noise
from tacit.privacy.openness import Openness
from tacit.privacy.policies import Policies
from tacit.privacy.prices import NANO, Claim
from tacit.spec.groups import SubjectGroups
from tacit.spec.specification import Specification

Numbers = NDArray[np.int64]
_SUBJECTS, _LEFT_OUT, _DECIDED, _OPEN, _DETECTED = range(5)
"""What is tallied of a group: who is counted, who is left out because it does not pay, for how many
the pattern is detected whatever private events do, for how many it is open, and for how many of
these it is detected."""
_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class CountDraws:
    """Released counts: `[window][row]`, with a row for each count and group."""

    count: Numbers
    low: Numbers
    """The true count is between `low` and `high`, with probability `confidence`."""
    high: Numbers
    confidence: NDArray[np.float32]
    subjects: Numbers
    """The number of subjects that are counted."""
    left_out: Numbers
    """The number of subjects that are not, since their limit is reached or saved for later."""

    @property
    def columns(self) -> list[NDArray[Any]]:
        """All fields, in order."""
        return [getattr(self, one.name) for one in fields(self)]


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


class CountRelease:
    """Draws the counts of a specification.

    Guarantee: pattern-level epsilon-DP per subject, private pattern and window, for each count; the
    counts that depend on a private pattern, and what is left for its mechanism, add up to at most
    its epsilon.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: public events and limits decide who is open, who is left out, and to whom the count is
    exact. Neighbours differ in one subject's window, so the number of open subjects for which the
    pattern is detected differs by at most one, and this number leaves through a `CountChannel`.
    Spends: the count's epsilon, for every open subject that is counted, once per window. Nothing
    where the pattern is decided.
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
    ) -> None:
        patterns = tuple(spec.count_patterns.values())
        self.layout = layout
        self._source = noise.source
        self._columns = index.columns(patterns)
        self._elements = [frozenset(elements(pattern)) for pattern in patterns]
        self._channels: list[CountChannel | None] = []
        self._amounts: list[int] = []
        for name in spec.count_patterns:
            epsilon = epsilons.get(name, Fraction(0))
            self._channels.append(make_count_channel(epsilon) if epsilon else None)
            self._amounts.append(price_count(epsilon))
        affected = [find_affected(policy, patterns) for policy in Policies(spec).policies]
        if any(self._channels[part.query] is None for parts in affected for part in parts):
            raise PrivacyError("a count that depends on private events has no epsilon")
        self._policies = [_PolicyStatus(parts, index) for parts in affected]

    def price(
        self, windows: WindowBits, policies: NDArray[np.int32], claims: Sequence[Claim]
    ) -> Prices:
        """Return `[window][claim][subject]`: what the counts cost each claim, in nano-epsilon.

        It depends on public events alone.
        """
        opened, _ = self._decide(windows, policies)
        octets = np.ascontiguousarray(opened, "<u8").view(np.uint8)
        flags = np.unpackbits(octets, axis=-1, bitorder="little", count=windows.slots)
        prices = np.zeros((len(opened), len(claims), windows.slots), np.int64)
        for number, claim in enumerate(claims):
            for count, types in enumerate(self._elements):
                if types & claim.elements:
                    prices[:, number] += flags[:, count] * np.int64(self._amounts[count])
        return prices

    def draw(
        self,
        windows: WindowBits,
        policies: NDArray[np.int32],
        since: NDArray[np.int64],
        subjects: pa.Array,
    ) -> CountDraws:
        """Draw the counts of all groups; `policies` are as in `Evaluator.answer`.

        Subjects that do not pay are left out before anything is drawn.
        """
        opened, decided = self._decide(windows, policies % len(self._policies))
        silent = policies >= len(self._policies)
        tally = tally_groups(
            self.layout,
            windows.bits[:, self._columns],
            opened,
            decided,
            silent,
            since,
            windows.closed.first,
            subjects,
        )
        detected, exact = tally[..., _DETECTED], tally[..., _DECIDED]
        some = tally[..., _OPEN] > 0
        noisy, width = detected.copy(), np.zeros_like(detected)
        confidence = np.ones(detected.shape, np.float32)
        for rows, channel in zip(self.layout.rows, self._channels, strict=True):
            drawn = np.zeros_like(some)
            drawn[:, rows] = some[:, rows]
            if not drawn.any():
                continue
            assert channel is not None, "a count that is never open has none"
            noisy[drawn] = channel.draw(detected[drawn], self._source)
            width[drawn] = channel.half_width
            confidence[drawn] = channel.coverage
        count, most = exact + noisy, exact + tally[..., _OPEN]
        return CountDraws(
            count,
            np.clip(count - width, exact, most),
            np.clip(count + width, exact, most),
            confidence,
            tally[..., _SUBJECTS],
            tally[..., _LEFT_OUT],
        )

    def _decide(self, windows: WindowBits, policies: NDArray[np.int32]) -> tuple[Columns, Columns]:
        """Return `[window][count][word]`: where a count is open, and where it is surely true."""
        bits = windows.bits[:, self._columns]
        opened, decided = np.zeros_like(bits), np.zeros_like(bits)
        for number, status in enumerate(self._policies):
            own = policies == number
            if own.any():
                mask = pack_slots(own)
                found = status.decide(windows.bits, bits)
                opened |= found[0] & mask
                decided |= found[1] & mask
        return opened, decided


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
    count = tally[..., _DECIDED]
    return CountDraws(
        count,
        count,
        count,
        np.ones(count.shape, np.float32),
        tally[..., _SUBJECTS],
        tally[..., _LEFT_OUT],
    )
