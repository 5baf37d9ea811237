"""Fit the memory of a component to history: transitions, and channels to choose from.

How many profiles there are, and how strongly small cells are smoothed, is chosen by the likelihood
of windows that were held out: stretches of time, predicted from the others. Ties go to fewer
profiles and more smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels
from tacit.privacy.mechanisms.optimal.memory.kernels import WHOLE, average_openness
from tacit.privacy.mechanisms.optimal.memory.profile_fits import (
    Firsts,
    StepModel,
    Steps,
    choose_profiles,
    fit_transitions,
    join_steps,
    predict_held_out,
)
from tacit.privacy.mechanisms.optimal.memory.transitions import (
    DECAY,
    LEVELS,
    MOST_JOINT,
    MOST_VARIABLES,
    StepFeatures,
    Transitions,
    choose_layout,
)
from tacit.privacy.mechanisms.optimal.symbol_readings import SymbolReadings
from tacit.privacy.sequences import ComponentSequence, Sequences

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

LEAST_WINDOWS: Final = 24
"""With fewer windows of history there is no memory."""
_STRENGTHS: Final = (
    (65_536.0, 1_048_576.0),
    (4096.0, 65_536.0),
    (256.0, 4096.0),
    (64.0, 1024.0),
    (16.0, 1024.0),
    (16.0, 128.0),
    (16.0, 32.0),
)
"""Candidates for smoothing, strongest first."""
_USUAL: Final = (256.0, 4096.0)
"""The smoothing if history is too short to choose one."""
_STEPS: Final = 400_000
"""The number of steps of all components that parameters are chosen by."""
_MOST_STEPS: Final = 100_000
_LEAST_STEPS: Final = 8000
"""The same for one component: at most, and at least."""
_PARTS: Final = 2
"""The number of stretches that are held out in turn when parameters are chosen."""
_TIE: Final = 2.0
"""Log-likelihoods that differ by less than this are considered equal."""
_CLEAR: Final = 5.0
"""The log-likelihood by which windows before must help to predict the next, if only one model is
tried. Chance gives this much to one model in 150."""
_ALONE: Final = (1.0, 16.0, 256.0, 4096.0)
"""Candidates for smoothing contexts if windows before are not used."""


@dataclass(frozen=True, slots=True, eq=False)
class ComponentHistory:
    """History of one component, with what is public about each window, `[window][subject]`."""

    groups: Whole
    opened: NDArray[np.bool_]
    openness: Floats
    """The running average before each window."""
    values: Whole
    """All variables as bits."""
    known: NDArray[np.bool_]
    hours: Whole

    @property
    def windows(self) -> int:
        """The number of windows."""
        return len(self.groups)

    @property
    def subjects(self) -> int:
        """The number of subjects."""
        return int(self.known.shape[1])

    @property
    def edges(self) -> tuple[float, ...]:
        """The running averages that divide windows into levels of about one size."""
        shares = np.arange(1, LEVELS) / LEVELS
        return tuple(float(edge) for edge in np.quantile(self.openness[self.known], shares))

    def steps(self, begin: int, end: int, edges: tuple[float, ...]) -> Steps:
        """Return the steps between windows from `begin` up to `end`."""
        last, here = slice(begin, end - 1), slice(begin + 1, end)
        both = self.known[last] & self.known[here]
        subjects = np.broadcast_to(np.arange(both.shape[1]), both.shape)
        hours = np.broadcast_to(self.hours[here, np.newaxis], both.shape)
        level = np.digitize(self.openness[here], edges)
        return Steps(
            StepFeatures(
                self.groups[last][both], self.groups[here][both], level[both], hours[both]
            ),
            subjects[both],
            self.values[last][both],
            self.values[here][both],
        )

    def firsts(self) -> Firsts:
        """Return groups, values and subjects of all windows."""
        subjects = np.broadcast_to(np.arange(self.subjects), self.known.shape)
        return Firsts(self.groups[self.known], self.values[self.known], subjects[self.known])


def describe_history(
    readings: SymbolReadings, sequence: ComponentSequence, sequences: Sequences
) -> ComponentHistory:
    """Compute what is public about each window of history."""
    windows, subjects, words = sequence.signals.shape
    flat = np.ascontiguousarray(sequence.signals).reshape(-1, words)
    groups = readings.find_groups(flat).reshape(windows, subjects)
    opened = readings.find_needed(flat).any(axis=1).reshape(windows, subjects)
    openness = np.empty((windows, subjects))
    average = np.full(subjects, WHOLE // 2, np.uint16)
    for window in range(windows):
        openness[window] = average / WHOLE
        moved = np.empty_like(average)
        average_openness(opened[window], average, DECAY, moved)
        average = np.where(sequences.known[window], moved, average)
    return ComponentHistory(
        groups,
        opened,
        openness,
        sequence.values[:, :, 0].astype(np.int64),
        sequences.known,
        sequences.hours,
    )


def can_remember(channels: ComponentChannels, sequences: Sequences | None) -> bool:
    """Return whether history is long enough, and the component small enough."""
    variables = len(channels.component.variables)
    if sequences is None or sequences.windows < LEAST_WINDOWS:
        return False
    return 0 < variables <= MOST_VARIABLES


def fit_component(
    history: ComponentHistory, groups: int, variables: int, components: int = 1
) -> Transitions:
    """Choose the parameters on held-out stretches, and fit transitions to all of history.

    If there are many `components`, parameters are chosen by fewer subjects.
    """
    edges = history.edges
    most = min(_MOST_STEPS, max(_LEAST_STEPS, _STEPS // components))
    profiles, strengths = _choose(history, groups, variables, edges, most)
    model = _make_model(history, groups, variables, edges, profiles)._replace(strengths=strengths)
    return fit_transitions(history.steps(0, history.windows, edges), model, history.firsts())


def fit_without(
    history: ComponentHistory, fitted: Transitions, variables: int, begin: int, end: int
) -> Transitions:
    """Fit the same model to history without a stretch."""
    rest = [history.steps(0, begin, fitted.layout.edges)] if begin > 1 else []
    if history.windows - end > 1:
        rest.append(history.steps(end, history.windows, fitted.layout.edges))
    return fit_transitions(join_steps(rest), _model_of(fitted, variables), history.firsts())


def can_predict(
    history: ComponentHistory, fitted: Transitions, variables: int, components: int = 1
) -> bool:
    """Return whether windows before, hours and profiles predict windows better than contexts alone.

    Both are judged on stretches that follow those they are fitted to. The more `components` there
    are, the more one of them must gain: among many models, chance makes one look good.
    """
    if history.windows < 2 * LEAST_WINDOWS:
        return True
    model = _model_of(fitted, variables)
    sample, better = _sample_subjects(history, _MOST_STEPS), 0.0
    for before, steps in _divide(sample, fitted.layout.edges):
        alone = _predict_alone(before, steps, fitted, variables)
        better += predict_held_out(before, steps, model, sample.subjects) - alone
    return better > _CLEAR + math.log(components * len(_STRENGTHS))


def _model_of(fitted: Transitions, variables: int) -> StepModel:
    profiles = len(fitted.weights) if fitted.joint else 1
    return StepModel(fitted.layout, variables, profiles, fitted.strengths)


def _predict_alone(before: Steps, steps: Steps, fitted: Transitions, variables: int) -> float:
    """Return the log-likelihood of steps, given nothing but the contexts of their windows.

    Contexts are smoothed with the strength that is best for these very steps.
    """
    groups, size = len(fitted.layout.groups), fitted.values
    shifts = [0] if fitted.joint else range(variables)
    totals = np.zeros(len(_ALONE))
    for shift in shifts:
        known, held_out = (
            np.bincount(
                one.features.here * size + (one.value >> shift) % size, minlength=groups * size
            ).reshape(groups, size)
            for one in (before, steps)
        )
        base = (known.sum(axis=0) + 1 / size) / (known.sum() + 1)
        for place, strength in enumerate(_ALONE):
            likely = (known + strength * base) / (known.sum(axis=1, keepdims=True) + strength)
            totals[place] += (held_out * np.log(likely)).sum()
    return float(totals.max())


def _make_model(
    history: ComponentHistory,
    groups: int,
    variables: int,
    edges: tuple[float, ...],
    profiles: int,
) -> StepModel:
    """Return the model with so many profiles, with the strongest smoothing."""
    size = 1 << variables if variables <= MOST_JOINT else 2
    chains = profiles if variables <= MOST_JOINT else variables
    common = np.bincount(history.groups[history.known], minlength=groups).astype(np.float64)
    # Hours say nothing if history has less than a day, and weekends if it has no whole week.
    slots = 48 if len(np.unique(history.hours % 24)) > 1 else 1
    layout = choose_layout(common, chains * size * size, edges, slots)
    return StepModel(layout, variables, profiles, _STRENGTHS[0])


def _choose(
    history: ComponentHistory, groups: int, variables: int, edges: tuple[float, ...], most: int
) -> tuple[int, tuple[float, float]]:
    """Return the number of profiles and the smoothing that predict held-out stretches best."""
    if history.windows < 2 * LEAST_WINDOWS:
        return 1, _USUAL
    sample = _sample_subjects(history, most)
    stretches = list(_divide(sample, edges))

    def judge(model: StepModel) -> float:
        return sum(
            predict_held_out(known, held_out, model, sample.subjects)
            for known, held_out in stretches
        )

    def smooth(model: StepModel, known: float | None = None) -> tuple[StepModel, float]:
        """Return the model with the best smoothing, and its likelihood."""
        tried = {
            strengths: known
            if known is not None and strengths == model.strengths
            else judge(model._replace(strengths=strengths))
            for strengths in _STRENGTHS
        }
        top = max(tried.values())
        chosen = next(one for one in _STRENGTHS if tried[one] >= top - _TIE)
        return model._replace(strengths=chosen), tried[chosen]

    # Profiles also smooth, so numbers of them are compared with a smoothing that needs no help.
    one, least = smooth(_make_model(sample, groups, variables, edges, 1))
    best, top = one, least
    for profiles in choose_profiles(variables)[1:]:
        trial = _make_model(sample, groups, variables, edges, profiles)
        trial = trial._replace(strengths=one.strengths)
        found = judge(trial)
        if found > top + _TIE:
            best, top = trial, found
    if best.profiles > 1:
        best, _ = smooth(best, top)
    return best.profiles, best.strengths


def _divide(history: ComponentHistory, edges: tuple[float, ...]) -> Iterator[tuple[Steps, Steps]]:
    for end, stop in _list_trials(history):
        yield history.steps(0, end, edges), history.steps(end, stop, edges)


def _list_trials(history: ComponentHistory) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each stretch that is predicted from those before it."""
    bounds = np.linspace(0, history.windows, 2 * _PARTS + 1).astype(int).tolist()
    return pairwise(bounds[_PARTS:])


def _sample_subjects(history: ComponentHistory, most: int) -> ComponentHistory:
    """Return the history of some subjects, with at most about so many windows."""
    step = -(-history.known.size // most)
    if step == 1:
        return history
    own = slice(None, None, step)
    return ComponentHistory(
        history.groups[:, own],
        history.opened[:, own],
        history.openness[:, own],
        history.values[:, own],
        history.known[:, own],
        history.hours,
    )
