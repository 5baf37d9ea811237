"""Read Arrow streams from outside, and check them before anything else uses them."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import pyarrow as pa

from tacit.service.ingest_requests import Body

_PREFIX: Final = struct.Struct("<II")
_CONTINUED: Final = 0xFFFFFFFF
_END: Final = _PREFIX.pack(_CONTINUED, 0)
_LARGEST_METADATA: Final = 16 << 10
"""The largest schema in bytes that is remembered."""
_HEADER: Final = 2
_BODY_LENGTH: Final = 3
_ENDIANNESS: Final = 0
_RECORD_BATCH: Final = 3
_DICTIONARY_BATCH: Final = 2
_BODY_COMPRESSION: Final = 3
_BINARY: Final = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


class ArrowStreamError(ValueError):
    """An Arrow stream that is not accepted."""


def read_arrow_stream(payload: Body, most: int) -> pa.Table:
    """Read a stream without a copy; raise an error unless it is whole, sound, plain and small.

    A few compressed bytes can stand for gigabytes, so compression is refused. Offsets are checked
    in full: other code trusts them. Decoded, it may have `most` bytes, and at most as many rows.
    """
    found = _read_plain_stream(payload, most)
    return _read_any_stream(payload, most) if found is None else found


def _read_any_stream(payload: Body, most: int) -> pa.Table:
    if any(_is_compressed(metadata) for metadata in _find_messages(payload)):
        raise ArrowStreamError("compressed Arrow streams are not supported; send them plain")
    with pa.ipc.open_stream(payload) as reader:
        names = reader.schema.names
        if len({*names}) < len(names):
            raise ArrowStreamError("two columns have the same name; give each its own")
        table = reader.read_all()
    if table.num_rows <= most:
        table.validate()  # before its size is asked for, which reads offsets
    if table.num_rows > most or table.nbytes > most:
        raise ArrowStreamError(f"send at most {most >> 20} MiB in one request")
    for column in table.columns:
        for chunk in column.chunks:
            _validate(chunk)
    return table


def _read_plain_stream(payload: Body, most: int) -> pa.Table | None:
    """Do the same for the usual stream: one batch of numbers, times and text.

    Returns None for any other one, and for one with faults. Arrow gives up the interpreter lock in
    most calls, and each time this thread has to wait for others. Here are three such calls.
    """
    try:
        size, begin = _find_metadata(payload, 0)
        schema = _read_plain_schema(bytes(payload[begin - size : begin]))
        if schema is None:
            return None
        size, body = _find_metadata(payload, begin)
        metadata = bytes(payload[body - size : body])
        end = body + _read_body_length(metadata)
        if _is_compressed(metadata) or bytes(payload[end : end + len(_END) + 1]) not in (b"", _END):
            return None
        message = pa.py_buffer(payload).slice(begin, end - begin)
        batch = pa.ipc.read_record_batch(message, schema)
        arrays = batch.columns
        parts = [part.size for array in arrays for part in array.buffers() if part is not None]
        if max(sum(parts), batch.num_rows) > most:
            return None
        checked = [_without_decoding(array) for array in arrays]
        pa.RecordBatch.from_arrays(checked, schema.names).validate(full=True)
    except (pa.ArrowException, struct.error, OSError, ValueError):
        return None
    return pa.Table.from_batches([batch])


def _find_metadata(payload: Body, begin: int) -> tuple[int, int]:
    """Return the size of a message's metadata, and where they end."""
    mark, size = _PREFIX.unpack_from(payload, begin)
    if mark != _CONTINUED or not 0 < size <= _LARGEST_METADATA:
        raise ArrowStreamError("another form of an Arrow stream")
    return size, begin + _PREFIX.size + size


