"""Runs of a few windows with memory, and the exact probability of all that they may release.

Windows hang together here, so each script has a subject to itself, and an outcome is all that is
released or charged for that subject in all windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.events.subjects import Subjects
from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account
from tacit.patterns.tree import elements
from tacit.pipeline.accountant import list_claims
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.pacing import Pacer
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.window_state import ClosedWindows
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory import kernels, protector
from tacit.privacy.mechanisms.optimal.memory.candidates import CandidateBook, design_candidates
from tacit.privacy.mechanisms.optimal.memory.model import ComponentMemory
from tacit.privacy.mechanisms.optimal.memory.transitions import (
    MOST_JOINT,
    CellLayout,
    Transitions,
)
from tacit.privacy.noise import Noise
from tacit.privacy.pacing import Pacing
from tacit.privacy.policies import Policies
from tacit.privacy.prices import NANO
from tacit.privacy.randomness import SeededSource
from tacit.spec.epsilon import Limit
from tacit.spec.specification import Specification
from tests.privacy.enumeration import (
    FIRST,
    Ints,
    ScriptedNoise,
    _products,
    _untried,
    within,
)
from tests.privacy.streams import statistics_by_hand
from tests.privacy.worlds import by_hand, specification

Stream = tuple[str, ...]
"""The event types of a subject in each window, each of them a letter."""


@dataclass(frozen=True)
class Told:
    """What is released and charged for a subject in all windows."""

    answers: bytes
    confidences: bytes
    exhausted: tuple[bool, ...]
    charges: tuple[tuple[int, ...], ...]
    """`[window][private pattern]`, in nano-epsilon."""


def limited(spec: Specification, limit: str, spend: str = "every") -> Specification:
    """The same with a limit for every private pattern."""
    update = {"limit": Limit.model_validate(limit), "spend": spend}
    private = tuple(one.model_copy(update=update) for one in spec.private)
    return spec.model_copy(update={"private": private})


def remembering(
    private: Sequence[tuple[str, str]], queries: Sequence[str], types: str = "abs", **more: Any
) -> Specification:
    """A small specification, with all subjects of one policy."""
    return specification(private, queries, types=types, **more)


def random_transitions(
    rng: np.random.Generator,
    variables: int,
    groups: int,
    *,
    profiles: int = 1,
    slots: int = 1,
    lasting: float = 20.0,
) -> Transitions:
    """Tables in which values last; cells differ from each other."""
    joint = variables <= MOST_JOINT
    values = 1 << variables if joint else 2
    chains = profiles if joint else variables
    kinds = min(groups, 2)
    layout = CellLayout(np.arange(groups) % kinds, kinds, slots, (0.3, 0.6))
    shape = (layout.cells, chains, values, values)
    counts = rng.gamma(0.5, 2.0, shape) + lasting * np.eye(values) * rng.random(shape)
    weights = rng.dirichlet(np.ones(chains)) if joint else np.ones(chains)
    starts = rng.gamma(1.0, 1.0, (kinds, chains, values))
    return Transitions(layout, joint, weights, counts, starts, (0.5, 0.5))


def random_candidates(rng: np.random.Generator, channels: ComponentChannels) -> CandidateBook:
    """Several channels for each block of each context, best for different beliefs."""
    width = len(channels.component.signals)
    found: dict[bytes, tuple[tuple[Channel, ...], ...]] = {}
    if width > 4:
        return CandidateBook(found)
    for bits in product((False, True), repeat=width):
        signals = np.array(bits, np.bool_)
        outline = channels.outline(signals)
        if outline is None:
            continue
        blocks = []
        for block in outline.blocks:
            classes = len(block.choice.answers)
            beliefs = np.repeat(rng.dirichlet(np.full(classes, 0.2), 12), 2, axis=0)
            blocks.append(design_candidates(block, beliefs))
        found[np.packbits(signals).tobytes()] = tuple(blocks)
    return CandidateBook(found)


def with_memory(plan: Plan, seed: int = 0, **more: Any) -> Plan:
    """The same plan with memory that is made by hand."""
    rng = np.random.default_rng(seed)
    mechanisms: list[Mechanism] = []
    for mechanism in plan.mechanisms:
        if not isinstance(mechanism, Optimal):  # no query is about anything private
            mechanisms.append(mechanism)
            continue
        memory = tuple(
            ComponentMemory(
                random_transitions(
                    rng, len(channels.component.variables), channels.prior.groups, **more
                ),
                random_candidates(rng, channels),
            )
            for channels in mechanism.component_channels
        )
        mechanisms.append(replace(mechanism, memory=memory))
    return replace(plan, mechanisms=tuple(mechanisms))


def plan_by_hand(spec: Specification, seed: int = 0, **more: Any) -> Plan:
    """A plan with memory, for events that are as likely as not."""
    statistics = statistics_by_hand(spec) if spec.windows.panes > 1 else by_hand(spec, {})
    return with_memory(make_plan(spec, statistics, "optimal"), seed, **more)


def paced(plan: Plan, spec: Specification, ratio: float) -> Plan:
    """The same plan with pacing: a window is paid for if its gain per epsilon reaches a ratio.

    Windows that gain less are explored, and nothing more.
    """
    demand = np.array([[1e6], [0]]) * np.ones(24)
    pacing = Pacing(np.array([0.0, ratio]), {one.name: demand for one in spec.private})
    return replace(
        plan,
        mechanisms=tuple(
            replace(one, pacing=pacing) if isinstance(one, Optimal) else one
            for one in plan.mechanisms
        ),
    )


class SubjectNoise(ScriptedNoise):
    """Takes outcomes from scripts, one for each subject."""

    def decide(self, places: Ints, kinds: Ints) -> Ints:
        """An outcome for each of some draws, in whichever order subjects come."""
        order = np.argsort(places, kind="stable")
        picks = np.empty(len(places), np.int64)
        picks[order] = super().decide(places[order], kinds[order])
        return picks

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out whom each draw is for."""
        find = kernels.find_rows

        def spy(*arguments: Any) -> int:
            drawn: int = find(*arguments)
            chosen, _, places = arguments[-3:]
            self.places = places[:drawn] // chosen.shape[1]
            return drawn

        # All subjects are followed at once: places are those of rows in one call.
        with patch.object(kernels, "find_rows", spy), patch.object(protector, "_STRETCH", 1 << 40):
            yield


