"""Subjects that occur too late to be learned: whether they occur changes nothing for the others."""

from __future__ import annotations

from random import Random

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.planner import make_plan
from tacit.planning.survey import assume_statistics
from tacit.privacy.mechanisms.optimal import new_contexts
from tacit.privacy.policies import Policies
from tacit.spec.yaml_reader import loads
from tests.differential.draws import FixedNoise, fixed_draws
from tests.privacy.memories import with_memory

PUBLIC = [f"s{number}" for number in range(5)]
SPEC = f"""
subjects: {{learn: 20 s}}
streams: {{p: {{subject: who, time: at}}}}
windows: {{size: 10 s}}
events: {{{", ".join(f"{kind}: {{stream: p, where: kind = '{kind}'}}" for kind in "ab")},
  {", ".join(f"{kind}: {{stream: p, where: kind = '{kind}'}}" for kind in PUBLIC)}}}
private: [{{pattern: "AND(a, b)", epsilon: 1}}]
queries:
  - {{name: q0, consumer: c, pattern: "OR(AND(a, s0), AND(b, s1))"}}
  - {{name: q1, consumer: c, pattern: "OR(AND(b, s2), AND(a, s3, s4))"}}
  - {{name: q2, consumer: c, pattern: "AND(a, b, OR(s0, s3))"}}
"""


def sent(late: bool) -> pl.DataFrame:
    """What two learned subjects send, each window with `s0`; another one sends something private.

    Its tuple comes in the batch that others are learned from, so it has a slot.
    """
    rng = Random(3)
    rows = [
        (who, 10.0 * window + rng.random() * 9, kind)
        for window in range(30)
        for who in ("x", "y")
        for kind in PUBLIC
        if kind == "s0" or rng.random() < 0.5
    ]
    rows += [("late", 51.0, "a")] * late
    return pl.DataFrame(rows, schema=["who", "at", "kind"], orient="row").sort("at")


def told(late: bool, *, memory: bool) -> tuple[bytes, bytes]:
    """All answers and confidences, with draws that depend on their positions alone."""
    spec = loads(SPEC)
    queries = tuple(spec.query_patterns.values())
    known = [assume_statistics(policy, queries, {}, 1) for policy in Policies(spec).policies]
    plan = make_plan(spec, known, "optimal", "posterior")
    if memory:
        plan = with_memory(plan, 1)
    run = Run(spec, [Input("p", FrameSource(sent(late), "p"))], plan=plan, noise=FixedNoise())
    with fixed_draws():
        parts = list(run)
    assert run.engine.subjects.names.to_pylist()[:2] == ["x", "y"]
    assert len(run.engine.subjects) == 2 + late
    assert run.engine.window_state.registered.to_pylist() == ["x", "y"]
    sure = [np.stack([part.confidence(query) for query in range(3)]).tobytes() for part in parts]
    return b"".join(part.detected.tobytes() for part in parts), b"".join(sure)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("budget", [1.0, 2.0, 4.0])
def test_a_subject_that_is_not_registered_uses_up_no_budget_for_new_contexts(
    monkeypatch: pytest.MonkeyPatch, budget: float, *, memory: bool
) -> None:
    """Nobody registered is ever without public events, so its context would be a new one."""
    monkeypatch.setattr(new_contexts, "_FIRST", budget)
    monkeypatch.setattr(new_contexts, "_PER_WINDOW", 1 / 16)
    assert told(late=False, memory=memory) == told(late=True, memory=memory)
