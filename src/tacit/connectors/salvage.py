"""Separate unreadable lines or messages from the others; they become dead letters.

A parser is tried on many items together. If it fails, the items are divided until the ones that
fail by themselves are found. So how an item is read depends only on that item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PanicException

Parse: TypeAlias = Callable[[Sequence[bytes]], tuple[pl.DataFrame, NDArray[np.int64]]]
"""Returns the rows of items, and the number of rows of each; raises if it cannot read one."""


class SalvagedRows(NamedTuple):
    """The rows of the readable items."""

    frame: pl.DataFrame
    origin: NDArray[np.int64]
    """The item that each row comes from."""
    failed: list[int]
    """The unreadable items."""


def salvage(
    items: Sequence[bytes], parse: Parse, is_suspect: Callable[[bytes], bool] | None = None
) -> SalvagedRows:
    """Parse all readable items.

    `is_suspect` may guess which items fail, so that the others are parsed together. It saves time
    and does not change the result.
    """
    numbers = np.arange(len(items))
    parts: list[tuple[pl.DataFrame, NDArray[np.int64]]] = []
    failed: list[int] = []
    if not _attempt(items, numbers, parse, parts):
        suspect = np.zeros(len(items), np.bool_)
        if is_suspect is not None:
            suspect = np.array([is_suspect(item) for item in items], np.bool_)
        for chosen in (numbers[~suspect], numbers[suspect]):
            if len(chosen):
                _divide(items, chosen, parse, parts, failed)
    if not parts:
        return SalvagedRows(parse(())[0], np.empty(0, np.int64), sorted(failed))
    frame = parts[0][0] if len(parts) == 1 else pl.concat([frame for frame, _ in parts])
    origin = np.concatenate([origin for _, origin in parts])
    order = np.argsort(origin, kind="stable")
    if not (order[1:] > order[:-1]).all():
        frame, origin = frame[order], origin[order]
    return SalvagedRows(frame, origin, sorted(failed))


def _divide(
    items: Sequence[bytes],
    numbers: NDArray[np.int64],
    parse: Parse,
    parts: list[tuple[pl.DataFrame, NDArray[np.int64]]],
    failed: list[int],
) -> None:
    """Parse the readable items among these, by halving."""
    pending = [numbers]
    while pending:
        chosen = pending.pop()
        if _attempt([items[number] for number in chosen], chosen, parse, parts):
            continue
        if len(chosen) == 1:
            failed.append(int(chosen[0]))
        else:
            half = len(chosen) // 2
            pending += [chosen[half:], chosen[:half]]


def _attempt(
    items: Sequence[bytes],
    numbers: NDArray[np.int64],
    parse: Parse,
    parts: list[tuple[pl.DataFrame, NDArray[np.int64]]],
) -> bool:
    """Parse all of these items; return whether that succeeded."""
    try:
        frame, counts = parse(items)
    except MemoryError:
        raise
    except (Exception, PanicException):
        return False
    if len(counts) != len(items) or counts.sum() != frame.height:
        return False
    parts.append((frame, np.repeat(numbers, counts)))
    return True
