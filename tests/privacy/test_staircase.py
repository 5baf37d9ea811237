"""The best channel for a context is as good as any lawful one, and always lawful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from tacit.errors import PrivacyError
from tacit.privacy import staircase
from tacit.privacy.channel_audit import Neighbours
from tacit.privacy.channels import Channel
from tacit.privacy.columns import find_best_mixture
from tacit.privacy.exponentials import exp_below
from tacit.privacy.staircase import (
    LARGEST,
    ChannelProblem,
    Design,
    design,
    merge,
    solve,
    solve_with_highs,
)

Floats = NDArray[np.float64]


def choice_of(
    answers: Sequence[Sequence[int]] | NDArray[np.bool_],
    prior: Sequence[float] | Floats,
    neighbours: Sequence[Neighbours],
    caution: float = 0.5,
) -> ChannelProblem:
    """A choice in which a false yes costs `caution` and a true one earns the rest."""
    told = np.array(answers, dtype=np.bool_)
    cost = np.full(told.shape[1], caution)
    return ChannelProblem(
        told, np.array(prior, dtype=np.float64), tuple(neighbours), 1 - cost, cost
    )


def cliques(bits: int, patterns: Sequence[tuple[int, Fraction]]) -> list[Neighbours]:
    """Assignments of bits that agree outside a pattern, for patterns as masks of bits."""
    found = []
    for mask, epsilon in patterns:
        outside: dict[int, list[int]] = {}
        for assignment in range(2**bits):
            outside.setdefault(assignment & ~mask, []).append(assignment)
        found += [Neighbours(rows, epsilon) for rows in outside.values()]
    return found


def random_choice(rng: np.random.Generator, bits: int, queries: int) -> ChannelProblem:
    """Private patterns that may overlap, and queries of all kinds about their bits."""
    patterns = [
        (int(rng.integers(1, 2**bits)), Fraction(str(rng.choice([0.1, 0.5, 1, 2, 3, 5]))))
        for _ in range(rng.integers(1, 4))
    ]
    assignments = (np.arange(2**bits)[:, np.newaxis] >> np.arange(bits)) & 1 == 1
    answers = np.empty((2**bits, queries), np.bool_)
    for query in range(queries):
        asked = assignments[:, rng.random(bits) < 0.7] ^ (rng.random() < 0.2)
        kinds = [asked.all(axis=1), asked.any(axis=1), rng.random(2**bits) < 0.5]
        answers[:, query] = kinds[rng.integers(3)]
    rates = rng.random(bits)
    prior = np.where(assignments, rates, 1 - rates).prod(axis=1)
    if rng.random() < 0.5:
        prior = rng.dirichlet(np.full(2**bits, 0.5))
    chosen = choice_of(answers, prior, cliques(bits, patterns), rng.uniform(0.1, 0.9))
    return replace(chosen, reward=rng.uniform(0.2, 1, queries))


def oracle(choice: ChannelProblem) -> float:
    """The joint linear programme: any probabilities of any vectors of answers, if lawful."""
    classes, queries = choice.answers.shape
    told = np.array(list(product([0, 1], repeat=queries)))
    gains = choice.gains @ told.T
    ratios: dict[tuple[int, int], float] = {}
    for group in choice.neighbours:
        for pair in permutations(group.rows, 2):
            ratios[pair] = min(float(group.epsilon), ratios.get(pair, np.inf))
    vectors = np.arange(len(told))
    entries, rows, places = [], [], []
    for number, ((high, low), epsilon) in enumerate(ratios.items()):
        for class_, factor in ((high, np.exp(-epsilon)), (low, -1.0)):
            entries.append(np.full(len(told), factor))
            rows.append(number * len(told) + vectors)
            places.append(class_ * len(told) + vectors)
    laws = None
    if ratios:
        shape = (len(ratios) * len(told), classes * len(told))
        where = (np.concatenate(rows), np.concatenate(places))
        laws = coo_matrix((np.concatenate(entries), where), shape).tocsr()
    sums = np.kron(np.eye(classes), np.ones(len(told)))
    solved = linprog(
        -gains.ravel(),
        A_ub=laws,
        b_ub=None if laws is None else np.zeros(laws.shape[0]),
        A_eq=sums,
        b_eq=np.ones(classes),
        method="highs",
    )
    return float(-solved.fun)


def silence(choice: ChannelProblem) -> float:
    return float(np.maximum(choice.gains.sum(axis=0), 0).sum())


def check(choice: ChannelProblem, made: Design) -> None:
    """Everything that must be true of any design."""
    channel = made.channel
    table = [[int(entry) for entry in row] for row in channel.table]
    assert channel.neighbours == choice.neighbours
    assert channel.audit().passed
    for group in choice.neighbours:
        limit = exp_below(min(group.epsilon, Fraction(45)))
        for high, low in permutations(group.rows, 2):
            assert all(a <= limit * b for a, b in zip(table[high], table[low], strict=True))
    assert all(any(column) for column in zip(*table, strict=True))
    assert made.posterior.shape == (channel.table.shape[1], choice.answers.shape[1])
    assert ((made.posterior >= 0) & (made.posterior <= 1 + 1e-12)).all()
    utility = 0.0
    for symbol in range(channel.table.shape[1]):
        joint = [
            float(channel.probability(row, symbol)) * choice.prior[row] for row in range(len(table))
        ]
        for query in range(choice.answers.shape[1]):
            yes = sum(p for p, told in zip(joint, choice.answers[:, query], strict=True) if told)
            no = sum(joint) - yes
            utility += max(0.0, yes * choice.reward[query] - no * choice.penalty[query])
            if sum(joint) > 0:
                assert abs(made.posterior[symbol, query] - yes / sum(joint)) < 1e-9
    assert abs(made.utility - utility) < 1e-9


@pytest.mark.parametrize("epsilon", ["0.001", "0.5", "1", "3", "20"])
def test_two_classes_get_randomised_response(epsilon: str) -> None:
    choice = choice_of([[0], [1]], [0.5, 0.5], [Neighbours([0, 1], Fraction(epsilon))])
    columns, utility = solve(choice)
    flip = 1 / (1 + np.exp(float(epsilon)))
    assert np.sort(columns, axis=None) == pytest.approx([flip, flip, 1 - flip, 1 - flip])
    assert utility == pytest.approx(0.25 * (1 - 2 * flip))
    made = design(choice)
    check(choice, made)
    assert made.channel.table.shape == (2, 2)
    assert made.channel.audit().epsilon == pytest.approx(float(epsilon), rel=1e-9)


@pytest.mark.parametrize("classes", [2, 5, 10, 11, 30])
def test_one_query_needs_two_symbols_whatever_the_number_of_classes(classes: int) -> None:
    answers = [[row % 2] for row in range(classes)]
    everyone = [Neighbours(range(classes), Fraction(2))]
    choice = choice_of(answers, np.full(classes, 1 / classes), everyone)
    told = sum(answer for (answer,) in answers) / classes
    kept = np.exp(2) / (1 + np.exp(2))
    assert solve(choice).utility == pytest.approx(0.5 * (told * kept - (1 - told) * (1 - kept)))
    assert design(choice).utility == pytest.approx(solve(choice).utility)


@pytest.mark.parametrize("classes", [3, 4, 8, 13])
def test_telling_the_class_is_k_ary_randomised_response(classes: int) -> None:
    everyone = [Neighbours(range(classes), Fraction(3))]
    choice = choice_of(np.eye(classes, dtype=np.bool_), np.full(classes, 1 / classes), everyone)
    columns, utility = solve(choice)
    low = 1 / (np.exp(3) + classes - 1)
    kept = low * np.exp(3)
    assert utility == pytest.approx(0.5 * (kept - (classes - 1) * low))
    assert np.sort(columns.max(axis=1)) == pytest.approx([kept] * classes)
    assert np.sort(columns.min(axis=1)) == pytest.approx([low] * classes)


def test_independent_patterns_get_the_product_of_their_flips() -> None:
    neighbours = cliques(2, [(1, Fraction(1)), (2, Fraction(3))])
    answers = [[a & 1, a >> 1] for a in range(4)]
    choice = choice_of(answers, [0.25] * 4, neighbours)
    assert solve(choice).utility == pytest.approx(
        sum(0.25 * np.tanh(epsilon / 2) for epsilon in (1, 3))
    )


def test_the_compiled_simplex_agrees_with_highs() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        classes, queries = int(rng.integers(2, 9)), int(rng.integers(1, 12))
        distances = np.full((classes, classes), rng.choice([1e-5, 0.1, 1.0, 4.0, 20.0]))
        if rng.random() < 0.5:
            distances = rng.uniform(0.05, 4, (classes, classes))
            distances += distances.T
        np.fill_diagonal(distances, 0)
        for between in range(classes):
            way = distances[:, between, np.newaxis] + distances[between]
            distances = np.minimum(distances, way)
        gains = rng.normal(size=(classes, queries)) * rng.random((classes, 1))
        gains /= np.abs(gains).sum()
        columns, worth, used, weights, well = find_best_mixture(np.exp(-distances), gains)
        assert well
        assert (weights >= -1e-12).all()
        assert np.abs(weights @ columns[used] - 1).max() < 1e-9
        assert weights @ worth[used] == pytest.approx(
            solve_with_highs(columns, worth) @ worth, abs=1e-7
        )


def test_no_lawful_mechanism_is_better_by_five_percent() -> None:
    """Against the joint programme over assignments of private bits; it is far closer."""
    rng = np.random.default_rng(11)
    shares = []
    for _ in range(120):
        whole = random_choice(rng, int(rng.integers(2, 5)), int(rng.integers(1, 5)))
        best = oracle(whole)
        made = design(merge(whole)[0])
        assert made.utility <= best + 1e-6
        shares.append((made.utility + 1e-9) / (best + 1e-9))
    print(f"worst {min(shares):.6f} of the best utility, mean {np.mean(shares):.6f}")
    assert min(shares) > 0.95
    assert np.mean(shares) > 0.9999


def test_distances_to_sets_are_not_enough_for_overlapping_patterns() -> None:
    """Without further columns, the one in twenty that is lost here could not be made up."""
    rng = np.random.default_rng(1)
    lacking = 0
    for _ in range(60):
        choice = merge(random_choice(rng, 3, 3))[0]
        classes = len(choice.prior)
        distances = np.full((classes, classes), np.inf)
        np.fill_diagonal(distances, 0)
        for group in choice.neighbours:
            for high, low in permutations(group.rows, 2):
                distances[high, low] = min(distances[high, low], float(group.epsilon))
        for between in range(classes):
            way = distances[:, between, np.newaxis] + distances[between]
            distances = np.minimum(distances, way)
        sets = [[row for row in range(classes) if n >> row & 1] for n in range(1, 2**classes)]
        columns = np.array([np.exp(-distances[rows]).max(axis=0) for rows in sets])
        worth = np.maximum(columns @ choice.gains, 0).sum(axis=1)
        listed = solve_with_highs(columns, worth) @ worth
        assert solve(choice).utility >= listed - 1e-6
        lacking += solve(choice).utility > listed * 1.001 + 1e-6
    assert lacking > 0


@st.composite
def choices(draw: st.DrawFn) -> ChannelProblem:
    """Any classes, answers and groups, with epsilons of all sizes."""
    classes, queries = draw(st.integers(1, 14)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    rows = st.lists(st.integers(0, classes - 1), min_size=1, max_size=classes, unique=True)
    epsilon = st.sampled_from(
        [Fraction(e) for e in ("0", "1e-9", "1e-5", "0.3", "1", "2.5", "9", "50", "1e6")]
    )
    group = st.builds(Neighbours, rows, epsilon)
    return ChannelProblem(
        rng.random((classes, queries)) < 0.4,
        rng.dirichlet(np.full(classes, 0.5)),
        tuple(draw(st.lists(group, max_size=5))),
        rng.random(queries),
        rng.random(queries),
    )


@settings(max_examples=50)
@given(choices())
def test_every_design_is_lawful_and_worth_what_was_planned(choice: ChannelProblem) -> None:
    made = design(choice)
    check(choice, made)
    planned = solve(choice)
    assert made.utility == pytest.approx(planned.utility, abs=1e-6)
    assert planned.utility >= silence(choice) - 1e-12
    assert np.abs(planned.columns.sum(axis=0) - 1).max() < 1e-9
    assert planned.utility <= np.maximum(choice.gains, 0).sum() + 1e-9


@settings(max_examples=40, deadline=None)
@given(choices())
def test_merging_classes_costs_nothing_and_keeps_the_promise(choice: ChannelProblem) -> None:
    merged, place = merge(choice)
    assert len(merged.prior) <= len(choice.prior)
    assert merged.prior.sum() == pytest.approx(1)
    assert (merged.answers[place] == choice.answers).all()
    assert solve(merged).utility == pytest.approx(solve(choice).utility, rel=2e-3, abs=1e-6)
    for narrower in (merged, merge(choice, 1)[0]):
        rows = place if narrower is merged else merge(choice, 1)[1]
        Channel(design(narrower).channel.table[rows], choice.neighbours)


def test_classes_with_the_same_answers_may_have_to_be_told_apart() -> None:
    """Both bits set is twice as far from none as one bit is: a yes can be surer there."""
    neighbours = cliques(2, [(1, Fraction(1)), (2, Fraction(1))])
    whole = choice_of([[0], [1], [1], [1]], [0.4, 0.05, 0.05, 0.5], neighbours, caution=0.7)
    apart, together = merge(whole)[0], merge(whole, 2)[0]
    assert (len(apart.prior), len(together.prior)) == (3, 2)
    assert solve(apart).utility == pytest.approx(oracle(whole), rel=1e-6)
    assert solve(together).utility < 0.9 * solve(apart).utility


def test_more_epsilon_is_never_worth_less() -> None:
    rng = np.random.default_rng(5)
    for _ in range(25):
        choice = merge(random_choice(rng, 3, 4))[0]
        before = silence(choice)
        for scale in ("1e-9", "0.01", "0.1", "0.5", "1", "2", "5", "100", "1e5"):
            factor = Fraction(scale)
            groups = tuple(Neighbours(g.rows, g.epsilon * factor) for g in choice.neighbours)
            utility = solve(replace(choice, neighbours=groups)).utility
            assert utility >= before * (1 - 2e-4) - 1e-6
            before = utility
        assert before == pytest.approx(np.maximum(choice.gains, 0).sum(), rel=1e-4)


def test_a_group_without_epsilon_does_not_silence_the_others() -> None:
    groups = [Neighbours([0, 1], Fraction(0)), Neighbours([1, 2], Fraction(2))]
    choice = choice_of([[0], [0], [1]], [0.25, 0.25, 0.5], groups)
    made = design(choice)
    check(choice, made)
    assert made.utility == pytest.approx(0.25 * np.tanh(1))


def test_classes_that_are_hard_to_tell_apart_do_not_spoil_the_others() -> None:
    """Two nearly equal rows make equations that are hard to solve exactly enough."""
    groups = [
        Neighbours([0, 1, 2, 5], Fraction(1)),
        Neighbours([1, 6], Fraction("0.00001")),
        Neighbours([2, 3, 4], Fraction(1)),
    ]
    prior = [0.46, 0.005, 0.095, 0.005, 0.04, 0.1, 0.295]
    choice = choice_of([[0], [1], [0], [1], [1], [1], [1]], prior, groups, caution=0.43)
    made = design(choice)
    check(choice, made)
    assert made.utility == pytest.approx(oracle(choice), rel=1e-4)


def test_classes_that_nothing_links_are_told_as_they_are() -> None:
    for groups in ([], [Neighbours([0, 1], Fraction(10**6))]):
        choice = choice_of([[0], [1]], [0.5, 0.5], groups)
        made = design(choice)
        check(choice, made)
        assert made.utility == pytest.approx(0.25)
        assert np.sort(made.posterior, axis=None) == pytest.approx([0, 1])


def test_what_is_worth_nothing_is_not_told() -> None:
    everyone = [Neighbours(range(3), Fraction(1))]
    for answers in ([[0], [0], [0]], [[1], [1], [1]], [[0], [0], [1]]):
        choice = choice_of(answers, [0.5, 0.48, 0.02], everyone)
        made = design(choice)
        check(choice, made)
        assert made.channel.table.shape == (3, 1)
        assert made.utility == pytest.approx(silence(choice))


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["one group", "overlapping"])
def test_many_classes_are_dealt_with(kind: str) -> None:
    rng = np.random.default_rng(2)
    mask, other = (63, 63) if kind == "one group" else (0b001111, 0b111100)
    groups = cliques(6, [(mask, Fraction(2)), (other, Fraction(3))])
    choice = choice_of(rng.random((64, 20)) < 0.3, rng.dirichlet(np.ones(64)), groups)
    made = design(choice)
    check(choice, made)
    assert silence(choice) < made.utility < np.maximum(choice.gains, 0).sum()
    assert np.array_equal(made.channel.table, design(choice).channel.table)


def test_too_many_classes_are_refused() -> None:
    classes = LARGEST + 1
    choice = choice_of([[0]] * classes, np.full(classes, 1 / classes), [])
    for use in (solve, design):
        with pytest.raises(PrivacyError, match="at most 64 classes; got 65"):
            use(choice)


@pytest.mark.parametrize("scale", [1.0, 0.0, 1e-300, 1e300, np.nan])
def test_absurd_weights_cannot_break_the_promise(
    monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """Nothing rests on the linear programme: lies about columns and weights come out lawful."""
    rng = np.random.default_rng(8)

    def lies(near: Floats, gains: Floats) -> tuple[Any, ...]:
        columns = rng.random((6, len(near))) ** 20
        return columns, rng.random(6), np.arange(6), rng.normal(size=6) * scale, True

    monkeypatch.setattr(staircase, "find_best_mixture", lies)
    monkeypatch.setattr(staircase, "_IDLE", -np.inf)
    groups = [Neighbours([0, 1, 2], Fraction(1)), Neighbours([2, 3], Fraction(1, 2))]
    for _ in range(20):
        choice = choice_of(rng.random((4, 3)) < 0.5, rng.dirichlet(np.ones(4)), groups)
        check(choice, design(choice))


def test_highs_takes_over_where_the_simplex_does_not_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(near: Floats, gains: Floats) -> tuple[Any, ...]:
        columns, worth, used, weights, _ = find_best_mixture(near, gains)
        return columns, worth, used[::-1], weights * 0, False

    rng = np.random.default_rng(4)
    made = [merge(random_choice(rng, 3, 3))[0] for _ in range(10)]
    expected = [solve(choice).utility for choice in made]
    monkeypatch.setattr(staircase, "find_best_mixture", lost)
    for choice, utility in zip(made, expected, strict=True):
        assert solve(choice).utility == pytest.approx(utility, rel=1e-4, abs=1e-7)


def test_the_same_choice_gives_the_same_design() -> None:
    choice = merge(random_choice(np.random.default_rng(9), 4, 4))[0]
    first, second = design(choice), design(choice)
    assert first.channel == second.channel
    assert np.array_equal(first.posterior, second.posterior)


def test_a_symbol_that_the_prior_rules_out_is_read_without_it() -> None:
    choice = choice_of([[0], [1], [1]], [0.5, 0.5, 0.0], [Neighbours([0, 1], Fraction(2))])
    table = [[3, 1, 0], [1, 3, 0], [0, 0, 4]]
    made = staircase.evaluate_channel(choice, Channel(table, choice.neighbours))
    assert made.posterior[:, 0] == pytest.approx([0.25, 0.75, 1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": np.zeros((0, 1), np.bool_)}, "one class or more"),
        ({"answers": np.zeros((2, 1))}, "yes or no"),
        ({"prior": np.ones(3) / 3}, "as many probabilities"),
        ({"prior": np.array([0.5, np.nan])}, "finite and not negative"),
        ({"prior": np.array([0.5, 0.4])}, "sum to 1; it sums to 0.9"),
        ({"reward": np.ones(2)}, "as many rewards"),
        ({"penalty": -np.ones(1)}, "finite and not negative"),
        ({"neighbours": (Neighbours([0, 2], 1),)}, "rows of the channel"),
    ],
)
def test_numbers_that_make_no_choice_are_refused(change: dict[str, Any], message: str) -> None:
    choice = choice_of([[0], [1]], [0.5, 0.5], [Neighbours([0, 1], 1)])
    with pytest.raises(PrivacyError, match=message):
        replace(choice, **change)
