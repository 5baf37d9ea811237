"""The pages of the console, and the parts of them that update themselves."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from tacit.durations import parse_duration
from tacit.errors import OptionError
from tacit.ledger.database import now
from tacit.service.access import address_of
from tacit.service.console import views
from tacit.service.console.rendering import render
from tacit.service.dependencies import State
from tacit.service.problems import Problem
from tacit.service.roles import Principal, Role
from tacit.service.routes.event_streams import follow_releases
from tacit.service.sessions import delete_cookie, derive_csrf, read_cookie, set_cookie
from tacit.service.state import ServiceState

router = APIRouter(include_in_schema=False)
_LARGEST_FORM: Final = 16_384
_HOMES: Final = {
    Role.OPERATOR: "operator",
    Role.CONSUMER: "consumer",
    Role.SUBJECT: "subject",
    Role.SOURCE: "source",
}


class LoginRequired(Exception):  # noqa: N818 - it is no error: it leads to the login page
    """There is no session."""


async def handle_login_required(request: Request, _: Exception) -> Response:
    """Lead to the login page."""
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    return RedirectResponse("/login", 303)


def find_user(request: Request, state: State) -> Principal:
    """Return who has the session."""
    cookie = read_cookie(request)
    principal = state.sessions.find(cookie) if cookie else None
    if principal is None:
        raise LoginRequired
    request.state.session = cookie
    request.state.reader = principal
    return state.access.limit(principal)


User = Annotated[Principal, Depends(find_user)]


def find_operator(user: User) -> Principal:
    """Return the operator who has the session."""
    if user.role is not Role.OPERATOR:
        raise Problem(403, "this page is for operators")
    return user


OperatorUser = Annotated[Principal, Depends(find_operator)]


def find_consumer(user: User) -> Principal:
    """Return the consumer who has the session."""
    if user.role is not Role.CONSUMER:
        raise Problem(403, "this page is for consumers")
    return user


ConsumerUser = Annotated[Principal, Depends(find_consumer)]


async def read_form(request: Request) -> dict[str, str]:
    """Read a small form that this site sent."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    own = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    if site not in ("same-origin", "none") or not own:
        raise Problem(403, "this form must be sent from the console")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise Problem(413, "the form is too large")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise Problem(422, "the form cannot be read") from error
    return {name: values[-1] for name, values in fields.items()}


def check_csrf(
    request: Request, form: Annotated[dict[str, str], Depends(read_form)]
) -> dict[str, str]:
    """Return the form if it belongs to this session."""
    expected = derive_csrf(read_cookie(request))
    if not hmac.compare_digest(form.get("csrf", "").encode(), expected.encode()):
        raise Problem(403, "the form is outdated; load the page again")
    return form


Form = Annotated[dict[str, str], Depends(read_form)]
SessionForm = Annotated[dict[str, str], Depends(check_csrf)]


@router.get("/")
def show_start() -> RedirectResponse:
    """Lead to the console."""
    return RedirectResponse("/console", 303)


@router.get("/login")
def show_login(request: Request, state: State) -> HTMLResponse:
    """Show the form for a token."""
    return render(request, "login.html", mistake=None, openid=state.openid is not None)


@router.post("/login")
def log_in(request: Request, state: State, form: Form) -> Response:
    """Open a session for the holder of a token."""
    try:
        principal = state.access.check(form.get("token", "").strip(), address_of(request))
    except Problem as problem:
        page = render(
            request,
            "login.html",
            code=problem.status,
            mistake=problem.detail,
            openid=state.openid is not None,
        )
        if "Retry-After" in problem.headers:
            page.headers["Retry-After"] = problem.headers["Retry-After"]
        return page
    response = RedirectResponse("/console", 303)
    set_cookie(request, response, state.sessions.open(principal))
    return response


@router.post("/logout")
def log_out(request: Request, state: State, _user: User, _form: SessionForm) -> Response:
    """End the session."""
    state.sessions.close(read_cookie(request))
    response = RedirectResponse("/login", 303)
    delete_cookie(request, response)
    return response


@router.get("/console")
def show_home(request: Request, state: State, user: User) -> HTMLResponse:
    """Show the first page of a role."""
    view, base = _view(state, user), _find_base(request)
    return render(request, f"{_HOMES[user.role]}.html", user, **view, base=base)


