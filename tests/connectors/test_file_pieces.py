"""Pieces of files and pipes: a byte order mark is recognised however it is cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tacit.connectors import file_pieces
from tacit.connectors.file_pieces import BOM, UTF_16_BOMS, FilePieces
from tacit.errors import SourceError

LINES = b'{"a": 1}\n{"a": 2}\n'


@pytest.fixture(params=["file", "pipe"])
def give(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[bytes], FilePieces]]:
    """Make a source of these bytes."""
    with ExitStack() as stack:

        def make(data: bytes) -> FilePieces:
            if request.param == "file":
                path = tmp_path / "a.jsonl"
                path.write_bytes(data)
                return FilePieces(path, "a")
            read, write = os.pipe()
            stack.callback(os.close, read)
            os.write(write, data)
            os.close(write)
            return FilePieces(read, "a")

        yield make


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("data", [LINES, b"{}", b"\n", b""])
def test_a_byte_order_mark_is_left_out_however_it_is_cut(
    data: bytes,
    piece: int,
    give: Callable[[bytes], FilePieces],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_pieces, "PIECE", piece)
    for given in (BOM + data, data):
        pieces = give(given)
        assert data.startswith(pieces.peek())
        found = list(pieces)
        assert b"".join(bytes(one.data) for one in found) == data
        assert not given or found[-1].position == len(given)


@pytest.mark.parametrize("piece", [1, 2, 100])
@pytest.mark.parametrize("mark", UTF_16_BOMS)
def test_utf_16_is_refused_however_it_is_cut(
    mark: bytes,
    piece: int,
    give: Callable[[bytes], FilePieces],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_pieces, "PIECE", piece)
    with pytest.raises(SourceError, match="UTF-16"):
        list(give(mark + "a".encode("utf-16-le")))


@pytest.mark.parametrize("part", [BOM[:1], BOM[:2]])
def test_a_part_of_a_mark_alone_is_data(part: bytes, give: Callable[[bytes], FilePieces]) -> None:
    assert [bytes(piece.data) for piece in give(part)] == [part]
