"""Compare a run with a ledger to the same run without one; both write JSON lines."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import data, ours
from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import race
from benchmarks.report import Finding
from tacit.connectors.files import open_source
from tacit.connectors.openers import open_resumable_sink, open_sink
from tacit.ledger.ledger import Ledger
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import plan_without_history
from tacit.spec.specification import Private, Specification

_TARGET = 0.6
_NOTE = "Parquet in, JSON lines out; SQLite, write-ahead, full sync; ledger and file on one disk"


def durable(setting: Setting) -> Iterator[Finding]:
    """Measure the share of the speed that is left with a ledger."""
    scale = setting.scale
    plain = ours.specification("AND", data.draw_queries(3, scale.kinds), scale)
    private = (Private(pattern="AND(k0, k1, k2)", epsilon=Decimal(1)),)
    spec = plain.model_copy(update={"private": private}).checked()
    plan = plan_without_history(spec, "uniform")
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        source = folder / "events.parquet"
        pq.write_table(data.events(scale), source, row_group_size=data.ROW_GROUP)
        runs = {
            "without a ledger": partial(_without, spec, plan, source, folder),
            "with a ledger": partial(_with, spec, plan, source, folder, count()),
        }
        outcomes = race(runs, setting.rounds, lambda _, answers: answers)
    if len({outcome.result for outcome in outcomes.values()}) != 1:
        raise UnequalError("a ledger changes how many answers there are")
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    one, other = seconds.values()
    yield Finding(
        f"Released from a ledger, {scale.subjects:,} subjects, minutes",
        "of the speed without",
        one.elapsed / other.elapsed,
        one.processor / other.processor,
        _TARGET,
        seconds=seconds,
        note=_NOTE,
    )


def _inputs(source: Path) -> list[Input]:
    return [Input("events", open_source(source))]


def _without(spec: Specification, plan: Plan, source: Path, folder: Path) -> int:
    run = Run(spec, _inputs(source), plan=plan)
    with open_sink(folder / "without.jsonl", run.schema) as sink:
        run.add_sink(sink)
        return sum(map(len, run))


def _with(
    spec: Specification, plan: Plan, source: Path, folder: Path, numbers: Iterator[int]
) -> int:
    fresh = folder / f"run-{next(numbers)}"
    fresh.mkdir()
    with (
        Ledger.open(str(fresh / "spent.db")) as ledger,
        open_resumable_sink(fresh / "answers.jsonl") as sink,
    ):
        outcome = Run(
            spec, _inputs(source), plan=plan, ledger=ledger, sinks=[sink], name="bench"
        ).run()
    shutil.rmtree(fresh)
    return outcome.answers
