"""Closed forms say what enumeration and simulation say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PlanError
from tacit.privacy.evidence import Evidence, apply_flips, cut_cells, noise_probabilities
from tacit.privacy.quality import Confusion
from tests.privacy.evidence_strategies import Floats, evidence, flips, kernel, literal_of

three = st.shared(evidence(), key="evidence")
fitting = three.flatmap(lambda known: flips(len(known.elements)))


def as_numbers(found: Confusion[float]) -> list[float]:
    return [found.tp, found.fp, found.fn]


def enumerated(known: Evidence, chances: Floats, yes: dict[tuple[int, int], bool] | None) -> Floats:
    """TP, FP and FN window by window: literal answers, or those of a decoder."""
    found = np.zeros(3)
    table = kernel(chances)
    contexts, _, size = known.counts.shape
    for context, truth, x, y in product(range(contexts), (0, 1), range(size), range(size)):
        windows = known.counts[context, truth, x] * table[x, y]
        read = literal_of(known, context, truth, x, y) if yes is None else yes[context, y]
        found += windows * np.array([truth * read, (1 - truth) * read, truth * (1 - read)])
    return found


@given(three, fitting)
def test_noise_acts_as_the_kronecker_product_of_the_flips(known: Evidence, chances: Floats) -> None:
    table = kernel(chances)
    assert noise_probabilities(chances) == pytest.approx(table[0])
    assert noise_probabilities(chances).sum() == pytest.approx(1)
    assert np.allclose(apply_flips(known.counts, chances), known.counts @ table)


@given(three, fitting)
def test_literal_answers_are_expected_as_enumeration_says(known: Evidence, chances: Floats) -> None:
    found = as_numbers(known.confusion(chances, "literal"))
    assert found == pytest.approx(enumerated(known, chances, None).tolist(), abs=1e-9)


@given(three, fitting, st.sampled_from([0.2, 0.5, 0.77]))
def test_posterior_answers_are_expected_as_enumeration_says(
    known: Evidence, chances: Floats, threshold: float
) -> None:
    posterior = known.posterior(chances)
    yes = {place: bool(value >= threshold) for place, value in np.ndenumerate(posterior)}
    found = as_numbers(known.confusion(chances, "posterior", threshold))
    assert found == pytest.approx(enumerated(known, chances, yes).tolist(), abs=1e-9)


@given(three, fitting)
def test_the_posterior_is_bayes_rule_on_what_is_expected(known: Evidence, chances: Floats) -> None:
    table = kernel(chances)
    for (context, y), value in np.ndenumerate(known.posterior(chances)):
        false, true = (
            sum(known.expected[context, truth, x] * table[x, y] for x in range(len(table)))
            for truth in (0, 1)
        )
        assert value == pytest.approx(true / (false + true))


@given(three, fitting)
def test_confidence_is_how_likely_an_answer_is_right(known: Evidence, chances: Floats) -> None:
    table = kernel(chances)
    confidence = known.confidence(chances, "literal")
    contexts, _, size = known.counts.shape
    for context, y in product(range(contexts), range(size)):
        said = np.zeros((2, 2))
        for truth, x in product((0, 1), range(size)):
            windows = known.expected[context, truth, x] * table[x, y]
            read = literal_of(known, context, truth, x, y)
            said[truth] += [windows * (1 - read), windows * read]
        for answer in (0, 1):
            if said[:, answer].sum() > 1e-9:
                right = said[answer, answer] / said[:, answer].sum()
                assert confidence[context, y, answer] == pytest.approx(right)
    posterior = known.posterior(chances)
    decided = known.confidence(chances, "posterior")
    assert np.array_equal(decided[..., 1], posterior)
    assert np.allclose(decided.sum(axis=-1), 1)


def three_elements() -> tuple[Evidence, Floats]:
    """(a and b) or c in context 0; not a in context 1."""
    x = np.arange(8)
    table = np.stack([((x & 3) == 3) | (x & 4 > 0), (x & 1) == 0])
    windows = np.array([[40.0, 10, 20, 30, 5, 5, 5, 5], [10.0, 40, 0, 0, 30, 0, 0, 0]])
    return Evidence.of_presence(("a", "b", "c"), table, windows), np.array([0.1, 0.3, 0.2])


def simulated(known: Evidence, chances: Floats, times: int) -> Floats:
    """Draw windows, flip their bits, read the table: the share of TP, FP and FN."""
    generator = np.random.default_rng(7)
    weights = (known.counts / known.counts.sum()).ravel()
    places = generator.choice(len(weights), times, p=weights)
    contexts, truth, x = np.unravel_index(places, known.counts.shape)
    bits = generator.random((times, len(chances))) < chances
    noisy = x ^ (bits @ (1 << np.arange(len(chances))))
    read = known.literal[contexts, noisy] > 0
    return np.array(
        [(truth & read).mean(), (~truth.astype(bool) & read).mean(), (truth & ~read).mean()]
    )


def test_a_long_simulation_agrees_and_tells_a_nearby_flip_apart() -> None:
    known, chances = three_elements()
    times = 400_000
    seen = simulated(known, chances, times)

    def away(others: Floats) -> float:
        expected = np.array(as_numbers(known.confusion(others, "literal"))) / known.counts.sum()
        return float(np.max(np.abs(seen - expected) / np.sqrt(expected * (1 - expected) / times)))

    assert away(chances) < 4
    assert away(chances + np.array([0.0, 0.02, 0.0])) > 6


def test_without_noise_literal_answers_are_right() -> None:
    known, _ = three_elements()
    assert as_numbers(known.confusion(np.zeros(3), "literal")) == [known.positives, 0, 0]
    assert as_numbers(known.confusion(np.full(3, 1e-9), "posterior"))[0] == pytest.approx(
        known.positives
    )


def test_bit_i_is_element_i() -> None:
    only_b = np.array([[False, False, True, True]])
    known = Evidence.of_presence(("a", "b"), only_b, np.array([[1.0, 1.0, 1.0, 1.0]]))
    found = known.confusion(np.array([0.5, 0.0]), "literal")
    assert as_numbers(found) == [2, 0, 0]
    found = known.confusion(np.array([0.0, 0.5]), "literal")
    assert as_numbers(found) == [1, 1, 1]


def test_a_context_that_was_never_seen_has_a_posterior_by_base_rates() -> None:
    table = np.array([[False, True], [True, False]])
    known = Evidence.of_presence(("a",), table, np.array([[59.5, 19.5], [0.0, 0.0]]))
    rate = (19.5 + 0.5) / (79 + 1)
    for flip in (0.1, 0.5):
        [there, gone] = known.posterior(np.array([flip]))[1]
        assert there == pytest.approx(
            (1 - flip) * (1 - rate) / ((1 - flip) * (1 - rate) + flip * rate)
        )
        assert gone == pytest.approx(flip * (1 - rate) / (flip * (1 - rate) + (1 - flip) * rate))


def test_a_context_that_decides_the_query_is_sure() -> None:
    table = np.array([[True, True], [False, False], [False, True]])
    known = Evidence.of_presence(("a",), table, np.array([[9.0, 1.0], [1.0, 9.0], [5.0, 5.0]]))
    posterior = known.posterior(np.array([0.4]))
    assert posterior[0].tolist() == [1, 1]
    assert posterior[1].tolist() == [0, 0]
    assert ((posterior[2] > 0) & (posterior[2] < 1)).all()


def test_without_any_window_there_is_still_a_posterior() -> None:
    nothing = Evidence(("a",), np.zeros((1, 2, 2)), np.zeros((1, 2, 2, 2)), strength=0.0)
    assert nothing.posterior(np.array([0.3])).tolist() == [[0.5, 0.5]]
    assert as_numbers(nothing.confusion(np.array([0.3]), "posterior")) == [0, 0, 0]


def test_tables_of_the_wrong_shape_or_for_too_many_elements_are_refused() -> None:
    with pytest.raises(PlanError, match="needs counts"):
        Evidence(("a", "b"), np.zeros((1, 2, 2)), np.zeros((1, 4)))
    with pytest.raises(PlanError, match="needs counts"):
        Evidence(("a",), np.zeros((1, 2, 2)), np.zeros((2, 2)))
    with pytest.raises(PlanError, match="at most 6"):
        Evidence(tuple("abcdefg"), np.zeros((1, 2, 128)), np.zeros((1, 128)))


@given(
    st.lists(evidence(), min_size=0, max_size=4),
    st.data(),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.sampled_from([0.0, 10.0]),
)
def test_no_threshold_does_better_than_the_best(
    several: list[Evidence], data: st.DataObject, alpha: float, exact: float
) -> None:
    known = [(one, data.draw(flips(len(one.elements)))) for one in several]
    threshold, quality = cut_cells([one.cells(chances) for one, chances in known], alpha, exact)

    def at(cut: float) -> float:
        found = [as_numbers(one.cells(chances).confusion(cut)) for one, chances in known]
        tp, fp, fn = np.sum(found, axis=0) if found else (0.0, 0.0, 0.0)
        return float(Confusion(exact + float(tp), float(fp), float(fn)).quality(alpha))

    assert 0 < threshold <= 1
    assert at(threshold) == pytest.approx(quality)
    for one, chances in known:
        for level in one.posterior(chances).ravel():
            if 1e-9 < level < 1 - 1e-9:
                assert at(level - 1e-11) <= quality + 1e-9


def test_the_best_threshold_is_the_one_that_the_weights_ask_for() -> None:
    known, chances = three_elements()
    threshold, _ = cut_cells([known.cells(chances)], 0.5)
    weights = known.confusion(chances, "posterior", threshold).weights(0.5)
    levels = np.unique(known.posterior(chances))
    # No level lies between the two: both draw the same line.
    assert np.array_equal(levels >= threshold, levels >= weights.threshold)
