"""The Taxi experiment: cells of a grid over the city, some private, some targets of the query.

A taxi's event in a window is a report from a cell of some kind: *private only*, *private and
target*, or *target only*. The private pattern is a visit to a private cell, and the query asks
whether the taxi was in a target cell. Reports come from `tdrive` or `trips`.

Every taxi has every window of the schedule, from the first report of all taxis to the last. Answers
follow a public schedule, so a window without a report has no events. Such windows lower the base
rates, and so the precision of literal answers: on T-Drive they are between a third and a half of
all windows. `heard` skips them, to compare with other publications.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import SourceError
from tacit.evaluation.measurement import Streams
from tacit.evaluation.synthetic import LARGEST_EPSILON, DataSet, Presence
from tacit.evaluation.tdrive import ZONE, Box
from tacit.events.areas import Area
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.tree import Or
from tacit.spec.specification import Private, Query, Specification
from tacit.windows.schedule import Windows

URBAN: Final[Box] = (116.2, 39.75, 116.6, 40.05)
"""The city, up to about the sixth ring road."""
TYPES: Final = ("private_only", "private_and_target", "target_only")
WINDOW: Final = timedelta(minutes=10)
WINDOWS_IN_A_DAY: Final = timedelta(days=1) // WINDOW
_WINDOW: Final = WINDOW // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TaxiCells:
    """A square grid over a box, and the kind of each cell."""

    box: Box
    kinds: NDArray[np.int8]
    """`[column][row]`: the number of its type in `TYPES`, or -1 for none."""

    @classmethod
    def draw(cls, seed: int, box: Box = URBAN, side: int = 20) -> TaxiCells:
        """Draw the kinds: a fifth of the cells is private; half of these and 2/5 of all are target.

        >>> np.bincount(TaxiCells.draw(seed=1).kinds.ravel() + 1).tolist()
        [160, 40, 40, 160]
        """
        total = side * side
        private = round(0.2 * total)
        both, target = private // 2, round(0.4 * total)
        order = np.random.default_rng([seed, 3]).permutation(total)
        kinds = np.full(total, -1, np.int8)
        kinds[order[:both]] = 1
        kinds[order[both:private]] = 0
        kinds[order[private : private + target]] = 2
        return cls(box, kinds.reshape(side, side))

    @property
    def edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the longitudes and latitudes where cells start, and the end of the last."""
        west, south, east, north = self.box
        side = len(self.kinds) + 1
        return np.linspace(west, east, side), np.linspace(south, north, side)

    def kinds_at(self, lon: NDArray[np.float64], lat: NDArray[np.float64]) -> NDArray[np.int8]:
        """Return the kind of the cell at each position; -1 outside the grid."""
        columns, rows = (
            np.searchsorted(edges, degrees, side="right") - 1
            for edges, degrees in zip(self.edges, (lon, lat), strict=True)
        )
        side = len(self.kinds)
        inside = (columns >= 0) & (columns < side) & (rows >= 0) & (rows < side)
        kinds = np.full(len(lon), -1, np.int8)
        kinds[inside] = self.kinds[columns[inside], rows[inside]]
        return kinds

    def areas(self) -> dict[str, Area]:
        """Return the cells with a kind as areas; no position is in two of them."""
        lon, lat = self.edges
        # An area includes its edge, so each cell ends just before the next one.
        last_lon, last_lat = np.nextafter(lon, -np.inf), np.nextafter(lat, -np.inf)
        return {
            f"cell_{column}_{row}": Area(
                box=(
                    float(lon[column]),
                    float(lat[row]),
                    float(last_lon[column + 1]),
                    float(last_lat[row + 1]),
                )
            )
            for column, row in np.argwhere(self.kinds >= 0).tolist()
        }


