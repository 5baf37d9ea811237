"""Nobody who should be protected is released unprotected, whatever their name looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import Result

import tacit as library
from tacit.errors import SpecificationError
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import read_statement
from tests.cli.small_runs import tacit

SPEC = """
version: 1
streams: {{gps: {{subject: taxi, time: at}}}}
windows: {{size: 1 min}}
events:
  secret: {{stream: gps, where: "kind = 0"}}
  other: {{stream: gps, where: "kind = 1"}}
private:
  - {{pattern: secret, epsilon: 1, subjects: {named}}}
queries:
  - {{name: asked, consumer: city, pattern: secret}}
mechanism: uniform
"""
REGISTRIES = {
    "whole input": "",
    "learned": "subjects: {learn: 2 min}",
    "lines": "subjects: {file: subjects.txt}",
    "csv column": "subjects: {file: subjects.csv, column: name}",
    "parquet column": "subjects: {file: subjects.parquet, column: name}",
}


READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    "parquet": pl.read_parquet,
    "arrow": pl.read_ipc,
    "jsonl": pl.read_ndjson,
    "csv": lambda path: pl.read_csv(path, infer_schema=False),
}


def house(folder: Path, named: str, registry: str = "", taxis: list[Any] | None = None) -> Path:
    """A specification, a registry in files of all kinds, and tuples of these taxis in Parquet."""
    taxis = [7, 8] if taxis is None else taxis
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(named=named) + registry)
    frame = pl.DataFrame(
        {
            "taxi": taxis * 20,
            "at": [30 * (row // len(taxis)) for row in range(20 * len(taxis))],
            "kind": [row // len(taxis) % 2 for row in range(20 * len(taxis))],
        }
    )
    frame.write_parquet(folder / "input.parquet")
    (folder / "subjects.txt").write_text("".join(f"{taxi}\n" for taxi in taxis))
    (folder / "subjects.csv").write_text("name\n" + "".join(f"{taxi}\n" for taxi in taxis))
    pl.DataFrame({"name": taxis}).write_parquet(folder / "subjects.parquet")
    return spec


def run(spec: Path, *more: str | Path) -> Result:
    folder = spec.parent
    return tacit("run", spec, folder / "input.parquet", "--to", folder / "answers.jsonl", *more)


def answers(folder: Path) -> pl.DataFrame:
    return pl.read_ndjson(folder / "answers.jsonl")


def assert_refused(shown: Result, folder: Path) -> None:
    """An error for the operator, and nothing for anybody else."""
    assert shown.exit_code == 3, shown.output
    assert "'007'" in shown.stderr
    assert "Answers protected" not in shown.output
    assert shown.stdout == ""
    written = folder / "answers.jsonl"
    assert not written.exists() or written.read_bytes() == b""


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_a_protected_name_that_is_not_registered_ends_the_run_before_anything_is_released(
    tmp_path: Path, registry: str
) -> None:
    """007 is protected, the data has 7: without an error, 7 would have exact answers."""
    shown = run(house(tmp_path, '["007"]', registry))
    assert_refused(shown, tmp_path)
    assert "1 subject that the registry does not have: '007' (did you mean '7'" in shown.stderr


def test_a_list_that_lacks_a_protected_name_is_a_mistake_with_its_place(tmp_path: Path) -> None:
    spec = house(tmp_path, '["007"]', "subjects: [7, 8]")
    for command in (run(spec), tacit("validate", spec)):
        assert_refused(command, tmp_path)
        assert "Did you mean '7'?" in command.stderr
        assert f"{spec}:9:" in command.stderr


@pytest.mark.cases(2)
@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_with_a_ledger_nothing_is_charged_either(tmp_path: Path, registry: str) -> None:
    spec = house(tmp_path, '["007"]', registry)
    shown = run(spec, "--ledger", tmp_path / "spent.db")
    assert_refused(shown, tmp_path)
    with Ledger.open(str(tmp_path / "spent.db")) as ledger:
        told = read_statement(ledger)
    assert (told.releases, told.answers, told.subjects) == (0, 0, 0)
    # Nor when it is started again: the mistake is still there.
    assert_refused(run(spec, "--ledger", tmp_path / "spent.db"), tmp_path)


def test_answers_to_standard_output_do_not_begin(tmp_path: Path) -> None:
    for registry in REGISTRIES.values():
        spec = house(tmp_path, '["007"]', registry)
        shown = tacit("run", spec, tmp_path / "input.parquet")
        assert (shown.exit_code, shown.stdout) == (3, "")


@pytest.mark.cases(1)
@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_the_same_holds_in_python(tmp_path: Path, registry: str) -> None:
    spec = house(tmp_path, '["007"]', registry)
    frame = pl.read_parquet(tmp_path / "input.parquet")
    for source in (frame, frame.to_pandas(), iter([frame]), frame.to_arrow()):
        with pytest.raises(SpecificationError, match=r"'007'.*did you mean '7'"):
            library.run(spec, source)


@pytest.mark.cases(4)
@pytest.mark.parametrize("registry", [*REGISTRIES.values(), "subjects: ['007', 8, '7']"])
@pytest.mark.parametrize("named", ['["007"]', "[007]"])
def test_a_protected_name_is_found_as_it_is_written(
    tmp_path: Path, registry: str, named: str
) -> None:
    """Quoted or not, 007 is not 7: the one is protected, the other is not."""
    spec = house(tmp_path, named, registry, ["007", "8", "7"])
    shown = run(spec)
    assert shown.exit_code == 0, shown.output
    assert "Answers protected" in shown.stderr
    sure = dict(answers(tmp_path).group_by("subject").agg(pl.col("confidence").max()).iter_rows())
    assert sure.keys() == {"007", "8", "7"}
    assert sure["007"] < 1
    assert (sure["7"], sure["8"]) == (1, 1)
    assert "'7' looks like '007'" in shown.stderr


@pytest.mark.cases(4)
@pytest.mark.parametrize("registry", [*REGISTRIES.values(), "subjects: [7, 8]"])
@pytest.mark.parametrize("named", ["[7]", "['7']"])
def test_integers_in_a_column_are_their_digits(tmp_path: Path, registry: str, named: str) -> None:
    spec = house(tmp_path, named, registry)
    shown = run(spec)
    assert shown.exit_code == 0, shown.output
    assert "looks like" not in shown.stderr
    sure = dict(answers(tmp_path).group_by("subject").agg(pl.col("confidence").max()).iter_rows())
    assert sure["7"] < 1
    assert sure["8"] == 1


@pytest.mark.parametrize("suffix", READERS)
def test_subjects_are_text_in_every_kind_of_answers(tmp_path: Path, suffix: str) -> None:
    spec = house(tmp_path, "[7]")
    kept = "--ledger", tmp_path / "spent.db"
    for sink, more in ((f"answers.{suffix}", ()), (f"answers/*.{suffix}", kept)):
        shown = tacit("run", spec, tmp_path / "input.parquet", "--to", tmp_path / sink, *more)
        assert shown.exit_code == 0, shown.output
        (first, *_) = tmp_path.glob(sink)
        written = READERS[suffix](first)["subject"]
        assert written.dtype in (pl.String, pl.Categorical)
        assert written.cast(pl.String).unique().sort().to_list() == ["7", "8"]


def test_warnings_are_for_the_operator_alone_and_part_of_the_report(tmp_path: Path) -> None:
    spec = house(tmp_path, "['007']", taxis=["007", "7"])
    shown = tacit("run", spec, tmp_path / "input.parquet", "--json")
    assert "looks like" not in shown.stdout
    told, _ = json.loads(shown.stderr)["warnings"]  # the other is about times in 1970
    assert "'7' looks like '007'" in told
    logged = tacit(
        "run", spec, tmp_path / "input.parquet", "--ledger", tmp_path / "spent.db",
        "--log-level", "warning", "--to", tmp_path / "answers.jsonl",
    )  # fmt: skip
    assert logged.exit_code == 0, logged.output
    assert "'7' looks like '007'" in logged.stderr
    with pytest.warns(UserWarning, match="'7' looks like '007'"):
        library.run(spec, pl.read_parquet(tmp_path / "input.parquet"))


@pytest.mark.parametrize("kind", ["txt", "csv", "parquet"])
def test_validate_looks_into_the_file_of_subjects(tmp_path: Path, kind: str) -> None:
    column = "" if kind == "txt" else ", column: name"
    registry = f"subjects: {{file: subjects.{kind}{column}}}"
    spec = house(tmp_path, "['007']", registry)
    shown = tacit("validate", spec)
    assert_refused(shown, tmp_path)
    assert str(spec) in shown.stderr
    report = json.loads(tacit("validate", spec, "--json").stdout)
    assert not report["valid"]
    assert "'007'" in report["mistakes"][0]["message"]
    spec = house(tmp_path, "['007']", registry, ["007", "7"])
    shown = tacit("validate", spec)
    assert shown.exit_code == 0
    assert "'7' looks like '007'" in shown.stderr
    report = json.loads(tacit("validate", spec, "--json").stdout)
    assert report["valid"]
    assert "'7' looks like '007'" in report["warnings"][0]


def test_other_commands_refuse_a_registry_in_a_file_that_lacks_a_protected_name(
    tmp_path: Path,
) -> None:
    spec = house(tmp_path, "['007']", "subjects: {file: subjects.txt}")
    source, plan = tmp_path / "input.parquet", tmp_path / "plan.json"
    assert_refused(tacit("detect", spec, source), tmp_path)
    assert_refused(tacit("plan", spec, "--history", source, "-o", plan), tmp_path)
    assert not plan.exists()


def test_doctor_reads_files_for_the_names_that_are_protected(tmp_path: Path) -> None:
    spec = house(tmp_path, "['007']")
    shown = tacit("doctor", spec, tmp_path / "input.parquet", "--json")
    assert shown.exit_code != 0
    wrong = [found for found in json.loads(shown.stdout)["findings"] if found["grade"] == "wrong"]
    assert [found["about"] for found in wrong] == ["registry"]
    assert "did you mean '7'" in wrong[0]["says"]
    spec = house(tmp_path, "['007']", "subjects: {learn: 1 h}")
    shown = tacit("doctor", spec, tmp_path / "input.parquet")
    assert "If one of them does not occur while" in shown.stdout.replace("\n", " ")


def test_a_folder_of_integers_and_texts_takes_each_as_it_is(tmp_path: Path) -> None:
    """A later file's 007 must not become the first file's 7."""
    spec = house(tmp_path, "['007']", taxis=[7, 8])
    folder = tmp_path / "input"
    folder.mkdir()
    (tmp_path / "input.parquet").rename(folder / "1.parquet")
    later = pl.DataFrame({"taxi": ["007", "7"] * 10, "at": [700] * 20, "kind": [0, 1] * 10})
    later.write_parquet(folder / "2.parquet")
    shown = tacit("run", spec, folder, "--to", tmp_path / "answers.jsonl")
    assert shown.exit_code == 0, shown.output
    assert set(answers(tmp_path)["subject"]) == {"7", "8", "007"}
    later.with_columns(taxi=pl.lit(1.5)).write_parquet(folder / "3.parquet")
    shown = tacit("run", spec, folder, "--to", tmp_path / "answers.jsonl")
    assert shown.exit_code != 0
    assert "3.parquet: the column 'taxi': subjects are text or integers" in shown.stderr


TEXT_FORMATS = ["csv", "jsonl"]


def written_as(spec: Path, suffix: str) -> Path:
    """The same tuples in a format of text."""
    frame = pl.read_parquet(spec.parent / "input.parquet")
    path = spec.parent / f"input.{suffix}"
    frame.write_csv(path) if suffix == "csv" else frame.write_ndjson(path)
    return path


@pytest.mark.cases(4)
@pytest.mark.parametrize("suffix", TEXT_FORMATS)
@pytest.mark.parametrize("registry", [*REGISTRIES.values(), "subjects: ['007', '8']"])
def test_a_protected_name_of_digits_is_protected_in_text_formats(
    tmp_path: Path, registry: str, suffix: str
) -> None:
    """A column in which every value looks like a number is text all the same."""
    spec = house(tmp_path, '["007"]', registry, ["007", "8"])
    source = written_as(spec, suffix)
    shown = tacit("run", spec, source, "--to", tmp_path / "answers.jsonl")
    assert shown.exit_code == 0, shown.output
    sure = dict(answers(tmp_path).group_by("subject").agg(pl.col("confidence").max()).iter_rows())
    assert sure.keys() == {"007", "8"}
    assert sure["007"] < 1
    assert sure["8"] == 1


@pytest.mark.parametrize("suffix", TEXT_FORMATS)
def test_the_other_spelling_in_text_formats_ends_the_run(tmp_path: Path, suffix: str) -> None:
    spec = house(tmp_path, '["007"]', "", ["7", "8"])
    source = written_as(spec, suffix)
    assert_refused(tacit("run", spec, source, "--to", tmp_path / "answers.jsonl"), tmp_path)
    spec = house(tmp_path, '["7"]', "", ["007", "8"])
    shown = tacit("run", spec, written_as(spec, suffix), "--to", tmp_path / "answers.jsonl")
    assert shown.exit_code == 3
    assert "'7' (did you mean '007'" in shown.stderr
