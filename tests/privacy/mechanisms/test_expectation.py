"""What to expect of drawn answers: every context, choice and symbol written out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.patterns.language import parse_pattern
from tacit.patterns.tree import Pattern
from tacit.privacy import components
from tacit.privacy.components import Exposure, find_exposure
from tacit.privacy.mechanisms.optimal import expectation
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, read_literally
from tacit.privacy.mechanisms.optimal.expectation import OptimalExpectation
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import Prior
from tacit.privacy.statistics import Statistics

QUERIES = ["AND(a, x)", "OR(AND(b, y), SEQ(a, z))", "NOT AND(x, y)", "b", "OR(y, z)"]
POLICY = Policy(
    (
        PrivatePattern("p", frozenset({"x", "y"}), Fraction(1)),
        PrivatePattern("q", frozenset({"z"}), Fraction(3, 2)),
    )
)


def history(policy: Policy, texts: list[str], seed: int, rows: int = 12) -> Statistics:
    """Statistics of a history that is made up, each component for itself."""
    rng = np.random.default_rng(seed)
    queries: list[Pattern] = [parse_pattern(text) for text in texts]
    found = find_exposure(policy, queries)
    priors = []
    for component in found.components:
        signals = rng.random((rows, len(component.signals))) < 0.6
        signals = signals[np.lexsort(signals.T)] if signals.shape[1] else signals
        values = rng.random((rows, len(component.variables))) < 0.4
        counts = rng.integers(1, 40, rows).astype(np.float64)
        counts *= 200 / counts.sum()
        rates = rng.uniform(0.1, 0.6, len(component.variables))
        priors.append(Prior(rates, signals, values, counts))
    positives = np.arange(len(texts), dtype=np.float64)
    return Statistics(policy, policy, found, (), 200.0, positives, tuple(priors), ())


def spelt_out(
    statistics: Statistics, optimals: list[ComponentChannels], threshold: float | None
) -> np.ndarray:
    """`[tp, fp, fn][query]` from the very tables of the channels."""
    spreads = []
    for optimal, prior in zip(optimals, statistics.priors, strict=True):
        cells: list[list[tuple[float, bool, float]]] = [[] for _ in optimal.component.parts]
        for signals, windows in prior.contexts:
            context = optimal.context(signals)
            opened = {part for block, _ in context.blocks for part in block.parts}
            for part, sure in enumerate(context.decided):
                if part not in opened:
                    cells[part].append((float(sure), bool(sure), windows))
            for block, design in context.blocks:
                chances = prior.choice_probabilities(signals, list(block.variables))
                table = design.channel.table / 2.0**design.channel.bits
                literal = read_literally(table.T, block.choice.answers)
                for symbol in range(table.shape[1]):
                    seen = chances * table[block.place, symbol]
                    for column, part in zip(block.columns, block.parts, strict=True):
                        truth = block.choice.answers[block.place, column]
                        told = float(seen[truth].sum() / seen.sum())
                        yes = bool(literal[symbol, column])
                        cells[part].append((told, yes, windows * float(seen.sum())))
        spreads.append(cells)
    counts = np.zeros((3, len(statistics.positives)))
    for query, question in enumerate(statistics.exposure.questions):
        if not question.parts:
            counts[0, query] = statistics.positives[query]
            continue
        whole = [(1.0, True, 1.0) if question.every else (0.0, False, 1.0)]
        for component_number, part in question.parts:
            cells_of = spreads[component_number][part]
            total = sum(windows for _, _, windows in cells_of)
            whole = [
                (
                    (told * more, yes and also, w * v / total)
                    if question.every
                    else (1 - (1 - told) * (1 - more), yes or also, w * v / total)
                )
                for told, yes, w in whole
                for more, also, v in cells_of
            ]
        for told, yes, share_of in whole:
            said = yes if threshold is None else told >= threshold
            windows = 200 * share_of
            counts[:, query] += (
                windows * told * said,
                windows * (1 - told) * said,
                windows * told * (not said),
            )
    return counts


@pytest.mark.parametrize("joined", [0, 4])
@pytest.mark.parametrize("share", [Fraction(1), Fraction(1, 4)])
@pytest.mark.parametrize("threshold", [None, 0.303, 0.517])
def test_expected_counts_are_those_of_all_contexts_choices_and_symbols(
    joined: int, share: Fraction, threshold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one component and for several, by posterior and literally."""
    monkeypatch.setattr(components, "MOST_JOINED", joined)
    for seed in range(3):
        statistics = history(POLICY, QUERIES, seed)
        assert len(statistics.exposure.components) == (2 if joined == 0 else 1)
        made = OptimalExpectation(statistics, POLICY.scale(share), 0.4)
        epsilons = [p.epsilon for o in made.channels() for p in o.component.patterns]
        assert sorted(epsilons) == [share, share * Fraction(3, 2)]
        found = made.confusion(0.4, threshold)
        expected = spelt_out(statistics, made.channels(), threshold)
        # Posteriors of several components are rounded into cells, which may cross a threshold.
        loose = 1e-6 if joined else 2.0
        assert np.array([found.tp, found.fp, found.fn]) == pytest.approx(expected, abs=loose)


