"""The log of requests: what was acknowledged is there after any crash, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tacit.errors import LedgerError, LedgerLostError
from tacit.service import request_log
from tacit.service.ingest_requests import IngestRequest, SequenceError
from tacit.service.request_log import RequestLog

SECRET = b"a secret tuple"


def request(payload: bytes, sequence: int | None = None, stream: str = "s") -> IngestRequest:
    """A request of one producer."""
    return IngestRequest(stream, "p", "jsonl", payload, sequence)


def payloads(log: RequestLog, after: int = 0, most: int = 1 << 20) -> list[bytes]:
    """What is stored in the stream, in order."""
    return [bytes(one.payload) for one in log.read("s", after, most)]


def files(place: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    return sorted(place.glob("*.log"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "ledger.db.inbox"


def fill(place: Path, found: Sequence[bytes]) -> Path:
    """A log with these payloads, numbered from 0; its only file."""
    with closing(RequestLog(str(place))) as log:
        for number, payload in enumerate(found):
            assert log.insert([request(payload, number)]).results == [True]
    (file,) = files(place)
    return file


def test_wherever_a_crash_cuts_it_whole_requests_stay(place: Path) -> None:
    file = fill(place, [b"one", b"two"])
    content, before = file.read_bytes(), len(file.read_bytes()[: -len(b"two")])
    for cut in range(before - 60, len(content) + 1):
        file.write_bytes(content[:cut])
        with closing(RequestLog(str(place))) as log:
            whole = cut == len(content)
            assert payloads(log) == ([b"one", b"two"] if whole else [b"one"])
            again = log.insert([request(b"two", 1)])  # the producer repeats it
            assert again.results == [not whole]
            assert payloads(log) == [b"one", b"two"]
            assert log.last == 2


def test_a_changed_byte_is_found(place: Path) -> None:
    file = fill(place, [b"one", b"two"])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with closing(RequestLog(str(place))) as log:
        assert payloads(log) == [b"one"]


def test_a_damaged_file_that_others_follow_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_LARGEST_FILE", 1)
    with closing(RequestLog(str(place))) as log:
        for payload in (b"one", b"two"):
            log.insert([request(payload)])
    first, second = files(place)
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        RequestLog(str(place))
    assert second.exists()


def test_several_processes_see_what_the_others_stored(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_LARGEST_FILE", 600)
    with closing(RequestLog(str(place))) as one, closing(RequestLog(str(place))) as other:
        for number in range(12):
            log = other if number % 3 == 0 else one
            inserted = log.insert([request(b"%d" % number, number)])
            assert (inserted.before, inserted.results) == (number, [True])
            assert log.insert([request(b"%d" % number, number)]).results == [False]
        expected = [b"%d" % number for number in range(12)]
        assert len(files(place)) > 1
        assert payloads(one) == payloads(other) == expected
        assert one.size == other.size > 0
        assert payloads(one, after=10) == expected[10:]
        assert payloads(one, most=1) == expected[:1]
        assert payloads(one, most=3) == expected[:3]
        one.drop("s", 12)
        assert (one.size, len(files(place))) == (0, 1)
        assert other.insert([request(b"more", 12)]).before == 12
        assert payloads(one, after=12) == [b"more"]


def test_what_a_checkpoint_covers_is_deleted_and_numbers_are_not_forgotten(place: Path) -> None:
    fill(place, [b"one", SECRET])
    with closing(RequestLog(str(place))) as log:
        log.insert([request(b"other", stream="t")])
        log.drop("s", 2)
        assert any(SECRET in path.read_bytes() for path in files(place))  # one of t waits
        log.drop("t", 3)
        assert not any(SECRET in path.read_bytes() for path in place.iterdir())
    with closing(RequestLog(str(place))) as log:
        assert (log.last, log.size, payloads(log)) == (3, 0, [])
        wrong, repeated, new = log.insert(
            [request(b"?", 5), request(SECRET, 1), request(b"two", 2)]
        ).results
        assert isinstance(wrong, SequenceError)
        assert (wrong.expected, repeated, new) == (2, False, True)
        assert [one.number for one in log.read("s", 0, 100)] == [4]


def test_a_file_without_its_beginning_gets_one(place: Path) -> None:
    """A crash just after a file was created."""
    fill(place, [b"one"])
    (place / f"{1:020}.log").write_bytes(b"TREQ")
    with closing(RequestLog(str(place))) as log:
        assert log.insert([request(b"two", 1)]).results == [True]
        log.drop("s", 1)
        assert len(files(place)) == 1
    with closing(RequestLog(str(place))) as log:
        assert payloads(log) == [b"two"]
        assert log.insert([request(b"two", 1)]).results == [False]


def test_a_full_disk_stores_nothing_of_a_request(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill(place, [b"one"])
    content = file.read_bytes()
    write = request_log._write

    def fail(descriptor: int, offset: int, buffers: Sequence[bytes]) -> None:
        write(descriptor, offset, buffers[:2])
        raise OSError(28, os.strerror(28))

    with closing(RequestLog(str(place))) as log:
        monkeypatch.setattr(request_log, "_write", fail)
        with pytest.raises(LedgerLostError, match="No space left"):
            log.insert([request(b"two", 1)])
        assert file.read_bytes() == content
        monkeypatch.undo()
        assert log.insert([request(b"two", 1)]).results == [True]
        assert payloads(log) == [b"one", b"two"]


def test_only_its_owner_can_read_it(place: Path) -> None:
    file = fill(place, [SECRET])
    assert place.stat().st_mode & 0o077 == 0
    assert file.stat().st_mode & 0o077 == 0


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(LedgerError, match="must be a folder"):
        RequestLog(str(tmp_path / "x"))


@pytest.mark.parametrize("supported", ["by both", "by the system", "by none"])
def test_it_waits_until_requests_are_on_disk(
    place: Path, monkeypatch: pytest.MonkeyPatch, supported: str
) -> None:
    """In the call that writes, or after it where the system or the file system cannot do that."""
    waited: list[str] = []
    write, sync = os.pwritev, os.fsync

    def note_write(file: int, buffers: Sequence[bytes], offset: int, flags: int) -> int:
        if flags and supported == "by the system":
            raise OSError(errno.EOPNOTSUPP, "not supported")
        waited.append("written and on disk" if flags else "written")
        return write(file, buffers, offset, flags)

    def note_sync(file: int) -> None:
        waited.append("on disk")
        sync(file)

    with closing(RequestLog(str(place))) as log:
        if supported == "by none":
            monkeypatch.setattr(request_log, "_SYNCED", 0)
        monkeypatch.setattr(os, "pwritev", note_write)
        monkeypatch.setattr(os, "fsync", note_sync)
        assert log.insert([request(b"one")]).results == [True]
    at_once = supported == "by both" and request_log._SYNCED
    assert waited == (["written and on disk"] if at_once else ["written", "on disk"])
