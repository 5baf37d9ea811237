"""Pack answers into few bytes for the ledger, and unpack them: bits, confidences and subjects.

A release is packed once and unpacked for every delivery. Both work on whole columns. Subjects are
stored by their numbers in the ledger. A query's confidences mostly have few distinct values, which
are stored once.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.answers.counts import CountAnswers, count_schema
from tacit.answers.rows import AnswerBlock, RowBuilder, answer_schema, divide
from tacit.errors import LedgerError
from tacit.kernels import compiled
from tacit.privacy.mechanisms.counts import CountDraws, add_methods
from tacit.spec.boolean_queries import find_query

_FORMAT: Final = 3
_READABLE: Final = (2, 3)
"""Format 2 has no counts."""
_FIRST_COLUMNS: Final = 6
"""The columns of counts before there were estimates."""
_HEAD: Final = struct.Struct("<4sQI")
_MAGIC: Final = b"TAns"
_FEW: Final = 256
_ALIGNED: Final = 8
_CODEC: Final = "zstd"

Names = Callable[[NDArray[np.int64]], pa.Array]
"""Returns the names of subjects, given their numbers in the ledger."""


def pack(
    parts: Sequence[Answers], ids: Sequence[NDArray[np.int64]], consumers: Mapping[str, str]
) -> bytes:
    """Pack answers of consecutive windows, with the subjects' numbers for each part.

    `consumers` has the consumer of each query. It is stored, since queries may have changed
    before the answers are delivered.
    """
    arrays: list[NDArray[Any]] = []
    blocks = []
    for part, numbers in zip(parts, ids, strict=True):
        block: dict[str, Any] = {
            "start": part.first * part.step,
            "step": part.step,
            "size": part.size,
            "windows": part.windows,
            "sure": part.certainty is not None,
        }
        arrays.append(np.diff(numbers, prepend=np.int64(0)))
        registered = part.registered
        block["some"] = not registered.all()
        if block["some"]:
            arrays.append(np.packbits(registered, axis=1))
        arrays.append(part.bits)
        if part.certainty is not None:
            block["few"] = _pack_confidences(part, arrays)
        if part.exhausted is not None:
            arrays.append(np.packbits(part.exhausted))
        blocks.append(block)
    counted = [part.counted for part in parts if part.counted is not None]
    head: dict[str, Any] = {
        "format": _FORMAT,
        "queries": list(parts[0].queries),
        "consumers": {query.name: consumers[query.name] for query in parts[0].columns},
        "private": parts[0].private,
        "limited": parts[0].exhausted is not None,
        "blocks": blocks,
    }
    if counted:
        head["counts"] = _pack_counts(counted, arrays)
    return _serialise(head, arrays)


def join(bodies: Sequence[bytes], counted: CountAnswers | None = None) -> bytes:
    """Join packed answers to the same queries about several groups of subjects.

    The bodies have no counts; `counted` are those of all subjects.
    """
    heads, arrays = zip(*map(_read, bodies), strict=True)
    whole = [array for part in arrays for array in part]
    head = {**heads[0], "blocks": [block for one in heads for block in one["blocks"]]}
    if counted is not None:
        head["counts"] = _pack_counts([counted], whole)
    return _serialise(head, whole)


def _pack_counts(counted: Sequence[CountAnswers], arrays: list[NDArray[Any]]) -> dict[str, Any]:
    """Append the counts of consecutive windows; return what the head says of them."""
    arrays += [column for part in counted for column in part.draws.columns]
    return {
        "queries": list(counted[0].queries),
        "consumers": list(counted[0].consumers),
        "groups": list(counted[0].groups),
        "blocks": [(part.start, part.step, part.size) for part in counted],
        "columns": len(fields(CountDraws)),
    }


def _pack_confidences(part: Answers, arrays: list[NDArray[Any]]) -> list[int]:
    """Append the confidences; return each query's number of distinct values, or 0 if many.

    Confidences with few values are stored as codes `[query][window][subject]`, the others as
    numbers of the same shape.
    """
    shape = (len(part.queries), part.windows, len(part.subjects))
    codes, few = np.empty(shape, np.uint8), 0
    values = np.empty((len(part.queries), _FEW), np.uint32)
    many, counts = [], []
    for query in range(len(part.queries)):
        sure = part.confidence(query).astype(np.float32)
        found = _encode_values(
            sure.reshape(-1).view(np.uint32), values[few], codes[few].reshape(-1)
        )
        if found > 0:
            few += 1
        else:
            many.append(sure)
        counts.append(max(0, found))
    numbered = np.arange(_FEW) < np.array([n for n in counts if n], np.int64)[:, np.newaxis]
    arrays += [values[:few][numbered].view(np.float32), codes[:few]]
    arrays.append(np.stack(many) if many else np.empty((0, *shape[1:]), np.float32))
    return counts


def _serialise(head: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> bytes:
    """Serialise the head and the arrays, each aligned to 8 bytes."""
    described = {**head, "arrays": [(array.dtype.str, array.shape) for array in arrays]}
    text = json.dumps(described, separators=(",", ":")).encode()
    parts = [text, *(np.ascontiguousarray(array).tobytes() for array in arrays)]
    body = b"".join(part + b"\0" * (-len(part) % _ALIGNED) for part in parts)
    packed = pa.compress(body, codec=_CODEC, asbytes=True)
    return _HEAD.pack(_MAGIC, len(body), len(text)) + bytes(packed)


def unpack(body: bytes, first_id: int, names: Names) -> tuple[pa.Table, dict[str, str]]:
    """Unpack answers into rows, sorted by window, subject and query.

    Also return the consumer of each query. The ids of answers count up from `first_id`.
    """
    head, arrays = _read_body(body)
    batches: list[pa.RecordBatch] = []
    flow = iter(arrays)
    consumers = [head["consumers"][find_query(name)] for name in head["queries"]]
    builder = RowBuilder(head["queries"], consumers)
    for packed in head["blocks"]:
        for block in _blocks(head, packed, flow, names):
            batch = builder.build(block)
            numbers = pa.array(np.arange(first_id, first_id + batch.num_rows))
            batches.append(batch.add_column(0, "id", numbers))
            first_id += batch.num_rows
    schema = answer_schema(
        protected=head["blocks"][0]["sure"],
        private=head["private"],
        limited=head["limited"],
        valued=any(find_query(name) != name for name in head["queries"]),
    ).insert(0, pa.field("id", pa.int64()))
    return pa.Table.from_batches(batches, schema), head["consumers"]


def unpack_bits(body: bytes) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Unpack the protected answers of one window: `[subject][query]`, and their confidences."""
    head, arrays = _read_body(body)
    flow = iter(arrays)
    blocks = [block for one in head["blocks"] for block in _blocks(head, one, flow, _leave_unnamed)]
    sure = [block.confidence[0] for block in blocks if block.confidence is not None]
    return np.concatenate([block.detected[0] for block in blocks]), np.concatenate(sure)


