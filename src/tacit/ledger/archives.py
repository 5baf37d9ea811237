"""The releases of a ledger that were moved to archives, and the start of the rest of its chain.

Between two releases the chain may have other links: archives and administrative acts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.chain import hash_beginning, link_act, link_archive
from tacit.ledger.tables import ACTS, ARCHIVES, CHARGES


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """The state of a run after its last archived release."""

    number: int
    """Its last archived release."""
    epoch: int
    until: int
    """The start time of the window after that release."""
    size: int
    slide: int
    releases: int
    windows: int
    answers: int
    kept: int
    """Archived releases whose answers are in an archive."""

    def add_release(self, row: Any, *, kept: bool) -> ArchivedRun:
        """Return the state after one more release."""
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
"""A run without archived releases."""


@dataclass(frozen=True, slots=True)
class Archives:
    """All archives of a ledger, in order."""

    rows: Sequence[Any]
    start: bytes
    """The hash before the first release of the ledger."""
    acts: Mapping[int, Sequence[Any]]
    """Administrative acts in order, by the release that they come after."""

    @classmethod
    def read(cls, connection: sa.Connection, head: Any, since: int = 0) -> Archives:
        """Read all archives, and the acts after releases from `since` on, given the head."""
        query = sa.select(ARCHIVES).order_by(ARCHIVES.c.number)
        rows = list(connection.execute(query).mappings())
        acts: dict[int, list[Any]] = defaultdict(list)
        later = sa.select(ACTS).where(ACTS.c.after >= since).order_by(ACTS.c.number)
        for act in connection.execute(later).mappings():
            acts[act["after"]].append(act)
        return cls(rows, hash_beginning(head["id"], head["created"]), dict(acts))

    @property
    def last(self) -> int:
        """The last release that is archived; 0 if none is."""
        return int(self.rows[-1]["last"]) if self.rows else 0

    @property
    def hash(self) -> bytes:
        """The hash of that release, or the hash before the first release."""
        return bytes(self.rows[-1]["hash"]) if self.rows else self.start

    @property
    def answers(self) -> int:
        """The number of answers up to that release."""
        return int(self.rows[-1]["answers"]) if self.rows else 0

    @property
    def charges(self) -> int:
        """How many charges were archived."""
        return int(self.rows[-1]["charges"]) if self.rows else 0

    @property
    def runs(self) -> dict[str, ArchivedRun]:
        """The state of each run after that release."""
        return runs_from_json(self.rows[-1]["runs"]) if self.rows else {}

    def chain_hash(self, number: int, hashed: bytes) -> bytes:
        """Return the hash before the next release, given this release's hash."""
        archives = [row for row in self.rows if row["after"] == number]
        for act in self.acts.get(number, ()):
            while archives and archives[0]["number"] <= act["archives"]:
                hashed = link_archive(hashed, self.start, archives.pop(0))
            hashed = link_act(hashed, act)
        for row in archives:
            hashed = link_archive(hashed, self.start, row)
        return hashed

    def truncate(self, number: int) -> Archives:
        """Return only the first `number` archives."""
        return Archives(self.rows[:number], self.start, self.acts)


def select_settled(last: int) -> sa.Select[Any]:
    """Return the query for the charges of archived releases, in order."""
    query = sa.select(CHARGES).where(CHARGES.c.release <= last)
    return query.order_by(CHARGES.c.release, CHARGES.c.place)


def runs_to_json(runs: Mapping[str, ArchivedRun]) -> str:
    """Encode runs as text; equal runs give equal texts."""
    plain = {name: asdict(run) for name, run in sorted(runs.items())}
    return json.dumps(plain, separators=(",", ":"))


def runs_from_json(text: str) -> dict[str, ArchivedRun]:
    """Decode `runs_to_json`."""
    return {name: ArchivedRun(**run) for name, run in json.loads(text).items()}
