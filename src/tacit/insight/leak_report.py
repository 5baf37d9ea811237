"""The report of leaks: findings as text, JSON, a frame, a picture, and a changed specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from tacit.errors import OptionError, translate_write_errors
from tacit.html_tables import format_html_table
from tacit.insight.leak_costs import Cost, protect_types
from tacit.insight.shared_attributes import SharedAttributes
from tacit.insight.tabular import align
from tacit.options import option
from tacit.quantities import count
from tacit.spec.specification import Specification
from tacit.spec.yaml_writer import to_yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind: TypeAlias = Literal["event", "pair", "query"]
When: TypeAlias = Literal["same", "before", "after"]
"""The signal's window: that of the private pattern, the one before it, or the one after it."""

WHEN: Final[dict[When, str]] = {
    "same": "same window",
    "before": "window before",
    "after": "window after",
}
RATE: Final = 0.05
"""The default error rate: the largest expected share of false findings."""
_SHOWN: Final = 20
_SHARED_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Leak:
    """A public signal that moves the odds of a private pattern in history."""

    private: str
    """The private pattern."""
    kind: Kind
    """An event type, a pair of event types in one window, or the exact answer of a query."""
    signal: str
    """The event types, or the query."""
    types: tuple[str, ...]
    """The event types that it depends on."""
    when: When
    windows: int
    """The number of windows of history that were compared."""
    seen: int
    """The number of those with the signal."""
    chance_seen: float
    """The share of windows with the private pattern, where the signal is seen."""
    chance_unseen: float
    """The same where it is not seen."""
    odds_ratio: float
    low: float
    high: float
    """Confidence bounds of the odds ratio."""
    p_value: float
    queries: tuple[str, ...]
    """The queries that use these event types."""
    place: int
    """The place of the private pattern in the specification."""
    protect: tuple[str, ...] = ()
    """The event types that the suggestion adds to the private pattern."""
    cost: Cost | None = None
    """What that costs; None if it was not computed."""

    @property
    def strength(self) -> float:
        """The factor by which the odds move at least, up or down; 1 if the bounds contain 1."""
        return max(1.0, self.low, 1 / self.high if self.high > 0 else np.inf)

    @property
    def bounded(self) -> bool:
        """Whether the odds ratio has both bounds; not if a case never occurs in history."""
        return self.low > 0 and not np.isinf(self.high)

    @property
    def described(self) -> str:
        """The signal, with its kind unless it is an event type."""
        return f"query {self.signal}" if self.kind == "query" else self.signal

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; an unbounded ratio is None."""
        plain = asdict(self)
        del plain["place"]
        plain["high"] = None if np.isinf(self.high) else self.high
        plain["types"], plain["queries"] = list(self.types), list(self.queries)
        plain["protect"] = list(self.protect)
        cost = None if self.cost is None else asdict(self.cost) | {"loss": self.cost.loss}
        return plain | {"strength": self.strength, "cost": cost}


@dataclass(frozen=True)
class LeakReport:
    """What public events and exact answers tell about private patterns."""

    spec: Specification
    shared: tuple[SharedAttributes, ...]
    """What follows from the specification alone."""
    leaks: tuple[Leak, ...] = ()
    """What history shows, the strongest first."""
    windows: int = 0
    """The number of windows of history, over all subjects; 0 without history."""
    subjects: int = 0
    used: int = 0
    """The number of subjects whose windows were used."""
    clusters: int = 0
    """The number of clusters of windows: of subjects, or of stretches of their windows."""
    whole: bool = True
    """Whether a cluster is all windows of a subject."""
    tests: Mapping[str, int] | None = None
    """The number of tests: of single `signals`, and of `pairs`."""
    rate: float = RATE
    """The error rate."""
    expected: Cost | None = None
    """What protecting all findings costs together."""
    unpriced: str | None = None
    """Why there are no costs, if there are none."""

    @property
    def additions(self) -> dict[int, tuple[str, ...]]:
        """For each private pattern, by place, the event types that protect all findings."""
        found: dict[int, dict[str, None]] = {}
        for leak in self.leaks:
            found.setdefault(leak.place, {}).update(dict.fromkeys(leak.protect))
        return {place: tuple(types) for place, types in sorted(found.items())}

    def fix(self) -> Specification:
        """Return the specification with all findings protected."""
        return protect_types(self.spec, self.additions)

    def save_fix(self, path: str | PathLike[str]) -> None:
        """Write the changed specification as YAML; comments of the old file are not kept."""
        _check_folder(self.spec, path)
        with translate_write_errors(path):
            Path(path).write_text(to_yaml(self.fix()), "utf-8")

    def polars(self) -> pl.DataFrame:
        """Return the measured findings as a frame, a row for each."""
        rows = [leak.to_dict() for leak in self.leaks]
        for row in rows:
            cost = row.pop("cost")
            row["quality_before"] = None if cost is None else cost["before"]
            row["quality_after"] = None if cost is None else cost["after"]
        return pl.DataFrame(rows, schema=_SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "shared_attributes": [
                {
                    "private": one.private,
                    "public": one.public,
                    "attributes": list(one.attributes),
                    "relation": one.relation,
                    "query": one.query,
                    "condition": one.condition,
                }
                for one in self.shared
            ],
            "leaks": [leak.to_dict() for leak in self.leaks],
            "windows": self.windows,
            "subjects": self.subjects,
            "subjects_used": self.used,
            "clusters": self.clusters,
            "clusters_are_subjects": self.whole,
            "tests": None if self.tests is None else dict(self.tests),
            "error_rate": self.rate,
            "quality": None
            if self.expected is None
            else {"before": self.expected.before, "after": self.expected.after},
            "unpriced": self.unpriced,
        }

    def __str__(self) -> str:
        return "\n".join([*_static_lines(self), *_list_measured(self)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return format_html_table(_summary(self), _HEAD, map(_row, self.leaks[:_SHOWN]))

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the odds ratios with their bounds; with a path, write the figure there too."""
        from tacit.insight.leak_plot import draw_leaks
        from tacit.pictures import make_picture

        return make_picture(lambda: draw_leaks(self), path)


