"""Outlines of contexts: what is decided, which classes there are, and who is near whom."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.patterns.tree import And, Not, Or, Pattern
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.mechanisms.optimal import blocks as module
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, read_literally
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import Prior

HIDDEN = ("x", "y", "z", "u", "v")


def random_query(rng: Random, depth: int = 2) -> Pattern:
    """AND, OR and NOT of private and public event types."""
    if depth == 0:
        return Or(rng.choice((*HIDDEN, "a", "b", "c")))
    whole = rng.choice((And, Or))(*(random_query(rng, depth - 1) for _ in range(2)))
    return Not(whole) if rng.random() < 0.2 else whole


def random_component(rng: Random) -> Component | None:
    """One of the components of a few random queries, if there is any."""
    patterns = tuple(
        PrivatePattern(
            f"p{n}",
            frozenset(rng.sample(HIDDEN, rng.choice((1, 2, 3)))),
            Fraction(rng.choice((1, 2, 3)), 2),
        )
        for n in range(rng.randint(1, 3))
    )
    queries = [random_query(rng) for _ in range(rng.randint(1, 6))]
    found = find_exposure(Policy(patterns), queries).components
    return rng.choice(found) if found else None


def made(component: Component, rng: Random) -> ComponentChannels:
    rates = np.array([rng.uniform(0.05, 0.9) for _ in component.variables])
    prior = Prior.from_rates(rates, len(component.signals))
    return ComponentChannels(component, prior, np.full((len(component.parts), 2), 0.5))


def choice_of(values: tuple[bool, ...], variables: tuple[int, ...]) -> int:
    return sum(values[v] << n for n, v in enumerate(variables))


@settings(max_examples=40)
@given(st.integers(0, 2**32).map(Random), st.sampled_from([3, 16]))
def test_an_outline_says_of_all_values_what_they_are_and_keeps_neighbours_near(
    rng: Random, most: int
) -> None:
    """There is none if and only if a block would have too many classes."""
    component = random_component(rng)
    if component is None:
        return
    signals = np.array([rng.random() < 0.5 for _ in component.signals], np.bool_)
    channels = made(component, rng)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MOST_CLASSES", most)
        outline = channels.outline(signals)
    tables = component.tables(signals)
    if outline is None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "MOST_CLASSES", 32)
            large = made(component, rng).outline(signals)
        assert large is not None
        assert any(
            len({row.tobytes() for row in block.choice.answers}) > most for block in large.blocks
        )
        return
    assert all(
        len({row.tobytes() for row in block.choice.answers}) <= most for block in outline.blocks
    )
    opened = [part for block in outline.blocks for part in block.parts]
    assert len(opened) == len(set(opened))
    for part, table in enumerate(tables):
        assert (part in opened) == (len(set(table.tolist())) > 1)
        if part not in opened:
            assert outline.decided[part] == table[0]
    worlds = list(product((False, True), repeat=len(component.variables)))
    for block in outline.blocks:
        assert block.choice.prior.sum() == pytest.approx(1)
        for values in worlds:
            own = block.place[choice_of(values, block.variables)]
            for column, part in zip(block.columns, block.parts, strict=True):
                truth = tables[part][choice_of(values, component.parts[part].variables)]
                assert block.choice.answers[own, column] == truth
    for pattern, changed in zip(component.patterns, component.changes, strict=True):
        for _ in range(20):
            one = rng.choice(worlds)
            other = tuple(rng.random() < 0.5 if v in changed else x for v, x in enumerate(one))
            total = Fraction(0)
            for block in outline.blocks:
                here, there = (block.place[choice_of(w, block.variables)] for w in (one, other))
                if here != there:
                    groups = [g for g in block.choice.neighbours if {here, there} <= set(g.rows)]
                    assert groups, "neighbours that no group holds could be told apart at will"
                    total += min(group.epsilon for group in groups)
            assert total <= pattern.epsilon


def test_parts_that_no_private_pattern_links_have_blocks_of_their_own() -> None:
    """Each of them may spend its own pattern's whole epsilon."""
    patterns = (
        PrivatePattern("p", frozenset({"x", "y"}), Fraction(1)),
        PrivatePattern("q", frozenset({"z", "u"}), Fraction(2)),
    )
    queries: list[Pattern] = [And("x", "a"), And("z", "b"), And("a", Or("y", "u")), And("u", "b")]
    (component,) = find_exposure(Policy(patterns), queries).components
    channels = made(component, Random(1))
    names = [str(signal) for signal in component.signals]
    both = channels.outline(np.array([name == "b" for name in names]))
    assert both is not None
    assert [block.parts for block in both.blocks] == [(1, 3)]
    assert {g.epsilon for g in both.blocks[0].choice.neighbours} == {Fraction(2)}
    linked = channels.outline(np.ones(len(names), np.bool_))
    assert linked is not None
    assert len(linked.blocks) == 1


@pytest.mark.parametrize("variables", [4, 5, 13])
def test_a_context_with_too_many_classes_has_no_channels_of_its_own(variables: int) -> None:
    """Five variables that are each asked for make 32 classes; 13 are not even listed."""
    names = [f"x{n}" for n in range(variables)]
    policy = Policy((PrivatePattern("p", frozenset(names), Fraction(1)),))
    queries: list[Pattern] = [And(name, "a") for name in names]
    (component,) = find_exposure(policy, queries).components
    channels = made(component, Random(1))
    context = channels.context(np.array([True]))
    assert (context is None) == (variables > 4)
    nothing = channels.context(np.array([False]))
    assert nothing is not None
    assert nothing.blocks == ()


def test_a_symbol_is_read_as_what_most_of_its_likelihood_stands_for() -> None:
    answers = np.array([[False, False], [True, False], [False, True], [True, True]])
    columns = np.array([[3.0, 1, 1, 1], [1, 3, 1, 3], [1, 1, 3, 3]])
    # Of the other query the last two symbols say as much for as against: that is a no.
    assert read_literally(columns, answers).tolist() == [
        [False, False],
        [True, False],
        [False, True],
    ]
    nudged = columns * (1 + 1e-13 * np.random.default_rng(1).standard_normal(columns.shape))
    assert np.array_equal(read_literally(nudged, answers), read_literally(columns, answers))
    assert np.array_equal(
        read_literally(columns * 2.0**60, answers), read_literally(columns, answers)
    )
