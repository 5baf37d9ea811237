"""What an attacker sees of a private pattern: the symbols that a plan's channels release.

The attacker knows everything but the elements of one private pattern: all public events, and the
events of all other private patterns. In such a *situation*, what is released about the pattern are
symbols of some channels, and the row of each channel depends on the pattern's own values alone.
Consumers see answers and confidences, which are functions of these symbols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.patterns.booleans import pack_rows
from tacit.patterns.tree import Name, Pattern
from tacit.privacy.channel_audit import Ratio
from tacit.privacy.channels import Channel
from tacit.privacy.components import Component
from tacit.privacy.mechanisms.flips import Flips
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.mechanisms.optimal.blocks import value_ratio
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.symbol_readings import SymbolReadings
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.policies import PrivatePattern

Bits: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]


class ReleasedSymbol(NamedTuple):
    """A symbol that is released: its distribution for each row, and the row of each value."""

    table: Floats
    """`[row][symbol]`"""
    rows: Whole
    """`[value]`: the row for each value of the pattern."""


class Situation(NamedTuple):
    """What is released in windows with the same public events and other private events."""

    symbols: tuple[ReleasedSymbol, ...]
    epsilon: float
    """The audited loss: what the symbols may say about the pattern."""


@dataclass(frozen=True, eq=False)
class AttackedPattern(ABC):
    """A private pattern as an attacker sees it under a plan."""

    pattern: PrivatePattern
    """Its epsilon is the one that the plan spends."""

    @property
    @abstractmethod
    def known(self) -> tuple[Pattern, ...]:
        """Patterns that the attacker knows: a situation is their values."""

    @property
    @abstractmethod
    def own(self) -> tuple[Pattern, ...]:
        """Patterns whose values only the pattern's elements change, and choose the rows."""

    @abstractmethod
    def release(self, known: Bits, values: Bits) -> Situation:
        """Return what is released, given the known values and all `values[value][own]`."""


def attack_pattern(mechanism: Mechanism, pattern: PrivatePattern) -> AttackedPattern:
    """Return how a planned mechanism releases symbols about a private pattern."""
    match mechanism:
        case Optimal():
            return _AttackedChannels(pattern, mechanism)
        case Flips():
            return _AttackedFlips(pattern, mechanism)
        case Unprotected():
            return _Unreleased(pattern)
    raise PlanError(
        f"attacks on the mechanism {mechanism.name} are not supported: only on uniform, adaptive"
        " and optimal"
    )


@dataclass(frozen=True, eq=False)
class _Unreleased(AttackedPattern):
    """No query depends on anything private."""

    @property
    def known(self) -> tuple[Pattern, ...]:
        return ()

    @property
    def own(self) -> tuple[Pattern, ...]:
        return ()

    def release(self, known: Bits, values: Bits) -> Situation:  # noqa: ARG002
        return Situation((), 0.0)


@dataclass(frozen=True, eq=False)
class _AttackedFlips(AttackedPattern):
    """Elements are flipped; those that open queries depend on are seen."""

    mechanism: Flips

    @property
    def known(self) -> tuple[Pattern, ...]:
        parts = self.mechanism.affected
        return tuple(dict.fromkeys(signal for part in parts for signal in part.signals))

    @property
    def own(self) -> tuple[Pattern, ...]:
        flipped = self.mechanism.flipped
        return tuple(Name(name) for name in flipped if name in self.pattern.elements)

    def release(self, known: Bits, values: Bits) -> Situation:
        places = {signal: number for number, signal in enumerate(self.known)}
        seen: set[str] = set()
        for part in self.mechanism.affected:
            context = sum(
                int(known[places[signal]]) << bit for bit, signal in enumerate(part.signals)
            )
            if part.decided[context] < 0:
                seen.update(part.elements)
        symbols, epsilon = [], 0.0
        for place, element in enumerate(self.own):
            assert isinstance(element, Name)
            if element.name in seen:
                channel = self.mechanism.elements.channels[element.name]
                table = _to_probabilities(channel)
                symbols.append(ReleasedSymbol(table, values[:, place].astype(np.int64)))
                epsilon += log(table.max() / table.min())
        return Situation(tuple(symbols), min(epsilon, float(self.pattern.epsilon)))


