"""What is asked, what is private, what was spent, and how the run is doing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, JsonValue

from tacit.ledger.statement import read_statement
from tacit.pipeline.run import Run
from tacit.privacy.prices import NANO
from tacit.service.access import OperatorRole, ReadingRole
from tacit.service.dependencies import State
from tacit.service.meanings import PrivateDeclaration, describe_private
from tacit.service.problems import Problem, problem_responses
from tacit.service.roles import Principal, Role
from tacit.service.state import ServiceState

router = APIRouter(tags=["facts"])
_DENIED = problem_responses(401, 403, 429)
_UNIT: Final = "epsilon for one subject and one private pattern, summed over windows"
_RATE_SAMPLES: Final = 6
"""From how many samples of the status a rate is computed."""


class AskedQuery(BaseModel):
    """A query and its consumer."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"name": "jam", "consumer": "city", "pattern": "SEQ(slow{3,})"}
        }
    )

    name: str
    consumer: str
    pattern: str


_HORIZON: Final[dict[str, JsonValue]] = {
    "private": "hospital_visit",
    "start": "2026-03-01T00:00:00",
    "hours": 24.0,
    "spent": 16.0,
    "limit": 20.0,
    "windows_charged": 16,
    "windows_free": 128,
}
_STREAM: Final[dict[str, JsonValue]] = {
    "stream": "gps",
    "source": "http",
    "rows": 1_203_511,
    "rate": 851.2,
    "newest": "2026-03-01T08:12:04Z",
    "behind_seconds": 0.0,
    "dead_letters": {"late": 12},
}
_STATUS: Final[dict[str, JsonValue]] = {
    "run": "taxi",
    "ready": True,
    "subjects": 10_000,
    "windows": 1440,
    "released_until": "2026-03-01T08:10:00Z",
    "newest": "2026-03-01T08:12:04Z",
    "watermark": "2026-03-01T08:11:34Z",
    "lag_seconds": 94.0,
    "drift": None,
    "retries": 0,
    "reloads": 1,
    "reloads_refused": 0,
    "tuples": 1_203_499,
    "late": 12,
    "refused": 0,
    "open_windows": 1,
    "undelivered": 0,
    "commit_seconds": 0.02,
    "streams": [_STREAM],
}


class HorizonBalance(BaseModel):
    """The spending for a private pattern in one horizon."""

    model_config = ConfigDict(json_schema_extra={"example": _HORIZON})

    private: str
    start: str
    """In the subject's local time."""
    hours: float
    spent: float
    limit: float | None
    windows_charged: int
    """Windows that cost something, summed over subjects."""
    windows_free: int


