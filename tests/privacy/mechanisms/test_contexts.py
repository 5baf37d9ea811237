"""A component's windows: rows by the true values, and readings, against slow dictionaries.

Some of the components have contexts with too many classes, which a book serves.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.patterns.booleans import pack_rows
from tacit.patterns.language import parse_pattern
from tacit.patterns.tree import And, Not, Or, Pattern
from tacit.privacy.channel_audit import largest_ratio
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.mechanisms.optimal import new_contexts
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, Context, read_literally
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook, design_book
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.noise import Noise
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import Prior
from tacit.privacy.randomness import SeededSource
from tests.privacy.mechanisms.made_components import choose, evaluate

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
    """One private pattern of five types, with more answers than a channel of their own holds."""
    rng = Random(5)
    names = [f"x{n}" for n in range(5)]
    return component({"p": " ".join(names)}, [query(rng, names) for _ in range(9)])


@cache
def many_variables() -> Component:
    """One private pattern of eight types, which are in several blocks of the book."""
    rng = Random(6)
    names = [f"x{n}" for n in range(8)]
    return component({"p": " ".join(names)}, [query(rng, names) for _ in range(12)])


def random_prior(found: Component, seed: int) -> Prior:
    rng = np.random.default_rng(seed)
    signals = rng.random((20, len(found.signals))) < 0.5
    signals = signals[np.lexsort(signals.T)] if signals.shape[1] else signals
    values = rng.random((20, len(found.variables))) < 0.3
    rates = rng.uniform(0.05, 0.6, len(found.variables))
    counts = rng.integers(1, 30, 20).astype(np.float64)
    return Prior.from_contexts(rates, signals, values, counts, 4.0)


def windows(found: Component, seed: int, count: int, chance: float) -> tuple[Bits, Bits]:
    """Random contexts and values, `[window][bit]`."""
    rng = np.random.default_rng(seed)
    few_contexts = rng.random((7, len(found.signals))) < chance
    values = rng.random((count, len(found.variables))) < 0.4
    return few_contexts[rng.integers(0, 7, count)], values


CASES = {"few": 0.5, "many_parts": 0.06, "many_classes": 0.8, "many_variables": 0.5}
ALL = pytest.mark.parametrize("name", CASES)


@cache
def set_up(name: str) -> tuple[ComponentChannels, ChannelBook, Bits, Bits]:
    """A component's channels and book, with the signals and values of some windows."""
    found: Component = globals()[name]()
    stakes = np.tile([0.6, 0.4], (len(found.parts), 1))
    channels = ComponentChannels(found, random_prior(found, 1), stakes)
    nothing = ContextCounts.empty(len(found.signals), len(found.variables))
    book = design_book(found, channels.prior, stakes, nothing, 0)
    return channels, book, *windows(found, 2, 300, CASES[name])


@cache
def planned(name: str) -> dict[bytes, Context]:
    """The contexts of its windows with channels of their own, by packed signals."""
    channels, _, signals, _ = set_up(name)
    found = {
        np.packbits(row).tobytes(): channels.context(row) for row in np.unique(signals, axis=0)
    }
    return {key: context for key, context in found.items() if context is not None}


class RecordedContexts(Contexts):
    """Remembers the contexts that have channels of their own, in their order."""

    def __init__(self, *arguments: Any) -> None:
        self.appended: list[Context] = []
        super().__init__(*arguments)

    def _append(self, keys: NDArray[np.uint64], contexts: list[Context]) -> None:
        self.appended += contexts
        super()._append(keys, contexts)


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


def halves(channels: ComponentChannels) -> NDArray[np.float64]:
    return np.full(len(channels.component.parts), 0.5)


@ALL
def test_the_row_that_is_drawn_from_is_the_class_of_the_true_values(name: str) -> None:
    """Of the very channel that is planned for the window's context, block by block."""
    channels, book, signals, values = set_up(name)
    contexts = Contexts(channels, book, Noise(SeededSource(1)), halves(channels))
    contexts.sampler = recorder = Recorder(contexts.sampler)  # type: ignore[assignment]
    for part in np.array_split(np.arange(300), 3):
        contexts.draw(pack_rows(signals[part]), pack_rows(values[part]), 1)
    rows = iter(recorder.asked)
    sampler = contexts.sampler
    for signal, value in zip(signals, values, strict=True):
        context = planned(name).get(np.packbits(signal).tobytes())
        if context is None:
            continue  # drawn from the book, by another sampler
        for block, design in context.blocks:
            row = next(rows)
            number = int(np.searchsorted(sampler.offsets, row, side="right")) - 1
            assert sampler.channels[number] == design.channel
            found = row - sampler.offsets[number]
            assert found == block.place[choose(value, block.variables)]
            truth = [evaluate(channels.component, part, signal, value) for part in block.parts]
            assert block.choice.answers[found, list(block.columns)].tolist() == truth
    assert next(rows, None) is None


