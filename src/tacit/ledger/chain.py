"""The chain of hashes: a release's hash vouches for it and for all releases before it.

Releases that are archived leave the ledger; that they were is a link of the chain, too. A row
that changes as the run goes on (a checkpoint, a delivery) is no part of the chain; it has a seal,
the hash of its own content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

RELEASE = (
    "number", "run", "epoch", "first", "windows", "size", "slide", "fingerprint", "plan",
    "first_id", "answers", "committed", "subjects", "registry", "digest",
)  # fmt: skip
"""The columns of a release that its hash covers, in this order; then come its charges."""
CHARGE = (
    "place", "private", "amount", "first", "last", "windows", "slide", "horizon",
    "horizon_start", "limit", "ids",
)  # fmt: skip
RUN = ("run", "epoch", "fingerprint", "checkpoint", "released", "until", "dropped")
ARCHIVE = (
    "number", "first", "last", "after", "answers", "charges", "runs", "hash", "file", "digest",
    "settled", "created",
)  # fmt: skip
VERIFICATION = ("release", "hash", "charges", "moment")
DELIVERY = ("run", "outlet", "release", "position", "delivered")


def digest(content: bytes) -> bytes:
    """The hash of some bytes.

    >>> digest(b"tacit").hex()[:8]
    '497fd753'
    """
    return sha256(content).digest()


def seal(columns: Sequence[str], row: Any) -> bytes:
    """The hash of a row: of its values as a JSON list, where bytes stand as their own hash."""
    values = (row[column] for column in columns)
    return digest(
        _canonical([digest(value).hex() if isinstance(value, bytes) else value for value in values])
    )


def beginning(ledger: str, created: int) -> bytes:
    """What the first release's hash stands on."""
    return digest(_canonical(["tacit ledger", ledger, created]))


def link(previous: bytes, release: Any, charges: Sequence[bytes]) -> bytes:
    """A release's hash: of the hash before, its content, and the hashes of its charges."""
    values = (release[column] for column in RELEASE)
    content = [value.hex() if isinstance(value, bytes) else value for value in values]
    return digest(previous + _canonical([*content, [charge.hex() for charge in charges]]))


def archived(previous: bytes, start: bytes, archive: Any) -> bytes:
    """The hash after releases were archived: the move is a link of the chain, like a release.

    `start` is what the first release stands on: without that release nothing else would hold it.
    """
    return digest(previous + start + seal(ARCHIVE, archive))


def settlement(charges: Iterable[Any]) -> bytes:
    """The hash of all charges of archived releases, as they stay in the ledger."""
    whole = sha256()
    for charge in charges:
        whole.update(seal(("release", *CHARGE), charge))
    return whole.digest()


def enrolment(previous: bytes, first: int, count: int, names: bytes) -> bytes:
    """The hash of the registry of subjects after names were added to it."""
    return digest(previous + _canonical([first, count, digest(names).hex()]))


def _canonical(content: list[Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
