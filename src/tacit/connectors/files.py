"""Open a source by its name: a file, a folder, a glob, or standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tacit.connectors.brokers import open_broker_source
from tacit.connectors.csv import CsvSource
from tacit.connectors.file_pieces import CODECS
from tacit.connectors.ipc import ArrowSource
from tacit.connectors.jsonlines import JsonLinesSource
from tacit.connectors.parquet import ParquetSource
from tacit.errors import SchemaError, SourceError
from tacit.events.subjects import check_subject_type
from tacit.pipeline.sources import STANDARD_INPUT, Batch, EmptySourceError, Source, is_text

_FORMATS: dict[str, Callable[[Path], Source]] = {
    ".parquet": ParquetSource,
    ".csv": CsvSource,
    ".jsonl": JsonLinesSource,
    ".ndjson": JsonLinesSource,
    ".arrow": ArrowSource,
    ".feather": ArrowSource,
    ".ipc": ArrowSource,
}
_PACKED = (".csv", ".jsonl", ".ndjson")
SUFFIXES = (*_FORMATS, *(suffix + codec for suffix in _PACKED for codec in CODECS))


def open_source(name: str | os.PathLike[str]) -> Source:
    """Open a source by its suffix. `-` is JSON lines on standard input.

    Globs and folders are read as many files. A URL is opened by the connector of its scheme.
    """
    text = os.fspath(name)
    if text == "-":
        return JsonLinesSource(0, STANDARD_INPUT)
    if "://" in text:
        return open_broker_source(text)
    if not text:
        raise SourceError("expected a path, a URL, or - for JSON lines on standard input")
    path = Path(text)
    if path.is_dir():
        found = [part for part in path.iterdir() if part.is_file() and find_kind(part)]
        return _open_files(text, found)
    if not path.exists() and glob.has_magic(text):
        return _open_files(text, [Path(part) for part in glob.glob(text, recursive=True)])
    return open_file(path)


class MultiFileSource(Source):
    """Reads several files of one kind, one after the other."""

    ahead = 0  # each file is read ahead separately

    def __init__(self, name: str, sources: Sequence[Source]) -> None:
        self.name = name
        self.unit = sources[0].unit
        self.textual, self.keyed = sources[0].textual, sources[0].keyed
        self._sources = sources
        totals = [source.total for source in sources]
        known = [total for total in totals if total is not None]
        self.total = sum(known) if len(known) == len(totals) else None
        self._schema: pa.Schema | None = None
        self._begin: dict[str, Any] | None = None

    def schema(self) -> pa.Schema:
        """Return the columns of the first file that is not empty."""
        if self._schema is None:
            for source in self._sources:
                try:
                    self._schema = source.schema()
                    break
                except EmptySourceError:
                    continue
            else:
                raise EmptySourceError(f"{self.name}: all of its files are empty")
        return self._schema

    def separate_by(self, delimiter: str) -> None:
        """Set the character between the fields of all files."""
        for source in self._sources:
            source.separate_by(delimiter)

    def resume(self, token: Any) -> None:
        """Start in the middle of one of the files when it is read next."""
        if token is not None and token["file"] not in [source.name for source in self._sources]:
            raise SourceError(
                f"{self.name} no longer contains {token['file']}, which was being read; restore it"
            )
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield the rows of each file, with the types of the first; empty files are skipped."""
        before = 0
        begin, self._begin = self._begin, None
        for source in self._sources:
            if begin is not None:
                if source.name != begin["file"]:
                    before += source.total or 0
                    continue
                source.resume(begin["at"])
                begin = None
            position = before
            for batch in read_unified(source, self.schema(), columns, keys):
                position = before + batch.position
                token = {"file": source.name, "at": batch.token}
                yield replace(batch, position=position, token=token)
            before = position if source.total is None else before + source.total


def read_unified(
    source: Source, schema: pa.Schema, columns: Sequence[str], keys: Sequence[str]
) -> Iterator[Batch]:
    """Yield the rows of one of several files, with the types of the first file."""
    try:
        source.schema()
    except EmptySourceError:
        return
    for batch in source.batches(columns, keys):
        if source.textual:
            yield batch
        else:
            yield replace(batch, table=_unify_types(batch.table, schema, keys, source.name))


def _unify_types(
    table: pa.RecordBatch, schema: pa.Schema, keys: Sequence[str], name: str
) -> pa.RecordBatch:
    """Cast numbers and times of a later file to the types of the first file.

    Columns of subjects are not cast: text must not become a number, nor a number text.
    """
    for number, field in enumerate(table.schema):
        kind = schema.field(field.name).type
        if field.name in keys:
            _check_key(field, name)
            continue
        if field.type == kind or (is_text(field.type) and is_text(kind)):
            continue
        try:
            column = table.column(number).cast(kind)
        except pa.ArrowException as error:
            raise SourceError(
                f"{name}: the column '{field.name}' is {field.type}, in an earlier file it is "
                f"{kind}; give it the same type in all files"
            ) from error
        table = table.set_column(number, field.name, column)
    return table


def _check_key(field: pa.Field, name: str) -> None:
    try:
        check_subject_type(field.type)
    except SchemaError as error:
        raise SchemaError(f"{name}: the column '{field.name}': {error}") from error


def _open_files(name: str, paths: list[Path]) -> Source:
    if not paths:
        raise SourceError(f"{name} has no file to read; expected {', '.join(SUFFIXES)}")
    kinds = {find_kind(path) for path in paths}
    if len(kinds) > 1:
        raise SourceError(
            f"{name} has files of several kinds ({', '.join(sorted(kinds))}); "
            "choose one kind, for example with *.parquet"
        )
    sources = [open_file(path) for path in sorted(paths)]
    return sources[0] if len(sources) == 1 else MultiFileSource(name, sources)


def open_file(path: Path) -> Source:
    """Open a file as a source, by its suffix."""
    suffix = _find_suffix(path)
    if not suffix:
        tabs = path.suffix.lower() in (".tsv", ".tab")
        raise SourceError(
            f"{path}: expected a file ending in {', '.join(SUFFIXES)}, or - for JSON lines on "
            f"standard input{'. Give text with tabs a name ending in .csv' * tabs}"
        )
    if not path.exists():
        raise SourceError(f"{path} does not exist; check the path")
    for codec in CODECS:
        suffix = suffix.removesuffix(codec)
    return _FORMATS[suffix](path)


def find_kind(path: Path) -> str:
    """Return the kind of a file, compressed or not; empty for an unknown kind."""
    return _find_suffix(path).removeprefix(".").partition(".")[0]


def _find_suffix(path: Path) -> str:
    """Return the longest known suffix of a path, or an empty string."""
    return max((s for s in SUFFIXES if path.name.lower().endswith(s)), key=len, default="")
