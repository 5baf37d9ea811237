"""With memory, all steps of a window are taken in one loop: it gives what single steps give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.kernels.threads import Workers
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory import kernels, protector
from tacit.privacy.mechanisms.optimal.memory.beliefs import Arguments, BeliefFilter
from tacit.privacy.mechanisms.optimal.memory.planning import plan_memory
from tacit.privacy.noise import Noise
from tacit.privacy.quality import QualityObjective
from tacit.privacy.randomness import RandomSource
from tacit.privacy.sampling import Sampler
from tacit.spec.specification import Specification

KINDS = "abcdefst"
QUERIES = ["AND(a, s)", "AND(a, b, t)", "OR(b, AND(e, t))", "AND(c, s)", "OR(d, AND(f, s))", "s"]


def specification(second: str = "AND(c, d, f)") -> Specification:
    """Two private patterns of three events, and queries about one of them or none."""
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min"},
            "events": {kind: {"stream": "events", "where": f"kind = '{kind}'"} for kind in KINDS},
            "private": [
                {"pattern": "AND(a, b, e)", "epsilon": 2.0},
                {"pattern": second, "epsilon": 1.0},
            ],
            "queries": [
                {"name": f"q{number}", "consumer": "all", "pattern": pattern}
                for number, pattern in enumerate(QUERIES)
            ],
            "subjects": [f"s{number:03}" for number in range(101)],
        }
    ).checked()


def events(seed: int) -> pl.DataFrame:
    """Random events of 101 subjects: the last word of a bit column is not full."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 40 * 60, 9000)) * 1_000_000
    return pl.DataFrame(
        {
            "who": [f"s{number:03}" for number in rng.integers(0, 101, 9000)],
            "at": pl.Series(times).cast(pl.Datetime("us")),
            "kind": [KINDS[number] for number in rng.integers(0, len(KINDS), 9000)],
        }
    )


class Fresh(RandomSource):
    """Other bytes for every request; fewer of them are the beginning of more."""

    private = True  # so that it passes for the usual source

    def __init__(self, seed: int) -> None:
        self._seeds = np.random.SeedSequence(seed)

    def draw(self, number: int) -> bytes:
        """The first bytes of the next sequence."""
        rng = np.random.default_rng(self._seeds.spawn(1)[0])
        return rng.integers(0, 256, 1 << 16, np.uint8).tobytes()[:number]


class Repeated(RandomSource):
    """One byte again and again: a draw follows from its row alone."""

    private = True

    def __init__(self, octet: int) -> None:
        self._octet = octet

    def draw(self, number: int) -> bytes:
        """So many of it."""
        return bytes([self._octet]) * number


def plan_for(spec: Specification) -> Plan:
    """A plan with memory, whether or not it is of use."""
    source = FrameSource(events(2).to_arrow())
    whole = survey(spec, [Input("events", source)], literal=False)
    plan = make_plan(spec, whole, "optimal", fall_back=False)
    (mechanism,) = plan.mechanisms
    assert isinstance(mechanism, Optimal)
    statistics = whole[0]
    objective = QualityObjective(tuple(query.alpha for query in spec.queries))
    found = plan_memory(mechanism.parts, statistics, objective, statistics.policy, {}, always=True)
    assert found is not None
    return replace(plan, mechanisms=(mechanism.add_memory(found),))


def answer(
    spec: Specification,
    plan: Plan,
    source: RandomSource,
    exhausted: bool = False,
    threads: int = 1,
    size: int = 150,
) -> list[Any]:
    """All answers of a run with their confidence, and what is remembered after each.

    At the usual size of batches windows close one by one, so that draws are in the same order
    whether or not windows are taken together.
    """
    frames = (frame.to_arrow() for frame in events(3).iter_slices(size))
    inputs = [Input("events", FrameSource(frames))]
    run = Run(spec, inputs, plan=plan, noise=Noise(source), workers=Workers(threads))
    state = run.engine.window_state
    if exhausted:
        answered = state.answer
        some = np.arange(101) % 3 == 0
        state.answer = lambda closed, *_a, **_k: answered(closed, some)  # type: ignore[method-assign]
    found: list[Any] = []
    for one in run:
        confidence = [one.confidence(query).tolist() for query in range(len(QUERIES))]
        memory = {name: array.tolist() for name, array in state.memory.items()}
        found.append((one.bits.tolist(), confidence, memory))
    return found


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were done by each call of the loop."""
    done: list[int] = []
    advance: Callable[..., int] = kernels.advance_eight

    def counted(first: int, *given: Any) -> int:
        done.append(advance(first, *given) - first)
        return first + done[-1]

    monkeypatch.setattr(kernels, "advance_eight", counted)
    return done


def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BeliefFilter, "can_advance", lambda *_: False)


@pytest.mark.parametrize("exhausted", [False, True])
def test_one_loop_gives_what_single_steps_give(
    exhausted: bool, loops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same bytes: same answers, confidence, beliefs, learned steps and thresholds."""
    spec = specification()
    plan = plan_for(spec)
    fast = answer(spec, plan, Fresh(1), exhausted)
    assert sum(loops) > 2 * 101, "the loop was not used for both components"
    step_by_step(monkeypatch)
    assert fast == answer(spec, plan, Fresh(1), exhausted)
    assert fast != answer(spec, plan, Fresh(2), exhausted)


