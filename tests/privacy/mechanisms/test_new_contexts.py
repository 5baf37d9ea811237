"""Contexts that are new in a run: which of them are designed, when, and what that depends on."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.patterns.booleans import pack_rows
from tacit.patterns.tree import And, Pattern
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.mechanisms.optimal import new_contexts
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels
from tacit.privacy.mechanisms.optimal.channel_books import design_book
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.mechanisms.optimal.new_contexts import NewContexts
from tacit.privacy.noise import Noise
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import LEAF, Prior
from tacit.privacy.randomness import SeededSource

Bits = NDArray[np.bool_]
SIGNALS = 6
SUBJECTS = 8


def make_channels() -> ComponentChannels:
    """Two private types, and a public type for each of some queries: 64 contexts."""
    names = ["x", "y"]
    policy = Policy((PrivatePattern("p", frozenset(names), Fraction(1)),))
    queries: list[Pattern] = [And(names[n % 2], f"b{n}") for n in range(SIGNALS)]
    (component,) = find_exposure(policy, queries).components
    assert len(component.signals) == SIGNALS
    prior = Prior(
        np.array([0.3, 0.6]),
        SIGNALS,
        np.array([0, LEAF, LEAF]),
        np.array([0, 1, 2]),
        np.array([[True, False], [False, True]]),
        np.array([8.0, 8.0]),
    )
    return ComponentChannels(component, prior, np.full((len(component.parts), 2), 0.5))


def make_contexts(channels: ComponentChannels) -> Contexts:
    nothing = ContextCounts.empty(SIGNALS, 2)
    book = design_book(channels.component, channels.prior, channels.stakes, nothing, 0)
    return Contexts(channels, book, Noise(SeededSource(1)), np.full(SIGNALS, 0.5))


def keys(*numbers: int) -> NDArray[np.uint64]:
    """The packed signals of contexts, given as numbers."""
    return np.array(numbers, np.uint64).reshape(-1, 1)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few contexts at the beginning, and one more for every 32 windows."""
    monkeypatch.setattr(new_contexts, "_FIRST", 3.0)
    monkeypatch.setattr(new_contexts, "_PER_WINDOW", 1 / 32)
    monkeypatch.setattr(new_contexts, "_BEHIND", 2)


def found(designed: Any) -> list[int]:
    return [] if designed is None else designed.keys[:, 0].tolist()


@pytest.mark.usefixtures("_small")
def test_the_most_frequent_contexts_are_designed_within_the_budget() -> None:
    new = NewContexts(make_channels())
    # Subjects and windows are counted whether or not anything is new there.
    assert found(new.design(keys(5, 4, 4, 7, 7, 7, 9), 8)) == [7, 4, 5]
    new.pass_windows(8)
    assert found(new.design(keys(10, 11), 8)) == []
    new.pass_windows(16)
    assert found(new.design(keys(12, 13, 13), 8)) == [13]
    new.pass_windows(32)
    assert found(new.design(keys(14, 15), 8)) == [14]


