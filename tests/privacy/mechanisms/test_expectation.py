"""What to expect of drawn answers: every row of history, symbol and part written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.patterns.booleans import pack_rows
from tacit.patterns.language import parse_pattern
from tacit.patterns.tree import Pattern
from tacit.privacy import components
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.joint_counts import JointColumns, JointCounts
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, read_literally
from tacit.privacy.mechanisms.optimal.channel_books import design_book
from tacit.privacy.mechanisms.optimal.contexts import Contexts
from tacit.privacy.mechanisms.optimal.expectation import (
    PlannedComponent,
    count_prior,
    count_queries,
    read_prior,
)
from tacit.privacy.mechanisms.optimal.joint_expectation import DrawnParts, count_several
from tacit.privacy.mechanisms.optimal.part_tables import Words
from tacit.privacy.noise import Noise
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import Prior
from tacit.privacy.quality import Confusion
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.privacy.thresholds import LEVELS, PosteriorCounts
from tests.privacy.mechanisms.made_components import (
    choose,
    evaluate,
    is_open,
    make_component,
    make_prior,
    make_windows,
)

QUERIES = ["AND(a, x)", "OR(AND(b, y), SEQ(a, z))", "NOT AND(x, y)", "b", "OR(y, z)"]
POLICY = Policy(
    (
        PrivatePattern("p", frozenset({"x", "y"}), Fraction(1)),
        PrivatePattern("q", frozenset({"z"}), Fraction(3, 2)),
    )
)


def history(policy: Policy, texts: list[str], seed: int, rows: int = 12) -> Statistics:
    """Statistics of a history that is made up; rows of all components are the same windows."""
    rng = np.random.default_rng(seed)
    queries: list[Pattern] = [parse_pattern(text) for text in texts]
    found = find_exposure(policy, queries)
    priors, contexts = [], []
    counts = 1 + rng.multinomial(200 - rows, np.full(rows, 1 / rows)).astype(np.float64)
    for component in found.components:
        signals = rng.random((rows, len(component.signals))) < 0.6
        signals = signals[np.lexsort(signals.T)] if signals.shape[1] else signals
        values = rng.random((rows, len(component.variables))) < 0.4
        rates = rng.uniform(0.1, 0.6, len(component.variables))
        priors.append(Prior.from_contexts(rates, signals, values, counts, 4.0))
        contexts.append(ContextCounts(signals, values, counts[:, None]))
    positives = np.arange(len(texts), dtype=np.float64)
    return Statistics(
        policy, policy, found, (), 200.0, positives, tuple(priors), (), contexts=tuple(contexts)
    )


WORK = 1_000_000


class Cell(NamedTuple):
    """Windows of history with the same answer to a part."""

    posterior: float
    true: bool
    windows: float


def rows_of(history: ContextCounts) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_], float]]:
    for signals, values, windows in zip(
        history.signals, history.values, history.windows, strict=True
    ):
        yield signals, values, float(windows)


def planned(
    component: Component, prior: Prior, history: ContextCounts, *, own: bool = True
) -> PlannedComponent:
    """Channels for all contexts of history, or a book alone."""
    stakes = np.random.default_rng(1).uniform(0.3, 1, (len(component.parts), 2))
    channels = ComponentChannels(component, prior, stakes)
    contexts = {}
    for signals in history.signals if own else ():
        context = channels.context(signals)
        assert context is not None
        contexts[np.packbits(signals).tobytes()] = context
    return PlannedComponent(channels, contexts, design_book(component, prior, stakes, history, 2))


def spell_out(made: PlannedComponent, history: ContextCounts, *, literal: bool) -> list[list[Cell]]:
    """For each part all its cells, from the very tables of the channels."""
    component = made.channels.component
    cells: list[list[Cell]] = [[] for _ in component.parts]
    for signals, values, windows in rows_of(history):
        context = made.contexts[np.packbits(signals).tobytes()]
        for part in range(len(cells)):
            if not is_open(component, part, signals):
                sure = evaluate(component, part, signals, values)
                cells[part].append(Cell(float(sure), bool(sure), windows))
        for block, design in context.blocks:
            table = design.channel.table / 2.0**design.channel.bits
            read = read_literally(table.T, block.choice.answers)
            row = table[block.place[choose(values, block.variables)]]
            for symbol, likely in enumerate(row):
                for column, part in zip(block.columns, block.parts, strict=True):
                    told = (read if literal else design.posterior)[symbol, column]
                    true = bool(evaluate(component, part, signals, values))
                    cells[part].append(Cell(float(told), true, windows * likely))
    return cells


def spell_out_book(
    made: PlannedComponent, history: ContextCounts, *, literal: bool
) -> list[list[Cell]]:
    """The same for a book: all symbols of the blocks that a part depends on."""
    component, prior, book = made.channels.component, made.channels.prior, made.book
    cells: list[list[Cell]] = [[] for _ in component.parts]
    worlds = np.array(list(product((False, True), repeat=len(component.variables))))
    for signals, values, windows in rows_of(history):
        (group,) = prior.group(signals[np.newaxis]).tolist()
        for part, found in zip(range(len(cells)), cells, strict=True):
            true = bool(evaluate(component, part, signals, values))
            if not is_open(component, part, signals):
                found.append(Cell(float(true), true, windows))
                continue
            right = evaluate(component, part, signals, worlds)
            own = set(component.parts[part].variables)
            blocks = [n for n, b in enumerate(book.blocks) if not own.isdisjoint(b.variables)]
            tables = [book.channels[n][book.chosen[group, n]].table / 2.0**63 for n in blocks]
            for symbols in product(*(range(table.shape[1]) for table in tables)):
                chance, likely = np.ones(len(worlds)), 1.0
                for n, table, symbol in zip(blocks, tables, symbols, strict=True):
                    variables = book.blocks[n].variables
                    column = table[:, symbol]
                    likely *= float(column[choose(values, variables)])
                    if not literal:
                        column = column * prior.choices(group, variables)
                    chance *= column[choose(worlds, variables)]
                told = float(chance[right].sum() / chance.sum())
                if literal:
                    told = float(told > 0.5 * (1 + 1e-9))
                found.append(Cell(told, true, windows * likely))
    return cells


def count(cells: list[list[Cell]]) -> PosteriorCounts:
    counts = PosteriorCounts.zeros(len(cells))
    for part, own in enumerate(cells):
        for posterior, true, windows in own:
            level = int(np.searchsorted(LEVELS, posterior, side="right")) - 1
            (counts.true if true else counts.false)[part, level] += windows
    return counts


def join(statistics: Statistics) -> JointCounts:
    """Whole windows: row n of each component belongs to the same window."""
    exposure, places, bits = statistics.exposure, [0], []
    for seen in statistics.contexts:
        for part in (seen.signals, seen.values):
            bits.append(part)
            places.append(places[-1] + part.shape[1])
    ranges = [np.arange(*pair) for pair in pairwise(places)]
    several = [n for n, question in enumerate(exposure.questions) if len(question.parts) > 1]
    truth = [[answer(statistics, n, row) for n in several] for row in range(len(bits[0]))]
    columns = JointColumns(
        dict(enumerate(ranges[::2])),
        dict(enumerate(ranges[1::2])),
        {n: places[-1] + place for place, n in enumerate(several)},
    )
    whole = np.concatenate([*bits, np.array(truth, np.bool_)], axis=1)
    return JointCounts(pack_rows(whole), statistics.contexts[0].counts, columns)


def answer(statistics: Statistics, query: int, row: int) -> bool:
    """The true answer to a query in a window."""
    question = statistics.exposure.questions[query]
    parts = [
        bool(
            evaluate(
                statistics.exposure.components[component],
                part,
                statistics.contexts[component].signals[row],
                statistics.contexts[component].values[row],
            )
        )
        for component, part in question.parts
    ]
    return all(parts) if question.every else any(parts)


def combine(
    statistics: Statistics, query: int, made: list[PlannedComponent], *, literal: bool
) -> list[Cell]:
    """The cells of a query. In each window, symbols of different components are independent."""
    question = statistics.exposure.questions[query]
    cells = []
    for row, windows in enumerate(statistics.contexts[0].windows.tolist()):
        whole = [Cell(float(question.every), answer(statistics, query, row), windows)]
        for component, part in question.parts:
            seen = statistics.contexts[component]
            here = ContextCounts(
                seen.signals[[row]], seen.values[[row]], np.array([[1.0]])
            )  # a window alone
            whole = [
                Cell(
                    one.posterior * other.posterior
                    if question.every
                    else 1 - (1 - one.posterior) * (1 - other.posterior),
                    one.true,
                    one.windows * other.windows,
                )
                for one in whole
                for other in spell_out(made[component], here, literal=literal)[part]
            ]
        cells += whole
    return cells


@pytest.mark.parametrize("joined", [0, 4])
@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_expected_counts_are_those_of_all_rows_symbols_and_parts(
    joined: int, literal: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one component and for several, by posterior and literally."""
    monkeypatch.setattr(components, "MOST_JOINED", joined)
    statistics = history(POLICY, QUERIES, seed)
    exposure = statistics.exposure
    assert len(exposure.components) == (2 if joined == 0 else 1)
    made, found = [], []
    for component, prior, seen in zip(
        exposure.components, statistics.priors, statistics.contexts, strict=True
    ):
        made.append(planned(component, prior, seen))
        found.append(made[-1].count_posteriors(seen, WORK, literal=literal))
        slow = count(spell_out(made[-1], seen, literal=literal))
        assert found[-1].true == pytest.approx(slow.true)
        assert found[-1].false == pytest.approx(slow.false)
    queries = count_queries(exposure, found, statistics.positives)
    for query, question in enumerate(exposure.questions):
        if not question.parts:
            assert queries.true[query, -1] == queries.true[query].sum() == query
        elif len(question.parts) == 1:
            exact = count([combine(statistics, query, made, literal=literal)])
            assert queries.true[query] == pytest.approx(exact.true[0])
            assert queries.false[query] == pytest.approx(exact.false[0])


