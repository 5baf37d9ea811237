"""`tacit reproduce`: what it prints, what it leaves behind, and what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from tacit.evaluation.experiments import Synthetic
from tacit.evaluation.variations import VARIATIONS
from tests.cli.small_runs import tacit
from tests.engines.forking import Forks

QUICK = ("--datasets", "1", "--epsilon", "3")
TWICE = ("--datasets", "2", "--epsilon", "2,0.5")


@pytest.fixture(scope="module")
def reproduced(
    tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> tuple[Path, CompletedProcess[str]]:
    """The folder of a run from the command line, with a process for each data set."""
    out = tmp_path_factory.mktemp("reproduced") / "deep" / "synthetic"
    typed = [str(forks.program), "reproduce", "synthetic", *TWICE, "--json"]
    shown = subprocess.run(
        [*typed, "--out", str(out)], capture_output=True, text=True, timeout=250, check=True
    )
    return out, shown


def test_rows_come_as_json_for_every_method_and_epsilon(
    reproduced: tuple[Path, CompletedProcess[str]],
) -> None:
    _, shown = reproduced
    rows = json.loads(shown.stdout)
    told = {"method", "variant", "decode", "epsilon", "mre", "low", "high", "macro", "datasets"}
    assert set(rows[0]) == told
    assert len(rows) == 27 * 2
    assert {row["epsilon"] for row in rows} == {0.5, 2.0}
    assert all(0 <= row["low"] <= row["mre"] <= row["high"] <= 1 for row in rows)
    (written,) = shown.stderr.splitlines()  # and no progress, where nobody looks
    assert "figure.svg" in written


def test_everything_is_written_and_a_second_run_only_reads_it(
    reproduced: tuple[Path, CompletedProcess[str]],
) -> None:
    """Also where the same epsilons are given one by one, and in another order."""
    out, first = reproduced
    names = {"run.json", "results.jsonl", "table.csv", "report.md"}
    names |= {f"figure{suffix}" for suffix in (".svg", ".png", ".pdf")}
    assert {path.name for path in out.iterdir()} == names
    rows = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    given = ("--datasets", "2", "--epsilon", "0.50", "--epsilon", "2,2")
    again = tacit("reproduce", "synthetic", *given, "--out", out, "--json")
    assert again.stdout == first.stdout
    assert [str(row["mre"]) for row in json.loads(again.stdout)] == [row["mre"] for row in rows]
    assert len((out / "results.jsonl").read_text().splitlines()) == 2
    told = (out / "report.md").read_text()
    assert "`tacit reproduce synthetic --datasets 2 --seed 0 --epsilon 0.5,2`" in told
    assert str(out) not in told


@pytest.mark.soak
def test_processes_find_what_one_process_finds(
    reproduced: tuple[Path, CompletedProcess[str]],
) -> None:
    out, _ = reproduced
    results = map(json.loads, (out / "results.jsonl").read_text().splitlines())
    (second,) = (one["errors"] for one in results if one["dataset"] == 1)
    alone = Synthetic((Fraction(1, 2), Fraction(2))).errors(1)
    np.testing.assert_allclose(np.array(second), alone, atol=1e-12)


def test_a_run_with_other_parameters_is_refused(
    reproduced: tuple[Path, CompletedProcess[str]],
) -> None:
    out, _ = reproduced
    refused = tacit("reproduce", "synthetic", *TWICE, "--seed", "3", "--out", out)
    assert refused.exit_code == 1
    assert "seed was 0, now 3" in refused.stderr
    varied = tacit("reproduce", "synthetic", *TWICE, "--vary", "alpha", "--out", out)
    assert "vary was not given, now alpha" in varied.stderr


@pytest.mark.parametrize(
    "epsilon", ["0", "-1", "inf", "nan", "many", "", "1,0", "1,,2", "1e-9", "1e9", "1;2"]
)
@pytest.mark.parametrize("experiment", ["synthetic", "taxi", "home"])
def test_an_epsilon_that_is_none_is_refused(experiment: str, epsilon: str) -> None:
    refused = tacit("reproduce", experiment, "--epsilon", epsilon)
    assert refused.exit_code == 2
    assert "epsilon must be" in refused.stderr


def test_what_is_varied_is_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    less = replace(VARIATIONS["overlap"], values=(0, 3))
    monkeypatch.setitem(VARIATIONS, "overlap", less)
    shown = tacit("reproduce", "synthetic", *QUICK, "--vary", "overlap", "--json")
    rows = json.loads(shown.stdout)
    assert {row["value"] for row in rows} == {0, 3}
    untouched = [row for row in rows if row["method"] == "optimal" and row["value"] == 0]
    assert {row["mre"] for row in untouched} == {0.0}, "public events alone are asked for"


def test_taxi_says_that_trips_are_generated() -> None:
    shown = tacit("reproduce", "taxi", *QUICK, "--json")
    assert shown.exit_code == 0, shown.output
    assert "using generated trips, not T-Drive" in shown.stderr
    assert len(json.loads(shown.stdout)) == 27


def test_taxi_reads_t_drive_and_tells_what_it_cleaned(tmp_path: Path) -> None:
    lines = [
        f"{{taxi}},2008-02-0{day} {hour:02}:{minute:02}:00,116.{300 + 10 * (hour % 9)},39.9"
        for day in (4, 5)
        for hour in range(24)
        for minute in (1, 31)
    ]
    for taxi in (1, 2):
        text = "\n".join(line.format(taxi=taxi) for line in lines)
        (tmp_path / f"{taxi}.txt").write_text(text)
    (tmp_path / "3.txt").write_text("")
    shown = tacit("reproduce", "taxi", *QUICK, "--data", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "192 reports read, 192 kept" in shown.stderr
    assert "1 of 3 files" in shown.stderr
    assert "T-Drive: 192 reports of 2 taxis" in shown.stdout


def test_taxi_says_where_t_drive_is_to_be_had(tmp_path: Path) -> None:
    refused = tacit("reproduce", "taxi", "--data", tmp_path / "nowhere")
    assert refused.exit_code == 4
    assert "Microsoft Research" in refused.stderr


@pytest.mark.soak
def test_home_compares_the_three_mechanisms() -> None:
    shown = tacit("reproduce", "home", *QUICK, "--json")
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)
    assert {row["method"] for row in rows} == {"uniform", "adaptive", "optimal"}
    assert len(rows) == 7, "optimal also with memory"
    assert all(row["inactive"] >= 0 for row in rows), "an error for each query"


@pytest.mark.soak
def test_variants_of_baselines_are_compared_where_it_is_asked_for() -> None:
    shown = tacit("reproduce", "synthetic", *QUICK, "--compare", "ablation", "--json")
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)
    assert ("event-level", "randomised response", "memory") in {
        (row["method"], row["variant"], row["decode"]) for row in rows
    }
    both = tacit("reproduce", "synthetic", "--vary", "alpha", "--compare", "fair")
    assert both.exit_code == 2
    assert tacit("reproduce", "taxi", "--taxis", "test").exit_code == 2
    assert tacit("reproduce", "day", "--homes", "--data", "t-drive").exit_code == 2


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert tacit("reproduce", "home", "--out", tmp_path / "file").exit_code == 2
    assert tacit("reproduce", "home", *QUICK, "--out", tmp_path / "file" / "in").exit_code == 5
