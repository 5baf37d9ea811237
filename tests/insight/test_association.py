"""The tests behind leaks: they equal a slow reference, and keep their error rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.insight.association import (
    Clusters,
    Targets,
    bound_odds_ratio,
    compute_p_values,
    control_discoveries,
    count_signals,
    count_targets,
    find_clusters,
    score_pairs,
    score_signals,
)
from tacit.insight.window_columns import shift_windows
from tests.insight.leak_data import Bits, draw_stays, draw_without_leak, measure, pack, plant

seeds = st.integers(0, 2**32)


def refer(x: Bits, y: Bits, valid: Bits, strata: list[list[Bits]]) -> float:
    """The statistic from its definition."""
    total = squares = floor = 0.0
    for clusters in strata:
        there = np.logical_or.reduce(clusters) & valid
        n = max(1, there.sum())
        rate_x, rate_y = (x & there).sum() / n, (y & there).sum() / n
        score = np.where(there, (x - rate_x) * (y - rate_y), 0.0)
        total += score.sum()
        squares += sum(score[own].sum() ** 2 for own in clusters)
        floor += n * rate_x * (1 - rate_x) * rate_y * (1 - rate_y)
    return total / float(np.sqrt(max(squares, floor))) if floor > 0 else 0.0


@given(seeds)
@settings(deadline=None, max_examples=25)
def test_statistics_equal_their_definition(seed: int) -> None:
    chance = np.random.default_rng(seed)
    subjects, windows, number = 3, 150, 4
    x = chance.random((number, subjects, windows)) < chance.uniform(0.05, 0.9)
    y, valid = (chance.random((2, subjects, windows)) < rate for rate in (0.3, 0.8))
    words = pack(x).reshape(number, -1)
    targets = Targets(pack(y).reshape(2, -1), pack(valid).reshape(2, -1))
    strata = np.array([0, 4] if seed % 2 else [0, 1, 4])
    clusters = Clusters(np.array([0, 3, 4, 6, 9]), strata)
    place = np.zeros((subjects, 192), np.int64)
    place.reshape(-1)[:] = np.repeat([0, 1, 2, 3], [192, 64, 128, 192])
    cells = [place[:, :windows] == n for n in range(4)]
    own = [cells] if seed % 2 else [cells[:1], cells[1:]]
    counts = count_signals(words, targets, clusters)
    found = score_signals(counts, count_targets(targets, clusters), clusters)
    wanted = [[refer(x[s], y[t], valid[t], own) for t in range(2)] for s in range(number)]
    assert found == pytest.approx(np.array(wanted))
    pairs, statistic, used = score_pairs(words, targets, clusters, counts)
    assert used == 4
    for (a, b), values in zip(pairs.tolist(), statistic, strict=True):
        for t, value in enumerate(values):
            one = refer(x[b], y[t], valid[t] & x[a], own)
            two = refer(x[a], y[t], valid[t] & x[b], own)
            least = min(abs(one), abs(two)) if one * two > 0 else 0.0
            assert abs(value) == pytest.approx(least, abs=1e-9)
            assert value * one >= -1e-9


@given(seeds, st.integers(-130, 130))
@settings(deadline=None, max_examples=40)
def test_windows_are_moved_as_a_list_would_be(seed: int, by: int) -> None:
    bits = np.random.default_rng(seed).random((2, 192)) < 0.5
    moved = np.zeros_like(bits)
    if by >= 0:
        moved[:, by:] = bits[:, : 192 - by]
    else:
        moved[:, :by] = bits[:, -by:]
    assert (shift_windows(pack(bits), by) == pack(moved)).all()


def test_few_subjects_are_cut_into_stretches() -> None:
    clusters = find_clusters(3, 100)
    assert not clusters.whole
    assert 100 <= clusters.number <= 110
    assert set(np.arange(4) * 100) <= set(clusters.bounds.tolist())
    assert find_clusters(100, 7).number == 100


def test_the_work_for_pairs_is_bounded_by_using_fewer_clusters() -> None:
    private, signals = draw_without_leak(0, subjects=200)
    words = pack(signals).reshape(len(signals), -1)
    targets = Targets(pack(private).reshape(1, -1), pack(np.ones_like(private)).reshape(1, -1))
    clusters = find_clusters(200, 2)
    counts = count_signals(words, targets, clusters)
    steps = 66 * words.shape[1] * 2
    _, whole, every = score_pairs(words, targets, clusters, counts, steps)
    pairs, some, used = score_pairs(words, targets, clusters, counts, steps // 4)
    assert (every, used) == (200, 50)
    assert whole.shape[0] == 66
    assert len(pairs) == len(some)
    # The same as with a quarter of the subjects from the start.
    kept = np.unique(np.linspace(0, 199, 50).astype(int))
    fewer = Targets(*(part.reshape(200, 2)[kept].reshape(1, -1) for part in (
        targets.present[0], targets.valid[0])))  # fmt: skip
    own = words.reshape(-1, 200, 2)[:, kept].reshape(len(words), -1)
    alone = Clusters(np.arange(51) * 2, np.array([0, 50]))
    _, wanted, _ = score_pairs(own, fewer, alone, count_signals(own, fewer, alone))
    assert some == pytest.approx(wanted)


def test_nothing_is_reported_without_a_leak_in_95_of_100_runs() -> None:
    """Windows last and subjects differ, so that independent windows are a wrong assumption."""
    reported, wrongly = 0, 0
    for seed in range(100):
        private, signals = draw_without_leak(seed)
        reported += bool(measure(private, signals).leaks)
        wrongly += report_as_if_windows_were_independent(private, signals)
    assert reported <= 5
    assert wrongly > 60, "the data would mislead a test that ignores subjects"


def report_as_if_windows_were_independent(private: Bits, signals: Bits) -> bool:
    """Whether the same test reports anything if every window is a cluster."""
    x, y = signals.reshape(len(signals), -1), private.ravel()
    n = y.size
    rate_x, rate_y = x.mean(axis=1), y.mean()
    variance = n * rate_x * (1 - rate_x) * rate_y * (1 - rate_y)
    statistic = ((x & y).sum(axis=1) - n * rate_x * rate_y) / np.sqrt(variance)
    return bool(control_discoveries(compute_p_values(statistic), 0.025).any())


def test_few_subjects_with_many_windows_report_nothing_either() -> None:
    reported = 0
    for seed in range(40):
        private, signals = draw_without_leak(seed, subjects=5, windows=2000, signals=6)
        reported += bool(measure(private, signals).leaks)
    assert reported <= 2


@pytest.mark.parametrize(
    ("ratio", "least", "most"), [(1.0, 0, 3), (1.4, 12, 48), (1.8, 57, 60), (3.0, 60, 60)]
)
def test_planted_leaks_are_found_at_the_stated_rates(ratio: float, least: int, most: int) -> None:
    """200 subjects of 96 windows, the signal in 10 % of them, the private pattern in 14 %."""
    found = false = total = 0
    for seed in range(60):
        private, signals = draw_without_leak(1000 + seed, subjects=200, signals=9)
        signals[4] = plant(np.random.default_rng(seed), private, 0.1, ratio)
        leaks = measure(private, signals).leaks
        own = [leak for leak in leaks if "e4" in leak.types]
        found += any(leak.kind == "event" and leak.when == "same" for leak in own)
        false += len(leaks) - len(own)
        total += len(leaks)
    assert least <= found <= most
    assert false <= 0.05 * max(total, 60)


def test_bounds_contain_the_planted_ratio() -> None:
    """At the level of 0.9, also where windows last: the true ratio is missed once in ten or less.

    The ratio of a lasting signal is that of a long history.
    """
    missed = 0
    for seed in range(150):
        chance = np.random.default_rng(seed)
        private = draw_stays(chance, (150, 64), np.full(150, 0.2), 0.7)
        signal = plant(chance, private, 0.1, 3.0)
        clusters = find_clusters(150, 1)
        seen, present, known = (pack(x).ravel() for x in (signal, private, private | True))
        ratio = bound_odds_ratio(seen, present, known, clusters, 0.9)
        missed += not ratio.low <= 3.0 <= ratio.high
        assert ratio.low < ratio.value < ratio.high
    assert missed <= 22


def test_a_case_that_never_occurs_leaves_the_ratio_unbounded() -> None:
    private = np.random.default_rng(0).random((100, 64)) < 0.2
    clusters, known = find_clusters(100, 1), pack(np.ones_like(private)).ravel()
    same = bound_odds_ratio(pack(private).ravel(), pack(private).ravel(), known, clusters, 0.95)
    assert same.low > 10
    assert same.high == np.inf
    never = bound_odds_ratio(pack(~private).ravel(), pack(private).ravel(), known, clusters, 0.95)
    assert never.low == 0
    assert never.high < 0.1


def test_false_discoveries_are_controlled_as_benjamini_and_yekutieli_do() -> None:
    chance = np.random.default_rng(3)
    p_values = np.concatenate([chance.random(50), chance.random(10) * 1e-4])
    order = np.argsort(p_values)
    harmonic = sum(1 / n for n in range(1, 61))
    last = max(k for k in range(60) if p_values[order[k]] <= 0.1 * (k + 1) / 60 / harmonic)
    wanted = np.zeros(60, bool)
    wanted[order[: last + 1]] = True
    assert (control_discoveries(p_values, 0.1) == wanted).all()
    assert not control_discoveries(np.array([0.5, 0.9]), 0.1).any()
    assert not control_discoveries(np.empty(0), 0.1).any()
