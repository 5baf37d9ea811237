"""`tacit init` and `tacit completion`: what they draft works at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest
import yaml

from tacit.spec.yaml_reader import load
from tests.cli.small_runs import tacit

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def readings(rows: int = 1200) -> pl.DataFrame:
    """Sensors of nine homes; one home alone has a sensor that nobody else has."""
    chance = np.random.default_rng(1)
    homes = [f"home-{number}" for number in chance.integers(9, size=rows)]
    kinds = [str(kind) for kind in chance.choice(["contact", "motion", "it's"], size=rows)]
    return pl.DataFrame(
        {
            "ts": [BEGIN + timedelta(seconds=30 * number) for number in range(rows)],
            "home": homes,
            "sensor": ["panic" if h == "home-3" and n < 90 else k
                       for n, (h, k) in enumerate(zip(homes, kinds, strict=True))],
            "watts": chance.gamma(2, 200, rows).round(1),
            "lon": 8.5 + chance.normal(0, 0.01, rows),
            "lat": 47.3 + chance.normal(0, 0.01, rows),
            "open": chance.random(rows) < 0.3,
        }
    )  # fmt: skip


def write(frame: pl.DataFrame, path: Path) -> Path:
    """Write readings in the format of the file's name; as German spreadsheets do, if it says so."""
    if "german" in path.name:
        german = frame.with_columns(pl.col("ts").dt.strftime("%d.%m.%Y %H:%M:%S"))
        german.write_csv(path, separator=";")
    elif path.suffix == ".csv":
        frame.write_csv(path)
    elif path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.with_columns(pl.col("ts").dt.epoch("s")).write_ndjson(path)
    return path


def test_it_says_in_how_many_rows_subjects_were_counted(tmp_path: Path) -> None:
    """Subjects in rows that it did not read are not counted: the message must not claim that."""
    rows = pl.DataFrame(
        {
            "taxi": [f"t{number % 40 if number < 50_000 else number}" for number in range(50_020)],
            "at": [BEGIN + timedelta(seconds=number) for number in range(50_020)],
            "speed": [number % 7 for number in range(50_020)],
        }
    )
    for frame, told in (
        (rows, "40 of them in the first 50,000 rows"),
        (rows.head(9), "9 of them in this file"),
    ):
        path = tmp_path / f"taxis{len(frame)}.parquet"
        frame.write_parquet(path)
        ended = tacit("init", str(path), "-o", str(path.with_suffix(".yaml")))
        assert f"subjects are in the column taxi: {told}" in ended.output


