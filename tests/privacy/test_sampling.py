"""What is drawn has exactly the probabilities of the table: by counting all cases."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.privacy import sampling
from tacit.privacy.channel_audit import Neighbours
from tacit.privacy.channels import BITS, Channel
from tacit.privacy.randomness import SecureSource, SeededSource
from tacit.privacy.sampling import Sampler, flip_bits
from tests.privacy.strategies import Scripted

ALL = ~np.uint64(0)


class Recorded(SeededSource):
    """A seeded source that keeps what it gave."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.blocks: list[bytes] = []

    def draw(self, number: int) -> bytes:
        """The next bytes, kept."""
        self.blocks.append(super().draw(number))
        return self.blocks[-1]


@st.composite
def channels(draw: st.DrawFn, bits: int) -> Channel:
    """Any table, zeros and certain symbols among it; nobody is anybody's neighbour."""
    columns = draw(st.integers(1, 5))
    table = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.integers(0, 2**bits)) for _ in range(columns - 1))
        table.append([b - a for a, b in zip([0, *cuts], [*cuts, 2**bits], strict=True)])
    return Channel(table, [])


def as_bytes(number: int, bits: int, tail: int) -> bytes:
    """A number below 2**bits as the first bits of eight bytes; the others do not matter."""
    return (number << (64 - bits) | tail >> bits).to_bytes(8, "big")


@pytest.mark.parametrize("bits", [1, 3, 8, 10])
@given(data=st.data(), tail=st.integers(0, 2**64 - 1))
def test_every_random_number_gives_exactly_the_counts_of_the_table(
    bits: int, data: st.DataObject, tail: int
) -> None:
    channel = data.draw(channels(bits))
    row = data.draw(st.integers(0, len(channel.inputs) - 1))
    source = Scripted(b"")
    sampler, asked = Sampler(channel, source), np.array([row])
    counts: Counter[int] = Counter()
    for number in range(2**bits):
        source._script = as_bytes(number, bits, tail)
        counts[int(sampler.sample(asked)[0])] += 1
    assert [counts[symbol] for symbol in range(len(channel.outputs))] == channel.table[row].tolist()


@pytest.mark.parametrize("bits", [40, BITS])
@given(data=st.data())
def test_wide_numbers_change_their_symbol_exactly_at_the_running_sums(
    bits: int, data: st.DataObject
) -> None:
    channel = data.draw(channels(bits))
    sums = np.cumsum(channel.table[0].astype(object))
    source = Scripted(b"")
    sampler = Sampler(channel, source)
    for edge in {0, *sums.tolist()}:
        for number in {edge - 1, edge} & set(
            range(edge - 1 if edge else 0, min(edge + 1, 2**bits))
        ):
            source._script = as_bytes(number, bits, 0)
            expected = next(symbol for symbol, total in enumerate(sums) if number < total)
            assert sampler.sample(np.array([0]))[0] == expected


def test_of_very_many_symbols_each_has_exactly_its_counts() -> None:
    """More than a guide can name; each of 300 has some of 512 numbers."""
    table = np.ones(300, np.int64)
    table[:212] += 1
    source = Scripted(b"")
    sampler = Sampler(Channel([table.tolist()], []), source)
    counts = np.zeros(300, np.int64)
    for number in range(512):
        source._script = as_bytes(number, 9, 0)
        counts[sampler.sample(np.array([0]))[0]] += 1
    assert counts.tolist() == table.tolist()


def read_slowly(blocks: list[bytes], rows: NDArray[np.int64], channel: Channel) -> list[int]:
    """The same numbers from the same bytes: one byte, and seven more if it leaves a doubt."""
    symbols: list[int] = []
    for block in blocks:
        used = 0
        while used + 8 <= len(block) and len(symbols) < len(rows):
            line = np.cumsum(channel.table[rows[len(symbols)]].astype(object)).tolist()
            shift = 64 - channel.bits

            def symbol(octets: bytes, line: list[int] = line, shift: int = shift) -> int:
                number = int.from_bytes(octets, "big") >> shift
                return next(place for place, total in enumerate(line) if number < total)

            first = block[used : used + 1]
            least, most = symbol(first + bytes(7)), symbol(first + b"\xff" * 7)
            if least == most:
                symbols.append(least)
                used += 1
            else:
                symbols.append(symbol(block[used : used + 8]))
                used += 8
    return symbols


