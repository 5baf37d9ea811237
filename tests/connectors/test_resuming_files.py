"""Files that are read on from where they were left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tacit.connectors import file_pieces, jsonlines
from tacit.connectors.files import open_source
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch

ROWS = 3000
FRAME = pl.DataFrame(
    {
        "subject": [f's"{n % 7},' for n in range(ROWS)],
        "n": range(ROWS),
        "text": [f'comma, quote" {n}' if n % 11 == 0 else None for n in range(ROWS)],
    }
)


def written(folder: Path, name: str) -> Path:
    """The rows in a file, or in a folder of three."""
    path = folder / name
    if path.suffix == ".parquet":
        FRAME.write_parquet(path, row_group_size=int(path.stem))
    elif name.startswith("many"):
        path.mkdir()
        for part in range(3):
            piece = FRAME[part * 1000 : (part + 1) * 1000]
            piece.write_ndjson(path / f"{part}.jsonl")
    elif path.suffix == ".csv":
        path.write_bytes(b"\xef\xbb\xbf" + FRAME.write_csv().encode())
    else:
        FRAME.write_ndjson(path)
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pieces, "PIECE", 5000)
    monkeypatch.setattr("tacit.connectors.parquet.MOST_ROWS", 256)
    monkeypatch.setattr("tacit.connectors.parquet._SMALL_GROUP", 100)


def read(path: Path, token: Any = None) -> list[Batch]:
    source = open_source(path)
    source.resume(token)
    return list(source.batches(["n", "subject", "text"], ["subject"]))


def rows(batches: list[Batch]) -> list[tuple[int, dict[str, Any]]]:
    """All rows with their places."""
    return [
        (batch.first_row + n if batch.places is None else int(batch.places[n]), row)
        for batch in batches
        for n, row in enumerate(batch.table.to_pylist())
    ]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "name", ["50.parquet", "700.parquet", "3000.parquet", "a.csv", "a.jsonl", "many"]
)
def test_a_file_resumed_at_any_batch_gives_the_rest(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    whole = read(path)
    assert len(rows(whole)) == ROWS
    begins = [n for n, batch in enumerate(whole) if n == 0 or batch.token != whole[n - 1].token]
    assert len(begins) > 2
    for begin in begins:
        token = json.loads(json.dumps(whole[begin].token))
        again = read(path, token)
        assert rows(again) == rows(whole[begin:])
        assert again[0].token == token
        assert again[-1].position == whole[-1].position


def test_lines_that_were_rejected_before_do_not_come_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = [json.dumps({"n": n, "subject": "s", "text": None}) for n in range(600)]
    path.write_text("\n".join([*good[:300], "broken", "", *good[300:]]) + "\n")
    whole = read(path)
    last = whole[-1]
    again = read(path, last.token)
    assert sum(len(batch.rejected) for batch in whole) == 1
    assert not any(batch.rejected for batch in again)
    assert rows(again) == rows([last])


@pytest.mark.parametrize("name", ["700.parquet", "a.csv", "a.jsonl"])
def test_a_file_that_is_shorter_now_is_refused(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    token = read(path)[-1].token
    short = FRAME[:10]
    if path.suffix == ".parquet":
        short.write_parquet(path)
    else:
        (short.write_csv if path.suffix == ".csv" else short.write_ndjson)(path)
    with pytest.raises(SourceError, match="shorter than it was"):
        read(path, token)


def test_a_folder_without_the_file_that_was_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "many")
    token = read(path)[-1].token
    (path / "2.jsonl").unlink()
    with pytest.raises(SourceError, match="no longer contains"):
        read(path, token)


def test_compressed_lines_are_counted_from_the_beginning(tmp_path: Path) -> None:
    import gzip

    plain = written(tmp_path, "a.jsonl")
    path = tmp_path / "b.jsonl.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert {batch.token for batch in read(path)} == {None}
    source = jsonlines.JsonLinesSource(path)
    source.resume({"offset": 10, "line": 2})
    with pytest.raises(SourceError, match="cannot be resumed in the middle"):
        list(source.batches(["n"]))
