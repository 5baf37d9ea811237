"""What public events and the prior say alone: for subjects whose limit is reached.

Nothing of it depends on what private events do in a window that is answered.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.planning.drawing import Drawing, Spread
from tacit.planning.evidence import Cells, Evidence
from tacit.planning.quality import Confusion
from tacit.planning.schemes import ElementScheme, OptimalScheme
from tacit.planning.survey import Found, Statistics, WideEvidence
from tacit.privacy.components import Component
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.touched import Touched

Floats: TypeAlias = NDArray[np.float64]

_CONTEXTS: Final = 1000
"""So many contexts of a component are looked at, the commonest; they stand for the others."""


def likely_parts(component: Component, prior: Prior, signals: Bits) -> Floats:
    """`[part]`: how likely each part of a component is true in a context; 0 or 1 if decided."""
    known: dict[tuple[int, ...], Floats] = {}
    likely = np.empty(len(component.parts))
    for number, table in enumerate(component.tables(signals)):
        if (table == table[0]).all():
            likely[number] = table[0]
            continue
        variables = component.parts[number].variables
        if variables not in known:
            known[variables] = prior.of_choices(signals, list(variables))
        likely[number] = known[variables][table].sum()
    return likely


def likely_contexts(part: Touched, known: Found) -> Floats:
    """`[context]`: how likely a query is true by its context alone; 0 or 1 if decided."""
    if isinstance(known, Evidence):
        weights: Floats = known.expected.sum(axis=2)
        likely = weights[:, 1] / weights.sum(axis=1)
    else:
        false, true = _seen(part, known)
        total = (false + true).sum()
        rate = true.sum() / total if total else 0.5
        likely = (true + known.strength * rate) / (false + true + known.strength)
    return np.where(part.decided < 0, likely, part.decided)


def expected_alone(
    statistics: Statistics, scheme: ElementScheme | OptimalScheme
) -> Confusion[Floats]:
    """For each query what to expect of answers to subjects whose limit is reached."""
    counts = np.zeros((3, len(statistics.positives)))
    if isinstance(scheme, ElementScheme):
        counts[0] = statistics.exact
        for part, known, likely in zip(
            scheme.touched, statistics.evidence, scheme.alone, strict=True
        ):
            false, true = _seen(part, known)
            found = Cells(likely, true, false).confusion(scheme.silent_threshold)
            counts[:, part.query] += found.tp, found.fp, found.fn
        return Confusion(*counts)
    parts = _spreads(scheme)
    for query, question in enumerate(scheme.exposure.questions):
        if not question.parts:
            counts[0, query] = statistics.positives[query]
            continue
        whole = Drawing.combined([parts[c][p] for c, p in question.parts], question)
        found = whole.cells.confusion(scheme.silent_threshold)
        counts[:, query] = found.tp, found.fp, found.fn
    return Confusion(*counts)


def _spreads(scheme: OptimalScheme) -> list[list[Spread]]:
    """For each part of each component how likely it is in the contexts of history."""
    spreads = []
    for component, prior in zip(scheme.exposure.components, scheme.priors, strict=True):
        met = prior.contexts[:_CONTEXTS]
        windows = np.array([number for _, number in met])
        windows *= prior.counts.sum() / windows.sum()
        likely = np.array([likely_parts(component, prior, signals) for signals, _ in met]).T
        spreads.append(
            [Spread(column, column >= scheme.silent_threshold, windows) for column in likely]
        )
    return spreads


def _seen(part: Touched, known: Found) -> tuple[Floats, Floats]:
    """`[context]`: in how many windows the query is false, and in how many it is true."""
    if isinstance(known, Evidence):
        windows: Floats = known.counts.sum(axis=2)
        return windows[:, 0], windows[:, 1]
    contexts = known.homes[known.contexts] if isinstance(known, WideEvidence) else known.contexts
    false, true = (
        np.bincount(contexts[chosen], known.counts[chosen], len(part.decided))
        for chosen in (~known.truth, known.truth)
    )
    return false.astype(np.float64), true.astype(np.float64)
