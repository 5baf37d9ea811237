"""The tables of a ledger in the current version; `migrations/` has the earlier ones.

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


def _zero(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))


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
"""One row: the end of the chain and of the registry. Lock it before you release."""

SUBJECTS = sa.Table(
    "tacit_subjects",
    METADATA,
    _number("first", key=True),
    _number("count"),
    _bytes("names"),
)
"""The names of subjects in the order of their ids; each row has those added together."""

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
"""The owner of each run, its checkpoint's hash, its last release, the first window that is not
released, and the last release whose answers were deleted."""

CHECKPOINTS = sa.Table(
    "tacit_checkpoints",
    METADATA,
    _text("run", key=True),
    _bytes("checkpoint"),
)
"""The last checkpoint of each run."""

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
"""Releases; each is a link of the chain."""

BODIES = sa.Table(
    "tacit_bodies",
    METADATA,
    _number("release", key=True),
    _bytes("body"),
)
"""The answers of releases, until they are deleted."""

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
    _zero("offset"),
    sa.Index("tacit_charges_of_private", "private", "last"),
)
"""Charges of consecutive windows to the same subjects: `amount` for each window, 0 if they revealed
nothing. The subjects' local time was `offset` ahead of UTC; `horizon_start` is in local time.

Charges of archived releases stay, merged if they differ only in the window. Their release is the
last of those that were merged.
"""

BALANCES = sa.Table(
    "tacit_balances",
    METADATA,
    _text("private", key=True),
    _number("horizon", key=True),
    _number("horizon_start", key=True),
    _number("release"),
    _bytes("spent"),
    _zero("asked"),
    _zero("free"),
)
"""What every subject has spent in a horizon: the sum of charges up to a release, inclusive.

`asked` and `free` count pairs of a window and a subject that cost something, and nothing.
"""

ACCOUNTS = sa.Table(
    "tacit_accounts",
    METADATA,
    _text("run", key=True),
    _text("private", key=True),
    _text("elements"),
    sa.Column("limit", sa.BigInteger, nullable=True),
    _number("horizon"),
    _bytes("ids"),
    _number("until", null=True),
    _bytes("seal"),
)
"""The private patterns of each run: the definitions of their elements, their limit, and their
subjects. `until` is the first window after a run no longer declares one."""

ZONES = sa.Table(
    "tacit_zones",
    METADATA,
    _number("number", key=True),
    _text("zone"),
    _number("since"),
    _bytes("ids"),
    _bytes("seal"),
)
"""The time zones of subjects, in the order in which they were registered: the last one counts."""

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
"""The last delivery to each sink."""

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
"""Releases that were moved to files: their numbers, the hash of the last one, the release after
which the move is a link of the chain, the number of answers and charges up to the last one, the
state of each run, the file with its digest, and the digest of the charges that stay here."""

ACTS = sa.Table(
    "tacit_acts",
    METADATA,
    _number("number", key=True),
    _number("after"),
    _number("archives"),
    _number("moment"),
    _text("actor"),
    _text("kind"),
    _text("about"),
    _text("detail"),
    _bytes("seal"),
    sa.Index("tacit_acts_after", "after"),
)
"""Administrative acts: who did what and when. Each is a link of the chain: after the release
`after`, and after so many archives. `detail` is JSON."""

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
"""At most one row: the last verified release, and the time."""
