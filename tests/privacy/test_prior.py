"""The prior: mixtures by hand, groups, back from plain data, and plans of old versions."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PlanError
from tacit.privacy.prior import LEAF, Prior
from tacit.privacy.prior_tree import STRENGTHS


def random_prior(rng: np.random.Generator, signals: int, variables: int, rows: int) -> Prior:
    """A prior with a random tree, and rows spread over its groups."""
    splits: list[int] = []
    pending = [0]
    while pending:
        depth = pending.pop()
        if signals and depth < 4 and rng.random() < 0.7:
            splits.append(int(rng.integers(0, signals)))
            pending += [depth + 1, depth + 1]
        else:
            splits.append(LEAF)
    groups = splits.count(LEAF)
    cuts = np.sort(rng.integers(0, rows + 1, groups - 1))
    return Prior(
        rng.uniform(0.01, 0.99, variables),
        signals,
        np.array(splits),
        np.array([0, *cuts, rows]),
        rng.integers(0, 2, (rows, variables)).astype(np.bool_),
        rng.integers(1, 50, rows).astype(np.float64),
        float(rng.choice(STRENGTHS)),
    )


def walk(prior: Prior, signals: list[bool]) -> list[list[int]]:
    """The groups below each node on the way of a context, from all of them to its own."""
    splits = prior.splits.tolist()

    def below(node: int) -> tuple[int, int]:
        """The number of groups below a node, and the node after its branches."""
        if splits[node] == LEAF:
            return 1, node + 1
        left, middle = below(node + 1)
        right, end = below(middle)
        return left + right, end

    node, first = 0, 0
    path = []
    while True:
        groups, _ = below(node)
        path.append(list(range(first, first + groups)))
        if splits[node] == LEAF:
            return path
        left, middle = below(node + 1)
        if signals[splits[node]]:
            node, first = middle, first + left
        else:
            node += 1


SHAPES = st.tuples(st.integers(0, 12), st.integers(1, 10), st.integers(0, 40))


@given(SHAPES, st.integers(0, 2**32))
def test_choices_are_smoothed_from_group_to_group_as_counted_one_by_one(
    shape: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    prior = random_prior(rng, *shape)
    asked = rng.permutation(shape[1])[: rng.integers(0, min(5, shape[1]) + 1)].tolist()
    signals = rng.integers(0, 2, shape[0]).astype(np.bool_)
    found = prior.choice_probabilities(signals, asked)
    path = walk(prior, signals.tolist())
    for values in product((False, True), repeat=len(asked)):
        expected = float(np.prod(np.where(values, prior.rates[asked], 1 - prior.rates[asked])))
        for groups in path:
            rows = range(prior.bounds[groups[0]], prior.bounds[groups[-1] + 1])
            windows = sum(prior.counts[n] for n in rows)
            seen = sum(prior.counts[n] for n in rows if tuple(prior.values[n, asked]) == values)
            expected = (seen + prior.strength * expected) / (windows + prior.strength)
        place = sum(x << n for n, x in enumerate(values))
        assert found[place] == pytest.approx(expected, rel=1e-12)
    assert found.sum() == pytest.approx(1, rel=1e-12)
    assert (found > 0).all()


@given(SHAPES, st.integers(0, 2**32))
def test_many_contexts_are_grouped_as_one_by_one(shape: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    prior = random_prior(rng, *shape)
    signals = rng.integers(0, 2, (30, shape[0])).astype(np.bool_)
    groups = prior.group(signals)
    assert groups.tolist() == [walk(prior, row.tolist())[-1][0] for row in signals]
    for row, group in zip(signals, groups.tolist(), strict=True):
        whole = prior.choice_probabilities(row, range(shape[1]))
        assert np.array_equal(prior.choices(group, range(shape[1])), whole)


@given(SHAPES, st.integers(0, 2**32), st.booleans())
def test_a_prior_comes_back_from_json_as_it_was(
    shape: tuple[int, int, int], seed: int, old: bool
) -> None:
    rng = np.random.default_rng(seed)
    prior = random_prior(rng, *shape)
    if old:
        prior = Prior.from_dict(old_plain(rng, *shape))
    back = Prior.from_dict(json.loads(json.dumps(prior.to_dict())))
    for name in ("rates", "splits", "bounds", "values", "counts"):
        ours, theirs = getattr(prior, name), getattr(back, name)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    for name in ("width", "strength", "leaves_only"):
        assert getattr(back, name) == getattr(prior, name)


def old_plain(rng: np.random.Generator, signals: int, variables: int, rows: int) -> dict[str, Any]:
    """The prior in a plan of an old version: every context with its own windows."""
    contexts = rng.integers(0, 2, (rows, signals)).astype(np.bool_)
    order = np.lexsort(contexts.T) if signals and rows else np.arange(rows)
    values = rng.integers(0, 2, (rows, variables)).astype(np.bool_)
    return {
        "rates": rng.uniform(0.01, 0.99, variables).tolist(),
        "strength": 4.0,
        "widths": [signals, variables],
        "signals": [row.tobytes().hex() for row in np.packbits(contexts[order], axis=1)],
        "values": [row.tobytes().hex() for row in np.packbits(values, axis=1)],
        "counts": rng.integers(1, 50, rows).astype(np.float64).tolist(),
    }


@given(SHAPES, st.integers(0, 2**32))
def test_the_prior_of_an_old_plan_has_its_probabilities(
    shape: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    plain = old_plain(rng, *shape)
    prior = Prior.from_dict(plain)
    counts = np.array(plain["counts"])
    for text in dict.fromkeys(plain["signals"]):
        here = [n for n, other in enumerate(plain["signals"]) if other == text]
        packed = np.frombuffer(bytes.fromhex(text), np.uint8)
        signals = np.unpackbits(packed, count=shape[0]).astype(np.bool_)
        seen = {n: np.frombuffer(bytes.fromhex(plain["values"][n]), np.uint8) for n in here}
        true = sum(counts[n] for n in here if np.unpackbits(seen[n])[0])
        expected = (true + 4 * prior.rates[0]) / (counts[here].sum() + 4)
        assert prior.choice_probabilities(signals, [0])[1] == pytest.approx(expected, rel=1e-12)


def test_without_history_there_are_the_rates_alone() -> None:
    prior = Prior.from_rates(np.array([0.0, 0.25, 1.0]), 3)
    found = prior.choice_probabilities(np.array([True, False, True]), [1])
    assert found.tolist() == pytest.approx([0.75, 0.25])
    assert (prior.choice_probabilities(np.zeros(3, np.bool_), [0, 2]) > 0).all()
    assert prior.group(np.zeros((2, 3), np.bool_)).tolist() == [0, 0]


def plain_prior() -> dict[str, Any]:
    plain = random_prior(np.random.default_rng(2), 3, 2, 5).to_dict()
    assert len(plain["splits"]) > 3
    return plain


@pytest.mark.parametrize(
    "damage", ["rates", "widths", "splits", "rows", "values", "counts", "strength"]
)
def test_damaged_data_is_refused(damage: str) -> None:
    with pytest.raises(PlanError):
        Prior.from_dict({name: part for name, part in plain_prior().items() if name != damage})
    with pytest.raises(PlanError):
        Prior.from_dict(plain_prior() | {damage: "nonsense"})


def test_a_tree_that_does_not_end_or_asks_for_other_signals_is_refused() -> None:
    plain = plain_prior()
    for splits in ([*plain["splits"], -1], plain["splits"][:-1], [3, -1, -1], [-2], []):
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {"splits": splits})
    with pytest.raises(PlanError):
        Prior.from_dict(plain | {"widths": [0, 2]})


def test_tables_of_different_lengths_are_refused() -> None:
    plain = plain_prior()
    for name in ("rows", "values", "counts", "rates"):
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {name: plain[name][:-1]})
    for wrong in (float("nan"), -1.0):
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {"counts": [wrong] * 5})
        with pytest.raises(PlanError):
            Prior.from_dict(plain | {"rates": [wrong] * 2})
    with pytest.raises(PlanError):
        Prior.from_dict(plain | {"strength": 0.0})
