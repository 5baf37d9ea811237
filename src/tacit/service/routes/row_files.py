"""Rows in responses: as JSON objects, and as files to download."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import IO, Annotated, Any, Final, Literal

import pyarrow as pa
from anyio import CapacityLimiter, to_thread
from fastapi import Path
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tacit.connectors.writers import SUFFIXES, format_json_lines

_CHUNK: Final = 1 << 20
_MEDIA_TYPES: Final = {
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.file",
    "jsonl": "application/x-ndjson",
}
FILE_RESPONSE: Final[dict[str, Any]] = {"content": {kind: {} for kind in _MEDIA_TYPES.values()}}
"""How the OpenAPI document describes a file, without examples."""
Suffix = Annotated[
    Literal["parquet", "csv", "arrow", "jsonl"], Path(description="The kind of file.")
]
_download_threads = CapacityLimiter(2)


def describe_files(columns: pa.Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """Describe files of all kinds for the OpenAPI document, each with one row.

    Not to be called by an import: Polars starts threads, and then a process must not fork.
    """
    values = {
        name: datetime.fromisoformat(value)
        if pa.types.is_timestamp(columns.field(name).type)
        else value
        for name, value in row.items()
    }
    table = pa.Table.from_pylist([values], columns)
    found: dict[str, Any] = {}
    for suffix, kind in _MEDIA_TYPES.items():
        with _write_file([table], columns, suffix) as file:
            file.seek(0)
            found[kind] = describe_bytes(file.read())
    return found


def describe_bytes(body: bytes) -> dict[str, Any]:
    """Describe a body by an example; bytes that are no text are shown in base64."""
    try:
        return {"example": body.decode()}
    except UnicodeDecodeError:
        value = base64.b64encode(body).decode()
        return {"examples": {"base64": {"summary": "The bytes, in base64", "value": value}}}


def format_rows(table: pa.Table) -> bytes:
    """Format rows as JSON objects, separated by commas."""
    return format_json_lines(table).rstrip(b"\n").replace(b"\n", b",")


async def send_file(
    name: str, suffix: str, tables: Iterable[pa.Table], empty: pa.Schema
) -> StreamingResponse:
    """Send tables as one file; `empty` is its schema if there is no table."""
    file = await to_thread.run_sync(_write_file, tables, empty, suffix, limiter=_download_threads)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.{suffix}"',
        "Content-Length": str(size),
    }
    return FileDownload(file, headers=headers, media_type=_MEDIA_TYPES[suffix])


def _write_file(tables: Iterable[pa.Table], empty: pa.Schema, suffix: str) -> IO[bytes]:
    """Write tables to a temporary file that only this process can open."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the response closes it
    try:
        writer = None
        for table in tables:
            writer = writer or SUFFIXES[f".{suffix}"](file, table.schema)
            if table.num_rows:
                writer.write(table)
        writer = writer or SUFFIXES[f".{suffix}"](file, empty)
        writer.close()
    except BaseException:
        file.close()
        raise
    return file


class FileDownload(StreamingResponse):
    """Sends an open file, and closes it also if the client goes away."""

    def __init__(self, file: IO[bytes], **more: Any) -> None:
        super().__init__(iter(lambda: file.read(_CHUNK), b""), **more)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        with self._file:
            await super().__call__(scope, receive, send)
