"""Private elements: each element's presence is flipped once; a pattern's losses add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AuditError, PrivacyError
from tacit.privacy.channels import Channel
from tacit.privacy.exponentials import (
    Exact,
    format_epsilon,
    joint_epsilon,
    parse_epsilon,
    product_within,
)
from tacit.privacy.policies import Policy, PrivatePattern


@dataclass(frozen=True, slots=True)
class PatternLoss:
    """The privacy loss of a private pattern by the flips of its elements.

    The unit is one window of one subject.
    """

    pattern: PrivatePattern
    whole: Fraction
    """The true epsilon of the whole pattern: all of its elements may change."""
    element: Fraction
    """The true epsilon if a single element changes."""

    def __str__(self) -> str:
        return (
            f"{self.pattern.name}: true epsilon at most {float(self.whole):.12g} of"
            f" {format_epsilon(self.pattern.epsilon)} for one subject and window"
            f" ({float(self.element):.12g} per element)"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Elements:
    """Flip the presence of each private element, each with a probability of its own.

    Guarantee: pattern-level epsilon-DP per subject, pattern and window.
    Neighbours: windows that differ anywhere inside the pattern's elements.
    Why: each bit's ratio is at most (1 - p) / p. The flips are independent, so the ratios of
    the pattern's elements multiply; the product is compared with a lower bound of
    exp(epsilon), in whole numbers. Elements that fail cannot be built.
    Spends: each pattern's epsilon, once per window, whatever the number of queries.

    >>> pattern = PrivatePattern("visit", frozenset({"hospital", "parked"}), Fraction(1))
    >>> shares = {"hospital": Fraction(3, 4), "parked": Fraction(1, 4)}
    >>> print(Elements.from_epsilons(Policy((pattern,)), shares).losses()[0])
    visit: true epsilon at most 1 of 1 for one subject and window (0.75 per element)
    """

    policy: Policy
    channels: Mapping[str, Channel] = field(hash=False)
    """The flip of each private element, by name and in order of names."""

    def __init__(self, policy: Policy, channels: Mapping[str, Channel]) -> None:
        if channels.keys() != policy.private:
            raise PrivacyError("every private element needs its flip, and no other may have one")
        ordered = {name: channels[name] for name in sorted(channels)}
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "channels", MappingProxyType(ordered))
        for pattern in policy.patterns:
            self._check(pattern)

    @classmethod
    def from_epsilons(cls, policy: Policy, epsilons: Mapping[str, Exact]) -> Elements:
        """Build elements from an epsilon for each."""
        return cls(policy, {name: _flip(parse_epsilon(share)) for name, share in epsilons.items()})

    @property
    def epsilons(self) -> dict[str, Fraction]:
        """The epsilon of each element."""
        return {name: channel.neighbours[0].epsilon for name, channel in self.channels.items()}

    def flips(self, names: Iterable[str]) -> NDArray[np.float64]:
        """Return the flip probabilities of these elements, as floats, for planning."""
        return np.array([float(self.channels[name].probability(0, 1)) for name in names])

    def losses(self) -> tuple[PatternLoss, ...]:
        """Return certified upper bounds of each private pattern's true epsilon."""
        return tuple(self._loss(pattern) for pattern in self.policy.patterns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; numbers are text, so that none is rounded."""
        return {
            "patterns": [
                {
                    "name": pattern.name,
                    "elements": sorted(pattern.elements),
                    "epsilon": format_epsilon(pattern.epsilon),
                }
                for pattern in self.policy.patterns
            ],
            "channels": {name: channel.to_dict() for name, channel in self.channels.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Elements:
        """Read what `to_dict` wrote, and audit the elements again."""
        try:
            patterns = tuple(_read(pattern) for pattern in plain["patterns"])
            channels = dict(plain["channels"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise PrivacyError(
                "elements in plain data have patterns with name, elements and epsilon, and a"
                f" channel for each element; these are damaged ({type(error).__name__})"
            ) from error
        read = {name: Channel.from_dict(channel) for name, channel in channels.items()}
        return cls(Policy(patterns), read)

    def _check(self, pattern: PrivatePattern) -> None:
        """Raise AuditError if the pattern's elements together exceed its epsilon."""
        ratios = self._ratios(pattern)
        if not product_within(ratios, pattern.epsilon):
            # As one table, row 0 (no element) and the last row (all elements) are furthest apart.
            last = 2 ** len(ratios) - 1
            true = Fraction(joint_epsilon(ratios))
            raise AuditError(asked=pattern.epsilon, true=true, high=0, low=last, column=0)

    def _loss(self, pattern: PrivatePattern) -> PatternLoss:
        ratios = self._ratios(pattern)
        whole = min(pattern.epsilon, Fraction(joint_epsilon(ratios)))
        widest = Fraction(joint_epsilon([max(ratios, default=Fraction(1))]))
        return PatternLoss(pattern, whole, min(whole, widest))

    def _ratios(self, pattern: PrivatePattern) -> list[Fraction]:
        return [_ratio(self.channels[name]) for name in sorted(pattern.elements)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Elements, (self.policy, dict(self.channels))

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {format_epsilon(share)}" for name, share in self.epsilons.items()
        )
        return f"Elements(epsilon per element and window: {shares or 'none'})"


def uniform_shares(policy: Policy) -> dict[str, Fraction]:
    """Return the epsilon of each private element: the least of its patterns' epsilon/m."""
    return {
        name: min(
            pattern.epsilon / len(pattern.elements)
            for pattern in policy.patterns
            if name in pattern.elements
        )
        for name in sorted(policy.private)
    }


def _ratio(channel: Channel) -> Fraction:
    """Return the ratio of a flip channel."""
    kept, flips = int(channel.table[0, 0]), int(channel.table[0, -1])
    flipping = channel.table.tolist() == [[kept, flips], [flips, kept]] and 0 < flips <= kept
    if not flipping or [group.rows for group in channel.neighbours] != [(0, 1)]:
        raise PrivacyError("elements are flipped by channels made with Channel.flip")
    return Fraction(kept, flips)


def _read(plain: Mapping[str, Any]) -> PrivatePattern:
    names = plain["elements"]
    if isinstance(names, str) or not all(isinstance(name, str) for name in (plain["name"], *names)):
        raise TypeError("names are text")
    return PrivatePattern(
        plain["name"], frozenset(names), parse_epsilon(Fraction(str(plain["epsilon"])))
    )


@lru_cache(256)
def _flip(epsilon: Fraction) -> Channel:
    """Return the audited flip of an epsilon; cached, since elements often share theirs."""
    return Channel.flip(epsilon)