_SCHEMA: Final[dict[str, Any]] = {
    "private": pl.String,
    "kind": pl.String,
    "signal": pl.String,
    "types": pl.List(pl.String),
    "when": pl.String,
    "windows": pl.Int64,
    "seen": pl.Int64,
    "chance_seen": pl.Float64,
    "chance_unseen": pl.Float64,
    "odds_ratio": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "p_value": pl.Float64,
    "queries": pl.List(pl.String),
    "protect": pl.List(pl.String),
    "strength": pl.Float64,
    "quality_before": pl.Float64,
    "quality_after": pl.Float64,
}


def _check_folder(spec: Specification, path: str | PathLike[str]) -> None:
    """Refuse another folder if the specification names files relative to its own."""
    names = any("geojson" in area.model_fields_set for area in spec.areas.values())
    names |= spec.subjects is not None and "file" in getattr(
        spec.subjects, "model_fields_set", set()
    )
    if names and Path(fspath(path)).resolve().parent != spec.folder.resolve():
        raise OptionError(
            f"{path}: the specification names files relative to its folder, so the changed one"
            f" must be there too: choose a file in {spec.folder}"
        )


_HEAD: Final = (
    "private pattern", "signal", "when", "odds", "bounds", "seen", "unseen", "protect", "cost",
)  # fmt: skip


def _row(leak: Leak) -> tuple[str, ...]:
    return (
        leak.private,
        leak.described,
        WHEN[leak.when],
        f"x {_figure(leak.odds_ratio)}" if leak.bounded else "-",
        f"{_figure(leak.low)} to {_figure(leak.high)}",
        f"{leak.chance_seen:.1%}",
        f"{leak.chance_unseen:.1%}",
        ", ".join(leak.protect),
        "-" if leak.cost is None else f"{leak.cost.loss:.3f}",
    )


def _figure(number: float) -> str:
    return "no limit" if np.isinf(number) else f"{number:.3g}"


def _static_lines(report: LeakReport) -> list[str]:
    if not report.shared:
        return ["No public event type reads an attribute of a private one."]
    lines = ["From the specification (shared attributes):"]
    for one in report.shared[:_SHARED_SHOWN]:
        text = str(one)
        lines.append(f"  {text if text.isprintable() else repr(text)}")
    if len(report.shared) > _SHARED_SHOWN:
        more = len(report.shared) - _SHARED_SHOWN
        lines.append(f"  {more:,} more share attributes; {option('json')} lists them.")
    return lines


def _summary(report: LeakReport) -> str:
    if not report.windows:
        return "Nothing was measured: there is no history."
    assert report.tests is not None
    return (
        f"{count(len(report.leaks), 'finding')} from {count(report.windows, 'window')} of"
        f" {count(report.used, 'subject')}"
        + ("" if report.used == report.subjects else f" (of {report.subjects:,})")
        + f": {report.tests['signals']:,} tests of event types and exact answers,"
        f" {report.tests['pairs']:,} of pairs."
    )


def _list_measured(report: LeakReport) -> list[str]:
    lines = ["", _summary(report)]
    if not report.windows:
        return [*lines, f"Give {option('history')} to measure."]
    if report.leaks:
        lines += align([_HEAD, *map(_row, report.leaks[:_SHOWN])])
    if len(report.leaks) > _SHOWN:
        lines.append(f"  {len(report.leaks) - _SHOWN:,} weaker ones; {option('json')} lists them.")
    if report.leaks:
        first = report.leaks[0]
        lines += ["", *(fill(text, 100) for text in (_sentence(first), *_cost_lines(report)))]
    notes = [
        f"The expected share of false findings is at most {report.rate:g}; bounds hold for all"
        " findings together at the same rate."
    ]
    if not report.whole:
        notes.append(
            "There are few subjects, so windows are compared within each subject, and stretches of"
            " 64 windows or more are taken to be independent of each other."
        )
    return [*lines, *(fill(note, 100) for note in notes)]


def _sentence(leak: Leak) -> str:
    """Say in a sentence what a finding means."""
    more = leak.odds_ratio >= 1
    factor = leak.odds_ratio if more else 1 / leak.odds_ratio
    factor, least = (factor, "") if leak.bounded else (leak.strength, "at least ")
    where = {
        "same": "in that window",
        "before": "in the next window",
        "after": "in the window before it",
    }[leak.when]
    return (
        f"Strongest: a window with {leak.described} has {least}{_figure(factor)} times"
        f" {'higher' if more else 'lower'} odds of {leak.private} {where} than a window without;"
        f" {leak.chance_seen:.1%} instead of {leak.chance_unseen:.1%}."
    )


def _cost_lines(report: LeakReport) -> list[str]:
    if report.expected is None:
        return [f"What protecting them costs was not computed: {report.unpriced}."]
    total = report.expected
    lines = [
        "cost: the expected Q (micro average) that is lost if the event types under 'protect' are"
        " added to the private pattern.",
        f"Protecting all of them: Q {total.before:.3f} becomes {total.after:.3f}"
        + (
            "."
            if total.query is None
            else f"; {total.query} loses most, {total.query_before:.3f} becomes"
            f" {total.query_after:.3f}."
        ),
    ]
    if any(leak.cost is None for leak in report.leaks):
        lines.append(f"'-' was not computed; {option('costs')} sets for how many changes it is.")
    return lines
