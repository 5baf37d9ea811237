"""Books of channels: how variables are divided, and what a draw from all blocks gives away."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest

from tacit.errors import AuditError, PlanError, PrivacyError
from tacit.patterns.booleans import pack_rows
from tacit.patterns.tree import Name
from tacit.privacy.channel_audit import largest_ratio
from tacit.privacy.components import Component, Part
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels
from tacit.privacy.mechanisms.optimal.book_draws import BookDraws
from tacit.privacy.mechanisms.optimal.channel_books import (
    LARGE_BLOCK,
    ChannelBook,
    design_book,
    divide_variables,
)
from tacit.privacy.noise import Noise
from tacit.privacy.policies import PrivatePattern
from tacit.privacy.prior import Prior
from tacit.privacy.randomness import SeededSource
from tests.privacy.mechanisms.made_components import (
    choose,
    make_component,
    make_prior,
    make_windows,
)


def make_history(component: Component, seed: int, rows: int = 40) -> ContextCounts:
    signals, values = make_windows(component, seed, rows)
    windows = np.random.default_rng(seed).integers(1, 9, (rows, 1)).astype(np.float64)
    width = len(component.signals)
    return ContextCounts.from_rows(np.concatenate([signals, values], axis=1), windows, width)


def make_book(component: Component, seed: int, groups: int = 12) -> tuple[Prior, ChannelBook]:
    prior = make_prior(component, seed)
    stakes = np.random.default_rng(seed).uniform(0.2, 1, (len(component.parts), 2))
    history = make_history(component, seed)
    return prior, design_book(component, prior, stakes, history, groups)


def wide_component() -> Component:
    """A pattern of all nine variables, which no block holds, and two small ones."""
    component = make_component(Random(3), 9, parts=8, patterns=0)
    names = [f"x{n}" for n in range(9)]
    patterns = (
        PrivatePattern("all", frozenset(names), Fraction(3)),
        PrivatePattern("some", frozenset(names[:4]), Fraction(1)),
        PrivatePattern("one", frozenset(names[8:]), Fraction(1, 2)),
    )
    return replace(component, patterns=patterns)


COMPONENTS: dict[str, Callable[[], Component]] = {
    "one": lambda: make_component(Random(1), 1, patterns=2),
    "three": lambda: make_component(Random(2), 3),
    "five": lambda: make_component(Random(3), 5, patterns=1),
    "wide": wide_component,
}
EVERY = pytest.mark.parametrize("name", COMPONENTS)


@cache
def planned(name: str) -> tuple[Component, Prior, ChannelBook]:
    component = COMPONENTS[name]()
    return component, *make_book(component, 1)


@pytest.mark.parametrize("seed", range(40))
def test_every_variable_is_in_one_block_of_at_most_64_values(seed: int) -> None:
    rng = Random(seed)
    component = make_component(rng, rng.randint(1, 20), parts=rng.randint(1, 12))
    blocks = divide_variables(component)
    placed = [variable for block in blocks for variable in block.variables]
    assert sorted(placed) == list(range(len(component.variables)))
    assert all(1 <= len(block.variables) <= LARGE_BLOCK for block in blocks)
    if len(component.variables) <= LARGE_BLOCK:
        assert len(blocks) == 1
    for changed in component.changes:
        if len(changed) == 1:
            assert sum(not changed.isdisjoint(block.variables) for block in blocks) == 1


@pytest.mark.parametrize("seed", range(25))
def test_for_every_pattern_the_epsilons_of_the_blocks_that_it_changes_add_up(seed: int) -> None:
    """For any two values between which it may move, in all blocks together."""
    rng = Random(seed)
    component = make_component(rng, rng.choice((2, 5, 7, 9, 14)))
    blocks = divide_variables(component)
    values = np.random.default_rng(seed).random((30, len(component.variables))) < 0.5
    for pattern, changed in zip(component.patterns, component.changes, strict=True):
        for one in values:
            other = one.copy()
            for variable in changed:
                other[variable] = rng.random() < 0.5
            total = Fraction(0)
            for block in blocks:
                pair = {int(choose(one, block.variables)), int(choose(other, block.variables))}
                groups = [group for group in block.neighbours if pair <= set(group.rows)]
                if len(pair) == 2:
                    assert groups, "neighbours that no group contains"
                    total += min(group.epsilon for group in groups)
            assert total <= pattern.epsilon


@EVERY
def test_no_pattern_gives_away_more_than_its_epsilon_by_the_symbols_of_all_blocks(
    name: str,
) -> None:
    """In whole numbers, from the tables, for all pairs of values and every choice of channels."""
    component, _, book = planned(name)
    told = set()
    for pattern, changed in zip(component.patterns, component.changes, strict=True):
        for channels in product(*book.channels):
            ratio = Fraction(1)
            for block, channel in zip(book.blocks, channels, strict=True):
                inside = [n for n, v in enumerate(block.variables) if v in changed]
                mask = sum(1 << n for n in inside)
                table = channel.table.tolist()
                pairs = [
                    (table[one], table[one & ~mask | other])
                    for one in range(len(table))
                    for other in range(len(table))
                    if not other & ~mask
                ]
                ratio *= max(
                    Fraction(a, b) for one, other in pairs for a, b in zip(one, other, strict=True)
                )
            # A product of certified lower bounds of exp is at most exp of the sum.
            touched = sum(not changed.isdisjoint(block.variables) for block in book.blocks)
            assert ratio <= largest_ratio(pattern.epsilon / touched) ** touched
            told.add(ratio > 1)
    assert True in told


@EVERY
def test_the_widest_ratio_is_that_of_the_worst_choice_of_channels(
    name: str,
) -> None:
    component, _, book = planned(name)
    for changed in [*component.changes, frozenset({0}), frozenset()]:
        worst = []
        for block, own in zip(book.blocks, book.channels, strict=True):
            mask = sum(1 << n for n, v in enumerate(block.variables) if v in changed)
            ratios = [Fraction(1)]
            for channel in own:
                for row, other in product(range(len(channel.table)), repeat=2):
                    if row & ~mask == other & ~mask:
                        pairs = zip(
                            channel.table[row].tolist(), channel.table[other].tolist(), strict=True
                        )
                        ratios.append(max(Fraction(a, b) for a, b in pairs))
            worst.append(max(ratios))
        assert book.widest_ratio(changed) == prod(worst, start=Fraction(1))


def test_a_common_group_gets_a_channel_of_its_own_where_that_is_better() -> None:
    component, prior, book = planned("five")
    _, plain = make_book(component, 1, groups=0)
    assert prior.groups == 3
    assert book.chosen.shape == (3, 1)
    assert [len(own) for own in plain.channels] == [1]
    assert len(book.channels[0]) > 1
    assert len(set(book.chosen[:, 0].tolist())) > 1
    assert not plain.chosen.any()


@pytest.mark.parametrize(("stakes", "there"), [(0.5, False), (0.0, True)])
def test_a_block_that_nothing_depends_on_in_history_has_a_channel(
    stakes: float, there: bool
) -> None:
    """Because nothing was open, or nothing is at stake; it may be needed all the same."""
    component = make_component(Random(2), 7, patterns=0)
    parts = tuple(Part(n, Name(f"q{n}"), (n,), (0, 2)) for n in range(7))
    component = replace(component, parts=parts)
    prior = make_prior(component, 1)
    history = ContextCounts(np.full((1, 4), there), np.zeros((1, 7), np.bool_), np.array([[9.0]]))
    book = design_book(component, prior, np.full((7, 2), stakes), history, 12)
    for block, (channel,) in zip(book.blocks, book.channels, strict=True):
        assert len(channel.table) == 1 << len(block.variables)
    written = json.loads(json.dumps(book.to_dict()))
    assert ChannelBook.from_dict(written, component, prior.groups).to_dict() == book.to_dict()


@EVERY
def test_a_book_is_read_as_it_was_written(name: str) -> None:
    component, prior, book = planned(name)
    again = ChannelBook.from_dict(json.loads(json.dumps(book.to_dict())), component, prior.groups)
    assert again.to_dict() == book.to_dict()
    assert again.blocks == book.blocks
    assert again.channels == book.channels
    assert np.array_equal(again.chosen, book.chosen)


def _truthful(plain: dict[str, Any]) -> None:
    """Make a symbol certain for each value."""
    table = plain["channels"][0][0]
    table[:] = [[str(int(n == row) << 63) for n in range(len(table))] for row in range(len(table))]


def _one_more(plain: dict[str, Any]) -> None:
    """Move the largest entry of a row up by a 1000th."""
    row = plain["channels"][0][0][0]
    entries = [int(entry) for entry in row]
    high, low = entries.index(max(entries)), entries.index(min(entries))
    moved = entries[low] // 1000
    entries[high] += moved
    entries[low] -= moved
    row[:] = map(str, entries)


TAMPERED: list[tuple[Callable[[dict[str, Any]], object], type[Exception]]] = [
    (_truthful, AuditError),
    (_one_more, AuditError),
    (lambda p: p["channels"].pop(), ValueError),
    (lambda p: p["channels"].append(p["channels"][0]), ValueError),
    (lambda p: p["channels"][0].clear(), PlanError),
    (lambda p: p["channels"][0][0].pop(), PrivacyError),
    (lambda p: p["channels"][0][0].append(p["channels"][0][0][0]), PlanError),
    (lambda p: p["channels"][0][0][0].pop(), PrivacyError),
    (lambda p: p["chosen"].pop(), ValueError),
    (lambda p: p["chosen"][0].__setitem__(0, len(p["channels"][0])), PlanError),
    (lambda p: p["chosen"][0].__setitem__(0, -1), PlanError),
    (lambda p: p.pop("chosen"), KeyError),
]


@pytest.mark.parametrize(("tamper", "error"), TAMPERED)
def test_a_book_that_was_tampered_with_is_refused(tamper: Any, error: type[Exception]) -> None:
    component, prior, book = planned("three")
    plain = json.loads(json.dumps(book.to_dict()))
    assert ChannelBook.from_dict(deepcopy(plain), component, prior.groups)
    tamper(plain)
    with pytest.raises(error):
        ChannelBook.from_dict(plain, component, prior.groups)


def test_a_book_for_a_larger_epsilon_is_refused() -> None:
    component, prior, book = planned("three")
    patterns = tuple(
        PrivatePattern(p.name, p.elements, p.epsilon * Fraction(99, 100))
        for p in component.patterns
    )
    less = replace(component, patterns=patterns)
    with pytest.raises(AuditError):
        ChannelBook.from_dict(book.to_dict(), less, prior.groups)


@EVERY
def test_symbols_come_from_the_row_of_the_true_value_in_the_channel_of_the_group(
    name: str,
) -> None:
    """And nothing is drawn for a block that no open part depends on."""
    component, prior, book = planned(name)
    signals, values = make_windows(component, 5, 40)
    signals[:5] = False
    sampler = Noise(SeededSource(1)).new_sampler()
    asked: list[int] = []
    sample = sampler.sample

    def record(rows: Any) -> Any:
        asked.extend(rows.tolist())
        return sample(rows)

    sampler.sample = record  # type: ignore[method-assign]
    channels = ComponentChannels(component, prior, np.full((len(component.parts), 2), 0.5))
    draws = BookDraws(channels, book, sampler, np.full(len(component.parts), 0.5))
    chosen = np.arange(0, 40, 2)
    codes = np.full((40, len(book.blocks) + 1), -1, np.int32)
    words = pack_rows(signals)
    draws.draw(chosen, words, pack_rows(values), codes)
    rows = iter(asked)
    firsts = np.cumsum([0, *(len(channel.table) for own in book.channels for channel in own)])
    numbers = [[(b, c) for c in range(len(own))] for b, own in enumerate(book.channels)]
    flat = {place: n for n, place in enumerate(place for own in numbers for place in own)}
    groups = prior.group(signals)
    drawn = 0
    for row in range(40):
        tables = component.tables(signals[row])
        for number, block in enumerate(book.blocks):
            needed = any(
                0 < table.sum() < len(table) and not set(part.variables).isdisjoint(block.variables)
                for part, table in zip(component.parts, tables, strict=True)
            )
            if row % 2 or not needed:
                assert codes[row, number] == -1
                continue
            channel = int(book.chosen[groups[row], number])
            first = firsts[flat[number, channel]]
            assert next(rows) == first + choose(values[row], block.variables)
            assert codes[row, number] <= -2
            drawn += 1
        assert codes[row, -1] == -1
    assert next(rows, None) is None
    assert drawn > 10
