"""Set-up over HTTP: proposals, what subjects choose, approvals, and versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import takewhile
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tacit.errors import OptionError, PlanError, SpecificationError, TacitError
from tacit.service.access import OperatorRole, ReadingRole, require
from tacit.service.catalogue import Choice, find_declared, read_epsilon, read_limit
from tacit.service.dependencies import LARGEST_ID, State
from tacit.service.problems import Problem, problem_responses
from tacit.service.roles import Principal, Role
from tacit.service.state import ServiceState
from tacit.service.tables import ProposalState
from tacit.service.versions import compare, describe_quality
from tacit.service.workflow import DecidedError, Proposal, UnknownProposalError, VersionRecord
from tacit.spec.boolean_queries import MOST_VALUES
from tacit.spec.yaml_writer import to_yaml

router = APIRouter(tags=["workflow"])
_DENIED = problem_responses(401, 403, 422, 429)
_FOUND = {**_DENIED, **problem_responses(404)}
_DECIDED = {**_FOUND, **problem_responses(409)}
ConsumerRole = Annotated[Principal, Depends(require(Role.CONSUMER))]
SubjectRole = Annotated[Principal, Depends(require(Role.SUBJECT))]
ProposingRole = Annotated[Principal, Depends(require(Role.CONSUMER, Role.SUBJECT, Role.OPERATOR))]
Number = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The number.")]
Name = Annotated[str, Path(min_length=1, max_length=500, description="The name.")]


PatternText = Annotated[str, Field(min_length=1, max_length=10_000)]
_VERSION: Final[dict[str, JsonValue]] = {
    "number": 2,
    "created": "2026-03-01T08:15:00Z",
    "author": "operator ann",
    "summary": "query jam for city",
    "state": "live",
    "reason": None,
    "plan": "9f2c",
}
_QUALITY: Final[dict[str, JsonValue]] = {
    "query": "jam",
    "consumer": "city",
    "before": None,
    "after": 0.93,
    "expected_before": None,
    "expected_after": "0.93",
    "required": 0.9,
    "reached": True,
    "obstacles": ["hospital_visit"],
}
_DETAIL: Final[dict[str, JsonValue]] = {
    **_VERSION,
    "specification": "version: 1\nqueries:\n- {name: jam, consumer: city, pattern: slow}\n",
    "quality": [{**_QUALITY, "before": 0.93, "expected_before": "0.93"}],
}


class ProposedQuery(BaseModel):
    """A query that a consumer wants to be answered. It has one of pattern, one_of, times, count."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"name": "jam", "pattern": "SEQ(slow{3,})", "alpha": 0.5, "quality": 0.9}
        },
    )

    name: Annotated[str, Field(min_length=1, max_length=200)]
    pattern: PatternText | None = None
    """Whether this is detected."""
    one_of: Annotated[dict[str, PatternText], Field(max_length=MOST_VALUES)] | None = None
    """Which of these patterns is detected first, by name."""
    times: PatternText | None = None
    """How often this is detected, up to `up_to`."""
    up_to: Annotated[int, Field(ge=1, le=MOST_VALUES)] | None = None
    count: PatternText | None = None
    """For how many subjects this is detected."""
    by: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """For counts: a column of the registry; there is a count for each of its values."""
    alpha: Annotated[float | None, Field(ge=0, le=1)] = None
    """For patterns: the weight of precision in its quality, by default 0.5; recall has the rest."""
    quality: Annotated[float | None, Field(gt=0, le=1)] = None
    """For patterns: the quality that you need; by default the best possible."""

    def to_change(self) -> dict[str, Any]:
        """Return the change of a proposal."""
        return self.model_dump(exclude_none=True)


