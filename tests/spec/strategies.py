"""Random specifications that have no mistakes."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal

from hypothesis import strategies as st

from tacit.events.areas import Area
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.conditions import KEYWORDS
from tacit.patterns.tree import Name, Pattern
from tacit.spec.epsilon import Limit
from tacit.spec.specification import Private, Query, Specification
from tacit.spec.subjects import LearnedSubjects
from tacit.windows.schedule import Windows
from tests.patterns.strategies import random_pattern

_LETTERS = string.ascii_letters + "_"
names = st.builds(
    str.__add__, st.sampled_from(_LETTERS), st.text(_LETTERS + string.digits, max_size=6)
).filter(lambda name: name.upper() not in KEYWORDS)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
lengths = st.integers(1, 10**12).map(lambda number: timedelta(microseconds=number))
epsilons = st.decimals("0.000000001", "1000000", allow_nan=False)
conditions = st.sampled_from(["speed < 1", "zone = 'a: b, {c} # d'", "NOT hired", "x IS NULL"])


@st.composite
def areas(draw: st.DrawFn) -> Area:
    """A box or a circle."""
    lon, lat = draw(st.floats(-180, 180)), draw(st.floats(-90, 90))
    if draw(st.booleans()):
        east, north = draw(st.floats(lon, 180)), draw(st.floats(lat, 90))
        return Area(box=(lon, lat, east, north))
    radius = draw(st.floats(1e-3, 1e6))
    return Area.model_validate({"circle": [lon, lat, f"{radius!r} m"]})


@st.composite
def subject_lists(draw: st.DrawFn) -> tuple[str, ...]:
    """Names, and such that look like something else."""
    odd = st.sampled_from(["007", "+7", "-0", "1e3", "true", "~", "0x7", "7_0", "0o7", "1:30"])
    names = texts | odd | st.integers().map(str)
    return tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))


@st.composite
def specifications(draw: st.DrawFn) -> Specification:
    """Everything that a specification can say, but for files."""
    known = draw(st.lists(names, min_size=5, max_size=9, unique=True))
    streams = draw(st.dictionaries(names, st.builds(_stream, texts, texts), min_size=1, max_size=2))
    places = draw(st.dictionaries(names, areas(), max_size=3))
    inside = st.none() if not places else st.none() | st.sampled_from(list(places))
    events = {
        name: EventType(
            stream=draw(st.sampled_from(list(streams))),
            where=draw(st.none() | conditions),
            inside=draw(inside),
        )
        for name in known[:3]
    }
    size = draw(lengths)
    spans = tuple(draw(st.sampled_from([0, 1, size // timedelta(microseconds=1)])) for _ in "ab")
    rng = draw(st.randoms(use_true_random=False))

    def pattern() -> Pattern:
        return random_pattern(rng, known[:3], where=draw(st.booleans()), spans=spans)

    patterns: dict[str, Pattern] = {name: pattern() for name in known[3:]}
    registry = draw(st.none() | subject_lists() | st.builds(LearnedSubjects, learn=lengths))
    subjects = registry if isinstance(registry, tuple) else draw(st.none() | subject_lists())
    return Specification(
        streams=streams,
        areas=places,
        windows=Windows(
            size=size,
            lateness=draw(lengths),
            future=draw(lengths),
            start=draw(st.none() | st.datetimes(datetime(1, 1, 2), timezones=st.just(UTC))),
        ),
        events=events,
        patterns=patterns,
        private=[
            Private(
                pattern=Name(name),
                epsilon=(epsilon := draw(epsilons)),
                subjects=draw(st.sampled_from([None, subjects])),
                limit=draw(st.none() | lengths.map(lambda span: _limit(epsilon, span))),
            )
            for name in draw(st.lists(st.sampled_from(known), max_size=2, unique=True))
        ],
        queries=[
            Query(
                name=name,
                consumer=draw(texts),
                pattern=Name(known[-1]) if draw(st.booleans()) else pattern(),
                alpha=draw(st.floats(0, 1)),
                quality=draw(st.none() | st.floats(0, 1, exclude_min=True)),
            )
            for name in draw(st.lists(names, max_size=3, unique=True))
        ],
        mechanism=draw(st.sampled_from(["uniform", "adaptive", "optimal", "auto"])),
        decode=draw(st.sampled_from(["posterior", "literal"])),
        subjects=registry,
    )


def _stream(subject: str, time: str) -> Stream:
    return Stream(subject=subject, time=time)


def _limit(epsilon: Decimal, horizon: timedelta) -> Limit:
    # Windows are charged in whole nano-epsilon.
    amount = epsilon.quantize(Decimal("1e-9"), ROUND_CEILING)
    return Limit(amount=amount, horizon=horizon)
