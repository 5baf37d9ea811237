"""The exact audit of a plan: the true epsilon of its channels, against the granted one.

Everything is computed from the tables and the specification. What a channel states about its own
neighbours is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from html import escape
from os import PathLike
from typing import Any, Final

from tacit.insight.tabular import align, plain
from tacit.patterns.tree import Pattern
from tacit.planning.plan import Plan, read_plain
from tacit.privacy.channel_audit import Ratio, largest_of
from tacit.privacy.exponentials import format_epsilon, joint_epsilon, product_within
from tacit.privacy.mechanisms.mechanism import Mechanism, NamedChannel
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.policies import Policy, PrivatePattern
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
class Report:
    """The audit of a plan. Text for a terminal, HTML for notebooks, `to_dict` for programs."""

    fingerprint: str
    mechanism: str
    decode: str
    share: Fraction
    """The share of every epsilon that the plan spends; patterns may have shares of their own."""
    policies: tuple[PolicyAudit, ...]
    panes: int = 1
    """How many panes a window has; more than 1 with sliding windows."""

    @property
    def passed(self) -> bool:
        """Whether no epsilon exceeds the granted one."""
        return all(policy.passed for policy in self.policies)

    @property
    def unit(self) -> str:
        """What an epsilon of a private pattern is for."""
        return _unit("one private pattern", "window" if self.panes == 1 else "occurrence")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; exact numbers are text, so that none is rounded."""
        result: dict[str, Any] = plain(asdict(self))
        result["policies"] = [
            {**plain_policy, "passed": policy.passed}
            for plain_policy, policy in zip(result["policies"], self.policies, strict=True)
        ]
        return {"passed": self.passed, "unit": self.unit, **result}

    def __str__(self) -> str:
        lines = [_verdict(self), f"Made for the specification {self.fingerprint}."]
        for number, policy in enumerate(self.policies, 1):
            lines += ["", *_policy_lines(self, policy, number if len(self.policies) > 1 else None)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEAD)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _row(pattern)) + "</tr>"
            for policy in self.policies
            for pattern in policy.patterns
        )
        caption = f"<caption>{escape(_verdict(self))} Epsilon for {self.unit}.</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def audit(
    plan: Plan | str | PathLike[str], spec: Specification | str | PathLike[str] | None = None
) -> Report:
    """Compute the exact epsilon that a plan spends on each private pattern.

    A plan given as a path must be for `spec`, or for the specification that it contains.
    """
    if not isinstance(plan, Plan):
        declared = spec if spec is None or isinstance(spec, Specification) else load(spec)
        plan = Plan.from_dict(read_plain(plan), declared)
    elif spec is not None:
        plan.check(spec if isinstance(spec, Specification) else load(spec))
    queries = tuple(plan.spec.query_patterns.values())
    return Report(
        fingerprint=plan.fingerprint,
        mechanism=plan.mechanism,
        decode=plan.decode,
        share=plan.share,
        policies=tuple(
            _policy(policy, mechanism, queries, plan)
            for policy, mechanism in zip(plan.policies, plan.mechanisms, strict=True)
        ),
        panes=plan.spec.windows.panes,
    )


def _policy(
    policy: Policy, mechanism: Mechanism, queries: Sequence[Pattern], plan: Plan
) -> PolicyAudit:
    """Audit a mechanism by the widest ratios of each pattern and of each element.

    With sliding windows, a pane is drawn once. Ratios of windows that share panes multiply.
    """
    panes = plan.spec.windows.panes
    unprotected = isinstance(mechanism, Unprotected)
    fits = mechanism.fits(policy, queries, panes)
    windows = 1 if mechanism.draws_panes or unprotected else panes
    patterns = []
    for pattern in policy.patterns:
        draws = pattern.count_windows(windows)
        whole = mechanism.widest_ratio(pattern.elements) if fits else None
        alone = [mechanism.widest_ratio(frozenset({e})) if fits else None for e in pattern.elements]
        ratios = _times(whole, draws), _times(largest_of(alone), windows)
        asked = pattern.epsilon / plan.share_of(pattern.name)
        patterns.append(_pattern(pattern, asked, *ratios, draws))
    kind = "exact" if unprotected else mechanism.kind
    return PolicyAudit(kind, fits, tuple(patterns), tuple(map(_channel, mechanism.channels())))


def _times(ratio: Ratio, draws: int) -> Ratio:
    return None if ratio is None else ratio**draws


def _pattern(
    pattern: PrivatePattern, asked: Fraction, whole: Ratio, alone: Ratio, draws: int
) -> PatternAudit:
    passed = whole is not None and product_within([whole], pattern.epsilon)
    # A table is rounded towards more privacy, a logarithm upwards: the least bound counts.
    most = pattern.epsilon if passed else None
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


def _verdict(report: Report) -> str:
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


def _policy_lines(report: Report, policy: PolicyAudit, number: int | None) -> list[str]:
    lines = [] if number is None else [f"Policy {number}"]
    if not policy.fits:
        lines.append("It does NOT protect what the specification says.")
    if policy.kind == "exact":
        return [*lines, "No answer depends on anything private: all of them are exact."]
    lines.append(f"Private patterns: epsilon for {report.unit}")
    lines += align([_HEAD, *map(_row, policy.patterns)])
    lines += [
        f"An occurrence of {pattern.name} may change {pattern.draws} windows, each with its own"
        f" draw: {format_epsilon(pattern.granted / pattern.draws)} for each."
        for pattern in policy.patterns
        if pattern.draws > 1
    ]
    return [*lines, "", *_channel_lines(policy, report.panes)]


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
