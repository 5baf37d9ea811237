"""Methods of one's own: from a Python file, measured like all others."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from tacit.errors import OptionError, StateError
from tacit.evaluation.experiments import (
    Synthetic,
    Taxi,
    generate_reports,
    open_results,
    perform,
)
from tacit.evaluation.figures import plot
from tacit.evaluation.methods import MAIN, Method, add_own, measure_errors
from tacit.evaluation.own_methods import load_methods
from tacit.evaluation.synthetic import draw_data_set
from tacit.evaluation.taxi_areas import make_taxi_data_set
from tests.cli.small_runs import tacit

FILE = '''
"""Methods to compare."""
from dataclasses import dataclass
import numpy as np
from tacit.evaluation.baselines import EventLevel
from tacit.evaluation.baselines.decoding import compute_true_answers

def true_answers(presence, setting, epsilon, random):
    return compute_true_answers(setting, presence)

@dataclass
class Never:
    name: str = "never"
    def answer(self, presence, setting, epsilon, random):
        return np.zeros((len(setting.queries), *presence.shape[:-1]), bool)

METHODS = [true_answers, Never(), EventLevel("mine")]
'''
ONE = (Fraction(1),)
MINE = (
    Method("true answers", "own"),
    Method("never", "own"),
    Method("mine", "literal"),
    Method("mine", "posterior"),
)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with methods."""
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_methods_of_a_file_are_measured_like_all_others(mine: Path) -> None:
    data = draw_data_set(3)
    known = (Method("event-level", "literal"), Method("event-level", "posterior"))
    errors = measure_errors(data.spec, data.history, data.test, ONE, 3, (*MINE, *known), mine)
    assert errors.shape[:2] == (1, 6)
    true, never, *own = errors[0, :4, 0]
    assert true == 0
    assert never == 1
    assert own == errors[0, 4:, 0].tolist(), "the same baseline under another name"


def test_a_panel_compares_them_with_optimal_and_the_prior(mine: Path) -> None:
    comparison = add_own(MAIN, mine)
    panel = comparison.panels[-1]
    assert panel.title == "methods of mine.py"
    labels = [label for label, _ in panel.methods]
    assert labels == ["optimal", "prior alone", "true answers", "never", "mine, literal",
                      "mine, posterior"]  # fmt: skip
    assert comparison.own == ("true answers", "never", "mine")
    assert add_own(MAIN, None) is MAIN


def test_an_experiment_draws_and_keeps_them(mine: Path, tmp_path: Path) -> None:
    experiment = Synthetic(ONE, own=mine)
    kept = open_results(experiment, tmp_path / "out", 1)
    outcome = perform(experiment, kept, 1, processes=1)
    assert float(outcome.of(MINE[0], ONE[0]).mean()) == 0
    assert len(plot(outcome).axes) == 3
    mine.write_text(FILE.replace('"never"', '"seldom"'))
    load_methods.cache_clear()
    with pytest.raises(StateError, match=r"method was mine\.py"):
        open_results(experiment, tmp_path / "out", 1)


@pytest.mark.soak
def test_subjects_have_answers_of_their_own(mine: Path) -> None:
    assert MINE[0] in Taxi(ONE, own=mine).comparison.methods
    drawn = make_taxi_data_set(generate_reports(8, 2, 1), 1)
    history, test = drawn.history_streams, drawn.test_streams
    errors = measure_errors(drawn.spec, history, test, ONE, 1, MINE, mine)
    assert errors[0, 0, 0] == 0
    assert 0 < errors[0, 2, 0] <= 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("METHODS = []", "needs a list METHODS"),
        ("x = 1", "needs a list METHODS"),
        ("METHODS = [3]", "must be a function"),
        ("import nothing_like_this", "fails: ModuleNotFoundError"),
        ("def optimal(*a): pass\nMETHODS = [optimal]", "is taken"),
        ("def a(*b): pass\nMETHODS = [a, a]", "is taken"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(OptionError, match=told):
        load_methods(path)


def test_answers_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def short(p, s, e, r): return p[:, 0]\nMETHODS = [short]")
    data = draw_data_set(3)
    with pytest.raises(OptionError, match="must return booleans of the shape"):
        measure_errors(data.spec, data.history, data.test, ONE, 3, (Method("short", "own"),), path)
    with pytest.raises(OptionError, match="cannot be read"):
        load_methods(tmp_path / "none.py")


def test_the_command_takes_a_file(mine: Path, tmp_path: Path) -> None:
    quick: list[str | Path] = [
        "reproduce",
        "synthetic",
        "--datasets",
        "1",
        "--epsilon",
        "1",
        "--method",
        mine,
    ]
    shown = tacit(*quick, "--json")
    assert shown.exit_code == 0, shown.output
    rows = {(row["method"], row["decode"]): row["mre"] for row in json.loads(shown.stdout)}
    assert rows["true answers", "own"] == 0
    assert rows["mine", "literal"] == rows["event-level", "literal"]
    refused = tacit(*quick[:-1], tmp_path / "none.py")
    assert refused.exit_code == 2
    assert "cannot be read" in refused.stderr
