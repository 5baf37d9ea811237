"""Random bytes never repeat, not across threads or processes, and a failing source fails."""

from __future__ import annotations

import multiprocessing
import os
import ssl
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tacit.errors import RandomnessError
from tacit.privacy.channels import Channel
from tacit.privacy.randomness import RandomSource, SecureSource, SeededSource
from tacit.privacy.sampling import Sampler, flip_bits
from tests.privacy.strategies import Scripted

WORDS = 512


def drawn(_: int = 0) -> bytes:
    """What a secure source gives, and what is flipped with it."""
    flipped = flip_bits(np.zeros(WORDS, dtype=np.uint64), Channel.flip(0), SecureSource())
    return SecureSource().draw(8 * WORDS) + flipped.tobytes()


def assert_all_different(draws: list[bytes]) -> None:
    """No word of 64 bits comes twice; by chance it would with probability below 10**-11."""
    words = np.concatenate([np.frombuffer(draw, dtype=np.uint64) for draw in draws])
    assert len(words) == 2 * WORDS * len(draws)
    assert len(np.unique(words)) == len(words)


def forked(children: int) -> list[bytes]:
    """What children draw that are copies of this process as it is now."""
    pipes = []
    for _ in range(children):
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads, which test runners have.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                with os.fdopen(writer, "wb") as pipe:
                    pipe.write(drawn())
            finally:
                os._exit(0)
        os.close(writer)
        pipes.append((child, reader))
    draws = []
    for child, reader in pipes:
        with os.fdopen(reader, "rb") as pipe:
            draws.append(pipe.read())
        os.waitpid(child, 0)
    return draws


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_repeats_nothing_of_its_parent_or_siblings() -> None:
    before = drawn()
    assert_all_different([before, *forked(4), drawn()])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_pool_of_processes_repeats_nothing() -> None:
    before = drawn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            draws = pool.map(drawn, range(9), chunksize=1)
    assert_all_different([before, *draws, drawn()])


def test_threads_repeat_nothing() -> None:
    with ThreadPoolExecutor(8) as threads:
        assert_all_different(list(threads.map(drawn, range(64))))


class Short(RandomSource):
    """A source that gives less than it was asked for."""

    private = True

    def draw(self, number: int) -> bytes:
        """All but one byte."""
        return SecureSource().draw(number - 1)


class Failing(RandomSource):
    """A source that works a few times and then does not."""

    private = True

    def __init__(self, times: int) -> None:
        self._times = times

    def draw(self, number: int) -> bytes:
        """Bytes, as long as it works."""
        self._times -= 1
        if self._times < 0:
            raise OSError("out of order")
        return SecureSource().draw(number)


@pytest.mark.parametrize("source", [Short(), Failing(0), Failing(2)])
def test_a_failing_source_gives_nothing_at_all(source: RandomSource) -> None:
    channel = Channel.flip(1)
    with pytest.raises(RandomnessError, match="nothing may be released"):
        flip_bits(np.zeros(100_000, dtype=np.uint64), channel, source)
    with pytest.raises(RandomnessError, match="nothing may be released"):
        Sampler(channel, source).sample(np.zeros(1_000_000, dtype=np.int64))


def test_a_failing_generator_of_the_system_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> Any:
        raise ssl.SSLError("no entropy")

    monkeypatch.setattr(ssl, "RAND_bytes", fail)
    with pytest.raises(RandomnessError, match="SSLError"):
        SecureSource().draw_words(1)


def test_a_seeded_source_repeats_itself_and_says_that_it_is_not_private() -> None:
    assert SeededSource(7).draw(100) == SeededSource(7).draw(100)
    assert SeededSource(7).draw(100) != SeededSource(8).draw(100)
    channel = Channel.flip(1)
    assert not Sampler(channel, SeededSource(7)).private
    assert "NOT PRIVATE" in repr(Sampler(channel, SeededSource(7)))
    assert "NOT PRIVATE" in repr(SeededSource(7))


def test_a_secure_source_is_private_and_is_no_seeded_one() -> None:
    assert Sampler(Channel.flip(1), SecureSource()).private
    assert "NOT PRIVATE" not in repr(Sampler(Channel.flip(1), SecureSource()))
    assert not isinstance(SeededSource(1), SecureSource)


def test_words_are_the_bytes_in_order() -> None:
    words = Scripted(bytes(range(16))).draw_words(2)
    assert words.tobytes() == bytes(range(16))
