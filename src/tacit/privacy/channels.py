"""Channels: tables of whole numbers that mechanisms draw from, audited when they are built."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.privacy.channel_audit import Audit, Neighbours, audit, check_rows, largest_ratio
from tacit.privacy.exponentials import Exact, exp_below, format_epsilon, log_above, parse_epsilon
from tacit.privacy.rounding import round_table, to_fraction

BITS = 63
"""Binary digits of a probability. With 63, all running sums of a row fit into 64 bits."""
_SHOWN = 16

Rows = Sequence[Sequence[int]] | NDArray[np.integer[Any]] | NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Channel:
    """A row for each input class, a column for each output symbol; rows sum to 2**bits.

    Guarantee: for every group of neighbours and every set of outputs, the probabilities of
    any two of its rows differ by a factor of at most exp(epsilon).
    Why: the audit compares every column in whole numbers with a lower bound of exp(epsilon);
    sets of columns follow by adding up. A table that fails raises AuditError here, so a
    channel that exceeds its epsilon cannot exist.

    >>> half = Channel([[3, 1], [1, 3]], [Neighbours([0, 1], Fraction(11, 10))])
    >>> half.probability(0, 1), str(half.audit())
    (Fraction(1, 4), 'passed: true epsilon at most 1.09861228867 per draw')
    """

    table: NDArray[np.uint64]
    neighbours: tuple[Neighbours, ...]
    inputs: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...]
    bits: int = field(init=False)

    def __init__(
        self,
        table: Rows,
        neighbours: Iterable[Neighbours],
        inputs: Iterable[Hashable] | None = None,
        outputs: Iterable[Hashable] | None = None,
    ) -> None:
        entries, bits = _check_table(table)
        rows, columns = entries.shape
        values: dict[str, Any] = {
            "table": entries,
            "bits": bits,
            "neighbours": tuple(neighbours),
            "inputs": _labels(range(rows) if inputs is None else inputs, rows, "inputs"),
            "outputs": _labels(range(columns) if outputs is None else outputs, columns, "outputs"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_rows(self.neighbours, rows)
        self.audit().check()

    @classmethod
    def flip(cls, epsilon: Exact, bits: int = BITS) -> Channel:
        """Build binary randomised response: the bit, or with probability p its opposite.

        p is 1/(1 + exp(epsilon)), rounded up, so that the true epsilon is at most the one
        given. It is never 0, and 1/2 for epsilon 0.

        >>> Channel.flip(0).probability(0, 1)
        Fraction(1, 2)
        """
        limit = largest_ratio(parse_epsilon(epsilon))
        high, low = limit.numerator, limit.denominator
        flips = -(-(low << _check_bits(bits)) // (high + low))
        return cls._flipping(flips, epsilon, bits)

    @classmethod
    def flip_with(cls, probability: Fraction, bits: int = BITS) -> Channel:
        """Build binary randomised response with a flip probability, rounded up if necessary."""
        if not 0 < probability <= Fraction(1, 2):
            raise PrivacyError(
                "a flip probability must be more than 0 (0 would tell the truth) and at most 1/2;"
                f" got {float(probability):g}"
            )
        flips = -(-probability.numerator * 2 ** _check_bits(bits) // probability.denominator)
        return cls._flipping(flips, log_above(Fraction(2**bits - flips, flips)), bits)

    @classmethod
    def _flipping(cls, flips: int, epsilon: Exact, bits: int) -> Channel:
        kept = 2**bits - flips
        return cls([[kept, flips], [flips, kept]], [Neighbours([0, 1], epsilon)])

    @classmethod
    def staircase(
        cls,
        columns: Sequence[Collection[int]],
        weights: Sequence[float | Fraction],
        epsilon: Exact,
        *,
        inputs: Sequence[Hashable],
        bits: int = BITS,
    ) -> Channel:
        """Build a mixture of two-valued columns; all rows are neighbours within epsilon.

        A column is given by the rows that are high in it: their entries are its weight times
        exp(epsilon), all others its weight. Its output symbol is the tuple of the high rows. The
        rounding remainder goes to the column without high rows, `()`, added if it is missing.
        Only the proportions of weights matter, and every weight vector gives a valid channel.

        >>> channel = Channel.staircase([{0}, {1}], [1.0, 1.0], 1, inputs="ab")
        >>> channel.outputs, round(float(channel.probability(0, 0)), 6)
        (((0,), (1,), ()), 0.731059)
        """
        if len(columns) != len(weights):
            raise PrivacyError(f"{len(columns)} columns need as many weights; got {len(weights)}")
        if not set().union(*columns) <= set(range(len(inputs))):
            raise PrivacyError(f"high rows must be among rows 0 to {len(inputs) - 1}")
        factor = exp_below(epsilon)
        parts = [
            (frozenset(column), to_fraction(weight), to_fraction(weight) * factor)
            for column, weight in zip(columns, weights, strict=True)
        ]
        return cls.from_probabilities(
            [
                [high if row in column else low for column, low, high in parts]
                for row in range(len(inputs))
            ],
            [Neighbours(range(len(inputs)), epsilon)],
            inputs=inputs,
            outputs=[tuple(sorted(set(column))) for column in columns],
            rest=(),
            bits=bits,
        )

    @classmethod
    def from_probabilities(
        cls,
        probabilities: Sequence[Sequence[float | Fraction]] | NDArray[np.float64],
        neighbours: Sequence[Neighbours],
        *,
        inputs: Sequence[Hashable] | None = None,
        outputs: Sequence[Hashable] | None = None,
        rest: Hashable = None,
        bits: int = BITS,
    ) -> Channel:
        """Build a valid channel in proportion to a real-valued table, `[row][column]`.

        Entries are rounded, and raised if a neighbour's entry is too large for them. The
        remainder of each row goes to the output `rest`: one of the outputs, or a new one. The
        further a table is from valid, the more probability `rest` gets.
        """
        rows = cast("Sequence[Sequence[float | Fraction]]", probabilities)
        entries, lacking = round_table(rows, neighbours, _check_bits(bits))
        symbols = list(range(entries.shape[1]) if outputs is None else outputs)
        if rest not in symbols:
            symbols.append(rest)
            entries = np.hstack([entries, np.zeros((len(entries), 1), dtype=object)])
        entries[:, symbols.index(rest)] += np.array(lacking, dtype=object)
        return cls(entries, neighbours, inputs, symbols)

    def audit(self) -> Audit:
        """Compare all neighbouring rows in whole numbers again."""
        return audit(self.table, self.neighbours)

    def probability(self, row: int, column: int) -> Fraction:
        """Return the exact probability of an output symbol for an input class, by number."""
        return Fraction(int(self.table[row, column]), 2**self.bits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; entries are text, since JSON readers may round numbers."""
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "table": [[str(entry) for entry in row] for row in self.table.tolist()],
            "neighbours": [
                {"rows": list(group.rows), "epsilon": format_epsilon(group.epsilon)}
                for group in self.neighbours
            ],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Channel:
        """Read what `to_dict` wrote, and audit the channel again."""
        try:
            # Parsing from text excludes floats.
            table = [[int(str(entry)) for entry in row] for row in plain["table"]]
            neighbours = [
                Neighbours(group["rows"], Fraction(str(group["epsilon"])))
                for group in plain["neighbours"]
            ]
            inputs, outputs = _tuples(plain["inputs"]), _tuples(plain["outputs"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise PrivacyError(
                "a channel in plain data has inputs, outputs, a table of whole numbers and"
                f" neighbours with rows and epsilon; this one is damaged ({type(error).__name__})"
            ) from error
        return cls(table, neighbours, inputs, outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Channel, (self.table, self.neighbours, self.inputs, self.outputs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Channel):
            return NotImplemented
        return self._labelled == other._labelled and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash((self._labelled, self.table.tobytes()))

    @property
    def _labelled(self) -> tuple[Any, ...]:
        return self.neighbours, self.inputs, self.outputs

    def __repr__(self) -> str:
        rows, columns = self.table.shape
        return f"Channel({rows} x {columns} of 2**{self.bits}, audit {self.audit()})"

    def _repr_html_(self) -> str:
        rows, columns = self.inputs[:_SHOWN], self.outputs[:_SHOWN]
        head = "".join(f"<th>{escape(str(symbol))}</th>" for symbol in columns)
        body = "".join(
            f"<tr><th>{escape(str(label))}</th>"
            + "".join(f"<td>{float(self.probability(i, j)):.6g}</td>" for j in range(len(columns)))
            + "</tr>"
            for i, label in enumerate(rows)
        )
        caption = f"<caption>{escape(repr(self))}</caption>"
        return f"<table>{caption}<tr><th></th>{head}</tr>{body}</table>"


def _check_table(table: Rows) -> tuple[NDArray[np.uint64], int]:
    """Return a read-only copy of the entries, and the number of bits of a row's sum."""
    words = _words(table)
    words.setflags(write=False)
    # A sum of 64-bit words could overflow silently; sums of their halves cannot.
    halves = [(words >> np.uint64(32)).sum(axis=1), (words & np.uint64(2**32 - 1)).sum(axis=1)]
    sums = {(high << 32) + low for high, low in zip(*(h.tolist() for h in halves), strict=True)}
    total = sums.pop()
    if sums or total & (total - 1) or not 2 <= total <= 2**BITS:
        raise PrivacyError(f"every row must have the same sum, a power of two from 2 to 2**{BITS}")
    return words, total.bit_length() - 1


def _words(table: Rows) -> NDArray[np.uint64]:
    """Copy the entries; raise PrivacyError unless they are whole numbers in a valid range."""
    try:
        entries: NDArray[Any] = np.asarray(table, dtype=None if _is_words(table) else np.object_)
    except ValueError:
        entries = np.empty(0)
    whole = _is_words(entries) or all(isinstance(e, int | np.integer) for e in entries.flat)
    if not whole or entries.ndim != 2 or not entries.size or not _fit(entries):
        raise PrivacyError(
            f"a channel's table has whole numbers from 0 to 2**{BITS}, as many in each row"
        )
    return entries.astype(np.uint64)


def _is_words(table: Any) -> bool:
    return isinstance(table, np.ndarray) and table.dtype.kind in "iu"


def _fit(entries: NDArray[Any]) -> bool:
    return bool(entries.min() >= 0 and entries.max() <= 2**BITS)


def _check_bits(bits: int) -> int:
    if not 1 <= bits <= BITS:
        raise PrivacyError(f"a channel has 1 to {BITS} bits; got {bits}")
    return bits


def _labels(labels: Iterable[Hashable], number: int, kind: str) -> tuple[Hashable, ...]:
    """Check that labels are distinct and can be written as JSON."""
    given = tuple(labels)
    if not all(map(_plain, given)):
        raise PrivacyError("labels are text, whole numbers, yes or no, None, or tuples of these")
    if len(given) != number or len(set(given)) != number:
        raise PrivacyError(f"{number} {kind} need as many different labels; got {len(given)}")
    return given


def _plain(label: Hashable) -> bool:
    if isinstance(label, tuple):
        return all(map(_plain, label))
    return label is None or isinstance(label, str | int)


def _tuples(labels: Any) -> tuple[Hashable, ...]:
    """Turn nested lists back into tuples."""
    return tuple(_tuples(label) if isinstance(label, list | tuple) else label for label in labels)