def _leave_unnamed(ids: NDArray[np.int64]) -> pa.Array:
    return pa.nulls(len(ids), pa.string())


def unpack_counts(body: bytes) -> tuple[pa.Table, dict[str, str]]:
    """Unpack counts into rows, sorted by window, query and group; none if there are none.

    Also return the consumer of each query that counts.
    """
    head, arrays = _read_body(body)
    packed = head.get("counts")
    if packed is None:
        return count_schema(private=head["private"]).empty_table(), {}
    width = packed.get("columns", _FIRST_COLUMNS)
    flow = iter(arrays[-width * len(packed["blocks"]) :])
    tables = [
        CountAnswers(
            packed["queries"],
            packed["consumers"],
            packed["groups"],
            start,
            step,
            size,
            _make_draws(list(islice(flow, width))),
            head["private"],
        ).table()
        for start, step, size in packed["blocks"]
    ]
    return (
        pa.concat_tables(tables).unify_dictionaries(),
        dict(zip(packed["queries"], packed["consumers"], strict=True)),
    )


def _make_draws(columns: list[NDArray[Any]]) -> CountDraws:
    """Return released counts; estimates that a former version did not make are unknown."""
    if len(columns) == _FIRST_COLUMNS:
        columns += [np.full(columns[0].shape, np.nan)] * 3
    if len(columns) < len(fields(CountDraws)):
        return add_methods(columns)
    return CountDraws(*columns)


