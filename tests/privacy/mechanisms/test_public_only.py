"""Answers for subjects whose limit is reached: from public events and the prior alone."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

from tacit.answers.answers import Answers
from tacit.answers.rows import answer_schema
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.errors import PlanError, PrivacyError
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import Name
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan, plan_without_history
from tacit.privacy.mechanisms.flips import Flips
from tacit.privacy.mechanisms.mechanism import PatternIndex
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.public_only import (
    ContextLookup,
    PublicProtector,
    TableLookup,
)
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.thresholds import LEVELS, add_confusions
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SPEC = """
version: 1
{registry}
streams: {{s: {{subject: who, time: at, unit: us}}}}
windows: {{size: 10 us{slide}}}
decode: {decode}
events:
  a: {{stream: s, where: "kind = 0"}}
  b: {{stream: s, where: "kind = 1"}}
  p: {{stream: s, where: "kind = 2"}}
  q: {{stream: s, where: "kind = 3"}}
  r: {{stream: s, where: "kind = 4"}}
private: [{private}]
queries:
{queries}
"""
KINDS = "abpqr"
PUBLIC = "pqr"
MECHANISMS = ("uniform", "adaptive", "optimal")
WAYS = list(product(MECHANISMS, ("literal", "posterior")))
EVERY_WAY = pytest.mark.parametrize(("mechanism", "decode"), WAYS)
LIMITED = ["pattern: 'AND(a, b)', epsilon: 1, limit: 5 per day"]
QUERIES = ["AND(a, p)", "OR(a, AND(b, NOT q))", "SEQ(a, p, b)", "SEQ(p, q)", "OR(r, AND(a, b))"]


def specification(
    private: list[str] = LIMITED,
    queries: list[str] = QUERIES,
    *,
    decode: str = "posterior",
    subjects: int = 70,
    registry: str | None = None,
    slide: str = "",
) -> Specification:
    lines = [f'  - {{name: q{n}, consumer: c, pattern: "{q}"}}' for n, q in enumerate(queries)]
    return loads(
        SPEC.format(
            registry=registry or f"subjects: {list(range(subjects))}",
            decode=decode,
            slide=slide,
            private=", ".join(f"{{{one}}}" for one in private),
            queries="\n".join(lines),
        )
    )


def sent(windows: list[list[tuple[int, str]]]) -> pl.DataFrame:
    """What each subject sends in the first window, and a tuple without an event to close it."""
    rows = [
        (who, time, KINDS.index(kind))
        for who, window in enumerate(windows)
        for time, kind in window
    ]
    rows = sorted(rows, key=lambda row: row[1])
    return pl.DataFrame([*rows, (0, 9, 9)], schema=["who", "at", "kind"], orient="row")


def history(seed: int, subjects: int = 70, rows: int = 2000, windows: int = 9) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "who": rng.integers(0, subjects, rows),
            "at": np.sort(rng.integers(0, 10 * windows, rows)),
            "kind": rng.choice(7, rows, p=[0.2, 0.1, 0.25, 0.15, 0.1, 0.1, 0.1]),
        }
    )


def inputs(frame: pl.DataFrame) -> list[Input]:
    return [Input("s", FrameSource(frame, "s"))]


def answered(
    spec: Specification, plan: Plan, frame: pl.DataFrame, exhausted: Any, seed: int = 1
) -> list[Answers]:
    """A run in which the limits of some subjects are reached."""
    answer = WindowState.answer

    def told(this: WindowState, closed: ClosedWindows, *_: Any, **_named: Any) -> Answers:
        return answer(this, closed, exhausted)

    with patch.object(WindowState, "answer", told):
        return list(Run(spec, inputs(frame), plan=plan, noise=Noise(SeededSource(seed))))


def planned(spec: Specification, mechanism: str) -> Plan:
    statistics = survey(spec, inputs(history(1)), literal=True)
    return make_plan(spec, statistics, mechanism)


def all_windows(types: str, times: int = 2) -> list[list[tuple[int, str]]]:
    """Every type at any of the times or not."""
    events = [(time, name) for name in types for time in range(times)]
    return [
        [event for event, there in zip(events, chosen, strict=True) if there]
        for chosen in product((False, True), repeat=len(events))
    ]


def tuples(window: list[tuple[int, str]]) -> list[Tuple]:
    return [Tuple(time, frozenset(kind)) for time, kind in window]


def public(window: list[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    return tuple(event for event in window if event[1] in PUBLIC)


@EVERY_WAY
def test_what_public_events_decide_is_answered_exactly_and_the_rest_alike(
    mechanism: str, decode: str
) -> None:
    """All windows of four types at two times: sure if and only if private events cannot matter."""
    queries = ["AND(a, p)", "OR(a, AND(b, NOT q))", "SEQ(a, p)", "SEQ(p, q)", "NOT SEQ(q, b)"]
    windows = all_windows("abpq")
    spec = specification(queries=queries, decode=decode, subjects=len(windows))
    plan = planned(specification(queries=queries, decode=decode), mechanism)
    plan = Plan.from_dict({**plan.to_dict(), "fingerprint": spec.fingerprint}, spec)
    (answers,) = answered(spec, plan, sent(windows), np.ones(len(windows), np.bool_))
    truth = np.array(
        [
            [detect(query, tuples(window)) for window in windows]
            for query in spec.query_patterns.values()
        ]
    )
    groups: dict[Any, list[int]] = {}
    for number, window in enumerate(windows):
        groups.setdefault(public(window), []).append(number)
    sure = np.stack([answers.confidence(n) for n in range(len(queries))], axis=1)[0]
    given = answers.detected[0]
    decided = 0
    for alike in groups.values():
        assert (given[:, alike] == given[:, alike[:1]]).all()
        assert (sure[:, alike] == sure[:, alike[:1]]).all()
        same = (truth[:, alike] == truth[:, alike[:1]]).all(axis=1)
        assert np.array_equal(given[same][:, alike], truth[same][:, alike])
        assert (sure[same][:, alike] == 1).all()
        assert (sure[~same][:, alike] < 1).all()
        decided += int(same.sum())
    assert 0 < decided < len(groups) * len(queries)


RATES = {"a": 0.3, "b": 0.8, "p": 0.5}


@pytest.mark.parametrize(
    ("mechanism", "rates"), [("uniform", {}), ("optimal", {}), ("optimal", RATES)]
)
def test_a_prior_by_hand_tells_how_likely_a_query_is(
    mechanism: str, rates: dict[str, float]
) -> None:
    """Against a sum over all that private events may do; a half for each where nothing is said."""
    queries = ["AND(a, p)", "OR(a, AND(b, NOT q))", "AND(NOT a, b, OR(p, q))", "a"]
    spec = specification(queries=queries, decode="literal", subjects=8)
    plan = plan_without_history(spec, mechanism, rates=rates)
    windows = [
        [(0, name) for name, there in zip(PUBLIC, chosen, strict=True) if there]
        for chosen in product((False, True), repeat=3)
    ]
    (answers,) = answered(spec, plan, sent(windows), np.ones(8, np.bool_))
    for number, query in enumerate(spec.query_patterns.values()):
        for who, window in enumerate(windows):
            likely = 0.0
            for a, b in product((False, True), repeat=2):
                more = [(0, "a")] * a + [(0, "b")] * b
                chance = (rates.get("a", 0.5) if a else 1 - rates.get("a", 0.5)) * (
                    rates.get("b", 0.5) if b else 1 - rates.get("b", 0.5)
                )
                likely += chance * detect(query, tuples([*window, *more]))
            yes = bool(answers.detected[0, number, who])
            assert answers.confidence(number)[0, who] == pytest.approx(
                likely if yes else 1 - likely
            )
            if abs(likely - 0.5) > 1e-9:
                assert yes == (likely >= 0.5)


@pytest.mark.cases(2)
@EVERY_WAY
def test_history_tells_how_likely_a_query_is(mechanism: str, decode: str) -> None:
    """In a context that was met often, about as likely as it was true there."""
    spec = specification(queries=["AND(a, p)", "SEQ(p, a)"], decode=decode)
    plan = planned(spec, mechanism)
    answers = answered(spec, plan, history(1), np.ones(70, np.bool_))
    true = np.concatenate([part.detected for part in Run(spec, inputs(history(1)))])
    given = np.concatenate([part.detected for part in answers])
    for query in range(2):
        sure = np.concatenate([part.confidence(query) for part in answers])
        likely = np.where(given[:, query], sure, 1 - sure)
        met = likely > 0  # there is a p
        assert 0.3 < met.mean() < 1
        share = true[:, query][met].mean()
        assert np.allclose(likely[met], share, atol=0.03)
        assert not true[:, query][~met].any()


@EVERY_WAY
def test_only_those_whose_limit_is_reached_get_public_answers(mechanism: str, decode: str) -> None:
    """The others' answers are drawn; the column says who is who, also where rows are cut."""
    spec = specification([*LIMITED, "pattern: r, epsilon: 2, subjects: [3, 64, 65]"], decode=decode)
    plan = planned(spec, mechanism)
    exhausted = np.zeros(70, np.bool_)
    exhausted[[0, 3, 7, 64, 69]] = True
    one, two = (answered(spec, plan, history(2), exhausted, seed) for seed in (1, 2))
    first, second = (np.concatenate([part.detected for part in parts]) for parts in (one, two))
    assert np.array_equal(first[..., exhausted], second[..., exhausted])
    drawn, again = (
        [part.confidence(query) for part in parts for query in range(len(part.queries))]
        for parts in (one, two)
    )
    assert not all(
        np.array_equal(x[:, ~exhausted], y[:, ~exhausted])
        for x, y in zip(drawn, again, strict=True)
    )
    table = pl.concat([pl.DataFrame(part.table()) for part in one])
    assert table.columns[6:] == ["confidence", "exhausted", "private"]
    reached = table.filter("exhausted")["subject"].unique().sort().to_list()
    assert reached == ["0", "3", "64", "69", "7"]
    with patch("tacit.answers.rows.MOST_ROWS", 300):
        cut = pl.concat([pl.DataFrame(part.table()) for part in one])
    assert cut.equals(table)


