"""The randomness of a protected run: draws from channels, bit flips, times of synthetic events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.channels import Channel
from tacit.privacy.randomness import RandomSource, SecureSource
from tacit.privacy.sampling import Sampler, flip_bits


class Noise:
    """Draws the randomness of a protected run; by default from the operating system."""

    def __init__(self, source: RandomSource | None = None) -> None:
        self.source = source or SecureSource()

    @property
    def private(self) -> bool:
        """Whether answers drawn with this noise are private."""
        return self.source.private

    def new_sampler(self) -> Sampler:
        """Return an empty sampler, to be extended with channels."""
        return Sampler((), self.source)

    def flip(
        self,
        words: NDArray[np.uint64],
        channel: Channel,
        lanes: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.uint64]:
        """Send the bits that are set in `lanes` (by default all) through a flip channel."""
        return flip_bits(words, channel, self.source, lanes)

    def draw_times(self, count: int, span: int) -> NDArray[np.int64]:
        """Draw times from 0 up to `span`, for synthetic events.

        The draws depend on no input, so privacy does not need them to be exactly uniform.
        """
        words = self.source.draw_words(count)
        return (words % np.uint64(span)).astype(np.int64)
