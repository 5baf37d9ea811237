"""Variants of the baselines: each grants them one more thing that Tacit's mechanisms have.

The published mechanisms put Laplace noise on all event types, and are calibrated so that no
window costs more than epsilon. `VARIANTS` removes one disadvantage after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tacit.evaluation.baselines.budget_absorption import BudgetAbsorption
from tacit.evaluation.baselines.budget_distribution import BudgetDistribution
from tacit.evaluation.baselines.event_level import EventLevel
from tacit.evaluation.baselines.landmark import LandmarkAdaptive
from tacit.evaluation.baselines.private_types import PrivateTypes
from tacit.evaluation.baselines.releases import Baseline, Calibration, NoiseKind
from tacit.evaluation.baselines.w_event import WEventSample, WEventUniform


def make_published() -> tuple[Baseline, ...]:
    """Return the baselines that differ from each other; the rest equals one of these."""
    return (
        EventLevel(),
        WEventUniform(),
        WEventSample(),
        BudgetDistribution(),
        BudgetAbsorption(),
        LandmarkAdaptive(),
    )


def make_private(noise: NoiseKind) -> tuple[Baseline, ...]:
    """Return them on private event types; w-event uniform with response is event-level."""
    every: tuple[Baseline, ...] = (
        EventLevel(),
        *((WEventUniform(noise=noise),) if noise == "laplace" else ()),
        WEventSample(noise=noise),
        BudgetDistribution(2, noise),
        BudgetAbsorption(2, noise),
        LandmarkAdaptive(noise=noise),
    )
    return tuple(map(PrivateTypes, every))


def make_total() -> tuple[Baseline, ...]:
    """Return those that spend unevenly, with w * epsilon for w windows.

    Each w is the best on tuning data: see docs/baselines.md. For sample it depends on epsilon.
    """
    noise: NoiseKind = "response"
    every: tuple[Baseline, ...] = (
        WEventSample(2, noise, "total", "w-event sample, w = 2"),
        WEventSample(10, noise, "total", "w-event sample, w = 10"),
        BudgetDistribution(20, noise, "total"),
        BudgetAbsorption(2, noise, "total"),
    )
    return tuple(map(PrivateTypes, every))


def make_daily(windows: int, *, published: bool) -> tuple[Baseline, ...]:
    """Return the w-event baselines on their own ground: w is a day, and so is their epsilon.

    With epsilon/w as the epsilon of a window, the calibration "total" gives a pattern-level loss
    of at most epsilon in any w windows in a row. With `published` they are as in their paper,
    otherwise they use randomised response on private event types.
    """
    noise: NoiseKind = "laplace" if published else "response"
    total: Calibration = "total"
    every: tuple[Baseline, ...] = (
        WEventUniform(windows, noise),
        WEventSample(windows, noise, total),
        BudgetDistribution(windows, noise, total),
        BudgetAbsorption(windows, noise, total),
    )
    return every if published else tuple(map(PrivateTypes, every))


VARIANTS: Final[Mapping[str, tuple[Baseline, ...]]] = {
    "as published": make_published(),
    "private types": make_private("laplace"),
    "randomised response": make_private("response"),
    "same total": make_total(),
}
