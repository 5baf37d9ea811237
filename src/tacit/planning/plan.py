"""Plans: for each policy a mechanism with its channels, and the quality to expect.

A plan is made for one specification and contains its canonical form and fingerprint. When a plan
is read, what must be protected comes from the specification again; the plan only says how.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AuditError, PlanError, PrivacyError, translate_write_errors
from tacit.events.streams import COLUMN_TYPES
from tacit.garbage import pause_collection
from tacit.html_tables import format_html_table
from tacit.patterns.tree import Pattern, elements
from tacit.pictures import make_picture
from tacit.privacy.count_answers import AnswerCount
from tacit.privacy.count_channels import make_count_channel
from tacit.privacy.count_memory import CountMemory
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.mechanisms import load
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.policies import (
    Policies,
    Policy,
    PrivatePattern,
    declare_pattern,
    declared_patterns,
)
from tacit.privacy.quality import Confusion, micro_alpha
from tacit.spec.boolean_queries import group_queries
from tacit.spec.canonical_form import make_canonical
from tacit.spec.columntypes import RecordedTypes
from tacit.spec.epsilon_split import find_sources, split_epsilon
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Private, Specification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT: Final = 1


class QueryWarning(NamedTuple):
    """A query whose answers do not depend on private events, and why."""

    query: str
    answer: bool
    """The answer that it always gets."""
    reason: str
    where: str = "in every window"

    def __str__(self) -> str:
        answer = "yes" if self.answer else "no"
        return f"{self.query} is answered {answer} {self.where}: {self.reason}"


class HistoryWarning(NamedTuple):
    """Something in history that makes a plan useless, and what to do."""

    about: str
    """The event type, or `history`."""
    reason: str

    def __str__(self) -> str:
        return self.reason


class CountErrors(NamedTuple):
    """The expected mean absolute error of a count, each way at the best split that was found."""

    channel: float | None
    """With a channel of its own."""
    answers: float | None
    """Estimated from answers; None if no query has the same pattern."""


class ValueQuality(NamedTuple):
    """The expected quality of a query with several values, on held-out windows."""

    query: str
    accuracy: tuple[float, float] | None
    """For `one_of`, bounds of the share of windows in which the value is right.

    They differ where no value is more likely than not.
    """
    error: float | None
    """For `times`, the mean absolute error of the number."""

    @property
    def least_accuracy(self) -> float:
        """In which share of windows the value is right, at least: a wrong number is off by one."""
        if self.accuracy is not None:
            return self.accuracy[0]
        return max(0.0, 1 - (self.error or 0.0))

    def __str__(self) -> str:
        if self.accuracy is None:
            return f"{self.query}: the number is off by {self.error:.3f} on average"
        low, high = (f"{share:.1%}" for share in self.accuracy)
        shown = low if low == high else f"{low} to {high}"
        return f"{self.query}: the value is right in {shown} of the windows"


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected confusion counts of each query, in windows of history."""

    queries: tuple[str, ...]
    alphas: tuple[float, ...]
    confusion: Confusion[NDArray[np.float64]]

    @property
    def quality(self) -> float:
        """Q, as the micro average over all queries."""
        return self.confusion.total().quality(micro_alpha(self.alphas))

    @property
    def macro(self) -> float:
        """Q, as the mean over all queries."""
        return float(np.mean(self.confusion.quality(np.array(self.alphas))))

    @property
    def mre(self) -> float:
        """The relative loss of quality (MRE) over all queries."""
        return self.confusion.total().mre(micro_alpha(self.alphas))

    def rows(self) -> list[dict[str, Any]]:
        """Return each query's expected precision, recall, quality and MRE."""
        alphas = np.array(self.alphas)
        columns = {
            "precision": self.confusion.precision,
            "recall": self.confusion.recall,
            "quality": self.confusion.quality(alphas),
            "mre": self.confusion.mre(alphas),
        }
        return [
            {"query": name} | {label: float(column[n]) for label, column in columns.items()}
            for n, name in enumerate(self.queries)
        ]

    def values(self, windows: float) -> list[ValueQuality]:
        """Return the expected quality of each query with several values.

        A wrong number is off by as many as there are wrong answers to its boolean queries. A wrong
        value makes two answers wrong if one of the boolean queries is answered yes, and one if
        none is.
        """
        found, made = self.confusion, []
        for query in group_queries(self.queries):
            own = query.columns
            wrong = float((found.fp + found.fn)[own].sum())
            if query.kind == "times":
                made.append(ValueQuality(query.name, None, wrong / windows))
            elif query.kind == "one_of":
                undecided = max(0.0, windows - float((found.tp + found.fp)[own].sum()))
                high = 1 - wrong / (2 * windows)
                bounds = max(0.0, high - undecided / (2 * windows)), max(0.0, high)
                made.append(ValueQuality(query.name, bounds, None))
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that can be written as JSON."""
        return {
            "queries": list(self.queries),
            "alphas": list(self.alphas),
            **{part: getattr(self.confusion, part).tolist() for part in ("tp", "fp", "fn")},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Expected:
        """Read what `to_dict` wrote; raise ValueError if it is malformed."""
        counts = [np.array(plain[part], np.float64) for part in ("tp", "fp", "fn")]
        names, alphas = tuple(map(str, plain["queries"])), tuple(map(float, plain["alphas"]))
        if any(part.shape != (len(names),) or not np.isfinite(part).all() for part in counts):
            raise ValueError("counts")
        if len(alphas) != len(names):
            raise ValueError("alphas")
        return cls(names, alphas, Confusion(*counts))


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """How a protected run protects each policy of a specification."""

    spec: Specification
    mechanism: str
    decode: str
    mechanisms: tuple[Mechanism, ...]
    """The mechanism of each policy, in the specification's order."""
    windows: int = 0
    """The number of windows of history that it was made from; 0 without history."""
    expected: Expected | None = None
    share: Fraction = Fraction(1)
    """The share of every private pattern's epsilon that is spent, unless `shares` has another."""
    past: Expected | None = None
    """The expectation for subjects whose limit is reached; None without limits."""
    limited: Expected | None = None
    """The expectation with limits, over whole days; None without limits or without memory."""
    written: Mapping[str, Any] | None = None
    """The canonical specification from the plan file, if it was read from there."""
    columns: RecordedTypes = field(default_factory=dict)
    """For each stream, the column types found in history."""
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    """Private patterns of whose epsilon another share is spent, by name."""
    objective: str = "micro"
    """What was maximised: the micro or the macro average of quality."""
    warnings: tuple[QueryWarning, ...] = ()
    """Queries that are answered always the same way, and why."""
    history_warnings: tuple[HistoryWarning, ...] = ()
    """Event types that never occur in history, and too little of it."""
    counts: Mapping[str, Fraction] = field(default_factory=dict)
    """The epsilon of each count in one window, by name; 0 if it depends on nothing private."""
    count_memories: Mapping[str, CountMemory] = field(default_factory=dict)
    """By name, the model of each count that runs start with; only with history and memory."""
    answer_counts: Mapping[str, AnswerCount] = field(default_factory=dict)
    """The counts that are estimated from answers, by name: how."""
    count_errors: Mapping[str, CountErrors] = field(default_factory=dict)
    """What was compared when epsilon was split, by name; empty if nothing was."""

    @property
    def has_memory(self) -> bool:
        """Whether a run uses what was released before, for the subjects of some policy."""
        return any(mechanism.has_memory for mechanism in self.mechanisms)

    @property
    def values(self) -> list[ValueQuality]:
        """The expected quality of queries with several values; empty without history."""
        return [] if self.expected is None else self.expected.values(self.windows)

    def share_of(self, private: str) -> Fraction:
        """Return the share of a private pattern's epsilon that is spent."""
        return self.shares.get(private, self.share)

    @property
    def specification(self) -> Mapping[str, Any]:
        """The canonical form of the specification that the plan was made for."""
        return make_canonical(self.spec) if self.written is None else self.written

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the specification that the plan was made for."""
        return self.spec.fingerprint if self.written is None else _fingerprint(self.written)

    def check(self, spec: Specification) -> None:
        """Raise PlanError if the plan was made for another specification; subjects may differ."""
        same = spec
        if spec.subjects != self.spec.subjects:
            same = spec.model_copy(update={"subjects": self.spec.subjects})
        if same.fingerprint != self.fingerprint:
            raise PlanError(_OTHER)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies with the epsilons spent per unit: a window, or an occurrence."""
        policies = Policies(self.spec).policies
        return tuple(policy.scale(self.share, self.shares) for policy in policies)

    def spent_per_window(self, private: Private) -> Fraction:
        """Return the epsilon that each released window costs a private pattern.

        With sliding windows, a mechanism that flips elements draws once per pane, and one pane
        ends with each window. A mechanism that draws answers does so for each window, so all
        windows that an occurrence may change cost its epsilon together.
        """
        pattern = declare_pattern(self.spec, self.spec.private.index(private))
        windows = 1 if self.draws_panes else pattern.count_windows(self.spec.windows.panes)
        return pattern.epsilon * self.share_of(pattern.name) / windows

    def check_counts(self) -> None:
        """Raise PlanError unless counts and mechanisms are within every private pattern's epsilon.

        The sum is exact: what the mechanism may spend, and each count in every window that an
        occurrence may change.
        """
        if (
            self.counts.keys() != self.spec.count_patterns.keys()
            or min(self.counts.values(), default=0) < 0
            or not self.count_memories.keys() <= self.counts.keys()
            or not self.count_errors.keys() <= self.counts.keys()
        ):
            raise PlanError(f"the plan has an epsilon for other counts; {_AGAIN}")
        sources = find_sources(self.spec)
        if {name for name in sources if not self.counts[name]} != self.answer_counts.keys() or any(
            sources[name] != one.query for name, one in self.answer_counts.items()
        ):
            raise PlanError(f"the plan does not say how each count is made; {_AGAIN}")
        for pattern in declared_patterns(self.spec):
            if self._spend(pattern) > pattern.epsilon:
                raise PlanError(
                    f"the counts of this plan and its mechanism spend more than the epsilon of"
                    f" {pattern.name}; {_AGAIN}"
                )

    def spent_on_counts(self, private: Private) -> list[Fraction]:
        """Return the epsilon of each count that costs a private pattern something in a window."""
        pattern = declare_pattern(self.spec, self.spec.private.index(private))
        return self._spend_on_counts(pattern)

    def _spend_on_counts(self, private: PrivatePattern) -> list[Fraction]:
        asked = self.spec.count_patterns.items()
        return [
            self.counts[name]
            for name, pattern in asked
            if not private.elements.isdisjoint(elements(pattern))
        ]

    def spent(self, private: Private) -> Fraction:
        """Return the epsilon that mechanism and counts spend together, per window or occurrence."""
        return self._spend(declare_pattern(self.spec, self.spec.private.index(private)))

    def _spend(self, pattern: PrivatePattern) -> Fraction:
        windows = pattern.count_windows(self.spec.windows.panes)
        counted = windows * sum(self._spend_on_counts(pattern), Fraction(0))
        return pattern.epsilon * self.share_of(pattern.name) + counted

    def count_rows(self) -> list[dict[str, Any]]:
        """Return what to expect of each count where it is noisy."""
        rows = []
        for name, epsilon in self.counts.items():
            channel = make_count_channel(epsilon) if epsilon else None
            rows.append(
                {
                    "query": name,
                    "epsilon": float(epsilon),
                    "mean_error": 0.0 if channel is None else channel.mean_error,
                    "half_width": 0 if channel is None else channel.half_width,
                    "coverage": 1.0 if channel is None else channel.coverage,
                    **self._describe_memory(name),
                    **self._describe_source(name),
                }
            )
        return rows

    def _describe_source(self, name: str) -> dict[str, Any]:
        """Return which answers a count is estimated from, and what was compared."""
        found: dict[str, Any] = {}
        own, errors = self.answer_counts.get(name), self.count_errors.get(name)
        if own is not None:  # there is no draw
            found = dict.fromkeys(("mean_error", "half_width", "coverage"))
            found |= {"from_answers": own.query, "expected_error": own.error}
        if errors is not None:
            found |= {"channel_error": errors.channel, "answers_error": errors.answers}
        return found

    def _describe_memory(self, name: str) -> dict[str, Any]:
        """Return what to expect of the estimates of a count; nothing without memory."""
        memory = self.count_memories.get(name)
        if memory is None:
            return {}
        return {"expected_error": memory.error, "drawn_every": memory.usual_interval}

    @property
    def draws_panes(self) -> bool:
        """Whether any mechanism draws noise per pane; otherwise noise is drawn per window."""
        return any(mechanism.draws_panes for mechanism in self.mechanisms)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that can be written as JSON."""
        more: dict[str, Any] = {"columns": self.columns} if self.columns else {}
        if self.shares:
            more["shares"] = {name: format_epsilon(share) for name, share in self.shares.items()}
        if self.objective != "micro":
            more["objective"] = self.objective
        if self.warnings:
            more["warnings"] = [warning._asdict() for warning in self.warnings]
        if self.counts:
            more["counts"] = {name: format_epsilon(own) for name, own in self.counts.items()}
        if self.count_memories:
            more["count_memories"] = {
                name: memory.to_dict() for name, memory in self.count_memories.items()
            }
        if self.answer_counts:
            more["answer_counts"] = {name: o.to_dict() for name, o in self.answer_counts.items()}
        if self.count_errors:
            more["count_errors"] = {name: o._asdict() for name, o in self.count_errors.items()}
        if self.history_warnings:
            more["history_warnings"] = [warning._asdict() for warning in self.history_warnings]
        return more | {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "specification": self.specification,
            "mechanism": self.mechanism,
            "decode": self.decode,
            "share": format_epsilon(self.share),
            "windows": self.windows,
            "expected": None if self.expected is None else self.expected.to_dict(),
            "past": None if self.past is None else self.past.to_dict(),
            **({} if self.limited is None else {"limited": self.limited.to_dict()}),
            "schemes": [write_mechanism(mechanism) for mechanism in self.mechanisms],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, atomically, in a file that only its owner can read.

        A plan contains statistics of history. Do not show it to consumers.
        """
        folder, name = os.path.split(os.fspath(path))
        with translate_write_errors(path):
            descriptor, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=folder or ".")
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    json.dump(self.to_dict(), file)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], spec: Specification | None = None) -> Plan:
        """Read a plan for a specification and audit its channels again.

        Without `spec`, the specification inside the plan is used. That is enough for an audit:
        areas and event conditions are missing, but no epsilon depends on them.
        """
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise PlanError(_NO_PLAN)
        try:
            written = None if spec is not None else plain["specification"]
            if spec is None:
                spec, fingerprint = _outline(plain["specification"]), _fingerprint(written)
            else:
                fingerprint = spec.fingerprint
            if plain.get("fingerprint") != fingerprint:
                raise PlanError(_OTHER if written is None else _CHANGED)
            return _read(plain, spec, written)
        except _DAMAGED as error:
            raise PlanError(f"the plan is damaged ({type(error).__name__}); {_AGAIN}") from error

    @classmethod
    def load(cls, path: str | PathLike[str], spec: Specification | None = None) -> Plan:
        """Read a plan file for this specification; raise PlanError if it is not one."""
        with pause_collection():
            return cls.from_dict(read_plain(path), spec)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw what each query can expect; with a path, write it to this file too."""
        from tacit.planning.plan_picture import draw_plan

        return make_picture(lambda: draw_plan(self), path)

    def __repr__(self) -> str:
        history = f", {self.windows:,} windows of history" if self.windows else ", no history"
        quality = "" if self.expected is None else f", expected Q {self.expected.quality:.3f}"
        for row in self.count_rows():
            error = row.get("expected_error", row["mean_error"])
            quality += f", {row['query']} ± {error:.2g}"
        memory = " with memory" if self.has_memory else ""
        number = len(self.history_warnings) + len(self.warnings)
        if number:
            quality += f", {number} warning{'s' if number > 1 else ''}"
        return f"<Plan: {self.mechanism}{memory}, decoded by {self.decode}{history}{quality}>"

    def _repr_html_(self) -> str:
        if self.expected is None:
            return f"<p>{escape(repr(self))}</p>"
        figures = ("precision", "recall", "quality", "mre")
        rows = [
            (row["query"], *(f"{row[label]:.3f}" for label in figures))
            for row in self.expected.rows()
        ]
        warnings = [f"Warning: {one}" for one in (*self.history_warnings, *self.warnings)]
        notes = "".join(f"<p>{escape(str(one))}</p>" for one in (*self.values, *warnings))
        head = ("query", "precision", "recall", "Q", "MRE")
        return format_html_table(repr(self), head, rows) + notes


def read_plain(path: str | PathLike[str]) -> Mapping[str, Any]:
    """Read the plain data of a plan file; check only its format number."""
    try:
        plain = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"the plan {path} does not exist; make it with tacit plan") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not a plan; make it with tacit plan") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise PlanError(f"{path}: {_NO_PLAN}")
    return plain


_AGAIN: Final = "make a new one with tacit plan"
_NO_PLAN: Final = "this is not a plan, or one of another version; make it with tacit plan"
_OTHER: Final = (
    "this plan was made for another specification, or the specification has changed since;"
    f" {_AGAIN}"
)
_CHANGED: Final = (
    "the specification in this plan is not the one that the plan was made for: the file was "
    f"changed; {_AGAIN}"
)
_DAMAGED: Final = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)


def _read(plain: Mapping[str, Any], spec: Specification, written: Mapping[str, Any] | None) -> Plan:
    share = Fraction(plain["share"])
    expected, past = plain["expected"], plain.get("past")
    shares = {str(name): Fraction(own) for name, own in plain.get("shares", {}).items()}
    policies = [policy.scale(share, shares) for policy in Policies(spec).policies]
    queries = tuple(spec.query_patterns.values())
    written_counts = plain.get("counts", {})
    ordered = sorted(written_counts, key=[*spec.count_patterns, *written_counts].index)
    counts = {str(name): Fraction(written_counts[name]) for name in ordered}
    untouched = {name for name, left in split_epsilon(spec).left.items() if left == 0}
    if not 0 < share <= 1 or not all(
        0 < own <= 1 or (own == 0 and name in untouched) for name, own in shares.items()
    ):
        raise ValueError("share")
    if len(policies) != len(plain["schemes"]):
        raise ValueError("schemes")
    name = str(plain["mechanism"])
    plan = Plan(
        spec,
        name,
        str(plain["decode"]),
        tuple(
            read_mechanism(name, part, policy, queries, spec.windows.panes)
            for part, policy in zip(plain["schemes"], policies, strict=True)
        ),
        int(plain["windows"]),
        None if expected is None else Expected.from_dict(expected),
        share,
        None if past is None else Expected.from_dict(past),
        Expected.from_dict(plain["limited"]) if "limited" in plain else None,
        written,
        _read_recorded(plain.get("columns", {}), spec),
        shares,
        str(plain.get("objective", "micro")),
        tuple(
            QueryWarning(
                str(one["query"]),
                bool(one["answer"]),
                str(one["reason"]),
                str(one.get("where", "in every window")),
            )
            for one in plain.get("warnings", ())
        ),
        tuple(
            HistoryWarning(str(one["about"]), str(one["reason"]))
            for one in plain.get("history_warnings", ())
        ),
        counts,
        {
            str(name): CountMemory.from_dict(one)
            for name, one in plain.get("count_memories", {}).items()
        },
        {
            str(name): AnswerCount.from_dict(one)
            for name, one in plain.get("answer_counts", {}).items()
        },
        {
            str(name): CountErrors(*(_read_error(one[way]) for way in CountErrors._fields))
            for name, one in plain.get("count_errors", {}).items()
        },
    )
    plan.check_counts()
    return plan


def _read_error(value: Any) -> float | None:
    return None if value is None else float(value)


def write_mechanism(mechanism: Mechanism) -> dict[str, Any]:
    """Return the mechanism of one policy as plain data."""
    return {"kind": mechanism.kind, **mechanism.to_dict()}


def read_mechanism(
    name: str, plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int = 1
) -> Mechanism:
    """Read the data of one policy, written by the mechanism of this name.

    What must be protected comes from the specification, not from the file: channels are audited
    for the neighbours and epsilons that the specification requires.
    """
    try:
        known = {chosen.kind: chosen for chosen in (Unprotected, load(name))}
        if plain["kind"] not in known:
            raise PlanError(f"the plan was not made for the mechanism {name}; {_AGAIN}")
        return known[plain["kind"]].from_dict(plain, policy, queries, panes)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PlanError(f"the plan is damaged ({type(error).__name__}); {_AGAIN}") from error
    except AuditError:
        raise
    except PrivacyError as error:
        # Plans of earlier versions divide queries over several components differently.
        raise PlanError(
            "the plan's channels are not those that the specification needs: an earlier version"
            f" made it, or the file was changed; {_AGAIN}"
        ) from error


def _read_recorded(plain: Mapping[str, Any], spec: Specification) -> RecordedTypes:
    """Read the recorded column types; raise ValueError for unknown streams or types."""
    found = {stream: dict(types) for stream, types in plain.items()}
    if not found.keys() <= spec.streams.keys() or any(
        kind not in COLUMN_TYPES for types in found.values() for kind in types.values()
    ):
        raise ValueError("columns")
    return found


def _fingerprint(written: Mapping[str, Any] | None) -> str:
    """Return the fingerprint of a canonical specification."""
    text = json.dumps(written, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _outline(written: Mapping[str, Any]) -> Specification:
    """Build a specification with only what private patterns and queries need."""
    return Specification.model_validate(
        {
            "mechanism": written["mechanism"],
            "decode": written["decode"],
            "streams": written["streams"],
            "windows": _spans(written["windows"]),
            "events": {name: {"stream": event["stream"]} for name, event in written["events"]},
            "patterns": written["patterns"],
            "private": [
                {**private, "epsilon": Decimal(private["epsilon"]), "limit": None}
                for private in written["private"]
            ],
            "queries": [_outline_query(query) for query in written["queries"]],
        }
    )


def _outline_query(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query of a canonical specification as it is written."""
    query = dict(written)
    if "share" in query:
        query["share"] = Decimal(query["share"])
    if query.get("one_of") is not None:
        query["one_of"] = dict(query["one_of"])
    return query


def _spans(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size and the slide of windows."""
    return {name: written[name] for name in ("size", "slide") if written.get(name) is not None}


def describe_unit(spec: Specification) -> str:
    """Return the unit of every epsilon in a specification."""
    return f"for one subject, one private pattern and one {spec.windows.unit}"


def describe_overlap(plan: Plan) -> list[str]:
    """Explain what is drawn and spent per pane or window; nothing if windows do not slide."""
    panes = plan.spec.windows.panes
    if panes == 1:
        return []
    if MECHANISMS[plan.mechanism].randomises == "elements":
        return [
            f"A window has {panes} panes. Noise is drawn once for each pane, and an occurrence"
            " changes each element in one."
        ]
    return [
        f"An occurrence of {pattern.name} may change {pattern.count_windows(panes)} windows."
        f" Each of them spends epsilon {format_epsilon(plan.spent_per_window(private))}."
        for private, pattern in zip(plan.spec.private, declared_patterns(plan.spec), strict=True)
    ]


def element_shares(mechanisms: Sequence[Mechanism]) -> list[dict[str, Fraction]]:
    """Return for each policy the epsilon of each element that it flips."""
    return [mechanism.element_epsilons for mechanism in mechanisms]