@router.get("/console/live")
def show_home_part(request: Request, state: State, user: User) -> HTMLResponse:
    """Show the part of the first page that changes."""
    view, base = _view(state, user), _find_base(request)
    return render(request, f"{_HOMES[user.role]}_live.html", user, **view, base=base)


def _find_base(request: Request) -> str:
    """Return the address of the service as the reader knows it, for snippets."""
    return str(request.base_url).rstrip("/")


def _view(state: ServiceState, user: Principal) -> dict[str, Any]:
    match user.role:
        case Role.OPERATOR:
            return views.show_operator(state)
        case Role.CONSUMER:
            return views.show_consumer(state, user.name)
        case Role.SUBJECT:
            return views.show_subject(state, user.name)
        case Role.SOURCE:
            return views.show_source(state, user)


QueryName = Annotated[str, Path(max_length=500)]


@router.get("/console/queries/{query}")
def show_query(request: Request, state: State, user: User, query: QueryName) -> HTMLResponse:
    """Show the answers to one query."""
    view, base = _query_view(state, user, query), _find_base(request)
    return render(request, "query.html", user, **view, base=base)


@router.get("/console/queries/{query}/live")
def show_query_part(request: Request, state: State, user: User, query: QueryName) -> HTMLResponse:
    """Show the answers to one query, without the rest of the page."""
    return render(request, "query_live.html", user, **_query_view(state, user, query))


def _query_view(state: ServiceState, user: Principal, query: str) -> dict[str, Any]:
    consumer = user.name if user.role is Role.CONSUMER else None
    if user.role not in (Role.CONSUMER, Role.OPERATOR):
        raise Problem(403, "this page is for consumers and operators")
    found = views.show_query(state, consumer, query)
    if found is None:
        raise Problem(404, "you have no query of this name")
    return found


@router.get("/console/map")
def show_map(request: Request, state: State, user: ConsumerUser) -> HTMLResponse:
    """Show the areas of a consumer's queries."""
    return render(request, "map.html", user, **views.show_map(state, user.name))


@router.get("/console/map/live")
def show_map_part(request: Request, state: State, user: ConsumerUser) -> HTMLResponse:
    """Show the areas of a consumer's queries, without the rest of the page."""
    return render(request, "map_live.html", user, **views.show_map(state, user.name))


@router.get("/console/tokens")
def show_tokens(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show all tokens."""
    view = views.show_tokens(state)
    return render(request, "tokens.html", user, **view, created=None, mistake=None, given={})


@router.post("/console/tokens")
def create_token(
    request: Request, state: State, user: OperatorUser, form: SessionForm
) -> HTMLResponse:
    """Create a token, and show it once."""
    created, mistake, code = None, None, 200
    try:
        expires = form.get("expires", "").strip()
        until = now() + parse_duration(expires) if expires else None
        role, name = Role(form.get("role", "")), form.get("name", "").strip()
        created, _ = state.tokens.create(
            role, name, creator=str(user), note=form.get("note", "")[:200], expires=until
        )
    except (ValueError, OptionError) as error:
        mistake, code = str(error), 422
    view: dict[str, Any] = views.show_tokens(state) | {"created": created, "mistake": mistake}
    return render(request, "tokens.html", user, code, **view, given={} if created else form)


@router.post("/console/tokens/{token_id}/revoke")
def revoke_token(
    state: State,
    user: OperatorUser,
    _form: SessionForm,
    token_id: Annotated[str, Path(max_length=200)],
) -> RedirectResponse:
    """Revoke a token."""
    from tacit.service.tokens import UnknownTokenError

    try:
        state.tokens.revoke(token_id, actor=str(user))
    except UnknownTokenError as error:
        raise Problem(404, "there is no token with this id") from error
    return RedirectResponse("/console/tokens", 303)


@router.get("/console/events")
async def stream_signals(request: Request, state: State, user: User) -> StreamingResponse:
    """Tell the page that something was released; the page then asks for its parts again."""

    async def tell() -> AsyncIterator[bytes]:  # also at first: a page that was away catches up
        yield b"retry: 2000\nevent: released\ndata:\n\n"

    events = follow_releases(request, state, user, tell)
    return StreamingResponse(events, media_type="text/event-stream")
