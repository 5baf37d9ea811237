"""`tacit explain` as it prints."""

from __future__ import annotations

import json
from pathlib import Path

from tacit.insight.explain import explain
from tacit.spec.yaml_reader import load
from tests.cli.small_runs import tacit

TAXI = Path(__file__).parents[2] / "examples/taxi.yaml"


def test_text_is_printed_for_people() -> None:
    assert tacit("explain", TAXI).stdout == f"{explain(load(TAXI))}\n"


def test_json_is_printed_for_programs() -> None:
    printed = json.loads(tacit("explain", TAXI, "--json").stdout)
    assert printed == explain(load(TAXI)).to_dict()
    assert printed["private"][0]["limit"] == "150 per day"


def test_mistakes_in_a_specification_are_printed_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("version: 1\nstream: {}\n")
    shown = tacit("explain", path)
    assert shown.exit_code == 3
    assert f"{path}:2:1" in shown.stderr
