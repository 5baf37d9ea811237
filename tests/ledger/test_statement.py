"""`tacit ledger show|export|verify`, and what they are made of."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tacit.cli.main import main
from tacit.errors import LedgerError
from tacit.ledger import rows
from tacit.ledger.ledger import Ledger
from tacit.ledger.rows import SCHEMA, iterate_rows
from tacit.ledger.statement import read_statement
from tacit.ledger.verification import verify
from tests.ledger.drafts import DAY, MINUTE, NANO, account, draft, opened, release

NAMES = ["a", "b", "c"]


def tacit(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def filled(place: str) -> str:
    """A ledger with a run that has used up a day, and one that has not."""
    with Ledger.open(place) as ledger:
        taxis = ledger.take_over("taxis", "a")
        rare = account(3, "rare", limit=None, mask=np.array([False, True, False]))
        accounts = opened(taxis, NAMES, account(3, limit=4 * NANO + NANO // 2), rare)
        release(taxis, accounts, 1437, windows=2)
        release(taxis, accounts, 1439, windows=6)
        ledger.take_over("idle", "b")
    return place


def test_a_statement_says_what_is_spent_and_left_in_every_horizon(filled: str) -> None:
    with Ledger.open(filled, read_only=True) as ledger:
        told = read_statement(ledger)
    assert (told.releases, told.answers, told.subjects) == (2, 20, 3)
    assert [(run.run, run.releases, run.windows, run.until) for run in told.runs] == [
        ("idle", 0, 0, None),
        ("taxis", 2, 8, 1445 * MINUTE),
    ]
    # Three minutes of the first day; of the five of the second, four can be paid for.
    found = [(h.private, h.start, h.subjects, h.spent, h.exhausted) for h in told.horizons]
    assert found == [
        ("rare", 0, 1, 3 * NANO, 0),
        ("rare", DAY, 1, 4 * NANO, 0),
        ("visit", 0, 3, 3 * NANO, 0),
        ("visit", DAY, 3, 4 * NANO, 3),
    ]
    last = told.horizons[-1]
    assert (last.left, last.allowed, last.end) == (NANO // 2, 4, 2 * DAY)
    assert (told.horizons[0].left, told.horizons[0].allowed) == (None, None)
    assert told.entries == ()


def test_a_subjects_statement_has_its_charges_alone(filled: str) -> None:
    with Ledger.open(filled, read_only=True) as ledger:
        told = read_statement(ledger, subject="a")
        assert {entry.private for entry in told.entries} == {"visit"}
        assert [(e.first // MINUTE, e.windows, e.release) for e in told.entries] == [
            (1437, 2, 1),
            (1439, 1, 2),
            (1440, 4, 2),
        ]
        assert [(h.private, h.spent) for h in told.horizons] == [
            ("visit", 3 * NANO),
            ("visit", 4 * NANO),
        ]
        rare = read_statement(ledger, subject="b", private="rare")
        assert {entry.private for entry in rare.entries} == {"rare"}


def test_a_subject_or_pattern_that_is_unknown_is_named(filled: str) -> None:
    with Ledger.open(filled, read_only=True) as ledger:
        with pytest.raises(LedgerError, match="no subject called 'z'"):
            read_statement(ledger, subject="z")
        with pytest.raises(LedgerError, match=r"'visits'\. Did you mean 'visit'\?"):
            read_statement(ledger, private="visits")


def test_another_limits_horizon_shows_what_a_subject_was_charged_elsewhere(place: str) -> None:
    with Ledger.open(place) as ledger:
        day, hour = ledger.take_over("day", "a"), ledger.take_over("hour", "b")
        release(day, opened(day, ["a"], account(1, limit=5 * NANO)), 0)
        hourly = account(1, limit=9 * NANO, horizon=60 * MINUTE)
        release(hour, opened(hour, ["b"], hourly), 0)
        told = read_statement(ledger, subject="a")
        assert {(h.length, h.spent, h.left) for h in told.horizons} == {
            (DAY, NANO, 4 * NANO),
            (60 * MINUTE, NANO, 8 * NANO),
        }


def expected_rows() -> list[tuple[int, str, str, int]]:
    """Window, subject, private pattern and release."""
    found = []
    for window, number in [(1437, 1), (1438, 1), (1439, 2), *((1440 + n, 2) for n in range(4))]:
        found += [(window, name, "visit", number) for name in NAMES]
        found.append((window, "b", "rare", number))
    return sorted(found)


def plain_rows(frame: pl.DataFrame) -> list[tuple[int, str, str, int]]:
    minutes = frame["window_start"].cast(pl.Datetime("us", "UTC")).dt.epoch("us") // MINUTE
    columns = (minutes, frame["subject"], frame["private"], frame["release"])
    return sorted(zip(*(column.to_list() for column in columns), strict=True))


@pytest.mark.parametrize("size", [1, 3, 1 << 18])
def test_charges_are_rows_whatever_is_held_at_a_time(
    filled: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_ROWS", size)
    with Ledger.open(filled, read_only=True) as ledger:
        tables = list(iterate_rows(ledger))
        only = list(iterate_rows(ledger, subject="c", private="visit"))
    assert all(table.schema == SCHEMA for table in tables)
    frame = pl.concat([pl.DataFrame(table) for table in tables])
    assert plain_rows(frame.cast({"subject": pl.String, "private": pl.String})) == expected_rows()
    assert set(frame["nano_epsilon"]) == {NANO}
    assert set(frame["window_end"] - frame["window_start"]) == {timedelta(minutes=1)}
    assert sum(table.num_rows for table in only) == 7
    assert {row["subject"] for table in only for row in table.to_pylist()} == {"c"}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_charges_are_exported_in_every_format(filled: str, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"charges.{suffix}"
    shown = tacit("ledger", "export", filled, "--to", target)
    assert shown.exit_code == 0, shown.output
    assert "28 charges written" in shown.stderr
    read: dict[str, Any] = {
        "csv": lambda: pl.read_csv(target, try_parse_dates=True),
        "jsonl": lambda: pl.read_ndjson(target).with_columns(
            pl.col("window_start").str.to_datetime(time_zone="UTC")
        ),
        "parquet": lambda: pl.DataFrame(pq.read_table(target)),
        "arrow": lambda: pl.read_ipc(target),
    }
    frame = read[suffix]()
    assert frame.columns == SCHEMA.names
    assert plain_rows(frame.cast({"subject": pl.String, "private": pl.String})) == expected_rows()


def test_an_empty_ledger_exports_its_columns(tmp_path: Path) -> None:
    place, target = tmp_path / "ledger.db", tmp_path / "charges.csv"
    Ledger.open(str(place)).close()
    assert tacit("ledger", "export", place, "--to", target).exit_code == 0
    assert target.read_text().strip() == ",".join(SCHEMA.names)
    shown = tacit("ledger", "show", place)
    assert "0 releases" in shown.stdout
    assert "Nothing was charged." in shown.stdout
    assert "0 releases" in tacit("ledger", "verify", place).stdout


def test_show_tells_the_whole_and_one_subject(filled: str) -> None:
    shown = tacit("ledger", "show", filled)
    assert shown.exit_code == 0, shown.output
    assert "2 releases, 20 answers, 3 subjects" in shown.stdout
    assert "visit: 1 for a window, at most 4.5 in a horizon of 1 d" in shown.stdout
    assert "rare: 1 for a window, no limit" in shown.stdout
    assert (
        "until 1970-01-03T00:00:00. The next horizon allows 4.5 again, enough for 4 windows"
        in shown.stdout
    )
    told = tacit("ledger", "show", filled, "--subject", "b", "--private", "visit").stdout
    assert "Subject b:" in told
    assert "rare" not in told
    line = next(line for line in told.splitlines() if "1970-01-02T00:00:00  " in line)
    assert line.split() == ["1970-01-02T00:00:00", "4", "0", "4", "0.5", "yes"]
    assert "The subject gets answers from public events and what was known before, until" in told


def test_show_as_json_has_exact_amounts_and_times(filled: str) -> None:
    told = json.loads(tacit("ledger", "show", filled, "--subject", "a", "--json").stdout)
    horizon = told["horizons"][-1]
    assert (horizon["spent"], horizon["left"], horizon["limit"]) == (
        4 * NANO,
        NANO // 2,
        4_500_000_000,
    )
    assert (horizon["start"], horizon["end"]) == ("1970-01-02T00:00:00", "1970-01-03T00:00:00")
    assert told["entries"][0]["first"] == "1970-01-01T23:57:00Z"
    made = datetime.fromisoformat(told["entries"][0]["committed"])
    assert abs((datetime.now(UTC) - made).total_seconds()) < 600


def test_many_horizons_and_charges_are_cut_short_as_text(tmp_path: Path) -> None:
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("run", "a")
        accounts = opened(lease, ["a"], account(1, horizon=MINUTE))
        for window in range(25):
            release(lease, accounts, window)
    shown = tacit("ledger", "show", place, "--subject", "a").stdout
    assert "and 18 earlier; --json shows all" in shown
    assert "and 5 earlier; --json shows all, export writes all" in shown
    assert "The next horizon, from 1970-01-01T00:25:00 on, allows 3 again" in shown
    assert len(json.loads(tacit("ledger", "show", place, "--json").stdout)["horizons"]) == 25


def test_verify_passes_and_tells_the_hash_to_note(filled: str) -> None:
    with Ledger.open(filled) as ledger:
        noted = verify(ledger).hash
    shown = tacit("ledger", "verify", filled)
    assert shown.exit_code == 0, shown.output
    assert "is unchanged: 2 releases, 6 charges" in shown.stdout
    assert f"--anchor 2:{noted}" in shown.stdout
    assert tacit("ledger", "verify", filled, "--anchor", f"2:{noted}").exit_code == 0
    wrong = tacit("ledger", "verify", filled, "--anchor", f"2:{'0' * 64}", "--json")
    assert wrong.exit_code == 8
    assert json.loads(wrong.stdout)["faults"][0]["place"] == "release 2"
    for text in ("2", "x:" + noted, f"2:{noted[:-1]}", f"2:{'g' * 64}"):
        assert tacit("ledger", "verify", filled, "--anchor", text).exit_code == 2


def test_verify_names_what_was_changed_and_ends_with_8(tmp_path: Path) -> None:
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("run", "a")
        for window in range(30):
            lease.commit(b"", draft(window))
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE tacit_releases SET plan = 'better' WHERE number = 2")
    shown = tacit("ledger", "verify", place)
    assert shown.exit_code == 8
    lines = shown.stdout.splitlines()
    assert "was CHANGED" in lines[0]
    assert lines[1].strip().startswith("release 2: the link is broken")
    assert len(lines) == 2
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE tacit_releases SET plan = 'better'")
    assert "and 10 more; --json shows all" in tacit("ledger", "verify", place).stdout


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_what_is_not_a_ledger_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    target = tmp_path / "charges.csv"
    more = ["--to", str(target)] if command == "export" else []
    shown = tacit("ledger", command, tmp_path / "none.db", *more)
    assert shown.exit_code == 8
    assert shown.stderr.startswith("tacit: there is no ledger at")
    assert not target.exists()


def test_a_failed_export_leaves_no_file(filled: str, tmp_path: Path) -> None:
    target = tmp_path / "charges.csv"
    shown = tacit("ledger", "export", filled, "--to", target, "--subject", "nobody")
    assert shown.exit_code == 8
    assert "has no subject called 'nobody'" in shown.stderr
    assert not list(tmp_path.glob("*charges*"))
    assert tacit("ledger", "export", filled, "--to", tmp_path / "charges.txt").exit_code == 5


@pytest.mark.parametrize("command", ["show", "export", "verify"])
def test_every_command_has_an_example(command: str) -> None:
    shown = tacit("ledger", command, "--help")
    assert f"tacit ledger {command}" in shown.output.split("Example", 1)[1]
