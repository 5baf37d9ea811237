"""How much of the input was refused, why, and what to do. It is for the operator alone."""

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
"""More than this share is most of the input."""
_REMEDIES: Final = {
    NO_SUBJECT: "see that 'subject' of the stream names the right column",
    NO_TIME: "see that 'time', 'unit' and 'zone' of the stream say how times are written",
    UNREGISTERED: "see that the registry has the subjects exactly as the data spells them",
    LATE: "the input is out of order by more than windows.lateness: sort it by time, or raise"
    " windows.lateness",
    FUTURE: "the input pauses for longer than windows.future, or begins with wrong times: raise"
    " windows.future, or give windows.start",
    UNCONFIRMED: "the input is sparser than windows.jump allows one subject to be: raise"
    " windows.jump",
    BEFORE_START: "windows.start is later than the data",
}
_UNREADABLE: Final = "see that the file is in the format that its name says"


@dataclass(frozen=True, slots=True)
class Refusals:
    """How many tuples a run took, and how many it refused, by reason."""

    taken: int
    reasons: Mapping[str, int]

    @property
    def refused(self) -> int:
        """All that were refused."""
        return sum(self.reasons.values())

    @property
    def share(self) -> float:
        """The refused part of the input, from 0 to 1; 0 where there was none."""
        return self.refused / max(1, self.taken + self.refused)

    def exceed(self, limit: float) -> bool:
        """Whether more than this share was refused."""
        return self.share > limit

    def check(self, limit: float) -> None:
        """Raise RefusedInputError where more than this share was refused."""
        if self.exceed(limit):
            raise RefusedInputError(str(self))

    def warn(self) -> None:
        """Warn where most of the input was refused."""
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
            f" them for this reason: {reason}. What to do: {remedy}. The dead letters have each of"
            " them."
        )
