"""A specification in plain words: right about odds, and about what touches what."""

from __future__ import annotations

import json
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.events.subjects import Subjects
from tacit.insight.explain import (
    NOT_PROMISED,
    PROMISED,
    UNIT,
    Explanation,
    QueryMeaning,
    bound_percentage,
    count_windows_until_sure,
    explain,
)
from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import And, Name, Not, Or, Pattern
from tacit.privacy.policies import Policies
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load, loads
from tests.privacy.strategies import epsilons
from tests.spec.strategies import specifications

ROOT = Path(__file__).parents[2]
TAXI = ROOT / "src/tacit/evaluation/taxi.yaml"


def written(private: list[str], queries: dict[str, str], *more: str) -> Specification:
    """A specification over the event types a to f."""
    lines = [
        "streams: {s: {subject: who, time: at}}",
        "windows: {size: 10 min}",
        "events: {a: {stream: s}, b: {stream: s}, c: {stream: s}, d: {stream: s}, e: {stream: s}}",
        "private:",
        *(f"  - {{{declared}}}" for declared in private),
        "queries:",
        *(f"  - {{name: {n}, consumer: us, pattern: '{text}'}}" for n, text in queries.items()),
        *more,
    ]
    return loads("\n".join(lines))


def only(told: Explanation, name: str, policy: int = 0) -> QueryMeaning:
    """What is said of a query."""
    return next(query for query in told.policies[policy].queries if query.name == name)


def said(told: Explanation) -> str:
    """The text on one line."""
    return " ".join(str(told).split())


def exactly(before: Fraction, epsilon: Fraction) -> Decimal:
    """What a probability becomes at most, in 100, to about 80 digits."""
    with localcontext(prec=80):
        ratio = (Decimal(epsilon.numerator) / epsilon.denominator).exp()
        odds = ratio * before.numerator / (before.denominator - before.numerator)
        return 100 * odds / (1 + odds)


@given(epsilons(-9, 2), st.fractions(Fraction(1, 1000), Fraction(999, 1000)), st.integers(0, 3))
def test_stated_odds_are_never_below_the_exact_ones(
    epsilon: Fraction, before: Fraction, places: int
) -> None:
    """And hardly above: by less than one in the last place that is shown."""
    stated, true = bound_percentage(before, epsilon, places), exactly(before, epsilon)
    assert stated >= true
    assert stated <= 100
    if stated < 100:
        shown = -int(stated.as_tuple().exponent)
        assert places <= shown <= 6
        assert stated - true < Decimal(10) ** -shown
    else:
        assert true > Decimal("99.999999")


def test_odds_are_whole_until_they_would_look_certain() -> None:
    """73.1 is rounded up; 99.33 gets a digit; what six digits do not show is certain."""
    half = Fraction(1, 2)
    assert [str(bound_percentage(half, e)) for e in (1, 5, 10, 17, 30, 1_000_000)] == [
        "74", "99.4", "99.996", "99.999996", "100", "100",
    ]  # fmt: skip
    assert bound_percentage(Fraction(1, 100), 1, 1) == Decimal("2.7")


@given(epsilons(-9, 6))
def test_the_windows_until_99_to_1_are_the_first_that_could_reach_it(epsilon: Fraction) -> None:
    """With one window less a 50:50 guess stays below."""
    number = count_windows_until_sure(epsilon)
    with localcontext(prec=60):
        needed = Decimal(99).ln()
        assert Decimal((number * epsilon).numerator) / (number * epsilon).denominator >= needed
        fewer = (number - 1) * epsilon
        assert Decimal(fewer.numerator) / fewer.denominator < needed


def test_the_example_is_reported_in_plain_words() -> None:
    """For each private pattern what epsilon means, for each query what touches it and why."""
    text = said(explain(load(TAXI)))
    assert "SEQ(at_hospital, parked)" in text
    assert f"epsilon 2 for {UNIT}" in text
    assert (
        "Someone who knows everything else can turn a 50:50 guess about hospital_visit in one"
        " window into at most 89:11"
    ) in text
    assert "whatever all the answers say" in text
    assert "A guess about a stay of three windows they can turn into at most 99.8:0.2." in text
    assert "1 in 100 can become at most 7.0 in 100" in text
    assert "something that affects 3 windows could become 99:1 or more" in text
    assert "A day has 144 windows" in text
    assert "jam, busy exact Nothing private is touched." in text
    assert (
        "station_wait, for station asks SEQ(at_station, NOT pickup, parked)"
        " touched by hospital_visit, because it looks at parked."
        " touched by break, because it looks at parked."
        " noisy Only in windows where at_station is detected; elsewhere exactly no."
        " unknown It needs the order of private events, which stays unknown."
    ) in text
    assert "per element" not in text
    assert all(line in text for line in (*PROMISED, *NOT_PROMISED.values()))
    assert "docs/guarantee.md" in text