@lru_cache(maxsize=256)
def _read_plain_schema(metadata: bytes) -> pa.Schema | None:
    """Read the schema of a stream; return None if it has columns that are not plain."""
    header = _field(metadata, _follow(metadata, 0), _HEADER)
    order = None if header is None else _field(metadata, _follow(metadata, header), _ENDIANNESS)
    if order is not None and any(metadata[order : order + 2]):
        return None  # Arrow turns the bytes of such columns round
    message = _PREFIX.pack(_CONTINUED, len(metadata)) + metadata
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp, _BINARY.get)
    plain = all(any(check(kind) for check in checks) for kind in schema.types)
    return schema if plain and len({*schema.names}) == len(schema) > 0 else None


def _without_decoding(array: pa.Array) -> pa.Array:
    """Return text that is ASCII as a whole as bytes, which need not be decoded to validate them."""
    plain = _BINARY.get(array.type)
    text = None if plain is None else array.buffers()[2]
    if text is None or not text.to_pybytes().isascii():
        return array
    return pa.Array.from_buffers(plain, len(array), array.buffers(), array.null_count, array.offset)


def _validate(array: pa.Array) -> None:
    """Validate an array in full. Text that is ASCII as a whole need not be decoded again.

    >>> _validate(pa.array(["taxi 1", "taxi 2"]))
    >>> _validate(pa.array([b"taxi \\xff"]).view(pa.string()))
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: Invalid UTF8 sequence at string index 0
    """
    _without_decoding(array).validate(full=True)


def _find_messages(payload: Body) -> list[bytes]:
    """Return the metadata of all messages.

    Each is a mark, the length of its metadata, the metadata, and a body whose length is there.
    """
    found: list[bytes] = []
    begin = 0
    while begin < len(payload):
        if len(payload) < begin + _PREFIX.size:
            return _read_messages(payload)
        mark, size = _PREFIX.unpack_from(payload, begin)
        if mark != _CONTINUED:  # a stream of an old version, or none at all
            return _read_messages(payload)
        if not size:
            break
        begin += _PREFIX.size
        metadata = bytes(payload[begin : begin + size])
        begin += size + _read_body_length(metadata)
        found.append(metadata)
    return found


def _read_messages(payload: Body) -> list[bytes]:
    """Do the same with Arrow's own reader, which takes longer and reads all versions."""
    reader = pa.ipc.MessageReader.open_stream(payload)
    return [message.metadata.to_pybytes() for message in reader]


def _read_body_length(metadata: bytes) -> int:
    try:
        place = _field(metadata, struct.unpack_from("<I", metadata)[0], _BODY_LENGTH)
        length = 0 if place is None else int(struct.unpack_from("<q", metadata, place)[0])
    except struct.error as error:
        raise ArrowStreamError("the Arrow stream is damaged") from error
    if length < 0:
        raise ArrowStreamError("the Arrow stream is damaged")
    return length


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the body of a message is compressed, from its FlatBuffers metadata.

    Message: version, header_type, header, bodyLength, ...; RecordBatch: length, nodes, buffers,
    compression; DictionaryBatch: id, data (a RecordBatch), is_delta.
    """
    try:
        root = struct.unpack_from("<I", metadata)[0]
        kind_at = _field(metadata, root, 1)
        header_at = _field(metadata, root, _HEADER)
        if kind_at is None or header_at is None:
            return False
        kind, header = metadata[kind_at], _follow(metadata, header_at)
        if kind == _DICTIONARY_BATCH:
            data_at = _field(metadata, header, 1)
            if data_at is None:
                return False
            kind, header = _RECORD_BATCH, _follow(metadata, data_at)
        return kind == _RECORD_BATCH and _field(metadata, header, _BODY_COMPRESSION) is not None
    except (struct.error, IndexError) as error:
        raise ArrowStreamError("the Arrow stream is damaged") from error


def _follow(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the place of a table's field; None if it has its default."""
    if table < 0 or table + 4 > len(data):
        raise ArrowStreamError("the Arrow stream is damaged")
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ArrowStreamError("the Arrow stream is damaged")
    size = struct.unpack_from("<H", data, vtable)[0]
    entry = 4 + 2 * number
    if entry >= size:
        return None
    offset = struct.unpack_from("<H", data, vtable + entry)[0]
    return None if offset == 0 else table + int(offset)
