"""Random specifications with plans, and streams whose private tuples are made again and again.

A tuple's kind decides which event types it can be, whatever stands in its other columns: the
conditions of all public types ask for a kind (or for an area that private tuples are never in).
So it is known, without a look at the program that is tested, which tuples are *free*: they are
no public event of their subject. Neighbours have the same public tuples and any free ones.

The registry is declared, public tuples are in the first and the last pane of the schedule, and no
order of arrival makes a public tuple late. Everything else that a free tuple does must stay
unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial
from random import Random
from typing import Any, Final

from tacit.events.streams import ColumnType
from tacit.patterns.tree import Pattern, elements
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.planning.survey import assume_statistics
from tacit.privacy.policies import Policies
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tests.differential.values import COLUMNS, Broken, Cell, any_cell, plain_cell, well_formed
from tests.patterns.strategies import random_pattern
from tests.privacy.memories import paced, with_memory

BEGIN: Final = 1_699_999_200
"""Where the schedule begins, in seconds: a whole hour."""
FAR: Final = 1_200
"""Seconds from there to a time that is refused: it is too far in the future, or nobody confirms
it."""
SUBJECTS: Final = ("007", "7", "7.0", "x", "X", "née", "1e3", "true", "2024-01-31")
HIDDEN: Final = ("a", "b", "c")
OPEN: Final = ("p", "q", "r")
EPSILONS: Final = ("0.1", "0.5", "1", "1.3", "4")
TYPES: Final[Mapping[str, ColumnType]] = {
    "kind": "text",
    "tag": "text",
    "v": "number",
    "w": "number",
    "ok": "boolean",
    "seen": "time",
    "lon": "number",
    "lat": "number",
    "secret": "number",
}
_CONDITIONS: Final = (
    "v < 2",
    "v + w > 1",
    "v BETWEEN 0 AND 1",
    "ABS(w) < 1",
    "v % 2 = 1",
    "COALESCE(v, 7) > 2",
    "v IS NULL",
    "ROUND(v) = 0",
    "v * w <> 0",
    "tag = 'x'",
    "tag LIKE 'x%'",
    "tag IN ('x', 'y', '7')",
    "LOWER(tag) = 'x'",
    "LENGTH(tag) > 1",
    "tag IS NULL",
    "SUBSTR(tag, 1, 1) = 'x'",
    "CONCAT(tag, 'x') = 'xx'",
    "DATE(tag, '%Y-%m-%d') < DATE('2024-06-01')",
    "STRPTIME(tag, '%Y-%m-%d') IS NOT NULL",
    "TRY_CAST(tag AS DOUBLE) > 3",
    "ok",
    "NOT ok",
    "ok IS NULL",
    "CASE WHEN ok THEN v < 2 ELSE w < 2 END",
    "EXTRACT(YEAR FROM seen) = 2024",
    "seen IS NULL",
)


@dataclass(frozen=True)
class RawTuple:
    """A tuple before it is written down: cells by column, or a line that cannot be read."""

    stream: str
    arrival: float
    """Tuples of a stream stand in this order."""
    cells: Mapping[str, Cell]
    public: bool
    broken: Broken | None = None
    spelling: int = 0
    """A seed for how it is spelled."""
    style: int | None = None
    """How its time is spelled, if that is not left to chance."""
    raw: bytes | None = None
    """What stands in its place, whatever its cells are."""

    @property
    def unreadable(self) -> bool:
        """Whether it is a line or a message that cannot be read; tables have none of these."""
        return self.broken is not None or self.raw is not None


@dataclass(frozen=True)
class Variant:
    """Free tuples for the subjects and panes of a world.

    Those of `changed` (all, where it is None) are made with the seed, the others are those of
    every variant.
    """

    seed: int
    changed: frozenset[tuple[str, int]] | None = None
    empty: bool = False
    odd: float = 0.5
    """The share of values that look like something else, and of broken lines."""


@dataclass(frozen=True)
class NextTerms:
    """A specification that a run changes to: what was private has another name, and is public."""

    spec: Specification
    plan: Plan
    after: int
    """The pane after whose tuples it is read."""

    @property
    def clear(self) -> int:
        """The first pane whose tuples may be seen as what they are now."""
        return self.after + 1 + 2 * (self.spec.windows.panes - 1)


@dataclass(frozen=True)
class World:
    """A specification, its plan, and streams."""

    seed: int
    spec: Specification
    plan: Plan
    limited: bool
    panes: int
    """How many panes the streams last."""
    areas_alone: bool
    """Whether an area alone makes a public event."""
    wild: bool
    """Whether free tuples may have times far away: the schedule has a declared start."""
    tidy: int | None = None
    """Where public tuples are spelled as by one program, how their times are: then one odd value
    is enough to make a column look like another type."""
    sources: Sequence[SourceShape] = field(default_factory=tuple)
    then: NextTerms | None = None
    """What the specification is changed to in the middle of the run."""

    @property
    def odd(self) -> float:
        """The share of odd values among those that no variant changes."""
        return 0.5 if self.tidy is None else 0.0

    @property
    def pane(self) -> int:
        """Seconds in a pane."""
        return self.spec.windows.pane // 1_000_000

    @property
    def end(self) -> int:
        """Where the streams end."""
        return BEGIN + self.panes * self.pane

    @property
    def subjects(self) -> tuple[str, ...]:
        """The registry."""
        assert isinstance(self.spec.subjects, tuple)
        return tuple(map(str, self.spec.subjects))

    @cached_property
    def private_types(self) -> Mapping[str, frozenset[str]]:
        """What is private for each subject."""
        return {
            subject: frozenset(
                name
                for declared, pattern in zip(
                    self.spec.private, self.spec.private_patterns, strict=True
                )
                if declared.subjects is None or subject in map(str, declared.subjects)
                for name in elements(pattern)
            )
            for subject in self.subjects
        }

    def public_tuples(self, variant: Variant) -> list[RawTuple]:
        """Tuples that are public events; what only private conditions read is the variant's."""
        rng = Random(f"{self.seed}/public")
        places = [(subject, pane) for subject in self.subjects for pane in range(self.panes)]
        chosen = [place for place in places for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        chosen += [(self.subjects[0], 0), (self.subjects[0], self.panes - 1)]
        if self.then is not None:  # how far the streams are when it is read is public
            chosen += [(subject, self.then.after) for subject in self.subjects[:2]]
        found = []
        for number, (subject, pane) in enumerate(chosen):
            kinds = [name for name in self.kinds if name not in self.private_types[subject]]
            made = self._tuple(
                rng, subject, pane, rng.choice(kinds), odd=0.2 * self.odd, public=True
            )
            shade = Random(f"{self.seed}/{variant.seed}/shade/{number}")
            if variant.changed is None or (subject, pane) in variant.changed:
                cells = {
                    name: well_formed(shade, name, odd=variant.odd) for name in ("secret", "note")
                }
                made = replace(made, cells={**made.cells, **cells})
            found.append(made)
        return found

    def free_tuples(self, variant: Variant) -> list[RawTuple]:
        """Tuples that are no public event of their subject."""
        found = []
        for subject in self.subjects:
            for pane in range(self.panes):
                changed = variant.changed is None or (subject, pane) in variant.changed
                if changed and variant.empty:
                    continue
                rng = Random(f"{self.seed}/{variant.seed if changed else 0}/{subject}/{pane}")
                for _ in range(rng.choice((0, 1, 1, 2, 4))):
                    found.append(
                        self._free(rng, subject, pane, variant.odd if changed else self.odd)
                    )
        return found

    def _free(self, rng: Random, subject: str, pane: int, odd: float) -> RawTuple:
        own = [name for name in self.kinds if name in self.private_types[subject]]
        kind = rng.choice(own) if own and rng.random() < 0.8 else rng.choice(("other", "P", ""))
        made = self._tuple(rng, subject, pane, kind, odd=odd, public=False)
        cells = dict(made.cells)
        if self.areas_alone and rng.random() < 0.8:
            cells["lon"] = rng.choice((None, 50, "abc", -7.5, "1e400", ""))
        elif self.areas_alone:
            cells["lat"] = rng.choice((None, 70, "abc", -7.5, "NaN", ""))
        if rng.random() < 0.2 * odd:
            cells["who"] = rng.choice((None, "", "nobody", " 007", "07", "0007", 7.5))
        if rng.random() < 0.2 * odd:
            cells["at"] = rng.choice((None, "", "yesterday", "2023-13-45", "12:30", "x" * 40))
        if self.wild and rng.random() < 0.2 * odd:
            past = (0, -1, "1970-01-01T00:00:00Z", "0001-01-01")
            ahead = (BEGIN + FAR,) * 2 if self._refused_alone(subject) else ()
            cells["at"] = rng.choice((*past, *ahead))
        broken = rng.choice(list(Broken)) if rng.random() < 0.3 * odd else None
        return replace(made, cells=cells, broken=broken)

    def _refused_alone(self, subject: str) -> bool:
        """Whether tuples of this subject that are far ahead are refused, whatever others send.

        Two subjects that are far ahead would confirm each other.
        """
        return self.spec.windows.future < FAR * 1_000_000 or subject == self.subjects[-1]

    @cached_property
    def kinds(self) -> list[str]:
        """The event types that are known by a kind."""
        return [name for name in self.spec.events if name in (*HIDDEN, *OPEN)]

    def _tuple(
        self, rng: Random, subject: str, pane: int, kind: str, *, odd: float, public: bool
    ) -> RawTuple:
        time = BEGIN + pane * self.pane + rng.randrange(self.pane)
        lateness = self.spec.windows.lateness / 1_000_000
        arrival = time + rng.random() * lateness if lateness else pane + rng.random()
        event = self.spec.events.get(kind)
        stream = event.stream if event is not None else rng.choice(list(self.spec.streams))
        make = well_formed if public else any_cell
        cells: dict[str, Cell] = {
            name: make(rng, name, odd=odd) if rng.random() < 0.9 else None
            for name in COLUMNS
            if name != "kind"
        }
        if public:
            cells |= {"secret": plain_cell(rng, "secret"), "note": plain_cell(rng, "note")}
        cells |= {"who": subject, "at": time, "kind": kind}
        style = self.tidy
        if style is not None and (public or odd == 0):
            cells["seen"] = rng.choice(("2023-05-01T00:00:00Z", "2024-02-03T04:05:06Z", None))
        elif rng.random() < odd:
            style = None
        return RawTuple(stream, arrival, cells, public, None, rng.getrandbits(60), style)


@dataclass(frozen=True)
class SourceShape:
    """How the tuples of a stream are written down."""

    stream: str
    coding: str
    """csv, jsonl, parquet, arrow, json (messages) or cbor (messages)."""
    cuts: tuple[float, ...] = ()
    """Where one file ends and the next begins, by order of arrival."""
    layout: int = 0
    """A seed for column types, blocks and so on: the same for all variants."""


CODINGS: Final = ("csv", "jsonl", "parquet", "arrow", "json", "cbor")


RELOADING: Final = "reloading"
REMEMBERING: Final = "remembering"
BOTH: Final = "reloading and remembering"


def make_world(kind: str, number: int) -> World:
    """One of the worlds with inputs in this coding, or of those that change, or have memory."""
    if kind == RELOADING:
        return reloading_world(number)
    if kind == REMEMBERING:
        return remembering_world(number)
    if kind == BOTH:
        return reloading_world(number, remembering=True)
    return random_world(number * len(CODINGS) + CODINGS.index(kind), kind)


def random_world(seed: int, coding: str | None = None) -> World:
    """A specification and all that goes with it."""
    rng = Random(f"world {seed}")
    declared = rng.random() < 0.6
    plain, areas_alone = _random_specification(rng, declared=declared)
    spec = Specification.model_validate(plain).checked()
    plan = _random_plan(rng, spec, declared=declared)
    world = _world(rng, seed, spec, plan, areas_alone=areas_alone, panes=rng.randint(3, 4))
    return replace(world, sources=_shape_sources(rng, world, coding))


def _shape_sources(rng: Random, world: World, coding: str | None) -> tuple[SourceShape, ...]:
    spec, sources = world.spec, []
    for stream in spec.streams:
        span = world.panes if not spec.windows.lateness else world.panes * world.pane
        origin = 0 if not spec.windows.lateness else BEGIN
        cuts = sorted(origin + rng.random() * span for _ in range(rng.choice((0, 0, 1, 2))))
        chosen = coding or rng.choice(CODINGS)
        sources.append(SourceShape(stream, chosen, tuple(cuts), rng.getrandbits(60)))
    return tuple(sources)


def remembering_world(seed: int) -> World:
    """One with memory, and with limits that are not enough for all windows.

    Queries ask for one of the private types, which occurs often.
    """
    rng = Random(f"remembering world {seed}")
    plain, areas_alone = _random_specification(rng, declared=True)
    spend = ("every", "paced")[seed % 2]
    _limit_and_ask(rng, plain, spend)
    spec = Specification.model_validate(plain).checked()
    plan = _remembering_plan(rng, spec, spend, seed)
    world = _world(rng, seed, spec, plan, areas_alone=areas_alone, panes=5)
    return replace(world, sources=_shape_sources(rng, world, None))


def _limit_and_ask(rng: Random, plain: dict[str, Any], spend: str) -> None:
    """Give every private pattern a limit, and ask for one of the private types."""
    for one in plain["private"]:
        one |= {"limit": f"{2 * one['epsilon']} per 30 s", "spend": spend}
    asked = rng.choice(sorted(elements(plain["private"][0]["pattern"])))
    for name in (asked, "p"):
        plain["events"][name]["where"] = f"kind = '{name}'"
    plain["queries"] += [
        {"name": f"asked{number}", "consumer": "us", "pattern": pattern}
        for number, pattern in enumerate((asked, f"AND({asked}, p)"))
    ]


def _remembering_plan(rng: Random, spec: Specification, spend: str, seed: int) -> Plan:
    plan = with_memory(make_plan(spec, _assume(rng, spec), "optimal", "posterior"), seed)
    return paced(plan, spec, rng.choice((0.001, 0.01, 0.03))) if spend == "paced" else plan


def reloading_world(seed: int, *, remembering: bool = False) -> World:
    """One in which a private type gets another condition, and a public one its old condition."""
    rng = Random(f"reloading world {seed}")
    plain, areas_alone = _random_specification(rng, declared=True, reloading=True)
    spend = ("every", "paced")[seed % 2]
    make = partial(_random_plan, rng, declared=True)
    if remembering:
        _limit_and_ask(rng, plain, spend)
        make = partial(_remembering_plan, rng, spend=spend, seed=seed)
    spec = Specification.model_validate(plain).checked()
    plan = make(spec)
    hidden = {name for pattern in spec.private_patterns for name in elements(pattern)} - {"z"}
    moved = rng.choice(sorted(hidden))
    events = plain["events"]
    query = {"name": "new", "consumer": "them", "pattern": "n"}
    plain = {
        **plain,
        "events": {**events, moved: {"stream": "s", "where": "kind = 'moved'"}, "n": events[moved]},
        "queries": [*plain["queries"], query],
    }
    other = Specification.model_validate(plain).checked()
    then = NextTerms(other, make(other), after=1)
    panes = then.clear + 2
    world = _world(rng, seed, spec, plan, areas_alone=areas_alone, panes=panes)
    shape = SourceShape("s", rng.choice(("json", "cbor")), (), rng.getrandbits(60))
    return replace(world, sources=(shape,), then=then)


def typed_world(coding: str) -> World:
    """One whose public events depend on columns of every type, and whose public values all fit."""
    rng = Random(f"typed world {coding}")
    plain = {
        "subjects": ["007", "7", "x"],
        "streams": {"s": {"subject": "who", "time": "at", "columns": dict(TYPES)}},
        "areas": {"zone": {"box": [10, 40, 11, 41]}},
        "windows": {"size": "10 s", "start": "2023-11-14T22:00:00Z", "future": "10 min"},
        "events": {
            "a": {"stream": "s", "where": "kind = 'a' AND v < 2"},
            "p": {"stream": "s", "where": "kind = 'p' AND v + w < 3"},
            "q": {"stream": "s", "where": "kind = 'q' AND (ok OR EXTRACT(YEAR FROM seen) = 2024)"},
            "r": {"stream": "s", "where": "kind = 'r' AND (tag LIKE 'x%' OR tag IS NULL)"},
            "g": {"stream": "s", "where": "kind = 'p'", "inside": "zone"},
        },
        "private": [{"pattern": "a", "epsilon": 1}],
        "queries": [
            {"name": f"q{number}", "consumer": "us", "pattern": pattern}
            for number, pattern in enumerate(("p", "q", "r", "g", "AND(a, p)", "SEQ(a, q)"))
        ],
    }
    spec = Specification.model_validate(plain).checked()
    plan = _random_plan(rng, spec, declared=True)
    world = _world(rng, CODINGS.index(coding), spec, plan, areas_alone=False, panes=3)
    shape = SourceShape("s", coding, (), rng.getrandbits(60))
    return replace(world, tidy=rng.randrange(6), sources=(shape,))


def _world(
    rng: Random, seed: int, spec: Specification, plan: Plan, *, areas_alone: bool, panes: int
) -> World:
    return World(
        seed,
        spec,
        plan,
        any(private.limit is not None for private in spec.private),
        panes,
        areas_alone,
        wild=spec.windows.start is not None,
        tidy=rng.randrange(6) if rng.random() < 0.6 else None,
    )


def _random_specification(
    rng: Random, *, declared: bool, reloading: bool = False
) -> tuple[dict[str, Any], bool]:
    """A specification as it is written down, and whether an area alone makes a public event."""
    hidden = list(HIDDEN[: rng.randint(1, 3)])
    visible = list(OPEN[: rng.randint(1, 3)])
    streams = ["s"] if reloading or rng.random() < 0.7 else ["s", "t"]
    shaded, areas_alone = rng.random() < 0.5, rng.random() < 0.15
    events = {}
    for name in (*hidden, *visible):
        events[name] = {"stream": rng.choice(streams), "where": _where(rng, f"kind = '{name}'")}
        if rng.random() < 0.05:
            events[name]["inside"] = "zone"
    if shaded:
        events["z"] = {"stream": rng.choice(streams), "where": "secret < 3"}
    if areas_alone:
        events["g"] = {"stream": rng.choice(streams), "inside": "zone"}
    numeric = rng.random() < 0.3
    subjects = ["007", "7", "42"] if numeric else rng.sample(SUBJECTS, rng.randint(3, 4))
    pane, panes = rng.choice(((10, 1), (5, 2) if reloading else (10, 1), (5, 2), (5, 3)))
    lateness = 0 if reloading else rng.choice((0, 0, 7, 20))
    start = rng.random() < 0.5
    spans = (0, 1_000_000, 3_000_000) if rng.random() < 0.4 else ()
    private: list[dict[str, Any]] = []
    seen: set[Pattern] = set()
    for _ in range(rng.randint(1, 3)):
        types = rng.sample(hidden, rng.randint(1, len(hidden)))
        pattern = random_pattern(rng, types, rng.randint(0, 1), spans=())
        if pattern not in seen:
            seen.add(pattern)
            some = ["007"] if numeric else rng.sample(subjects, rng.randint(1, len(subjects) - 1))
            private.append({"pattern": pattern, "subjects": some if rng.random() < 0.5 else None})
    if shaded:
        private.append({"pattern": "z"})
    for one in private:
        one["epsilon"] = Decimal(rng.choice(EPSILONS))
    if rng.random() < 0.2:
        private[0]["limit"] = f"{2 * private[0]['epsilon']} per 30 s"
    names = list(events)
    queries = [
        random_pattern(
            rng,
            names,
            rng.choice((1, 1, 2)),
            where=rng.random() < 0.25,
            negation=rng.random() < 0.5,
            repetition=rng.random() < 0.5,
            spans=spans,
        )
        for _ in range(rng.randint(1, 3))
    ]
    plain = {
        "subjects": subjects,
        "streams": {
            name: {"subject": "who", "time": "at", "columns": dict(TYPES) if declared else {}}
            for name in streams
        },
        "areas": {"zone": {"box": [10, 40, 11, 41]}},
        "windows": {
            "size": f"{pane * panes} s",
            "slide": f"{pane} s",
            "lateness": f"{lateness} s",
            **rng.choice(({"future": "10 min"}, {"future": "1 h", "jump": "2 min"})),
            **({"start": "2023-11-14T22:00:00Z"} if start else {}),
        },
        "events": events,
        "private": private,
        "queries": [
            {"name": f"q{number}", "consumer": rng.choice(("us", "them")), "pattern": pattern}
            for number, pattern in enumerate(queries)
        ],
    }
    return plain, areas_alone


def _where(rng: Random, guard: str) -> str:
    """A condition that holds for tuples of one kind at most."""
    parts = [f"({rng.choice(_CONDITIONS)})" for _ in range(rng.choice((0, 1, 1, 2)))]
    joined = rng.choice((" AND ", " OR ")).join(parts)
    return f"{guard} AND ({joined})" if parts else guard


def _random_plan(rng: Random, spec: Specification, *, declared: bool) -> Plan:
    mechanism = rng.choice(("uniform", "adaptive", "optimal"))
    decode = rng.choice(("literal", "posterior"))
    plan = make_plan(spec, _assume(rng, spec), mechanism, decode)
    if declared:
        return plan
    # The types that history had.
    return replace(plan, columns={stream: dict(TYPES) for stream in spec.streams})


def _assume(rng: Random, spec: Specification) -> list[Statistics]:
    """What is known of events that are independent."""
    rates = {name: rng.choice((0.1, 0.3, 0.5)) for name in spec.events}
    queries = tuple(spec.query_patterns.values())
    return [
        assume_statistics(policy, queries, rates, spec.windows.panes)
        for policy in Policies(spec).policies
    ]


def describe(world: World) -> str:
    """What a failed comparison was about."""
    plan = {"mechanism": world.plan.mechanism, "decode": world.plan.decode}
    return json.dumps({"seed": world.seed, **plan, "codings": [s.coding for s in world.sources]})
