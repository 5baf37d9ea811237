"""What `tacit plan` reports: the expected quality, the epsilon, and the files written."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from tacit.cli.plan import PlanOptions
from tacit.insight.audit import audit
from tacit.insight.curve import Curve
from tacit.insight.explain import count_allowed_windows, describe_limit
from tacit.insight.tabular import align
from tacit.patterns.tree import elements
from tacit.planning.least_epsilon import LeastEpsilon
from tacit.planning.limits import LeastLimit, LimitPoint
from tacit.planning.plan import (
    Expected,
    Plan,
    ValueQuality,
    describe_overlap,
    describe_unit,
    element_shares,
)
from tacit.planning.requirements import DECLARED, parse_required_quality
from tacit.privacy.exponentials import format_epsilon
from tacit.quantities import count, format_share
from tacit.spec.epsilon_split import find_sources
from tacit.spec.specification import Specification

CONVENTIONS: Final = (
    "Expected values for windows like those of history: each part of history is decoded with what"
    " the other parts say. Precision is 1 if nothing is claimed and nothing"
    " is there, and 0 if something is there and nothing is claimed. Recall is 1 if nothing is"
    " there. Q = alpha * precision + (1 - alpha) * recall, and MRE = 1 - Q, because exact answers"
    " have Q = 1. 'all' is the micro average: counts are summed first, and alpha is averaged."
)
SECRET: Final = (
    "It reveals something about history: show it to operators and subjects, not to consumers."
)


@dataclass(frozen=True)
class PlanReport:
    """The result of planning, as text and as JSON."""

    spec: Specification
    options: PlanOptions
    plan: Plan | None
    expected: Expected | None
    windows: int
    compared: dict[str, Expected]
    """The expected quality of each mechanism, if `auto` chose one."""
    least: LeastEpsilon | None
    curve: Curve | None
    least_limit: LeastLimit | None = None
    limits: tuple[LimitPoint, ...] = ()
    """The expected quality with several limits."""

    @property
    def succeeded(self) -> bool:
        """Whether the requested quality is feasible, and the requested plan was made."""
        if self.least_limit is not None:
            return self.least_limit.enough
        feasible = self.least is None or self.least.epsilons is not None
        return feasible and (self.plan is not None or self.options.out is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; exact numbers are text."""
        plan, expected = self.plan, self.expected
        return {
            "fingerprint": self.spec.fingerprint,
            "windows": self.windows,
            "mechanism": None if plan is None else plan.mechanism,
            "memory": plan is not None and plan.has_memory,
            "decode": self.options.decode or self.spec.decode,
            "objective": self._objective,
            "private": [
                {
                    "private": private.name,
                    "epsilon": format_epsilon(Fraction(private.epsilon)),
                    **spent,
                }
                for private, spent in zip(self.spec.private, self._list_spent(), strict=True)
            ],
            "unit": describe_unit(self.spec),
            "counts": [] if plan is None else plan.count_rows(),
            "queries": [] if expected is None else self._list_queries(expected),
            "all": None if expected is None else _average(expected),
            "values": [value._asdict() for value in self._list_values()],
            "warnings": [warning._asdict() for warning in (plan.warnings if plan else ())],
            "history_warnings": [
                warning._asdict() for warning in (plan.history_warnings if plan else ())
            ],
            "limits": [
                {"private": name, "limit": limit, "windows": allowed, "of": windows}
                for name, limit, allowed, windows in self._list_limits()
            ],
            "past": None if plan is None or plan.past is None else self._past_to_dict(plan.past),
            "limited": None
            if plan is None or plan.limited is None
            else self._past_to_dict(plan.limited),
            "least_limit": None
            if self.least_limit is None
            else {
                "feasible": self.least_limit.enough,
                "limits": self.least_limit.point.limits,
                "obstacle": self.least_limit.obstacle,
            },
            "limit_curve": [
                {"limits": point.limits, "all": _average(point.expected)} for point in self.limits
            ],
            "conventions": CONVENTIONS,
            "elements": [
                {name: format_epsilon(share) for name, share in shares.items()}
                for shares in ([] if plan is None else element_shares(plan.mechanisms))
            ],
            "compared": {name: _average(other) for name, other in self.compared.items()},
            "least": None if self.least is None else self._least_to_dict(self.least),
            "curve": None if self.curve is None else self.curve.to_dict(),
            "plan": _format_path(self.options.out if plan is not None else None),
            "plot": _format_path(self.options.plot if self.curve is not None else None),
        }

    def _list_spent(self) -> list[dict[str, str | None]]:
        if self.least is not None:
            needed = self.least.epsilons
            return [
                {"needed": None if needed is None else format_epsilon(needed[private.name])}
                for private in self.spec.private
            ]
        return [
            {"spent": None if self.plan is None else format_epsilon(self.plan.spent(private))}
            for private in self.spec.private
        ]

    @property
    def _objective(self) -> str:
        return self.options.objective or self.spec.objective

    def _least_to_dict(self, least: LeastEpsilon) -> dict[str, Any]:
        return {
            "feasible": least.epsilons is not None,
            "granted": least.plan is not None,
            "least": self.options.least,
            "total": None if least.total is None else format_epsilon(least.total),
            "largest": None if least.largest is None else format_epsilon(least.largest),
            "mechanism": least.mechanism,
            "obstacle": least.obstacle,
            "reason": least.reason,
        }

    def _list_limits(self) -> list[tuple[str, str, int, int]]:
        """Return for each limit: pattern, limit, windows that it allows, windows in its horizon."""
        chosen = self.plan.mechanism if self.plan else None
        shares = [
            self.plan.spent(private) / Fraction(private.epsilon) if self.plan else Fraction(1)
            for private in self.spec.private
        ]
        found = [
            count_allowed_windows(self.spec, n, share, chosen) for n, share in enumerate(shares)
        ]
        return [
            (private.name, str(private.limit), *allowed)
            for private, allowed in zip(self.spec.private, found, strict=True)
            if allowed is not None
        ]

    def _past_to_dict(self, past: Expected) -> dict[str, Any]:
        return {"queries": self._list_queries(past), "all": _average(past)}

    def _list_queries(self, expected: Expected) -> list[dict[str, Any]]:
        needed = self._list_required()
        exact = self._find_exact()
        whole = [query.whole for query in self.spec.boolean_queries]
        return [
            row | {"exact": row["query"] in exact, "needs": quality if alone else None}
            for row, quality, alone in zip(expected.rows(), needed, whole, strict=True)
        ]

    def _format_value(self, value: ValueQuality) -> str:
        """Say how often a value is right, and whether that is enough."""
        asked = zip(self.spec.boolean_queries, self._list_required(), strict=True)
        needed = next((own for query, own in asked if query.query == value.query), None)
        if needed is None:
            return f"{value}."
        least = value.least_accuracy
        enough = "enough" if least >= needed else "falls short"
        return f"{value}; right in at least {least:.1%}, needs {needed:.1%}: {enough}."

    def _list_values(self) -> list[ValueQuality]:
        """Return the expected quality of queries with several values."""
        if self.expected is None or not self.windows:
            return []
        return self.expected.values(self.windows)

    def _list_required(self) -> list[float | None]:
        return parse_required_quality(self.spec, self.options.quality or DECLARED)

    def _find_exact(self) -> set[str]:
        """Return the queries that contain no private element, for any subject."""
        private = {name for pattern in self.spec.private_patterns for name in elements(pattern)}
        asked = self.spec.query_patterns.items()
        return {name for name, pattern in asked if private.isdisjoint(elements(pattern))}

    def __str__(self) -> str:
        parts = [self._format_headline()]
        if self.expected is not None:
            parts += self._format_table(self.expected)
            parts += [*self._format_warnings(), fill(CONVENTIONS, 100)]
        elif self.spec.subject_queries:
            parts.append("Without history, the expected quality is unknown.")
        parts += ["", *self._format_counts(), *self._format_epsilons(), *self._format_limits()]
        if self.curve is not None:
            parts += ["", str(self.curve)]
            parts += [] if self.options.plot is None else [f"Plotted to {self.options.plot}."]
        parts += self._format_limit_curve()
        return "\n".join([*parts, "", *self._format_next_steps()])

    def _format_counts(self) -> list[str]:
        """Say what to expect of counts in windows where private events matter."""
        if self.plan is None or not self.plan.counts:
            return []
        rows = [("count", "epsilon", "mean error", "95 % within", "estimated", "drawn every")]
        for row in self.plan.count_rows():
            if "from_answers" in row:
                estimated = f"{row['expected_error']:.3g}"
                rows.append((row["query"], "0", "from answers", "", estimated, ""))
                continue
            noisy = row["epsilon"] > 0
            error = f"{row['mean_error']:.3g}" if noisy else "exact"
            within = f"{row['half_width']}" if noisy else ""
            epsilon = f"{row['epsilon']:.4g}" if noisy else ""
            estimated, every = "", ""
            if "expected_error" in row:
                estimated = f"{row['expected_error']:.3g}"
                every = count(row["drawn_every"], "window")
            rows.append((row["query"], epsilon, error, within, estimated, every))
        lines = ["Counts, for each group and window; epsilon for one window:", *align(rows)]
        if any("expected_error" in row for row in self.plan.count_rows()):
            lines.append(
                "estimated: the expected mean error with memory, or from answers, over all windows."
            )
        return [*lines, *self._format_choices(self.plan), ""]

    def _format_choices(self, plan: Plan) -> list[str]:
        """Say which way was picked for each count that shares epsilon with answers, and why."""
        lines = []
        for row in plan.count_rows():
            if "channel_error" not in row:
                continue
            channel, answers = row["channel_error"], row["answers_error"]
            compared = "" if channel is None else f"a channel of its own {channel:.3g}"
            if answers is not None:
                source = plan.answer_counts.get(row["query"])
                asked = find_sources(plan.spec)[row["query"]] if source is None else source.query
                compared += f", the answers to {asked} {answers:.3g}"
            picked = "answers" if "from_answers" in row else "a channel of its own"
            lines.append(f"{row['query']}: mean error with {compared}; picked: {picked}.")
        if lines:
            lines.append(
                "Picked: the way and the split of epsilon with the least mean loss of all."
            )
        return lines

    def _format_limit_curve(self) -> list[str]:
        if not self.limits:
            return []
        names = list(self.limits[0].limits)
        rows = [(*names, "Q")]
        rows += [
            (*point.limits.values(), format_share(point.expected.quality)) for point in self.limits
        ]
        return [
            "",
            "Expected Q against limits, with the epsilons of the specification:",
            *align(rows),
        ]

    def _format_headline(self) -> str:
        past = f"{count(self.windows, 'window')} of history" if self.windows else "no history"
        if self.least is not None and self.least.epsilons is None:
            return f"No epsilon is enough, from {past}. The best possible, without any noise:\n"
        if self.least_limit is not None:
            enough = "Enough" if self.least_limit.enough else "No limit is enough. Tried"
            limits = self.least_limit.point.limits.items()
            shown = ", ".join(f"{name} {limit}" for name, limit in limits)
            return f"{enough}, from {past}: {shown}.\n"
        asked = self.options.mechanism or self.spec.mechanism
        mechanism = self.plan.mechanism if self.plan else asked
        decode = self.options.decode or self.spec.decode
        memory = " with memory" if self.plan is not None and self.plan.has_memory else ""
        headline = f"{mechanism}{memory}, decoded by {decode}, from {past}."
        if self.compared:
            figures = ", ".join(f"{name} {e.quality:.3f}" for name, e in self.compared.items())
            headline += f"\nauto chose the best expected Q: {figures}."
        elif asked == "optimal" and mechanism != asked:
            headline += f"\n{mechanism} replaces {asked}: it is better on held-out windows."
        return headline + "\n"

    def _format_table(self, expected: Expected) -> list[str]:
        needs = self._list_required()
        rows: list[tuple[str, ...]] = [("query", "precision", "recall", "Q", "MRE", "needs", "")]
        for row in self._list_queries(expected):
            short = row["needs"] is not None and row["quality"] < row["needs"]
            figures = ("exact", "", "", "") if row["exact"] else _format_row(row, row["needs"])
            wanted = "" if row["needs"] is None else str(row["needs"])
            rows.append((row["query"], *figures, wanted, "falls short" if short else ""))
        rows.append(("all", *_format_row(_average(expected)), "", ""))
        if self._objective == "macro":
            rows.append(("mean", "", "", *_format_mean(expected), "", ""))
        if needs == [None] * len(needs):
            rows = [row[:-2] for row in rows]
        values = [self._format_value(value) for value in self._list_values()]
        return [*align(rows), "", *([*values, ""] if values else [])]

    def _format_warnings(self) -> list[str]:
        warnings = (*self.plan.history_warnings, *self.plan.warnings) if self.plan else ()
        lines = [fill(f"Warning: {warning}.", 100) for warning in warnings]
        return [*lines, ""] if lines else []

    def _format_epsilons(self) -> list[str]:
        least, private = self.least, self.spec.private
        key = "needed" if least else "spent"
        head = key if least else "spent, at most"
        rows: list[tuple[str, ...]] = [("private pattern", "granted", head)]
        for declared, spent in zip(private, self._list_spent(), strict=True):
            rows.append(
                (declared.name, format_epsilon(Fraction(declared.epsilon)), spent[key] or "none")
            )
        lines = [f"Epsilon, {describe_unit(self.spec)}:", *align(rows)] if private else []
        for number, shares in enumerate(element_shares(self.plan.mechanisms) if self.plan else ()):
            if shares:
                whose = "" if number == 0 else f" (policy {number + 1})"
                drawn = "window" if self.spec.windows.panes == 1 else "pane"
                lines += [
                    f"Epsilon per element{whose}, for one subject, one element and one {drawn}:"
                ]
                lines += align([(name, format_epsilon(share)) for name, share in shares.items()])
        if self.plan is not None and private:
            lines += [*describe_overlap(self.plan), *_describe_free(self.plan)]
        return lines

    def _format_limits(self) -> list[str]:
        """Say what limits allow, and what to expect once they are reached."""
        lines = []
        for name, limit, allowed, windows in self._list_limits():
            lines += fill(
                f"Limit of {name}, {limit}: {describe_limit(allowed, windows)}", 100
            ).split("\n")
        if self.plan is not None and self.plan.limited is not None:
            lines += ["With limits and memory, over whole days:", ""]
            lines += self._format_table(self.plan.limited)[:-1]
            return ["", *lines]
        reached = any(allowed < windows for _, _, allowed, windows in self._list_limits())
        if self.plan is not None and self.plan.past is not None and reached:
            lines += ["After limits are reached, until the next horizon:", ""]
            lines += self._format_table(self.plan.past)[:-1]
        return ["", *lines] if lines else []

    def _format_next_steps(self) -> list[str]:
        """Say what was written, or why nothing was, and what to do."""
        least, out = self.least, self.options.out
        if self.least_limit is not None:
            if self.least_limit.enough:
                return ["Set these limits in the specification if subjects agree, and plan again."]
            obstacle = self.least_limit.obstacle
            return [f"Infeasible: {obstacle} misses its quality whatever the limit. Raise epsilon."]
        if least is not None and least.epsilons is None:
            text = (
                f"Infeasible: {least.obstacle} is the obstacle: {least.reason}. Ask for less"
                " quality there, change its pattern, or make fewer of its elements private."
            )
            return fill(text, 100).split("\n")
        if least is not None and least.plan is None:
            needed = ", ".join(
                f"{private.name} to {spent['needed']}"
                for private, spent in zip(self.spec.private, self._list_spent(), strict=True)
            )
            return [
                "The specification grants less than that, so no plan was made. Subjects decide: if"
                " they agree,",
                f"raise epsilon in the specification: {needed}.",
            ]
        if out is None:
            return ["The plan was not saved; use -o FILE to save it."]
        return [f"Plan written to {out}.{f' {SECRET}' if self.windows else ''}"]


