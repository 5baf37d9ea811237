"""Answers with several values: which value the bits of boolean queries and their confidence make.

A query with `one_of` has a boolean query for each of its patterns and for `none`. If exactly one of
them is answered yes, that is the answer; otherwise the most likely value is. A query with `times`
has one for each number; the answer is how many of them are answered yes. Both are functions of what
was released, so they cost no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.spec.boolean_queries import QueryColumns

Bits = NDArray[np.bool_]
Confidence = NDArray[np.float32]


class QueryValues(NamedTuple):
    """Answers to queries, `[window][subject][query]`."""

    detected: Bits
    """For a query with several values, whether the value is not `none` or 0."""
    values: NDArray[np.int32]
    """The number of the value among those of all queries; -1 if the answer is yes or no."""
    confidence: Confidence | None


def list_values(queries: Sequence[QueryColumns]) -> list[str]:
    """Return the values of all queries, in order; queries may share some."""
    return list(dict.fromkeys(value for query in queries for value in query.values))


def find_values(
    queries: Sequence[QueryColumns], bits: Bits, confidence: Confidence | None
) -> QueryValues:
    """Return the answers to queries, given `[window][subject][boolean query]`."""
    known = {value: number for number, value in enumerate(list_values(queries))}
    shape = (*bits.shape[:2], len(queries))
    detected, values = np.empty(shape, np.bool_), np.full(shape, -1, np.int32)
    likely = None if confidence is None else np.empty(shape, np.float32)
    for place, query in enumerate(queries):
        own = bits[:, :, query.columns]
        if query.kind == "detected":
            detected[:, :, place] = own[:, :, 0]
            if likely is not None and confidence is not None:
                likely[:, :, place] = confidence[:, :, query.first]
            continue
        chances = find_chances(query, own, _cut(confidence, query))
        chosen = _choose(query, own, chances)
        numbers = np.array([known[value] for value in query.values], np.int32)
        values[:, :, place] = numbers[chosen]
        absent = 0 if query.kind == "times" else len(query.values) - 1
        detected[:, :, place] = chosen != absent
        if likely is not None:
            taken = np.take_along_axis(chances, chosen[:, :, np.newaxis], axis=2)
            likely[:, :, place] = taken[:, :, 0]
    return QueryValues(detected, values, likely)


def find_chances(query: QueryColumns, bits: Bits, confidence: Confidence | None) -> Confidence:
    """Return `[window][subject][value]`: how likely each value of a query is.

    `bits` and `confidence` are those of its boolean queries; without confidence the bits are true.
    """
    yes = bits.astype(np.float32)
    if confidence is not None:
        yes = np.where(bits, confidence, 1 - confidence)
    if query.kind == "times":  # the chances of at least 0, 1, 2, ... matches
        edge = np.ones((*yes.shape[:2], 1), np.float32)
        at_least = np.concatenate([edge, yes, 0 * edge], axis=2)
        yes = at_least[:, :, :-1] - at_least[:, :, 1:]
    yes = np.maximum(yes, 0)
    total = yes.sum(axis=2, keepdims=True)
    # Parts of a query that are decoded separately may not add up exactly.
    even = np.full_like(yes, 1 / yes.shape[2])
    return np.asarray(np.divide(yes, total, out=even, where=total > 0))


def _choose(query: QueryColumns, bits: Bits, chances: Confidence) -> NDArray[np.int64]:
    """Return the number of the answer among the values of a query."""
    if query.kind == "times":
        return np.asarray(bits.sum(axis=2), np.int64)
    single = bits.sum(axis=2) == 1
    return np.asarray(np.where(single, bits.argmax(axis=2), chances.argmax(axis=2)))


def _cut(confidence: Confidence | None, query: QueryColumns) -> Confidence | None:
    return None if confidence is None else confidence[:, :, query.columns]
