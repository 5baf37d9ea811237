"""Baselines: other methods, each calibrated to the same guarantee for private patterns."""

from __future__ import annotations

from typing import Final

from tacit.evaluation.baselines.budget_absorption import BudgetAbsorption
from tacit.evaluation.baselines.budget_distribution import BudgetDistribution
from tacit.evaluation.baselines.decoding import (
    BaselineDecoder,
    make_literal_decoder,
    make_posterior_decoder,
    measure,
)
from tacit.evaluation.baselines.event_level import EventLevel
from tacit.evaluation.baselines.landmark import LandmarkAdaptive, LandmarkUniform
from tacit.evaluation.baselines.prior_alone import PriorAlone
from tacit.evaluation.baselines.releases import Baseline, NoisyPresence
from tacit.evaluation.baselines.setting import Setting
from tacit.evaluation.baselines.suppression import Suppression
from tacit.evaluation.baselines.user_level import UserLevel
from tacit.evaluation.baselines.w_event import WEventSample, WEventUniform

BASELINES: Final[tuple[Baseline, ...]] = (
    EventLevel(),
    UserLevel(),
    WEventUniform(),
    WEventSample(),
    BudgetDistribution(),
    BudgetAbsorption(),
    LandmarkUniform(),
    LandmarkAdaptive(),
    Suppression(),
    PriorAlone(),
)
"""All baselines, with the parameters with which they do best: see docs/baselines.md."""

__all__ = [
    "BASELINES",
    "Baseline",
    "BaselineDecoder",
    "BudgetAbsorption",
    "BudgetDistribution",
    "EventLevel",
    "LandmarkAdaptive",
    "LandmarkUniform",
    "NoisyPresence",
    "PriorAlone",
    "Setting",
    "Suppression",
    "UserLevel",
    "WEventSample",
    "WEventUniform",
    "make_literal_decoder",
    "make_posterior_decoder",
    "measure",
]
