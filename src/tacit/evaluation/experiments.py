"""The paper's experiments: the error of every method against epsilon, on many data sets."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.evaluation.bands import Band, compute_error_band, compute_ratio_band
from tacit.evaluation.home import load_home_specification
from tacit.evaluation.household_runs import HomeRuns
from tacit.evaluation.measurement import Presence, Streams
from tacit.evaluation.methods import (
    COMPARISONS,
    PPMS_ONLY,
    SCORES,
    Method,
    MethodComparison,
    add_own,
    measure_errors,
)
from tacit.evaluation.own_methods import identify_file
from tacit.evaluation.results_folder import StoredResults
from tacit.evaluation.synthetic import draw_data_set
from tacit.evaluation.taxi_areas import make_taxi_data_set
from tacit.evaluation.tdrive import ZONE, TaxiPart, select_taxis
from tacit.evaluation.trips import Trips
from tacit.evaluation.variations import VARIATIONS, Variation
from tacit.kernels.threads import count_cores
from tacit.options import option
from tacit.privacy.exponentials import format_epsilon

Floats = NDArray[np.float64]

EPSILONS: Final = tuple(map(Fraction, ("0.1", "0.2", "0.5", "1", "1.5", "2", "3", "5", "7", "10")))
VARIED_EPSILONS: Final = (Fraction(1), Fraction(3))
_SEEDS: Final = 1_000_000
"""Data set n of seed s has the number s * 1,000,000 + n: no two seeds share one."""


class Experiment(Protocol):
    """An experiment on numbered data sets; pickled to worker processes."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def comparison(self) -> MethodComparison:
        """The methods that are compared."""

    @property
    def scores(self) -> tuple[str, ...]:
        """What is measured: micro and macro averages, and queries by name if they are fixed."""

    @property
    def unit(self) -> str:
        """What its epsilons are for."""

    @property
    def epsilons(self) -> tuple[Fraction, ...]:
        """The epsilons."""

    @property
    def seed(self) -> int:
        """The seed of all data sets and noise."""

    @property
    def title(self) -> str:
        """Its title in tables and figures."""

    @property
    def variation(self) -> Variation | None:
        """The parameter that is varied besides epsilon, if any."""

    @property
    def about(self) -> str:
        """A data set in one sentence."""

    def parameters(self) -> dict[str, Any]:
        """The parameters that identify a run, as plain data."""

    def errors(self, number: int) -> Floats:
        """Compute the errors on a data set, `[value][epsilon][method][score]`."""


WINDOW_UNIT: Final = "one subject, one private pattern and one window"


@dataclass(frozen=True)
class Synthetic:
    """Algorithm 2, with the sizes of the paper except for a varied parameter."""

    name: ClassVar[str] = "synthetic"
    title: ClassVar[str] = "Synthetic data"
    scores: ClassVar[tuple[str, ...]] = SCORES
    unit: ClassVar[str] = WINDOW_UNIT
    epsilons: tuple[Fraction, ...] = EPSILONS
    seed: int = 0
    vary: str | None = None
    compare: str = "main"
    own: Path | None = None
    """A file with methods of one's own."""

    @property
    def comparison(self) -> MethodComparison:
        """The methods that are compared."""
        return add_own(COMPARISONS[self.compare], self.own)

    @property
    def variation(self) -> Variation | None:
        """The parameter that is varied besides epsilon, if any."""
        return None if self.vary is None else VARIATIONS[self.vary]

    @property
    def about(self) -> str:
        """A data set in one sentence."""
        text = (
            "Algorithm 2 of the paper: 20 event types that occur independently at rates uniform in"
            " (0, 1), 1000 windows of history and 1000 others to test on, 3 private patterns and 5"
            " queries, each the AND of 3 event types."
        )
        return text if self.variation is None else f"{text} Varied: {self.variation.label}."

    def parameters(self) -> dict[str, Any]:
        """The parameters that identify a run, as plain data."""
        values = None if self.variation is None else list(self.variation.values)
        return list_parameters(self) | {"vary": self.vary, "values": values} | _list_own(self.own)

    def errors(self, number: int) -> Floats:
        """Compute the errors on a data set, `[value][epsilon][method][score]`."""
        if self.variation is None:
            sets = [draw_data_set(number)]
        else:
            sets = [self.variation.draw(number, value) for value in self.variation.values]
        methods = self.comparison.methods
        errors = [
            measure_errors(
                s.spec,
                Streams(s.history[np.newaxis]),
                Streams(s.test[np.newaxis], len(s.history)),
                self.epsilons,
                number,
                methods,
                self.own,
            )
            for s in sets
        ]
        return np.stack([part[..., : len(SCORES)] for part in errors])


