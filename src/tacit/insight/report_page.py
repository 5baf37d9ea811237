"""One self-contained page about a plan and a ledger, for a data protection officer or a subject.

A page has text, tables and pictures drawn as SVG. It loads nothing from elsewhere and runs no
script. It shows what plans and statements contain, so it is for operators, subjects and officers,
not for consumers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from tacit.durations import format_duration
from tacit.errors import OptionError, translate_write_errors
from tacit.insight.audit import audit
from tacit.insight.explain import NOT_PROMISED, PUBLIC_EVENTS, Explanation, PrivateMeaning, explain
from tacit.pipeline.times import format_time
from tacit.planning.plan import Plan
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.prices import NANO
from tacit.quantities import count, format_share

if TYPE_CHECKING:
    from tacit.insight.audit import AuditReport
    from tacit.ledger.statement import Horizon, Statement
    from tacit.ledger.verification import Verdict

_DAYS_SHOWN: Final = 31
"""Horizons of a private pattern that a picture shows."""
_ANSWERS_SHOWN: Final = 200
"""Answers about a subject that its page lists."""
_STYLE: Final = """
:root { --ink: #1c2530; --soft: #5b6776; --line: #d9dfe6; --tint: #f4f7f9; --mark: #0f5c7a;
  --warn: #a04400; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ecf1; --soft: #a3b0bd; --line: #38424d;
  --tint: #1d242b; --mark: #7cc7e0; --warn: #f0a060; --paper: #14191e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.2rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; } p { margin: .4rem 0; }
.soft { color: var(--soft); } .warn { color: var(--warn); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1.2rem; }
.card { flex: 1 1 11rem; background: var(--tint); border-radius: 8px; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.35rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: .6rem 0; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { font-weight: 600; } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums; }
figure { overflow-x: auto; } svg { width: 100%; min-width: 34rem; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.bar { fill: var(--mark); } .rest { fill: var(--line); } .limit { stroke: var(--warn); }
@media print { body { max-width: none; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""


@dataclass
class ReportPage:
    """A page, section by section."""

    title: str
    subtitle: str
    cards: list[tuple[str, str]] = field(default_factory=list)
    """Figures for the top: a number, and what it is."""
    sections: list[tuple[str, str]] = field(default_factory=list)
    """Titles, and their contents as HTML."""

    def to_html(self) -> str:
        """Return the whole page."""
        cards = "".join(
            f'<div class="card"><b>{escape(figure)}</b><span class="soft">{escape(what)}</span>'
            "</div>"
            for figure, what in self.cards
        )
        sections = "".join(
            f"<section><h2>{escape(title)}</h2>{content}</section>"
            for title, content in self.sections
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            f'<header><h1>{escape(self.title)}</h1><p class="soft">{escape(self.subtitle)}</p>'
            f'</header><main><div class="cards">{cards}</div>{sections}</main></body></html>\n'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that only its owner can read."""
        with (
            translate_write_errors(path),
            open(path, "w", encoding="utf-8", opener=_open_private) as file,
        ):
            file.write(self.to_html())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def report(*places: str | os.PathLike[str], subject: str | None = None) -> ReportPage:
    """Make a page about a plan, a ledger, or both; with `subject`, about that subject alone.

    `places` are the file of a plan, and the file or URL of a ledger, in any order.
    """
    plans = [os.fspath(place) for place in places if _is_plan(place)]
    ledgers = [os.fspath(place) for place in places if not _is_plan(place)]
    if not places or len(plans) > 1 or len(ledgers) > 1:
        raise OptionError("a report is about one plan, one ledger, or one of each")
    if subject is not None and not ledgers:
        raise OptionError("a statement of a subject needs a ledger")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if subject is not None:
        page = ReportPage(f"Statement for {subject}", f"Made on {made}, from a ledger of Tacit.")
    else:
        readers = "For operators, subjects and data protection officers; not for consumers."
        page = ReportPage("Privacy report", f"Made on {made}. {readers}")
    plan = Plan.load(plans[0]) if plans else None
    if plan is not None:
        _add_protection(page, explain(plan.spec, plan), _read_limits(plan))
        if subject is None:
            _add_quality(page, plan)
            _add_audit(page, audit(plan))
    if ledgers:
        _add_ledger(page, ledgers[0], subject)
    _add_fine_print(page, None if plan is None else explain(plan.spec))
    return page


def _is_plan(place: str | os.PathLike[str]) -> bool:
    text = os.fspath(place)
    if "://" in text or not Path(text).is_file():
        return False
    with open(text, "rb") as file:
        return file.read(64).lstrip().startswith(b"{")


def _read_limits(plan: Plan) -> list[str | None]:
    """Return the limit of each private pattern, from the specification inside the plan."""
    limits = [one["limit"] for one in plan.specification["private"]]
    return [
        None if limit is None else f"{limit[0]} per {format_duration(limit[1])}" for limit in limits
    ]


def _add_protection(page: ReportPage, meaning: Explanation, limits: Sequence[str | None]) -> None:
    """Say what is private, and what its epsilon means."""
    patterns = len(meaning.private)
    page.cards.append((str(patterns), "private pattern" + "s" * (patterns != 1)))
    rows = [
        [
            f"<b>{escape(one.name)}</b><br><span class='soft'>{escape(one.pattern)}</span>",
            escape(", ".join(one.elements)),
            escape(_count_subjects(one)),
            escape(format_epsilon(one.epsilon)),
            escape(limit or "none"),
        ]
        for one, limit in zip(meaning.private, limits, strict=True)
    ]
    head = ("private pattern", "events that are hidden", "subjects", "epsilon", "limit")
    text = f"<p>Every epsilon is for {escape(meaning.unit)}.</p>" + _table(head, rows, right={3})
    about = "window" if meaning.panes == 1 else "occurrence"
    for one, limit in zip(meaning.private, limits, strict=True):
        odds = one.odds
        bound = "if nothing limits it" if limit is None else f"but the limit is {limit}"
        text += (
            f"<p><b>{escape(one.name)}.</b> Someone who knows everything else can turn a guess of"
            f" 50:50 about one {about} into at most {odds.even}:{100 - odds.even}, and 1 in 100"
            f" into at most {odds.rare} in 100. A day has {odds.windows_in_a_day:,} windows: for"
            " one subject and one private pattern epsilon"
            f" {escape(format_epsilon(odds.epsilon_in_a_day))} together, {escape(bound)}.</p>"
        )
    text += _draw_odds(meaning.private, about)
    page.sections.append(("What is protected", text))


def _count_subjects(one: PrivateMeaning) -> str:
    return "all" if one.subjects is None else count(len(one.subjects), "subject")


def _draw_odds(private: Sequence[PrivateMeaning], about: str) -> str:
    bars = [(one.name, float(one.odds.even) / 100, f"{one.odds.even} in 100") for one in private]
    title = f"How sure someone can become about one {about}, who was 50:50 before"
    return _draw_bars(title, bars, floor=0.5)


def _add_quality(page: ReportPage, plan: Plan) -> None:
    """Say how good the answers are expected to be."""
    if plan.expected is None:
        page.sections.append(("Quality", "<p>Planned without history: unknown.</p>"))
        return
    page.cards.append((format_share(plan.expected.quality), "expected quality, from 0 to 1"))
    rows = plan.expected.rows()
    consumers = {query.name: query.consumer for query in plan.spec.queries}
    cells = [
        [
            escape(row["query"]),
            escape(consumers[row["query"]]),
            *(format_share(row[name]) for name in ("precision", "recall", "quality")),
        ]
        for row in rows
    ]
    text = (
        f"<p>{escape(plan.mechanism)}, from {count(plan.windows, 'window')} of history. Precision"
        " is the share of yes answers that are right, recall the share of true cases that are"
        " answered yes; quality weighs the two.</p>"
        + _draw_bars(
            "Expected quality of each query",
            [(row["query"], row["quality"], format_share(row["quality"])) for row in rows],
        )
        + _table(("query", "consumer", "precision", "recall", "quality"), cells, right={2, 3, 4})
    )
    for warning in (*plan.history_warnings, *plan.warnings):
        text += f'<p class="warn">Warning: {escape(str(warning))}.</p>'
    page.sections.append(("What consumers get", text))


def _add_audit(page: ReportPage, found: AuditReport) -> None:
    """Show the exact epsilon of the plan's tables."""
    page.cards.append(("passed" if found.passed else "FAILED", "exact audit"))
    rows = [
        [
            escape(pattern.name),
            escape(format_epsilon(pattern.granted)),
            "unbounded" if pattern.whole is None else escape(_format_bound(pattern.whole)),
            "yes" if pattern.passed else "<b class='warn'>NO</b>",
        ]
        for policy in found.policies
        for pattern in policy.patterns
    ]
    channels = sum(len(policy.channels) for policy in found.policies)
    text = (
        f"<p>All noise is drawn from {count(channels, 'table')} of whole numbers. For each, the"
        " largest ratio between two rows was computed exactly, and compared with a certified"
        " bound.</p>"
    )
    head = ("private pattern", "epsilon granted", "epsilon of the tables", "within the grant")
    page.sections.append(("Audit", text + _table(head, rows, right={1, 2})))


def _format_bound(epsilon: Fraction) -> str:
    return f"{float(epsilon):.6g}"


def _add_ledger(page: ReportPage, place: str, subject: str | None) -> None:
    """Show what was spent, and whether the ledger is unchanged."""
    from tacit.ledger.ledger import Ledger
    from tacit.ledger.statement import read_statement
    from tacit.ledger.verification import verify

    with Ledger.open(place, read_only=True) as ledger:
        statement = read_statement(ledger, subject=subject)
        verdict = verify(ledger, {})
    _add_spending(page, statement)
    if subject is not None:
        _add_answers(page, place, subject)
    _add_integrity(page, verdict)


def _add_spending(page: ReportPage, statement: Statement) -> None:
    personal = statement.subject is not None
    if not personal:
        page.cards.append((f"{statement.subjects:,}", "subjects"))
        page.cards.append((f"{statement.answers:,}", "answers released to consumers"))
    text = (
        "<p>"
        + (
            "What was spent for this subject."
            if personal
            else "Spent is the largest amount of any one subject."
        )
        + " Amounts are epsilon for one subject and one private pattern, summed over windows."
        " A row is one horizon: the period of a limit, or a day if there is none. Horizons begin in"
        " the subject's local time. Windows asked cost something; free ones revealed nothing and"
        " cost nothing.</p>"
    )
    if not statement.horizons:
        text += "<p>Nothing was spent.</p>"
    for name in dict.fromkeys(one.private for one in statement.horizons):
        horizons = [one for one in statement.horizons if one.private == name]
        text += f"<h3>{escape(name)}</h3>" + _draw_spending(horizons[-_DAYS_SHOWN:])
        head = ["from", "spent", "limit", "windows asked", "free"]
        head += [] if personal else ["subjects who spent", "at their limit"]
        rows = [
            [
                escape(_format_local(one.start)),
                _format_amount(one.spent),
                "none" if one.limit is None else _format_amount(one.limit),
                f"{one.asked:,}",
                f"{one.free:,}",
                *([] if personal else [f"{one.subjects:,}", f"{one.exhausted:,}"]),
            ]
            for one in horizons[-_DAYS_SHOWN:]
        ]
        text += _table(head, rows, right=set(range(1, 7)))
        if len(horizons) > _DAYS_SHOWN:
            text += f'<p class="soft">{len(horizons) - _DAYS_SHOWN} earlier ones not shown.</p>'
    page.sections.append(("What was spent", text))


def _format_local(moment: int) -> str:
    return format_time(moment)[:16].replace("T", " ")


def _format_amount(amount: int) -> str:
    return escape(format_epsilon(Fraction(amount, NANO)))


def _draw_spending(horizons: Sequence[Horizon]) -> str:
    """Draw what was spent in each horizon, beside its limit."""
    top = max(max(one.spent, one.limit or 0) for one in horizons)
    if not top:
        return '<p class="soft">Nothing was spent, and there is no limit.</p>'
    length = format_duration(horizons[-1].length)
    return _draw_columns(
        f"Spent in each horizon of {length}",
        [(_format_local(one.start)[:10], one.spent / top) for one in horizons],
        [None if one.limit is None else one.limit / top for one in horizons],
        _format_amount(top),
    )


def _add_answers(page: ReportPage, place: str, subject: str) -> None:
    """List the answers about a subject that the ledger still has."""
    from tacit.ledger.answers import released

    answered = released(place, subject=subject).polars()
    if answered.is_empty():
        text = "<p>The ledger keeps no answers about this subject any more.</p>"
        page.sections.append(("What consumers were told", text))
        return
    counted = (
        answered.group_by("consumer", "query")
        .agg(pl.len().alias("answers"), pl.col("detected").sum().alias("yes"))
        .sort("consumer", "query")
    )
    page.cards.append((f"{len(answered):,}", "answers about you that the ledger keeps"))
    rows = [[escape(str(cell)) for cell in row] for row in counted.rows()]
    text = "<p>Answers are noisy where private events could change them: each may be wrong.</p>"
    text += _table(("consumer", "query", "answers", "of these yes"), rows, right={2, 3})
    last = answered.tail(_ANSWERS_SHOWN)
    value = pl.col("value") if "value" in last.columns else pl.lit(None)
    rows = [
        [
            escape(f"{row['window_start']:%Y-%m-%d %H:%M}"),
            escape(row["consumer"]),
            escape(row["query"]),
            escape(row["value"] or ("yes" if row["detected"] else "no")),
            f"{row['confidence']:.0%}",
        ]
        for row in last.select(
            "window_start",
            pl.col("consumer", "query").cast(pl.String),
            "detected",
            value.cast(pl.String).alias("value"),
            "confidence",
        ).iter_rows(named=True)
    ]
    text += f"<h3>The last {count(len(rows), 'answer')}</h3>"
    text += _table(("window from", "consumer", "query", "answer", "confidence"), rows, right={4})
    page.sections.append(("What consumers were told", text))


def _add_integrity(page: ReportPage, verdict: Verdict) -> None:
    page.cards.append(("unchanged" if verdict.passed else "CHANGED", "ledger, by its hash chain"))
    text = (
        f"<p>{count(verdict.releases, 'release')} and {count(verdict.charges, 'charge')} form a"
        " chain of hashes. "
    )
    if verdict.passed:
        text += "It was verified for this page, and nothing was changed since it was written.</p>"
    else:
        text += f'<b class="warn">{count(len(verdict.faults), "fault")} found.</b></p>' + _list(
            str(fault) for fault in verdict.faults[:20]
        )
    text += (
        f"<p class='soft'>Last hash: <code>{escape(verdict.hash)}</code>. Keep it: with"
        f" <code>tacit ledger verify --anchor {verdict.releases}:HASH</code> it shows later whether"
        " anything before it was changed.</p>"
    )
    page.sections.append(("Is the record intact", text))


def _add_fine_print(page: ReportPage, meaning: Explanation | None) -> None:
    # Without a plan the page shows no odds.
    limits = NOT_PROMISED if meaning else NOT_PROMISED | {"events": PUBLIC_EVENTS}
    missing = _list(f"{name}: {text}" for name, text in limits.items())
    if meaning is None:
        page.sections.append(("What is not promised", missing))
        return
    promised = _list(meaning.promised) + "<h3>Not promised</h3>" + missing
    page.sections.append(("What is promised, and what is not", promised))


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    """Return a table; the cells of `rows` are HTML already."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if number in right else ''}>{cell}</{tag}>"
            for number, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    titles = line([escape(one) for one in head], "th")
    return f'<div class="scroll"><table><tr>{titles}</tr>{body}</table></div>'


def _draw_bars(title: str, bars: Sequence[tuple[str, float, str]], *, floor: float = 0.0) -> str:
    """Draw horizontal bars for values from 0 to 1; `floor` is where all of them begin."""
    height = 26 * len(bars) + 8
    parts = []
    for number, (name, value, label) in enumerate(bars):
        y = 26 * number + 4
        width = 420 * min(1.0, max(0.0, value))
        parts.append(
            f'<text x="0" y="{y + 14}">{escape(_short(name))}</text>'
            f'<rect class="rest" x="190" y="{y}" width="420" height="18" rx="3"/>'
            f'<rect class="bar" x="190" y="{y}" width="{width:.1f}" height="18" rx="3"/>'
            f'<text x="618" y="{y + 14}">{escape(label)}</text>'
        )
    if floor:
        x = 190 + 420 * floor
        parts.append(f'<line class="limit" x1="{x}" x2="{x}" y1="0" y2="{height}"/>')
    return _figure(title, 720, height, "".join(parts))


def _draw_columns(
    title: str,
    columns: Sequence[tuple[str, float]],
    limits: Sequence[float | None],
    top: str,
) -> str:
    """Draw a column for each period, with its limit as a line."""
    step = 660 / max(len(columns), 7)
    parts = [f'<text x="0" y="14">{top}</text>', '<text x="0" y="134">0</text>']
    for number, ((name, value), limit) in enumerate(zip(columns, limits, strict=True)):
        x, height = 50 + step * number, 120 * value
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{130 - height:.1f}" width="{step - 3:.1f}"'
            f' height="{height:.1f}"><title>{escape(name)}</title></rect>'
        )
        if limit is not None:
            y = 130 - 120 * limit
            parts.append(
                f'<line class="limit" x1="{x:.1f}" x2="{x + step:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
                ' stroke-width="2"/>'
            )
    last = 50 + step * (len(columns) - 1)
    parts.append(f'<text x="50" y="148">{escape(columns[0][0])}</text>')
    if last > 200:
        parts.append(f'<text x="{last:.1f}" y="148">{escape(columns[-1][0])}</text>')
    legend = " The line is the limit." if any(one is not None for one in limits) else ""
    return _figure(title + "." + legend, 760, 154, "".join(parts))


def _figure(title: str, width: int, height: int, content: str) -> str:
    return (
        f'<figure style="margin:1rem 0"><svg viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(title)}">{content}</svg>'
        f'<figcaption class="soft">{escape(title)}</figcaption></figure>'
    )


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:25]}…"
