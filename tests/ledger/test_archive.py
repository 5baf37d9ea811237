"""Old releases move to archives: nothing is lost, nothing is forgotten, and the chain goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tacit.errors import LedgerError
from tacit.ledger import archival, balances, upgrade
from tacit.ledger.archival import archive
from tacit.ledger.archive_file import ArchiveFile, ArchiveWriter
from tacit.ledger.charges import Charge
from tacit.ledger.database import Database
from tacit.ledger.ledger import Ledger
from tacit.ledger.overview import read_overview
from tacit.ledger.statement import read_statement
from tacit.ledger.tables import (
    ARCHIVES,
    BALANCES,
    BODIES,
    CHARGES,
    HEAD,
    METADATA,
    RELEASES,
    RUNS,
    VERIFIED,
)
from tacit.ledger.verification import record_verification, verify
from tests.cli.small_runs import tacit
from tests.ledger.drafts import DAY, MINUTE, NANO, account, draft, opened, release
from tests.longer import longer

DAYS = 4
EACH = 4
"""Windows of a day that are released one by one; the others go together, and cost nothing."""
HORIZONS = (DAY, 2 * DAY, 7 * MINUTE, 36 * 60 * MINUTE, 365 * DAY)
"""Lengths of horizons that are asked for, most of them for the first time."""
OLD = Path(__file__).with_name("revision-0001.sql")


def fill(ledger: Ledger, days: int = DAYS, first: int = 0) -> None:
    """Two runs that charge the same pattern by different horizons, day after day."""
    one, other = ledger.take_over("one", "a"), ledger.take_over("other", "b")
    for day in range(first, first + days):
        mine = opened(one, ["a", "b", "c"], account(3, limit=3 * NANO), account(3, "stay"))
        theirs = opened(other, ["c", "d"], account(2, limit=None, horizon=2 * DAY))
        for window in range(1440 * day, 1440 * day + EACH):
            release(one, mine, window)
            release(other, theirs, window)
        rest = draft(1440 * day + EACH, windows=1440 - EACH)
        one.commit(b"state", rest)
        other.commit(b"state", rest)
    deliver(one)
    deliver(other)


def deliver(lease: Any) -> None:
    """Everything has arrived."""
    with lease._database.reading() as connection:
        query = sa.select(RUNS.c.released).where(RUNS.c.run == lease.run)
        number = connection.execute(query).scalar_one()
    lease.record_delivery("file", number, None)


def spent(ledger: Ledger, days: int = DAYS) -> dict[tuple[str, int, int], list[int]]:
    """What everyone has spent in every horizon of some lengths, also those without a balance."""
    result = {}
    with ledger.database.reading() as connection:
        for private in ("visit", "stay"):
            for horizon in HORIZONS:
                for day in range(days + 1):
                    start = day * DAY // horizon * horizon
                    key = (private, horizon, start)
                    found = balances.sum_charges(connection, key).spent
                    result[key] = np.trim_zeros(found, "b").tolist()
                    assert np.array_equal(found, balances.read(connection, key))
    return result


def rows(ledger: Ledger, table: sa.Table) -> list[dict[str, Any]]:
    query = sa.select(table).order_by(*table.primary_key)
    with ledger.database.reading() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def write(ledger: Ledger, change: Any) -> None:
    with ledger.database.writing() as connection:
        connection.execute(change)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "old.archive"


def test_closed_horizons_move_and_balances_and_the_chain_stay(ledger: Ledger, file: Path) -> None:
    fill(ledger)
    before, figures, told = verify(ledger), spent(ledger), read_statement(ledger)
    kept = {row["number"]: row for row in rows(ledger, RELEASES)}
    bodies = {row["release"]: row["body"] for row in rows(ledger, BODIES)}
    done = archive(ledger, 3 * DAY, file)
    # Release 22 is charged in a horizon of two days that is not over.
    assert (done.first, done.last) == (1, 21)
    assert [row["number"] for row in rows(ledger, RELEASES)] == list(range(done.last + 1, 41))
    assert spent(ledger) == figures
    with_archive = verify(ledger, archives=[file])
    assert with_archive.passed, with_archive.faults
    assert with_archive.archives == (str(file),)
    assert (with_archive.hash, with_archive.charges) == (before.hash, before.charges)
    after = read_statement(ledger)
    assert (after.runs, after.horizons, after.hash) == (told.runs, told.horizons, told.hash)
    assert after.archived == done.last
    archived = ArchiveFile(file)
    for row in archived.rows():
        original = kept[row["number"]]
        assert row["body"] == bodies[row["number"]]
        assert {name: row[name] for name in original} == original
    archived.close()
    seen = read_overview(ledger.name, "one")
    assert seen is not None
    assert seen.sound


def test_limits_hold_across_an_archive_also_for_a_longer_horizon(
    ledger: Ledger, file: Path
) -> None:
    fill(ledger, days=2)
    archive(ledger, 2 * DAY, file)
    lease = ledger.take_over("new", "c")
    # Each day a was charged 3 by one run, d 4 by the other, and c 6 by both together.
    limited = account(3, limit=13 * NANO, horizon=4 * DAY)
    accounts = opened(lease, ["a", "c", "d"], limited)
    assert accounts.spent(limited, 2 * 1440 * MINUTE).tolist() == [6 * NANO, 12 * NANO, 8 * NANO]
    assert release(lease, accounts, 2 * 1440) == [[False, False, False]]
    assert release(lease, accounts, 2 * 1440 + 1) == [[False, True, False]]
    assert verify(ledger, full=True).passed


def test_runs_go_on_after_their_last_release_was_archived(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=2)
    done = archive(ledger, 2 * DAY, file)
    assert rows(ledger, RELEASES) == []
    assert verify(ledger).passed
    seen = read_overview(ledger.name, "one")
    assert seen is not None
    assert seen.sound
    lease = ledger.take_over("one", "a")
    with pytest.raises(LedgerError, match="has already released the window"):
        lease.commit(b"", draft(5))
    with pytest.raises(LedgerError, match="every window is answered"):
        lease.commit(b"", draft(2 * 1440 + 5))
    assert lease.commit(b"", draft(2 * 1440)) == done.last + 1
    verdict = verify(ledger, archives=[file])
    assert verdict.passed, verdict.faults


@pytest.mark.cases(1)
def test_archives_follow_each_other_and_join(ledger: Ledger, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.archive" for number in range(3)]
    fill(ledger, days=6)
    noted = {number: rows(ledger, RELEASES)[number - 1]["hash"].hex() for number in (3, 20, 45)}
    figures = spent(ledger, 6)
    for number, path in enumerate(files, 1):
        archive(ledger, 2 * number * DAY, path)
        assert verify(ledger).passed
    fill(ledger, days=1, first=6)
    found = spent(ledger, 6)
    assert all(found[key] == value for key, value in figures.items() if sum(key[1:]) <= 6 * DAY)
    verdict = verify(ledger, noted, archives=files)
    assert verdict.passed, verdict.faults
    (fault,) = verify(ledger, {3: noted[3]}).faults
    assert "give its file" in str(fault)
    assert verify(ledger, {20: noted[20]}).passed  # the last of an archive is known
    assert not verify(ledger, {3: noted[20]}, archives=files).passed
    assert not verify(ledger, {20: noted[3]}).passed


def test_an_archive_that_was_changed_or_belongs_elsewhere_is_found(
    ledger: Ledger, file: Path, tmp_path: Path
) -> None:
    fill(ledger, days=2)
    archive(ledger, 2 * DAY, file)
    content = bytearray(file.read_bytes())
    for place in (4, len(content) // 2, len(content) - 9):
        changed = bytearray(content)
        changed[place] ^= 1
        other = tmp_path / "changed.archive"
        other.write_bytes(changed)
        (fault,) = verify(ledger, archives=[other]).faults
        assert "not an archive of this ledger, or was changed" in str(fault)
    assert verify(ledger, archives=[file]).passed


@pytest.mark.cases(3)
@pytest.mark.parametrize("table", [ARCHIVES, CHARGES, HEAD], ids=lambda table: table.name)
def test_no_field_of_an_archived_ledger_can_be_changed_unseen(
    ledger: Ledger, file: Path, table: sa.Table
) -> None:
    fill(ledger, days=2)
    archive(ledger, 2 * DAY, file)
    fill(ledger, days=1, first=2)
    assert verify(ledger).passed
    for row in rows(ledger, table)[:3]:
        for column in table.c:
            value = row[column.name]
            other = (
                value + 1
                if isinstance(value, int)
                else value + "x"
                if isinstance(value, str)
                else bytes([value[0] ^ 1]) + value[1:]
                if value
                else 7
            )
            where = sa.and_(*(key == row[key.name] for key in table.primary_key))
            altered = row | {column.name: other}
            back = sa.and_(*(key == altered[key.name] for key in table.primary_key))
            if column.primary_key and table is CHARGES:
                continue  # another row may be there
            write(ledger, table.update().where(where).values({column.name: other}))
            assert not verify(ledger).passed, column
            write(ledger, table.update().where(back).values(row))
    assert verify(ledger).passed


def test_charges_and_balances_that_stay_are_protected(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=2)
    archive(ledger, 2 * DAY, file)
    settled, balance = rows(ledger, CHARGES)[0], rows(ledger, BALANCES)[0]
    where = sa.and_(CHARGES.c.release == settled["release"], CHARGES.c.place == settled["place"])
    write(ledger, CHARGES.delete().where(where))
    assert any("charges of archived" in str(fault) for fault in verify(ledger).faults)
    write(ledger, CHARGES.insert().values(settled))
    key = sa.and_(*(column == balance[column.name] for column in BALANCES.primary_key))
    write(ledger, BALANCES.delete().where(key))
    assert any("the balance of" in str(fault) for fault in verify(ledger).faults)
    write(ledger, BALANCES.insert().values(balance))
    assert verify(ledger).passed


def test_what_is_not_delivered_or_not_over_stays(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=2)
    lease = ledger.take_over("one", "a")
    lease.record_delivery("slow", 1, None)
    done = archive(ledger, 2 * DAY, file)
    assert done.last == 2  # release 3 was not delivered to slow
    with pytest.raises(LedgerError, match="release 3 of the run 'one' was not delivered to slow"):
        archive(ledger, 2 * DAY, file.with_name("more.archive"))
    assert archive(ledger, 2 * DAY, file.with_name("more.archive"), undelivered=True).last == 20
    with pytest.raises(LedgerError, match="holds no releases"):
        archive(ledger, 2 * DAY)
    with pytest.raises(LedgerError, match="future"):
        archive(ledger, 2**60)
    assert verify(ledger, archives=[file, file.with_name("more.archive")]).passed


def test_answers_that_were_changed_are_not_archived(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=2)
    body = rows(ledger, BODIES)[2]
    changed = BODIES.update().where(BODIES.c.release == body["release"])
    write(ledger, changed.values(body=body["body"] + b"x"))
    with pytest.raises(LedgerError, match=f"release {body['release']} was changed"):
        archive(ledger, 2 * DAY, file)
    assert not file.exists()


def test_a_chain_that_is_broken_is_not_archived(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=2)
    write(ledger, RELEASES.update().where(RELEASES.c.number == 4).values(plan="another"))
    with pytest.raises(LedgerError, match="release 4 was changed"):
        archive(ledger, 2 * DAY, file)
    assert not file.exists()
    assert not list(file.parent.glob("*.partial")) + list(file.parent.glob(".*.partial"))
    assert len(rows(ledger, RELEASES)) == 20


class CrashError(Exception):
    """The process ends here."""


POINTS = ("writing", "before its name", "after the file", "in the transaction", "after it")


def crash(point: str, monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    """Let archiving end at a point, by calling `how`."""
    finish, move = ArchiveWriter.finish, archival._move
    if point == "writing":
        monkeypatch.setattr(ArchiveWriter, "write", lambda *_: how())
    elif point == "before its name":
        monkeypatch.setattr(ArchiveWriter, "finish", lambda *_: how())
    elif point == "after the file":
        monkeypatch.setattr(ArchiveWriter, "finish", lambda self: (finish(self), how())[0])
    elif point == "in the transaction":
        monkeypatch.setattr(archival, "hash_charges", lambda *_: how())
    else:
        monkeypatch.setattr(archival, "_move", lambda *given: (move(*given), how())[0])


@pytest.mark.cases(3)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    ("place", "killed"),
    [("sqlite", False), ("postgres", False), *longer(("sqlite", True))],
    ids=["sqlite raises", "postgres raises", "sqlite is killed"],
    indirect=["place"],
)
def test_a_crash_at_any_point_loses_nothing_and_archives_nothing_twice(
    place: str, file: Path, point: str, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(place) as ledger:
        fill(ledger, days=2)
        figures, before = spent(ledger), rows(ledger, RELEASES)
        if not killed:
            with monkeypatch.context() as patch:

                def fail() -> None:
                    raise CrashError

                crash(point, patch, fail)
                with pytest.raises(CrashError):
                    archive(ledger, 2 * DAY, file)
    if killed:
        child = os.fork()
        if child == 0:  # everything here ends with the process
            with Ledger.open(place) as other:
                crash(point, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))
                archive(other, 2 * DAY, file)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with Ledger.open(place) as ledger:
        assert verify(ledger).passed
        assert spent(ledger) == figures
        gone = rows(ledger, RELEASES) == []
        assert gone == (point == "after it")
        if gone:
            with pytest.raises(LedgerError, match="holds no releases"):
                archive(ledger, 2 * DAY, file)
        else:
            assert rows(ledger, RELEASES) == before
            done = archive(ledger, 2 * DAY, file)
            assert done.resumed == (point in ("after the file", "in the transaction"))
        assert len(rows(ledger, ARCHIVES)) == 1
        verdict = verify(ledger, archives=[file])
        assert verdict.passed, verdict.faults
        assert spent(ledger) == figures
        assert list(file.parent.glob(".*.partial")) == []


@pytest.mark.cases(1)
def test_a_file_that_is_there_is_never_overwritten(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=2)
    file.write_text("something else")
    with pytest.raises(LedgerError, match="not an archive"):
        archive(ledger, 2 * DAY, file)
    assert file.read_text() == "something else"
    file.unlink()
    archive(ledger, 2 * DAY, file)
    fill(ledger, days=2, first=2)
    with pytest.raises(LedgerError, match="holds other releases"):
        archive(ledger, 4 * DAY, file)
    assert verify(ledger, archives=[file]).passed


piece = st.tuples(
    st.sampled_from(["visit", "stay"]),
    st.integers(1, 3),
    st.sampled_from([7 * MINUTE, 60 * MINUTE, DAY]),
    st.integers(1, 7),
)


@given(st.lists(st.lists(piece, max_size=3), min_size=1, max_size=12), st.integers(1, 12))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_horizon_of_every_length_has_the_same_sum_before_and_after(
    tmp_path_factory: pytest.TempPathFactory, windows: list[list[Any]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    with Ledger.open(str(folder / "ledger.db")) as ledger:
        lease = ledger.take_over("run", "a")
        opened(lease, ["a", "b", "c"])
        for window, pieces in enumerate(windows):
            charges = [
                Charge(
                    name,
                    amount,
                    window * MINUTE,
                    horizon,
                    np.array([who & 1, who & 2, who & 4], np.bool_),
                )
                for name, amount, horizon, who in pieces
            ]
            lease.commit(b"", draft(window, charges))
        deliver(lease)
        before = spent(ledger, 1)
        for moment in (cut * MINUTE, 2 * DAY):
            with suppress(LedgerError):  # there may be nothing to archive
                archive(ledger, moment, folder / f"{moment}.archive")
            assert spent(ledger, 1) == before
            assert verify(ledger, full=True).passed


def test_a_ledger_of_the_version_before_is_upgraded_verified_and_archived(
    place: str, tmp_path: Path, file: Path
) -> None:
    """It was written by the code of that version."""
    source = tmp_path / "old.db"
    with sqlite3.connect(source) as connection:
        connection.executescript(OLD.read_text())
    if "://" in place:
        _copy(source, place)
    else:
        source.rename(place)
    with pytest.raises(LedgerError, match="has an older version"):
        Ledger.open(place, read_only=True)
    with Ledger.open(place) as ledger:
        noted = {6: "5881e05b8a7eab238df4dd74eb66f976135810afc65c800c24e9e80456e37d08"}
        verdict = verify(ledger, noted)
        assert verdict.passed, verdict.faults
        assert (verdict.releases, verdict.charges, verdict.bodies) == (6, 9, 3)
        figures = spent(ledger, 1)
        assert figures["visit", DAY, 0] == [4 * NANO, 4 * NANO, 6 * NANO, 3 * NANO]
        archive(ledger, DAY, file)
        assert verify(ledger, noted, archives=[file]).passed
        assert spent(ledger, 1) == figures
        assert ledger.take_over("one", "a").read_until() == 6 * MINUTE


def _copy(source: Path, place: str) -> None:
    """The old ledger in PostgreSQL: the tables of that version, with the same rows."""
    database = Database(place)
    try:
        with database.writing() as connection, sqlite3.connect(source) as old:
            config = Config()
            config.set_main_option("script_location", str(upgrade.STEPS))
            config.set_main_option("path_separator", "os")
            config.attributes["connection"] = connection
            command.upgrade(config, "0001")
            for table in METADATA.sorted_tables:
                # Of this version, only what that version had.
                names = [row[1] for row in old.execute(f"PRAGMA table_info({table.name})")]
                quoted = ", ".join(f'"{name}"' for name in names)
                places = ", ".join(f":v{n}" for n in range(len(names)))
                insert = text(f"INSERT INTO {table.name} ({quoted}) VALUES ({places})")
                for values in old.execute(f"SELECT {quoted} FROM {table.name}") if names else ():
                    row = {f"v{n}": value for n, value in enumerate(values)}
                    connection.execute(insert, row)
    finally:
        database.close()


@pytest.mark.cases(1)
def test_what_was_verified_is_not_read_again_but_sampled(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.ledger import verification

    fill(ledger, days=2)
    first = verify(ledger)
    assert (first.since, first.sampled) == (0, 0)
    record_verification(ledger, first)
    fill(ledger, days=1, first=2)
    second = verify(ledger)
    assert second.passed, second.faults
    assert (second.since, second.sampled) == (20, 20)  # so few that the sample is all of them
    assert (second.releases, second.charges) == (30, verify(ledger, full=True).charges)
    # What is new is found whatever the sample; what is old if it is in the sample, or in full.
    monkeypatch.setattr(verification, "_BLOCKS", 0)
    assert verify(ledger).sampled == 0
    for number, seen in ((3, False), (25, True)):
        change = RELEASES.update().where(RELEASES.c.number == number)
        write(ledger, change.values(plan="another"))
        assert verify(ledger).passed != seen
        assert not verify(ledger, full=True).passed
        monkeypatch.setattr(verification, "_BLOCKS", 8)
        assert not verify(ledger).passed
        monkeypatch.setattr(verification, "_BLOCKS", 0)
        write(ledger, change.values(plan="plan"))
    assert verify(ledger).passed


def test_open_balances_and_anchors_are_checked_every_time(ledger: Ledger) -> None:
    fill(ledger, days=1)
    hashes = {row["number"]: row["hash"].hex() for row in rows(ledger, RELEASES)}
    record_verification(ledger, verify(ledger))
    assert verify(ledger, {4: hashes[4]}).passed
    assert not verify(ledger, {4: hashes[5]}).passed
    longer = sa.and_(BALANCES.c.horizon == 2 * DAY, BALANCES.c.private == "visit")
    (before,) = [row for row in rows(ledger, BALANCES) if row["horizon"] == 2 * DAY]
    other = rows(ledger, BALANCES)[0]
    write(ledger, BALANCES.update().where(longer).values(spent=other["spent"]))
    assert "the balance of visit" in str(verify(ledger).faults[0])
    write(ledger, BALANCES.update().where(longer).values(spent=before["spent"]))
    assert verify(ledger).passed


@pytest.mark.cases(5)
@pytest.mark.parametrize("column", ["release", "hash", "charges", "moment", "seal"])
def test_what_is_remembered_cannot_be_changed_unseen(ledger: Ledger, column: str) -> None:
    fill(ledger, days=1)
    record_verification(ledger, verify(ledger))
    (row,) = rows(ledger, VERIFIED)
    value = row[column]
    other = value - 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
    write(ledger, VERIFIED.update().values({column: other}))
    assert "what was verified before" in str(verify(ledger).faults[0])


def test_a_ledger_that_was_changed_is_not_remembered_as_verified(ledger: Ledger) -> None:
    fill(ledger, days=1)
    write(ledger, RELEASES.update().where(RELEASES.c.number == 3).values(plan="another"))
    record_verification(ledger, verify(ledger))
    assert rows(ledger, VERIFIED) == []


def test_archiving_keeps_what_was_verified_where_it_still_holds(ledger: Ledger, file: Path) -> None:
    fill(ledger, days=3)
    record_verification(ledger, verify(ledger))
    archive(ledger, 2 * DAY, file)
    verdict = verify(ledger)
    assert verdict.passed, verdict.faults
    assert (verdict.archived, verdict.since) == (20, 30)


@pytest.mark.cases(1)
def test_the_commands_archive_verify_and_tell(place: str, tmp_path: Path) -> None:
    with Ledger.open(place) as ledger:
        fill(ledger)
    out = tmp_path / "until-1970-01-03.archive"
    done = tacit("ledger", "archive", place, "--before", "1970-01-03", "-o", out)
    assert done.exit_code == 0, done.output
    assert "Releases 1 to 20" in done.stdout
    assert out.stat().st_mode & 0o777 == 0o600
    first = tacit("ledger", "verify", place, "--archive", out)
    assert first.exit_code == 0, first.output
    assert "continues into the ledger" in first.stdout
    second = tacit("ledger", "verify", place)
    assert "Releases up to 40 were verified before; a random sample of 20 was checked again" in (
        " ".join(second.stdout.split())
    )
    assert "verified before" not in tacit("ledger", "verify", place, "--full").stdout
    assert "Releases up to 20 are archived" in tacit("ledger", "show", place).stdout
    again = tacit("ledger", "archive", place, "--before", "1970-01-03", "-o", tmp_path / "x")
    assert again.exit_code == 8
    assert "nothing to archive" in again.stderr
    damage(out)
    broken = tacit("ledger", "verify", place, "--archive", out)
    assert broken.exit_code == 8
    assert "was changed" in broken.stdout


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
