"""Counts of accepted and refused tuples, as lines from readers and shards to the driver.

They depend on private events, so they are for the operator only, like dead letters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tacit.errors import StateError
from tacit.pipeline.refusals import Refusals

COUNTS: Final = "counts "
"""The prefix of a line."""


@dataclass(frozen=True, slots=True)
class TupleCounts:
    """How many tuples a reader or shard has accepted and refused since the job started."""

    origin: str
    """The reader or shard, such as `reader 0`."""
    taken: int = 0
    """Negative for a shard that refuses tuples which a reader had accepted."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By reason."""

    @property
    def seen(self) -> int:
        """How many tuples it has counted; this never falls, so the largest value is the latest."""
        return abs(self.taken) + sum(self.refused.values())

    def to_line(self) -> str:
        """Format it as one line."""
        return COUNTS + json.dumps([self.origin, self.taken, dict(self.refused)])

    @classmethod
    def from_line(cls, text: str) -> TupleCounts:
        """Parse what `to_line` returned."""
        try:
            origin, taken, refused = json.loads(text.removeprefix(COUNTS))
            reasons = {str(reason): int(times) for reason, times in refused.items()}
            return cls(str(origin), int(taken), reasons)
        except (ValueError, TypeError, AttributeError) as error:
            raise StateError("the counts of tuples are damaged") from error


def keep_latest(counts: Iterable[TupleCounts]) -> dict[str, TupleCounts]:
    """Return the last counts of each reader and shard."""
    found: dict[str, TupleCounts] = {}
    for one in counts:
        known = found.get(one.origin)
        if known is None or one.seen > known.seen:
            found[one.origin] = one
    return found


def sum_refusals(counts: Iterable[TupleCounts]) -> Refusals:
    """Sum up the counts of all readers and shards."""
    taken, reasons = 0, Counter[str]()
    for one in keep_latest(counts).values():
        taken += one.taken
        reasons.update(one.refused)
    return Refusals(taken, dict(reasons))
