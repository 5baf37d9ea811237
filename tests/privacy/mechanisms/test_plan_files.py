"""Schemes as data: written, read, the same; and damaged ones refused."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.errors import PlanError, PrivacyError
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import read_mechanism, write_mechanism
from tacit.planning.planner import make_plan, plan_without_history
from tacit.privacy.channel_audit import largest_ratio
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.mechanisms.optimal import mechanism as mechanism_module
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.noise import Noise
from tacit.privacy.policies import Policies, Policy
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.yaml_reader import loads

SPEC = loads("""
version: 1
streams: {s: {subject: who, time: at, unit: us}}
windows: {size: 10 us}
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
  x: {stream: s, where: "kind = 2"}
  y: {stream: s, where: "kind = 3"}
  z: {stream: s, where: "kind = 4"}
private:
  - {pattern: "AND(x, y)", epsilon: 1.5}
  - {pattern: z, epsilon: 0.7}
queries:
  - {name: q0, consumer: c, pattern: "AND(a, x)"}
  - {name: q1, consumer: c, pattern: "OR(AND(b, y), SEQ(a, x))"}
  - {name: q2, consumer: c, pattern: "AND(b, SEQ(a, z))"}
  - {name: q3, consumer: c, pattern: "a"}
""")
QUERIES = tuple(SPEC.query_patterns.values())
(POLICY,) = Policies(SPEC).policies
WAYS = list(product(("uniform", "adaptive", "optimal"), ("literal", "posterior")))
EVERY_WAY = pytest.mark.parametrize(("mechanism", "decode"), WAYS)


def frame(seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "who": rng.integers(0, 20, 3000),
            "at": np.sort(rng.integers(0, 500, 3000)),
            "kind": rng.integers(0, 6, 3000),
        }
    )


def inputs(seed: int) -> list[Input]:
    return [Input("s", FrameSource(frame(seed), "s"))]


@cache
def statistics() -> list[Statistics]:
    return survey(SPEC, inputs(1), literal=True)


def scheme(mechanism: str, decode: str) -> Mechanism:
    (made,) = make_plan(SPEC, statistics(), mechanism, decode).mechanisms
    return made


def plain(mechanism: str, decode: str) -> dict[str, Any]:
    """As it comes back from a file."""
    read: dict[str, Any] = json.loads(json.dumps(write_mechanism(scheme(mechanism, decode))))
    return read


def answers(made: Mechanism) -> list[tuple[bytes, bytes]]:
    """Bits and confidence of a run with a fixed seed, on other data than history's."""
    evaluator = ProtectedEvaluator(SPEC, [made], Noise(SeededSource(5)))
    assert CompiledSpec(SPEC, evaluator).names == ("q0", "q1", "q2", "q3")
    return [
        (part.bits.tobytes(), np.stack([part.confidence(q) for q in range(4)]).tobytes())
        for part in Run(SPEC, inputs(2), evaluator=evaluator)
    ]


@EVERY_WAY
def test_a_scheme_that_is_read_again_does_the_same_to_the_last_bit(
    mechanism: str, decode: str
) -> None:
    first = scheme(mechanism, decode)
    again = read_mechanism(mechanism, plain(mechanism, decode), POLICY, QUERIES)
    assert again.to_dict() == first.to_dict()
    assert answers(again) == answers(first)


def test_contexts_of_history_are_read_and_not_planned_anew() -> None:
    read = read_mechanism("optimal", plain("optimal", "posterior"), POLICY, QUERIES)
    assert isinstance(read, Optimal)
    for optimal, planned in zip(read.component_channels, read.planned, strict=True):
        assert planned
        for key, context in planned.items():
            width = len(optimal.component.signals)
            bits = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
            fresh = optimal.context(bits)
            assert fresh is not None
            assert np.array_equal(context.decided, fresh.decided)
            for (_, ours), (_, theirs) in zip(context.blocks, fresh.blocks, strict=True):
                assert ours.channel == theirs.channel
                assert np.array_equal(ours.posterior, theirs.posterior)


