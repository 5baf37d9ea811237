"""Thresholds: counts for every threshold, the best one against all others, and held-out ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.quality import Confusion, Floats, QualityObjective
from tacit.privacy.thresholds import (
    LEVELS,
    PosteriorCounts,
    add_confusions,
    choose_thresholds,
    judge,
    read_thresholds,
)


def draw(seed: int, queries: int, cells: int = 12) -> tuple[PosteriorCounts, list[np.ndarray]]:
    """Counts, and the cells behind them: query, posterior, true and false windows."""
    rng = np.random.default_rng(seed)
    query = rng.integers(0, queries, cells)
    posterior = rng.choice([0.0, 1.0, *rng.random(6)], cells)
    windows = rng.integers(1, 50, cells)
    true = np.where(posterior == 1, windows, rng.binomial(windows, posterior)).astype(float)
    counts = PosteriorCounts.zeros(queries)
    counts.add(query, posterior, true, windows - true)
    return counts, [query, posterior, true, windows - true]


def by_hand(cells: list[np.ndarray], thresholds: Floats) -> Confusion[Floats]:
    query, posterior, true, false = cells
    yes = posterior >= thresholds[query]
    sums = [
        np.bincount(query[own], amount[own], len(thresholds)).astype(np.float64)
        for own, amount in ((yes, true), (yes, false), (~yes, true))
    ]
    return Confusion(*sums)


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_counts_are_exact_for_every_level(seed: int, queries: int) -> None:
    counts, cells = draw(seed, queries)
    thresholds = np.random.default_rng(seed).choice(LEVELS[1:], queries)
    found, slow = counts.confusion(thresholds), by_hand(cells, thresholds)
    for part in ("tp", "fp", "fn"):
        assert getattr(found, part) == pytest.approx(getattr(slow, part))


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_for_the_macro_average_no_other_threshold_of_a_query_is_better(
    seed: int, queries: int
) -> None:
    counts, cells = draw(seed, queries)
    objective = QualityObjective((0.3,) * queries, macro=True)
    chosen = choose_thresholds(counts, objective)
    best = by_hand(cells, chosen).quality(0.3)
    for level in LEVELS[1::40]:
        assert (by_hand(cells, np.full(queries, level)).quality(0.3) <= best + 1e-9).all()


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_for_the_micro_average_no_common_threshold_is_noticeably_better(
    seed: int, queries: int
) -> None:
    counts, cells = draw(seed, queries)
    objective = QualityObjective((0.5,) * queries)
    best = objective.value(by_hand(cells, choose_thresholds(counts, objective)))
    for level in LEVELS[1::40]:
        assert objective.value(by_hand(cells, np.full(queries, level))) <= best + 0.001 + 1e-9


def test_a_rare_query_is_answered_where_that_costs_next_to_nothing() -> None:
    counts = PosteriorCounts.zeros(2)
    counts.add(0, np.array([0.9, 0.1]), np.array([9000.0, 1000.0]), np.array([1000.0, 9000.0]))
    counts.add(1, np.array([0.2, 0.001]), np.array([1.0, 0.0]), np.array([4.0, 5000.0]))
    chosen = choose_thresholds(counts, QualityObjective((0.5, 0.5)))
    assert 0.1 < chosen[0] <= 0.9
    assert 0.001 < chosen[1] <= 0.2


def test_one_true_window_of_a_rare_query_does_not_make_it_answered() -> None:
    """Posteriors expect one in 25 of its claims to be true; by chance it was about one of two."""
    counts = PosteriorCounts.zeros(2)
    counts.add_exact(0, 50.0)
    counts.add(1, np.array([0.04, 0.001]), np.array([1.0, 0.0]), np.array([1.05, 998.0]))
    thresholds = choose_thresholds(counts, QualityObjective((0.5, 0.5)))
    assert counts.confusion(thresholds).tp.tolist() == [50.0, 0.0]


def test_each_fold_is_judged_by_the_thresholds_of_the_others() -> None:
    """In the second fold what seemed likely is false."""
    folds = [PosteriorCounts.zeros(1) for _ in range(2)]
    folds[0].add(0, np.array([0.6, 0.4]), np.array([80e3, 0.0]), np.array([0.0, 70e3]))
    folds[1].add(0, np.array([0.6, 0.4]), np.array([0.0, 30e3]), np.array([100e3, 0.0]))
    for fold in folds:
        fold.add(0, np.array([0.3]), np.array([0.0]), np.array([500e3]))
    found = judge(folds, QualityObjective((0.5,)))
    in_sample = folds[0].plus(folds[1]).confusion(found.thresholds)
    assert found.confusion.quality(0.5)[0] < in_sample.quality(0.5)[0] - 0.1


def test_folds_do_not_mix_thresholds_that_are_far_apart_and_equally_good() -> None:
    """Always yes, or only where it is certain: either is better than each in some of the folds."""
    folds = [PosteriorCounts.zeros(1) for _ in range(4)]
    for number, fold in enumerate(folds):
        sure, rest = (30e3, 70e3) if number % 2 else (40e3, 60e3)
        fold.add(0, np.array([0.999, 0.05]), np.array([sure, rest]), np.array([0.0, 186e3]))
    objective = QualityObjective((0.5,))
    found = judge(folds, objective)
    total = folds[0].plus(folds[1]).plus(folds[2]).plus(folds[3])
    in_sample = total.confusion(found.thresholds).quality(0.5)[0]
    assert found.confusion.quality(0.5)[0] == pytest.approx(in_sample)
    mixed = [choose_thresholds(total.plus(fold, -1), objective) for fold in folds]
    worse = add_confusions([f.confusion(t) for f, t in zip(folds, mixed, strict=True)])
    assert worse.quality(0.5)[0] < in_sample - 0.01


@pytest.mark.parametrize("macro", [False, True])
def test_a_fold_with_all_true_windows_is_judged_by_the_thresholds_of_all(macro: bool) -> None:
    folds = [PosteriorCounts.zeros(1) for _ in range(3)]
    for fold in folds:
        fold.add(0, np.array([0.2, 0.01]), np.zeros(2), np.array([1e5, 99e5]))
    folds[1].add(0, np.array([0.2]), np.array([2e5]), np.array([0.0]))
    found = judge(folds, QualityObjective((0.5,), macro))
    assert found.confusion.tp.tolist() == [2e5]
    assert found.confusion.fp.tolist() == [3e5]


def test_few_true_windows_do_not_outweigh_what_posteriors_predict() -> None:
    """By chance most windows at a low posterior were true; with many windows that would count."""
    for scale, expected in ((1.0, 0.9), (1000.0, 0.3)):
        counts = PosteriorCounts.zeros(1)
        counts.add(
            0,
            np.array([0.9, 0.3]),
            scale * np.array([60.0, 12.0]),
            scale * np.array([7.0, 12.0]),
        )
        chosen = judge([counts], QualityObjective((0.5,))).thresholds[0]
        assert (chosen <= 0.3) == (expected == 0.3)


def test_thresholds_of_plans_are_read_and_checked() -> None:
    assert read_thresholds({"threshold": 0.4}, 2).tolist() == [0.4, 0.4]
    assert read_thresholds({"thresholds": [0.4, 1.0]}, 2).tolist() == [0.4, 1.0]
    for wrong in ([0.4], [0.0, 0.4], [float("nan"), 0.4], [1.5, 0.4]):
        with pytest.raises(ValueError, match="thresholds"):
            read_thresholds({"thresholds": wrong}, 2)
