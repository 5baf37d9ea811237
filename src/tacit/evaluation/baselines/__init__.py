"""Baselines: other methods, each calibrated to the same guarantee for private patterns."""

from __future__ import annotations

from typing import Final

from tacit.evaluation.baselines.answer_vectors import (
    ANSWER_RESPONSES,
    AnswerResponse,
    SplitResponse,
    VectorResponse,
    answer_vectors,
)
from tacit.evaluation.baselines.budget_absorption import BudgetAbsorption
from tacit.evaluation.baselines.budget_distribution import BudgetDistribution
from tacit.evaluation.baselines.decoding import (
    BaselineDecoder,
    Decoding,
    make_literal_decoder,
    make_posterior_decoder,
    measure,
)
from tacit.evaluation.baselines.event_level import EventLevel
from tacit.evaluation.baselines.landmark import LandmarkAdaptive, LandmarkUniform
from tacit.evaluation.baselines.memory import MemoryDecoder, make_memory_decoder
from tacit.evaluation.baselines.prior_alone import PriorAlone
from tacit.evaluation.baselines.private_types import PrivateTypes
from tacit.evaluation.baselines.releases import Baseline, NoisyPresence
from tacit.evaluation.baselines.setting import Setting
from tacit.evaluation.baselines.suppression import Suppression
from tacit.evaluation.baselines.user_level import UserLevel
from tacit.evaluation.baselines.variants import VARIANTS, make_daily
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
"""All baselines as published; `VARIANTS` has fairer ones: see docs/baselines.md."""

__all__ = [
    "ANSWER_RESPONSES",
    "BASELINES",
    "VARIANTS",
    "AnswerResponse",
    "Baseline",
    "BaselineDecoder",
    "BudgetAbsorption",
    "BudgetDistribution",
    "Decoding",
    "EventLevel",
    "LandmarkAdaptive",
    "LandmarkUniform",
    "MemoryDecoder",
    "NoisyPresence",
    "PriorAlone",
    "PrivateTypes",
    "Setting",
    "SplitResponse",
    "Suppression",
    "UserLevel",
    "VectorResponse",
    "WEventSample",
    "WEventUniform",
    "answer_vectors",
    "make_daily",
    "make_literal_decoder",
    "make_memory_decoder",
    "make_posterior_decoder",
    "measure",
]
