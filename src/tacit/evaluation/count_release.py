"""Our own release of counts over a day, and the paper's way, for comparison with baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.evaluation.baselines.count_series import (
    CountSetting,
    Floats,
    ReleasedSeries,
    check_epsilon,
)


class _Profile(NamedTuple):
    """What history says about a day: its usual course, and how far counts step away from it."""

    usual: Floats
    """`[window]`"""
    step: float
    """The variance of a step of the deviation from the usual course."""
    spread: float
    """The variance of a deviation."""


@dataclass(frozen=True, slots=True)
class PacedCounts:
    """A two-sided geometric channel at evenly spaced windows, and a filter over what it released.

    Guarantee: epsilon-DP for a subject's whole day.
    Neighbours: the windows of a day of one subject.
    Why: one window of every k is released, with epsilon * k/T by the two-sided geometric mechanism
    (a subject changes a count by at most 1); a day has T/k of them. The filter uses history and
    released counts alone.
    Spends: epsilon * k/T at every k-th window.

    The interval k is the one with the least expected error, from the steps of history. The filter
    follows the deviation from the usual course of a day, as a random walk, so that a day on another
    level does no harm. With one day of history, or where the usual course does not make steps
    smaller, it follows the counts themselves.
    """

    name: str = "own channel"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Draw at every k-th window, and filter."""
        check_epsilon(epsilon)
        profile = _learn(setting)
        every = _choose_interval(profile, setting.day, epsilon)
        own = epsilon / (-(-setting.day // every))
        noise = 2 * np.exp(-own) / (1 - np.exp(-own)) ** 2
        found, spent = np.empty(len(counts)), np.zeros(len(counts))
        value, variance = 0.0, profile.spread
        for step, count in enumerate(counts.tolist()):
            usual = float(profile.usual[step % setting.day])
            variance += profile.step
            if step % setting.day % every == 0:
                spent[step] = own
                drawn = count + _draw_geometric(random, own)
                gain = variance / (variance + noise)
                value += gain * (drawn - usual - value)
                variance *= 1 - gain
            found[step] = usual + value
        return ReleasedSeries(np.clip(found, 0, setting.subjects), spent)


@dataclass(frozen=True, slots=True)
class SummedResponses:
    """The paper's way: every subject's answer by randomised response, summed and corrected.

    Guarantee: epsilon-DP for a subject's whole day.
    Neighbours: the windows of a day of one subject.
    Why: each of the T answers is flipped with epsilon/T.
    Spends: epsilon/T at every step.
    Source: Gu et al., the paper; the sum is corrected for the flips, so that it is unbiased.
    """

    name: str = "summed responses"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Flip every answer of every window."""
        check_epsilon(epsilon)
        each = epsilon / setting.day
        flipped = 1 / (1 + np.exp(each))
        true = counts.astype(np.int64)
        yes = random.binomial(true, 1 - flipped)
        yes = yes + random.binomial(setting.subjects - true, flipped)
        found = (yes - setting.subjects * flipped) / (1 - 2 * flipped)
        clipped = np.clip(found, 0, setting.subjects)
        return ReleasedSeries(clipped, np.full(len(counts), each))


def _draw_geometric(random: np.random.Generator, epsilon: float) -> int:
    """Draw two-sided geometric noise: the difference of two geometric numbers."""
    chance = -np.expm1(-epsilon)
    return int(random.geometric(chance)) - int(random.geometric(chance))


def _learn(setting: CountSetting) -> _Profile:
    """Estimate the usual course and the steps away from it, each day against the others."""
    history = setting.history
    days = len(history)
    if days > 1:
        course = history.mean(axis=0)
        deviations = history - (days * course - history) / (days - 1)
        step = float((np.diff(deviations, axis=1) ** 2).mean())
        if step < setting.change:
            return _Profile(course, max(0.25, step), max(0.25, float((deviations**2).mean())))
    flat = np.full(setting.day, history.mean())
    return _Profile(flat, setting.change, float(history.var()) + 1.0)


def _choose_interval(profile: _Profile, day: int, epsilon: float) -> int:
    """Return the interval between draws with the least mean variance over a day."""
    best, least = 1, np.inf
    for every in range(1, day + 1):
        own = epsilon / (-(-day // every))
        noise = 2 * np.exp(-own) / (1 - np.exp(-own)) ** 2
        variance, total = profile.spread, 0.0
        for step in range(2 * day):
            variance += profile.step
            if step % day % every == 0:
                variance *= noise / (variance + noise)
            total += variance if step >= day else 0.0
        if total < least:
            best, least = every, total
    return best