def batches(
    spec: Specification, streams: Sequence[Stream], first: int = FIRST
) -> list[pa.RecordBatch]:
    """What subjects send, window by window; one more sends something in every window."""
    size, found = spec.windows.pane, []
    for window in range(len(streams[0])):
        at = (first + window) * size
        rows = [(len(streams), "")]
        rows += [(number, types) for number, one in enumerate(streams) if (types := one[window])]
        frame = pl.DataFrame(
            {
                "who": [str(number) for number, _ in rows],
                "at": np.full(len(rows), at),
                **{name: [int(name in types) for _, types in rows] for name in spec.events},
                "v": np.ones(len(rows)),
                "w": np.ones(len(rows)),
            }
        )
        found += frame.to_arrow().combine_chunks().to_batches()
    return found


@dataclass
class Way:
    """How a run goes on. Subclasses plant what can go wrong."""

    restored: bool = False
    """With a new engine after each window."""
    redrawn: bool = False
    """Each draw is thrown away once, as when another engine has charged in between."""
    together: bool = False
    """All windows come in one batch."""
    grouped: bool = False
    """All windows come in one batch and are answered at once; nothing is charged."""
    explored: tuple[bool, ...] = ()
    """The windows that are paid for although they gain little: chance decides this for every
    subject, and the guarantee holds whatever it decides."""


