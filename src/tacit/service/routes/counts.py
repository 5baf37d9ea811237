"""Counts: pages by window, server-sent events, and downloads.

A count appears here when its release is committed, exactly as it was drawn. Which rows there are
follows the public schedule: every window, count query and group has one. How many subjects are
counted and left out depends on public events, limits and earlier releases alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import pyarrow as pa
from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, JsonValue

from tacit.answers.counts import count_schema
from tacit.ledger.answers import parse_microseconds
from tacit.service.access import CountingRole
from tacit.service.count_feed import EARLIEST, CountSelection
from tacit.service.dependencies import SelectedCounts, State
from tacit.service.problems import problem_responses
from tacit.service.routes.event_streams import describe_events, stream_events
from tacit.service.routes.row_files import FILE_RESPONSE, Suffix, format_rows, send_file

_MOST_WINDOWS: Final = 1_000
"""The most windows on a page."""
_FILE_ROWS: Final = 65_536
"""Rows of a file that are written together."""
_ROW: Final[dict[str, JsonValue]] = {
    "window_start": "2026-03-01T08:00:00Z",
    "window_end": "2026-03-01T08:10:00Z",
    "consumer": "city",
    "query": "jams",
    "group": "north",
    "count": 41,
    "low": 38,
    "high": 44,
    "confidence": 0.96,
    "subjects": 500,
    "left_out": 12,
    "estimate": 41.7,
    "estimate_low": 39.9,
    "estimate_high": 43.5,
    "method": "drawn",
}
EXAMPLE_FILE: Final = count_schema(), _ROW
"""What a file holds in the example of the OpenAPI document."""
_DENIED: Final = problem_responses(401, 403, 404, 422, 429)

router = APIRouter(prefix="/counts", tags=["counts"])

After = Annotated[datetime | None, Query(description="Only windows that start after this time.")]


class ReleasedCount(BaseModel):
    """For how many subjects of a group a pattern was detected in one window."""

    model_config = ConfigDict(json_schema_extra={"example": _ROW})

    window_start: datetime
    window_end: datetime
    consumer: str
    query: str
    group: str | None
    """The value of the registry's column; null if all subjects are counted together."""
    count: int | None
    """How many, as drawn. Noise is not cut off, so it may be below 0 or above `subjects`. Null if
    nothing was drawn in this window: see `method`."""
    low: int
    high: int
    confidence: float
    """How likely the true count is from `low` to `high`, at least; 1 if the count is exact, or if
    there is none: then `low` and `high` are what is certain of the whole group."""
    subjects: int
    """How many subjects are counted."""
    left_out: int
    """How many of the group are not counted: their limit is reached or saved for later."""
    estimate: float | None
    """The count of the whole group, those left out too, from all counts released so far and the
    usual course of a day; null if the plan has no history of it."""
    estimate_low: float | None
    estimate_high: float | None
    """The true count is between these two in 95 of 100 windows that are like history."""
    method: Literal["exact", "drawn", "none", "unbiased", "model"]
    """How the count was made: `exact` if public events decide it, `drawn` if noise was added, and
    `none` if there is no count of this window, since all open subjects are left out. `unbiased` and
    `model`: it is estimated from released answers, see `estimate`."""


class CountPage(BaseModel):
    """The counts of some windows, in their order."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"counts": [_ROW], "next": "2026-03-01T08:00:00Z", "more": False}
        }
    )

    counts: list[ReleasedCount]
    next: datetime | None
    """Ask for the windows after this one next. Null if no window was found so far."""
    more: bool
    """Whether more windows are released now."""


@router.get(
    "",
    summary="A page of counts",
    response_class=Response,
    responses={200: {"model": CountPage}, **_DENIED},
)
def get_counts(
    state: State,
    selection: SelectedCounts,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_WINDOWS, description="The most windows.")] = 100,
) -> Response:
    """Return the counts of whole windows, in their order.

    Consumers get the counts of their own queries, operators all. To get the next page, pass `next`
    as `after`.
    """
    reached = after
    if after is not None:
        selection = _begin_after(selection, parse_microseconds(after))
    text, more = [], False
    for starts, table in state.counts.read(selection):
        more = not limit
        if more:
            break
        chosen = starts[:limit]
        limit -= len(chosen)
        last = int(chosen[-1])
        reached = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last)
        more = len(chosen) < len(starts)
        if more:
            table = replace(selection, until=last + 1).select(table)
        if table.num_rows:
            text.append(format_rows(table))
        if more:
            break
    shown = None if reached is None else reached.isoformat().replace("+00:00", "Z")
    rest = json.dumps({"next": shown, "more": more})[1:]
    body = b'{"counts":[' + b",".join(text) + b"]," + rest.encode()
    return Response(body, media_type="application/json")


@router.get(
    "/stream",
    summary="Counts as they are released",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events. The data of an event `counts` is a JSON array with"
            " the counts of one window; its id continues the stream.",
            "content": describe_events("counts", 1_772_352_000_000_000, _ROW),
        },
        **_DENIED,
    },
)
async def stream_counts(
    request: Request,
    state: State,
    principal: CountingRole,
    selection: SelectedCounts,
    after: After = None,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that you got.")
    ] = None,
) -> StreamingResponse:
    """Send counts as server-sent events, one for each window, from now on.

    To continue after a pause, send the id of the last event as `Last-Event-ID`, as browsers do, or
    the start of its window as `after`. With an early `after` the stream begins with the first
    window that is still stored.
    """
    start = None if after is None else parse_microseconds(after)
    if last_event_id is not None and re.fullmatch(r"-?[0-9]{1,18}", last_event_id):
        start = int(last_event_id)
    if start is None:
        start = await to_thread.run_sync(state.counts.last_start)
    begin = EARLIEST if start is None else start
    return stream_events(request, state, principal, state.counts, selection, begin)


def _begin_after(selection: CountSelection, after: int) -> CountSelection:
    if selection.since is not None and selection.since > after:
        return selection
    return replace(selection, since=after + 1)


@router.get(
    ".{suffix}",
    summary="Download counts",
    response_class=StreamingResponse,
    responses={200: FILE_RESPONSE, **_DENIED},
)
async def download_counts(
    state: State, selection: SelectedCounts, suffix: Suffix
) -> StreamingResponse:
    """Return all selected counts that are stored, as one file."""
    tables = (table for _, table in state.counts.read(selection))
    return await send_file("counts", suffix, _regroup(tables), count_schema())


def _regroup(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut tables after every so many rows: a file does not show how releases were cut."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _FILE_ROWS:
            whole = pa.concat_tables(waiting).unify_dictionaries()
            cut = rows - rows % _FILE_ROWS
            for start in range(0, cut, _FILE_ROWS):
                yield whole.slice(start, _FILE_ROWS).combine_chunks()
            waiting, rows = [whole.slice(cut)], rows - cut
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()
