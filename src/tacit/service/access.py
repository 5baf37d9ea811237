"""Check who makes a request: a bearer token, throttled where attempts fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Annotated, Final

from anyio import to_thread
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tacit.errors import TacitError
from tacit.service.problems import Problem
from tacit.service.roles import Principal, Role
from tacit.service.sessions import read_cookie
from tacit.service.tokens import Tokens, public_id

_MOST_FAILURES: Final = 10
_PERIOD: Final = 60.0
"""Seconds in which so many failed attempts may be made."""
_MOST_KEPT: Final = 10_000
_USED_SECONDS: Final = 60.0
"""Seconds after a request in which changes of tokens are read ahead."""
_MOST_AT_ONCE: Final = 1_000
_MOST_A_SECOND: Final = 50
"""How many requests a token may make at once, and in a second after that."""

_BEARER = HTTPBearer(
    scheme_name="token",
    description="A token of `tacit token create`, as `Authorization: Bearer tacit_...`.",
    auto_error=False,
)


class FailedAttempts:
    """Counts failed attempts to log in, by address and token; the count is bounded in size."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._failures: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def wait(self, key: tuple[str, str]) -> float:
        """Return for how many seconds no attempt is allowed; 0 if one is."""
        with self._lock:
            times = self._recent(key)
            return max(0.0, times[0] + _PERIOD - self._now()) if len(times) >= _MOST_FAILURES else 0

    def add(self, key: tuple[str, str]) -> None:
        """Count a failed attempt."""
        with self._lock:
            self._failures[key] = [*self._recent(key), self._now()][-_MOST_FAILURES:]
            self._failures.move_to_end(key)
            while len(self._failures) > _MOST_KEPT:
                self._failures.popitem(last=False)

    def _recent(self, key: tuple[str, str]) -> list[float]:
        oldest = self._now() - _PERIOD
        return [moment for moment in self._failures.get(key, ()) if moment > oldest]


class RequestRates:
    """Limits how often each token is used: so many at once, and so many in a second after that."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """How many requests each token could make at which moment."""

    def take(self, token: str) -> float:
        """Count a request; if there are too many, return after how many seconds one is allowed."""
        moment = self._now()
        with self._lock:
            left, before = self._left.get(token, (float(_MOST_AT_ONCE), moment))
            left = min(_MOST_AT_ONCE, left + (moment - before) * _MOST_A_SECOND)
            allowed = left >= 1
            self._left[token] = left - allowed, moment
            self._left.move_to_end(token)
            if len(self._left) > _MOST_KEPT:
                self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / _MOST_A_SECOND


class Access:
    """Finds out who makes a request."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.failures = FailedAttempts()
        self.rates = RequestRates()
        self._reading = asyncio.Lock()
        self._used = -_USED_SECONDS
        """When somebody last made a request with a valid token."""

    def limit(self, principal: Principal) -> Principal:
        """Raise a problem if someone makes too many requests; the inbox limits sources."""
        wait = 0.0 if principal.role is Role.SOURCE else self.rates.take(principal.token)
        if wait:
            again = {"Retry-After": str(int(wait) + 1)}
            raise Problem(429, "too many requests with your token; try again later", headers=again)
        return principal

    def check(self, text: str, address: str) -> Principal:
        """Return the holder of a token; raise a problem if there is none.

        Attempts are counted by address and public id: guesses at the secret of one token lock
        no other token of this address out.
        """
        key = address, public_id(text)
        wait = self.failures.wait(key)
        if wait:
            raise Problem(
                429,
                "too many attempts with a wrong token; try again later",
                headers={"Retry-After": str(int(wait) + 1)},
            )
        principal = self._tokens.check(text)
        if principal is None:
            self.failures.add(key)
            raise unauthorised("the token is unknown, expired or revoked")
        self._used = time.monotonic()
        return principal

    async def refresh(self) -> None:
        """While tokens are in use, read ahead whether one has changed, so that no request waits."""
        if time.monotonic() < self._used + _USED_SECONDS:
            with suppress(TacitError):  # then the next request reads it
                await to_thread.run_sync(self._tokens.refresh)

    async def check_soon(self, text: str, address: str) -> Principal:
        """Do what `check` does, in a thread if the database must be read.

        For tokens that were read before, one at a time: one answer makes the others fresh.
        """
        identity = public_id(text)
        if self._tokens.remembers(identity):
            return self.check(text, address)
        if not self._tokens.has_read(identity):
            return await to_thread.run_sync(self.check, text, address)
        async with self._reading:
            if self._tokens.remembers(identity):
                return self.check(text, address)
            return await to_thread.run_sync(self.check, text, address)

    def is_valid(self, principal: Principal) -> bool:
        """Return whether a principal's token is still valid."""
        return self._tokens.find(principal.token) == principal

    async def is_still_valid(self, principal: Principal) -> bool:
        """Do what `is_valid` does, in a thread if the database must be read.

        One at a time: after a release all streams ask, and one answer makes the others fresh.
        """
        if self._tokens.remembers(principal.token):
            return self.is_valid(principal)
        async with self._reading:
            if self._tokens.remembers(principal.token):
                return self.is_valid(principal)
            return await to_thread.run_sync(self.is_valid, principal)


def unauthorised(detail: str) -> Problem:
    """Return the problem of a request without a valid token."""
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})


async def authenticate(
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> Principal:
    """Return who makes a request: by its token, or for reading by the console's session.

    A session changes nothing here: that needs a form of the console.
    """
    access: Access = request.app.state.service.access
    if given is not None:
        return access.limit(await access.check_soon(given.credentials, address_of(request)))
    cookie = read_cookie(request)
    if cookie and request.method == "GET":
        sessions = request.app.state.service.sessions
        principal: Principal | None = await to_thread.run_sync(sessions.find, cookie)
        if principal is not None:
            request.state.session = cookie
            return access.limit(principal)
    raise unauthorised("send a token: Authorization: Bearer tacit_...")


def address_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client is not None else ""


def require(*roles: Role) -> Callable[[Principal], Awaitable[Principal]]:
    """Return a dependency that lets only these roles pass."""

    async def check(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        return _check_role(principal, roles)

    return check


async def authorise(request: Request, *roles: Role) -> Principal:
    """Do what the dependency of `require` does, in a fraction of the time."""
    return _check_role(await authenticate(request, await _BEARER(request)), roles)


def _check_role(principal: Principal, roles: Collection[Role]) -> Principal:
    if principal.role not in roles:
        needed = " or ".join(roles)
        raise Problem(
            403, f"this needs the role {needed}; your token has the role {principal.role}"
        )
    return principal


AnyRole = Annotated[Principal, Depends(authenticate)]
ReadingRole = Annotated[Principal, Depends(require(Role.CONSUMER, Role.SUBJECT, Role.OPERATOR))]
CountingRole = Annotated[Principal, Depends(require(Role.CONSUMER, Role.OPERATOR))]
OperatorRole = Annotated[Principal, Depends(require(Role.OPERATOR))]