@pytest.mark.parametrize("block", [8, 24, 1 << 16])
@given(data=st.data(), bits=st.sampled_from([2, 9, 63]), seed=st.integers(0, 1000))
def test_draws_in_any_blocks_equal_a_slow_reading_of_the_same_bytes(
    block: int, data: st.DataObject, bits: int, seed: int
) -> None:
    channel = data.draw(channels(bits))
    rows = np.random.default_rng(seed).integers(0, len(channel.inputs), 100)
    source = Recorded(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_BLOCK", block)
        symbols = Sampler(channel, source).sample(rows)
    assert symbols.tolist() == read_slowly(source.blocks, rows, channel)


def test_channels_laid_end_to_end_are_drawn_from_by_their_offsets() -> None:
    """Each with its own width and bits; every symbol here is certain."""
    one = Channel([[0, 2], [2, 0]], [])
    other = Channel([[0, 0, 2**63], [2**63, 0, 0], [0, 2**63, 0]], [])
    sampler = Sampler([one, other, one], SecureSource())
    assert sampler.offsets.tolist() == [0, 2, 5]
    rows = np.tile(np.arange(7), 1000).reshape(70, 100)
    symbols = sampler.sample(rows)
    assert symbols.shape == rows.shape
    assert symbols.reshape(-1, 7)[0].tolist() == [1, 0, 2, 0, 1, 1, 0]
    assert (symbols.reshape(-1, 7) == symbols.reshape(-1, 7)[0]).all()


def deviation(observed: int, drawn: int, probability: Fraction) -> float:
    """How many standard deviations a count is away from a rate."""
    p = float(probability)
    return abs(observed - drawn * p) / sqrt(drawn * p * (1 - p))


def test_rates_of_symbols_are_those_of_the_table_and_not_slightly_others() -> None:
    """5 deviations: 42 true rates pass but for once in 40,000 runs.

    A rate that is wrong by 4 % is 19 deviations away or more: it would pass less than once
    in 10**40 runs.
    """
    channel = Channel.staircase(
        [{0}, {1}, {2}, {0, 1}, {3, 4, 5}, {5}], [3, 2, 1, 4, 5, 1], 1, inputs="abcdef"
    )
    drawn, source = 8_000_000, SeededSource(20)
    for row in range(6):
        symbols = Sampler(channel, source).sample(np.full(drawn, row))
        counts = np.bincount(symbols, minlength=7)
        for column in range(7):
            rate = channel.probability(row, column)
            assert deviation(int(counts[column]), drawn, rate) < 5
            assert deviation(int(counts[column]), drawn, rate * Fraction(104, 100)) > 5


def test_rows_that_do_not_exist_are_refused() -> None:
    sampler = Sampler(Channel.flip(1), SecureSource())
    for rows in (np.array([2]), np.array([-1]), np.array([2**63 + 1], dtype=np.uint64)):
        with pytest.raises(PrivacyError, match="between 0 and 1"):
            sampler.sample(rows)
    with pytest.raises(PrivacyError, match="by their numbers; got float64"):
        sampler.sample(np.array([0.0]))
    with pytest.raises(PrivacyError, match="needs a channel"):
        Sampler([], SecureSource()).sample(np.array([0]))


def test_nothing_is_drawn_for_nobody() -> None:
    assert Sampler(Channel.flip(1), Scripted(b"")).sample(np.array([], dtype=np.int64)).size == 0
    assert flip_bits(np.zeros((0, 3), dtype=np.uint64), Channel.flip(1), Scripted(b"")).shape == (
        0,
        3,
    )


# Flips, 64 lanes to a word.


def flipped_lanes(numbers: list[int], channel: Channel) -> list[bool]:
    """Which lanes are flipped if lane after lane draws these numbers."""
    random = [
        sum(
            (number >> (channel.bits - 1 - level) & 1) << lane
            for lane, number in enumerate(numbers)
        )
        for level in range(channel.bits)
    ]
    source = Scripted(np.array(random, dtype=np.uint64).tobytes())
    mask = int(flip_bits(np.zeros(1, dtype=np.uint64), channel, source)[0])
    return [bool(mask >> lane & 1) for lane in range(len(numbers))]


@given(st.integers(1, 2**62))
@example(1)
@example(2**62)
@example(2**62 - 1)
def test_lanes_next_to_the_threshold_fall_on_their_side_of_it(flips: int) -> None:
    channel = Channel.flip_with(Fraction(flips, 2**63))
    numbers = [0, max(0, flips - 2), flips - 1, flips, flips + 1, 2**63 - 1]
    for number in numbers:
        assert flipped_lanes([number] * 64, channel) == [number < flips] * 64
    assert flipped_lanes(numbers, channel) == [number < flips for number in numbers]


@pytest.mark.parametrize("flips", range(1, 33))
def test_all_64_numbers_of_6_bits_in_64_lanes_flip_exactly_as_many_lanes(flips: int) -> None:
    """Lane number u holds the random number u, rotated by every amount."""
    channel = Channel.flip_with(Fraction(flips, 64), bits=6)
    for turn in range(64):
        numbers = [(lane + turn) % 64 for lane in range(64)]
        mask = flipped_lanes(numbers, channel)
        assert mask == [u < flips for u in numbers]
        assert sum(mask) == flips


def lanes_slowly(random: NDArray[np.uint64], channel: Channel) -> int:
    """Every lane by itself: its bits of the random words are a number, compared with the flips."""
    flips, mask = int(channel.table[0, 1]), 0
    for lane in range(64):
        bits = [int(word) >> lane & 1 for word in random[: channel.bits]]
        number = int("".join(map(str, bits)), 2)
        mask |= int(number < flips) << lane
    return mask


@given(st.integers(1, 2**62), st.integers(0, 1000), st.sampled_from([1, 5, 31, BITS]))
def test_lanes_are_decided_by_their_own_random_bits_alone(flips: int, seed: int, bits: int) -> None:
    channel = Channel.flip_with(Fraction(max(1, flips >> (63 - bits)), 2**bits), bits=bits)
    words = np.random.default_rng(seed).integers(0, 2**64, (20, 64), dtype=np.uint64)
    for random in words:
        word = random[-1:]
        flipped = flip_bits(word, channel, Scripted(random.tobytes()))
        assert int(flipped[0] ^ word[0]) == lanes_slowly(random, channel)


@pytest.mark.parametrize("block", [8 * BITS, 8 * 100, 1 << 16])
def test_flips_in_any_blocks_use_each_random_word_once_and_in_order(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_BLOCK", block)
    channel, source = Channel.flip(1), Recorded(3)
    words = np.zeros(200, dtype=np.uint64)
    flipped = flip_bits(words, channel, source).tolist()
    for block_drawn in source.blocks:
        random = np.frombuffer(block_drawn, dtype=np.uint64)
        used = 0
        while flipped and used + BITS <= len(random):
            assert flipped.pop(0) == lanes_slowly(random[used : used + BITS], channel)
            used += words_needed(random[used : used + BITS], channel)
    assert not flipped


def words_needed(random: NDArray[np.uint64], channel: Channel) -> int:
    """The first words in which every lane has come to differ from the flips."""
    flips, undecided = int(channel.table[0, 1]), int(ALL)
    for level, word in enumerate(random.tolist()):
        expected = int(ALL) if flips >> (channel.bits - 1 - level) & 1 else 0
        undecided &= ~(word ^ expected)
        if not undecided:
            return level + 1
    return len(random)


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1), Fraction(4)])
def test_flips_have_their_rate_and_not_a_slightly_other_one(epsilon: Fraction) -> None:
    """Of 16 million bits. 5 deviations: the true rate passes but for once in a million runs.

    A rate that is wrong by 2 % is 10 deviations away or more: it would pass less than once
    in a million runs as well.
    """
    channel, source = Channel.flip(epsilon), SeededSource(5)
    rate, drawn = channel.probability(0, 1), 64 << 18
    for word in (np.uint64(0), ALL):
        words = np.full(1 << 18, word)
        flipped = int(np.bitwise_count(flip_bits(words, channel, source) ^ words).sum())
        assert deviation(flipped, drawn, rate) < 5
        assert deviation(flipped, drawn, rate * Fraction(102, 100)) > 5


