"""What the fuzzer calls with bytes: each parser of what comes from outside.

A target raises AssertionError if a parser breaks its promise. Files may be refused as a whole, with
a `TacitError`; of lines and messages each must give rows or a dead letter, the same whether it
is read alone or beside others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tacit.connectors.csv import CsvSource
from tacit.connectors.files import open_source
from tacit.connectors.jsonlines import JsonLinesSource
from tacit.connectors.kafka import address as kafka
from tacit.connectors.kafka.source import decode_key
from tacit.connectors.mqtt import address as mqtt
from tacit.connectors.mqtt.messages import BatchRange, Message, MessageRows
from tacit.connectors.payloads import Coding, PayloadParser
from tacit.errors import TacitError
from tacit.events.columntypes import ColumnTypes, convert_text
from tacit.events.streams import COLUMN_TYPES, Stream
from tacit.events.subjects import Subjects
from tacit.events.times import to_microseconds
from tacit.pipeline.sources import Batch, Source

COLUMNS: Final = ("subject", "time", "kind", "speed", "hired")
STREAM: Final = Stream(subject="subject", time="time")
TYPES: Final = ColumnTypes(
    STREAM,
    {"subject": "text", "time": "time", "kind": "text", "speed": "number", "hired": "boolean"},
)


def fuzz_json_lines(data: bytes) -> None:
    """A file of JSON lines."""
    _check_lines(data, data.split(b"\n"), b"", ".jsonl", JsonLinesSource)


def fuzz_csv(data: bytes) -> None:
    """The lines of a CSV file with a good header."""
    lines = data.replace(b"\r", b"\n").split(b"\n")
    _check_lines(data, lines, ",".join(COLUMNS).encode() + b"\n", ".csv", CsvSource)


def fuzz_csv_header(data: bytes) -> None:
    """A whole CSV file, header included."""
    _read_file(data, ".csv")


def fuzz_json_payloads(data: bytes) -> None:
    """Messages in JSON, divided at NUL."""
    _check_payloads(data.split(b"\0"), "json")


def fuzz_cbor_payloads(data: bytes) -> None:
    """Messages in CBOR, divided at a mark."""
    _check_payloads(data.split(b"----"), "cbor")


def fuzz_arrow(data: bytes) -> None:
    """An Arrow file or stream."""
    _read_file(data, ".arrow")


def fuzz_parquet(data: bytes) -> None:
    """A Parquet file."""
    _read_file(data, ".parquet")


def fuzz_mqtt(data: bytes) -> None:
    """A topic and what a checkpoint keeps of messages; the address of a broker."""
    text = data.decode(errors="replace")
    _, inward = mqtt.parse_source_url("mqtt://host/taxis/{subject}/#?columns=time:time")
    rows = MessageRows(inward, [*COLUMNS, "topic"], ["subject"])
    table, origin, _ = rows.read([Message(1, 1, False, text, b'{"kind": "x"}')])
    assert table.num_rows == len(origin) == 1
    TYPES.convert(table)
    for attempt in (
        lambda: mqtt.parse_source_url("mqtt://" + text),
        lambda: mqtt.parse_sink_url("mqtt://host/" + text),
        lambda: BatchRange.from_json({"after": 0, "messages": text, "rows": None}),
    ):
        _refusable(attempt)


def fuzz_kafka(data: bytes) -> None:
    """A message's key; the address of brokers."""
    text = decode_key(data)
    assert text is None or text.encode() is not None
    _refusable(lambda: kafka.parse_source_url("kafka://" + data.decode(errors="replace")))
    _refusable(lambda: kafka.parse_sink_url("kafka://" + data.decode(errors="replace")))


def fuzz_values(data: bytes) -> None:
    """Texts that become typed values, subjects and times."""
    texts = pl.Series(data.decode(errors="replace").split("\n"), dtype=pl.String)
    for kind in COLUMN_TYPES:
        together = convert_text(texts, kind, STREAM)
        alone = [convert_text(texts[n : n + 1], kind, STREAM) for n in range(len(texts))]
        assert together.equals(pl.concat(alone), null_equal=True), kind
    to_microseconds(texts, STREAM)
    registry = Subjects()
    assert (registry.learn(texts) == registry.slots(texts)).all()


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    name.removeprefix("fuzz_"): target
    for name, target in list(globals().items())
    if name.startswith("fuzz_")
}


def _check_lines(
    data: bytes,
    lines: Sequence[bytes],
    head: bytes,
    suffix: str,
    make: Callable[[Path], Source],
) -> None:
    """Read lines together and each alone: what is read and refused must be the same."""
    together = _read_lines(head + data, suffix, make)
    if together is None or len(lines) > 50:
        return
    alone = [_read_lines(head + line, suffix, make) for line in lines]
    rows = [row for one in alone if one is not None for row in one[0]]
    refused = [reason for one in alone if one is not None for reason in one[1]]
    assert together == (rows, refused)


def _read_lines(
    data: bytes, suffix: str, make: Callable[[Path], Source]
) -> tuple[list[Any], list[str]] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(data)
        try:
            batches = list(make(path).batches(COLUMNS, ["subject"], TYPES))
        except TacitError:
            return None
    return _rows(batches), [line.reason for batch in batches for line in batch.rejected]


def _rows(batches: Sequence[Batch]) -> list[Any]:
    for batch in batches:
        batch.table.validate(full=True)
    return [row for batch in batches for row in batch.table.to_pylist()]


def _read_file(data: bytes, suffix: str) -> None:
    """A file may be refused; what is read from it is sound."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(data)

        def read() -> None:
            source = open_source(path)
            names = [name for name in source.schema().names if name in COLUMNS]
            for batch in source.batches(names or None, ["subject"]):
                batch.table.validate(full=True)
                if "subject" in names:
                    column = batch.table.column(names.index("subject"))
                    registry = Subjects()
                    assert len(registry.learn(column)) == batch.table.num_rows
                if "time" in names:
                    to_microseconds(batch.table.column(names.index("time")), STREAM)

        _refusable(read)


def _check_payloads(payloads: Sequence[bytes], coding: Coding) -> None:
    parser = PayloadParser(COLUMNS, coding)
    together = parser.parse(payloads)
    alone = [parser.parse([payload]) for payload in payloads]
    assert together.frame.rows() == [row for one in alone for row in one.frame.rows()]
    assert [reason for _, reason in together.rejected] == [
        reason for one in alone for _, reason in one.rejected
    ]
    counted = {*together.origin.tolist(), *(number for number, _ in together.rejected)}
    gave_none = {n for n, one in enumerate(alone) if not one.frame.height and not one.rejected}
    assert counted | gave_none == set(range(len(payloads)))
    table = together.frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    for batch in table.to_batches():
        converted = TYPES.convert(batch)
        assert converted.num_rows == batch.num_rows
        assert np.array_equal(
            pl.Series(converted.column(0)).is_null().to_numpy(),
            pl.Series(batch.column(0)).is_null().to_numpy(),
        )


def _refusable(action: Callable[[], object]) -> None:
    """A refusal is a `TacitError` with words; anything else is a fault."""
    try:
        action()
    except TacitError:
        return
    except pa.ArrowException as error:
        raise AssertionError("an error of Arrow reached the caller") from error
