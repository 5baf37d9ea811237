"""Design the best channel for one context: a mixture of columns, rounded to whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.privacy.channel_audit import Neighbours, check_rows
from tacit.privacy.channels import BITS, Channel
from tacit.privacy.columns import find_best_mixture
from tacit.privacy.distances import (
    Floats,
    Indices,
    compute_distances,
    contract,
    distinguishes,
    find_firsts,
    map_groups,
)
from tacit.privacy.rounding import round_table

LARGEST = 64
"""The largest number of classes of a channel."""
_TRACED = 256
"""With more classes than this, equivalent classes are not searched for by distance."""
_REMEMBERED = 1024
"""The number of cached mixtures; each has at most as many numbers as pairs of classes."""
_RARE = 1e-12
"""A column is left out if it is rarer than the most likely one by this factor."""
_IDLE = 1e-12
"""A relative utility below this does not justify releasing anything."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelProblem:
    """The input of a channel's design: classes, their prior, neighbours, rewards and penalties.

    Different classes may have the same answers, if their distances to other classes differ.
    """

    answers: NDArray[np.bool_]
    """`[class][query]`: the true answers in each class."""
    prior: Floats
    """The probability of each class; sums to 1."""
    neighbours: tuple[Neighbours, ...]
    """Groups of classes that must be within an epsilon of each other."""
    reward: Floats
    """For each query, the gain of a true yes."""
    penalty: Floats
    """For each query, the cost of a false yes."""

    def __post_init__(self) -> None:
        if self.answers.ndim != 2 or self.answers.dtype != np.bool_ or not len(self.answers):
            raise PrivacyError("answers are yes or no, for one class or more and each query")
        classes, queries = self.answers.shape
        if self.prior.shape != (classes,):
            raise PrivacyError(f"{classes} classes need as many probabilities")
        if self.reward.shape != (queries,) or self.penalty.shape != (queries,):
            raise PrivacyError(f"{queries} queries need as many rewards and penalties")
        for numbers in (self.prior, self.reward, self.penalty):
            if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
                raise PrivacyError(
                    "probabilities, rewards and penalties must be finite and not negative"
                )
        if abs(self.prior.sum() - 1) > 1e-6:
            raise PrivacyError(f"the prior must sum to 1; it sums to {self.prior.sum():g}")
        check_rows(self.neighbours, classes)

    @property
    def gains(self) -> Floats:
        """`[class][query]`: the gain of a yes, times the probability of the class."""
        worth = np.where(self.answers, self.reward, -self.penalty)
        return np.ascontiguousarray(self.prior[:, np.newaxis] * worth)


class Solution(NamedTuple):
    """The best mixture, in floats: for planning only, not for sampling."""

    columns: Floats
    """`[symbol][class]`: the probability of a symbol in a class."""
    utility: float
    """The expected gain per window, if queries are answered yes where that gains."""


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A channel for a context, and the posteriors of its symbols.

    Guarantee: that of the channel, which was audited for the problem's neighbours.
    """

    channel: Channel
    posterior: Floats
    """`[symbol][query]`: the probability that the query is true, given the symbol."""
    utility: float
    """The expected gain per window with exactly this table."""


def solve(choice: ChannelProblem) -> Solution:
    """Find the mixture of valid columns with the highest utility, without a table.

    >>> from fractions import Fraction
    >>> choice = ChannelProblem(np.array([[False], [True]]), np.array([0.5, 0.5]),
    ...                 (Neighbours([0, 1], Fraction(1)),), np.ones(1), np.ones(1))
    >>> columns, utility = solve(choice)
    >>> columns.round(6).tolist(), round(utility, 6)
    ([[0.268941, 0.731059], [0.731059, 0.268941]], 0.231059)
    """
    columns, place = _mix_columns(choice)
    utility = _utility(columns, _sum_gains(choice.gains, place, columns.shape[1]))
    return Solution(columns[:, place], utility)


def design(choice: ChannelProblem) -> Design:
    """Design the best channel for a problem, audited, and the posteriors of its symbols.

    >>> from fractions import Fraction
    >>> choice = ChannelProblem(np.array([[False], [True]]), np.array([0.5, 0.5]),
    ...                 (Neighbours([0, 1], Fraction(1)),), np.ones(1), np.ones(1))
    >>> made = design(choice)
    >>> made.channel
    Channel(2 x 2 of 2**63, audit passed: true epsilon at most 1 per draw)
    >>> made.posterior.round(6).tolist(), round(made.utility, 6)
    ([[0.731059], [0.268941]], 0.231059)
    """
    columns, place = _mix_columns(choice)
    return evaluate_channel(choice, _build_channel(columns, place, choice.neighbours))


def evaluate_channel(choice: ChannelProblem, channel: Channel) -> Design:
    """Compute the posteriors and the utility of a channel on a problem's classes."""
    likely = channel.table / 2.0**channel.bits
    joint = choice.prior[:, np.newaxis] * likely
    seen = joint.sum(axis=0)
    # For a symbol that is impossible under the prior, assume equally likely classes.
    joint[:, seen == 0] = likely[:, seen == 0]
    posterior = joint.T @ choice.answers / joint.sum(axis=0)[:, np.newaxis]
    return Design(channel, posterior, _utility(likely.T, choice.gains))


