"""What each page shows, read from the ledger and, for operators, from the run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tacit.durations import format_duration
from tacit.insight.explain import bound_percentage
from tacit.ledger.database import now
from tacit.ledger.overview import read_overview
from tacit.privacy.prices import NANO
from tacit.service.console.charts import (
    draw_bars,
    draw_counts,
    draw_grid,
    draw_line,
    draw_meter,
    draw_odds,
)
from tacit.service.console.map_picture import draw_map
from tacit.service.console.maps import collect_figures, list_shown
from tacit.service.console.timelines import WINDOWS, AnswerGrid, make_grid, to_time
from tacit.service.count_feed import CountSelection
from tacit.service.feed import FeedSelection
from tacit.service.meanings import describe_private
from tacit.service.roles import Principal
from tacit.service.routes.facts import HorizonBalance, make_statement, make_status
from tacit.service.state import ServiceState
from tacit.service.versions import find_obstacles
from tacit.spec.boolean_queries import NONE
from tacit.spec.columntypes import SpecColumns
from tacit.spec.specification import Query, Specification

_MOST_LATEST: Final = 8
_EXAMPLES: Final[dict[str, Any]] = {"number": 1.5, "integer": 1, "boolean": True}
"""Values of a tuple by their type."""
_MOST_ENDED: Final = 100
"""Tokens that are no longer valid on a page: every login with OpenID Connect leaves one."""
_MOST_ROWS: Final = 24
"""Subjects in a grid."""


def show_consumer(state: ServiceState, consumer: str) -> dict[str, Any]:
    """Collect a consumer's queries and their last answers."""
    tables = state.feed.read_last(FeedSelection(consumer), WINDOWS)
    cards = []
    for query in state.spec.subject_queries:
        if query.consumer == consumer:
            grid = _select_query(tables, query.name)
            card: dict[str, Any] = {"name": query.name, "pattern": query.asks}
            card |= {"most": None, "groups": 0}
            card["plain"] = query.pattern is not None
            cards.append(card | _summarise(grid, query.name))
    last = next((table for table in reversed(tables) if table.num_rows), None)
    counted = state.counts.read_last(CountSelection(consumer), WINDOWS)
    for query in state.spec.count_queries:
        if query.consumer == consumer:
            groups = _list_groups(counted, query.name)
            known = [group for group in groups if group["count"] is not None]
            most = max(known, key=lambda group: int(group["count"]), default=None)
            card = {"name": query.name, "pattern": query.asks, "bars": None}
            cards.append(card | {"most": most, "groups": len(groups)})
    ends = [table["window_end"][-1].as_py() for table in (last, counted) if table]
    return {
        "cards": cards,
        "latest": [] if last is None else _list_surest(last),
        "until": max(ends, default=None),
        "window": format_duration(state.spec.windows.size),
        "ready": state.ready,
    }


def show_query(state: ServiceState, consumer: str | None, name: str) -> dict[str, Any] | None:
    """Collect the answers to one query; None if there is no such query."""
    query = next(
        (
            one
            for one in state.spec.queries
            if one.name == name and consumer in (None, one.consumer)
        ),
        None,
    )
    if query is None:
        return None
    if query.count is not None:
        return _show_counts(state, query)
    tables = state.feed.read_last(FeedSelection(query.consumer, (name,)), WINDOWS)
    grid = make_grid(tables, "subject")
    shown = grid.top(_MOST_ROWS)
    return {
        "name": name,
        "pattern": query.asks,
        "consumer": query.consumer,
        "window": format_duration(state.spec.windows.size),
        "valued": query.pattern is None,
        "subjects": len(grid.rows),
        "shown": len(shown.rows),
        "until": grid.ends[-1] if grid.ends else None,
        "kind": "answers",
        "grid": draw_grid(shown, f"Answers to {name}") if grid.rows else None,
        "map": make_map(state, query.consumer, [query]),
        "values": _list_values(grid, query),
        "expected": _describe_confidence(state, query, grid),
        **_summarise(grid, name),
    }


def _describe_confidence(state: ServiceState, query: Query, grid: AnswerGrid) -> dict[str, Any]:
    """Collect what a query depends on, and the confidence that its answers stated."""
    stated = []
    for what, chosen in (
        ("Mean confidence of all answers", grid.there),
        ("of answers yes" if query.pattern is not None else "of answers with a value",
         grid.there & grid.detected),
        ("of answers no" if query.pattern is not None else "of answers without one",
         grid.there & ~grid.detected),
    ):  # fmt: skip
        if chosen.any():
            stated.append((what, f"{100 * float(grid.confidence[chosen].mean()):.0f} %"))
    return {"private": _list_private(state, query), "stated": stated, "windows": len(grid.starts)}


