"""The releases of baselines, what they cost, and their noise.

Amounts are per event: what a mechanism spends to hide the presence of one event of a window.
A private pattern has m elements in one window, so its loss there is m times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, exp, isfinite
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.setting import Floats, Presence, Setting

Amount: TypeAlias = float | int | Decimal | Fraction
NoiseKind: TypeAlias = Literal["laplace", "response"]
"""Laplace noise on each bit, or randomised response."""
Calibration: TypeAlias = Literal["peak", "total"]
"""What epsilon bounds: the most that one window can cost, or the mean cost over w windows."""

GRADES: Final = 12
"""How many levels of noise a decoder distinguishes, each a factor sqrt(2) of epsilon wide."""
_UNIT = 2**53
"""NumPy's uniform floats are whole multiples of 1/_UNIT, each as likely as any other."""


@dataclass(frozen=True, slots=True, eq=False)
class NoisyPresence:
    """Noisy presence, with what is public about its noise."""

    values: Floats | Presence
    """In the shape of the presence: numbers, or booleans."""
    grades: NDArray[np.uint8]
    """`[window]`, or `[subject][window]`: 0 if the last release is repeated."""
    flips: Floats
    """`[grade][event type]`: the probability of a wrong bit; unknown in advance for grade 0."""
    spent: Floats
    """`[window]`, or `[subject][window]`: the epsilon per event for what is published."""
    tested: Floats
    """The same for the decision whether to publish."""
    bars: Floats | None = None
    """The distance from the last release above which a window was published, if it was tested."""

    @property
    def bits(self) -> Presence:
        """The noisy presence: values above 1/2."""
        if self.values.dtype == np.bool_:
            return self.values.astype(np.bool_, copy=False)
        return np.asarray(self.values > 0.5)

    def loss(self, elements: int) -> Floats:
        """Return what each window spends on a private pattern with this number of elements."""
        return elements * (self.spent + self.tested)


class Baseline(Protocol):
    """A mechanism to compare with."""

    @property
    def name(self) -> str:
        """Its name in tables and figures."""

    @property
    def uses_epsilon(self) -> bool:
        """Whether its releases depend on epsilon."""

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Release noisy presence.

        The pattern-level loss is at most epsilon in any window. With the calibration "total" it
        is at most w * epsilon in any w windows in a row instead.
        """


def check_epsilon(epsilon: Amount) -> float:
    """Return epsilon as a float; refuse anything but a finite number greater than 0."""
    number = isinstance(epsilon, float | int | Decimal | Fraction | np.floating | np.integer)
    if not number or isinstance(epsilon, bool):
        raise PrivacyError(f"epsilon must be a number, such as 1.0; got {epsilon!r}")
    if not isfinite(epsilon) or epsilon <= 0:
        raise PrivacyError(
            f"epsilon must be a finite number greater than 0, such as 1.0; got {epsilon}"
        )
    return float(epsilon)


def check_steps(w: int) -> None:
    """Refuse an invalid number of steps."""
    if isinstance(w, bool) or not isinstance(w, int) or w < 1:
        raise PrivacyError(f"w must be a whole number of steps, 1 or more; got {w!r}")


def check_variant(noise: NoiseKind, calibration: Calibration = "peak") -> None:
    """Refuse an unknown kind of noise or calibration."""
    if noise not in ("laplace", "response"):
        raise PrivacyError(f"noise must be 'laplace' or 'response'; got {noise!r}")
    if calibration not in ("peak", "total"):
        raise PrivacyError(f"calibration must be 'peak' or 'total'; got {calibration!r}")


def compute_event_share(setting: Setting, epsilon: Amount) -> float:
    """Return the cost of one event in its window: epsilon/m, with the m of the longest pattern.

    These mechanisms do not use patterns: all event types are treated alike. So if patterns
    differ in length, the longest loses epsilon and the shorter ones less.
    """
    return check_epsilon(epsilon) / setting.longest


def compute_flip_chance(epsilon: float) -> float:
    """Compute 1/(1 + exp(epsilon)), rounded up to what NumPy draws exactly.

    A float's exponential is off by less than two units of 2**-53, which are added.
    """
    share = 1 / (1 + exp(epsilon)) if epsilon < 700 else 0.0
    return min(_UNIT // 2, ceil(_UNIT * share) + 2) / _UNIT


def flip(presence: Presence, epsilon: float, random: np.random.Generator) -> NoisyPresence:
    """Flip every bit by randomised response, with epsilon per bit."""
    chance = compute_flip_chance(epsilon)
    bits = presence ^ (random.random(presence.shape) < chance)
    return make_uniform_release(bits, np.full(presence.shape[-1], chance), epsilon)


def make_uniform_release(values: Floats | Presence, flips: Floats, epsilon: float) -> NoisyPresence:
    """Make a release whose windows all have the same noise, of epsilon per event."""
    windows = values.shape[:-1]
    known = np.stack([np.full_like(flips, np.nan), flips])
    spent = np.full(windows, epsilon)
    return NoisyPresence(values, np.ones(windows, np.uint8), known, spent, np.zeros(windows))


def make_graded_release(
    values: Floats | Presence,
    spent: Floats,
    tested: Floats,
    most: float,
    noise: NoiseKind,
    bars: Floats | None = None,
) -> NoisyPresence:
    """Make a release whose windows spend different amounts; `most` is the largest of them.

    Laplace noise of scale 1/e puts a value on the wrong side of a half with probability
    exp(-e/2)/2; randomised response flips it with probability 1/(1 + exp(e)).
    """
    octaves = np.full(spent.shape, np.inf)
    np.divide(most, spent, out=octaves, where=spent > 0)
    grade = 1 + np.rint(2 * np.log2(np.minimum(octaves, 2.0**GRADES)))
    grades = np.where(spent > 0, np.minimum(grade, GRADES), 0).astype(np.uint8)
    levels = most * 2 ** (-np.arange(GRADES) / 2)
    wrong = (
        np.exp(-levels / 2) / 2
        if noise == "laplace"
        else 1 / (1 + np.exp(np.minimum(levels, 700.0)))
    )
    flips = np.concatenate([[np.nan], wrong])
    known = np.broadcast_to(flips[:, None], (len(flips), values.shape[-1]))
    return NoisyPresence(values, grades, known, spent, tested, bars)


def draw_noise(random: np.random.Generator, shape: tuple[int, ...], noise: NoiseKind) -> Floats:
    """Draw what `publication.publish` turns into a publication."""
    return draw_laplace(random, shape) if noise == "laplace" else random.random(shape)


def draw_laplace(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draw Laplace noise of scale 1: the difference of two exponential draws, which are fast."""
    noise: Floats = random.standard_exponential(shape)
    noise -= random.standard_exponential(shape)
    return noise
