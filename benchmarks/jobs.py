"""The jobs that run in this process: presence, order, scaling, sizes of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from benchmarks import data, ours, rivals
from benchmarks.data import Scale
from benchmarks.measuring import Outcome, race
from benchmarks.report import OURS, Finding, against


@dataclass(frozen=True, slots=True)
class Setting:
    """The sizes of the benchmarks, and the folder of their files."""

    scale: Scale
    rounds: int
    folder: Path
    streamed: int
    """Events of the stream that measures memory."""
    filed: int
    """Events in the file that exceeds the memory limit."""
    flink: int
    """Events for Flink."""


class UnequalError(Exception):
    """Two contestants gave different answers to the same queries."""


def _checked(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, scale: Scale, queries: int
) -> dict[str, Outcome[str]]:
    """Race, and check that every contestant gives the same answers."""
    expected: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    def read(name: str, result: Any) -> str:
        nonlocal expected
        form = ours.dense if name == OURS else rivals.dense
        found = form(result, scale, queries)
        if expected is None:
            expected = found
        if not np.array_equal(found, expected):
            differ = int((found != expected).sum())
            raise UnequalError(f"{name} differs from {next(iter(contestants))} in {differ} answers")
        return f"{int(found.sum()):,} of {found.size:,} detected, the same for all"

    return race(contestants, rounds, read)


def _compare(
    job: str,
    operator: str,
    source: pa.Table | Path,
    setting: Setting,
    target: float | None,
    *,
    text: bool = False,
) -> Finding:
    queries = data.draw_queries(20, setting.scale.kinds)
    spec = ours.specification(operator, queries, setting.scale, text=text)
    if operator == "AND":
        ways = rivals.presence(source, queries, setting.scale, text=text)
    else:
        ways = rivals.order(source, queries, setting.scale)
    contestants = {OURS: lambda: ours.detect(spec, source), **ways}
    outcomes = _checked(contestants, setting.rounds, setting.scale, len(queries))
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    note = outcomes[OURS].result
    return against(job, seconds, target, note=note, only="Polars" if operator == "SEQ" else "")


def presence(setting: Setting) -> Iterator[Finding]:
    """Measure 20 AND queries, from memory."""
    table = data.events(setting.scale)
    yield _compare("20 AND queries, Arrow in memory", "AND", table, setting, 8)


def parquet(setting: Setting) -> Iterator[Finding]:
    """Measure 20 AND queries from Parquet: against rivals, and against decoding only."""
    for compression, target in (("snappy", 1.5), ("none", None), ("zstd", None)):
        path = data.parquet(setting.scale, setting.folder, compression=compression)
        name = {"snappy": "Parquet", "none": "Parquet, not compressed"}.get(
            compression, f"Parquet, {compression}"
        )
        yield _compare(f"20 AND queries, {name}", "AND", path, setting, target)
        yield from _over_decoding(name, path, setting, 1.3 if target else None)
    path = data.parquet(setting.scale, setting.folder, text=True)
    yield _compare("20 AND queries, Parquet, names", "AND", path, setting, 1.5, text=True)
    yield from _over_decoding("Parquet, names", path, setting, 1.3, text=True)


def _over_decoding(
    name: str, path: Path, setting: Setting, target: float | None, *, text: bool = False
) -> Iterator[Finding]:
    """Measure answers from a file as a multiple of the time for decoding it."""
    queries = data.draw_queries(20, setting.scale.kinds)
    spec = ours.specification("AND", queries, setting.scale, text=text)
    runs = {OURS: lambda: ours.detect(spec, path), **rivals.decoding(path, text=text)}
    outcomes = race(runs, setting.rounds, lambda _, __: None)
    answers = outcomes[OURS].spent
    for library in rivals.decoding(path):
        bare = outcomes[library].spent
        yield Finding(
            f"20 AND queries, {name}",
            f"times the time {library} needs to decode the columns",
            answers.elapsed / bare.elapsed,
            answers.processor / bare.processor,
            None if library.endswith("in batches") else target,
            "at most",
            seconds={OURS: answers, library: bare},
        )


def order(setting: Setting) -> Iterator[Finding]:
    """Measure 20 SEQ queries against chained joins."""
    table = data.events(setting.scale)
    yield _compare("20 SEQ queries, Arrow in memory", "SEQ", table, setting, 18)
    table = data.events(setting.scale, shuffled=True)
    yield _compare("20 SEQ queries, each subject shuffled", "SEQ", table, setting, None)


def _ratio(
    job: str,
    measure: str,
    runs: Mapping[str, Callable[[], int]],
    rounds: int,
    target: float,
    *,
    bound: Literal["at least", "at most"] = "at most",
    same: bool = False,
) -> Finding:
    """Measure the cost of the second run relative to the first."""
    outcomes = race(runs, rounds, lambda _, result: result)
    if same and len({outcome.result for outcome in outcomes.values()}) > 1:
        raise UnequalError(f"{job}: the number of detections differs between {', '.join(runs)}")
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    one, other = seconds.values()
    clock, processor = other.elapsed / one.elapsed, other.processor / one.processor
    return Finding(job, measure, clock, processor, target, bound, seconds=seconds)


def scaling(setting: Setting) -> Iterator[Finding]:
    """Measure more queries, and more subjects, with the same number of events."""
    scale = setting.scale
    batches = data.batches(data.events(scale), 1_000_000)
    few, many = (
        ours.specification("AND", data.draw_queries(number), scale) for number in (10, 1000)
    )
    yield _ratio(
        "1000 AND queries",
        "times the cost of 10",
        {"10 queries": _drain(few, batches), "1000 queries": _drain(many, batches)},
        setting.rounds,
        3,
    )
    wider = Scale(scale.events, scale.subjects * 10, scale.windows, scale.kinds)
    queries = data.draw_queries(20)
    narrow = ours.specification("AND", queries, scale)
    wide = ours.specification("AND", queries, wider)
    spread = data.batches(data.events(wider), 1_000_000)
    yield _ratio(
        f"{wider.subjects:,} subjects",
        f"times the cost of {scale.subjects:,}",
        {
            f"{scale.subjects:,} subjects": _drain(narrow, batches),
            f"{wider.subjects:,} subjects": _drain(wide, spread),
        },
        setting.rounds,
        3,
    )


def batching(setting: Setting) -> Iterator[Finding]:
    """Measure the rate of small batches, as a share of the rate of large ones."""
    table = data.events(setting.scale)
    for operator in ("AND", "SEQ"):
        spec = ours.specification(operator, data.draw_queries(20), setting.scale)
        yield _ratio(
            f"batches of 10,000, {operator}",
            "of the rate of batches of 1,000,000",
            {
                "batches of 10,000": _drain(spec, data.batches(table, 10_000)),
                "batches of 1,000,000": _drain(spec, data.batches(table, 1_000_000)),
            },
            setting.rounds,
            0.5,
            bound="at least",
            same=True,
        )


def _drain(spec: Any, batches: list[pa.RecordBatch]) -> Callable[[], int]:
    """Return a function that pushes all batches and counts the detections."""
    return lambda: sum(int(np.bitwise_count(part.bits).sum()) for part in ours.push(spec, batches))
