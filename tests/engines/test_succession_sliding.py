"""New terms while windows slide: no window lost, and no occurrence told by both terms."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.engines.local import plan
from tacit.engines.terms import Terms
from tacit.errors import SpecificationError
from tacit.spec.reading import loads
from tests.engines.test_succession import (
    HEAD,
    NEW,
    OLD,
    Answer,
    Row,
    Run,
    alone,
    cuts,
    terms,
    tuples,
)

SLIDES = HEAD.replace("size: 10 us", "size: 15 us, slide: 5 us")
PANE, PANES = 5, 3
GUARDED = """
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
  c: {stream: s, where: "kind = 2"}
patterns: {visit: "SEQ(a, b)"}
"""
PRIVATE = "private: [{pattern: visit, epsilon: 60}]\n"
BEFORE = (
    SLIDES
    + GUARDED
    + PRIVATE
    + """
queries:
  - {name: first, consumer: x, pattern: "AND(a, c)", alpha: 0.5}
  - {name: second, consumer: x, pattern: "AND(b, c)", alpha: 0.5}
  - {name: open, consumer: x, pattern: c}
"""
)
AFTER = BEFORE + '  - {name: third, consumer: x, pattern: "AND(a, b)"}\n'
TICKS: list[Row] = [(1, at, 2, 0.0) for at in range(0, 160, 5)]
"""A public event in each of 32 panes, so that queries ask for private ones alone."""
CHANGE = 47
"""When the terms change."""
HISTORY = pa.table(
    {
        "who": [1] * 120,
        "at": [5 * n for n in range(120)],
        "kind": [0 if n % 13 == 0 else 1 if n % 17 == 0 else 2 for n in range(120)],
        "value": [0.0] * 120,
    }
)
"""Private events are rare, so that whoever does not look at them says that there are none."""


def sliding(text: str) -> Terms:
    """Terms with windows of three panes and nothing private."""
    return terms(text.replace(HEAD, SLIDES))


def private_terms(text: str, mechanism: str) -> Terms:
    """Terms with so large an epsilon that answers hardly differ from the true ones."""
    spec = loads(text)
    return Terms(spec, plan(spec, HISTORY, mechanism=mechanism))


@settings(max_examples=150, deadline=None)
@given(tuples, cuts, st.integers(0, 40), st.integers(0, 40))
def test_public_answers_are_those_of_the_terms_that_a_window_is_under(
    some: list[Row], places: list[int], change: int, lost: int
) -> None:
    """Also after a crash, and for tuples compared with each other across the panes."""
    run = Run(sliding(OLD))
    begin: int | None = None
    now = sliding(OLD)
    for place, following in zip(
        points := sorted({0, change, lost, *places}), [*points[1:], None], strict=True
    ):
        if place == change:
            now = sliding(NEW)
            run.engine.offer(now)
            while run.engine.due:
                run.engine.turn()
                if run.engine.heir is not None:
                    begin = run.engine.heir.begin
        if place == lost:
            run.crash(now)
        run.take(some[place:following])
    found = run.finish()
    old, new = alone(sliding(OLD), some)[0], alone(sliding(NEW), some)[0]
    if begin is None:
        assert found in (old, new)
        return
    expected = {key: told for key, told in old.items() if key[0] < begin * PANE}
    expected |= {key: told for key, told in new.items() if key[0] >= begin * PANE}
    assert found == expected


def answered(mechanism: str, events: Sequence[Row], crash: int | None = None) -> tuple[int, Run]:
    """The first window of the new terms, by its last pane, and the run."""
    some = sorted([*TICKS, *events], key=lambda row: row[1])
    run = Run(private_terms(BEFORE, mechanism))
    run.take([row for row in some if row[1] < CHANGE])
    run.offer(private_terms(AFTER, mechanism))
    assert run.engine.heir is not None
    boundary = run.engine.heir.boundary
    for row in some:
        if row[1] >= CHANGE:
            if row[1] == crash:
                run.crash(run.engine.latest)
            run.take([row])
    run.finish()
    return boundary, run


@pytest.mark.parametrize("crash", [None, 60, 80])
@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_no_occurrence_inside_one_window_is_told_by_both_terms(
    mechanism: str, crash: int | None
) -> None:
    """A private event in any one pane: the windows of which terms does it change?"""
    boundary, quiet = answered(mechanism, [], crash)
    old: set[int] = set()
    new: set[int] = set()
    for pane in range(32):
        for kind in (0, 1):
            same, run = answered(mechanism, [(1, pane * PANE + 1, kind, 0.0)], crash)
            assert same == boundary
            for key, said in quiet.answers.items():
                if run.answers[key] != said:
                    (old if last_pane(key) < boundary else new).add(pane)
    assert old == set(range(boundary))
    assert new == set(range(boundary + PANES - 1, 32))
    assert min(new) - max(old) >= PANES  # so no window has panes of both


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_windows_that_are_answered_blind_still_tell_what_is_public(mechanism: str) -> None:
    boundary, run = answered(mechanism, [(1, at, 0, 0.0) for at in range(1, 160, 5)])
    assert {key[0] for key in run.answers} == set(range(-2 * PANE, 160, PANE))
    told = {last_pane(key): said for key, said in run.answers.items() if key[1:] == (1, "open")}
    assert all(told.values())
    first = {last_pane(key): said for key, said in run.answers.items() if key[1:] == (1, "first")}
    sighted = boundary + (1 if mechanism == "uniform" else 2) * (PANES - 1)
    assert [pane for pane, said in first.items() if not said] == list(range(boundary, sighted))


def test_terms_that_change_again_at_once_leave_a_gap_again() -> None:
    run = Run(private_terms(BEFORE, "uniform"))
    events = sorted([*TICKS, *[(1, row[1] + 1, 0, 0.0) for row in TICKS]], key=lambda row: row[1])
    blind = []
    for number, row in enumerate(events):
        if number in (10, 16):
            run.engine.offer(private_terms(AFTER if number == 10 else BEFORE, "uniform"))
        run.take([row])
        if run.engine.heir is not None and run.engine.heir.boundary not in blind:
            blind.append(run.engine.heir.boundary)
    run.finish()
    assert len(blind) == 2
    first = {last_pane(key): said for key, said in run.answers.items() if key[1:] == (1, "first")}
    gaps = {pane + more for pane in blind for more in range(PANES - 1)}
    assert {pane for pane, said in first.items() if not said} == gaps


@pytest.mark.parametrize(
    ("private", "told"),
    [
        ("", ["a", "b"]),
        ("private: [{pattern: a, epsilon: 60}]\n", ["b"]),
        ("private: [{pattern: visit, epsilon: 60, subjects: [1, 2]}]\n", ["a", "b"]),
        ("private: [{pattern: b, epsilon: 1}, {pattern: c, epsilon: 1}]\n", ["a"]),
        ("private: [{pattern: visit, epsilon: 1}, {pattern: c, epsilon: 1}]\n", []),
    ],
)
def test_what_is_private_stays_private_while_windows_slide(private: str, told: list[str]) -> None:
    """A window of the new terms would show what one of the old terms was to keep."""
    run = Run(private_terms(BEFORE, "uniform"))
    run.take(TICKS[:5])
    changed = private_terms(BEFORE.replace(PRIVATE, private), "uniform")
    if not told:
        run.offer(changed)
        assert run.engine.heir is not None
        return
    with pytest.raises(SpecificationError) as error:
        run.offer(changed)
    assert [mistake.message.split()[3] for mistake in error.value.mistakes] == told


def test_subjects_who_keep_a_pattern_private_may_only_become_more() -> None:
    few = BEFORE.replace("epsilon: 60}", "epsilon: 60, subjects: [1, 2]}")
    for subjects, fine in (("[2, 1, 3]", True), ("[1, 3]", False)):
        run = Run(private_terms(few, "uniform"))
        changed = private_terms(few.replace("[1, 2]", subjects), "uniform")
        if fine:
            run.offer(changed)
            continue
        with pytest.raises(SpecificationError, match="a cannot become public"):
            run.offer(changed)


def test_what_became_private_a_moment_ago_stays_so_too() -> None:
    """Windows of the terms that are just being taken up are still to come."""
    run = Run(private_terms(BEFORE, "uniform"))
    run.take(TICKS[:5])
    more = PRIVATE.replace("}]", "}, {pattern: c, epsilon: 60}]")
    run.offer(private_terms(BEFORE.replace(PRIVATE, more), "uniform"))
    assert run.engine.heir is not None
    with pytest.raises(SpecificationError, match="c cannot become public"):
        run.offer(private_terms(AFTER, "uniform"))


def last_pane(key: Answer) -> int:
    """The number of the pane with which a window ends."""
    return key[0] // PANE + PANES - 1
