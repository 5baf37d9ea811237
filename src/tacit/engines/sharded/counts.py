"""How many tuples readers take and refuse, as lines on their way to the driver.

They depend on private events: they are for the operator alone, like dead letters.
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
"""What a line begins with."""


@dataclass(frozen=True, slots=True)
class TupleCounts:
    """What one reader or shard has taken and refused since the job began."""

    origin: str
    """Which reader or shard, such as `reader 0`."""
    taken: int = 0
    """Negative for a shard that refuses what a reader had taken."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By reason."""

    @property
    def seen(self) -> int:
        """How many tuples it has counted; this never falls, so the largest is the latest."""
        return abs(self.taken) + sum(self.refused.values())

    def written(self) -> str:
        """One line."""
        return COUNTS + json.dumps([self.origin, self.taken, dict(self.refused)])

    @classmethod
    def read(cls, text: str) -> TupleCounts:
        """What `written` gave."""
        try:
            origin, taken, refused = json.loads(text.removeprefix(COUNTS))
            reasons = {str(reason): int(times) for reason, times in refused.items()}
            return cls(str(origin), int(taken), reasons)
        except (ValueError, TypeError, AttributeError) as error:
            raise StateError("counts of tuples cannot be read: they are damaged") from error


def latest(counts: Iterable[TupleCounts]) -> dict[str, TupleCounts]:
    """The last counts of each reader and shard."""
    found: dict[str, TupleCounts] = {}
    for one in counts:
        known = found.get(one.origin)
        if known is None or one.seen > known.seen:
            found[one.origin] = one
    return found


def refusals(counts: Iterable[TupleCounts]) -> Refusals:
    """What all readers and shards together have taken and refused."""
    taken, reasons = 0, Counter[str]()
    for one in latest(counts).values():
        taken += one.taken
        reasons.update(one.refused)
    return Refusals(taken, dict(reasons))
