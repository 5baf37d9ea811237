"""Open sources and sinks by name: a path, `-`, or the URL of a broker."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from tacit.connectors.appending_sink import AppendingSink
from tacit.connectors.brokers import is_broker, open_broker_sink
from tacit.connectors.file_pieces import CODECS
from tacit.connectors.files import open_source
from tacit.connectors.folder_sink import FolderSink
from tacit.connectors.placeholders import FileTemplate, has_placeholders
from tacit.connectors.sinks import FileSink, StandardOutput, TableSink, choose_writer
from tacit.connectors.template_sinks import ResumableTemplateSink, TemplateSink
from tacit.connectors.writers import SUFFIXES, format_csv, format_csv_header, format_json_lines
from tacit.errors import SinkError
from tacit.options import option
from tacit.pipeline.sinks import Sink, check_regular
from tacit.pipeline.sources import Source

_Lines = Callable[[pa.Table], bytes]
_Header = Callable[[pa.Schema], bytes]
_APPENDABLE: Final[dict[str, tuple[_Lines, _Header | None]]] = {
    ".jsonl": (format_json_lines, None),
    ".ndjson": (format_json_lines, None),
    ".csv": (format_csv, format_csv_header),
}


def open_input(name: str | os.PathLike[str], *, follow: bool = False) -> Source:
    """Open a source by its name, as `open_source` does.

    With `follow` a file is read as it grows, and a folder as files are added to it.
    """
    text = os.fspath(name)
    if not follow or text == "-" or "://" in text:  # these have no end anyway
        return open_source(text)
    path = Path(text)
    if path.is_dir():
        from tacit.connectors.follow_folder import FollowFolderSource

        return FollowFolderSource(path)
    from tacit.connectors.follow_file import FollowFileSource

    return FollowFileSource(path)


def open_sink(
    target: str | os.PathLike[str],
    schema: pa.Schema | None = None,
    consumers: Mapping[str, str] | None = None,
) -> TableSink:
    """Open a sink by its suffix; `-` is JSON lines on standard output.

    `schema` gives the columns if no table is written. A name with placeholders, such as
    `answers/{consumer}.csv`, means several files: `consumers` maps each query to its consumer, so
    that each has its file even without answers.
    """
    text = os.fspath(target)
    check_sink(text)
    if text == "-":
        return StandardOutput()
    writer = choose_writer(Path(text))
    if not has_placeholders(text):
        return FileSink(Path(text), writer, schema)
    template = FileTemplate(text)
    return TemplateSink(
        template, schema, consumers or {}, lambda path: FileSink(path, writer, schema)
    )


def check_sink(target: str | os.PathLike[str]) -> None:
    """Raise SinkError where `open_sink` cannot write; nothing is opened."""
    text = os.fspath(target)
    if is_broker(text):
        raise SinkError(
            f"answers go to a broker only from a ledger: name one with {option('ledger')}"
        )
    if text == "-":
        return
    path = Path(text)
    choose_writer(path)
    if has_placeholders(text):
        _check_writable(FileTemplate(text).base / "answers", path)
    else:
        check_regular(path)
        _check_writable(Path(os.path.realpath(path)), path)


def open_resumable_sink(name: str | os.PathLike[str]) -> Sink:
    """Open a sink for a run with a ledger, by its name; deliveries can be retried.

    `-` is JSON lines on standard output. Releases are appended to `answers.jsonl` or `.csv`.
    `answers/` is a folder with a Parquet file per release, and `answers/*.csv` one with another
    kind of file. A URL is a broker. Paths may contain placeholders: `answers/{consumer}.csv`,
    `answers/{consumer}/{query}/`.
    """
    text = os.fspath(name)
    if "://" in text:
        return open_broker_sink(text)
    if text == "-":
        return StandardOutput()
    path = Path(text)
    templated = has_placeholders(text)
    suffix = max((s for s in SUFFIXES if path.name.lower().endswith(s)), key=len, default="")
    if text.endswith(("/", os.sep)) or (path.is_dir() and not templated):
        folder, suffix = path, ".parquet"
    elif suffix and path.name.lower() == f"*{suffix}":
        folder = path.parent
    elif templated:
        make = _choose_opener(path, suffix)
        _check_writable(FileTemplate(text).base / "answers", path)
        return ResumableTemplateSink(FileTemplate(text), make)
    else:
        return _open_file(path, suffix)
    if not templated:
        _check_writable(folder, path)
        return FolderSink(folder, suffix)
    template = FileTemplate(str(folder))
    _check_writable(template.base / "answers", path)
    return ResumableTemplateSink(template, lambda own: FolderSink(own, suffix))


def _open_file(path: Path, suffix: str) -> Sink:
    make = _choose_opener(path, suffix)
    check_regular(path)
    _check_writable(path, path)
    return make(path)


def _check_writable(target: Path, path: Path) -> None:
    """Refuse to write a file or folder that cannot be created or changed; `path` names it."""
    folder = target.absolute().parent
    if not folder.is_dir():
        raise SinkError(f"{path}: its folder does not exist; create it or choose another place")
    for place in (folder, target):
        if place.exists() and not os.access(place, os.W_OK):
            raise SinkError(f"{place} cannot be written; change its owner or choose another place")


def _choose_opener(path: Path, suffix: str) -> Callable[[Path], Sink]:
    """Return the function that opens files of this kind."""
    plain, codec = suffix, None
    for ending, found in CODECS.items():
        if suffix.endswith(ending):
            plain, codec = suffix.removesuffix(ending), found
    if plain not in _APPENDABLE:
        expected = f"expected a name ending in {', '.join(_APPENDABLE)}, or a folder such as"
        what = f"cannot append to a {suffix} file" if suffix else "unknown kind of file"
        raise SinkError(f"{path}: {what}; {expected} {path.stem or 'answers'}/ for one per release")
    lines, header = _APPENDABLE[plain]
    return lambda path: AppendingSink(path, lines, header, codec)
