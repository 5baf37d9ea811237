"""Suppression and the prior alone: what is hidden, why that, and that nothing of it shows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tacit.evaluation.baselines import PriorAlone, Setting, Suppression, make_literal_decoder
from tacit.evaluation.baselines.decoding import compare, compute_true_answers
from tacit.evaluation.baselines.suppression import choose_suppressed, hide_types
from tacit.patterns.tree import And
from tests.evaluation.baselines.settings import PRIVATE, TYPES, setting, windows


def test_the_element_that_no_query_asks_for_is_suppressed() -> None:
    small = Setting(("x", "y", "z"), (frozenset("xy"),), (And("x", "z"),), windows(99, 1)[:, :3])
    assert choose_suppressed(small) == (1,)


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(6))
def test_no_other_choice_of_elements_has_better_quality_on_history(seed: int) -> None:
    history = windows(150, seed)
    here = setting(history)
    truth = compute_true_answers(here, history)

    def quality(hidden: tuple[int, ...]) -> float:
        found = make_literal_decoder(here).answer(hide_types(history, hidden, 0.0))
        return compare(truth, found).total().quality(0.5)

    choices = product(*([TYPES.index(name) for name in pattern] for pattern in PRIVATE))
    assert quality(choose_suppressed(here)) == pytest.approx(max(map(quality, choices)))
    assert all(any(TYPES[n] in pattern for n in choose_suppressed(here)) for pattern in PRIVATE)


def test_of_very_many_choices_one_pattern_after_the_other_is_covered() -> None:
    names = tuple(f"e{n}" for n in range(30))
    private = tuple(frozenset(names[n : n + 6]) for n in range(0, 30, 5))
    history = np.random.default_rng(1).random((50, 30)) < 0.5
    many = Setting(names, private[:5], (And("e0", "e9"),), history)
    chosen = {names[n] for n in choose_suppressed(many)}
    assert all(chosen & pattern for pattern in many.private)
    assert chosen.isdisjoint({"e0", "e9"})


def test_what_is_hidden_never_shows_and_the_rest_is_as_it_is() -> None:
    presence = windows(200, 4, subjects=2)
    small = Setting(TYPES, (frozenset("ab"),), (And("a", "d"),), windows(100, 2))
    random = np.random.default_rng(0)
    for baseline, hidden in ((Suppression(), [1]), (PriorAlone(), [0, 1])):
        release = baseline.release(presence, small, 1.0, random)
        shown = [n for n in range(4) if n not in hidden]
        assert (release.bits[..., shown] == presence[..., shown]).all()
        assert not release.bits[..., hidden].any()
        changed = presence.copy()
        changed[..., hidden] ^= True
        again = baseline.release(changed, small, 1.0, random)
        assert (again.values == release.values).all()


def test_suppression_has_no_epsilon_and_the_prior_alone_needs_none() -> None:
    presence, here = windows(10, 1), setting()
    random = np.random.default_rng(0)
    assert np.isinf(Suppression().release(presence, here, 1.0, random).loss(3)).all()
    assert PriorAlone().release(presence, here, 1.0, random).loss(3).max() == 0
    single = Setting(TYPES, (frozenset("a"), frozenset("b")), (), presence)
    assert Suppression().release(presence, single, 1.0, random).loss(1).max() == 0
