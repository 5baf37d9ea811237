"""Counts over a day: what all methods share that release a series of counts.

Every method has the same epsilon per day for every subject. A subject may be in the count of every
window of the day, and changes each by at most one. So what a method spends at its steps adds up,
and the sum over any T steps in a row, a day of windows, is at most epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError

Floats = NDArray[np.float64]


class ReleasedSeries(NamedTuple):
    """The released counts, and the epsilon that each step spent."""

    counts: Floats
    spent: Floats


@dataclass(frozen=True, eq=False)
class CountSetting:
    """The true counts of past days, from which parameters are taken, and the size of the public."""

    history: Floats
    """`[day][window]`"""
    subjects: int

    def __post_init__(self) -> None:
        if self.history.ndim != 2 or self.history.shape[1] < 2 or not len(self.history):
            raise PrivacyError("counts need a history of at least one day, with several windows")

    @property
    def day(self) -> int:
        """The number of windows of a day."""
        return int(self.history.shape[1])

    @property
    def change(self) -> float:
        """The mean square of the change from one window to the next."""
        return max(0.25, float((np.diff(self.history.ravel()) ** 2).mean()))


class CountMethod(Protocol):
    """A method that releases a series of counts."""

    @property
    def name(self) -> str:
        """Its name in tables and figures."""

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Release the counts of one or more days, with epsilon per day."""


@dataclass(slots=True)
class KalmanFilter:
    """Follows a random walk: a value, its variance, and the variance of a step."""

    value: float
    variance: float
    step: float

    @classmethod
    def start(cls, setting: CountSetting) -> KalmanFilter:
        """Start from the mean of history."""
        history = setting.history
        return cls(float(history.mean()), float(history.var()), setting.change)

    def predict(self) -> float:
        """Advance by one window."""
        self.variance += self.step
        return self.value

    def correct(self, measured: float, noise: float) -> float:
        """Use a noisy count, given the variance of its noise."""
        gain = self.variance / (self.variance + noise)
        self.value += gain * (measured - self.value)
        self.variance *= 1 - gain
        return self.value


@dataclass(slots=True)
class PidController:
    """Weighs the errors at sampled windows: the last one, the mean of some, and their slope."""

    proportional: float
    integral: float
    derivative: float
    memory: int
    """How many errors the integral part averages."""
    _errors: list[float] = field(default_factory=list)
    _step: int = 0

    def add(self, step: int, error: float) -> float:
        """Add the error of a sample, and return the controller's error."""
        slope = 0.0
        if self._errors:
            slope = (error - self._errors[-1]) / (step - self._step)
        self._errors.append(error)
        self._step = step
        recent = float(np.mean(self._errors[-self.memory :]))
        return self.proportional * error + self.integral * recent + self.derivative * slope


class Sample(NamedTuple):
    """A window that was sampled."""

    step: int
    value: float
    """The count, corrected by the sample."""
    predicted: float
    """The count as it was predicted: what was released last."""
    spent: Floats
    """What the steps so far have spent, with this one."""


def release_samples(
    counts: Floats,
    setting: CountSetting,
    random: np.random.Generator,
    choose_epsilon: Callable[[int, Floats, float], float],
    compute_growth: Callable[[Sample], float],
) -> ReleasedSeries:
    """Publish the windows that are due with Laplace noise, and predict the others.

    `choose_epsilon` gets the step, what the steps before it spent, and the sampling interval; it
    returns 0 where nothing is left. `compute_growth` returns by how much the interval grows after
    a sample.
    """
    found, spent = np.empty(len(counts)), np.zeros(len(counts))
    followed = KalmanFilter.start(setting)
    due, interval = 0, 1.0
    for step, count in enumerate(counts.tolist()):
        predicted = followed.predict()
        own = choose_epsilon(step, spent[:step], interval) if step >= due else 0.0
        if own > 0:
            spent[step] = own
            value = followed.correct(count + random.laplace(0, 1 / own), 2 / own**2)
            grown = interval + compute_growth(Sample(step, value, predicted, spent[: step + 1]))
            interval = float(np.clip(grown, 1.0, setting.day))
            due = step + int(interval)
        found[step] = followed.value
    return ReleasedSeries(found, spent)


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not positive."""
    if not epsilon > 0:
        raise PrivacyError(f"epsilon per day must be positive; got {epsilon:g}")


@dataclass(frozen=True, slots=True)
class AroundCourse:
    """A published method on the deviations from the usual course of a day: it uses history too.

    The method is the same, and so is its guarantee: the course comes from history. Differs from
    the publications, which have no history.
    """

    method: CountMethod

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Release deviations, and add the usual course."""
        history, days = setting.history, len(setting.history)
        course = history.mean(axis=0)
        if days < 2:
            return self.method.release(counts, setting, epsilon, random)
        # Each day against the others, as a new day will be.
        deviations = history - (days * course - history) / (days - 1)
        usual = np.resize(course, len(counts))
        own = CountSetting(deviations, setting.subjects)
        found = self.method.release(counts - usual, own, epsilon, random)
        return found._replace(counts=found.counts + usual)


@dataclass(frozen=True, slots=True)
class TunedMethod:
    """A method with the parameters that are best on history, out of several."""

    candidates: tuple[CountMethod, ...]
    repeats: int = 3

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.candidates[0].name

    def choose(self, setting: CountSetting, epsilon: float) -> CountMethod:
        """Simulate all candidates on history, and return the best one."""
        past, random = setting.history.ravel(), np.random.default_rng(0)
        errors = [
            sum(
                float(np.abs(one.release(past, setting, epsilon, random).counts - past).sum())
                for _ in range(self.repeats)
            )
            for one in self.candidates
        ]
        return self.candidates[int(np.argmin(errors))]

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Release with the best candidate."""
        return self.choose(setting, epsilon).release(counts, setting, epsilon, random)
