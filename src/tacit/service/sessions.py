"""Sessions of the console: a cookie with a random value, whose hash is in the ledger's database.

A session belongs to a token and ends with it. Forms carry a second value, derived from the cookie,
that another site cannot know.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final

from fastapi import Request, Response

from tacit.ledger.alchemy import sa
from tacit.ledger.database import Database, now
from tacit.service.roles import Principal
from tacit.service.tables import SESSIONS
from tacit.service.tokens import Tokens

LIFETIME: Final = 12 * 3600
"""Seconds after which one must log in again."""
_PLAIN, _SECURE = "tacit_session", "__Host-tacit_session"


class Sessions:
    """The sessions in a database."""

    def __init__(self, database: Database, tokens: Tokens) -> None:
        self._database = database
        self._tokens = tokens
        self._lock = threading.Lock()
        self._watchers: dict[bytes, set[Callable[[], None]]] = {}

    def open(self, principal: Principal) -> str:
        """Open a session; return the value of its cookie, which is stored nowhere."""
        value, moment = secrets.token_urlsafe(32), now()
        row = {
            "digest": _hash(value),
            "token": principal.token,
            "expires": moment + LIFETIME * 1_000_000,
        }
        with self._database.writing() as connection:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.expires <= moment))
            connection.execute(SESSIONS.insert().values(row))
        return value

    def find(self, value: str) -> Principal | None:
        """Return who has this session; None if it has ended or its token is no longer valid."""
        query = sa.select(SESSIONS.c.token).where(
            SESSIONS.c.digest == _hash(value), SESSIONS.c.expires > now()
        )
        with self._database.reading() as connection:
            token: str | None = connection.execute(query).scalar()
        return None if token is None else self._tokens.find(token)

    def close(self, value: str) -> None:
        """End a session, and tell those who watch it."""
        digest = _hash(value)
        with self._database.writing() as connection:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.digest == digest))
        with self._lock:
            for tell in self._watchers.get(digest, ()):
                tell()

    @contextmanager
    def watching(self, value: str) -> Iterator[asyncio.Event]:
        """Give an event of this loop that is set when the session is closed by this process."""
        digest, ended, loop = _hash(value), asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(ended.set)

        with self._lock:
            self._watchers.setdefault(digest, set()).add(tell)
        try:
            yield ended
        finally:
            with self._lock:
                self._watchers[digest].remove(tell)
                if not self._watchers[digest]:
                    del self._watchers[digest]


def read_cookie(request: Request) -> str:
    """Return the value of the session's cookie, or nothing."""
    return request.cookies.get(_name(request), "")


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Give the browser a session."""
    response.set_cookie(
        _name(request),
        value,
        max_age=LIFETIME,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Take the session from the browser."""
    secure = request.url.scheme == "https"
    response.delete_cookie(_name(request), path="/", secure=secure, samesite="strict")


def derive_csrf(value: str) -> str:
    """Return the value that the forms of a session carry."""
    return hmac.new(value.encode(), b"csrf", sha256).hexdigest()


def _name(request: Request) -> str:
    return _SECURE if request.url.scheme == "https" else _PLAIN


def _hash(value: str) -> bytes:
    return sha256(value.encode()).digest()