def count_whole(
    statistics: Statistics, made: list[PlannedComponent], *, literal: bool
) -> PosteriorCounts:
    """Count the queries over several components by drawing for whole windows."""
    contexts = [
        Contexts(
            one.channels,
            one.book,
            Noise(SeededSource(2)),
            None if literal else np.full(len(one.channels.component.parts), 0.5),
            one.contexts,
            design=False,
        )
        for one in made
    ]

    def read(number: int, signals: Words, values: Words) -> DrawnParts:
        drawn = contexts[number].draw(signals, values, len(values))
        return DrawnParts(contexts[number], drawn, literal=literal)

    counts = PosteriorCounts.zeros(len(statistics.exposure.questions))
    count_several(statistics.exposure, join(statistics), 200.0, WORK, read, counts)
    return counts


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_queries_over_several_components_are_counted_on_whole_windows(
    literal: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as windows and symbols come together, not as if components were independent."""
    monkeypatch.setattr(components, "MOST_JOINED", 0)
    statistics = history(POLICY, QUERIES, seed)
    made = list(
        map(planned, statistics.exposure.components, statistics.priors, statistics.contexts)
    )
    found = count_whole(statistics, made, literal=literal)
    several = [n for n, one in enumerate(statistics.exposure.questions) if len(one.parts) > 1]
    assert several
    slow = count([combine(statistics, n, made, literal=literal) for n in several])
    own = PosteriorCounts(found.true[several], found.false[several])
    assert own.true.sum(axis=1) == pytest.approx(slow.true.sum(axis=1))
    # Each of 200 windows is drawn 64 times.
    spread = float(np.sqrt(200 / 4 / 64))
    assert deviate(own, slow, spread) < 5
    order = np.random.default_rng(seed).permutation(len(statistics.contexts[1].signals))
    other = statistics.contexts[1]
    shuffled = ContextCounts(other.signals[order], other.values[order], other.counts)
    apart = replace(statistics, contexts=(statistics.contexts[0], shuffled))
    elsewhere = count([combine(apart, n, made, literal=literal) for n in several])
    assert deviate(own, elsewhere, spread) > 5


def deviate(found: PosteriorCounts, slow: PosteriorCounts, spread: float) -> float:
    """The largest difference of running sums over levels, in units of a standard error."""
    worst = 0.0
    for ours, theirs in ((found.true, slow.true), (found.false, slow.false)):
        differences = np.abs(np.cumsum(ours - theirs, axis=1))
        worst = max(worst, float(differences.max()) / spread)
    return worst


@pytest.mark.parametrize("variables", [3, 7])
@pytest.mark.parametrize("literal", [False, True])
def test_counts_of_a_book_are_those_of_all_symbols_within_sampling_error(
    variables: int, literal: bool
) -> None:
    """The error is bounded; with half of the channels' epsilon the counts are beyond it."""
    component = make_component(Random(variables), variables, parts=5, patterns=1)
    prior = make_prior(component, 1)
    signals, values = make_windows(component, 1, 30)
    windows = np.random.default_rng(1).integers(1, 9, 30).astype(np.float64)
    seen = ContextCounts.from_rows(
        np.concatenate([signals, values], axis=1), windows[:, np.newaxis], len(component.signals)
    )
    made = planned(component, prior, seen, own=False)
    found = made.count_posteriors(seen, WORK, literal=literal)
    slow = count(spell_out_book(made, seen, literal=literal))
    assert found.true.sum(axis=1) == pytest.approx(slow.true.sum(axis=1))
    assert found.false.sum(axis=1) == pytest.approx(slow.false.sum(axis=1))
    # Each of the rows is drawn 64 times.
    spread = float(np.sqrt((windows**2).sum() / 4 / 64))
    assert deviate(found, slow, spread) < 5
    other = spell_out_book(
        planned(_weaker(component), prior, seen, own=False), seen, literal=literal
    )
    assert deviate(found, count(other), spread) > 5


def _weaker(component: Component) -> Component:
    patterns = tuple(PrivatePattern(p.name, p.elements, p.epsilon / 4) for p in component.patterns)
    return Component(patterns, component.variables, component.parts, component.signals)


def test_rows_that_are_left_out_are_accounted_for() -> None:
    """If history has more rows than are drawn, an even selection stands for all."""
    component = make_component(Random(3), 3, parts=5)
    signals, values = make_windows(component, 1, 400)
    rows = np.unique(np.concatenate([signals, values], axis=1), axis=0)
    windows = np.random.default_rng(1).integers(1, 9, (len(rows), 1)).astype(np.float64)
    seen = ContextCounts.from_rows(rows, windows, len(component.signals))
    made = planned(component, make_prior(component, 1), seen, own=False)
    everything = made.count_posteriors(seen, WORK, literal=False)
    some = made.count_posteriors(seen, 5 * len(rows) // 2, literal=False)
    for counts in (everything, some):
        assert (counts.true + counts.false).sum(axis=1) == pytest.approx(np.full(5, windows.sum()))
    assert not np.array_equal(everything.true, some.true)


def test_without_symbols_windows_are_counted_by_the_prior_of_their_group() -> None:
    component = make_component(Random(7), 7, parts=5)
    prior = make_prior(component, 1)
    signals, values = make_windows(component, 2, 30)
    seen = ContextCounts.from_rows(
        np.concatenate([signals, values], axis=1), np.ones((30, 1)), len(component.signals)
    )
    found = count_prior(read_prior(component, prior), seen)
    blocks = [block.variables for block in planned(component, prior, seen, own=False).book.blocks]
    worlds = np.array(list(product((False, True), repeat=7)))
    cells: list[list[Cell]] = [[] for _ in component.parts]
    for signal, value, windows in rows_of(seen):
        (group,) = prior.group(signal[np.newaxis]).tolist()
        chance = np.ones(len(worlds))
        for block in blocks:
            chance *= prior.choices(group, block)[choose(worlds, block)]
        for part, own in enumerate(cells):
            right = evaluate(component, part, signal, worlds)
            likely = 1.0 if right.all() else float(chance[right].sum())
            own.append(Cell(likely, bool(evaluate(component, part, signal, value)), windows))
    slow = count(cells)
    assert np.array_equal(found.true, slow.true)
    assert np.array_equal(found.false, slow.false)


def test_a_smaller_epsilon_is_expected_to_do_worse() -> None:
    quality = []
    for share in ("0.1", "1", "4"):
        statistics = history(POLICY.scale(Fraction(share)), QUERIES, 1)
        parts = [
            planned(component, prior, seen).count_posteriors(seen, WORK, literal=False)
            for component, prior, seen in zip(
                statistics.exposure.components, statistics.priors, statistics.contexts, strict=True
            )
        ]
        counts = count_queries(statistics.exposure, parts, statistics.positives)
        found: Confusion[NDArray[np.float64]] = counts.confusion(np.full(len(QUERIES), LEVELS[601]))
        quality.append(found.total().quality(0.5))
    assert quality == sorted(quality)
    assert quality[0] < quality[2]


def test_a_component_that_history_did_not_show_expects_nothing() -> None:
    statistics = history(POLICY, QUERIES, 1)
    (component,), (prior,), (seen,) = (
        statistics.exposure.components,
        statistics.priors,
        statistics.contexts,
    )
    nothing = ContextCounts.empty(prior.width, len(prior.rates))
    for own in (False, True):
        counts = planned(component, prior, seen, own=own).count_posteriors(
            nothing, WORK, literal=False
        )
        assert counts.true.sum() == counts.false.sum() == 0