@pytest.mark.cases(3)
@EVERY_WAY
def test_where_nobody_is_exhausted_all_is_as_without_limits(mechanism: str, decode: str) -> None:
    spec = specification(decode=decode)
    plan = planned(spec, mechanism)
    with (
        patch.object(TableLookup, "answer", side_effect=AssertionError),
        patch.object(ContextLookup, "answer", side_effect=AssertionError),
    ):
        nobody = answered(spec, plan, history(2), np.zeros(70, np.bool_))
    bare = list(Run(spec, inputs(history(2)), plan=plan, noise=Noise(SeededSource(1))))
    for one, other in zip(nobody, bare, strict=True):
        assert np.array_equal(one.bits, other.bits)
        assert one.table().drop_columns("exhausted").equals(other.table())
        assert not one.table()["exhausted"].to_numpy().any()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_answering_past_a_limit_costs_no_more_matching(mechanism: str) -> None:
    """All that it asks for is asked for anyway."""
    spec = specification()
    plan = planned(spec, mechanism)
    limited = ProtectedEvaluator(spec, plan.mechanisms, Noise())
    free = spec.model_copy(
        update={"private": tuple(p.model_copy(update={"limit": None}) for p in spec.private)}
    )
    without = ProtectedEvaluator(free, plan.mechanisms, Noise())
    assert len(limited.public_only) == 1
    assert without.public_only == []
    assert limited._matched.matcher.conditional == without._matched.matcher.conditional
    one, other = (r._matched.matcher for r in (limited, without))
    assert np.array_equal(one.ordered_types, other.ordered_types)


