"""The exact probability of everything that a protected run may release, by enumeration.

A run takes all its randomness from a `Noise`. The one here draws nothing: it follows a script.
Where a script ends, it takes the first outcome and notes which others there were; the next
round has a script for each of them. When no script is left to try, every outcome of every draw
has been taken once, and the products of the channels' own whole numbers say how likely it was.

Each script has a window and a subject to itself, so that one run tries thousands. That windows
and subjects do not depend on one another is checked by itself, with `ScriptedNoise.trace`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.patterns.reference import Tuple
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.privacy import count_channels
from tacit.privacy.channels import Channel
from tacit.privacy.count_channels import CountChannel, make_count_channel
from tacit.privacy.exponentials import exp_below
from tacit.privacy.mechanisms import counts, noisy_windows, pane_noise
from tacit.privacy.mechanisms.counts import METHODS
from tacit.privacy.mechanisms.optimal import book_draws, contexts, draw
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec import groups
from tacit.spec.specification import Specification

Ints = NDArray[np.int64]
Window = Sequence[Tuple]
"""What a subject sends in a window; times count from its beginning."""
Outcome = tuple[bytes, bytes, bytes]
"""The complete rows of a window and a subject: the answers (-1: there is no row), how sure, and the
counts of the group that has this subject alone."""
ALONE = "own"
"""The column of the registry by which every subject is a group of its own."""
COLUMNS = ("v", "w")
FIRST = 1000
"""The number of the first window."""
DEEPEST = 64
SMALL = 1 << 8
"""The sum of a row in the channels of counts: smaller than in real runs, and audited alike."""
MOST = 60_000


class TooManyOutcomesError(Exception):
    """There is too much to enumerate."""


class ScriptedNoise(Noise):
    """Takes outcomes from scripts: one for each window and subject, `scripts[place][draw]`."""

    def __init__(self, scripts: Ints, subjects: int, *, last: bool = False) -> None:
        super().__init__(SeededSource(0))
        self.subjects = subjects
        self.last = last
        """Whether the last outcome is taken where a script ends, and not the first."""
        self.scripts = scripts
        self.drawn = np.zeros(len(scripts), np.int64)
        """For each place, how often was drawn for it."""
        self.kinds = np.full((len(scripts), DEEPEST), -1)
        """What was drawn from: the number of a row of weights."""
        self.picks = np.full((len(scripts), DEEPEST), -1)
        self.weights: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self.window = 0
        """The place of the first of the windows that are being answered."""
        self.slots: Ints = np.arange(subjects)
        """The subjects that are drawn for."""
        self.places: Ints = np.empty(0, np.int64)
        """The window and subject of each of the next draws from channels, or of times."""
        self.names: list[str] = []
        """The names of the subjects, as they are registered."""
        self.counted: list[Ints] = []
        self.told: set[int] = set()
        """The numbers of counts that are estimated from answers: nothing is drawn for them."""
        """The places of the next draws of counts."""

    def kind(self, weights: Sequence[int]) -> int:
        """The number of a row of weights, whose sum is a power of two."""
        key = tuple(map(int, weights))
        if key not in self._numbers:
            assert sum(key).bit_count() == 1
            self._numbers[key] = len(self.weights)
            self.weights.append(key)
        return self._numbers[key]

    def decide(self, places: Ints, kinds: Ints) -> Ints:
        """An outcome for each of some draws; several for the same place stand together."""
        if not len(places):
            return np.empty(0, np.int64)
        begins = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
        counts = np.diff(np.append(begins, len(places)))
        rank = np.arange(len(places)) - np.repeat(begins, counts)
        depth = self.drawn[places] + rank
        if depth.max() >= DEEPEST:
            raise TooManyOutcomesError
        possible = [[n for n, weight in enumerate(row) if weight] for row in self.weights]
        untold = np.array([symbols[-1 if self.last else 0] for symbols in possible])
        scripted = np.full(len(places), -1)
        inside = depth < self.scripts.shape[1]
        scripted[inside] = self.scripts[places[inside], depth[inside]]
        picks = np.where(scripted >= 0, scripted, untold[kinds])
        self.kinds[places, depth] = kinds
        self.picks[places, depth] = picks
        self.drawn[places[begins]] += counts
        return picks

    def new_sampler(self) -> Any:
        """Draws from channels by the script."""
        return ScriptedSampler(self)

    def flip(
        self,
        words: NDArray[np.uint64],
        channel: Channel,
        lanes: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.uint64]:
        """Flips bits, or not, by the script."""
        bits = unpacked(words)[:, : self.subjects]
        chosen = np.ones_like(bits) if lanes is None else unpacked(lanes)[:, : self.subjects]
        windows, slots = np.nonzero(chosen)
        kinds = np.array([self.kind(row) for row in channel.table.tolist()])
        places = (self.window + windows) * self.subjects + slots
        bits[windows, slots] = self.decide(places, kinds[bits[windows, slots]])
        full = np.zeros((len(words), 64 * words.shape[1]), np.uint8)
        full[:, : self.subjects] = bits
        packed: NDArray[np.uint64] = np.packbits(full, axis=1, bitorder="little").view(np.uint64)
        return packed

    def draw_times(self, count: int, span: int) -> Ints:
        """Times by the script, each as likely as any other."""
        assert count == len(self.places)
        return self.decide(self.places, np.full(count, self.kind([1] * span)))

    def trace(self, place: int) -> list[tuple[tuple[int, ...], int]]:
        """What was drawn for a place: from which weights, and what came."""
        drawn = int(self.drawn[place])
        kinds, picks = self.kinds[place, :drawn].tolist(), self.picks[place, :drawn].tolist()
        return [(self.weights[kind], pick) for kind, pick in zip(kinds, picks, strict=True)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Find out whom each draw is for: where the run knows it, and does not say."""
        answer, protect = (
            ProtectedEvaluator.answer,
            draw.ChannelProtector.protect,
        )
        look = pane_noise.find_set_bits

        def answering(this: Any, closed: Any, *rest: Any) -> Any:
            self.window = closed.first - FIRST
            return answer(this, closed, *rest)

        def protecting(this: Any, windows: Any, own: Any) -> Any:
            self.slots = np.arange(self.subjects) if own is None else np.flatnonzero(own)
            return protect(this, windows, own)

        def finding(find: Any) -> Any:
            def spy(*arguments: Any) -> int:
                drawn: int = find(*arguments)
                codes, _, places = arguments[-3:]
                line = places[:drawn] // codes.shape[1]
                window, subject = np.divmod(line, len(self.slots))
                self.places = (self.window + window) * self.subjects + self.slots[subject]
                return drawn

            return spy

        book_rows = book_draws._find_rows

        def finding_in_book(*arguments: Any) -> None:
            book_rows(*arguments)
            width, _, places, _ = arguments[-4:]
            window, subject = np.divmod(places // width, len(self.slots))
            self.places = (self.window + window) * self.subjects + self.slots[subject]

        def looking(column: NDArray[np.uint64], slots: int) -> Ints:
            here = look(column, slots)
            self.places = self.window * self.subjects + here
            return here

        tally, read = counts.tally_groups, groups.SubjectGroups

        def tallying(layout: Any, *rest: Any) -> Any:
            found = tally(layout, *rest)
            for number, rows in enumerate(layout.rows):
                if number in self.told:
                    continue
                window, row = np.nonzero(found[:, rows, counts._OPEN] > 0)
                if len(window):
                    own = np.array([self.names.index(name) for name in layout.groups[rows]])
                    self.counted.append((self.window + window) * self.subjects + own[row])
            return found

        def counting(channel: CountChannel, inputs: Ints, _: object) -> Ints:
            kinds = np.array([self.kind(row_of(channel, int(true))) for true in inputs])
            return self.decide(self.counted.pop(0), kinds) - channel.reach

        def alone(spec: Specification) -> Any:
            return read({ALONE: {name: name for name in registry(spec)}})

        with (
            patch.object(counts, "tally_groups", tallying),
            patch.object(counts, "make_count_channel", make_small_channel),
            patch.object(count_channels, "_TOTAL", SMALL),
            patch.object(CountChannel, "draw", counting),
            patch.object(groups.SubjectGroups, "read", alone),
            patch.object(ProtectedEvaluator, "answer", answering),
            patch.object(draw.ChannelProtector, "protect", protecting),
            patch.object(contexts, "_find_rows", finding(contexts._find_rows)),
            patch.object(contexts, "_find_rows_at_once", finding(contexts._find_rows_at_once)),
            patch.object(book_draws, "_find_rows", finding_in_book),
            patch.object(noisy_windows, "find_set_bits", looking),
        ):
            yield


def make_small_channel(epsilon: Fraction) -> CountChannel:
    """A channel for a single subject, in a few whole numbers, so that it can be enumerated."""
    with patch.object(count_channels, "_TOTAL", SMALL):
        return make_count_channel.__wrapped__(epsilon, 1)


def row_of(channel: CountChannel, count: int) -> list[int]:
    """The row of a true count in the table of its channel."""
    row = [
        channel.weights[min(abs(output - count), channel.reach)]
        for output in range(-channel.reach, channel.most + channel.reach + 1)
    ]
    return [row[0] + channel.remainder, *row[1:]]


class ScriptedSampler:
    """Stands in for `Sampler`."""

    def __init__(self, noise: ScriptedNoise) -> None:
        self.noise = noise
        self.kinds: list[int] = []

    @property
    def rows(self) -> int:
        """How many rows there are to draw from."""
        return len(self.kinds)

    def extend(self, channels: Sequence[Channel]) -> None:
        """Lay more channels after those that are there."""
        for channel in channels:
            self.kinds += [self.noise.kind(row) for row in channel.table.tolist()]

    def sample(self, rows: Ints) -> NDArray[np.int32]:
        """A symbol for each row, by the script."""
        assert len(rows) == len(self.noise.places)
        return self.noise.decide(self.noise.places, np.array(self.kinds)[rows]).astype(np.int32)


def unpacked(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """`[row][bit]`, lowest first."""
    octets = np.ascontiguousarray(words).astype("<u8").view(np.uint8)
    return np.unpackbits(octets, axis=1, bitorder="little").astype(np.int64)


def frames(
    spec: Specification, subjects: Sequence[str], windows: Sequence[Window], laid: Ints
) -> dict[str, pl.DataFrame]:
    """The tuples that are sent, a frame for each stream.

    Places are numbered window by window and subject by subject; `laid[place]` is the number of
    what is sent there, or -1. In every window somebody also sends a tuple that gives no event,
    so that the schedule is the same whatever else is sent.
    """
    beats = np.arange(0, len(laid), len(subjects))
    order = np.argsort(laid, kind="stable")
    begins = np.searchsorted(laid[order], np.arange(len(windows) + 1))
    sent: dict[str, list[tuple[Ints, Tuple]]] = {stream: [] for stream in spec.streams}
    sent[next(iter(spec.streams))].append((beats, Tuple(0, frozenset())))
    for number, window in enumerate(windows):
        for tuple_ in window:
            places = order[begins[number] : begins[number + 1]]
            sent[stream_of(spec, tuple_)].append((places, tuple_))
    return {stream: _frame(spec, stream, subjects, found) for stream, found in sent.items()}


def registry(spec: Specification) -> list[str]:
    """The names of all subjects."""
    assert isinstance(spec.subjects, tuple)
    return [str(name) for name in spec.subjects]


def stream_of(spec: Specification, tuple_: Tuple) -> str:
    """The stream of a tuple: that of its types, or the first where it has none."""
    found = {spec.events[name].stream for name in tuple_.types} or {next(iter(spec.streams))}
    (stream,) = found
    return stream


def _frame(
    spec: Specification, stream: str, subjects: Sequence[str], sent: list[tuple[Ints, Tuple]]
) -> pl.DataFrame:
    counts = [len(places) for places, _ in sent]
    places = np.concatenate([np.empty(0, np.int64), *(places for places, _ in sent)])
    tuples = [tuple_ for _, tuple_ in sent]

    def column(values: Sequence[Any], kind: Any) -> Any:
        found = pl.Series(values, dtype=kind)
        return found.gather(pl.Series(np.repeat(np.arange(len(counts)), counts)))

    times = np.repeat(np.array([tuple_.time for tuple_ in tuples], np.int64), counts)
    window, slot = np.divmod(places, len(subjects))
    types = [name for name, event in spec.events.items() if event.stream == stream]
    return pl.DataFrame(
        {
            "who": pl.Series(subjects, dtype=pl.String).gather(pl.Series(slot)),
            "at": (FIRST + window) * spec.windows.size + times,
            **{name: column([int(name in t.types) for t in tuples], pl.Int8) for name in types},
            **{
                name: column([t.attributes.get(name) for t in tuples], pl.Float64)
                for name in COLUMNS
            },
        }
    ).sort("at")


@dataclass(frozen=True)
class Rows:
    """The rows that a run released, `[place][query]`: -1 and nan where there is none."""

    detected: NDArray[np.int8]
    sure: NDArray[np.float32]
    counted: NDArray[np.float64]
    """`[place][count][column]`."""

    def outcome(self, place: int) -> Outcome:
        """All rows of a window and a subject."""
        found = self.detected, self.sure, self.counted
        one, two, three = (part[place].tobytes() for part in found)
        return one, two, three


def released(
    spec: Specification, plan: Plan, windows: Sequence[Window], laid: Ints, noise: Noise
) -> Rows:
    """Run the pipeline on windows that are laid out, and read the rows that come out."""
    subjects = {name: number for number, name in enumerate(registry(spec))}
    sent = frames(spec, list(subjects), windows, laid)
    queries = {query.name: number for number, query in enumerate(spec.subject_queries)}
    inputs = [Input(stream, FrameSource(frame, stream)) for stream, frame in sent.items()]
    detected = np.full((len(laid), len(queries)), -1, np.int8)
    sure = np.full(detected.shape, np.nan, np.float32)
    counted = np.full((len(laid), len(spec.count_queries), len(_COUNTED)), np.nan)
    scripted: Any = nullcontext()
    if isinstance(noise, ScriptedNoise):
        noise.names = list(subjects)
        noise.told = {n for n, name in enumerate(plan.counts) if name in plan.answer_counts}
        scripted = noise.watching()
    with scripted:
        for answers in Run(spec, inputs, plan=plan, noise=noise):
            table = pl.DataFrame(answers.table())
            start = table["window_start"].to_physical().to_numpy()
            slot = table["subject"].cast(pl.String).replace_strict(subjects, return_dtype=pl.Int64)
            query = table["query"].cast(pl.String).replace_strict(queries, return_dtype=pl.Int64)
            place = (start // spec.windows.size - FIRST) * len(subjects) + slot.to_numpy()
            assert (detected[place, query.to_numpy()] == -1).all()  # nothing is released twice
            detected[place, query.to_numpy()] = table["detected"].to_numpy()
            sure[place, query.to_numpy()] = table["confidence"].to_numpy()
            if answers.counted is not None:
                _fill_counts(spec, answers.counted.table(), list(subjects), counted)
    return Rows(detected, sure, counted)


_COUNTED = (
    *("count", "low", "high", "confidence", "subjects", "left_out"),
    *("estimate", "estimate_low", "estimate_high", "method"),
)


def _fill_counts(
    spec: Specification, table: pa.Table, subjects: Sequence[str], counted: NDArray[np.float64]
) -> None:
    """Write counts of single subjects to their places."""
    asked = [query.name for query in spec.count_queries]
    for row in pl.DataFrame(table).with_columns(pl.col("window_start").to_physical()).to_dicts():
        window = row["window_start"] // spec.windows.size - FIRST
        place = window * len(subjects) + subjects.index(row["group"])
        row["method"] = METHODS.index(row["method"])
        counted[place, asked.index(row["query"])] = [row[name] for name in _COUNTED]


@dataclass
class Outcomes:
    """For each window the probability of each outcome, in units of 2**-bits."""

    bits: int
    likely: list[dict[Outcome, int]]

    def shares(self, number: int) -> dict[Outcome, Fraction]:
        """The probability of each outcome of a window."""
        return {
            outcome: Fraction(chance, 1 << self.bits)
            for outcome, chance in self.likely[number].items()
        }

    def furthest(self, group: Sequence[int]) -> Fraction | None:
        """The largest ratio of two windows' probabilities in any outcome; None is infinity."""
        likely = [self.likely[number] for number in group]
        outcomes = {outcome for found in likely for outcome in found}
        # Few of them differ in how likely they are.
        chances = {tuple(found.get(outcome, 0) for found in likely) for outcome in outcomes}
        if any(0 in one for one in chances):
            return None
        return max((Fraction(max(one), min(one)) for one in chances), default=Fraction(1))


def within(ratio: Fraction | None, epsilon: Fraction) -> bool:
    """Whether a ratio keeps the promise, exactly."""
    return ratio is not None and ratio <= exp_below(epsilon, 256)


def enumerated(
    spec: Specification, plan: Plan, windows: Sequence[Window], slots: Sequence[Sequence[int]]
) -> Outcomes:
    """All that may be released for windows, each of them sent by any of the subjects `slots`."""
    subjects = registry(spec)
    numbers = np.arange(len(windows))
    scripts = np.full((len(windows), 0), -1)
    found: list[tuple[int, Outcome, int, int]] = []
    while len(numbers):
        places, laid = _laid(numbers, slots, len(subjects))
        full = np.full((len(laid), scripts.shape[1]), -1)
        full[places] = scripts
        noise = ScriptedNoise(full, len(subjects))
        rows = released(spec, plan, windows, laid, noise)
        kinds, picks, drawn = noise.kinds[places], noise.picks[places], noise.drawn[places]
        weights, exponents = _products(noise, kinds, picks, drawn)
        found += [
            (int(number), rows.outcome(place), weight, int(exponent))
            for number, place, weight, exponent in zip(
                numbers, places, weights, exponents, strict=True
            )
        ]
        numbers, scripts = _untried(noise, numbers, (scripts >= 0).sum(axis=1), kinds, picks, drawn)
        if len(found) + len(numbers) > MOST:
            raise TooManyOutcomesError
    return _summed(len(windows), found)


def _laid(numbers: Ints, slots: Sequence[Sequence[int]], subjects: int) -> tuple[Ints, Ints]:
    """A place for each number, at a subject that may send it; and what lies at each place."""
    places = np.empty(len(numbers), np.int64)
    used: dict[int, int] = defaultdict(int)
    for row, number in enumerate(numbers.tolist()):
        # Subjects of one kind share their places.
        own = slots[number]
        window, place = divmod(used[own[0]], len(own))
        used[own[0]] += 1
        places[row] = window * subjects + own[place]
    laid = np.full((int(places.max()) // subjects + 1) * subjects, -1)
    laid[places] = numbers
    return places, laid


def _products(
    noise: ScriptedNoise, kinds: Ints, picks: Ints, drawn: Ints
) -> tuple[NDArray[np.object_], Ints]:
    """The probability of each script: a whole number, and minus the exponent of two."""
    table, exponents = _table(noise)
    weights = np.full(len(drawn), 1, np.object_)
    bits = np.zeros(len(drawn), np.int64)
    for depth in range(int(drawn.max(initial=0))):
        here = drawn > depth
        kind, pick = kinds[here, depth], picks[here, depth]
        weights[here] *= table[kind, pick]
        bits[here] += exponents[kind]
    return weights, bits


def _table(noise: ScriptedNoise) -> tuple[NDArray[np.object_], Ints]:
    widest = max(map(len, noise.weights), default=1)
    table = np.zeros((len(noise.weights), widest), np.object_)
    for number, row in enumerate(noise.weights):
        table[number, : len(row)] = row
    exponents = np.array([sum(row).bit_length() - 1 for row in noise.weights], np.int64)
    return table, exponents


def _untried(
    noise: ScriptedNoise, numbers: Ints, scripted: Ints, kinds: Ints, picks: Ints, drawn: Ints
) -> tuple[Ints, Ints]:
    """The scripts that follow: every other outcome of each draw that no script told."""
    possible = _table(noise)[0] > 0
    whose, scripts = [numbers[:0]], [picks[:0]]
    for depth in range(int(drawn.max(initial=0))):
        for symbol in range(possible.shape[1]):
            fresh = (scripted <= depth) & (depth < drawn) & (picks[:, depth] != symbol)
            fresh[fresh] = possible[kinds[fresh, depth], symbol]
            script = picks[fresh].copy()
            script[:, depth] = symbol
            script[:, depth + 1 :] = -1
            whose.append(numbers[fresh])
            scripts.append(script)
    return np.concatenate(whose), np.concatenate(scripts)[:, : int(drawn.max(initial=0))]


def _summed(windows: int, found: list[tuple[int, Outcome, int, int]]) -> Outcomes:
    bits = max(exponent for *_, exponent in found)
    likely: list[dict[Outcome, int]] = [defaultdict(int) for _ in range(windows)]
    for number, outcome, weight, exponent in found:
        likely[number][outcome] += weight << (bits - exponent)
    assert all(sum(chances.values()) == 1 << bits for chances in likely)  # nothing is left out
    return Outcomes(bits, likely)
