"""One decoder for all: literal answers are the query's, posteriors are Bayes's, and both count."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PrivacyError
from tacit.evaluation.baselines import (
    BASELINES,
    Baseline,
    EventLevel,
    PriorAlone,
    Setting,
    WEventSample,
    make_literal_decoder,
    make_posterior_decoder,
    measure,
)
from tacit.evaluation.baselines.decoding import _cells, _channels, compare, compute_true_answers
from tacit.evaluation.baselines.releases import make_uniform_release
from tacit.evaluation.measurement import compare as compare_bits
from tacit.evaluation.measurement import compute_statistics, compute_true_bits
from tacit.evaluation.measurement import measure as measured_by_engine
from tacit.evaluation.synthetic import Shape, draw_data_set
from tacit.patterns.tree import And, Name
from tacit.planning.planner import make_plan
from tacit.privacy.evidence import Evidence, cut_cells
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tests.evaluation.baselines.settings import setting, windows


def test_literal_answers_are_what_the_queries_say_of_the_noisy_bits() -> None:
    presence = windows(300, 5)
    release = EventLevel().release(presence, setting(), 2.0, np.random.default_rng(1))
    a, b, c, d = release.bits.T
    expected = np.stack([a & d, b | ~c, d & b & ~a])
    assert (make_literal_decoder(setting()).answer(release) == expected).all()


def test_true_answers_and_counts_agree_with_those_of_the_engine() -> None:
    drawn = draw_data_set(5, Shape(windows=200))
    here = Setting.of(drawn.spec, drawn.history)
    truth = compute_true_answers(here, drawn.test)
    release = EventLevel().release(drawn.test, here, 5, np.random.default_rng(0))
    ours = compare(truth, make_literal_decoder(here).answer(release))
    add_noise = compute_true_bits(drawn.spec, release.bits)
    theirs = compare_bits(compute_true_bits(drawn.spec, drawn.test), add_noise, 200)
    assert (ours.tp == theirs.tp).all()
    assert (ours.fp == theirs.fp).all()
    assert (ours.fn == theirs.fn).all()


def test_for_flips_posterior_and_threshold_are_those_of_the_planner() -> None:
    here = setting()
    random = np.random.default_rng(2)
    release = EventLevel().release(here.history, here, 2.0, random)
    channels = _channels(release, here.history)
    known = []
    for asked in here.asked:
        flips = release.flips[1, list(asked.columns)]
        names = tuple(here.types[n] for n in asked.columns)
        known.append((Evidence.of_presence(names, asked.table[None], asked.windows[None]), flips))
    threshold, _ = cut_cells([evidence.cells(flips) for evidence, flips in known], 0.5)
    decoder = make_posterior_decoder(EventLevel(), here, 2.0, random)
    for asked, yes, (evidence, flips) in zip(here.asked, decoder.yes, known, strict=True):
        cells = _cells(asked, channels, np.array([0.0, 1.0]))
        assert cells.posterior[1] == pytest.approx(evidence.posterior(flips)[0])
        assert cells.true[1] == pytest.approx(evidence.cells(flips).true)
        assert (yes[1] == (evidence.posterior(flips)[0] >= threshold)).all()


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_posteriors_are_those_of_a_sum_over_all_that_may_be_true(seed: int, size: int) -> None:
    """With channels that are not symmetric, as those of repeated releases."""
    chance = np.random.default_rng(seed)
    names = tuple("abcd"[:size])
    history = chance.random((30, size)) < chance.random(size)
    query = And(*names) if size % 2 else Name("a")
    here = Setting(names, (frozenset(names),), (query,), history)
    (asked,) = here.asked
    ones = chance.random((2, size, 2))
    channels = np.stack([1 - ones, ones], axis=-1)
    found = _cells(asked, channels, np.array([0.25, 0.75]))
    prior = asked.weights[:, 0].sum(axis=0)
    for grade, y in product(range(2), range(len(asked.table))):
        true = false = expected = 0.0
        for x in range(len(asked.table)):
            likely = 1.0
            for place, column in enumerate(asked.columns):
                likely *= channels[grade, column, x >> place & 1, y >> place & 1]
            true += asked.table[x] * prior[x] * likely
            false += (not asked.table[x]) * prior[x] * likely
            expected += asked.table[x] * asked.windows[x] * likely * (0.25, 0.75)[grade]
        assert found.posterior[grade, y] == pytest.approx(true / (true + false))
        assert found.true[grade, y] == pytest.approx(expected)


def test_repeated_bits_of_a_slow_stream_tell_much_and_of_a_fast_one_nothing() -> None:
    chance = np.random.default_rng(3)
    slow = np.repeat(chance.random((500, 4)) < 0.5, 8, axis=0)[1:]
    fast = chance.random((4000, 4)) < 0.5
    for history, tells in ((slow, True), (fast, False)):
        release = WEventSample(2).release(history, setting(history), 1e3, chance)
        channels = _channels(release, history)[0]
        if tells:
            assert (channels[:, [0, 1], [0, 1]] > 0.85).all()
        else:
            assert (abs(channels - 0.5) < 0.06).all()


def test_bits_that_never_change_tell_nothing() -> None:
    history = windows(500, 6)
    release = make_uniform_release(np.ones_like(history), np.zeros(4), 1.0)
    repeated = replace(release, grades=np.zeros(500, np.uint8))
    channels = _channels(repeated, history)[0]
    assert channels[:, 0] == pytest.approx(channels[:, 1])


@pytest.mark.cases(3)
@pytest.mark.parametrize("baseline", BASELINES, ids=lambda baseline: baseline.name)
def test_posterior_decoding_is_hardly_ever_worse_than_literal(baseline: Baseline) -> None:
    """Over a few data sets together, at an epsilon where there is much noise."""
    total = {"literal": 0.0, "posterior": 0.0}
    for seed in range(4):
        drawn = draw_data_set(seed)
        here = Setting.of(drawn.spec, drawn.history)
        random = np.random.default_rng(seed)
        for decode, found in measure(baseline, here, drawn.test, 2, random).items():
            total[decode] += found.total().mre(0.5)
    assert total["posterior"] <= total["literal"] + 0.02


def test_the_prior_alone_answers_by_public_events_as_well_as_can_be() -> None:
    """The best yes or no for each public part of a window, by brute force."""
    chance = np.random.default_rng(4)
    history, test = chance.random((2, 4000, 2)) < [0.6, 0.5]
    here = Setting(("x", "z"), (frozenset("x"),), (And("x", "z"),), history)
    found = measure(PriorAlone(), here, test, 1.0, chance)["posterior"].total()
    best = compare(test.all(axis=1)[None], test[:, 1][None]).total()
    assert found == best


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", [0, 4])
def test_the_prior_alone_does_what_the_engine_does_with_next_to_no_epsilon(seed: int) -> None:
    drawn = draw_data_set(seed)
    statistics = compute_statistics(drawn.spec, drawn.history)
    plan = make_plan(drawn.spec, statistics, "optimal", "posterior", Fraction(1, 10**6))
    engine = measured_by_engine(plan, drawn.test, Noise(SeededSource(seed)))
    here = Setting.of(drawn.spec, drawn.history)
    ours = measure(PriorAlone(), here, drawn.test, 1, np.random.default_rng(0))["posterior"]
    assert ours.total().mre(0.5) == pytest.approx(engine.total().mre(0.5), abs=0.01)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda baseline: baseline.name)
def test_without_history_or_queries_there_is_still_an_answer_for_everything(
    baseline: Baseline,
) -> None:
    presence = windows(20, 1)
    unknown = setting(np.zeros((0, 4), np.bool_))
    nothing = Setting(unknown.types, unknown.private, (), presence)
    for here, queries in ((unknown, 3), (nothing, 0)):
        for found in measure(baseline, here, presence, 1.0, np.random.default_rng(0)).values():
            assert found.tp.shape == (queries,)


def test_answers_of_other_windows_are_not_compared() -> None:
    with pytest.raises(PrivacyError, match="cannot be compared with"):
        compare(np.zeros((1, 5), np.bool_), np.zeros((1, 6), np.bool_))
