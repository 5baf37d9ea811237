"""`tacit explain` as it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli.explaining import run_explain
from tacit.errors import SpecificationError
from tacit.insight.explain import explain
from tacit.spec.reading import load

TAXI = Path(__file__).parents[2] / "examples/taxi.yaml"


def test_text_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    run_explain(TAXI, as_json=False)
    assert capsys.readouterr().out == f"{explain(load(TAXI))}\n"


def test_json_is_printed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    run_explain(TAXI, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told == explain(load(TAXI)).to_dict()
    assert told["private"][0]["limit"] == "150 per day"


def test_mistakes_in_a_specification_are_raised(tmp_path: Path) -> None:
    """The command line turns them into messages with their places."""
    path = tmp_path / "spec.yaml"
    path.write_text("version: 1\nstream: {}\n")
    with pytest.raises(SpecificationError):
        run_explain(path, as_json=False)