def test_lines_are_short_and_the_same_each_time() -> None:
    """So that they fit a terminal and can be compared."""
    for spec in (load(TAXI), load(ROOT / "examples/taxi.yaml")):
        told = explain(spec)
        assert max(map(len, str(told).splitlines())) <= 100
        assert str(told) == str(explain(spec))
        assert told == explain(spec)


def test_the_promise_is_reported_in_the_words_of_the_guarantee() -> None:
    page = (ROOT / "docs/guarantee.md").read_text("utf-8")
    plain = " ".join(re.sub(r"^> ?|\*(?=\S)|(?<=\S)\*", "", page, flags=re.MULTILINE).split())
    for line in PROMISED:
        assert line in plain


def test_shared_elements_are_named_and_uniform_shows_the_largest_share() -> None:
    """The shared element has the smaller share, once; per element is the largest of a pattern."""
    spec = written(
        ["pattern: 'AND(a, b)', epsilon: 1", "pattern: 'SEQ(b, c, d)', epsilon: 1.5"],
        {"q": "AND(b, e)"},
        "mechanism: uniform",
    )
    told = explain(spec)
    assert told.policies[0].shared == {"b": ("AND(a, b)", "SEQ(b, c, d)")}
    assert [private.per_element for private in told.private] == [Fraction(1, 2), Fraction(1, 2)]
    assert only(told, "q").touched_by == {"AND(a, b)": ("b",), "SEQ(b, c, d)": ("b",)}
    text = said(told)
    assert "b is an element of AND(a, b) and SEQ(b, c, d), and flipped once." in text
    assert "per element 0.5 for one subject, one element, one window." in text
    assert "A 50:50 guess about one element alone they can turn into at most 63:37." in text
    assert "protected as one" not in text


def test_the_largest_share_is_that_of_the_subjects_with_the_most() -> None:
    """For subject 7 another pattern lowers the share of b, but not for all others."""
    spec = written(
        ["pattern: b, epsilon: 1", "pattern: 'AND(a, b)', epsilon: 1, subjects: [7]"],
        {"q": "b"},
        "mechanism: uniform",
    )
    assert [p.per_element for p in explain(spec).private] == [1, Fraction(1, 2)]


def test_queries_that_do_not_split_join_private_patterns() -> None:
    """So do those that split, if what they span is small; large ones are answered in parts."""
    wide = "pattern: 'OR(c, d, e)', epsilon: 3"
    private = ["pattern: a, epsilon: 1", "pattern: b, epsilon: 2", wide]
    queries = {"order": "SEQ(a, b)", "one": "OR(b, c)", "many": "AND(c, d, e)", "some": "OR(a, b)"}
    told = explain(written(private, queries))
    assert told.policies[0].components == (("a", "b"), ("OR(c, d, e)",))
    assert only(told, "order").joins == only(told, "some").joins == (("a", "b"),)
    assert only(told, "one").splits == (("b",), ("OR(c, d, e)",))
    assert only(told, "one").joins == only(told, "many").joins == ()
    text = said(told)
    assert "a and b are protected as one, because of order and some." in text
    assert "It asks about a and b at once, so they are protected together." in text
    assert "Its parts about b and OR(c, d, e) are answered from separate draws." in text


def test_what_no_query_touches_is_said_to_be_told_by_no_answer() -> None:
    spec = written(["pattern: 'SEQ(a, b)', epsilon: 1", "pattern: c, epsilon: 1"], {"q": "a"})
    told = explain(spec)
    assert told.policies[0].untouched == ("c",)
    assert "c: no answer depends on it, so answers reveal nothing about it" in said(told)


