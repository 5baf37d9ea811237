"""How many tuples were refused, why, and what to do. For the operator only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tacit.errors import RefusedInputError, RefusedInputWarning
from tacit.windows.clock import (
    BEFORE_START,
    FUTURE,
    LATE,
    NO_SUBJECT,
    NO_TIME,
    REASONS,
    UNCONFIRMED,
    UNREGISTERED,
)

MOST: Final = 0.5
"""The share of refused tuples above which a run warns."""
_REMEDIES: Final = {
    NO_SUBJECT: "check that 'subject' of the stream names the right column",
    NO_TIME: "check that 'time', 'unit' and 'zone' of the stream match the data; for times that are"
    " not written as in ISO 8601, add a 'format', such as '%d.%m.%Y %H:%M:%S'",
    UNREGISTERED: "check that the registry spells the subjects exactly as the data does",
    LATE: "the input is out of order by more than windows.lateness: sort it by time, or raise"
    " windows.lateness",
    FUTURE: "the input has a gap longer than windows.future, or starts with wrong times: raise"
    " windows.future, or set windows.start",
    UNCONFIRMED: "the input is sparser than windows.jump allows for one subject: raise"
    " windows.jump",
    BEFORE_START: "windows.start is later than the data",
}
_UNREADABLE: Final = "check that the file has the format of its file name"


@dataclass(frozen=True, slots=True)
class Refusals:
    """How many tuples a run accepted, and how many it refused, by reason."""

    taken: int
    reasons: Mapping[str, int]

    @property
    def refused(self) -> int:
        """The number of refused tuples."""
        return sum(self.reasons.values())

    @property
    def share(self) -> float:
        """The refused share of the input, from 0 to 1; 0 if the input is empty."""
        return self.refused / max(1, self.taken + self.refused)

    def exceed(self, limit: float) -> bool:
        """Return whether more than this share was refused."""
        return self.share > limit

    def check(self, limit: float) -> None:
        """Raise RefusedInputError if more than this share was refused."""
        if self.exceed(limit):
            raise RefusedInputError(str(self))

    def warn(self) -> None:
        """Warn if most of the input was refused."""
        if self.exceed(MOST):
            warnings.warn(str(self), RefusedInputWarning, stacklevel=3)

    def __str__(self) -> str:
        whole = self.taken + self.refused
        reason, most = max(self.reasons.items(), key=lambda one: one[1], default=("", 0))
        remedy = next(
            (text for code, text in _REMEDIES.items() if REASONS[code] == reason), _UNREADABLE
        )
        return (
            f"{self.refused:,} of {whole:,} tuples were refused ({self.share:.1%}), {most:,} of"
            f" them for this reason: {reason}. What to do: {remedy}. The dead letters list every"
            " refused tuple."
        )
