"""A component's windows: rows by the true values, and readings, against slow dictionaries."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from math import log
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.patterns.booleans import pack_rows
from tacit.patterns.language import parse_pattern
from tacit.patterns.tree import And, Not, Or, Pattern
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, Context, read_literally
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.noise import Noise
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import Prior
from tacit.privacy.randomness import SeededSource

Bits = NDArray[np.bool_]


def component(groups: dict[str, str], queries: list[Pattern]) -> Component:
    """The only component of a policy and queries."""
    patterns = tuple(
        PrivatePattern(name, frozenset(types.split()), Fraction(n + 1, 2))
        for n, (name, types) in enumerate(groups.items())
    )
    (found,) = find_exposure(Policy(patterns), queries).components
    return found


def query(rng: Random, private: list[str]) -> Pattern:
    """A query over some private types and a few public ones."""
    parts: list[Pattern] = [
        And(name, rng.choice("abcd")) if rng.random() < 0.7 else Or(name, rng.choice("abcd"))
        for name in rng.sample(private, rng.choice((1, 2, 3)))
    ]
    whole = rng.choice((And, Or))(*parts)
    return Not(whole) if rng.random() < 0.3 else whole


@cache
def few() -> Component:
    """Two private patterns that share a type, three queries."""
    texts = ("AND(a, OR(x, SEQ(b, y)))", "OR(AND(x, z), AND(c, NOT y))", "AND(d, y)")
    return component({"p": "x y", "q": "y z"}, [parse_pattern(text) for text in texts])


@cache
def many_parts() -> Component:
    """More than 64 parts, signals and variables, in a chain of private patterns."""
    names = [f"x{n}" for n in range(70)]
    groups = {f"p{n}": f"x{n} x{(n + 1) % 70}" for n in range(70)}
    return component(groups, [And(name, f"b{n}") for n, name in enumerate(names)])


@cache
def many_classes() -> Component:
    """One private pattern of eight types, so many different queries that they must be grouped."""
    rng = Random(5)
    names = [f"x{n}" for n in range(6)]
    return component({"p": " ".join(names)}, [query(rng, names) for _ in range(9)])


def random_prior(found: Component, seed: int) -> Prior:
    rng = np.random.default_rng(seed)
    signals = rng.random((20, len(found.signals))) < 0.5
    signals = signals[np.lexsort(signals.T)] if signals.shape[1] else signals
    values = rng.random((20, len(found.variables))) < 0.3
    rates = rng.uniform(0.05, 0.6, len(found.variables))
    return Prior(rates, signals, values, rng.integers(1, 30, 20).astype(np.float64))


def windows(found: Component, seed: int, count: int, chance: float) -> tuple[Bits, Bits]:
    """Random contexts and values, `[window][bit]`."""
    rng = np.random.default_rng(seed)
    few_contexts = rng.random((7, len(found.signals))) < chance
    values = rng.random((count, len(found.variables))) < 0.4
    return few_contexts[rng.integers(0, 7, count)], values


CASES = [(few, 0.5), (many_parts, 0.06), (many_classes, 0.8)]
ALL = pytest.mark.parametrize(("make", "chance"), CASES, ids=["few", "parts", "classes"])


def set_up(make: object, chance: float) -> tuple[ComponentChannels, Bits, Bits]:
    assert callable(make)
    found: Component = make()
    stakes = np.tile([0.6, 0.4], (len(found.parts), 1))
    return ComponentChannels(found, random_prior(found, 1), stakes), *windows(found, 2, 300, chance)


@cache
def planned(make: object, chance: float) -> dict[bytes, Context]:
    """The contexts of its windows, by packed signals."""
    channels, signals, _ = set_up(make, chance)
    return {np.packbits(row).tobytes(): channels.context(row) for row in np.unique(signals, axis=0)}


def choice_of(values: Bits, variables: tuple[int, ...]) -> int:
    return sum(int(values[v]) << n for n, v in enumerate(variables))


class Recorder:
    """In place of a sampler: remembers the rows, gives the first symbol."""

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def sample(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Zeros."""
        self.asked += rows.tolist()
        return np.zeros(len(rows), np.int32)


