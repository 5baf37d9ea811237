"""Counts and answers about single subjects share each private pattern's epsilon."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tacit.patterns.tree import elements
from tacit.spec.epsilon_split import count_touched_windows, find_overspending, split_epsilon
from tacit.spec.specification import Specification

TYPES = "abcdef"


def make(
    private: list[tuple[str, float]],
    patterns: list[str],
    counts: list[tuple[str, float | None]],
    windows: dict[str, str] | None = None,
) -> Specification:
    """A specification with these private patterns, queries and counts."""
    asked: list[dict[str, object]] = [
        {"name": f"q{n}", "consumer": "c", "pattern": p} for n, p in enumerate(patterns)
    ]
    asked += [
        {"name": f"n{n}", "consumer": "c", "count": p} | ({"share": s} if s else {})
        for n, (p, s) in enumerate(counts)
    ]
    return Specification.model_validate(
        {
            "streams": {"s": {"subject": "who", "time": "when"}},
            "windows": windows or {"size": "10 min"},
            "events": {name: {"stream": "s"} for name in TYPES},
            "private": [{"pattern": p, "epsilon": epsilon} for p, epsilon in private],
            "queries": asked,
        }
    )


def test_counts_alone_get_all_of_epsilon() -> None:
    split = split_epsilon(make([("a", 1.5)], ["b"], [("AND(a, b)", None)]))
    assert split.counts == {"n0": Fraction(3, 2)}
    assert split.left == {"a": 0}


def test_counts_leave_half_for_answers_about_single_subjects() -> None:
    split = split_epsilon(make([("a", 1), ("b", 2)], ["a"], [("a", None), ("b", None)]))
    assert split.counts == {"n0": Fraction(1, 2), "n1": Fraction(2)}
    assert split.left == {"a": Fraction(1, 2), "b": 0}


def test_a_pattern_beside_one_that_is_asked_about_keeps_a_part() -> None:
    split = split_epsilon(make([("AND(a, b)", 1), ("AND(b, c)", 1)], ["c"], [("a", None)]))
    assert split.left == {"AND(a, b)": Fraction(1, 2)}


def test_a_count_gets_the_least_share() -> None:
    split = split_epsilon(make([("a", 1), ("b", 4)], [], [("AND(a, b)", None), ("b", None)]))
    assert split.counts == {"n0": Fraction(1), "n1": Fraction(2)}


def test_a_count_of_public_events_costs_nothing() -> None:
    split = split_epsilon(make([("a", 1)], ["a"], [("b", None)]))
    assert split.counts == {"n0": 0}
    assert split.left == {}


def test_a_share_is_a_share_of_epsilon_and_the_rest_is_split() -> None:
    split = split_epsilon(make([("a", 2)], [], [("a", 0.25), ("a", None)]))
    assert split.counts == {"n0": Fraction(1, 2), "n1": Fraction(3, 2)}
    assert list(find_overspending(make([("a", 2)], [], [("a", 0.25), ("a", None)]))) == []


def test_windows_that_overlap_share_the_epsilon_of_an_occurrence() -> None:
    sliding = {"size": "30 min", "slide": "10 min"}
    split = split_epsilon(
        make([("AND(a, b)", 1), ("c", 1)], [], [("a", None), ("c", None)], sliding)
    )
    assert split.counts == {"n0": Fraction(1, 5), "n1": Fraction(1, 3)}


shapes = st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True).map(
    lambda names: f"AND({', '.join(names)})" if len(names) > 1 else names[0]
)


@given(
    st.lists(st.tuples(shapes, st.sampled_from([0.5, 1, 3])), max_size=3),
    st.lists(shapes, max_size=2),
    st.lists(st.tuples(shapes, st.sampled_from([None, None, 0.1, 0.3])), max_size=3),
    st.sampled_from([{"size": "10 min"}, {"size": "20 min", "slide": "10 min"}]),
)
def test_no_pattern_spends_more_than_its_epsilon(
    private: list[tuple[str, float]],
    patterns: list[str],
    counts: list[tuple[str, float | None]],
    windows: dict[str, str],
) -> None:
    spec = make(private, patterns, counts, windows)
    if list(find_overspending(spec)):
        return
    split = split_epsilon(spec)
    for one, pattern in zip(spec.private, spec.private_patterns, strict=True):
        own = {*elements(pattern)}
        touching = [n for n, found in spec.count_patterns.items() if own & {*elements(found)}]
        spent = sum((split.counts[name] for name in touching), Fraction(0))
        spent *= count_touched_windows(own, spec.windows.panes)
        epsilon = Fraction(one.epsilon)
        assert spent + split.left.get(one.name, Fraction(bool(not touching))) * epsilon <= epsilon
        if touching and any(own & {*elements(p)} for p in spec.query_patterns.values()):
            assert split.left[one.name] > 0
        assert all(split.counts[name] > 0 for name in touching)
