"""Which releases of a ledger were moved to archives, and where its chain goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.chain import archived, beginning
from tacit.ledger.tables import ARCHIVES, CHARGES


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run as it was after its last archived release."""

    number: int
    """Its last archived release."""
    epoch: int
    until: int
    """When the window after that release starts."""
    size: int
    slide: int
    releases: int
    windows: int
    answers: int
    kept: int
    """Archived releases whose answers are in an archive."""

    def then(self, row: Any, *, kept: bool) -> ArchivedRun:
        """The same after one more release."""
        return ArchivedRun(
            row["number"],
            row["epoch"],
            row["first"] + row["windows"] * row["slide"],
            row["size"],
            row["slide"],
            self.releases + 1,
            self.windows + row["windows"],
            self.answers + row["answers"],
            self.kept + kept,
        )


NEVER = ArchivedRun(0, 1, 0, 0, 0, 0, 0, 0, 0)
"""A run of which nothing is archived."""


@dataclass(frozen=True, slots=True)
class Archives:
    """All archives of a ledger, in order."""

    rows: Sequence[Any]
    start: bytes
    """What the first release of the ledger stands on."""

    @classmethod
    def read(cls, connection: sa.Connection, head: Any) -> Archives:
        """As they are now; `head` is the ledger's."""
        query = sa.select(ARCHIVES).order_by(ARCHIVES.c.number)
        rows = list(connection.execute(query).mappings())
        return cls(rows, beginning(head["id"], head["created"]))

    @property
    def last(self) -> int:
        """The last release that is archived; 0 if none is."""
        return int(self.rows[-1]["last"]) if self.rows else 0

    @property
    def hash(self) -> bytes:
        """The hash of that release, or what the first release stands on."""
        return bytes(self.rows[-1]["hash"]) if self.rows else self.start

    @property
    def answers(self) -> int:
        """How many answers there are up to that release."""
        return int(self.rows[-1]["answers"]) if self.rows else 0

    @property
    def charges(self) -> int:
        """How many charges were archived."""
        return int(self.rows[-1]["charges"]) if self.rows else 0

    @property
    def runs(self) -> dict[str, ArchivedRun]:
        """Each run as it was then."""
        return runs_from_json(self.rows[-1]["runs"]) if self.rows else {}

    def joined(self, number: int, hashed: bytes) -> bytes:
        """What the release after this one stands on, given this one's hash."""
        for row in self.rows:
            if row["after"] == number:
                hashed = archived(hashed, self.start, row)
        return hashed

    def up_to(self, number: int) -> Archives:
        """Only the first so many of them."""
        return Archives(self.rows[:number], self.start)


def settled(last: int) -> sa.Select[Any]:
    """The charges of archived releases that stay in the ledger, in order."""
    query = sa.select(CHARGES).where(CHARGES.c.release <= last)
    return query.order_by(CHARGES.c.release, CHARGES.c.place)


def runs_to_json(runs: Mapping[str, ArchivedRun]) -> str:
    """Runs as text, always the same for the same runs."""
    plain = {name: asdict(run) for name, run in sorted(runs.items())}
    return json.dumps(plain, separators=(",", ":"))


def runs_from_json(text: str) -> dict[str, ArchivedRun]:
    """Runs from text."""
    return {name: ArchivedRun(**run) for name, run in json.loads(text).items()}
