"""Pages of the set-up workflow: proposals, choices, approvals, versions and acts."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from tacit.errors import OptionError, SpecificationError
from tacit.insight.explain import bound_percentage, name_unit
from tacit.ledger.acts import read_acts
from tacit.ledger.verification import verify
from tacit.service.console.charts import draw_meter
from tacit.service.console.pages import ConsumerUser, OperatorUser, SessionForm, User
from tacit.service.console.rendering import render
from tacit.service.dependencies import LARGEST_ID, State
from tacit.service.problems import Problem
from tacit.service.roles import Principal, Role
from tacit.service.routes.workflow import (
    CheckedQuery,
    SubjectPolicy,
    check_proposed,
    choose,
    compare_stored,
    explain_refusals,
    find_proposal,
    get_catalogue,
    go_back,
    list_policies,
    show_proposal,
    show_versions,
)
from tacit.service.state import ServiceState
from tacit.service.workflow import DecidedError, UnknownProposalError

router = APIRouter(include_in_schema=False)
_SHOWN: Final = 50
"""The most decided proposals on a page."""
_EMPTY: Final = {
    "name": "",
    "kind": "pattern",
    "pattern": "",
    "values": "",
    "up_to": "3",
    "by": "",
    "alpha": "0.5",
    "quality": "",
}
"""The fields of the form for a query; those of other kinds than the chosen one are ignored."""
_LABELS: Final = {
    "name": "name",
    "pattern": "pattern",
    "values": "answers",
    "up_to": "up to",
    "alpha": "weight of precision",
    "quality": "quality you need",
}
_KINDS: Final = {
    "pattern": "whether it happened",
    "one_of": "which of several",
    "times": "how often",
    "count": "for how many subjects",
}
_NUMBERS: Final = {"alpha": float, "quality": float, "up_to": int}
Number = Annotated[int, Path(ge=1, le=LARGEST_ID)]
OtherNumber = Annotated[int | None, Query(ge=1, le=LARGEST_ID)]


def find_subject(user: User) -> Principal:
    """Return the subject who has the session."""
    if user.role is not Role.SUBJECT:
        raise Problem(403, "this page is for subjects")
    return user


SubjectUser = Annotated[Principal, Depends(find_subject)]


@router.get("/console/propose")
def show_form(request: Request, state: State, user: ConsumerUser) -> HTMLResponse:
    """Show the form for a query, and the consumer's proposals."""
    return _render_form(request, state, user, _EMPTY, None, None)


@router.get("/console/propose/live")
def show_own_proposals(request: Request, state: State, user: ConsumerUser) -> HTMLResponse:
    """Show the consumer's proposals, without the rest of the page."""
    return render(request, "propose_live.html", user, proposals=_list_own(state, user))


@router.post("/console/propose/check")
def check_form(
    request: Request, state: State, user: ConsumerUser, form: SessionForm
) -> HTMLResponse:
    """Check a query while it is typed."""
    return render(request, "checked.html", user, checked=_check(state, user, form))


@router.post("/console/propose")
def propose(request: Request, state: State, user: ConsumerUser, form: SessionForm) -> Any:
    """Propose a query."""
    given = {name: form.get(name, "").strip() for name in _EMPTY}
    checked = _check(state, user, form)
    if checked is not None and checked.valid:
        try:
            state.workflow.propose_query(user, _to_query(form))
            return RedirectResponse("/console/propose", 303)
        except (OptionError, SpecificationError) as error:
            return _render_form(request, state, user, given, None, str(error))
    return _render_form(request, state, user, given, checked, "The query was not proposed.")


@router.post("/console/proposals/{number}/withdraw")
def withdraw(state: State, user: User, _form: SessionForm, number: Number) -> RedirectResponse:
    """Withdraw one's own proposal."""
    find_proposal(state, user, number)
    with explain_refusals():
        state.workflow.withdraw(number, user)
    place = "policies" if user.role is Role.SUBJECT else "propose"
    return RedirectResponse(f"/console/{place}", 303)


@router.get("/console/policies")
def show_policies(request: Request, state: State, user: SubjectUser) -> HTMLResponse:
    """Show what a subject may choose."""
    view = _view_policies(state, user)
    return render(request, "policies.html", user, **view, swapped=False, mistake=None, given={})


