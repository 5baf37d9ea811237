"""Whether a ledger is as it was written: the chain, its registry, and what follows from them.

Everything is reckoned anew from what is stored. Whoever may write to the database could make
the whole chain anew; against that stands a hash that was noted elsewhere, an anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from tacit.errors import LedgerError
from tacit.ledger import balances
from tacit.ledger.alchemy import sa
from tacit.ledger.chain import CHARGE, DELIVERY, RUN, beginning, digest, enrolment, link, seal
from tacit.ledger.ledger import Ledger
from tacit.ledger.packing import unpack_amounts, unpack_names
from tacit.ledger.tables import (
    BALANCES,
    BODIES,
    CHARGES,
    CHECKPOINTS,
    DELIVERIES,
    HEAD,
    RELEASES,
    RUNS,
    SUBJECTS,
)

_AT_ONCE = 64
"""Rows that are fetched at a time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it was written."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was looked at, and what was found."""

    ledger: str
    releases: int
    charges: int
    bodies: int
    """Releases whose answers are still kept, and were compared with their hash."""
    balances: int
    subjects: int
    hash: str
    """Of the last release: whoever notes it can tell later whether any of this was changed."""
    faults: tuple[Fault, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all is as it was written."""
        return not self.faults


def verify(ledger: Ledger, anchors: Mapping[int, str] | None = None) -> Verdict:
    """Reckon everything anew; `anchors` are hashes of releases that were noted before."""
    with ledger.database.reading() as connection:
        check = _Check(connection.execution_options(yield_per=_AT_ONCE), anchors or {})
        faults = tuple(check.run())
        return Verdict(
            ledger.id,
            len(check.releases),
            check.charges,
            check.bodies,
            check.balances,
            check.subjects,
            check.head_hash,
            faults,
        )


@dataclass(frozen=True, slots=True)
class _Last:
    """The last release of a run."""

    number: int
    epoch: int
    until: int | None


@dataclass
class _Check:
    """One pass over a ledger."""

    connection: sa.Connection
    anchors: Mapping[int, str]
    releases: dict[int, str] = field(default_factory=dict)
    """The run of each release."""
    charges: int = 0
    bodies: int = 0
    balances: int = 0
    subjects: int = 0
    head_hash: str = ""
    _registries: dict[int, bytes] = field(default_factory=dict)
    _lasts: dict[str, _Last] = field(default_factory=dict)
    _dropped: dict[str, int] = field(default_factory=dict)
    _keys: dict[tuple[str, int, int], None] = field(default_factory=dict)

    def run(self) -> Iterator[Fault]:
        """All that is wrong; in the chain, what comes first first."""
        checks: tuple[tuple[str, Callable[[], Iterator[Fault]]], ...] = (
            ("the registry of subjects", self._registry),
            ("the chain of releases", self._chain),
            ("the runs", self._runs),
            ("the answers", self._bodies),
            ("the balances", self._balances),
            ("the deliveries", self._deliveries),
        )
        for what, look in checks:
            try:
                yield from look()
            except (LedgerError, TypeError, ValueError, AttributeError, KeyError) as error:
                yield Fault(what, f"holds what cannot be read ({type(error).__name__})")

    def _rows(self, query: Any) -> Iterator[Any]:
        with self.connection.execute(query) as result:
            yield from result.mappings()

    def _head(self) -> Any:
        rows = list(self._rows(sa.select(HEAD)))
        if len(rows) != 1 or rows[0]["one"] != 1:
            raise LedgerError("a ledger has one head")
        return rows[0]

    def _registry(self) -> Iterator[Fault]:
        """Names stand in unbroken order and give the hash that the head has."""
        head, hashed = self._head(), digest(b"")
        self._registries = {0: hashed}
        for row in self._rows(sa.select(SUBJECTS).order_by(SUBJECTS.c.first)):
            place = f"the subjects from {row['first']} on"
            if row["first"] != self.subjects or row["count"] != len(unpack_names(row["names"])):
                yield Fault(place, "names are missing, or there are too many")
            self.subjects += row["count"]
            hashed = enrolment(hashed, row["first"], row["count"], row["names"])
            self._registries[self.subjects] = hashed
        if (head["subjects"], head["registry"]) != (self.subjects, hashed):
            yield Fault("the registry of subjects", "it is not the one that was written")

    def _chain(self) -> Iterator[Fault]:
        """Every release follows from the one before; the head has the last of them."""
        head, answers = self._head(), 0
        before = beginning(head["id"], head["created"])
        charges = self._charges()
        pending = next(charges, None)
        for number, row in enumerate(self._rows(sa.select(RELEASES).order_by("number")), 1):
            while pending is not None and pending[0] < row["number"]:
                yield Fault(f"release {pending[0]}", "it has charges and is not there")
                pending = next(charges, None)
            own: list[bytes] = []
            if pending is not None and pending[0] == row["number"]:
                own, pending = pending[1], next(charges, None)
            yield from self._release(row, number, answers, link(before, row, own))
            before, answers = row["hash"], answers + row["answers"]
        if pending is not None:
            yield Fault(f"release {pending[0]}", "it has charges and is not there")
        self.head_hash = before.hex()
        last = (len(self.releases), answers, before)
        if (head["releases"], head["answers"], head["hash"]) != last:
            yield Fault("the head", "the chain does not end where it says; releases are missing")
        for number in self.anchors.keys() - self.releases.keys():
            yield Fault(f"release {number}", "its hash was noted, and it is not there")

    def _release(self, row: Any, number: int, answers: int, hashed: bytes) -> Iterator[Fault]:
        place = f"release {row['number']}"
        self.releases[row["number"]] = row["run"]
        until = row["first"] + row["windows"] * row["slide"]
        self._lasts[row["run"]] = _Last(row["number"], row["epoch"], until)
        if row["number"] != number:
            yield Fault(place, f"release {number} was to follow here")
        if row["hash"] != hashed:
            yield Fault(place, "the link is broken: this release or one of its charges was changed")
        elif row["first_id"] != answers or self._registries.get(row["subjects"]) != row["registry"]:
            yield Fault(place, "it does not follow from the releases and subjects before it")
        if self.anchors.get(row["number"], hashed.hex()) != hashed.hex():
            yield Fault(place, "its hash is not the one that was noted")

    def _charges(self) -> Iterator[tuple[int, list[bytes]]]:
        """The hashes of each release's charges."""
        query = sa.select(CHARGES).order_by(CHARGES.c.release, CHARGES.c.place)
        for release, rows in groupby(self._rows(query), lambda row: int(row["release"])):
            hashes = []
            for row in rows:
                self.charges += 1
                self._keys[row["private"], row["horizon"], row["horizon_start"]] = None
                hashes.append(seal(CHARGE, row))
            yield release, hashes

    def _runs(self) -> Iterator[Fault]:
        """Every run stands where its last release left it, and has its checkpoint."""
        query = sa.select(CHECKPOINTS)
        kept = {row["run"]: digest(row["checkpoint"]) for row in self._rows(query)}
        for row in self._rows(sa.select(RUNS).order_by(RUNS.c.run)):
            place = f"the run '{row['run']}'"
            self._dropped[row["run"]] = row["dropped"]
            last = self._lasts.pop(row["run"], _Last(0, 1, None))
            stands = (row["released"], row["until"]) == (last.number, last.until)
            if row["seal"] != seal(RUN, row):
                yield Fault(place, "its state was changed")
            elif not stands or row["epoch"] < last.epoch:
                yield Fault(place, "it does not stand where its last release left it")
            if kept.pop(row["run"], None) != row["checkpoint"]:
                yield Fault(place, "its checkpoint was changed")
        for run in (*self._lasts, *kept):
            yield Fault(f"the run '{run}'", "it is not there, though it has left traces")

    def _bodies(self) -> Iterator[Fault]:
        """Answers are those that were released; none is missing that is to be kept."""
        digests = sa.select(RELEASES.c.number, RELEASES.c.digest).order_by("number")
        expected = {row["number"]: row["digest"] for row in self._rows(digests)}
        query = sa.select(BODIES).order_by(BODIES.c.release)
        for row in self._rows(query.execution_options(yield_per=1)):
            place = f"release {row['release']}"
            if expected.pop(row["release"], None) != digest(row["body"]):
                yield Fault(place, "its answers were changed")
            elif row["release"] <= self._dropped.get(self.releases[row["release"]], 0):
                yield Fault(place, "its answers were dropped before, and are there again")
            self.bodies += 1
        for number in expected:
            if number > self._dropped.get(self.releases.get(number, ""), 0):
                yield Fault(f"release {number}", "its answers are missing")

    def _balances(self) -> Iterator[Fault]:
        """Every balance is the sum of the charges in its horizon."""
        query = sa.select(BALANCES).order_by(*BALANCES.primary_key)
        for row in self._rows(query.execution_options(yield_per=1)):
            self.balances += 1
            key = (row["private"], row["horizon"], row["horizon_start"])
            place = f"the balance of {key[0]} from {key[2]} us on"
            known = key in self._keys
            self._keys.pop(key, None)
            spent, latest = balances.total(self.connection, key)
            right = np.array_equal(spent, unpack_amounts(row["spent"]))
            if not known or not right or row["release"] != latest:
                yield Fault(place, "it is not the sum of the charges in its horizon")
        for private, _, start in self._keys:
            yield Fault(f"the balance of {private} from {start} us on", "it is not there")

    def _deliveries(self) -> Iterator[Fault]:
        """No outlet is further than its run."""
        for row in self._rows(sa.select(DELIVERIES)):
            place = f"the outlet '{row['outlet']}' of the run '{row['run']}'"
            if row["seal"] != seal(DELIVERY, row):
                yield Fault(place, "how far it is was changed")
            elif row["release"] and self.releases.get(row["release"]) != row["run"]:
                yield Fault(place, "it has delivered a release that is not there")