def _describe_intervals(
    state: ServiceState, query: Query, groups: list[dict[str, Any]]
) -> dict[str, Any]:
    """Collect what a count depends on, and how wide its intervals were in the last window."""
    stated = []
    if groups:
        widest = max(groups, key=lambda one: int(one["high"]) - int(one["low"]))
        wide = f"{(widest['high'] - widest['low']) / 2:.3g}"
        least = min(float(one["confidence"]) for one in groups)
        estimated = any(one["estimated"] for one in groups)
        often = "about {} of windows like those of history" if estimated else "at least {}"
        stated = [
            ("Widest interval of the last window", f"± {wide} subjects"),
            ("How often the true count is in its interval", often.format(f"{100 * least:.0f} %")),
        ]
    return {"private": _list_private(state, query), "stated": stated, "windows": None}


def _list_private(state: ServiceState, query: Query) -> list[dict[str, Any]]:
    """Return the private patterns that a query depends on; their epsilons may differ by subject."""
    names = find_obstacles(state.spec, query.name)
    declared = [one for one in describe_private(state.spec) if one.name in names]
    return [
        {
            "name": name,
            "epsilon": " or ".join(
                dict.fromkeys(one.epsilon for one in declared if one.name == name)
            ),
            "unit": declared[0].unit,
        }
        for name in names
    ]


def _list_values(grid: AnswerGrid, query: Query) -> list[dict[str, Any]]:
    """Return how many subjects have each answer in the last window, for queries with several."""
    if query.pattern is not None or not grid.starts:
        return []
    last = [value for value in grid.value[:, -1] if value is not None]
    numbers = [str(number) for number in range((query.up_to or 0) + 1)]
    known = [*query.one_of, NONE] if query.one_of is not None else numbers
    return [
        {
            "value": value,
            "number": last.count(value),
            "meter": draw_meter(last.count(value), len(last), f"{value}", warn=False),
        }
        for value in known
    ]


def _show_counts(state: ServiceState, query: Query) -> dict[str, Any]:
    """Collect the last counts of a query."""
    selection = CountSelection(query.consumer, (query.name,))
    table = state.counts.read_last(selection, WINDOWS)
    groups = _list_groups(table, query.name)
    return {
        "name": query.name,
        "pattern": query.asks,
        "consumer": query.consumer,
        "window": format_duration(state.spec.windows.size),
        "kind": "counts",
        "valued": False,
        "grid": None,
        "map": make_map(state, query.consumer, [query]),
        "expected": _describe_intervals(state, query, groups),
        "by": query.by,
        "groups": groups[:_MOST_ROWS],
        "all_groups": len(groups),
    }


def show_map(state: ServiceState, consumer: str) -> dict[str, Any]:
    """Collect what was released about the areas of a consumer's queries."""
    own = [query for query in state.spec.queries if query.consumer == consumer]
    found = make_map(state, consumer, own)
    return {"map": found, "window": format_duration(state.spec.windows.size), "ready": state.ready}


def make_map(state: ServiceState, consumer: str, queries: list[Query]) -> dict[str, Any] | None:
    """Collect the map of some queries in the last window; None if they ask about no area."""
    names = tuple(query.name for query in queries)
    tables = state.feed.read_last(FeedSelection(consumer, names), 1)
    answers = _last_window(tables[-1]) if tables else None
    counts = _last_window(state.counts.read_last(CountSelection(consumer, names), 1))
    figures = collect_figures(state.spec, queries, answers, counts)
    shapes = list_shown(state.spec, queries, figures)
    if not shapes:
        return None
    shown = [table for table in (answers, counts) if table is not None and table.num_rows]
    what = f"Map of {len(shapes)} areas, north is up; the table has the same numbers"
    return {
        "picture": draw_map(shapes, figures, what),
        "figures": sorted(figures, key=lambda one: (one.area, one.query)),
        "until": max((table["window_end"][-1].as_py() for table in shown), default=None),
        "several": len(queries) > 1,
    }


def _last_window(table: pa.Table) -> pa.Table:
    if not table.num_rows:
        return table
    return table.filter(pc.equal(table["window_end"], pc.max(table["window_end"])))


