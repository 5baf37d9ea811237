"""Literal and posterior decoding of noisy presence, the same for all baselines.

A posterior decoder uses what is public: how noisy a release is, when it was only repeated, and
what history says. It takes a query's noisy elements, a number y, and weights each true x by how
often history has it and how likely the noise turns it into y.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.memory import MemoryDecoder, make_memory_decoder
from tacit.evaluation.baselines.releases import Amount, Baseline, NoisyPresence
from tacit.evaluation.baselines.setting import Floats, Presence, QueryTable, Setting
from tacit.privacy.evidence import STRENGTH, DecoderCells, cut_cells, divide
from tacit.privacy.quality import Confusion, micro_alpha

Decoding: TypeAlias = Literal["literal", "posterior", "memory"]
"""How a release is decoded; memory is the posterior given earlier windows too."""
WITHOUT_MEMORY: Final[tuple[Decoding, ...]] = ("literal", "posterior")


@dataclass(frozen=True, slots=True, eq=False)
class BaselineDecoder:
    """For each query and grade, the noisy presences y for which the answer is yes."""

    setting: Setting
    yes: tuple[NDArray[np.bool_], ...]
    """For each query, `[grade][y]`."""

    def answer(self, release: NoisyPresence) -> NDArray[np.bool_]:
        """Return the answers `[query][window]`, or `[query][subject][window]`."""
        grades = release.grades
        return _stack(
            [
                table[grades, asked.read(release.bits)]
                for table, asked in zip(self.yes, self.setting.asked, strict=True)
            ],
            grades.shape,
        )


def make_literal_decoder(setting: Setting) -> BaselineDecoder:
    """Make a decoder that treats noisy presence as true."""
    tables = tuple(np.broadcast_to(asked.table, (256, len(asked.table))) for asked in setting.asked)
    return BaselineDecoder(setting, tables)


def make_posterior_decoder(
    baseline: Baseline, setting: Setting, epsilon: Amount, random: np.random.Generator
) -> BaselineDecoder:
    """Make a decoder that answers yes if a query is likely enough, for the best Q on history.

    The baseline is run on history, to learn how often it repeats a release and how much a
    repeated one reveals. This is post-processing: it costs no privacy.
    """
    tried = baseline.release(setting.history, setting, epsilon, random)
    shares = np.bincount(tried.grades.ravel(), minlength=len(tried.flips)).astype(np.float64)
    shares /= max(1.0, shares.sum())
    channels = _channels(tried, setting.history)
    found = [_cells(asked, channels, shares) for asked in setting.asked]
    flat = [DecoderCells(*(part.ravel() for part in cells)) for cells in found]
    threshold, _ = cut_cells(flat, micro_alpha(setting.alphas))
    return BaselineDecoder(setting, tuple(cells.posterior >= threshold for cells in found))


def compute_true_answers(setting: Setting, presence: Presence) -> NDArray[np.bool_]:
    """Compute the true answers `[query][window]`, or `[query][subject][window]`."""
    setting.streams(presence)
    answers = [asked.table[asked.read(presence)] for asked in setting.asked]
    return _stack(answers, presence.shape[:-1])


def measure(
    baseline: Baseline,
    setting: Setting,
    presence: Presence,
    epsilon: Amount,
    random: np.random.Generator,
    decodings: Collection[Decoding] = WITHOUT_MEMORY,
) -> dict[Decoding, Confusion[Floats]]:
    """Count the errors of one release with each decoding, for each query."""
    truth = compute_true_answers(setting, presence)
    release = baseline.release(presence, setting, epsilon, random)
    decoders: dict[Decoding, BaselineDecoder | MemoryDecoder] = {}
    if "literal" in decodings:
        decoders["literal"] = make_literal_decoder(setting)
    if "posterior" in decodings:
        decoders["posterior"] = make_posterior_decoder(baseline, setting, epsilon, random)
    if "memory" in decodings:
        decoders["memory"] = make_memory_decoder(baseline, setting, epsilon, random)
    return {decode: compare(truth, decoder.answer(release)) for decode, decoder in decoders.items()}


def compare(truth: NDArray[np.bool_], found: NDArray[np.bool_]) -> Confusion[Floats]:
    """Count errors for each query."""
    if truth.shape != found.shape:
        raise PrivacyError(f"answers of shape {found.shape} cannot be compared with {truth.shape}")

    def count(where: NDArray[np.bool_]) -> Floats:
        return np.asarray(np.count_nonzero(where, axis=tuple(range(1, where.ndim))), np.float64)

    right, claimed, positives = count(truth & found), count(found), count(truth)
    return Confusion(right, claimed - right, positives - right)


def _stack(answers: list[NDArray[np.bool_]], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    return np.stack(answers) if answers else np.zeros((0, *shape), np.bool_)


def _channels(tried: NoisyPresence, truth: Presence) -> Floats:
    """Compute the probability that a bit x is released as y, `[grade][type][x][y]`.

    Known probabilities are used directly. How repeated bits relate to the true ones is learned,
    as the covariance of the two. It is 0, and the bits are ignored, if they never change.
    """
    flips = tried.flips
    channels = np.stack([1 - flips, flips, flips, 1 - flips], axis=-1)
    repeated = tried.grades == 0
    bits, positives = tried.bits[repeated], truth[repeated]
    both, ones, true = (
        np.count_nonzero(part, axis=0).astype(np.float64)
        for part in (bits & positives, bits, positives)
    )
    count = len(bits)
    claimed, rate = (ones + 0.5) / (count + 1), (true + 0.5) / (count + 1)
    shared = (both - ones * true / max(1, count)) / (count + STRENGTH)
    present = np.clip(claimed + shared / rate, 0.0, 1.0)
    absent = np.clip(claimed - shared / (1 - rate), 0.0, 1.0)
    learned = np.stack([1 - absent, absent, 1 - present, present], axis=-1)
    channels[0] = np.where(np.isnan(flips[0])[:, None], learned, channels[0])
    return channels.reshape(*flips.shape, 2, 2)


def _cells(asked: QueryTable, channels: Floats, shares: Floats) -> DecoderCells:
    """Compute the probability that the query is true, and expected counts, `[grade][y]`."""
    grades = len(shares)
    add_noise = np.repeat(asked.weights.reshape(4, 1, -1), grades, axis=1)
    for place, column in enumerate(asked.columns):
        parts = add_noise.reshape(4, grades, -1, 2, 2**place)
        add_noise = np.einsum("qgaxb,gxy->qgayb", parts, channels[:, column]).reshape(
            add_noise.shape
        )
    true, true_seen, false, false_seen = add_noise
    rate = float(true[0].sum() / (true[0] + false[0]).sum())
    return DecoderCells(
        divide(true, true + false, rate), true_seen * shares[:, None], false_seen * shares[:, None]
    )
