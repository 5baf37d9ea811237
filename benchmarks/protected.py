"""Compare protected runs with true ones, and measure planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks import data, ours
from benchmarks.jobs import Setting
from benchmarks.measuring import Spent, race, timed
from benchmarks.report import Finding
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.evaluation.measurement import compute_statistics
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.spec.specification import Private, Specification

PRIVATE = ("AND(k0, k1, k2)", "AND(k3, k4, k5)", "AND(k6, k7, k8)")
_TARGETS = {"optimal": 0.5, "uniform": 0.7}


def run(setting: Setting) -> Iterator[Finding]:
    """Measure the share of the speed that is left with protection."""
    plain = ours.specification("AND", data.draw_queries(20, setting.scale.kinds), setting.scale)
    spec = plain.model_copy(
        update={
            "private": tuple(Private(pattern=pattern, epsilon=Decimal(1)) for pattern in PRIVATE)
        }
    ).checked()
    table = data.events(setting.scale)
    history = table.slice(0, setting.scale.events // 10)
    statistics = survey(spec, [Input("events", FrameSource(history))], literal=False)
    plans = {name: make_plan(spec, statistics, name) for name in ("optimal", "adaptive", "uniform")}
    runs: dict[str, Callable[[], int]] = {"detect": lambda: _count(Run(spec, _inputs(table)))}
    for name, plan in plans.items():
        runs[name] = partial(_protected, spec, table, plan)
    outcomes = race(runs, setting.rounds, lambda _, result: result)
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    for name in plans:
        yield _share(name, seconds, _TARGETS.get(name))


def _inputs(table: pa.Table) -> list[Input]:
    return [Input("events", FrameSource(table))]


def _protected(spec: Specification, table: pa.Table, plan: Plan) -> int:
    return _count(Run(spec, _inputs(table), plan=plan))


def _count(run: Run) -> int:
    return sum(int(np.bitwise_count(answers.bits).sum()) for answers in run)


def _share(name: str, seconds: dict[str, Spent], target: float | None) -> Finding:
    one, other = seconds["detect"], seconds[name]
    return Finding(
        f"Protected by {name}, 20 AND queries, 3 private patterns",
        "of the speed of detect",
        one.elapsed / other.elapsed,
        one.processor / other.processor,
        target,
        seconds={"detect": one, name: other},
    )


def planning(setting: Setting) -> Iterator[Finding]:
    """Measure planning for 1000 queries, 100 private patterns and 100,000 windows."""
    random = np.random.default_rng(5)
    windows = setting.scale.events // 200
    costs = {}
    for queries, rows in ((1000, windows), (500, windows), (1000, windows // 2)):
        spec = _large(np.random.default_rng(4), queries, 100)
        rates = random.uniform(0.05, 0.9, len(spec.types))
        history = np.random.default_rng(6).random((rows, len(rates))) < rates
        for name in ("uniform", "adaptive", "optimal"):
            statistics, counted = timed(partial(compute_statistics, spec, history))
            made = timed(partial(make_plan, spec, statistics, name))[1]
            costs[name, queries, rows] = Spent(
                counted.elapsed + made.elapsed, counted.processor + made.processor
            )
    for name in ("uniform", "adaptive", "optimal"):
        whole = costs[name, 1000, windows]
        yield Finding(
            f"Planning {name}: 1000 queries, 100 private patterns, {windows:,} windows",
            "seconds of one core",
            whole.processor,
            None,
            60,
            "at most",
            "s",
        )
        for label, half in (("queries", (500, windows)), ("windows", (1000, windows // 2))):
            less = costs[name, *half]
            yield Finding(
                f"Planning {name}: twice the {label}",
                "times the cost",
                whole.processor / less.processor,
                None,
                2.2,
                "at most",
            )


def _large(random: np.random.Generator, queries: int, private: int) -> Specification:
    """Draw random patterns over 300 event types."""
    types = 300

    def pattern(least: int, most: int) -> str:
        chosen = random.choice(types, random.integers(least, most + 1), replace=False)
        return f"AND({', '.join(f'k{n}' for n in sorted(chosen))})"

    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "subject", "time": "time"}},
            "windows": {"size": "1 min"},
            "events": {f"k{n}": {"stream": "events", "where": f"kind = {n}"} for n in range(types)},
            "private": [{"pattern": pattern(3, 5), "epsilon": 1} for _ in range(private)],
            "queries": [
                {"name": f"q{n}", "consumer": "bench", "pattern": pattern(2, 4)}
                for n in range(queries)
            ],
        }
    ).checked()