@pytest.mark.parametrize(
    ("order", "lateness", "told"),
    [
        ("ts", "1 min", False),
        ("home", "1 d", True),
        ("swapped", "5 min", True),
    ],
)
def test_a_draft_waits_for_tuples_that_are_out_of_order(
    order: str, lateness: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted by time, by home, or with one tuple that comes 90 s too late."""
    frame = readings()
    if order == "swapped":
        rows = list(range(frame.height))
        rows.insert(13, rows.pop(10))
        frame = frame[rows]
    else:
        frame = frame.sort(order, "ts")
    monkeypatch.chdir(tmp_path)
    write(frame, Path("sensors.csv"))
    drafted = tacit("init", "sensors.csv")
    assert f"lateness: {lateness}}}" in Path("sensors.yaml").read_text()
    assert ("times are out of order" in drafted.stdout) == told
    assert ("sort the file by ts" in drafted.stdout) == told
    run = tacit("detect", "sensors.yaml", "sensors.csv", "--to", "answers.csv")
    assert "refused" not in run.output, run.output


def test_numbers_with_decimal_commas_are_no_subjects_and_unread_lines_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{day:02}.03.2026 08:{minute:02};h{minute % 4};{minute},{day % 10};{'on' * (day % 2)}"
        for day in range(1, 29)
        for minute in range(0, 60, 5)
    ]
    text = "zeit;haus;grad;zustand\n" + "\n".join(rows) + '\n"a\nh1;20,5\n'
    Path("germany.csv").write_text(text)
    drafted = tacit("init", "germany.csv")
    assert load("germany.yaml").streams["germany"].subject == "haus"
    assert "grad is text, because its numbers have a decimal comma" in drafted.stdout
    assert "  Guessed: subjects are in the column haus" in drafted.stdout
    assert "  Note: 2 lines of the file cannot be read; the first is line 338" in drafted.stdout


@pytest.mark.parametrize("column", ["deviceId", "Device ID", "device-id", "plate"])
def test_a_time_of_day_is_no_subject_and_names_are_read_word_by_word(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"d{n % 6},0{1 + n // 100}.03.2026,{n % 12 or 12}:{n % 60:02} {'AP'[n % 2]}M,room {n % 7}"
        for n in range(400)
    ]
    Path("doors.csv").write_text(f"{column},Date,Time,room\n" + "\n".join(rows))
    drafted = tacit("init", "doors.csv")
    found = load("doors.yaml").streams["doors"].subject
    assert found == ("room" if column == "plate" else column), drafted.output


def test_letters_with_accents_keep_their_letter_in_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"w{n % 5},2026-03-01T08:{n % 60:02}:00,{'geöffnet' * (n % 2)}" for n in range(60)]
    Path("fenster.csv").write_text("wohnung,zeit,zustand\n" + "\n".join(rows))
    assert tacit("init", "fenster.csv").exit_code == 0
    assert "zustand_geoffnet" in load("fenster.yaml").events


def test_some_unreadable_times_do_not_hide_the_column_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = readings().with_columns(
        pl.when(pl.int_range(pl.len()).is_in([500, 700]))
        .then(pl.lit("n/a"))
        .otherwise(pl.col("ts").dt.strftime("%d.%m.%Y %H:%M:%S"))
        .alias("ts")
    )
    frame.write_csv(tmp_path / "data.csv")
    drafted = tacit("init", "data.csv")
    assert drafted.exit_code == 0, drafted.output
    assert "times are in the column ts, as" in drafted.output
    assert "  Note: 2 times in the first 1,200 rows cannot be read" in drafted.output
    stream = yaml.safe_load((tmp_path / "data.yaml").read_text())["streams"]["data"]
    assert (stream["time"], stream["format"]) == ("ts", "%d.%m.%Y %H:%M:%S")
    assert "lateness: 1 min" in (tmp_path / "data.yaml").read_text()


@pytest.mark.parametrize(
    ("written", "days", "told"),
    [
        ("%d/%m/%Y %H:%M:%S", 5, True),
        ("%m/%d/%Y %I:%M %p", 5, True),
        ("%m/%d/%Y %H:%M", 20, False),
        ("%d-%m-%Y %H:%M", 20, False),
    ],
)
def test_day_and_month_are_told_apart_by_all_rows_and_doubts_are_told(
    written: str, days: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thousand rows are of the first days of March, which can be read both ways."""
    monkeypatch.chdir(tmp_path)
    step = timedelta(days=days) / 2500
    frame = readings(2500).with_columns(
        pl.Series("ts", [f"{BEGIN + timedelta(days=1) + n * step:{written}}" for n in range(2500)])
    )
    frame.write_csv("data.csv")
    drafted = tacit("init", "data.csv")
    assert load("data.yaml").streams["data"].format == written
    assert ("could also be read as" in drafted.stdout) == told


def test_days_without_a_time_of_day_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    apart = readings().with_columns(
        pl.col("ts").dt.strftime("%Y-%m-%d").alias("date"),
        pl.col("ts").dt.strftime("%H:%M:%S").alias("time"),
    )
    apart.drop("ts").write_csv("apart.csv")
    told = tacit("init", "apart.csv").stdout
    assert "date has days only" in told
    assert "The time of day seems to be in time: join both" in told
    apart.drop("ts", "time").write_csv("days.csv")
    assert "If you have the time of day, add it" in tacit("init", "days.csv").stdout


@pytest.mark.parametrize(
    "name", ["sensors.csv", "german.csv", "sensors.parquet", "sensors.jsonl", "2nd try.csv"]
)
def test_a_draft_validates_plans_and_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(readings(), tmp_path / name)
    drafted = tacit("init", source, "-o", "draft.yaml")
    assert drafted.exit_code == 0, drafted.output
    spec = load("draft.yaml")
    (stream,) = spec.streams.values()
    assert (stream.subject, stream.time) == ("home", "ts")
    assert stream.delimiter == (";" if name == "german.csv" else ",")
    assert {"sensor_contact", "sensor_it_s", "high_watts", "open", "there"} <= set(spec.events)
    if name == "sensors.csv":
        plan = tacit("plan", "draft.yaml", "--history", source, "-o", "plan.json", "--json")
        assert plan.exit_code == 0, plan.output
        assert json.loads(plan.stdout)["history_warnings"] == []
        run = tacit(
            "run", "draft.yaml", source, "--plan", "plan.json", "--no-ledger", "--to", "out.csv"
        )
    else:
        run = tacit("detect", "draft.yaml", source, "--to", "out.csv")
    assert run.exit_code == 0, run.output
    assert pl.read_csv("out.csv")["subject"].n_unique() == 9


def test_a_draft_has_the_name_of_its_file_and_the_next_steps_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(readings(), tmp_path / "2nd-try of mine.csv")
    done = tacit("init", "2nd-try of mine.csv")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "2nd-try of mine.yaml").exists()
    assert "tacit plan '2nd-try of mine.yaml' --history '2nd-try of mine.csv'" in done.output