def test_learned_subjects_get_public_answers_in_the_order_of_answers() -> None:
    spec = specification(registry="subjects: {learn: 30 us}")
    plan = planned(spec, "optimal")
    frame = history(2).sort("at", "who", descending=[False, True])
    exhausted = np.arange(70) % 3 == 0
    parts = answered(spec, plan, frame, exhausted)
    names = frame["who"].unique(maintain_order=True).to_list()  # slots, as they were heard of
    tired = sorted(str(name) for slot, name in enumerate(names) if exhausted[slot])
    for part in parts:
        table = pl.DataFrame(part.table())
        assert table.filter("exhausted")["subject"].unique().sort().to_list() == tired
        assert table["subject"].unique(maintain_order=True).is_sorted()


def test_nobody_can_be_exhausted_where_there_is_no_limit() -> None:
    spec = specification(["pattern: a, epsilon: 1"])
    plan = planned(spec, "optimal")
    with pytest.raises(PrivacyError, match="no private pattern has a limit"):
        answered(spec, plan, history(2), np.ones(70, np.bool_))


def test_what_asks_for_a_private_event_past_a_limit_cannot_be_made() -> None:
    class Curious(PublicProtector):
        def answer(self, *_: Any) -> Any:
            """Nothing."""

    assert Curious([Name("p")], {"a"}, PatternIndex()).inputs == (Name("p"),)
    with pytest.raises(PrivacyError, match="public events alone"):
        Curious([Name("p"), Name("a")], {"a"}, PatternIndex())


