"""The exact probability of all that may be released about a stream, where windows slide.

`enumeration` gives each script a window to itself. Here windows hang together, so each script
has a subject to itself, and an outcome is all rows of that subject, in all windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations, product
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.planning.survey import assume_statistics
from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms import pane_noise
from tacit.privacy.mechanisms.optimal import contexts
from tacit.privacy.policies import Policies, PrivatePattern
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tacit.windows.schedule import Windows
from tests.privacy.enumeration import (
    FIRST,
    Ints,
    Outcome,
    Outcomes,
    ScriptedNoise,
    TooManyOutcomesError,
    _products,
    _summed,
    _untried,
    unpacked,
    within,
)
from tests.privacy.worlds import specification

Event = tuple[int, str]
"""A time, counted from the beginning of the first pane, and an event type."""
Stream = frozenset[Event]
"""What a subject sends: each type at most once at a time."""
MOST = 120_000


def sliding(
    private: Sequence[tuple[str, str]],
    queries: Sequence[str],
    *,
    panes: int,
    types: str = "abs",
    slide: int = 1,
) -> Specification:
    """A specification whose windows have so many panes."""
    spec = specification(private, queries, types=types)
    windows = {"size": f"{panes * slide} us", "slide": f"{slide} us", "future": "10 s"}
    return spec.model_copy(update={"windows": Windows.model_validate(windows)}).checked()


def by_hand(spec: Specification, mechanism: str, decode: str) -> Plan:
    """A plan for events that are as likely as not: then answers tell most."""
    return make_plan(spec, statistics_by_hand(spec), mechanism, decode)


def statistics_by_hand(spec: Specification) -> list[Statistics]:
    """What is known of events that are as likely as not."""
    queries = tuple(spec.query_patterns.values())
    return [
        assume_statistics(policy, queries, {}, spec.windows.panes)
        for policy in Policies(spec).policies
    ]


class StreamNoise(ScriptedNoise):
    """Takes outcomes from scripts, one for each subject."""

    def decide(self, places: Ints, kinds: Ints) -> Ints:
        """An outcome for each of some draws, in whichever order subjects come."""
        order = np.argsort(places, kind="stable")
        picks = np.empty(len(places), np.int64)
        picks[order] = super().decide(places[order], kinds[order])
        return picks

    def flip(
        self,
        words: NDArray[np.uint64],
        channel: Channel,
        lanes: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.uint64]:
        """Flips bits, or not, by the script."""
        assert lanes is None
        bits = unpacked(words)[:, : self.subjects]
        kinds = np.array([self.kind(row) for row in channel.table.tolist()])
        places = np.tile(np.arange(self.subjects), len(bits))
        picks = self.decide(places, kinds[bits.ravel()]).reshape(bits.shape)
        full = np.zeros((len(words), 64 * words.shape[1]), np.uint8)
        full[:, : self.subjects] = picks
        packed: NDArray[np.uint64] = np.packbits(full, axis=1, bitorder="little").view(np.uint64)
        return packed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out whom each draw is for."""
        look = pane_noise.find_set_bits

        def finding(find: Any) -> Any:
            def spy(*arguments: Any) -> int:
                drawn: int = find(*arguments)
                codes, _, places = arguments[-3:]
                self.places = places[:drawn] // codes.shape[1] % self.subjects
                return drawn

            return spy

        def looking(column: NDArray[np.uint64], slots: int) -> Ints:
            here = look(column, slots)
            self.places = here % slots
            return here

        with (
            patch.object(contexts, "_find_rows", finding(contexts._find_rows)),
            patch.object(contexts, "_find_rows_at_once", finding(contexts._find_rows_at_once)),
            patch.object(pane_noise, "find_set_bits", looking),
        ):
            yield


