"""`--to 'answers/{consumer}.csv'`: each consumer's answers in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.cli.small_runs import SPEC, specified, tacit, tuples

THREE = (
    SPEC.replace("both, consumer: us", "both, consumer: city")
    .replace("either, consumer: us", "either, consumer: ../police")
    .replace("mechanism", "#")
)
READ: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": pl.read_csv,
    ".parquet": pl.read_parquet,
    ".jsonl": pl.read_ndjson,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A specification with three consumers, tuples, and a folder for answers."""
    specified(tmp_path, THREE)
    tuples(tmp_path / "tuples.csv", seed=2)
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize("suffix", READ)
@pytest.mark.parametrize("command", ["detect", "run"])
def test_without_a_ledger_each_consumer_has_its_file_with_its_rows_alone(
    folder: Path, command: str, suffix: str
) -> None:
    more = [] if command == "detect" else ["--mechanism", "uniform"]
    target = folder / "out" / f"{{consumer}}{suffix}"
    shown = tacit(command, folder / "spec.yaml", folder / "tuples.csv", "--to", target, *more)
    assert shown.exit_code == 0, shown.output
    assert sorted(os.listdir(folder / "out")) == [
        f"%2E.%2Fpolice{suffix}",
        f"city{suffix}",
        f"us{suffix}",
    ]
    found = {
        name: READ[suffix](folder / "out" / f"{name}{suffix}")
        for name in ("city", "us", "%2E.%2Fpolice")
    }
    assert set(found["city"]["consumer"]) == {"city"}
    assert set(found["city"]["query"]) == {"both"}
    assert set(found["%2E.%2Fpolice"]["consumer"]) == {"../police"}
    assert {len(frame) for frame in found.values()} == {60 * 10}


@pytest.mark.cases(1)
@pytest.mark.parametrize("target", ["{consumer}.csv", "{consumer}/*.csv", "{query}/x.csv"])
def test_with_a_ledger_too_and_again_nothing_is_written_twice(folder: Path, target: str) -> None:
    for _ in range(2):
        shown = tacit(
            *("run", folder / "spec.yaml", folder / "tuples.csv", "--mechanism", "uniform"),
            *("--ledger", folder / "spent.db", "--to", folder / "out" / target),
        )
        assert shown.exit_code == 0, shown.output
    files = [path for path in (folder / "out").rglob("*.csv") if not path.name.startswith(".")]
    places = {path.relative_to(folder / "out").parts[0].removesuffix(".csv") for path in files}
    for place in places:
        own = [path for path in files if place in (path.parent.name, path.stem)]
        frame = pl.concat([pl.read_csv(path) for path in own])
        assert len(frame) == len(set(frame["id"])) == 60 * 10
        assert len(set(frame["consumer"])) == len(set(frame["query"])) == 1
    assert len(places) == 3


def test_an_unknown_placeholder_is_named_before_anything_is_read(folder: Path) -> None:
    shown = tacit("detect", folder / "spec.yaml", folder / "no.csv", "--to", "out/{consumers}.csv")
    assert shown.exit_code in (4, 5)
    shown = tacit(
        "detect", folder / "spec.yaml", folder / "tuples.csv", "--to", folder / "{consumers}.csv"
    )
    assert shown.exit_code == 5
    assert "Did you mean 'consumer'? Known are {consumer}, {query}, {subject}" in shown.stderr


@pytest.mark.parametrize("target", ["{query}.csv", "{consumer}/x.csv"])
def test_what_is_read_is_not_written_over(folder: Path, target: str) -> None:
    """The input may be what one of the names stands for, or the folder that they are in."""
    source = folder / "tuples.csv" if target == "{query}.csv" else folder
    before = (folder / "tuples.csv").read_bytes()
    shown = tacit("detect", folder / "spec.yaml", source, "--to", folder / target)
    assert shown.exit_code == 5
    assert "which is an input; choose another place" in shown.stderr
    assert (folder / "tuples.csv").read_bytes() == before


def test_dead_letters_go_to_the_folder_that_consumers_do_not_share(folder: Path) -> None:
    with (folder / "tuples.csv").open("a") as file:
        file.write("7,,a\n")
    for target, letters in (
        ("{consumer}/a.csv", "dead-letters.jsonl"),
        ("{consumer}.jsonl", ".dead-letters.jsonl"),
    ):
        shown = tacit(
            *("detect", folder / "spec.yaml", folder / "tuples.csv"),
            *("--to", folder / "out" / target),
        )
        assert shown.exit_code == 0, shown.output
        assert (folder / "out" / letters).read_text().count("\n") == 1


def test_doctor_looks_at_the_folder_of_the_files(folder: Path) -> None:
    good = tacit("doctor", folder / "spec.yaml", "--to", folder / "out" / "{consumer}.csv")
    assert f"{folder / 'out'} can be written" in " ".join(good.output.split())
    bad = tacit("doctor", folder / "spec.yaml", "--to", folder / "no" / "{consumer}.csv")
    assert bad.exit_code == 1
    assert "create it or choose another place" in " ".join(bad.output.split())
