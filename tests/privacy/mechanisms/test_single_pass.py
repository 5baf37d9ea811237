"""Symbols are drawn and decoded in a single pass: the answers are those of single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.connectors.frames import FrameSource
from tacit.kernels.threads import Workers
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms.optimal import single_pass
from tacit.privacy.mechanisms.optimal.single_pass import SinglePass
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import RandomSource, SeededSource
from tacit.privacy.sampling import Sampler, draw_entries, join_tables, make_cells
from tacit.spec.specification import Specification
from tests.longer import longer

KINDS = "abcdefst"
QUERIES = [
    "AND(a, s)",
    "OR(a, c)",
    "AND(a, c, s)",
    "s",
    "AND(b, e, f)",
    "OR(b, AND(d, t))",
    "OR(d, AND(f, s))",
]


def specification(decode: str) -> Specification:
    """Two private patterns, and queries about one of them, both or none."""
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min"},
            "events": {kind: {"stream": "events", "where": f"kind = '{kind}'"} for kind in KINDS},
            "private": [
                {"pattern": "AND(a, b, e)", "epsilon": 2.0},
                {"pattern": "AND(c, d, f)", "epsilon": 1.0},
            ],
            "queries": [
                {"name": f"q{number}", "consumer": "all", "pattern": pattern}
                for number, pattern in enumerate(QUERIES)
            ],
            "subjects": [f"s{number:03}" for number in range(101)],
            "decode": decode,
            "memory": "off",
        }
    ).checked()


def events(seed: int) -> pl.DataFrame:
    """Random events of 101 subjects: the last word of a bit column is not full."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 8 * 60, 3000)) * 1_000_000
    return pl.DataFrame(
        {
            "who": [f"s{number:03}" for number in rng.integers(0, 101, 3000)],
            "at": pl.Series(times).cast(pl.Datetime("us")),
            "kind": [KINDS[number] for number in rng.integers(0, len(KINDS), 3000)],
        }
    )


class Repeated(RandomSource):
    """The same bytes for every request, so that a component's draws do not depend on others'."""

    private = True  # so that it passes for the usual source

    def __init__(self, octets: Sequence[int]) -> None:
        self._bytes = bytes(octets)

    def draw(self, number: int) -> bytes:
        """The first bytes, again and again."""
        return (self._bytes * (1 + number // len(self._bytes)))[:number]


class Fresh(RandomSource):
    """Other bytes for every request: one for each component and call."""

    private = True

    def __init__(self, seed: int) -> None:
        self._seeds = np.random.SeedSequence(seed)

    def draw(self, number: int) -> bytes:
        """Bytes of which fewer are the beginning of more."""
        rng = np.random.default_rng(self._seeds.spawn(1)[0])
        return rng.integers(0, 256, 1 << 16, np.uint8).tobytes()[:number]


def answer(spec: Specification, plan: tacit.Plan, source: RandomSource, threads: int) -> list[Any]:
    """All answers of a run, with their confidence."""
    frames = (frame.to_arrow() for frame in events(2).iter_slices(500))
    inputs = [Input("events", FrameSource(frames))]
    run = Run(spec, inputs, plan=plan, noise=Noise(source), workers=Workers(threads))
    return [
        (one.bits.tolist(), [one.confidence(query).tolist() for query in range(len(QUERIES))])
        for one in run
    ]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was answered in a single pass."""
    done: list[bool] = []
    run = SinglePass.run

    def counted(self: SinglePass, *given: Any) -> Any:
        found = run(self, *given)
        done.append(found is not None)
        return found

    monkeypatch.setattr(SinglePass, "run", counted)
    return done


def plan_for(spec: Specification) -> tacit.Plan:
    return tacit.plan(spec, events(2), mechanism="optimal")


@pytest.mark.parametrize("seed", [0, *longer(1, 2)])
def test_a_single_pass_gives_the_answers_of_single_steps(
    seed: int, passes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specification("posterior")
    plan = plan_for(spec)
    fast = answer(spec, plan, Fresh(seed), 1)
    assert any(passes), "the usual case was not met"
    monkeypatch.setattr(SinglePass, "run", lambda *_: None)
    assert fast == answer(spec, plan, Fresh(seed), 1)
    assert fast != answer(spec, plan, Fresh(seed + 1), 1)


@pytest.mark.cases(2)
@pytest.mark.parametrize("octet", [0, 0x40, 0x81, 0xA0, 0xFF])
def test_threads_and_requests_for_more_bytes_make_no_difference(
    octet: int, passes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one byte again and again, a draw follows from its row alone, in whichever order."""
    monkeypatch.setattr(single_pass, "_FEWEST", 64)
    monkeypatch.setattr(single_pass, "_FIRST_SHARE", 0)
    spec = specification("posterior")
    plan = plan_for(spec)
    source = Repeated([octet])
    fast = answer(spec, plan, source, 2)
    assert any(passes), "the usual case was not met"
    monkeypatch.setattr(SinglePass, "run", lambda *_: None)
    assert fast == answer(spec, plan, source, 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_draw_that_its_first_byte_does_not_decide_takes_eight(seed: int) -> None:
    """Where a symbol begins, the other bytes matter; the tables say which symbol it is."""
    rng = np.random.default_rng(seed)
    table = rng.multinomial(2**20, [0.2, 0.5, 0.3], 4).astype(object) << 43
    channel = Channel(table, [])
    sampler = Sampler(channel, SeededSource(1))
    rows = rng.integers(0, 4, 64)
    octets = rng.integers(0, 256, 1024).astype(np.uint8)
    edges = np.cumsum(table, axis=1)
    octets[rng.random(1024) < 0.7] = int(edges[0, 0]) >> 55
    rows[rng.random(64) < 0.2] = sampler.rows
    firsts = rng.integers(0, 100, 64)
    entries = np.empty(64, np.int32)
    tables = join_tables([sampler])
    used = draw_entries(make_cells(rows, firsts), octets, 3, *tables, entries)
    at = 3
    for row, first_entry, entry in zip(rows, firsts, entries, strict=True):
        if row == sampler.rows:  # nothing to draw: no byte is used
            assert entry == first_entry
            continue
        low = int(octets[at]) << 55
        first, last = (int((edges[row] <= n).sum()) for n in (low, low + 2**55 - 1))
        number = int.from_bytes(octets[at : at + 8].tobytes(), "big") >> 1
        symbol = first if first == last else int((edges[row] <= number).sum())
        at += 1 if first == last else 8
        assert entry == first_entry + symbol
    assert used == at


def test_contexts_that_are_not_planned_are_answered_in_single_steps(passes: list[bool]) -> None:
    spec = specification("posterior")
    few = events(1).filter(pl.col("kind") != "t")
    plan = tacit.plan(spec, few, mechanism="optimal")
    assert answer(spec, plan, Repeated(range(256)), 1)
    assert not passes[0]
    assert passes[-1], "the new contexts are known by now"


def test_symbols_that_are_read_literally_are_combined_in_single_steps(passes: list[bool]) -> None:
    spec = specification("literal")
    assert answer(spec, plan_for(spec), Repeated(range(256)), 1)
    assert not any(passes)
