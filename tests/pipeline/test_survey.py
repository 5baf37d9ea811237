"""Statistics of history: counts over windows, written out one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from random import Random

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import Name, Pattern
from tacit.pipeline.reader import Input
from tacit.planning.combination_counts import (
    FOLDS,
    MOST_STRETCHES,
    ChosenRows,
    CombinationCounts,
    PositiveCounts,
    Stretches,
)
from tacit.privacy.evidence import Evidence
from tacit.privacy.sampled_evidence import SampledEvidence, WideEvidence
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SPEC = """
version: 1
subjects: [{subjects}]
streams: {{s: {{subject: who, time: at, unit: us}}}}
windows: {{size: 10 us}}
events:
{events}
private:
  - {{pattern: "AND(x, y)", epsilon: 1, subjects: [0, 1, 2, 3, 4]}}
  - {{pattern: "OR(y, z)", epsilon: 2, subjects: [3, 4, 5, 6]}}
  - {{pattern: "OR({wide})", epsilon: 2, subjects: [3, 4, 5, 6]}}
queries:
  - {{name: plain, consumer: c, pattern: "AND(a, b)"}}
  - {{name: there, consumer: c, pattern: "OR(AND(a, x), AND(b, NOT y))"}}
  - {{name: order, consumer: c, pattern: "SEQ(a, x, b)"}}
  - {{name: mixed, consumer: c, pattern: "AND(z, OR(a, SEQ(y, b)))"}}
  - {{name: many, consumer: c, pattern: "OR(AND(a, {wide_and}), AND(b, OR({wide})))"}}
