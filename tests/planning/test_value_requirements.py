"""A required quality of a query with several values: how often the value is right."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import tacit
from tests.longer import longer

SPEC = """
streams: {{gps: {{subject: taxi, time: at}}}}
windows: {{size: 1 h}}
memory: false
events:
  hospital: {{stream: gps, where: "place = 1"}}
  station: {{stream: gps, where: "place = 2"}}
private: [{{pattern: hospital, epsilon: 20}}]
queries:
  - {{name: place, consumer: city, {asked}, quality: {quality}}}
"""
KINDS = {
    "one_of": "one_of: {hospital: hospital, station: station}",
    "times": "times: hospital, up_to: 2",
}


MECHANISMS = {"one_of": "uniform", "times": "optimal"}
"""Uniform does not tell how often something occurs."""


def drive(seed: int, windows: int = 250) -> pl.DataFrame:
    """Where ten taxis are: two reports an hour."""
    chance = np.random.default_rng(seed)
    window, taxi, half = np.indices((windows, 10, 2)).reshape(3, -1)
    place = chance.choice(3, len(window), p=[0.5, 0.3, 0.2])
    at = 3600 * window + 1800 * half
    return pl.DataFrame({"taxi": taxi, "at": at, "place": place}).sort("at")


@pytest.mark.parametrize("kind", ["one_of", *longer("times")])
def test_the_least_epsilon_makes_values_right_as_often_as_required(kind: str) -> None:
    found: dict[float, Fraction] = {}
    for quality in (0.85, 0.95):
        spec = tacit.loads(SPEC.format(asked=KINDS[kind], quality=quality))
        least = tacit.least_epsilon(spec, drive(1), mechanism=MECHANISMS[kind])
        assert least.plan is not None
        assert least.total is not None
        (value,) = least.plan.values
        assert value.least_accuracy >= quality
        found[quality] = least.total
        fresh = drive(2)
        true = tacit.detect(spec, fresh).wide()["place"]
        told = tacit.run(spec, fresh, plan=least.plan, seed=1).wide()["place"]
        right = (true.cast(pl.String) == told.cast(pl.String)).to_numpy().mean()
        assert right >= quality - 0.02
    assert found[0.95] > found[0.85]


def test_a_plan_says_whether_values_are_right_often_enough() -> None:
    spec = tacit.loads(SPEC.format(asked=KINDS["one_of"], quality=1))
    least = tacit.least_epsilon(spec, drive(1, 100), mechanism="uniform")
    assert least.obstacle in (None, "place")
    with pytest.raises(tacit.errors.SpecificationError, match="'quality' is for queries with"):
        tacit.loads(SPEC.format(asked="count: hospital", quality=0.9))
