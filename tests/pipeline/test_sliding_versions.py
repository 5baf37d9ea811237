"""New terms while windows slide: no window lost, and no occurrence told by both terms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.engines.local import plan
from tacit.errors import SpecificationError
from tacit.events.streams import ColumnType
from tacit.pipeline import definitions
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.columntypes import SpecColumns
from tacit.spec.yaml_reader import load, loads
from tests.pipeline.test_versions import (
    HEAD,
    NEW,
    OLD,
    WHO,
    Answer,
    FedEngine,
    Row,
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
LAST = 32
"""How many panes a run has."""
QUIET = 10
"""A subject without private events."""
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
"""Private events are rare, so an answer that ignores them says that there are none."""


def sliding(text: str) -> SpecVersion:
    """SpecVersion with windows of three panes and nothing private."""
    return terms(text.replace(HEAD, SLIDES))


@cache
def private_terms(text: str, mechanism: str) -> SpecVersion:
    """SpecVersion with so large an epsilon that answers hardly differ from the true ones."""
    spec = loads(text)
    return SpecVersion(spec, plan(spec, HISTORY, mechanism=mechanism))


@settings(max_examples=40)
@given(tuples, cuts, st.integers(0, 40), st.integers(0, 40))
def test_public_answers_are_those_of_the_terms_that_a_window_is_under(
    some: list[Row], places: list[int], change: int, lost: int
) -> None:
    """Also after a crash, and for tuples compared with each other across the panes."""
    run = FedEngine(sliding(OLD))
    begin: int | None = None
    now = sliding(OLD)
    for place, following in zip(
        points := sorted({0, change, lost, *places}), [*points[1:], None], strict=True
    ):
        if place == change:
            now = sliding(NEW)
            run.engine.offer(now)
            while run.engine.due:
                run.engine.advance()
                if run.engine.windows.next is not None:
                    begin = run.engine.windows.next.begin
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


def reloaded(
    mechanism: str,
    after: str,
    events: Sequence[Row] = (),
    before: str = BEFORE,
    crash: int | None = 70,
) -> tuple[int, FedEngine]:
    """The first window of the new terms, by its last pane, and a run that changes to them.

    Each subject of `QUIET` on has a public event in every pane, so that queries ask for private
    ones alone.
    """
    who = sorted({QUIET, *(row[0] for row in events)})
    ticks = [(one, pane * PANE, 2, 0.0) for pane in range(LAST) for one in who]
    some = sorted([*ticks, *events], key=lambda row: row[1])
    run = FedEngine(private_terms(before, mechanism), who=[*WHO, *who])
    run.take([row for row in some if row[1] < CHANGE])
    run.offer(private_terms(after, mechanism))
    assert run.engine.windows.next is not None
    boundary = run.engine.windows.next.boundary
    for at, same in groupby((row for row in some if row[1] >= CHANGE), key=lambda row: row[1]):
        if at == crash:
            run.crash(run.engine.latest)
        run.take(list(same))
    run.finish()
    return boundary, run


def changed_by(
    mechanism: str,
    after: str,
    kinds: Sequence[int],
    before: str = BEFORE,
    crash: int | None = 70,
) -> tuple[int, dict[str, set[int]], dict[str, set[int]]]:
    """Of which panes an event of these kinds is seen, by old and by new windows, for each query.

    Every pane and kind has a subject to itself, with this one event. Also the first new window.
    """
    places = [(pane, kind) for pane in range(LAST) for kind in kinds]
    events = [
        (who, pane * PANE + 1, kind, 0.0) for who, (pane, kind) in enumerate(places, QUIET + 1)
    ]
    boundary, run = reloaded(mechanism, after, events, before, crash)
    same, quiet = reloaded(mechanism, after, [], before, crash)
    assert same == boundary
    assert quiet.answers == {key: yes for key, yes in run.answers.items() if key[1] <= QUIET}
    old: dict[str, set[int]] = {}
    new: dict[str, set[int]] = {}
    for key, said in run.answers.items():
        start, who, query = key
        if who > QUIET and said != quiet.answers[start, QUIET, query]:
            told = old if last_pane(key) < boundary else new
            told.setdefault(query, set()).add(places[who - QUIET - 1][0])
    return boundary, old, new


@pytest.mark.parametrize("crash", [None, 60, 80])
@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_no_occurrence_inside_one_window_is_told_by_both_terms(
    mechanism: str, crash: int | None
) -> None:
    """A private event in any one pane: the windows of which terms does it change?"""
    boundary, by_old, by_new = changed_by(mechanism, AFTER, (0, 1), BEFORE, crash)
    old, new = set().union(*by_old.values()), set().union(*by_new.values())
    assert old == set(range(boundary))
    assert new == set(range(boundary + PANES - 1, LAST))
    assert min(new) - max(old) >= PANES  # so no window has panes of both


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_windows_that_are_answered_blind_still_tell_what_is_public(mechanism: str) -> None:
    everywhere = [(QUIET, pane * PANE + 1, 0, 0.0) for pane in range(LAST)]
    boundary, run = reloaded(mechanism, AFTER, everywhere, crash=None)
    assert {key[0] for key in run.answers} == set(range(-2 * PANE, 160, PANE))
    assert all(answers_to("open", run).values())
    first = answers_to("first", run)
    protected_from = boundary + (1 if mechanism == "uniform" else 2) * (PANES - 1)
    same, without = reloaded(mechanism, AFTER, [], crash=None)
    assert same == boundary
    quiet = answers_to("first", without)
    blind = [pane for pane, said in first.items() if said == quiet[pane]]
    assert blind == list(range(boundary, protected_from))


def test_terms_that_change_again_at_once_leave_a_gap_again() -> None:
    run = FedEngine(private_terms(BEFORE, "uniform"), who=[QUIET])
    events = [
        (QUIET, pane * PANE + later, kind, 0.0)
        for pane in range(LAST)
        for later, kind in ((0, 2), (1, 0))
    ]
    public_only = []
    for number, row in enumerate(events):
        if number in (10, 16):
            run.engine.offer(private_terms(AFTER if number == 10 else BEFORE, "uniform"))
        run.take([row])
        if (
            run.engine.windows.next is not None
            and run.engine.windows.next.boundary not in public_only
        ):
            public_only.append(run.engine.windows.next.boundary)
    run.finish()
    assert len(public_only) == 2
    first = answers_to("first", run)
    gaps = {pane + more for pane in public_only for more in range(PANES - 1)}
    assert {pane for pane, said in first.items() if not said} == gaps


OTHER = """
events:
  y: {stream: s, where: "kind = 3"}
  x: {stream: s, where: "kind = 0"}
  c: {stream: s, where: "kind = 2"}
  a: {stream: s, where: "kind = 4"}
  b: {stream: s, where: "kind = 5"}
