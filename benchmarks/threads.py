"""Measure what all cores bring, as a share of perfect scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from benchmarks import data, ours
from benchmarks.jobs import Setting
from benchmarks.measuring import race
from benchmarks.protected import count_answers, protect
from benchmarks.report import Finding
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.kernels.threads import CORES, ONE_THREAD, Workers
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.spec.specification import Specification


def threads(setting: Setting) -> Iterator[Finding]:
    """Compare all cores with one thread: for AND, for SEQ, and for protected answers."""
    table = data.events(setting.scale)
    queries = data.draw_queries(20, setting.scale.kinds)
    for operator in ("AND", "SEQ"):
        spec = ours.specification(operator, queries, setting.scale)
        yield _scale(f"20 {operator} queries, Arrow in memory", spec, table, None, setting)
    spec = protect(ours.specification("AND", queries, setting.scale))
    history = table.slice(0, setting.scale.events // 10)
    statistics = survey(spec, [Input("events", FrameSource(history))], literal=False)
    plan = make_plan(spec, statistics, "optimal", fall_back=False)
    yield _scale("Protected by optimal, 20 AND queries", spec, table, plan, setting)


def _scale(
    job: str, spec: Specification, table: pa.Table, plan: Plan | None, setting: Setting
) -> Finding:
    """Compare the clock with the processor time of one thread, divided by the cores."""

    def run(workers: Workers) -> int:
        inputs = [Input("events", FrameSource(table))]
        return count_answers(Run(spec, inputs, plan=plan, workers=workers))

    runs: dict[str, Callable[[], int]] = {
        "one thread": partial(run, ONE_THREAD),
        "all cores": partial(run, Workers()),
    }
    outcomes = race(runs, setting.rounds, lambda _, result: result)
    one, every = outcomes["one thread"].spent, outcomes["all cores"].spent
    return Finding(
        job,
        f"share of perfect scaling on {CORES} cores",
        one.processor / CORES / every.elapsed,
        seconds={"one thread": one, "all cores": every},
        note=f"{one.elapsed / every.elapsed:.2f} times as fast as with one thread, beside which"
        " another reads ahead; perfect is the processor time of that, divided by the cores",
    )
