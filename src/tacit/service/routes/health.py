"""Whether the service is up, whether its run is ready, and its metrics."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from tacit.engines.metrics import Figures
from tacit.service.access import OperatorRole
from tacit.service.dependencies import State
from tacit.service.problems import Problem, problem_responses

_METRICS: Final = """# HELP tacit_windows_released_total Windows released since then.
# TYPE tacit_windows_released_total counter
tacit_windows_released_total 1440.0
# HELP tacit_subjects Subjects that have answers.
# TYPE tacit_subjects gauge
tacit_subjects 10000.0
"""
"""Some of them, as an example."""

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """The service answers."""

    model_config = ConfigDict(json_schema_extra={"example": {"status": "ok"}})

    status: Literal["ok"] = "ok"


@router.get("/health", summary="Whether the service is up")
def get_health() -> Health:
    """Return 200 as long as the process answers. No token is needed."""
    return Health()


@router.get("/ready", summary="Whether the run is ready", responses=problem_responses(503))
def get_readiness(state: State) -> Health:
    """Return 200 when the run has begun, else 503. No token is needed."""
    if not state.ready:
        what = "the run has failed" if state.failed else "the run is starting"
        raise Problem(503, what, headers={"Retry-After": "2"})
    return Health()


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"example": _METRICS}}},
        **problem_responses(401, 403, 503),
    },
)
def get_metrics(state: State, _: OperatorRole) -> Response:
    """Return the metrics of the run. None of them depends on a private event."""
    from prometheus_client import CollectorRegistry, generate_latest

    if state.run is None:
        raise Problem(503, "the run is starting", headers={"Retry-After": "2"})
    registry = CollectorRegistry()
    registry.register(Figures(state.run.status.public, state.started))
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")
