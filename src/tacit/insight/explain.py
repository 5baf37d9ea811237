"""Explain a specification in plain words: epsilon, affected queries, guarantee.

Odds are rounded towards the weaker claim: the text never understates what could happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from html import escape
from math import ceil
from os import PathLike
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tacit.durations import MICROSECONDS, format_duration
from tacit.insight.shared_attributes import MOST_LINES, SharedAttributes, find_shared_attributes
from tacit.insight.tabular import to_plain
from tacit.options import option
from tacit.patterns.residuals import Residual, find_residual, is_presence, lift_booleans
from tacit.patterns.ternary import drop_conditions
from tacit.patterns.tree import Not, Pattern, Repeat, Seq, Within, elements, walk
from tacit.privacy.components import find_exposure
from tacit.privacy.count_channels import make_count_channel
from tacit.privacy.elements import uniform_shares
from tacit.privacy.exponentials import Exact, exp_below, format_epsilon, log_above, parse_epsilon
from tacit.privacy.policies import Policies, Policy, declared_patterns
from tacit.quantities import count
from tacit.spec.boolean_queries import BooleanQuery
from tacit.spec.epsilon_split import find_open_counts, find_sources, split_epsilon
from tacit.spec.mechanisms import AUTO, MECHANISMS, summarise
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load

if TYPE_CHECKING:
    from tacit.planning.plan import Plan  # importing it loads the compiler

UNIT: Final = "one subject, one private pattern, one window"
UNIT_SLIDING: Final = "one subject, one private pattern, one occurrence"
GUARANTEE: Final = "docs/guarantee.md"
_SET_BACK: Final = 3_600_000_000
"""By how many microseconds clocks are set back, at most."""
PROMISED: Final = (
    "Neighbours. Two inputs are neighbours with respect to private pattern P if they agree on"
    " everything except the occurrences (presence, number, times, attributes) of P's element"
    " event types inside one window of one subject.",
    "Guarantee. For every private pattern P with budget epsilon, for all neighbours with respect"
    " to P and every set of outcomes R: Pr[all answers to all consumers in R] <= exp(epsilon) *"
    " Pr'[the same]. The unit is one subject, one private pattern, one window.",
)
PROMISED_SLIDING: Final = (
    "Neighbours. Two inputs are neighbours with respect to private pattern P if they agree on"
    " everything except one occurrence of P, which one of them has: one event of each of P's"
    " element event types, all of one subject and inside one window.",
    "Guarantee. For every private pattern P with budget epsilon, for all neighbours with respect"
    " to P and every set of outcomes R: Pr[all answers to all consumers in R] <= exp(epsilon) *"
    " Pr'[the same]. The unit is one subject, one private pattern, one occurrence.",
)
PUBLIC_EVENTS: Final = (
    "Public events are used unchanged. If one is correlated with a private pattern, it reveals it,"
    " whatever epsilon is."
)
NOT_PROMISED: Final = {
    "events": PUBLIC_EVENTS + " Odds are for someone who knows all public events.",
    "sums": "Windows add up, and so do private patterns and subjects: n windows may reveal n"
    " times as much. A ledger records the sum for each subject and private pattern; only a limit"
    " stops it.",
    "arrival": "When tuples arrive, and so when answers come and whose tuples are late, is not "
    "hidden; a private event's time can change that too.",
    "policies": "Which subject protects which pattern with which epsilon counts as known.",
    "registry": "Who is registered is public.",
    "history": "What a plan itself reveals about the history it was made from is not bounded.",
    "operators": "What operators see (true answers, dead letters, logs) is not protected.",
}
_SPENT: Final = {
    "paced": "Paced: where an answer gains most from it, so that it lasts; if the plan has no"
    " memory, on every open window until it is reached.",
    "every": "On every open window until it is reached.",
}
_SURE: Final = 99
_CERTAIN: Final = 60
"""From this epsilon on any guess may become nearly certain: exp(60) exceeds 10**26."""
_WIDTH: Final = 100
_NAMES: Final = 8
_TEXT: Final = 160

Openness: TypeAlias = Literal["never", "always", "where", "unless", "depends"]
Subject: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Odds:
    """What an epsilon means as odds; all figures are upper bounds."""

    even: Decimal
    """What a 50:50 guess about one window becomes at most, in 100, if all else is known."""
    rare: Decimal
    """What a probability of 1 in 100 becomes at most, in 100."""
    windows_to_99: int
    """The number of windows after which a 50:50 guess about all of them could become 99:1."""
    windows_in_a_day: int
    epsilon_in_a_day: Fraction

    @classmethod
    def of(cls, epsilon: Fraction, window: int, cost: Fraction | None = None) -> Odds:
        """Compute the odds of an epsilon per window of `window` microseconds.

        With sliding windows, `window` is their slide, epsilon is that of an occurrence, and `cost`
        is that of each window.
        """
        daily = -(-MICROSECONDS["d"] // window)
        return cls(
            even=bound_percentage(Fraction(1, 2), epsilon),
            rare=bound_percentage(Fraction(1, 100), epsilon, places=1),
            windows_to_99=count_windows_until_sure(epsilon),
            windows_in_a_day=daily,
            epsilon_in_a_day=daily * (epsilon if cost is None else cost),
        )


@dataclass(frozen=True, slots=True)
class HorizonOdds:
    """What a limit means as odds for all windows of a horizon together."""

    length: int
    """How long a horizon is, in microseconds."""
    horizons: int
    """The number of horizons whose windows see its events; more than 1 with sliding windows."""
    epsilon: Fraction
    """The most that may be revealed about what happens in a horizon."""
    even: Decimal
    """What a 50:50 guess about it becomes at most, in 100, if all else is known."""


@dataclass(frozen=True, slots=True)
class PrivateMeaning:
    """What a declared private pattern hides, for whom, and how well."""

    name: str
    pattern: str
    elements: tuple[str, ...]
    subjects: tuple[Subject, ...] | None
    """None is all subjects."""
    epsilon: Fraction
    """For one subject, one private pattern, one window; where windows slide, one occurrence."""
    limit: str | None
    spend: str | None
    """How the limit is spent: `paced` or `every`; None without one."""
    allowed: tuple[int, int] | None
    """How many windows the limit allows in its horizon, and how many there are."""
    horizon: HorizonOdds | None
    """What the limit means for a whole horizon; None without one."""
    per_element: Fraction | None
    """The largest share of any of its elements under `uniform`; None for other mechanisms."""
    odds: Odds
    windows: int = 1
    """How many windows one occurrence may change, where windows slide."""


@dataclass(frozen=True, slots=True)
class QueryMeaning:
    """How private patterns affect a query."""

    name: str
    consumer: str
    pattern: str
    touched_by: dict[str, tuple[str, ...]]
    """The private patterns that may change its answer, and the event types it looks at."""
    open: Openness
    """In which windows private events may change the answer."""
    signals: tuple[str, ...]
    """The patterns over public events that decide where it is open."""
    looks_at: tuple[str, ...]
    """What it needs of private events beyond presence: order, number, attributes."""
    splits: tuple[tuple[str, ...], ...]
    """Private patterns whose parts of the query are answered from separate draws."""
    joins: tuple[tuple[str, ...], ...]
    """Private patterns that must be protected together because of this query."""


@dataclass(frozen=True, slots=True)
class CountMeaning:
    """What a count depends on, and its epsilon."""

    name: str
    consumer: str
    asks: str
    touched_by: tuple[str, ...]
    """The private patterns that share an element with it."""
    epsilon: Fraction
    """For one window; 0 if it is exact, or estimated from answers."""
    source: str | None = None
    """The query with the same pattern, whose answers tell it too."""
    from_answers: bool = False
    """Whether it is estimated from these answers."""
    decided: bool = True
    """Whether that and its epsilon are certain; otherwise a plan decides."""


@dataclass(frozen=True, slots=True)
class PolicyMeaning:
    """What applies to a group of subjects with the same private patterns."""

    subjects: tuple[Subject, ...] | None
    """None for all subjects that no private pattern names."""
    private: tuple[str, ...]
    shared: dict[str, tuple[str, ...]]
    """The event types that are elements of several private patterns, and these."""
    components: tuple[tuple[str, ...], ...]
    """Private patterns that `optimal` protects together."""
    untouched: tuple[str, ...]
    """Private patterns that no answer depends on."""
    queries: tuple[QueryMeaning, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a specification protects, how well, and what it does not.

    Text for a terminal, HTML for notebooks, and `to_dict` for programs.
    """

    mechanism: str
    decode: str
    window: int
    """How long a window is, in microseconds."""
    private: tuple[PrivateMeaning, ...]
    policies: tuple[PolicyMeaning, ...]
    panes: int = 1
    """How many panes a window has; more than 1 with sliding windows."""
    shared_attributes: tuple[SharedAttributes, ...] = ()
    """Public event types and conditions that read a column that a private type reads."""
    counts: tuple[CountMeaning, ...] = ()
    """The queries that count subjects."""

    @property
    def unit(self) -> str:
        """What every epsilon is for."""
        return name_unit(self.panes)

    @property
    def promised(self) -> tuple[str, ...]:
        """The definition of neighbours, and the guarantee."""
        return PROMISED if self.panes == 1 else PROMISED_SLIDING

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; exact numbers are text, so that none is rounded.

        - `mechanism`, `decode`, `window` (as `10 min`), `panes` (of a window; 1 unless windows
          slide), `unit` (of every epsilon)
        - `private`: for each declaration `name`, `pattern`, `elements`, `subjects` (null for
          all), `epsilon`, `limit`, `spend` (`paced` or `every`), `allowed` (windows that the limit
          allows, and how many there are in its horizon), `horizon` (its `length` in
          microseconds, how many `horizons` see its events, the `epsilon` of all of it, and what
          50 in 100 become at most as `even`);
          all four are null without a limit; `per_element` (null unless uniform),
          and `odds`: `even` and `rare` (what 50 and 1 in 100 become at most),
          `windows_to_99`, `windows_in_a_day`, `epsilon_in_a_day`; and `windows` (that one
          occurrence may change)
        - `policies`: for each group of subjects `subjects` (null for those no one names),
          `private`, `shared` (event type: private patterns), `components`, `untouched`, and
          `queries`: `name`, `consumer`, `pattern`, `touched_by` (private pattern: event types),
          `open` (never, always, where: only where its one signal is detected, unless: only
          where it is not, depends), `signals`, `looks_at` (order, number, attributes),
          `splits`, `joins`
        - `shared_attributes`: each public reader of what a private event type reads: `private`
          and `public` (event types), `attributes` (columns), `relation` (implies, implied by,
          same, excludes, overlaps; null where it was not derived), `query` and `condition`
          (null for the event type's own condition)
        - `counts`: for each count `name`, `consumer`, `asks`, `touched_by`, its `epsilon` in one
          window, `source` (the query with the same pattern, or null), `from_answers` (whether
          it is estimated from its answers) and `decided` (whether a plan may still change that)
        - `promised`, `not_promised` (what: why), `guarantee` (the page with the proofs)
        """
        explained: dict[str, Any] = to_plain(asdict(self))
        explained["window"] = format_duration(self.window)
        explained["unit"] = self.unit
        explained["promised"], explained["not_promised"] = list(self.promised), dict(NOT_PROMISED)
        explained["guarantee"] = GUARANTEE
        return explained

    def __str__(self) -> str:
        lines: list[str] = []
        for title, entries in _sections(self):
            lines += [*([""] if lines else []), *_wrap_text(title, "")]
            for head, rows in entries:
                lines += _wrap_text(head, "  ")
                for label, text in rows:
                    lines += _wrap_text(text, f"    {label:<12}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        cell = "style='text-align:left'"
        parts: list[str] = []
        for title, entries in _sections(self):
            parts.append(f"<h4>{escape(title)}</h4>")
            for head, rows in entries:
                parts += [f"<p>{escape(head)}</p>"] if head else []
                body = "".join(
                    f"<tr><th {cell}>{escape(label)}</th><td {cell}>{escape(text)}</td></tr>"
                    for label, text in rows
                )
                parts += [f"<table>{body}</table>"] if body else []
        return f"<div>{''.join(parts)}</div>"


def bound_percentage(before: Fraction, epsilon: Exact, places: int = 0) -> Decimal:
    """Compute what a probability can become at most, in 100; rounded up.

    Digits are added while the bound would round to certainty, up to six.

    >>> bound_percentage(Fraction(1, 2), 1), bound_percentage(Fraction(1, 2), 5)
    (Decimal('74'), Decimal('99.4'))
    >>> bound_percentage(Fraction(1, 100), 1, 1)
    Decimal('2.7')
    """
    amount = parse_epsilon(epsilon)
    if amount >= _CERTAIN:
        return Decimal(100)
    # `exp_below` is less than exp by a share below 2**-192.
    growth = before * exp_below(amount) * Fraction(2**192, 2**192 - 1)
    after = 100 * growth / (growth + 1 - before)
    for digits in range(places, 7):
        rounded = ceil(after * 10**digits)
        if rounded < 100 * 10**digits:
            return Decimal(rounded).scaleb(-digits)
    return Decimal(100)


def count_windows_until_sure(epsilon: Exact) -> int:
    """Compute the least number of windows after which a 50:50 guess could become 99:1.

    >>> count_windows_until_sure(1), count_windows_until_sure(5)
    (5, 1)
    """
    # The logarithm is rounded up in its 19th decimal: so much less is certainly below it.
    least = Fraction(log_above(Fraction(_SURE))) - Fraction(1, 10**18)
    return ceil(least / parse_epsilon(epsilon))


def explain(spec: Specification | str | PathLike[str], plan: Plan | None = None) -> Explanation:
    """Explain what a specification, or the file at this path, protects.

    With a `plan`, counts are explained as it splits epsilon.

    >>> from tacit.spec.yaml_reader import loads
    >>> spec = loads('''
    ... streams: {gps: {subject: taxi, time: at}}
    ... windows: {size: 1 h}
    ... events: {clinic: {stream: gps}, slow: {stream: gps}}
    ... private: [{pattern: clinic, epsilon: 1}]
    ... queries: [{name: jam, consumer: city, pattern: "AND(slow, clinic)"}]
    ... ''')
    >>> explain(spec).policies[0].queries[0].touched_by
    {'clinic': ('clinic',)}
    """
    if not isinstance(spec, Specification):
        spec = load(spec)
    groups = _groups(spec)
    policies = dict(zip(groups, Policies(spec).policies, strict=True))
    flipped = spec.mechanism == "uniform"
    shares = {own: uniform_shares(policy) for own, policy in policies.items() if flipped}
    return Explanation(
        mechanism=spec.mechanism,
        decode=spec.decode,
        window=spec.windows.size,
        private=tuple(_private(spec, number, shares) for number in range(len(spec.private))),
        policies=tuple(
            _policy(spec, policies[own], subjects)
            for own, subjects in groups.items()
            if subjects != ()
        ),
        panes=spec.windows.panes,
        shared_attributes=tuple(find_shared_attributes(spec)),
        counts=tuple(_list_counts(spec, plan)),
    )


def _list_counts(spec: Specification, plan: Plan | None) -> Iterator[CountMeaning]:
    split, sources, rivals = split_epsilon(spec), find_sources(spec), find_open_counts(spec)
    epsilons = split.counts if plan is None else plan.counts
    told = split.from_answers if plan is None else plan.answer_counts.keys()
    for query in spec.count_queries:
        own = {*elements(spec.count_patterns[query.name])}
        touched = [p.name for p in declared_patterns(spec) if p.elements & own]
        yield CountMeaning(
            query.name,
            query.consumer,
            query.asks,
            tuple(dict.fromkeys(touched)),
            epsilons[query.name],
            sources.get(query.name),
            query.name in told,
            plan is not None or query.name not in rivals,
        )


def _groups(spec: Specification) -> dict[frozenset[int], tuple[Subject, ...] | None]:
    """Group subjects by their private patterns, in the order of `Policies`.

    None: all subjects that no private pattern names; left out if all registered ones are named.
    """
    named = [frozenset(declared.subjects or ()) for declared in spec.private]
    general = spec.applying(None)
    found: dict[frozenset[int], dict[Subject, None]] = {general: {}}
    for declared in spec.private:
        for subject in declared.subjects or ():
            found.setdefault(spec.applying(subject), {})[subject] = None
    registered = spec.subjects if isinstance(spec.subjects, tuple) else None
    others = registered is None or not set(registered) <= frozenset().union(*named)
    return {
        own: None if own == general and others else tuple(subjects)
        for own, subjects in found.items()
    }


def _private(
    spec: Specification, number: int, shares: Mapping[frozenset[int], Mapping[str, Fraction]]
) -> PrivateMeaning:
    declared, pattern = spec.private[number], spec.private_patterns[number]
    names = elements(pattern)
    # An element that another pattern of some subjects shares may have less there.
    own = [share[name] for numbers, share in shares.items() if number in numbers for name in names]
    windows = declared_patterns(spec)[number].count_windows(spec.windows.panes)
    epsilon = Fraction(declared.epsilon)
    return PrivateMeaning(
        name=declared.name,
        pattern=repr(pattern),
        elements=names,
        subjects=declared.subjects,
        epsilon=epsilon,
        limit=None if declared.limit is None else str(declared.limit),
        spend=None if declared.limit is None else _find_spending(spec, declared.spend),
        allowed=count_allowed_windows(spec, number),
        horizon=_find_horizon(spec, number),
        per_element=max(own, default=None),
        odds=Odds.of(epsilon, spec.windows.pane, epsilon * _part(spec, number, spec.mechanism)),
        windows=windows,
    )


def name_unit(panes: int) -> str:
    """Return what every epsilon is for, where windows have so many panes."""
    return UNIT if panes == 1 else UNIT_SLIDING


def _find_spending(spec: Specification, spend: str) -> str:
    """Return how a limit is spent; without memory it cannot be paced."""
    can_pace = spec.mechanism in ("optimal", "auto") and spec.decode == "posterior" and spec.memory
    return spend if can_pace else "every"


def _find_horizon(spec: Specification, number: int) -> HorizonOdds | None:
    """Return what a limit means for a whole horizon."""
    declared = spec.private[number]
    if declared.limit is None:
        return None
    length, horizons = declared.limit.horizon, 1
    # Where clocks are set back, a horizon by local time is longer.
    windows = -(-(length + min(length, _SET_BACK)) // spec.windows.pane)
    cost = Fraction(declared.epsilon) * _part(spec, number, spec.mechanism)
    if spec.windows.panes > 1:
        horizons += -(-spec.windows.size // length)  # windows that begin before it see its events
    most = horizons * min(Fraction(declared.limit.amount), windows * cost)
    return HorizonOdds(length, horizons, most, bound_percentage(Fraction(1, 2), most))


def _part(spec: Specification, number: int, mechanism: str) -> Fraction:
    """Return the part of a private pattern's epsilon that each window costs."""
    windows = declared_patterns(spec)[number].count_windows(spec.windows.panes)
    return Fraction(1, windows if _draws_answers(mechanism) else 1)


def count_allowed_windows(
    spec: Specification,
    number: int,
    share: Fraction = Fraction(1),
    mechanism: str | None = None,
) -> tuple[int, int] | None:
    """Return how many windows a private pattern's limit allows, and how many its horizon has.

    None if it has no limit. `share` is the share of its epsilon that a plan spends, with the
    `mechanism` of the specification or another.
    """
    declared = spec.private[number]
    if declared.limit is None:
        return None
    windows = -(-declared.limit.horizon // spec.windows.pane)
    cost = Fraction(declared.epsilon) * share * _part(spec, number, mechanism or spec.mechanism)
    return declared.limit.windows(cost), windows


def _policy(
    spec: Specification, policy: Policy, subjects: tuple[Subject, ...] | None
) -> PolicyMeaning:
    asked = list(spec.query_patterns.values())
    exposed = find_exposure(policy, asked)
    owners = {
        name: tuple(p.name for p in policy.patterns if name in p.elements)
        for name in spec.events
        if name in policy.private
    }
    components = [tuple(p.name for p in component.patterns) for component in exposed.components]
    touched = {name for component in components for name in component}
    counted = {name for pattern in spec.count_patterns.values() for name in elements(pattern)}
    touched |= {p.name for p in policy.patterns if p.elements & counted}
    queries = []
    written = {query.name: query.asks for query in spec.subject_queries}
    for query, question in zip(spec.boolean_queries, exposed.questions, strict=True):
        pattern = query.pattern
        own = frozenset(p.name for p in policy.patterns if p.elements & {*elements(pattern)})
        parts = tuple(
            tuple(name for name in components[number] if name in own)
            for number, _ in question.parts
        )
        # A query that joins components when it is alone does so by itself. Components that are
        # small alone may be too large together with those of other queries.
        alone = [
            tuple(p.name for p in c.patterns) for c in find_exposure(policy, [pattern]).components
        ]
        joins = tuple(
            j for j in alone if len(j) > 1 and any(_contains_all(j, c) for c in components)
        )
        splits = parts if len(parts) > 1 else ()
        queries.append(_query(query, written.get(query.name, repr(pattern)), policy, splits, joins))
    return PolicyMeaning(
        subjects=subjects,
        private=tuple(p.name for p in policy.patterns),
        shared={name: owning for name, owning in owners.items() if len(owning) > 1},
        components=tuple(components),
        untouched=tuple(p.name for p in policy.patterns if p.name not in touched),
        queries=tuple(queries),
    )


def _query(
    query: BooleanQuery,
    asks: str,
    policy: Policy,
    splits: tuple[tuple[str, ...], ...],
    joins: tuple[tuple[str, ...], ...],
) -> QueryMeaning:
    found = elements(query.pattern)
    touching = {p.name: tuple(e for e in found if e in p.elements) for p in policy.patterns}
    left = find_residual(query.pattern, policy.private)
    where, signals = _openness(left)
    return QueryMeaning(
        name=query.name,
        consumer=query.consumer,
        pattern=asks,
        touched_by={name: types for name, types in touching.items() if types},
        open=where,
        signals=signals,
        looks_at=_looks_at(left, policy.private),
        splits=splits,
        joins=joins,
    )


def _openness(left: Residual) -> tuple[Openness, tuple[str, ...]]:
    """Return in which windows the query depends on its variables, and the deciding signals."""
    kinds = dict.fromkeys(left.cofactors)
    if len(kinds) == 1:
        return "never", ()
    if False in kinds and True in kinds:
        return "always", ()
    signals = tuple(repr(kind) for kind in kinds if not isinstance(kind, bool))
    if len(signals) > 1:
        return "depends", signals
    return ("where" if False in kinds else "unless"), signals


def _looks_at(left: Residual, private: frozenset[str]) -> tuple[str, ...]:
    """Return what it needs of private events beyond their presence."""
    atoms = [v.atom for v in left.variables if not is_presence(lift_booleans(v.atom))]
    nodes = [n for atom in atoms for n in walk(atom) if not private.isdisjoint(elements(n))]
    order = any(
        isinstance(n, Within) or (isinstance(n, Seq) and len(elements(n)) > 1) for n in nodes
    )
    attributes = any(drop_conditions(atom, private) != atom for atom in atoms)
    explained = {
        "order": order,
        "number": any(_counts(n, private) for n in nodes),
        "attributes": attributes,
    }
    return tuple(name for name, asked in explained.items() if asked)


def _counts(node: Pattern, private: frozenset[str]) -> bool:
    """Return whether it needs several events of one private type."""
    if isinstance(node, Repeat):
        return node.least > 1
    if not isinstance(node, Seq):
        return False
    met = [e for part in node.parts if not isinstance(part, Not) for e in elements(part)]
    return any(met.count(name) > 1 for name in private)


Rows: TypeAlias = list[tuple[str, str]]
Section: TypeAlias = tuple[str, list[tuple[str, Rows]]]

_READ: Final = {
    "literal": "Noisy events count as true.",
    "posterior": "The answer is what is likely, given the noise and the plan's prior.",
}


def _draws_answers(mechanism: str) -> bool:
    """Return whether noise is added to the answers of windows; `auto` may choose either way."""
    return mechanism != AUTO and MECHANISMS[mechanism].randomises == "answers"


def _flips_elements(mechanism: str) -> bool:
    return mechanism != AUTO and MECHANISMS[mechanism].randomises == "elements"


def _sections(explained: Explanation) -> Iterator[Section]:
    """Yield all sections, for text and for HTML."""
    if explained.private:
        yield (
            "How it is protected",
            [(f"Every epsilon is for {explained.unit}.", _general_rows(explained))],
        )
        entries = [(_clean_text(p.name), _private_rows(explained, p)) for p in explained.private]
        yield "Private patterns", entries
    else:
        yield "Private patterns", [("Nothing is declared private: all answers are exact.", [])]
    for policy in explained.policies:
        entries = [("", rows) for rows in [_policy_rows(explained, policy)] if rows]
        entries += _queries(explained, policy)
        yield f"Queries about {_name_subjects(policy, explained)}", entries
    if explained.counts:
        yield (
            "Counts of subjects",
            [(f"{one.name}, for {one.consumer}", _count_rows(one)) for one in explained.counts],
        )
    if explained.shared_attributes:
        shared = explained.shared_attributes
        pairs: list[tuple[str, Rows]] = [
            (_clean_text(str(one), 1000), []) for one in shared[:MOST_LINES]
        ]
        if len(shared) > MOST_LINES:
            pairs.append((f"{len(shared) - MOST_LINES:,} more: see {option('json')}", []))
        yield "Shared attributes", pairs
    if explained.private:
        yield "What is guaranteed", [(line, []) for line in explained.promised]
        link = f"More, with proofs: {GUARANTEE}"
        yield "What is not guaranteed", [("", [*NOT_PROMISED.items()]), (link, [])]


def _count_rows(one: CountMeaning) -> Rows:
    rows = [("asks", _clean_text(one.asks))]
    if not one.touched_by:
        return [*rows, ("noisy", "Never: private events cannot change the count, so it is exact.")]
    rows.append(("touched by", f"{_join_names(one.touched_by, 'and')}."))
    if one.from_answers:
        answers = f"From the answers to {one.source}, which have noise already."
        return [*rows, ("estimated", answers), ("epsilon", "None: answers were paid for.")]
    if not one.decided:
        also = "" if one.source is None else f", or tells it from the answers to {one.source}"
        text = f"A plan with history splits epsilon between it and answers{also}. Otherwise:"
        rows.append(("planned", text))
    channel = make_count_channel(one.epsilon)
    return [
        *rows,
        (
            "noisy",
            f"In windows where private events matter to some subject: mean error"
            f" {channel.mean_error:.3g}, 95 % within {channel.half_width}.",
        ),
        ("epsilon", f"{format_epsilon(one.epsilon)} for one window, part of the pattern's."),
    ]


def _general_rows(explained: Explanation) -> Rows:
    read = "" if _draws_answers(explained.mechanism) else f" {_READ[explained.decode]}"
    long, noise = f"{format_duration(explained.window)} long", "In every window"
    if explained.panes > 1:
        slide = format_duration(explained.window // explained.panes)
        long += f", one every {slide}: {explained.panes} panes each"
        if not _draws_answers(explained.mechanism):
            noise = "In every pane, once for all windows that contain it"
    if any(private.limit is not None for private in explained.private):
        noise += " that is paid for"
    return [
        ("windows", long),
        ("mechanism", f"{explained.mechanism}: {summarise(explained.mechanism)}{read}"),
        ("noise", f"{noise}, whether or not something private occurred."),
    ]


def _queries(explained: Explanation, policy: PolicyMeaning) -> list[tuple[str, Rows]]:
    """Return the queries of a policy, without those that are the same as in the first policy."""
    first = explained.policies[0]
    pairs = list(zip(policy.queries, first.queries, strict=True))
    same = [query.name for query, other in pairs if policy is not first and query == other]
    fresh = [query for query, other in pairs if policy is first or query != other]
    untouched = [query.name for query in fresh if not query.touched_by]
    entries: list[tuple[str, Rows]] = []
    if untouched:
        entries.append((", ".join(untouched), [("exact", "Nothing private is touched.")]))
    for query in fresh:
        if query.touched_by:
            entries.append(
                (f"{query.name}, for {_clean_text(query.consumer)}", _query_rows(explained, query))
            )
    if same:
        entries.append((", ".join(same), [("same", f"As for {_name_subjects(first, explained)}.")]))
    return entries or [("None are declared.", [])]


def _private_rows(explained: Explanation, private: PrivateMeaning) -> Rows:
    odds, sliding = private.odds, explained.panes > 1
    three = 3 * private.epsilon
    # The first and the last of three windows begin two windows apart. Half a horizon is less than a
    # day on which clocks are set forward; three occurrences may be on three days.
    limited = private.horizon
    if limited is not None and not sliding and 2 * explained.window <= limited.length // 2:
        three = min(three, 2 * limited.epsilon)  # a stay may touch two horizons
    lasting = bound_percentage(Fraction(1, 2), min(three, Fraction(_CERTAIN)))
    hidden = "whether, how often, when, with which attributes"
    about, stay = f"{_clean_text(private.name)} in one window", "a stay of three windows"
    if sliding:
        stay = "three occurrences together"
        hidden = "one event of each inside a window: whether, when, with which attributes"
        about = f"one occurrence of {_clean_text(private.name)}"
    rows = [
        ("pattern", _clean_text(private.pattern)),
        ("hides", f"{_join_names(private.elements)}: {hidden}"),
        ("for", _people(private.subjects)),
        ("epsilon", f"{format_epsilon(private.epsilon)} for {explained.unit}"),
        (
            "means",
            f"Someone who knows everything else can turn a 50:50 guess about {about}"
            f" {_format_most(odds.even)}, either way, whatever all the answers say.",
        ),
        ("", f"A guess about {stay} they can turn {_format_most(lasting)}."),
        ("", f"If it is rare, 1 in 100 can become at most {odds.rare} in 100."),
    ]
    if private.per_element is not None:
        share = bound_percentage(Fraction(1, 2), private.per_element)
        pane = "pane" if sliding else "window"
        text = f"{format_epsilon(private.per_element)} for one subject, one element, one {pane}."
        alone = f"A 50:50 guess about one element alone they can turn {_format_most(share)}."
        rows.append(("per element", f"{text} {alone}"))
    if sliding and _draws_answers(explained.mechanism):
        each = format_epsilon(private.epsilon / private.windows)
        text = f"One occurrence may change {private.windows} windows: {each} for each of them."
        rows.append(("per window", text))
    unit = "occurrence" if sliding else "window"
    rows.append(("adds up", _explain_sum(odds, unit, limited=private.limit is not None)))
    if private.limit is not None and private.allowed is not None:
        rows.append(("limit", f"{private.limit}: {describe_limit(*private.allowed)}"))
        rows.append(("spent", _SPENT[private.spend or "every"]))
    if private.horizon is not None:
        rows.append(_describe_horizon(private.horizon))
    return rows


def _describe_horizon(horizon: HorizonOdds) -> tuple[str, str]:
    """Say what a limit means for all windows of a horizon, with its condition."""
    length = format_duration(horizon.length)
    label, period = ("whole day", "a day") if length == "1 d" else (f"in {length}", length)
    whole = "windows" if horizon.horizons == 1 else "events"
    text = (
        "Someone who knows everything else, also all other times, can turn a 50:50 guess between"
        f" two courses of all {whole} of {period} {_format_most(horizon.even)}: epsilon"
        f" {format_epsilon(horizon.epsilon)} together."
    )
    if horizon.even == 100:
        text += " So the limit does not hide what lasts so long; single windows stay as above."
    if horizon.horizons > 1:
        text += f" Windows of up to {horizon.horizons:,} limits see them."
    return label, text


def describe_limit(allowed: int, windows: int) -> str:
    """Describe what a limit means, in a run with a ledger."""
    if allowed >= windows:
        return "enough for every window, so it is never reached."
    return (
        f"enough for {allowed:,} of {count(windows, 'window')}. Only windows where private events"
        " could change an answer count. Those that are not paid for are answered from public events"
        " and what was known before, and marked `exhausted`. A run needs a ledger for this."
    )


def _explain_sum(odds: Odds, unit: str, *, limited: bool) -> str:
    number = odds.windows_to_99
    day = (
        f"A day has {count(odds.windows_in_a_day, 'window')}: for one subject and one private"
        f" pattern epsilon {format_epsilon(odds.epsilon_in_a_day)} together"
        f"{', if there were no limit' if limited else ''}."
    )
    if number == 1:
        return f"After one {unit} a 50:50 guess could become 99:1 or more. {day}"
    some = (
        f"A 50:50 guess about something that affects {number:,} {unit}s could become 99:1 or more."
    )
    return f"{some} {day}"


def _format_most(most: Decimal) -> str:
    if most == 100:
        return "into near certainty"
    return f"into at most {most}:{100 - most}"


def _policy_rows(explained: Explanation, policy: PolicyMeaning) -> Rows:
    rows: Rows = []
    once = ", and flipped once" if _flips_elements(explained.mechanism) else ""
    for name, owners in policy.shared.items():
        rows.append(("shared", f"{name} is an element of {_join_names(owners, 'and')}{once}."))
    if explained.mechanism in ("optimal", "auto"):
        for names in policy.components:
            if len(names) > 1:
                causes = [
                    q.name for q in policy.queries if any(_contains_all(j, names) for j in q.joins)
                ]
                why = f"because of {_join_names(causes, 'and')}"
                rows.append(
                    ("together", f"{_join_names(names, 'and')} are protected as one, {why}.")
                )
    for name in policy.untouched:
        rows.append(
            (
                "untouched",
                f"{_clean_text(name)}: no answer depends on it, so answers reveal nothing about it"
                " beyond public events.",
            )
        )
    return rows


def _contains_all(some: Iterable[str], names: Sequence[str]) -> bool:
    return set(some) <= set(names)


def _query_rows(explained: Explanation, query: QueryMeaning) -> Rows:
    rows = [("asks", _clean_text(query.pattern))]
    for name, types in query.touched_by.items():
        rows.append(
            ("touched by", f"{_clean_text(name)}, because it looks at {_join_names(types, 'and')}.")
        )
    rows.append(("noisy", _open(query)))
    if query.open == "never":
        return rows
    if query.looks_at:
        what = _join_names(query.looks_at, "and")
        rows.append(("unknown", f"It needs the {what} of private events, which stays unknown."))
        rows += [("read", text) for text in _literal(explained, query)]
    if explained.mechanism in ("optimal", "auto"):
        if query.splits:
            parts = _join_names([_join_names(names, "with") for names in query.splits], "and")
            rows.append(("splits", f"Its parts about {parts} are answered from separate draws."))
        for names in query.joins:
            joined = _join_names(names, "and")
            text = f"It asks about {joined} at once, so they are protected together."
            rows.append(("joins", text))
    return rows


def _open(query: QueryMeaning) -> str:
    match query.open:
        case "never":
            return "Never: private events cannot change the answer, so it is exact."
        case "always":
            return "In every window: public events alone do not decide it."
        case "where":
            signal = _clean_text(query.signals[0])
            return f"Only in windows where {signal} is detected; elsewhere exactly no."
        case "unless":
            signal = _clean_text(query.signals[0])
            return f"Only in windows without {signal}; where it is detected, exactly yes."
        case "depends":
            number = count(len(query.signals), "pattern")
            return f"In some windows: {number} over public events decide which. Elsewhere exact."


def _literal(explained: Explanation, query: QueryMeaning) -> list[str]:
    """Describe what literal decoding means for a query."""
    if _draws_answers(explained.mechanism) or explained.decode != "literal":
        return []
    if explained.mechanism == "auto":
        return ["Literal decoding, if uniform or adaptive is chosen: see docs/known-limits.md."]
    words = {
        "order": "A private event that comes out present gets a random time: its order is random.",
        "number": "One noisy event counts as one: two or more are never found.",
        "attributes": "Conditions on private events count as met.",
    }
    return [words[asked] for asked in query.looks_at]


def _name_subjects(policy: PolicyMeaning, explained: Explanation) -> str:
    if policy.subjects is not None:
        return _people(policy.subjects)
    named = sum(len(other.subjects or ()) for other in explained.policies)
    return f"all subjects but {named:,}" if named else "all subjects"


def _people(subjects: tuple[Subject, ...] | None) -> str:
    if subjects is None:
        return "all subjects"
    return f"{count(len(subjects), 'subject')}: {_join_names(subjects)}"


def _clean_text(chosen: Subject, longest: int = _TEXT) -> str:
    """Format a user's text: not too long, and without control characters."""
    text = str(chosen)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _join_names(names: Iterable[Subject], last: str = "") -> str:
    """Join names in a line; a long list is shortened."""
    known = [_clean_text(name) for name in names]
    if len(known) > _NAMES:
        return f"{', '.join(known[:_NAMES])} and {len(known) - _NAMES:,} more"
    if last and len(known) > 1:
        return f"{', '.join(known[:-1])} {last} {known[-1]}"
    return ", ".join(known)


def _wrap_text(text: str, lead: str) -> list[str]:
    """Wrap text after a lead, which is at the start of the first line."""
    return wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead))
