"""Names in patterns: replaced by their trees, and every mistake told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random

import pytest

from tacit.errors import PatternError
from tacit.patterns.language import parse_pattern
from tacit.patterns.names import MAX_NODES, Names, check_aliases, resolve
from tacit.patterns.reference import detect
from tacit.patterns.tree import MAX_DEPTH, Name, Not, Pattern, Seq
from tests.patterns.strategies import random_pattern, random_window

EVENTS = frozenset({"a", "b", "c"})


def parsed(texts: Mapping[str, str]) -> dict[str, Pattern]:
    return {name: parse_pattern(text) for name, text in texts.items()}


def resolve_one(pattern: Pattern, patterns: Mapping[str, Pattern]) -> Pattern:
    """The pattern, with the names of others replaced by their trees."""
    return Names(patterns, EVENTS).resolve(pattern)


def mistakes(**texts: str) -> list[tuple[str | None, str | None, str]]:
    return [(m.pattern, m.word, m.message) for m in Names(parsed(texts), EVENTS).mistakes]


def test_names_are_replaced_by_their_trees_in_any_order_of_definition() -> None:
    found = resolve(parsed({"r": "AND(q, NOT p)", "q": "p{2}", "p": "SEQ(a, b)"}), EVENTS)
    assert {name: repr(tree) for name, tree in found.items()} == {
        "r": "AND(SEQ(a, b){2}, NOT SEQ(a, b))",
        "q": "SEQ(a, b){2}",
        "p": "SEQ(a, b)",
    }


def test_one_pattern_is_resolved_among_others() -> None:
    found = resolve_one(parse_pattern("SEQ(p, c)"), parsed({"p": "OR(a, b)"}))
    assert found == parse_pattern("SEQ(OR(a, b), c)")


def test_a_name_stands_for_its_tree_as_if_written_there() -> None:
    quiet = parsed({"quiet": "NOT b"})
    assert resolve_one(parse_pattern("SEQ(a, quiet, c)"), quiet) == parse_pattern(
        "SEQ(a, NOT b, c)"
    )


def test_an_unknown_name_is_reported_with_the_nearest_known_one() -> None:
    assert mistakes(parked="a", p="SEQ(parkd, zzz)") == [
        ("p", "parkd", "'parkd' is neither an event nor a pattern. Did you mean 'parked'?"),
        (
            "p",
            "zzz",
            "'zzz' is neither an event nor a pattern. Define it under events or patterns.",
        ),
    ]


def test_circles_are_named() -> None:
    found = mistakes(p="SEQ(a, q)", q="r", r="OR(b, p)", s="NOT s", t="p")
    assert [(pattern, word) for pattern, word, _ in found] == [("p", "q"), ("s", "s")]
    assert "p -> q -> r -> p" in found[0][2]
    assert "'s' refers to itself" in found[1][2]


def test_what_a_broken_pattern_breaks_is_not_told_again() -> None:
    names = Names(parsed({"p": "SEQ(a, zzz)", "q": "p{2}", "ok": "a"}), EVENTS)
    assert [mistake.pattern for mistake in names.mistakes] == ["p"]
    assert set(names.patterns) == {"ok"}
    assert names.check(parse_pattern("SEQ(q, a)"), "query") == []
    with pytest.raises(PatternError, match="'q' has a mistake"):
        names.resolve(parse_pattern("SEQ(q, a)"))


def test_all_mistakes_of_a_query_are_reported_with_its_name() -> None:
    names = Names({}, EVENTS)
    found = names.check(parse_pattern("SEQ(d, e, a p, b p) WHERE q.v > 1"), "jam")
    assert [(mistake.pattern, mistake.word) for mistake in found] == [
        ("jam", "d"),
        ("jam", "e"),
        ("jam", "p"),
        ("jam", "q"),
    ]


def test_an_event_and_a_pattern_may_not_share_a_name() -> None:
    assert mistakes(a="b")[0][:2] == ("a", "a")


def test_a_query_may_be_called_like_what_it_asks_for() -> None:
    assert Names({}, EVENTS).check(Name("a"), "a") == []


def test_doubling_is_refused_before_it_is_done() -> None:
    texts = {"p0": "a"} | {f"p{i}": f"SEQ(p{i - 1}, p{i - 1})" for i in range(1, 200)}
    started = time.process_time()
    names = Names(parsed(texts), EVENTS)
    assert time.process_time() - started < 5
    assert [m.pattern for m in names.mistakes] == ["p16"]
    assert f"more than {MAX_NODES} parts" in names.mistakes[0].message


def test_depth_through_names_is_refused() -> None:
    texts = {"p0": "a"} | {f"p{i}": f"NOT p{i - 1}" for i in range(1, 400)}
    names = Names(parsed(texts), EVENTS)
    assert [m.pattern for m in names.mistakes] == [f"p{MAX_DEPTH}"]


def test_a_long_chain_of_other_names_is_resolved() -> None:
    texts = {f"p{i}": f"p{i + 1}" for i in range(3000)} | {"p3000": "a"}
    assert resolve(parsed(texts), EVENTS)["p0"] == Name("a")


def test_a_deep_pattern_is_resolved() -> None:
    deep = parse_pattern("SEQ(p, NOT " * 100 + "p" + ")" * 100)
    found = resolve_one(deep, parsed({"p": "SEQ(a, b)"}))
    assert repr(found) == repr(deep).replace("p", "SEQ(a, b)")


def test_a_pattern_that_shares_its_parts_in_python_is_refused_in_time() -> None:
    pattern: Pattern = Name("a")
    for _ in range(100):
        pattern = Seq(pattern, pattern)
    assert f"{MAX_NODES} parts" in Names({}, EVENTS).check(pattern)[0].message


def test_many_patterns_are_resolved_in_seconds() -> None:
    patterns = {f"p{i}": Seq("a", f"p{i // 2}x", Not(f"p{i // 3}")) for i in range(1, 5_000)}
    started = time.process_time()
    assert len(Names(patterns, EVENTS).mistakes) >= 5_000
    assert time.process_time() - started < 15


@pytest.mark.parametrize(
    "text",
    [
        "SEQ(a p, b q) WHERE p.v < q.v",
        "OR(a p, b p) WHERE p.v < 1",
        "OR(SEQ(a p, b q), AND(c p, b q)) WHERE p.v < q.v",
        "SEQ(a p WHERE p.v > 1, b q) WITHIN 5 s WHERE p.v < q.v",
        "SEQ(a p, NOT (b q WHERE q.v > 1), c r) WHERE p.v < r.v",
        "(SEQ(a p, b q) WHERE p.v < q.v){3}",
        "a p",
    ],
)
def test_aliases_that_every_match_binds_are_fine(text: str) -> None:
    assert check_aliases(parse_pattern(text)) == []


@pytest.mark.parametrize(
    ("text", "word", "fragment"),
    [
        ("SEQ(a p, b p)", "p", "given twice"),
        ("AND(a p, OR(b p, c p))", "p", "given twice"),
        ("SEQ(a p, NOT (b p WHERE p.v > 1))", "p", "given twice"),
        ("SEQ(a, NOT b p)", "p", "inside a NOT"),
        ("(a p)+", "p", "inside a repetition"),
        ("SEQ(a p, b) WHERE q.v > 1", "q", "not an alias in the part before WHERE"),
        ("SEQ(a pickup_, b) WHERE pickup.v > 1", "pickup", "Did you mean 'pickup_'?"),
        ("OR(a p, b) WHERE p.v > 1", "p", "in every branch of the OR"),
        ("SEQ(a p, b q WHERE p.v > 1)", "p", "not an alias in the part before WHERE"),
        ("SEQ(c, NOT (a p WHERE p.v > 1)) WHERE p.v > 1", "p", "outside NOT and repetition"),
    ],
)
def test_a_wrong_alias_is_reported(text: str, word: str, fragment: str) -> None:
    found = check_aliases(parse_pattern(text))
    assert [mistake.word for mistake in found] == [word]
    assert fragment in found[0].message


def test_an_alias_on_a_pattern_is_a_mistake() -> None:
    ((pattern, word, message),) = mistakes(p="SEQ(a, b)", q="SEQ(p x, c)")
    assert (pattern, word) == ("q", "x")
    assert "'p' is a pattern" in message


def test_a_forgotten_comma_is_found_by_the_names() -> None:
    ((pattern, word, message),) = mistakes(p="SEQ(a b)")
    assert (pattern, word) == ("p", "b")
    assert "comma" in message


def test_the_aliases_of_a_used_pattern_stay_its_own() -> None:
    trip = parsed({"trip": "SEQ(a p, b q) WHERE p.v < q.v"})
    found = resolve_one(parse_pattern("SEQ(trip, trip, c p) WHERE p.v > 1"), trip)
    assert found == parse_pattern(
        "SEQ(SEQ(a p_2, b q) WHERE p_2.v < q.v, SEQ(a p_3, b q_2) WHERE p_3.v < q_2.v, c p)"
        " WHERE p.v > 1"
    )
    assert check_aliases(found) == []
    with pytest.raises(PatternError, match="'q', which is not an alias"):
        resolve_one(parse_pattern("trip WHERE q.v > 1"), trip)


def test_new_aliases_are_neither_events_nor_taken() -> None:
    names = Names(parsed({"p": "a e WHERE e.v > 1"}), EVENTS | {"e_2"})
    found = names.resolve(parse_pattern("SEQ(p, p, b e_3)"))
    assert found == parse_pattern("SEQ(a e WHERE e.v > 1, a e_4 WHERE e_4.v > 1, b e_3)")
    assert names.check(found) == []


def test_replacing_names_keeps_what_is_detected() -> None:
    rng = Random(5)
    for _ in range(200):
        inner = random_pattern(rng, depth=2, where=True)
        outer = random_pattern(rng, ("p", "a"), 2)
        window = random_window(rng, most=4, attributes=True)
        found = resolve_one(outer, {"p": inner})
        assert check_aliases(found) == []
        written = parse_pattern(repr(outer).replace("p", f"({inner!r})"))
        assert detect(found, window) == detect(written, window)
