"""Answers: pages by id, server-sent events, and downloads.

A row appears here when its release is committed, exactly as it was released. Which rows there are
follows the public schedule: every subject, query and window has one.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Final

import pyarrow as pa
from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, JsonValue

from tacit.answers.rows import answer_schema
from tacit.service.access import ReadingRole
from tacit.service.dependencies import LARGEST_ID, Selection, State
from tacit.service.problems import problem_responses
from tacit.service.routes.event_streams import describe_events, stream_events
from tacit.service.routes.row_files import FILE_RESPONSE, Suffix, format_rows, send_file

MOST_ROWS: Final = 10_000
"""The most answers on a page."""
_MOST_RELEASES: Final = 256
"""The most releases that are searched for a page."""
_ROW: Final[dict[str, JsonValue]] = {
    "id": 1042,
    "window_start": "2026-03-01T08:00:00Z",
    "window_end": "2026-03-01T08:10:00Z",
    "subject": "4711",
    "consumer": "city",
    "query": "jam",
    "detected": True,
    "value": None,
    "confidence": 0.93,
    "exhausted": False,
}
_COLUMNS: Final = answer_schema(protected=True, limited=True, valued=True).insert(
    0, pa.field("id", pa.int64())
)
EXAMPLE_FILE: Final = _COLUMNS, _ROW
"""What a file holds in the example of the OpenAPI document."""
_DENIED: Final = problem_responses(401, 403, 404, 422, 429)

router = APIRouter(prefix="/answers", tags=["answers"])

After = Annotated[
    int,
    Query(
        ge=-1,
        le=LARGEST_ID,
        description="Only answers with larger ids than this one; ids begin at 0.",
    ),
]


class ReleasedAnswer(BaseModel):
    """An answer about one subject in one window."""

    model_config = ConfigDict(json_schema_extra={"example": _ROW})

    id: int
    window_start: datetime
    window_end: datetime
    subject: str
    consumer: str
    query: str
    detected: bool
    value: str | None = None
    """The value of a query with several, such as a category or a number."""
    confidence: float
    """How likely the answer is right, from the plan's prior; 1 where nothing private matters."""
    exhausted: bool
    """Whether this window was not paid for: the subject's limit is reached, or saved for later.

    The answer then uses public events and what was released before.
    """


class AnswerPage(BaseModel):
    """Some answers, in the order of their ids."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"answers": [_ROW], "next": 1042, "more": False, "kept_from": 0}
        }
    )

    answers: list[ReleasedAnswer]
    next: int
    """Ask for answers after this id next."""
    more: bool
    """Whether there are more answers now."""
    kept_from: int | None
    """The first id that is still stored; earlier answers were deleted. Null if there is none."""


@router.get(
    "",
    summary="A page of answers",
    response_class=Response,
    responses={200: {"model": AnswerPage}, **_DENIED},
)
def get_answers(
    state: State,
    selection: Selection,
    after: After = -1,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS, description="The most answers.")] = 1000,
) -> Response:
    """Return answers in the order of their ids.

    Consumers get the answers to their own queries, subjects those about themselves, operators all.
    To get the next page, pass `next` as `after`.
    """
    tables, rows, reached, more = [], 0, after, False
    for last, table in state.feed.read(selection, after):
        part = table.slice(0, limit - rows)
        tables.append(part)
        rows += part.num_rows
        more = part.num_rows < table.num_rows or len(tables) == _MOST_RELEASES
        reached = last
        if more:
            if part.num_rows < table.num_rows:
                reached = part["id"][-1].as_py() if part.num_rows else tables[-2]["id"][-1].as_py()
            break
    text = b",".join(format_rows(table) for table in tables if table.num_rows)
    kept = state.feed.first_id()
    rest = json.dumps({"next": reached, "more": more, "kept_from": kept})[1:]
    body = b'{"answers":[' + text + b"]," + rest.encode()
    return Response(body, media_type="application/json")


@router.get(
    "/stream",
    summary="Answers as they are released",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events. The data of an event `answers` is a JSON array of"
            " answers; its id continues the stream.",
            "content": describe_events("answers", 1042, _ROW),
        },
        **_DENIED,
    },
)
async def stream_answers(
    request: Request,
    state: State,
    principal: ReadingRole,
    selection: Selection,
    after: After | None = None,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that you got.")
    ] = None,
) -> StreamingResponse:
    """Send answers as server-sent events, from now on.

    To continue after a pause, send the id of the last event as `Last-Event-ID`, as browsers do, or
    as `after`. With `after=-1` the stream begins with the first answer that is still stored.
    """
    start = after
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        start = min(int(last_event_id), LARGEST_ID)
    if start is None:
        start = await to_thread.run_sync(state.feed.last_id)
    return stream_events(request, state, principal, state.feed, selection, start)


@router.get(
    ".{suffix}",
    summary="Download answers",
    response_class=StreamingResponse,
    responses={200: FILE_RESPONSE, **_DENIED},
)
async def download_answers(
    state: State, selection: Selection, suffix: Suffix, after: After = -1
) -> StreamingResponse:
    """Return all selected answers that are stored, as one file."""
    tables = (table for _, table in state.feed.read(selection, after))
    return await send_file("answers", suffix, tables, _COLUMNS)