def test_literal_counts_of_several_components_are_exact_for_all_their_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(components, "MOST_JOINED", 0)
    statistics = history(POLICY, QUERIES, 5)
    made = OptimalExpectation(statistics, POLICY)
    found = made.confusion(0.5, None)
    expected = spelt_out(statistics, made.channels(), None)
    assert np.array([found.tp, found.fp, found.fn]) == pytest.approx(expected, abs=1e-6)


def test_a_smaller_share_of_epsilon_is_expected_to_do_worse() -> None:
    statistics = history(POLICY, QUERIES, 1)
    quality = [
        OptimalExpectation(statistics, POLICY.scale(Fraction(share)))
        .confusion(0.5, 0.5)
        .total()
        .quality(0.5)
        for share in ("0.1", "1", "4")
    ]
    assert quality == sorted(quality)
    assert quality[0] < quality[2]


def test_of_many_contexts_some_stand_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows are accounted for, and the commonest contexts as they are."""
    texts = [f"AND(x, b{n})" for n in range(9)]
    statistics = history(POLICY, texts, 1, rows=400)
    monkeypatch.setattr(expectation, "MOST_CONTEXTS", 60)
    made = OptimalExpectation(statistics, POLICY)
    (met,) = made.contexts()
    contexts = statistics.priors[0].contexts
    assert len(contexts) > len(met) == 60
    assert sum(one.windows for one in met) == pytest.approx(200)
    for one, (signals, windows) in zip(met[:30], contexts[:30], strict=True):
        assert one.windows == windows
        assert np.array_equal(one.signals, signals)


def test_a_component_that_history_did_not_show_expects_nothing() -> None:
    statistics = history(POLICY, QUERIES, 1)
    empty = tuple(
        Prior.from_rates(prior.rates, prior.signals.shape[1]) for prior in statistics.priors
    )
    bare = Statistics(
        POLICY, POLICY, statistics.exposure, (), 0.0, np.zeros(len(QUERIES)), empty, ()
    )
    found = OptimalExpectation(bare, POLICY).confusion(0.5, 0.5)
    assert found.total().tp == found.total().fp == 0


def test_untouched_queries_are_right_as_often_as_they_are_true() -> None:
    statistics = history(POLICY, QUERIES, 1)
    made = OptimalExpectation(statistics, POLICY)
    found = made.confusion(0.5, 0.5)
    assert (found.tp[3], found.fp[3], found.fn[3]) == (3.0, 0.0, 0.0)
    assert made.exact == 3.0
    assert isinstance(statistics.exposure, Exposure)
