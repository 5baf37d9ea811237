"""Literal reading: a noisy window, written out, is what the reference matcher is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from random import Random

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple, detect
from tacit.pipeline.evaluators import Evaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.privacy.mechanisms.mechanism import RunMemory
from tacit.privacy.mechanisms.noisy_windows import NoisyWindows
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.windows.panes import ClosedPanes

SIZE = 10
SPEC = """
version: 1
subjects: [{subjects}]
streams:
  s: {{subject: who, time: at, unit: us}}
  t: {{subject: who, time: at, unit: us}}
windows: {{size: 10 us}}
events:
{fillers}  a: {{stream: s, where: "kind = 0"}}
  x: {{stream: s, where: "kind = 1"}}
  ax: {{stream: s, where: "kind <= 1"}}
  b: {{stream: t, where: "kind = 0"}}
  y: {{stream: t, where: "kind = 1"}}
queries: [{{name: q, consumer: c, pattern: a}}]
"""
KINDS = {"s": [{"a", "ax"}, {"x", "ax"}, set()], "t": [{"b"}, {"y"}, set()]}


def specification(fillers: int, subjects: int) -> Specification:
    more = "".join(f'  f{n}: {{stream: s, where: "kind = 9"}}\n' for n in range(fillers))
    return loads(SPEC.format(fillers=more, subjects=", ".join(map(str, range(subjects)))))


class Capture(Evaluator):
    """Keeps closed windows as they are popped."""

    def __init__(self, spec: Specification, reading: NoisyWindows) -> None:
        patterns = [parse_pattern("a")]
        super().__init__(["q"], [compile_queries(spec, patterns, walk=False), reading.queries])
        self.seen: list[tuple[ClosedPanes, Mapping[str, pl.DataFrame]]] = []

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        memory: RunMemory | None = None,
    ) -> tuple[NDArray[np.uint64], None]:
        """The first query's, to be thrown away."""
        self.seen.append((closed, rows))
        return self.queries[0].match(closed, rows), None


class Timed(Noise):
    """Gives times that are a function of how often it was asked, and remembers them."""

    def __init__(self, seed: int) -> None:
        super().__init__(SeededSource(1))
        self.given: list[NDArray[np.int64]] = []
        self._rng = np.random.default_rng(seed)

    def draw_times(self, count: int, span: int) -> NDArray[np.int64]:
        """Known times."""
        self.given.append(self._rng.integers(0, span, count))
        return self.given[-1]


def random_frame(rng: Random, subjects: int, rows: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "who": [rng.randrange(subjects) for _ in range(rows)],
            "at": sorted(rng.randrange(4 * SIZE) for _ in range(rows)),
            "kind": [rng.choice((0, 0, 1, 2)) for _ in range(rows)],
            "v": [rng.choice((0.0, 1.0, 2.0, None)) for _ in range(rows)],
        },
        schema={"who": pl.Int64, "at": pl.Int64, "kind": pl.Int64, "v": pl.Float64},
    )


# What is asked, and what it comes to when comparisons of private attributes count as met.
QUERIES = [
    ("SEQ(a, x)", "SEQ(a, x)"),
    ("SEQ(x, x)", "SEQ(x, x)"),
    ("SEQ(a, NOT x, b)", "SEQ(a, NOT x, b)"),
    ("SEQ(y, x) WITHIN 4 us", "SEQ(y, x) WITHIN 4 us"),
    ("AND(SEQ(a, b), NOT y)", "AND(SEQ(a, b), NOT y)"),
    ("SEQ(x, NOT SEQ(a, b))", "SEQ(x, NOT SEQ(a, b))"),
    ("SEQ(a p, x q) WHERE q.v > p.v", "SEQ(a p, x q)"),
    ("SEQ(a p, x q) WHERE q.v > p.v AND p.v > 0", "SEQ(a p, x q) WHERE p.v > 0"),
    ("SEQ(a p, b r, x) WHERE r.v > p.v", "SEQ(a p, b r, x) WHERE r.v > p.v"),
    ("SEQ(a p, NOT y, b) WHERE p.v > 0", "SEQ(a p, NOT y, b) WHERE p.v > 0"),
    ("AND(NOT x, a p) WHERE p.v > 0", "AND(NOT x, a p) WHERE p.v > 0"),
    ("NOT (SEQ(y, b p) WHERE p.v > 0)", "NOT (SEQ(y, b p) WHERE p.v > 0)"),
    ("SEQ(ax p, x) WHERE p.v > 0", "SEQ(ax p, x) WHERE p.v > 0"),
    ("SEQ(y p, x, b q) WHERE p.v > 0 OR q.v > 1", "SEQ(y, x, b)"),
    ("OR(x, y)", "OR(x, y)"),
]


def closed_windows(
    spec: Specification, reading: NoisyWindows, frames: Mapping[str, pl.DataFrame]
) -> list[tuple[ClosedPanes, Mapping[str, pl.DataFrame]]]:
    capture = Capture(spec, reading)
    inputs = [Input(stream, FrameSource(frame, stream)) for stream, frame in frames.items()]
    list(Run(spec, inputs, evaluator=capture))
    return capture.seen


