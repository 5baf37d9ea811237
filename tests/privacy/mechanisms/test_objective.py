"""Step by step, the objective is what it would be from scratch, and adaptive makes it larger."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PlanError
from tacit.privacy.evidence import Decode, Evidence, cut_cells
from tacit.privacy.mechanisms.adaptive import move_shares
from tacit.privacy.mechanisms.objective import ElementObjective, flip_probability
from tacit.privacy.mechanisms.uniform import flip_uniformly
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.quality import Confusion
from tacit.privacy.sampled_evidence import SampledEvidence
from tests.privacy.evidence_strategies import evidence

NAMES = "abcdef"
epsilon = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 600.0])
decodes = st.sampled_from(["literal", "posterior"])


def wide(seed: int) -> SampledEvidence:
    """A query of more elements than tables hold, true if most of them are there."""
    generator = np.random.default_rng(seed)
    present = generator.random((60, len(NAMES))) < 0.5
    return SampledEvidence(
        tuple(NAMES),
        generator.integers(0, 2, 60),
        present,
        present.sum(axis=1) > 3,
        generator.poisson(9, 60).astype(float),
        lambda noisy, contexts: noisy.sum(axis=1) > 3 - contexts,
    )


def from_scratch(
    known: list[Evidence | SampledEvidence],
    epsilons: dict[str, float],
    alpha: float,
    exact: float,
    decode: Decode,
) -> float:
    tp, fp, fn = exact, 0.0, 0.0
    for one in known:
        flips = np.array([1 / (1 + np.exp(epsilons[name])) for name in one.elements])
        if isinstance(one, SampledEvidence):
            right, wrong = one.outline(4096).expect_claims(flips, decode, 0.45)
            found = Confusion(right, wrong, one.positives - right)
        else:
            found = one.confusion(flips, decode, 0.45)
        tp, fp, fn = tp + found.tp, fp + found.fp, fn + found.fn
    return Confusion(tp, fp, fn).quality(alpha)


@settings(max_examples=50)
@given(
    st.lists(evidence(NAMES, 4), min_size=0, max_size=5),
    st.integers(0, 1),
    decodes,
    st.lists(st.dictionaries(st.sampled_from(NAMES), epsilon, max_size=4), max_size=5),
    st.sampled_from([0.0, 20.0]),
)
def test_trials_and_moves_give_what_a_new_objective_gives(
    tabled: list[Evidence],
    sampled: int,
    decode: Decode,
    steps: list[dict[str, float]],
    exact: float,
) -> None:
    known: list[Evidence | SampledEvidence] = [*tabled, *(wide(seed) for seed in range(sampled))]
    alphas = [0.25] * (len(known) + 1)
    objective = ElementObjective(known, alphas, exact=exact, decode=decode, threshold=0.45)
    now = dict.fromkeys(NAMES, 1.0)
    standing = objective.at(now)
    for step in steps:
        before = standing.value
        expected = from_scratch(known, now | step, 0.25, exact, decode)
        assert standing.try_changes(step) == pytest.approx(expected)
        assert standing.value == before
        standing.move(step)
        now |= step
        assert standing.value == pytest.approx(expected)
        assert objective.value(now) == pytest.approx(expected)


@settings(max_examples=40)
@given(
    st.lists(evidence(NAMES, 3), min_size=1, max_size=5),
    st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=4), max_size=3),
    decodes,
)
def test_adaptive_is_never_worse_than_uniform(
    known: list[Evidence], patterns: list[frozenset[str]], decode: Decode
) -> None:
    everything = PrivatePattern("all", frozenset(NAMES), Fraction(4))
    others = [PrivatePattern(f"p{n}", names, Fraction(2)) for n, names in enumerate(patterns)]
    policy = Policy((everything, *others))
    even = flip_uniformly(policy)
    alphas = [0.5] * len(known)
    threshold, _ = cut_cells([one.cells(even.flips(one.elements)) for one in known], 0.5)
    objective = ElementObjective(known, alphas, decode=decode, threshold=threshold)
    found = move_shares(policy, objective)

    def value(shares: dict[str, Fraction]) -> float:
        return objective.value({name: float(share) for name, share in shares.items()})

    assert value(found.epsilons) >= value(even.epsilons)
    for pattern in policy.patterns:
        assert sum(found.epsilons[name] for name in pattern.elements) <= pattern.epsilon


def test_epsilon_goes_to_the_element_that_the_query_asks_for() -> None:
    table = np.array([[False, True]])
    known = Evidence.of_presence(("b",), table, np.array([[60.0, 40.0]]))
    policy = Policy((PrivatePattern("p", frozenset("abc"), Fraction(1)),))
    found = move_shares(policy, ElementObjective([known], [0.5]))
    assert found.epsilons == {"a": 0, "b": 1, "c": 0}


def test_queries_that_touch_nothing_private_count_as_right() -> None:
    alone = ElementObjective([], [0.5, 0.5], exact=12.0)
    assert alone.value({}) == 1
    known = Evidence.of_presence(("a",), np.array([[False, True]]), np.array([[50.0, 50.0]]))
    coin = ElementObjective([known], [0.5, 0.5], exact=100.0).value({"a": 0.0})
    assert coin == pytest.approx(0.5 * 125 / 150 + 0.5 * 125 / 150)


def test_thresholds_that_would_claim_what_is_impossible_are_refused() -> None:
    for threshold in (0.0, -1.0, 1.5):
        with pytest.raises(PlanError, match="threshold"):
            ElementObjective([], [], decode="posterior", threshold=threshold)


def test_flip_probabilities_are_those_of_the_channels() -> None:
    policy = Policy((PrivatePattern("p", frozenset("ab"), Fraction(3)),))
    assert flip_uniformly(policy).flips("a")[0] == pytest.approx(flip_probability(1.5), abs=1e-15)
    assert flip_probability(0) == 0.5
    assert flip_probability(1e6) == 0


def many(decode: Decode) -> tuple[Policy, ElementObjective]:
    """A hundred patterns of four elements, and a thousand queries of one to four of them."""
    generator = np.random.default_rng(1)
    names = [f"e{number}" for number in range(400)]
    policy = Policy(
        tuple(
            PrivatePattern(f"p{n}", frozenset(names[4 * n : 4 * n + 4]), Fraction(2))
            for n in range(100)
        )
    )
    known = []
    for _ in range(1000):
        chosen = tuple(generator.choice(names, generator.integers(1, 5), replace=False).tolist())
        size = 2 ** len(chosen)
        table = np.stack([np.arange(size) == size - 1, np.arange(size) > 0] * 2)
        known.append(Evidence.of_presence(chosen, table, generator.gamma(0.5, 50, (4, size))))
    return policy, ElementObjective(known, [0.5] * 1000, decode=decode, threshold=0.4)


@pytest.mark.cases(1)
@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_a_thousand_queries_and_a_hundred_patterns_take_seconds(decode: Decode) -> None:
    policy, objective = many(decode)
    objective.value(dict.fromkeys(objective.names, 1.0))
    begin = time.process_time()
    found = move_shares(policy, objective)
    assert time.process_time() - begin < 10
    even = {name: float(share) for name, share in flip_uniformly(policy).epsilons.items()}
    better = {name: float(share) for name, share in found.epsilons.items()}
    assert objective.value(better) > objective.value(even) + 0.001
