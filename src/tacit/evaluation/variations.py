"""Data sets like those of Algorithm 2 with one varied parameter: sizes, overlap, history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tacit.evaluation.synthetic import DataSet, Presence, Shape, draw_data_set
from tacit.patterns.tree import And, elements
from tacit.spec.specification import Query, Specification


@dataclass(frozen=True, slots=True)
class Variation:
    """A varied parameter, its values, and how to draw a data set for one of them."""

    name: str
    label: str
    values: tuple[float, ...]
    draw: Callable[[int, float], DataSet]


def with_queries(number: int, targets: float) -> DataSet:
    """Draw a data set with this number of target patterns."""
    return draw_data_set(number, Shape(targets=int(targets)))


def with_private(number: int, private: float) -> DataSet:
    """Draw a data set with this number of private patterns."""
    return draw_data_set(number, Shape(private=int(private)))


def with_length(number: int, length: float) -> DataSet:
    """Draw a data set whose patterns have this number of events."""
    return draw_data_set(number, Shape(length=int(length)))


def with_alpha(number: int, alpha: float) -> DataSet:
    """Draw a data set with this weight of precision; recall has the rest."""
    return draw_data_set(number, Shape(alpha=alpha))


def with_overlap(number: int, shared: float) -> DataSet:
    """Draw a data set whose targets have this number of private elements; others are public."""
    drawn = draw_data_set(number)
    random = np.random.default_rng([number, 7])
    private = [elements(pattern) for pattern in drawn.spec.private_patterns]
    named = {name for pattern in private for name in pattern}
    public = [name for name in drawn.spec.events if name not in named]
    while True:
        targets = [
            {
                *random.choice(private[random.integers(len(private))], int(shared), replace=False),
                *random.choice(public, Shape().length - int(shared), replace=False),
            }
            for _ in drawn.spec.subject_queries
        ]
        spec = _replace_queries(drawn.spec, targets)
        if all(_any_true(spec, presence) for presence in (drawn.history, drawn.test)):
            return DataSet(spec, drawn.history, drawn.test)


def with_drift(number: int, drift: float) -> DataSet:
    """Draw a data set whose history has other rates: test events are redrawn with this chance.

    A redrawn event occurs at a new rate of its type, uniform in (0, 1). So a type whose rate was
    r has the rate (1 - drift) * r + drift * r' by then: 0 is a correct history, 1 an unrelated one.
    """
    drawn = draw_data_set(number)
    random = np.random.default_rng([number, 8])
    while True:
        rates = random.random(drawn.test.shape[1])
        anew = random.random(drawn.test.shape) < rates
        test = np.where(random.random(drawn.test.shape) < drift, anew, drawn.test)
        if _any_true(drawn.spec, test):
            return DataSet(drawn.spec, drawn.history, test)


def _replace_queries(spec: Specification, targets: list[set[str]]) -> Specification:
    order = list(spec.events)
    return Specification(
        streams=spec.streams,
        windows=spec.windows,
        events=spec.events,
        private=spec.private,
        queries=tuple(
            Query(
                name=query.name,
                consumer=query.consumer,
                pattern=And(*sorted(target, key=order.index)),
                alpha=query.alpha,
            )
            for query, target in zip(spec.subject_queries, targets, strict=True)
        ),
    )


def _any_true(spec: Specification, presence: Presence) -> bool:
    places = {name: place for place, name in enumerate(spec.events)}
    return any(
        presence[:, [places[name] for name in elements(pattern)]].all(axis=1).any()
        for pattern in spec.query_patterns.values()
    )


VARIATIONS: Final = {
    variation.name: variation
    for variation in (
        Variation("queries", "number of queries", (1, 2, 3, 5, 10), with_queries),
        Variation("private", "number of private patterns", (1, 2, 3, 4, 5), with_private),
        Variation("overlap", "private elements in each target pattern", (0, 1, 2, 3), with_overlap),
        Variation("length", "events in each pattern", (1, 2, 3, 4, 5), with_length),
        Variation("alpha", "alpha: weight of precision", (0.1, 0.3, 0.5, 0.7, 0.9), with_alpha),
        Variation(
            "history",
            "change of event rates since history (0: none, 1: unrelated)",
            (0, 0.1, 0.25, 0.5, 0.75, 1),
            with_drift,
        ),
    )
}
