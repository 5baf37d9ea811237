"""Mechanisms on plain boolean matrices: windows in rows, event types in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import ValidationError

from tacit.errors import OptionError, PatternError
from tacit.evaluation.measurement import Presence, compute_statistics, to_closed_panes
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.options import option
from tacit.patterns.residuals import is_presence, lift_booleans
from tacit.patterns.tree import Pattern
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan, plan_without_history
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.specification import Private, Query, Specification
from tacit.windows.schedule import Windows


@dataclass(frozen=True, eq=False)
class MatrixAnswers:
    """Protected answers to queries about the rows of a matrix."""

    queries: tuple[str, ...]
    detected: Presence
    """`[window][query]`"""
    confidence: NDArray[np.float64]
    """`[window][query]`: how likely each answer is right, by the plan's prior."""
    plan: Plan
    """The plan: `tacit.audit(plan)` computes its exact epsilon."""
    private: bool
    """Whether the noise came from the operating system, and not from a seed."""

    def polars(self) -> pl.DataFrame:
        """Return a frame with a column for each query."""
        return pl.DataFrame(
            {name: self.detected[:, number] for number, name in enumerate(self.queries)}
        )

    def __repr__(self) -> str:
        windows, queries = self.detected.shape
        note = "" if self.private else ", NOT PRIVATE (seeded)"
        return f"<MatrixAnswers: {windows:,} windows, {queries} queries{note}>"


def protect_matrix(
    presence: Any,
    *,
    private: Mapping[str | Pattern, float | Decimal],
    queries: Mapping[str, str | Pattern],
    types: Sequence[str] | None = None,
    history: Any = None,
    mechanism: str = "optimal",
    decode: str = "posterior",
    seed: int | None = None,
) -> MatrixAnswers:
    """Answer queries about the rows of a boolean matrix with a mechanism, without the engine.

    `presence[window][event type]` is an array, or a frame whose columns are the event types. Names
    of the columns of an array are `types`, by default `e1`, `e2`, ... Each row is one window of one
    subject. `private` has an epsilon for each private pattern, and `queries` a pattern for each
    name; patterns are of presence: AND, OR and NOT of event types.

    The plan is made from `history`, a matrix with the same columns. It must not be the matrix that
    is protected: a plan depends on its history. Without history only `uniform` works. Each call
    draws new noise and spends each epsilon once for every row. With a `seed` answers are
    reproducible, and not private.

    >>> chance = np.random.default_rng(1)
    >>> past, now = chance.random((2, 5000, 3)) < 0.5
    >>> answers = protect_matrix(
    ...     now, private={"AND(a, b)": 2}, queries={"any": "OR(b, c)"}, types=("a", "b", "c"),
    ...     history=past, seed=1,
    ... )
    >>> answers
    <MatrixAnswers: 5,000 windows, 1 queries, NOT PRIVATE (seeded)>
    >>> float((answers.detected[:, 0] == (now[:, 1] | now[:, 2])).mean()) > 0.8
    True
    """
    rows, names = _read(presence, types, "presence")
    spec = _specify(names, private, queries, mechanism, decode)
    if history is None:
        plan = plan_without_history(spec)
    else:
        past, known = _read(history, names, "history")
        if known != names:
            raise OptionError(f"{option('history')}: expected the columns {', '.join(names)}")
        plan = make_plan(spec, compute_statistics(spec, past))
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    evaluator = ProtectedEvaluator(spec, plan.mechanisms, noise)
    words, certainty = evaluator.answer(to_closed_panes(rows), {}, np.zeros(len(rows), np.int32))
    octets = np.ascontiguousarray(words[0], "<u8").view(np.uint8)
    detected = np.unpackbits(octets, axis=1, count=len(rows), bitorder="little").view(np.bool_)
    confidence = [
        certainty.compute_confidence(query, slice(0, 1), slice(0, len(rows)), detected[[query]])[0]
        for query in range(len(queries))
    ]
    return MatrixAnswers(tuple(queries), detected.T, np.array(confidence).T, plan, seed is None)


def _read(given: Any, types: Sequence[str] | None, name: str) -> tuple[Presence, tuple[str, ...]]:
    """Return a matrix and the names of its columns."""
    if hasattr(given, "columns") and not isinstance(given, np.ndarray):
        frame = given if isinstance(given, pl.DataFrame) else pl.DataFrame(given)
        names = tuple(frame.columns)
        matrix = frame.to_numpy()
    else:
        matrix = np.asarray(given)
        width = matrix.shape[1] if matrix.ndim == 2 else 0
        names = tuple(types or (f"e{number + 1}" for number in range(width)))
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or matrix.shape[1] != len(names):
        raise OptionError(
            f"{option(name)}: expected booleans [window][event type] of {len(names)} event types;"
            f" got {matrix.dtype} of the shape {matrix.shape}"
        )
    return np.ascontiguousarray(matrix), names


def _specify(
    names: Sequence[str],
    private: Mapping[str | Pattern, float | Decimal],
    queries: Mapping[str, str | Pattern],
    mechanism: str,
    decode: str,
) -> Specification:
    """Write what is asked as a specification; its streams are never read."""
    try:
        spec = Specification(
            streams={"matrix": Stream(subject="row", time="time")},
            windows=Windows(size="1 min"),
            events={name: EventType(stream="matrix") for name in names},
            private=tuple(Private(pattern=one, epsilon=own) for one, own in private.items()),
            queries=tuple(
                Query(name=name, consumer="you", pattern=pattern)
                for name, pattern in queries.items()
            ),
            mechanism=mechanism,
            decode=decode,
        ).checked()
    except ValidationError as error:
        told = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        raise OptionError(told) from error
    for pattern in (*spec.query_patterns.values(), *spec.private_patterns):
        if not is_presence(lift_booleans(pattern)):
            raise PatternError(f"a matrix has no times, so patterns are of presence; got {pattern}")
    return spec
