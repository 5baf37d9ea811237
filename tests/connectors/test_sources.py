"""One list of checks that every source must pass."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tacit.connectors.files import open_source
from tacit.connectors.frames import FrameSource
from tacit.errors import SchemaError, SourceError
from tacit.pipeline.sources import Batch, Source, is_text
from tests.connectors.checks import column_types
from tests.engines.forking import Forks

ODD = ["plain", "", 'quo"ted', "comma, here", "Ärger 😀", "x" * 10_000]


TYPES = column_types(subject="text", time="text", kind="integer", speed="number", hired="boolean")
COLUMNS = tuple(TYPES.types)


def rows(count: int) -> pa.Table:
    """Tuples with awkward subjects."""
    rng = np.random.default_rng(count)
    return pa.table(
        {
            "subject": [
                ODD[n % len(ODD)] if n % 11 == 0 else f"taxi-{n % 50}" for n in range(count)
            ],
            "time": [f"2008-02-02T13:{n // 60 % 60:02d}:{n % 60:02d}Z" for n in range(count)],
            "kind": pa.array(rng.integers(-5, 20, count), pa.int64()),
            "speed": pa.array([None if n % 7 == 3 else n / 4 for n in range(count)], pa.float64()),
            "hired": pa.array([n % 3 == 0 for n in range(count)], pa.bool_()),
        }
    )


def write_json(table: pa.Table, path: Path) -> None:
    """As another program would write it."""
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_ipc(table: pa.Table, path: Path, opened: Callable[..., Any]) -> None:
    """In small batches, as a stream or a file."""
    with pa.OSFile(str(path), "wb") as file, opened(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def write_compressed(table: pa.Table, path: Path, codec: str) -> None:
    """CSV through a compressor."""
    with pa.CompressedOutputStream(str(path), codec) as file:
        pl.DataFrame(table).write_csv(file)


FILES: dict[str, Callable[[pa.Table, Path], object]] = {
    "a.parquet": lambda table, path: pq.write_table(table, path, row_group_size=70),
    "large.parquet": lambda table, path: pq.write_table(table, path),
    "a.csv": lambda table, path: pl.DataFrame(table).write_csv(path),
    "a.csv.gz": lambda table, path: write_compressed(table, path, "gzip"),
    "a.csv.zst": lambda table, path: write_compressed(table, path, "zstd"),
    "a.jsonl": write_json,
    "a.ndjson": write_json,
    "a.arrow": lambda table, path: write_ipc(table, path, pa.ipc.new_file),
    "a.ipc": lambda table, path: write_ipc(table, path, pa.ipc.new_stream),
    "a.feather": lambda table, path: write_ipc(table, path, pa.ipc.new_file),
}
FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "polars": pl.DataFrame,
    "lazy": lambda table: pl.DataFrame(table).lazy(),
    "pandas": lambda table: table.to_pandas(),
    "table": lambda table: table,
    "reader": lambda table: table.to_reader(max_chunksize=33),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "iterator": lambda table: iter([pl.DataFrame(table[:40]), table[40:90], table[90:]]),
}
Opened = Callable[[pa.Table], Source]


@pytest.fixture(params=[*FILES, *FRAMES])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Write a table in one of the formats and open it."""

    def make(table: pa.Table) -> Source:
        if request.param in FRAMES:
            return FrameSource(FRAMES[request.param](table))
        path = tmp_path / request.param
        FILES[request.param](table, path)
        return open_source(path)

    return make


def collect(batches: list[Batch]) -> dict[str, list[Any]]:
    """All rows as Python values; pandas' NaN counts as missing."""
    found: dict[str, list[Any]] = {}
    for batch in batches:
        for name, values in batch.table.to_pydict().items():
            found.setdefault(name, []).extend(None if v != v else v for v in values)
    return found


def test_the_same_rows_come_out_typed_as_went_in(opened: Opened) -> None:
    table = rows(500)
    source = opened(table)
    assert source.schema().names == ([] if source.keyed else table.schema.names)
    batches = list(source.batches(COLUMNS, types=TYPES))
    assert collect(batches) == table.to_pydict()
    assert not any(batch.rejected for batch in batches)
    for batch in batches:
        subject, time, kind, speed, hired = batch.table.schema.types
        assert is_text(subject)
        assert is_text(time)
        assert (kind, speed, hired) == (pa.int64(), pa.float64(), pa.bool_())


def test_values_of_a_text_source_are_text_until_they_are_given_types(opened: Opened) -> None:
    table = rows(500)
    source = opened(table)
    assert all(is_text(kind) for kind in source.schema().types) or not source.textual
    batches = list(source.batches(COLUMNS))
    if not source.textual:
        assert collect(batches) == table.to_pydict()
        return
    assert all(is_text(kind) for batch in batches for kind in batch.table.schema.types)
    assert collect(batches)["kind"] == [str(kind) for kind in table["kind"].to_pylist()]