@EVERY_WAY
def test_a_scheme_for_more_epsilon_than_is_granted_is_refused(mechanism: str, decode: str) -> None:
    """What is granted is said by the specification alone."""
    less = Policy(POLICY.patterns).scale(Fraction(9, 10))
    with pytest.raises((PlanError, PrivacyError)):
        read_mechanism(mechanism, plain(mechanism, decode), less, QUERIES)


def make_truthful(table: list[list[str]]) -> None:
    """Make a symbol certain for each class."""
    total = sum(int(entry) for entry in table[0])
    for number, row in enumerate(table):
        row[:] = [str(total) if n == number else "0" for n in range(len(table))]


@pytest.mark.parametrize("where", ["contexts", "book"])
def test_a_table_that_was_tampered_with_fails_its_audit(where: str) -> None:
    for component in (0, 1):
        damaged = plain("optimal", "posterior")
        part = damaged["components"][component]
        tables = part["tables"] if where == "contexts" else part["book"]["channels"][0]
        assert tables
        for table in tables:
            make_truthful(table)
        with pytest.raises((PlanError, PrivacyError)):
            read_mechanism("optimal", damaged, POLICY, QUERIES)


def test_each_table_is_written_once() -> None:
    """Contexts with the same channel problem share a channel, in the file and when it is read."""
    written = plain("optimal", "posterior")
    for part in written["components"]:
        texts = [json.dumps(table) for table in part["tables"]]
        assert len(texts) == len(set(texts))
        numbers = [number for context in part["contexts"] for number in context["channels"]]
        assert sorted(set(numbers)) == list(range(len(texts)))
    made = scheme("optimal", "posterior")
    assert isinstance(made, Optimal)
    planned = made.planned[0]
    twice = {**planned, **{b"again" + key: context for key, context in planned.items()}}
    doubled = replace(made, planned=(twice, *made.planned[1:])).to_dict()["components"][0]
    assert doubled["tables"] == written["components"][0]["tables"]
    assert len(doubled["contexts"]) == 2 * len(planned)
    read = read_mechanism("optimal", written, POLICY, QUERIES)
    assert isinstance(read, Optimal)
    for planned, part in zip(read.planned, written["components"], strict=True):
        channels = {id(d.channel) for context in planned.values() for _, d in context.blocks}
        assert len(channels) == len(part["tables"])


def test_books_are_read_and_not_designed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first, written = scheme("optimal", "posterior"), plain("optimal", "posterior")
    monkeypatch.setattr(mechanism_module, "design_book", lambda *_: pytest.fail("designed anew"))
    read = read_mechanism("optimal", written, POLICY, QUERIES)
    assert isinstance(first, Optimal)
    assert isinstance(read, Optimal)
    for ours, theirs in zip(first.books, read.books, strict=True):
        assert ours.channels == theirs.channels
        assert np.array_equal(ours.chosen, theirs.chosen)


def test_the_audit_includes_the_channels_of_books() -> None:
    """With no contexts in the plan, the widest ratio is that of the book."""
    made = scheme("optimal", "posterior")
    assert isinstance(made, Optimal)
    bare = replace(made, planned=tuple({} for _ in made.planned))
    for pattern in POLICY.patterns:
        alone = bare.widest_ratio(pattern.elements)
        whole = made.widest_ratio(pattern.elements)
        assert alone is not None
        assert whole is not None
        assert 1 < alone <= whole <= largest_ratio(pattern.epsilon)
    listed = [named.channel for named in bare.channels()]
    assert listed == [channel for book in made.books for own in book.channels for channel in own]


