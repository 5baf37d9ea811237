"""Tuples in: acknowledged when they are on disk, once for each sequence number."""

from __future__ import annotations

import asyncio
import io
import json
import re
from typing import Final

import cbor2
import pyarrow as pa
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from tacit.service.access import authorise
from tacit.service.arrow_streams import ArrowStreamError, read_arrow_stream
from tacit.service.body_protocol import receive_body
from tacit.service.body_room import BodySpace, NoRoomError
from tacit.service.dependencies import LARGEST_ID, get_state
from tacit.service.inbox import Inbox
from tacit.service.ingest_requests import (
    LARGEST_BODY,
    Body,
    BodyFormat,
    InboxFullError,
    IngestRequest,
    SequenceError,
)
from tacit.service.problems import Problem, problem_responses
from tacit.service.roles import Principal, Role
from tacit.service.routes.row_files import describe_bytes
from tacit.service.state import ServiceState

BODY_SECONDS: Final = 30.0
"""Seconds in which a body must arrive."""
STORE_SECONDS: Final = 60.0
"""Seconds in which a body must be on disk."""
_SOON: Final = {"Retry-After": "1"}
_QUICKLY_CHECKED: Final = 1 << 20
"""An Arrow stream of so many bytes is checked here: to hand it to a thread takes as long."""
_LONGEST_NAME: Final = 200
_CODINGS: Final[dict[str, BodyFormat]] = {
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
    "application/json": "json",
    "application/cbor": "cbor",
    "application/vnd.apache.arrow.stream": "arrow",
}
_TUPLE: Final = {"taxi_id": "4711", "ts": "2026-03-01T08:00:00Z", "speed": 4.5}

ADDRESS: Final = re.compile(r"/v1/streams/([^/]+)/tuples")
router = APIRouter(prefix="/streams", tags=["ingest"])


def _make_examples() -> dict[BodyFormat, bytes]:
    """Return a body with one tuple in each format."""
    text = json.dumps(_TUPLE).encode()
    table, stream = pa.Table.from_pylist([_TUPLE]), io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return {
        "jsonl": text + b"\n",
        "json": b"[" + text + b"]",
        "cbor": cbor2.dumps(_TUPLE),
        "arrow": stream.getvalue(),
    }


_EXAMPLES: Final = _make_examples()


