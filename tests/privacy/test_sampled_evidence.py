"""Simulated evidence agrees with tables, is the same each time, and stands for all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.privacy.evidence import Decode, Evidence, Floats, cut_cells
from tacit.privacy.sampled_evidence import Bits, SampledEvidence

NAMES = ("a", "b", "c", "d")


def read(noisy: Bits, contexts: NDArray[np.int64]) -> Bits:
    """In context 0: a and b. In context 1: c or not d."""
    return np.where(contexts == 0, noisy[:, 0] & noisy[:, 1], noisy[:, 2] | ~noisy[:, 3])


def both() -> tuple[SampledEvidence, Evidence]:
    """The same windows, as rows and as tables."""
    generator = np.random.default_rng(3)
    x = np.arange(16)
    present = ((x[:, None] >> np.arange(4)) & 1).astype(bool)
    windows = generator.gamma(0.7, 100, (2, 16))
    table = np.stack([read(present, np.full(16, context)) for context in (0, 1)])
    rows = SampledEvidence(
        NAMES,
        np.repeat([0, 1], 16),
        np.tile(present, (2, 1)),
        table.ravel(),
        windows.ravel(),
        read,
        draws=4096,
    )
    return rows, Evidence.of_presence(NAMES, table, windows)


FLIPS = np.array([0.2, 0.1, 0.3, 0.4])


def test_literal_answers_are_expected_as_tables_say_and_other_flips_are_told_apart() -> None:
    sampled, tabled = both()
    found = sampled.confusion(FLIPS, "literal")
    expected = tabled.confusion(FLIPS, "literal")
    total = tabled.counts.sum()
    for part in ("tp", "fp", "fn"):
        assert getattr(found, part) == pytest.approx(getattr(expected, part), abs=0.004 * total)
    other = tabled.confusion(FLIPS + 0.05, "literal")
    assert abs(found.tp - other.tp) > 0.01 * total
    assert found.tp + found.fn == pytest.approx(tabled.positives) == sampled.positives


def test_the_posterior_is_the_share_of_truth_behind_an_answer() -> None:
    sampled, tabled = both()
    answered = np.zeros((2, 2, 2))
    seen = tabled.counts[..., None] * _chances()
    for context in (0, 1):
        for y in range(16):
            answer = int(tabled.literal[context, y])
            answered[context, :, answer] += seen[context, :, :, y].sum(axis=1)
    expected = answered[:, 1] / answered.sum(axis=1)
    posterior = sampled.posterior(FLIPS)
    assert posterior == pytest.approx(expected, abs=0.02)
    confidence = sampled.confidence(FLIPS)
    assert confidence[:, 1].tolist() == posterior[:, 1].tolist()
    assert confidence[:, 0] == pytest.approx(1 - posterior[:, 0])


def _chances() -> Floats:
    x = np.arange(16)
    bits = ((x[:, None] ^ x)[..., None] >> np.arange(4)) & 1
    chances: Floats = np.where(bits, FLIPS, 1 - FLIPS).prod(axis=-1)
    return chances


def test_the_same_seed_gives_the_same_figures_and_another_gives_others() -> None:
    few = replace(both()[0], draws=64)
    assert few.confusion(FLIPS, "literal") == few.confusion(FLIPS, "literal")
    assert few.confusion(FLIPS, "literal") != replace(few, seed=2).confusion(FLIPS, "literal")
    same = [few.outline(8).expect_claims(FLIPS, "literal", 0.5) for _ in range(2)]
    assert same[0] == same[1]


def test_the_posterior_decoder_says_yes_from_the_threshold_on() -> None:
    sampled, _ = both()
    threshold, quality = cut_cells([sampled.cells(FLIPS)], 0.5)
    found = sampled.confusion(FLIPS, "posterior", threshold)
    assert found.quality(0.5) == pytest.approx(quality)
    assert quality >= sampled.confusion(FLIPS, "literal").quality(0.5) - 1e-9
    everything = sampled.confusion(FLIPS, "posterior", 1e-12)
    assert everything.fn == 0
    assert everything.tp == pytest.approx(sampled.positives)


def test_of_many_rows_the_heaviest_of_either_truth_stand_for_all() -> None:
    rows = 10_000
    generator = np.random.default_rng(5)
    present = generator.random((rows, 9)) < 0.5
    truth = np.arange(rows) % 100 == 0
    counts = np.where(truth, 1.0, 2.0)
    counts[::7] += 10
    sampled = SampledEvidence(
        tuple("abcdefghi"),
        np.zeros(rows, np.int64),
        present,
        truth,
        counts,
        lambda noisy, contexts: np.asarray(noisy.all(axis=1)),
        most_rows=500,
        draws=4,
    )
    chosen = sampled._chosen
    assert len(chosen) == 500
    assert truth[chosen].sum() == 100
    assert (counts[chosen][~truth[chosen]] == 12).all()
    found = sampled.confusion(np.full(9, 0.3), "literal")
    assert found.tp + found.fn == pytest.approx(counts[truth].sum())
    # Rows of the same weight are chosen at random, not by their order.
    assert chosen[~truth[chosen]].max() > 9000


def test_rows_that_do_not_fit_are_refused_and_none_at_all_are_fine() -> None:
    nothing = np.zeros(0)
    with pytest.raises(PlanError):
        SampledEvidence(
            ("a",), np.zeros(1, np.int64), np.ones((1, 2), bool), np.ones(1, bool), np.ones(1), read
        )
    empty = SampledEvidence(
        NAMES, nothing.astype(np.int64), np.ones((0, 4), bool), nothing.astype(bool), nothing, read
    )
    assert empty.posterior(FLIPS).tolist() == [[0.5, 0.5]]
    assert empty.confusion(FLIPS, "literal").quality(0.5) == 1
    assert empty.outline(16).expect_claims(FLIPS, "posterior", 0.5) == (0, 0)


@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_an_outline_says_nearly_what_tables_say_under_any_flips(decode: Decode) -> None:
    sampled, tabled = both()
    outline = sampled.outline(16)
    total = tabled.counts.sum()
    for flips in (FLIPS, np.array([0.01, 0.5, 0.3, 0.05]), np.full(4, 0.45)):
        known = tabled if decode == "literal" else sampled
        expected = known.confusion(flips, decode, 0.6)
        right, wrong = outline.expect_claims(flips, decode, 0.6)
        assert right == pytest.approx(expected.tp, abs=0.005 * total)
        assert wrong == pytest.approx(expected.fp, abs=0.005 * total)


def test_an_outline_of_too_many_noises_to_list_is_near_what_simulation_says() -> None:
    generator = np.random.default_rng(11)
    present = generator.random((3000, 14)) < 0.6
    sampled = SampledEvidence(
        tuple("abcdefghijklmn"),
        generator.integers(0, 40, 3000),
        present,
        present[:, :3].all(axis=1) | (present[:, 3:].sum(axis=1) > 8),
        np.ones(3000),
        lambda noisy, contexts: noisy[:, :3].all(axis=1) | (noisy[:, 3:].sum(axis=1) > 8),
    )
    outline = sampled.outline(4096)
    assert outline.totals.shape == (17, 2)
    assert outline.totals.sum() == 3000
    for flips in (np.full(14, 0.3), np.repeat([0.05, 0.45], [4, 10])):
        expected = sampled.confusion(flips, "literal")
        right, wrong = outline.expect_claims(flips, "literal", 0.5)
        assert right == pytest.approx(expected.tp, abs=60)
        assert wrong == pytest.approx(expected.fp, abs=60)
    right, wrong = outline.expect_claims(np.zeros(14), "literal", 0.5)
    assert right == pytest.approx(sampled.positives)
    assert wrong == 0
