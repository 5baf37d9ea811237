"""CSV: ragged records, quotes, encodings; every field is text."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.connectors import file_pieces
from tacit.connectors.csv import CsvParser, CsvSource
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, Rejected


def read(path: Path, text: str | bytes, **options: Any) -> list[Batch]:
    """Write the text and read it as CSV."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(CsvSource(path).batches(**options))


def values(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """All rows."""
    return [tuple(row.values()) for batch in batches for row in batch.table.to_pylist()]


def rejected(batches: list[Batch]) -> list[Rejected]:
    """All rejected lines."""
    return [line for batch in batches for line in batch.rejected]


def placed(batches: list[Batch]) -> list[int]:
    """The line of every row."""
    return [int(p) for b in batches for p in b.number_rows(np.arange(b.table.num_rows))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test may write."""
    return tmp_path / "a.csv"


def test_ragged_records_are_rejected_with_their_lines(path: Path) -> None:
    batches = read(path, "a,b\n1,2\n3\n4,5,6\n7,8\n")
    assert values(batches) == [("1", "2"), ("7", "8")]
    assert placed(batches) == [2, 5]
    assert rejected(batches) == [
        Rejected(3, "1 fields where the header has 2", "3"),
        Rejected(4, "3 fields where the header has 2", "4,5,6"),
    ]


def test_only_ragged_records_leave_nothing_but_rejected_ones(path: Path) -> None:
    batches = read(path, "a,b\n1\n2\n")
    assert values(batches) == []
    assert [line.place for line in rejected(batches)] == [2, 3]


def test_quotes_and_commas_are_part_of_a_quoted_field(path: Path) -> None:
    batches = read(path, 'a,b\n"say ""hi""",2\r\n"p,q",3\n5" pipe,4')
    assert values(batches) == [('say "hi"', "2"), ("p,q", "3"), ('5" pipe', "4")]
    assert placed(batches) == [2, 3, 4]


def test_a_record_never_goes_beyond_its_line(path: Path) -> None:
    batches = read(path, 'a,b\n"x\ny",1\n2,3\n')
    assert values(batches) == [('y"', "1"), ("2", "3")]
    assert [(line.place, line.raw) for line in rejected(batches)] == [(2, '"x')]


def test_a_mark_at_the_start_of_a_record_is_part_of_its_field(path: Path) -> None:
    """Whether a record is the first of its block depends on the records before it."""
    for before in ("1,2\n", "1\n", ""):
        batches = read(path, f"a,b\n{before}\ufeff3,4\n5,6\n")
        assert values(batches)[-2:] == [("\ufeff3", "4"), ("5", "6")]


def test_blank_lines_are_skipped_but_counted(path: Path) -> None:
    batches = read(path, "\na,b\n\n1,2\r\n\r\n3,4\n\n")
    assert values(batches) == [("1", "2"), ("3", "4")]
    assert placed(batches) == [4, 6]


def test_a_stray_quote_costs_one_line(path: Path) -> None:
    batches = read(path, 'a,b\n1,2\n3,"4\n5,6\n7,8\n')
    assert values(batches) == [("1", "2"), ("5", "6"), ("7", "8")]
    assert rejected(batches) == [Rejected(3, "a quote that is not closed on its line", '3,"4')]
    assert placed(batches) == [2, 4, 5]


def test_a_stray_quote_costs_one_line_in_a_long_file(path: Path) -> None:
    lines = [f"{n},x" for n in range(400_000)]
    lines[1000] = '1000,"x'
    batches = read(path, "a,b\n" + "\n".join(lines))
    assert [row[0] for row in values(batches)] == [str(n) for n in range(400_000) if n != 1000]
    assert [line.place for line in rejected(batches)] == [1002]


def test_a_header_without_rows_has_columns(path: Path) -> None:
    for text in ("a,b", "a,b\n", '"a","b"\r\n'):
        path.write_text(text)
        source = CsvSource(path)
        assert source.schema().names == ["a", "b"]
        assert values(list(source.batches())) == []


def test_blank_lines_alone_are_an_empty_file(path: Path) -> None:
    with pytest.raises(SourceError, match="is empty: a CSV file starts with a header"):
        read(path, "\n\n")


def test_a_byte_order_mark_is_no_part_of_the_first_name(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    assert CsvSource(path).schema().names == ["a", "b"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_other_encodings_are_refused(path: Path, encoding: str) -> None:
    with pytest.raises(SourceError, match="UTF-8"):
        read(path, "a,b\nÄrger,1\n".encode(encoding))


def test_a_record_that_is_no_utf8_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pieces, "PIECE", 16)
    batches = read(path, b"a,b\nx,1\ny,2\nz,3\n" + b"\xff,4\nw,5\n")
    assert values(batches) == [("x", "1"), ("y", "2"), ("z", "3"), ("w", "5")]
    assert [(line.place, line.reason) for line in rejected(batches)] == [(5, "not UTF-8 text")]


field = st.text(st.sampled_from('ab1,"é '), max_size=6)


@settings(max_examples=40)
@given(st.lists(st.tuples(field, field), min_size=1, max_size=20), st.integers(40, 200))
def test_records_written_by_another_program_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], piece: int
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("first", "second"), *rows])
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_pieces, "PIECE", piece)
        found = read(path, text.getvalue())
    assert values(found) == rows
    assert not rejected(found)


