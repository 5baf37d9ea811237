"""Public readers of what private event types read: all of them, with what follows."""

from __future__ import annotations

import json
from pathlib import Path

from tacit.insight.explain import explain
from tacit.insight.shared_attributes import MOST_LINES, find_shared_attributes, format_sharing
from tacit.spec.yaml_reader import loads
from tests.cli.small_runs import tacit

SPEC = """
streams:
  gps: {subject: taxi, time: at}
  doors: {subject: taxi, time: at}
areas:
  hospital: {circle: [116.365, 39.935, 600 m]}
  centre: {box: [116.3, 39.9, 116.5, 40.0]}
  campus: {circle: [116.9, 39.935, 600 m]}
windows: {size: 10 min}
events:
  parked: {stream: gps, where: "speed < 1"}
  at_hospital: {stream: gps, inside: hospital}
  slow: {stream: gps, where: "speed BETWEEN 1 AND 10"}
  still: {stream: gps, where: "speed < 2 OR speed IS NULL"}
  central: {stream: gps, inside: centre}
  studying: {stream: gps, inside: campus}
  hired: {stream: gps, where: "hired"}
  early: {stream: gps, where: "at < '2024-01-01'"}
  door: {stream: doors, where: "speed > 3"}
private:
  - {pattern: "SEQ(parked, at_hospital)", epsilon: 1.0}
queries:
  - {name: q, consumer: c, pattern: "SEQ(hired a, slow b) WHERE a.speed > 3 AND b.speed > a.speed"}
"""


def test_every_pair_is_named_with_its_attributes_and_its_relation() -> None:
    found = find_shared_attributes(loads(SPEC))
    assert {(s.private, s.public, s.attributes, s.relation, s.condition) for s in found} == {
        ("parked", "slow", ("speed",), "excludes", None),
        ("parked", "still", ("speed",), "implies", None),
        ("at_hospital", "central", ("lat", "lon"), "implies", None),
        ("at_hospital", "studying", ("lat", "lon"), "excludes", None),
        ("parked", "hired", ("speed",), "excludes", "a.speed > 3"),
        ("parked", "hired", ("speed",), None, "b.speed > a.speed"),
        ("parked", "slow", ("speed",), "excludes", "b.speed > a.speed"),
    }
    assert {s.query for s in found if s.condition} == {"q"}


def test_a_type_that_is_private_for_some_subjects_is_public_for_none_of_them() -> None:
    spec = SPEC.replace("epsilon: 1.0}", "epsilon: 1.0, subjects: [x]}").replace(
        "private:", "private:\n  - {pattern: slow, epsilon: 1.0, subjects: [y]}"
    )
    pairs = {(s.private, s.public) for s in find_shared_attributes(loads(spec)) if not s.condition}
    assert ("slow", "parked") in pairs  # for y
    assert ("parked", "slow") in pairs  # for x


def test_constants_beside_a_column_of_times_are_times() -> None:
    spec = SPEC.replace('"speed < 1"', "\"at < '2023-01-01 00:00:00'\"")
    relations = {s.public: s.relation for s in find_shared_attributes(loads(spec))}
    assert relations["early"] == "implies"


def test_nothing_private_shares_nothing() -> None:
    assert find_shared_attributes(loads(SPEC.split("private:")[0])) == []


def test_validate_and_explain_say_it_in_text_and_in_json(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    for command in ("validate", "explain"):
        words = " ".join(tacit(command, path).stdout.split())
        assert "'slow' is public and reads speed, as private 'parked' does." in words
        assert "No tuple is both: a tuple that is 'slow' is not 'parked'." in words
        report = json.loads(tacit(command, path, "--json").stdout)
        assert report["shared_attributes"][0] == {
            "private": "parked", "public": "slow", "attributes": ["speed"], "relation": "excludes",
            "query": None, "condition": None,
        }  # fmt: skip


def test_a_long_list_is_cut_short_in_text_and_whole_in_the_explanation() -> None:
    events = "".join(f'  e{n}: {{stream: gps, where: "speed = {n}"}}\n' for n in range(40))
    spec = loads(SPEC.replace("private:", f"{events}private:"))
    lines = format_sharing(spec)
    assert len(lines) == MOST_LINES + 2
    assert lines[-1].endswith("more share attributes; to_dict() lists them.")
    assert len(explain(spec).shared_attributes) == len(find_shared_attributes(spec)) > 40


def test_the_example_of_the_documentation_excludes() -> None:
    page = (Path(__file__).parents[2] / "docs/guarantee.md").read_text("utf-8")
    assert 'where: "speed < 1"' in page
    assert 'where: "speed BETWEEN 1 AND 10"' in page
    assert "shared attributes" in page.lower()
