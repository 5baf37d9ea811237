"""Counts: pages by window, and downloads.

A count appears here when its release is committed, exactly as it was drawn. Which rows there are
follows the public schedule: every window, count query and group has one. How many subjects are
counted and left out depends on public events, limits and earlier releases alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import pyarrow as pa
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, JsonValue

from tacit.answers.counts import count_schema
from tacit.ledger.answers import parse_microseconds
from tacit.service.dependencies import SelectedCounts, State
from tacit.service.problems import problem_responses
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
}
_DENIED: Final = problem_responses(401, 403, 404, 422, 429)

router = APIRouter(prefix="/counts", tags=["counts"])


class ReleasedCount(BaseModel):
    """For how many subjects of a group a pattern was detected in one window."""

    model_config = ConfigDict(json_schema_extra={"example": _ROW})

    window_start: datetime
    window_end: datetime
    consumer: str
    query: str
    group: str | None
    """The value of the registry's column; null if all subjects are counted together."""
    count: int
    """How many, as drawn. Noise is not cut off, so it may be below 0 or above `subjects`."""
    low: int
    high: int
    confidence: float
    """How likely the true count is from `low` to `high`, at least; 1 if the count is exact."""
    subjects: int
    """How many subjects are counted."""
    left_out: int
    """How many of the group are not counted: their limit is reached or saved for later."""


class CountPage(BaseModel):
    """The counts of some windows, in their order."""

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
    after: Annotated[
        datetime | None, Query(description="Only windows that start after this time.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_WINDOWS, description="The most windows.")] = 100,
) -> Response:
    """Return the counts of whole windows, in their order.

    Consumers get the counts of their own queries, operators all. To get the next page, pass `next`
    as `after`.
    """
    reached = after
    if after is not None:
        later = parse_microseconds(after) + 1
        since = later if selection.since is None else max(selection.since, later)
        selection = replace(selection, since=since)
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
