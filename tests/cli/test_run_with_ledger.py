"""`tacit run --ledger`: what the operator is told, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.small_runs import SPEC, specified, tacit, tuples


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification in a file."""
    return specified(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Tuples to be asked about."""
    return tuples(tmp_path / "tuples.csv", seed=2)


def test_the_summary_tells_what_was_charged(spec: Path, source: Path, tmp_path: Path) -> None:
    ledger, sink = tmp_path / "spent.db", tmp_path / "answers.jsonl"
    shown = tacit(
        "run", spec, source, "--mechanism", "uniform", "--ledger", ledger, "--to", sink, "--json"
    )
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stderr)
    assert told["run"] == spec.stem
    assert told["outcome"]["finished"]
    assert told["outcome"]["windows"] == told["windows"] > 0
    assert set(told["outcome"]["charged"].values()) == {
        told["windows"] * told["subjects"] * 2 * 10**9
    }
    assert sink.read_text().count("\n") == told["answers"]
    assert tacit("ledger", "verify", ledger).exit_code == 0


def test_a_run_over_the_same_input_again_charges_nothing_and_says_so(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    arguments: list[str | Path] = ["run", spec, source, "--mechanism", "uniform"]
    arguments += ["--ledger", tmp_path / "spent.db", "--to", tmp_path / "answers.csv"]
    assert tacit(*arguments).exit_code == 0
    before = (tmp_path / "answers.csv").read_bytes()
    again = tacit(*arguments)
    assert again.exit_code == 0, again.output
    assert "already released" in again.stderr
    assert (tmp_path / "answers.csv").read_bytes() == before
    # Under another name it is another run, which is charged on top.
    other = tacit(*arguments[:-1], tmp_path / "others.csv", "--name", "other")
    assert "started in the ledger" in other.stderr
    assert (tmp_path / "others.csv").exists()


def test_a_limit_that_nobody_counts_is_refused(source: Path, tmp_path: Path) -> None:
    limited = tmp_path / "limited.yaml"
    limited.write_text(SPEC.replace("epsilon: 2", "epsilon: 2, limit: 3 per day"))
    assert "limit" in limited.read_text()
    arguments: list[str | Path] = [
        "run",
        limited,
        source,
        "--mechanism",
        "uniform",
        "--to",
        tmp_path / "a.csv",
    ]
    refused = tacit(*arguments)
    assert refused.exit_code == 2
    assert "3 per day" in refused.stderr
    assert "--ledger" in refused.stderr
    assert not (tmp_path / "a.csv").exists()
    assert tacit(*arguments, "--no-ledger").exit_code == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--name", "x"], "--name needs --ledger"),
        (["--follow"], "--follow needs --ledger"),
        (["--ledger", "a.db", "--no-ledger"], "cannot be used together"),
        (["--ledger", "a.db", "--retain", "soon"], "--retain"),
        (["--ledger", "a.db", "--name", " "], "needs a name"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    spec: Path, source: Path, options: list[str], what: str
) -> None:
    shown = tacit("run", spec, source, "--mechanism", "uniform", *options)
    assert shown.exit_code == 2
    assert what in shown.stderr
    assert not Path("a.db").exists()


def test_a_file_that_can_only_be_written_whole_cannot_be_added_to(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    shown = tacit("run", spec, source, "--mechanism", "uniform", "--ledger", tmp_path / "spent.db",
                  "--to", tmp_path / "answers.parquet")  # fmt: skip
    assert shown.exit_code == 5
    assert "cannot append to" in shown.stderr


def test_dead_letters_of_before_are_kept(spec: Path, source: Path, tmp_path: Path) -> None:
    """Those of a run that goes on come behind them."""
    ledger, letters = tmp_path / "spent.db", tmp_path / "letters.jsonl"
    letters.write_text('{"reason": "of before"}\n')
    shown = tacit("run", spec, source, "--mechanism", "uniform", "--ledger", ledger, "--to",
                  tmp_path / "answers.csv", "--dead-letters", letters)  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert letters.read_text().startswith('{"reason": "of before"}\n')


def test_the_summary_of_a_resumed_run_counts_what_this_process_did(tmp_path: Path) -> None:
    """What an earlier process read and spent is not counted again; what was delivered now is."""
    spec, source = specified(tmp_path), tuples(tmp_path / "in.csv", seed=1)
    command = ("run", spec, source, "--mechanism", "uniform", "--ledger", tmp_path / "spent.db")
    first = json.loads(tacit(*command, "--to", tmp_path / "one.jsonl", "--json").stderr)
    assert first["tuples"] > 0
    assert first["outcome"]["delivered"] == first["answers"] == 1800
    again = tacit(*command, "--to", tmp_path / "two.jsonl")
    assert "Nothing was spent: no window was released." in again.stderr
    assert "Delivered 1,800 answers of earlier releases" in again.stderr
    assert "0 tuples in" in again.stderr
    assert "no new answer" in again.stderr
    third = json.loads(tacit(*command, "--to", tmp_path / "two.jsonl", "--json").stderr)
    assert third["tuples"] == third["outcome"]["delivered"] == 0