"""
REDEFINED = (
    SLIDES
    + OTHER
    + """
patterns: {visit: "SEQ(a, b)"}
private: [{pattern: visit, epsilon: 60}]
queries:
  - {name: told, consumer: x, pattern: x}
  - {name: news, consumer: x, pattern: y}
  - {name: open, consumer: x, pattern: c}
  - {name: first, consumer: x, pattern: "AND(a, c)"}
"""
)
"""The names of what was private now mean something else; `x` means what was private before."""
UNGUARDED = BEFORE.replace(PRIVATE, "")
WIDER = REDEFINED.replace('x: {stream: s, where: "kind = 0"}', 'x: {stream: s, where: "kind < 2"}')
WORDED = REDEFINED.replace("kind = 0", "kind + 1 = 1")
FEWER = BEFORE.replace("epsilon: 60}", "epsilon: 60, subjects: [2, 3]}")


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
@pytest.mark.parametrize(
    ("after", "query"),
    [
        (REDEFINED, "told"),  # the old definition under a public name
        (WIDER, "told"),  # a condition that it implies
        (WORDED, "told"),  # the same in other words
        (UNGUARDED, "first"),  # nothing is private any more
        (FEWER, "first"),  # others keep it private, this subject no longer does
    ],
)
def test_what_was_private_shows_only_where_no_old_window_sees_any_part_of_it(
    mechanism: str, after: str, query: str
) -> None:
    """An occurrence is at most a window long, so it may reach so far past the last old window."""
    boundary, _, seen = changed_by(mechanism, after, [0])
    assert seen[query] == set(range(boundary + PANES - 1, LAST))
    assert set().union(*seen.values()) == seen[query]


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_a_type_that_was_public_before_shows_in_every_pane_under_any_name(mechanism: str) -> None:
    renamed = REDEFINED.replace("c: {", "tick: {").replace("pattern: c}", "pattern: tick}")
    renamed = renamed.replace("AND(a, c)", "AND(a, tick)")
    boundary, run = reloaded(mechanism, renamed)
    told = answers_to("open", run)
    assert min(told) < boundary
    assert all(told.values())


def test_a_type_that_is_new_is_seen_from_the_same_pane_on_as_private_ones() -> None:
    """Nobody can say in general whether a condition lets through what was private."""
    boundary, _, seen = changed_by("uniform", REDEFINED, [3])
    assert seen == {"news": set(range(boundary + PANES - 1, LAST))}


def test_a_type_of_a_stream_with_nothing_private_is_seen_at_once() -> None:
    boundary, _, seen = changed_by("uniform", REDEFINED, [3], UNGUARDED)
    assert seen["news"] == set(range(boundary - PANES + 1, LAST))


def test_a_reload_that_went_by_names_would_show_what_was_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the tests above can fail: here they see private events in windows of before."""
    by_name = BEFORE.replace("  c: {", '  x: {stream: s, where: "kind = 6"}\n  c: {')
    after = REDEFINED
    boundary, _, seen = changed_by("uniform", after, [0], by_name)
    assert min(seen["told"]) == boundary + PANES - 1
    monkeypatch.setattr(definitions, "format_definition", lambda columns, name: name)
    boundary, _, seen = changed_by("uniform", after, [0], by_name)
    assert min(seen["told"]) == boundary - PANES + 1


