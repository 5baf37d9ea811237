"""Pacing: what is left goes to windows that gain most, evenly to those that gain the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.durations import MICROSECONDS
from tacit.evaluation.limited_runs import run_limited
from tacit.evaluation.measurement import Streams, compute_statistics
from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account
from tacit.pipeline.pacing import Pacer
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.pacing import EXPLORED, Pacing, find_chances
from tacit.privacy.prices import NANO
from tacit.privacy.randomness import SeededSource
from tacit.spec.yaml_reader import loads

DAY = MICROSECONDS["d"]
SPEC = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 h}
events:
  there: {stream: s, where: "there"}
  out: {stream: s, where: "out"}
private: [{pattern: there, epsilon: 2, limit: 8 per day}]
queries: [{name: both, consumer: us, pattern: "AND(there, out)"}]
"""


def pacing(*demand: float) -> Pacing:
    """One whose levels begin at 0, 1, 2 and so on, with this demand per hour for each."""
    table = np.array(demand)[:, np.newaxis] * np.ones(24)
    return Pacing(np.arange(len(demand), dtype=np.float64), {"p": table})


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=5),
    st.floats(0, 300),
    st.integers(0, 23),
)
def test_if_a_run_is_like_history_all_that_is_left_is_spent(
    steps: list[float], left: float, hour: int
) -> None:
    """Those who gain more are paid for first: only one level is left to chance."""
    demand = np.cumsum(steps[::-1])[::-1]
    levels = np.arange(len(steps), dtype=np.float64)
    lefts = np.full(len(steps), left)
    found = pacing(*demand).find_chances("p", lefts, levels, hour * DAY // 24, DAY)
    hours = 24 - hour
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found)[np.array(steps[:-1]) * np.array(steps[1:]) > 0] >= 0).all()
    np.testing.assert_allclose(found @ steps * hours, min(left, demand[0] * hours), atol=1e-6)
    assert ((found > 0) & (found < 1)).sum() <= 1


def test_a_window_that_costs_something_is_explored_and_a_free_one_is_not_left_to_chance() -> None:
    left, gains = np.full(3, 2 * NANO), np.array([0.0, 5.0, 0.0])
    prices = np.array([NANO, NANO, 0])
    found = find_chances(pacing(100, 1), "p", left, gains, prices, 0, DAY)
    assert found.tolist() == [EXPLORED, 2 / 24, 1.0]


TWO = SPEC.replace(
    "limit: 8 per day}", "limit: 8 per day}, {pattern: out, epsilon: 2, limit: 8 per day}"
)


def test_a_limit_that_a_window_costs_nothing_does_not_hold_it_back() -> None:
    """Four subjects have spent the limit of the first pattern, and nothing of the second."""
    spec, every = loads(TWO), np.ones(4, np.bool_)
    accounts = Accounts(np.arange(4), [Account.of(one, every) for one in spec.private])
    whole = np.array([[8 * NANO], [0]]) * every
    accounts.charge(0, ~every, None, whole)
    demand = {one.name: np.full((1, 24), 0.1) for one in spec.private}
    pacer = Pacer(spec, [Pacing(np.zeros(1), demand)], SeededSource(1))
    policies, gains = np.zeros(4, np.int32), np.ones(4)
    prices = np.array([[0, 2, 2, 0], [2, 0, 2, 0]]) * NANO
    given = accounts, DAY // 24, prices, gains, policies
    paid = np.sum([~pacer.find_declined(*given) for _ in range(400)], axis=0)
    # What costs the first pattern something is explored alone.
    assert paid[[0, 3]].tolist() == [400, 400]
    assert (paid[1:3] < 30).all()


@pytest.mark.parametrize("seed", range(2))
def test_windows_that_gain_the_same_share_a_limit_evenly_over_the_day(seed: int) -> None:
    """Windows are independent, so that beliefs, and with them gains, are always the same."""
    random = np.random.default_rng(seed)
    presence = random.random((40, 12 * 24, 2)) < [0.5, 0.7]
    history, test = presence[:, : 6 * 24], presence[:, 6 * 24 :]
    spec = loads(SPEC)
    plan = make_plan(spec, compute_statistics(spec, Streams(history)), "optimal")
    run = run_limited(plan, Streams(test, 6 * 24), Noise(SeededSource(seed)))
    by_hour = run.spent[0].reshape(40, 6, 24) / NANO
    spent = by_hour.sum(axis=2)
    assert spent.max() <= 8
    assert spent.mean() > 0.95 * 8
    quarters = by_hour.reshape(-1, 4, 6).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(quarters, 2, atol=0.35)
