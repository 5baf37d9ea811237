"""The best channel for one context: which mixture of columns, and its table of whole numbers."""

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
from tacit.privacy.columns import best_mixture
from tacit.privacy.distances import (
    Floats,
    Indices,
    contracted,
    distances_between,
    firsts_of,
    mapped,
    tells,
)
from tacit.privacy.rounding import round_table

LARGEST = 64
"""More classes than these are not dealt with."""
_TRACED = 256
"""Among more classes than these, those that need not be told apart are not looked for."""
_REMEMBERED = 1024
"""So many mixtures are kept, each of at most as many numbers as there are pairs of classes."""
_RARE = 1e-12
"""A column that comes more rarely than the likeliest by this factor is left out."""
_IDLE = 1e-12
"""Telling something that is worth less is telling it for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelProblem:
    """What may be told in a context, to whom it must stay hidden, and what it is worth.

    Classes may have the same answers and yet be different: those that others are nearer to.
    """

    answers: NDArray[np.bool_]
    """`[class][query]`: the answers that each class stands for."""
    prior: Floats
    """How likely each class is; sums to 1."""
    neighbours: tuple[Neighbours, ...]
    """Groups of classes that must be hard to tell apart."""
    reward: Floats
    """For each query, the worth of a yes that is true."""
    penalty: Floats
    """For each query, the cost of a yes that is false."""

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
        """`[class][query]`: what a yes gains, times how likely the class is."""
        worth = np.where(self.answers, self.reward, -self.penalty)
        return np.ascontiguousarray(self.prior[:, np.newaxis] * worth)


class Solution(NamedTuple):
    """The best mixture, in floats: fit for planning, not for sampling."""

    columns: Floats
    """`[symbol][class]`: how likely a symbol is in a class."""
    utility: float
    """What is gained in a window on average, if queries are answered yes where that gains."""


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A channel for a context, and how its symbols are read.

    Guarantee: that of the channel, which was audited for the choice's neighbours.
    """

    channel: Channel
    posterior: Floats
    """`[symbol][query]`: how likely the query is true where the symbol came."""
    utility: float
    """What is gained in a window on average with this very table."""


def solve(choice: ChannelProblem) -> Solution:
    """The mixture of lawful columns that is worth most, without a table.

    >>> from fractions import Fraction
    >>> choice = Choice(np.array([[False], [True]]), np.array([0.5, 0.5]),
    ...                 (Neighbours([0, 1], Fraction(1)),), np.ones(1), np.ones(1))
    >>> columns, utility = solve(choice)
    >>> columns.round(6).tolist(), round(utility, 6)
    ([[0.268941, 0.731059], [0.731059, 0.268941]], 0.231059)
    """
    columns, place = _mixture(choice)
    utility = _utility(columns, _summed(choice.gains, place, columns.shape[1]))
    return Solution(columns[:, place], utility)


def design(choice: ChannelProblem) -> Design:
    """The best channel for a choice, audited, and how to read its symbols.

    >>> from fractions import Fraction
    >>> choice = Choice(np.array([[False], [True]]), np.array([0.5, 0.5]),
    ...                 (Neighbours([0, 1], Fraction(1)),), np.ones(1), np.ones(1))
    >>> made = design(choice)
    >>> made.channel
    Channel(2 x 2 of 2**63, audit passed: true epsilon at most 1 per draw)
    >>> made.posterior.round(6).tolist(), round(made.utility, 6)
    ([[0.731059], [0.268941]], 0.231059)
    """
    columns, place = _mixture(choice)
    return read(choice, _tabled(columns, place, choice.neighbours))


def read(choice: ChannelProblem, channel: Channel) -> Design:
    """What the symbols of a channel on a choice's classes tell, and what that is worth."""
    likely = channel.table / 2.0**channel.bits
    joint = choice.prior[:, np.newaxis] * likely
    seen = joint.sum(axis=0)
    # A symbol that the prior rules out is read as if all classes were equally likely.
    joint[:, seen == 0] = likely[:, seen == 0]
    posterior = joint.T @ choice.answers / joint.sum(axis=0)[:, np.newaxis]
    return Design(channel, posterior, _utility(likely.T, choice.gains))


def merge(choice: ChannelProblem, most: int = LARGEST) -> tuple[ChannelProblem, Indices]:
    """Make one class of those that need not be told apart; also the new class of each old one.

    Classes with the same answers are one if all others are equally far from each of them. No
    channel is worth less for that: the average of their rows is as good and as lawful. If more
    than `most` classes remain, all with the same answers are made one, which is lawful still,
    but may be worth less, since what is far from one of them may be near to another.
    """
    same = np.unique(choice.answers, axis=0, return_inverse=True)[1].ravel()
    place = _twins(same, choice.neighbours)
    if place.max() < _TRACED:
        narrowed = _narrowed(choice, place)
        distances = distances_between(narrowed.neighbours, len(narrowed.prior))
        place = _modules(same[firsts_of(place)], distances)[place]
    if place.max() >= most:
        place = same
    return _narrowed(choice, place), place