def _list_groups(table: pa.Table, query: str) -> list[dict[str, Any]]:
    """Return the last count of each group, with a chart of the windows up to it."""
    frame = pl.DataFrame(table).filter(pl.col("query").cast(pl.String) == query)
    found = []
    for own in frame.partition_by("group", maintain_order=True):
        rows = [_show_estimate(row) for row in own.to_dicts()]
        last = rows[-1]
        name = "all subjects" if last["group"] is None else last["group"]
        shown = "not drawn" if last["count"] is None else f"{last['count']}"
        what = (
            f"Counts of {query} for {name} in the last {len(rows)} windows; the last is"
            f" {shown}, from {last['low']} to {last['high']}"
        )
        found.append(last | {"group_name": name, "chart": draw_counts(rows, what)})
    return found


def _show_estimate(row: dict[str, Any]) -> dict[str, Any]:
    """Show the estimate of a count in place of what was drawn, where there is one."""
    if row["estimate"] is None:
        return row | {"estimated": False}
    parts = {"count": "estimate", "low": "estimate_low", "high": "estimate_high"}
    shown = {name: round(row[part], 1) for name, part in parts.items()}
    return row | shown | {"confidence": 0.95, "estimated": True}


def show_subject(state: ServiceState, subject: str) -> dict[str, Any]:
    """Collect what is private about a subject, what was spent, and what others were told."""
    statement = make_statement(state, subject)
    private = []
    for one in describe_private(state.spec, subject):
        spent = [horizon for horizon in statement.horizons if horizon.private == one.name]
        private.append(_describe_spending(one.model_dump(), spent))
    tables = state.feed.read_last(FeedSelection(subjects=(subject,)), WINDOWS)
    grid = make_grid(tables, "query")
    consumers = {query.name: query.consumer for query in state.spec.subject_queries}
    told = [
        {"query": name, "consumer": consumers.get(name, "-"), "yes": int(yes), "of": int(there)}
        for name, yes, there in zip(
            grid.rows,
            (grid.detected & grid.there).sum(axis=1),
            grid.there.sum(axis=1),
            strict=True,
        )
    ]
    return {
        "private": private,
        "told": told,
        "counted": state.spec.count_queries,
        "grid": draw_grid(grid, "What was told about you") if grid.rows else None,
        "until": grid.ends[-1] if grid.ends else None,
        "windows": len(grid.starts),
        "window": format_duration(state.spec.windows.size),
        "known": state.feed.knows(subject),
        "ready": state.ready,
    }


def show_source(state: ServiceState, user: Principal) -> dict[str, Any]:
    """Collect the streams that a source may send to."""
    streams = [
        {
            "name": name,
            "subject": stream.subject,
            "time": stream.time,
            "example": _make_tuple(state.spec, name),
            "open": name in state.http_streams,
        }
        for name, stream in state.spec.streams.items()
        if not user.streams or name in user.streams
    ]
    return {"streams": streams, "ready": state.ready}


def _make_tuple(spec: Specification, name: str) -> str:
    """Return a tuple of a stream as a line of JSON, as an example."""
    stream, values = spec.streams[name], dict[str, Any]()
    for column in SpecColumns(spec).report()[name]:
        if column.column == stream.time:
            values[column.column] = (
                1772352000 if column.type == "integer" else "2026-03-01T08:00:00Z"
            )
        else:
            values[column.column] = _EXAMPLES.get(column.type or "text", "...")
    return json.dumps(values)


def show_operator(state: ServiceState) -> dict[str, Any]:
    """Collect the state of the run, the ledger and the plan."""
    status = make_status(state)
    rates = [
        max(0.0, (after.tuples - before.tuples) / max(1e-9, after.moment - before.moment))
        for before, after in pairwise(state.samples)
    ]
    run = state.run
    current = None if run is None else run.engine.windows.version
    expected = None if current is None or current.plan.expected is None else current.plan.expected
    overview = read_overview(state.ledger_place, state.name) if state.ledger_place else None
    return {
        "phase": state.phase,
        "status": status,
        "rate": rates[-1] if rates else 0.0,
        "rates": draw_line(rates, "Tuples per second in the last three minutes"),
        "private": [
            _describe_spending(
                one.model_dump(),
                [h for h in make_statement(state, None).horizons if h.private == one.name],
            )
            for one in describe_private(state.spec)
        ],
        "queries": _list_expected(state, [] if expected is None else expected.rows()),
        "mechanism": None if current is None else current.plan.mechanism,
        "history": 0 if current is None else current.plan.windows,
        "overview": overview,
        "committed": None
        if overview is None or overview.committed is None
        else to_time(overview.committed),
        "window": format_duration(state.spec.windows.size),
        "inbox": None if state.inbox is None else state.inbox.waiting,
    }


