"""Tokens: created, listed and revoked by operators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tacit.ledger.answers import parse_microseconds
from tacit.ledger.database import now
from tacit.service.access import AnyRole, OperatorRole
from tacit.service.dependencies import State
from tacit.service.problems import Problem, problem_responses
from tacit.service.roles import Role
from tacit.service.tokens import LONGEST_NAME, TokenRecord, UnknownTokenError

router = APIRouter(tags=["tokens"])
_DENIED = problem_responses(401, 403, 422, 429)
_TOKEN: Final[dict[str, JsonValue]] = {
    "id": "3f0c9a7be214",
    "role": "consumer",
    "name": "city",
    "streams": [],
    "note": "for the dashboard",
    "created": "2026-03-01T08:00:00Z",
    "creator": "operator ann",
    "expires": "2027-01-01T00:00:00Z",
    "revoked": None,
    "state": "valid",
}


class Identity(BaseModel):
    """Who holds a token."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"role": "consumer", "name": "city", "streams": []}}
    )

    role: Role
    name: str
    streams: list[str]


class NewToken(BaseModel):
    """What a new token allows."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"role": "consumer", "name": "city", "expires": "2027-01-01T00:00:00Z"}
        },
    )

    role: Role
    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    """The consumer, the subject, the producer of tuples, or the operator."""
    streams: Annotated[list[str], Field(max_length=100)] = []
    """For a source: the streams that it may send to; by default all."""
    note: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    expires: datetime | None = None
    """When the token expires; UTC without a zone. By default never."""


class Token(BaseModel):
    """A token without its secret."""

    model_config = ConfigDict(json_schema_extra={"example": _TOKEN})

    id: str
    role: Role
    name: str
    streams: list[str]
    note: str
    created: datetime
    creator: str
    expires: datetime | None
    revoked: datetime | None
    state: str
    """valid, expired or revoked"""


class CreatedToken(Token):
    """A new token with its secret, which is shown only now."""

    model_config = ConfigDict(
        json_schema_extra={"example": {**_TOKEN, "token": f"tacit_{_TOKEN['id']}_SECRET"}}
    )

    token: str


@router.get("/me", summary="Who you are", responses=problem_responses(401, 429))
def get_identity(principal: AnyRole) -> Identity:
    """Return the role and name of your token."""
    return Identity(role=principal.role, name=principal.name, streams=list(principal.streams))


@router.get("/tokens", summary="All tokens", responses=_DENIED)
def list_tokens(state: State, _: OperatorRole) -> list[Token]:
    """Return all tokens without their secrets, the newest first."""
    return [Token(**_describe(record)) for record in state.tokens.list_all()]


@router.post("/tokens", summary="Create a token", status_code=201, responses=_DENIED)
def create_token(state: State, principal: OperatorRole, given: NewToken) -> CreatedToken:
    """Create a token. The response has its secret, which is stored nowhere."""
    unknown = [stream for stream in given.streams if stream not in state.spec.streams]
    if unknown:
        raise Problem(422, f"there is no stream called '{unknown[0]}'")
    text, record = state.tokens.create(
        given.role,
        given.name,
        creator=str(principal),
        streams=given.streams,
        note=given.note,
        expires=None if given.expires is None else parse_microseconds(given.expires),
    )
    return CreatedToken(token=text, **_describe(record))


@router.delete(
    "/tokens/{token_id}", summary="Revoke a token", responses={**_DENIED, **problem_responses(404)}
)
def revoke_token(
    state: State,
    principal: OperatorRole,
    token_id: Annotated[str, Path(max_length=LONGEST_NAME, description="The token's id.")],
) -> Token:
    """Revoke a token from now on. Streams that it opened end within seconds."""
    try:
        record = state.tokens.revoke(token_id, actor=str(principal))
    except UnknownTokenError as error:
        raise Problem(404, "there is no token with this id") from error
    return Token(**_describe(record))


def _describe(record: TokenRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "role": record.role,
        "name": record.name,
        "streams": list(record.streams),
        "note": record.note,
        "created": _to_time(record.created),
        "creator": record.creator,
        "expires": None if record.expires is None else _to_time(record.expires),
        "revoked": None if record.revoked is None else _to_time(record.revoked),
        "state": record.state(now()),
    }


def _to_time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
