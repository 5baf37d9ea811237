"""The memory of a plan: for each component, transitions and channels to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.privacy.channel_audit import Ratio, largest_of, multiply_ratios
from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, ContextOutline
from tacit.privacy.mechanisms.optimal.memory.candidates import CandidateBook
from tacit.privacy.mechanisms.optimal.memory.transitions import Transitions
from tacit.privacy.prior import Bits


@dataclass(frozen=True, slots=True, eq=False)
class ComponentMemory:
    """What a plan knows about one component."""

    transitions: Transitions
    candidates: CandidateBook

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "transitions": self.transitions.to_dict(),
            "candidates": self.candidates.to_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], channels: ComponentChannels) -> ComponentMemory:
        """Read what `to_dict` wrote; audit all channels."""
        variables = len(channels.component.variables)
        return cls(
            Transitions.from_dict(plain["transitions"], variables, channels.prior.groups),
            CandidateBook.from_dict(plain["candidates"], channels),
        )

    def find_ratio(self, channels: ComponentChannels, changed: frozenset[int]) -> Ratio:
        """Return the largest ratio of any choice of candidates if these variables change."""
        return largest_of(
            multiply_ratios(
                largest_of(block.find_ratio(channel, changed) for channel in own)
                for block, own in zip(outline.blocks, blocks, strict=True)
            )
            for _, outline, blocks in self.list_contexts(channels)
        )

    def list_contexts(
        self, channels: ComponentChannels
    ) -> Iterator[tuple[Bits, ContextOutline, tuple[tuple[Channel, ...], ...]]]:
        """Yield the signals, the blocks and the candidates of each context."""
        width = len(channels.component.signals)
        for key, blocks in self.candidates.contexts.items():
            signals = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
            outline = channels.outline(signals)
            assert outline is not None, "contexts with candidates have channels of their own"
            yield signals, outline, blocks
