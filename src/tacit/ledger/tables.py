"""The tables of a ledger, as they are now; `migrations/` says how they came to be.

Times are microseconds since 1970 in UTC, amounts nano-epsilon, hashes SHA-256.
"""

from __future__ import annotations

from tacit.ledger.alchemy import sa

METADATA = sa.MetaData()


def _number(name: str, *, key: bool = False, null: bool = False) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger, primary_key=key, nullable=null, autoincrement=False if key else "auto"
    )


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=False)


def _bytes(name: str, *, null: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=null)


HEAD = sa.Table(
    "tacit_head",
    METADATA,
    _number("one", key=True),
    _text("id"),
    _number("created"),
    _number("releases"),
    _number("answers"),
    _bytes("hash"),
    _number("subjects"),
    _bytes("registry"),
)
"""One row: where the chain and the registry end. Whoever releases locks it first."""

SUBJECTS = sa.Table(
    "tacit_subjects",
    METADATA,
    _number("first", key=True),
    _number("count"),
    _bytes("names"),
)
"""The names of subjects in the order of their ids, as many in a row as were enrolled at once."""

RUNS = sa.Table(
    "tacit_runs",
    METADATA,
    _text("run", key=True),
    _number("epoch"),
    _text("fingerprint"),
    _bytes("checkpoint", null=True),
    _number("released"),
    _number("until", null=True),
    _number("dropped"),
    _bytes("seal"),
)
"""Each run's holder, its checkpoint's hash, its last release, the first window that is not
released, and the last release whose answers are no longer kept."""

CHECKPOINTS = sa.Table(
    "tacit_checkpoints",
    METADATA,
    _text("run", key=True),
    _bytes("checkpoint"),
)
"""What each run's engine goes on from."""

RELEASES = sa.Table(
    "tacit_releases",
    METADATA,
    _number("number", key=True),
    _text("run"),
    _number("epoch"),
    _number("first"),
    _number("windows"),
    _number("size"),
    _number("slide"),
    _text("fingerprint"),
    _text("plan"),
    _number("first_id"),
    _number("answers"),
    _number("committed"),
    _number("subjects"),
    _bytes("registry"),
    _bytes("digest"),
    _bytes("hash"),
    sa.Index("tacit_releases_of_run", "run", "number"),
)
"""What was released, a link of the chain each."""

BODIES = sa.Table(
    "tacit_bodies",
    METADATA,
    _number("release", key=True),
    _bytes("body"),
)
"""The answers of releases, for as long as they are kept."""

CHARGES = sa.Table(
    "tacit_charges",
    METADATA,
    _number("release", key=True),
    _number("place", key=True),
    _text("private"),
    _number("amount"),
    _number("first"),
    _number("last"),
    _number("windows"),
    _number("slide"),
    _number("horizon"),
    _number("horizon_start"),
    sa.Column("limit", sa.BigInteger, nullable=True),
    _bytes("ids"),
    sa.Index("tacit_charges_of_private", "private", "last"),
)
"""What consecutive windows cost the same subjects: `amount` for each of the windows.

Those of archived releases stay, merged where they differ in nothing but the window; their release
is the last one that they were merged from.
"""

BALANCES = sa.Table(
    "tacit_balances",
    METADATA,
    _text("private", key=True),
    _number("horizon", key=True),
    _number("horizon_start", key=True),
    _number("release"),
    _bytes("spent"),
)
"""What every subject has spent in a horizon: the sum of charges up to and with a release."""

DELIVERIES = sa.Table(
    "tacit_deliveries",
    METADATA,
    _text("run", key=True),
    _text("outlet", key=True),
    _number("release"),
    sa.Column("position", sa.Text, nullable=False),
    _number("delivered"),
    _bytes("seal"),
)
"""How far each outlet is."""

ARCHIVES = sa.Table(
    "tacit_archives",
    METADATA,
    _number("number", key=True),
    _number("first"),
    _number("last"),
    _number("after"),
    _number("answers"),
    _number("charges"),
    _text("runs"),
    _bytes("hash"),
    _text("file"),
    _bytes("digest"),
    _bytes("settled"),
    _number("created"),
)
"""Releases that were moved to files: which, the hash of the last of them, the release after which
the move itself is a link of the chain, how many answers and charges there are up to the last one,
each run as it was then, the file with its digest, and the digest of the charges that stay here."""

VERIFIED = sa.Table(
    "tacit_verified",
    METADATA,
    _number("one", key=True),
    _number("release"),
    _bytes("hash"),
    _number("charges"),
    _number("moment"),
    _bytes("seal"),
)
"""At most one row: up to which release everything was verified, and when."""
