"""Released answers can be had again, exactly as they were, for as long as they are kept."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from click.testing import Result

import tacit as package
from tacit.errors import LedgerError
from tacit.ledger.answers import AnswerSelection, ReleasedAnswers
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import BODIES
from tests.cli.small_runs import SPEC, tacit, tuples

ASKED = SPEC.replace("name: open, consumer: us", "name: open, consumer: them")
LIMITED = ASKED.replace("epsilon: 2", "epsilon: 2, limit: 30 per day")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "meet.yaml"
    path.write_text(LIMITED)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tuples(tmp_path / "tuples.csv", seed=3, windows=30, subjects=5)


def run(spec: Path, source: Path, place: str, sink: Path, *more: str) -> Result:
    shown = tacit("run", spec, source, "--mechanism", "uniform", "--ledger", place, "--to", sink,
                  *more)  # fmt: skip
    assert shown.exit_code == 0, shown.output
    return shown


@pytest.mark.cases(2)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_that_was_removed_is_had_again_byte_for_byte(
    spec: Path, source: Path, place: str, tmp_path: Path, suffix: str
) -> None:
    sink = tmp_path / f"answers.{suffix}"
    run(spec, source, place, sink)
    before = sink.read_bytes()
    assert b"true" in before
    sink.unlink()
    shown = tacit("ledger", "answers", place, "--run", "meet", "--to", sink)
    assert shown.exit_code == 0, shown.output
    assert sink.read_bytes() == before
    again = run(spec, source, place, sink)  # the run knows the file again, and goes on
    assert "missing" not in again.stderr
    assert sink.read_bytes() == before
    assert tacit("ledger", "verify", place).exit_code == 0


def test_a_run_whose_file_was_removed_names_the_command_that_gives_it_again(
    spec: Path, source: Path, place: str, tmp_path: Path
) -> None:
    sink = tmp_path / "answers.csv"
    run(spec, source, place, sink)
    sink.unlink()
    again = run(spec, source, place, sink)
    assert "answers.csv is missing" in again.stderr
    assert "tacit ledger answers" in again.stderr
    assert "--run meet" in again.stderr


def test_a_folder_whose_files_were_removed_is_noticed_too(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    folder, place = tmp_path / "answers", str(tmp_path / "spent.db")
    folder.mkdir()
    assert "missing" not in run(spec, source, place, folder).stderr
    assert "missing" not in run(spec, source, place, folder).stderr
    for path in folder.iterdir():
        path.unlink()
    assert "tacit ledger answers" in run(spec, source, place, folder).stderr


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl", "csv.gz"])
def test_every_kind_of_file_holds_the_same_answers(
    spec: Path, source: Path, tmp_path: Path, suffix: str
) -> None:
    place, sink = str(tmp_path / "spent.db"), tmp_path / "answers.jsonl"
    run(spec, source, place, sink)
    delivered = pl.read_ndjson(sink)
    target = tmp_path / f"again.{suffix}"
    assert tacit("ledger", "answers", place, "--to", target).exit_code == 0
    readers: dict[str, Any] = {
        "parquet": pl.read_parquet,
        "arrow": pl.read_ipc,
        "jsonl": pl.read_ndjson,
        "csv": pl.read_csv,
        "csv.gz": pl.read_csv,
    }
    found = readers[suffix](target)
    assert found.columns == delivered.columns
    for column in ("id", "detected", "exhausted"):
        assert found[column].to_list() == delivered[column].to_list()
    assert found["confidence"].cast(pl.Float32).to_list() == (
        delivered["confidence"].cast(pl.Float32).to_list()
    )
    assert found["subject"].cast(pl.String).to_list() == (
        delivered["subject"].cast(pl.String).to_list()
    )


def test_each_consumer_gets_its_own_file_again(spec: Path, source: Path, tmp_path: Path) -> None:
    place, sink = str(tmp_path / "spent.db"), tmp_path / "to {consumer}.csv"
    assert "missing" not in run(spec, source, place, sink).stderr
    before = {name: (tmp_path / f"to {name}.csv").read_bytes() for name in ("us", "them")}
    (tmp_path / "to us.csv").unlink()
    assert tacit("ledger", "answers", place, "--to", sink).exit_code == 0
    assert "missing" not in run(spec, source, place, sink).stderr
    assert before == {name: (tmp_path / f"to {name}.csv").read_bytes() for name in before}
    (tmp_path / "to us.csv").unlink()
    assert "tacit ledger answers" in run(spec, source, place, sink).stderr


def test_standard_output_has_the_lines_that_were_delivered(
    spec: Path, source: Path, place: str, tmp_path: Path
) -> None:
    sink = tmp_path / "answers.jsonl"
    run(spec, source, place, sink)
    shown = tacit("ledger", "answers", place, "--json")
    # The runner keeps what is written through sys.stdout; answers go to the descriptor itself.
    report = json.loads(shown.stderr)
    assert report["answers"] == sink.read_text().count("\n")
    assert [one["run"] for one in report["runs"]] == ["meet"]
    assert report["runs"][0]["deleted"] == 0


@pytest.mark.parametrize(
    ("options", "right"),
    [
        (["--query", "both"], lambda row: row["query"] == "both"),
        (["--consumer", "them"], lambda row: row["query"] == "open"),
        (["--consumer", "us"], lambda row: row["query"] in ("both", "either")),
        (["--subject", "3", "--subject", "4"], lambda row: row["subject"] in ("3", "4")),
        (["--from", "1970-01-01T00:10Z"], lambda row: row["window_start"][14:16] >= "10"),
        (["--until", "1970-01-01T00:10"], lambda row: row["window_start"][14:16] < "10"),
        (
            ["--from", "1970-01-01T02:05+02:00", "--until", "1970-01-01T00:07", "--query", "both"],
            lambda row: "05" <= row["window_start"][14:16] < "07" and row["query"] == "both",
        ),
        (["--run", "other"], lambda row: False),
    ],
)
def test_filters_select_what_they_say_and_change_no_row(
    spec: Path, source: Path, tmp_path: Path, options: list[str], right: Any
) -> None:
    place, sink, target = str(tmp_path / "spent.db"), tmp_path / "a.csv", tmp_path / "b.csv"
    run(spec, source, place, sink)
    tiny = tuples(tmp_path / "tiny.csv", seed=4, windows=2, subjects=1)
    run(spec, tiny, place, tmp_path / "other.csv", "--name", "other")
    with sink.open() as file:
        expected = [row for row in csv.DictReader(file) if right(row)]
    chosen = options if "--run" in options else [*options, "--run", "meet"]
    shown = tacit("ledger", "answers", place, *chosen, "--to", target)
    assert shown.exit_code == 0, shown.output
    with target.open() as file:
        found = list(csv.DictReader(file))
    if "--run" in options:
        assert target.read_bytes() == (tmp_path / "other.csv").read_bytes()
    else:
        assert expected
        assert found == expected


def drop(place: str, before: int) -> None:
    with Ledger.open(place) as ledger, ledger.database.writing() as connection:
        connection.execute(BODIES.delete().where(BODIES.c.release <= before))


def test_deleted_answers_are_named_with_the_time_from_which_on_they_are_kept(
    spec: Path, source: Path, place: str, tmp_path: Path
) -> None:
    sink, target = tmp_path / "answers.csv", tmp_path / "again.csv"
    run(spec, source, place, sink)
    drop(place, 10)
    shown = tacit("ledger", "answers", place, "--to", target)
    assert shown.exit_code == 0
    assert "the answers of 10 releases were deleted" in shown.stderr
    assert "kept from the window at 1970-01-01T00:10:00Z on" in shown.stderr
    assert target.read_text().count("\n") == 1 + 20 * 5 * 3
    early = tacit("ledger", "answers", place, "--until", "1970-01-01T00:05", "--to",
                  tmp_path / "none.csv")  # fmt: skip
    assert early.exit_code == 8
    assert "kept from the window at 1970-01-01T00:10:00Z on" in early.stderr
    assert not (tmp_path / "none.csv").exists()
    report = tacit("ledger", "answers", place, "--to", target, "--json")
    assert json.loads(report.stdout)["runs"] == [
        {
            "run": "meet",
            "releases": 30,
            "deleted": 10,
            "kept_from": "1970-01-01T00:10:00Z",
            "archived": 0,
        }
    ]
    drop(place, 30)
    assert "no answers of this run are left" in (
        tacit("ledger", "answers", place, "--to", target).stderr
    )


def test_names_that_the_ledger_does_not_know_are_refused_or_explained(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    place = str(tmp_path / "spent.db")
    run(spec, source, place, tmp_path / "answers.csv")
    target = tmp_path / "again.csv"
    for options, said in (
        (["--run", "meat"], "Did you mean 'meet'?"),
        (["--subject", "nobody"], "has no subject called 'nobody'"),
    ):
        shown = tacit("ledger", "answers", place, *options, "--to", target)
        assert shown.exit_code == 8
        assert said in shown.stderr
        assert not target.exists()
    shown = tacit("ledger", "answers", place, "--query", "bth", "--to", target)
    assert "no answer matches. The ledger has answers to both, either, open for them, us." in (
        shown.stderr
    )
    assert "expected a date" in tacit("ledger", "answers", place, "--from", "soon").stderr


def test_answers_with_other_columns_do_not_go_into_the_same_file(
    spec: Path, source: Path, tmp_path: Path
) -> None:
    place = str(tmp_path / "spent.db")
    run(spec, source, place, tmp_path / "a.csv")
    spec.write_text(ASKED)
    run(spec, source, place, tmp_path / "b.csv", "--name", "unlimited")
    shown = tacit("ledger", "answers", place, "--to", tmp_path / "both.csv")
    assert shown.exit_code == 5
    assert "--run" in shown.stderr
    assert not (tmp_path / "both.csv").exists()


def test_answers_that_were_changed_are_not_given(spec: Path, source: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "spent.db")
    run(spec, source, place, tmp_path / "answers.csv")
    with Ledger.open(place) as ledger, ledger.database.writing() as connection:
        other = BODIES.alias()
        body = other.select().with_only_columns(other.c.body).where(other.c.release == 3)
        connection.execute(
            BODIES.update().where(BODIES.c.release == 5).values(body=body.scalar_subquery())
        )
    shown = tacit("ledger", "answers", place, "--to", tmp_path / "again.csv")
    assert shown.exit_code == 8
    assert "release 5 were changed" in shown.stderr
    assert not (tmp_path / "again.csv").exists()


@pytest.mark.cases(1)
def test_python_gives_the_same_answers(
    spec: Path, source: Path, place: str, tmp_path: Path
) -> None:
    sink = tmp_path / "answers.jsonl"
    run(spec, source, place, sink)
    delivered = pl.read_ndjson(sink)
    with package.released(place, run="meet") as answers:
        assert answers.polars()["id"].to_list() == delivered["id"].to_list()
        assert answers.polars()["detected"].to_list() == delivered["detected"].to_list()
        assert answers.runs()[0].releases == 30
    noon = datetime(1970, 1, 1, 0, 12, tzinfo=UTC)
    with package.released(place, query=["both"], since=noon, until="1970-01-01T00:14") as answers:
        assert len(answers.arrow()) == 2 * 5
        assert len(answers.pandas()) == 2 * 5
    with package.released(place, query="none") as answers:
        assert answers.arrow().num_rows == 0
    with pytest.raises(LedgerError, match="no run called"):
        package.released(place, run="none")


def test_only_one_release_is_in_memory_at_a_time(spec: Path, source: Path, tmp_path: Path) -> None:
    """Bodies are read one by one, each in a transaction of its own."""
    place = str(tmp_path / "spent.db")
    run(spec, source, place, tmp_path / "answers.csv")
    with Ledger.open(place, read_only=True) as ledger:
        tables = iter(ReleasedAnswers(ledger, AnswerSelection()))
        first = next(tables)
        assert isinstance(first, pa.Table)
        assert first.num_rows == 5 * 3
        drop(place, 2)  # another writes meanwhile: no transaction of ours is in its way
        assert next(tables)["id"][0].as_py() == 2 * 5 * 3


def test_answers_in_an_archive_can_be_had_again_too(
    spec: Path, source: Path, place: str, tmp_path: Path
) -> None:
    sink, target, file = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "old.archive"
    run(spec, source, place, sink)
    assert tacit("ledger", "archive", place, "--before", "1970-01-02", "-o", file).exit_code == 0
    alone = tacit("ledger", "answers", place, "--to", target)
    assert "the answers of 30 releases are in archives" in alone.stderr
    shown = tacit("ledger", "answers", place, "--archive", file, "--to", target)
    assert shown.exit_code == 0, shown.output
    assert target.read_bytes() == sink.read_bytes()
    with package.released(place, archives=[file], query="both", since="1970-01-01T00:20") as found:
        assert found.arrow().num_rows == 10 * 5
    file.write_bytes(file.read_bytes()[:-1])
    broken = tacit("ledger", "answers", place, "--archive", file, "--to", target)
    assert broken.exit_code == 8
    assert "not an archive of this ledger" in broken.stderr