class Acknowledgement(BaseModel):
    """The tuples are on disk: a crash does not lose them."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"stream": "gps", "sequence": 17, "duplicate": False}}
    )

    stream: str
    sequence: int | None
    duplicate: bool
    """Whether this sequence number had been acknowledged before; nothing was stored again."""


_PARAMETERS: Final = [
    {
        "name": "stream",
        "in": "path",
        "required": True,
        "description": "The stream.",
        "schema": {"type": "string", "maxLength": _LONGEST_NAME},
    },
    {
        "name": "tacit-sequence",
        "in": "header",
        "description": "The number of this request, one more than that of the last one. A number"
        " that was acknowledged before is acknowledged again, and nothing is stored.",
        "schema": {"type": "integer", "minimum": 0, "maximum": LARGEST_ID},
    },
    {
        "name": "tacit-producer",
        "in": "header",
        "description": "Who counts, if several senders share a token.",
        "schema": {"type": "string", "maxLength": _LONGEST_NAME, "default": ""},
    },
]
"""They are read by hand: FastAPI needs longer for them than a small request takes to store."""


@router.post(
    "/{stream}/tuples",
    summary="Send tuples",
    response_class=Response,
    responses={
        200: {"model": Acknowledgement},
        **problem_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra={
        "parameters": _PARAMETERS,
        "requestBody": {
            "required": True,
            "description": "JSON lines, a JSON or CBOR object or array of objects, or an Arrow"
            " stream without compression.",
            "content": {
                kind: {
                    "schema": {"type": "string", "format": "binary"},
                    **describe_bytes(_EXAMPLES[coding]),
                }
                for kind, coding in _CODINGS.items()
            },
        },
        "security": [{"token": []}],
    },
)
async def send_tuples(request: Request) -> Response:
    """Send tuples to a stream. The response comes when they are on disk.

    Lines that cannot be read go to the dead letters. Under pressure the response is 429 with
    `Retry-After`; send the same request again then.
    """
    principal = await authorise(request, Role.SOURCE)
    state, stream = await get_state(request), request.path_params["stream"]
    _check_stream(state, principal, stream)
    sequence, producer = _read_sequence(request), f"{principal.name}/{_read_producer(request)}"
    coding = _find_coding(request)
    assert state.inbox is not None, "a stream is open"
    with state.room.open(principal.token) as space:
        payload = await _read_body(request, space)
        table = await _check_body(payload, coding)
        sent = IngestRequest(stream, producer, coding, payload, sequence, table)
        new = await _store(state.inbox, sent)
    body = {"stream": stream, "sequence": sequence, "duplicate": not new}
    return Response(json.dumps(body), media_type="application/json")


def _check_stream(state: ServiceState, principal: Principal, stream: str) -> None:
    if principal.streams and stream not in principal.streams:
        allowed = ", ".join(principal.streams)
        raise Problem(403, f"your token may send to {allowed} only")
    if state.inbox is None or stream not in state.http_streams:
        raise Problem(404, "there is no such stream, or it is not read from HTTP")


def _read_sequence(request: Request) -> int | None:
    text = request.headers.get("tacit-sequence")
    if text is None:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_ID))
    if not digits or int(text) > LARGEST_ID:
        raise Problem(422, f"Tacit-Sequence must be a whole number from 0 to {LARGEST_ID}")
    return int(text)


def _read_producer(request: Request) -> str:
    text = request.headers.get("tacit-producer", "")
    if len(text) > _LONGEST_NAME:
        raise Problem(422, f"Tacit-Producer must have at most {_LONGEST_NAME} characters")
    return text


def _find_coding(request: Request) -> BodyFormat:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _CODINGS:
        known = ", ".join(_CODINGS)
        raise Problem(415, f"send one of {known} as Content-Type", headers={"Accept-Post": known})
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "compressed bodies are not supported; send it as it is")
    return _CODINGS[kind]


async def _read_body(request: Request, space: BodySpace) -> Body:
    """Read the body, if it is small enough, arrives in time, and there is room for it."""
    length = request.headers.get("content-length", "0")
    too_large = Problem(413, f"send at most {LARGEST_BODY >> 20} MiB in one request")
    if length.isdigit() and int(length) > LARGEST_BODY:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            if length.isdigit() and int(length):
                space.extend(int(length))
                if (whole := await receive_body(request, int(length))) is not None:
                    return whole
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > LARGEST_BODY:
                    raise too_large
                space.extend(size)
    except TimeoutError as error:
        raise Problem(408, f"the body must arrive within {BODY_SECONDS:.0f} seconds") from error
    except NoRoomError as error:
        raise Problem(429, "too many tuples arrive now; try again later", headers=_SOON) from error
    return b"".join(parts)


async def _check_body(payload: Body, coding: BodyFormat) -> pa.Table | None:
    """Check a body as far as is done before it is stored; return an Arrow stream's table."""
    if _is_blank(payload):
        raise Problem(422, "the body has no tuples")
    if coding != "arrow":
        return None
    if len(payload) > _QUICKLY_CHECKED:
        return await to_thread.run_sync(_read_arrow, payload)
    return _read_arrow(payload)


def _is_blank(payload: Body) -> bool:
    """Return whether there is nothing but white space; usually the first byte shows that."""
    return not payload or (bytes(payload[:1]).isspace() and bytes(payload).isspace())


async def _store(inbox: Inbox, sent: IngestRequest) -> bool:
    """Store a request; return whether it is new."""
    try:
        async with asyncio.timeout(STORE_SECONDS):
            return await inbox.store(sent)
    except TimeoutError as error:
        raise Problem(
            503, "the tuples are not on disk yet; send the same request again", headers=_SOON
        ) from error
    except InboxFullError as error:
        raise Problem(429, str(error), headers=_SOON) from error
    except SequenceError as error:
        raise Problem(409, str(error), expected=error.expected) from error


def _read_arrow(payload: Body) -> pa.Table:
    try:
        return read_arrow_stream(payload, LARGEST_BODY)
    except (ArrowStreamError, pa.ArrowException, OSError, ValueError) as error:
        detail = (
            str(error) if isinstance(error, ArrowStreamError) else "the Arrow stream is damaged"
        )
        raise Problem(422, detail) from error
