"""What is private, in plain words, for the API and the console."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

from tacit.insight.explain import Explanation, explain
from tacit.privacy.exponentials import format_epsilon
from tacit.spec.specification import Specification


class PrivateDeclaration(BaseModel):
    """A private pattern, and what its epsilon means."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "hospital_visit",
                "pattern": "SEQ(at_hospital, parked)",
                "elements": ["at_hospital", "parked"],
                "epsilon": "1",
                "unit": "one subject, one private pattern, one window",
                "limit": "20 per day",
                "even_odds": "74",
            }
        }
    )

    name: str
    pattern: str
    elements: list[str]
    epsilon: str
    unit: str
    limit: str | None
    even_odds: str
    """What a 50:50 guess about one window (where windows slide, one occurrence) becomes at most,
    in 100, for someone who knows everything else."""


_MOST_KEPT: Final = 8
_EXPLAINED: Final[dict[str, Explanation]] = {}
"""Explanations by the fingerprint of their specification: they take long to make."""


def explain_once(spec: Specification) -> Explanation:
    """Explain a specification, or return its explanation from before."""
    key = spec.fingerprint
    if key not in _EXPLAINED:
        while len(_EXPLAINED) >= _MOST_KEPT:
            _EXPLAINED.pop(next(iter(_EXPLAINED)), None)
        _EXPLAINED[key] = explain(spec)
    return _EXPLAINED[key]


def describe_private(spec: Specification, subject: str | None = None) -> list[PrivateDeclaration]:
    """Describe all private patterns, or those that apply to a subject."""
    meaning = explain_once(spec)
    numbers = range(len(spec.private)) if subject is None else sorted(spec.applying(subject))
    return [
        PrivateDeclaration(
            name=one.name,
            pattern=one.pattern,
            elements=list(one.elements),
            epsilon=format_epsilon(one.epsilon),
            unit=meaning.unit,
            limit=one.limit,
            even_odds=str(one.odds.even),
        )
        for one in (meaning.private[number] for number in numbers)
    ]
