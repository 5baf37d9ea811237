"""Open what a run reads and delivers to, by its name: a path, `-`, or the URL of a broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from tacit.connectors.appending import AppendingOutlet
from tacit.connectors.files import open_source
from tacit.connectors.outlets import Outlet, Parcel
from tacit.connectors.parts import PartsOutlet
from tacit.connectors.pieces import CODECS
from tacit.connectors.sinks import StandardOutput
from tacit.connectors.sources import Source
from tacit.connectors.writers import SUFFIXES, csv_header, csv_lines, json_lines
from tacit.errors import SinkError

_Lines = Callable[[pa.Table], bytes]
_Header = Callable[[pa.Schema], bytes]
_APPENDABLE: Final[dict[str, tuple[_Lines, _Header | None]]] = {
    ".jsonl": (json_lines, None),
    ".ndjson": (json_lines, None),
    ".csv": (csv_lines, csv_header),
}


class StandardOutlet(Outlet):
    """JSON lines on standard output.

    What was written cannot be taken back: after a crash the last release may come again, with
    the same ids.
    """

    name = "-"

    def __init__(self) -> None:
        self._output = StandardOutput()

    def deliver(self, parcel: Parcel) -> None:
        """Write the answers at once."""
        self._output.write(parcel.table)

    def close(self) -> None:
        """Nothing is held back."""


def open_input(name: str | os.PathLike[str], *, follow: bool = False) -> Source:
    """A source by its name, as `open_source` has it.

    With `follow` a file is read as it grows, and a folder as files are added to it.
    """
    text = os.fspath(name)
    if not follow or text == "-" or "://" in text:  # these end only when they are closed
        return open_source(text)
    path = Path(text)
    if path.is_dir():
        from tacit.connectors.growing import GrowingSource

        return GrowingSource(path)
    from tacit.connectors.following import FollowSource

    return FollowSource(path)


def open_outlet(name: str | os.PathLike[str]) -> Outlet:
    """An outlet by its name.

    `-` is JSON lines on standard output; `answers.jsonl` or `.csv` is a file that releases are
    added to; `answers/` is a folder with a Parquet file for each release, `answers/*.csv` one
    with another kind of file; `mqtt://`, `mqtts://` and `kafka://` are brokers.
    """
    text = os.fspath(name)
    scheme, separator, _ = text.partition("://")
    if separator:
        return _open_broker(scheme.lower(), text)
    if text == "-":
        return StandardOutlet()
    path = Path(text)
    if text.endswith(("/", os.sep)) or path.is_dir():
        return PartsOutlet(path)
    suffix = max((s for s in SUFFIXES if path.name.lower().endswith(s)), key=len, default="")
    if suffix and path.name.lower() == f"*{suffix}":
        return PartsOutlet(path.parent, suffix)
    return _open_file(path, suffix)


def _open_broker(scheme: str, url: str) -> Outlet:
    if scheme in ("mqtt", "mqtts"):
        from tacit.connectors.mqtt import open_mqtt_outlet

        return open_mqtt_outlet(url)
    if scheme == "kafka":
        from tacit.connectors.kafka import open_kafka_outlet

        return open_kafka_outlet(url)
    raise SinkError(f"'{scheme}://' is no outlet: expected a path, mqtt://, mqtts:// or kafka://")


def _open_file(path: Path, suffix: str) -> Outlet:
    plain, codec = suffix, None
    for ending, found in CODECS.items():
        if suffix.endswith(ending):
            plain, codec = suffix.removesuffix(ending), found
    if plain not in _APPENDABLE:
        expected = f"expected a name ending in {', '.join(_APPENDABLE)}, or a folder such as"
        what = f"a {suffix} file cannot be added to" if suffix else "no kind of file"
        raise SinkError(f"{path}: {what}; {expected} {path.stem or 'answers'}/ for one per release")
    if path.exists() and not path.is_file():
        raise SinkError(f"{path} is there and is not a regular file; choose another name")
    if not path.absolute().parent.is_dir():
        raise SinkError(f"{path}: its folder does not exist; create it or choose another place")
    return AppendingOutlet(path, *_APPENDABLE[plain], codec)
