"""The application: all routes under /v1, errors as problem details, headers on every response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.errors import TacitError
from tacit.service.console import openid_pages, pages, plan_pages, workflow_pages
from tacit.service.console.rendering import STATIC
from tacit.service.examples import add_examples
from tacit.service.problems import (
    Problem,
    ProblemDetails,
    add_handlers,
    respond_to,
)
from tacit.service.routes import acts, answers, counts, facts, health, ingest, tokens, workflow
from tacit.service.routes.row_files import describe_files
from tacit.service.security_headers import SecurityHeaders
from tacit.service.state import SAMPLE_SECONDS, ServiceState
from tacit.service.tokens import FRESH_SECONDS

_ABOUT: Final = """Answers to pattern queries over event streams, differentially private with
respect to declared private patterns. Errors are problem details (RFC 9457)."""
_EXAMPLE_FILES: Final = {
    "/v1/answers.{suffix}": answers.EXAMPLE_FILE,
    "/v1/counts.{suffix}": counts.EXAMPLE_FILE,
}
_LARGEST_BODY: Final = 256 << 10
_BODY_SECONDS: Final = 30.0


def create_app(state: ServiceState) -> FastAPI:
    """Create the application for a run."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.signal.connect()
        tasks = [asyncio.create_task(_sample(state)), asyncio.create_task(_refresh(state))]
        yield
        for task in tasks:
            task.cancel()

    app = FastAPI(
        title="Tacit",
        version=version("tacit"),
        description=_ABOUT,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = state
    add_handlers(app)
    for module in (health, ingest, answers, counts, facts, tokens, acts, workflow):
        app.include_router(module.router, prefix="/v1")
    app.include_router(pages.router)
    app.include_router(openid_pages.router)
    app.include_router(workflow_pages.router)
    app.include_router(plan_pages.router)
    app.add_exception_handler(pages.LoginRequired, pages.handle_login_required)
    app.mount("/static", StampedFiles(directory=STATIC))
    app.openapi = _describe_problems(app, app.openapi)  # type: ignore[method-assign]
    app.add_middleware(BodyLimits)
    app.add_middleware(TupleRequests)
    app.add_middleware(SecurityHeaders)
    return app


async def _sample(state: ServiceState) -> None:
    while True:
        state.sample()
        await asyncio.sleep(SAMPLE_SECONDS)


async def _refresh(state: ServiceState) -> None:
    while True:
        await asyncio.sleep(FRESH_SECONDS / 2)
        await state.access.refresh()


class StampedFiles(StaticFiles):
    """Files of the console; their addresses change with their contents, so they can be kept."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=86400"
        return response


def _describe_problems(
    app: FastAPI, describe: Callable[[], dict[str, Any]]
) -> Callable[[], dict[str, Any]]:
    """Add the schema of problem details to the OpenAPI document, and examples."""

    def describe_all() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = describe()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas["ProblemDetails"] = ProblemDetails.model_json_schema()
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for path, rows in _EXAMPLE_FILES.items():
                response = document["paths"][path]["get"]["responses"]["200"]
                response["content"] = describe_files(*rows)
            add_examples(document)
            app.openapi_schema = document
        return app.openapi_schema

    return describe_all


class TupleRequests:
    """Takes tuples straight to their route: to find it takes FastAPI longer than they do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        found = None
        if scope["type"] == "http" and scope["method"] == "POST":
            found = ingest.ADDRESS.fullmatch(scope["path"])
        if found is None:
            await self._app(scope, receive, send)
            return
        request = Request({**scope, "path_params": {"stream": found[1]}}, receive)
        try:
            response = await ingest.send_tuples(request)
        except (Problem, TacitError) as error:
            response = respond_to(request, error)
        await response(scope, receive, send)


class BodyLimits:
    """Limits the size of bodies and the time that they take; tuples have limits of their own.

    FastAPI reads a body before it checks who sends it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, more, deadline = 0, True, asyncio.get_running_loop().time() + _BODY_SECONDS

        async def receive_limited() -> Message:
            nonlocal size, more
            if not more:  # what comes now is only the end of the connection
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                text = f"the body must arrive within {_BODY_SECONDS:.0f} seconds"
                raise HTTPException(408, text) from error
            size += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if size > _LARGEST_BODY:
                raise HTTPException(413, f"send at most {_LARGEST_BODY >> 10} KiB in one request")
            return message

        await self._app(scope, receive_limited, send)
