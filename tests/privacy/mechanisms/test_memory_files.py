"""Memory in plan files and snapshots: what was written comes back, what is damaged is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from tacit.errors import AuditError, PlanError, StateError
from tacit.planning.plan import Plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tests.privacy.memories import Runner, Way, batches, plan_by_hand, released, remembering

SPEC = remembering([("AND(a, b)", "1")], ["a", "AND(b, s)", "OR(a, b)"])
STREAMS = [("ab", "s", "a", "bs"), ("", "abs", "", "s")]
Change = Callable[[dict[str, Any]], Any]


def written(plan: Plan) -> dict[str, Any]:
    """The plan as it is written to a file."""
    found: dict[str, Any] = json.loads(json.dumps(plan.to_dict()))
    return found


@pytest.mark.parametrize("profiles", [1, 4])
def test_a_plan_with_memory_comes_back_and_answers_alike(profiles: int) -> None:
    plan = plan_by_hand(SPEC, profiles=profiles, slots=12)
    again = Plan.from_dict(written(plan), SPEC)
    assert written(again) == written(plan)
    twice = Plan.from_dict(written(again), SPEC)
    first, second = (released(SPEC, one, STREAMS, Noise(SeededSource(1))) for one in (again, twice))
    assert first == second


def put(name: str, value: Any) -> Change:
    """Change a field of the transitions."""
    return lambda memory: memory["transitions"].update({name: value})


def contexts(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the first context with channels to choose from."""
    return lambda memory: change(memory["candidates"]["contexts"][0])


DAMAGED: dict[str, Change] = {
    "a block without channels": contexts(lambda one: one["blocks"].__setitem__(0, [])),
    "no blocks": contexts(lambda one: one.update(blocks=[])),
    "a table that is not there": contexts(lambda one: one["blocks"][0].__setitem__(0, 99)),
    "no signals": contexts(lambda one: one.update(signals="zz")),
    "too many signals": contexts(lambda one: one.update(signals="00ff00")),
    "tables with more than epsilon": lambda memory: memory["candidates"].update(
        tables=[[[str(n << 60) for n in row] for row in ((7, 1), (1, 7), (4, 4), (4, 4))]] * 4
    ),
    "no tables": lambda memory: memory["candidates"].pop("tables"),
    "no transitions": lambda memory: memory.pop("transitions"),
    "weights that are missing": put("weights", []),
    "weights that are no shares": put("weights", [0.5, 0.7]),
    "weights that are no numbers": put("weights", [float("nan")]),
    "edges in the wrong order": put("edges", [0.6, 0.3]),
    "edges that are no numbers": put("edges", [float("nan"), 0.3]),
    "too few edges": put("edges", [0.3]),
    "strengths that are no numbers": put("strengths", [1, float("nan")]),
    "strengths without end": put("strengths", [float("inf"), 1]),
    "too many kinds of groups": put("kinds", 10**6),
    "no kinds of groups": put("kinds", 0),
    "divisions of the week": put("slots", 7),
    "groups": put("groups", [5]),
    "a factored belief": put("joint", False),
    "places out of range": put("counts", {"places": [10**9], "counts": [1]}),
    "places that go back": put("counts", {"places": [5, -2], "counts": [1, 1]}),
    "fewer counts than places": put("counts", {"places": [0, 1], "counts": [1]}),
    "negative counts": put("counts", {"places": [0], "counts": [-1]}),
    "counts that are no numbers": put("starts", {"places": [0], "counts": [float("nan")]}),
    "no counts": put("counts", None),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_memory_in_a_plan_is_refused(name: str) -> None:
    plain = deepcopy(PLAIN)
    DAMAGED[name](plain["schemes"][0]["memory"][0])
    with pytest.raises((PlanError, AuditError)):
        Plan.from_dict(plain, SPEC)


PLAIN = written(plan_by_hand(SPEC))


def test_memory_for_other_components_is_refused() -> None:
    for memory in ([], None, [PLAIN["schemes"][0]["memory"][0]] * 2):
        plain = deepcopy(PLAIN)
        plain["schemes"][0]["memory"] = memory
        with pytest.raises(PlanError):
            Plan.from_dict(plain, SPEC)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no beliefs": lambda arrays: arrays.pop("policy0.0.beliefs"),
    "beliefs of other numbers": lambda arrays: arrays.update(
        {"policy0.0.beliefs": arrays["policy0.0.beliefs"].astype(np.float32)}
    ),
    "beliefs about fewer values": lambda arrays: arrays.update(
        {"policy0.0.beliefs": arrays["policy0.0.beliefs"][:, :, :2]}
    ),
    "beliefs about fewer subjects": lambda arrays: arrays.update(
        {"policy0.0.beliefs": arrays["policy0.0.beliefs"][:1]}
    ),
    "more subjects than there are": lambda arrays: arrays.update(
        {
            name: np.concatenate([part, part])
            for name, part in arrays.items()
            if name.endswith(("beliefs", "groups", "openness"))
        }
    ),
    "groups that are not there": lambda arrays: arrays.update(
        {"policy0.0.groups": arrays["policy0.0.groups"] + np.int16(7)}
    ),
    "negative groups": lambda arrays: arrays.update(
        {"policy0.0.groups": arrays["policy0.0.groups"] - np.int16(2)}
    ),
    "groups without subjects": lambda arrays: arrays.update(
        {"policy0.0.groups": np.array(0, np.int16)}
    ),
    "no steps": lambda arrays: arrays.pop("policy0.0.steps"),
    "factors of other cells": lambda arrays: arrays.update(
        {"policy0.0.factors": arrays["policy0.0.factors"][1:]}
    ),
    "no thresholds": lambda arrays: arrays.pop("policy0.thresholds"),
    "thresholds of other queries": lambda arrays: arrays.update(
        {"policy0.thresholds": arrays["policy0.thresholds"][1:]}
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_memory_in_a_snapshot_is_refused_before_anything_is_answered(name: str) -> None:
    runner = Runner(SPEC, plan_by_hand(SPEC), Noise(SeededSource(1)), len(STREAMS) + 1)
    windows = runner.run(batches(SPEC, STREAMS), Way())
    next(windows)
    arrays = dict(runner.engine.window_state.memory)
    WRONG[name](arrays)
    runner.engine.window_state.memory = arrays
    with pytest.raises(StateError):
        next(windows)


def test_the_state_of_a_subject_and_component_is_small() -> None:
    """At most 256 bytes, and it grows with the number of subjects and nothing else."""
    spec = remembering([("AND(a, b, c, d, e, f)", "1")], ["AND(a, b, c)", "d", "f"], "abcdefs")
    sizes = []
    for subjects in (10, 20):
        streams = [("a", "b", "")] * subjects
        runner = Runner(spec, plan_by_hand(spec), Noise(SeededSource(1)), subjects + 1)
        list(runner.run(batches(spec, streams), Way()))
        sizes.append(sum(part.nbytes for part in runner.engine.window_state.memory.values()))
    assert 0 < sizes[1] - sizes[0] <= 10 * 256
