"""Tokens: created, listed and revoked in the ledger's database, where only their hashes are.

A token is `tacit_ID_SECRET`. The id is public and finds the row. The secret has 256 random bits, so
a single SHA-256 is enough: there is nothing to guess from a dictionary.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple

from tacit.errors import LedgerError, OptionError
from tacit.ledger.acts import ActKind, record_act
from tacit.ledger.alchemy import sa
from tacit.ledger.database import Database, now
from tacit.ledger.tables import ACTS
from tacit.service.roles import Principal, Role
from tacit.service.tables import TOKENS, cover_revocation, cover_token, create_tables

_FORM: Final = re.compile(r"tacit_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOTHING: Final = bytes(32)
"""No secret has this hash; unknown ids are compared with it."""
LONGEST_NAME: Final = 200
FRESH_SECONDS: Final = 1.0
"""For how long tokens are used from memory; another process may revoke one meanwhile."""
_MOST_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is stored about a token, except the hash of its secret."""

    id: str
    role: Role
    name: str
    streams: tuple[str, ...]
    note: str
    created: int
    creator: str
    expires: int | None
    revoked: int | None

    def is_valid(self, moment: int) -> bool:
        """Return whether the token may be used at this time."""
        return self.revoked is None and (self.expires is None or moment < self.expires)

    def state(self, moment: int) -> str:
        """Describe the token in one word: valid, expired or revoked."""
        if self.revoked is not None:
            return "revoked"
        return "valid" if self.is_valid(moment) else "expired"


class KnownToken(NamedTuple):
    """A token in memory."""

    digest: bytes
    record: TokenRecord
    principal: Principal
    """Its holder, as long as the record is valid."""


class Tokens:
    """The tokens in a database. It is safe to use from several threads.

    Those that were used last stay in memory. Every change of a token is an act in the ledger's
    chain, so the number of the last act tells whether any of them can have changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: OrderedDict[str, KnownToken] = OrderedDict()
        self._act = -1
        self._fresh_until = 0.0
        self._changes = 0
        """How often tokens were forgotten: what was read before that is not used after it."""
        create_tables(database)

    def create(
        self,
        role: Role,
        name: str,
        *,
        creator: str,
        streams: Sequence[str] = (),
        note: str = "",
        expires: int | None = None,
    ) -> tuple[str, TokenRecord]:
        """Create a token; its text is returned once and stored nowhere."""
        _check_name(name)
        if streams and role is not Role.SOURCE:
            raise OptionError(f"streams are for the role source, not for {role}")
        moment = now()
        if expires is not None and expires <= moment:
            raise OptionError("a token must expire in the future")
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        row = {
            "id": identity,
            "digest": _hash(secret),
            "role": str(role),
            "name": name,
            "streams": json.dumps(list(streams)),
            "note": note,
            "created": moment,
            "creator": creator,
            "expires": expires,
            "revoked": None,
        }
        with self._database.writing() as connection:
            connection.execute(TOKENS.insert().values(row))
            detail = {"role": str(role), "name": name, "streams": list(streams), "expires": expires}
            covers = cover_token(identity)
            record_act(connection, creator, ActKind.TOKEN_CREATED, identity, detail, covers)
        return f"tacit_{identity}_{secret}", _to_record(row)

    def list_all(self) -> list[TokenRecord]:
        """Return all tokens, the newest first."""
        query = sa.select(TOKENS).order_by(TOKENS.c.created.desc(), TOKENS.c.id)
        with self._database.reading() as connection:
            return [_to_record(row) for row in connection.execute(query).mappings()]

    def revoke(self, identity: str, *, actor: str) -> TokenRecord:
        """Revoke a token from now on; revoking it again changes nothing."""
        mine = TOKENS.c.id == identity
        with self._database.writing() as connection:
            change = TOKENS.update().where(mine, TOKENS.c.revoked.is_(None))
            changed = connection.execute(change.values(revoked=now())).rowcount
            row = connection.execute(sa.select(TOKENS).where(mine)).mappings().one_or_none()
            if changed and row is not None:
                detail = {"role": row["role"], "name": row["name"]}
                covers = [cover_revocation(identity)]
                record_act(connection, actor, ActKind.TOKEN_REVOKED, identity, detail, covers)
        if row is None:
            raise UnknownTokenError(f"there is no token with the id '{identity}'")
        self._forget()
        return _to_record(row)

    def check(self, text: str) -> Principal | None:
        """Return who holds this token; None if it is unknown, wrong, expired or revoked."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        known = self._read(found[1])
        digest = _NOTHING if known is None else known.digest
        if not hmac.compare_digest(digest, _hash(found[2])):
            return None
        return _to_principal(known)

    def find(self, identity: str) -> Principal | None:
        """Return the holder of a token by its public id, if the token is still valid."""
        return _to_principal(self._read(identity))

    def remembers(self, identity: str) -> bool:
        """Return whether a token can be checked without reading the database."""
        return time.monotonic() < self._fresh_until and identity in self._known

    def has_read(self, identity: str) -> bool:
        """Return whether a token is in memory, even if it can have changed meanwhile."""
        return identity in self._known

    def refresh(self) -> None:
        """Forget the tokens in memory if one of them can have changed."""
        moment, changes = time.monotonic(), self._changes
        with self._database.reading() as connection:
            act = connection.execute(sa.select(sa.func.max(ACTS.c.number))).scalar() or 0
        with self._lock:
            if changes != self._changes:
                return  # another thread has revoked one meanwhile, or knows more
            if act != self._act:
                self._known.clear()
                self._changes += 1
            self._act, self._fresh_until = act, moment + FRESH_SECONDS

    def _forget(self) -> None:
        with self._lock:
            self._known.clear()
            self._changes += 1
            self._fresh_until = 0.0

    def _read(self, identity: str) -> KnownToken | None:
        if time.monotonic() >= self._fresh_until:
            self.refresh()
        found = self._known.get(identity)
        if found is not None:
            return found
        changes = self._changes
        with self._database.reading() as connection:
            query = sa.select(TOKENS).where(TOKENS.c.id == identity)
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            return None
        record = _to_record(row)
        holder = Principal(record.role, record.name, record.id, record.streams)
        known = KnownToken(bytes(row["digest"]), record, holder)
        with self._lock:
            if changes == self._changes:
                self._known[identity] = known
                if len(self._known) > _MOST_KEPT:
                    self._known.popitem(last=False)
        return known


class UnknownTokenError(LedgerError):
    """No token has this id."""


def public_id(text: str) -> str:
    """Return the public part of a token, or nothing if it has another form.

    >>> public_id("tacit_00112233aabb_" + 43 * "x")
    '00112233aabb'
    """
    found = _FORM.fullmatch(text)
    return "" if found is None else found[1]


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _check_name(name: str) -> None:
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise OptionError(
            f"a token needs a name of 1 to {LONGEST_NAME} printable characters: the consumer, the"
            " subject, the producer or the operator"
        )


def _to_record(row: Any) -> TokenRecord:
    return TokenRecord(
        row["id"],
        Role(row["role"]),
        row["name"],
        tuple(json.loads(row["streams"])),
        row["note"],
        row["created"],
        row["creator"],
        row["expires"],
        row["revoked"],
    )


def _to_principal(known: KnownToken | None) -> Principal | None:
    return None if known is None or not known.record.is_valid(now()) else known.principal