@dataclass(frozen=True, eq=False)
class _AttackedChannels(AttackedPattern):
    """Answers are drawn from channels; the components that the pattern may change matter."""

    mechanism: Optimal

    @cached_property
    def _components(self) -> tuple[_AttackedComponent, ...]:
        components = enumerate(self.mechanism.exposure.components)
        return tuple(
            _AttackedComponent(self.mechanism, number, component, changed)
            for number, component in components
            if (changed := component.find_changed(self.pattern.elements))
        )

    @property
    def known(self) -> tuple[Pattern, ...]:
        return tuple(
            dict.fromkeys(one for part in self._components for one in (*part.signals, *part.others))
        )

    @property
    def own(self) -> tuple[Pattern, ...]:
        return tuple(dict.fromkeys(one for part in self._components for one in part.own))

    def release(self, known: Bits, values: Bits) -> Situation:
        at = {pattern: number for number, pattern in enumerate(self.known)}
        mine = {pattern: number for number, pattern in enumerate(self.own)}
        symbols: list[ReleasedSymbol] = []
        epsilon = 0.0
        for part in self._components:
            signals = known[[at[one] for one in part.signals]]
            width = len(part.component.variables)
            every = np.zeros((len(values), width), np.bool_)
            for number, variable in enumerate(part.component.variables):
                changes = number in part.changed
                every[:, number] = (
                    values[:, mine[variable.atom]] if changes else known[at[variable.atom]]
                )
            found, loss = part.release(signals, every)
            symbols += found
            epsilon += loss
        return Situation(tuple(symbols), min(epsilon, float(self.pattern.epsilon)))


@dataclass(frozen=True, eq=False)
class _AttackedComponent:
    mechanism: Optimal
    number: int
    component: Component
    changed: frozenset[int]

    @property
    def signals(self) -> tuple[Pattern, ...]:
        return self.component.signals

    @property
    def own(self) -> tuple[Pattern, ...]:
        return tuple(self.component.variables[number].atom for number in sorted(self.changed))

    @property
    def others(self) -> tuple[Pattern, ...]:
        variables = self.component.variables
        return tuple(one.atom for n, one in enumerate(variables) if n not in self.changed)

    def release(self, signals: Bits, values: Bits) -> tuple[list[ReleasedSymbol], float]:
        """Return the symbols about `values[value][variable]`, and their loss.

        A context that has no channels in the plan is served by the book.
        """
        context = self.mechanism.planned[self.number].get(np.packbits(signals).tobytes())
        draws: list[tuple[Channel, Sequence[int], NDArray[np.int64] | None]]
        if context is not None:
            draws = [(design.channel, b.variables, b.place) for b, design in context.blocks]
        else:
            draws = [(channel, variables, None) for channel, variables in self._book(signals)]
        symbols, loss = [], 0.0
        for channel, variables, place in draws:
            if self.changed.isdisjoint(variables):
                continue
            choice = values[:, list(variables)] @ (1 << np.arange(len(variables)))
            rows = choice if place is None else place[choice]
            symbols.append(ReleasedSymbol(_to_probabilities(channel), rows.astype(np.int64)))
            loss += _log(value_ratio(channel, variables, self.changed, place))
        return symbols, loss

    @cached_property
    def _readings(self) -> SymbolReadings:
        book, prior = self.mechanism.books[self.number], self.mechanism.priors[self.number]
        return SymbolReadings(self.component, prior, [block.variables for block in book.blocks])

    def _book(self, signals: Bits) -> list[tuple[Channel, tuple[int, ...]]]:
        book, prior = self.mechanism.books[self.number], self.mechanism.priors[self.number]
        words = pack_rows(signals[np.newaxis]) if len(signals) else np.zeros((1, 1), np.uint64)
        needed = self._readings.find_needed(words)[0]
        group = int(prior.group(signals[np.newaxis])[0])
        return [
            (book.channels[number][int(book.chosen[group, number])], block.variables)
            for number, block in enumerate(book.blocks)
            if needed[number]
        ]


def _to_probabilities(channel: Channel) -> Floats:
    return np.asarray(channel.table / 2.0**channel.bits, np.float64)


def _log(ratio: Ratio) -> float:
    assert ratio is not None, "channels of a plan are audited"
    return log(ratio)
