"""Plans on windows that they were not made from: over random specifications, and many contexts.

`make soak` and `python -m benchmarks.held_out` do the same for several hundred others, larger ones
and more windows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.held_out import (
    World,
    compare,
    compare_memory,
    draw_lasting_world,
    draw_world,
    find_bias,
    find_faults,
    judge_plan,
)

from tacit.evaluation.measurement import compute_statistics, measure
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Fold, Statistics
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

FIRST = 30_000
GROUPS = 2
GROUP = 16
MANY = 30_100
"""A specification with 25 to 100 queries; `make soak` has larger ones, which take minutes."""
LASTING = (30_001, 30_006, 30_011, 30_013, 30_018)
"""Specifications for which plans have memory."""


@pytest.mark.cases(1)
@pytest.mark.parametrize("group", range(GROUPS))
def test_plans_of_random_specifications_get_what_they_expect_on_fresh_windows(group: int) -> None:
    """And auto is hardly worse than the best mechanism, nor optimal than adaptive."""
    seeds = range(FIRST + group * GROUP, FIRST + (group + 1) * GROUP)
    rows = [compare(draw_world(seed, most_queries=8), seed, fresh=4000) for seed in seeds]
    faults = {seed: find_faults(row) for seed, row in zip(seeds, rows, strict=True)}
    assert {seed: found for seed, found in faults.items() if found} == {}
    for place in range(len(rows[0])):
        assert abs(find_bias([row[place] for row in rows])) < 4


@pytest.mark.soak
def test_so_do_plans_for_many_queries() -> None:
    world = draw_world(MANY, most_queries=100)
    assert 25 <= len(world.spec.queries) <= 100
    assert find_faults(compare(world, MANY, fresh=4000)) == []


@pytest.mark.soak
def test_so_do_plans_with_memory() -> None:
    found = [compare_memory(draw_lasting_world(seed, most_queries=8), seed) for seed in LASTING]
    remembered = [one for one in found if one is not None]
    assert len(remembered) == len(LASTING)
    assert [one for one in remembered if abs(one.deviation) > 4] == []
    assert abs(find_bias(remembered)) < 4


@pytest.mark.cases(3)
@pytest.mark.parametrize(("seed", "most"), [(3, 8), (5, 8), (20035, 60)])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_a_plan_gets_on_other_windows_is_what_a_run_counts(
    mechanism: str, seed: int, most: int
) -> None:
    """`expect` averages noise; a run draws it. The last has queries over several components."""
    world = draw_world(seed, most)
    plan = make_plan(
        world.spec, compute_statistics(world.spec, world.draw(2000, 1)), mechanism, fall_back=False
    )
    fresh = world.draw(4000, 2)
    expected = plan.mechanisms[0].expect(compute_statistics(world.spec, fresh)[0])
    counted = measure(plan, fresh, Noise(SeededSource(3)))
    for part in ("tp", "fp", "fn"):
        mean, found = getattr(expected, part), getattr(counted, part)
        assert (np.abs(found - mean) <= 5 * np.sqrt(np.maximum(mean, 2))).all(), part


def test_so_do_plans_for_queries_over_groups_that_go_together() -> None:
    """All private events are common in one mood and rare in the other."""
    groups = [["x0", "x1", "x2"], ["y0", "y1", "y2"]]
    names = ["b", *groups[0], *groups[1]]
    texts = [*(f"AND({x}, {y})" for x, y in zip(*groups, strict=True)), "OR(x0, y1)", "AND(x1, b)"]
    spec = loads(
        json.dumps(
            {
                "streams": {"s": {"subject": "who", "time": "at"}},
                "windows": {"size": "1 min"},
                "events": {n: {"stream": "s", "where": f"kind = '{n}'"} for n in names},
                "private": [
                    {"pattern": f"AND({', '.join(group)})", "epsilon": 2} for group in groups
                ],
                "queries": [
                    {"name": f"q{n}", "consumer": "c", "pattern": text}
                    for n, text in enumerate(texts)
                ],
            }
        )
    )
    moods = np.array([[0.5, *[0.8] * 6], [0.5, *[0.1] * 6]])
    assert find_faults(compare(World(spec, moods, 4000), 1, fresh=8000)) == []


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
    fresh = windows(4000, 2)
    (test,) = compute_statistics(spec, fresh)
    found = {
        name: judge_plan(make_plan(spec, history, name, fall_back=False), fresh, 2000, test)
        for name in ("adaptive", "optimal")
    }
    for one in found.values():
        assert abs(one.deviation) < 4, one
    assert found["optimal"].averaged > found["adaptive"].averaged - 0.01
    assert history[0].priors[0].groups < 60


SHORT = loads(
    json.dumps(
        {
            "streams": {"s": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min"},
            "events": {
                name: {"stream": "s", "where": f"kind = '{name}'"}
                for name in ("b0", "b1", "b2", "x0", "x1")
            },
            "private": [{"pattern": "AND(x0, x1)", "epsilon": 1}],
            "queries": [
                {"name": f"{x}{b}", "consumer": "c", "pattern": f"AND({x}, {b})"}
                for x in ("x0", "x1")
                for b in ("b0", "b1", "b2")
            ],
        }
    )
)


def find_optimism(mechanism: str, change: Callable[[Statistics], Statistics]) -> float:
    """How much better plans look on the windows they are made from, over eight short histories."""
    found = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        public = random.random((15, 3)) < 0.4
        private = random.random((15, 2)) < np.where(public[:, :2], 0.5, 0.25)
        history = compute_statistics(SHORT, np.concatenate([public, private], axis=1))
        in_sample = [replace(one, folds=()) for one in history]
        qualities = []
        for statistics in (in_sample, list(map(change, history))):
            expected = make_plan(SHORT, statistics, mechanism, fall_back=False).expected
            assert expected is not None
            qualities.append(expected.quality)
        found.append(qualities[0] - qualities[1])
    return float(np.mean(found))


@pytest.mark.cases(1)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_quality_is_judged_on_windows_that_were_held_out(mechanism: str) -> None:
    """Fifteen windows are easily memorised: judged in sample, plans look clearly better.

    The planted fault makes the plans of all folds from all of history.
    """
    assert find_optimism(mechanism, lambda whole: whole) > 0.03

    def see_all(whole: Statistics) -> Statistics:
        return replace(whole, folds=tuple(Fold(whole, one.held_out) for one in whole.folds))

    assert find_optimism(mechanism, see_all) < 0.025
