"""The audit of a plan: computed from the tables alone, and never less than what is revealed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from math import prod

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.engines.local import plan as make
from tacit.engines.local import survey, survey_history
from tacit.insight.audit import AuditReport, audit
from tacit.pipeline.reader import Input
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.channels import Channel
from tacit.privacy.components import Component
from tacit.privacy.exponentials import exp_below, joint_epsilon, log_above
from tacit.privacy.mechanisms.flips import Flips
from tacit.privacy.mechanisms.optimal.blocks import Context
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.progress import ignore_progress
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.windows.schedule import Windows

MECHANISMS = ("uniform", "adaptive", "optimal")
ONE = {"both": "AND(a, c)", "either": "OR(a, b)", "ordered": "SEQ(a, b, c)"}
SINGLE = {name: name for name in "abcde"}


def written(private: dict[str, str], queries: dict[str, str], *more: str) -> Specification:
    """A specification over the event types a to f; private patterns by their text."""
    kinds = ", ".join(f"{n}: {{stream: s, where: \"kind = '{n}'\"}}" for n in "abcdef")
    lines = [
        "streams: {s: {subject: who, time: at}}",
        "windows: {size: 1 min}",
        f"events: {{{kinds}}}",
        "private:",
        *(f"  - {{pattern: '{text}', epsilon: {rest}}}" for text, rest in private.items()),
        "queries:",
        *(f"  - {{name: {n}, consumer: us, pattern: '{text}'}}" for n, text in queries.items()),
        *more,
    ]
    return loads("\n".join(lines))


def history(seed: int = 3, windows: int = 200) -> pl.DataFrame:
    """Random tuples of four subjects."""
    chance = np.random.default_rng(seed)
    rates = np.array([0.3, 0.4, 0.5, 0.4, 0.3, 0.6])
    window, subject, kind = np.nonzero(chance.random((windows, 4, 6)) < rates)
    at = window * 60 + chance.integers(60, size=len(window))
    kinds = np.array(list("abcdef"))[kind]
    return pl.DataFrame({"who": subject, "at": at, "kind": kinds}).sort("at")


def told(report: AuditReport, name: str) -> tuple[Fraction | None, Fraction | None]:
    """Whole-pattern and per-element epsilon of a private pattern."""
    pattern = next(p for p in report.policies[0].patterns if p.name == name)
    return pattern.whole, pattern.element


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_the_planner_makes_passes(mechanism: str) -> None:
    spec = written({"SEQ(a, b)": "0.7", "AND(b, d)": "1.3"}, ONE)
    report = audit(make(spec, history(), mechanism=mechanism))
    assert report.passed
    assert [p.asked for p in report.policies[0].patterns] == [Fraction(7, 10), Fraction(13, 10)]
    for pattern in report.policies[0].patterns:
        assert pattern.whole is not None
        assert pattern.element is not None
        assert 0 <= pattern.element <= pattern.whole <= pattern.granted == pattern.asked


def test_flips_are_told_as_their_own_losses_say() -> None:
    spec = written({"AND(a, b, d)": "2"}, ONE)
    made = make(spec, history(), mechanism="adaptive")
    scheme = made.mechanisms[0]
    assert isinstance(scheme, Flips)
    loss = scheme.elements.losses()[0]
    assert told(audit(made), "AND(a, b, d)") == (loss.whole, loss.element)


def plan_optimal(spec: Specification, frame: pl.DataFrame) -> Plan:
    """The plan of optimal, also where adaptive is better."""
    statistics = survey(spec, [Input("s", FrameSource(frame, "s"))], literal=False)
    return make_plan(spec, statistics, "optimal", fall_back=False)


def components(made: Plan) -> list[tuple[Component, list[Context]]]:
    """The components of an optimal plan with their contexts."""
    scheme = made.mechanisms[0]
    assert isinstance(scheme, Optimal)
    return [
        (component, list(planned.values()))
        for component, planned in zip(scheme.exposure.components, scheme.planned, strict=True)
    ]


def furthest_in_book(component: Component, book: ChannelBook, elements: frozenset[str]) -> Fraction:
    """The same for contexts that a book serves: blocks draw independently, so they multiply."""
    moving = {v for v, one in enumerate(component.variables) if one.elements & elements}
    most = Fraction(1)
    for block, channels in zip(book.blocks, book.channels, strict=True):
        moved = sum(1 << n for n, v in enumerate(block.variables) if v in moving)
        values = range(1 << len(block.variables))
        pairs = [(x, y) for x in values for y in values if (x ^ y) & ~moved == 0]
        most *= max(
            Fraction(p, q)
            for channel in channels
            for x, y in pairs
            for p, q in zip(*channel.table[[x, y]].tolist(), strict=True)
        )
    return most


def furthest(component: Component, context: Context, elements: frozenset[str]) -> Fraction:
    """How far two windows can be told apart that differ in these elements, by trying them all."""
    variables = range(len(component.variables))
    moving = [v for v in variables if component.variables[v].elements & elements]
    most = Fraction(1)
    for one in product((0, 1), repeat=len(component.variables)):
        for moved in product((0, 1), repeat=len(moving)):
            other = list(one)
            for variable, value in zip(moving, moved, strict=True):
                other[variable] = value
            ratios = []
            for block, design in context.blocks:
                rows = [
                    design.channel.table[
                        block.place[sum(values[v] << n for n, v in enumerate(block.variables))]
                    ].tolist()
                    for values in (one, other)
                ]
                ratios.append(max(Fraction(p, q) for p, q in zip(*rows, strict=True)))
            most = max(most, prod(ratios, start=Fraction(1)))
    return most


@pytest.mark.parametrize(
    ("private", "queries"),
    [
        ({"AND(a, b)": "1"}, ONE),
        ({"SEQ(a, b)": "0.5", "AND(b, d)": "2"}, ONE | {"late": "AND(d, NOT b)"}),
        ({"a": "1", "d": "0.3"}, {"x": "AND(a, c)", "y": "OR(d, f)", "z": "AND(a, d)"}),
        ({"AND(a, b, c, d, e)": "2"}, SINGLE | {"pair": "AND(a, e)"}),
    ],
)
def test_no_two_windows_can_be_told_apart_by_more_than_is_stated(
    private: dict[str, str], queries: dict[str, str]
) -> None:
    """Compared with all pairs of windows; where a context has one draw, it is exactly that."""
    made = make(written(private, queries), history(), mechanism="optimal")
    report = audit(made)
    assert report.passed
    (scheme,) = made.mechanisms
    assert isinstance(scheme, Optimal)
    for (component, contexts), book in zip(components(made), scheme.books, strict=True):
        alone = all(len(context.blocks) <= 1 for context in contexts)
        for pattern in component.patterns:
            most = max(
                [
                    furthest_in_book(component, book, pattern.elements),
                    *(furthest(component, context, pattern.elements) for context in contexts),
                ]
            )
            whole, element = told(report, pattern.name)
            assert whole is not None
            assert exp_below(whole) * (1 + Fraction(1, 10**18)) >= most
            if alone:
                assert whole == min(pattern.epsilon, Fraction(log_above(most)))
            single = max(
                furthest_in_book(component, book, frozenset({name})) for name in pattern.elements
            )
            assert element is not None
            assert exp_below(element) * (1 + Fraction(1, 10**18)) >= single


def test_draws_of_one_window_add_up() -> None:
    """Several blocks that are each as bold as one alone may be exceed together."""
    queries = {name: name for name in "abcdef"} | {"order": "SEQ(a, b)"}
    spec = written({"AND(a, b, c, d, e, f)": "2"}, queries)
    made = plan_optimal(spec, history())
    scheme = made.mechanisms[0]
    assert isinstance(scheme, Optimal)
    (book,) = scheme.books
    assert len(book.blocks) > 1
    channels = tuple((bold(1 << len(block.variables)),) for block in book.blocks)
    bolder = replace(book, channels=channels, chosen=np.zeros_like(book.chosen))
    report = audit(replace(made, mechanisms=(replace(scheme, books=(bolder,)),)))
    assert all(channel.passed for channel in report.policies[0].channels)
    assert not report.passed
    whole, _ = told(report, spec.private[0].name)
    assert whole == pytest.approx(2 * len(book.blocks))


def bold(rows: int) -> Channel:
    """A channel that tells each row from the others as well as an epsilon of 2 allows."""
    each = [{row} for row in range(rows)]
    made = Channel.staircase(each, [1.0] * rows, 2, inputs=range(rows))
    return Channel(made.table, made.neighbours)


def test_a_channel_without_its_neighbours_is_seen_through() -> None:
    """A table that tells the truth passes its own audit if it knows of no neighbours."""
    made = make(written({"AND(a, b)": "1"}, ONE), history(), mechanism="optimal")
    scheme = made.mechanisms[0]
    assert isinstance(scheme, Optimal)
    planned = []
    for contexts in scheme.planned:
        honest = {}
        for key, context in contexts.items():
            blocks = []
            for block, design in context.blocks:
                rows = len(design.channel.table)
                truth = (np.eye(rows, dtype=np.uint64) * np.uint64(2**20)).astype(np.uint64)
                blocks.append((block, replace(design, channel=Channel(truth, []))))
            honest[key] = Context(context.decided, tuple(blocks))
        planned.append(honest)
    report = audit(replace(made, mechanisms=(replace(scheme, planned=tuple(planned)),)))
    assert all(channel.passed for channel in report.policies[0].channels)
    assert told(report, "AND(a, b)") == (None, None)
    assert not report.passed
    assert "FAILED" in str(report)
    assert "no limit" in str(report)


def test_a_scheme_for_other_private_patterns_does_not_fit() -> None:
    """Elements that are left out, components of another specification, or no scheme at all."""
    small, large = written({"a": "1"}, ONE), written({"AND(a, b)": "1"}, ONE)
    wanted = make(large, history(), mechanism="uniform")
    for mechanism in MECHANISMS:
        other = make(small, history(), mechanism=mechanism)
        assert not audit(replace(wanted, mechanisms=other.mechanisms)).passed
    report = audit(replace(wanted, mechanisms=(Unprotected(),)))
    assert not report.passed
    assert "NOT protect" in str(report)


@pytest.mark.parametrize("slide", ["1 min", "30 s"])
def test_a_private_pattern_in_single_elements_is_audited_as_a_whole(slide: str) -> None:
    """Too many ordered queries for one channel: elements are protected one by one."""
    queries = {f"{one}{two}": f"SEQ({one}, {two})" for one, two in permutations("abcde", 2)}
    spec = written({"AND(a, b, c, d, e)": "30"}, queries)
    windows = Windows.model_validate({"size": "1 min", "slide": slide})
    spec = spec.model_copy(update={"windows": windows})
    made = plan_optimal(spec, history())
    (scheme,) = made.mechanisms
    assert isinstance(scheme, Optimal)
    assert len(scheme.fine.patterns) == 5
    report = audit(made)
    assert report.passed
    whole, element = told(report, "AND(a, b, c, d, e)")
    assert whole is not None
    assert element is not None
    # If windows slide, so little is left for each draw that it may be used for nothing.
    assert element > 0 or slide == "30 s"
    assert element <= whole <= 30
    more = replace(scheme, fine=scheme.fine.scale(Fraction(2)))
    assert not audit(replace(made, mechanisms=(more,))).passed


def test_a_private_pattern_that_nobody_asks_about_gives_nothing_away() -> None:
    spec = written({"a": "1", "e": "1"}, ONE)
    statistics = survey_history(spec, (history(),), {}, None, ignore_progress)
    made = make_plan(spec, statistics, "optimal", fall_back=False)
    assert told(audit(made), "e") == (Fraction(0), Fraction(0))


def test_every_policy_is_audited_for_its_own_patterns() -> None:
    """The same pattern may have another epsilon for other subjects."""
    spec = written({"a": "1, subjects: [0, 1]", "AND(a, b)": "2"}, ONE)
    report = audit(make(spec, history(), mechanism="optimal"))
    assert [len(policy.patterns) for policy in report.policies] == [1, 2]
    assert "Policy 2" in str(report)
    assert report.passed


def test_a_share_of_epsilon_is_what_is_granted() -> None:
    from tacit.engines.local import open_inputs, survey
    from tacit.planning.planner import make_plan

    spec = written({"AND(a, b)": "2"}, ONE)
    statistics = survey(spec, open_inputs(spec, [history()], {}), literal=False)
    report = audit(make_plan(spec, statistics, "uniform", share=Fraction(1, 4)))
    pattern = report.policies[0].patterns[0]
    assert (pattern.asked, pattern.granted) == (Fraction(2), Fraction(1, 2))
    assert pattern.whole is not None
    assert pattern.whole <= Fraction(1, 2)


def test_text_html_and_plain_data_tell_the_same() -> None:
    report = audit(make(written({"AND(a, b)": "1"}, ONE), history(), mechanism="optimal"))
    plain = report.to_dict()
    assert plain["passed"] is True
    assert plain["policies"][0]["passed"] is True
    whole = plain["policies"][0]["patterns"][0]["whole"]
    assert Fraction(whole) == told(report, "AND(a, b)")[0]
    assert len(plain["policies"][0]["channels"]) == len(report.policies[0].channels)
    assert "not in the plan are made during a run" in str(report)
    assert "<td>passed</td>" in report._repr_html_()
    assert max(map(len, str(report).splitlines())) <= 120


def test_rounded_figures_are_never_less_than_the_bound() -> None:
    from tacit.insight.audit import _number

    for ratio in (Fraction(3), Fraction(10**9 + 1, 10**9), Fraction(2**62, 3), Fraction(7, 5)):
        bound = Fraction(joint_epsilon([ratio]))
        assert bound <= Fraction(_number(bound)) <= bound * (1 + Fraction(1, 10**9))
    assert _number(Fraction(0)) == "0"
