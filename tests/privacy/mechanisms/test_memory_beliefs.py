"""Beliefs, the choice of channels and prices against a slow, obviously right reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter
from tacit.privacy.mechanisms.optimal.memory.candidates import BlockQueries
from tacit.privacy.mechanisms.optimal.memory.channel_tables import ChannelTables
from tacit.privacy.mechanisms.optimal.memory.kernels import WHOLE
from tacit.privacy.mechanisms.optimal.memory.planning import make_filters
from tacit.privacy.mechanisms.optimal.memory.transitions import DECAY, LEVELS, SWITCH
from tacit.privacy.prices import NANO, Claim
from tests.privacy.enumeration import within
from tests.privacy.memories import plan_by_hand, remembering
from tests.privacy.worlds import served_by_book

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

SPECIFICATIONS = {
    "one variable": remembering([("a", "1")], ["AND(a, s)", "OR(a, t)"], "ast"),
    "joint": remembering([("AND(a, b)", "1")], ["a", "AND(b, s)", "OR(a, b)"]),
    "several blocks": remembering(
        [("a", "1"), ("b", "0.5"), ("c", "2")],
        ["AND(a, s)", "OR(b, t)", "SEQ(c, s)", "AND(a, b, c)"],
        "abcst",
    ),
    "overlapping": remembering(
        [("AND(a, b, c)", "2"), ("AND(c, d)", "0.5")], ["AND(a, b)", "c", "OR(d, s)"], "abcds"
    ),
    "factored": remembering(
        [("AND(a, b, c, d, e, f, g)", "3"), ("AND(a, g)", "0.5")],
        ["a", "AND(b, s)", "OR(c, AND(d, s))", "e", "OR(f, AND(g, t))"],
        "abcdefgst",
    ),
}


class Block:
    """A block of open parts: whose values it reads, what it is asked, and its channels."""

    def __init__(
        self,
        variables: Sequence[int],
        place: Sequence[int],
        queries: BlockQueries,
        channels: Sequence[Channel],
    ) -> None:
        self.variables, self.place, self.queries = variables, place, queries
        self.channels = channels

    def find_class(self, values: Sequence[int]) -> int:
        """The input class of the values of all variables."""
        choice = sum(values[variable] << place for place, variable in enumerate(self.variables))
        return int(self.place[choice])


class Reference:
    """The same as `BeliefFilter`, for one subject, with a dictionary for each distribution."""

    def __init__(self, mechanism: Optimal, place: int, *, book: bool) -> None:
        assert mechanism.memory is not None
        self.channels = mechanism.component_channels[place]
        self.book = mechanism.books[place]
        self.memory = mechanism.memory[place]
        self.from_book = book
        self.transitions = self.memory.transitions
        self.variables = len(self.channels.component.variables)
        self.stored: Floats | None = None
        self.openness, self.group = WHOLE // 2, 0

    def find_blocks(self, signals: NDArray[np.bool_]) -> list[Block]:
        """The open blocks of a context."""
        outline = self.channels.outline(signals)
        if outline is not None and not self.from_book:
            own = self.memory.candidates.contexts[np.packbits(signals).tobytes()]
            return [
                Block(block.variables, block.place.tolist(), BlockQueries.of(block.choice), made)
                for block, made in zip(outline.blocks, own, strict=True)
            ]
        group = int(self.channels.prior.group(signals[np.newaxis])[0])
        known = [False, True, *signals.tolist()]
        opened: set[int] = set()
        for part in self.channels.component.parts:
            if len({known[cofactor] for cofactor in part.cofactors}) > 1:
                opened.update(part.variables)
        found = []
        for number, block in enumerate(self.book.blocks):
            if opened.intersection(block.variables):
                size = len(block.variables)
                values = np.array(list(product((False, True), repeat=size)))[:, ::-1]
                queries = BlockQueries(values, np.full(size, 1 / size))
                channel = self.book.channels[number][int(self.book.chosen[group, number])]
                found.append(Block(block.variables, range(1 << size), queries, [channel]))
        return found

    def predict(self, signals: NDArray[np.bool_], hour: int) -> Floats:
        """The belief before any symbol: `[chain][value]`."""
        layout, transitions = self.transitions.layout, self.transitions
        here = int(self.channels.prior.group(signals[np.newaxis])[0])
        if self.stored is None:
            self.group = here
            return np.asarray(transitions.start[layout.groups[here]], np.float64)
        level = sum(self.openness / WHOLE >= edge for edge in layout.edges)
        day = 24 if layout.slots == 48 else 6 if layout.slots == 12 else 1
        slot = 0 if layout.slots == 1 else hour % 24 * day // 24 + day * (hour >= 120)
        kinds = layout.groups
        cell = ((kinds[self.group] * layout.kinds + kinds[here]) * LEVELS + level) * layout.slots
        table = transitions.tables[cell + slot].astype(np.float64)
        before = self.stored / self.stored.sum(axis=None if transitions.joint else 1, keepdims=True)
        moved = np.einsum("cb,cbv->cv", before, table)
        if transitions.joint:  # a profile hardly ever changes
            together = moved.sum(axis=0)
            moved = (1 - SWITCH) * moved + SWITCH * np.outer(transitions.weights, together)
        self.group = here
        return np.asarray(moved)

    def weigh(self, belief: Floats) -> dict[tuple[int, ...], float]:
        """How likely each choice of all values is."""
        every = product((0, 1), repeat=self.variables)
        if self.transitions.joint:
            alone = belief.sum(axis=0)
            return {
                values: float(alone[sum(bit << place for place, bit in enumerate(values))])
                for values in every
            }
        return {
            values: float(np.prod([belief[place, bit] for place, bit in enumerate(values)]))
            for values in every
        }

    def find_gain(self, belief: Floats, block: Block, channel: Channel) -> tuple[float, float]:
        """The expected sum of squared probabilities of the queries without and with a symbol.

        The difference is by how much their squared error falls.
        """
        weighed = self.weigh(belief)
        likely = channel.table.astype(np.float64) / 2.0**channel.bits
        without = with_symbol = 0.0
        for query, weight in enumerate(block.queries.weights):
            yes = sum(
                share * block.queries.answers[block.find_class(values), query]
                for values, share in weighed.items()
            )
            without += weight * yes**2
            for symbol in range(likely.shape[1]):
                chance = sum(
                    share * likely[block.find_class(values), symbol]
                    for values, share in weighed.items()
                )
                both = sum(
                    share
                    * likely[block.find_class(values), symbol]
                    * block.queries.answers[block.find_class(values), query]
                    for values, share in weighed.items()
                )
                with_symbol += weight * both**2 / chance if chance > 0 else 0.0
        return without, with_symbol

    def use(self, belief: Floats, block: Block, channel: Channel, symbol: int) -> Floats:
        """The belief with a symbol of a block."""
        likely = channel.table[:, symbol].astype(np.float64) / 2.0**channel.bits
        if self.transitions.joint:
            found = belief.copy()
            for values in product((0, 1), repeat=self.variables):
                number = sum(bit << place for place, bit in enumerate(values))
                found[:, number] *= likely[block.find_class(values)]
            return np.asarray(found / found.sum())
        weighed = {
            values: share * likely[block.find_class(values)]
            for values, share in self.weigh(belief).items()
        }
        found = np.array(
            [
                [sum(share for v, share in weighed.items() if v[place] == bit) for bit in (0, 1)]
                for place in range(self.variables)
            ]
        )
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def keep(self, belief: Floats, *, opened: bool) -> None:
        """Store the belief: in parts of a whole, each at least one part."""
        self.stored = np.floor(belief * (WHOLE - 1) + 1)
        self.openness = int(self.openness * DECAY + opened * (1 - DECAY) * WHOLE)

    def read(self, belief: Floats, signals: NDArray[np.bool_]) -> list[float]:
        """How likely each part is."""
        known = [False, True, *signals.tolist()]
        found = []
        for part in self.channels.component.parts:
            found.append(
                sum(
                    share
                    for values, share in self.weigh(belief).items()
                    if known[
                        part.cofactors[
                            sum(values[v] << place for place, v in enumerate(part.variables))
                        ]
                    ]
                )
            )
        return found


def pack(bits: NDArray[np.bool_]) -> Words:
    """One word for each row."""
    if not bits.shape[1]:
        return np.zeros((len(bits), 1), np.uint64)
    weights = np.uint64(1) << np.arange(bits.shape[1], dtype=np.uint64)
    return np.asarray((bits * weights).sum(axis=1, dtype=np.uint64)[:, np.newaxis])


@pytest.mark.parametrize("book", [False, True], ids=["own channels", "book"])
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_beliefs_channels_gains_and_answers_are_those_of_the_reference(
    name: str, book: bool
) -> None:
    rng = np.random.default_rng(len(name))
    profiles = {"one variable": 4, "joint": 3}.get(name, 1)
    with served_by_book() if book else nullcontext():
        plan = plan_by_hand(SPECIFICATIONS[name], 1, profiles=profiles, slots=12)
        (mechanism,) = plan.mechanisms
        assert isinstance(mechanism, Optimal)
        assert mechanism.memory is not None
        transitions = [one.transitions for one in mechanism.memory]
        books = [one.candidates for one in mechanism.memory]
        assert transitions[0].joint == (name != "factored")
        filters = make_filters(mechanism.parts, transitions, books)
        for place, one in enumerate(filters):
            follow(one, Reference(mechanism, place, book=book), rng, name, book=book)


def follow(
    one: BeliefFilter, reference: Reference, rng: np.random.Generator, name: str, *, book: bool
) -> None:
    """Follow a few subjects over some windows, in the filter and in the reference."""
    subjects, windows = (2, 3) if name == "factored" else (3, 6)
    component = one.tables.component
    mirrors = [Reference.__new__(Reference) for _ in range(subjects)]
    for mirror in mirrors:
        vars(mirror).update(vars(reference))
    state = one.start(subjects)
    chosen = set()
    for window in range(windows):
        hour = (17 * window + 100) % 168
        signals = rng.random((subjects, len(component.signals))) < 0.5
        values = rng.random((subjects, len(component.variables))) < 0.4
        silent = rng.random(subjects) < 0.2
        predicted = one.predict(state, pack(signals), hour)
        symbols = one.draw(predicted, pack(values), silent)
        updated = one.update(state, predicted, symbols)
        for row, mirror in enumerate(mirrors):
            belief = mirror.predict(signals[row], hour)
            np.testing.assert_allclose(predicted.beliefs[row], belief, atol=2e-6)
            blocks = mirror.find_blocks(signals[row])
            gain = 0.0
            for number, block in enumerate(blocks):
                tried = [mirror.find_gain(belief, block, channel) for channel in block.channels]
                option = predicted.chosen[row, number] - _first_candidate(
                    one, predicted, row, number
                )
                best = max(with_symbol for _, with_symbol in tried)
                assert tried[option][1] >= best * (1 - 3e-4)
                gain += max(0.0, tried[option][1] - tried[option][0])
                chosen.add((number, int(option)))
            assert predicted.gains[row] == pytest.approx(gain, abs=3e-4)
            assert (symbols[row, : len(blocks)] < 0).all() == (silent[row] or not blocks)
            assert (symbols[row, len(blocks) :] == -1).all()
            for number, block in enumerate(blocks):
                option = predicted.chosen[row, number] - _first_candidate(
                    one, predicted, row, number
                )
                symbol = int(symbols[row, number])
                if symbol >= 0:
                    belief = mirror.use(belief, block, block.channels[option], symbol)
            np.testing.assert_allclose(updated.beliefs[row], belief, atol=1e-5)
            np.testing.assert_allclose(
                updated.parts[row] / WHOLE, mirror.read(belief, signals[row]), atol=1e-4
            )
            mirror.keep(belief, opened=bool(blocks))
            # Rounding to parts may fall on either side.
            assert mirror.stored is not None
            assert np.abs(updated.state.beliefs[row] - mirror.stored).max() <= 1
            assert abs(int(updated.state.openness[row]) - mirror.openness) <= 1
            mirror.stored = updated.state.beliefs[row].astype(np.float64)
            mirror.openness = int(updated.state.openness[row])
        state = updated.state
    if not book and name == "joint":
        assert len(chosen) > 1  # different beliefs choose different channels


def _first_candidate(one: BeliefFilter, predicted: Any, row: int, number: int) -> int:
    """The first candidate of a block of a row's context."""
    block = one.tables.first_block[predicted.contexts[row]] + number
    return int(one.tables.blocks[block, 2])


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_a_draw_is_priced_by_the_largest_ratio_of_its_channel(name: str) -> None:
    spec = SPECIFICATIONS[name]
    (mechanism,) = plan_by_hand(spec).mechanisms
    assert isinstance(mechanism, Optimal)
    assert mechanism.memory is not None
    transitions = [one.transitions for one in mechanism.memory]
    filters = make_filters(
        mechanism.parts, transitions, [one.candidates for one in mechanism.memory]
    )
    claims = tuple(
        Claim(pattern.elements, int(pattern.epsilon * NANO)) for pattern in mechanism.fine.patterns
    )
    for one in filters:
        component = one.tables.component
        every = np.array(list(product((False, True), repeat=len(component.signals))), np.bool_)
        one.predict(one.start(len(every)), pack(every), 0)
        found = one.tables.price(claims)
        assert found.shape == (len(claims), len(one.tables.candidates))
        for number, (channel, variables, place) in enumerate(_channels_of(one.tables)):
            for prices, claim in zip(found, claims, strict=True):
                changed = component.find_changed(claim.elements)
                ratio = _largest_ratio(channel, variables, place, changed)
                price = int(prices[number])
                assert within(ratio, Fraction(price, NANO) + Fraction(1, 10**12))
                assert (price == 0) == (ratio == 1)
                # It is rounded up by at most a thousandth of epsilon.
                less = Fraction(price, NANO) - Fraction(claim.most, 900 * NANO)
                assert price == 0 or not within(ratio, max(Fraction(0), less))


def _channels_of(tables: ChannelTables) -> list[tuple[Channel, tuple[int, ...], list[int]]]:
    return [(channel, variables, place.tolist()) for channel, variables, place in tables._priced]


def _largest_ratio(
    channel: Channel, variables: Sequence[int], place: Sequence[int], changed: frozenset[int]
) -> Fraction:
    """Of any two values that differ in variables that change, in any symbol."""
    inside = sum(1 << n for n, variable in enumerate(variables) if variable in changed)
    largest = Fraction(1)
    for one, other in product(range(len(place)), repeat=2):
        if (one ^ other) & ~inside == 0:
            for left, right in zip(
                channel.table[place[one]].tolist(),
                channel.table[place[other]].tolist(),
                strict=True,
            ):
                if left or right:
                    largest = max(largest, Fraction(left, right))
    return largest