@router.get("/console/policies/live")
def show_own_changes(request: Request, state: State, user: SubjectUser) -> HTMLResponse:
    """Show the subject's changes, without the rest of the page."""
    return render(request, "policies_live.html", user, **_view_policies(state, user), swapped=True)


@router.post("/console/policies")
def change_policy(request: Request, state: State, user: SubjectUser, form: SessionForm) -> Any:
    """Change what is private about a subject."""
    try:
        pattern = form.get("pattern", "")
        choose(state, user, pattern, form.get("epsilon", ""), form.get("limit", ""))
    except (OptionError, Problem) as error:
        detail = error.detail if isinstance(error, Problem) else str(error)
        view = _view_policies(state, user)
        more = {"swapped": False, "mistake": detail, "given": form}
        return render(request, "policies.html", user, 422, **view, **more)
    return RedirectResponse("/console/policies", 303)


@router.post("/console/policies/withdraw")
def withdraw_policy(state: State, user: SubjectUser, form: SessionForm) -> RedirectResponse:
    """Withdraw a subject's choice."""
    with explain_refusals():
        state.workflow.withdraw_choice(user, form.get("pattern", ""))
    return RedirectResponse("/console/policies", 303)


@router.get("/console/approvals")
def show_approvals(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show what waits for an operator."""
    view = _list_waiting(state, user)
    return render(request, "approvals.html", user, **view, mistake=None)


@router.get("/console/approvals/live")
def show_approvals_part(request: Request, state: State, user: OperatorUser) -> HTMLResponse:
    """Show what waits for an operator, without the rest of the page."""
    return render(request, "approvals_live.html", user, **_list_waiting(state, user))


@router.post("/console/proposals/{number}/decide")
def decide(
    request: Request, state: State, user: OperatorUser, form: SessionForm, number: Number
) -> Any:
    """Approve or reject a proposal."""
    note = form.get("note", "")[:1000]
    try:
        if form.get("decision") == "approve":
            state.workflow.approve(number, user, note, tell="tell" in form)
        else:
            state.workflow.reject(number, user, note)
    except UnknownProposalError as error:
        raise Problem(404, str(error)) from error
    except (DecidedError, SpecificationError) as error:
        view = _list_waiting(state, user)
        return render(request, "approvals.html", user, 409, **view, mistake=str(error))
    return RedirectResponse("/console/approvals", 303)


@router.get("/console/versions")
def show_all_versions(
    request: Request,
    state: State,
    user: OperatorUser,
    number: OtherNumber = None,
    since: OtherNumber = None,
) -> HTMLResponse:
    """Show all versions, and compare two of them."""
    changes = None
    if number is not None:
        since = since or max(1, number - 1)
        changes = compare_stored(state, since, number)
    versions = show_versions(state)
    in_use = next((one.number for one in versions if one.state in ("next", "live")), None)
    view: dict[str, Any] = {"versions": versions, "in_use": in_use, "changes": changes}
    view["unreadable"] = state.workflow.unreadable
    return render(request, "versions.html", user, **view, number=number, since=since)


@router.post("/console/versions/{number}/approve")
def approve_version(
    state: State, user: OperatorUser, _form: SessionForm, number: Number
) -> RedirectResponse:
    """Go back to a version."""
    proposal = go_back(state, user, number)
    place = "approvals" if proposal.version is None else "versions"
    return RedirectResponse(f"/console/{place}", 303)


@router.get("/console/acts")
def show_acts(
    request: Request, state: State, user: OperatorUser, before: OtherNumber = None
) -> HTMLResponse:
    """Show who changed what."""
    acts = read_acts(state.ledger.database, before)
    return render(request, "acts.html", user, acts=acts, verdict=None)


@router.post("/console/verify")
def verify_ledger(
    request: Request, state: State, user: OperatorUser, _form: SessionForm
) -> HTMLResponse:
    """Verify the ledger, and show what was found."""
    verdict = verify(state.ledger)
    acts = read_acts(state.ledger.database)
    return render(request, "acts.html", user, acts=acts, verdict=verdict)


def _render_form(
    request: Request,
    state: ServiceState,
    user: Principal,
    given: dict[str, str],
    checked: CheckedQuery | None,
    mistake: str | None,
) -> HTMLResponse:
    spec = state.workflow.latest()[1].spec
    return render(
        request,
        "propose.html",
        user,
        200 if mistake is None else 422,
        given=given,
        kinds=_KINDS,
        checked=checked,
        mistake=mistake,
        words=[*spec.patterns, *spec.events],
        proposals=_list_own(state, user),
    )


def _check(state: ServiceState, user: Principal, form: dict[str, str]) -> CheckedQuery | None:
    """Check a form; None if it is still empty."""
    if not any(form.get(name, "").strip() for name in ("name", "pattern", "values")):
        return None
    try:
        query = _to_query(form)
    except OptionError as error:
        return CheckedQuery(valid=False, mistakes=[str(error)], private=[])
    return check_proposed(state, user.name, query)


def _to_query(form: dict[str, str]) -> dict[str, Any]:
    given = {name: form.get(name, "").strip() for name in _EMPTY}
    kind = given["kind"] or "pattern"
    query: dict[str, Any] = {"name": _require(given, "name")}
    if kind == "one_of":
        return query | {"one_of": _read_values(_require(given, "values"))}
    query[kind] = _require(given, "pattern")
    more = {"pattern": ("alpha", "quality"), "times": ("up_to",), "count": ("by",)}
    if kind not in more:
        raise OptionError("choose what you want to know")
    for name in more[kind]:
        text = given[name]
        if text and name in _NUMBERS:
            try:
                query[name] = _NUMBERS[name](text)
            except ValueError as error:
                expected = f"expected a number, such as {_EMPTY[name] or 0.9}"
                raise OptionError(f"{_LABELS[name]}: {expected}") from error
        elif text:
            query[name] = text
    return query


def _require(given: dict[str, str], name: str) -> str:
    if not given[name]:
        raise OptionError(f"{_LABELS[name]}: this is missing")
    return given[name]


def _read_values(text: str) -> dict[str, str]:
    """Read a value and its pattern from each line."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        value, colon, pattern = (part.strip() for part in line.partition(":"))
        if not (value and colon and pattern):
            raise OptionError("answers: expected a line such as home: at_home for each answer")
        if value in found:
            raise OptionError(f"answers: {value} is there twice")
        found[value] = pattern
    return found


def _list_own(state: ServiceState, user: Principal) -> list[Any]:
    return [show_proposal(state, user, one) for one in state.workflow.list_proposals(user)]


def _view_policies(state: ServiceState, user: Principal) -> dict[str, Any]:
    policies = {one.pattern: one for one in list_policies(state, user)}
    offers = [
        one.model_dump() | _describe_policy(policies[one.pattern])
        for one in get_catalogue(state, user)
    ]
    return {
        "offers": offers,
        "unit": name_unit(state.spec.windows.panes),
        "about": name_unit(state.spec.windows.panes).rpartition(" ")[2],
        "proposals": _list_own(state, user),
    }


def _describe_policy(policy: SubjectPolicy) -> dict[str, Any]:
    """Add how sure someone could become."""
    epsilon = None if policy.epsilon is None else Fraction(policy.epsilon)
    even = None if epsilon is None else str(bound_percentage(Fraction(1, 2), epsilon))
    return {"policy": policy, "even_odds": even}


def _list_waiting(state: ServiceState, user: Principal) -> dict[str, Any]:
    shown = [show_proposal(state, user, one) for one in state.workflow.list_proposals()]
    waiting = []
    for one in reversed([one for one in shown if one.decided is None]):
        share = one.progress or 0.0
        meter = draw_meter(share, 1.0, f"{share:.0%} planned", warn=False)
        expected = state.workflow.read(one.number).expected
        waiting.append(one.model_dump() | {"meter": meter, "expected": expected})
    decided = [one for one in shown if one.decided is not None][:_SHOWN]
    unit = name_unit(state.spec.windows.panes)
    return {"waiting": waiting, "decided": decided, "unit": unit}
