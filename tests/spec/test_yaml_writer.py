"""Specifications go to YAML and back without loss, and say the same in every spelling."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings

from tacit.durations import parse_duration
from tacit.patterns.tree import Not, Or, Seq
from tacit.spec.nodes import read_nodes
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load, loads
from tacit.spec.yaml_writer import to_yaml
from tests.spec.strategies import specifications
from tests.spec.test_mistakes import HEAD

EXAMPLES = Path(__file__).parents[2] / "examples"


@given(specifications())
@settings(max_examples=40)
def test_what_is_written_reads_back_as_the_same(spec: Specification) -> None:
    assert spec.check() == []
    again = loads(to_yaml(spec))
    assert again == spec
    assert again.fingerprint == spec.fingerprint
    assert to_yaml(again) == to_yaml(spec)


def test_the_example_reads_back_as_the_same(tmp_path: Path) -> None:
    spec = load(EXAMPLES / "taxi.yaml")
    text = to_yaml(spec)
    assert loads(text, folder=EXAMPLES) == spec
    assert "  station: {circle: [116.42, 39.9, 300 m]}\n" in text
    assert "windows: {size: 10 min, lateness: 30 s, future: 6 h}" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("windows", "future"),
    [
        ("size: 10 min, lateness: 30 s, close: clock", "10 min"),
        ("size: 10 min, slide: 5 min, lateness: 6 min, close: clock", "6 min"),
        ("size: 10 min, slide: 5 min, close: clock", "5 min"),
        ("size: 10 min, close: clock, future: 7 d", "7 d"),
        ("size: 10 min, close: clock, future: 0 s", "0 s"),
        ("size: 10 min, lateness: 30 s", "7 d"),
    ],
)
def test_how_far_ahead_tuples_may_be_by_the_clock_is_a_window_or_the_lateness_unless_it_is_said(
    windows: str, future: str
) -> None:
    """What was said is kept when it is written, the default too."""
    spec = loads(re.sub(r"windows: .*", f"windows: {{{windows}}}", HEAD))
    assert spec.windows.future == parse_duration(future)
    again = loads(to_yaml(spec))
    assert again == spec
    assert again.windows.future == spec.windows.future


def test_long_lists_and_texts_are_broken_into_lines() -> None:
    subjects = [f"a taxi, number {number}" for number in range(500)]
    spec = loads(HEAD).model_copy(update={"subjects": tuple(subjects)})
    text = to_yaml(spec)
    assert loads(text) == spec
    assert max(map(len, text.splitlines())) <= 110


def test_a_specification_can_be_pickled() -> None:
    spec = load(EXAMPLES / "taxi.yaml")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)).folder == spec.folder


def test_a_shape_in_the_text_goes_everywhere_too() -> None:
    shape = (EXAMPLES / "campus.geojson").read_text()
    spec = loads(HEAD + f"areas: {{campus: {{geojson: {shape}}}}}\n")
    assert loads(to_yaml(spec)) == spec
    assert loads(to_yaml(spec)).fingerprint == spec.fingerprint
    assert pickle.loads(pickle.dumps(spec)) == spec


BASE = (
    HEAD
    + """\
areas: {a: {box: [1, 1, 2, 2]}, b: {box: [1, 1, 3, 3]}}
patterns: {p: "SEQ(slow, parked) WITHIN 60 s", q: "AND(p, slow)"}
private: [{pattern: p, epsilon: 1.0, limit: 20 per day}]
queries: [{name: x, consumer: c, pattern: q}]
"""
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("streams:", "# a comment\nstreams:"),
        ("10 min", "600 s"),
        ("10 min", "10min"),
        ("60 s", "1 min"),
        ("SEQ(slow, parked) WITHIN", "SEQ( slow,parked )   within"),
        ("subject: taxi, time: ts", "time: ts, subject: taxi"),
        ("a: {box: [1, 1, 2, 2]}, b: {box: [1, 1, 3, 3]}",
         "b: {box: [1, 1.0, 3, 3]}, a: {box: [1, 1, 2, 2]}"),
        ("epsilon: 1.0", "epsilon: 1"),
        ("epsilon: 1.0", "epsilon: 10e-1"),
        ("20 per day", "20.0 per 24 h"),
        ("pattern: q}", "pattern: q, alpha: 0.5}"),
        ("queries:", "mechanism: optimal\nqueries:"),
    ],
)  # fmt: skip
def test_the_fingerprint_does_not_depend_on_the_spelling(old: str, new: str) -> None:
    assert old in BASE
    assert loads(BASE.replace(old, new)).fingerprint == loads(BASE).fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10 min", "11 min"),
        ("speed < 8", "speed < 9"),
        ("SEQ(slow, parked)", "SEQ(parked, slow)"),
        ("epsilon: 1.0", "epsilon: 1.01"),
        ("20 per day", "21 per day"),
        ("name: x", "name: y"),
        ("queries:", "mechanism: uniform\nqueries:"),
        ("[1, 1, 2, 2]", "[1, 1, 2, 2.5]"),
        ('slow: {stream: gps, where: "speed < 8"}, parked: {stream: gps}',
         'parked: {stream: gps}, slow: {stream: gps, where: "speed < 8"}'),
    ],
)  # fmt: skip
def test_the_fingerprint_depends_on_the_meaning(old: str, new: str) -> None:
    assert old in BASE
    assert loads(BASE.replace(old, new)).fingerprint != loads(BASE).fingerprint
    assert loads(BASE.replace(old, new)) != loads(BASE)


def test_the_fingerprint_covers_what_a_shape_file_holds(tmp_path: Path) -> None:
    text = HEAD + "areas: {campus: {geojson: campus.geojson}}\n"
    shape = (EXAMPLES / "campus.geojson").read_text()
    (tmp_path / "campus.geojson").write_text(shape)
    before = loads(text, folder=tmp_path).fingerprint
    (tmp_path / "campus.geojson").write_text(shape.replace("116.33", "116.34"))
    assert loads(text, folder=tmp_path).fingerprint != before


def test_plain_data_of_a_text_is_what_json_would_hold() -> None:
    root, found = read_nodes("{a: 1, b: [x, 'y', 1.5, true, ~], c: {d: '1'}}", "x")
    assert root is not None
    assert root.data == {"a": 1, "b": ["x", "y", 1.5, True, None], "c": {"d": "1"}}
    assert found == []


def test_trees_and_texts_make_the_same_specification() -> None:
    spec = loads(HEAD)
    tree = Or(Seq("slow", Not("parked")).within(minutes=5), "slow")
    query = {"name": "q", "consumer": "c"}
    parts = {"streams": spec.streams, "windows": spec.windows, "events": spec.events}
    built = Specification(**parts, queries=[{**query, "pattern": tree}])
    text = "OR(SEQ(slow, NOT parked) WITHIN 5 min, slow)"
    assert built == Specification(**parts, queries=[{**query, "pattern": text}])
    assert loads(to_yaml(built)) == built