def slow(
    contexts: RecordedContexts,
    book: ChannelBook,
    drawn: DrawnSymbols,
    signals: Bits,
    thresholds: NDArray[np.float64] | None,
) -> tuple[Bits, NDArray[np.float64]]:
    """Answers and posteriors of all parts, symbol by symbol."""
    channels = contexts.channels
    number = len(channels.component.parts)
    answers = np.zeros((len(signals), number), np.bool_)
    posterior = np.zeros((len(signals), number))
    first = 0
    symbols: dict[int, tuple[list[int], Bits, NDArray[np.float64]]] = {}
    for context in contexts.appended:
        for block, design in context.blocks:
            literal = read_literally(design.channel.table.T.astype(float), block.choice.answers)
            for symbol in range(design.channel.table.shape[1]):
                told = design.posterior[symbol, list(block.columns)]
                read = literal[symbol, list(block.columns)]
                parts = list(block.parts)
                yes = read if thresholds is None else told >= thresholds[parts]
                symbols[first] = parts, yes, told
                first += 1
    for row, signal in enumerate(signals):
        if drawn.contexts[row] < 0:
            answers[row], posterior[row] = slow_book(contexts, book, drawn, row, signal, thresholds)
            continue
        answers[row] = posterior[row] = contexts.appended[drawn.contexts[row]].decided
        for code in drawn.codes[row]:
            if code >= 0:
                parts, yes, told = symbols[int(code)]
                answers[row, parts], posterior[row, parts] = yes, told
    return answers, posterior


def slow_book(
    contexts: RecordedContexts,
    book: ChannelBook,
    drawn: DrawnSymbols,
    row: int,
    signal: Bits,
    thresholds: NDArray[np.float64] | None,
) -> tuple[Bits, NDArray[np.float64]]:
    """The same for a window that the book serves, by all values of all variables."""
    component, prior = contexts.channels.component, contexts.channels.prior
    (group,) = prior.group(signal[np.newaxis])
    worlds = np.array(list(product((False, True), repeat=len(component.variables))))
    both = []
    for literal in (False, True):
        chance = np.ones(len(worlds))
        for number, block in enumerate(book.blocks):
            code = int(drawn.codes[row, number])
            if code == -1:  # nothing that is open depends on the block
                chance /= 1 << len(block.variables)
                continue
            symbol = -2 - code - int(contexts._book._codes[group, number])
            table = book.channels[number][book.chosen[group, number]].table
            own = table[:, symbol] / 2.0**63
            own = own if literal else own * prior.choices(int(group), block.variables)
            chance *= (own / own.sum())[choose(worlds, block.variables)]
        parts = range(len(component.parts))
        both.append(
            np.array([chance[evaluate(component, part, signal, worlds)].sum() for part in parts])
        )
    if thresholds is None:
        return both[1] > 0.5 * (1 + 1e-9), both[0]
    return both[0] >= thresholds, both[0]


@ALL
@pytest.mark.parametrize("threshold", [None, 0.3, 0.5])
def test_words_and_posteriors_agree_with_a_dictionary(name: str, threshold: float | None) -> None:
    """Also for what was drawn before further contexts were met."""
    channels, book, signals, values = set_up(name)
    parts = len(channels.component.parts)
    thresholds = None
    if threshold is not None:
        thresholds = np.random.default_rng(1).uniform(threshold - 0.1, threshold + 0.1, parts)
    some = dict(list(planned(name).items())[:2])
    contexts = RecordedContexts(channels, book, Noise(SeededSource(7)), thresholds, some)
    order = np.lexsort(signals.T)[:: 1 if parts > 60 else 3]
    pieces = np.array_split(order, 4)
    drawn = []
    for piece in pieces:
        drawn.append(contexts.draw(pack_rows(signals[piece]), pack_rows(values[piece]), 1))
        contexts.posterior(drawn[-1], 0)  # tables are made anew as contexts come
    for piece, found in zip(pieces, drawn, strict=True):
        answers, posterior = slow(contexts, book, found, signals[piece], thresholds)
        words = contexts.words(found)
        octets = words.astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=parts)
        assert np.array_equal(bits.astype(np.bool_), answers)
        for part in range(parts):
            assert contexts.posterior(found, part) == pytest.approx(posterior[:, part], abs=1e-12)
        if parts <= 60:
            joined = np.full(len(words), 5, np.uint64)
            contexts.add_words(found, 3, joined)
            assert np.array_equal(joined, words[:, 0] << np.uint64(3) | np.uint64(5))


def test_there_are_contexts_with_several_blocks_with_none_and_without_channels() -> None:
    """So that the tests above look at all of them."""
    channels, book, signals, _ = set_up("many_parts")
    outlines = [channels.outline(row) for row in np.unique(signals, axis=0)]
    assert max(len(outline.blocks) for outline in outlines if outline is not None) > 1
    nothing = channels.outline(np.zeros(len(channels.component.signals), np.bool_))
    assert nothing is not None
    assert nothing.blocks == ()
    for name, blocks in (("many_classes", 1), ("many_variables", 2)):
        channels, book, signals, _ = set_up(name)
        assert len(book.blocks) >= blocks
        distinct = len(np.unique(signals, axis=0))
        assert len(planned(name)) < distinct
    assert planned("few")


