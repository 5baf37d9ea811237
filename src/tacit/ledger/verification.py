"""Verify that a ledger is unchanged: the chain, the registry, and everything derived from them.

Everything is computed again from the stored rows. The ledger records what was verified, so the next
verification reads only new rows and a random sample of the others. An attacker who can write to the
database could rebuild the whole chain, or forge that record. To detect this, store a hash elsewhere
(an anchor) and run a full verification.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from tacit.errors import LedgerError
from tacit.ledger import balances
from tacit.ledger.alchemy import sa
from tacit.ledger.archive_file import ArchiveFile, file_digest
from tacit.ledger.archives import Archives, select_settled
from tacit.ledger.chain import (
    ACCOUNT,
    ACT,
    DELIVERY,
    RUN,
    VERIFICATION,
    ZONE,
    digest,
    hash_charges,
    hash_registry,
    link,
    seal,
    seal_charge,
)
from tacit.ledger.codec import unpack_amounts, unpack_names
from tacit.ledger.covered_rows import find_changed
from tacit.ledger.database import now
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import (
    ACCOUNTS,
    ACTS,
    BALANCES,
    BODIES,
    CHARGES,
    CHECKPOINTS,
    DELIVERIES,
    HEAD,
    RELEASES,
    RUNS,
    SUBJECTS,
    VERIFIED,
    ZONES,
)
from tacit.ledger.zones import FURTHEST
from tacit.options import option

_AT_ONCE: Final = 64
"""Rows per fetch."""
_BLOCKS, _BLOCK = 8, 128
"""The sample of releases that were verified before: so many blocks of so many."""
_BALANCES: Final = 16
"""The same for balances."""
_OTHER: Final = "its hash differs from the anchor"


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of the ledger that was changed or is missing."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification."""

    ledger: str
    releases: int
    """The number of all releases."""
    charges: int
    """The number of all charges, including archived ones."""
    bodies: int
    """Releases whose stored answers were compared with their hash now."""
    balances: int
    """How many balances were compared with the sum of their charges now."""
    subjects: int
    hash: str
    """The hash of the last release. Store it elsewhere to detect later changes."""
    faults: tuple[Fault, ...] = ()
    archived: int = 0
    """The last release that was moved to an archive; 0 if none was."""
    since: int = 0
    """Releases up to this one were verified before, and only sampled now."""
    sampled: int = 0
    """How many of these were checked again."""
    archives: tuple[str, ...] = ()
    """The archives that were read, in order."""
    acts: int = 0
    """The number of administrative acts."""

    @property
    def passed(self) -> bool:
        """Whether there are no faults."""
        return not self.faults


def verify(
    ledger: Ledger,
    anchors: Mapping[int, str] | None = None,
    *,
    full: bool = False,
    archives: Sequence[Path] = (),
) -> Verdict:
    """Verify what is new since the last verification, or with `full` everything.

    `anchors` are hashes of releases that you stored elsewhere; `archives` are files to check as
    well.
    """
    with ledger.database.reading() as connection:
        check = _VerificationPass(
            connection.execution_options(yield_per=_AT_ONCE), anchors or {}, full, archives
        )
        faults = tuple(check.run())
        return Verdict(
            ledger.id,
            check.last,
            check.charges,
            check.bodies,
            check.balances,
            check.subjects,
            check.last_hash,
            faults,
            check.archived,
            check.since,
            check.sampled,
            tuple(check.read),
            check.acts,
        )


def record_verification(ledger: Ledger, verdict: Verdict) -> None:
    """Record in the ledger what was verified; the next verification continues from there."""
    if not verdict.passed or verdict.releases == 0:
        return
    row = {
        "release": verdict.releases,
        "hash": bytes.fromhex(verdict.hash),
        "charges": verdict.charges,
        "moment": now(),
    }
    row["seal"] = seal(VERIFICATION, row)
    with ledger.database.writing() as connection:
        connection.execute(sa.select(HEAD).with_for_update()).one()
        connection.execute(VERIFIED.delete())
        connection.execute(VERIFIED.insert().values(one=1, **row))


