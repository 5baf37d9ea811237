"""Check who makes a request: a bearer token, throttled where attempts fail."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from anyio import to_thread
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tacit.service.problems import Problem
from tacit.service.roles import Principal, Role
from tacit.service.sessions import read_cookie
from tacit.service.tokens import Tokens, public_id

_MOST_FAILURES: Final = 10
_PERIOD: Final = 60.0
"""Seconds in which so many failed attempts may be made."""
_MOST_KEPT: Final = 10_000

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


class Access:
    """Finds out who makes a request."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.failures = FailedAttempts()

    def check(self, text: str, address: str) -> Principal:
        """Return the holder of a token; raise a problem if there is none.

        Attempts are counted by address and public id: who guesses the secret of one token keeps
        nobody else at this address out.
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
        return principal

    async def check_soon(self, text: str, address: str) -> Principal:
        """Do what `check` does, in a thread if the database must be read."""
        if self._tokens.remembers(public_id(text)):
            return self.check(text, address)
        return await to_thread.run_sync(self.check, text, address)

    def is_valid(self, principal: Principal) -> bool:
        """Return whether a principal's token is still valid."""
        return self._tokens.find(principal.token) == principal

    async def is_still_valid(self, principal: Principal) -> bool:
        """Do what `is_valid` does, in a thread if the database must be read."""
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
    if given is not None:
        access: Access = request.app.state.service.access
        return await access.check_soon(given.credentials, address_of(request))
    cookie = read_cookie(request)
    if cookie and request.method == "GET":
        sessions = request.app.state.service.sessions
        principal: Principal | None = await to_thread.run_sync(sessions.find, cookie)
        if principal is not None:
            return principal
    raise unauthorised("send a token: Authorization: Bearer tacit_...")


def address_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client is not None else ""


def require(*roles: Role) -> Callable[[Principal], Awaitable[Principal]]:
    """Return a dependency that lets only these roles pass."""

    async def check(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        if principal.role not in roles:
            needed = " or ".join(roles)
            raise Problem(
                403, f"this needs the role {needed}; your token has the role {principal.role}"
            )
        return principal

    return check


AnyRole = Annotated[Principal, Depends(authenticate)]
ReadingRole = Annotated[Principal, Depends(require(Role.CONSUMER, Role.SUBJECT, Role.OPERATOR))]
CountingRole = Annotated[Principal, Depends(require(Role.CONSUMER, Role.OPERATOR))]
OperatorRole = Annotated[Principal, Depends(require(Role.OPERATOR))]
