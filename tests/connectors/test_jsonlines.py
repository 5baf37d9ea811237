"""JSON lines: broken lines, odd values, slow pipes; every value is text."""

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

from tacit.connectors import file_pieces, jsonlines
from tacit.connectors.files import open_source
from tacit.connectors.jsonlines import JsonLinesSource
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, Rejected


def read(path: Path, text: str | bytes, *columns: str) -> list[Batch]:
    """Write the text and read it as JSON lines; by default the key `n`."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(JsonLinesSource(path).batches(columns or ("n",)))


def values(batches: list[Batch]) -> list[dict[str, Any]]:
    """All rows."""
    return [row for batch in batches for row in batch.table.to_pylist()]


def rejected(batches: list[Batch]) -> list[Rejected]:
    """All rejected lines."""
    return [line for batch in batches for line in batch.rejected]


def placed(batches: list[Batch]) -> list[int]:
    """The line of every row."""
    return [int(p) for b in batches for p in b.number_rows(np.arange(b.table.num_rows))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test may write."""
    return tmp_path / "a.jsonl"


def test_a_broken_line_is_rejected_with_its_number_and_all_others_are_kept(path: Path) -> None:
    lines = [json.dumps({"n": n}) for n in range(30_000)]
    lines[12_345] = '{"n": 12345'
    batches = read(path, "\n".join(lines))
    assert [row["n"] for row in values(batches)] == [str(n) for n in range(30_000) if n != 12_345]
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
        (b'{"n": 1e400}', "not JSON that can be read"),
        (b'{"note": 1e400, "n": 2}', "not JSON that can be read"),
        (b'{"n": "\\ud800"}', "half of a character"),
        (b'{"note": "\\ud800", "n": 2}', "half of a character"),
    ],
)
def test_a_line_that_is_no_object_is_rejected(path: Path, bad: bytes, reason: str) -> None:
    batches = read(path, b'{"n": 1}\n' + bad + b'\n{"n": 3}\n')
    assert [row["n"] for row in values(batches)] == ["1", "3"]
    assert placed(batches) == [1, 3]
    (line,) = rejected(batches)
    assert line.place == 2
    assert line.reason.startswith(reason)


def test_blank_lines_are_skipped_but_counted(path: Path) -> None:
    batches = read(path, '\n{"n": 1}\n  \r\n\n{"n": 2}\r\n')
    assert [row["n"] for row in values(batches)] == ["1", "2"]
    assert placed(batches) == [2, 5]
    assert not rejected(batches)


def test_missing_keys_are_null_and_a_byte_order_mark_is_passed_over(path: Path) -> None:
    text = b'\xef\xbb\xbf{"a": 1}\n{"b": "x"}\n{}'
    assert values(read(path, text, "a", "b")) == [
        {"a": "1", "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]


def test_values_are_text_as_json_writes_them(path: Path) -> None:
    lines = ["7", "1.50", "1e2", "true", "null", '"007"', '"é\\ud83d\\ude00"', "[1]", '{"x": 1}']
    text = "".join(f'{{"n": {value}}}\n' for value in lines)
    assert [row["n"] for row in values(read(path, text))] == [
        "7", "1.5", "100", "true", None, "007", "é😀", "[1]", '{"x": 1}',
    ]  # fmt: skip


def test_nan_and_infinity_as_python_writes_them_are_null(path: Path) -> None:
    text = '{"x": 1.5, "n": 1}\n{"x": NaN, "n": 2}\n{"x": -Infinity, "n": "NaN"}\n'
    rows = values(read(path, text, "x", "n"))
    assert rows == [{"x": "1.5", "n": "1"}, {"x": None, "n": "2"}, {"x": None, "n": "NaN"}]


def test_of_a_key_that_stands_twice_the_first_counts_on_every_path(path: Path) -> None:
    text = '{"a": 0}\n{"a": 1, "a": 2}\n'
    assert values(read(path, text, "a")) == [{"a": "0"}, {"a": "1"}]
    assert values(read(path, text + "broken\n", "a")) == [{"a": "0"}, {"a": "1"}]
    assert values(read(path, '{"a": 1, "a": NaN}\n', "a")) == [{"a": "1"}]


def test_lines_that_are_all_no_objects_are_all_rejected(path: Path) -> None:
    batches = read(path, "a,b\n1,2\n")
    assert values(batches) == []
    assert [line.place for line in rejected(batches)] == [1, 2]


def test_utf16_is_refused(path: Path) -> None:
    with pytest.raises(SourceError, match="UTF-16 text; convert it to UTF-8"):
        read(path, '{"a": 1}\n'.encode("utf-16"))


def test_a_line_without_end_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pieces, "PIECE", 1000)
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
odd = ["", "{", "[]", "3", '{"n": NaN}', '{"n": 1e400}', '{"s": "\\ud800"}', '{"n": "NaN"}']
line = st.one_of(good, good, good, st.sampled_from(odd))


@settings(max_examples=40)
@given(st.lists(line, max_size=30), st.integers(1, 200))
def test_rows_do_not_depend_on_how_the_file_is_cut_or_on_other_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], piece: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    text = "\n".join(lines)
    columns = ("n", "s", "b")
    with pytest.MonkeyPatch.context() as patch:
        whole = read(path, text, *columns)
        patch.setattr(file_pieces, "PIECE", piece)
        cut = read(path, text, *columns)
    alone = [read(path, line, *columns) for line in lines]
    assert values(cut) == values(whole) == [row for one in alone for row in values(one)]
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
    batches = source.batches(["n"])
    first = next(batches)
    assert first.table.to_pylist() == [{"n": "1"}]
    came.set()
    rest = list(batches)
    assert [row["n"] for row in values(rest)] == ["2", "3"]
    assert placed([first, *rest]) == [1, 2, 3]
    with pytest.raises(SourceError, match="only once"):
        list(source.batches(["n"]))
    thread.join(300)
    os.close(reader)


def test_a_dash_is_standard_input() -> None:
    assert open_source("-").name == "standard input"
