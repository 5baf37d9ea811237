"""Protected answers of subjects with different policies, and of queries over several streams."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

from tacit.answers.answers import Answers
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.errors import SpecificationError
from tacit.events.subjects import Subjects
from tacit.patterns.reference import Tuple, detect
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan, plan_without_history
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SPEC = """
version: 1
{registry}
streams:
  s: {{subject: who, time: at, unit: us}}
  t: {{subject: who, time: at, unit: us}}
windows: {{size: 10 us}}
events:
  a: {{stream: s, where: "kind = 0"}}
  x: {{stream: s, where: "kind = 1"}}
  b: {{stream: t, where: "kind = 0"}}
  y: {{stream: t, where: "kind = 1"}}
private: [{private}]
queries:
{queries}
"""
WAYS = list(product(("uniform", "adaptive", "optimal"), ("literal", "posterior")))
EVERY_WAY = pytest.mark.parametrize(("mechanism", "decode"), WAYS)


def specification(private: list[str], queries: list[str], *, listed: bool = True) -> Specification:
    """With a registry of 70 subjects, or without one."""
    lines = [f'  - {{name: q{n}, consumer: c, pattern: "{q}"}}' for n, q in enumerate(queries)]
    return loads(
        SPEC.format(
            registry=f"subjects: {list(range(70))}" if listed else "",
            private=", ".join(f"{{{one}}}" for one in private),
            queries="\n".join(lines),
        )
    )


def frame(seed: int, subjects: int = 70, rows: int = 900, windows: int = 6) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "who": rng.integers(0, subjects, rows),
            "at": np.sort(rng.integers(0, 10 * windows, rows)),
            "kind": rng.integers(0, 3, rows),
            "v": rng.integers(0, 3, rows).astype(np.float64),
            "w": rng.integers(0, 3, rows).astype(np.float64),
        }
    )


def inputs(s: pl.DataFrame, t: pl.DataFrame) -> list[Input]:
    return [Input("s", FrameSource(s, "s")), Input("t", FrameSource(t, "t"))]


SURVEYS: dict[str, list[Statistics]] = {}


def plan_from(spec: Specification, mechanism: str, decode: str) -> Plan:
    """A plan from the history that all tests share; it is surveyed once for a specification."""
    key = spec.fingerprint
    if key not in SURVEYS:
        SURVEYS[key] = survey(spec, inputs(frame(1), frame(2)), literal=True)
    return make_plan(spec, SURVEYS[key], mechanism, decode)


def answer(spec: Specification, plan: Plan, seed: int = 1) -> list[Answers]:
    """Protected answers about the same tuples."""
    given = inputs(frame(1), frame(2))
    return list(Run(spec, given, plan=plan, noise=Noise(SeededSource(seed))))


def protected_and_true(
    spec: Specification, mechanism: str, decode: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers, their confidence and the truth, `[window][query][subject]`."""
    given = inputs(frame(1), frame(2))
    parts = answer(spec, plan_from(spec, mechanism, decode))
    sure = [
        np.stack([part.confidence(n) for n in range(len(spec.queries))], axis=1) for part in parts
    ]
    truth = [part.detected for part in Run(spec, given)]
    return np.concatenate([p.detected for p in parts]), np.concatenate(sure), np.concatenate(truth)


QUERIES = ["AND(a, x)", "SEQ(b, y)", "AND(a, b)", "OR(AND(x, y), NOT a)", "x"]


@pytest.mark.cases(3)
@EVERY_WAY
def test_each_subject_is_answered_by_its_own_policy(mechanism: str, decode: str) -> None:
    """Nothing private: exact. Private x: exact but where x matters. All private: never sure."""
    spec = specification(
        [
            "pattern: x, epsilon: 1, subjects: [0, 5, 64, 69]",
            "pattern: y, epsilon: 0.5, subjects: [5, 66]",
        ],
        QUERIES,
    )
    answers, sure, truth = protected_and_true(spec, mechanism, decode)
    open_ = [n for n in range(70) if n not in (0, 5, 64, 66, 69)]
    assert np.array_equal(answers[..., open_], truth[..., open_])
    assert (sure[..., open_] == 1).all()
    assert np.array_equal(answers[:, 2], truth[:, 2])
    for who, exact in ((0, [1]), (66, [0, 4]), (69, [1])):
        assert np.array_equal(answers[:, exact, who], truth[:, exact, who])
        assert (sure[:, exact, who] == 1).all()
    assert (sure[:, 4, [0, 5, 64, 69]] < 0.95).all()
    assert (answers[:, 4, [0, 5, 64, 69]] != truth[:, 4, [0, 5, 64, 69]]).any()


def test_an_engine_gives_no_window_while_somebody_who_is_named_is_missing() -> None:
    """For every kind of registry, and for engines that are used directly."""
    spec = specification(["pattern: x, epsilon: 1, subjects: [900]"], ["AND(a, x)"], listed=False)
    evaluator = ProtectedEvaluator(spec, plan_without_history(spec, "uniform").mechanisms, Noise())
    registry = Subjects()
    registry.add([str(who) for who in range(70)])
    engine = Engine(CompiledSpec(spec, evaluator), registry)
    rows = Rows("s", frame(1).to_arrow().combine_chunks().to_batches()[0])
    with pytest.raises(SpecificationError, match="'900'"):
        next(engine.push(rows))
    with pytest.raises(SpecificationError, match="'900'"):
        next(engine.finish())