class CheckedQuery(BaseModel):
    """Whether a query could be proposed."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"valid": True, "mistakes": [], "private": ["hospital_visit"]}
        }
    )

    valid: bool
    mistakes: list[str]
    private: list[str]
    """The private patterns whose events it depends on: its answers are protected."""


class ShownProposal(BaseModel):
    """A proposal, as far as you may see it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "number": 3,
                "created": "2026-03-01T08:00:00Z",
                "author": "consumer city",
                "kind": "query",
                "summary": "query jam for city",
                "asks": "SEQ(slow{3,})",
                "change": {"name": "jam", "pattern": "SEQ(slow{3,})", "alpha": 0.5},
                "state": "waiting",
                "needs_approval": True,
                "progress": None,
                "doing": None,
                "reason": None,
                "effect": None,
                "reached": None,
                "note": "",
                "decided": None,
                "version": None,
            }
        }
    )

    number: int
    created: datetime
    author: str
    kind: str
    summary: str
    asks: str | None
    """What a proposed query asks, as text."""
    change: dict[str, Any]
    state: str
    """For operators planning, ready or failed, for others waiting or failed, until it is decided;
    then approved, rejected or withdrawn. Refused: approved, but the run could not change to it."""
    needs_approval: bool
    progress: float | None
    """For operators: the finished share of the plan."""
    doing: str | None
    reason: str | None
    """Why the run refused it; for operators and subjects also why there is no plan."""
    effect: dict[str, Any] | None
    """For operators: quality of every query before and after, obstacles, and costs."""
    reached: bool | None
    """Whether the query is expected to reach the quality that it requires: for operators, and for
    its consumer once it is approved."""
    note: str
    """What the operator says about the decision."""
    decided: datetime | None
    version: int | None
    """The version that it became."""


class Decision(BaseModel):
    """What an operator says about a decision."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"note": "as we agreed"}}
    )

    note: Annotated[str, Field(max_length=1000)] = ""


class Approval(Decision):
    """What an operator says about an approval."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"note": "as we agreed", "tell_quality": True}}
    )

    tell_quality: bool = False
    """Whether the note ends with what to expect of the query. That depends on history, and no
    epsilon covers it."""


class CatalogueOffer(BaseModel):
    """What subjects may choose for a private pattern."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "pattern": "hospital_visit",
                "epsilon": ["0.5", "3"],
                "limit": ["20 per day", "300 per day"],
            }
        }
    )

    pattern: str
    epsilon: tuple[str, str]
    """The least and the most."""
    limit: tuple[str, str] | None


class SubjectPolicy(BaseModel):
    """What applies to you for a pattern of the catalogue."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "pattern": "hospital_visit",
                "private": True,
                "epsilon": "1",
                "limit": "20 per day",
                "own_choice": True,
                "pending": None,
            }
        }
    )

    pattern: str
    private: bool
    epsilon: str | None
    limit: str | None
    own_choice: bool
    """Whether you chose it; else it is what the operator declares."""
    pending: int | None
    """The number of your change that is not in use yet."""


class PolicyChoice(BaseModel):
    """What a subject chooses."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"epsilon": "0.5", "limit": "20 per day"}}
    )

    epsilon: Annotated[str, Field(min_length=1, max_length=40)]
    limit: Annotated[str | None, Field(max_length=60)] = None


class ShownVersion(BaseModel):
    """A version of the specification and its plan."""

    model_config = ConfigDict(json_schema_extra={"example": _VERSION})

    number: int
    created: datetime
    author: str
    summary: str
    state: str
    """live: the windows that close now use it; next: later ones will, first the one with the
    smallest number; earlier: none does, since another one came after it; refused: the run could not
    change to it."""
    reason: str | None = None
    """Why the run refused it."""
    plan: str
    """The digest of the plan, as in releases."""


class VersionDetail(ShownVersion):
    """A version with its specification and the expected quality of its queries."""

    model_config = ConfigDict(json_schema_extra={"example": _DETAIL})

    specification: str
    """As YAML."""
    quality: list[dict[str, Any]]


class VersionDifference(BaseModel):
    """What differs between two versions."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "queries": [
                    {"name": "jam", "before": None, "after": "city: SEQ(slow{3,}), alpha 0.5"}
                ],
                "private": [],
                "quality": [_QUALITY],
                "lines": ["+- {name: jam, consumer: city, pattern: 'SEQ(slow{3,})'}"],
            }
        }
    )

    queries: list[dict[str, Any]]
    private: list[dict[str, Any]]
    quality: list[dict[str, Any]]
    lines: list[str]


@router.post("/queries/check", summary="Check a query", responses=_DENIED)
def check_query(state: State, principal: ConsumerRole, given: ProposedQuery) -> CheckedQuery:
    """Return whether a query could be proposed, with its mistakes. Nothing is stored."""
    return check_proposed(state, principal.name, given.to_change())


def check_proposed(state: ServiceState, consumer: str, query: dict[str, Any]) -> CheckedQuery:
    """Check a query, and collect its mistakes."""
    try:
        _, private = state.workflow.check_query(consumer, query)
    except SpecificationError as error:
        mistakes = [mistake.message for mistake in error.mistakes]
        return CheckedQuery(valid=False, mistakes=mistakes, private=[])
    except OptionError as error:
        return CheckedQuery(valid=False, mistakes=[str(error)], private=[])
    return CheckedQuery(valid=True, mistakes=[], private=private)


