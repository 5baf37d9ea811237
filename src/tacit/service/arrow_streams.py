"""Read Arrow streams from outside, and check them before anything else uses them."""

from __future__ import annotations

import struct

import pyarrow as pa

from tacit.service.ingest_requests import Body

_PREFIX = struct.Struct("<II")
_CONTINUED = 0xFFFFFFFF
_BODY_LENGTH = 3
_RECORD_BATCH = 3
_DICTIONARY_BATCH = 2
_BODY_COMPRESSION = 3
_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


class ArrowStreamError(ValueError):
    """An Arrow stream that is not accepted."""


def read_arrow_stream(payload: Body, most: int) -> pa.Table:
    """Read a stream without a copy; raise an error unless it is whole, sound, plain and small.

    A few compressed bytes can stand for gigabytes, so compression is refused. Offsets are checked
    in full: other code trusts them. Decoded, it may have `most` bytes, and at most as many rows.
    """
    if any(_is_compressed(metadata) for metadata in _find_messages(payload)):
        raise ArrowStreamError("compressed Arrow streams are not supported; send them plain")
    with pa.ipc.open_stream(payload) as reader:
        names = reader.schema.names
        if len({*names}) < len(names):
            raise ArrowStreamError("two columns have the same name; give each its own")
        table = reader.read_all()
    if max(table.nbytes, table.num_rows) > most:
        raise ArrowStreamError(f"send at most {most >> 20} MiB in one request")
    table.validate()
    for column in table.columns:
        for chunk in column.chunks:
            _validate(chunk)
    return table


def _validate(array: pa.Array) -> None:
    """Validate an array in full. Text that is ASCII as a whole need not be decoded again.

    >>> _validate(pa.array(["taxi 1", "taxi 2"]))
    >>> _validate(pa.array([b"taxi \\xff"]).view(pa.string()))
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: Invalid UTF8 sequence at string index 0
    """
    plain = _BINARY.get(array.type)
    if plain is not None:
        text = array.buffers()[2]
        if text is not None and text.to_pybytes().isascii():
            array = array.view(plain)
    array.validate(full=True)


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
        header_at = _field(metadata, root, 2)
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
