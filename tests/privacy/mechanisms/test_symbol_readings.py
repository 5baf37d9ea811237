"""Readings of symbols: the probability of every part, against an enumeration of all values."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.patterns.booleans import pack_rows
from tacit.privacy.components import Component
from tacit.privacy.mechanisms.optimal.part_tables import PartTables
from tacit.privacy.mechanisms.optimal.symbol_readings import (
    FIRST_CODE,
    PriorReadings,
    SymbolReadings,
)
from tacit.privacy.thresholds import LEVELS, PosteriorCounts
from tests.privacy.mechanisms.made_components import (
    choose,
    evaluate,
    is_open,
    make_component,
    make_prior,
    make_windows,
)

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]
Blocks = tuple[tuple[int, ...], ...]
ROWS = 12
SIZES = pytest.mark.parametrize("variables", [1, 2, 5, 7, 12])


class Drawn:
    """Symbols of random channels for some windows, with all that is needed to check them."""

    def __init__(self, variables: int, seed: int) -> None:
        rng = Random(seed)
        # Parts, and signals, in more than one word; and parts with many signals.
        parts, signals = 70 if variables == 5 else 6, {5: 9, 7: 70}.get(variables, 4)
        self.component = make_component(rng, variables, signals=signals, parts=parts)
        self.blocks = _divide(rng, variables)
        self.prior = make_prior(self.component, seed)
        self.readings = SymbolReadings(self.component, self.prior, self.blocks)
        self.signals, self.values = make_windows(self.component, seed, ROWS)
        self.words = pack_rows(self.signals)
        self.groups = self.readings.find_groups(self.words)
        self.likely: list[list[Floats]] = []
        """`[row][block]`: the likelihood of the row's symbol for each value of the block."""
        self.codes = np.full((ROWS, len(self.blocks)), -1, np.int32)
        floats = np.random.default_rng(seed)
        for row in range(ROWS):
            self.likely.append([])
            for number, block in enumerate(self.blocks):
                table = floats.uniform(0.01, 1.0, (3, 1 << len(block)))
                first = self.readings.add(int(self.groups[row]), number, table)
                self.codes[row, number] = FIRST_CODE - first - 1
                self.likely[row].append(table[1])

    def probability(self, row: int, part: int, *, literal: bool = False) -> float:
        """The probability of a part by an enumeration of the values of all variables."""
        group = int(self.groups[row])
        worlds = every_world(len(self.component.variables))
        chance = np.ones(len(worlds))
        for block, likely in zip(self.blocks, self.likely[row], strict=True):
            own = likely if literal else likely * self.prior.choices(group, block)
            chance *= (own / own.sum())[choose(worlds, block)]
        return float(chance[evaluate(self.component, part, self.signals[row], worlds)].sum())

    def answers(self, thresholds: Floats, *, literal: bool = False) -> Bits:
        """What `answer` writes, `[row][part]`."""
        parts = len(self.component.parts)
        words = np.full((ROWS, -(-parts // 64)), ~np.uint64(0))
        chosen = np.arange(ROWS)
        self.readings.answer(chosen, self.words, self.codes, thresholds, words, literal=literal)
        octets = words.astype("<u8").view(np.uint8)
        return np.unpackbits(octets, axis=1, bitorder="little", count=parts).astype(np.bool_)


@cache
def every_world(variables: int) -> Bits:
    """`[world][variable]`: all values of all variables."""
    return np.array(list(product((False, True), repeat=variables)))


def _divide(rng: Random, variables: int) -> Blocks:
    """Blocks of one to four variables each, in any order."""
    left = rng.sample(range(variables), variables)
    blocks = []
    while left:
        size = rng.randint(1, 4)
        blocks.append(tuple(sorted(left[:size])))
        left = left[size:]
    return tuple(blocks)


def some_parts(component: Component) -> range:
    """All parts, or a few of very many."""
    return range(0, len(component.parts), 1 if len(component.parts) < 10 else 9)


@SIZES
def test_a_part_is_as_likely_as_all_values_that_make_it_true(variables: int) -> None:
    """Parts may span blocks; a decided part is exactly 0 or 1."""
    drawn = Drawn(variables, variables)
    found: dict[tuple[int, int], float] = {}
    for part in some_parts(drawn.component):
        for true in (False, True):
            likely = np.full(ROWS, 0.5)
            chosen = np.arange(1, ROWS)
            drawn.readings.weigh(chosen, drawn.words, drawn.codes, part, likely, true=true)
            assert likely[0] == 0.5  # only the chosen rows are weighed
            for row in chosen.tolist():
                slow = found.setdefault((row, part), drawn.probability(row, part))
                assert likely[row] == pytest.approx(0.5 * (slow if true else 1 - slow), abs=1e-12)
                if not is_open(drawn.component, part, drawn.signals[row]):
                    assert likely[row] in (0.0, 0.5)


@SIZES
def test_many_rows_are_weighed_by_a_table_as_single_rows_are_without(variables: int) -> None:
    drawn = Drawn(variables, 20 + variables)
    words, codes = np.tile(drawn.words, (600, 1)), np.tile(drawn.codes, (600, 1))
    for part in some_parts(drawn.component):
        for true in (False, True):
            many, single = np.full(len(words), 0.5), np.full(ROWS, 0.5)
            for row in range(ROWS):
                drawn.readings.weigh(
                    np.array([row]), drawn.words, drawn.codes, part, single, true=true
                )
            drawn.readings.weigh(np.arange(len(words)), words, codes, part, many, true=true)
            assert many.tolist() == np.tile(single, 600).tolist()
            drawn.readings._probabilities.clear()


@SIZES
@pytest.mark.parametrize("literal", [False, True])
def test_answers_are_yes_from_the_threshold_of_each_part_on(variables: int, literal: bool) -> None:
    drawn = Drawn(variables, 10 + variables)
    parts = some_parts(drawn.component)
    slow = np.array(
        [[drawn.probability(row, part, literal=literal) for part in parts] for row in range(ROWS)]
    )
    # A threshold between the probabilities of each part, so that both answers occur.
    ranked = np.sort(slow, axis=0)
    places = np.arange(len(parts)) % (ROWS - 1)
    own = (ranked[places, np.arange(len(parts))] + ranked[places + 1, np.arange(len(parts))]) / 2
    thresholds = np.full(len(drawn.component.parts), 0.5)
    thresholds[parts] = np.maximum(own, 1e-9)
    found = drawn.answers(thresholds, literal=literal)[:, parts]
    sure = np.abs(slow - thresholds[parts]) > 1e-12
    assert sure.mean() > 0.5
    assert np.array_equal(found[sure], (slow >= thresholds[parts])[sure])


def test_a_posterior_and_a_likelihood_differ() -> None:
    """So that the test above tells apart what is read literally."""
    drawn = Drawn(5, 1)
    parts = some_parts(drawn.component)
    gaps = [drawn.probability(0, part) - drawn.probability(0, part, literal=True) for part in parts]
    assert max(map(abs, gaps)) > 0.05


@SIZES
@pytest.mark.parametrize("majority", [None, 0.5])
def test_windows_are_counted_by_posterior_and_truth(variables: int, majority: float | None) -> None:
    drawn = Drawn(variables, 20 + variables)
    windows = np.arange(1.0, ROWS + 1)
    parts = some_parts(drawn.component)
    counts = PosteriorCounts.zeros(len(drawn.component.parts))
    values = pack_rows(drawn.values)
    drawn.readings.count(drawn.words, values, drawn.codes, windows, counts, majority)
    slow = PosteriorCounts.zeros(len(drawn.component.parts))
    for row, part in product(range(ROWS), parts):
        likely = drawn.probability(row, part, literal=majority is not None)
        if majority is not None:
            likely = float(likely >= majority)
        level = max(n for n, least in enumerate(LEVELS) if least <= likely + 1e-13)
        true = evaluate(drawn.component, part, drawn.signals[row], drawn.values[row])
        (slow.true if true else slow.false)[part, level] += windows[row]
    assert np.array_equal(counts.true[parts], slow.true[parts])
    assert np.array_equal(counts.false[parts], slow.false[parts])


@SIZES
def test_a_block_is_needed_if_and_only_if_some_open_part_depends_on_it(variables: int) -> None:
    drawn = Drawn(variables, 30 + variables)
    needed = drawn.readings.find_needed(drawn.words)
    for row, block in product(range(ROWS), range(len(drawn.blocks))):
        touching = any(
            is_open(drawn.component, number, drawn.signals[row])
            and not set(part.variables).isdisjoint(drawn.blocks[block])
            for number, part in enumerate(drawn.component.parts)
        )
        assert needed[row, block] == touching


@pytest.mark.parametrize("variables", [2, 7])
def test_without_symbols_a_part_is_as_likely_as_by_the_prior_of_its_group(variables: int) -> None:
    drawn = Drawn(variables, 40 + variables)
    readings = PriorReadings(drawn.component, drawn.prior, drawn.blocks)
    codes = readings.read(drawn.words)
    assert np.array_equal(readings.read(drawn.words), codes)  # prepared once
    drawn.likely = [[np.ones(1 << len(block)) for block in drawn.blocks]] * ROWS
    for part in some_parts(drawn.component):
        likely = np.ones(ROWS)
        readings.weigh(np.arange(ROWS), drawn.words, codes, part, likely, true=True)
        slow = [drawn.probability(row, part) for row in range(ROWS)]
        assert likely == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("variables", [1, 4, 9])
def test_functions_of_a_block_are_open_parts_with_other_variables_fixed(variables: int) -> None:
    """Their stakes: those of the part, times the windows, times how likely the others are so."""
    rng = Random(variables)
    component = make_component(rng, variables)
    blocks = _divide(rng, variables)
    tables = PartTables(component, blocks)
    floats = np.random.default_rng(variables)
    signals, _ = make_windows(component, variables, 4)
    windows = floats.uniform(1, 5, 4)
    stakes = floats.uniform(0, 1, (len(component.parts), 2))
    chances = [floats.dirichlet(np.ones(1 << len(block))) for block in blocks]
    others = np.array([tables.chances(n, own) for n, own in enumerate(chances)])
    for number, block in enumerate(blocks):
        slow: dict[tuple[bool, ...], NDArray[np.float64]] = {}
        outside = [v for v in range(variables) if v not in block]
        for row, part in product(range(4), range(len(component.parts))):
            if set(component.parts[part].variables).isdisjoint(block):
                continue
            for fixed in every_world(len(outside)):
                values = np.zeros((1 << len(block), variables), np.bool_)
                values[:, outside] = fixed
                values[:, block] = every_world(len(block))[:, ::-1]  # in the order of choices
                weight = windows[row]
                for other, own in enumerate(blocks):
                    if other != number:
                        weight *= chances[other][choose(values[0], own)]
                answers = evaluate(component, part, signals[row], values).tolist()
                if any(answers) and not all(answers):
                    slow.setdefault(tuple(answers), np.zeros(2))
                    slow[tuple(answers)] += weight * stakes[part]
        found = tables.weigh_functions(pack_rows(signals), windows, stakes, number, others)
        functions = {tuple(column.tolist()) for column in found.answers.T}
        assert functions == slow.keys()
        assert len(functions) == found.answers.shape[1]
        for column, reward, penalty in zip(
            found.answers.T, found.reward, found.penalty, strict=True
        ):
            assert (reward, penalty) == pytest.approx(tuple(slow[tuple(column.tolist())]))
