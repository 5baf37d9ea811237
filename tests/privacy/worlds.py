"""Small specifications, windows and their neighbours, to be enumerated.

Subjects are of two sorts, x and y, so that a private pattern may be that of some only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from random import Random
from unittest.mock import patch

import numpy as np

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import Pattern, elements
from tacit.pipeline.reader import Input
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.planning.survey import assume_statistics
from tacit.privacy.mechanisms.optimal import mechanism as optimal
from tacit.privacy.mechanisms.optimal import new_contexts
from tacit.privacy.policies import Policies, Policy, PrivatePattern
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Query, Specification
from tests.patterns.strategies import VALUES, random_pattern
from tests.privacy.enumeration import (
    ALONE,
    COLUMNS,
    Outcomes,
    TooManyOutcomesError,
    Window,
    enumerated,
    frames,
    stream_of,
    within,
)

SORTS = ("x", "y")
SUBJECTS = tuple(f"{sort}{number}" for number in range(16) for sort in SORTS)
PRIVATE, PUBLIC = "abcd", "st"
EPSILONS = ("0.1", "0.5", "1", "1.3", "2", "4", "50")
RATES = (0.0, 1.0, 1e-9, 0.01, 0.3, 0.5)


def specification(
    private: Sequence[tuple[str | Pattern, ...]],
    queries: Sequence[str | Pattern],
    *,
    types: str | Sequence[str] = "abcst",
    streams: str | None = None,
    size: int = 2,
    counts: Sequence[str | Pattern] = (),
    told: Sequence[int] = (),
) -> Specification:
    """A specification. A private pattern has its epsilon and, if need be, the sort of its subjects.

    `streams` has a letter for each type: the stream that its events are on. `counts` are counted
    with every subject as a group of its own, so that all that depends on a subject is at its place.
    The numbers of those that are estimated from answers are `told`.
    """
    places = dict(zip(types, streams or "p" * len(types), strict=True))
    spec = Specification.model_validate(
        {
            "subjects": SUBJECTS,
            "streams": {
                stream: {"subject": "who", "time": "at", "unit": "us"}
                for stream in sorted({"p", *places.values()})
            },
            "windows": {"size": f"{size} us", "future": "10 s"},
            "events": {
                name: {"stream": stream, "where": f"{name} = 1"} for name, stream in places.items()
            },
            "private": [
                {
                    "pattern": pattern,
                    "epsilon": Decimal(str(epsilon)),
                    "subjects": [name for name in SUBJECTS if name[0] in sort] if sort else None,
                }
                for pattern, epsilon, *sort in private
            ],
            "queries": [
                {"name": f"q{number}", "consumer": "c", "pattern": pattern}
                for number, pattern in enumerate(queries)
            ],
        }
    ).checked()
    counted = [
        Query.model_validate(
            {"name": f"n{n}", "consumer": "c", "count": pattern, "by": ALONE}
            | ({"share": Decimal(0)} if n in told else {})
        )
        for n, pattern in enumerate(counts)
    ]
    return spec.model_copy(update={"queries": (*spec.queries, *counted)})


def random_specification(rng: Random) -> Specification:
    """Up to 4 private elements, 3 private patterns that may overlap and 4 queries."""
    size = rng.choice((2, 2, 4))
    hidden = PRIVATE[: rng.randint(1, 4)]
    types = hidden + PUBLIC
    spans = range(size)
    private: dict[Pattern, tuple[str, ...]] = {}
    for _ in range(rng.randint(1, 3)):
        own = rng.sample(hidden, rng.randint(1, len(hidden)))
        pattern = random_pattern(rng, own, rng.randint(0, 2), where=_often(rng, 0.2), spans=spans)
        private[pattern] = (rng.choice(EPSILONS), *("x" * _often(rng, 0.25)))
    queries = [
        rng.choice(list(private))
        if _often(rng, 0.15)
        else random_pattern(
            rng,
            types,
            rng.choice((1, 1, 2, 2, 3)),
            where=_often(rng, 0.25),
            negation=_often(rng, 0.5),
            repetition=_often(rng, 0.5),
            spans=spans if _often(rng, 0.5) else (),
        )
        for _ in range(rng.randint(1, 4))
    ]
    return specification(
        [(pattern, *rest) for pattern, rest in private.items()],
        queries,
        types=types,
        streams="".join(rng.choice("pq") for _ in types) if _often(rng, 0.3) else None,
        size=size,
    )


def _often(rng: Random, share: float) -> bool:
    return rng.random() < share


def random_window(
    rng: Random, spec: Specification, types: Sequence[str], most: int = 5
) -> list[Tuple]:
    """Up to so many tuples, each of one type or several of the same stream."""
    found = []
    for _ in range(rng.randint(0, most)):
        name = rng.choice(types)
        stream = spec.events[name].stream
        beside = [other for other in types if spec.events[other].stream == stream]
        several = frozenset({name, *rng.choices(beside, k=rng.choice((0, 0, 1, 2)))})
        found.append(Tuple(rng.randrange(spec.windows.size), several, _attributes(rng)))
    return found


def _attributes(rng: Random) -> dict[str, float | None]:
    return {column: rng.choice(VALUES) for column in COLUMNS}


def neighbours(
    rng: Random, spec: Specification, window: Window, own: AbstractSet[str], number: int
) -> list[list[Tuple]]:
    """Windows that differ from each other in events of the `own` types alone."""
    names = sorted(own)
    chosen = [some for size in range(len(names) + 1) for some in combinations(names, size)]
    # Nothing and everything first: they are furthest apart.
    chosen = [chosen[0], chosen[-1], *rng.sample(chosen, len(chosen))][: max(2, number - 3)]
    found = []
    for some in chosen:
        found.append(
            _without(rng, window, own)
            + [
                Tuple(rng.randrange(spec.windows.size), frozenset({name}), _attributes(rng))
                for name in some
            ]
        )
    while len(found) < number:
        rest = _without(rng, window, own)
        if _often(rng, 0.5):
            rest = [_joined(rng, spec, tuple_, names) for tuple_ in rest]
        found.append(rest + random_window(rng, spec, names, 4))
    return found


def _without(rng: Random, window: Window, own: AbstractSet[str]) -> list[Tuple]:
    """The window without these events; the tuples that gave them may be there all the same."""
    rest = [Tuple(tuple_.time, tuple_.types - own, tuple_.attributes) for tuple_ in window]
    return [tuple_ for tuple_ in rest if tuple_.types or _often(rng, 0.3)]


def _joined(rng: Random, spec: Specification, tuple_: Tuple, own: Sequence[str]) -> Tuple:
    """The same tuple, which may give more events."""
    stream = stream_of(spec, tuple_)
    more = {name for name in own if spec.events[name].stream == stream and _often(rng, 0.4)}
    return Tuple(tuple_.time, tuple_.types | more, tuple_.attributes)


@dataclass(frozen=True)
class Cases:
    """Windows, who sends each of them, and groups of them that a private pattern keeps alike."""

    windows: list[list[Tuple]]
    slots: list[tuple[int, ...]]
    policies: list[Policy]
    groups: list[tuple[PrivatePattern, list[int]]]

    def half(self) -> Cases:
        """The first half of the groups; if there is but one, the first half of it."""
        groups = self.groups[: max(1, len(self.groups) // 2)]
        if len(self.groups) == 1:
            ((pattern, group),) = groups
            groups = [(pattern, group[: max(2, len(group) // 2)])]
        stop = max(group[-1] for _, group in groups) + 1
        return Cases(self.windows[:stop], self.slots[:stop], self.policies[:stop], groups)


def all_cases(spec: Specification) -> Cases:
    """All windows in which each type occurs at any of the times or not, and all neighbours."""
    times = [
        [time for time in range(spec.windows.size) if bits >> time & 1]
        for bits in range(1 << spec.windows.size)
    ]
    there = list(product(times, repeat=len(spec.events)))
    windows = [
        [
            Tuple(time, frozenset({name}), {"v": float(time), "w": 1.0})
            for name, at in zip(spec.events, chosen, strict=True)
            for time in at
        ]
        for chosen in there
    ]
    policy = policy_of(spec, 0)
    groups = []
    for pattern in policy.patterns:
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, chosen in enumerate(there):
            fixed = [
                tuple(at)
                for name, at in zip(spec.events, chosen, strict=True)
                if name not in pattern.elements
            ]
            alike.setdefault(tuple(fixed), []).append(number)
        groups += [(pattern, group) for group in alike.values()]
    number = len(windows)
    return Cases(windows, [slots_of("x")] * number, [policy] * number, groups)


def random_cases(seed: int, spec: Specification, bases: int = 2, number: int = 8) -> Cases:
    """So many windows of either sort of subjects, and so many neighbours for each pattern."""
    rng = Random(seed)
    cases = Cases([], [], [], [])
    for _ in range(bases):
        for sort in SORTS:
            slots = slots_of(sort)
            policy = policy_of(spec, slots[0])
            base = random_window(rng, spec, list(spec.events))
            for pattern in policy.patterns:
                found = neighbours(rng, spec, base, pattern.elements, number)
                first = len(cases.windows)
                cases.windows.extend(found)
                cases.slots.extend([slots] * len(found))
                cases.policies.extend([policy] * len(found))
                cases.groups.append((pattern, list(range(first, first + len(found)))))
    return cases


def slots_of(sort: str) -> tuple[int, ...]:
    """The subjects of one sort."""
    return tuple(slot for slot, name in enumerate(SUBJECTS) if name[0] == sort)


def policy_of(spec: Specification, slot: int) -> Policy:
    """The policy of a subject: what was declared for it, or for all."""
    return Policy(
        tuple(
            PrivatePattern(declared.name, frozenset(elements(pattern)), Fraction(declared.epsilon))
            for declared, pattern in zip(spec.private, spec.private_patterns, strict=True)
            if declared.subjects is None or SUBJECTS[slot] in declared.subjects
        )
    )


def random_statistics(rng: Random, spec: Specification) -> list[Statistics]:
    """A small random history, or a prior by hand, which may be odd."""
    if _often(rng, 0.7):
        # Where all is as likely as not, answers are worth most, and most is told.
        rates = RATES if _often(rng, 0.3) else (0.5,)
        return by_hand(spec, {name: rng.choice(rates) for name in spec.events})
    number = rng.choice((1, 5, 20))
    pool = [random_window(rng, spec, list(spec.events)) for _ in range(number)]
    return survey_history(spec, pool, [rng.randrange(-1, number) for _ in range(3 * len(SUBJECTS))])


def by_hand(spec: Specification, rates: dict[str, float]) -> list[Statistics]:
    """Statistics from a prior."""
    queries = tuple(spec.query_patterns.values())
    return [assume_statistics(policy, queries, rates) for policy in Policies(spec).policies]


def survey_history(
    spec: Specification, pool: Sequence[Window], laid: Sequence[int]
) -> list[Statistics]:
    """Statistics of a history in which these of the windows lie one after the other."""
    sent = frames(spec, SUBJECTS, pool, np.array(laid))
    inputs = [Input(stream, FrameSource(frame, stream)) for stream, frame in sent.items()]
    return survey(spec, inputs, literal=True)


def planned(spec: Specification, mechanism: str, decode: str, seed: int = 0) -> Plan:
    """A plan from random statistics."""
    return make_plan(spec, random_statistics(Random(seed), spec), mechanism, decode)


@contextmanager
def served_by_book() -> Iterator[None]:
    """In planning and in runs, no context gets channels of its own."""
    with (
        patch.object(optimal, "_design_contexts", lambda *_: {}),
        patch.object(new_contexts, "_FIRST", 0),
        patch.object(new_contexts, "_PER_WINDOW", 0),
        patch.object(new_contexts, "_BEHIND", 0),
    ):
        yield


def furthest(
    spec: Specification, plan: Plan, cases: Cases
) -> dict[str, tuple[Fraction, Fraction | None]]:
    """For each private pattern its epsilon, and the largest ratio there is; None is infinity."""
    cases, outcomes = _enumerated(spec, plan, cases)
    _check_public(spec, cases, outcomes)
    found: dict[str, tuple[Fraction, Fraction | None]] = {}
    for pattern, group in cases.groups:
        ratio = outcomes.furthest(group)
        _, before = found.get(pattern.name, (pattern.epsilon, Fraction(1)))
        worst = None if ratio is None or before is None else max(ratio, before)
        found[pattern.name] = (pattern.epsilon, worst)
    return found


def broken(spec: Specification, plan: Plan, cases: Cases) -> list[str]:
    """The private patterns whose promise is not kept."""
    found = furthest(spec, plan, cases)
    return [name for name, (epsilon, ratio) in found.items() if not within(ratio, epsilon)]


def _enumerated(spec: Specification, plan: Plan, cases: Cases) -> tuple[Cases, Outcomes]:
    """All outcomes of as many of the cases as can be enumerated."""
    while True:
        try:
            return cases, enumerated(spec, plan, cases.windows, cases.slots)
        except TooManyOutcomesError:
            if len(cases.windows) <= 2:
                raise
            cases = cases.half()


def _check_public(spec: Specification, cases: Cases, outcomes: Outcomes) -> None:
    """Queries that touch nothing private are answered by the truth, and certainly."""
    for window, policy, likely in zip(cases.windows, cases.policies, outcomes.likely, strict=True):
        for number, query in enumerate(spec.query_patterns.values()):
            if policy.private.isdisjoint(elements(query)):
                truth = detect(query, window)
                for answers, sure, _ in likely:
                    assert np.frombuffer(answers, np.int8)[number] in (truth, -1)
                    assert np.frombuffer(sure, np.float32)[number] == 1