@ALL
def test_the_row_that_is_drawn_from_is_the_class_of_the_true_values(
    make: object, chance: float
) -> None:
    """Of the very channel that is planned for the window's context, block by block."""
    channels, signals, values = set_up(make, chance)
    contexts = Contexts(channels, Noise(SeededSource(1)), 0.5)
    contexts._sampler = recorder = Recorder(contexts._sampler)  # type: ignore[assignment]
    for part in np.array_split(np.arange(300), 3):
        contexts.draw(pack_rows(signals[part]), pack_rows(values[part]))
    rows = iter(recorder.asked)
    sampler = contexts._sampler
    for signal, value in zip(signals, values, strict=True):
        context = planned(make, chance)[np.packbits(signal).tobytes()]
        tables = channels.component.tables(signal)
        for block, design in context.blocks:
            row = next(rows)
            number = int(np.searchsorted(sampler.offsets, row, side="right")) - 1
            assert sampler.channels[number] == design.channel
            found = row - sampler.offsets[number]
            assert found == block.place[choice_of(value, block.variables)]
            truth = [
                tables[p][choice_of(value, channels.component.parts[p].variables)]
                for p in block.parts
            ]
            assert block.choice.answers[found, list(block.columns)].tolist() == truth
    assert next(rows, None) is None


def slow(
    contexts: Contexts,
    channels: ComponentChannels,
    drawn: DrawnSymbols,
    signals: Bits,
    threshold: float | None,
) -> tuple[Bits, NDArray[np.float64]]:
    """Answers and posteriors of all parts, symbol by symbol."""
    number = len(channels.component.parts)
    answers = np.zeros((len(signals), number), np.bool_)
    posterior = np.zeros((len(signals), number))
    first = 0
    symbols: dict[int, tuple[list[int], Bits, NDArray[np.float64]]] = {}
    for context in contexts._contexts:
        for block, design in context.blocks:
            literal = read_literally(design.channel.table.T.astype(float), block.choice.answers)
            for symbol in range(design.channel.table.shape[1]):
                told = design.posterior[symbol, list(block.columns)]
                read = literal[symbol, list(block.columns)]
                yes = read if threshold is None else told >= threshold
                symbols[first] = list(block.parts), yes, told
                first += 1
    known: dict[bytes, Bits] = {}
    for row, signal in enumerate(signals):
        if signal.tobytes() not in known:
            known[signal.tobytes()] = channels.outline(signal).decided
        decided = known[signal.tobytes()]
        answers[row] = posterior[row] = decided
        for code in drawn.codes[row]:
            if code >= 0:
                parts, yes, told = symbols[int(code)]
                answers[row, parts], posterior[row, parts] = yes, told
    return answers, posterior


@ALL
@pytest.mark.parametrize("threshold", [None, 0.3, 0.5])
def test_words_and_posteriors_agree_with_a_dictionary(
    make: object, chance: float, threshold: float | None
) -> None:
    """Also for what was drawn before further contexts were met."""
    channels, signals, values = set_up(make, chance)
    contexts = Contexts(channels, Noise(SeededSource(7)), threshold, planned(make, chance))
    parts = len(channels.component.parts)
    order = np.lexsort(signals.T)
    pieces = np.array_split(order, 4)
    drawn = []
    for piece in pieces:
        drawn.append(contexts.draw(pack_rows(signals[piece]), pack_rows(values[piece])))
        contexts.posterior(drawn[-1], 0)  # tables are made anew as contexts come
    for piece, found in zip(pieces, drawn, strict=True):
        answers, posterior = slow(contexts, channels, found, signals[piece], threshold)
        octets = contexts.words(found).astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=parts)
        assert np.array_equal(bits.astype(np.bool_), answers)
        for part in range(parts):
            assert np.array_equal(contexts.posterior(found, part), posterior[:, part])