@dataclass(frozen=True, slots=True)
class TaxiDataSet(DataSet):
    """A data set with the streams of taxis that its windows come from."""

    taxis: NDArray[np.int64]
    reported: Presence
    """`[taxi][window]`: whether the taxi reported at all, in history and then in test windows."""
    first: datetime
    """The start of the first window of history."""
    turn: datetime
    """The start of the first test window: reports before it are history."""

    @property
    def history_streams(self) -> Streams:
        """The windows of history, in order of time."""
        return self._to_streams(self.history, self.first)

    @property
    def test_streams(self) -> Streams:
        """The test windows, in order of time."""
        return self._to_streams(self.test, self.turn)

    def _to_streams(self, presence: Presence, begin: datetime) -> Streams:
        own = presence.reshape(len(self.taxis), -1, len(TYPES))
        return Streams(own, (begin - datetime(1970, 1, 1, tzinfo=UTC)) // WINDOW)

    def heard(self) -> DataSet:
        """Return the data set without windows in which a taxi did not report.

        For comparisons only: a run that skips such windows reveals them.
        """
        history, test = self.history_streams.presence, self.test_streams.presence
        past = history.shape[1]
        return DataSet(self.spec, history[self.reported[:, :past]], test[self.reported[:, past:]])


def make_taxi_data_set(
    reports: pl.DataFrame,
    seed: int,
    *,
    history_days: float | None = None,
) -> TaxiDataSet:
    """Make the experiment on these reports, with cells drawn by the seed.

    History is the first days, from midnight before the first report by the reports' own clock;
    by default half of the days, rounded up. Times without a zone are Beijing time.
    """
    if not reports.height:
        raise SourceError("expected reports of taxis; got none")
    cells = TaxiCells.draw(seed)
    times = _add_zone(reports["ts"])
    windows = times.dt.timestamp("us").to_numpy() // _WINDOW
    first, end = int(windows.min()), int(windows.max()) + 1
    turn = _find_turn(times, history_days)
    if not first < turn < end:
        raise SourceError(
            f"{end - first} windows of reports cannot be divided into history and test after "
            f"{history_days or 'half of the'} days; give more days of reports, or fewer as history"
        )
    taxis, numbers = np.unique(reports["taxi_id"].to_numpy().astype(np.int64), return_inverse=True)
    kinds = cells.kinds_at(reports["lon"].to_numpy(), reports["lat"].to_numpy())
    reported = np.zeros((len(taxis), end - first), np.bool_)
    reported[numbers, windows - first] = True
    presence = np.zeros((*reported.shape, len(TYPES)), np.bool_)
    seen = kinds >= 0
    presence[numbers[seen], windows[seen] - first, kinds[seen]] = True
    past, later = presence[:, : turn - first], presence[:, turn - first :]
    return TaxiDataSet(
        spec=make_taxi_specification(cells, taxis),
        history=past.reshape(-1, len(TYPES)),
        test=later.reshape(-1, len(TYPES)),
        taxis=taxis,
        reported=reported,
        first=_moment(first),
        turn=_moment(turn),
    )


def make_taxi_specification(cells: TaxiCells, taxis: NDArray[np.int64]) -> Specification:
    """Make the specification of the private pattern and the query, also for the engine."""
    names = [f"cell_{column}_{row}" for column, row in np.argwhere(cells.kinds >= 0).tolist()]
    kinds = cells.kinds[cells.kinds >= 0]
    return Specification(
        subjects=tuple(taxis.tolist()),
        streams={"gps": Stream(subject="taxi_id", time="ts", zone=ZONE)},
        zone=ZONE,
        areas=cells.areas(),
        windows=Windows(size=WINDOW),
        events={
            kind: EventType(
                stream="gps",
                inside=tuple(name for name, its in zip(names, kinds, strict=True) if its == number),
            )
            for number, kind in enumerate(TYPES)
        },
        private=(Private(pattern=Or(*TYPES[:2]), epsilon=LARGEST_EPSILON),),
        queries=(Query(name="in_target", consumer="all", pattern=Or(*TYPES[1:])),),
    )


def _add_zone(times: pl.Series) -> pl.Series:
    if not isinstance(times.dtype, pl.Datetime):
        raise SourceError(f"expected timestamps in ts; got {times.dtype}")
    return times if times.dtype.time_zone else times.dt.replace_time_zone(ZONE)


def _find_turn(times: pl.Series, history_days: float | None) -> int:
    """Return the number of the first test window, counted from the epoch."""
    midnights = times.dt.truncate("1d")
    begin, last = (int(midnights.dt.timestamp("us").sort()[place]) for place in (0, -1))
    day = timedelta(days=1) // timedelta(microseconds=1)
    if history_days is None:
        history_days = (round((last - begin) / day) + 2) // 2
    return int(begin + history_days * day) // _WINDOW


def _moment(window: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + window * WINDOW
