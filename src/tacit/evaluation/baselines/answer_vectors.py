"""Pattern-level rivals: randomised response on answers instead of events.

Given a window's public events, private events matter only through the answers to the open
queries. These mechanisms randomise the vector of answers. Queries form groups: two queries are in
the same group if they share a private pattern, or patterns that share an element. A change of one
private pattern's elements then changes the answers of one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.decoding import Decoding
from tacit.evaluation.baselines.releases import Amount, check_epsilon
from tacit.evaluation.baselines.setting import Floats, Presence, Setting
from tacit.privacy.evidence import STRENGTH, DecoderCells, cut_cells, divide
from tacit.privacy.quality import micro_alpha

_MOST_TYPES: Final = 16
Numbers = NDArray[np.int64]


class AnswerResponse(Protocol):
    """A mechanism that randomises answers."""

    @property
    def name(self) -> str:
        """Its name in tables and figures."""

    def channel(self, vectors: Numbers, epsilon: float) -> tuple[Numbers, Floats]:
        """Return the released vectors, and `[vector][released]`: the probability of each.

        A vector is a number: bit i is the answer to the group's i-th query.
        """


@dataclass(frozen=True, slots=True)
class VectorResponse:
    """Release the vector of answers by k-ary randomised response.

    Guarantee: pattern-level epsilon-DP.
    Neighbours: windows that differ anywhere inside a pattern's elements.
    Why: with K possible vectors the true one is released with probability
    exp(epsilon)/(exp(epsilon) + K - 1) and each other one with 1/(exp(epsilon) + K - 1). Which
    vectors are possible depends on public events alone.
    Spends: epsilon in each window in which something is open.
    Source: Kairouz, Oh, Viswanath 2014 (k-ary randomised response).
    """

    name: str = "answers, k-ary response"
    uses_epsilon: ClassVar[bool] = True

    def channel(self, vectors: Numbers, epsilon: float) -> tuple[Numbers, Floats]:
        """Keep a vector, or replace it by any other one."""
        other = np.exp(-epsilon)
        chances = np.where(np.eye(len(vectors), dtype=np.bool_), 1.0, other)
        return vectors, chances / (1 + (len(vectors) - 1) * other)


@dataclass(frozen=True, slots=True)
class SplitResponse:
    """Release each answer by randomised response, with an even share of epsilon.

    Guarantee: pattern-level epsilon-DP.
    Neighbours: windows that differ anywhere inside a pattern's elements.
    Why: of n open queries each answer has a ratio of at most exp(epsilon/n), and n of them
    multiply. Which queries are open depends on public events alone.
    Spends: epsilon in each window in which something is open.
    Source: Warner 1965, with sequential composition.
    """

    name: str = "answers, epsilon split"
    uses_epsilon: ClassVar[bool] = True

    def channel(self, vectors: Numbers, epsilon: float) -> tuple[Numbers, Floats]:
        """Flip the bits in which the vectors differ."""
        differ = int(np.bitwise_or.reduce(vectors ^ vectors[0]))
        places = [place for place in range(62) if differ >> place & 1]
        released = np.array([int(vectors[0]) & ~differ])
        for place in places:
            released = np.concatenate([released, released | 1 << place])
        flips = np.bitwise_count(vectors[:, None] ^ released)
        chance = 1 / (1 + np.exp(epsilon / max(1, len(places))))
        return released, chance**flips * (1 - chance) ** (len(places) - flips)


@dataclass(frozen=True, eq=False)
class QueryGroup:
    """Queries whose answers are randomised together."""

    setting: Setting
    queries: tuple[int, ...]

    @cached_property
    def private(self) -> list[int]:
        """The numbers of the private event types in its queries."""
        return [column for column in self._columns if column in self._all_private]

    @cached_property
    def public(self) -> list[int]:
        """The numbers of the public event types in its queries."""
        return [column for column in self._columns if column not in self._all_private]

    @cached_property
    def _columns(self) -> list[int]:
        return sorted({c for q in self.queries for c in self.setting.asked[q].columns})

    @cached_property
    def _all_private(self) -> set[int]:
        return set(self.setting.private_columns.tolist())

    def compute_vectors(self, presence: Presence) -> Numbers:
        """Compute the vector of true answers in each window."""
        vectors = np.zeros(presence.shape[:-1], np.int64)
        for place, query in enumerate(self.queries):
            asked = self.setting.asked[query]
            vectors |= asked.table[asked.read(presence)].astype(np.int64) << place
        return vectors

    def split_contexts(self, presence: Presence) -> Iterator[tuple[Numbers, NDArray[np.intp]]]:
        """Yield the possible vectors of each context, and the windows that have it."""
        public = presence[:, self.public]
        rows, which = np.unique(public, axis=0, return_inverse=True)
        if len(self.private) > _MOST_TYPES:
            raise PrivacyError(f"answers of more than {_MOST_TYPES} private event types")
        choices = 1 << len(self.private)
        windows = np.zeros((len(rows), choices, presence.shape[1]), np.bool_)
        windows[:, :, self.public] = rows[:, None]
        for place, column in enumerate(self.private):
            windows[:, :, column] = np.arange(choices) >> place & 1
        found: dict[tuple[int, ...], list[int]] = {}
        for row, vectors in enumerate(self.compute_vectors(windows)):
            found.setdefault(tuple(np.unique(vectors).tolist()), []).append(row)
        for possible, those in found.items():
            here = np.isin(which.reshape(-1), those)
            yield np.array(possible, np.int64), np.flatnonzero(here)


@dataclass(frozen=True, slots=True, eq=False)
class _AnsweredContext:
    """A context of a group: what was drawn in the windows to answer, and what it reveals."""

    windows: NDArray[np.intp]
    drawn: Numbers
    """The number of the released vector in each window."""
    released: Numbers
    cells: list[DecoderCells]
    """For each query of the group, by released vector."""


def answer_vectors(
    response: AnswerResponse,
    setting: Setting,
    presence: Presence,
    epsilon: Amount,
    random: np.random.Generator,
) -> dict[Decoding, NDArray[np.bool_]]:
    """Return the answers `[query][window]` of each decoding; windows of all subjects in a row.

    The prior of a context's vectors is how often history has them, where every possible vector
    counts as a few more windows.
    """
    amount, types = check_epsilon(epsilon), len(setting.types)
    windows = setting.streams(presence).reshape(-1, types)
    past = setting.streams(setting.history).reshape(-1, types)
    groups = group_queries(setting)
    drawn = [_draw(response, group, past, windows, amount, random) for group in groups]
    touched = {query for group in groups for query in group.queries}
    exact = sum(
        float(asked.windows[asked.table].sum())
        for query, asked in enumerate(setting.asked)
        if query not in touched
    )
    every = [cells for contexts in drawn for context in contexts for cells in context.cells]
    threshold, _ = cut_cells(every, micro_alpha(setting.alphas), exact)
    literal = np.zeros((len(setting.asked), len(windows)), np.bool_)
    for query, asked in enumerate(setting.asked):
        if query not in touched:
            literal[query] = asked.table[asked.read(windows)]
    posterior = literal.copy()
    for group, contexts in zip(groups, drawn, strict=True):
        for context in contexts:
            for place, query in enumerate(group.queries):
                says = (context.released >> place & 1).astype(np.bool_)
                likely = context.cells[place].posterior >= threshold
                literal[query, context.windows] = says[context.drawn]
                posterior[query, context.windows] = likely[context.drawn]
    return {"literal": literal, "posterior": posterior}


def group_queries(setting: Setting) -> list[QueryGroup]:
    """Group the queries that private events can change."""
    groups: list[tuple[set[int], set[int]]] = []
    private = [{setting.types.index(name) for name in pattern} for pattern in setting.private]
    both = [(columns, set[int]()) for columns in private]
    both += [(set(asked.columns), {query}) for query, asked in enumerate(setting.asked)]
    everything = set(setting.private_columns.tolist())
    for columns, queries in both:
        touched = columns & everything
        if not touched:
            continue
        apart = [group for group in groups if group[0].isdisjoint(touched)]
        joined = [group for group in groups if not group[0].isdisjoint(touched)]
        merged = (touched.union(*(g[0] for g in joined)), queries.union(*(g[1] for g in joined)))
        groups = [*apart, merged]
    return [QueryGroup(setting, tuple(sorted(queries))) for _, queries in groups if queries]


def _draw(
    response: AnswerResponse,
    group: QueryGroup,
    past: Presence,
    windows: Presence,
    epsilon: float,
    random: np.random.Generator,
) -> list[_AnsweredContext]:
    both = np.concatenate([past, windows])
    vectors = group.compute_vectors(both)
    return [
        _draw_context(response, group, possible, vectors, here, len(past), epsilon, random)
        for possible, here in group.split_contexts(both)
    ]


def _draw_context(
    response: AnswerResponse,
    group: QueryGroup,
    possible: Numbers,
    vectors: Numbers,
    here: NDArray[np.intp],
    past: int,
    epsilon: float,
    random: np.random.Generator,
) -> _AnsweredContext:
    released, chances = response.channel(possible, epsilon)
    classes = np.searchsorted(possible, vectors[here])
    later = here >= past
    counts = np.bincount(classes[~later], minlength=len(possible)).astype(np.float64)
    cumulative = chances.cumsum(axis=1)[classes[later]]
    luck = random.random((len(cumulative), 1)) * cumulative[:, -1:]
    drawn = np.minimum((luck >= cumulative).sum(axis=1), len(released) - 1)
    prior = counts + STRENGTH / len(possible)
    cells = []
    for place in range(len(group.queries)):
        true = (possible >> place & 1).astype(np.bool_)
        likely = divide((prior * true) @ chances, prior @ chances, 0.5)
        cells.append(DecoderCells(likely, (counts * true) @ chances, (counts * ~true) @ chances))
    return _AnsweredContext(here[later] - past, drawn, released, cells)


ANSWER_RESPONSES: Final[Sequence[VectorResponse | SplitResponse]] = (
    VectorResponse(),
    SplitResponse(),
)