@router.post("/queries", summary="Propose a query", status_code=201, responses=_DENIED)
def propose_query(state: State, principal: ConsumerRole, given: ProposedQuery) -> ShownProposal:
    """Propose a query of your own. It is planned, and answered once an operator approves it."""
    try:
        proposal = state.workflow.propose_query(principal, given.to_change())
    except SpecificationError as error:
        mistakes = [mistake.message for mistake in error.mistakes]
        raise Problem(422, "the query has mistakes", mistakes=mistakes) from error
    return show_proposal(state, principal, proposal)


@router.delete("/queries/{name}", summary="Propose to end a query", responses=_FOUND)
def propose_removal(state: State, principal: ConsumerRole, name: Name) -> ShownProposal:
    """Propose that a query of yours is no longer answered."""
    with explain_refusals():
        proposal = state.workflow.propose_removal(principal, name)
    return show_proposal(state, principal, proposal)


@router.get("/proposals", summary="Proposals", responses=_DENIED)
def list_proposals(state: State, principal: ProposingRole) -> list[ShownProposal]:
    """Return your proposals, the newest first; operators get those of everyone."""
    author = None if principal.role is Role.OPERATOR else principal
    found = state.workflow.list_proposals(author)
    return [show_proposal(state, principal, proposal) for proposal in found]


@router.get("/proposals/{number}", summary="A proposal", responses=_FOUND)
def get_proposal(state: State, principal: ProposingRole, number: Number) -> ShownProposal:
    """Return a proposal and how far it is."""
    return show_proposal(state, principal, find_proposal(state, principal, number))


@router.delete("/proposals/{number}", summary="Withdraw a proposal", responses=_DECIDED)
def withdraw_proposal(state: State, principal: ProposingRole, number: Number) -> ShownProposal:
    """Withdraw a proposal of yours that is not decided."""
    find_proposal(state, principal, number)
    return _decide(state, principal, lambda: state.workflow.withdraw(number, principal))


@router.post("/proposals/{number}/approve", summary="Approve a proposal", responses=_DECIDED)
def approve_proposal(
    state: State, principal: OperatorRole, number: Number, given: Approval | None = None
) -> ShownProposal:
    """Approve a planned proposal. Windows that begin after this use it."""
    given = given or Approval()
    note, tell = given.note, given.tell_quality
    approve = state.workflow.approve
    return _decide(state, principal, lambda: approve(number, principal, note, tell=tell))


@router.post("/proposals/{number}/reject", summary="Reject a proposal", responses=_DECIDED)
def reject_proposal(
    state: State, principal: OperatorRole, number: Number, given: Decision | None = None
) -> ShownProposal:
    """Reject an open proposal. Its author can read the note."""
    note = "" if given is None else given.note
    return _decide(state, principal, lambda: state.workflow.reject(number, principal, note))


def _decide(
    state: ServiceState, principal: Principal, decide: Callable[[], Proposal]
) -> ShownProposal:
    """Decide about a proposal, and show it."""
    with explain_refusals():
        decided = decide()
    return show_proposal(state, principal, decided)


@router.get("/catalogue", summary="What subjects may choose", responses=_DENIED)
def get_catalogue(state: State, _: ReadingRole) -> list[CatalogueOffer]:
    """Return the private patterns that subjects may choose, with the bounds of the operator."""
    return [
        CatalogueOffer(
            pattern=name,
            epsilon=(str(entry.epsilon[0]), str(entry.epsilon[1])),
            limit=None if entry.limit is None else (str(entry.limit[0]), str(entry.limit[1])),
        )
        for name, entry in state.workflow.catalogue.items()
    ]


@router.get("/policies", summary="What applies to you", responses=_DENIED)
def get_policies(state: State, principal: SubjectRole) -> list[SubjectPolicy]:
    """Return what is private about you, for every pattern of the catalogue."""
    return list_policies(state, principal)


def list_policies(state: ServiceState, subject: Principal) -> list[SubjectPolicy]:
    """Return what applies to a subject for every pattern of the catalogue."""
    own, refused = state.workflow.choices(subject.name), find_refusals(state)
    waiting = {
        proposal.change.get("pattern"): proposal.number
        for proposal in reversed(state.workflow.list_proposals(subject))
        if proposal.state in (ProposalState.PLANNING, ProposalState.READY)
        or proposal.version in refused
    }
    found = []
    for pattern in state.workflow.catalogue:
        declared = find_declared(state.spec, subject.name, pattern)
        limit = None if declared is None or declared.limit is None else str(declared.limit)
        found.append(
            SubjectPolicy(
                pattern=pattern,
                private=declared is not None,
                epsilon=None if declared is None else str(declared.epsilon),
                limit=limit,
                own_choice=pattern in own,
                pending=waiting.get(pattern),
            )
        )
    return found