def changes(kind: str) -> list[Any]:
    """Ways to damage what was written."""
    if kind == "elements":
        return [
            lambda p: p.pop("right"),
            lambda p: p["right"].pop("0"),
            lambda p: p["right"].update({"0": [[[0.5]]]}),
            lambda p: p["elements"]["channels"].pop("x"),
            lambda p: p.update(kind="open"),
            lambda p: p.update(kind="nonsense"),
            lambda p: p.pop("literal"),
        ]
    return [
        lambda p: p["components"].pop(),
        lambda p: p["components"].append(deepcopy(p["components"][0])),
        lambda p: p["components"].reverse(),
        lambda p: p["components"][0].pop("prior"),
        lambda p: p["components"][0]["prior"]["rates"].append(0.5),
        lambda p: p["components"][0]["prior"].update(widths=[1, 1]),
        lambda p: p["components"][0]["contexts"][0].update(signals="zz"),
        lambda p: p["components"][0]["contexts"][0].update(tables=[[["1"]]] * 9),
        lambda p: p["components"][0]["contexts"][0]["channels"].append(0),
        lambda p: p["components"][0]["contexts"][-1].update(channels=[99]),
        lambda p: p["components"][0]["tables"].clear(),
        lambda p: p["components"][0].update(book={}),
        lambda p: p["components"][0].update(book=p["components"][1]["book"]),
        lambda p: p["components"][0]["book"]["chosen"][0].append(0),
        lambda p: p["components"][0]["book"]["chosen"][0].__setitem__(0, 99),
        lambda p: p["components"][0]["book"]["channels"][0].clear(),
        lambda p: p.update(kind="open"),
        lambda p: p.pop("thresholds"),
        lambda p: p["thresholds"].pop(),
    ]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_damaged_elements_are_refused(number: int, decode: str) -> None:
    damaged = plain("uniform", decode)
    changes("elements")[number](damaged)
    with pytest.raises((PlanError, PrivacyError)):
        read_mechanism("uniform", damaged, POLICY, QUERIES)


@pytest.mark.cases(7)
@pytest.mark.parametrize("number", range(19))
def test_damaged_draws_are_refused(number: int) -> None:
    damaged = plain("optimal", "posterior")
    assert len(damaged["components"]) > 1
    changes("optimal")[number](damaged)
    with pytest.raises((PlanError, PrivacyError)):
        read_mechanism("optimal", damaged, POLICY, QUERIES)


CHAIN = loads(
    """
version: 1
streams: {s: {subject: who, time: at, unit: us}}
windows: {size: 10 us}
events:
  a: {stream: s, where: "kind = 0"}
  unasked: {stream: s, where: "kind = 20"}
"""
    + "".join(f'  x{n}: {{stream: s, where: "kind = {n + 1}"}}\n' for n in range(14))
    + f"""
private: [{{pattern: "OR(unasked, {", ".join(f"x{n}" for n in range(14))})", epsilon: 3}}]
queries:
"""
    + "".join(f'  - {{name: q{n}, consumer: c, pattern: "AND(a, x{n})"}}\n' for n in range(14))
)


def refined_scheme() -> tuple[dict[str, Any], Policy]:
    """A written scheme of elements on their own, and the policy that grants 3 for all of them."""
    rates = {f"x{n}": 0.3 for n in range(14)}
    (made,) = plan_without_history(CHAIN, "optimal", "posterior", rates).mechanisms
    assert isinstance(made, Optimal)
    assert len(made.fine.patterns) == 15
    (policy,) = Policies(CHAIN).policies
    return json.loads(json.dumps(write_mechanism(made))), policy


def test_shares_of_elements_that_add_up_to_more_than_their_pattern_are_refused() -> None:
    written, policy = refined_scheme()
    queries = tuple(CHAIN.query_patterns.values())
    assert write_mechanism(read_mechanism("optimal", written, policy, queries)) == written
    more = [str(Fraction(text) * 2) for text in written["epsilons"]]
    with pytest.raises((PlanError, PrivacyError)):
        read_mechanism("optimal", written | {"epsilons": more}, policy, queries)


def test_an_element_that_nobody_asks_for_cannot_lend_what_it_does_not_have() -> None:
    """Less than nothing for one element would leave more than everything for another."""
    written, policy = refined_scheme()
    queries = tuple(CHAIN.query_patterns.values())
    names = sorted({"unasked", *(f"x{n}" for n in range(14))})
    shares = dict(zip(names, map(Fraction, written["epsilons"]), strict=True))
    shares["unasked"] -= 5
    shares["x0"] += 5
    tampered = written | {"epsilons": [str(shares[name]) for name in names]}
    with pytest.raises((PlanError, PrivacyError)):
        read_mechanism("optimal", tampered, policy, queries)
