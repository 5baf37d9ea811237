"""Fitted priors: groups where contexts differ, and no memory of contexts that occur once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.patterns.language import parse_pattern
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior_tree import STRENGTHS, fit_prior

WINDOWS = 4000


def component(signals: int) -> Component:
    """Queries about x and y, each in the presence of a public event."""
    private = PrivatePattern("p", frozenset({"x", "y"}), Fraction(1))
    texts = [f"AND({'xy'[n % 2]}, b{n})" for n in range(signals)]
    (found,) = find_exposure(Policy((private,)), [parse_pattern(text) for text in texts]).components
    return found


def history(signals: np.ndarray, rates: np.ndarray, seed: int = 3) -> ContextCounts:
    """Windows in five folds, whose two variables are true at these rates."""
    rng = np.random.default_rng(seed)
    values = rng.random((len(signals), 2)) < rates[:, None]
    rows, places = np.unique(np.hstack([signals, values]), axis=0, return_inverse=True)
    counts = np.zeros((len(rows), 5))
    np.add.at(counts, (places.ravel(), np.arange(len(signals)) * 5 // len(signals)), 1.0)
    return ContextCounts.from_rows(rows, counts, signals.shape[1])


def random_signals(width: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random((WINDOWS, width)) < 0.5


def test_contexts_that_do_not_matter_are_one_group_smoothed_most() -> None:
    signals = random_signals(30)
    found = fit_prior(component(30), history(signals, np.full(WINDOWS, 0.3)))
    assert found.whole.groups == 1
    assert found.whole.choices(0, [0])[1] == pytest.approx(0.3, abs=0.03)
    assert len(found.without) == 5


def test_a_signal_that_matters_divides_contexts_that_each_occur_once() -> None:
    signals = random_signals(30)
    found = fit_prior(component(30), history(signals, np.where(signals[:, 7], 0.9, 0.1))).whole
    assert 2 <= found.groups <= 4
    fresh = random_signals(30, 2)
    likely = [found.choice_probabilities(row, [1])[1] for row in fresh[:50]]
    assert likely == pytest.approx(np.where(fresh[:50, 7], 0.9, 0.1), abs=0.05)


def test_few_contexts_with_rates_of_their_own_become_groups_of_their_own() -> None:
    signals = random_signals(3)
    numbers = signals @ [1, 2, 4]
    rates = np.array([0.1, 0.8, 0.3, 0.95, 0.6, 0.05, 0.45, 0.7])[numbers]
    found = fit_prior(component(3), history(signals, rates)).whole
    assert found.groups == 8
    for row, rate in zip(signals[:20], rates, strict=False):
        assert found.choice_probabilities(row, [0])[1] == pytest.approx(rate, abs=0.07)


def test_a_prior_without_a_fold_does_not_know_its_windows() -> None:
    """In the last fold a signal means the opposite."""
    signals = random_signals(4)
    late = np.arange(WINDOWS) * 5 // WINDOWS == 4
    found = fit_prior(component(4), history(signals, np.where(signals[:, 0] != late, 0.9, 0.1)))
    context = np.array([True, False, False, False])
    likely = [prior.choice_probabilities(context, [0])[1] for prior in found.without]
    assert likely[4] > max(likely[:4]) + 0.05


def test_history_that_cannot_be_divided_is_smoothed_most() -> None:
    signals = random_signals(4)
    whole = history(signals, np.where(signals[:, 0], 0.9, 0.1))
    once = ContextCounts(whole.signals, whole.values, whole.counts.sum(axis=1, keepdims=True))
    found = fit_prior(component(4), once)
    assert found.whole.groups == 1
    assert found.whole.strength == max(STRENGTHS)
    assert found.without == ()


def test_contexts_come_once_with_all_their_windows_the_commonest_first() -> None:
    counts = history(random_signals(3), np.full(WINDOWS, 0.4))
    slow: dict[tuple[bool, ...], float] = {}
    for row, windows in zip(counts.signals.tolist(), counts.windows, strict=True):
        slow[tuple(row)] = slow.get(tuple(row), 0.0) + windows
    found = counts.contexts
    assert {tuple(signals.tolist()): windows for signals, windows in found} == slow
    assert [windows for _, windows in found] == sorted(slow.values(), reverse=True)
    assert sum(slow.values()) == WINDOWS
