"""Numbers that our own loops decode are those that PyArrow finds; damage does no harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.connectors.files import open_source
from tacit.connectors.parquet.chunks import decode
from tacit.connectors.parquet.columns import NumberColumns
from tacit.connectors.parquet.snappy import FAILED, SLACK, decompress

KINDS = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "ms": pa.timestamp("ms"),
    "us": pa.timestamp("us", "UTC"),
    "ns": pa.timestamp("ns"),
    "date": pa.date32(),
}


def numbers(kind: pa.DataType, values: NDArray[np.int64]) -> pa.Array:
    """As many different values of a type as there are, its extremes among them."""
    spread = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    width = kind.bit_width // 8
    raw = spread.view(np.uint8).reshape(-1, 8)[:, 8 - width :].tobytes()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(raw)])


def table(rows: int, different: int, rng: np.random.Generator) -> pa.Table:
    """A column of each type; some values come in long runs."""
    values = rng.integers(0, different, rows)
    values[rows // 3 : rows // 2] = 1
    return pa.table({name: numbers(kind, values) for name, kind in KINDS.items()})


def decoded(path: Path) -> list[dict[str, pa.Array]]:
    """What our loops make of each row group."""
    with pq.ParquetFile(path) as file:
        schema = open_source(path).schema()
        columns = NumberColumns(path, file, schema)
        return [columns.decoded(group, schema.names) for group in range(file.num_row_groups)]


def bits(array: pa.Array) -> bytes:
    """What a column of numbers holds, NaN included."""
    return bytes(array.buffers()[1].slice(0, len(array) * array.type.bit_width // 8))


def check(path: Path, missed: frozenset[str] = frozenset()) -> None:
    """All columns are decoded but those, and to the very bits that PyArrow finds."""
    with pq.ParquetFile(path) as file:
        for group, found in enumerate(decoded(path)):
            expected = file.read_row_group(group)
            assert found.keys() == set(expected.column_names) - missed
            for name, array in found.items():
                assert array.null_count == 0
                assert array.type == expected.schema.field(name).type
                assert bits(array) == bits(expected[name].combine_chunks()), name


@given(
    rows=st.integers(1, 3_000),
    different=st.sampled_from([1, 2, 20, 200, 3_000, 10**6]),
    options=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy"]),
            "use_dictionary": st.booleans(),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "dictionary_pagesize_limit": st.sampled_from([64, 1_000, 1 << 20]),
            "data_page_size": st.sampled_from([64, 1_000, 1 << 20]),
            "row_group_size": st.sampled_from([100, 1_000, 10_000]),
            "write_statistics": st.booleans(),
        }
    ),
    names=st.sets(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    required=st.booleans(),
    seed=st.integers(0, 99),
)
def test_numbers_are_those_that_pyarrow_finds(
    rows: int,
    different: int,
    options: dict[str, Any],
    names: set[str],
    required: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("numbers") / "a.parquet"
    written = table(rows, different, np.random.default_rng(seed)).select(sorted(names))
    if required:
        fields = [field.with_nullable(False) for field in written.schema]
        written = written.cast(pa.schema(fields))
    pq.write_table(written, path, write_batch_size=50, **options)
    check(path)


def by_duckdb(written: pa.Table, path: Path) -> None:
    """As DuckDB writes it."""
    duckdb.sql(f"COPY written TO '{path}' (FORMAT parquet, COMPRESSION snappy)")


WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "duckdb": by_duckdb,
    "polars": lambda written, path: pl.DataFrame(written).write_parquet(path, compression="snappy"),
    "polars, not compressed": lambda written, path: pl.DataFrame(written).write_parquet(
        path, compression="uncompressed", row_group_size=10_000
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("different", [10, 10**9])
def test_numbers_of_other_writers(writer: str, different: int, tmp_path: Path) -> None:
    written = table(20_000, different, np.random.default_rng(0)).select(
        ["int8", "int32", "int64", "uint64", "double", "ns"]
    )
    WRITERS[writer](written, tmp_path / "a.parquet")
    check(tmp_path / "a.parquet")


def test_every_width_of_codes(tmp_path: Path) -> None:
    for width in range(18):
        values = np.arange(1 << width).repeat(2)
        np.random.default_rng(width).shuffle(values)
        written = pa.table({"a": numbers(pa.int64(), values), "b": numbers(pa.int32(), values)})
        pq.write_table(written, tmp_path / "a.parquet", dictionary_pagesize_limit=1 << 24)
        check(tmp_path / "a.parquet")


def test_what_is_not_plain_numbers_is_left_to_others(tmp_path: Path) -> None:
    count = 1_000
    written = pa.table(
        {
            "plain": pa.array(range(count)),
            "missing": pa.array([None if n == 500 else n for n in range(count)]),
            "all missing": pa.nulls(count, pa.int64()),
            "text": [str(n) for n in range(count)],
            "truth": [n % 2 == 0 for n in range(count)],
            "half": pa.array(range(count), pa.float16()),
            "decimal": pa.array(range(count), pa.decimal128(9, 2)),
            "clock": pa.array(range(count), pa.time64("us")),
            "days in ms": pa.array(range(count), pa.date32()).cast(pa.date64()),
            "lists": [[n] for n in range(count)],
            "inner": [{"plain": n} for n in range(count)],
        }
    )
    for version in ("1.0", "2.0"):
        pq.write_table(written, tmp_path / "a.parquet", data_page_version=version)
        assert [list(found) for found in decoded(tmp_path / "a.parquet")] == [["plain"]]


@pytest.mark.parametrize(
    "options", [{"compression": "zstd"}, {"column_encoding": "DELTA_BINARY_PACKED"}]
)
def test_other_ways_to_store_numbers_are_left_to_others(
    options: dict[str, str], tmp_path: Path
) -> None:
    written = pa.table({"a": pa.array(range(1_000))})
    pq.write_table(written, tmp_path / "a.parquet", use_dictionary=False, **options)
    assert decoded(tmp_path / "a.parquet") == [{}]


@pytest.mark.parametrize("begin", [0, 1, 250, 1_000, 1_234, 2_999])
def test_a_source_puts_together_what_several_decode(
    begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.connectors.parquet.source._USUAL", (1, 10**9))
    written = table(3_000, 100, np.random.default_rng(5))
    written = written.append_column("gaps", pa.array([None, 1, 2] * 1_000))
    written = written.append_column("name", pa.array(["a", "b", None] * 1_000))
    pq.write_table(written, tmp_path / "a.parquet", row_group_size=1_000)
    for keys in ((), ("name",)):
        source = open_source(tmp_path / "a.parquet")
        source.resume({"row": begin})
        found = list(source.batches(keys=keys))
        assert found[0].first_row == begin + 1
        whole = pa.Table.from_batches([batch.table for batch in found])
        frame = pl.DataFrame(whole).with_columns(pl.col("name").cast(pl.String))
        assert frame.equals(pl.DataFrame(written.slice(begin)), null_equal=True)


@pytest.mark.parametrize("begin", [0, 3, 5, 6])
def test_row_groups_without_rows_are_passed_over(
    begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.connectors.parquet.source._USUAL", (1, 10**9))
    part = pa.table({"n": range(12), "name": [f"name {n}" for n in range(12)]})
    with pq.ParquetWriter(tmp_path / "a.parquet", part.schema) as writer:
        for start, rows in ((0, 0), (0, 5), (5, 0), (5, 7), (12, 0)):
            writer.write_table(part.slice(start, rows))
    for keys in ((), ("name",)):
        source = open_source(tmp_path / "a.parquet")
        source.resume({"row": begin})
        found = [row for batch in source.batches(keys=keys) for row in batch.table.to_pylist()]
        assert found == part.slice(begin).to_pylist()


@dataclass(frozen=True)
class Fenced:
    """An array with bytes before and behind it that nobody may touch."""

    everything: NDArray[np.uint8]
    inside: NDArray[np.uint8]

    @classmethod
    def of(cls, size: int) -> Fenced:
        """An array of so many bytes."""
        everything = np.full(size + 512, 0xA5, np.uint8)
        return cls(everything, everything[256 : 256 + size])

    def is_whole(self) -> bool:
        """Whether the bytes around are as they were."""
        return bool(
            (self.everything[:256] == 0xA5).all() and (self.everything[-256:] == 0xA5).all()
        )


def followed(content: bytes) -> NDArray[np.uint8]:
    """Bytes as they stand in a file: others follow."""
    return np.frombuffer(content + bytes(64), np.uint8)


def undone(content: bytes, size: int) -> bytes | None:
    """Decompressed; None if that fails."""
    into = Fenced.of(size + SLACK)
    found = decompress(followed(content), 0, len(content), into.inside, size)
    assert into.is_whole()
    assert found in (size, FAILED)
    return None if found == FAILED else into.inside[:size].tobytes()


texts = st.one_of(
    st.binary(max_size=2_000),
    st.lists(st.sampled_from([b"a", b"abcd", b"abcdefgh", b"0123456789" * 9]), max_size=200).map(
        b"".join
    ),
    st.lists(st.integers(10**15, 10**15 + 10**6), max_size=500).map(
        lambda values: np.array(values, np.int64).tobytes()
    ),
)


@given(texts)
def test_snappy_is_undone(text: bytes) -> None:
    packed = pa.Codec("snappy").compress(text, asbytes=True)
    assert undone(packed, len(text)) == text
    assert undone(packed, len(text) + 1) is None
    assert undone(packed[:-1], len(text)) is None or not text


def test_snappy_of_much() -> None:
    text = np.random.default_rng(1).integers(0, 50, 300_000).astype(np.int64).tobytes()
    assert undone(pa.Codec("snappy").compress(text, asbytes=True), len(text)) == text
    assert undone(pa.Codec("snappy").compress(bytes(10**6), asbytes=True), 10**6) == bytes(10**6)


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (b"\x00", b""),
        (b"\x03\x08abc", b"abc"),
        (b"\x0c\x08abc\x16\x03\x00\x08xyz", b"abcabcabcxyz"),
        (b"\x0c\x08abc\x17\x03\x00\x00\x00\x08xyz", b"abcabcabcxyz"),
        (b"\x09\x08abc\x09\x03", b"abcabcabc"),
        (b"\x10\xf0\x0fabcdefghijklmnop", b"abcdefghijklmnop"),
        (b"\x10\xf4\x0f\x00abcdefghijklmnop", b"abcdefghijklmnop"),
        (b"\x10\xf8\x0f\x00\x00abcdefghijklmnop", b"abcdefghijklmnop"),
        (b"\x10\xfc\x0f\x00\x00\x00abcdefghijklmnop", b"abcdefghijklmnop"),
        (b"\x03\xf0\x02abc", b"abc"),
        (b"\x08\x1cabcdefgh", b"abcdefgh"),
        (b"\x10\x1cabcdefgh\x04xy\x09\x08", b"abcdefghxycdefgh"),
        (b"\x12\x1cabcdefgh\x04xy\x11\x08", b"abcdefghxycdefghxy"),
        (b"\x0b\x1cabcdefgh\x08xyz", b"abcdefghxyz"),
    ],
)
def test_snappy_has_many_ways_to_say_the_same(packed: bytes, text: bytes) -> None:
    assert undone(packed, len(text)) == text


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x05\x08abc",
        b"\x05\x01\x01",
        b"\x05\x08abc\x01\x00",
        b"\x05\x08abc\x09\x04",
        b"\x05\xfc\xff\xff\xff\xffabcde",
        b"\x05\xf4\xff\xffabcde",
    ],
)
def test_snappy_that_is_damaged_fails(packed: bytes) -> None:
    assert undone(packed, 5) is None


@given(texts, st.data())
def test_damaged_snappy_stays_within_bounds(text: bytes, data: st.DataObject) -> None:
    packed = bytearray(pa.Codec("snappy").compress(text, asbytes=True))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    undone(bytes(packed), len(text))


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_damaged_chunks_stay_within_bounds(
    compression: str, version: str, dictionary: bool, tmp_path: Path
) -> None:
    rng, path = np.random.default_rng(8), tmp_path / "a.parquet"
    values = rng.integers(0, 40, 500)
    pq.write_table(
        pa.table({"a": values}),
        path,
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=500,
        write_batch_size=100,
    )
    chunk = pq.read_metadata(path).row_group(0).column(0)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    end = begin + chunk.total_compressed_size
    content = path.read_bytes()
    failed = 0
    for _ in range(4_000):
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[rng.integers(begin, end, rng.integers(1, 4))] = rng.integers(0, 256)
        damaged.flags.writeable = False
        into = Fenced.of(8 * len(values))
        found = decode(
            damaged, begin, end, compression == "snappy", True, 8, into.inside.view(np.uint64)
        )
        assert into.is_whole()
        assert found in (len(values), FAILED)
        failed += found == FAILED
    assert failed > 100
    for stop in range(begin, end):
        into = Fenced.of(8 * len(values))
        cut = np.frombuffer(content, np.uint8)
        found = decode(cut, begin, stop, compression == "snappy", True, 8, into.inside.view("u8"))
        assert found == FAILED
