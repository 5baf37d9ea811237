"""Errors as problem details (RFC 9457).

A problem says what happened and what to do. It depends on the request and on public facts alone,
never on events.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from tacit.errors import LedgerLostError, OptionError, TacitError

MEDIA_TYPE: Final = "application/problem+json"
_FAILED: Final = "the request failed; the operator's log has the reason"
log = logging.getLogger(__name__)


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """A request that cannot be served; it becomes the response."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more
        super().__init__(detail)

    def response(self) -> JSONResponse:
        """Return the response."""
        content = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        return JSONResponse(content, self.status, self.headers, media_type=MEDIA_TYPE)


class ProblemDetails(BaseModel):
    """An error, as RFC 9457 describes it."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Forbidden",
                "status": 403,
                "detail": "this needs the role operator; your token has the role consumer",
            }
        },
    )

    type: str
    title: str
    status: int
    detail: str


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route for its OpenAPI document."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def add_handlers(app: FastAPI) -> None:
    """Turn the errors that requests can cause into problem details."""
    app.add_exception_handler(Problem, _handle_expected)
    app.add_exception_handler(RequestValidationError, _handle_invalid)
    app.add_exception_handler(HTTPException, _handle_http)
    app.add_exception_handler(TacitError, _handle_expected)


def respond(request: Request, problem: Problem) -> Response:
    """Return problem details, or a page where a person is reading."""
    if request.url.path.startswith("/v1/") or request.url.path == "/v1":
        return problem.response()
    from tacit.service.console.rendering import render

    title = HTTPStatus(problem.status).phrase
    reader = getattr(request.state, "reader", None)
    about = {"title": title, "detail": problem.detail}
    page = render(request, "problem.html", reader, problem.status, **about)
    page.headers.update(problem.headers)
    return page


def respond_to(request: Request, error: Problem | TacitError) -> Response:
    """Return what an error becomes."""
    if isinstance(error, Problem):
        return respond(request, error)
    if isinstance(error, OptionError):
        return respond(request, Problem(422, str(error)))
    if isinstance(error, LedgerLostError):
        again = {"Retry-After": "2"}
        lost = Problem(503, "the ledger does not answer now; try again", headers=again)
        return respond(request, lost)
    log.error("a request failed", exc_info=error)
    return respond(request, Problem(500, _FAILED))


async def _handle_expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem | TacitError)
    return respond_to(request, error)


async def _handle_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    mistakes = [
        {"where": ".".join(str(part) for part in one["loc"]), "what": one["msg"]}
        for one in error.errors()
    ]
    problem = Problem(422, "the request does not fit its description", mistakes=mistakes)
    return respond(request, problem)


async def _handle_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = {
        404: "there is nothing at this address",
        405: "this address does not support the method",
    }.get(error.status_code, str(error.detail))
    return respond(request, Problem(error.status_code, detail, headers=error.headers))


def respond_to_unexpected(request: Request, error: Exception) -> Response:
    """Log an error that is a bug; return what tells nothing about it."""
    log.error("unexpected error; please report this bug", exc_info=error)
    return respond(request, Problem(500, _FAILED))
