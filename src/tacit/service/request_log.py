"""Requests in files that are only appended to, until the run's checkpoint covers them.

A file begins with the last sequence number of every producer, so older files can be deleted. Each
record has a checksum: what a crash left unfinished was not acknowledged, and is cut off. Several
processes may have the same folder open. Who appends holds a lock, and reads first what others have
appended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tacit.errors import LedgerError, LedgerLostError
from tacit.ledger.database import LOCK_TIMEOUT
from tacit.service.ingest_requests import (
    Body,
    BodyFormat,
    IngestRequest,
    Insertion,
    LastSequence,
    SequenceError,
    StoredRequest,
    check_sequence,
    weigh,
)

_HEADER: Final = struct.Struct("<4sIQI")
"""A mark, the lengths of the description and of the payload, and a checksum of both."""
_MARK: Final = b"TREQ"
_LARGEST_FILE: Final = 32 << 20
"""About how many bytes a file has before the next one is begun."""
_MOST_BUFFERS: Final = 512
_SUFFIX: Final = ".log"
_SYNCED: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Lets the call that writes also wait until it is on disk, where the system can do that."""
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What writing fails with where the file system cannot."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the payload of a request is."""

    number: int
    file: _LogFile
    offset: int
    size: int
    coding: BodyFormat

    def read(self, stream: str) -> StoredRequest:
        payload = _read(self.file.descriptor, self.offset, self.size)
        return StoredRequest(self.number, stream, self.coding, payload)


@dataclass(slots=True, eq=False)
class _LogFile:
    path: Path
    descriptor: int
    end: int = 0
    """All before this place was read or written here."""
    requests: int = 0
    """How many there ever were."""
    waiting: int = 0
    """How many of them are not dropped."""


@dataclass(slots=True)
class _Append:
    """Records that are appended together."""

    buffers: list[Body] = field(default_factory=list)
    size: int = 0

    def add(self, about: Mapping[str, Any], payload: Body) -> int:
        """Add a record; return where its payload begins, seen from the first record."""
        text = json.dumps(about).encode()
        checksum = zlib.crc32(payload, zlib.crc32(text))
        header = _HEADER.pack(_MARK, len(text), len(payload), checksum)
        self.buffers += [header, text, payload]
        begin = self.size + len(header) + len(text)
        self.size = begin + len(payload)
        return begin