messy = st.text(st.sampled_from('a1,,,"\n\n\r'), max_size=60)


@settings(max_examples=40)
@given(messy, st.integers(1, 40))
def test_what_is_read_and_rejected_does_not_depend_on_how_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.csv"
    with pytest.MonkeyPatch.context() as patch:
        whole = read(path, "a,b\n" + text)
        patch.setattr(file_pieces, "PIECE", piece)
        cut = read(path, "a,b\n" + text)
    assert values(cut) == values(whole)
    assert placed(cut) == placed(whole)
    assert rejected(cut) == rejected(whole)
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line]
    assert len(values(whole)) + len(rejected(whole)) <= len(lines)
    assert bool(values(whole) or rejected(whole)) == bool(lines)


odd = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))


@settings(max_examples=40)
@given(st.lists(odd | st.sampled_from([b"1,2", b'"a",b', b'"a,b', b"\xff,1"]), max_size=20))
def test_every_line_is_read_as_it_would_be_alone(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("alone") / "a.csv"
    whole = read(path, b"a,b\n" + b"\n".join(lines))
    alone = [read(path, b"a,b\n" + line) for line in lines]
    assert values(whole) == [row for one in alone for row in values(one)]
    assert [(line.reason, line.raw) for line in rejected(whole)] == [
        (line.reason, line.raw) for one in alone for line in rejected(one)
    ]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@given(
    rows=st.lists(st.lists(st.text("ab,;|\t\"' é", max_size=6), min_size=2, max_size=2), max_size=8)
)
@settings(max_examples=30, deadline=None)
def test_other_delimiters_are_read_as_the_standard_library_writes_them(
    delimiter: str, rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "in.csv"
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([["x", "y"], *rows])
    path.write_text(text.getvalue(), newline="")
    source = CsvSource(path)
    source.separate_by(delimiter)
    assert values(list(source.batches())) == [tuple(row) for row in rows]


@pytest.mark.parametrize(("delimiter", "words"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_header_without_commas_gives_a_hint(tmp_path: Path, delimiter: str, words: str) -> None:
    (tmp_path / "in.csv").write_text(f"who{delimiter}at\n1{delimiter}2\n")
    with pytest.raises(SourceError, match=f"separated by {words}, add delimiter: "):
        CsvSource(tmp_path / "in.csv").schema()


PLAIN = st.text(st.characters(max_codepoint=127, exclude_characters='\n\r",;'), max_size=12)


@given(
    st.lists(st.tuples(PLAIN, PLAIN, PLAIN), max_size=12),
    st.lists(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\r\n"]), min_size=12, max_size=12),
    st.booleans(),
    st.sampled_from([["a", "b", "c"], ["c", "a"], ["b"]]),
    st.sampled_from([",", ";"]),
)
def test_plain_lines_are_read_as_pyarrow_reads_them(
    rows: list[tuple[str, ...]],
    breaks: list[str],
    ended: bool,
    columns: list[str],
    delimiter: str,
) -> None:
    lines = [f"{delimiter.join(row)}{end}" for row, end in zip(rows, breaks, strict=False)]
    data = "".join(lines).encode()
    data = data if ended else data.rstrip(b"\r\n")
    kinds = pa.schema([(name, pa.string()) for name in columns])
    found = CsvParser(["a", "b", "c"], columns, [], delimiter)._read(data)
    assert found.schema == kinds
    if not data:
        assert not found.num_rows
        return
    expected = pacsv.read_csv(
        pa.BufferReader(data),
        pacsv.ReadOptions(column_names=["a", "b", "c"]),
        pacsv.ParseOptions(delimiter=delimiter),
        pacsv.ConvertOptions(column_types=kinds, include_columns=columns),
    )
    assert found.to_pydict() == expected.to_pydict()
    found.validate(full=True)
