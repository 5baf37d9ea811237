"""Patterns in text: read, printed, and refused with a helpful place and word."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PatternError
from tacit.patterns.conditions import (
    Arithmetic,
    Attribute,
    Comparison,
    Conjunction,
    Constant,
    Disjunction,
    Negation,
)
from tacit.patterns.language import find_word, parse_condition, parse_pattern
from tacit.patterns.tree import (
    MAX_DEPTH,
    And,
    Name,
    Not,
    Or,
    Pattern,
    Repeat,
    Seq,
    Where,
    Within,
    depth,
)
from tests.patterns.strategies import patterns

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", Name("a")),
        ("((a))", Name("a")),
        ("pickup p", Name("pickup", "p")),
        ("SEQ(a, b)", Seq("a", "b")),
        ("seq(a, And(b, oR(c)))", Seq("a", And("b", Or("c")))),
        ("SEQUENCE", Name("SEQUENCE")),
        ("SEQ(notable, within_, d)", Seq("notable", "within_", "d")),
        ("NOT a", Not("a")),
        ("NOT(a)", Not("a")),
        ("NOT NOT a", Not(Not("a"))),
        ("a+", Repeat(Name("a"), 1, None)),
        ("a{2}", Repeat(Name("a"), 2, 2)),
        ("a{2,}", Repeat(Name("a"), 2, None)),
        ("a { 2 , 3 }", Repeat(Name("a"), 2, 3)),
        ("SEQ(a, b)+", Repeat(Seq("a", "b"), 1, None)),
        ("NOT a+", Not(Repeat(Name("a"), 1, None))),
        ("(NOT a)+", Repeat(Not("a"), 1, None)),
        ("a+{2}", Repeat(Repeat(Name("a"), 1, None), 2, 2)),
        ("a WITHIN 10 min", Within(Name("a"), 600 * SECOND)),
        ("a WITHIN 1.5s", Within(Name("a"), 1_500_000)),
        ("a+ WITHIN 5 s", Within(Repeat(Name("a"), 1, None), 5 * SECOND)),
        ("NOT a WITHIN 5 s", Not(Within(Name("a"), 5 * SECOND))),
        ("(NOT a) WITHIN 5 s", Within(Not("a"), 5 * SECOND)),
        ("SEQ(a, NOT b, c) -- why\n WITHIN 5 s --", Within(Seq("a", Not("b"), "c"), 5 * SECOND)),
        (
            "a d WITHIN 5 d WHERE d.v > 1 WITHIN 6 d",
            Within(
                Where(
                    Within(Name("a", "d"), 432_000 * SECOND),
                    Comparison(">", Attribute("d", "v"), Constant(1)),
                ),
                518_400 * SECOND,
            ),
        ),
    ],
)
def test_text_becomes_a_tree(text: str, tree: Pattern) -> None:
    assert parse_pattern(text) == tree


V = Attribute("p", "v")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("p.v == 1", Comparison("=", V, Constant(1))),
        ("p.v != 1.5", Comparison("<>", V, Constant(1.5))),
        ("p.v <= -1", Comparison("<=", V, Constant(-1))),
        ("p.v >= 1e3", Comparison(">=", V, Constant(1000.0))),
        ("p.v = 'it''s'", Comparison("=", V, Constant("it's"))),
        ("p.v = true", Comparison("=", V, Constant(True))),
        ('p."my col" = 1', Comparison("=", Attribute("p", "my col"), Constant(1))),
        (
            "p.v < 1 + 2 * p.v",
            Comparison("<", V, Arithmetic("+", Constant(1), Arithmetic("*", Constant(2), V))),
        ),
        (
            "p.v - 1 - 2 < 0",
            Comparison(
                "<", Arithmetic("-", Arithmetic("-", V, Constant(1)), Constant(2)), Constant(0)
            ),
        ),
        (
            "(p.v + 1) % 2 = -p.v",
            Comparison(
                "=",
                Arithmetic("%", Arithmetic("+", V, Constant(1)), Constant(2)),
                Arithmetic("-", Constant(0), V),
            ),
        ),
        (
            "NOT p.v = 1 AND p.v = 2 OR p.v = 3",
            Disjunction(
                Conjunction(
                    Negation(Comparison("=", V, Constant(1))), Comparison("=", V, Constant(2))
                ),
                Comparison("=", V, Constant(3)),
            ),
        ),
        (
            "NOT (p.v = 1 OR (p.v) = 2)",
            Negation(Disjunction(Comparison("=", V, Constant(1)), Comparison("=", V, Constant(2)))),
        ),
    ],
)
def test_text_becomes_a_condition(text: str, condition: Any) -> None:
    assert parse_condition(text) == condition
    assert repr(parse_condition(repr(condition))) == repr(condition)


@given(patterns(depth=4) | patterns(depth=3, where=True))
def test_what_is_printed_is_read_as_the_same_tree(pattern: Pattern) -> None:
    again = parse_pattern(repr(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert repr(again) == repr(pattern)


@given(
    st.one_of(
        st.integers(-(2**52), 2**52),
        st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18),
        st.text(),
        st.booleans(),
    ),
    st.text(min_size=1),
)
def test_constants_and_columns_are_printed_without_loss(value: Any, column: str) -> None:
    condition = Comparison("=", Attribute("p", column), Constant(value))
    assert repr(parse_condition(repr(condition))) == repr(condition)
    assert parse_condition(repr(condition)) == condition


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "expected a name, SEQ, AND, OR, NOT or '(', but the pattern ends here."),
        ("SEQ(a b c)", 1, 9, "got 'c'. Is a comma missing before it?"),
        ("SEQ(a,\n  b SEQ(c))", 2, 5, "Is a comma missing"),
        ("SEQ()", 1, 5, "Put at least one part there"),
        ("SEQ(a,)", 1, 7, "Remove the last comma"),
        ("SEQ a, b", 1, 5, "expected '('; got 'a'"),
        ("a AND b", 1, 3, "AND(a, b)"),
        ("SEQ(a or b)", 1, 7, "OR(a, b)"),
        ("SEQ(a,\n AND(b, c)", 2, 11, "The '(' at line 1, column 4 is not closed"),
        ("SEQ(a, ')', b", 1, 8, "A name has letters"),
        ("a)", 1, 2, "There is no '(' for this ')'"),
        ("a{0}", 1, 3, "counts from 1"),
        ("a{0,2}", 1, 3, "counts from 1"),
        ("a{3,2}", 1, 3, "at least its smallest"),
        ("a{2.5}", 1, 3, "whole numbers"),
        ("a{1001}", 1, 3, "up to 1000"),
        ("a{99999999999999999999}", 1, 3, "up to 1000"),
        ("a{}", 1, 3, "expected a number"),
        ("a*", 1, 2, "a+"),
        ("a[2]", 1, 2, "a{2,3}"),
        ("a WITHIN 5 parsecs", 1, 10, "us, ms, s, min, h or d"),
        ("a WITHIN 5", 1, 11, "expected a unit of time (us, ms, s, min, h or d)"),
        ("a WITHIN min", 1, 10, "expected a duration, such as '10 min'"),
        ("a WITHIN 0.1 us", 1, 10, "finer than a microsecond"),
        ("SEQ(a, where)", 1, 8, "It is a keyword: choose another name."),
        ("at-hospital", 1, 3, "A name has letters"),
        ("2nd", 1, 1, "does not begin with a digit"),
        ("é", 1, 1, "A name has letters"),
        ("SEQ(a, speed < 3)", 1, 14, "Put comparisons after WHERE"),
        ("a p WHERE p.v", 1, 14, "A condition compares"),
        ("a p WHERE p", 1, 12, "alias.column"),
        ("a p WHERE p.v = 'x", 1, 17, "no closing quote"),
        ("a p WHERE 1 < p.v < 3", 1, 19, "Join comparisons with AND"),
        ("a p WHERE p.where > 3", 1, 13, "needs double quotes"),
        ("a p WHERE p.v < 1e999", 1, 17, "too large"),
        ("a p WHERE p.v < " + "9" * 5000, 1, 17, "too large"),
        ("a p WHERE p.v < 1e999)", 1, 17, "too large"),
    ],
)
def test_a_slip_is_reported_with_its_place(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse_pattern(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert words in caught.value.message


@given(st.text(alphabet="ab(),{}+SEQANDORNOT WITHIN5smin.p<>='\"-*\n", max_size=40) | st.text())
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    refused = None
    try:
        pattern = parse_pattern(text)
    except PatternError as error:
        refused = error
    if refused is None:
        assert parse_pattern(repr(pattern)) == pattern
    else:
        assert refused.line is not None
        assert refused.column is not None
        assert 1 <= refused.line <= text.count("\n") + 1
        assert 1 <= refused.column <= len(text) + 1
        assert not {"LPAR", "RPAR", "COMMA", "$END", "Token"} & set(refused.message.split())


DEEP = {
    "parts": "SEQ(a, " * (MAX_DEPTH - 1) + "a" + ")" * (MAX_DEPTH - 1),
    "all kinds": "AND(NOT SEQ(b, " * 49 + "a" + ")+ WITHIN 5 s)" * 49,
    "NOT": "NOT " * (MAX_DEPTH - 1) + "a",
    "repetition": "a" + "+" * (MAX_DEPTH - 1),
    "WITHIN": "a" + " WITHIN 5 s" * (MAX_DEPTH - 1),
    "WHERE": "a p" + " WHERE p.v = 1" * (MAX_DEPTH - 1),
    "condition": "a p WHERE " + "NOT " * (MAX_DEPTH - 2) + "p.v = 1",
    "term": "a p WHERE p.v = " + " + ".join(["p.v"] * (MAX_DEPTH - 1)),
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_deep_pattern_is_read_printed_compared_and_hashed(kind: str) -> None:
    pattern = parse_pattern(DEEP[kind])
    again = parse_pattern(repr(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert depth(again) <= MAX_DEPTH


@pytest.mark.parametrize(
    "text",
    [
        "NOT " * MAX_DEPTH + "a",
        "NOT " * 20_000 + "a",
        "SEQ(" * 20_000 + "a" + ")" * 20_000,
        "a p WHERE " + "NOT " * 20_000 + "p.v = 1",
        "a p WHERE p.v = " + " + ".join(["p.v"] * 20_000),
    ],
    ids=["one too deep", "NOT", "SEQ", "condition", "term"],
)
def test_a_pattern_that_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(PatternError, match=f"more than {MAX_DEPTH} deep"):
        parse_pattern(text)


def test_many_parentheses_are_not_depth() -> None:
    assert parse_pattern("(" * 20_000 + "a" + ")" * 20_000) == Name("a")


def test_patterns_are_read_at_some_thousands_a_second() -> None:
    parse_pattern("a")
    started = time.process_time()
    for number in range(2_000):
        parse_pattern(f"SEQ(a{number}, NOT b, c{{2,}}) WITHIN 10 min")
    assert time.process_time() - started < 4


def test_the_grammar_is_not_built_on_import() -> None:
    code = "import sys, tacit.patterns.language; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Seq(),
        lambda: Name("NOT"),
        lambda: Name("at hospital"),
        lambda: Name("a", "within"),
        lambda: Repeat(Name("a"), 0, None),
        lambda: Repeat(Name("a"), 3, 2),
        lambda: Name("a").repeat(1001),
        lambda: Within(Name("a"), -1),
        lambda: Constant(float("inf")),
    ],
)
def test_a_tree_that_could_not_be_written_is_refused_in_python_too(build: Any) -> None:
    with pytest.raises(PatternError):
        build()


def test_python_and_text_make_the_same_tree() -> None:
    built = Seq(Name("pickup", "p"), Not("stop"), Name("dropoff", "d")).within(minutes=10)
    text = "SEQ(pickup p, NOT stop, dropoff d) WITHIN 10 min WHERE d.fare > 2 * p.fare"
    assert built.where("d.fare > 2 * p.fare") == parse_pattern(text)
    assert Name("a").repeat(2) == parse_pattern("a{2}")
    assert Name("a").repeat(2, unbounded=True) == parse_pattern("a{2,}")


@pytest.mark.parametrize(
    ("text", "word", "place"),
    [
        ("SEQ(pickup,\n  parkd)", "parkd", (2, 3)),
        ("parked -- parkd\n, parkd", "parkd", (2, 3)),
        ("a WHERE p.v = 'parkd' AND parkd.v = 1", "parkd", (1, 27)),
        ("SEQ(a)", "b", None),
    ],
)
def test_a_word_is_found_in_the_text(text: str, word: str, place: tuple[int, int] | None) -> None:
    assert find_word(text, word) == place


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a -> b", "Order is written SEQ(a, b)."),
        ("a THEN b", "Order is written SEQ(a, b)."),
        ("SEQ(a{3} => b)", "Order is written SEQ(a, b)."),
        ("a followed by b", "Order is written SEQ(a, b)."),
        ("COUNT(a) > 3", "Repetition is written a{4,}"),
        ("SEQ(a, MAX(b))", "There is no operator 'MAX'"),
        ("a, b", "Several parts are written SEQ(a, b), AND(a, b) or OR(a, b)."),
    ],
)
def test_words_of_other_languages_give_a_hint(text: str, hint: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse_pattern(text)
    assert hint in str(caught.value)
