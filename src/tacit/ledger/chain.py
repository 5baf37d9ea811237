"""The hash chain: a release's hash covers it and all releases before it.

Archived releases leave the ledger; the move itself is a link of the chain, too. So is every
administrative act, with who and when. A row that changes
during a run (a checkpoint, a delivery) is not part of the chain. It has a seal, the hash of its own
content.
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
"""The columns of a charge that its hash covers; then comes `offset`, if it is not 0."""
RUN = ("run", "epoch", "fingerprint", "checkpoint", "released", "until", "dropped")
ARCHIVE = (
    "number", "first", "last", "after", "answers", "charges", "runs", "hash", "file", "digest",
    "settled", "created",
)  # fmt: skip
ACT = ("number", "after", "archives", "moment", "actor", "kind", "about", "detail")
VERIFICATION = ("release", "hash", "charges", "moment")
DELIVERY = ("run", "outlet", "release", "position", "delivered")
ACCOUNT = ("run", "private", "elements", "limit", "horizon", "ids", "until")
ZONE = ("number", "zone", "since", "ids")


def digest(content: bytes) -> bytes:
    """Hash some bytes.

    >>> digest(b"tacit").hex()[:8]
    '497fd753'
    """
    return sha256(content).digest()


def seal(columns: Sequence[str], row: Any) -> bytes:
    """Hash a row: its values as a JSON list, with bytes replaced by their own hash."""
    values = (row[column] for column in columns)
    return digest(
        _canonical([digest(value).hex() if isinstance(value, bytes) else value for value in values])
    )


def seal_charge(charge: Any, *more: str) -> bytes:
    """Hash a charge, with some columns before those that are always covered."""
    columns = (*more, *CHARGE)
    return seal((*columns, "offset") if charge["offset"] else columns, charge)


def hash_beginning(ledger: str, created: int) -> bytes:
    """Compute the hash before the first release."""
    return digest(_canonical(["tacit ledger", ledger, created]))


def link(previous: bytes, release: Any, charges: Sequence[bytes]) -> bytes:
    """Compute a release's hash from the hash before it, its content and its charges' hashes."""
    values = (release[column] for column in RELEASE)
    content = [value.hex() if isinstance(value, bytes) else value for value in values]
    return digest(previous + _canonical([*content, [charge.hex() for charge in charges]]))


def link_archive(previous: bytes, start: bytes, archive: Any) -> bytes:
    """Compute the hash after releases were archived: the move is a link of the chain.

    `start` is the hash before the first release. Without that release nothing else covers it.
    """
    return digest(previous + start + seal(ARCHIVE, archive))


def link_act(previous: bytes, act: Any) -> bytes:
    """Compute the hash after an administrative act: it is a link of the chain."""
    return digest(previous + seal(ACT, act))


def hash_charges(charges: Iterable[Any]) -> bytes:
    """Hash the charges of archived releases that stay in the ledger."""
    whole = sha256()
    for charge in charges:
        whole.update(seal_charge(charge, "release"))
    return whole.digest()


def hash_registry(previous: bytes, first: int, count: int, names: bytes) -> bytes:
    """Compute the hash of the registry after names were added."""
    return digest(previous + _canonical([first, count, digest(names).hex()]))


def _canonical(content: list[Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
