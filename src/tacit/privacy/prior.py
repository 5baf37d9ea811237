"""The prior of a component's windows, estimated from history or given by the user.

A prior affects only the quality of answers, never privacy: any prior gives a valid channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError

Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Prior:
    """Base rates of variables, and the counts of their values in each context.

    In each context the base rates count for `strength` windows in addition to those seen.
    """

    rates: NDArray[np.float64]
    """For each variable of the component, the probability that it is true where it is open."""
    signals: Bits
    """`[row][signal]`: contexts; rows of the same context are adjacent."""
    values: Bits
    """`[row][variable]`: the values of the variables."""
    counts: NDArray[np.float64]
    """`[row]`: the number of windows."""
    strength: float = 4.0
    _places: dict[bytes, slice] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        keys = np.packbits(self.signals, axis=1)
        begins = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))[: len(keys)]
        ends = np.append(begins[1:], len(keys))
        places = {
            keys[begin].tobytes(): slice(int(begin), int(end))
            for begin, end in zip(begins, ends, strict=False)
        }
        object.__setattr__(self, "_places", places)

    @classmethod
    def from_rates(cls, rates: NDArray[np.float64], signals: int) -> Prior:
        """Build a prior without history."""
        nothing = np.empty(0)
        return cls(
            np.clip(rates, 1e-6, 1 - 1e-6),
            np.empty((0, signals), np.bool_),
            np.empty((0, len(rates)), np.bool_),
            nothing,
        )

    @cached_property
    def contexts(self) -> list[tuple[Bits, float]]:
        """The contexts that were seen, each with its number of windows; most common first."""
        begins = np.array([place.start for place in self._places.values()], np.int64)
        windows = np.add.reduceat(self.counts, begins) if len(begins) else np.empty(0)
        order = np.argsort(-windows, kind="stable")
        return [(self.signals[begins[n]], float(windows[n])) for n in order]

    def choice_probabilities(self, signals: Bits, variables: list[int]) -> NDArray[np.float64]:
        """Return the probability of each choice of values of some variables, in a context.

        In choice n, the variable at place i has the value of n's bit i.
        """
        choices = np.arange(1 << len(variables))
        bits = ((choices[:, np.newaxis] >> np.arange(len(variables))) & 1).astype(np.bool_)
        rates = self.rates[variables]
        base = np.where(bits, rates, 1 - rates).prod(axis=1)
        place = self._places.get(np.packbits(signals).tobytes(), slice(0, 0))
        seen = self.values[place][:, variables] @ (1 << np.arange(len(variables)))
        found = np.bincount(seen, self.counts[place], len(choices))
        prior: NDArray[np.float64] = (found + self.strength * base) / (found.sum() + self.strength)
        return prior

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that can be written as JSON."""
        return {
            "rates": self.rates.tolist(),
            "strength": self.strength,
            "widths": [self.signals.shape[1], self.values.shape[1]],
            "signals": [row.tobytes().hex() for row in np.packbits(self.signals, axis=1)],
            "values": [row.tobytes().hex() for row in np.packbits(self.values, axis=1)],
            "counts": self.counts.tolist(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Prior:
        """Read what `to_dict` wrote; raise PlanError if it is damaged."""
        try:
            signals, variables = plain["widths"]
            prior = cls(
                np.array(plain["rates"], np.float64),
                _unpacked(plain["signals"], signals),
                _unpacked(plain["values"], variables),
                np.array(plain["counts"], np.float64),
                float(plain["strength"]),
            )
            prior._check()
            return prior
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError("the plan's prior is damaged; make a new plan") from error

    def _check(self) -> None:
        """Raise ValueError if shapes do not match or numbers are out of range."""
        rows, variables = self.values.shape
        if self.rates.shape != (variables,) or not ((self.rates > 0) & (self.rates < 1)).all():
            raise ValueError("rates")
        if len(self.signals) != rows or self.counts.shape != (rows,):
            raise ValueError("rows")
        if not (np.isfinite(self.counts) & (self.counts >= 0)).all():
            raise ValueError("counts")
        if not 0 < self.strength < np.inf:
            raise ValueError("strength")


def _unpacked(rows: list[str], width: int) -> Bits:
    octets = np.frombuffer(bytes.fromhex("".join(rows)), np.uint8)
    flat = octets.reshape(len(rows), -(-width // 8))
    return np.unpackbits(flat, axis=1, count=width).astype(np.bool_)
