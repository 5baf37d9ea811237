"""The exact audit of a plan: the true epsilon of its channels, against the granted one.

Everything is computed from the tables and the specification. What a channel states about its own
neighbours is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import prod
from os import PathLike
from typing import Any, Final

from tacit.html_tables import format_html_table
from tacit.insight.tabular import align, to_plain
from tacit.patterns.tree import Pattern, elements
from tacit.planning.plan import Plan, read_plain
from tacit.privacy.channel_audit import Ratio, largest_of, largest_ratio, multiply_ratios
from tacit.privacy.count_channels import CountChannel, make_count_channel
from tacit.privacy.exponentials import format_epsilon, joint_epsilon, product_within
from tacit.privacy.mechanisms.mechanism import Mechanism, NamedChannel
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.policies import Policies, Policy, PrivatePattern
from tacit.quantities import count
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load

NEW_CONTEXTS: Final = (
    "Channels of contexts that are not in the plan are made during a run. Each of them is"
    " audited before it is used."
)
_SHOWN: Final = 12
_WIDE: Final = 48


@dataclass(frozen=True, slots=True)
class PatternAudit:
    """The epsilon of all channels together for a private pattern.

    For one window; with sliding windows, for one occurrence, over all windows that contain it.
    """

    name: str
    asked: Fraction
    """The epsilon in the specification."""
    granted: Fraction
    """The part of it that the plan may spend."""
    whole: Fraction | None
    """The true epsilon if all of its elements may change: an upper bound; None if unbounded."""
    element: Fraction | None
    """The true epsilon if one of its elements may change."""
    passed: bool
    draws: int = 1
    """The number of windows that an occurrence may change, each with its own draw."""


@dataclass(frozen=True, slots=True)
class ChannelAudit:
    """The epsilon of one channel in one draw."""

    where: str
    """The element that it flips, or the private patterns that it concerns."""
    context: str | None
    """The public patterns that are detected in its context; None for flips."""
    rows: int
    columns: int
    asked: Fraction
    true: Fraction | None
    passed: bool


@dataclass(frozen=True, slots=True)
class CountAudit:
    """The epsilon of the channel of one count, in one draw."""

    query: str
    columns: int
    """The number of its possible outputs."""
    asked: Fraction
    true: Fraction
    passed: bool


@dataclass(frozen=True, slots=True)
class PolicyAudit:
    """What a plan does for the subjects of one policy."""

    kind: str
    """Its kind in a plan file: `elements`, `optimal`; `exact` if no noise is needed."""
    fits: bool
    """Whether it protects what the specification declares."""
    patterns: tuple[PatternAudit, ...]
    channels: tuple[ChannelAudit, ...]

    @property
    def passed(self) -> bool:
        """Whether no epsilon exceeds the granted one."""
        sound = all(channel.passed for channel in self.channels)
        return self.fits and sound and all(pattern.passed for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a plan. Text for a terminal, HTML for notebooks, `to_dict` for programs."""

    fingerprint: str
    mechanism: str
    decode: str
    share: Fraction
    """The share of every epsilon that the plan spends; patterns may have shares of their own."""
    policies: tuple[PolicyAudit, ...]
    panes: int = 1
    """How many panes a window has; more than 1 with sliding windows."""
    counts: tuple[CountAudit, ...] = ()
    """The channels of counts that depend on private events."""

    @property
    def passed(self) -> bool:
        """Whether no epsilon exceeds the granted one."""
        counted = all(channel.passed for channel in self.counts)
        return counted and all(policy.passed for policy in self.policies)

    @property
    def unit(self) -> str:
        """What an epsilon of a private pattern is for."""
        return _unit("one private pattern", "window" if self.panes == 1 else "occurrence")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; exact numbers are text, so that none is rounded."""
        result: dict[str, Any] = to_plain(asdict(self))
        result["policies"] = [
            {**plain_policy, "passed": policy.passed}
            for plain_policy, policy in zip(result["policies"], self.policies, strict=True)
        ]
        return {"passed": self.passed, "unit": self.unit, **result}

    def __str__(self) -> str:
        lines = [_verdict(self), f"Made for the specification {self.fingerprint}."]
        for number, policy in enumerate(self.policies, 1):
            lines += ["", *_policy_lines(self, policy, number if len(self.policies) > 1 else None)]
        return "\n".join([*lines, *_count_lines(self)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [_row(pattern) for policy in self.policies for pattern in policy.patterns]
        return format_html_table(f"{_verdict(self)} Epsilon for {self.unit}.", _HEAD, rows)


def audit(
    plan: Plan | str | PathLike[str], spec: Specification | str | PathLike[str] | None = None
) -> AuditReport:
    """Compute the exact epsilon that a plan spends on each private pattern.

    A plan given as a path must be for `spec`, or for the specification that it contains.
    """
    if not isinstance(plan, Plan):
        declared = spec if spec is None or isinstance(spec, Specification) else load(spec)
        plan = Plan.from_dict(read_plain(plan), declared)
    elif spec is not None:
        plan.check(spec if isinstance(spec, Specification) else load(spec))
    queries = tuple(plan.spec.query_patterns.values())
    return AuditReport(
        fingerprint=plan.fingerprint,
        mechanism=plan.mechanism,
        decode=plan.decode,
        share=plan.share,
        policies=tuple(
            _policy(policy, mechanism, queries, plan)
            for policy, mechanism in zip(Policies(plan.spec).policies, plan.mechanisms, strict=True)
        ),
        panes=plan.spec.windows.panes,
        counts=tuple(
            CountAudit(
                name,
                channel.columns,
                epsilon,
                min(epsilon, channel.true_epsilon),
                channel.ratio <= largest_ratio(epsilon),
            )
            for name, epsilon, channel in _count_channels(plan)
        ),
    )


def _count_channels(plan: Plan) -> Iterator[tuple[str, Fraction, CountChannel]]:
    """Yield the channels of counts that depend on private events."""
    for name, epsilon in plan.counts.items():
        if epsilon:
            yield name, epsilon, make_count_channel(epsilon)


def _count_ratio(plan: Plan, changing: frozenset[str], windows: int) -> Fraction:
    """Return the ratio of all counts that these event types can change, in so many windows."""
    asked = plan.spec.count_patterns
    return prod(
        (
            channel.ratio**windows
            for name, _, channel in _count_channels(plan)
            if changing & {*elements(asked[name])}
        ),
        start=Fraction(1),
    )


def _policy(
    policy: Policy, mechanism: Mechanism, queries: Sequence[Pattern], plan: Plan
) -> PolicyAudit:
    """Audit a mechanism by the widest ratios of each pattern and of each element.

    With sliding windows, a pane is drawn once. Ratios of windows that share panes multiply.
    """
    panes = plan.spec.windows.panes
    unprotected = isinstance(mechanism, Unprotected)
    scaled = policy.scale(plan.share, plan.shares)
    fits = mechanism.fits(scaled, queries, panes)
    windows = 1 if mechanism.draws_panes or unprotected else panes
    patterns = []
    for pattern in policy.patterns:
        draws = pattern.count_windows(windows)
        touched = pattern.count_windows(panes)
        # A pattern that only counts depend on is unknown to the mechanism.
        own = pattern.elements & scaled.private

        def widest(changing: frozenset[str], times: int) -> Ratio:
            if not fits:
                return None
            return _times(mechanism.widest_ratio(changing) if changing else Fraction(1), times)

        whole = multiply_ratios([widest(own, draws), _count_ratio(plan, pattern.elements, touched)])
        alone = [
            multiply_ratios([widest(own & {e}, windows), _count_ratio(plan, frozenset({e}), panes)])
            for e in pattern.elements
        ]
        counted = touched * sum(
            channel.epsilon
            for name, _, channel in _count_channels(plan)
            if pattern.elements & {*elements(plan.spec.count_patterns[name])}
        )
        granted = pattern.epsilon * plan.share_of(pattern.name) + counted
        patterns.append(
            _pattern(
                replace(pattern, epsilon=granted), pattern.epsilon, whole, largest_of(alone), draws
            )
        )
    kind = "exact" if unprotected else mechanism.kind
    return PolicyAudit(kind, fits, tuple(patterns), tuple(map(_channel, mechanism.channels())))


def _times(ratio: Ratio, draws: int) -> Ratio:
    return None if ratio is None else ratio**draws


def _pattern(
    pattern: PrivatePattern, asked: Fraction, whole: Ratio, alone: Ratio, draws: int
) -> PatternAudit:
    within = whole is not None and product_within([whole], pattern.epsilon)
    passed = within and pattern.epsilon <= asked
    # A table is rounded towards more privacy, a logarithm upwards: the least bound counts.
    most = pattern.epsilon if within else None
    return PatternAudit(
        pattern.name,
        asked,
        pattern.epsilon,
        _epsilon(whole, most),
        _epsilon(alone, most),
        passed,
        draws,
    )


def _epsilon(ratio: Ratio, most: Fraction | None) -> Fraction | None:
    """Compute the epsilon of a ratio, rounded up."""
    if ratio is None:
        return None
    true = Fraction(joint_epsilon([ratio]))
    return true if most is None else min(true, most)


def _channel(named: NamedChannel) -> ChannelAudit:
    where, context, channel = named
    found = channel.audit()
    rows, columns = channel.table.shape
    asked = max((group.epsilon for group in channel.neighbours), default=Fraction(0))
    return ChannelAudit(where, context, rows, columns, asked, found.epsilon, found.passed)


_HEAD: Final = ("pattern", "asked", "granted", "true, at most", "per element", "")


def _verdict(report: AuditReport) -> str:
    word = "passed" if report.passed else "FAILED"
    return f"Audit {word}: {report.mechanism}, decoded by {report.decode}."


def _row(pattern: PatternAudit) -> tuple[str, ...]:
    return (
        pattern.name,
        format_epsilon(pattern.asked),
        format_epsilon(pattern.granted),
        _number(pattern.whole),
        _number(pattern.element),
        "passed" if pattern.passed else "FAILED",
    )


def _number(epsilon: Fraction | None) -> str:
    """Format an upper bound in few digits, rounded up."""
    if epsilon is None:
        return "no limit"
    short = Fraction(f"{float(epsilon):.12g}")
    return f"{float(epsilon):.12g}" if short >= epsilon else f"{_above(float(epsilon)):.12g}"


def _above(number: float) -> float:
    return number * (1 + 1e-11)


def _unit(what: str, span: str) -> str:
    return f"one subject, {what}, one {span}"


def _policy_lines(report: AuditReport, policy: PolicyAudit, number: int | None) -> list[str]:
    lines = [] if number is None else [f"Policy {number}"]
    if not policy.fits:
        lines.append("It does NOT protect what the specification says.")
    if policy.kind == "exact" and not report.counts:
        return [*lines, "No answer depends on anything private: all of them are exact."]
    lines.append(f"Private patterns: epsilon for {report.unit}")
    lines += align([_HEAD, *map(_row, policy.patterns)])
    lines += [
        f"An occurrence of {pattern.name} may change {pattern.draws} windows, each with its own"
        f" draw: {format_epsilon(pattern.granted / pattern.draws)} for each."
        for pattern in policy.patterns
        if pattern.draws > 1
    ]
    if policy.kind == "exact":
        return [*lines, "No answer about a single subject depends on anything private."]
    return [*lines, "", *_channel_lines(policy, report.panes)]


def _count_lines(report: AuditReport) -> list[str]:
    if not report.counts:
        return []
    rows = [
        (one.query, f"{one.columns:,}", _number(one.true), "passed" if one.passed else "FAILED")
        for one in report.counts
    ]
    unit = _unit("one count", "window")
    return [
        "",
        f"{count(len(rows), 'count')}: epsilon for {unit}; it is part of the patterns' above",
        *align([("count", "outputs", "true, at most", ""), *rows]),
    ]


def _channel_lines(policy: PolicyAudit, panes: int) -> list[str]:
    flips = policy.kind == "elements"
    unit = _unit(
        "one element" if flips else "all answers about its private patterns",
        "pane" if flips and panes > 1 else "window",
    )
    lines = [f"{count(len(policy.channels), 'channel')}: epsilon for {unit}"]
    # The largest epsilon comes first; an unbounded one before all others.
    ordered = sorted(policy.channels, key=lambda c: (c.passed, -(c.true or 0), c.where))
    rows = [
        (
            channel.where if flips else _short(f"{channel.where}: {channel.context or '-'}"),
            f"{channel.rows} x {channel.columns}",
            _number(channel.true),
            "passed" if channel.passed else "FAILED",
        )
        for channel in ordered[:_SHOWN]
    ]
    head = ("element" if flips else "patterns: context", "size", "true, at most", "")
    lines += align([head, *rows]) if rows else []
    if len(ordered) > _SHOWN:
        lines.append(f"  ... and {len(ordered) - _SHOWN:,} more with no larger epsilon")
    return lines if flips else [*lines, NEW_CONTEXTS]


def _short(text: str) -> str:
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."