class ExploringSource(SeededSource):
    """Octets with which all subjects pay in some windows, and in others only if it is certain."""

    def __init__(self, explored: Sequence[bool]) -> None:
        super().__init__(0)
        self._explored = list(explored)

    def draw_octets(self, count: int) -> NDArray[np.uint8]:
        """The octets of the next window."""
        explored = self._explored.pop(0) if self._explored else False
        return np.full(count, 0 if explored else 255, np.uint8)


class Runner:
    """An engine with accounts, window by window, as a settlement or a shard does it."""

    def __init__(
        self,
        spec: Specification,
        plan: Plan,
        noise: Noise,
        subjects: int,
        explored: Sequence[bool] = (),
    ) -> None:
        names = tuple(map(str, range(subjects)))
        self.spec = spec.model_copy(update={"subjects": names})
        self.plan, self.noise, self.names = plan, noise, names
        self.engine = self._open(names)
        every = np.ones(subjects, np.bool_)
        own = zip(spec.private, spec.private_patterns, strict=True)
        self.accounts = Accounts(
            np.arange(subjects),
            [
                Account.of(
                    one,
                    every,
                    plan.spent_per_window(one) / Fraction(one.epsilon),
                    frozenset(elements(pattern)),
                )
                for one, pattern in own
            ],
        )
        self.claims = list_claims(self.accounts.private)
        pacings = [mechanism.pacing for mechanism in plan.mechanisms]
        self.pacer = Pacer(spec, pacings, ExploringSource(explored))

    def _open(self, names: Sequence[str]) -> Engine:
        registry = Subjects()
        registry.add(names)
        evaluator = ProtectedEvaluator(self.spec, self.plan.mechanisms, self.noise)
        return Engine(CompiledSpec(self.spec, evaluator), registry)

    def restart(self) -> None:
        """Go on with a new engine."""
        before = self.engine
        self.engine = self._open(())
        self.engine.restore(before.snapshot())
        self.engine.most_windows = before.most_windows

    def bill(self, closed: ClosedWindows) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Who does not pay, and the charges `[private pattern][subject]`."""
        engine, accounts = self.engine, self.accounts
        start = (closed.panes.first - self.spec.windows.panes + 1) * self.spec.windows.pane
        prices = engine.windows.price(closed, self.claims)[0]
        exhausted = accounts.find_exhausted(start, prices)
        if self.pacer.active:
            exhausted |= self.pacer.find_declined(
                accounts,
                start,
                prices,
                engine.windows.gains(closed),
                engine.windows.policy_numbers(closed),
            )
        accounts.charge(start, exhausted, None, prices)
        return exhausted, np.where(exhausted, 0, prices)

    def run(self, sent: Sequence[pa.RecordBatch], way: Way) -> Iterator[tuple[Any, Any, Any]]:
        """Yield answers, who did not pay, and charges, window by window."""
        if way.together or way.grouped:
            sent = pa.Table.from_batches(sent).combine_chunks().to_batches()
        self.engine.most_windows = None if way.grouped else 1
        for number in range(len(sent) + 1):
            if number == len(sent):
                windows = self.engine.flush()
            else:
                rows = Rows("p", sent[number])
                windows = self.engine.insert(MergedBatch.from_batch(self.engine.extract(rows)))
            if way.grouped:
                nobody = np.zeros(len(self.names), np.bool_)
                for closed in windows:
                    yield self.engine.answer(closed), nobody, np.zeros((0, len(nobody)), np.int64)
                continue
            for closed in windows:
                yield self._settle(closed, way)
            if way.restored and number < len(sent):
                self.restart()

    def _settle(self, closed: ClosedWindows, way: Way) -> tuple[Any, Any, Any]:
        engine = self.engine
        memory = engine.windows.memory
        exhausted, charges = self.bill(closed)
        shown = exhausted if any(one.limit is not None for one in self.spec.private) else None
        if way.redrawn:
            engine.answer(closed, shown)
            engine.windows.restore_memory(memory)
        return engine.answer(closed, shown), exhausted, charges


def released(
    spec: Specification,
    plan: Plan,
    streams: Sequence[Stream],
    noise: Noise,
    way: Way | None = None,
    first: int = FIRST,
) -> list[Told]:
    """Run the engine on streams, each of a subject: what is told about each of them."""
    way = way or Way()
    runner = Runner(spec, plan, noise, len(streams) + 1, way.explored)
    watched = noise.watching() if isinstance(noise, ScriptedNoise) else nothing()
    with watched:
        found = list(runner.run(batches(spec, streams, first), way))
    assert sum(one.windows for one, _, _ in found) == len(streams[0]) + spec.windows.panes - 1
    said = np.concatenate([answers.detected for answers, _, _ in found])
    queries = range(len(spec.queries))
    sure = np.concatenate(
        [np.stack([one.confidence(query) for query in queries], axis=1) for one, _, _ in found]
    ).astype(np.float32)
    exhausted = np.stack([who for _, who, _ in found])
    charges = np.stack([amounts for _, _, amounts in found])
    return [
        Told(
            said[:, :, number].tobytes(),
            sure[:, :, number].tobytes(),
            tuple(exhausted[:, number].tolist()),
            tuple(map(tuple, charges[:, :, number].tolist())),
        )
        for number in range(len(streams))
    ]


@contextmanager
def nothing() -> Iterator[None]:
    """Watch nothing."""
    yield


Likely = list[dict[Told, int]]
"""For each stream how likely each outcome is, in the same unit for all."""


def enumerated(
    spec: Specification, plan: Plan, streams: Sequence[Stream], way: Way | None = None
) -> Likely:
    """All that may be told about each of the streams."""
    return enumerate_streams(
        streams, SubjectNoise, lambda some, noise: released(spec, plan, some, noise, way)
    )


Noises = TypeVar("Noises", bound=SubjectNoise)
Outcome = tuple[int, Told, int, int]
"""The number of a stream, what is told, and its probability: a number over a power of two."""


def enumerate_streams(
    streams: Sequence[Stream],
    make_noise: Callable[[Ints, int], Noises],
    release: Callable[[list[Stream], Noises], list[Told]],
) -> Likely:
    """All that may be told about each of the streams, many of them in each run."""
    numbers = np.arange(len(streams))
    scripts = np.full((len(streams), 0), -1)
    found: list[Outcome] = []
    while len(numbers):
        full = np.concatenate([scripts, np.full((1, scripts.shape[1]), -1)])
        noise = make_noise(full, len(numbers) + 1)
        rows = release([streams[n] for n in numbers.tolist()], noise)
        kinds, picks, drawn = noise.kinds[:-1], noise.picks[:-1], noise.drawn[:-1]
        weights, exponents = _products(noise, kinds, picks, drawn)
        found += zip(numbers.tolist(), rows, weights, exponents.tolist(), strict=True)
        scripted = (scripts >= 0).sum(axis=1)
        numbers, scripts = _untried(noise, numbers, scripted, kinds, picks, drawn)
        assert len(found) + len(numbers) < 100_000
    return add_up(len(streams), found)


def enumerate_runs(
    number: int, release: Callable[[Ints], tuple[SubjectNoise, Told]]
) -> Iterator[Outcome]:
    """All that may be told about one stream; each outcome is in a run of its own."""
    scripts = [np.full((1, 0), -1)]
    while scripts:
        script = scripts.pop()
        noise, told = release(script)
        kinds, picks, drawn = noise.kinds[:1], noise.picks[:1], noise.drawn[:1]
        (weight,), (exponent,) = _products(noise, kinds, picks, drawn)
        yield number, told, weight, int(exponent)
        scripted = (script >= 0).sum(axis=1)
        _, more = _untried(noise, np.array([number]), scripted, kinds, picks, drawn)
        scripts += [one[np.newaxis] for one in more]


def add_up(streams: int, found: Sequence[Outcome]) -> Likely:
    """Add the probabilities of the same outcome; together they must be 1."""
    bits = max(exponent for *_, exponent in found)
    likely: Likely = [{} for _ in range(streams)]
    for number, outcome, weight, exponent in found:
        likely[number][outcome] = likely[number].get(outcome, 0) + (weight << (bits - exponent))
    assert all(sum(chances.values()) == 1 << bits for chances in likely)
    return likely


def subsets(types: str) -> list[str]:
    """All sets of event types."""
    return [
        "".join(chosen) for size in range(len(types) + 1) for chosen in combinations(types, size)
    ]


def all_streams(hidden: str, public: Sequence[str]) -> list[Stream]:
    """All private events in each window, with these public events."""
    return [
        tuple(private + shown for private, shown in zip(chosen, public, strict=True))
        for chosen in product(subsets(hidden), repeat=len(public))
    ]


@dataclass(frozen=True)
class Broken:
    """Neighbours that can be told apart by more than was charged."""

    pattern: str
    windows: tuple[int, ...]
    """The windows in which they differ, or panes if windows slide."""
    why: str


def find_broken(
    spec: Specification, likely: Likely, streams: Sequence[Stream], *, limit: Fraction | None = None
) -> list[Broken]:
    """Compare all neighbours in one window, and in any number of them, outcome by outcome.

    In every outcome the ratio is at most what was charged in the windows that differ; and so it is
    at most epsilon for each of them, and at most the limit. Where windows slide, streams differ in
    panes, each of which is in several windows, and epsilon is for one occurrence.
    """
    found = []
    (policy,) = Policies(spec).policies
    names = [one.name for one in spec.private]
    panes = spec.windows.panes
    for pattern in policy.patterns:
        account = names.index(pattern.name)
        for size in range(1, len(streams[0]) + 1):
            for differing in combinations(range(len(streams[0])), size):
                groups = _group(streams, pattern.elements, differing)
                windows = sorted({one + more for one in differing for more in range(panes)})
                whole = len(pattern.elements) > 1 and differing[-1] - differing[0] < panes
                most = pattern.epsilon * (1 if whole else size)
                why = _compare(likely, groups, account, windows, most, limit)
                if why is not None:
                    found.append(Broken(pattern.name, differing, why))
    return found


def _group(
    streams: Sequence[Stream], own: frozenset[str], differing: Sequence[int]
) -> list[list[int]]:
    """Streams that are the same but for these event types in these windows."""
    groups: dict[Stream, list[int]] = {}
    for number, stream in enumerate(streams):
        rest = tuple(
            "".join(sorted(set(types) - own)) if window in differing else types
            for window, types in enumerate(stream)
        )
        groups.setdefault(rest, []).append(number)
    return [group for group in groups.values() if len(group) > 1]


def _compare(
    likely: Likely,
    groups: Sequence[Sequence[int]],
    account: int,
    windows: Sequence[int],
    most: Fraction,
    limit: Fraction | None,
) -> str | None:
    seen = set()
    for group in groups:
        for outcome in {outcome for number in group for outcome in likely[number]}:
            charged = sum(outcome.charges[window][account] for window in windows)
            if charged > most * NANO + len(windows):
                return f"{charged} nano-epsilon are more than epsilon"
            if limit is not None and charged > limit * NANO:
                return f"{charged} nano-epsilon are more than the limit"
            chances = [likely[number].get(outcome, 0) for number in group]
            seen.add((charged, min(chances), max(chances)))
    for charged, rarest, likeliest in seen:
        if rarest == 0:
            return "an outcome is possible for one of them only"
        if not _is_within(Fraction(likeliest, rarest), charged):
            return f"a ratio of {likeliest / rarest:.4f} with a charge of {charged} nano-epsilon"
    return None


@cache
def _is_within(ratio: Fraction, charged: int) -> bool:
    return within(ratio, Fraction(charged, NANO))