def test_each_group_of_subjects_is_told_apart() -> None:
    """What is private for two subjects is public for all others."""
    spec = written(
        ["pattern: a, epsilon: 1", "pattern: b, epsilon: 0.5, subjects: [anna, 'b<c>']"],
        {"one": "a", "two": "b", "three": "c"},
    )
    told = explain(spec)
    assert [policy.subjects for policy in told.policies] == [None, ("anna", "b<c>")]
    assert [policy.private for policy in told.policies] == [("a",), ("a", "b")]
    assert only(told, "two").touched_by == {}
    assert only(told, "two", 1).touched_by == {"b": ("b",)}
    text = said(told)
    assert "Queries about all subjects but 2 two, three exact Nothing private is touched." in text
    assert "Queries about 2 subjects: anna, b<c> two, for us asks b" in text
    assert "one, three same As for all subjects but 2." in text


def test_a_group_without_anyone_in_it_is_left_out() -> None:
    """Where all registered subjects are named, there are no others."""
    private, asked = ["pattern: a, epsilon: 1, subjects: [1, 2]"], {"q": "a"}
    for registry, groups in (("[1, 2]", [("1", "2")]), ("[1, 2, 3]", [None, ("1", "2")])):
        told = explain(written(private, asked, f"subjects: {registry}"))
        assert [policy.subjects for policy in told.policies] == groups


@given(specifications())
def test_groups_are_those_of_the_policies(spec: Specification) -> None:
    """As the engine forms them, by its own registry; and everything can be told of anything."""
    told = explain(spec)
    policies = Policies(spec)
    assert json.loads(json.dumps(told.to_dict())) == told.to_dict()
    assert all(line.isprintable() for line in str(told).split("\n"))
    assert told._repr_html_().startswith("<div>")
    for policy in told.policies:
        if policy.subjects is None:
            continue
        registry = Subjects()
        registry.add(policy.subjects)
        for number in policies.assign(registry).tolist():
            names = tuple(pattern.name for pattern in policies.policies[number].patterns)
            assert names == policy.private


@pytest.mark.parametrize(
    ("query", "where", "signals"),
    [
        ("AND(a, c)", "where", ("c",)),
        ("OR(a, c)", "unless", ("c",)),
        ("a", "always", ()),
        ("AND(a, NOT a)", "never", ()),
        ("OR(AND(a, c), AND(NOT a, d))", "depends", ("d", "c")),
        ("SEQ(a, b)", "always", ()),
    ],
)
def test_where_a_query_is_noisy_is_reported(
    query: str, where: str, signals: tuple[str, ...]
) -> None:
    private = ["pattern: 'AND(a, b)', epsilon: 1"]
    found = only(explain(written(private, {"q": query})), "q")
    assert (found.open, found.signals) == (where, signals)


presence: st.SearchStrategy[Pattern] = st.recursive(
    st.sampled_from("abcde").map(Name),
    lambda parts: st.one_of(
        st.builds(And, parts, parts), st.builds(Or, parts, parts), st.builds(Not, parts)
    ),
    max_leaves=6,
)


@given(presence)
def test_a_query_is_noisy_exactly_where_private_events_can_change_it(query: Pattern) -> None:
    """By trying all windows of the reference matcher."""
    spec = written(["pattern: 'AND(a, b)', epsilon: 1"], {"q": repr(query)})
    found = only(explain(spec), "q")

    def holds(pattern: Pattern, names: list[str]) -> bool:
        return detect(pattern, [Tuple(0, frozenset(names))] if names else [])

    for bits in product((0, 1), repeat=3):
        public = [name for name, bit in zip("cde", bits, strict=True) if bit]
        answers = {holds(query, [*public, *private]) for private in ([], ["a"], ["b"], ["a", "b"])}
        signals = [holds(parse_pattern(signal), public) for signal in found.signals]
        match found.open:
            case "never":
                assert len(answers) == 1
            case "where":
                assert answers == ({False, True} if signals[0] else {False})
            case "unless":
                assert answers == ({True} if signals[0] else {False, True})
            case "always":
                assert answers == {False, True}
            case "depends":
                assert len(signals) > 1


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("AND(a, c)", ()),
        ("SEQ(c, a)", ("order",)),
        ("a{2,}", ("number",)),
        ("SEQ(a, c, a)", ("order", "number")),
        ("SEQ(a{2,}) WITHIN 1 min", ("order", "number")),
        ("SEQ(a p, c q) WHERE p.v > q.v", ("order", "attributes")),
        ("SEQ(c p, d q) WHERE p.v > q.v", ()),
        ("AND(a, SEQ(c, d))", ()),
    ],
)
def test_what_a_query_asks_beyond_presence_is_reported(query: str, asked: tuple[str, ...]) -> None:
    """With what literal reading makes of it, where that is how answers are read."""
    private, queries = ["pattern: 'AND(a, b)', epsilon: 1"], {"q": query}
    words = {"order": "a random time", "number": "two or more", "attributes": "count as met"}
    for mechanism, decode in product(("uniform", "adaptive", "optimal"), ("literal", "posterior")):
        spec = written(private, queries, f"mechanism: {mechanism}", f"decode: {decode}")
        told = explain(spec)
        assert only(told, "q").looks_at == asked
        literal = mechanism != "optimal" and decode == "literal"
        for name, word in words.items():
            assert (word in said(told)) == (literal and name in asked)