class LedgerStatement(BaseModel):
    """What was spent: by you, or for operators the largest of all subjects."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"subject": "4711", "unit": _UNIT, "horizons": [_HORIZON]},
        }
    )

    subject: str | None
    unit: str = _UNIT
    horizons: list[HorizonBalance]


class StreamStatus(BaseModel):
    """How far one source of a stream is read."""

    model_config = ConfigDict(json_schema_extra={"example": _STREAM})

    stream: str
    source: str
    rows: int
    """Rows read since the service was started, including those that were refused."""
    rate: float
    """Rows per second, in the last seconds."""
    newest: datetime | None
    """The largest event time among them."""
    behind_seconds: float | None
    """How far that is behind the newest event of all sources."""
    dead_letters: dict[str, int]
    """Refused tuples of the stream, by reason; the same for all sources of a stream."""


class ServiceStatus(BaseModel):
    """How the run is doing. For operators alone: most of it depends on the tuples."""

    model_config = ConfigDict(json_schema_extra={"example": _STATUS})

    run: str
    ready: bool
    subjects: int
    windows: int
    """Windows released since the service was started."""
    released_until: datetime | None
    newest: datetime | None
    """The largest event time that was accepted."""
    watermark: datetime | None
    """The newest event time minus the lateness: windows that end before it are closed."""
    lag_seconds: float | None
    """Event time between the watermark and the end of the last released window."""
    drift: float | None
    """The share of recent changes that history does not predict; null without memory."""
    retries: int
    """Deliveries that failed and were retried."""
    reloads: int
    reloads_refused: int
    tuples: int
    late: int
    refused: int
    open_windows: int
    undelivered: int
    commit_seconds: float
    streams: list[StreamStatus]


@router.get("/queries", summary="Queries", responses=_DENIED)
def get_queries(state: State, principal: ReadingRole) -> list[AskedQuery]:
    """Return your queries; subjects and operators get those of all consumers."""
    return list_queries(state, principal)


def list_queries(state: ServiceState, principal: Principal) -> list[AskedQuery]:
    """Return the queries that someone may know."""
    own = principal.role is Role.CONSUMER
    return [
        AskedQuery(name=query.name, consumer=query.consumer, pattern=query.asks)
        for query in state.spec.queries
        if not own or query.consumer == principal.name
    ]


@router.get("/private", summary="Private patterns", responses=_DENIED)
def get_private(state: State, principal: ReadingRole) -> list[PrivateDeclaration]:
    """Return what is private, with epsilon and limit; subjects get what applies to them.

    Who protects what counts as known: see the guarantee.
    """
    subject = principal.name if principal.role is Role.SUBJECT else None
    return describe_private(state.spec, subject)


@router.get("/statement", summary="What was spent", responses={**_DENIED, **problem_responses(404)})
def get_statement(state: State, principal: ReadingRole) -> LedgerStatement:
    """Return what you have spent as a subject; operators get the largest of all subjects."""
    if principal.role is Role.CONSUMER:
        raise Problem(403, "statements are for subjects and operators")
    return make_statement(state, principal.name if principal.role is Role.SUBJECT else None)


def make_statement(state: ServiceState, subject: str | None) -> LedgerStatement:
    """Read what a subject has spent, or the largest of all subjects."""
    if subject is not None and not state.feed.knows(subject):
        return LedgerStatement(subject=subject, horizons=[])
    statement = read_statement(state.ledger, subject=subject)
    horizons = [
        HorizonBalance(
            private=one.private,
            start=_to_time(one.start).isoformat().removesuffix("+00:00"),
            hours=one.length / 3_600_000_000,
            spent=one.spent / NANO,
            limit=None if one.limit is None else one.limit / NANO,
            windows_charged=one.asked,
            windows_free=one.free,
        )
        for one in statement.horizons
    ]
    return LedgerStatement(subject=subject, horizons=horizons)


@router.get("/status", summary="How the run is doing", responses=_DENIED)
def get_status(state: State, _: OperatorRole) -> ServiceStatus:
    """Return the rates and positions of the run, for operators alone."""
    return make_status(state)


def make_status(state: ServiceState) -> ServiceStatus:
    """Collect the status of the run."""
    fields: dict[str, Any] = {"run": state.name, "ready": state.ready}
    if state.run is None:
        numbers = ("subjects", "windows", "tuples", "late", "refused", "open_windows")
        more = ("undelivered", "commit_seconds", "retries", "reloads", "reloads_refused")
        fields |= dict.fromkeys((*numbers, *more), 0)
        times = ("released_until", "newest", "watermark", "lag_seconds", "drift")
        return ServiceStatus(**fields, **dict.fromkeys(times), streams=[])
    status, public = state.run.status, state.run.status.public
    newest, until = status.newest, public.until
    watermark = None if newest is None else newest - state.spec.windows.lateness
    lag = None if watermark is None or until is None else max(0, watermark - until) / 1_000_000
    return ServiceStatus(
        **fields,
        subjects=public.subjects,
        windows=public.windows,
        released_until=None if public.until is None else _to_time(public.until),
        newest=None if newest is None else _to_time(newest),
        watermark=None if watermark is None else _to_time(watermark),
        lag_seconds=lag,
        drift=public.drift,
        retries=public.retries,
        reloads=public.reloads,
        reloads_refused=public.reloads_refused,
        tuples=status.tuples,
        late=status.late,
        refused=status.refused,
        open_windows=status.open_windows,
        undelivered=public.undelivered,
        commit_seconds=status.commit_seconds,
        streams=_list_streams(state, state.run),
    )


def _list_streams(state: ServiceState, run: Run) -> list[StreamStatus]:
    letters: dict[str, dict[str, int]] = {}
    for (stream, reason), number in run.dead_letters.counts.items():
        letters.setdefault(stream, {})[reason] = number
    samples = list(state.samples)[-_RATE_SAMPLES:]
    seconds = max(1e-9, samples[-1].moment - samples[0].moment) if samples else 1.0
    found = []
    for number, one in enumerate(run.input_status):
        rows = samples[-1].rows[number] - samples[0].rows[number] if samples else 0
        newest = one.newest
        if newest is not None and run.status.newest is not None:
            newest = min(newest, run.status.newest)  # a wrong time may be far in the future
        behind = None if newest is None else (run.status.newest or newest) - newest
        found.append(
            StreamStatus(
                stream=one.stream,
                source=one.source,
                rows=one.rows,
                rate=rows / seconds,
                newest=None if newest is None else _to_time(newest),
                behind_seconds=None if behind is None else behind / 1_000_000,
                dead_letters=letters.get(one.stream, {}),
            )
        )
    return found


def _to_time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