@pytest.mark.cases(1)
@pytest.mark.parametrize("octet", [0, 0x40, 0x81, 0xFF])
def test_requests_for_more_bytes_make_no_difference(
    octet: int, loops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specification()
    plan = plan_for(spec)
    usual = answer(spec, plan, Repeated(octet))
    calls = len(loops)
    monkeypatch.setattr(Sampler, "_expect_octets", lambda *_: 20)
    assert usual == answer(spec, plan, Repeated(octet))
    assert len(loops) - calls > calls, "no more requests were made"
    step_by_step(monkeypatch)
    assert usual == answer(spec, plan, Repeated(octet))


def by_window(found: list[Any]) -> list[Any]:
    """Answers and confidence of each window, and what is remembered at the end."""
    windows = [
        (bits, [query[place] for query in confidence])
        for answers, confidence, _ in found
        for place, bits in enumerate(answers)
    ]
    return [windows, found[-1][2]]


@pytest.mark.parametrize("octet", [0x20, 0x40, 0x81, 0xC0])
def test_windows_that_are_answered_together_make_no_difference(
    octet: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps and thresholds are learned between them, with any batches and any threads."""
    windows: list[int] = []
    advance = BeliefFilter.advance

    def counted(self: BeliefFilter, rows: slice, told: Arguments, **named: bool) -> Any:
        windows.append(len(told.contexts))
        return advance(self, rows, told, **named)

    monkeypatch.setattr(BeliefFilter, "advance", counted)
    spec = specification()
    plan = plan_for(spec)
    monkeypatch.setattr(protector, "_STRETCH", 64)  # two stretches
    each = answer(spec, plan, Repeated(octet))
    assert max(len(answers) for answers, *_ in each) == 1
    one_by_one = by_window(each)
    assert len(one_by_one[0]) == 40
    for size, threads in [(150, 2), (2000, 1), (9000, 2)]:
        windows.clear()
        found = answer(spec, plan, Repeated(octet), threads=threads, size=size)
        assert by_window(found) == one_by_one
        assert max(windows) == (1 if size == 150 else 4), "not taken together"


def test_components_of_another_size_take_single_steps(loops: list[int]) -> None:
    spec = specification(second="AND(c, d)")
    both = answer(spec, plan_for(spec), Fresh(1))
    assert both
    rows = sum(loops)
    loops.clear()
    answer(specification(), plan_for(specification()), Fresh(1))
    assert 0 < rows < sum(loops)


def spoil(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault in the loop; arguments by their place."""
    places = kernels.advance_eight.py_func.__code__.co_varnames  # type: ignore[attr-defined]
    place: dict[str, int] = {argument: number for number, argument in enumerate(places)}
    advance: Callable[..., int] = kernels.advance_eight

    def faulty(*given: Any) -> int:
        told: list[Any] = list(given)
        if name == "bytes are used again":
            told[place["octets"]] = np.full_like(given[place["octets"]], given[place["octets"]][0])
        if name == "the silent draw":
            told[place["silent"]] = np.zeros_like(given[place["silent"]])
        if name == "a belief uses the true value":
            told[place["values"]] = given[place["values"]] ^ np.uint64(1)
        done = advance(*told)
        if name == "a state is not written":
            given[place["stored_after"]][: done // 2] = given[place["stored"]][: done // 2]
        return done

    monkeypatch.setattr(kernels, "advance_eight", faulty)


FAULTS: Sequence[str] = (
    "bytes are used again",
    "the silent draw",
    "a belief uses the true value",
    "a state is not written",
)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = specification()
    plan = plan_for(spec)
    with monkeypatch.context() as patched:
        spoil(fault, patched)
        faulty = answer(spec, plan, Fresh(1), exhausted=True)
    step_by_step(monkeypatch)
    assert faulty != answer(spec, plan, Fresh(1), exhausted=True)