@dataclass(frozen=True)
class Taxi:
    """Taxis on a grid of cells, drawn for each data set; on reports, or on generated trips."""

    name: ClassVar[str] = "taxi"
    scores: ClassVar[tuple[str, ...]] = SCORES
    unit: ClassVar[str] = WINDOW_UNIT
    variation: ClassVar[None] = None
    epsilons: tuple[Fraction, ...] = EPSILONS
    seed: int = 0
    reports: pl.DataFrame | None = field(default=None, repr=False)
    """Reports of T-Drive; without them trips are generated, new ones for each data set."""
    heard: bool = False
    """Whether to skip windows without a report."""
    taxis: int = 200
    days: int = 4
    compare: str = "main"
    part: TaxiPart = "all"
    own: Path | None = None
    """A file with methods of one's own."""

    @property
    def comparison(self) -> MethodComparison:
        """The methods that are compared."""
        return add_own(COMPARISONS[self.compare], self.own)

    @property
    def title(self) -> str:
        """Its title in tables and figures."""
        source = "generated trips" if self.reports is None else _name_part(self.part)
        return f"Taxi ({source}{', only windows with reports' if self.heard else ''})"

    @property
    def about(self) -> str:
        """A data set in one sentence."""
        if self.reports is None:
            data = (
                f"Generated trips, not T-Drive: {self.taxis} taxis, {self.days} days, others for"
                " each data set"
            )
        else:
            data = describe_reports(self.reports, self.part)
        schedule = (
            "only windows in which a taxi reported (for comparison: a run must not skip others)"
            if self.heard
            else "every window of the schedule, with or without reports"
        )
        return (
            f"{data}; a grid of 20 x 20 cells whose kinds are drawn for each data set; windows of"
            f" 10 minutes, {schedule}; the first half of the days is history."
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters that identify a run, as plain data."""
        if self.reports is None:
            source: dict[str, Any] = {"source": f"{self.taxis} taxis, {self.days} days, generated"}
        else:
            source = {"source": identify_reports(self.reports), "taxis": self.part}
        windows = {"windows": "heard" if self.heard else "all"}
        return list_parameters(self) | source | windows | _list_own(self.own)

    def errors(self, number: int) -> Floats:
        """Compute the errors on a data set, `[value][epsilon][method][score]`."""
        if self.reports is None:
            reports = generate_reports(self.taxis, self.days, number)
        else:
            reports = select_taxis(self.reports, self.part)
        drawn = make_taxi_data_set(reports, number)
        history: Presence | Streams = drawn.history_streams
        test: Presence | Streams = drawn.test_streams
        if self.heard:
            heard = drawn.heard()
            history, test = heard.history, heard.test
        methods = self.comparison.methods
        errors = measure_errors(drawn.spec, history, test, self.epsilons, number, methods, self.own)
        return errors[None, ..., : len(SCORES)]


@dataclass(frozen=True)
class Home:
    """Smart homes through the whole engine: ordered patterns, only the PPMs."""

    name: ClassVar[str] = "home"
    title: ClassVar[str] = "Smart homes"
    comparison: ClassVar[MethodComparison] = PPMS_ONLY
    unit: ClassVar[str] = WINDOW_UNIT
    variation: ClassVar[None] = None
    epsilons: tuple[Fraction, ...] = EPSILONS
    seed: int = 0
    homes: int = 100
    days: int = 6

    @property
    def scores(self) -> tuple[str, ...]:
        """Micro and macro averages, and each query."""
        return (*SCORES, *(query.name for query in load_home_specification().queries))

    @property
    def about(self) -> str:
        """A data set in one sentence."""
        private = len(load_home_specification().private)
        queries = len(load_home_specification().queries)
        return (
            f"Generated smart homes: {self.homes} homes, {self.days} days, others for each data"
            f" set; {private} private patterns and {queries} queries, some of them ordered;"
            " windows of an hour; the first half of the days is history. Tuples go through the"
            " engine as in tacit run."
        )

    def parameters(self) -> dict[str, Any]:
        """The parameters that identify a run, as plain data."""
        return list_parameters(self) | {"homes": self.homes, "days": self.days}

    def errors(self, number: int) -> Floats:
        """Compute the errors on a data set, `[value][epsilon][method][score]`."""
        runs = HomeRuns(self.homes, timedelta(days=self.days), number)
        return np.array(
            [[[runs.measure_errors(m, e) for m in self.comparison.methods] for e in self.epsilons]]
        )


@dataclass(frozen=True)
class Row:
    """The mean error of a method, and its band."""

    method: Method
    epsilon: Fraction
    band: Band
    datasets: int
    value: float | None = None
    """The value of the varied parameter."""
    other: tuple[tuple[str, float], ...] = ()
    """The mean error by other scores: of the mean over queries, and of single queries."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, fit for JSON."""
        mean, low, high = self.band
        return {
            "method": self.method.name,
            "variant": self.method.variant,
            "decode": self.method.decode,
            "epsilon": float(self.epsilon),
            "mre": mean,
            "low": low,
            "high": high,
            **{name: round(error, 6) for name, error in self.other},
            "datasets": self.datasets,
        }


@dataclass(frozen=True, eq=False)
class ExperimentOutcome:
    """The errors of an experiment, on data sets that all methods share."""

    experiment: Experiment
    errors: Floats
    """`[data set][value][epsilon][method][score]`"""

    @property
    def datasets(self) -> int:
        """The number of data sets."""
        return len(self.errors)

    @property
    def values(self) -> tuple[float | None, ...]:
        """The values of the varied parameter; only None if nothing is varied."""
        varied = self.experiment.variation
        return (None,) if varied is None else varied.values

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that were compared."""
        return self.experiment.comparison.methods

    def of(
        self,
        method: Method,
        epsilon: Fraction,
        value: float | None = None,
        score: str = "micro",
    ) -> Floats:
        """Return the errors of a method on each data set."""
        place = self.experiment.epsilons.index(epsilon)
        column = self.methods.index(method)
        kind = self.experiment.scores.index(score)
        return np.asarray(self.errors[:, self.values.index(value), place, column, kind])

    def band(self, method: Method, epsilon: Fraction, value: float | None = None) -> Band:
        """Return the mean error of a method."""
        return compute_error_band(self.of(method, epsilon, value))

    def ratio(self, method: Method, other: Method, epsilon: Fraction) -> Band | None:
        """Compare a method's mean error with another's, on the same data sets."""
        return compute_ratio_band(self.of(method, epsilon), self.of(other, epsilon))

    def rows(self) -> list[Row]:
        """Return a row for each method, value and epsilon."""
        return [
            Row(
                method,
                epsilon,
                self.band(method, epsilon, value),
                self.datasets,
                value,
                tuple(
                    (score, float(self.of(method, epsilon, value, score).mean()))
                    for score in self.experiment.scores[1:]
                ),
            )
            for method in self.methods
            for value in self.values
            for epsilon in self.experiment.epsilons
        ]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows as plain data, fit for JSON, with the varied parameter, if any."""
        varied = self.experiment.variation
        return [
            row.to_dict() | ({} if varied is None else {"vary": varied.name, "value": row.value})
            for row in self.rows()
        ]


def perform(
    experiment: Experiment,
    kept: StoredResults,
    datasets: int,
    *,
    processes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ExperimentOutcome:
    """Run an experiment on data sets, one per core at a time, and store results as they come.

    `progress` is called with the number of finished data sets.
    """
    numbers = [experiment.seed * _SEEDS + n for n in range(datasets)]
    left = [number for number in numbers if number not in kept.done]
    if progress is not None:
        progress(datasets - len(left))
    for number, errors in _run_processes(experiment, left, processes or count_cores()):
        kept.store(number, errors)
        if progress is not None:
            progress(sum(number in kept.done for number in numbers))
    return ExperimentOutcome(experiment, np.stack([kept.done[number] for number in numbers]))


def open_results(experiment: Experiment, folder: Path | None, datasets: int) -> StoredResults:
    """Open the results in a folder; refuse those of another experiment."""
    varied = experiment.variation
    shape = (
        1 if varied is None else len(varied.values),
        len(experiment.epsilons),
        len(experiment.comparison.methods),
        len(experiment.scores),
    )
    return StoredResults(folder, experiment.parameters() | {"datasets": datasets}, shape)


def _run_processes(
    experiment: Experiment, numbers: Sequence[int], processes: int
) -> Iterator[tuple[int, Floats]]:
    """Yield the errors on data sets, in the order in which they finish."""
    workers = min(processes, len(numbers))
    if workers <= 1:
        yield from ((number, experiment.errors(number)) for number in numbers)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_process, (experiment,))
    try:
        futures = {pool.submit(_errors, number): number for number in numbers}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise TacitError(
            "a worker process was killed, perhaps because memory ran out; with"
            f" {option('out')} finished data sets are kept: repeat the command to resume"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_ours: Experiment | None = None


def _start_process(experiment: Experiment) -> None:
    """Set up a worker process. Interrupts are handled by the first process."""
    global _ours
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _ours = experiment


def _errors(number: int) -> Floats:
    assert _ours is not None, "the process was started"
    return _ours.errors(number)


def list_parameters(experiment: Experiment) -> dict[str, Any]:
    """Return the parameters that all experiments have."""
    return {
        "experiment": experiment.name,
        "seed": experiment.seed,
        "epsilon": [format_epsilon(epsilon) for epsilon in experiment.epsilons],
        "methods": [str(method) for method in experiment.comparison.methods],
    }


def _list_own(path: Path | None) -> dict[str, Any]:
    return {} if path is None else {"method": identify_file(path)}


def generate_reports(taxis: int, days: int, seed: int) -> pl.DataFrame:
    """Generate reports of taxis, with the clock of T-Drive's."""
    frame = pl.DataFrame(Trips(taxis=taxis, days=days, seed=seed).table())
    return frame.with_columns(pl.col("ts").dt.replace_time_zone(ZONE))


def _name_part(part: TaxiPart) -> str:
    return "T-Drive" if part == "all" else f"T-Drive, {part} taxis"


def describe_reports(reports: pl.DataFrame, part: TaxiPart) -> str:
    """Describe some taxis of T-Drive."""
    some = select_taxis(reports, part)
    taxis = some["taxi_id"].n_unique()
    return f"{_name_part(part)}: {some.height:,} reports of {taxis:,} taxis, after cleaning"


def identify_reports(reports: pl.DataFrame) -> str:
    """Hash reports, to identify them without storing them."""
    digest = hashlib.sha256()
    for name in ("taxi_id", "ts", "lon", "lat"):
        column = reports[name]
        plain = column.dt.timestamp("us") if name == "ts" else column
        digest.update(np.ascontiguousarray(plain.to_numpy()).tobytes())
    return f"reports {digest.hexdigest()[:16]}"
