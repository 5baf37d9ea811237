"""Administrative acts, for operators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from tacit.ledger.acts import ActKind, read_acts
from tacit.service.access import OperatorRole
from tacit.service.dependencies import LARGEST_ID, State
from tacit.service.problems import problem_responses

router = APIRouter(tags=["workflow"])


class RecordedAct(BaseModel):
    """Something that was done, by whom and when. It is a link of the ledger's hash chain."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "number": 7,
                "moment": "2026-03-01T08:15:00Z",
                "actor": "operator ann",
                "kind": "approved",
                "about": "proposal 3",
                "detail": {"version": 4},
                "after_release": 1440,
            }
        }
    )

    number: int
    moment: datetime
    actor: str
    kind: ActKind
    about: str
    detail: dict[str, Any]
    after_release: int
    """The last release before it; 0 if there was none."""


@router.get("/acts", summary="Administrative acts", responses=problem_responses(401, 403, 422, 429))
def get_acts(
    state: State,
    _: OperatorRole,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST_ID, description="Only acts with smaller numbers.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most acts to return.")] = 100,
) -> list[RecordedAct]:
    """Return who changed what and when, the newest first."""
    return [
        RecordedAct(
            number=act.number,
            moment=datetime.fromtimestamp(act.moment / 1_000_000, UTC),
            actor=act.actor,
            kind=act.kind,
            about=act.about,
            detail=dict(act.detail),
            after_release=act.after,
        )
        for act in read_acts(state.ledger.database, before, limit)
    ]
