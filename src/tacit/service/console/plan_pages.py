"""Pages about the plan: expected quality, curves, and what public events tell. For operators."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from tacit.insight.doctor import examine
from tacit.insight.explain import name_unit
from tacit.privacy.exponentials import format_epsilon
from tacit.service.analyses import Analysis
from tacit.service.console.charts import draw_meter
from tacit.service.console.curves import CurveLine, draw_curves
from tacit.service.console.pages import OperatorUser
from tacit.service.console.rendering import render
from tacit.service.dependencies import State
from tacit.service.meanings import explain_once
from tacit.service.planner import JobKind
from tacit.service.state import ServiceState
from tacit.service.versions import describe_expected, find_obstacles, price_window
from tacit.spec.mechanisms import MECHANISMS

router = APIRouter(include_in_schema=False)
_OPEN: Final = ("source", "sources")
"""What the doctor cannot check: the service has its sources open."""
_MOST_LEAKS: Final = 20
_WHEN: Final = {
    "same": "the same window",
    "before": "the window before",
    "after": "the window after",
}


@router.get("/console/plan")
def show_plan(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show the plan in force, and quality against epsilon and limits."""
    return render(request, "plan.html", user, **_view_plan(state), **_view_curves(state))


@router.get("/console/plan/live")
def show_curves(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show the curves, or how far they are."""
    return render(request, "plan_live.html", user, **_view_curves(state))


@router.get("/console/checks")
def show_checks(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show what the doctor finds, and what public events reveal."""
    options = replace(state.workflow.options, sources=())
    findings = [one for one in examine(options).all if one.about not in _OPEN]
    shared = [str(one) for one in explain_once(state.spec).shared_attributes]
    view: dict[str, Any] = {"findings": findings, "shared": shared}
    return render(request, "checks.html", user, **view, **_view_leaks(state))


@router.get("/console/checks/live")
def show_leaks(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show the measured leaks, or how far they are."""
    return render(request, "checks_live.html", user, **_view_leaks(state))


def _view_plan(state: ServiceState) -> dict[str, Any]:
    version, stored = state.workflow.latest()
    plan, spec = stored.plan, stored.spec
    expected = plan.limited or plan.expected
    rows = {} if expected is None else {row["query"]: row for row in expected.rows()}
    texts = describe_expected(plan)
    private = {query.name: find_obstacles(spec, query.name) for query in spec.queries}
    return {
        "number": version,
        "plan": plan,
        "queries": [
            {
                "name": query.name,
                "consumer": query.consumer,
                "asks": query.asks,
                "expected": rows.get(query.name),
                "text": texts.get(query.name) if private[query.name] else "exact",
                "required": query.quality,
                "private": private[query.name],
            }
            for query in spec.queries
        ],
        "epsilon_is_for": name_unit(spec.windows.panes),
        "private": [
            {
                "name": one.name,
                "epsilon": format_epsilon(price_window(plan, one)),
                "counts": format_epsilon(sum(plan.spent_on_counts(one), Fraction(0))),
                "declared": format_epsilon(Fraction(one.epsilon)),
                "limit": one.limit,
                "subjects": None if one.subjects is None else len(one.subjects),
            }
            for one in spec.private
        ],
        "warnings": [str(one) for one in (*plan.warnings, *plan.history_warnings)],
    }


def _view_curves(state: ServiceState) -> dict[str, Any]:
    found = state.analyses.look(JobKind.CURVES)
    view = _view_progress(found)
    if found.result is None:
        return view | {"curve": None}
    points, limits = found.result["points"], found.result["limits"]
    lines = [
        CurveLine(
            name,
            [
                (float(point["epsilon"]), point["quality"])
                for point in points
                if point["mechanism"] == name
            ],
        )
        for name in MECHANISMS
    ]
    epsilons = sorted({float(point["epsilon"]) for point in points})
    table = [
        {"epsilon": epsilon, "qualities": [dict(line.points).get(epsilon) for line in lines]}
        for epsilon in epsilons
    ]
    return view | {
        "curve": draw_curves(
            lines,
            "epsilon of a window",
            "Expected quality against epsilon; the table has the same numbers",
            float(found.result["declared"]),
        ),
        "unit": found.result["unit"],
        "windows": found.result["windows"],
        "mechanisms": list(MECHANISMS),
        "table": table,
        "limits": limits,
        "without_limits": found.result["without_limits"],
        "limit_curve": _draw_limits(limits) if len(limits) > 1 else None,
    }


def _draw_limits(limits: list[dict[str, Any]]) -> Any:
    """Draw quality against the limit of the first private pattern that has one."""
    first = next(iter(limits[0]["limits"]))
    amounts = [float(point["limits"][first].split()[0]) for point in limits]
    declared = next(
        (amount for amount, point in zip(amounts, limits, strict=True) if point["factor"] == 1),
        None,
    )
    line = CurveLine("", [(x, point["quality"]) for x, point in zip(amounts, limits, strict=True)])
    period = limits[0]["limits"][first].partition(" ")[2]
    what = "Expected quality against the limit; the table has the same numbers"
    return draw_curves([line], f"limit of {first}, {period}", what, declared)


def _view_leaks(state: ServiceState) -> dict[str, Any]:
    found = state.analyses.look(JobKind.LEAKS)
    view = _view_progress(found) | {"measured": found.result}
    if found.result is None:
        return view | {"leaks": [], "more": 0}
    leaks = found.result["leaks"]
    rows = [
        leak
        | {
            "when_text": _WHEN[leak["when"]],
            "signal_text": f"query {leak['signal']}" if leak["kind"] == "query" else leak["signal"],
        }
        for leak in leaks[:_MOST_LEAKS]
    ]
    return view | {"leaks": rows, "more": len(leaks) - len(rows)}


def _view_progress(found: Analysis) -> dict[str, Any]:
    return {
        "busy": found.busy,
        "reason": found.reason,
        "doing": found.doing,
        "of_version": found.version,
        "meter": draw_meter(found.share, 1.0, f"{found.share:.0%} computed", warn=False),
    }