def _mixture(choice: ChannelProblem) -> tuple[Floats, Indices]:
    """Likelihoods of symbols in classes, where too near ones are one; which one each class is."""
    classes = len(choice.answers)
    if classes > LARGEST:
        raise PrivacyError(
            f"a channel is designed for at most {LARGEST} classes; got {classes}."
            " Group the queries, so that each group has fewer"
        )
    distances = distances_between(choice.neighbours, classes)
    place = contracted(distances)
    firsts = firsts_of(place)
    gains = _summed(choice.gains, place, len(firsts))
    silent = np.ones((1, len(firsts)))
    worth_of_silence, scale = _utility(silent, gains), float(np.abs(gains).sum())
    if np.maximum(gains, 0).sum() <= worth_of_silence + _IDLE * scale:
        return silent, place
    near = np.exp(-distances[firsts][:, firsts])
    mixed = _weighed(near.tobytes(), (gains / scale).tobytes(), len(firsts))
    if not mixed.any() or _utility(mixed, gains) <= worth_of_silence + _IDLE * scale:
        return silent, place
    return mixed[mixed.max(axis=1) > _RARE * mixed.max()], place


@lru_cache(_REMEMBERED)
def _weighed(near: bytes, gains: bytes, classes: int) -> Floats:
    """The columns of the best mixture, each times its weight.

    A planner asks for the same ones over and over: for both decodings, and once more at the end.
    """
    columns, worth, used, weights, well = best_mixture(
        np.frombuffer(near).reshape(classes, classes).copy(),
        np.frombuffer(gains).reshape(classes, -1).copy(),
    )
    if well and np.isfinite(weights).all():
        columns = columns[used]
    else:
        weights = highs(columns, worth)
    mixed: Floats = columns * np.maximum(weights, 0)[:, np.newaxis]
    mixed.flags.writeable = False
    return mixed


def highs(columns: Floats, worth: Floats) -> Floats:
    """The same linear programme by HiGHS, for what the compiled one cannot do."""
    from scipy.optimize import linprog

    solved = linprog(-worth, A_eq=columns.T, b_eq=np.ones(columns.shape[1]), method="highs")
    if solved.x is None:
        # The column of all classes is always there and always feasible.
        return np.asarray((columns == 1).all(axis=1), dtype=np.float64)
    return np.asarray(solved.x, dtype=np.float64)


def _tabled(columns: Floats, place: Indices, neighbours: tuple[Neighbours, ...]) -> Channel:
    """The table of whole numbers; what rounding leaves over goes to the likeliest symbol.

    Classes that are treated as one get the same row, whatever their epsilon.
    """
    groups = mapped(list(filter(tells, neighbours)), place)
    entries, lacking = round_table(columns.T.tolist(), groups, BITS)
    entries[:, int(columns.sum(axis=1).argmax())] += np.array(lacking, dtype=np.object_)
    table = entries.astype(np.uint64)
    return Channel(table[:, table.any(axis=0)][place], neighbours)


def _utility(columns: Floats, gains: Floats) -> float:
    return float(np.maximum(columns @ gains, 0).sum())


def _summed(gains: Floats, place: Indices, number: int) -> Floats:
    total = np.zeros((number, gains.shape[1]))
    np.add.at(total, place, gains)
    return total


def _narrowed(choice: ChannelProblem, place: Indices) -> ChannelProblem:
    firsts = firsts_of(place)
    return ChannelProblem(
        choice.answers[firsts],
        np.bincount(place, choice.prior).astype(np.float64),
        mapped(choice.neighbours, place),
        choice.reward,
        choice.penalty,
    )


def _twins(same: Indices, neighbours: Sequence[Neighbours]) -> Indices:
    """One number for the classes that have the same answers and are in the same groups."""
    groups: list[list[int]] = [[number] for number in same.tolist()]
    for number, group in enumerate(neighbours):
        for row in group.rows:
            groups[row].append(number)
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(tuple(key), len(numbers)) for key in groups])


def _modules(same: Indices, distances: Floats) -> Indices:
    """The fewest classes such that distances between two of them do not depend on the member.

    Begins with a class for each vector of answers and splits those in which members are not
    equally far from something outside; what is never split need not be.
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
