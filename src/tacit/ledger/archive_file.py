"""The file of an archive: Parquet, a row for each release with its charges and kept answers.

The file can be checked without the ledger: its metadata has the hash before the first release,
and every release has its own hash. See docs/ledger.md for the format.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tacit.errors import LedgerError
from tacit.ledger.chain import ARCHIVE, CHARGE, RELEASE

FORMAT: Final = 2
_KNOWN: Final = (1, 2)
"""In the first format charges had no `offset`: all were in UTC."""
_KEY: Final = b"tacit.archive"
_BYTES: Final = 8 << 20
"""The approximate number of bytes to buffer."""
_ROWS: Final = 4096
_TEXTS: Final = ("run", "fingerprint", "plan", "private")
_BINARY: Final = ("registry", "digest", "hash", "ids", "body")


def _kind(name: str) -> pa.DataType:
    if name in _TEXTS:
        return pa.string()
    return pa.binary() if name in _BINARY else pa.int64()


_PLAIN: Final = (*RELEASE, "hash", "body")
CHARGE_COLUMNS: Final = (*CHARGE, "offset")
"""The columns of each charge."""


def _schema(charge: Sequence[str]) -> pa.Schema:
    charges = pa.list_(pa.struct([(name, _kind(name)) for name in charge]))
    return pa.schema([*((name, _kind(name)) for name in _PLAIN), ("charges", charges)])


SCHEMA: Final = _schema(CHARGE_COLUMNS)
"""The columns of an archive."""
_EARLIER: Final = _schema(CHARGE)


@dataclass(frozen=True, slots=True)
class ArchiveHead:
    """The metadata of an archive."""

    ledger: str
    created: int
    """When the ledger was created."""
    number: int
    """The number of the archive; the first one of a ledger is 1."""
    first: int
    last: int
    previous: bytes
    """The hash of the release before the first, or the start of the ledger's chain."""
    hash: bytes
    """The hash of the last release."""
    joins: Sequence[dict[str, Any]]
    """Earlier archives whose links are between the releases of this one."""

    def to_json(self) -> bytes:
        """Encode it for the file's metadata."""
        plain = {
            "format": FORMAT,
            "ledger": self.ledger,
            "created": self.created,
            "number": self.number,
            "first": self.first,
            "last": self.last,
            "previous": self.previous.hex(),
            "hash": self.hash.hex(),
            "joins": [
                {
                    name: value.hex() if isinstance(value, bytes) else value
                    for name, value in join.items()
                }
                for join in self.joins
            ],
        }
        return json.dumps(plain).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ArchiveHead:
        """Decode the file's metadata; raise ValueError, KeyError or TypeError if it is invalid."""
        plain = json.loads(text)
        if plain.pop("format") not in _KNOWN:
            raise ValueError("another format")
        for name in ("previous", "hash"):
            plain[name] = bytes.fromhex(plain[name])
        plain["joins"] = [
            {
                name: bytes.fromhex(join[name])
                if name in ("hash", "digest", "settled")
                else join[name]
                for name in ARCHIVE
            }
            for join in plain["joins"]
        ]
        return cls(**plain)


class ArchiveWriter:
    """Writes an archive under a temporary name; `finish` syncs and renames it."""

    def __init__(self, path: Path, head: ArchiveHead) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            if not _is_running(int(left.suffixes[-2][1:])):  # from an interrupted attempt
                left.unlink(missing_ok=True)
        schema = SCHEMA.with_metadata({_KEY: head.to_json()})
        with _translate_errors(path):
            # It may hold answers: only its owner can read it, like a ledger.
            self._number = os.open(self._partial, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
            self._file = os.fdopen(self._number, "wb")
            self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._held = 0

    def write(self, row: dict[str, Any]) -> None:
        """Add a release, with `charges` and `body`."""
        self._rows.append(row)
        self._held += len(row["body"] or b"") + 512
        if self._held >= _BYTES or len(self._rows) >= _ROWS:
            self._flush()

    def finish(self) -> bytes:
        """Complete and rename the file; return its digest."""
        self._flush()
        with _translate_errors(self._path):
            self._writer.close()
            self._file.flush()
            os.fsync(self._number)
            self._file.close()
            # Linking fails if a file of that name exists by now.
            os.link(self._partial, self._path)
            self._partial.unlink()
            _sync(self._path.parent)
        return file_digest(self._path)

    def abort(self) -> None:
        """Remove the temporary file."""
        with suppress(Exception):  # it may fail again for the same reason
            self._writer.close()
        with suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            with _translate_errors(self._path):
                self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMA))
        self._rows, self._held = [], 0


class ArchiveFile:
    """Reads an archive: its `head`, and its releases one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        wrong = f"{path} is not an archive of a ledger"
        try:
            self._file = pq.ParquetFile(path)
            found = self._file.schema_arrow
            if not any(found.remove_metadata().equals(one) for one in (SCHEMA, _EARLIER)):
                raise LedgerError(f"{wrong}: it has other columns")
            self.head = ArchiveHead.from_json((found.metadata or {})[_KEY])
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else "it is damaged"
            raise LedgerError(f"{path} cannot be read: {why}") from error
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"{wrong}, or was written by another version") from error

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each release with its `charges` and its `body`, which may be None."""
        try:
            for batch in self._file.iter_batches(_ROWS):
                yield from _rows(batch)
        except (pa.ArrowException, OSError) as error:
            raise LedgerError(f"{self.path} is damaged: {type(error).__name__}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch."""
    lists = batch.column("charges")
    names = [field.name for field in lists.type.value_type]
    fields = [lists.values.field(number).to_pylist() for number in range(len(names))]
    charges = [
        {"offset": 0, **dict(zip(names, values, strict=True))}
        for values in zip(*fields, strict=True)
    ]
    ends = lists.offsets.to_pylist()
    columns = [batch.column(name).to_pylist() for name in _PLAIN]
    for number, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(_PLAIN, values, strict=True))
        row["charges"] = charges[ends[number] : ends[number + 1]]
        yield row


def file_digest(path: Path) -> bytes:
    """Compute the SHA-256 of a file."""
    with _translate_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Turn a failed read or write into a LedgerError."""
    try:
        yield
    except FileExistsError as error:
        raise LedgerError(f"{path} exists; choose another name") from error
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else type(error).__name__
        raise LedgerError(
            f"the archive {path} cannot be written or read: {why}. Nothing was deleted from"
            " the ledger"
        ) from error


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
