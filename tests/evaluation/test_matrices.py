"""Mechanisms on plain boolean matrices: the engine's own answers, without the engine's input."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import tacit
from tacit.errors import OptionError, PatternError, PlanError, TacitError
from tacit.evaluation.measurement import answer
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource

RANDOM = np.random.default_rng(1)
PAST, NOW = RANDOM.random((2, 4000, 4)) < [0.5, 0.4, 0.3, 0.6]
ASKED: dict[str, Any] = {
    "private": {"AND(e1, e2)": 1, "e3": 0.5},
    "queries": {"one": "AND(e1, e4)", "two": "OR(e2, e3)", "exact": "e4"},
}


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal", "auto"])
def test_answers_are_those_of_the_plan_in_the_engine(mechanism: str) -> None:
    found = tacit.protect_matrix(NOW, **ASKED, history=PAST, mechanism=mechanism, seed=5)
    wanted = answer(found.plan, NOW, Noise(SeededSource(5)))
    assert (found.detected == wanted.T).all()
    assert found.queries == ("one", "two", "exact")
    assert (found.detected[:, 2] == NOW[:, 3]).all()
    assert ((found.confidence >= 0.5 - 1e-9) | (mechanism == "uniform")).mean() > 0.5
    assert (found.confidence[:, 2] == 1).all()
    assert tacit.audit(found.plan).passed


def test_confidences_are_the_share_of_right_answers() -> None:
    found = tacit.protect_matrix(NOW, **ASKED, history=PAST, seed=2)
    truth = NOW[:, 1] | NOW[:, 2]
    right = found.detected[:, 1] == truth
    assert float(right.mean()) == pytest.approx(float(found.confidence[:, 1].mean()), abs=0.03)


def test_a_single_event_is_flipped_as_often_as_epsilon_says() -> None:
    """The rate of randomised response is accepted, and a nearby one is not."""
    rows = np.zeros((40_000, 1), bool)
    found = tacit.protect_matrix(
        rows, private={"e1": 1}, queries={"q": "e1"}, mechanism="uniform", decode="literal"
    )
    rate = float(found.detected.mean())
    assert found.private
    assert abs(rate - 1 / (1 + exp(1))) < 0.01
    assert abs(rate - 1 / (1 + exp(1.1))) > 0.01


def test_frames_name_their_event_types() -> None:
    names = ["a", "b", "c", "d"]
    asked: dict[str, Any] = {"private": {"AND(a, b)": 1}, "queries": {"q": "OR(b, c)"}}
    plain = tacit.protect_matrix(NOW, **asked, types=names, history=PAST, seed=3)
    for kind in (pl.DataFrame, pd.DataFrame):
        columns = {name: NOW[:, number] for number, name in enumerate(names)}
        past = {name: PAST[:, number] for number, name in enumerate(names)}
        found = tacit.protect_matrix(kind(columns), **asked, history=kind(past), seed=3)
        assert (found.detected == plain.detected).all()
    assert plain.polars().columns == ["q"]
    assert "NOT PRIVATE" in repr(plain)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PatternError, match="no times"):
        tacit.protect_matrix(NOW, private={"e1": 1}, queries={"q": "SEQ(e1, e2)"}, history=PAST)
    with pytest.raises(OptionError, match="expected booleans"):
        tacit.protect_matrix(NOW.astype(int), **ASKED, history=PAST)
    with pytest.raises(OptionError, match="expected booleans"):
        tacit.protect_matrix(NOW, **ASKED, history=PAST[:, :2])
    with pytest.raises(OptionError, match="expected the columns"):
        tacit.protect_matrix(NOW, **ASKED, history=pl.DataFrame(PAST, ["a", "b", "c", "d"]))
    with pytest.raises(PlanError, match="needs history"):
        tacit.protect_matrix(NOW, **ASKED)
    wrong: list[dict[str, Any]] = [
        {"mechanism": "best"},
        {"queries": {"q": "AND(e1, e9)"}},
        {"queries": {"q": "AND(e1,"}},
        {"private": {"e1": -1}},
    ]
    for asked in wrong:
        with pytest.raises(TacitError):
            tacit.protect_matrix(NOW, **ASKED | asked, history=PAST)