def test_neighbouring_lanes_and_words_are_independent() -> None:
    """Pairs of flips one lane, and one word, apart come as often as a product says."""
    channel = Channel.flip(1)
    flips = flip_bits(np.zeros(1 << 18, dtype=np.uint64), channel, SeededSource(11))
    rate = channel.probability(0, 1) ** 2
    beside = flips & (flips >> np.uint64(1)) & np.uint64(0x5555555555555555)
    assert deviation(int(np.bitwise_count(beside).sum()), 32 << 18, rate) < 5
    below = flips[::2] & flips[1::2]
    assert deviation(int(np.bitwise_count(below).sum()), 32 << 18, rate) < 5


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 100))
def test_lanes_that_are_not_chosen_stay_as_they_are(word: int, chosen: int, seed: int) -> None:
    words, lanes = np.full(50, word, dtype=np.uint64), np.full(50, chosen, dtype=np.uint64)
    lanes[::2] = ~lanes[::2]
    flipped = flip_bits(words, Channel.flip(1), SeededSource(seed), lanes) ^ words
    assert not (flipped & ~lanes).any()
    if 8 < chosen.bit_count() < 56:
        assert flipped[::2].any()
        assert flipped[1::2].any()


def test_the_words_that_come_in_are_left_alone() -> None:
    words = np.arange(12, dtype=np.uint64).reshape(3, 4)
    flipped = flip_bits(words, Channel.flip(0), SecureSource())
    assert words.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert flipped.shape == (3, 4)


def test_only_flips_of_whole_words_are_taken() -> None:
    words = np.zeros(2, dtype=np.uint64)
    neighbours = [Neighbours([0, 1], 5)]
    for table in ([[3, 1], [2, 2]], [[1, 3], [3, 1]], [[3, 1]], [[4, 2, 2], [2, 2, 4]]):
        channel = Channel(table, neighbours if len(table) == 2 else [])
        with pytest.raises(PrivacyError, match=r"made with Channel.flip"):
            flip_bits(words, channel, SecureSource())
    with pytest.raises(PrivacyError, match="got int64, uint64"):
        flip_bits(words.astype(np.int64), Channel.flip(1), SecureSource())
    with pytest.raises(PrivacyError, match="the shape of the words"):
        flip_bits(words, Channel.flip(1), SecureSource(), words[:1])
