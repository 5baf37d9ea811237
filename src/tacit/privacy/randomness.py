"""Sources of random bytes: the operating system, or a seed for tests and experiments."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import RandomnessError


class RandomSource(ABC):
    """A source of random bytes. It gives all requested bytes or raises an error."""

    private: ClassVar[bool]
    """Whether the bytes are unpredictable. If not, answers drawn with them are not private."""

    @abstractmethod
    def draw(self, number: int) -> bytes:
        """Return `number` random bytes."""

    def draw_octets(self, number: int) -> NDArray[np.uint8]:
        """Return random bytes as an array; raise RandomnessError if the source fails."""
        try:
            drawn = self.draw(number)
        except Exception as error:
            raise RandomnessError(
                f"the source of randomness failed ({type(error).__name__});"
                " nothing was drawn and nothing may be released"
            ) from error
        if len(drawn) != number:
            raise RandomnessError(
                f"the source of randomness gave {len(drawn)} bytes of {number};"
                " nothing was drawn and nothing may be released"
            )
        return np.frombuffer(drawn, dtype=np.uint8)

    def draw_words(self, number: int) -> NDArray[np.uint64]:
        """Return random words of 64 bits."""
        return self.draw_octets(8 * number).view(np.uint64)


class SecureSource(RandomSource):
    """OpenSSL's generator, seeded by the operating system.

    It is safe across threads, which have a generator each, and across fork: a child process
    reseeds. This class keeps no state between calls that a child could inherit.
    """

    private = True

    def draw(self, number: int) -> bytes:
        """Return `number` unpredictable bytes."""
        return ssl.RAND_bytes(number)

    def __repr__(self) -> str:
        return "SecureSource()"


class SeededSource(RandomSource):
    """The same bytes for the same seed: for tests and experiments, never for people's data."""

    private = False

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = np.random.SFC64(seed)

    def draw(self, number: int) -> bytes:
        """Return `number` bytes, determined by the seed."""
        words = np.asarray(self._generator.random_raw(-(-number // 8)), dtype="<u8")
        return words.tobytes()[:number]

    def __repr__(self) -> str:
        return f"SeededSource({self._seed}), NOT PRIVATE"
