"""`tacit audit`: a plan that was tampered with does not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.small_runs import SPEC, specified, tacit, tuples

Plain = dict[str, Any]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification in a file."""
    return specified(tmp_path)


def planned(spec: Path, mechanism: str) -> Path:
    """A plan for the specification."""
    history, out = tuples(spec.parent / "history.csv", seed=1), spec.parent / "plan.json"
    shown = tacit("plan", spec, "--history", history, "--mechanism", mechanism, "-o", out)
    assert shown.exit_code == 0, shown.output
    return out


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_a_plan_passes_by_itself_and_with_its_specification(spec: Path, mechanism: str) -> None:
    plan = planned(spec, mechanism)
    shown = tacit("audit", plan)
    assert shown.exit_code == 0, shown.output
    assert "Audit passed" in shown.stdout
    assert "for one subject, one private pattern, one window" in shown.stdout
    assert tacit("audit", plan, "--spec", spec).stdout == shown.stdout
    told = json.loads(tacit("audit", plan, "--json").stdout)
    assert told["passed"] is True
    assert told["policies"][0]["patterns"][0]["asked"] == "2"


def entry_raised(plain: Plain) -> None:
    table = plain["schemes"][0]["components"][0]["tables"][0]
    low, high = int(table[0][0]), int(table[0][1])
    moved = min(low, high) - 1
    table[0] = [str(low - moved), str(high + moved), *table[0][2:]]


def sum_broken(plain: Plain) -> None:
    plain["schemes"][0]["components"][0]["tables"][0][0][0] = "17"


def channel_removed(plain: Plain) -> None:
    plain["schemes"][0]["components"][0]["tables"] = []


def component_removed(plain: Plain) -> None:
    plain["schemes"][0]["components"] = []


def left_open(plain: Plain) -> None:
    plain["schemes"][0] = {"kind": "open"}


def epsilon_raised(plain: Plain) -> None:
    plain["specification"]["private"][0]["epsilon"] = "9"


def pattern_forgotten(plain: Plain) -> None:
    plain["specification"]["private"] = []


def share_raised(plain: Plain) -> None:
    plain["share"] = "2"


@pytest.mark.parametrize(
    "tamper",
    [
        entry_raised,
        sum_broken,
        channel_removed,
        component_removed,
        left_open,
        epsilon_raised,
        pattern_forgotten,
        share_raised,
    ],
)
def test_an_optimal_plan_that_was_tampered_with_fails(
    spec: Path, tamper: Callable[[Plain], None]
) -> None:
    plan = planned(spec, "optimal")
    plain = json.loads(plan.read_text())
    tamper(plain)
    plan.write_text(json.dumps(plain))
    shown = tacit("audit", plan)
    assert shown.exit_code == 7
    assert "Audit FAILED" in shown.stdout
    assert json.loads(tacit("audit", plan, "--json").stdout)["passed"] is False


def flip_weakened(plain: Plain) -> None:
    channel = plain["schemes"][0]["elements"]["channels"]["a"]
    channel["table"] = [[str(2**63 - 2**40), str(2**40)], [str(2**40), str(2**63 - 2**40)]]
    channel["neighbours"][0]["epsilon"] = "45"


def clique_removed(plain: Plain) -> None:
    flip_weakened(plain)
    plain["schemes"][0]["elements"]["channels"]["a"]["neighbours"] = []


def flip_removed(plain: Plain) -> None:
    del plain["schemes"][0]["elements"]["channels"]["a"]
    for pattern in plain["schemes"][0]["elements"]["patterns"]:
        pattern["elements"].remove("a")


def own_pattern_forgotten(plain: Plain) -> None:
    plain["schemes"][0]["elements"]["patterns"] = []


@pytest.mark.parametrize(
    "tamper", [flip_weakened, clique_removed, flip_removed, own_pattern_forgotten]
)
def test_a_uniform_plan_that_was_tampered_with_fails(
    spec: Path, tamper: Callable[[Plain], None]
) -> None:
    plan = planned(spec, "uniform")
    plain = json.loads(plan.read_text())
    tamper(plain)
    plan.write_text(json.dumps(plain))
    shown = tacit("audit", plan)
    assert shown.exit_code == 7, shown.output
    assert "Audit FAILED" in shown.stdout


def test_a_plan_for_another_specification_fails(spec: Path) -> None:
    """By itself it is lawful; it is only not for this one."""
    plan = planned(spec, "optimal")
    spec.write_text(SPEC.replace("epsilon: 2", "epsilon: 1"))
    assert tacit("audit", plan).exit_code == 0
    shown = tacit("audit", plan, "--spec", spec)
    assert shown.exit_code == 7
    assert "another specification" in shown.stdout


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 99}', "\udcff"])
def test_what_is_no_plan_cannot_be_audited(tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text, errors="surrogateescape")
    assert tacit("audit", plan).exit_code == 6
    assert tacit("audit", tmp_path / "missing.json").exit_code == 6
