"""The prior: sums, counts by hand, and back from plain data."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PlanError
from tacit.planning.survey import STRENGTHS, _strength
from tacit.privacy.prior import Prior


def random_prior(rng: np.random.Generator, signals: int, variables: int, rows: int) -> Prior:
    """A prior with rows of few contexts, in order of these."""
    contexts = rng.integers(0, 2, (rows, signals)).astype(np.bool_)
    order = np.lexsort(contexts.T) if signals and rows else np.arange(rows)
    return Prior(
        rng.uniform(0.01, 0.99, variables),
        contexts[order],
        rng.integers(0, 2, (rows, variables)).astype(np.bool_),
        rng.integers(1, 50, rows).astype(np.float64),
        float(rng.choice(STRENGTHS)),
    )


SHAPES = st.tuples(st.integers(0, 12), st.integers(1, 10), st.integers(0, 40))


@given(SHAPES, st.integers(0, 2**32))
def test_choices_have_the_probabilities_of_windows_and_base_rates_counted_one_by_one(
    shape: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    prior = random_prior(rng, *shape)
    asked = rng.permutation(shape[1])[: rng.integers(0, min(5, shape[1]) + 1)].tolist()
    strange = rng.integers(0, 2, shape[0]).astype(np.bool_)
    signals = strange if rng.random() < 0.3 or not shape[2] else prior.signals[0]
    found = prior.choice_probabilities(signals, asked)
    same = [n for n in range(shape[2]) if (prior.signals[n] == signals).all()]
    windows = sum(prior.counts[n] for n in same)
    for values in product((False, True), repeat=len(asked)):
        seen = sum(prior.counts[n] for n in same if tuple(prior.values[n, asked]) == values)
        rates = prior.rates[asked]
        base = np.prod(np.where(values, rates, 1 - rates))
        expected = (seen + prior.strength * base) / (windows + prior.strength)
        place = sum(x << n for n, x in enumerate(values))
        assert found[place] == pytest.approx(expected, rel=1e-12)
    assert found.sum() == pytest.approx(1, rel=1e-12)
    assert (found > 0).all()


@given(SHAPES, st.integers(0, 2**32))
def test_a_prior_comes_back_from_json_as_it_was(shape: tuple[int, int, int], seed: int) -> None:
    prior = random_prior(np.random.default_rng(seed), *shape)
    back = Prior.from_dict(json.loads(json.dumps(prior.to_dict())))
    for name in ("rates", "signals", "values", "counts"):
        ours, theirs = getattr(prior, name), getattr(back, name)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    assert back.strength == prior.strength
    assert [(s.tolist(), n) for s, n in back.contexts] == [
        (s.tolist(), n) for s, n in prior.contexts
    ]


@given(SHAPES, st.integers(0, 2**32))
def test_contexts_come_once_with_all_their_windows_the_commonest_first(
    shape: tuple[int, int, int], seed: int
) -> None:
    prior = random_prior(np.random.default_rng(seed), *shape)
    slow: dict[tuple[bool, ...], float] = {}
    for row, count in zip(prior.signals.tolist(), prior.counts, strict=True):
        slow[tuple(row)] = slow.get(tuple(row), 0.0) + count
    found = prior.contexts
    assert {tuple(signals.tolist()): windows for signals, windows in found} == slow
    assert len(found) == len(slow)
    assert [windows for _, windows in found] == sorted(slow.values(), reverse=True)


def test_without_history_there_are_the_rates_alone() -> None:
    prior = Prior.from_rates(np.array([0.0, 0.25, 1.0]), 3)
    found = prior.choice_probabilities(np.array([True, False, True]), [1])
    assert found.tolist() == pytest.approx([0.75, 0.25])
    assert (prior.choice_probabilities(np.zeros(3, np.bool_), [0, 2]) > 0).all()
    assert prior.contexts == []


@pytest.mark.parametrize("damage", ["rates", "widths", "signals", "values", "counts", "strength"])
def test_damaged_data_is_refused(damage: str) -> None:
    plain = random_prior(np.random.default_rng(1), 3, 2, 5).to_dict()
    with pytest.raises(PlanError):
        Prior.from_dict({name: part for name, part in plain.items() if name != damage})
    with pytest.raises(PlanError):
        Prior.from_dict(plain | {damage: "nonsense"})


def test_signals_of_another_width_are_refused() -> None:
    plain = random_prior(np.random.default_rng(1), 3, 2, 5).to_dict()
    with pytest.raises(PlanError):
        Prior.from_dict(plain | {"widths": [17, 2]})


def test_tables_of_different_lengths_are_refused() -> None:
    plain = random_prior(np.random.default_rng(1), 3, 2, 5).to_dict()
    for name in ("signals", "values", "counts", "rates"):
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {name: plain[name][:-1]})
    for wrong in (float("nan"), -1.0):
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {"counts": [wrong] * 5})
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {"rates": [wrong] * 2})
    with pytest.raises(PlanError):
        Prior.from_dict(plain | {"strength": 0.0})


def history(coupled: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows of 40 contexts in which two variables follow the context, or do not."""
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 40, 4000)
    rate = np.where(numbers % 2, 0.95, 0.05) if coupled else np.full(4000, 0.5)
    values = rng.random((4000, 2)) < rate[:, None]
    bits = (numbers[:, None] >> np.arange(6)) & 1
    rows, counts = np.unique(np.hstack([bits, values]), axis=0, return_counts=True)
    return rows[:, :6] > 0, rows[:, 6:] > 0, counts.astype(np.float64)


def test_base_rates_count_much_where_contexts_are_alike_and_little_where_they_differ() -> None:
    rates = np.array([0.5, 0.5])
    assert _strength(*history(coupled=False), rates) == max(STRENGTHS)
    assert _strength(*history(coupled=True), rates) <= STRENGTHS[1]


def test_the_strength_is_the_likeliest_when_windows_are_drawn_one_by_one() -> None:
    """The chance of a history is the product of what each window's predecessors predict."""
    signals, values, counts = history(coupled=True)
    rates = np.array([0.4, 0.6])

    def log_chance(strength: float) -> float:
        total = 0.0
        for context in np.unique(signals, axis=0):
            here = (signals == context).all(axis=1)
            seen: dict[tuple[bool, ...], int] = {}
            before = 0
            for row, count in zip(values[here].tolist(), counts[here].astype(int), strict=True):
                base = np.prod(np.where(row, rates, 1 - rates))
                for _ in range(count):
                    had = seen.get(tuple(row), 0)
                    total += np.log((had + strength * base) / (before + strength))
                    seen[tuple(row)], before = had + 1, before + 1
        return float(total)

    assert _strength(signals, values, counts, rates) == max(STRENGTHS, key=log_chance)
