"""What routes ask for: the shared state, and parameters that several routes have."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from tacit.ledger.answers import parse_microseconds
from tacit.service.access import CountingRole, ReadingRole
from tacit.service.count_feed import CountSelection
from tacit.service.feed import FeedSelection
from tacit.service.problems import Problem
from tacit.service.roles import Principal, Role
from tacit.service.state import ServiceState

LARGEST_ID: Final = 2**63 - 1
_MOST_NAMES: Final = 1000


async def get_state(request: Request) -> ServiceState:
    """Return the shared state."""
    state: ServiceState = request.app.state.service
    return state


State = Annotated[ServiceState, Depends(get_state)]


def own_queries(state: ServiceState, principal: Principal) -> list[str]:
    """Return the queries whose answers someone may see: its own, or all."""
    asked = {query.name: query.consumer for query in state.spec.queries}
    asked |= state.feed.consumers | state.counts.consumers
    own = principal.role is Role.CONSUMER
    return [query for query, consumer in asked.items() if not own or consumer == principal.name]


Since = Annotated[
    datetime | None,
    Query(description="Only windows that start at this time or later; UTC without a zone."),
]
Until = Annotated[datetime | None, Query(description="Only windows that start before this time.")]
QueryNames = Annotated[
    list[str] | None,
    Query(description="Only answers to this query. Repeatable.", max_length=_MOST_NAMES),
]


def select_answers(
    state: State,
    principal: ReadingRole,
    query: QueryNames = None,
    subject: Annotated[
        list[str] | None,
        Query(description="Only answers about this subject. Repeatable.", max_length=_MOST_NAMES),
    ] = None,
    since: Since = None,
    until: Until = None,
) -> FeedSelection:
    """Combine what someone may see with what it asks for."""
    _check_queries(state, principal, query)
    consumer = principal.name if principal.role is Role.CONSUMER else None
    if principal.role is Role.SUBJECT:
        if subject is not None and set(subject) != {principal.name}:
            raise Problem(403, "you can see answers about yourself alone")
        subject = [principal.name]
    return FeedSelection(
        consumer,
        None if query is None else tuple(query),
        None if subject is None else tuple(subject),
        _to_microseconds(since),
        _to_microseconds(until),
    )


def select_counts(
    state: State,
    principal: CountingRole,
    query: QueryNames = None,
    group: Annotated[
        list[str] | None,
        Query(description="Only counts of this group. Repeatable.", max_length=_MOST_NAMES),
    ] = None,
    since: Since = None,
    until: Until = None,
) -> CountSelection:
    """Combine what someone may see with what it asks for."""
    _check_queries(state, principal, query)
    return CountSelection(
        principal.name if principal.role is Role.CONSUMER else None,
        None if query is None else tuple(query),
        None if group is None else tuple(group),
        _to_microseconds(since),
        _to_microseconds(until),
    )


def _check_queries(state: ServiceState, principal: Principal, names: list[str] | None) -> None:
    known = own_queries(state, principal)
    for name in names or ():
        if name not in known:  # the same for a query of somebody else
            raise Problem(404, "you have no query of this name; /v1/queries lists yours")


def _to_microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else parse_microseconds(moment)


Selection = Annotated[FeedSelection, Depends(select_answers)]
SelectedCounts = Annotated[CountSelection, Depends(select_counts)]
