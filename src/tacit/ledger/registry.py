"""Subjects and their ids in the ledger: dense, in the order in which they were enrolled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.errors import LedgerError
from tacit.events.columns import decode_dictionary, to_plain_text
from tacit.ledger.alchemy import sa
from tacit.ledger.chain import hash_registry
from tacit.ledger.codec import pack_names, unpack_names
from tacit.ledger.tables import HEAD, SUBJECTS


class Registry:
    """The known subject names. Names are texts: 7 and '7' are the same subject."""

    def __init__(self) -> None:
        self.names: pa.Array = pa.array([], pa.large_string())

    def refresh(self, connection: sa.Connection) -> None:
        """Read the names that others have added."""
        newer = SUBJECTS.c.first >= len(self.names)
        query = sa.select(SUBJECTS.c.names).where(newer).order_by(SUBJECTS.c.first)
        parts = [unpack_names(packed) for (packed,) in connection.execute(query)]
        if parts:
            self.names = pa.concat_arrays([self.names, *parts])

    def find_ids(self, names: pa.Array) -> NDArray[np.int64]:
        """Return the id of each name, or -1."""
        found = pc.index_in(names, value_set=self.names)
        return np.asarray(pc.fill_null(found, -1)).astype(np.int64)

    def enrol(self, connection: sa.Connection, names: pa.Array) -> None:
        """Add the unknown names, with the head locked."""
        head = connection.execute(sa.select(HEAD).with_for_update()).one()
        self.refresh(connection)
        new = names.filter(pa.array(self.find_ids(names) < 0)).unique()
        if len(new) == 0:
            return
        packed = pack_names(new)
        first, count = len(self.names), len(new)
        connection.execute(SUBJECTS.insert().values(first=first, count=count, names=packed))
        registry = hash_registry(head.registry, first, count, packed)
        connection.execute(HEAD.update().values(subjects=first + count, registry=registry))


def to_texts(names: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Convert names to the type that the ledger stores."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    texts = to_plain_text(decode_dictionary(names)).cast(pa.large_string())
    if texts.null_count or (len(texts) and pc.any(pc.equal(texts, "")).as_py()):
        raise LedgerError("a subject's name must not be empty or null")
    return texts