def public_tuples(
    frames: Mapping[str, pl.DataFrame], private: set[str]
) -> dict[tuple[int, int], list[Tuple]]:
    found: dict[tuple[int, int], list[Tuple]] = defaultdict(list)
    for stream, frame in frames.items():
        for row in frame.iter_rows(named=True):
            kinds = KINDS[stream][row["kind"]] - private
            found[row["at"] // SIZE, row["who"]].append(
                Tuple(row["at"], frozenset(kinds), {"v": row["v"]})
            )
    return found


def check(
    spec: Specification, frames: Mapping[str, pl.DataFrame], private: set[str], seed: int
) -> None:
    """Random noisy bits; the answers of all queries in all windows against the reference."""
    reading = NoisyWindows(spec, [parse_pattern(asked) for asked, _ in QUERIES], private)
    looser = [parse_pattern(read) for _, read in QUERIES]
    public = public_tuples(frames, private)
    rng = np.random.default_rng(seed)
    windows = 0
    for closed, rows in closed_windows(spec, reading, frames):
        count, slots, _ = closed.words.shape
        plain = rng.random((count, len(reading.private), slots)) < 0.6
        padded = np.ones((*plain.shape[:2], -(-slots // 64) * 64), np.bool_)
        padded[:, :, :slots] = plain
        noisy = np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)
        noise = Timed(seed)
        bits = reading.answer(closed, rows, noisy, noise)
        octets = bits.astype("<u8").view(np.uint8)
        answers = np.unpackbits(octets, axis=2, bitorder="little", count=slots)
        assert len(noise.given) == len(reading.private)
        times = [iter(given) for given in noise.given]
        for window in range(count):
            invented: list[list[Tuple]] = [[] for _ in range(slots)]
            begin = (closed.first + window) * SIZE
            for place, name in enumerate(reading.private):
                for slot in np.flatnonzero(plain[window, place]).tolist():
                    time = begin + int(next(times[place]))
                    invented[slot].append(Tuple(time, frozenset({name})))
            for slot in range(slots):
                shown = public[closed.first + window, slot] + invented[slot]
                expected = [detect(pattern, shown) for pattern in looser]
                assert answers[window, :, slot].tolist() == expected, shown
        windows += count
    assert windows


@pytest.mark.parametrize("fillers", [0, 62, 130])
def test_answers_are_those_of_the_noisy_windows_written_out(fillers: int) -> None:
    """With event types in several mask words, and subjects that sent nothing."""
    rng = Random(fillers)
    spec = specification(fillers, 70)
    frames = {stream: random_frame(rng, 60, 300) for stream in "st"}
    check(spec, frames, {"x", "y"}, 1)


def test_a_stream_may_have_sent_nothing() -> None:
    rng = Random(1)
    spec = specification(0, 9)
    for silent in "st":
        frames = {stream: random_frame(rng, 9, 0 if stream == silent else 60) for stream in "st"}
        check(spec, frames, {"x", "y"}, 2)


def test_invented_events_come_in_windows_in_which_no_tuple_came() -> None:
    """Neither stream compares anything there: one tuple far away keeps the schedule going."""
    spec = specification(0, 3)
    one = pl.DataFrame({"who": [0, 0], "at": [1, 39], "kind": [2, 2], "v": [1.0, 1.0]})
    check(spec, {"s": one, "t": one.clear()}, {"x", "y"}, 3)


def test_a_private_element_has_one_time_for_all_queries_of_a_window() -> None:
    """Of order alone and with conditions: `times` are drawn once for each private type."""
    spec = specification(0, 2)
    patterns = [parse_pattern("SEQ(a, x)"), parse_pattern("SEQ(a p, x) WHERE p.v > 0")]
    reading = NoisyWindows(spec, patterns, {"x"})
    frame = pl.DataFrame({"who": [0, 1], "at": [5, 5], "kind": [0, 0], "v": [1.0, 1.0]})
    ((closed, rows),) = closed_windows(spec, reading, {"s": frame, "t": frame.clear()})
    for seed in range(20):
        bits = reading.answer(closed, rows, np.full((1, 1, 1), 3, np.uint64), Timed(seed))
        assert bits[0, 0, 0] & np.uint64(3) == bits[0, 1, 0] & np.uint64(3)


def test_private_events_themselves_are_not_looked_at() -> None:
    """The same answers for the same noise, whatever the true private events are."""
    spec = specification(0, 5)
    rng = Random(4)
    public = random_frame(rng, 5, 60).filter(pl.col("kind") != 1)
    patterns = [parse_pattern(asked) for asked, _ in QUERIES if "ax" not in asked]
    found = []
    for rows in (0, 10, 50):
        hidden = random_frame(rng, 5, rows).with_columns(kind=pl.lit(1, pl.Int64))
        frame = pl.concat([public, hidden]).sort("at")
        reading = NoisyWindows(spec, patterns, {"x", "y"})
        seen = closed_windows(spec, reading, {"s": frame, "t": frame})
        noisy = np.random.default_rng(1).integers(0, 32, (4, 2, 1)).astype(np.uint64)
        bits = [
            reading.answer(closed, kept, noisy[: len(closed.words)], Timed(1))
            for closed, kept in seen
        ]
        found.append(np.concatenate(bits) & np.uint64(31))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