class RequestLog:
    """A store of requests in a folder that only its owner can read."""

    def __init__(self, place: str) -> None:
        self._folder = Path(place).expanduser()
        self._lock = threading.Lock()
        self._files: dict[int, _LogFile] = {}
        """By the number of the last request before each file, in order."""
        self._places: dict[str, list[_Place]] = {}
        self._producers: dict[tuple[str, str], LastSequence] = {}
        self.last = 0
        self.size = 0
        try:
            self._folder.mkdir(0o700, exist_ok=True)
            self._guard = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise LedgerError(
                f"the inbox {self._folder} cannot be used: {error.strerror}; it must be a folder"
                " that can be written"
            ) from error
        with self._lock, self._exclusive():
            self._catch_up(repair=True)
            if not self._files:
                self._begin_file()

    def insert(self, requests: Sequence[IngestRequest]) -> Insertion:
        """Append requests; they are on disk when this returns."""
        with self._lock, self._exclusive():
            self._catch_up(repair=True)
            if self._newest.end >= _LARGEST_FILE and self._newest.requests:
                self._begin_file()
            return self._append(requests)

    def _append(self, requests: Sequence[IngestRequest]) -> Insertion:
        before, file = self.last, self._newest
        results: list[bool | SequenceError] = []
        stored: list[StoredRequest] = []
        places: list[tuple[str, _Place]] = []
        known: dict[tuple[str, str], LastSequence] = {}
        added = _Append()
        for request in requests:
            about: dict[str, Any] = {"stream": request.stream, "coding": request.coding}
            if request.sequence is not None:
                key = request.stream, request.producer
                last = check_sequence(request, known.get(key) or self._producers.get(key))
                if not isinstance(last, LastSequence):
                    results.append(False if last is None else last)
                    continue
                known[key] = last
                about |= {"producer": request.producer, "sequence": last.number}
                about["digest"] = last.digest.hex()
            number = before + len(stored) + 1
            place = file.end + added.add(about | {"number": number}, request.payload)
            size, coding = len(request.payload), request.coding
            places.append((request.stream, _Place(number, file, place, size, coding)))
            stored.append(
                StoredRequest(number, request.stream, coding, request.payload, request.table)
            )
            results.append(True)
        if stored:
            self._write(file, added)
        self._producers |= known
        for stream, one in places:
            self._add(stream, one)
        return Insertion(before, results, stored)

    def read(self, stream: str, after: int, most: int) -> list[StoredRequest]:
        """Read requests to a stream after this number: about `most` bytes, at least one."""
        with self._lock:
            self._catch_up(repair=False)
            places = self._places.get(stream, [])
            first = bisect_right(places, after, key=lambda place: place.number)
            end, size = first, 0
            while end < len(places) and (end == first or size + places[end].size <= most):
                size += places[end].size
                end += 1
            return [place.read(stream) for place in places[first:end]]

    def drop(self, stream: str, until: int) -> int:
        """Forget the requests to a stream up to this number, and delete files without others."""
        with self._lock:
            places = self._places.get(stream, [])
            count = bisect_right(places, until, key=lambda place: place.number)
            dropped = sum(weigh(place.size) for place in places[:count])
            for place in places[:count]:
                place.file.waiting -= 1
            del places[:count]
            self.size -= dropped
            if count:
                with suppress(LedgerLostError, OSError):  # the next call deletes them too
                    self._delete_files()
            return dropped

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for file in self._files.values():
                os.close(file.descriptor)
            self._files.clear()
            os.close(self._guard)

    @property
    def _newest(self) -> _LogFile:
        return next(reversed(self._files.values()))

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other processes from appending."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise LedgerLostError(
                        f"another process keeps the inbox {self._folder} locked; stop it"
                    ) from error
                time.sleep(0.002)
        try:
            yield
        finally:
            fcntl.flock(self._guard, fcntl.LOCK_UN)

    def _catch_up(self, *, repair: bool) -> None:
        """Read what others have appended; with `repair`, cut off what a crash left unfinished."""
        newest = next(reversed(self._files), -1)
        found = (name for name in os.listdir(self._folder) if name.endswith(_SUFFIX))
        names = sorted(int(name.removesuffix(_SUFFIX)) for name in found)
        for name in (one for one in names if one >= newest):
            file = self._files.get(name)
            if file is None:
                path = self._folder / f"{name:020}{_SUFFIX}"
                try:
                    file = _LogFile(path, os.open(path, os.O_RDWR))
                except FileNotFoundError:
                    continue  # deleted by another process: a checkpoint covers it
                self._files[name] = file
            size = os.fstat(file.descriptor).st_size
            while file.end < size and (end := self._read_record(file)) is not None:
                file.end = end
            if file.end < size and name != names[-1]:
                raise LedgerError(f"{file.path} is damaged; restore it from a backup, or remove it")
            if file.end < size and repair:
                os.ftruncate(file.descriptor, file.end)
            if not file.end and repair:  # a crash left it without its beginning
                self._write_state(file)

    def _read_record(self, file: _LogFile) -> int | None:
        """Read the next record; return its end, or None if it is not complete."""
        header = _read(file.descriptor, file.end, _HEADER.size)
        if len(header) < _HEADER.size:
            return None
        mark, length, size, checksum = _HEADER.unpack(header)
        begin = file.end + _HEADER.size + length
        if mark != _MARK or begin + size > os.fstat(file.descriptor).st_size:
            return None
        text = _read(file.descriptor, file.end + _HEADER.size, length)
        payload = _read(file.descriptor, begin, size)
        if zlib.crc32(payload, zlib.crc32(text)) != checksum:
            return None
        about = json.loads(text)
        if "producers" in about:
            self.last = about["last"]
            self._producers = {
                (stream, producer): LastSequence(number, bytes.fromhex(digest))
                for stream, producer, number, digest in about["producers"]
            }
            return int(begin + size)
        stream = about["stream"]
        if "sequence" in about:
            last = LastSequence(about["sequence"], bytes.fromhex(about["digest"]))
            self._producers[stream, about["producer"]] = last
        self._add(stream, _Place(about["number"], file, begin, size, about["coding"]))
        return int(begin + size)

    def _add(self, stream: str, place: _Place) -> None:
        self._places.setdefault(stream, []).append(place)
        place.file.requests += 1
        place.file.waiting += 1
        self.last = place.number
        self.size += weigh(place.size)

    def _begin_file(self) -> None:
        """Begin a new file."""
        path = self._folder / f"{self.last:020}{_SUFFIX}"
        file = _LogFile(path, os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            self._write_state(file)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(file.descriptor)
            path.unlink()
            raise
        self._files[self.last] = file

    def _write_state(self, file: _LogFile) -> None:
        """Write the state of all producers at the beginning of a file."""
        producers = [
            [stream, producer, last.number, last.digest.hex()]
            for (stream, producer), last in self._producers.items()
        ]
        first = _Append()
        first.add({"last": self.last, "producers": producers}, b"")
        self._write(file, first)

    def _write(self, file: _LogFile, added: _Append) -> None:
        """Append records to a file, and wait until they are on disk."""
        try:
            _write(file.descriptor, file.end, added.buffers)
        except OSError as error:
            os.ftruncate(file.descriptor, file.end)
            raise LedgerLostError(
                f"the inbox {self._folder} cannot be written: {error.strerror}"
            ) from error
        file.end += added.size

    def _delete_files(self) -> None:
        """Delete files of which nothing waits; replace the newest one if that holds for it."""
        if self._newest.requests and not self._newest.waiting:
            with self._exclusive():
                self._catch_up(repair=True)
                if not self._newest.waiting:
                    self._begin_file()
        newest = self._newest
        for name, file in list(self._files.items()):
            if file is not newest and not file.waiting:
                file.path.unlink(missing_ok=True)
                os.close(file.descriptor)
                del self._files[name]


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """Read so many bytes, or up to the end of the file."""
    parts = []
    while size and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(descriptor: int, offset: int, buffers: Sequence[Body]) -> None:
    """Write all of these at a place, and wait until they are on disk."""
    waiting = [memoryview(buffer) for buffer in buffers if buffer]
    flags = _SYNCED
    while waiting:
        try:
            written = os.pwritev(descriptor, waiting[:_MOST_BUFFERS], offset, flags)
        except OSError as error:
            if flags and error.errno in _UNSUPPORTED:
                flags = 0
                continue
            raise
        offset += written
        done = 0
        while done < len(waiting) and written >= len(waiting[done]):
            written -= len(waiting[done])
            done += 1
        waiting = waiting[done:]
        if written:
            waiting[0] = waiting[0][written:]
    if not flags:
        os.fsync(descriptor)
