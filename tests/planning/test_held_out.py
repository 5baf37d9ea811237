"""Plans on windows that they were not made from: over random specifications, and many contexts.

`python -m benchmarks.held_out` does the same for some hundred specifications.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from benchmarks.held_out import Comparison, compare, draw_world, judge_plan

from tacit.evaluation.measurement import compute_statistics, measure
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SPECIFICATIONS = 16


@cache
def compared(seed: int) -> list[Comparison]:
    return compare(draw_world(seed, most_queries=12), seed, fresh=8000)


@pytest.mark.parametrize("seed", range(SPECIFICATIONS))
def test_expected_quality_is_that_of_fresh_windows_within_sampling_error(seed: int) -> None:
    """Four standard errors, and a hundredth because a plan from less history may differ."""
    for one in compared(seed):
        assert abs(one.expected - one.found) < 4 * one.error + 0.01, one


def test_expected_quality_is_neither_too_high_nor_too_low_on_average() -> None:
    gaps = [one.expected - one.found for seed in range(SPECIFICATIONS) for one in compared(seed)]
    assert abs(np.mean(gaps)) < 0.005


@pytest.mark.parametrize("seed", range(SPECIFICATIONS))
def test_auto_is_hardly_worse_than_the_best_mechanism_and_optimal_than_adaptive(seed: int) -> None:
    uniform, adaptive, optimal, auto = compared(seed)
    assert auto.found > max(uniform.found, adaptive.found, optimal.found) - 0.01
    assert optimal.found > adaptive.found - 0.01


@pytest.mark.parametrize("seed", [3, 5])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_a_plan_gets_on_other_windows_is_what_a_run_counts(mechanism: str, seed: int) -> None:
    """`expect` averages noise in closed form; a run draws it."""
    world = draw_world(seed, most_queries=8)
    plan = make_plan(
        world.spec, compute_statistics(world.spec, world.draw(2000, 1)), mechanism, fall_back=False
    )
    fresh = world.draw(4000, 2)
    expected = plan.mechanisms[0].expect(compute_statistics(world.spec, fresh)[0])
    counted = measure(plan, fresh, Noise(SeededSource(3)))
    for part in ("tp", "fp", "fn"):
        mean, found = getattr(expected, part), getattr(counted, part)
        assert (np.abs(found - mean) <= 5 * np.sqrt(np.maximum(mean, 2))).all(), part


def entangled(queries: int) -> Specification:
    """Three private patterns that share elements, and many public event types."""
    random = np.random.default_rng(7)
    public, private = [f"b{n}" for n in range(30)], [f"x{n}" for n in range(4)]
    texts = [f"AND({random.choice(private)}, {random.choice(public)})" for _ in range(queries)]
    return loads(
        json.dumps(
            {
                "streams": {"s": {"subject": "who", "time": "at"}},
                "windows": {"size": "1 min"},
                "events": {n: {"stream": "s", "where": f"kind = '{n}'"} for n in public + private},
                "private": [
                    {"pattern": f"AND({', '.join(pair)})", "epsilon": 2}
                    for pair in (private[:2], private[1:3], private[2:])
                ],
                "queries": [
                    {"name": f"q{n}", "consumer": "c", "pattern": text}
                    for n, text in enumerate(texts)
                ],
            }
        )
    )


def windows(number: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Public events at random; private ones follow some of them."""
    random = np.random.default_rng(seed)
    public = random.random((number, 30)) < 0.4
    private = random.random((number, 4)) < np.where(public[:, :4], 0.6, 0.15)
    return np.concatenate([public, private], axis=1)


def test_contexts_that_occur_once_are_not_memorised() -> None:
    spec = entangled(40)
    history = compute_statistics(spec, windows(2000, 1))
    contexts = [len(counts.contexts) for counts in history[0].contexts]
    assert contexts[0] > 1900
    (test,) = compute_statistics(spec, windows(8000, 2))
    found = {
        name: judge_plan(make_plan(spec, history, name), name, test, 2000)
        for name in ("adaptive", "optimal")
    }
    for one in found.values():
        assert abs(one.expected - one.found) < 4 * one.error + 0.01, one
    assert found["optimal"].found > found["adaptive"].found - 0.01
    assert history[0].priors[0].groups < 60