def test_converted_rows_come_with_what_they_were(opened: Opened) -> None:
    source = opened(rows(200))
    for batch in source.batches(COLUMNS, types=TYPES):
        if source.textual:
            assert batch.raw is not None
            assert batch.raw.num_rows == batch.table.num_rows
            assert all(is_text(kind) for kind in batch.raw.schema.types)


def test_times_are_read_by_themselves(opened: Opened) -> None:
    table = rows(200)
    found = collect(list(opened(table).batches(["time"], types=column_types(time="time"))))
    assert found == {"time": [datetime.fromisoformat(time) for time in table["time"].to_pylist()]}


def test_only_the_columns_asked_for_come_in_their_order(opened: Opened) -> None:
    table = rows(200)
    found = collect(list(opened(table).batches(["speed", "subject"], ["subject"], TYPES)))
    assert list(found) == ["speed", "subject"]
    assert found == table.select(["speed", "subject"]).to_pydict()


def test_keys_of_text_are_dictionaries_and_keys_of_numbers_are_not(opened: Opened) -> None:
    table = rows(200)
    for batch in opened(table).batches(["subject", "kind", "time"], ["subject", "kind"], TYPES):
        subject, kind, time = batch.table.schema.types
        assert pa.types.is_dictionary(subject)
        assert is_text(subject)
        assert pa.types.is_integer(kind)
        assert is_text(time)
        assert not pa.types.is_dictionary(time)


def test_batches_are_bounded_and_know_their_rows(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Source, FrameSource):
        monkeypatch.setattr(kind, "most_rows", 64)
    table = rows(500)
    source = opened(table)
    in_lines = source.unit == "bytes"
    place = 0
    for batch in source.batches(["kind"]):
        assert batch.table.num_rows <= 64
        found = batch.number_rows(np.arange(batch.table.num_rows))
        assert found[0] == batch.first_row
        assert (np.diff(found) >= 1).all()
        assert found[0] > place
        place = int(found[-1])
    assert place >= 500 if in_lines else place == 500


def test_the_position_ends_at_the_total(opened: Opened) -> None:
    source = opened(rows(300))
    positions = [batch.position for batch in source.batches(COLUMNS)]
    assert positions == sorted(positions)
    if source.total is not None:
        assert positions[-1] == source.total


def test_a_missing_column_is_refused_with_the_nearest_name_and_a_missing_key_is_null(
    opened: Opened,
) -> None:
    source = opened(rows(91))
    if source.keyed:
        (batch,) = source.batches(["subject", "sped"])
        assert batch.table["sped"].null_count == 91
        return
    with pytest.raises(SchemaError, match=r"'sped' is not there\. Did you mean 'speed'"):
        next(source.batches(["subject", "sped"]))


def test_closing_early_is_quiet(opened: Opened) -> None:
    batches = opened(rows(500)).batches(COLUMNS)
    next(batches)
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in FILES if "json" not in name])
def test_columns_without_rows_are_no_mistake(name: str, tmp_path: Path) -> None:
    FILES[name](rows(1)[:0], tmp_path / name)
    source = open_source(tmp_path / name)
    assert source.schema().names == rows(1).schema.names
    assert sum(batch.table.num_rows for batch in source.batches()) == 0


@pytest.mark.parametrize("name", FILES)
def test_an_empty_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(SourceError, match=name):
        open_source(tmp_path / name).schema()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_there_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", [n for n in FILES if n not in ("a.csv", "a.jsonl", "a.ndjson")])
