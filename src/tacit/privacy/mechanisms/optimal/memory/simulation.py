"""Follow beliefs over windows of history, with seeded draws: what memory would have answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.privacy.components import Component, Exposure
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter, Prediction
from tacit.privacy.mechanisms.optimal.memory.kernels import WHOLE
from tacit.privacy.mechanisms.optimal.part_tables import Whole, Words, holds
from tacit.privacy.sequences import Sequences
from tacit.privacy.thresholds import PosteriorCounts

Singles = NDArray[np.float32]
Bits = NDArray[np.bool_]

Decision: TypeAlias = Callable[[int, Sequence[Prediction]], Bits]
"""Given the number of a window and the predictions of its components, whose draws are left out."""


class SimulatedWindow(NamedTuple):
    """One window of all subjects."""

    number: int
    predicted: tuple[Prediction, ...]
    silent: Bits
    parts: tuple[Singles, ...]
    """For each component `[subject][part]`: how likely the part is."""


def simulate(
    filters: Sequence[BeliefFilter],
    sequences: Sequences,
    begin: int,
    end: int,
    decide: Decision | None = None,
) -> Iterator[SimulatedWindow]:
    """Follow the beliefs of all components from window `begin` up to `end`."""
    subjects = sequences.known.shape[1]
    states = [one.start(subjects) for one in filters]
    hours = sequences.hours
    for window in range(begin, end):
        hour = int(hours[window])
        predicted = tuple(
            one.predict(state, np.ascontiguousarray(part.signals[window]), hour)
            for one, state, part in zip(filters, states, sequences.components, strict=True)
        )
        known = sequences.known[window]
        silent = ~known if decide is None else ~known | decide(window, predicted)
        parts = []
        for number, (one, part, found) in enumerate(
            zip(filters, sequences.components, predicted, strict=True)
        ):
            symbols = one.draw(found, np.ascontiguousarray(part.values[window]), silent)
            updated = one.update(states[number], found, symbols)
            states[number] = updated.state
            parts.append(np.divide(updated.parts, WHOLE, dtype=np.float32))
        yield SimulatedWindow(window, predicted, silent, tuple(parts))


def combine_parts(exposure: Exposure, parts: Sequence[Singles]) -> list[Singles | None]:
    """Return how likely each query is; None if it depends on nothing private.

    Parts of different components count as independent.
    """
    found: list[Singles | None] = []
    for question in exposure.questions:
        if not question.parts:
            found.append(None)
            continue
        likely = np.ones(len(parts[0]), np.float32)
        for component, part in question.parts:
            own = parts[component][:, part]
            likely = likely * (own if question.every else 1 - own)
        found.append(likely if question.every else 1 - likely)
    return found


class TrueAnswers:
    """The true answers to queries in windows of history."""

    def __init__(self, exposure: Exposure) -> None:
        self.exposure = exposure
        self._tables = [_flatten(component) for component in exposure.components]

    def find(self, sequences: Sequences, begin: int, end: int) -> list[Bits | None]:
        """Return the answers to each query, of all subjects in windows from `begin` up to `end`."""
        parts = []
        for tables, own in zip(self._tables, sequences.components, strict=True):
            signals, values = (
                np.ascontiguousarray(one[begin:end]).reshape(-1, one.shape[2])
                for one in (own.signals, own.values)
            )
            truth = np.empty((len(values), len(tables[1]) - 1), np.bool_)
            _find_truth(signals, values, *tables, truth)
            parts.append(truth.astype(np.float32))
        return [
            None if likely is None else likely > 0.5
            for likely in combine_parts(self.exposure, parts)
        ]


def _flatten(component: Component) -> tuple[Whole, Whole, Whole, Whole]:
    cofactors: list[int] = []
    variables: list[int] = []
    first_cofactor, first_variable = [0], [0]
    for part in component.parts:
        cofactors += part.cofactors
        variables += part.variables
        first_cofactor.append(len(cofactors))
        first_variable.append(len(variables))
    arrays = cofactors, first_cofactor, variables, first_variable
    one, two, three, four = (np.array(array, np.int64) for array in arrays)
    return one, two, three, four


@compiled
def _find_truth(
    signals: Words,
    values: Words,
    cofactors: Whole,
    first_cofactor: Whole,
    variables: Whole,
    first_variable: Whole,
    truth: Bits,
) -> None:
    one, low = np.uint64(1), np.uint64(63)
    for i in range(len(signals)):
        for part in range(len(first_cofactor) - 1):
            choice, begin = np.int64(0), first_variable[part]
            for place in range(begin, first_variable[part + 1]):
                variable = np.uint64(variables[place])
                bit = (values[i, variable >> np.uint64(6)] >> (variable & low)) & one
                choice |= np.int64(bit) << (place - begin)
            truth[i, part] = holds(cofactors[first_cofactor[part] + choice], signals[i])


def count_windows(
    counts: PosteriorCounts,
    truth: TrueAnswers,
    sequences: Sequences,
    windows: Sequence[SimulatedWindow],
) -> int:
    """Add successive windows of all known subjects to the counts of each query; return how many."""
    begin, end = windows[0].number, windows[-1].number + 1
    known = sequences.known[begin:end].ravel()
    parts = [np.concatenate(own) for own in zip(*(one.parts for one in windows), strict=True)]
    answers = truth.find(sequences, begin, end)
    for query, posterior in enumerate(combine_parts(truth.exposure, parts)):
        true = answers[query]
        if posterior is not None and true is not None:
            own = true[known].astype(np.float64)
            counts.add(query, np.clip(posterior[known].astype(np.float64), 0, 1), own, 1 - own)
    return int(known.sum())
