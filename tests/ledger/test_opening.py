"""Ledgers that are opened, brought up to date or refused; databases that fail."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tacit.errors import LedgerError, LedgerLostError
from tacit.ledger import database, upgrade
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import METADATA
from tacit.ledger.verification import verify
from tests.ledger import racing
from tests.ledger.drafts import draft, opened, release
from tests.ledger.racing import Engine
from tests.new_ledgers import open_sqlite
from tests.services import Postgres

VERSION = sa.table(upgrade.VERSION_TABLE, sa.column("version_num", sa.String))


def revision(ledger: Ledger) -> str:
    with ledger.database.reading() as connection:
        return str(connection.execute(sa.select(VERSION.c.version_num)).scalar_one())


def test_a_connection_in_use_when_the_ledger_is_closed_is_closed_afterwards(
    ledger: Ledger,
) -> None:
    with ledger.database.reading() as connection:
        used = connection.connection.dbapi_connection
        ledger.close()
        connection.execute(sa.select(VERSION.c.version_num))
    assert used is not None
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        used.cursor().execute("SELECT 1")


def test_a_new_ledger_has_the_tables_that_the_code_speaks_of(ledger: Ledger) -> None:
    assert revision(ledger) == upgrade.REVISIONS[-1]
    with ledger.database.reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": upgrade.VERSION_TABLE}
        )
        assert compare_metadata(context, METADATA) == []


def test_every_step_is_known_in_its_order() -> None:
    steps = ScriptDirectory(str(upgrade.STEPS)).walk_revisions()
    assert tuple(step.revision for step in steps)[::-1] == upgrade.REVISIONS


def test_opening_again_changes_nothing(place: str) -> None:
    with Ledger.open(place) as first:
        first.take_over("run", "a").commit(b"state", draft(0))
        before = verify(first)
    with Ledger.open(place) as again:
        assert verify(again) == before
        assert revision(again) == upgrade.REVISIONS[-1]


NEXT = '''
"""A step that is not there yet."""
import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade():
    op.add_column("tacit_runs", sa.Column("note", sa.Text))
'''


def test_an_older_ledger_is_brought_up_to_date_and_keeps_what_it_has(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(place) as old:
        old.take_over("run", "a").commit(b"state", draft(0))
        before = verify(old)
    steps = tmp_path / "100 % steps"
    shutil.copytree(upgrade.STEPS, steps)
    (steps / "versions" / "second.py").write_text(NEXT)
    monkeypatch.setattr(upgrade, "STEPS", steps)
    monkeypatch.setattr(upgrade, "REVISIONS", (*upgrade.REVISIONS, "0006"))
    with pytest.raises(LedgerError, match="has an older version"):
        Ledger.open(place, read_only=True)
    with Ledger.open(place) as new:
        assert revision(new) == "0006"
        assert verify(new) == before
        with new.database.reading() as connection:
            assert "note" in {c["name"] for c in sa.inspect(connection).get_columns("tacit_runs")}


@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_ledger_is_refused_and_left_alone(place: str, read_only: bool) -> None:
    with Ledger.open(place) as ledger, ledger.database.writing() as connection:
        connection.execute(VERSION.update().values(version_num="0099"))
    with pytest.raises(LedgerError, match=r"written by a newer Tacit: its version is 0099, .*0005"):
        Ledger.open(place, read_only=read_only)


def test_a_ledger_that_must_be_there_is_not_made(tmp_path: Path, url: str) -> None:
    missing = tmp_path / "none.db"
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(LedgerError, match="there is no ledger"):
            Ledger.open(str(missing), **options)
        with pytest.raises(LedgerError, match="is not a ledger"):
            Ledger.open(url, **options)
    assert not missing.exists()


def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, other = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("this is no database, and long enough to be seen as none" * 50)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE accounts (name TEXT)")
    before = other.read_bytes()
    with pytest.raises(LedgerError, match="is not a SQLite database"):
        Ledger.open(str(text))
    with pytest.raises(LedgerError, match="has no tables of a ledger"):
        Ledger.open(str(other))
    with pytest.raises(LedgerError, match="is not a file"):
        Ledger.open(str(tmp_path))
    with pytest.raises(LedgerError, match="is not a folder"):
        Ledger.open(str(tmp_path / "missing" / "ledger.db"))
    assert text.read_text().startswith("this is no database")
    with sqlite3.connect(other) as connection:
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert names == [("accounts",)]
    assert len(other.read_bytes()) == len(before)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://somewhere/db", "a file or postgresql"),
        ("postgresql://somewhere:none/db", "cannot be read"),
    ],
)
def test_other_databases_are_refused(url: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said):
        Ledger.open(url)


def test_a_server_that_is_not_there_is_lost_and_passwords_stay_unsaid() -> None:
    with pytest.raises(LedgerLostError, match="does not answer") as caught:
        Ledger.open("postgresql://tacit:secret@127.0.0.1:1/ledger")
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_no_reason_to_try_again(postgres: Postgres) -> None:
    with pytest.raises(LedgerError, match="does not exist") as caught:
        Ledger.open(postgres.url.replace("/postgres?", "/nowhere?"))
    assert not isinstance(caught.value, LedgerLostError)


def test_a_ledger_in_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        ledger.take_over("run", "a").commit(b"private state")
        modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {0o600}


def test_a_file_is_written_ahead_and_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_sqlite", open_sqlite)  # other tests do not wait
    with (
        Ledger.open(str(tmp_path / "ledger.db")) as ledger,
        ledger.database.reading() as connection,
    ):
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_server_waits_for_the_disk_even_if_it_is_told_not_to(url: str) -> None:
    quick = f"{url}&options=-csynchronous_commit%3Doff"
    with Ledger.open(quick) as ledger, ledger.database.reading() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_who_only_reads_can_read_while_another_writes_and_cannot_write(place: str) -> None:
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("run", "a")
        lease.commit(b"", draft(0))
        with Ledger.open(place, read_only=True) as reader:
            assert verify(reader).releases == 1
            lease.commit(b"", draft(1))
            assert verify(reader).releases == 2
            with pytest.raises(LedgerError, match="opened read-only"):
                reader.take_over("run", "a")


def test_a_database_that_may_not_be_written_says_so(tmp_path: Path, url: str) -> None:
    path = str(tmp_path / "ledger.db")
    settings = {path: "PRAGMA query_only = 1", url: "SET default_transaction_read_only = on"}
    for place, setting in settings.items():
        with Ledger.open(place) as ledger:
            lease = ledger.take_over("run", "a")
            with ledger.database.reading() as connection:
                connection.exec_driver_sql(setting)
            with pytest.raises(LedgerError, match="cannot be written"):
                lease.commit(b"", draft(0))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_ledger_at_rest_can_be_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(str(path)) as ledger:
        ledger.take_over("run", "a").commit(b"", draft(0))
    tmp_path.chmod(0o500)
    try:
        with Ledger.open(str(path), read_only=True) as ledger:
            assert verify(ledger).passed
    finally:
        tmp_path.chmod(0o700)


def test_a_ledger_that_others_hold_for_too_long_is_lost_for_now(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT", 0.2)
    with Ledger.open(place) as one, Ledger.open(place) as other:
        lease, waiting = one.take_over("run", "a"), other.take_over("other", "a")
        with one.database.writing() as connection:
            connection.execute(sa.text("UPDATE tacit_head SET answers = answers"))
            with pytest.raises(LedgerLostError):
                waiting.commit(b"", draft(0))
        assert waiting.commit(b"", draft(0)) == 1
        assert lease.commit(b"", draft(0)) == 2


def test_a_full_disk_stops_with_a_clear_word_and_leaves_a_whole_ledger(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        lease = ledger.take_over("run", "a")
        accounts = opened(lease, ["a"])
        with ledger.database.reading() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 20}")
        release(lease, accounts, 0)
        with pytest.raises(LedgerError, match="the disk is full") as caught:
            lease.commit(b"more", draft(1, body=os.urandom(200_000)))
        assert not isinstance(caught.value, LedgerLostError)
        verdict = verify(ledger)
        assert verdict.passed, verdict.faults
        assert verdict.releases == 1
        assert lease.read_checkpoint() == b"state"
        assert lease.commit(b"small", draft(1)) == 2


def test_a_file_that_may_not_grow_stops_with_a_clear_word(tmp_path: Path) -> None:
    place = str(tmp_path / "ledger.db")
    engine = Engine(racing.fill, place, 1_000_000)
    kind, said, released = engine.hear()
    assert kind == "LedgerError"
    assert "Nothing was released without its charge" in said
    with Ledger.open(place) as ledger:
        verdict = verify(ledger)
        assert verdict.passed, verdict.faults
        assert verdict.releases == released > 0
        assert ledger.take_over("run", "a").read_checkpoint() == b"%d" % (released - 1)


@pytest.mark.soak
def test_a_server_that_crashes_is_lost_until_it_is_back(url: str, postgres: Postgres) -> None:
    with Ledger.open(url) as ledger:
        lease = ledger.take_over("run", "a")
        accounts = opened(lease, ["a"])
        release(lease, accounts, 0)
        charges = accounts.charge(60_000_000, accounts.find_exhausted(60_000_000))
        waiting = draft(1, charges)
        postgres.stop(signal.SIGQUIT)
        try:
            for _ in range(2):
                with pytest.raises(LedgerLostError, match="does not answer"):
                    lease.commit(b"next", waiting)
        finally:
            postgres.start()
        assert lease.commit(b"next", waiting) == 2
        assert lease.commit(b"next", waiting) == 2
        verdict = verify(ledger)
        assert verdict.passed, verdict.faults
        assert verdict.releases == 2


@pytest.mark.parametrize(
    ("missing", "place", "extra"),
    [
        ("sqlalchemy", "ledger.db", "tacit[ledger]"),
        ("alembic", "ledger.db", "tacit[ledger]"),
        ("psycopg", "postgresql://localhost/x", "tacit[postgres]"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, missing: str, place: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from tacit.errors import MissingExtraError\n"
        "try:\n"
        "    from tacit.ledger.ledger import Ledger\n"
        f"    Ledger.open({place!r})\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"needs the extra {extra}: pip install '{extra}'" in done.stdout