def merge(choice: ChannelProblem, most: int = LARGEST) -> tuple[ChannelProblem, Indices]:
    """Merge equivalent classes; also return the new class of each old one.

    Classes with the same answers are merged if every other class is equally far from each of
    them. This costs no utility: the average of their rows is as good and still valid. If more
    than `most` classes remain, all classes with the same answers are merged. This is still valid,
    but may cost utility, since a class that is far from one of them may be near another.
    """
    place = find_equivalent(choice.answers, choice.neighbours, most)
    return narrow(choice, place), place


def find_equivalent(
    answers: NDArray[np.bool_], neighbours: Sequence[Neighbours], most: int = LARGEST
) -> Indices:
    """Return the new class of each class if equivalent classes are merged."""
    same = np.unique(answers, axis=0, return_inverse=True)[1].ravel()
    place = _group_twins(same, neighbours)
    if place.max() < _TRACED:
        distances = compute_distances(map_groups(neighbours, place), int(place.max()) + 1)
        place = _split_modules(same[find_firsts(place)], distances)[place]
    return same if place.max() >= most else place


def _mix_columns(choice: ChannelProblem) -> tuple[Floats, Indices]:
    """Return symbol probabilities by merged class, and the merged class of each class."""
    classes = len(choice.answers)
    if classes > LARGEST:
        raise PrivacyError(
            f"a channel is designed for at most {LARGEST} classes; got {classes}."
            " Group the queries, so that each group has fewer"
        )
    distances = compute_distances(choice.neighbours, classes)
    place = contract(distances)
    firsts = find_firsts(place)
    gains = _sum_gains(choice.gains, place, len(firsts))
    silent = np.ones((1, len(firsts)))
    worth_of_silence, scale = _utility(silent, gains), float(np.abs(gains).sum())
    if np.maximum(gains, 0).sum() <= worth_of_silence + _IDLE * scale:
        return silent, place
    near = np.exp(-distances[firsts][:, firsts])
    mixed = _solve_cached(near.tobytes(), (gains / scale).tobytes(), len(firsts))
    if not mixed.any() or _utility(mixed, gains) <= worth_of_silence + _IDLE * scale:
        return silent, place
    return mixed[mixed.max(axis=1) > _RARE * mixed.max()], place


@lru_cache(_REMEMBERED)
def _solve_cached(near: bytes, gains: bytes, classes: int) -> Floats:
    """Return the columns of the best mixture, each times its weight.

    Results are cached: a planner solves the same problem for both decodings and at the end.
    """
    columns, worth, used, weights, well = find_best_mixture(
        np.frombuffer(near).reshape(classes, classes).copy(),
        np.frombuffer(gains).reshape(classes, -1).copy(),
    )
    if well and np.isfinite(weights).all():
        columns = columns[used]
    else:
        weights = solve_with_highs(columns, worth)
    mixed: Floats = columns * np.maximum(weights, 0)[:, np.newaxis]
    mixed.flags.writeable = False
    return mixed


def solve_with_highs(columns: Floats, worth: Floats) -> Floats:
    """Solve the linear programme with HiGHS, if the compiled solver failed."""
    from scipy.optimize import linprog

    solved = linprog(-worth, A_eq=columns.T, b_eq=np.ones(columns.shape[1]), method="highs")
    if solved.x is None:
        # The column of all classes is always present and feasible.
        return np.asarray((columns == 1).all(axis=1), dtype=np.float64)
    return np.asarray(solved.x, dtype=np.float64)


def _build_channel(columns: Floats, place: Indices, neighbours: tuple[Neighbours, ...]) -> Channel:
    """Build the channel; the rounding remainder goes to the most likely symbol.

    Merged classes get the same row, whatever their epsilon.
    """
    groups = map_groups(list(filter(distinguishes, neighbours)), place)
    entries, lacking = round_table(columns.T.tolist(), groups, BITS)
    entries[:, int(columns.sum(axis=1).argmax())] += np.array(lacking, dtype=np.object_)
    table = entries.astype(np.uint64)
    return Channel(table[:, table.any(axis=0)][place], neighbours)


def _utility(columns: Floats, gains: Floats) -> float:
    return float(np.maximum(columns @ gains, 0).sum())


def _sum_gains(gains: Floats, place: Indices, number: int) -> Floats:
    total = np.zeros((number, gains.shape[1]))
    np.add.at(total, place, gains)
    return total


def narrow(choice: ChannelProblem, place: Indices) -> ChannelProblem:
    """Return the problem with merged classes, given the new class of each."""
    firsts = find_firsts(place)
    return ChannelProblem(
        choice.answers[firsts],
        np.bincount(place, choice.prior).astype(np.float64),
        map_groups(choice.neighbours, place),
        choice.reward,
        choice.penalty,
    )


def _group_twins(same: Indices, neighbours: Sequence[Neighbours]) -> Indices:
    """Number the classes so that those with equal answers and equal groups share a number."""
    groups: list[list[int]] = [[number] for number in same.tolist()]
    for number, group in enumerate(neighbours):
        for row in group.rows:
            groups[row].append(number)
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(tuple(key), len(numbers)) for key in groups])


def _split_modules(same: Indices, distances: Floats) -> Indices:
    """Return the coarsest partition in which distances between parts do not depend on members.

    Start with a part for each vector of answers, and split parts whose members have different
    distances to a class outside, until none is left.
    """
    rounded = distances.round(9)
    place, number = same, 0
    while place.max() + 1 > number:
        number = int(place.max()) + 1
        numbers: dict[tuple[int, bytes], int] = {}
        place = np.array(
            [
                numbers.setdefault((own, rounded[row, place != own].tobytes()), len(numbers))
                for row, own in enumerate(place.tolist())
            ]
        )
    return place