def test_areas_count_by_their_geometry_as_it_was_when_they_were_read(tmp_path: Path) -> None:
    """The file is replaced before the reload; its name stays."""
    old, same, other = (
        private_areas(tmp_path, square) for square in ((0, 0, 1, 1), (0, 0, 1, 1), (0, 0, 2, 2))
    )
    assert definitions.format_definition(old.columns, "near") == definitions.format_definition(
        same.columns, "near"
    )
    assert definitions.format_definition(old.columns, "near") != definitions.format_definition(
        other.columns, "near"
    )
    shown = definitions.find_public_types(old.columns, other.columns)
    assert shown.tolist() == [[0b10]]  # `kind` alone, and not the new `near`
    assert old.digest != other.digest


def test_a_condition_on_a_column_of_another_type_is_another_definition() -> None:
    """A plan may record another type than the one before: `0` and `00` are the same number."""
    spec = loads(BEFORE.replace("kind = 2", "here = there"))
    number, text = (SpecColumns(spec, {"s": {"here": kind, "there": kind}}) for kind in KINDS)
    assert definitions.format_definition(number, "c") != definitions.format_definition(text, "c")
    assert definitions.format_definition(number, "a") == definitions.format_definition(text, "a")


KINDS: tuple[ColumnType, ColumnType] = ("number", "text")


def private_areas(folder: Path, square: tuple[int, int, int, int]) -> SpecVersion:
    """SpecVersion with a type inside an area that a file draws."""
    west, south, east, north = square
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    (folder / "near.geojson").write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
    text = (
        SLIDES
        + """
areas: {near: {geojson: near.geojson}}
events:
  near: {stream: s, inside: near}
  kind: {stream: s, where: "kind = 0"}
  kept: {stream: s, where: "kind = 1"}
private: [{pattern: kept, epsilon: 1}]
queries: [{name: q, consumer: x, pattern: near}]
"""
    )
    (folder / "spec.yaml").write_text(text)
    spec = load(folder / "spec.yaml")
    return SpecVersion(spec, plan_without_history(spec, "uniform"))


@pytest.mark.parametrize(
    "changed",
    [
        "subject: kind",
        "time: value",
        "unit: ms",
        "zone: Asia/Tokyo",
        "lon: east",
        "lat: north",
        "delimiter: ';'",
    ],
)
def test_a_stream_may_not_change_what_its_columns_mean(changed: str) -> None:
    """Neither may definitions stay the same by that."""
    name = changed.split(":")[0]
    fields = {"subject": "subject: who", "time": "time: at", "unit": "unit: us"} | {name: changed}
    text = BEFORE.replace("subject: who, time: at, unit: us", ", ".join(fields.values()))
    before, after = loads(BEFORE), loads(text)
    old, new = SpecColumns(before), SpecColumns(after)
    assert definitions.format_definition(old, "a") != definitions.format_definition(new, "a")
    run = FedEngine(private_terms(BEFORE, "uniform"))
    version = SpecVersion(after, plan_without_history(after, "uniform"))
    with pytest.raises(SpecificationError, match="streams cannot be changed"):
        run.engine.windows.check_version(version, learning=False)


def answers_to(query: str, run: FedEngine) -> dict[int, bool]:
    """What `QUIET` was told, by a window's last pane."""
    return {last_pane(key): yes for key, yes in run.answers.items() if key[1:] == (QUIET, query)}


def last_pane(key: Answer) -> int:
    """The number of the pane with which a window ends."""
    return key[0] // PANE + PANES - 1
