"""A component's windows in a protected run: keys, draws, and what the symbols say.

A window's *key* is what its public events say (the signals) and the true answers of the
component's parts. The signals alone choose the context; the answers choose the row of its
channels. What leaves is drawn from there: the decided answers and the symbols' readings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.privacy.keys import Keys
from tacit.privacy.noise import Noise
from tacit.privacy.optimal import Context, Optimal
from tacit.privacy.prior import Bits
from tacit.privacy.staircase import Design

_NONE: Final = -1
_LISTED: Final = 4096
"""Up to so many possible answers of a context are listed when it is met."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """For each window and subject the number of its context, and its symbols: one per block.

    A *code* is a symbol's number among those of all channels of the component.
    """

    contexts: NDArray[np.int32]
    codes: NDArray[np.int32]


class Contexts:
    """The contexts of a component, planned as they come, and their channels laid end to end."""

    def __init__(
        self,
        optimal: Optimal,
        noise: Noise,
        *,
        literal: bool = False,
        planned: Mapping[bytes, Context] | None = None,
    ) -> None:
        self.optimal = optimal
        self._literal = literal
        self._planned = dict(planned or {})
        component = optimal.component
        self.signals, self.parts = len(component.signals), len(component.parts)
        self._words = -(-self.parts // 64)
        self._sampler = noise.sampler()
        self._keys = Keys(-(-(self.signals + self.parts) // 64))
        self._numbers: dict[bytes, int] = {}
        self._signals: list[Bits] = []
        self._contexts: list[Context] = []
        self._first_row: list[list[int]] = []
        self._first_code: list[list[int]] = []
        self._codes = 0
        # By key, by context and by code:
        self._context = np.empty(0, np.int32)
        self._rows = np.empty((0, 1), np.int64)
        self._offsets = np.empty((0, 1), np.int64)
        self._decided = np.empty((0, self._words), np.uint64)
        self._readings = np.zeros((1, self._words), np.uint64)

    def draw(self, keys: NDArray[np.uint64]) -> Drawn:
        """Draw the symbols for windows with these keys, `[window and subject][word]`."""
        numbers = self._keys.numbers(keys)
        strange = numbers < 0
        if strange.any():
            self._meet(keys[strange])
            numbers = self._keys.numbers(keys)
        rows = self._rows[numbers]
        codes = np.full(rows.shape, _NONE, np.int32)
        drawn = rows >= 0
        if drawn.any():
            symbols = self._sampler.sample(rows[drawn])
            codes[drawn] = symbols + self._offsets[numbers][drawn]
        return Drawn(self._context[numbers], codes)

    def words(self, drawn: Drawn) -> NDArray[np.uint64]:
        """The answers of all parts, `[window and subject][word]`, lowest bit first."""
        words = self._decided[drawn.contexts]
        for block in range(drawn.codes.shape[1]):
            codes = drawn.codes[:, block]
            # Code -1 is the last row, which says nothing.
            words |= self._readings[codes]
        return words

    def posterior(self, drawn: Drawn, part: int) -> NDArray[np.float64]:
        """How likely a part is true, given what was drawn."""
        pairs = np.column_stack([drawn.contexts, drawn.codes])
        different, places = np.unique(pairs, axis=0, return_inverse=True)
        found = [self._posterior(int(row[0]), row[1:], part) for row in different]
        return np.array(found, np.float64)[places]

    def _posterior(self, number: int, codes: NDArray[np.int32], part: int) -> float:
        context = self._contexts[number]
        blocks = zip(context.blocks, self._first_code[number], codes, strict=False)
        for (parts, _, design), first, code in blocks:
            if part in parts:
                return float(design.posterior[code - first, parts.index(part)])
        return float(context.decided[part])

    def _meet(self, keys: NDArray[np.uint64]) -> None:
        """Number keys that were not met before, and plan their contexts if these are new.

        With a context come the keys of all answers that are possible in it. So it depends on
        public events alone when there is something to plan, and how long a window takes.
        """
        bits = self._unpacked(np.unique(keys, axis=0))
        first = len(self._contexts)
        for signals in np.unique(bits[:, : self.signals], axis=0):
            self._number(signals)
        listed = [
            (number, answers)
            for number in range(first, len(self._contexts))
            for answers in self._possible(number)
        ]
        if listed:
            self._add(listed)
        strange = self._unpacked(keys[self._keys.numbers(keys) < 0])
        if len(strange):
            pairs = np.unique(strange, axis=0)
            split = zip(pairs[:, : self.signals], pairs[:, self.signals :], strict=True)
            self._add([(self._number(signals), answers) for signals, answers in split])

    def _unpacked(self, keys: NDArray[np.uint64]) -> Bits:
        octets = np.ascontiguousarray(keys).astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=self.signals + self.parts)
        return bits.astype(np.bool_)

    def _possible(self, number: int) -> Iterator[Bits]:
        """All answers that are possible in a context, unless they are too many to be listed."""
        context = self._contexts[number]
        if prod(len(classes) for _, classes, _ in context.blocks) > _LISTED:
            return
        for chosen in product(*(classes for _, classes, _ in context.blocks)):
            answers = context.decided.copy()
            for (parts, _, _), given in zip(context.blocks, chosen, strict=True):
                answers[list(parts)] = given
            yield answers

    def _add(self, listed: Sequence[tuple[int, Bits]]) -> None:
        """Number keys, each given by its context and its answers."""
        self._widen(max(len(self._contexts[number].blocks) for number, _ in listed))
        width = self._rows.shape[1]
        placed = [self._place(number, answers) for number, answers in listed]
        padded = np.array([row + [(_NONE, 0)] * (width - len(row)) for row in placed], np.int64)
        padded = padded.reshape(len(listed), width, 2)
        self._context = np.append(self._context, np.array([n for n, _ in listed], np.int32))
        self._rows = np.concatenate([self._rows, padded[:, :, 0]])
        self._offsets = np.concatenate([self._offsets, padded[:, :, 1]])
        bits = [np.concatenate([self._signals[number], answers]) for number, answers in listed]
        self._keys.add(packed(np.array(bits, np.bool_)))

    def _widen(self, blocks: int) -> None:
        """Make room for contexts of more blocks."""
        more = blocks - self._rows.shape[1]
        if more > 0:
            self._rows = np.pad(self._rows, ((0, 0), (0, more)), constant_values=_NONE)
            self._offsets = np.pad(self._offsets, ((0, 0), (0, more)))

    def _place(self, number: int, answers: Bits) -> list[tuple[int, int]]:
        """For each block of a context the row to draw from, and the code of its first symbol."""
        context = self._contexts[number]
        found = []
        firsts = zip(self._first_row[number], self._first_code[number], strict=True)
        for (parts, classes, _), (row, code) in zip(context.blocks, firsts, strict=True):
            same = (classes == answers[list(parts)]).all(axis=1)
            if not same.any():
                raise PrivacyError(
                    "answers that cannot be in this context: the three values are wrong, so "
                    "nothing is released; this is a mistake in Tacit"
                )
            found.append((row + int(same.argmax()), code))
        return found

    def _number(self, signals: Bits) -> int:
        """The number of the context with these signals; it is planned if it is new."""
        key = np.packbits(signals).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._contexts)
            self._signals.append(signals)
            planned = self._planned.get(key)
            self._lay(self.optimal.context(signals) if planned is None else planned)
        return self._numbers[key]

    def _lay(self, context: Context) -> None:
        """Lay a context's channels after those of the others."""
        rows, codes = [], []
        readings = [self._readings[:-1]]  # the last says nothing, and stays the last
        for parts, classes, design in context.blocks:
            rows.append(self._sampler.rows)
            codes.append(self._codes)
            self._sampler.extend([design.channel])
            self._codes += design.channel.table.shape[1]
            yes = np.zeros((len(design.posterior), self.parts), np.bool_)
            yes[:, list(parts)] = self._decode(classes, design)
            readings.append(packed(yes))
        self._contexts.append(context)
        self._first_row.append(rows)
        self._first_code.append(codes)
        self._decided = np.concatenate([self._decided, packed(context.decided[np.newaxis])])
        nothing = np.zeros((1, self._words), np.uint64)
        self._readings = np.concatenate([*readings, nothing])

    def _decode(self, classes: Bits, design: Design) -> Bits:
        """`[symbol][part]`: what each symbol is read as."""
        if not self._literal:
            return np.asarray(design.posterior >= self.optimal.caution)
        table = design.channel.table.astype(np.float64)
        yes = table.T @ classes
        return np.asarray(yes > table.sum(axis=0)[:, np.newaxis] - yes)


def packed(bits: Bits) -> NDArray[np.uint64]:
    """`[row][word]`, lowest bit first, from `[row][bit]`."""
    rows, width = bits.shape
    padded = np.zeros((rows, -(-width // 64) * 64), np.bool_)
    padded[:, :width] = bits
    words = np.packbits(padded, axis=1, bitorder="little").view("<u8")
    return words.astype(np.uint64, copy=False).reshape(rows, -1)