def _describe_free(plan: Plan) -> list[str]:
    """Name the private patterns of which the plan's tables reveal nothing."""
    policies = audit(plan).policies
    costs = [pattern for policy in policies for pattern in policy.patterns]
    costly = {pattern.name for pattern in costs if pattern.whole != 0}
    free = [private.name for private in plan.spec.private if private.name not in costly]
    if not free:
        return []
    new = any(policy.kind == "optimal" for policy in policies)
    text = (
        f"The tables of this plan reveal nothing about {', '.join(free)}: their true epsilon is 0."
        + " Only contexts that history does not have may cost epsilon." * new
    )
    return fill(text, 100).split("\n")


def _format_mean(expected: Expected) -> tuple[str, str]:
    return format_share(expected.macro), format_share(1 - expected.macro)


def _format_row(row: dict[str, Any], required: float | None = None) -> tuple[str, ...]:
    """Format the figures of a query; its quality so that it can be compared with the required."""
    return (
        format_share(row["precision"]),
        format_share(row["recall"]),
        format_share(row["quality"], required),
        format_share(row["mre"]),
    )


def _average(expected: Expected) -> dict[str, float]:
    total = expected.confusion.total()
    return {
        "precision": total.precision,
        "recall": total.recall,
        "quality": expected.quality,
        "mre": expected.mre,
        "macro": expected.macro,
    }


def _format_path(path: Path | None) -> str | None:
    return None if path is None else str(path)
