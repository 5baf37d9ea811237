"""The prior of a component's windows, estimated from history or given by the user.

A prior affects only the quality of answers, never privacy: any prior gives a valid channel.

Contexts are put into groups by a binary tree over their signals, so that contexts that occur once
share what is known about similar ones (`prior_tree` grows it). In a group, the probability of the
variables' values is its share of windows, smoothed towards that of the larger group above it in
the tree, and so on up to the product of the base rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError

Bits = NDArray[np.bool_]
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAF: Final = -1
"""The signal of a node that is a group."""


@dataclass(frozen=True)
class Prior:
    """Base rates of variables, a tree that groups contexts, and the windows of each group.

    Nodes are numbered so that the branch of contexts without a node's signal comes right after
    the node. Groups are the leaves, in the order of their numbers.
    """

    rates: Floats
    """For each variable of the component, the probability that it is true where it is open."""
    width: int
    """The number of signals of a context."""
    splits: Whole
    """`[node]`: the signal that decides between the node's two branches; -1 at a leaf."""
    bounds: Whole
    """The rows of group g are those from `bounds[g]` to `bounds[g + 1]`."""
    values: Bits
    """`[row][variable]`: the values of the variables."""
    counts: Floats
    """`[row]`: the number of windows."""
    strength: float = 4.0
    """The number of windows that the larger group counts for in each smaller one."""
    leaves_only: bool = False
    """Whether groups are smoothed towards the base rates at once, as in plans of old versions."""
    _known: dict[tuple[int, tuple[int, ...]], Floats] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_rates(cls, rates: Floats, signals: int) -> Prior:
        """Build a prior without history."""
        return cls(
            np.clip(rates, 1e-6, 1 - 1e-6),
            signals,
            np.array([LEAF]),
            np.zeros(2, np.int64),
            np.empty((0, len(rates)), np.bool_),
            np.empty(0),
        )

    @classmethod
    def from_contexts(
        cls, rates: Floats, signals: Bits, values: Bits, counts: Floats, strength: float
    ) -> Prior:
        """Build a prior with a group for each context, given as rows of windows."""
        splits: list[int] = []
        order: list[Whole] = []
        pending = [np.arange(len(counts))]
        while pending:
            rows = pending.pop()
            mixed = np.flatnonzero((signals[rows] != signals[rows[:1]]).any(axis=0))
            if len(mixed):
                splits.append(int(mixed[0]))
                there = signals[rows, mixed[0]]
                pending += [rows[there], rows[~there]]
            else:
                splits.append(LEAF)
                order.append(rows)
        sizes = [len(rows) for rows in order]
        rows = np.concatenate(order)
        return cls(
            rates,
            signals.shape[1],
            np.array(splits),
            np.cumsum([0, *sizes]),
            values[rows],
            counts[rows],
            strength,
            leaves_only=True,
        )

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.bounds) - 1

    @cached_property
    def _tree(self) -> tuple[list[int], list[int], list[list[tuple[int, int]]]]:
        """The branch with each node's signal; the group of each leaf; the rows of its ancestors.

        The rows of a group are listed after those of the larger groups that contain it.
        """
        right, group = [LEAF] * len(self.splits), [LEAF] * len(self.splits)
        parents: list[int] = []
        above = [LEAF] * len(self.splits)
        first = [0] * len(self.splits)
        last = [0] * len(self.splits)
        found = 0
        for node, split in enumerate(self.splits.tolist()):
            if node:
                parent = parents.pop()
                above[node] = parent
                if parent + 1 != node:
                    right[parent] = node
            first[node] = found
            if split == LEAF:
                group[node] = found
                found += 1
            else:
                parents += [node, node]
        for node in range(len(self.splits) - 1, -1, -1):
            last[node] = group[node] if group[node] >= 0 else last[right[node]]
        levels: list[list[tuple[int, int]]] = []
        for node, number in enumerate(group):
            if number < 0:
                continue
            path = []
            while node >= 0:
                path.append((int(self.bounds[first[node]]), int(self.bounds[last[node] + 1])))
                node = LEAF if self.leaves_only else above[node]
            levels.append(path[::-1])
        return right, group, levels

    def group(self, signals: Bits) -> Whole:
        """Return the group of each context, given as `signals[context][signal]`."""
        right, group, _ = (np.array(part, np.int64) for part in (*self._tree[:2], ()))
        nodes = np.zeros(len(signals), np.int64)
        inner = np.arange(len(signals)) if self.splits[0] >= 0 else np.empty(0, np.int64)
        while len(inner):
            here = nodes[inner]
            there = signals[inner, self.splits[here]]
            nodes[inner] = np.where(there, right[here], here + 1)
            inner = inner[self.splits[nodes[inner]] >= 0]
        return group[nodes]

    def choices(self, group: int, variables: Sequence[int]) -> Floats:
        """Return the probability of each choice of values of some variables, in a group."""
        key = group, tuple(variables)
        if key not in self._known:
            self._known[key] = self._mix(group, list(variables))
        return self._known[key]

    def choice_probabilities(self, signals: Bits, variables: Sequence[int]) -> Floats:
        """Return the probability of each choice of values of some variables, in a context.

        In choice n, the variable at place i has the value of n's bit i.
        """
        right, group, _ = self._tree
        node = 0
        while (split := int(self.splits[node])) >= 0:
            node = right[node] if signals[split] else node + 1
        return self.choices(group[node], variables)

    def _mix(self, group: int, variables: list[int]) -> Floats:
        """Start from base rates, and add the windows of smaller and smaller groups."""
        places = np.arange(len(variables))
        bits = ((np.arange(1 << len(variables))[:, np.newaxis] >> places) & 1).astype(np.bool_)
        rates = self.rates[variables]
        mixed: Floats = np.where(bits, rates, 1 - rates).prod(axis=1)
        for begin, end in self._tree[2][group]:
            found = self._count(begin, end, variables)
            mixed = (found + self.strength * mixed) / (found.sum() + self.strength)
        return mixed

    def _count(self, begin: int, end: int, variables: list[int]) -> Floats:
        """Return the number of windows of each choice, in some rows."""
        seen = self.values[begin:end, variables] @ (1 << np.arange(len(variables)))
        found = np.bincount(seen, self.counts[begin:end], 1 << len(variables))
        return found.astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that can be written as JSON."""
        plain = {
            "rates": self.rates.tolist(),
            "strength": self.strength,
            "widths": [self.width, len(self.rates)],
            "splits": self.splits.tolist(),
            "rows": np.diff(self.bounds).tolist(),
            "values": np.packbits(self.values, axis=1).tobytes().hex(),
            "counts": [int(count) if count == int(count) else count for count in self.counts],
        }
        return plain | ({"leaves_only": True} if self.leaves_only else {})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Prior:
        """Read what `to_dict` wrote; raise PlanError if it is damaged."""
        try:
            signals, variables = map(int, plain["widths"])
            rates = np.array(plain["rates"], np.float64)
            counts = np.array(plain["counts"], np.float64)
            strength = float(plain["strength"])
            if "signals" in plain:
                contexts = _unpack_rows("".join(plain["signals"]), len(counts), signals)
                values = _unpack_rows("".join(plain["values"]), len(counts), variables)
                prior = cls.from_contexts(rates, contexts, values, counts, strength)
            else:
                prior = cls(
                    rates,
                    signals,
                    np.array(plain["splits"], np.int64),
                    np.cumsum([0, *plain["rows"]], dtype=np.int64),
                    _unpack_rows(plain["values"], len(counts), variables),
                    counts,
                    strength,
                    bool(plain.get("leaves_only", False)),
                )
            prior._check()
            return prior
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PlanError("the plan's prior is damaged; make a new plan") from error

    def _check(self) -> None:
        """Raise ValueError if shapes do not match or numbers are out of range."""
        rows, variables = self.values.shape
        if self.rates.shape != (variables,) or not ((self.rates > 0) & (self.rates < 1)).all():
            raise ValueError("rates")
        if (
            self.counts.shape != (rows,)
            or self.bounds[-1] != rows
            or (np.diff(self.bounds) < 0).any()
        ):
            raise ValueError("rows")
        if not (np.isfinite(self.counts) & (self.counts >= 0)).all():
            raise ValueError("counts")
        if not 0 < self.strength < np.inf:
            raise ValueError("strength")
        if not ((self.splits >= LEAF) & (self.splits < self.width)).all():
            raise ValueError("splits")
        # Every branch must end: at each node, more branches are open than nodes have come.
        still_open = 1 + np.cumsum(np.where(self.splits == LEAF, -1, 1))
        if (still_open[:-1] <= 0).any() or still_open[-1] != 0:
            raise ValueError("tree")
        if (self.splits == LEAF).sum() != self.groups:
            raise ValueError("groups")


def _unpack_rows(text: str, rows: int, width: int) -> Bits:
    octets = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(rows, -(-width // 8))
    return np.unpackbits(octets, axis=1, count=width).astype(np.bool_)
