"""A plan of the version before, in which contexts with many classes had shares of epsilon.

`written_before/optimal.plan.json` was made by that version from a small history. It has one
threshold for all queries, no book, and tables for each context.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.errors import PlanError, PrivacyError
from tacit.insight.audit import audit
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.yaml_reader import loads

SPEC = loads("""
version: 1
subjects: ["0", "1", "2", "3", "4", "5", "6", "7"]
streams: {s: {subject: who, time: at, unit: us}}
windows: {size: 10 us}
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
  u: {stream: s, where: "kind = 2"}
  v: {stream: s, where: "kind = 3"}
  w: {stream: s, where: "kind = 4"}
  x: {stream: s, where: "kind = 5"}
  y: {stream: s, where: "kind = 6"}
  z: {stream: s, where: "kind = 7"}
private:
  - {pattern: "OR(u, v, w, x, y)", epsilon: 2.5, limit: 1000 per day}
  - {pattern: z, epsilon: 0.7}
queries:
  - {name: q0, consumer: c, pattern: "AND(a, u)"}
  - {name: q1, consumer: c, pattern: "AND(a, v)"}
  - {name: q2, consumer: c, pattern: "AND(a, w)"}
  - {name: q3, consumer: c, pattern: "OR(AND(a, x), AND(b, y))"}
  - {name: q4, consumer: c, pattern: "AND(b, z)"}
  - {name: q5, consumer: c, pattern: "AND(a, b)"}
  - {name: q6, consumer: c, pattern: "AND(a, y)"}
""")
WRITTEN = Path(__file__).parent / "written_before" / "optimal.plan.json"


def written() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(WRITTEN.read_text("utf-8"))
    return plain


def inputs() -> list[Input]:
    rng = np.random.default_rng(2)
    frame = pl.DataFrame(
        {
            "who": [str(number) for number in rng.integers(0, 8, 900)],
            "at": np.sort(rng.integers(0, 400, 900)),
            "kind": rng.integers(0, 9, 900),
        }
    )
    return [Input("s", FrameSource(frame, "s"))]


def answers(plan: Plan) -> list[tuple[bytes, bytes]]:
    noise = Noise(SeededSource(5))
    queries = range(len(plan.spec.queries))
    return [
        (part.bits.tobytes(), np.stack([part.confidence(q) for q in queries]).tobytes())
        for part in Run(plan.spec, inputs(), plan=plan, noise=noise)
    ]


def test_an_old_plan_is_read_audited_and_used() -> None:
    """Contexts with few classes keep their channels; a book is designed for the others."""
    plain = written()
    assert all("book" not in part for part in plain["schemes"][0]["components"])
    assert max(len(c["tables"]) for c in plain["schemes"][0]["components"][0]["contexts"]) > 1
    plan = Plan.from_dict(plain, SPEC)
    assert audit(WRITTEN).passed
    assert audit(plan).passed
    (scheme,) = plan.mechanisms
    assert isinstance(scheme, Optimal)
    assert scheme.thresholds.tolist() == [plain["schemes"][0]["threshold"]] * len(plan.spec.queries)
    for part, planned, prior in zip(
        plain["schemes"][0]["components"], scheme.planned, scheme.priors, strict=True
    ):
        kept = 0
        for context in part["contexts"]:
            found = planned.get(bytes.fromhex(context["signals"]))
            if found is None:
                assert len(context["tables"]) > 1
                continue
            kept += 1
            tables = [
                [[str(entry) for entry in row] for row in design.channel.table.tolist()]
                for _, design in found.blocks
            ]
            assert tables == context["tables"]
        assert kept == len(planned) > 0
        assert prior.leaves_only
    windows = len(answers(plan))
    assert windows > 0


def test_an_old_plan_that_is_written_again_gives_the_same_answers() -> None:
    old = Plan.from_dict(written(), SPEC)
    again = Plan.from_dict(json.loads(json.dumps(old.to_dict())), SPEC)
    assert again.to_dict() == old.to_dict()
    assert answers(again) == answers(old)


def test_a_table_of_an_old_plan_that_was_tampered_with_is_refused() -> None:
    plain = deepcopy(written())
    (context,) = (
        one for one in plain["schemes"][0]["components"][0]["contexts"] if len(one["tables"]) == 1
    )
    (table,) = context["tables"]
    total = sum(int(entry) for entry in table[0])
    for number, row in enumerate(table):
        row[:] = [str(total) if n == number else "0" for n in range(len(table))]
    with pytest.raises((PlanError, PrivacyError)):
        Plan.from_dict(plain, SPEC)


def test_an_old_plan_for_queries_over_several_components_is_refused_and_says_what_to_do() -> None:
    """Which of their parts are open is now decided across components."""
    path = WRITTEN.with_name("several_components.plan.json")
    spec = loads("""
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events:
  a: {stream: s, where: "a"}
  b: {stream: s, where: "b"}
  u: {stream: s, where: "u"}
  v: {stream: s, where: "v"}
  w: {stream: s, where: "w"}
  x: {stream: s, where: "x"}
  y: {stream: s, where: "y"}
  z: {stream: s, where: "z"}
private:
  - {pattern: "AND(u, v, w)", epsilon: 2}
  - {pattern: "AND(x, y, z)", epsilon: 1.5}
queries:
  - {name: q0, consumer: c, pattern: "AND(a, u, x)"}
  - {name: q1, consumer: c, pattern: "OR(AND(a, v), AND(b, y))"}
  - {name: q2, consumer: c, pattern: "OR(AND(a, w), z)"}
  - {name: q3, consumer: c, pattern: "AND(u, v, OR(b, w))"}
  - {name: q4, consumer: c, pattern: "AND(OR(a, x), OR(b, u))"}
""")
    for read in (spec, None):
        with pytest.raises(PlanError, match="make a new"):
            Plan.load(path, read)
