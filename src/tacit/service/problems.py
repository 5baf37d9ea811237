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
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from tacit.errors import LedgerLostError, OptionError, TacitError

MEDIA_TYPE: Final = "application/problem+json"
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
    """Turn every error of an application into problem details."""
    app.add_exception_handler(Problem, _handle_problem)
    app.add_exception_handler(RequestValidationError, _handle_invalid)
    app.add_exception_handler(HTTPException, _handle_http)
    app.add_exception_handler(TacitError, _handle_tacit)
    app.add_exception_handler(Exception, _handle_unexpected)


async def _handle_problem(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return error.response()


async def _handle_invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    mistakes = [
        {"where": ".".join(str(part) for part in one["loc"]), "what": one["msg"]}
        for one in error.errors()
    ]
    return Problem(422, "the request does not fit its description", mistakes=mistakes).response()


async def _handle_http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = {
        404: "there is nothing at this address; /v1/openapi.json lists all addresses",
        405: "this address does not support the method",
    }.get(error.status_code, str(error.detail))
    return Problem(error.status_code, detail, headers=error.headers).response()


async def _handle_tacit(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, OptionError):
        return Problem(422, str(error)).response()
    if isinstance(error, LedgerLostError):
        again = {"Retry-After": "2"}
        return Problem(503, "the ledger does not answer now; try again", headers=again).response()
    log.error("a request failed", exc_info=error)
    return Problem(500, "the request failed; the operator's log has the reason").response()


async def _handle_unexpected(_request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error; please report this bug", exc_info=error)
    return Problem(500, "the request failed; the operator's log has the reason").response()
