"""Whatever is changed in a ledger is found, and the first broken link is named."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tacit.ledger.acts import ActKind, record_act
from tacit.ledger.chain import CHARGE, hash_beginning, link, link_act, seal
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import (
    ACTS,
    ARCHIVES,
    BODIES,
    CHARGES,
    HEAD,
    METADATA,
    RELEASES,
    VERIFIED,
)
from tacit.ledger.verification import verify
from tests.ledger.drafts import MINUTE, NANO, account, opened, release
from tests.services import Postgres

NUMBERS = count()
"""Of the databases: pytest may make the ledger more than once."""
TABLES = [table for table in METADATA.sorted_tables if table not in (ARCHIVES, VERIFIED)]
"""Those that the ledger of these tests has rows in; `test_archive` changes the other two."""
COLUMNS = [(table.name, column.name) for table in TABLES for column in table.c]
TYPES = {
    (str(column.type), column.nullable): (table.name, column.name)
    for table in TABLES
    for column in table.c
}
"""A column of each type: servers differ in how they keep types, and in nothing else."""


@pytest.fixture(scope="module")
def ledgers() -> Iterator[dict[str, Ledger]]:
    """Ledgers that are written once for all tests, by the kind of their database."""
    found: dict[str, Ledger] = {}
    yield found
    for ledger in found.values():
        ledger.close()


@pytest.fixture(params=["sqlite", "postgres"])
def written(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    ledgers: dict[str, Ledger],
) -> Ledger:
    """A ledger in which every table has rows; whatever is changed in it is put right again."""
    if request.param not in ledgers:
        if request.param == "sqlite":
            place = str(tmp_path_factory.mktemp("tampering") / "ledger.db")
        else:
            server: Postgres = request.getfixturevalue("postgres")
            place = server.database(f"tampering{next(NUMBERS)}")
        ledgers[request.param] = fill(place)
    return ledgers[request.param]


def fill(place: str) -> Ledger:
    """Open a new ledger, and write rows into all of its tables."""
    ledger = Ledger.open(place)
    one, other = ledger.take_over("one", "a"), ledger.take_over("other", "b")
    ledger.take_over("idle", "c")
    ids = one.enrol(pa.array(["a", "b"]))
    one.register_zones(ids, ["Asia/Tokyo", "UTC"], 0)
    one.declare_accounts(ids, [account(2)], {}, 0)
    limited = account(3, limit=4 * NANO)
    for window in range(2):
        mine = opened(one, ["a", "b", "c"], limited, account(3, "stay", limit=None))
        theirs = opened(other, ["c", "d"], account(2, limit=None, horizon=2 * MINUTE))
        release(one, mine, 2 * window, windows=2)
        release(other, theirs, window)
        if window == 0:
            with ledger.database.writing() as connection:
                record_act(connection, "operator ann", ActKind.APPROVED, "2", {"from": 1})
                record_act(connection, "operator bob", ActKind.REJECTED, "proposal 3")
    one.record_delivery("file", 1, {"bytes": 5})
    one.drop_delivered(["file"], 2**62)
    return ledger


def write(ledger: Ledger, statement: Any) -> None:
    with ledger.database.writing() as connection:
        connection.execute(statement)


def rows(ledger: Ledger, table: sa.Table) -> list[dict[str, Any]]:
    query = sa.select(table).order_by(*table.primary_key)
    with ledger.database.reading() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def exactly(table: sa.Table, row: dict[str, Any]) -> Any:
    return sa.and_(*(column == row[column.name] for column in table.primary_key))


def changed(column: sa.Column[Any], value: Any) -> Iterator[Any]:
    """Other values for a field."""
    match value:
        case int():
            yield value + 1000
            if not column.primary_key:
                yield value - 1
        case str():
            yield value + "x"
        case bytes():
            middle = len(value) // 2
            yield value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
            yield b""
        case None:
            yield b"x" if isinstance(column.type, sa.LargeBinary) else 1
    if column.nullable and value is not None:
        yield None


def test_a_ledger_that_nobody_changed_passes(written: Ledger) -> None:
    verdict = verify(written)
    assert verdict.passed, verdict.faults
    assert (verdict.releases, verdict.subjects) == (4, 4)
    assert verdict.bodies == 3  # that of one release was dropped
    assert verdict.hash == rows(written, HEAD)[0]["hash"].hex()


@pytest.mark.parametrize(
    ("written", "name", "field"),
    [
        *(("sqlite", name, field) for name, field in COLUMNS),
        *(("postgres", name, field) for name, field in TYPES.values()),
    ],
    indirect=["written"],
)
def test_no_field_can_be_changed_unseen(written: Ledger, name: str, field: str) -> None:
    table = METADATA.tables[name]
    before = rows(written, table)
    first, *_, last = before * 2
    cases = [(first, next(changed(table.c[field], first[field])))]
    cases += [(last, value) for value in changed(table.c[field], last[field])]
    for row, value in cases:
        altered = row | {field: value}
        write(written, table.update().where(exactly(table, row)).values({field: value}))
        try:
            assert not verify(written).passed, f"{name}.{field}: {row[field]!r} -> {value!r}"
        finally:
            write(written, table.update().where(exactly(table, altered)).values(row))
    assert rows(written, table) == before


@pytest.mark.parametrize("name", sorted({name for name, _ in COLUMNS} - {"tacit_deliveries"}))
def test_no_row_can_be_taken_away_unseen(written: Ledger, name: str) -> None:
    table = METADATA.tables[name]
    for row in rows(written, table):
        if name == "tacit_runs" and row["run"] == "idle":
            continue  # a run that has left no traces
        write(written, table.delete().where(exactly(table, row)))
        try:
            assert not verify(written).passed, row
        finally:
            write(written, table.insert().values(row))
    assert verify(written).passed


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("table", [CHARGES, RELEASES], ids=["charge", "release"])
def test_the_first_broken_link_is_named(written: Ledger, number: int, table: sa.Table) -> None:
    column = CHARGES.c.release if table is CHARGES else RELEASES.c.number
    before = {"slide": MINUTE}
    for place in (number, 4):
        write(written, table.update().where(column == place).values(slide=MINUTE + 1))
    try:
        first, *others = verify(written).faults
    finally:
        write(written, table.update().values(before))
    assert str(first).startswith(f"release {number}: the link is broken")
    assert any(str(other).startswith("release 4: the link") for other in others)
    assert verify(written).passed


def test_charges_and_answers_of_no_release_are_found(written: Ledger) -> None:
    charge = rows(written, CHARGES)[0] | {"release": 77}
    body = {"release": 77, "body": b""}
    for table, row in ((CHARGES, charge), (BODIES, body)):
        write(written, table.insert().values(row))
        try:
            faults = verify(written).faults
            assert any("release 77" in str(fault) for fault in faults), faults
        finally:
            write(written, table.delete().where(exactly(table, row)))
    assert verify(written).passed


def test_answers_that_were_dropped_cannot_come_back(written: Ledger) -> None:
    write(written, BODIES.insert().values(release=1, body=b"other answers"))
    try:
        assert str(verify(written).faults[0]).startswith("release 1")
    finally:
        write(written, BODIES.delete().where(BODIES.c.release == 1))


def test_a_chain_that_was_made_anew_is_found_by_a_hash_that_was_noted(written: Ledger) -> None:
    noted = verify(written).hash
    releases, (head,) = rows(written, RELEASES), rows(written, HEAD)
    forged = [releases[0] | {"plan": "another plan"}, *releases[1:]]
    before = rows(written, RELEASES)[0]["hash"]
    assert verify(written, {4: noted}).passed
    try:
        _forge(written, forged)
        assert verify(written).passed
        faults = verify(written, {4: noted}).faults
        assert [str(fault) for fault in faults] == ["release 4: its hash differs from the anchor"]
        assert verify(written, {1: before.hex(), 4: noted}).faults[0].place == "release 1"
        (fault,) = verify(written, {7: noted}).faults[:1]
        assert fault.message == "it has an anchor, but is missing"
    finally:
        for row in releases:
            write(written, RELEASES.update().where(exactly(RELEASES, row)).values(row))
        write(written, HEAD.update().values(head))
    assert verify(written, {4: noted}).passed


def _forge(ledger: Ledger, releases: list[dict[str, Any]]) -> None:
    """The chain as someone would write it who knows how it is made."""
    (head,) = rows(ledger, HEAD)
    charges = rows(ledger, CHARGES)
    before = hash_beginning(head["id"], head["created"])
    for act in rows(ledger, ACTS):
        before = link_act(before, act) if act["after"] == 0 else before
    for row in releases:
        own = [seal(CHARGE, charge) for charge in charges if charge["release"] == row["number"]]
        before = link(before, row, own)
        hashed = before
        for act in rows(ledger, ACTS):
            before = link_act(before, act) if act["after"] == row["number"] else before
        write(
            ledger, RELEASES.update().where(exactly(RELEASES, row)).values(row | {"hash": hashed})
        )
    write(ledger, HEAD.update().values(hash=before))


def test_an_empty_ledger_passes(ledger: Ledger) -> None:
    verdict = verify(ledger)
    assert verdict.passed
    assert (verdict.releases, verdict.charges, verdict.subjects) == (0, 0, 0)