@pytest.mark.usefixtures("_small")
def test_contexts_of_many_parts_cost_more_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six parts with three parts a unit: two units for each context."""
    monkeypatch.setattr(new_contexts, "_PARTS", 3)
    new = NewContexts(make_channels())
    assert found(new.design(keys(5, 4, 4, 7, 7, 7, 9), 8)) == [7]
    new.pass_windows(8)
    assert found(new.design(keys(10, 11, 4, 5), 16)) == []
    assert found(new.collect()) == [4]  # and half as many in the background
    new.pass_windows(24)
    assert found(new.design(keys(12, 13, 13), 8)) == [13]


@pytest.mark.usefixtures("_small")
def test_contexts_that_occur_again_are_designed_in_the_background() -> None:
    channels = make_channels()
    new = NewContexts(channels)
    assert found(new.design(keys(1, 2, 3, 4, 5, 6, 7), 8)) == [1, 2, 3]
    assert new.collect() is None  # once is not enough
    assert found(new.design(keys(4, 5, 6, 8), 8)) == []
    behind = new.collect()
    assert found(behind) == [4, 5]  # at most two at a time
    assert behind is not None
    for key, context in zip(behind.keys, behind.contexts, strict=True):
        bits = np.array([bool(int(key[0]) >> n & 1) for n in range(SIGNALS)])
        fresh = channels.context(bits)
        assert fresh is not None
        assert np.array_equal(context.decided, fresh.decided)
        assert [d.channel for _, d in context.blocks] == [d.channel for _, d in fresh.blocks]
    assert new.collect() is None  # each is given once
    assert found(new.design(keys(4, 5, 6, 7), 8)) == []
    assert found(new.collect()) == [6, 7]  # those that were designed are not designed again


@pytest.mark.usefixtures("_small")
def test_an_error_in_the_background_is_raised_when_the_contexts_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = NewContexts(make_channels())
    new.design(keys(1, 2, 3, 4), 8)
    monkeypatch.setattr(ComponentChannels, "context", _fail)
    new.design(keys(4), 8)
    with pytest.raises(ZeroDivisionError):
        new.collect()
    assert new.collect() is None


def _fail(*_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.usefixtures("_small")
def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_contexts, "_REMEMBERED", 100)
    monkeypatch.setattr(ComponentChannels, "context", lambda *_: None)
    new = NewContexts(make_channels())
    for window in range(30):
        new.design(keys(*range(10 * window, 10 * window + 20)), 8)
        new.collect()
        assert len(new._met) == len(new._times) <= 120


@pytest.mark.usefixtures("_small")
def test_contexts_with_too_many_classes_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def none(_: ComponentChannels, signals: Bits) -> None:
        tried.append(int(signals @ (1 << np.arange(SIGNALS))))

    monkeypatch.setattr(ComponentChannels, "context", none)
    new = NewContexts(make_channels())
    for _ in range(5):
        assert new.design(keys(1, 2, 3, 4), 8) is None
        assert new.collect() is None
    assert sorted(tried) == [1, 2, 3, 4]


def stream(seed: int, windows: int = 40) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Signals and values of windows: few contexts at first, others later, some often."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 1 << SIGNALS, 12)
    rows = []
    for window in range(windows):
        often = rng.choice(common[: 3 + window // 4], SUBJECTS)
        rare = rng.integers(0, 1 << SIGNALS, SUBJECTS)
        rows.append(np.where(rng.random(SUBJECTS) < 0.15, rare, often))
    signals = np.concatenate(rows).astype(np.uint64).reshape(-1, 1)
    return signals, rng.integers(0, 4, len(signals)).astype(np.uint64).reshape(-1, 1)


def splits(seed: int, windows: int) -> Iterator[list[int]]:
    """Numbers of windows for each call: one by one, all at once, and some at random."""
    yield [1] * windows
    yield [windows]
    rng = np.random.default_rng(seed)
    for _ in range(3):
        edges = np.sort(rng.choice(np.arange(1, windows), 9, replace=False))
        yield np.diff([0, *edges, windows]).tolist()


def used(contexts: Contexts, drawn: DrawnSymbols) -> list[tuple[int, ...]]:
    """Of each row the context, and which channel each symbol comes from."""
    firsts = contexts._blocks.first_code
    rows = []
    for context, codes in zip(drawn.contexts.tolist(), drawn.codes, strict=True):
        own = [int(np.searchsorted(firsts, code, side="right")) for code in codes if code >= 0]
        book = [-1 for code in codes if code <= -2]
        rows.append((context, *own, *book))
    return rows


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("seed", range(3))
def test_which_channels_are_used_depends_neither_on_calls_nor_on_private_values(seed: int) -> None:
    """One call for each window, one for all, and any others; with other values, the same."""
    signals, values = stream(seed)
    windows = len(signals) // SUBJECTS
    seen = []
    for change, sizes in enumerate(splits(seed, windows)):
        contexts = make_contexts(make_channels())
        rows, first = [], 0
        for size in sizes:
            here = slice(first * SUBJECTS, (first + size) * SUBJECTS)
            private = (values[here] + np.uint64(change)) % np.uint64(4)
            rows += used(contexts, contexts.draw(signals[here], private, size))
            first += size
        seen.append(rows)
    assert all(rows == seen[0] for rows in seen)
    served = [row[0] for row in seen[0]]
    assert -1 in served  # the book is used
    late = {number for number in served[len(served) // 2 :] if number >= 0}
    assert max(late) > 5  # and so are contexts that were designed in the background


@pytest.mark.usefixtures("_small")
def test_a_context_from_the_background_is_used_from_the_next_window_with_new_contexts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(new_contexts, "_PER_WINDOW", 0)
    contexts = make_contexts(make_channels())
    values = np.zeros((SUBJECTS, 1), np.uint64)

    def served(*numbers: int) -> list[int]:
        rows = np.resize(keys(*numbers), (SUBJECTS, 1))
        return [int(number) for number in contexts.draw(rows, values, 1).contexts[: len(numbers)]]

    assert served(1, 2, 3, 4) == [0, 1, 2, -1]
    assert served(4, 1) == [-1, 0]  # the second time: design it in the background
    assert served(1, 2) == [0, 1]  # nothing is new
    assert served(4, 5) == [3, -1]


def test_distinct_rows_are_ranked_by_frequency() -> None:
    bits = np.random.default_rng(1).random((9, 130)) < 0.5
    rows = pack_rows(bits)[[3, 1, 1, 2, 1, 3, 0]]
    ranked = new_contexts._rank_rows(rows)
    assert ranked.shape == (4, 3)
    assert np.array_equal(ranked[0], pack_rows(bits)[1])
    assert np.array_equal(ranked[1], pack_rows(bits)[3])
    assert {row.tobytes() for row in ranked} == {row.tobytes() for row in rows}


def test_the_component_of_these_tests_has_contexts_of_their_own() -> None:
    channels = make_channels()
    assert isinstance(channels.component, Component)
    assert all(
        channels.outline(np.array([bool(n >> bit & 1) for bit in range(SIGNALS)])) is not None
        for n in range(1 << SIGNALS)
    )
