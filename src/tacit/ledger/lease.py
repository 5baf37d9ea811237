"""A lease: one engine's right to release for one run, until another engine takes the run over.

A commit is one transaction: the answers, their charges, the link of the chain, and the engine's
checkpoint. Releases are delivered from the ledger, to each sink separately.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import FencedError, LedgerError
from tacit.ledger import balances, declarations
from tacit.ledger.accounts import Accounts, Amounts, Key
from tacit.ledger.acts import ActKind, record_act
from tacit.ledger.alchemy import sa
from tacit.ledger.archives import Archives
from tacit.ledger.chain import DELIVERY, RUN, digest, link, seal, seal_charge
from tacit.ledger.charges import Account, Charge, merge_charges
from tacit.ledger.codec import pack_ids
from tacit.ledger.database import Database, now
from tacit.ledger.declarations import DeclaredAccount
from tacit.ledger.drafts import ReleaseDraft, UndeliveredRelease
from tacit.ledger.registry import Registry, to_texts
from tacit.ledger.tables import (
    BALANCES,
    BODIES,
    CHARGES,
    CHECKPOINTS,
    DELIVERIES,
    HEAD,
    RELEASES,
    RUNS,
)
from tacit.ledger.zones import Zones
from tacit.options import command


class Lease:
    """The right to release for a run. It is safe to use from several threads."""

    durable = True
    """Whether commits are stored."""

    def __init__(
        self, database: Database, registry: Registry, run: str, epoch: int, fingerprint: str
    ) -> None:
        self.run = run
        self.epoch = epoch
        self.fingerprint = fingerprint
        """The fingerprint of the specification of checkpoints; set it when that changes."""
        self._database = database
        self._registry = registry
        self._accounts: Accounts | None = None

    @property
    def place(self) -> str:
        """The file or URL of the ledger, without passwords."""
        return self._database.name

    @property
    def answers_command(self) -> str:
        """The command that prints the answers of the run again."""
        return command(
            f"tacit ledger answers {shlex.quote(self.place)} --run {shlex.quote(self.run)}"
            " --to FILE",
            f"tacit.released({self.place!r}, run={self.run!r})",
        )

    def __repr__(self) -> str:
        return f"<Lease: {self.run}, epoch {self.epoch}>"

    def read_checkpoint(self) -> bytes | None:
        """Read the checkpoint of the run's last commit."""
        query = sa.select(CHECKPOINTS.c.checkpoint).where(CHECKPOINTS.c.run == self.run)
        with self._database.reading() as connection:
            run = self._check_held(connection)
            found: bytes | None = connection.execute(query).scalar()
        check_checkpoint(run, found)
        return found

    def read_until(self) -> int | None:
        """Read the start time of the first window that the run has not released."""
        with self._database.reading() as connection:
            found: int | None = self._check_held(connection)["until"]
            return found

    def read_latest(self) -> int:
        """Read the start time of the first window that no run has released; 0 if there is none."""
        with self._database.reading() as connection:
            found: int | None = connection.execute(sa.select(sa.func.max(RUNS.c.until))).scalar()
        return found or 0

    def enrol(self, names: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
        """Return the ledger's ids of subjects, in order; add unknown subjects."""
        texts = to_texts(names)
        ids = self._registry.find_ids(texts)
        if (ids < 0).any():
            with self._database.writing() as connection:
                self._registry.enrol(connection, texts)
            with self._database.reading() as connection:
                self._registry.refresh(connection)
            ids = self._registry.find_ids(texts)
        return ids

    def open_accounts(
        self, ids: NDArray[np.int64], private: Sequence[Account], zones: Zones | None = None
    ) -> Accounts:
        """Open the accounts of these subjects with their balances in the ledger."""
        self._accounts = Accounts(ids, private, partial(_read_spent, self._database), zones)
        return self._accounts

    def declare_accounts(
        self,
        ids: NDArray[np.int64],
        private: Sequence[Account],
        definitions: Mapping[str, str],
        start: int,
    ) -> list[DeclaredAccount]:
        """Record the accounts of this run; return those of all runs.

        `definitions` has the definition of each element; `start` is the next window.
        """
        with self._database.writing() as connection:
            connection.execute(sa.select(HEAD).with_for_update()).one()
            self._check_held(connection, lock=True)
            declarations.declare_accounts(connection, self.run, private, definitions, ids, start)
        with self._database.reading() as connection:
            return list(declarations.read_accounts(connection))

    def register_zones(
        self, ids: NDArray[np.int64], zones: Sequence[str] | None, start: int
    ) -> Zones:
        """Register the time zones of subjects, and return them with the earlier ones.

        None leaves them as they are. A change takes effect when the horizon of `start`, the next
        window, has ended.
        """
        if zones is not None:
            with self._database.writing() as connection:
                connection.execute(sa.select(HEAD).with_for_update()).one()
                self._check_held(connection)
                declarations.register_zones(connection, self.run, ids, zones, start)
        with self._database.reading() as connection:
            return declarations.fill_zones(declarations.read_zones(connection, ids))

    def read_spent(self, private: Sequence[str]) -> dict[Key, Amounts]:
        """Read all balances of some private patterns, by ledger id."""
        columns = BALANCES.c["private", "horizon", "horizon_start"]
        query = sa.select(*columns).where(BALANCES.c.private.in_(private))
        with self._database.reading() as connection:
            keys = [(name, horizon, start) for name, horizon, start in connection.execute(query)]
            return {key: balances.read(connection, key) for key in keys}

    def commit(self, checkpoint: bytes, *releases: ReleaseDraft) -> int | None:
        """Write a checkpoint and consecutive releases; return the number of the last release.

        When this returns, everything is on disk. If it fails, nothing is, and nothing may be
        delivered. A commit with an unknown result may be repeated with the same releases.
        """
        if not releases:
            with self._database.writing() as connection:
                run = self._check_held(connection, lock=True)
                self._write_checkpoint(connection, run, checkpoint)
            return None
        packed = [list(merge_charges(release.charges, release.slide)) for release in releases]
        settled: dict[Key, Amounts] | None = None
        with self._database.writing() as connection:
            head: Any = connection.execute(sa.select(HEAD).with_for_update()).mappings().one()
            run = self._check_held(connection, lock=True)
            number = self._repeated(connection, run, releases[-1])
            if number is None:
                settled = {}
                self._check_next(connection, run, releases)
                used = self._read_used(connection, run["released"])
                for release, charges in zip(releases, packed, strict=True):
                    if used not in (None, (release.fingerprint, release.plan)):
                        head = self._record_version(connection, head, release)
                    used = release.fingerprint, release.plan
                    number = head["releases"] + 1
                    settled |= balances.charge(connection, charges, number)
                    head = self._append(connection, head, release, charges)
                moved = {"released": number, "until": releases[-1].until}
                self._write_checkpoint(connection, run, checkpoint, **moved)
        if self._accounts is not None:
            if settled is None:
                self._accounts.forget()
            else:
                self._accounts.settle(settled, releases[-1].until)
        return number

    def iterate_undelivered(
        self, sink: str, after: int | None = None
    ) -> Iterator[UndeliveredRelease]:
        """Yield the stored releases that were not delivered to a sink yet, in order."""
        if after is None:
            after, _ = self.read_position(sink)
        columns = [column for column in RELEASES.c if column.name in UndeliveredRelease.__slots__]
        kept = RELEASES.join(BODIES, BODIES.c.release == RELEASES.c.number)
        query = sa.select(BODIES.c.release, BODIES.c.body, *columns).select_from(kept)
        query = query.where(RELEASES.c.run == self.run).order_by(RELEASES.c.number).limit(1)
        while True:
            with self._database.reading() as connection:
                self._check_held(connection)
                later = query.where(RELEASES.c.number > after)
                row = connection.execute(later).mappings().one_or_none()
            if row is None:
                return
            yield UndeliveredRelease(**row)
            after = row["release"]

    def record_delivery(self, sink: str, release: int, position: Any = None) -> None:
        """Record that a sink has a release, and the sink's position."""
        row = {
            "run": self.run,
            "outlet": sink,
            "release": release,
            "position": json.dumps(position),
            "delivered": now(),
        }
        row["seal"] = seal(DELIVERY, row)
        mine = sa.and_(DELIVERIES.c.run == self.run, DELIVERIES.c.outlet == sink)
        with self._database.writing() as connection:
            self._check_held(connection)
            if connection.execute(DELIVERIES.update().where(mine), row).rowcount == 0:
                connection.execute(DELIVERIES.insert(), row)

    def read_position(self, sink: str) -> tuple[int, Any]:
        """Read the last release that a sink has (0 for none), and its position then."""
        mine = sa.and_(DELIVERIES.c.run == self.run, DELIVERIES.c.outlet == sink)
        with self._database.reading() as connection:
            row = connection.execute(sa.select(DELIVERIES).where(mine)).one_or_none()
        return (0, None) if row is None else (row.release, json.loads(row.position))

    def drop_delivered(self, sinks: Sequence[str], before: int) -> int:
        """Delete answers that all of these sinks have and that were released before this time.

        Returns the number of releases. Their hashes and charges stay.
        """
        reached = min((self.read_position(sink)[0] for sink in sinks), default=0)
        old = sa.and_(
            RELEASES.c.run == self.run, RELEASES.c.number <= reached, RELEASES.c.committed < before
        )
        with self._database.writing() as connection:
            run = self._check_held(connection, lock=True)
            fresh = sa.and_(old, RELEASES.c.number > run["dropped"])
            numbers = sa.select(RELEASES.c.number).where(fresh)
            found = sorted(connection.execute(numbers).scalars())
            if found:
                connection.execute(BODIES.delete().where(BODIES.c.release.in_(numbers)))
                self._write_run(connection, run, dropped=found[-1])
        return len(found)

    def _check_held(self, connection: sa.Connection, *, lock: bool = False) -> Any:
        """Return the run's row; raise if another engine has taken the run over."""
        query = sa.select(RUNS).where(RUNS.c.run == self.run)
        row = (
            connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
        )
        if row is None:
            raise LedgerError(f"the ledger no longer knows the run '{self.run}'")
        if row["epoch"] != self.epoch:
            raise FencedError(
                f"the run '{self.run}' was taken over by another engine, so this one stopped."
                " Start only one engine per run, or give this one another name"
            )
        return row

    def _repeated(self, connection: sa.Connection, run: Any, draft: ReleaseDraft) -> int | None:
        """Return the number of this release if an earlier attempt has written it."""
        query = sa.select(RELEASES).where(RELEASES.c.number == run["released"])
        last = connection.execute(query).mappings().one_or_none()
        same = last is not None and (
            (last["epoch"], last["first"], last["windows"], last["digest"])
            == (self.epoch, draft.first, draft.windows, digest(draft.body))
        )
        return int(run["released"]) if same else None

    def _check_next(
        self, connection: sa.Connection, run: Any, drafts: Sequence[ReleaseDraft]
    ) -> None:
        """Refuse windows that were released before, and gaps between windows."""
        if any(one.until != other.first for one, other in pairwise(drafts)):
            raise LedgerError(
                "releases of one commit must be consecutive: every window is answered"
            )
        until, draft = run["until"], drafts[0]
        if until is None or draft.first == until:
            return
        if draft.first < until:
            raise LedgerError(
                f"the run '{self.run}' has already released the window at {draft.first} us; the"
                f" next one starts at {until} us. Restart from the ledger's checkpoint"
            )
        if self._shape(connection, run["released"]) == (draft.size, draft.slide):
            raise LedgerError(
                f"the run '{self.run}' must release the window at {until} us next, not the one at"
                f" {draft.first} us: every window is answered"
            )

    def _shape(self, connection: sa.Connection, number: int) -> tuple[int, int]:
        """Return the window size and slide of the run's last release, which may be archived."""
        query = sa.select(RELEASES.c.size, RELEASES.c.slide)
        found = connection.execute(query.where(RELEASES.c.number == number)).one_or_none()
        if found is not None:
            return found.size, found.slide
        head = connection.execute(sa.select(HEAD)).mappings().one()
        archived = Archives.read(connection, head).runs[self.run]
        return archived.size, archived.slide

    def _read_used(self, connection: sa.Connection, number: int) -> tuple[str, str] | None:
        """Return specification and plan of the run's last release; None before the first one.

        If the release is archived, they are empty.
        """
        if not number:
            return None
        query = sa.select(RELEASES.c.fingerprint, RELEASES.c.plan)
        found = connection.execute(query.where(RELEASES.c.number == number)).one_or_none()
        return ("", "") if found is None else (found.fingerprint, found.plan)

    def _record_version(
        self, connection: sa.Connection, head: Any, draft: ReleaseDraft
    ) -> dict[str, Any]:
        """Record which version windows use from this release on; return the new head."""
        detail = {
            "specification": draft.fingerprint,
            "plan": draft.plan,
            "first_window": draft.first,
        }
        record_act(connection, f"run {self.run}", ActKind.LIVE, "version", detail)
        hashed = connection.execute(sa.select(HEAD.c.hash)).scalar_one()
        return {**head, "hash": hashed}

    def _append(
        self, connection: sa.Connection, head: Any, draft: ReleaseDraft, charges: Sequence[Charge]
    ) -> dict[str, Any]:
        """Insert a release with its body and charges; return the new head."""
        number = head["releases"] + 1
        row = {
            "number": number,
            "run": self.run,
            "epoch": self.epoch,
            "first": draft.first,
            "windows": draft.windows,
            "size": draft.size,
            "slide": draft.slide,
            "fingerprint": draft.fingerprint,
            "plan": draft.plan,
            "first_id": head["answers"],
            "answers": draft.answers,
            "committed": now(),
            "subjects": head["subjects"],
            "registry": head["registry"],
            "digest": digest(draft.body),
        }
        charged = [_charge_row(number, place, charge) for place, charge in enumerate(charges)]
        row["hash"] = link(head["hash"], row, [seal_charge(charge) for charge in charged])
        # Rows as parameters: SQLAlchemy takes longer for a statement that contains its values.
        connection.execute(RELEASES.insert(), row)
        connection.execute(BODIES.insert(), {"release": number, "body": draft.body})
        if charged:
            connection.execute(CHARGES.insert(), charged)
        answers = head["answers"] + draft.answers
        moved = {"releases": number, "answers": answers, "hash": row["hash"]}
        connection.execute(HEAD.update(), moved)
        return {**head, **moved}

    def _write_checkpoint(
        self, connection: sa.Connection, run: Any, checkpoint: bytes, **changes: Any
    ) -> None:
        values = {"checkpoint": checkpoint}
        if run["checkpoint"] is None:
            connection.execute(CHECKPOINTS.insert(), {"run": self.run, **values})
        else:
            mine = CHECKPOINTS.c.run == self.run
            connection.execute(CHECKPOINTS.update().where(mine), values)
        written = {"checkpoint": digest(checkpoint), "fingerprint": self.fingerprint}
        self._write_run(connection, run, **written, **changes)

    def _write_run(self, connection: sa.Connection, run: Any, **changes: Any) -> None:
        row = {**run, **changes}
        row["seal"] = seal(RUN, row)
        connection.execute(RUNS.update().where(RUNS.c.run == self.run), row)


def _read_spent(database: Database, key: Key) -> Amounts:
    """Read what each subject has spent, by ledger id."""
    with database.reading() as connection:
        return balances.read(connection, key)


def check_checkpoint(run: Any, checkpoint: bytes | None) -> None:
    """Raise LedgerError if the checkpoint does not match the digest in the run's row."""
    if (None if checkpoint is None else digest(checkpoint)) != run["checkpoint"]:
        raise LedgerError(
            f"the checkpoint of the run '{run['run']}' is damaged; restore the ledger from a backup"
        )


def _charge_row(release: int, place: int, charge: Charge) -> dict[str, Any]:
    return {
        "release": release,
        "place": place,
        "private": charge.private,
        "amount": charge.amount,
        "first": charge.first,
        "last": charge.last,
        "windows": charge.windows,
        "slide": charge.slide,
        "horizon": charge.horizon,
        "horizon_start": charge.horizon_start,
        "limit": charge.limit,
        "ids": pack_ids(charge.ids),
        "offset": charge.offset,
    }
