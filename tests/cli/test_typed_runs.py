"""No subject's values change how another subject's tuples are read, from file to answers."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from tacit.cli.main import main
from tacit.planning.plan import Plan

SPEC = """
version: 1
streams:
  gps: {subject: taxi, time: at}
subjects: ["007", "7", "eve"]
windows: {size: 10 min}
events:
  secret: {stream: gps, where: "kind = 'secret'"}
  slow: {stream: gps, where: "kind = 'report' AND speed < 10"}
private:
  - {pattern: secret, epsilon: 1}
queries:
  - {name: jam, consumer: city, pattern: slow}
"""
PUBLIC = [
    {"taxi": "007", "at": "1700000000", "kind": "report", "speed": "5"},
    {"taxi": "7", "at": "1700000060", "kind": "report", "speed": "70"},
    {"taxi": "eve", "at": "1700000090", "kind": "report", "speed": "7.5"},
]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """CSV and JSON lines as a careless producer writes them: numbers without quotes."""
    if path.suffix == ".csv":
        pl.DataFrame(rows).write_csv(path)
        return path
    lines = []
    for row in rows:
        values = {name: json.dumps(value) for name, value in row.items()}
        for name in ("at", "speed"):
            if row[name].replace(".", "").isdigit():
                values[name] = row[name]
        lines.append("{" + ", ".join(f'"{name}": {text}' for name, text in values.items()) + "}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(tmp_path: Path, source: Path, *options: str) -> str:
    """What `tacit run` writes."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    out = tmp_path / "answers.csv"
    out.unlink(missing_ok=True)
    result = CliRunner().invoke(
        main, ["run", str(tmp_path / "spec.yaml"), str(source), "--to", str(out), *options]
    )
    assert result.exit_code == 0, result.output
    return out.read_text()


@pytest.mark.cases(8)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("speed", "unknown"),
        ("speed", ""),
        ("at", "2023-11-14T22:14:00Z"),
        ("at", "noon"),
        ("taxi", "eve"),
        ("kind", "true"),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_a_private_value_of_another_type_changes_no_answer_of_others(
    tmp_path: Path, suffix: str, column: str, value: str, place: int
) -> None:
    private = {"taxi": "eve", "at": "1700000030", "kind": "secret", "speed": "1"} | {column: value}
    rows = [*PUBLIC[:place], private, *PUBLIC[place:]]
    without = run(tmp_path, write(tmp_path / f"a{suffix}", PUBLIC))
    assert run(tmp_path, write(tmp_path / f"b{suffix}", rows)) == without
    assert [line.split(",")[-2] for line in without.splitlines()[1:]] == ["true", "false", "true"]


def test_an_unreadable_time_costs_its_own_tuple_alone(tmp_path: Path) -> None:
    rows = [*PUBLIC, {"taxi": "eve", "at": "soon", "kind": "report", "speed": "1"}]
    letters = tmp_path / "letters.jsonl"
    source = write(tmp_path / "b.csv", rows)
    found = run(tmp_path, source, "--dead-letters", str(letters))
    assert found == run(tmp_path, write(tmp_path / "a.csv", PUBLIC))
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert letter["reason"].startswith("no time")
    assert json.loads(letter["raw"])["at"] == "soon"


def test_a_file_that_holds_only_unreadable_lines_is_reported(tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", PUBLIC)
    bad = tmp_path / "bad.csv"
    bad.write_text('taxi,at,kind,speed\n1,2\n"x\n')
    (tmp_path / "spec.yaml").write_text(SPEC)
    letters = tmp_path / "letters.jsonl"
    result = CliRunner().invoke(
        main,
        [
            "detect",
            str(tmp_path / "spec.yaml"),
            str(good),
            str(bad),
            "--dead-letters",
            str(letters),
        ],
    )
    assert result.exit_code == 0
    assert "2 tuples" in result.stderr or "2 lines" in result.stderr
    assert [json.loads(line)["source"] for line in letters.read_text().splitlines()] == [
        str(bad)
    ] * 2


UNKNOWN = SPEC.replace("speed < 10", "speed < least")


def test_a_run_whose_types_are_known_from_nowhere_is_refused_with_the_lines_to_add(
    tmp_path: Path,
) -> None:
    (tmp_path / "spec.yaml").write_text(UNKNOWN)
    rows = [row | {"least": "10"} for row in PUBLIC]
    source = write(tmp_path / "a.csv", rows)
    out = tmp_path / "out.csv"
    arguments = ["run", str(tmp_path / "spec.yaml"), str(source), "--to", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert not out.exists()
    assert "    columns:\n      speed: text\n      least: text" in result.stderr


@pytest.mark.parametrize("history", ["history.csv", "history.jsonl", "history.parquet"])
def test_a_plan_records_the_types_that_history_had(tmp_path: Path, history: str) -> None:
    (tmp_path / "spec.yaml").write_text(UNKNOWN)
    rows = [row | {"least": "10"} for row in PUBLIC]
    past = tmp_path / history
    if history.endswith(".parquet"):
        pl.DataFrame(rows).with_columns(pl.col("speed", "least").cast(pl.Float64)).write_parquet(
            past
        )
    else:
        write(past, rows)
    plan, out = tmp_path / "plan.json", tmp_path / "out.csv"
    spec = str(tmp_path / "spec.yaml")
    made = CliRunner().invoke(main, ["plan", spec, "--history", str(past), "-o", str(plan)])
    assert made.exit_code == 0, made.output
    types = Plan.load(plan).columns["gps"]
    assert {name: types[name] for name in ("speed", "least")} == {
        "speed": "number",
        "least": "number",
    }
    odd = [*rows, PUBLIC[0] | {"least": "unknown", "kind": "secret"}]
    source = str(write(tmp_path / "now.csv", odd))
    result = CliRunner().invoke(main, ["run", spec, source, "--plan", str(plan), "--to", str(out)])
    assert result.exit_code == 0, result.output
    detected = pl.read_csv(out, schema_overrides={"subject": pl.String})
    assert detected["detected"].to_list() == [True, False, True]