def test_nothing_private_and_nothing_asked_are_reported_too() -> None:
    plain = "streams: {s: {subject: who, time: at}}\nwindows: {size: 1 h}\nevents: {a: {stream: s}}"
    text = said(explain(loads(plain)))
    assert "Nothing is declared private: all answers are exact." in text
    assert "None are declared." in text
    assert "promised" not in text


def test_an_epsilon_that_hides_nothing_is_called_so() -> None:
    text = said(explain(written(["pattern: a, epsilon: 50"], {"q": "a"})))
    assert "into near certainty" in text
    assert "After one window a 50:50 guess could become 99:1 or more." in text


def test_names_that_people_chose_do_no_harm() -> None:
    """HTML is escaped, and a terminal is given nothing to obey."""
    spec = written(["pattern: a, epsilon: 1, subjects: ['<b>x</b>', \"\\e[2J\"]"], {"q": "a"})
    told = explain(spec)
    page = told._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "\x1b" not in page + str(told)
    assert page.count("<table>") == page.count("</table>") > 0


def test_the_plain_data_keep_their_keys() -> None:
    """Programs rely on them; exact numbers are text."""
    told: dict[str, Any] = explain(load(TAXI)).to_dict()
    assert sorted(told) == [
        "counts", "decode", "guarantee", "mechanism", "not_promised", "panes", "policies",
        "private", "promised", "shared_attributes", "unit", "window",
    ]  # fmt: skip
    assert told["private"][0] == {
        "name": "hospital_visit",
        "pattern": "SEQ(at_hospital, parked)",
        "elements": ["at_hospital", "parked"],
        "subjects": None,
        "epsilon": "2",
        "limit": None,
        "spend": None,
        "allowed": None,
        "horizon": None,
        "per_element": None,
        "odds": {
            "even": "89",
            "rare": "7.0",
            "windows_to_99": 3,
            "windows_in_a_day": 144,
            "epsilon_in_a_day": "288",
        },
        "windows": 1,
    }
    policy = told["policies"][0]
    assert sorted(policy) == [
        "components", "private", "queries", "shared", "subjects", "untouched",
    ]  # fmt: skip
    assert policy["queries"][5] == {
        "name": "station_wait",
        "consumer": "station",
        "pattern": "SEQ(at_station, NOT pickup, parked)",
        "touched_by": {"hospital_visit": ["parked"], "break": ["parked"]},
        "open": "where",
        "signals": ["at_station"],
        "looks_at": ["order"],
        "splits": [],
        "joins": [["hospital_visit", "break"]],
    }


LIMITED = """
streams: {gps: {subject: taxi, time: at}}
windows: {size: 10 min%s}
events: {clinic: {stream: gps}, slow: {stream: gps}}
private: [{pattern: clinic, epsilon: 1, limit: %s}]
queries: [{name: jam, consumer: city, pattern: "AND(slow, clinic)"}]
"""


@pytest.mark.parametrize(
    ("slide", "limit", "allowed", "text"),
    [
        ("", "20 per day", (20, 144), "20 per day: enough for 20 of 144 windows."),
        (", slide: 5 min", "20.9 per day", (41, 288), "enough for 41 of 288 windows."),
        ("", "1 per 12 h", (1, 72), "enough for 1 of 72 windows."),
        ("", "144 per day", (144, 144), "enough for every window, so it is never reached."),
        ("", "1 per minute", (1, 1), "enough for every window, so it is never reached."),
    ],
)
def test_a_limit_is_reported_in_windows(
    slide: str, limit: str, allowed: tuple[int, int], text: str
) -> None:
    told = explain(loads(LIMITED % (slide, limit)))
    assert told.private[0].allowed == allowed
    assert text in " ".join(str(told).split())
    assert told.to_dict()["private"][0]["allowed"] == list(allowed)


