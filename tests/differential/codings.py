"""Raw tuples as bytes: CSV, JSON lines, Parquet, Arrow, and payloads of messages.

How a public tuple is spelled depends on that tuple alone, so that it is the same in all variants.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any, Final

import cbor2
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from tests.differential.values import COLUMNS, Broken, Cell
from tests.differential.worlds import RawTuple, SourceShape, World

ALL: Final = ("who", "at", *COLUMNS)
_DEEP: Final = 300


def write_files(world: World, shape: SourceShape, tuples: Sequence[RawTuple], path: Path) -> Path:
    """The tuples of a stream as one file, or as a folder of several."""
    parts = _cut(shape, tuples)
    if len(parts) == 1:
        path = path.with_suffix(f".{shape.coding}")
        _WRITERS[shape.coding](world, shape, parts[0], path)
        return path
    path.mkdir()
    for number, part in enumerate(parts):
        _WRITERS[shape.coding](world, shape, part, path / f"{number}.{shape.coding}")
    return path


def payloads(shape: SourceShape, tuples: Sequence[RawTuple]) -> list[bytes]:
    """The tuples of a stream as messages."""
    found: list[bytes] = []
    for one in sorted(tuples, key=lambda one: one.arrival):
        if one.raw is not None:
            found.append(one.raw)
            continue
        rng = Random(one.spelling)
        payload = _json_line(one) if shape.coding == "json" else _cbor(one)
        if shape.coding == "json" and rng.random() < 0.2:
            payload = b"[" + payload + b"]"
        found.append(payload)
    return found


def _cut(shape: SourceShape, tuples: Sequence[RawTuple]) -> list[list[RawTuple]]:
    ordered = sorted(tuples, key=lambda one: one.arrival)
    edges = [-1.0, *shape.cuts, float("inf")]
    return [[one for one in ordered if low < one.arrival <= high] for low, high in pairwise(edges)]


def _write_csv(world: World, shape: SourceShape, tuples: Sequence[RawTuple], path: Path) -> None:
    names = list(ALL)
    Random(shape.layout).shuffle(names)
    lines = [",".join(names).encode() + b"\n", *(_csv_line(one, names) for one in tuples)]
    path.write_bytes(b"".join(lines))


def _write_json(world: World, shape: SourceShape, tuples: Sequence[RawTuple], path: Path) -> None:
    path.write_bytes(b"".join(_json_line(one) + b"\n" for one in tuples))


def _csv_line(one: RawTuple, names: Sequence[str]) -> bytes:
    if one.raw is not None:
        return one.raw + b"\n"
    rng = Random(one.spelling)
    fields = [_csv_text(rng, name, one.cells[name], one.style) for name in names]
    match one.broken:
        case Broken.FEW_FIELDS:
            fields = fields[: rng.randrange(1, len(fields))]
        case Broken.MANY_FIELDS | Broken.TWICE:
            fields = [*fields, *fields[: rng.randrange(1, len(fields))]]
        case Broken.HUGE_FLOAT:
            fields[rng.randrange(len(fields))] = "1e400"
        case Broken.HUGE_INTEGER:
            fields[rng.randrange(len(fields))] = "9" * 400
    out = io.StringIO()
    quoted = rng.random() < 0.3
    write = csv.writer(out, lineterminator="", quoting=csv.QUOTE_ALL if quoted else 0)
    write.writerow(fields)
    line = out.getvalue().encode("utf-8", "surrogatepass")
    match one.broken:
        case Broken.UNCLOSED_QUOTE:
            line = _inserted(rng, line, b',"')
        case Broken.BAD_UTF8:
            line = _inserted(rng, line, b"\xff\xfe")
        case Broken.TRUNCATED:
            line = line[: rng.randrange(len(line))]
        case Broken.NUL:
            line = _inserted(rng, line, b"\0")
        case Broken.BLANK:
            line = rng.choice((b"", b" ", b"\r", b","))
        case Broken.LONE_SURROGATE:
            line = _inserted(rng, line, b"\xed\xa0\x80")
        case Broken.LIST | Broken.DEEP | Broken.NOT_AN_OBJECT | Broken.GARBAGE:
            line = rng.randbytes(30).replace(b"\n", b"")
    if one.public:
        return line + rng.choice((b"\n", b"\n", b"\r\n"))
    return line + rng.choice((b"\n", b"\r\n", b"\n\n"))


def _csv_text(rng: Random, column: str, value: Cell, style: int | None = None) -> str:
    """How a value is spelled in a field."""
    if column == "at":
        value = _spell_time(rng, value, style)
    match value:
        case None:
            return ""
        case bool():
            return rng.choice((str(value), str(value).lower()))
        case int() if column in ("v", "w", "secret", "lon", "lat") and abs(value) < 10:
            return rng.choice((str(value), f"{value}.0", f"{value}e0"))
        case list() | dict():
            return json.dumps(value)
    return str(value)


def _spell_time(rng: Random, value: Cell, style: int | None) -> Cell:
    """The same time, written in one of several ways."""
    if not isinstance(value, int) or not 10**9 < value < 2 * 10**9:
        return value
    moment = datetime.fromtimestamp(value, UTC)
    match rng.randrange(6) if style is None else style:
        case 0:
            return str(value)
        case 1:
            return f"{value}.0"
        case 2:
            return value * 1000
        case 3:
            return moment.isoformat()
        case 4:
            return moment.astimezone(timezone(timedelta(hours=2))).isoformat(" ")
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _json_line(one: RawTuple) -> bytes:
    if one.raw is not None:
        return one.raw
    rng = Random(one.spelling)
    names = [name for name in ALL if one.cells[name] is not None or rng.random() < 0.5]
    rng.shuffle(names)
    pairs = [(name, _json_value(rng, name, one.cells[name], one.style)) for name in names]
    extra = {
        Broken.HUGE_FLOAT: "1e400",
        Broken.HUGE_INTEGER: "9" * 400,
        Broken.LONE_SURROGATE: '"\\ud800"',
        Broken.LIST: '[1, "a", {"b": []}]',
        Broken.DEEP: "[" * _DEEP + "]" * _DEEP,
    }
    if one.broken in extra:
        pairs.insert(rng.randrange(len(pairs) + 1), (rng.choice((*ALL, "more")), extra[one.broken]))
    if one.broken is Broken.TWICE:
        pairs += rng.sample(pairs, 2)
    blank = rng.choice(("", " "))
    text = "{" + f",{blank}".join(f"{json.dumps(n)}:{blank}{v}" for n, v in pairs) + "}"
    return _broken_json(rng, one.broken, text.encode("utf-8", "surrogatepass"))


def _broken_json(rng: Random, broken: Broken | None, line: bytes) -> bytes:
    match broken:
        case Broken.UNCLOSED_QUOTE:
            return _inserted(rng, line, b'"')
        case Broken.BAD_UTF8:
            return _inserted(rng, line, b"\xff")
        case Broken.TRUNCATED | Broken.FEW_FIELDS:
            return line[: rng.randrange(len(line))]
        case Broken.NUL:
            return _inserted(rng, line, b"\0")
        case Broken.BLANK:
            return rng.choice((b"", b" ", b"\r", b"{}"))
        case Broken.NOT_AN_OBJECT:
            return rng.choice((b"7", b"null", b'"text"', b"[]", b"[7]", b"[null]", b"[" + line))
        case Broken.MANY_FIELDS:
            return line + line
        case Broken.GARBAGE:
            return rng.randbytes(30).replace(b"\n", b"")
    return line


def _json_value(rng: Random, column: str, value: Cell, style: int | None) -> str:
    if column == "at":
        value = _spell_time(rng, value, style)
    if rng.random() < 0.2 and isinstance(value, int | float) and isfinite(value):
        value = str(value).lower() if isinstance(value, bool) else str(value)
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def _cbor(one: RawTuple) -> bytes:
    rng = Random(one.spelling)
    cells = {name: one.cells[name] for name in ALL if one.cells[name] is not None}
    if "at" in cells:
        cells["at"] = _spell_time(rng, cells["at"], one.style)
    if one.broken is Broken.LIST:
        cells[rng.choice(ALL)] = [1, "a", {"b": []}]
    try:
        payload = cbor2.dumps(cells)
    except UnicodeEncodeError:  # a lone surrogate, which it does not write
        one, payload = replace(one, broken=Broken.LONE_SURROGATE), cbor2.dumps({})
    match one.broken:
        case None | Broken.LIST:
            return rng.choice((payload, payload, cbor2.dumps([cells])))
        case Broken.HUGE_FLOAT | Broken.HUGE_INTEGER:
            return cbor2.dumps({**cells, "more": 10**400})
        case Broken.NOT_AN_OBJECT:
            return cbor2.dumps(rng.choice((7, None, "text", [], [7], [None])))
        case Broken.TRUNCATED | Broken.FEW_FIELDS:
            return payload[: rng.randrange(len(payload))]
        case Broken.BLANK:
            return b""
        case Broken.BAD_UTF8 | Broken.NUL | Broken.UNCLOSED_QUOTE:
            return _inserted(rng, payload, b"\xff")
        case Broken.LONE_SURROGATE:
            return _inserted(rng, payload, b"\x63\xed\xa0\x80")
    return rng.randbytes(20)


def _inserted(rng: Random, line: bytes, what: bytes) -> bytes:
    place = rng.randrange(len(line) + 1)
    return line[:place] + what + line[place:]


def _table(world: World, shape: SourceShape, tuples: Sequence[RawTuple]) -> pa.Table:
    """The tuples as a table whose types the layout decides; what does not fit is null."""
    rng = Random(shape.layout)
    columns = {}
    for name in ALL:
        kind = _arrow_type(rng, world, name)
        values = [_typed(one.cells[name], kind) for one in tuples if not one.unreadable]
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


def _arrow_type(rng: Random, world: World, name: str) -> pa.DataType:
    texts = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    declared = all(stream.columns for stream in world.spec.streams.values())
    match name:
        case "who" | "kind" | "tag" | "note":
            return rng.choice(texts)
        case "at" if any("at >" in (e.where or "") for e in world.spec.events.values()):
            return pa.timestamp("us", "UTC")
        case "at":
            stamps = (pa.timestamp("us", "UTC"), pa.timestamp("ms"))
            return rng.choice((*stamps, pa.int64(), pa.float64(), pa.string()))
        case "ok":
            return pa.bool_() if not declared or rng.random() < 0.7 else rng.choice(texts)
        case "seen":
            kinds = (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"))
            return rng.choice((*kinds, *texts) if declared else kinds)
    numbers = (pa.float64(), pa.float64(), pa.int64(), pa.int32(), pa.float32())
    return rng.choice((*numbers, *texts) if declared else numbers)


def _typed(value: Cell, kind: pa.DataType) -> Any:
    """A value as one of this type; None where it does not fit."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if value is None:
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _csv_text(Random(0), "", value)
        return text if text.isascii() else text.encode("utf-8", "replace").decode()
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
        if value.tzinfo is None:
            return None
    elif pa.types.is_timestamp(kind):
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2 * 10**9
        value = datetime.fromtimestamp(value, UTC) if fits else None
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _write_parquet(
    world: World, shape: SourceShape, tuples: Sequence[RawTuple], path: Path
) -> None:
    rng = Random(shape.layout + 1)
    pq.write_table(
        _table(world, shape, tuples),
        path,
        row_group_size=rng.choice((3, 7, 1000)),
        compression=rng.choice(("snappy", "zstd", "none")),
        use_dictionary=rng.random() < 0.5,
    )


def _write_arrow(world: World, shape: SourceShape, tuples: Sequence[RawTuple], path: Path) -> None:
    rng = Random(shape.layout + 1)
    table = _table(world, shape, tuples)
    make = pa.ipc.new_file if rng.random() < 0.5 else pa.ipc.new_stream
    with make(path, table.schema) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=rng.choice((3, 7, 1000)))


_WRITERS: Final[dict[str, Callable[[World, SourceShape, Sequence[RawTuple], Path], None]]] = {
    "csv": _write_csv,
    "jsonl": _write_json,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}
