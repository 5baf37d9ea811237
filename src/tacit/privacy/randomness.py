"""Where random bytes come from: the operating system, or for tests and experiments a seed."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import RandomnessError


class RandomSource(ABC):
    """Random bytes, all of them or an error: never fewer, never the same twice."""

    private: ClassVar[bool]
    """Whether nobody can foretell the bytes; answers drawn otherwise are not private."""

    @abstractmethod
    def draw(self, number: int) -> bytes:
        """So many random bytes."""

    def octets(self, number: int) -> NDArray[np.uint8]:
        """Random bytes as an array; RandomnessError if the source does not give them all."""
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

    def words(self, number: int) -> NDArray[np.uint64]:
        """Random words of 64 bits."""
        return self.octets(8 * number).view(np.uint64)


class SecureSource(RandomSource):
    """OpenSSL's generator, seeded by the operating system.

    It is safe across threads, each of which has its own generator, and across fork: a child
    seeds anew. Nothing is kept here from one call to the next that a child could inherit.
    """

    private = True

    def draw(self, number: int) -> bytes:
        """So many random bytes that nobody can foretell."""
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
        """So many bytes that anybody who knows the seed can tell."""
        words = np.asarray(self._generator.random_raw(-(-number // 8)), dtype="<u8")
        return words.tobytes()[:number]

    def __repr__(self) -> str:
        return f"SeededSource({self._seed}), NOT PRIVATE"
