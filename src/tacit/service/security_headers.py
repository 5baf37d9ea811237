"""Headers on every response: nothing is cached, framed or loaded from elsewhere."""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.service.problems import respond_to_unexpected

HEADERS: Final = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'self'; object-src 'none'; base-uri 'none';"
    b" form-action 'self'; frame-ancestors 'none'",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
_CLOSE: Final = (b"connection", b"close")


class SecurityHeaders:
    """Adds the headers.

    Unexpected errors become responses here, since Starlette's would come without the headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name, value) for name, value in HEADERS.items() if name not in given]
                more += [HSTS] if scope.get("scheme") == "https" else []
                more += [_CLOSE] if message["status"] >= 400 and _expects(scope) else []
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            return  # nobody waits for a response
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            response = respond_to_unexpected(Request(scope), error)
            await response(scope, receive, send_with_headers)


def _expects(scope: Scope) -> bool:
    """Return whether a client asks before it sends a body.

    If it is refused, what it sends next may be the body or another request, so the connection ends.
    """
    return any(name == b"expect" for name, _ in scope["headers"])
