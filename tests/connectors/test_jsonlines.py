"""JSON lines: broken lines, drifting types, slow pipes."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.connectors import jsonlines, pieces
from tacit.connectors.files import open_source
from tacit.connectors.jsonlines import JsonLinesSource
from tacit.connectors.sources import Batch, Rejected
from tacit.errors import SourceError


def read(path: Path, text: str | bytes, **options: Any) -> list[Batch]:
    """Write the text and read it as JSON lines."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(JsonLinesSource(path).batches(**options))


def values(batches: list[Batch]) -> list[dict[str, Any]]:
    """All rows."""
    return [row for batch in batches for row in batch.table.to_pylist()]


def rejected(batches: list[Batch]) -> list[Rejected]:
    """All rejected lines."""
    return [line for batch in batches for line in batch.rejected]


def placed(batches: list[Batch]) -> list[int]:
    """The line of every row."""
    return [int(p) for b in batches for p in b.place(np.arange(b.table.num_rows))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test may write."""
    return tmp_path / "a.jsonl"


def test_a_broken_line_is_rejected_with_its_number_and_all_others_are_kept(path: Path) -> None:
    lines = [json.dumps({"n": n}) for n in range(30_000)]
    lines[12_345] = '{"n": 12345'
    batches = read(path, "\n".join(lines))
    assert [row["n"] for row in values(batches)] == [n for n in range(30_000) if n != 12_345]
    assert placed(batches) == [n + 1 for n in range(30_000) if n != 12_345]
    (line,) = rejected(batches)
    assert (line.place, line.raw) == (12_346, '{"n": 12345')
    assert line.reason == "not JSON"
    assert "12345" not in line.reason


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"[1, 2]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"7", "not a JSON object"),
        (b'{"n": 1} {"n": 2}', "not JSON"),
        (b'{"n": "\xff"}', "not UTF-8 text"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
        (b"[" * 100_000, "not JSON that can be read"),
        (b"\x00\x01", "not JSON"),
    ],
)
def test_a_line_that_is_no_object_is_rejected(path: Path, bad: bytes, reason: str) -> None:
    batches = read(path, b'{"n": 1}\n' + bad + b'\n{"n": 3}\n')
    assert [row["n"] for row in values(batches)] == [1, 3]
    assert placed(batches) == [1, 3]
    (line,) = rejected(batches)
    assert line.place == 2
    assert line.reason.startswith(reason)


def test_blank_lines_are_skipped_but_counted(path: Path) -> None:
    batches = read(path, '\n{"n": 1}\n  \r\n\n{"n": 2}\r\n')
    assert [row["n"] for row in values(batches)] == [1, 2]
    assert placed(batches) == [2, 5]
    assert not rejected(batches)


def test_missing_keys_are_null_and_a_byte_order_mark_is_passed_over(path: Path) -> None:
    text = b'\xef\xbb\xbf{"a": 1}\n{"b": "x"}\n{}'
    assert values(read(path, text)) == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]


def test_a_column_keeps_its_type_when_later_blocks_drift(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 64)
    first = '{"i": 1, "f": 1.5, "s": "x", "b": true, "k": 7}\n' * 3
    drift = (
        '{"i": 2.5, "f": 3, "s": 5, "b": 1, "k": 8.5, "new": 9}\n'
        '{"i": "no", "f": "no", "s": {"x": 1}, "b": "no", "k": "no"}\n'
        '{"i": 3, "f": 4.5, "s": null, "b": false, "k": 9}\n'
    )
    rows = values(read(path, first + drift, keys=["k"]))
    assert rows[:3] == [{"i": 1, "f": 1.5, "s": "x", "b": True, "k": 7}] * 3
    assert [row["i"] for row in rows[3:]] == [2.5, None, 3]
    assert [row["f"] for row in rows[3:]] == [3, None, 4.5]
    assert rows[3]["s"] == "5"
    assert [row["b"] for row in rows[3:]][1:] == [None, False]
    assert [row["k"] for row in rows[3:]] == [None, None, 9]
    assert "new" not in rows[3]


def test_a_column_that_is_empty_at_the_beginning_gets_its_type_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 16)
    rows = values(read(path, '{"a": null, "b": null}\n{"a": 1.5, "b": "x"}\n{"a": 2}\n'))
    assert rows == [{"a": None, "b": None}, {"a": 1.5, "b": "x"}, {"a": 2, "b": None}]


def test_nan_and_infinity_as_python_writes_them_are_null(path: Path) -> None:
    rows = values(read(path, '{"x": 1.5, "n": 1}\n{"x": NaN, "n": 2}\n{"x": -Infinity, "n": 3}\n'))
    assert rows == [{"x": 1.5, "n": 1}, {"x": None, "n": 2}, {"x": None, "n": 3}]


def test_of_a_key_that_stands_twice_the_first_counts_on_every_path(path: Path) -> None:
    text = '{"a": 0}\n{"a": 1, "a": 2}\n'
    assert values(read(path, text)) == [{"a": 0}, {"a": 1}]
    assert values(read(path, text + "broken\n")) == [{"a": 0}, {"a": 1}]


def test_lines_that_are_all_no_objects_are_no_json_lines(path: Path) -> None:
    with pytest.raises(SourceError, match="none of its first 2 lines is a JSON object"):
        read(path, "a,b\n1,2\n")


def test_utf16_is_refused(path: Path) -> None:
    with pytest.raises(SourceError, match="UTF-16 text; convert it to UTF-8"):
        read(path, '{"a": 1}\n'.encode("utf-16"))


def test_a_line_without_end_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)
    monkeypatch.setattr(jsonlines, "LONGEST_LINE", 5000)
    with pytest.raises(SourceError, match="a line of more than"):
        read(path, '{"a": 1}\n' + "x" * 10_000)


good = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(-9, 9) | st.floats(-2, 2) | st.just("text"),
        "s": st.text(max_size=3) | st.integers(0, 9),
        "b": st.booleans(),
    },
).map(json.dumps)
line = st.one_of(good, good, good, st.sampled_from(["", "{", "[]", "3", '{"n": NaN}']))


@settings(max_examples=60)
@given(st.lists(line, max_size=30), st.integers(1, 200), st.integers(1, 4))
def test_rows_do_not_depend_on_how_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], piece: int, few: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    text = '{"n": 1, "s": "x", "b": true}\n' * 8 + "\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonlines, "_SAMPLE", 8)
        whole = read(path, text)
        patch.setattr(pieces, "PIECE", 250 + piece)
        patch.setattr(jsonlines, "_FEW", few)
        cut = read(path, text)
    assert values(cut) == values(whole)
    assert placed(cut) == placed(whole)
    assert sorted(rejected(cut), key=lambda r: r.place) == rejected(whole)


def test_a_slow_pipe_flows_and_the_last_line_needs_no_end() -> None:
    reader, writer = os.pipe()
    came = threading.Event()

    def feed() -> None:
        os.write(writer, b'{"n": 1}\n{"n": ')
        came.wait(10)  # the first line must be delivered before the pipe goes on
        os.write(writer, b"2}\n")
        time.sleep(0.05)
        os.write(writer, b'{"n": 3}')
        os.close(writer)

    thread = threading.Thread(target=feed)
    thread.start()
    source = JsonLinesSource(reader)
    assert source.once
    assert source.total is None
    batches = source.batches()
    first = next(batches)
    assert first.table.to_pylist() == [{"n": 1}]
    came.set()
    rest = list(batches)
    assert [row["n"] for row in values(rest)] == [2, 3]
    assert placed([first, *rest]) == [1, 2, 3]
    with pytest.raises(SourceError, match="only once"):
        list(source.batches())
    thread.join()
    os.close(reader)


def test_a_dash_is_standard_input() -> None:
    assert open_source("-").name == "standard input"