@EVERY_WAY
def test_decided_answers_are_exact_and_sure(mechanism: str, decode: str) -> None:
    """Without an a, AND(a, x) is false whatever x does; nobody has to guess."""
    spec = specification(["pattern: x, epsilon: 0.1"], ["AND(a, x)", "a", "OR(a, SEQ(b, x))"])
    answers, sure, truth = protected_and_true(spec, mechanism, decode)
    absent = ~truth[:, 1]
    assert not answers[:, 0][absent].any()
    assert (sure[:, 0][absent] == 1).all()
    assert answers[:, 2][~absent].all()
    assert (sure[:, 2][~absent] == 1).all()


@EVERY_WAY
def test_a_query_without_anything_public_has_one_context(mechanism: str, decode: str) -> None:
    spec = specification(["pattern: x, epsilon: 3"], ["x", "NOT x"])
    answers, sure, _ = protected_and_true(spec, mechanism, decode)
    assert len(np.unique(sure.round(9))) <= 4
    assert answers.shape == (6, 2, 70)


@pytest.mark.cases(3)
@EVERY_WAY
def test_with_a_huge_epsilon_answers_are_the_truth(mechanism: str, decode: str) -> None:
    """For more than 64 queries of presence, and more than 64 subjects."""
    texts = ["AND(a, x)", "OR(x, AND(b, y))", "NOT AND(x, y)", "AND(x, NOT y, b)"]
    spec = specification(["pattern: 'AND(x, y)', epsilon: 60"], (texts * 17)[:67])
    answers, sure, truth = protected_and_true(spec, mechanism, decode)
    assert np.array_equal(answers, truth)
    assert (sure > 0.8).all()


@pytest.mark.cases(2)
@EVERY_WAY
def test_confidence_is_the_same_however_rows_are_cut(
    mechanism: str, decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specification(
        ["pattern: 'AND(x, y)', epsilon: 1", "pattern: b, epsilon: 2, subjects: [3, 65, 66]"],
        QUERIES,
    )
    parts = answer(spec, plan_from(spec, mechanism, decode))
    whole = pl.concat([pl.DataFrame(part.table()) for part in parts])
    for rows in (1, 300):
        monkeypatch.setattr("tacit.answers.rows.MOST_ROWS", rows)
        cut = pl.concat([pl.DataFrame(part.table()) for part in parts])
        assert cut.equals(whole)


def test_answers_come_again_with_the_same_seed_and_not_with_another() -> None:
    spec = specification(["pattern: 'AND(x, y)', epsilon: 1"], QUERIES)
    for mechanism, decode in WAYS:
        plan = plan_from(spec, mechanism, decode)
        first, again, other = (
            np.concatenate([part.detected for part in answer(spec, plan, seed)])
            for seed in (1, 1, 2)
        )
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


# Conditions over two streams: t's attributes are compared, or not; s's as well, or not.
CONDITIONS = [
    "SEQ(a p, b) WHERE p.v > 0",
    "SEQ(a, b q) WHERE q.w > 0",
    "SEQ(a p, b q) WHERE p.v > q.w",
    "NOT (AND(a, b q) WHERE q.w > 0)",
    "SEQ(a p, NOT b) WHERE p.v > 0",
]


def true_windows(
    s: pl.DataFrame, t: pl.DataFrame, subjects: int
) -> dict[tuple[int, int], list[Tuple]]:
    windows: dict[tuple[int, int], list[Tuple]] = {
        (window, who): [] for window in range(6) for who in range(subjects)
    }
    for given, names in ((s, ("a", "x")), (t, ("b", "y"))):
        for row in given.iter_rows(named=True):
            kinds = frozenset(names[row["kind"] : row["kind"] + 1])
            windows[row["at"] // 10, row["who"]].append(Tuple(row["at"], kinds, row))
    return windows


@pytest.mark.cases(1)
@pytest.mark.parametrize("silent", ["neither", "s", "t"])
def test_conditions_over_two_streams_are_met_as_the_reference_says(silent: str) -> None:
    """Also where one of them has sent nothing, or only what no condition looks at."""
    spec = specification([], CONDITIONS)
    s, t = frame(3), frame(4)
    if silent == "s":
        s = s.with_columns(kind=pl.lit(2, pl.Int64)).filter(pl.col("at").is_in([0, 59]))
    if silent == "t":
        t = t.clear()
    windows = true_windows(s, t, 70)
    patterns = list(spec.query_patterns.values())
    found = np.concatenate([part.detected for part in Run(spec, inputs(s, t))])
    expected = np.array(
        [
            [[detect(p, windows[window, who]) for who in range(70)] for p in patterns]
            for window in range(6)
        ]
    )
    assert np.array_equal(found, expected)
    assert expected.any()


@pytest.mark.cases(3)
@EVERY_WAY
def test_conditions_are_protected_over_two_streams(mechanism: str, decode: str) -> None:
    """A plan from history with both, and a run in which one of the streams sends nothing."""
    spec = specification(["pattern: 'OR(a, y)', epsilon: 1"], CONDITIONS)
    plan = plan_from(spec, mechanism, decode)
    for second in (frame(4), frame(4).clear()):
        given = inputs(frame(3), second)
        parts = list(Run(spec, given, plan=plan, noise=Noise(SeededSource(1))))
        rows = pl.concat([pl.DataFrame(part.table()) for part in parts])
        assert len(rows) == 6 * 70 * len(CONDITIONS)
        assert rows["confidence"].is_between(0, 1).all()
