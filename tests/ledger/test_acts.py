"""Administrative acts: links of the chain, checked with it, before and after archives."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from tacit.cli.main import main
from tacit.ledger import declarations, upgrade
from tacit.ledger.acts import ActKind, read_acts, record_act
from tacit.ledger.archival import archive
from tacit.ledger.chain import ACT, seal
from tacit.ledger.ledger import Ledger
from tacit.ledger.overview import read_overview
from tacit.ledger.tables import ACCOUNTS, ACTS, HEAD, ZONES
from tacit.ledger.verification import record_verification, verify
from tacit.service.roles import Role
from tacit.service.tables import METADATA, PROPOSALS, SERVICE, TOKENS, VERSIONS
from tacit.service.tokens import Tokens
from tests.ledger.drafts import DAY, account, draft
from tests.ledger.test_archive import OLD, fill


def act(ledger: Ledger, about: str, actor: str = "operator ann") -> int:
    with ledger.database.writing() as connection:
        return record_act(connection, actor, ActKind.APPROVED, about, {"note": about})


def test_acts_are_numbered_dated_and_read_from_the_newest(ledger: Ledger) -> None:
    assert [act(ledger, f"version {number}") for number in range(5)] == [1, 2, 3, 4, 5]
    found = read_acts(ledger.database, before=4, limit=2)
    assert [(one.number, one.about, one.actor) for one in found] == [
        (3, "version 2", "operator ann"),
        (2, "version 1", "operator ann"),
    ]
    assert found[0].moment >= found[1].moment
    assert found[0].detail == {"note": "version 2"}
    assert verify(ledger).acts == 5


def test_an_act_that_is_sealed_anew_breaks_the_chain(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    lease.commit(b"", draft(0))
    act(ledger, "version 2")
    lease.commit(b"", draft(1))
    act(ledger, "version 3")
    assert verify(ledger).passed
    seen = read_overview(ledger.name, "run") if ledger.database.sqlite else None
    assert seen is None or seen.sound
    for number, place in ((1, "release 2"), (2, "the head")):
        with ledger.database.writing() as connection:
            query = sa.select(ACTS).where(ACTS.c.number == number)
            row = dict(connection.execute(query).mappings().one())
            forged = row | {"actor": "operator bob"}
            forged["seal"] = seal(ACT, forged)
            mine = ACTS.c.number == number
            connection.execute(ACTS.update().where(mine).values(forged))
        assert [fault.place for fault in verify(ledger).faults] == [place]
        with ledger.database.writing() as connection:
            connection.execute(ACTS.update().where(mine).values(row))
    assert verify(ledger).passed


def test_what_was_verified_before_does_not_hide_a_removed_act(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    for number in range(3):
        lease.commit(b"", draft(number))
        act(ledger, f"version {number}")
    record_verification(ledger, verify(ledger))
    assert verify(ledger).since == 3
    with ledger.database.writing() as connection:
        connection.execute(ACTS.delete().where(ACTS.c.number == 2))
    assert not verify(ledger).passed


def test_acts_and_archives_between_the_same_releases_keep_their_order(
    ledger: Ledger, tmp_path: Path
) -> None:
    act(ledger, "before everything")
    fill(ledger, days=2)
    act(ledger, "before the archive")
    archive(ledger, DAY, tmp_path / "1.archive")
    act(ledger, "between archives")
    archive(ledger, 2 * DAY, tmp_path / "2.archive")
    act(ledger, "after the archives")
    lease = ledger.take_over("one", "a")
    lease.commit(b"", draft(2 * 1440))
    files = [tmp_path / "1.archive", tmp_path / "2.archive"]
    verdict = verify(ledger, full=True, archives=files)
    assert verdict.passed, verdict.faults
    assert verdict.acts == 5  # the last says which version is live after the archived ones
    with ledger.database.writing() as connection:
        hashed = connection.execute(sa.select(HEAD.c.hash)).scalar_one()
        swapped = ACTS.update().where(ACTS.c.number == 3)
        connection.execute(swapped.values(archives=2))
    assert hashed
    assert not verify(ledger).passed


def test_a_ledger_written_before_acts_is_upgraded_and_takes_them(tmp_path: Path) -> None:
    place = tmp_path / "old.db"
    with sqlite3.connect(place) as connection:
        connection.executescript(OLD.read_text())
    with Ledger.open(str(place)) as ledger:
        before = verify(ledger)
        assert before.passed
        assert before.acts == 1  # covers the time zones of that time
        act(ledger, "version 2")
        after = verify(ledger, {before.releases: before.hash}, full=True)
        assert after.passed, after.faults
        assert (after.acts, after.hash) == (2, before.hash)


def test_another_version_is_an_act_in_the_transaction_of_its_first_release(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    lease.commit(b"", draft(0), draft(1))
    assert read_acts(ledger.database) == []
    changed = replace(draft(2), plan="another plan")
    lease.commit(b"", changed, replace(draft(3), plan="another plan"))
    lease.commit(b"", changed, replace(draft(3), plan="another plan"))  # a repeated commit
    (live,) = read_acts(ledger.database)
    assert (live.kind, live.actor, live.after) == (ActKind.LIVE, "run run", 2)
    assert live.detail["first_window"] == changed.first
    assert verify(ledger).passed


def test_tokens_are_acts_with_who_and_when(ledger: Ledger) -> None:
    tokens = Tokens(ledger.database)
    _, record = tokens.create(Role.CONSUMER, "city", creator="operator ann")
    for _ in range(2):
        tokens.revoke(record.id, actor="operator bob")
    revoked, created = read_acts(ledger.database)
    assert (created.kind, created.actor) == (ActKind.TOKEN_CREATED, "operator ann")
    assert (revoked.kind, revoked.actor) == (ActKind.TOKEN_REVOKED, "operator bob")
    assert revoked.about == record.id
    assert verify(ledger).passed


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_line_shows_acts(tmp_path: Path, as_json: bool) -> None:
    place = str(tmp_path / "ledger.db")
    run = CliRunner()
    assert run.invoke(main, ["token", "create", place, "--role", "source", "--name", "s"]).output
    shown = run.invoke(main, ["ledger", "acts", place, *(["--json"] if as_json else [])])
    assert shown.exit_code == 0
    if as_json:
        (found,) = json.loads(shown.output)
        assert (found["kind"], found["detail"]["role"]) == ("token created", "source")
    else:
        assert "command line" in shown.output
        assert "token created" in shown.output
    verified = run.invoke(main, ["ledger", "verify", place])
    assert "1 administrative act" in verified.output


EARLIER: list[tuple[sa.Table, dict[str, object]]] = [
    (TOKENS, {"id": "a1", "digest": b"1", "role": "consumer", "name": "city", "streams": "[]",
              "note": "", "created": 1, "creator": "ann"}),
    (VERSIONS, {"run": "r", "number": 1, "created": 1, "author": "ann", "summary": "",
                "content": b"2", "plan": "3"}),
    *(
        (PROPOSALS, {"run": "r", "number": number, "created": 1, "role": "consumer",
                     "author": "city", "kind": "query", "change": "{}", "automatic": False,
                     "state": state, "base": 1, "reason": "", "decided": decided, "decider": "",
                     "note": ""})
        for number, state, decided in ((1, "ready", None), (2, "rejected", 2))
    ),
]  # fmt: skip


def test_rows_of_a_service_before_they_were_covered_are_covered_when_it_is_opened(
    ledger: Ledger,
) -> None:
    with ledger.database.writing() as connection:
        METADATA.create_all(connection)
        connection.execute(SERVICE.insert().values(version=3))
        for table, row in EARLIER:
            connection.execute(table.insert().values(row))
        record_act(connection, "operator ann", ActKind.TOKEN_CREATED, "a1")
    for _ in range(2):
        tokens = Tokens(ledger.database)
    tokens.create(Role.CONSUMER, "clinic", creator="operator ann")
    tokens.revoke("a1", actor="operator ann")
    assert verify(ledger).passed, verify(ledger).faults
    assert [one.kind for one in read_acts(ledger.database)].count(ActKind.UPGRADED) == 1
    for table in (TOKENS, VERSIONS, PROPOSALS):
        with ledger.database.writing() as connection:
            connection.execute(table.update().values(created=7))
        assert not verify(ledger).passed
        with ledger.database.writing() as connection:
            connection.execute(table.update().values(created=1))


def test_accounts_and_zones_of_an_earlier_version_are_covered_when_the_ledger_is_upgraded(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("run", "a")
        lease.commit(b"", draft(0))
        with monkeypatch.context() as patch:
            patch.setattr(declarations, "record_act", lambda *_: None)
            ids = lease.enrol(pa.array(["a", "b"]))
            lease.register_zones(ids, ["Asia/Tokyo", "UTC"], 0)
            lease.declare_accounts(ids, [account(2), account(2, "stay")], {}, 0)
        assert {fault.message for fault in verify(ledger).faults} == {"no act explains it"}
        with ledger.database.writing() as connection:
            version = sa.table(upgrade.VERSION_TABLE, sa.column("version_num"))
            connection.execute(sa.update(version).values(version_num="0004"))
    with Ledger.open(place) as ledger:
        (covering,) = read_acts(ledger.database)
        assert (covering.kind, covering.after) == (ActKind.UPGRADED, 1)
        lease = ledger.take_over("run", "a")
        lease.commit(b"", draft(1))
        lease.declare_accounts(ids, [account(2)], {}, 0)
        newest, *_ = read_acts(ledger.database)
        assert (newest.kind, newest.detail) == (ActKind.DECLARED, {"private": ["stay"]})
        assert verify(ledger, full=True).passed, verify(ledger).faults
        for table in (ACCOUNTS, ZONES):
            query = sa.select(table).order_by(*table.primary_key)
            with ledger.database.writing() as connection:
                row = [dict(row) for row in connection.execute(query).mappings()][-1]
                mine = sa.and_(*(column == row[column.name] for column in table.primary_key))
                connection.execute(table.delete().where(mine))
            (fault,) = verify(ledger).faults
            assert fault.message == "an act names it, but it is missing"
            with ledger.database.writing() as connection:
                connection.execute(table.insert().values(row))
        assert verify(ledger).passed


def test_an_account_is_declared_once_by_one_act(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    ids = lease.enrol(pa.array(["a", "b"]))
    for _ in range(2):
        lease.declare_accounts(ids, [account(2)], {}, 0)
        lease.register_zones(ids, ["UTC", "UTC"], 0)
    acts = [(one.actor, one.kind, one.about) for one in read_acts(ledger.database)]
    assert acts == [
        ("run run", ActKind.DECLARED, "time zones"),
        ("run run", ActKind.DECLARED, "accounts"),
    ]


def test_a_table_that_acts_cover_cannot_be_dropped_unseen(ledger: Ledger) -> None:
    Tokens(ledger.database).create(Role.CONSUMER, "city", creator="operator ann")
    with ledger.database.writing() as connection:
        TOKENS.drop(connection)
    (fault,) = verify(ledger).faults
    assert fault.message == "an act names it, but it is missing"