def batches(spec: Specification, streams: Sequence[Stream], panes: int) -> list[pa.RecordBatch]:
    """What subjects send, pane by pane; the last of them sends something in every pane."""
    slide = spec.windows.pane
    rows: list[list[tuple[int, int, str]]] = [[] for _ in range(panes)]
    for pane in range(panes):
        rows[pane].append((len(streams), pane * slide, ""))
    for number, stream in enumerate(streams):
        for time, name in sorted(stream):
            rows[time // slide].append((number, time, name))
    found = []
    for part in rows:
        who, at, what = zip(*part, strict=True)
        frame = pl.DataFrame(
            {
                "who": list(map(str, who)),
                "at": np.array(at) + FIRST * slide,
                **{name: [int(kind == name) for kind in what] for name in spec.events},
                "v": np.array(at, np.float64),
                "w": np.ones(len(at)),
            }
        )
        found += frame.to_arrow().combine_chunks().to_batches()
    return found


@dataclass(frozen=True)
class Way:
    """How a run goes on: in one go, pane by pane, or with a new engine after each pane."""

    steps: bool = True
    restored: bool = False


def released(
    spec: Specification,
    plan: Plan,
    streams: Sequence[Stream],
    panes: int,
    noise: StreamNoise,
    way: Way,
) -> list[Outcome]:
    """Run the pipeline on streams, each of a subject; all rows of each of them."""
    names = tuple(map(str, range(len(streams) + 1)))
    spec = spec.model_copy(update={"subjects": names})
    engine = _engine(spec, plan, noise, names)
    sent = batches(spec, streams, panes)
    if not way.steps:
        sent = [pa.Table.from_batches(sent).combine_chunks().to_batches()[0]]
    answers: list[Answers] = []
    with noise.watching():
        for batch in sent:
            answers += engine.push(Rows("p", batch))
            if way.restored:
                snapshot = engine.snapshot()
                engine = _engine(spec, plan, noise, ())
                engine.restore(snapshot)
        answers += engine.finish()
    assert sum(part.windows for part in answers) == panes + spec.windows.panes - 1
    said = np.concatenate([part.detected for part in answers])
    queries = range(len(spec.queries))
    sure = np.concatenate(
        [np.stack([part.confidence(query) for query in queries], axis=1) for part in answers]
    ).astype(np.float32)
    return [
        (said[:, :, number].tobytes(), sure[:, :, number].tobytes(), b"")
        for number in range(len(streams))
    ]


def _engine(spec: Specification, plan: Plan, noise: StreamNoise, names: Sequence[str]) -> Engine:
    registry = Subjects()
    registry.add(names)
    return Engine(CompiledSpec(spec, ProtectedEvaluator(spec, plan.mechanisms, noise)), registry)


def enumerated(
    spec: Specification,
    plan: Plan,
    streams: Sequence[Stream],
    panes: int,
    way: Way = Way(),  # noqa: B008 - it is frozen
) -> Outcomes:
    """All that may be released about each of the streams."""
    numbers = np.arange(len(streams))
    scripts = np.full((len(streams), 0), -1)
    found: list[tuple[int, Outcome, int, int]] = []
    while len(numbers):
        full = np.concatenate([scripts, np.full((1, scripts.shape[1]), -1)])
        noise = StreamNoise(full, len(numbers) + 1)
        rows = released(spec, plan, [streams[n] for n in numbers.tolist()], panes, noise, way)
        kinds, picks, drawn = noise.kinds[:-1], noise.picks[:-1], noise.drawn[:-1]
        weights, exponents = _products(noise, kinds, picks, drawn)
        found += [
            (int(number), outcome, weight, int(exponent))
            for number, outcome, weight, exponent in zip(
                numbers, rows, weights, exponents, strict=True
            )
        ]
        scripted = (scripts >= 0).sum(axis=1)
        numbers, scripts = _untried(noise, numbers, scripted, kinds, picks, drawn)
        if len(found) + len(numbers) > MOST:
            raise TooManyOutcomesError
    return _summed(len(streams), found)


def all_streams(spec: Specification, private: Iterable[str], panes: int) -> list[Stream]:
    """All streams of private events over some panes, at any of the times."""
    events = list(product(range(panes * spec.windows.pane), private))
    some = chain.from_iterable(combinations(events, size) for size in range(len(events) + 1))
    return [frozenset(chosen) for chosen in some]


def occurrences(spec: Specification, pattern: PrivatePattern, panes: int) -> list[Stream]:
    """One event of each element, all of them inside one window."""
    times, slide = range(panes * spec.windows.pane), spec.windows.pane
    names = sorted(pattern.elements)
    return [
        frozenset(zip(chosen, names, strict=True))
        for chosen in product(times, repeat=len(names))
        if max(chosen) // slide - min(chosen) // slide < spec.windows.panes
    ]


def furthest(
    spec: Specification,
    plan: Plan,
    panes: int,
    public: Iterable[Event] = (),
    way: Way = Way(),  # noqa: B008
) -> dict[str, tuple[Fraction, Fraction | None]]:
    """For each private pattern its epsilon and the largest ratio that an occurrence makes."""
    (policy,) = Policies(spec).policies
    hidden = all_streams(spec, sorted(policy.private), panes)
    outcomes = enumerated(spec, plan, [one | frozenset(public) for one in hidden], panes, way)
    numbers = {stream: number for number, stream in enumerate(hidden)}
    found: dict[str, tuple[Fraction, Fraction | None]] = {}
    for pattern in policy.patterns:
        pairs: dict[int, set[int]] = defaultdict(set)
        for occurrence in occurrences(spec, pattern, panes):
            for stream, number in numbers.items():
                pairs[number].add(numbers[stream | occurrence])
        ratios = [outcomes.furthest([one, other]) for one in pairs for other in pairs[one]]
        worst = None if None in ratios else max(ratio for ratio in ratios if ratio is not None)
        found[pattern.name] = (pattern.epsilon, worst)
    return found


def broken(
    spec: Specification,
    plan: Plan,
    panes: int,
    public: Iterable[Event] = (),
    way: Way = Way(),  # noqa: B008
) -> list[str]:
    """The private patterns whose promise is not kept."""
    found = furthest(spec, plan, panes, public, way)
    return [name for name, (epsilon, ratio) in found.items() if not within(ratio, epsilon)]