@dataclass(frozen=True, slots=True)
class _LastRelease:
    """The last release of a run."""

    number: int
    epoch: int
    until: int | None


@dataclass
class _VerificationPass:
    """One pass over a ledger."""

    connection: sa.Connection
    anchors: Mapping[int, str]
    full: bool
    files: Sequence[Path]
    archived: int = 0
    since: int = 0
    """Releases up to this one were verified before."""
    sampled: int = 0
    charges: int = 0
    bodies: int = 0
    balances: int = 0
    subjects: int = 0
    acts: int = 0
    last: int = 0
    last_hash: str = ""
    read: list[str] = field(default_factory=list)
    _runs_of: dict[int, str] = field(default_factory=dict)
    """The run of each release that was read."""
    _anchored: set[int] = field(default_factory=set)
    _registries: dict[int, bytes] = field(default_factory=dict)
    _dropped: dict[str, int] = field(default_factory=dict)
    _keys: dict[tuple[str, int, int], None] = field(default_factory=dict)

    def run(self) -> Iterator[Fault]:
        """Yield all faults; those of the chain in its order."""
        checks: tuple[tuple[str, Callable[[], Iterator[Fault]]], ...] = (
            ("the registry of subjects", self._check_registry),
            ("what was verified before", self._check_previous),
            ("the archives", self._check_archives),
            ("the administrative acts", self._check_acts),
            ("what acts cover", self._check_covered),
            ("the chain of releases", self._check_chain),
            ("the releases that were verified before", self._check_sample),
            ("the runs", self._check_runs),
            ("the answers", self._check_bodies),
            ("the balances", self._check_balances),
            ("the deliveries", self._check_deliveries),
            ("the accounts", self._check_accounts),
            ("the time zones", self._check_zones),
        )
        for what, check in checks:
            try:
                yield from check()
            except (LedgerError, TypeError, ValueError, AttributeError, KeyError) as error:
                yield Fault(what, f"it cannot be read ({type(error).__name__})")
        for number in self.anchors.keys() - self._anchored:
            yield Fault(f"release {number}", self._not_there(number))

    def _not_there(self, number: int) -> str:
        if number <= self.archived:
            return f"it has an anchor, but is archived; give its file with {option('archive')}"
        return "it has an anchor, but is missing"

    def _rows(self, query: Any) -> Iterator[Any]:
        with self.connection.execute(query) as result:
            yield from result.mappings()

    @cached_property
    def head(self) -> Any:
        rows = list(self._rows(sa.select(HEAD)))
        if len(rows) != 1 or rows[0]["one"] != 1:
            raise LedgerError("a ledger must have exactly one head")
        return rows[0]

    @cached_property
    def archives(self) -> Archives:
        return Archives.read(self.connection, self.head)

    def _check_registry(self) -> Iterator[Fault]:
        """Check that names are complete and match the hash in the head."""
        hashed = digest(b"")
        self._registries = {0: hashed}
        for row in self._rows(sa.select(SUBJECTS).order_by(SUBJECTS.c.first)):
            place = f"the subjects from {row['first']} on"
            if row["first"] != self.subjects or row["count"] != len(unpack_names(row["names"])):
                yield Fault(place, "there are too few or too many names")
            self.subjects += row["count"]
            hashed = hash_registry(hashed, row["first"], row["count"], row["names"])
            self._registries[self.subjects] = hashed
        if (self.head["subjects"], self.head["registry"]) != (self.subjects, hashed):
            yield Fault("the registry of subjects", "it was changed")

    def _check_previous(self) -> Iterator[Fault]:
        """Check that the record of the last verification is unchanged and fits this chain."""
        self.since = self.archived = self.archives.last
        self.charges = self.archives.charges
        rows = list(self._rows(sa.select(VERIFIED)))
        if not rows:
            return
        (row,) = rows
        place = "what was verified before"
        number = int(row["release"])
        query = sa.select(RELEASES.c.hash).where(RELEASES.c.number == number)
        there = self.connection.execute(query).scalar()
        hashed = self.archives.hash if number == self.archives.last else there
        if row["one"] != 1 or row["seal"] != seal(VERIFICATION, row):
            yield Fault(place, "it was changed")
        elif number < self.archives.last or hashed != row["hash"]:
            yield Fault(place, f"release {number} is no longer the one that was verified")
        elif not self.full:
            self.since = number
            self.charges = int(row["charges"])

    def _check_archives(self) -> Iterator[Fault]:
        """Check that archives are consecutive, and that their charges are unchanged."""
        reached = 0
        for number, row in enumerate(self.archives.rows, 1):
            if (row["number"], row["first"]) != (number, reached + 1) or row["last"] <= reached:
                yield Fault(f"archive {row['number']}", "it does not follow the one before it")
            reached = row["last"]
        if self.archives.rows:
            kept = hash_charges(self._rows(select_settled(self.archives.last)))
            if kept != self.archives.rows[-1]["settled"]:
                yield Fault("the charges of archived releases", "they were changed")
            if self.since == self.archives.last:
                for row in self._rows(select_settled(self.archives.last)):
                    self._keys[row["private"], row["horizon"], row["horizon_start"]] = None
        for path in self.files:
            yield from self._check_archive(path)

    def _check_archive(self, path: Path) -> Iterator[Fault]:
        """Check that a file is unchanged, and that its chain fits those before and after it."""
        checksum = file_digest(path)
        found = [row for row in self.archives.rows if row["digest"] == checksum]
        if not found:
            yield Fault(str(path), "it is not an archive of this ledger, or was changed")
            return
        row = found[0]
        earlier = self.archives.truncate(row["number"] - 1)
        file = ArchiveFile(path)
        try:
            head = file.head
            if (head.first, head.last, head.previous) != (row["first"], row["last"], earlier.hash):
                yield Fault(str(path), "it does not match the releases before it")
            number, hashed, answers = earlier.last, earlier.hash, earlier.answers
            for release in file.rows():
                before = self.archives.chain_hash(number, hashed)
                charges = [seal_charge(charge) for charge in release["charges"]]
                number, body = number + 1, release["body"]
                yield from self._check_release(
                    release, number, answers, link(before, release, charges)
                )
                if body is not None and digest(body) != release["digest"]:
                    yield Fault(f"release {release['number']}", "its answers were changed")
                hashed, answers = release["hash"], answers + release["answers"]
            if (number, hashed, answers) != (row["last"], row["hash"], row["answers"]):
                yield Fault(str(path), "it does not match the releases after it")
            self.read.append(str(path))
        finally:
            file.close()

    def _check_acts(self) -> Iterator[Fault]:
        """Check that acts are complete and unchanged; the chain covers their place and order."""
        after = 0
        for row in self._rows(sa.select(ACTS).order_by(ACTS.c.number)):
            self.acts += 1
            place = f"act {row['number']}"
            if row["seal"] != seal(ACT, row):
                yield Fault(place, "it was changed")
            if row["number"] != self.acts:
                yield Fault(place, f"act {self.acts} is expected here")
            elif not after <= row["after"] <= self.head["releases"]:
                yield Fault(place, "it does not follow the one before it")
            after = row["after"]

    def _check_covered(self) -> Iterator[Fault]:
        """Check that accounts, time zones, tokens, proposals and versions are as acts left them."""
        details = (row["detail"] for row in self._rows(sa.select(ACTS).order_by(ACTS.c.number)))
        for place, message in find_changed(self.connection, details, (ACCOUNTS, ZONES)):
            yield Fault(place, message)

    def _check_chain(self) -> Iterator[Fault]:
        """Check that every release matches the one before it, and the head matches the last."""
        number, before, answers = yield from self._find_start()
        charges = self._charges(number)
        pending = next(charges, None)
        query = sa.select(RELEASES).where(RELEASES.c.number > number).order_by("number")
        hashed = before
        for row in self._rows(query):
            before = self.archives.chain_hash(number, hashed)
            number += 1
            while pending is not None and pending[0] < row["number"]:
                yield Fault(f"release {pending[0]}", "it has charges but is missing")
                pending = next(charges, None)
            own: list[bytes] = []
            if pending is not None and pending[0] == row["number"]:
                own, pending = pending[1], next(charges, None)
            yield from self._check_release(row, number, answers, link(before, row, own))
            hashed, answers = row["hash"], answers + row["answers"]
        if pending is not None:
            yield Fault(f"release {pending[0]}", "it has charges but is missing")
        self.last, self.last_hash = number, hashed.hex()
        end = (number, answers, self.archives.chain_hash(number, hashed))
        if (self.head["releases"], self.head["answers"], self.head["hash"]) != end:
            yield Fault(
                "the head", "it does not match the end of the chain; releases or acts are missing"
            )

    def _find_start(self) -> Generator[Fault, None, tuple[int, bytes, int]]:
        """Find where to start: a release's number, its hash, and the number of answers up to it."""
        archives = self.archives
        early = sa.select(RELEASES.c.number).where(RELEASES.c.number <= archives.last)
        for number in self.connection.execute(early).scalars():
            yield Fault(f"release {number}", "it was archived, but is in the ledger again")
        yield from self._check_anchors()
        if self.since == archives.last:
            return archives.last, archives.hash, archives.answers
        query = sa.select(RELEASES).where(RELEASES.c.number == self.since)
        (row,) = self._rows(query)
        return self.since, row["hash"], row["first_id"] + row["answers"]

    def _check_anchors(self) -> Iterator[Fault]:
        """Check the anchors of releases that are not read again."""
        known = {row["last"]: bytes(row["hash"]) for row in self.archives.rows}
        for number in sorted(self.anchors.keys() - self._anchored):
            query = sa.select(RELEASES.c.hash).where(RELEASES.c.number == number)
            stored = known.get(number) or self.connection.execute(query).scalar()
            if number <= self.since and stored is not None:
                self._anchored.add(number)
                if stored.hex() != self.anchors[number]:
                    yield Fault(f"release {number}", _OTHER)

    def _check_release(self, row: Any, number: int, answers: int, hashed: bytes) -> Iterator[Fault]:
        place = f"release {row['number']}"
        self._runs_of[row["number"]] = row["run"]
        if row["number"] != number:
            yield Fault(place, f"release {number} is expected here")
        if row["hash"] != hashed:
            yield Fault(
                place,
                "the link is broken: this release, one of its charges or an act before it changed",
            )
        elif row["first_id"] != answers or self._registries.get(row["subjects"]) != row["registry"]:
            yield Fault(place, "it does not match the releases and subjects before it")
        if row["number"] in self.anchors:
            self._anchored.add(row["number"])
            if self.anchors[row["number"]] != hashed.hex():
                yield Fault(place, _OTHER)

    def _charges(self, after: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the hashes of each release's charges."""
        query = sa.select(CHARGES).where(CHARGES.c.release > after)
        query = query.order_by(CHARGES.c.release, CHARGES.c.place)
        for release, rows in groupby(self._rows(query), lambda row: int(row["release"])):
            hashes = []
            for row in rows:
                self.charges += 1
                self._keys[row["private"], row["horizon"], row["horizon_start"]] = None
                hashes.append(seal_charge(row))
            yield release, hashes

    def _check_sample(self) -> Iterator[Fault]:
        """Check a random sample of what was verified before: links, charges and answers."""
        first, last = self.archives.last + 1, self.since
        if last < first:
            return
        chance = random.SystemRandom()
        blocks = {chance.randint(first, last) // _BLOCK for _ in range(_BLOCKS)}
        for block in sorted(blocks):
            begin, end = max(first, block * _BLOCK), min(last, (block + 1) * _BLOCK - 1)
            yield from self._check_block(begin, end)

    def _check_block(self, begin: int, end: int) -> Iterator[Fault]:
        rows = list(
            self._rows(
                sa.select(RELEASES)
                .where(RELEASES.c.number >= begin - 1, RELEASES.c.number <= end)
                .order_by("number")
            )
        )
        query = sa.select(CHARGES).where(CHARGES.c.release >= begin, CHARGES.c.release <= end)
        charges: dict[int, list[bytes]] = {}
        for row in self._rows(query.order_by(CHARGES.c.release, CHARGES.c.place)):
            charges.setdefault(row["release"], []).append(seal_charge(row))
        kept = sa.select(BODIES).where(BODIES.c.release >= begin, BODIES.c.release <= end)
        bodies = {row["release"]: digest(row["body"]) for row in self._rows(kept)}
        hashed, answers = self.archives.hash, self.archives.answers
        if begin - 1 > self.archives.last:
            if not rows or rows[0]["number"] != begin - 1:
                yield Fault(f"release {begin - 1}", "it is missing")
                return
            before = rows.pop(0)
            hashed, answers = before["hash"], before["first_id"] + before["answers"]
        for number in range(begin, end + 1):
            if not rows or rows[0]["number"] != number:
                yield Fault(f"release {number}", "it is missing")
                return
            row, previous = rows.pop(0), self.archives.chain_hash(number - 1, hashed)
            right = link(previous, row, charges.get(number, []))
            yield from self._check_release(row, number, answers, right)
            if bodies.get(number, row["digest"]) != row["digest"]:
                yield Fault(f"release {number}", "its answers were changed")
            hashed, answers = row["hash"], answers + row["answers"]
            self.sampled += 1

    def _check_runs(self) -> Iterator[Fault]:
        """Check that every run matches its last release and its checkpoint."""
        query = sa.select(CHECKPOINTS)
        kept = {row["run"]: digest(row["checkpoint"]) for row in self._rows(query)}
        known = {*self._runs_of.values(), *self.archives.runs}
        for row in self._rows(sa.select(RUNS).order_by(RUNS.c.run)):
            place = f"the run '{row['run']}'"
            known.discard(row["run"])
            self._dropped[row["run"]] = row["dropped"]
            last = self._find_last(row["run"])
            matches = (row["released"], row["until"]) == (last.number, last.until)
            if row["seal"] != seal(RUN, row):
                yield Fault(place, "its state was changed")
            elif not matches or row["epoch"] < last.epoch:
                yield Fault(place, "it does not match its last release")
            if kept.pop(row["run"], None) != row["checkpoint"]:
                yield Fault(place, "its checkpoint was changed")
        for run in sorted(known | kept.keys()):
            yield Fault(f"the run '{run}'", "it is missing, but there are rows that belong to it")

    def _find_last(self, run: str) -> _LastRelease:
        query = sa.select(RELEASES).where(RELEASES.c.run == run)
        rows = list(self._rows(query.order_by(RELEASES.c.number.desc()).limit(1)))
        if rows:
            until = rows[0]["first"] + rows[0]["windows"] * rows[0]["slide"]
            return _LastRelease(rows[0]["number"], rows[0]["epoch"], until)
        before = self.archives.runs.get(run)
        return (
            _LastRelease(0, 1, None)
            if before is None
            else _LastRelease(before.number, before.epoch, before.until)
        )

    def _check_bodies(self) -> Iterator[Fault]:
        """Check that answers are unchanged, and that none is missing."""
        digests = sa.select(RELEASES.c.number, RELEASES.c.digest)
        digests = digests.where(RELEASES.c.number > self.since).order_by("number")
        expected = {row["number"]: row["digest"] for row in self._rows(digests)}
        query = sa.select(BODIES).where(
            sa.or_(BODIES.c.release > self.since, BODIES.c.release <= self.archives.last)
        )
        for row in self._rows(query.order_by(BODIES.c.release).execution_options(yield_per=1)):
            place = f"release {row['release']}"
            if expected.pop(row["release"], None) != digest(row["body"]):
                yield Fault(place, "its answers were changed")
            elif row["release"] <= self._dropped.get(self._runs_of[row["release"]], 0):
                yield Fault(place, "its answers were deleted, but are in the ledger again")
            self.bodies += 1
        for number in expected:
            if number > self._dropped.get(self._runs_of.get(number, ""), 0):
                yield Fault(f"release {number}", "its answers are missing")

    def _check_balances(self) -> Iterator[Fault]:
        """Check that every balance is the sum of the charges in its horizon.

        It checks only a random sample of balances without charges since the last verification
        whose horizon had ended by then.
        """
        query = sa.select(BALANCES).order_by(*BALANCES.primary_key)
        for row in self._rows(self._select_balances(query).execution_options(yield_per=1)):
            self.balances += 1
            key = (row["private"], row["horizon"], row["horizon_start"])
            place = f"the balance of {key[0]} from {key[2]} us on"
            known = key in self._keys or self.since > self.archives.last
            self._keys.pop(key, None)
            found = balances.sum_charges(self.connection, key)
            right = np.array_equal(found.spent, unpack_amounts(row["spent"]))
            right &= (row["asked"], row["free"]) == (found.asked, found.free)
            # Merged charges have only the last of their releases.
            merged = row["release"] <= self.archives.last and row["release"] <= found.release
            if not known or not right or not (row["release"] == found.release or merged):
                yield Fault(place, "it is not the sum of the charges in its horizon")
        for private, _, start in self._keys:
            yield Fault(f"the balance of {private} from {start} us on", "it is missing")

    def _select_balances(self, query: Any) -> Any:
        """Return the query for the balances to check."""
        if self.since == self.archives.last:
            return query
        reached = sa.select(RELEASES.c.first).where(RELEASES.c.number == self.since)
        moment = self.connection.execute(reached).scalar_one()
        new = BALANCES.c.release > self.since
        rest = sa.select(BALANCES.c.private, BALANCES.c.horizon, BALANCES.c.horizon_start)
        keys = [tuple(row) for row in self.connection.execute(rest.where(~new))]
        chosen = random.SystemRandom().sample(keys, min(_BALANCES, len(keys)))
        sampled = [
            sa.and_(
                BALANCES.c.private == private,
                BALANCES.c.horizon == horizon,
                BALANCES.c.horizon_start == start,
            )
            for private, horizon, start in chosen
        ]
        open_then = BALANCES.c.horizon_start + BALANCES.c.horizon > moment - FURTHEST
        return query.where(sa.or_(new, open_then, *sampled))

    def _check_deliveries(self) -> Iterator[Fault]:
        """Check that no sink is ahead of its run."""
        for row in self._rows(sa.select(DELIVERIES)):
            place = f"the sink '{row['outlet']}' of the run '{row['run']}'"
            number = row["release"]
            query = sa.select(RELEASES.c.run).where(RELEASES.c.number == number)
            archived = 0 < number <= self.archives.last and row["run"] in self.archives.runs
            if row["seal"] != seal(DELIVERY, row):
                yield Fault(place, "its position was changed")
            elif number and not archived and self.connection.execute(query).scalar() != row["run"]:
                yield Fault(place, "it has a release that is missing in the ledger")

    def _check_accounts(self) -> Iterator[Fault]:
        """Check that what each run has declared is unchanged."""
        for row in self._rows(sa.select(ACCOUNTS)):
            if row["seal"] != seal(ACCOUNT, row):
                yield Fault(f"the account {row['private']} of '{row['run']}'", "it was changed")

    def _check_zones(self) -> Iterator[Fault]:
        """Check that the time zones of subjects are unchanged and complete."""
        query = sa.select(ZONES).order_by(ZONES.c.number)
        for number, row in enumerate(self._rows(query), 1):
            if row["number"] != number or row["seal"] != seal(ZONE, row):
                yield Fault(f"time zone {number}", "it was changed")
