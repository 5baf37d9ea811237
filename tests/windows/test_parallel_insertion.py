"""Several threads insert the tuples of a batch: the windows are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.errors import OptionError
from tacit.events.masks import EventMasks
from tacit.kernels.threads import ONE_THREAD, Workers
from tacit.spec.specification import Specification
from tacit.windows import panes
from tacit.windows.clock import TAKEN, Verdicts
from tacit.windows.panes import Panes
from tests.windows.codes import encode

TUPLES = 6000
SIZE = 1000


def random_tuples(seed: int) -> tuple[np.ndarray, np.ndarray, EventMasks, Verdicts]:
    """Tuples of 70 subjects in four windows; some are refused."""
    rng = np.random.default_rng(seed)
    slots = rng.integers(0, 70, TUPLES).astype(np.int32)
    times = np.sort(rng.integers(0, 4 * SIZE, TUPLES))
    masks = np.uint64(1) << rng.integers(0, 9, (TUPLES, 1)).astype(np.uint64)
    refused = np.where(rng.random(TUPLES) < 0.01, TAKEN + 1, TAKEN).astype(np.uint8)
    wrap = encode if seed % 2 else EventMasks
    return slots, times, wrap(masks), Verdicts.of(refused)


@pytest.fixture
def pools() -> Iterator[list[ThreadPoolExecutor]]:
    """Threads that can be chosen."""
    made = [ThreadPoolExecutor(1) for _ in range(3)]
    yield made
    for pool in made:
        pool.shutdown()


@pytest.mark.parametrize("threads", [2, 3, 4, 9])
@pytest.mark.parametrize("begin", [0, 37, 5990])
def test_any_number_of_threads_inserts_the_same_events(
    threads: int,
    begin: int,
    pools: list[ThreadPoolExecutor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take_turns(calls: Sequence[Callable[[], None]], most: int) -> None:
        """Let each thread take its share, as if none was ever faster than the others."""
        for number, call in enumerate(calls):
            if number % most:
                pools[number % most - 1].submit(call).result()
            else:
                call()

    monkeypatch.setattr(panes, "_PARALLEL", 1)
    monkeypatch.setattr(panes, "_PIECE", 1024)
    monkeypatch.setattr(panes, "run_in_threads", take_turns)
    none = np.zeros(1, np.uint64)
    one, several = (
        Panes(SIZE, 4, 70, none, workers=workers) for workers in (ONE_THREAD, Workers(threads))
    )
    for seed in range(2):
        slots, times, masks, verdicts = random_tuples(seed)
        for made in (one, several):
            made.insert(slots, times, masks, verdicts, begin, TUPLES)
    assert len(several._others) == (min(threads - 1, 4) - 1 if begin < 5000 else 0)
    assert (several.pop(0, 2).words == one.pop(0, 2).words).all()
    assert (several.state()["ring"] == one.state()["ring"]).all(), "a snapshot has all events"
    several.grow(90)
    one.grow(90)
    found = several.pop(2, 2).words
    assert found.any()
    assert (found == one.pop(2, 2).words).all()
    assert not several.pop(0, 4).words.any()


def test_large_rings_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "_PARALLEL", 1)
    monkeypatch.setattr(panes, "_RING_BYTES", 1)
    made = Panes(SIZE, 4, 70, np.zeros(1, np.uint64), workers=Workers(3))
    made.insert(*random_tuples(1), 0, TUPLES)
    assert not made._others


def specification() -> Specification:
    """Queries with and without order, and a private pattern."""
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min", "lateness": "5 s"},
            "events": {kind: {"stream": "events", "where": f"kind = '{kind}'"} for kind in "abc"},
            "private": [{"pattern": "AND(a, b)", "epsilon": 1.0}],
            "queries": [
                {"name": "both", "consumer": "all", "pattern": "AND(a, c)"},
                {"name": "ordered", "consumer": "all", "pattern": "SEQ(b, c)"},
            ],
            "subjects": [f"s{number}" for number in range(70)],
        }
    ).checked()


def events() -> pl.DataFrame:
    """Random events, hardly out of order."""
    rng = np.random.default_rng(1)
    times = np.sort(rng.integers(0, 600, TUPLES)) - rng.integers(0, 3, TUPLES) + 3
    return pl.DataFrame(
        {
            "who": [f"s{number}" for number in rng.integers(0, 70, TUPLES)],
            "at": pl.Series(times * 1_000_000).cast(pl.Datetime("us")),
            "kind": ["abc"[number] for number in rng.integers(0, 3, TUPLES)],
        }
    )


def test_answers_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "_PARALLEL", 1)
    spec = specification()
    true = [tacit.detect(spec, events(), threads=threads).polars() for threads in (1, 2)]
    assert true[0].equals(true[1])
    plan = tacit.plan(spec, events(), mechanism="optimal")
    seeded = [
        tacit.run(spec, events(), plan=plan, seed=1, threads=threads).polars() for threads in (1, 2)
    ]
    assert seeded[0].equals(seeded[1])


def test_a_run_needs_a_thread() -> None:
    with pytest.raises(OptionError, match="expected at least 1; got 0"):
        tacit.detect(specification(), events(), threads=0)
