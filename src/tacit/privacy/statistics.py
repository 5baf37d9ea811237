"""What history says about the windows of one policy's subjects: the input of planning hooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.affected_queries import AffectedQuery
from tacit.privacy.components import Exposure
from tacit.privacy.evidence import Evidence
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Prior
from tacit.privacy.sampled_evidence import SampledEvidence
from tacit.spec.columntypes import RecordedTypes

Found: TypeAlias = Evidence | SampledEvidence


@dataclass(frozen=True, eq=False)
class Statistics:
    """What history says about the windows of one policy's subjects."""

    policy: Policy
    fine: Policy
    """The policy that answers are drawn for: where components are large, refined."""
    exposure: Exposure
    """Of the fine policy."""
    touched: tuple[AffectedQuery, ...]
    windows: float
    positives: NDArray[np.float64]
    """For each query, in how many windows it is true."""
    priors: tuple[Prior, ...]
    """For each component."""
    evidence: tuple[Found, ...]
    """For each touched query, the windows in which private events may change it."""
    sightings: PaneCounts | None = None
    """How private elements are spread over the panes of windows, where these slide."""
    columns: RecordedTypes = field(default_factory=dict)
    """The types of columns in history."""

    @property
    def exact(self) -> NDArray[np.float64]:
        """For each query, the windows in which it is true whatever private events do."""
        exact = self.positives.copy()
        for part, known in zip(self.touched, self.evidence, strict=True):
            exact[part.query] -= known.there
        return exact