@router.put("/policies/{pattern}", summary="Choose what is private about you", responses=_FOUND)
def choose_policy(
    state: State, principal: SubjectRole, pattern: Name, given: PolicyChoice
) -> ShownProposal:
    """Choose epsilon and limit for a pattern, within the bounds of the catalogue.

    What reveals no more than before needs no approval, and is used by the windows that begin
    after it is planned. Anything else waits for an operator.
    """
    return show_proposal(
        state, principal, choose(state, principal, pattern, given.epsilon, given.limit)
    )


def choose(
    state: ServiceState, subject: Principal, pattern: str, epsilon: str, limit: str | None
) -> Proposal:
    """Change what a subject keeps private."""
    if pattern not in state.workflow.catalogue:
        raise Problem(404, "the catalogue has no pattern of this name")
    choice = Choice(subject.name, pattern, read_epsilon(epsilon), read_limit(limit))
    try:
        return state.workflow.choose(subject, choice)
    except SpecificationError as error:
        raise Problem(422, error.mistakes[0].message) from error


@router.delete("/policies/{pattern}", summary="Withdraw your choice", responses=_FOUND)
def withdraw_policy(state: State, principal: SubjectRole, pattern: Name) -> ShownProposal:
    """Withdraw your choice: what the operator declares applies again. It needs no approval."""
    return _decide(state, principal, lambda: state.workflow.withdraw_choice(principal, pattern))


@router.get("/versions", summary="Versions", responses=_DENIED)
def list_versions(state: State, _: OperatorRole) -> list[ShownVersion]:
    """Return all versions, the newest first."""
    return show_versions(state)


@router.get("/versions/{number}", summary="A version", responses=_FOUND)
def get_version(state: State, _: OperatorRole, number: Number) -> VersionDetail:
    """Return a version with its specification and the expected quality of its queries."""
    with explain_refusals():
        stored = state.workflow.load_version(number)
    (shown,) = (one for one in show_versions(state) if one.number == number)
    quality = describe_quality(stored, stored)
    return VersionDetail(**shown.model_dump(), specification=to_yaml(stored.spec), quality=quality)


@router.get("/versions/{number}/changes", summary="Compare two versions", responses=_FOUND)
def compare_versions(
    state: State,
    _: OperatorRole,
    number: Number,
    since: Annotated[
        int | None,
        Query(ge=1, le=LARGEST_ID, description="The other version; by default the one before."),
    ] = None,
) -> VersionDifference:
    """Return what a version changed: queries, private patterns, quality, and lines of YAML."""
    return VersionDifference(**compare_stored(state, since or max(1, number - 1), number))


def compare_stored(state: ServiceState, before: int, after: int) -> dict[str, Any]:
    """Compare two versions."""
    with explain_refusals():
        loaded = [state.workflow.load_version(number) for number in (before, after)]
    return compare(*loaded)


@router.post("/versions/{number}/approve", summary="Go back to a version", responses=_DECIDED)
def approve_version(state: State, principal: OperatorRole, number: Number) -> ShownProposal:
    """Approve an older version again.

    The choices of subjects stay as they are now: if they differ from those of that version, it is
    planned again first, and waits for your approval.
    """
    return show_proposal(state, principal, go_back(state, principal, number))


def go_back(state: ServiceState, operator: Principal, number: int) -> Proposal:
    """Approve an older version again, or propose it where it must be planned."""
    with explain_refusals():
        return state.workflow.propose_version(operator, number)


@contextmanager
def explain_refusals() -> Iterator[None]:
    """Turn what the workflow refuses into problems."""
    try:
        yield
    except UnknownProposalError as error:
        raise Problem(404, str(error)) from error
    except (DecidedError, SpecificationError) as error:
        raise Problem(409, str(error)) from error


def find_proposal(state: ServiceState, principal: Principal, number: int) -> Proposal:
    """Return a proposal that someone may see."""
    try:
        proposal = state.workflow.read(number)
    except UnknownProposalError as error:
        raise Problem(404, "you have no proposal of this number") from error
    own = (proposal.role, proposal.author) == (principal.role, principal.name)
    if not own and principal.role is not Role.OPERATOR:
        raise Problem(404, "you have no proposal of this number")
    return proposal


