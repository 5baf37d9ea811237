"""Statistics of history for the subjects of one policy: the input of planning hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.affected_queries import AffectedQuery
from tacit.privacy.components import Exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.count_memory import CountHistory
from tacit.privacy.evidence import Evidence
from tacit.privacy.joint_counts import JointCounts
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Prior
from tacit.privacy.sampled_evidence import SampledEvidence
from tacit.privacy.sequences import Sequences
from tacit.spec.columntypes import RecordedTypes

AnyEvidence: TypeAlias = Evidence | SampledEvidence


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of the windows of one policy's subjects."""

    policy: Policy
    fine: Policy
    """The policy that answers are drawn for: refined if components are large."""
    exposure: Exposure
    """The exposure of the fine policy."""
    affected: tuple[AffectedQuery, ...]
    windows: float
    positives: NDArray[np.float64]
    """For each query, the number of windows in which it is true."""
    priors: tuple[Prior, ...]
    """For each component; empty for windows that are held out."""
    evidence: tuple[AnyEvidence, ...]
    """For each affected query, the windows in which private events may change it."""
    pane_counts: PaneCounts | None = None
    """The distribution of private elements over panes, if windows slide."""
    columns: RecordedTypes = field(default_factory=dict)
    """The column types in history."""
    contexts: tuple[ContextCounts, ...] = ()
    """For each component, its windows by context and values; empty without history."""
    joint: JointCounts | None = None
    """Whole windows, if some query has parts in several components; None without history."""
    occurrences: Mapping[str, int] = field(default_factory=dict)
    """For each event type, the number of windows in which it occurs, of the subjects of all
    policies; empty if they were not counted."""
    folds: tuple[Fold, ...] = ()
    """History in parts, each held out once; empty if it cannot be divided."""
    sequences: Sequences | None = None
    """Windows of some subjects in order of time; None without history."""
    counts: Mapping[str, CountHistory] = field(default_factory=dict)
    """The true counts of all subjects, by query; for the first policy only."""

    @property
    def exact(self) -> NDArray[np.float64]:
        """For each query, the number of windows in which it is true whatever private events do."""
        exact = self.positives.copy()
        for part, known in zip(self.affected, self.evidence, strict=True):
            exact[part.query] -= known.positives
        return exact


class Fold(NamedTuple):
    """One part of history, and the others."""

    training: Statistics
    held_out: Statistics