def show_tokens(state: ServiceState) -> dict[str, Any]:
    """Collect all tokens."""
    moment = now()
    listed = [
        {
            "id": record.id,
            "role": record.role,
            "name": record.name,
            "note": record.note,
            "state": record.state(moment),
            "created": record.created,
            "creator": record.creator,
            "expires": record.expires,
        }
        for record in state.tokens.list_all()
    ]
    consumers = sorted({query.consumer for query in state.spec.queries})
    valid = [token for token in listed if token["state"] == "valid"]
    ended = [token for token in listed if token["state"] != "valid"]
    return {"valid": valid, "ended": ended[:_MOST_ENDED], "all_ended": len(ended)} | {
        "consumers": consumers
    }


def _select_query(tables: list[Any], query: str) -> AnswerGrid:
    own = [table.filter(pc.equal(table["query"].cast("string"), query)) for table in tables]
    return make_grid(own, "subject")


def _list_surest(table: pa.Table) -> list[dict[str, Any]]:
    """Return the surest answers of a window: those that say yes, or a value."""
    columns = pl.col("subject", "query", "value").cast(pl.String), pl.col("confidence")
    frame = pl.DataFrame(table).filter("detected").select(*columns)
    frame = frame.sort("confidence", "subject", "query", descending=[True, False, False])
    return [
        row
        | {
            "meter": draw_meter(
                row["confidence"], 1.0, f"{row['confidence']:.0%} sure", warn=False
            ),
            "sure": _format_confidence(row["confidence"]),
        }
        for row in frame.head(_MOST_LATEST).to_dicts()
    ]


def _format_confidence(share: float) -> str:
    """Format a confidence: only what is certain is 100.

    >>> _format_confidence(1.0), _format_confidence(0.9991), _format_confidence(0.93)
    ('100', '> 99', '93')
    """
    return "100" if share == 1 else "> 99" if share >= 0.995 else f"{100 * share:.0f}"


def _summarise(grid: AnswerGrid, name: str) -> dict[str, Any]:
    yes = grid.yes
    sure = grid.mean_confidence
    return {
        "answered": len(grid.rows),
        "yes": yes[-1] if yes else None,
        "sure": None if sure is None else round(100 * sure),
        "bars": draw_bars(yes, f"Subjects answered yes to {name}, by window") if yes else None,
    }


def _describe_spending(private: dict[str, Any], spent: list[HorizonBalance]) -> dict[str, Any]:
    """Add what was spent in the current horizon, and what it means."""
    epsilon = Fraction(private["epsilon"])
    last = spent[-1] if spent else None
    now_spent = 0.0 if last is None else last.spent
    limit = None if last is None else last.limit
    total = Fraction(round(now_spent * NANO), NANO)
    stay = bound_percentage(Fraction(1, 2), 3 * epsilon)
    so_far = bound_percentage(Fraction(1, 2), total)
    return private | {
        "about": private["unit"].rpartition(" ")[2],
        "horizon": last,
        "since": None if last is None else datetime.fromisoformat(last.start).replace(tzinfo=UTC),
        "spent": now_spent,
        "limit_amount": limit,
        "meter": draw_meter(now_spent, limit, f"Spent {now_spent:g} of {limit or 'no limit'}"),
        "odds": draw_odds(
            float(private["even_odds"]), f"50:50 becomes at most {private['even_odds']}"
        ),
        "stay": str(stay),
        "stay_odds": draw_odds(float(stay), f"50:50 becomes at most {stay}"),
        "so_far": str(so_far),
        "so_far_odds": draw_odds(float(so_far), f"50:50 becomes at most {so_far}"),
        "days": draw_bars([one.spent for one in spent[-14:]], "Spent in each horizon"),
        "horizons": len(spent),
    }


def _list_expected(state: ServiceState, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {row["query"]: row for row in rows}
    return [
        {
            "name": query.name,
            "consumer": query.consumer,
            "pattern": query.asks,
            "required": query.quality,
            "expected": known.get(query.name),
        }
        for query in state.spec.queries
    ]
