"""Windows with planted leaks of known strength, for many subjects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.insight.leak_report import LeakReport
from tacit.insight.leak_search import LeakSearch
from tacit.insight.window_columns import WindowColumns
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

Bits = NDArray[np.bool_]


def specified(signals: int, extra: str = "") -> Specification:
    """A private event type `p`, and public ones `e0`, `e1`, ..."""
    events = "".join(f"  e{n}: {{stream: s, where: 'kind = {n}'}}\n" for n in range(signals))
    return loads(
        "streams: {s: {subject: who, time: at}}\nwindows: {size: 1 h}\nevents:\n"
        "  p: {stream: s, where: 'kind = -1'}\n"
        f"{events}private: [{{pattern: p, epsilon: 1}}]\n{extra}"
    )


def draw_stays(
    chance: np.random.Generator, shape: tuple[int, ...], rate: NDArray[np.float64], last: float
) -> Bits:
    """Windows that last: each repeats the one before it with probability `last`.

    `shape` is `[...][subject][window]`; `rate` is broadcast to all but the windows.
    """
    fresh = chance.random(shape) < rate[..., np.newaxis]
    again = chance.random(shape) < last
    found = fresh.copy()
    for window in range(1, shape[-1]):
        now = again[..., window]
        found[..., window] = np.where(now, found[..., window - 1], fresh[..., window])
    return found


def pack(bits: Bits) -> NDArray[np.uint64]:
    """Pack the last axis, 64 windows to a word."""
    width = -(-bits.shape[-1] // 64)
    padded = np.zeros((*bits.shape[:-1], 64 * width), np.bool_)
    padded[..., : bits.shape[-1]] = bits
    return np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)


def to_columns(
    spec: Specification, private: Bits, signals: Bits, registered: Bits | None = None
) -> tuple[LeakSearch, WindowColumns]:
    """A search and its columns: `private[subject][window]`, `signals[type][subject][window]`."""
    search = LeakSearch(spec)
    known = np.ones(private.shape, np.bool_) if registered is None else registered
    order = [repr(pattern) for pattern in search.index.patterns]
    place = {"p": -1, **{f"e{n}": n for n in range(len(signals))}}
    bits = np.array([private if place[name] < 0 else signals[place[name]] for name in order])
    subjects, windows = private.shape
    policies = np.zeros(subjects, np.int32)
    return search, WindowColumns(pack(bits & known), pack(known), policies, windows, subjects)


def measure(private: Bits, signals: Bits, rate: float = 0.05, least: float = 1.0) -> LeakReport:
    """Search for leaks in these windows."""
    search, columns = to_columns(specified(len(signals)), private, signals)
    return search.compare(columns, rate, least)


def draw_without_leak(
    seed: int, subjects: int = 120, windows: int = 96, signals: int = 12
) -> tuple[Bits, Bits]:
    """Windows that last, of subjects that differ, and nothing tells about anything else."""
    chance = np.random.default_rng(seed)
    private = draw_stays(chance, (subjects, windows), chance.beta(1, 6, subjects), 0.8)
    rates = chance.beta(1, 6, (signals, subjects))
    return private, draw_stays(chance, (signals, subjects, windows), rates, 0.8)


def plant(chance: np.random.Generator, private: Bits, rate: float, ratio: float) -> Bits:
    """A signal with this odds ratio: present at `rate` without the private pattern."""
    odds = ratio * rate / (1 - rate)
    return chance.random(private.shape) < np.where(private, odds / (1 + odds), rate)
