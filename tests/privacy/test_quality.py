"""Quality follows its conventions, for numbers and for arrays alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.quality import Confusion, micro_alpha

amounts = st.sampled_from([0.0, 0.5, 1.0, 7.0, 1000.0])
alphas = st.sampled_from([0.0, 0.3, 1.0])


@pytest.mark.parametrize(
    ("counts", "precision", "recall"),
    [
        ((0.0, 0.0, 0.0), 1.0, 1.0),
        ((0.0, 0.0, 3.0), 0.0, 0.0),
        ((0.0, 2.0, 0.0), 0.0, 1.0),
        ((0.0, 2.0, 3.0), 0.0, 0.0),
        ((3.0, 1.0, 2.0), 0.75, 0.6),
        ((3.0, 0.0, 0.0), 1.0, 1.0),
    ],
)
def test_precision_and_recall_are_what_the_conventions_say(
    counts: tuple[float, float, float], precision: float, recall: float
) -> None:
    found = Confusion(*counts)
    assert (found.precision, found.recall) == (precision, recall)
    assert found.quality(0.25) == 0.25 * precision + 0.75 * recall
    assert found.mre(0.25) == pytest.approx(1 - found.quality(0.25))


@given(st.lists(st.tuples(amounts, amounts, amounts, alphas), min_size=1, max_size=9))
def test_arrays_give_what_numbers_give(rows: list[tuple[float, float, float, float]]) -> None:
    tp, fp, fn, alpha = (np.array(column) for column in zip(*rows, strict=True))
    together = Confusion(tp, fp, fn)
    apart = [Confusion(*row[:3]) for row in rows]
    assert np.array_equal(together.precision, [one.precision for one in apart])
    assert np.array_equal(together.recall, [one.recall for one in apart])
    each = [one.quality(row[3]) for one, row in zip(apart, rows, strict=True)]
    assert np.array_equal(together.quality(alpha), each)
    assert together.total() == Confusion(float(tp.sum()), float(fp.sum()), float(fn.sum()))


def test_mre_is_relative_to_the_unprotected_quality() -> None:
    found = Confusion(3.0, 1.0, 1.0)
    assert found.mre(0.5) == 0.25
    assert found.mre(0.5, truth_quality=0.9) == pytest.approx(0.15 / 0.9)


@given(
    st.floats(1, 100),
    st.floats(0.5, 100),
    st.floats(1, 100),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
def test_weights_are_the_gradient_of_quality(tp: float, fp: float, fn: float, alpha: float) -> None:
    step = 1e-6
    weights = Confusion(tp, fp, fn).weights(alpha)
    right = Confusion(tp + step, fp, fn - step).quality(alpha)
    wrong = Confusion(tp, fp + step, fn).quality(alpha)
    here = Confusion(tp, fp, fn).quality(alpha)
    assert (right - here) / step == pytest.approx(weights.reward, abs=1e-5)
    assert (here - wrong) / step == pytest.approx(weights.penalty, abs=1e-5)
    assert weights.threshold == pytest.approx(
        weights.penalty / (weights.reward + weights.penalty or 1)
    )


def test_weights_where_something_is_zero() -> None:
    nothing_claimed = Confusion(0.0, 0.0, 4.0).weights(0.5)
    assert nothing_claimed == (0.125, 0.0)
    assert nothing_claimed.threshold == 0.0
    nothing_there = Confusion(0.0, 3.0, 0.0).weights(0.5)
    assert nothing_there == (0.0, 0.5)
    assert nothing_there.threshold == 1.0
    assert Confusion(0.0, 0.0, 0.0).weights(0.0).threshold == 0.5
    all_right = Confusion(4.0, 0.0, 0.0).weights(0.5)
    assert all_right == (0.125, 0.125)


def test_micro_alpha_is_the_mean() -> None:
    assert micro_alpha([0.2, 0.6]) == pytest.approx(0.4)
    assert micro_alpha([]) == 0.5
