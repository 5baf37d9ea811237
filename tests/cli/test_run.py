"""`tacit run`: protected answers, and what only the operator is told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import polars as pl
import pytest

from tacit.engines.local import run
from tests.cli.small_runs import SPEC, specified, tacit, tuples
from tests.engines.forking import Forks

COLUMNS = ["window_start", "window_end", "subject", "consumer", "query"]
COLUMNS += ["detected", "confidence"]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification in a file."""
    return specified(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Tuples to be asked about."""
    return tuples(tmp_path / "tuples.csv", seed=2)


@pytest.fixture
def plan(spec: Path, tmp_path: Path) -> Path:
    """A plan for the specification."""
    history, out = tuples(tmp_path / "history.csv", seed=1), tmp_path / "plan.json"
    assert tacit("plan", spec, "--history", history, "-o", out).exit_code == 0
    return out


def test_answers_are_protected_and_carry_their_confidence(
    spec: Path, source: Path, plan: Path, tmp_path: Path
) -> None:
    """Those that touch nothing private are true and certain; the others are sometimes wrong."""
    sink, true = tmp_path / "answers.parquet", tmp_path / "truth.parquet"
    shown = tacit("run", spec, source, "--plan", plan, "--to", sink)
    assert shown.exit_code == 0, shown.output
    assert tacit("detect", spec, source, "--to", true).exit_code == 0
    answers, truth = pl.read_parquet(sink), pl.read_parquet(true)
    assert answers.columns == COLUMNS
    right = answers.with_columns(truth["detected"].alias("truth"))
    exact = right.filter(pl.col("query") == "open")
    assert exact["detected"].equals(exact["truth"], check_names=False)
    assert exact["confidence"].min() == 1.0
    noisy = right.filter(pl.col("query") == "either")
    share = (noisy["detected"] == noisy["truth"]).mean()
    assert isinstance(share, float)
    assert 0.7 < share < 1.0
    assert noisy["confidence"].mean() == pytest.approx(share, abs=0.08)


def test_the_summary_is_for_the_operator_and_apart_from_the_answers(
    spec: Path, source: Path, plan: Path, tmp_path: Path
) -> None:
    """Nothing but answers is on standard output, with and without JSON."""
    sink = tmp_path / "answers.csv"
    shown = tacit("run", spec, source, "--plan", plan, "--to", sink)
    assert shown.stdout == ""
    assert "For the operator only" in shown.stderr
    assert "epsilon 2 for visit" in shown.stderr
    assert "for one subject, one private pattern and one window" in shown.stderr
    assert "draws new noise and spends this epsilon again" in shown.stderr
    told = tacit("run", spec, source, "--plan", plan, "--to", sink, "--json")
    assert told.stdout == ""
    summary = json.loads(told.stderr)
    assert summary["protected"] is True
    assert summary["for"] == "the operator alone"
    assert summary["not_private"] is None
    assert summary["mechanism"] == "optimal"
    assert summary["spent"] == [{"private": "visit", "epsilon": "2", "subjects": None}]


def test_answers_flow_to_standard_output(
    spec: Path, source: Path, plan: Path, forks: Forks
) -> None:
    command: list[str | Path] = [forks.program, "run", spec, source, "--plan", plan]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(rows) == 60 * 10 * 3
    assert list(rows[0]) == COLUMNS
    assert "For the operator only" in shown.stderr


def test_a_plan_is_needed_and_the_way_to_it_is_reported(spec: Path, source: Path) -> None:
    shown = tacit("run", spec, source)
    assert shown.exit_code == 6
    assert "tacit plan SPEC --history SOURCE -o PLAN" in shown.stderr
    assert shown.stdout == ""


def test_uniform_needs_no_plan(spec: Path, source: Path, tmp_path: Path) -> None:
    sink = tmp_path / "answers.csv"
    shown = tacit("run", spec, source, "--mechanism", "uniform", "--to", sink)
    assert shown.exit_code == 0, shown.output
    assert "uniform, without a plan" in shown.stderr
    # It answers by the noisy events, which is right more often than not, either way.
    both = pl.read_csv(sink).filter(pl.col("query") == "either")
    assert 0.1 < both["detected"].mean() < 0.9  # type: ignore[operator]


def test_no_plan_is_needed_where_nothing_private_is_asked(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    """The answers are those of detect."""
    spec.write_text(SPEC.replace("private:\n  - {pattern: visit, epsilon: 2}\n", ""))
    sink, true = tmp_path / "answers.csv", tmp_path / "truth.csv"
    shown = tacit("run", spec, source, "--to", sink)
    assert "Nothing is declared private" in shown.stderr
    tacit("detect", spec, source, "--to", true)
    assert pl.read_csv(sink).drop("confidence").equals(pl.read_csv(true))


def test_a_plan_for_another_mechanism_is_refused(spec: Path, source: Path, plan: Path) -> None:
    shown = tacit("run", spec, source, "--plan", plan, "--mechanism", "adaptive")
    assert shown.exit_code == 6
    assert "is for the mechanism optimal, not for adaptive" in shown.stderr


def test_a_plan_for_another_specification_is_refused(spec: Path, source: Path, plan: Path) -> None:
    """Even if only an epsilon was raised."""
    spec.write_text(SPEC.replace("epsilon: 2", "epsilon: 3"))
    shown = tacit("run", spec, source, "--plan", plan)
    assert shown.exit_code == 6
    assert "another specification" in shown.stderr
    assert tacit("run", spec, source, "--plan", "missing.json").exit_code == 6


def test_a_plan_that_gives_away_too_much_is_never_run(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    history, out = tuples(tmp_path / "history.csv", seed=1), tmp_path / "plan.json"
    tacit("plan", spec, "--history", history, "--mechanism", "uniform", "-o", out)
    plain = json.loads(out.read_text())
    channel = plain["schemes"][0]["elements"]["channels"]["a"]
    kept = 2**63 - 1
    channel["table"] = [[str(kept), "1"], ["1", str(kept)]]
    channel["neighbours"][0]["epsilon"] = "45"
    out.write_text(json.dumps(plain))
    shown = tacit("run", spec, source, "--plan", out)
    assert shown.exit_code == 7
    assert shown.stdout == ""


def test_a_seed_makes_answers_that_are_not_private_and_says_so(
    spec: Path, source: Path, plan: Path, tmp_path: Path
) -> None:
    """The same seed gives the same answers; without one they differ."""
    sinks = [tmp_path / f"{n}.csv" for n in range(4)]
    for sink, seed in zip(sinks[:3], ("5", "5", "6"), strict=True):
        shown = tacit("run", spec, source, "--plan", plan, "--to", sink, "--seed", seed)
        assert "NOT PRIVATE" in shown.stderr
    tacit("run", spec, source, "--plan", plan, "--to", sinks[3])
    first, second, third, fourth = (sink.read_text() for sink in sinks)
    assert first == second
    assert len({first, third, fourth}) == 3
    told = tacit("run", spec, source, "--plan", plan, "--to", sinks[0], "--seed", "5", "--json")
    summary = json.loads(told.stderr)
    assert summary["protected"] is False
    assert "NOT PRIVATE" in summary["not_private"]


def test_the_registry_of_the_command_line_fits_any_plan(
    spec: Path, source: Path, plan: Path, tmp_path: Path
) -> None:
    """Who is registered is no part of what a plan protects."""
    subjects, sink = tmp_path / "who.txt", tmp_path / "answers.csv"
    subjects.write_text("1\n99\n")
    asked = ("run", spec, source, "--plan", plan, "--to", sink)
    shown = tacit(*asked, "--subjects", subjects, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stderr)["subjects"] == 2
    assert set(pl.read_csv(sink, infer_schema=False)["subject"]) == {"1", "99"}
    assert (tmp_path / "answers.dead-letters.jsonl").exists()
    assert tacit(*asked, "--learn", "5 min").exit_code == 0


def test_a_run_never_writes_over_what_it_reads(
    spec: Path, source: Path, plan: Path, tmp_path: Path
) -> None:
    before = {path: path.read_text() for path in (spec, source, plan)}
    for option in ("--to", "--dead-letters"):
        for target in before:
            shown = tacit("run", spec, source, "--plan", plan, option, target)
            assert shown.exit_code == 5
    assert before == {path: path.read_text() for path in before}


def test_frames_from_a_seed_are_marked_too(spec: Path, source: Path, plan: Path) -> None:
    """In Python they are neither protected nor true."""
    private, seeded = (run(spec, source, plan=plan, seed=seed) for seed in (None, 5))
    assert repr(private).startswith("<1,800 protected answers")
    assert repr(seeded).startswith("<1,800 seeded, NOT PRIVATE answers")
    assert "Seeded, NOT PRIVATE answers" in seeded._repr_html_()