@pytest.mark.cases(3)
@EVERY_WAY
def test_a_plan_is_read_as_it_was_written(mechanism: str, decode: str, tmp_path: Path) -> None:
    spec = specification(decode=decode)
    plan = planned(spec, mechanism)
    plan.save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json", spec)
    assert plan.past is not None
    assert read.past is not None
    assert read.past.rows() == plan.past.rows()
    exhausted = np.ones(70, np.bool_)
    for one, other in zip(
        answered(spec, plan, history(2), exhausted),
        answered(spec, read, history(2), exhausted),
        strict=True,
    ):
        assert one.table().equals(other.table())


def test_a_plan_from_before_limits_has_a_prior_of_one_half(tmp_path: Path) -> None:
    spec = specification()
    plain = json.loads(json.dumps(planned(spec, "uniform").to_dict()))
    del plain["past"], plain["schemes"][0]["alone"]
    read = Plan.from_dict(plain, spec)
    assert read.past is None
    (scheme,) = read.mechanisms
    assert isinstance(scheme, Flips)
    for part, likely in zip(scheme.affected, scheme.public.likely, strict=True):
        assert np.array_equal(likely, np.where(part.decided < 0, 0.5, part.decided))


@pytest.mark.parametrize("spoil", [lambda t: t[:-1], lambda t: [2.0] * len(t), lambda _: None])
def test_a_plan_with_a_damaged_prior_is_refused(spoil: Any) -> None:
    spec = specification()
    plain = json.loads(json.dumps(planned(spec, "uniform").to_dict()))
    tables = plain["schemes"][0]["alone"]
    tables["0"] = spoil(tables["0"])
    with pytest.raises(PlanError):
        Plan.from_dict(plain, spec)


def test_a_plan_cannot_unsay_what_public_events_decide() -> None:
    spec = specification()
    plain = json.loads(json.dumps(planned(spec, "uniform").to_dict()))
    tables = plain["schemes"][0]["alone"]
    plain["schemes"][0]["alone"] = {query: [0.25] * len(t) for query, t in tables.items()}
    (scheme,) = Plan.from_dict(plain, spec).mechanisms
    assert isinstance(scheme, Flips)
    for part, likely in zip(scheme.affected, scheme.public.likely, strict=True):
        assert np.array_equal(likely, np.where(part.decided < 0, 0.25, part.decided))