"""
NAMES = ("a", "b", "x", "y", "z", *(f"w{n}" for n in range(7)))
WIDE = [f"w{n}" for n in range(7)]


def specification(subjects: int) -> Specification:
    lines = [f'  {n}: {{stream: s, where: "kind = {k}"}}' for k, n in enumerate(NAMES)]
    return loads(
        SPEC.format(
            subjects=", ".join(map(str, range(subjects))),
            events="\n".join(lines),
            wide=", ".join(WIDE),
            wide_and=", ".join(WIDE[:2]),
        )
    )


def random_frame(rng: Random, subjects: int, rows: int, windows: int) -> pl.DataFrame:
    kinds = [*range(5), *range(5), *range(len(NAMES) + 1)]
    return pl.DataFrame(
        {
            "who": [rng.randrange(subjects) for _ in range(rows)],
            "at": sorted(rng.randrange(10 * windows) for _ in range(rows)),
            "kind": [rng.choice(kinds) for _ in range(rows)],
        }
    )


def tuples(frame: pl.DataFrame, subjects: int) -> dict[tuple[int, int], list[Tuple]]:
    """Every window of every subject; the schedule ends with the last tuple's."""
    found: dict[tuple[int, int], list[Tuple]] = {
        (window, who): []
        for window in range(min(frame["at"]) // 10, max(frame["at"]) // 10 + 1)
        for who in range(subjects)
    }
    for row in frame.iter_rows(named=True):
        kinds = frozenset(NAMES[row["kind"] : row["kind"] + 1])
        found[row["at"] // 10, row["who"]].append(Tuple(row["at"], kinds))
    return found


SUBJECTS = 9
POLICY_OF = [1, 1, 1, 2, 2, 3, 3, 0, 0]
"""No private pattern is everyone's, so number 0 keeps nothing private; then in order of naming."""


@cache
def survey_history() -> tuple[Specification, list[Statistics], dict[int, list[list[Tuple]]]]:
    spec = specification(SUBJECTS)
    frame = random_frame(Random(1), SUBJECTS, 3000, 60)
    statistics = survey(spec, [Input("s", FrameSource(frame, "s"))], literal=True)
    windows: dict[int, list[list[Tuple]]] = defaultdict(list)
    for (_, who), window in tuples(frame, SUBJECTS).items():
        windows[POLICY_OF[who]].append(window)
    return spec, statistics, windows


def public(window: list[Tuple], statistics: Statistics) -> list[Tuple]:
    return [Tuple(t.time, t.types - statistics.policy.private) for t in window]


def values(patterns: list[Pattern] | tuple[Pattern, ...], window: list[Tuple]) -> tuple[bool, ...]:
    return tuple(detect(pattern, window) for pattern in patterns)


@pytest.mark.parametrize("policy", range(4))
def test_windows_and_positives_are_those_of_the_policys_subjects(policy: int) -> None:
    spec, statistics, windows = survey_history()
    found = statistics[policy]
    assert found.windows == len(windows[policy])
    for query, pattern in enumerate(spec.query_patterns.values()):
        assert found.positives[query] == sum(detect(pattern, w) for w in windows[policy])


@pytest.mark.parametrize("policy", range(4))
def test_priors_count_values_by_context(policy: int) -> None:
    _, statistics, windows = survey_history()
    found = statistics[policy]
    assert len(found.priors) == len(found.exposure.components)
    for component, prior, history in zip(
        found.exposure.components, found.priors, found.contexts, strict=True
    ):
        slow = Counter(
            (
                values(component.signals, public(window, found)),
                values([v.atom for v in component.variables], window),
            )
            for window in windows[policy]
        )
        rows = zip(history.signals.tolist(), history.values.tolist(), strict=True)
        keys = [(tuple(signals), tuple(known)) for signals, known in rows]
        assert len(set(keys)) == len(keys)
        assert dict(zip(keys, history.windows, strict=True)) == slow
        assert prior.counts.sum() == len(windows[policy])
        for number, variable in enumerate(component.variables):
            if isinstance(variable.atom, Name):
                seen = sum(detect(variable.atom, window) for window in windows[policy])
                rate = (seen + 0.5) / (len(windows[policy]) + 1)
                assert prior.rates[number] == pytest.approx(rate)


def test_the_rate_of_an_ordered_variable_counts_windows_in_which_it_makes_a_difference() -> None:
    """SEQ(a, x, b) is open where an a comes before a b, and where no more is known."""
    _, statistics, windows = survey_history()
    found = statistics[1]
    for component, prior in zip(found.exposure.components, found.priors, strict=True):
        for number, variable in enumerate(component.variables):
            if str(variable.atom) == "SEQ(a, x, b)":
                (bound,) = [s for s in component.signals if str(s) == "SEQ(a, b)"]
                free = [w for w in windows[1] if detect(bound, public(w, found))]
                seen = sum(detect(variable.atom, window) for window in free)
                assert prior.rates[number] == pytest.approx((seen + 0.5) / (len(free) + 1))
                return
    pytest.fail("there is no such variable")


@pytest.mark.parametrize("policy", [1, 2, 3])
def test_evidence_counts_open_windows_by_context_truth_and_presence(policy: int) -> None:
    _, statistics, windows = survey_history()
    found = statistics[policy]
    assert found.affected
    for part, evidence in zip(found.affected, found.evidence, strict=True):
        slow: Counter[tuple[int, int, int]] = Counter()
        sure = 0
        for window in windows[policy]:
            signals = values(part.signals, public(window, found))
            context = sum(bit << n for n, bit in enumerate(signals))
            truth = detect(part.pattern, window)
            if part.decided[context] >= 0:
                assert truth == bool(part.decided[context])
                sure += truth
                continue
            there = values([Name(name) for name in part.elements], window)
            slow[context, truth, sum(bit << n for n, bit in enumerate(there))] += 1
        assert evidence.elements == part.elements
        assert found.exact[part.query] == sure
        if isinstance(evidence, Evidence):
            keys = np.argwhere(evidence.counts).tolist()
            assert {tuple(key): evidence.counts[tuple(key)] for key in keys} == slow
        else:
            assert isinstance(evidence, WideEvidence)
            bits = evidence.present @ (1 << np.arange(len(part.elements)))
            fast: Counter[tuple[int, int, int]] = Counter()
            for situation, true, held, count in zip(
                evidence.contexts, evidence.truth, bits, evidence.counts, strict=True
            ):
                fast[int(evidence.context_numbers[situation]), int(true), int(held)] += count
            assert fast == slow


@pytest.mark.parametrize("policy", [2, 3])
def test_a_wide_query_is_read_with_what_was_public_in_its_own_window(policy: int) -> None:
    """It asks for presence alone, so that without noise every row is read as what it was."""
    _, statistics, _ = survey_history()
    found = statistics[policy]
    (place,) = [n for n, part in enumerate(found.affected) if part.wide]
    evidence = found.evidence[place]
    assert isinstance(evidence, SampledEvidence)
    assert set(evidence.truth.tolist()) == {True, False}
    read = evidence.read(evidence.present, evidence.contexts)
    assert np.array_equal(read, evidence.truth)
    nothing = evidence.confusion(np.zeros(len(evidence.elements)), "literal")
    assert (nothing.tp, nothing.fp, nothing.fn) == pytest.approx((evidence.positives, 0, 0))


def test_contexts_that_history_did_not_show_have_their_posterior() -> None:
    _, statistics, _ = survey_history()
    for found in statistics[1:]:
        for part, evidence in zip(found.affected, found.evidence, strict=True):
            flips = np.full(len(part.elements), 0.2)
            assert len(evidence.posterior(flips)) == 1 << len(part.signals)


def test_a_history_of_hardly_anything_is_enough_to_count() -> None:
    spec = specification(SUBJECTS)
    frame = pl.DataFrame({"who": [5], "at": [3], "kind": [99]})
    statistics = survey(spec, [Input("s", FrameSource(frame, "s"))], literal=True)
    assert [found.windows for found in statistics] == [2, 3, 2, 2]
    for found in statistics:
        for part, evidence in zip(found.affected, found.evidence, strict=True):
            shares = evidence.posterior(np.full(len(part.elements), 0.3))
            assert np.isfinite(shares).all()


def test_literal_trials_come_near_what_every_draw_of_times_gives() -> None:
    """SEQ(a, x, b) with x there: how often a time between falls, given the public events."""
    _, statistics, windows = survey_history()
    found = statistics[1]
    (place,) = [n for n, part in enumerate(found.affected) if str(part.pattern) == "SEQ(a, x, b)"]
    part, evidence = found.affected[place], found.evidence[place]
    assert isinstance(evidence, Evidence)
    pattern = part.pattern
    (context,) = np.flatnonzero(part.decided < 0).tolist()
    expected: dict[tuple[bool, int], list[float]] = defaultdict(list)
    for window in windows[1]:
        known = public(window, found)
        signals = values(part.signals, known)
        if sum(bit << n for n, bit in enumerate(signals)) != context:
            continue
        begin = min(t.time for t in known) // 10 * 10
        hits = [detect(pattern, [*known, Tuple(begin + k, frozenset("x"))]) for k in range(10)]
        true, held = detect(pattern, window), detect(Name("x"), window)
        expected[true, int(held)].append(float(np.mean(hits)))
    assert evidence.literal[context, :, :, 0].max() < 0.05  # without x it is never read
    for (true, there), shares in expected.items():
        tried = 2 * len(shares)  # of four rounds, half have x
        mean = float(np.mean(shares))
        spread = 5 * np.sqrt(mean * (1 - mean) / tried) + 2 / tried
        assert abs(evidence.literal[context, int(true), there, 1] - mean) < spread
    assert len(expected) == 3


@pytest.mark.parametrize("width", [0, 1, 16, 17, 48, 49, 64, 65, 130])
def test_tallies_count_rows_as_a_counter_does(width: int) -> None:
    rng = np.random.default_rng(width)
    tally = CombinationCounts([2 * n for n in range(width)])
    slow: Counter[tuple[bool, ...]] = Counter()
    patterns = rng.random((5, max(1, 2 * width))) < 0.5
    for windows in (1, 4, 0):
        plain = patterns[rng.integers(0, 5, (windows, 100))].transpose(0, 2, 1)
        padded = np.ones((windows, plain.shape[1], 128), np.bool_)
        padded[:, :, :100] = plain
        bits = np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)
        chosen = rng.random((windows, 100)) < 0.7
        tally.add(bits, ChosenRows.choose(chosen))
        for window, who in np.argwhere(chosen):
            slow[tuple(plain[window, 0 : 2 * width : 2, who].tolist())] += 1
    rows, counts = tally.rows()
    assert dict(zip(map(tuple, rows.tolist()), counts, strict=True)) == slow


def test_tallies_put_rows_together_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.planning.combination_counts._PENDING", 3)
    tally = CombinationCounts([0, 1])
    bits = np.arange(2, dtype=np.uint64).reshape(1, 2, 1)
    for _ in range(10):
        tally.add(bits, ChosenRows.choose(np.ones((1, 64), np.bool_)))
    rows, counts = tally.rows()
    assert rows.tolist() == [[False, False], [False, True]]
    assert counts.tolist() == [630.0, 10.0]


@pytest.mark.parametrize(("batches", "slots"), [([1], 100), ([1] * 7, 5), ([3, 0, 50, 1, 200], 3)])
def test_stretches_are_of_equal_length_and_counts_are_those_of_each(
    batches: list[int], slots: int
) -> None:
    rng = np.random.default_rng(len(batches))
    stretches, tally = Stretches(), CombinationCounts([0, 1])
    plain = rng.random((sum(batches), 2, slots)) < 0.4
    padded = np.zeros((len(plain), 2, 64 * -(-slots // 64)), np.bool_)
    padded[:, :, :slots] = plain
    bits = np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)
    begin = 0
    for windows in batches:
        part = bits[begin : begin + windows]
        chosen = np.ones((windows, slots), np.bool_)
        tally.add(part, ChosenRows.choose(chosen, stretches.divide(windows, slots)))
        begin += windows
    folds = stretches.folds()
    assert len(folds) <= MOST_STRETCHES
    assert folds.tolist() == sorted(folds)
    rows, counts = tally.rows(folds)
    assert counts.shape[1] == FOLDS
    assert counts.sum() == len(plain) * slots
    assert counts.sum(axis=0).max() <= 2.5 * len(plain) * slots / FOLDS
    # Windows and subjects in order, cut where the sizes of the folds say.
    keys = plain.transpose(0, 2, 1).reshape(-1, 2)
    ends = np.cumsum(counts.sum(axis=0)).astype(int)
    for fold, own in enumerate(np.split(keys, ends[:-1])):
        slow = Counter(map(tuple, own.tolist()))
        found = {tuple(r): n for r, n in zip(rows.tolist(), counts[:, fold], strict=True) if n}
        assert found == slow


@pytest.mark.parametrize("slots", [1, 64, 100, 130])
def test_positives_are_those_of_the_combinations(slots: int) -> None:
    random = np.random.default_rng(slots)
    columns = [0, 3, 1]
    stretches, positives = Stretches(), PositiveCounts(columns)
    tallies = [CombinationCounts([column]) for column in columns]
    for windows in (1, 1, 3, 40):
        bits = random.integers(0, 1 << 63, (windows, 5, -(-slots // 64)), dtype=np.uint64)
        division = stretches.divide(windows, slots)
        rows = ChosenRows.choose(random.random((windows, slots)) < 0.7, division)
        positives.add(bits, rows)
        for tally in tallies:
            tally.add(bits, rows)
    folds = stretches.folds()
    total, found = positives.count(folds)
    for own, tally in zip(found, tallies, strict=True):
        values, counts = tally.rows(folds)
        assert own.tolist() == counts[values[:, 0]].sum(axis=0).tolist()
        assert total.tolist() == counts.sum(axis=0).tolist()


def test_statistics_of_folds_add_up_and_training_is_without_what_is_held_out() -> None:
    _, statistics, _ = survey_history()
    for found in statistics:
        assert len(found.folds) == FOLDS
        assert sum(fold.held_out.windows for fold in found.folds) == found.windows
        for fold in found.folds:
            assert fold.training.windows + fold.held_out.windows == found.windows
            both = fold.training.positives + fold.held_out.positives
            assert np.array_equal(both, found.positives)
            for whole, one, other in zip(
                found.evidence, fold.training.evidence, fold.held_out.evidence, strict=True
            ):
                assert one.positives + other.positives == whole.positives
            for prior in fold.training.priors:
                assert prior.counts.sum() == fold.training.windows
