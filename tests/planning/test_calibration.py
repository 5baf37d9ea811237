"""Confidence with memory is right at every hour of the day, not only on average."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.spec.specification import Specification

SPEC = """
streams: {gps: {subject: who, time: at, unit: s}}
windows: {size: 1 h}
events:
  there: {stream: gps, where: "there"}
  out: {stream: gps, where: "out"}
private: [{pattern: there, epsilon: 1}]
queries: [{name: both, consumer: us, pattern: "AND(there, out)"}]
memory: MEMORY
"""
SUBJECTS, DAYS = 80, 12
LEAST = 150
"""Answers that are needed to judge a share."""


@cache
def stream(seed: int) -> pl.DataFrame:
    """Subjects are out and about by day, and what they do lasts a few hours."""
    random = np.random.default_rng(seed)
    hours = np.arange(DAYS * 24) % 24
    usual = np.where((hours >= 8) & (hours < 20), 0.9, 0.05)
    there = np.zeros((len(hours), SUBJECTS), np.bool_)
    for hour, rate in enumerate(usual):
        drawn = random.random(SUBJECTS) < rate
        lasts = random.random(SUBJECTS) < 0.7
        there[hour] = np.where(lasts & (hour > 0), there[hour - 1], drawn)
    window, who = (part.ravel() for part in np.indices(there.shape))
    out = random.random(there.size) < 0.8
    return pl.DataFrame({"who": who, "at": window * 3600 + 60, "there": there.ravel(), "out": out})


def specified(*, memory: bool, limit: bool) -> Specification:
    text = SPEC.replace("MEMORY", str(memory).lower())
    return tacit.loads(
        text.replace("epsilon: 1", "epsilon: 1, limit: 6 per day") if limit else text
    )


def find_gaps(*, memory: bool, ledger: Path | None = None) -> pl.DataFrame:
    """By time of day and tenth of confidence: how far what is stated is from what is true."""
    spec = specified(memory=memory, limit=ledger is not None)
    plan = tacit.plan(spec, stream(1), mechanism="optimal")
    assert plan.has_memory == memory
    told = tacit.run(spec, stream(2), plan=plan, seed=1, ledger=ledger).polars()
    truth = tacit.detect(spec, stream(2)).polars()
    keys = ["window_start", "subject", "query"]
    both = told.join(truth, on=keys, suffix="_true").filter(pl.col("confidence") < 1)
    part = pl.col("window_start").dt.hour() // 4
    found = (
        both.with_columns(
            part.alias("part"),
            (pl.col("confidence") * 10).floor().alias("tenth"),
            (pl.col("detected") == pl.col("detected_true")).alias("right"),
        )
        .group_by("part", "tenth")
        .agg(pl.col("confidence").mean(), pl.col("right").mean(), pl.len().alias("number"))
        .filter(pl.col("number") >= LEAST)
    )
    return found.with_columns((pl.col("confidence") - pl.col("right")).abs().alias("gap"))


@pytest.mark.parametrize(
    "limit", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["every window", "a limit"]
)
def test_with_memory_confidence_is_right_at_every_hour(limit: bool, tmp_path: Path) -> None:
    found = find_gaps(memory=True, ledger=tmp_path / "ledger.db" if limit else None)
    assert found["part"].n_unique() == 6
    assert found["tenth"].n_unique() >= 3
    right, number, gap = (found[name].to_numpy() for name in ("right", "number", "gap"))
    chance = 4 * np.sqrt(right * (1 - right) / number)
    assert (gap <= 0.03 + chance).all(), found


def test_without_memory_it_is_right_on_average_only() -> None:
    found = find_gaps(memory=False)
    stated, right, number = (found[name].to_numpy() for name in ("confidence", "right", "number"))
    assert abs(np.average(stated - right, weights=number)) < 0.03
    assert np.abs(stated - right).max() > 0.15