def test_there_are_contexts_with_several_blocks_and_with_none() -> None:
    """So that the tests above look at both."""
    channels, signals, _ = set_up(many_classes, 0.8)
    counts = {len(channels.outline(row).blocks) for row in np.unique(signals, axis=0)}
    assert max(counts) > 1
    apart, signals, _ = set_up(many_parts, 0.06)
    counts = {len(apart.outline(row).blocks) for row in np.unique(signals, axis=0)}
    assert max(counts) > 1
    nothing = apart.outline(np.zeros(len(apart.component.signals), np.bool_))
    assert nothing.blocks == ()


@pytest.mark.parametrize("make", [few, many_classes])
def test_for_every_private_pattern_the_losses_of_all_blocks_add_up_to_its_epsilon(
    make: object,
) -> None:
    """Exactly, for all pairs of values between which the pattern may move a window."""
    channels, signals, _ = set_up(make, 0.7)
    found = channels.component
    rng = np.random.default_rng(3)
    for signal in np.unique(signals, axis=0)[:4]:
        blocks = channels.context(signal).blocks
        for pattern, changed in zip(found.patterns, found.changes, strict=True):
            for _ in range(40):
                one = rng.random(len(found.variables)) < 0.5
                other = one.copy()
                for variable in changed:
                    other[variable] = rng.random() < 0.5
                loss = 0.0
                for block, design in blocks:
                    table = design.channel.table
                    here, there = (
                        table[block.place[choice_of(v, block.variables)]] for v in (one, other)
                    )
                    pairs = zip(here.tolist(), there.tolist(), strict=True)
                    loss += max(log(a) - log(b) for a, b in pairs)
                assert loss <= float(pattern.epsilon) + 1e-9


@ALL
def test_contexts_from_a_plan_are_those_that_are_planned_anew(make: object, chance: float) -> None:
    channels, signals, values = set_up(make, chance)
    results = []
    for given in (None, planned(make, chance)):
        contexts = Contexts(channels, Noise(SeededSource(3)), 0.5, given)
        drawn = contexts.draw(pack_rows(signals), pack_rows(values))
        results.append((contexts.words(drawn), drawn.codes, contexts.posterior(drawn, 1)))
    for ours, theirs in zip(*results, strict=True):
        assert np.array_equal(ours, theirs)


def test_a_planned_context_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    channels, signals, values = set_up(few, 0.5)
    made = planned(few, 0.5)
    monkeypatch.setattr(ComponentChannels, "context", lambda *_: pytest.fail("planned again"))
    contexts = Contexts(channels, Noise(SeededSource(3)), 0.5, made)
    contexts.draw(pack_rows(signals), pack_rows(values))


def test_a_component_without_signals_has_one_context() -> None:
    found = component({"p": "x y"}, [parse_pattern("AND(x, y)"), parse_pattern("OR(x, y)")])
    assert found.signals == ()
    channels = ComponentChannels(
        found, Prior.from_rates(np.array([0.3, 0.3]), 0), np.full((2, 2), 0.5)
    )
    contexts = Contexts(channels, Noise(SeededSource(3)), 0.5)
    values = np.array(list(product((False, True), repeat=2)))
    drawn = contexts.draw(np.empty((4, 0), np.uint64), pack_rows(values))
    assert drawn.contexts.tolist() == [0, 0, 0, 0]
    assert (drawn.codes >= 0).all()
    assert contexts.draw(np.empty((0, 0), np.uint64), pack_rows(values[:0])).codes.size == 0


def test_packed_bits_lie_lowest_first() -> None:
    bits = np.random.default_rng(1).random((5, 130)) < 0.5
    words = pack_rows(bits)
    assert words.shape == (5, 3)
    for row, word in zip(bits, words, strict=True):
        number = sum(int(w) << 64 * n for n, w in enumerate(word))
        assert [bool(number >> n & 1) for n in range(192)] == [*row.tolist(), *[False] * 62]
