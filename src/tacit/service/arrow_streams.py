"""Check Arrow streams from outside before anything else reads them."""

from __future__ import annotations

import struct

import pyarrow as pa

_RECORD_BATCH = 3
_DICTIONARY_BATCH = 2
_BODY_COMPRESSION = 3


class ArrowStreamError(ValueError):
    """An Arrow stream that is not accepted."""


def check_arrow_stream(payload: bytes, most: int) -> None:
    """Raise an error unless this is a whole, sound, uncompressed stream of plain columns.

    A few compressed bytes can stand for gigabytes, so compression is refused. Offsets are checked
    in full: other code trusts them. Decoded, it may have `most` bytes.
    """
    if any(_is_compressed(message) for message in _read_messages(payload)):
        raise ArrowStreamError("compressed Arrow streams are not supported; send them plain")
    size = 0
    with pa.ipc.open_stream(payload) as reader:
        names = reader.schema.names
        if len({*names}) < len(names):
            raise ArrowStreamError("two columns have the same name; give each its own")
        for batch in reader:
            batch.validate(full=True)
            size += batch.nbytes
            if size > most:
                raise ArrowStreamError(f"send at most {most >> 20} MiB in one request")


def _read_messages(payload: bytes) -> list[bytes]:
    """Return the metadata of all messages."""
    reader = pa.ipc.MessageReader.open_stream(payload)
    return [message.metadata.to_pybytes() for message in reader]


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the body of a message is compressed, from its FlatBuffers metadata.

    Message: version, header_type, header, ...; RecordBatch: length, nodes, buffers, compression;
    DictionaryBatch: id, data (a RecordBatch), is_delta.
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
