"""Check that saved windows fit a shard: compiled code uses their indices unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.engines.sharded.saved_state import check_array, check_places
from tacit.errors import StateError
from tacit.pipeline.window_state import WindowState, select_prefix

_SLOT: Final = 2
"""The row of a table of times that has the slots."""


def check_windows(
    windows: WindowState,
    arrays: Mapping[str, NDArray[Any]],
    frames: Mapping[str, pl.DataFrame],
    slots: int,
) -> None:
    """Raise StateError unless these arrays and frames fit a shard with so many subjects.

    `windows` are fresh, and may have the subjects of other shards too.
    """
    fresh, _ = windows.state()
    words = len(windows.panes.ordered_types)
    check_array("since", arrays.get("since"), np.int64, (slots,))
    for name in ("panes.ring", "panes.states", "panes.lasts"):
        if name in fresh:
            capacity, _, *rest = fresh[name].shape
            shape = capacity, slots, *rest
            check_array(name, arrays.get(name), fresh[name].dtype, shape)
    times = check_array("panes.times", arrays.get("panes.times"), np.int64, (None,))
    owners = check_array("panes.owners", arrays.get("panes.owners"), np.int32, times.shape)
    check_array("panes.masks", arrays.get("panes.masks"), np.uint64, (len(times), words))
    check_places("panes.owners", owners, slots)
    earlier = select_prefix("sliding.", arrays)
    if windows.sliding is not None and earlier:
        _check_earlier(earlier, windows.sliding.panes - 1, slots, words)
    for name, frame in frames.items():
        _check_rows(name, frame, slots, words)


def _check_earlier(arrays: Mapping[str, NDArray[Any]], panes: int, slots: int, words: int) -> None:
    """Check the panes before the open ones, and the noise that was drawn for them."""
    get = arrays.get
    check_array("sliding.end", get("end"), np.int64, ())
    check_array("sliding.words", get("words"), np.uint64, (panes, slots, words))
    keys = check_array("sliding.keys", get("keys"), np.int64, (None,))
    check_places("sliding.keys", keys, panes * slots)
    if (np.diff(keys) <= 0).any():
        raise StateError("'sliding.keys' in the state of a shard is not in order")
    starts = check_array("sliding.starts", get("starts"), np.int64, (len(keys) + 1,))
    times = check_array("sliding.times", get("times"), np.int64, (None,))
    check_array("sliding.masks", get("masks"), np.uint64, (len(times), words))
    if starts[0] != 0 or starts[-1] != len(times) or (np.diff(starts) < 0).any():
        raise StateError("'sliding.starts' in the state of a shard is not in order")
    for name, part in select_prefix("drawn.", arrays).items():
        if name.endswith(".moments"):
            check_array(name, part, np.int64, (4, None))
            check_places(name, part[_SLOT], slots)
        else:
            check_array(name, part, np.uint64, (panes, None, -(-slots // 64)))


def _check_rows(name: str, frame: pl.DataFrame, slots: int, words: int) -> None:
    """Check the rows of tuples that conditions compare."""
    expected: dict[str, Any] = {"slot": pl.Int32, "row": pl.Int64, "time": pl.Int64}
    expected |= {f"mask{word}": pl.UInt64 for word in range(words)}
    if any(frame.schema.get(column) != kind for column, kind in expected.items()):
        raise StateError(f"the rows '{name}' in the state of a shard have other columns")
    if any(frame[column].null_count() for column in expected):
        raise StateError(f"the rows '{name}' in the state of a shard have nulls")
    check_places(f"{name}.slot", frame["slot"].to_numpy(), slots)
