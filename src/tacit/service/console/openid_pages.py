"""Pages for logging in with OpenID Connect."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from tacit.ledger.database import now
from tacit.service.access import address_of
from tacit.service.console.rendering import render
from tacit.service.dependencies import State
from tacit.service.openid import (
    ATTEMPT_SECONDS,
    LoginAttempt,
    OpenIdError,
    OpenIdLogin,
    UnknownPersonError,
)
from tacit.service.problems import Problem
from tacit.service.sessions import LIFETIME, set_cookie
from tacit.service.state import ServiceState

router = APIRouter(include_in_schema=False)
_PLAIN, _SECURE = "tacit_login", "__Host-tacit_login"
_DONE: Final = "/login/openid/done"
_LONGEST: Final = 4096

log = logging.getLogger("tacit.service")

Text = Annotated[str, Query(max_length=_LONGEST)]


def find_login(state: ServiceState) -> OpenIdLogin:
    """Return how to log in at the provider; raise a problem if there is none."""
    if state.openid is None:
        raise Problem(404, "this service has no OpenID Connect provider")
    return state.openid


@router.get("/login/openid")
def begin_login(request: Request, state: State) -> Response:
    """Send the browser to the provider."""
    openid = find_login(state)
    attempt = LoginAttempt.start()
    try:
        response = RedirectResponse(openid.begin(attempt, _redirect(request, openid)), 303)
    except OpenIdError as error:
        return _refuse(request, error, 502)
    secure = request.url.scheme == "https"
    response.set_cookie(
        _SECURE if secure else _PLAIN,
        attempt.to_cookie(),
        max_age=ATTEMPT_SECONDS,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",  # the provider's page leads back here
    )
    return response


@router.get(_DONE)
def finish_login(
    request: Request,
    state: State,
    code: Text = "",
    returned: Annotated[str, Query(alias="state", max_length=_LONGEST)] = "",
    error: Text = "",
) -> Response:
    """Open a session for whom the provider confirms."""
    openid = find_login(state)
    key = address_of(request), "openid"
    wait = state.access.failures.wait(key)
    if wait:
        again = int(wait) + 1
        late = OpenIdError(
            f"too many logins from your address have failed; try again in {again} seconds"
        )
        response = _refuse(request, late, 429)
        response.headers["Retry-After"] = str(again)
        return response
    name = _SECURE if request.url.scheme == "https" else _PLAIN
    attempt = LoginAttempt.from_cookie(request.cookies.get(name, ""))
    try:
        if not code:
            raise OpenIdError(_explain(error))
        if attempt is None:
            raise OpenIdError(
                f"the login took longer than {ATTEMPT_SECONDS // 60} minutes, or was begun in"
                " another browser; log in again"
            )
        person = openid.finish(attempt, returned, code, _redirect(request, openid))
    except OpenIdError as refused:
        state.access.failures.add(key)
        response = _refuse(request, refused, 403)
    else:
        _, record = state.tokens.create(
            person.role,
            person.name,
            creator=f"OpenID Connect, {openid.settings.issuer}",
            note="a login in the console",
            expires=now() + LIFETIME * 1_000_000,
        )
        principal = state.tokens.find(record.id)
        assert principal is not None, "the token was just created"
        # The session's cookie is not sent with what another site began: our own page leads on.
        response = render(request, "logged_in.html")
        set_cookie(request, response, state.sessions.open(principal))
    response.delete_cookie(name, path="/", secure=request.url.scheme == "https")
    return response


def _explain(error: str) -> str:
    """Say what a provider means that sends no code; its text is not repeated."""
    if error == "access_denied":
        return "the login was cancelled at the provider; log in again, or with a token"
    if error in ("server_error", "temporarily_unavailable"):
        return "the provider cannot log anyone in now; try again later"
    return "the provider refused the login; if that happens again, tell the operator"


def _refuse(request: Request, error: OpenIdError, code: int) -> Response:
    log.warning("a login with OpenID Connect failed: %s", error)
    mistake = str(error)
    if isinstance(error, UnknownPersonError):
        mistake = f"the provider knows you as {error.value}, but {error}"
    return render(request, "login.html", code=code, mistake=mistake, openid=True)


def _redirect(request: Request, openid: OpenIdLogin) -> str:
    base = openid.settings.url or str(request.base_url)
    return base.rstrip("/") + _DONE