@pytest.mark.parametrize("budget", [0, 64])
def test_nothing_is_drawn_where_nothing_is_open(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from channels of the context's own nor from the book."""
    monkeypatch.setattr(new_contexts, "_FIRST", budget)
    monkeypatch.setattr(new_contexts, "_PER_WINDOW", 0)
    channels, book, signals, values = set_up("many_parts")
    contexts = Contexts(channels, book, Noise(SeededSource(1)), halves(channels))
    recorder = Recorder(contexts.sampler)
    contexts.sampler = contexts._book._sampler = recorder  # type: ignore[assignment]
    drawn = contexts.draw(pack_rows(np.zeros_like(signals)), pack_rows(values), 1)
    assert (drawn.contexts == (0 if budget else -1)).all()
    assert (drawn.codes == -1).all()
    assert recorder.asked == []
    contexts.draw(pack_rows(signals), pack_rows(values), 1)
    assert recorder.asked != []


@pytest.mark.parametrize("name", ["few", "many_parts"])
def test_for_every_private_pattern_the_ratios_of_all_blocks_multiply_to_its_epsilon(
    name: str,
) -> None:
    """Exactly, for pairs of values between which the pattern may move a window."""
    channels, _, signals, _ = set_up(name)
    found = channels.component
    rng = np.random.default_rng(3)
    for signal in np.unique(signals, axis=0)[:4]:
        context = channels.context(signal)
        assert context is not None
        for pattern, changed in list(zip(found.patterns, found.changes, strict=True))[:8]:
            for _ in range(20):
                one = rng.random(len(found.variables)) < 0.5
                other = one.copy()
                for variable in changed:
                    other[variable] = rng.random() < 0.5
                ratio = Fraction(1)
                for block, design in context.blocks:
                    here, there = (
                        design.channel.table[block.place[choose(v, block.variables)]].tolist()
                        for v in (one, other)
                    )
                    ratio *= max(Fraction(a, b) for a, b in zip(here, there, strict=True))
                assert ratio <= largest_ratio(pattern.epsilon)


@ALL
def test_contexts_from_a_plan_are_those_that_are_planned_anew(name: str) -> None:
    channels, book, signals, values = set_up(name)
    results = []
    for given in (None, planned(name)):
        contexts = Contexts(channels, book, Noise(SeededSource(3)), halves(channels), given)
        drawn = contexts.draw(pack_rows(signals), pack_rows(values), 1)
        results.append((contexts.words(drawn), contexts.posterior(drawn, 1)))
    for ours, theirs in zip(*results, strict=True):
        assert np.array_equal(ours, theirs)


def test_a_planned_context_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    channels, book, signals, values = set_up("few")
    made = planned("few")
    monkeypatch.setattr(ComponentChannels, "context", lambda *_: pytest.fail("planned again"))
    contexts = Contexts(channels, book, Noise(SeededSource(3)), halves(channels), made)
    contexts.draw(pack_rows(signals), pack_rows(values), 1)


def test_a_component_without_signals_has_one_context() -> None:
    found = component({"p": "x y"}, [parse_pattern("AND(x, y)"), parse_pattern("OR(x, y)")])
    assert found.signals == ()
    prior, stakes = Prior.from_rates(np.array([0.3, 0.3]), 0), np.full((2, 2), 0.5)
    channels = ComponentChannels(found, prior, stakes)
    book = design_book(found, prior, stakes, ContextCounts.empty(0, 2), 0)
    values = pack_rows(np.array(list(product((False, True), repeat=2))))
    nothing = np.empty((4, 0), np.uint64)
    only = channels.context(np.empty(0, np.bool_))
    assert only is not None
    for given in (None, {b"": only}):
        contexts = Contexts(channels, book, Noise(SeededSource(3)), halves(channels), given)
        drawn = contexts.draw(nothing, values, 1)
        assert drawn.contexts.tolist() == [0] * 4
        assert (drawn.codes >= 0).all()
        assert contexts.draw(nothing[:0], values[:0], 1).codes.size == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(new_contexts, "_FIRST", 0)
        contexts = Contexts(channels, book, Noise(SeededSource(3)), halves(channels))
        drawn = contexts.draw(nothing, values, 1)
        assert drawn.contexts.tolist() == [-1] * 4
        assert (drawn.codes <= -2).all()


def test_packed_bits_lie_lowest_first() -> None:
    bits = np.random.default_rng(1).random((5, 130)) < 0.5
    words = pack_rows(bits)
    assert words.shape == (5, 3)
    for row, word in zip(bits, words, strict=True):
        number = sum(int(w) << 64 * n for n, w in enumerate(word))
        assert [bool(number >> n & 1) for n in range(192)] == [*row.tolist(), *[False] * 62]