@pytest.mark.cases(3)
@EVERY_WAY
def test_a_plan_says_what_to_expect_past_a_limit(mechanism: str, decode: str) -> None:
    """What comes of the history itself, if everybody's limit is reached there."""
    queries = [*QUERIES, "AND(a, b, NOT q)", "OR(AND(a, p), AND(b, q))"]
    spec = specification(
        [*LIMITED, "pattern: r, epsilon: 2, limit: 8 per hour"], queries, decode=decode
    )
    statistics = survey(spec, inputs(history(1)), literal=True)
    plan = make_plan(spec, statistics, mechanism)
    true = np.concatenate([part.detected for part in Run(spec, inputs(history(1)))])
    given = np.concatenate(
        [p.detected for p in answered(spec, plan, history(1), np.ones(70, np.bool_))]
    )
    found = add_confusions(
        [
            planned.public_only.expect(own)
            for planned, own in zip(plan.mechanisms, statistics, strict=True)
        ]
    )
    for got, expected in (
        ((true & given).sum(axis=(0, 2)), found.tp),
        ((~true & given).sum(axis=(0, 2)), found.fp),
        ((true & ~given).sum(axis=(0, 2)), found.fn),
    ):
        # Components count as independent, which matters for optimal.
        assert np.allclose(got, expected, atol=25 if mechanism == "optimal" else 1e-6)
    # The plan's own figures are for held-out windows.
    assert plan.past is not None
    past = plan.past.confusion
    assert past.tp + past.fn == pytest.approx(true.sum(axis=(0, 2)))
    assert past.total().quality(0.5) == pytest.approx(found.total().quality(0.5), abs=0.1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_past_a_limit_a_query_has_the_threshold_that_is_best_there(mechanism: str) -> None:
    """A threshold that is best with epsilon 2 claims nothing without a symbol."""
    rng = np.random.default_rng(1)
    public = rng.random((60, 70)) < 0.2
    private = rng.random((60, 70)) < np.where(public, 0.5, 0.05)
    windows, who = (np.tile(n.ravel(), 2) for n in np.indices(public.shape))
    kinds = np.repeat([KINDS.index("p"), KINDS.index("a")], public.size)
    frame = pl.DataFrame({"who": who, "at": 10 * windows + kinds, "kind": kinds})
    frame = frame.filter(np.concatenate([public.ravel(), private.ravel()])).sort("at")
    spec = specification(
        ["pattern: a, epsilon: 2, limit: 5 per day"], ["AND(a, p)", "AND(a, NOT p)"]
    ).model_copy(update={"memory": False})
    (own,) = survey(spec, inputs(frame), literal=False)
    (scheme,) = make_plan(spec, [own], mechanism).mechanisms
    assert isinstance(scheme, Flips | Optimal)
    counts = scheme.public_only.count_posteriors(own)
    best = max(counts.confusion(np.full(2, one)).total().quality(0.5) for one in LEVELS[1:])
    assert best > 0.5
    assert scheme.expect_public_only(own).total().quality(0.5) == pytest.approx(best, abs=0.01)
    assert counts.confusion(scheme.thresholds).total().quality(0.5) < 0.1
    (read,) = Plan.from_dict(make_plan(spec, [own], mechanism).to_dict(), spec).mechanisms
    assert isinstance(read, Flips | Optimal)
    assert np.array_equal(read.public_only.thresholds, scheme.public_only.thresholds)


def test_without_limits_a_plan_says_nothing_about_them() -> None:
    assert planned(specification(["pattern: a, epsilon: 1"]), "optimal").past is None


def test_the_columns_of_answers_say_it_only_where_there_are_limits() -> None:
    assert answer_schema(protected=True).names[6:] == ["confidence"]
    assert answer_schema(protected=True, limited=True).names[6:] == ["confidence", "exhausted"]
    assert answer_schema(limited=True).names[6:] == []


def test_many_queries_over_many_contexts_of_many_subjects() -> None:
    """More than 64 parts in a component, and queries that split over components."""
    texts = ["AND(a, p)", "OR(a, AND(b, NOT q))", "AND(a, b, NOT q)", "OR(AND(a, p), r)"] * 17
    private = [*LIMITED, "pattern: r, epsilon: 1, limit: 2 per day"]
    queries = [*texts, "AND(OR(a, b), OR(r, p))", "AND(a, r)", "q"]
    spec = specification(private, queries)
    with patch("tacit.privacy.components.MOST_JOINED", 0):
        plan = planned(spec, "optimal")
        (scheme,) = plan.mechanisms
        assert isinstance(scheme, Optimal)
        assert any(len(question.parts) > 1 for question in scheme.exposure.questions)
        exhausted = np.arange(70) % 2 == 0
        parts = answered(spec, plan, history(3), exhausted)
    for part in parts:
        sure = [part.confidence(n)[:, exhausted] for n in range(len(queries))]
        yes = [part.detected[:, n][:, exhausted] for n in range(len(queries))]
        likely = np.where(yes, sure, 1 - np.array(sure))
        for query in range(4):  # the same query is equally likely; thresholds may differ
            assert np.allclose(likely[query:68:4], likely[query])
        # AND(a, r) is as likely as both together, if they are told apart.
        assert ((likely[69] > 0) & (likely[69] < 0.5)).all()
        assert (sure[70] == 1).all()


@EVERY_WAY
def test_sliding_windows_of_exhausted_subjects_do_not_depend_on_private_events(
    mechanism: str, decode: str
) -> None:
    """Their private events are all replaced; the others' answers go on being drawn."""
    spec = specification(decode=decode, slide=", slide: 5 us")
    plan = planned(spec, mechanism)
    exhausted = np.arange(70) % 2 == 0
    frame = history(2)
    rng = np.random.default_rng(7)
    # Tuples of private events come all the same, as another private event or as none.
    other = rng.choice([0, 1, 5], len(frame))
    changed = frame.with_columns(
        kind=pl.when((pl.col("kind") < 2) & (pl.col("who") % 2 == 0))
        .then(pl.Series(other))
        .otherwise(pl.col("kind"))
    )
    one, two = (answered(spec, plan, given, exhausted) for given in (frame, changed))
    tables = [pl.concat([pl.DataFrame(part.table()) for part in parts]) for parts in (one, two)]
    first, second = (table.filter("exhausted") for table in tables)
    assert first.equals(second)
    assert not first.is_empty()
    assert first["confidence"].n_unique() > 3