def test_a_draft_names_no_value_that_only_few_subjects_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the rare value of one home, nor a home, nor an exact reading."""
    monkeypatch.chdir(tmp_path)
    assert tacit("init", write(readings(), tmp_path / "sensors.csv")).exit_code == 0
    text = (tmp_path / "sensors.yaml").read_text()
    assert "panic" not in text
    assert "home-" not in text
    bound = re.search(r"watts >= ([0-9.]+)", text)
    assert bound is not None
    assert float(bound[1]) % 10 == 0  # two digits of a number of three


def test_the_schema_beside_it_is_that_of_the_comment_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tacit("init", "--template", "home").exit_code == 0
    text = (tmp_path / "home.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=tacit.schema.json\n")
    schema = json.loads((tmp_path / "tacit.schema.json").read_text())
    assert schema["$id"] == "urn:tacit:specification:1"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(text), schema)
    again = tacit("init", "--template", "home")
    assert again.exit_code == 5
    assert "exists already" in again.stderr
    assert (tmp_path / "home.yaml").read_text() == text


@pytest.mark.parametrize("template", ["taxi", "home", "mqtt"])
def test_templates_are_valid(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tacit("init", "--template", template).exit_code == 0
    spec = load(tmp_path / f"{template}.yaml")
    assert spec.private
    assert spec.queries


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "no column that looks like times"),
        ("ts,home\n", "no rows"),
        ('ts,home,note\n2026-01-01,a,"b\nc"\n', "line 2: a quote that is not closed on its line"),
        (
            "ts,home\n2026-01-01,K\xfcche\n",
            "not UTF-8 text), so there is nothing to draft from; convert",
        ),
        ("ts,home\n2026-01-01,a\n2026-01-02,a\n", "no column that conditions could be"),
        ("2026-01-01,a,1\n2026-01-02,b,2\n", "a time where the name of a column should be"),
        ("ts\n2026-01-01\n2026-01-02\n", "add one that says in each row which person"),
    ],
)
def test_a_file_without_a_draft_gives_the_reason(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(text, "latin-1")
    done = tacit("init", tmp_path / "in.csv", "-o", tmp_path / "draft.yaml")
    assert done.exit_code == 4
    assert why in done.stderr
    assert not (tmp_path / "draft.yaml").exists()


def test_a_file_or_a_template_is_needed() -> None:
    assert "give a file to draft from, or --template" in tacit("init").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_this_program(shell: str) -> None:
    script = tacit("completion", shell)
    assert script.exit_code == 0
    assert f"_TACIT_COMPLETE={shell}_complete" in script.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_bash_script_completes_commands(tmp_path: Path) -> None:
    script = tmp_path / "tacit.bash"
    script.write_text(tacit("completion", "bash").stdout)
    folder = Path(sys.executable).parent
    typed = (
        f"source {script}; COMP_WORDS=(tacit va); COMP_CWORD=1; _tacit_completion tacit;"
        ' echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", typed],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["validate"]