def _read_body(body: bytes) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """Read a packed body; raise LedgerError if that is not possible."""
    try:
        return _read(body)
    except (ValueError, KeyError, OSError, struct.error, pa.ArrowException) as error:
        raise LedgerError(
            "the answers of a release cannot be read: the ledger is damaged, or was written by"
            " another version"
        ) from error


def _read(body: bytes) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    magic, whole, text = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise ValueError("magic")
    packed = pa.py_buffer(body)[_HEAD.size :]
    plain = pa.decompress(packed, whole, codec=_CODEC)
    head = json.loads(plain[:text].to_pybytes())
    if head["format"] not in _READABLE:
        raise ValueError("format")
    arrays, begin = [], text
    for kind, shape in head["arrays"]:
        begin += -begin % _ALIGNED
        size = math.prod(shape)
        arrays.append(np.frombuffer(plain, kind, size, begin).reshape(shape))
        begin += np.dtype(kind).itemsize * size
    return head, arrays


def _blocks(
    head: Mapping[str, Any], block: Mapping[str, Any], arrays: Iterator[NDArray[Any]], names: Names
) -> Iterator[AnswerBlock]:
    """Yield the answers of a packed block, about a million at a time."""
    ids = np.cumsum(next(arrays))
    windows, queries = block["windows"], len(head["queries"])
    registered = exhausted = packed = None
    if block["some"]:
        registered = np.unpackbits(next(arrays), axis=1, count=len(ids)).view(np.bool_)
    octets = next(arrays).astype("<u8", copy=False).view(np.uint8)
    if block["sure"]:
        packed = (np.array(block["few"], np.int64), next(arrays), next(arrays), next(arrays))
    if head["limited"]:
        exhausted = np.unpackbits(next(arrays), count=len(ids)).view(np.bool_)
    starts = block["start"] + block["step"] * np.arange(windows)
    subjects = names(ids)
    for when, who in divide(windows, len(ids), queries):
        own = octets[when, :, who.start // 8 : -(-who.stop // 8)]
        number = who.stop - who.start
        bits = np.unpackbits(own, axis=-1, bitorder="little", count=number).view(np.bool_)
        confidence = None
        if packed is not None:
            confidence = np.empty((len(starts[when]), number, queries), np.float32)
            _decode_confidences(*packed, confidence, when.start, who.start)
        yield AnswerBlock(
            starts[when],
            block["size"],
            subjects[who],
            bits.transpose(0, 2, 1),
            None if registered is None else registered[when, who],
            confidence,
            None if exhausted is None else exhausted[who],
            head["private"],
        )


@compiled
def _encode_values(
    given: NDArray[np.uint32], values: NDArray[np.uint32], codes: NDArray[np.uint8]
) -> int:
    """Number the distinct values in order of appearance; return -1 if there are too many."""
    low = np.uint64(1023)
    table = np.full(1024, -1, np.int32)
    found = 0
    last, code = np.uint32(0), np.int32(-1)
    for i in range(len(given)):
        value = given[i]
        if code < 0 or value != last:
            place = (np.uint64(value) * np.uint64(2654435769) >> np.uint64(22)) & low
            while table[place] >= 0 and values[table[place]] != value:
                place = (place + np.uint64(1)) & low
            if table[place] < 0:
                if found == len(values):
                    return -1
                table[place] = found
                values[found] = value
                found += 1
            code = table[place]
            last = value
        codes[i] = code
    return found


@compiled
def _decode_confidences(
    counts: NDArray[np.int64],
    values: NDArray[np.float32],
    codes: NDArray[np.uint8],
    many: NDArray[np.float32],
    sure: NDArray[np.float32],
    first_window: int,
    first_subject: int,
) -> None:
    """Write packed confidences of all queries, from a window and subject on, into `sure`.

    `sure` is `[window][subject][query]`.
    """
    windows, subjects, queries = sure.shape
    first = few = 0
    for query in range(queries):
        for window in range(windows):
            for subject in range(subjects):
                place = first_window + window, first_subject + subject
                if counts[query]:
                    value = values[first + codes[few, place[0], place[1]]]
                else:
                    value = many[query - few, place[0], place[1]]
                sure[window, subject, query] = value
        first += counts[query]
        few += 1 if counts[query] else 0
