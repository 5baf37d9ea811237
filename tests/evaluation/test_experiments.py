"""Experiments: what is measured, how sure it is, and how a run goes on that was broken off."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tacit
from tacit.errors import StateError
from tacit.evaluation.bands import compute_error_band, compute_ratio_band
from tacit.evaluation.days import COMPARISON as DAY
from tacit.evaluation.experiments import (
    WINDOW_UNIT,
    ExperimentOutcome,
    Home,
    Synthetic,
    Taxi,
    open_results,
    perform,
)
from tacit.evaluation.figures import LOSS, _spread, plot
from tacit.evaluation.home import Homes, load_home_specification
from tacit.evaluation.household_runs import HomeRuns
from tacit.evaluation.measurement import compute_mre, compute_statistics, measure
from tacit.evaluation.methods import (
    COMPARISONS,
    MAIN,
    METHODS,
    PPMS,
    SCORES,
    Method,
    MethodComparison,
    measure_errors,
)
from tacit.evaluation.reports import (
    find_optimal,
    format_report,
    make_ratios,
    make_table,
    to_csv,
)
from tacit.evaluation.synthetic import draw_data_set
from tacit.evaluation.variations import VARIATIONS, Variation, with_drift, with_overlap
from tacit.patterns.tree import elements
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LABELS = [variation.label for variation in VARIATIONS.values()]

ONE, THREE = Fraction(1), Fraction(3)
OPTIMAL = Method("optimal", "posterior")


@dataclass(frozen=True)
class Dice:
    """An experiment that costs nothing: a data set's errors are its number's."""

    name: ClassVar[str] = "dice"
    title: ClassVar[str] = "Dice"
    comparison: ClassVar[MethodComparison] = MAIN
    scores: ClassVar[tuple[str, ...]] = SCORES
    unit: ClassVar[str] = WINDOW_UNIT
    variation: ClassVar[Variation | None] = None
    epsilons: tuple[Fraction, ...] = (ONE, THREE)
    seed: int = 0
    about: str = "Dice."
    asked: list[int] = field(default_factory=list, compare=False)

    def parameters(self) -> dict[str, Any]:
        """What makes another run of it."""
        return {"experiment": "dice", "seed": self.seed, "epsilon": [str(e) for e in self.epsilons]}

    def errors(self, number: int) -> NDArray[np.float64]:
        """Remember that it was asked."""
        self.asked.append(number)
        return np.random.default_rng(number).random((1, len(self.epsilons), len(METHODS), 2))


def thrown(datasets: int = 5) -> ExperimentOutcome:
    dice = Dice()
    return perform(dice, open_results(dice, None, datasets), datasets, processes=1)


# Bands


def test_the_band_of_a_mean_holds_the_true_one_about_95_times_in_100() -> None:
    random = np.random.default_rng(5)
    bands = [compute_error_band(sample) for sample in random.beta(2, 5, (2000, 12))]
    held = np.mean([band.low <= 2 / 7 <= band.high for band in bands])
    assert 0.935 < held < 0.965
    narrower = [
        (b.mean + 0.85 * (b.low - b.mean), b.mean + 0.85 * (b.high - b.mean)) for b in bands
    ]
    assert np.mean([low <= 2 / 7 <= high for low, high in narrower]) < 0.935


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_band_lies_between_0_and_1_and_has_its_mean_inside(errors: list[float]) -> None:
    mean, low, high = compute_error_band(np.array(errors))
    assert 0 <= low <= mean <= high <= 1


def test_one_data_set_says_nothing_about_others() -> None:
    assert compute_error_band(np.array([0.3])) == (0.3, 0.0, 1.0)


def test_pairing_takes_away_what_data_sets_share() -> None:
    random = np.random.default_rng(1)
    others = random.random(50)
    found = compute_ratio_band(0.5 * others + random.normal(0, 0.001, 50), others)
    assert found is not None
    assert found.high - found.low < 0.01
    assert found.low < 0.5 < found.high
    alone = compute_ratio_band(0.5 * random.random(50), others)
    assert alone is not None
    assert alone.high - alone.low > 0.1
    assert compute_ratio_band(others, np.zeros(50)) is None


# What is measured


def test_every_method_is_measured_as_it_would_be_alone() -> None:
    drawn = draw_data_set(3)
    errors = measure_errors(drawn.spec, drawn.history, drawn.test, (ONE, THREE), 3)
    assert errors.shape == (2, len(METHODS), 2 + 5)
    statistics = compute_statistics(drawn.spec, drawn.history)
    for method in PPMS:
        decode = "literal" if method.decode == "literal" else "posterior"
        plan = make_plan(drawn.spec, statistics, method.name, decode, Fraction(3, 10))
        alone = compute_mre(measure(plan, drawn.test, Noise(SeededSource(3))), [0.5] * 5)
        assert errors[1, METHODS.index(method), 0] == alone
    np.testing.assert_allclose(errors[..., 1], errors[..., 2:].mean(axis=-1))
    same = [
        errors[:, METHODS.index(Method(name, "literal"))] for name in ("event-level", "user-level")
    ]
    np.testing.assert_array_equal(same[0], same[1])


def test_a_private_pattern_that_is_drawn_twice_is_declared_once() -> None:
    seeds = (16, 192, 324)  # among the thousand data sets of the results
    drawn = [draw_data_set(seed).spec.checked() for seed in seeds]
    assert [len(spec.private) for spec in drawn] == [2, 2, 2]
    assert all(len(draw_data_set(seed).spec.private) == 3 for seed in range(5))


def test_all_ppms_and_baselines_are_there_in_both_decodings() -> None:
    names = {method.name for method in METHODS}
    assert {"uniform", "adaptive", "optimal", "event-level", "user-level"} < names
    assert {"w-event BD", "w-event BA", "landmark uniform", "landmark adaptive"} < names
    assert len(METHODS) == len(set(METHODS)) == 2 * len(names) + 1 == 27
    assert Method("optimal", "memory") in METHODS


@pytest.mark.soak
def test_streams_of_several_subjects_have_the_errors_of_all_their_windows() -> None:
    """Mechanisms that look at windows alone do not mind whose windows they are."""
    drawn = draw_data_set(4)
    streams = [part.reshape(10, 100, -1) for part in (drawn.history, drawn.test)]
    flat = measure_errors(drawn.spec, drawn.history, drawn.test, (THREE,), 4)
    deep = measure_errors(drawn.spec, streams[0], streams[1], (THREE,), 4)
    alike = [n for n, method in enumerate(METHODS) if method in PPMS or "level" in method.name]
    np.testing.assert_array_equal(flat[:, alike], deep[:, alike])


@pytest.mark.soak
def test_homes_go_through_the_engine_as_by_hand() -> None:
    spec = load_home_specification()
    made = Homes(homes=12, days=2, seed=5)
    turn = made.start + timedelta(days=1)
    tables = {name: pl.DataFrame(table) for name, table in made.tables().items()}
    past: dict[str, Any] = {
        name: frame.filter(pl.col("at") < turn) for name, frame in tables.items()
    }
    later = {name: frame.filter(pl.col("at") >= turn) for name, frame in tables.items()}
    plan = tacit.plan(spec, mechanism="uniform", decode="literal", **past)
    truth = tacit.detect(spec, later).arrow()["detected"].to_numpy()
    found = tacit.run(spec, later, plan=plan, seed=5).arrow()["detected"].to_numpy()
    right = np.count_nonzero(truth & found)
    quality = 0.5 * right / found.sum() + 0.5 * right / truth.sum()
    runs = HomeRuns(12, timedelta(days=2), 5)
    scores = runs.measure_errors(Method("uniform", "literal"), Fraction(2))
    assert len(scores) == 2 + len(spec.queries)
    error = scores[0]
    assert error == pytest.approx(1 - quality, abs=1e-12)
    assert 0 < error < 1


# Variations


@pytest.mark.parametrize("shared", [0, 1, 2, 3])
def test_targets_share_just_so_many_elements_with_a_private_pattern(shared: int) -> None:
    spec = with_overlap(2, shared).spec
    private = [set(elements(pattern)) for pattern in spec.private_patterns]
    for pattern in spec.query_patterns.values():
        assert len(set(elements(pattern))) == 3
        assert len(set(elements(pattern)) & set().union(*private)) == shared
        assert any(len(set(elements(pattern)) & one) == shared for one in private)


def test_drift_moves_rates_as_far_as_it_says() -> None:
    still, half, gone = (with_drift(6, drift) for drift in (0, 0.5, 1))
    np.testing.assert_array_equal(still.test, draw_data_set(6).test)
    np.testing.assert_array_equal(gone.history, draw_data_set(6).history)
    old, new = still.test.mean(axis=0), gone.test.mean(axis=0)
    assert np.abs(old - new).max() > 0.3
    np.testing.assert_allclose(half.test.mean(axis=0), (old + new) / 2, atol=0.07)


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", VARIATIONS)
def test_a_variation_can_be_drawn_for_each_of_its_values(name: str) -> None:
    variation = VARIATIONS[name]
    drawn = [variation.draw(1, value) for value in variation.values]
    told = [
        (len(d.spec.queries), len(d.spec.private), d.spec.queries[0].alpha, repr(d.spec.queries))
        for d in drawn
    ]
    if name == "history":
        assert len({d.test.tobytes() for d in drawn}) == len(drawn)
    else:
        assert len(set(told)) == len(drawn)


# Runs that go on


def test_a_run_does_what_is_left_and_finds_the_same(tmp_path: Path) -> None:
    whole = thrown()
    dice = Dice()
    kept = open_results(dice, tmp_path, 5)
    for number in (3, 0):
        kept.store(number, dice.errors(number))
    dice = Dice()
    resumed = perform(dice, open_results(dice, tmp_path, 5), 5, processes=1)
    assert dice.asked == [1, 2, 4]
    np.testing.assert_array_equal(resumed.errors, whole.errors)
    again = Dice()
    perform(again, open_results(again, tmp_path, 5), 5, processes=1)
    assert again.asked == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("cut", [1, 40, 700])
def test_a_line_that_was_broken_off_is_done_again(tmp_path: Path, cut: int) -> None:
    dice = Dice()
    perform(dice, open_results(dice, tmp_path, 3), 3, processes=1)
    results = tmp_path / "results.jsonl"
    results.write_text(results.read_text()[:-cut])
    again = Dice()
    resumed = perform(again, open_results(again, tmp_path, 3), 3, processes=1)
    assert again.asked == ([2] if cut > 1 else [])
    np.testing.assert_array_equal(resumed.errors, thrown(3).errors)
    third = Dice()
    perform(third, open_results(third, tmp_path, 3), 3, processes=1)
    assert third.asked == []


@pytest.mark.parametrize(
    ("other", "datasets", "difference"),
    [
        (Dice(seed=4), 5, "seed was 0, now 4"),
        (Dice(epsilons=(ONE,)), 5, "epsilon was 1, 3, now 1"),
        (Dice(), 6, "datasets was 5, now 6"),
    ],
)
def test_a_run_with_other_parameters_is_refused_and_the_difference_named(
    tmp_path: Path, other: Dice, datasets: int, difference: str
) -> None:
    open_results(Dice(), tmp_path, 5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StateError, match=difference):
        open_results(other, tmp_path, datasets)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99, "parameters": {}}'])
def test_a_damaged_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StateError, match="damaged or from another version"):
        open_results(Dice(), tmp_path, 5)


def test_parameters_tell_experiments_apart() -> None:
    reports = pl.DataFrame(
        {"taxi_id": [1, 2], "lon": [116.3, 116.4], "lat": [39.9, 39.8]},
        schema_overrides={"taxi_id": pl.Int32},
    ).with_columns(ts=pl.datetime(2008, 2, 2, time_zone="Asia/Shanghai"))
    moved = reports.with_columns(pl.col("lon") + 0.1)
    experiments: list[Synthetic | Taxi | Home] = [
        *(Synthetic(vary=vary) for vary in (None, *VARIATIONS)),
        Synthetic(seed=1), Synthetic((ONE,)), Synthetic(compare="fair"), Home(), Home(homes=5),
        Taxi(), Taxi(reports=reports), Taxi(reports=moved), Taxi(reports=reports, heard=True),
        Taxi(reports=reports, part="test"), Taxi(compare="ablation"),
    ]  # fmt: skip
    told = [json.dumps(experiment.parameters(), sort_keys=True) for experiment in experiments]
    assert len(set(told)) == len(told)


@pytest.mark.soak
def test_processes_find_what_one_process_finds() -> None:
    """`test_reproduce` does it with an experiment that takes longer."""
    seen: list[int] = []
    dice = Dice()
    found = perform(dice, open_results(dice, None, 3), 3, processes=2, progress=seen.append)
    np.testing.assert_array_equal(found.errors, thrown(3).errors)
    assert dice.asked == [], "other processes were asked"
    assert seen == [0, 1, 2, 3]
    assert len(np.unique(found.of(OPTIMAL, THREE))) == 3, "data sets differ"


# What is told


def test_rows_have_the_mean_of_each_method_and_epsilon() -> None:
    outcome = thrown()
    rows = outcome.to_list()
    assert len(rows) == len(METHODS) * 2
    keys = ("method", "decode", "epsilon")
    found = {tuple(row[key] for key in keys): row for row in rows}
    row = found["optimal", "posterior", 3.0]
    assert row["mre"] == pytest.approx(outcome.of(OPTIMAL, THREE).mean(), abs=1e-6)
    assert row["low"] < row["mre"] < row["high"]
    assert row["datasets"] == 5
    assert set(row) == {*keys, "variant", "mre", "low", "high", "macro", "datasets"}
    macro = outcome.of(OPTIMAL, THREE, score="macro")
    assert row["macro"] == pytest.approx(macro.mean(), abs=1e-6)
    assert abs(row["macro"] - row["mre"]) > 1e-3


def test_the_csv_has_the_same_rows() -> None:
    outcome = thrown()
    read = list(csv.DictReader(io.StringIO(to_csv(outcome))))
    assert read == [{key: str(value) for key, value in row.items()} for row in outcome.to_list()]


def test_the_report_has_the_table_the_ratios_and_how_to_read_them() -> None:
    outcome = thrown()
    told = format_report(outcome, "tacit reproduce dice")
    mean = outcome.band(OPTIMAL, THREE).mean
    line = next(line for line in told.splitlines() if line.startswith("| optimal | posterior"))
    assert line.endswith(f"| {mean:.3f} |")
    for words in ("`tacit reproduce dice`", "one subject, one private pattern and one window",
                  "Precision is 1 if nothing is claimed", "95 % confidence"):  # fmt: skip
        assert words in told
    ours, other = find_optimal(outcome), Method("adaptive", "literal")
    ratio = outcome.of(ours, THREE).mean() / outcome.of(other, THREE).mean()
    shown = next(row for row in make_ratios(outcome) if row[0] == "adaptive, literal")
    assert shown[-1].startswith(f"{ratio:.2f} (")


def test_what_is_varied_is_in_rows_and_tables() -> None:
    variation = replace(VARIATIONS["alpha"], values=(0.2, 0.8))
    dice = Dice()
    object.__setattr__(dice, "variation", variation)
    errors = np.random.default_rng(1).random((4, 2, 2, len(METHODS), 2))
    outcome = ExperimentOutcome(dice, errors)
    row = next(
        r for r in outcome.to_list()
        if (r["method"], r["decode"], r["epsilon"], r["value"]) == ("optimal", "posterior", 3, 0.8)
    )  # fmt: skip
    place = outcome.methods.index(OPTIMAL)
    assert row["mre"] == pytest.approx(errors[:, 1, 1, place, 0].mean(), abs=1e-6)
    assert row["vary"] == "alpha"
    assert make_table(outcome)[0] == ("method", "decode", "epsilon", "0.2", "0.8")
    assert "alpha" in format_report(outcome, "tacit")


def test_a_picture_names_every_method_and_is_the_same_each_time(tmp_path: Path) -> None:
    outcome = thrown()
    for name in ("one.svg", "two.svg", "three.png"):
        plot(outcome, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for name in {method.name for method in METHODS}:
        assert text.count(name) >= 2, f"{name} in each panel"
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.svg")), ids=lambda path: path.stem)
def test_the_figures_of_the_documentation_have_the_titles_of_today(path: Path) -> None:
    text = path.read_text("utf-8")
    if path.stem == "counts":
        assert "mean absolute error of a count" in text
        assert "5,000 subjects" in text
        return
    assert LOSS in text
    titles = [panel.title for one in (*COMPARISONS.values(), DAY) for panel in one.panels]
    assert any(title in text for title in [*titles, *LABELS])


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 3)), min_size=1, max_size=9))
def test_names_beside_lines_do_not_lie_upon_each_other(wished: list[tuple[float, int]]) -> None:
    ordered = sorted(wished, reverse=True)
    heights = _spread(ordered, 1.0)
    sizes = [0.042 * lines for _, lines in ordered]
    for (upper, lower), (above, below) in zip(pairwise(heights), pairwise(sizes), strict=True):
        assert upper - lower >= (above + below) / 2 - 1e-9
    assert min(heights) >= 0
