"""What limits do to answers with memory, simulated on history: demand, and expected quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter, Prediction
from tacit.privacy.mechanisms.optimal.memory.simulation import simulate
from tacit.privacy.pacing import Pacing, SpendingLimit, find_chances
from tacit.privacy.policies import Policy
from tacit.privacy.prices import NANO, Claim
from tacit.privacy.sequences import Sequences

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Prices = NDArray[np.int64]

_ROWS: Final = 30_000
"""The number of windows of subjects that demand is measured on, for each ratio."""
_SHARES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 0.98)
"""The shares of open windows that are not paid for, with each ratio but the first."""

_MARGIN: Final = 0.05
"""How far a level is below the windows that it begins with, and at least from the one before, as a
share of it."""


def list_claims(policy: Policy) -> tuple[Claim, ...]:
    """Return what each private pattern must be paid for, in the policy's order."""
    return tuple(
        Claim(pattern.elements, ceil(pattern.epsilon * NANO)) for pattern in policy.patterns
    )


def add_prices(
    filters: Sequence[BeliefFilter], predicted: Sequence[Prediction], claims: tuple[Claim, ...]
) -> Prices:
    """Return `[claim][subject]`: what the chosen channels cost, in nano-epsilon."""
    prices = np.zeros((len(claims), len(predicted[0].contexts)), np.int64)
    for one, found in zip(filters, predicted, strict=True):
        table = one.tables.price(claims)
        # The last column is for blocks that do not exist, numbered -1.
        padded = np.concatenate([table, np.zeros((len(claims), 1), np.int64)], axis=1)
        prices += padded[:, found.chosen].sum(axis=2)
    most = np.array([claim.most for claim in claims], np.int64)
    return np.minimum(prices, most[:, np.newaxis])


def add_gains(predicted: Sequence[Prediction]) -> Floats:
    """Return by subject how much all draws of a window are expected to gain."""
    return np.asarray(np.sum([one.gains for one in predicted], axis=0), np.float64)


def fit_pacing(
    filters: Sequence[BeliefFilter],
    sequences: Sequences,
    policy: Policy,
    limits: Mapping[str, SpendingLimit],
) -> Pacing | None:
    """Measure what subjects would spend for each ratio; None if nothing is paced."""
    claims = list_claims(policy)
    names = [pattern.name for pattern in policy.patterns]
    paced = [number for number, name in enumerate(names) if name in limits and limits[name].paced]
    if not paced:
        return None
    thin = sequences.thin(_ROWS)
    seen: list[Floats] = []

    def watch(_: int, predicted: Sequence[Prediction]) -> Bits:
        prices = add_prices(filters, predicted, claims)[paced].sum(axis=0)
        paying = prices > 0
        seen.append(add_gains(predicted)[paying] / prices[paying] * NANO)
        return np.zeros(len(prices), np.bool_)

    for _ in simulate(filters, thin, 0, thin.windows, watch):
        pass
    ratios = _choose_levels(np.concatenate([np.empty(0), *seen]))
    demand = np.zeros((len(names), len(ratios), 24))
    length = np.diff(thin.local).min(initial=1 << 62) / 3.6e9  # hours between windows
    for level, ratio in enumerate(ratios.tolist()):
        paying = _PayingFrom(ratio, filters, thin, claims, paced)
        for _ in simulate(filters, thin, 0, thin.windows, paying):
            pass
        demand[:, level] = paying.rates() / length
    return Pacing(ratios, {names[number]: demand[number] for number in paced})


def _choose_levels(found: Floats) -> Floats:
    """Choose ratios of gain to epsilon, from 0 on, that separate the windows of history.

    Windows that gain nearly the same are on the same level, also if what they gain in a run differs
    a little from what it was in history.
    """
    levels = [0.0]
    for ratio in np.quantile(found, _SHARES).tolist() if len(found) else ():
        if ratio * (1 - _MARGIN) > levels[-1] * (1 + _MARGIN):
            levels.append(ratio * (1 - _MARGIN))
    return np.array(levels)


class _PayingFrom:
    """Pays for the windows whose gain per epsilon reaches a ratio, and adds up what is spent."""

    def __init__(
        self,
        ratio: float,
        filters: Sequence[BeliefFilter],
        sequences: Sequences,
        claims: tuple[Claim, ...],
        paced: list[int],
    ) -> None:
        self._ratio = ratio
        self._filters = filters
        self._known = sequences.known
        self._hours = sequences.hours % 24
        self._claims = claims
        self._paced = paced
        self._spent = np.zeros((len(claims), 24))
        self._rows = np.zeros(24)

    def __call__(self, window: int, predicted: Sequence[Prediction]) -> Bits:
        prices = add_prices(self._filters, predicted, self._claims)
        total = prices[self._paced].sum(axis=0)
        declined = np.asarray(add_gains(predicted) < self._ratio * total / NANO)
        known, hour = self._known[window], self._hours[window]
        self._spent[:, hour] += prices[:, known & ~declined].sum(axis=1) / NANO
        self._rows[hour] += known.sum()
        return declined

    def rates(self) -> Floats:
        """Return `[claim][hour of the day]`: the epsilon of a window and subject.

        An hour that history does not have is taken to be like the others.
        """
        usual = self._spent.sum(axis=1, keepdims=True) / max(1.0, self._rows.sum())
        return np.where(self._rows > 0, self._spent / np.maximum(1.0, self._rows), usual)


class SimulatedPayments:
    """Decides who pays, with limits and pacing, as a run does."""

    def __init__(
        self,
        filters: Sequence[BeliefFilter],
        sequences: Sequences,
        policy: Policy,
        limits: Mapping[str, SpendingLimit],
        pacing: Pacing | None,
        seed: int = 0,
    ) -> None:
        self._filters = filters
        self._sequences = sequences
        self._claims = list_claims(policy)
        self._limits = [limits.get(pattern.name) for pattern in policy.patterns]
        self._names = [pattern.name for pattern in policy.patterns]
        self._pacing = pacing
        self._random = np.random.default_rng(seed)
        subjects = sequences.known.shape[1]
        self._spent = np.zeros((len(self._claims), subjects), np.int64)
        self._horizons = [-1] * len(self._claims)

    def __call__(self, window: int, predicted: Sequence[Prediction]) -> Bits:
        """Return the subjects that do not pay for a window; charge the others."""
        prices = add_prices(self._filters, predicted, self._claims)
        gains = add_gains(predicted)
        local = int(self._sequences.local[window])
        silent = np.zeros(prices.shape[1], np.bool_)
        chances = np.ones(len(silent))
        paced = [n for n, limit in enumerate(self._limits) if limit is not None and limit.paced]
        total = prices[paced].sum(axis=0)
        for number, limit in enumerate(self._limits):
            if limit is None:
                continue
            if local // limit.horizon != self._horizons[number]:
                self._horizons[number] = local // limit.horizon
                self._spent[number] = 0
            left = int(limit.amount * NANO) - self._spent[number]
            silent |= (prices[number] > 0) & (prices[number] > left)
            if limit.paced and self._pacing is not None:
                found = find_chances(
                    self._pacing, self._names[number], left, gains, total, local, limit.horizon
                )
                chances = np.where(prices[number] > 0, np.minimum(chances, found), chances)
        silent |= self._random.random(len(silent)) >= chances
        self._spent += np.where(silent | ~self._sequences.known[window], 0, prices)
        return silent
