"""What limits give: quality against limits, and the least limit for a quality."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.engines.local import survey_history
from tacit.errors import PlanError
from tacit.planning.limits import find_least_limit, predict_curve
from tacit.privacy.statistics import Statistics
from tacit.progress import ignore_progress
from tacit.spec.specification import Specification
from tests.cli.small_runs import tacit as run_command

SPEC = """
streams: {gps: {subject: who, time: at, unit: s}}
windows: {size: 1 h}
events:
  there: {stream: gps, where: "there"}
  out: {stream: gps, where: "out"}
private: [{pattern: there, epsilon: 2, limit: 8 per day}]
queries: [{name: both, consumer: us, pattern: "AND(there, out)"}]
"""


@pytest.fixture(scope="module")
def history() -> pl.DataFrame:
    """Six days of forty subjects; what they do lasts a few hours."""
    random = np.random.default_rng(1)
    there = np.cumsum(random.random((144, 40)) < 0.2, axis=0) % 2
    window, who = (part.ravel() for part in np.indices(there.shape))
    return pl.DataFrame(
        {
            "who": who,
            "at": window * 3600 + 60,
            "there": there.ravel() == 1,
            "out": random.random(there.size) < 0.7,
        }
    )


@pytest.fixture(scope="module")
def spec() -> Specification:
    return tacit.loads(SPEC)


@pytest.fixture(scope="module")
def statistics(spec: Specification, history: pl.DataFrame) -> list[Statistics]:
    return survey_history(spec, (history,), {}, None, ignore_progress)


def test_quality_grows_with_the_limit(spec: Specification, statistics: list[Statistics]) -> None:
    factors = [Fraction(1, 8), Fraction(1, 2), Fraction(4)]
    points = predict_curve(spec, statistics, factors)
    assert [point.limits["there"] for point in points] == ["4 per day", "32 per day"]
    low, high = (point.expected.quality for point in points)
    assert low + 0.02 < high


def test_the_least_limit_is_enough_and_half_of_it_is_not(
    spec: Specification, statistics: list[Statistics]
) -> None:
    found = find_least_limit(spec, statistics, [0.85])
    assert found.enough
    assert found.point.expected.quality >= 0.85
    (half,) = predict_curve(spec, statistics, [found.point.factor / 2])
    assert half.expected.quality < 0.85


def test_a_quality_beyond_all_limits_names_the_obstacle(
    spec: Specification, history: pl.DataFrame, tmp_path: Path
) -> None:
    found = tacit.least_limit(spec, history, quality=0.9999)
    assert (found.enough, found.obstacle) == (False, "both")
    history.write_parquet(tmp_path / "history.parquet")
    (tmp_path / "spec.yaml").write_text(SPEC)
    options: list[str | Path] = ["--history", tmp_path / "history.parquet", "--least", "limit"]
    shown = run_command("plan", tmp_path / "spec.yaml", "--quality", "0.9999", *options)
    assert shown.exit_code == 1
    assert "both misses its quality whatever the limit" in shown.stdout


def test_predictions_need_memory_and_a_limit(
    spec: Specification, statistics: list[Statistics]
) -> None:
    forgetful = spec.model_copy(update={"memory": False})
    with pytest.raises(PlanError, match="with memory only"):
        predict_curve(forgetful, statistics, [Fraction(1)])
    unlimited = tacit.loads(SPEC.replace(", limit: 8 per day", ""))
    with pytest.raises(PlanError, match="no private pattern has a limit"):
        find_least_limit(unlimited, statistics, [0.5])
