"""The list of mechanisms that a specification may name.

To add a mechanism, write its module and add an entry here: see docs/extending.md. The entry holds
what commands show without loading the mechanism; `tacit.privacy.mechanisms.load` loads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class MechanismEntry:
    """Where a mechanism is defined, and what it does in one sentence."""

    where: str
    """The module and the class: `package.module:Class`."""
    summary: str
    randomises: Literal["elements", "answers"]
    """Whether noise is added to the presence of elements, pane by pane, or to the answers of
    each window."""


AUTO: Final = "auto"
"""The planner takes the mechanism with the best expected quality."""

MECHANISMS: Final[dict[str, MechanismEntry]] = {
    "uniform": MechanismEntry(
        "tacit.privacy.mechanisms.uniform:Uniform",
        "whether a private event occurred is flipped at random, for all elements of a pattern"
        " alike.",
        "elements",
    ),
    "adaptive": MechanismEntry(
        "tacit.privacy.mechanisms.adaptive:Adaptive",
        "whether a private event occurred is flipped at random; the plan says how often for each"
        " element.",
        "elements",
    ),
    "optimal": MechanismEntry(
        "tacit.privacy.mechanisms.optimal.mechanism:Optimal",
        "answers that private events can change are drawn at random; all others are exact.",
        "answers",
    ),
}
"""All mechanisms, by name."""


def mechanism_choices() -> list[str]:
    """Return all values that a specification or an option may have."""
    return [*MECHANISMS, AUTO]


def summarise(name: str) -> str:
    """Describe a choice in one sentence.

    >>> summarise("auto")
    'the planner takes the best of uniform, adaptive and optimal.'
    """
    if name != AUTO:
        return MECHANISMS[name].summary
    *first, last = MECHANISMS
    return f"the planner takes the best of {', '.join(first)} and {last}."