@pytest.mark.parametrize(
    ("slide", "limit", "epsilon", "text"),
    [
        ("", "1 per day", 1, "all windows of a day into at most 74:26: epsilon 1 together."),
        ("", "2 per 12 h", 2, "all windows of 12 h into at most 89:11: epsilon 2 together."),
        ("", "1000 per day", 150, "near certainty: epsilon 150 together."),  # a day of 25 hours
        (", slide: 5 min", "1 per day", 2, "all events of a day into at most 89:11: epsilon 2"),
        (", slide: 5 min", "1 per 5 min", 3, "Windows of up to 3 limits see them."),
    ],
)
def test_a_limit_is_reported_as_odds_for_all_of_its_horizon(
    slide: str, limit: str, epsilon: float, text: str
) -> None:
    told = explain(loads(LIMITED % (slide, limit)))
    horizon = told.private[0].horizon
    assert horizon is not None
    assert horizon.epsilon == epsilon
    assert horizon.even >= exactly(Fraction(1, 2), Fraction(epsilon))
    assert text in " ".join(str(told).split())


def test_a_stay_counts_no_more_than_the_limits_that_it_touches() -> None:
    told = said(explain(loads(LIMITED % ("", "1 per day"))))
    assert "a stay of three windows they can turn into at most 89:11" in told
    assert "if there were no limit" in told
    assert "In every window that is paid for" in told


def test_three_windows_or_occurrences_may_touch_three_horizons() -> None:
    """Windows of 12 hours begin on three days if clocks are set forward on the second one."""
    for size in ("1 d", "12 h"):
        text = LIMITED % ("", "1 per day")
        told = said(explain(loads(text.replace("10 min", size))))
        assert "a stay of three windows they can turn into at most 96:4" in told
    told = said(explain(loads(LIMITED % (", slide: 5 min", "1 per day"))))
    assert "three occurrences together they can turn into at most 96:4" in told


@pytest.mark.parametrize(
    ("more", "spend", "text"),
    [
        ("", "paced", "Paced: where an answer gains most from it"),
        ("memory: false\n", "every", "On every open window until it is reached."),
        ("mechanism: uniform\n", "every", "On every open window until it is reached."),
    ],
)
def test_how_a_limit_is_spent_is_reported(more: str, spend: str, text: str) -> None:
    told = explain(loads(LIMITED % ("", "20 per day") + more))
    assert told.to_dict()["private"][0]["spend"] == spend
    assert text in said(told)
    every = LIMITED.replace("limit: %s", "limit: 20 per day, spend: every") % ""
    assert explain(loads(every + more)).private[0].spend == "every"


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_where_windows_slide_the_unit_is_an_occurrence(mechanism: str) -> None:
    text = LIMITED.replace("pattern: clinic, epsilon", 'pattern: "SEQ(clinic, slow)", epsilon')
    told = explain(loads(text % (", slide: 2 min", "20 per day") + f"mechanism: {mechanism}\n"))
    page = " ".join(str(told).split())
    assert told.to_dict()["unit"] == "one subject, one private pattern, one occurrence"
    assert "epsilon 1 for one subject, one private pattern, one occurrence" in page
    assert "10 min long, one every 2 min: 5 panes each" in page
    assert "a 50:50 guess about one occurrence of SEQ(clinic, slow)" in page
    assert "one event of each of P's element event types" in page
    assert "one window." not in page.split("What is guaranteed")[0]
    each_window = "One occurrence may change 9 windows: 1/9 for each of them."
    assert (each_window in page) == (mechanism == "optimal")
    assert ("In every pane, once" in page) == (mechanism == "uniform")
    odds = told.private[0].odds
    assert odds.windows_in_a_day == 720
    assert odds.epsilon_in_a_day == (80 if mechanism == "optimal" else 720)
    # A ninth is charged in whole billionths, rounded up.
    assert told.private[0].allowed == (179 if mechanism == "optimal" else 20, 720)
