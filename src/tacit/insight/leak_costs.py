"""What protecting more event types would cost: plan again with a changed specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.engines.local import infer_history_types
from tacit.patterns.tree import Name, Or, Pattern
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.evaluators import Evaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.survey import HistorySurvey
from tacit.planning.plan import Expected
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.mechanism import RunMemory
from tacit.privacy.statistics import Statistics
from tacit.progress import ProgressCallback, ignore_progress, scale_progress, split_progress
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes


@dataclass(frozen=True, slots=True)
class Cost:
    """What protecting some event types costs in expected quality."""

    before: float
    """The expected Q without it, micro average over all queries."""
    after: float
    query: str | None
    """The query that loses most; None if none loses."""
    query_before: float | None = None
    query_after: float | None = None

    @property
    def loss(self) -> float:
        """The quality that is lost; it may be slightly negative, since plans are estimates."""
        return self.before - self.after

    @classmethod
    def of(cls, before: Expected, after: Expected) -> Cost:
        """Compare what two plans expect."""
        rows = list(zip(before.rows(), after.rows(), strict=True))
        one, other = max(rows, key=lambda pair: pair[0]["quality"] - pair[1]["quality"])
        if one["quality"] <= other["quality"]:
            return cls(before.quality, after.quality, None)
        found = (one["query"], one["quality"], other["quality"])
        return cls(before.quality, after.quality, *found)


def protect_types(spec: Specification, additions: Mapping[int, Sequence[str]]) -> Specification:
    """Add event types to private patterns, given by their place in the specification.

    The guarantee of a private pattern covers its elements. So `OR(visit, slow)` protects the
    elements of `visit` and `slow` together, with the same epsilon.
    """
    private = list(spec.private)
    for place, types in additions.items():
        pattern = _extend(private[place].pattern, types)
        private[place] = private[place].model_copy(update={"pattern": pattern})
    return spec.model_copy(update={"private": tuple(private)}).checked()


def _extend(pattern: Pattern, types: Sequence[str]) -> Pattern:
    parts = pattern.parts if isinstance(pattern, Or) else (pattern,)
    return Or(*parts, *(Name(name) for name in types))


def expect_qualities(
    specs: Sequence[Specification],
    inputs: Sequence[Input],
    progress: ProgressCallback = ignore_progress,
) -> list[Expected]:
    """Plan for specifications that differ in what is private; history is read once for all."""
    surveyed = _survey(specs, inputs, scale_progress(progress, 0, 0.5))
    expected = []
    planning = split_progress(scale_progress(progress, 0.5, 1), len(specs))
    for spec, statistics, share in zip(specs, surveyed, planning, strict=True):
        found = make_plan(spec, statistics, progress=share).expected
        assert found is not None, "there are windows of history"
        expected.append(found)
    return expected


def _survey(
    specs: Sequence[Specification], inputs: Sequence[Input], progress: ProgressCallback
) -> list[list[Statistics]]:
    literal = specs[0].decode == "literal"
    evaluator = _SurveyOfVariants([HistorySurvey(spec, literal=literal) for spec in specs])
    recorded = infer_history_types(CompiledSpec(specs[0], evaluator), inputs)
    run = Run(specs[0], inputs, evaluator=evaluator, progress=progress, recorded=recorded)
    for answers in run:
        for survey, own in evaluator.split(answers):
            survey.count(own, survey.policies.assign(run.engine.subjects))
    return [
        [replace(found, columns=recorded) for found in survey.statistics()]
        for survey in evaluator.surveys
    ]


class _SurveyOfVariants(Evaluator):
    """The surveys of several specifications over the same windows."""

    def __init__(self, surveys: Sequence[HistorySurvey]) -> None:
        self.surveys = surveys
        names = [f"{n}.{name}" for n, survey in enumerate(surveys) for name in survey.names]
        super().__init__(names, [part for survey in surveys for part in survey.queries])

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> tuple[NDArray[np.uint64], None]:
        """Return the bits of all surveys, one after the other."""
        found = [survey.answer(closed, rows, policies)[0] for survey in self.surveys]
        return np.concatenate(found, axis=1), None

    def split(self, answers: Answers) -> list[tuple[HistorySurvey, Answers]]:
        """Return each survey with its own bits."""
        parts, begin = [], 0
        for survey in self.surveys:
            end = begin + len(survey.names)
            own = replace(answers, queries=survey.names, bits=answers.bits[:, begin:end])
            parts.append((survey, own))
            begin = end
        return parts
