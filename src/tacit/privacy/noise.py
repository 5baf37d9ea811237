"""All the randomness of a protected run: draws from channels, flips of bits, invented times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.channels import Channel
from tacit.privacy.randomness import RandomSource, SecureSource
from tacit.privacy.sampling import Sampler, flip_bits


class Noise:
    """Where a protected run gets its randomness from; the operating system's, if not told."""

    def __init__(self, source: RandomSource | None = None) -> None:
        self.source = source or SecureSource()

    @property
    def private(self) -> bool:
        """Whether what is drawn may be released as private."""
        return self.source.private

    def sampler(self) -> Sampler:
        """Draws from channels that are handed to it."""
        return Sampler((), self.source)

    def flip(
        self,
        words: NDArray[np.uint64],
        channel: Channel,
        lanes: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.uint64]:
        """Send bits through a flip channel, those that are set in `lanes`."""
        return flip_bits(words, channel, self.source, lanes)

    def moments(self, count: int, span: int) -> NDArray[np.int64]:
        """Times from 0 up to `span`, for events that are invented.

        They are drawn without looking at any input, so that they need not be exactly uniform.
        """
        words = self.source.words(count)
        return (words % np.uint64(span)).astype(np.int64)
