"""Look up the names of subjects by their ids in a ledger."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.ledger.ledger import Ledger
from tacit.ledger.registry import Registry


class Directory:
    """Looks up names; it reads the ledger only for new ids."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._registry = Registry()
        self._lock = threading.Lock()

    def __call__(self, ids: NDArray[np.int64]) -> pa.Array:
        """Return the names of these subjects."""
        with self._lock:
            if len(ids) and int(ids.max()) >= len(self._registry.names):
                with self._ledger.database.reading() as connection:
                    self._registry.refresh(connection)
            return self._registry.names.take(pa.array(ids))