def test_a_file_cut_short_is_refused_and_says_what_to_do(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FILES[name](rows(2000), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(SourceError, match="again"):
        list(open_source(path).batches())


@pytest.mark.parametrize("name", [n for n in FILES if n not in ("a.csv", "a.jsonl", "a.ndjson")])
def test_a_file_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"certainly neither of these\n" * 100)
    with pytest.raises(SourceError, match=name):
        list(open_source(path).batches())


def twice(kind: str) -> Any:
    """A table with two columns of one name."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    return table.to_pandas() if kind == "pandas" else table


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.arrow"])
def test_columns_of_the_same_name_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("a,a\n1,2\n")
    else:
        FILES[name](twice(""), path)
    with pytest.raises(SourceError, match="more than one column named 'a'"):
        open_source(path).schema()


@pytest.mark.parametrize("kind", ["table", "pandas"])
def test_frames_with_columns_of_the_same_name_are_refused(kind: str) -> None:
    with pytest.raises(SourceError, match="more than one column named 'a'"):
        FrameSource(twice(kind))


def test_an_unknown_suffix_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SourceError, match=r"\.parquet, \.csv, .*standard input"):
        open_source("trips.xlsx")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_is_read_in_order_of_names(name: str, tmp_path: Path) -> None:
    table = rows(300)
    for number, start in enumerate((0, 100, 200)):
        FILES[name](table[start : start + 100], tmp_path / f"part-{number}-{name}")
    for place in (tmp_path, tmp_path / f"part-*{name}"):
        source = open_source(place)
        batches = list(source.batches(COLUMNS, types=TYPES))
        assert collect(batches) == table.to_pydict()
        assert [Path(b.source).name for b in batches] == sorted(
            Path(b.source).name for b in batches
        )
        if source.total is not None:
            assert batches[-1].position == source.total


def test_a_folder_of_several_kinds_is_refused(tmp_path: Path) -> None:
    FILES["a.csv"](rows(3), tmp_path / "a.csv")
    FILES["a.jsonl"](rows(3), tmp_path / "a.jsonl")
    with pytest.raises(SourceError, match="several kinds"):
        open_source(tmp_path)


def test_a_folder_without_a_file_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no file to read"):
        open_source(tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_all_files_of_a_folder_get_the_same_types(suffix: str, tmp_path: Path) -> None:
    if suffix == "csv":
        (tmp_path / "1.csv").write_text("id,v\nA7,1\n")
        (tmp_path / "2.csv").write_text("id,v\n007,2.5\n8,x\n")
        (tmp_path / "3.csv").write_text("")
    else:
        (tmp_path / "1.jsonl").write_text('{"id": "A7", "v": 1}\n')
        (tmp_path / "2.jsonl").write_text('{"id": "007", "v": 2.5}\n{"id": 8, "v": "x"}\n')
        (tmp_path / "3.jsonl").write_text("")
    types = column_types(id="text", v="number")
    found = list(open_source(tmp_path).batches(["id", "v"], types=types))
    assert collect(found) == {"id": ["A7", "007", "8"], "v": [1, 2.5, None]}
    assert {batch.table.schema for batch in found} == {found[0].table.schema}


def test_a_later_file_with_an_unfit_type_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"v": ["text"]}), tmp_path / "2.parquet")
    with pytest.raises(SourceError, match=r"'v' is .*string, in an earlier file it is int64"):
        list(open_source(tmp_path).batches())


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(SourceError, match="expected a frame"):
        FrameSource(5)
    with pytest.raises(SourceError, match="without any frame"):
        FrameSource(iter([]))


def test_an_iterator_of_frames_can_be_read_once() -> None:
    source = FrameSource(iter([pd.DataFrame({"a": [1]})]))
    assert source.once
    assert collect(list(source.batches())) == {"a": [1]}
    with pytest.raises(SourceError, match="only once"):
        list(source.batches())


def test_files_and_tables_can_be_read_again(tmp_path: Path) -> None:
    write_json(rows(5), tmp_path / "a.jsonl")
    for source in (open_source(tmp_path / "a.jsonl"), FrameSource(rows(5))):
        assert not source.once
        first = collect(list(source.batches(COLUMNS)))
        assert len(first["kind"]) == 5
        assert collect(list(source.batches(COLUMNS))) == first


READ = """
import sys
from tacit.connectors.files import open_source
from tacit.errors import SourceError
from tests.connectors.test_sources import collect

for path in sys.argv[1:]:
    print(path, flush=True)
    try:
        collect(list(open_source(path).batches(None, ["s"])))
    except SourceError as error:
        if "cannot be read as Arrow" not in str(error):
            sys.exit(f"another error: {error}")
    else:
        sys.exit("nothing was refused")
"""
HUGE = 0x7FFF_0000


def test_damaged_arrow_files_are_refused_and_stop_no_process(tmp_path: Path, forks: Forks) -> None:
    """Offsets and indices beyond their buffers would be read as they are, and crash."""
    paths = [
        str(damaged_file(tmp_path / damage, damage, name))
        for damage in ("offsets", "last offset", "indices")
        for name in ("a.arrow", "a.ipc")
    ]
    done = subprocess.run([forks.program, "-c", READ, *paths], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert done.stdout.splitlines() == paths


def damaged_file(folder: Path, damage: str, name: str) -> Path:
    """A file with numbers in it that point beyond a buffer."""
    folder.mkdir(exist_ok=True)
    texts = pa.array([f"name {n}" for n in range(50)])
    array = texts.dictionary_encode() if damage == "indices" else texts
    buffers = array.buffers()
    true = (buffers[1] if damage != "last offset" else buffers[1].slice(4 * 40)).to_pybytes()
    true = true[: 4 * (11 if damage == "last offset" else 50)]
    false = np.full(len(true) // 4, HUGE, np.int32)
    if damage == "last offset":
        false[:-1] = np.frombuffer(true, np.int32)[:-1]
    path = folder / name
    FILES[name](pa.table({"n": range(50), "s": array}), path)
    whole = path.read_bytes()
    assert whole.count(true) == 1
    assert open_source(path).schema().names == ["n", "s"]
    path.write_bytes(whole.replace(true, false.tobytes()))
    return path


def test_parquet_with_categories_of_text_gives_dictionaries(tmp_path: Path) -> None:
    table = pa.table({"s": pa.array(["a", "b", None, "a"]).dictionary_encode(), "n": [1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    found = list(open_source(tmp_path / "a.parquet").batches(keys=["s"]))
    assert collect(found) == table.to_pydict()


NUMBERS = {
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


def every_type(count: int) -> pa.Table:
    """A column of each type of numbers, with its extremes, and one with gaps."""
    spread = np.random.default_rng(5).integers(0, 2**64, count, np.uint64, endpoint=False)
    spread[count // 3 : count // 2] = 0  # runs of the same value are stored differently
    columns = {}
    for name, kind in NUMBERS.items():
        width = kind.bit_width // 8
        raw = spread.view(np.uint8).reshape(-1, 8)[:, 8 - width :].tobytes()
        columns[name] = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(raw)])
    return pa.table({**columns, "gaps": pa.array([None, 1, 2] * (count // 3))})


@pytest.mark.parametrize("begin", [0, 1, 250, 1_000, 1_234, 2_999])
@pytest.mark.parametrize("small", [1, 1 << 16])
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "none", "use_dictionary": False},
    ],
    ids=lambda options: options["compression"],
)
def test_parquet_gives_the_rows_that_pyarrow_finds(
    options: dict[str, Any],
    small: int,
    begin: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tacit.connectors.parquet._SMALL_GROUP", small)
    monkeypatch.setattr("tacit.connectors.parquet.MOST_ROWS", 700)
    written = every_type(3_000).append_column("name", pa.array(["a", "b", None] * 1_000))
    pq.write_table(written, tmp_path / "a.parquet", row_group_size=1_000, **options)
    expected = pl.DataFrame(pq.read_table(tmp_path / "a.parquet").slice(begin))
    for keys in ((), ("name",)):
        source = open_source(tmp_path / "a.parquet")
        source.resume({"row": begin})
        found = list(source.batches(keys=keys))
        assert [batch.first_row for batch in found] == [
            1 + begin + sum(batch.table.num_rows for batch in found[:number])
            for number in range(len(found))
        ]
        frame = pl.DataFrame(pa.Table.from_batches([batch.table for batch in found]))
        assert frame.with_columns(pl.col("name").cast(pl.String)).equals(expected)


@pytest.mark.parametrize("begin", [0, 3, 5, 6, 12])
def test_row_groups_without_rows_are_skipped(begin: int, tmp_path: Path) -> None:
    part = pa.table({"n": range(12), "name": [f"name {n}" for n in range(12)]})
    with pq.ParquetWriter(tmp_path / "a.parquet", part.schema) as writer:
        for start, count in ((0, 0), (0, 5), (5, 0), (5, 7), (12, 0)):
            writer.write_table(part.slice(start, count))
    for keys in ((), ("name",)):
        source = open_source(tmp_path / "a.parquet")
        source.resume({"row": begin})
        found = [row for batch in source.batches(keys=keys) for row in batch.table.to_pylist()]
        assert found == part.slice(begin).to_pylist()


@pytest.mark.parametrize("keys", [(), ("s",)])
@pytest.mark.parametrize("damage", ["text that is not UTF-8", "a damaged page"])
def test_damage_in_parquet_is_refused_with_the_file_and_the_row(
    damage: str, keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.connectors.parquet._SMALL_GROUP", 1)
    path = tmp_path / "a.parquet"
    end = b"" if damage == "a damaged page" else b"\xff"
    texts = pa.array([b"secret %d" % n + (end if n >= 300 else b"") for n in range(400)])
    named = pa.Array.from_buffers(pa.string(), 400, texts.buffers())
    whole = pa.table({"s": named, "n": range(400)})
    pq.write_table(whole, path, row_group_size=100, use_dictionary=False)
    if damage == "a damaged page":
        page = pq.read_metadata(path).row_group(3).column(0).data_page_offset
        content = bytearray(path.read_bytes())
        content[page : page + 40] = b"\xff" * 40
        path.write_bytes(content)
    taken: list[int] = []
    with pytest.raises(SourceError) as refused:
        taken.extend(batch.table.num_rows for batch in open_source(path).batches(keys=keys))
    assert f"{path} cannot be read as Parquet after row {sum(taken)}" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_parquet_left_in_the_middle_leaves_no_thread(tmp_path: Path) -> None:
    table = pa.table({"s": [f"name {n % 7}" for n in range(100)], "n": range(100)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9)
    flow = open_source(tmp_path / "a.parquet").read(["n", "s"], ["s"])
    next(flow)
    assert isinstance(flow, Generator)
    flow.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("tacit-")]