def show_proposal(state: ServiceState, reader: Principal, proposal: Proposal) -> ShownProposal:
    """Show a proposal as far as someone may see it.

    What a plan says depends on history, which consumers do not see, and so does how long it
    takes: to them a proposal is waiting until an operator decides. With an approval they learn
    whether the quality that they require is reached, and no more than that.
    """
    operator = reader.role is Role.OPERATOR
    shown = str(proposal.state)
    if not operator and proposal.state in (ProposalState.PLANNING, ProposalState.READY):
        shown = "waiting"
    if reader.role is Role.CONSUMER and proposal.state is ProposalState.FAILED:
        shown = "waiting"
    planning = operator and proposal.state is ProposalState.PLANNING
    reason = None if reader.role is Role.CONSUMER else proposal.reason or None
    approved = proposal.state is ProposalState.APPROVED
    refused = find_refusals(state).get(proposal.version or 0) if approved else None
    if refused is not None:
        shown, reason = "refused", str(refused) if operator else explain_refusal(refused)
    share, doing = state.workflow.progress(proposal.number) if planning else (None, None)
    return ShownProposal(
        number=proposal.number,
        created=_to_time(proposal.created),
        author=f"{proposal.role} {proposal.author}",
        kind=str(proposal.kind),
        summary=proposal.summary,
        asks=proposal.asks,
        change={name: value for name, value in proposal.change.items() if name != "base"},
        state=shown,
        needs_approval=not proposal.automatic,
        progress=share,
        doing=doing,
        reason=reason,
        effect=None if proposal.effect is None or not operator else dict(proposal.effect),
        reached=proposal.reached if operator or approved else None,
        note=proposal.note,
        decided=None if proposal.decided is None else _to_time(proposal.decided),
        version=proposal.version,
    )


def show_versions(state: ServiceState) -> list[ShownVersion]:
    """Show all versions, and which of them is live or will be."""
    records = state.workflow.list_versions()
    states = find_version_states(records, _list_plans(state))
    refused = find_refusals(state)
    return [
        ShownVersion(
            number=record.number,
            created=_to_time(record.created),
            author=record.author,
            summary=record.summary,
            state="refused" if record.number in refused else states[record.number],
            reason=str(refused[record.number]) if record.number in refused else None,
            plan=record.plan,
        )
        for record in records
    ]


def _list_plans(state: ServiceState) -> list[str]:
    """Return the plans of the versions that the run uses, or will use, in this order."""
    if state.run is None:
        return []
    engine = state.run.engine
    using, latest = engine.windows.versions, engine.latest
    offered = [] if latest is None or any(latest is one for one in using) else [latest]
    return [version.plan_digest for version in (*using, *offered)]


def find_refusals(state: ServiceState) -> dict[int, TacitError]:
    """Return why the run refused each version that came after those that it uses or will use."""
    refused, plans = state.workflow.refused, _list_plans(state)
    if not refused:
        return {}
    newer = takewhile(lambda record: record.plan not in plans, state.workflow.list_versions())
    return {record.number: refused[record.plan] for record in newer if record.plan in refused}


def explain_refusal(error: TacitError) -> str:
    """Say why the run refused a version, for those who do not operate it.

    The error itself may name sources, and queries of other consumers.
    """
    if isinstance(error, SpecificationError):
        why = "it changes something that must stay the same while the service runs"
    elif isinstance(error, PlanError):
        why = "its plan does not fit"
    else:
        why = "a column that it needs is not read, or has another type"
    return (
        f"It is not in use: {why}. What applied before still does. The operator sees the details"
        " and can correct it"
    )


def find_version_states(records: Sequence[VersionRecord], plans: Sequence[str]) -> dict[int, str]:
    """Return the state of each version; the newest comes first, the plan in use too.

    A plan may belong to several versions, if someone went back to one: the run uses them in the
    order of their numbers. The newest version comes next even if the run has not taken it up yet.
    Of those in between that were approved, another may have taken the place before any window
    began.
    """
    states = dict.fromkeys((record.number for record in records), "earlier")
    if records:
        states[records[0].number] = "next"
    below = records[0].number + 1 if records else 0
    for place in reversed(range(len(plans))):
        same = (one.number for one in records if one.plan == plans[place] and one.number < below)
        found = next(same, None)
        if found is not None:
            below, states[found] = found, "next" if place else "live"
    return states


def _to_time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
