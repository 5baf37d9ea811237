"""The experiment over a day: everyone has the same epsilon per day.

The w-event baselines have w = a day of windows, which is what they were made for. Ours have a
limit per day, divided among windows by the engine's spending policies, with memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.evaluation.baselines import PriorAlone, make_daily, measure
from tacit.evaluation.experiments import (
    describe_reports,
    generate_reports,
    identify_reports,
    list_parameters,
)
from tacit.evaluation.household_runs import make_home_days
from tacit.evaluation.measurement import compute_scores
from tacit.evaluation.methods import PRIOR, SCORES, Method, MethodComparison, Panel
from tacit.evaluation.spending import POLICIES, Day
from tacit.evaluation.taxi_areas import WINDOWS_IN_A_DAY, make_taxi_data_set
from tacit.evaluation.tdrive import TaxiPart, select_taxis
from tacit.privacy.quality import Confusion

Floats = NDArray[np.float64]

DAY_EPSILONS: Final = tuple(map(Fraction, (5, 10, 20, 50, 100, 200)))
_PUBLISHED, _FAIR = "as published", "private types, randomised response"
_NAMES: Final = tuple(baseline.name for baseline in make_daily(2, published=True))
_OURS: Final = tuple(
    Method("optimal", "memory" if policy.memory else "posterior", policy.name)
    for policy in POLICIES
)


def _panel(title: str, *others: Method) -> Panel:
    ours = ((f"optimal, {method.variant}", method) for method in _OURS)
    prior = () if PRIOR.name in (one.name for one in others) else ((PRIOR.name, PRIOR),)
    return Panel(title, (*ours, *prior, *((one.name, one) for one in others)))


COMPARISON: Final = MethodComparison(
    "day",
    (
        _panel(
            "w-event baselines as published",
            *(Method(name, "posterior", _PUBLISHED) for name in _NAMES),
        ),
        _panel(
            "private event types, randomised response",
            *(Method(name, "posterior", _FAIR) for name in _NAMES),
        ),
        _panel(
            "private types, randomised response, memory",
            Method(PRIOR.name, "memory"),
            *(Method(name, "memory", _FAIR) for name in _NAMES),
        ),
    ),
)


@dataclass(frozen=True)
class DayExperiment:
    """Error against epsilon per day, on taxis or in smart homes."""

    name: ClassVar[str] = "day"
    scores: ClassVar[tuple[str, ...]] = SCORES
    unit: ClassVar[str] = "one subject, one private pattern and one day"
    variation: ClassVar[None] = None
    comparison: ClassVar[MethodComparison] = COMPARISON
    source: Literal["t-drive", "trips", "homes"] = "trips"
    epsilons: tuple[Fraction, ...] = DAY_EPSILONS
    seed: int = 0
    reports: pl.DataFrame | None = field(default=None, repr=False)
    """Reports of T-Drive."""
    part: TaxiPart = "all"
    subjects: int = 100
    """The number of generated taxis or homes."""
    days: int = 6
    """The number of generated days; the first half is history."""

    @property
    def title(self) -> str:
        """Its title in tables and figures."""
        part = "" if self.part == "all" else f", {self.part} taxis"
        named = {"t-drive": f"T-Drive{part}", "trips": "generated trips", "homes": "smart homes"}
        return f"Over a day ({named[self.source]})"

    @property
    def about(self) -> str:
        """A data set in one sentence."""
        if self.reports is not None:
            data = describe_reports(self.reports, self.part)
        else:
            data = f"Generated {self.source}: {self.subjects} subjects, {self.days} days"
        kind = (
            "queries of presence only, windows of an hour"
            if self.source == "homes"
            else "cells drawn for each data set, windows of 10 minutes"
        )
        return (
            f"{data}; {kind}; the first half of the days is history. A w-event baseline bounds any"
            " day of windows in a row; a limit bounds each day from midnight to midnight."
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters that identify a run, as plain data."""
        if self.reports is None:
            data: dict[str, Any] = {"source": f"{self.source}, {self.subjects}, {self.days} days"}
        else:
            data = {"source": identify_reports(self.reports), "taxis": self.part}
        return list_parameters(self) | data

    def errors(self, number: int) -> Floats:
        """Compute the errors on a data set, `[value][epsilon][method][score]`."""
        day = self.draw(number)
        return measure_day(day, self.epsilons, self.comparison.methods)[None, ..., : len(SCORES)]

    def draw(self, number: int) -> Day:
        """Draw a data set."""
        if self.source == "homes":
            spec, history, test, windows = make_home_days(self.subjects, self.days, number)
            return Day(spec, history, test, windows, number)
        if self.reports is None:
            reports = generate_reports(self.subjects, self.days, number)
        else:
            reports = select_taxis(self.reports, self.part)
        drawn = make_taxi_data_set(reports, number)
        history, test = drawn.history_streams, drawn.test_streams
        return Day(drawn.spec, history, test, WINDOWS_IN_A_DAY, number)


def measure_day(day: Day, limits: tuple[Fraction, ...], methods: tuple[Method, ...]) -> Floats:
    """Measure the errors of methods, `[limit][method][score]`."""
    policies = {policy.name: policy for policy in POLICIES}
    variants = {
        _PUBLISHED: make_daily(day.windows, published=True),
        _FAIR: make_daily(day.windows, published=False),
        "": (PriorAlone(),),
    }
    errors = []
    for limit in limits:
        found: dict[Method, Confusion[Floats]] = {}
        for method in methods:
            if method.variant in policies:
                found[method] = day.measure(policies[method.variant], limit)
            elif method not in found:
                same = {
                    decode
                    for one in methods
                    if one[::2] == method[::2] and (decode := one.decode) != "own"
                }
                baseline = next(b for b in variants[method.variant] if b.name == method.name)
                random = np.random.default_rng([day.seed, 6])
                share = limit / day.windows
                counts = measure(baseline, day.setting, day.test.presence, share, random, same)
                for decode, confusion in counts.items():
                    found[method._replace(decode=decode)] = confusion
        errors.append([compute_scores(found[method], day.alphas) for method in methods])
    return np.array(errors)
