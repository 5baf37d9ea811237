"""Leaks: public events and exact answers that tell about a private pattern.

Public events are used as they are. If one is correlated with a private pattern, it moves the odds
of the pattern whatever epsilon is. Some of this follows from the specification (shared attributes);
the rest is measured in history. `association` says how, and why the error rate is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tacit.engines.local import load_spec, name_sources
from tacit.engines.setup import RunOptions, SpecSource
from tacit.errors import OptionError, SourceError
from tacit.insight.leak_costs import Cost, expect_qualities, protect_types
from tacit.insight.leak_report import RATE, LeakReport
from tacit.insight.leak_search import LeakSearch
from tacit.insight.shared_attributes import find_shared_attributes
from tacit.insight.window_columns import read_columns
from tacit.options import option
from tacit.patterns.tree import elements
from tacit.pipeline.reader import Input
from tacit.pipeline.refusals import Refusals
from tacit.progress import ProgressCallback, ignore_progress, scale_progress
from tacit.spec.specification import Specification

MOST_COSTS: Final = 10
"""The default number of changes for which a plan is made."""


def leaks(
    spec: SpecSource,
    *history: Any,
    rate: float = RATE,
    least: float = 1.0,
    costs: int = MOST_COSTS,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> LeakReport:
    """Find what public events and exact answers tell about private patterns.

    History is frames or files, as for `tacit.plan`; without it, only what follows from the
    specification is found. `rate` bounds the expected share of false findings. Findings that move
    the odds by less than the factor `least` are left out. For up to `costs` changes a plan is made
    that shows what protecting the event types would cost.
    """
    loaded = load_spec(spec)
    given = name_sources(history, streams)
    if not given:
        check_rate(rate, least, costs)
        return LeakReport(loaded, tuple(find_shared_attributes(loaded)), rate=rate)
    options = RunOptions(loaded, given)
    return find_leaks(
        loaded,
        lambda: options.open_inputs(loaded),
        rate=rate,
        least=least,
        costs=costs,
        progress=progress or ignore_progress,
    )


def check_rate(rate: float, least: float, costs: int) -> None:
    """Raise OptionError for numbers that make no sense."""
    if not 0 < rate < 1:
        raise OptionError(f"{option('rate')}: expected a number between 0 and 1; got {rate:g}")
    if not 1 <= least < np.inf:
        raise OptionError(f"{option('least')}: expected a number from 1 on; got {least:g}")
    if costs < 0:
        raise OptionError(f"{option('costs')}: expected a number from 0 on; got {costs}")


def find_leaks(
    spec: Specification,
    open_inputs: Callable[[], Sequence[Input]],
    *,
    rate: float = RATE,
    least: float = 1.0,
    costs: int = MOST_COSTS,
    progress: ProgressCallback = ignore_progress,
    refusals: Callable[[Refusals], None] = Refusals.warn,
) -> LeakReport:
    """Find leaks from history; it is opened a second time if costs are computed."""
    check_rate(rate, least, costs)
    inputs = open_inputs()
    again = not any(one.source.once for one in inputs)
    search = LeakSearch(spec)
    columns = read_columns(
        spec,
        inputs,
        search.index,
        progress=scale_progress(progress, 0, 0.3),
        refusals=refusals,
    )
    if not columns.registered.any():
        raise SourceError("the history has no usable tuple, so there is no window to compare")
    progress(0.3, "comparing windows")
    report = search.compare(columns, rate, least)
    progress(0.5, "comparing windows")
    report = _add_suggestions(report)
    if not report.leaks:
        progress(1.0, "done")
        return report
    if not spec.subject_queries or not costs or not again:
        why = (
            "the specification has no queries"
            if not spec.subject_queries
            else "none were asked for"
        )
        if spec.subject_queries and costs:
            why = "history can be read only once"
        return replace(report, unpriced=why)
    report = _add_costs(report, open_inputs, costs, scale_progress(progress, 0.5, 1))
    progress(1.0, "done")
    return report


def _add_suggestions(report: LeakReport) -> LeakReport:
    """Suggest which event types to protect: all of a signal, or one of a pair.

    Of a pair, one that another finding protects anyway, or the one that fewer queries use.
    """
    needed: dict[int, set[str]] = {}
    asked = [set(elements(pattern)) for pattern in report.spec.query_patterns.values()]
    uses = {name: sum(name in used for used in asked) for name in report.spec.events}
    for leak in report.leaks:
        if leak.kind != "pair":
            needed.setdefault(leak.place, set()).update(leak.types)
    found = []
    for leak in report.leaks:
        protect = leak.types
        if leak.kind == "pair":
            own = needed.setdefault(leak.place, set())
            known = tuple(name for name in leak.types if name in own)
            protect = known[:1] or tuple(sorted(leak.types, key=uses.__getitem__))[:1]
            own.update(protect)
        found.append(replace(leak, protect=protect))
    return replace(report, leaks=tuple(found))


def _add_costs(
    report: LeakReport,
    open_inputs: Callable[[], Sequence[Input]],
    most: int,
    progress: ProgressCallback,
) -> LeakReport:
    """Plan with each suggestion, the strongest first, and with all of them."""
    changes: dict[tuple[int, tuple[str, ...]], None] = {}
    for leak in report.leaks:
        changes.setdefault((leak.place, leak.protect))
    chosen = list(changes)[:most]
    variants = [protect_types(report.spec, {place: types}) for place, types in chosen]
    specs = [report.spec, report.fix(), *variants]
    before, together, *after = expect_qualities(specs, open_inputs(), progress)
    costs = {
        change: Cost.of(before, expected) for change, expected in zip(chosen, after, strict=True)
    }
    return replace(
        report,
        leaks=tuple(
            replace(leak, cost=costs.get((leak.place, leak.protect))) for leak in report.leaks
        ),
        expected=Cost.of(before, together),
    )
