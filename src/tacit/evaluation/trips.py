"""Generate taxi trips similar to T-Drive, for tests and the demo.

Each taxi reports about every 177 s, about 620 m apart, as in the public figures of T-Drive.
Everything else is fictional. See `city` for the places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tacit.evaluation.city import City, build_city
from tacit.evaluation.taxis import OFF, TAXI, drive

MEAN_INTERVAL: Final = 177.0
"""Mean seconds between a taxi's reports, over the day and all devices."""

SCHEMA: Final = pa.schema(
    [
        pa.field("taxi_id", pa.int32(), nullable=False),
        pa.field("ts", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("lon", pa.float64(), nullable=False),
        pa.field("lat", pa.float64(), nullable=False),
        pa.field("speed", pa.float64(), nullable=False),
        pa.field("hired", pa.bool_(), nullable=False),
        pa.field("fare", pa.float64()),
    ]
)

_ROW = np.dtype(
    [("arrival", "i8"), ("ts", "i8"), ("taxi_id", "i4"), ("hired", "b1")]
    + [(name, "f8") for name in ("lon", "lat", "speed", "fare")]
)
_DEVICES = np.array([0, 2, 2, 1, 2, 2, 1, 2, 2, 1, 0, 2, 1, 2, 2, 1, 2, 2, 1, 2])
_WARM_UP = 4 * 3600.0  # seconds simulated before the first report, so that taxis are under way
_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Trips:
    """Generates reports of taxis in a fictional city; the same for a seed on every machine.

    `speed` is in km/h. `fare` runs while the taxi is hired and is null otherwise, with one
    exception: the meter reports when it starts (`hired` and a `fare` of exactly 10) and when
    it stops (no longer `hired`, with the fare that was paid). Clocks show the city's own time,
    labelled UTC. Taxi i does not depend on the number of taxis.

    >>> Trips(taxis=3, days=0.5).table().column_names
    ['taxi_id', 'ts', 'lon', 'lat', 'speed', 'hired', 'fare']
    """

    taxis: int = 200
    days: float = 1.0
    seed: int = 0
    start: datetime = datetime(2008, 2, 4, tzinfo=UTC)
    """The default is a Monday; rush hours are milder at weekends."""
    disorder: timedelta = timedelta(0)
    """Each report arrives late by a random time below this; rows are in order of arrival."""
    duplicates: float = 0.0
    """The share of duplicated reports."""
    strays: float = 0.0
    """The share of reports whose position is wrong: anywhere between 0, 0 and 160 E, 90 N."""

    def __post_init__(self) -> None:
        if self.taxis < 0 or self.days < 0 or self.seed < 0 or self.disorder < timedelta(0):
            raise ValueError("taxis, days, seed and disorder must not be negative")
        if not (0 <= self.duplicates <= 1 and 0 <= self.strays <= 1):
            raise ValueError("duplicates and strays are shares: expected numbers from 0 to 1")
        if self.start.tzinfo is None:
            raise ValueError("start needs a time zone, such as datetime(2008, 2, 4, tzinfo=UTC)")

    def table(self) -> pa.Table:
        """Generate all reports."""
        return pa.Table.from_batches(self.batches(rows=2**62), SCHEMA)

    def batches(self, rows: int = 1_000_000) -> Iterator[pa.RecordBatch]:
        """Yield the same reports in batches of about `rows` rows."""
        city = build_city()
        town = np.random.SeedSequence(self.seed).generate_state(1, np.uint64)[0]
        begin = self.start.timestamp()
        end = begin + self.days * 86_400
        taxis = self._create_taxis(city, begin - _WARM_UP)
        self._simulate(taxis, begin, city, town)
        stretch = max(60.0, rows * MEAN_INTERVAL / max(self.taxis, 1))
        waiting = np.empty(0, _ROW)
        while begin < end:
            begin = min(begin + stretch, end)
            new = self._simulate(taxis, begin, city, town)
            known = np.concatenate([waiting, new]) if len(waiting) else new
            known = known[np.argsort(known["arrival"], kind="stable")]
            here = len(known)
            if begin < end:
                here = int(np.searchsorted(known["arrival"], np.int64(begin * _SECOND)))
            waiting = known[here:]
            if here:
                yield _to_arrow(known[:here])

    def _create_taxis(self, city: City, time: float) -> np.ndarray[Any, Any]:
        """Create every taxi at home, before its shift."""
        taxis = np.zeros(self.taxis, TAXI)
        hour = time % 86_400 / 3600
        for i, taxi in enumerate(taxis):
            chance = np.random.Generator(
                np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(i,)))
            )
            taxi["key"], taxi["faults"] = chance.integers(2**64, size=2, dtype=np.uint64)
            home, rises, rests, wakes, reports, ate, night = chance.random(7)
            taxi["home"] = np.searchsorted(city.homes, home * city.homes[-1], side="right")
            taxi["rises"] = 6 + 3.5 * rises if night < 0.85 else 4.5
            taxi["rests"] = 22.5 + 6 * rests if night < 0.85 else 28.2
            at_work = taxi["rises"] <= hour < taxi["rests"] or hour + 24 < taxi["rests"]
            sleeps = 0.0 if at_work else (taxi["rises"] - hour) % 24 * 3600
            taxi["ends"] = np.ceil(time + sleeps + 1200 * wakes)
            taxi["due"] = np.ceil(time + 300 * reports)
            taxi["ate"] = time - 16_000 * ate
        taxis["device"] = _DEVICES[np.arange(self.taxis) % len(_DEVICES)]
        taxis["phase"], taxis["started"], taxis["crossing"] = OFF, time, taxis["home"]
        taxis["x0"] = taxis["x1"] = city.x[taxis["home"]]
        taxis["y0"] = taxis["y1"] = city.y[taxis["home"]]
        return taxis

    def _simulate(
        self, taxis: np.ndarray[Any, Any], until: float, city: City, town: np.uint64
    ) -> np.ndarray[Any, Any]:
        """Simulate the taxis until a time; return their reports, ordered by taxi and time."""
        delay = self.disorder / timedelta(microseconds=1)
        faults = (float(self.strays), float(self.duplicates), delay)
        ahead = until - (taxis["started"].min() if len(taxis) else until)
        room = int(1.1 * len(taxis) * ahead / MEAN_INTERVAL) + 1024
        pieces = []
        while True:
            piece = np.empty(room, _ROW)
            n = drive(taxis, until, city, town, faults, piece)
            pieces.append(piece[:n])
            if n + 2 <= room:
                return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _to_arrow(rows: np.ndarray[Any, Any]) -> pa.RecordBatch:
    columns = {name: np.ascontiguousarray(rows[name]) for name in SCHEMA.names}
    arrays = [
        pa.array(columns[field.name], field.type, from_pandas=field.nullable) for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
