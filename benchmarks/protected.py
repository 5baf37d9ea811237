"""Compare protected runs with true ones, and optimal with adaptive for many queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks import data, ours
from benchmarks.jobs import Setting
from benchmarks.measuring import Spent, race, timed
from benchmarks.report import Finding
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.evaluation.measurement import compute_statistics, measure
from tacit.evaluation.synthetic import LARGEST_EPSILON, Shape, draw_data_set
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory.planning import plan_memory
from tacit.privacy.noise import Noise
from tacit.privacy.quality import QualityObjective
from tacit.privacy.randomness import SeededSource
from tacit.spec.specification import Private, Specification

PRIVATE = ("AND(k0, k1, k2)", "AND(k3, k4, k5)", "AND(k6, k7, k8)")
_MEMORY = "optimal with memory"
_TARGETS = {"optimal": 0.6, "uniform": 0.7, _MEMORY: 0.6}


def run(setting: Setting) -> Iterator[Finding]:
    """Measure the share of the speed that is left with protection."""
    plain = ours.specification("AND", data.draw_queries(20, setting.scale.kinds), setting.scale)
    spec = protect(plain)
    table = data.events(setting.scale)
    history = table.slice(0, setting.scale.events // 10)
    statistics = survey(spec, [Input("events", FrameSource(history))], literal=False)
    names = ("optimal", "adaptive", "uniform")
    plans = {name: make_plan(spec, statistics, name, fall_back=False) for name in names}
    runs: dict[str, Callable[[], int]] = {
        "detect": lambda: count_answers(Run(spec, _inputs(table)))
    }
    for name, plan in plans.items():
        runs[name] = partial(_protected, spec, table, plan)
    remembering = _remember(plans["optimal"], spec, table)
    runs[_MEMORY] = partial(_protected, spec, table, remembering)
    outcomes = race(runs, setting.rounds, lambda _, result: result)
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    for name in plans:
        yield _share(name, seconds, _TARGETS.get(name))
    yield _share(_MEMORY, seconds, _TARGETS[_MEMORY], "optimal")
    yield from _grow(spec, remembering, setting)


def _grow(spec: Specification, plan: Plan, setting: Setting) -> Iterator[Finding]:
    """Measure memory with four times the subjects, and as many events."""
    runs: dict[str, Callable[[], int]] = {}
    for name, factor in (("few", 1), ("many", 4)):
        scale = replace(setting.scale, subjects=factor * setting.scale.subjects)
        subjects = tuple(ours.registry(scale, text=False).to_pylist())
        wide = spec.model_copy(update={"subjects": subjects})
        runs[name] = partial(_protected, wide, data.events(scale), plan)
    outcomes = race(runs, setting.rounds, lambda _, result: result)
    one, other = outcomes["few"].spent, outcomes["many"].spent
    yield Finding(
        f"Protected by {_MEMORY}, {4 * setting.scale.subjects:,} subjects",
        f"times the cost of {setting.scale.subjects:,}",
        other.elapsed / one.elapsed,
        other.processor / one.processor,
        4,
        "at most",
        seconds={"few": one, "many": other},
    )
    run = Run(spec, _inputs(data.events(setting.scale)), plan=plan)
    count_answers(run)
    memory, number = run.engine.window_state.memory, setting.scale.subjects
    size = sum(part.nbytes for part in memory.values() if len(part) == number)
    yield Finding(
        f"State of {_MEMORY}",
        "bytes for each subject and component",
        size / number / len(PRIVATE),
        None,
        256,
        "at most",
        "B",
    )


def _remember(plan: Plan, spec: Specification, table: pa.Table) -> Plan:
    """Add memory to a plan, although it is of no use here: events are independent."""
    whole = survey(spec, [Input("events", FrameSource(table))], literal=False)
    (mechanism,) = plan.mechanisms
    assert isinstance(mechanism, Optimal)
    objective = QualityObjective(tuple(query.alpha for query in spec.queries))
    found = plan_memory(mechanism.parts, whole[0], objective, whole[0].policy, {}, always=True)
    assert found is not None
    return replace(plan, mechanisms=(mechanism.add_memory(found),))


def _inputs(table: pa.Table) -> list[Input]:
    return [Input("events", FrameSource(table))]


def _protected(spec: Specification, table: pa.Table, plan: Plan) -> int:
    return count_answers(Run(spec, _inputs(table), plan=plan))


def protect(plain: Specification) -> Specification:
    """Add the private patterns."""
    private = tuple(Private(pattern=pattern, epsilon=Decimal(1)) for pattern in PRIVATE)
    return plain.model_copy(update={"private": private}).checked()


def count_answers(run: Run) -> int:
    """Run, and return how many answers are yes."""
    return sum(int(np.bitwise_count(answers.bits).sum()) for answers in run)


def _share(
    name: str, seconds: dict[str, Spent], target: float | None, rival: str = "detect"
) -> Finding:
    one, other = seconds[rival], seconds[name]
    return Finding(
        f"Protected by {name}, 20 AND queries, 3 private patterns",
        f"of the speed of {rival}",
        one.elapsed / other.elapsed,
        one.processor / other.processor,
        target,
        seconds={rival: one, name: other},
    )


def entangled(setting: Setting) -> Iterator[Finding]:
    """Compare optimal with adaptive for many queries over private patterns that they connect.

    Nearly every window has public events that were never seen together before.
    """
    queries = 1000 if setting.rounds > 2 else 200
    windows = 20_000 if setting.rounds > 2 else 2_000
    shape = Shape(types=40, windows=windows, patterns=queries + 3, targets=queries)
    drawn = draw_data_set(3, shape)
    share = Fraction(2) / Fraction(LARGEST_EPSILON)
    statistics, counted = timed(partial(compute_statistics, drawn.spec, drawn.history))
    found, spent, planned, loaded, sizes = {}, {}, {}, {}, {}
    with TemporaryDirectory() as folder:
        for name in ("adaptive", "optimal"):
            plan, planned[name] = timed(
                partial(make_plan, drawn.spec, statistics, name, share=share, fall_back=False)
            )
            path = Path(folder) / f"{name}.json"
            plan.save(path)
            expected = 0.0 if plan.expected is None else plan.expected.quality  # optimal's at last
            sizes[name] = path.stat().st_size
            read, loaded[name] = timed(partial(Plan.load, path, drawn.spec))
            run = partial(measure, read, drawn.test, Noise(SeededSource(1)))
            run()  # compiles
            counts, spent[name] = timed(run)
            found[name] = counts.total().quality(0.5)
    label = f"{queries} queries that connect 3 private patterns, {windows:,} windows of a subject"
    yield Finding(
        f"Protected by optimal, {label}",
        "of the speed of adaptive",
        spent["adaptive"].elapsed / spent["optimal"].elapsed,
        spent["adaptive"].processor / spent["optimal"].processor,
        0.25,
        seconds=spent,
    )
    yield Finding(
        f"Held-out Q of optimal, {label}",
        "more than adaptive's",
        found["optimal"] - found["adaptive"],
        target=0.0,
        note=f"adaptive {found['adaptive']:.4f}, optimal {found['optimal']:.4f}, which expected"
        f" {expected:.4f}",
    )
    for name in ("adaptive", "optimal"):
        yield Finding(
            f"Planning {name}: {label}",
            "seconds of one core, reading included",
            counted.processor + planned[name].processor,
            None,
            60,
            "at most",
            "s",
            note=f"the plan has {sizes[name] / 1e6:.1f} MB",
        )
        yield Finding(
            f"Loading the plan of {name}",
            "seconds of one core",
            loaded[name].processor,
            None,
            1,
            "at most",
            "s",
        )
