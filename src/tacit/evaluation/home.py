"""Generate data of smart homes: motion, doors, appliances and a meter, for many homes.

Everything is fictional. Each home has one person with their own habits (times of getting up and
going to bed, medicine, tea, interrupted nights). Most are retired, some work on week days, and
sometimes somebody is away or ill. `home.yaml` has the private patterns and the queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final

import numpy as np
import pyarrow as pa

from tacit.evaluation.households import DAY, HOUR, Days, Floats, Habits, Numbers
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

_METER: Final = 900.0
_VALUES: Final = {"motion": "room", "doors": "door", "appliances": "appliance"}
_SWITCH: Final = {"doors": "open", "appliances": "running"}
_LASTS: Final = {
    "front": 8.0,
    "fridge": 12.0,
    "tap": 20.0,
    "toilet": 8.0,
    "kettle": 180.0,
    "stove": 1500.0,
    "tv": 5400.0,
}
"""The approximate seconds until it is closed or switched off again."""


def load_home_specification() -> Specification:
    """Load the specification of `home.yaml`."""
    return loads(files("tacit.evaluation").joinpath("home.yaml").read_text("utf-8"), "home.yaml")


@dataclass(frozen=True, slots=True)
class Homes:
    """Generates the sensor reports of homes; the same for the same parameters.

    Clocks show the homes' own time, labelled UTC; times are whole seconds.

    >>> {stream: table.column_names for stream, table in Homes(homes=2, days=1).tables().items()}
    {'motion': ['home', 'at', 'room'], 'doors': ['home', 'at', 'door', 'open'],
     'appliances': ['home', 'at', 'appliance', 'running'], 'meter': ['home', 'at', 'watts']}
    """

    homes: int = 200
    days: int = 14
    seed: int = 0
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    """Midnight of the first day; a Monday by default."""

    def __post_init__(self) -> None:
        if self.homes < 0 or self.days < 0 or self.seed < 0:
            raise ValueError("homes, days and seed must not be negative")
        if self.start.tzinfo is None or self.start.timestamp() % DAY:
            raise ValueError("start must be a midnight in UTC")

    def tables(self) -> dict[str, pa.Table]:
        """Generate the tuples of each stream in `home.yaml`, in order of time."""
        random = np.random.default_rng([self.seed, 4])
        people = Habits.draw(self.homes, random)
        days = Days.simulate(people, self.days, self.start.timestamp(), random)
        diary = _SensorLog(random)
        for part in (_nights, _mornings, _medicine, _chores, _meals, _evenings, _outings):
            part(days, diary)
        begin = self.start.timestamp()
        end = begin + self.days * DAY
        tables = {stream: diary.table(stream, begin, end) for stream in _VALUES}
        return tables | {"meter": _read_meters(self, days, random)}


@dataclass(frozen=True, slots=True)
class _SensorStep:
    """The next sensor report of an activity."""

    stream: str
    what: str
    on: bool = True
    after: tuple[float, float] = (5, 20)
    """The least and most seconds since the previous step."""
    chance: float = 1.0


def _motion(room: str, *after: float, chance: float = 1.0) -> _SensorStep:
    return _SensorStep("motion", room, True, (after[0], after[1]) if after else (5, 20), chance)


def _opens(door: str, chance: float = 1.0) -> _SensorStep:
    return _SensorStep("doors", door, chance=chance)


def _runs(appliance: str, least: float, most: float, chance: float = 1.0) -> _SensorStep:
    return _SensorStep("appliances", appliance, True, (least, most), chance)


class _SensorLog:
    """Collects sensor reports."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self._seen: dict[str, list[tuple[str, bool, Numbers, Floats]]] = {
            stream: [] for stream in _VALUES
        }

    def follow(self, homes: Numbers, times: Floats, *steps: _SensorStep) -> Floats:
        """Add activities that start at these times; return when they end."""
        for step in steps:
            times = times + self.random.uniform(*step.after, len(times))
            done = self.random.random(len(times)) < step.chance
            seen = self._seen[step.stream]
            seen.append((step.what, step.on, homes[done], times[done]))
            if step.what in _LASTS:
                length = _LASTS[step.what] * self.random.uniform(0.7, 1.3, int(done.sum()))
                seen.append((step.what, not step.on, homes[done], times[done] + length))
        return times

    def table(self, stream: str, begin: float, end: float) -> pa.Table:
        """Return the reports of a stream between these times, in order of time."""
        seen = self._seen[stream]
        homes = np.concatenate([part[2] for part in seen])
        times = np.floor(np.concatenate([part[3] for part in seen]))
        sizes = [len(part[2]) for part in seen]
        order = np.lexsort((homes, times))
        order = order[(times[order] >= begin) & (times[order] < end)]
        columns = _subjects_and_times(homes[order], times[order])
        columns[_VALUES[stream]] = pa.array(
            np.repeat(np.array([part[0] for part in seen], object), sizes)[order], pa.string()
        )
        if stream in _SWITCH:
            columns[_SWITCH[stream]] = pa.array(np.repeat([p[1] for p in seen], sizes)[order])
        return pa.table(columns)


def _subjects_and_times(homes: Numbers, times: Floats) -> dict[str, pa.Array]:
    return {
        "home": pa.array(homes.astype(np.int32)),
        "at": pa.array((times * 1_000_000).astype(np.int64), pa.timestamp("us", "UTC")),
    }


def _draw_times(
    days: Days, diary: _SensorLog, rate: Floats | float
) -> tuple[Numbers, Numbers, Floats]:
    """Draw random times at which people are at home and awake: day, home and time."""
    counts = diary.random.poisson(np.broadcast_to(rate, len(days.home)))
    which = np.repeat(np.arange(len(days.home)), counts)
    rises, rests = days.rises[which], days.rests[which]
    times = rises + diary.random.random(len(which)) * (rests - rises)
    here = days.at_home(which, times)
    return which[here], days.home[which[here]], times[here]


def _at(
    days: Days, diary: _SensorLog, times: Floats, chance: Floats | float
) -> tuple[Numbers, Floats]:
    """Select the homes in which an activity takes place at each day's time, and the times."""
    due = diary.random.random(len(times)) < chance
    due &= days.at_home(np.arange(len(times)), times)
    return days.home[due], times[due]


def _nights(days: Days, diary: _SensorLog) -> None:
    """Add visits to the bathroom at night."""
    first = np.flatnonzero(np.diff(days.home, prepend=-1))
    nights = np.concatenate([np.arange(len(days.home)), first])
    begins = np.concatenate([days.rests, days.rests[first] - DAY])
    rates = np.where(days.away, 0.0, days.people.wakeful + 2.0 * days.ill)
    night = np.repeat(np.arange(len(nights)), diary.random.poisson(rates[nights]))
    which = nights[night]
    length = days.rises[which] + DAY - 0.5 * HOUR - days.rests[which]
    times = begins[night] + diary.random.random(len(which)) * length
    diary.follow(
        days.home[which],
        times,
        _motion("bedroom"),
        _motion("hall", chance=0.9),
        _motion("bathroom"),
        _runs("toilet", 60, 300, 0.92),
        _motion("hall", 20, 60, chance=0.9),
        _motion("bedroom"),
    )


def _mornings(days: Days, diary: _SensorLog) -> None:
    up = ~days.away & ~days.ill
    homes, times = days.home[up], days.rises[up]
    ends = diary.follow(
        homes,
        times,
        _motion("bedroom"),
        _motion("hall"),
        _motion("bathroom", 10, 60),
        _runs("toilet", 60, 240, 0.9),
        _runs("tap", 20, 60, 0.8),
        _motion("bedroom", 300, 900, chance=0.8),
    )
    diary.follow(
        homes,
        ends,
        _motion("kitchen", 30, 200),
        _opens("fridge", 0.8),
        _runs("tap", 10, 60, 0.6),
        _runs("kettle", 10, 60, 0.7),
        _motion("kitchen", 120, 300),
    )


def _medicine(days: Days, diary: _SensorLog) -> None:
    """Add doses of medicine, some of them not taken, and other uses of the cabinet."""
    people, random = days.people, diary.random
    count = len(days.home)
    morning = days.rises + HOUR * random.uniform(0.4, 0.8, count)
    evening = days.rests - HOUR * random.uniform(0.3, 1.0, count)
    opened, closed = _opens("cabinet"), _SensorStep("doors", "cabinet", False)
    usually_closed = _SensorStep("doors", "cabinet", False, (10, 60), 0.95)
    for times, takes in ((morning, people.takes), (evening, people.takes_late)):
        homes, starts = _at(days, diary, times, takes * people.faithful)
        tidy = random.random(len(homes)) < 0.12
        drawn = _runs("tap", 10, 40, 0.97)
        diary.follow(homes[~tidy], starts[~tidy], _motion("kitchen"), opened, drawn, usually_closed)
        diary.follow(homes[tidy], starts[tidy], _motion("kitchen"), opened, closed, drawn)
    _, homes, times = _draw_times(days, diary, 0.5)
    diary.follow(homes, times, _motion("kitchen"), opened, usually_closed)


def _chores(days: Days, diary: _SensorLog) -> None:
    """Add minor activities during the day."""
    _, homes, times = _draw_times(days, diary, days.people.teas)
    diary.follow(
        homes,
        times,
        _motion("kitchen"),
        _runs("tap", 10, 60, 0.7),
        _runs("kettle", 10, 60),
        _motion("kitchen", 120, 300, chance=0.9),
        _motion("living", 10, 120, chance=0.8),
    )
    _, homes, times = _draw_times(days, diary, 4.0)
    diary.follow(homes, times, _motion("hall"), _motion("bathroom"), _runs("toilet", 60, 300, 0.85))
    _, homes, times = _draw_times(days, diary, 12.0)
    diary.follow(
        homes, times, _motion("living"), *(_motion("living", 60, 900, chance=0.7) for _ in range(4))
    )
    _, homes, times = _draw_times(days, diary, 2.0)
    diary.follow(
        homes, times, _motion("kitchen"), _runs("tap", 10, 90), _motion("kitchen", 30, 300)
    )


def _meals(days: Days, diary: _SensorLog) -> None:
    midnight = np.floor(days.rises / DAY) * DAY
    for hour in (12.5, 18.6):
        usual = midnight + HOUR * diary.random.normal(hour, 0.5, len(midnight))
        homes, times = _at(days, diary, usual, 0.85)
        diary.follow(
            homes,
            times,
            _motion("kitchen"),
            _opens("fridge", 0.9),
            _runs("stove", 60, 300, 0.8),
            *(_motion("kitchen", 60, 400) for _ in range(3)),
            _runs("tap", 60, 900, 0.9),
            _runs("kettle", 30, 200, 0.25),
            _motion("living", 30, 300, chance=0.8),
        )


def _evenings(days: Days, diary: _SensorLog) -> None:
    """Add television, then going to bed."""
    length = HOUR * diary.random.uniform(0.8, 3.0, len(days.home))
    homes, times = _at(days, diary, days.rests - length, 0.8)
    diary.follow(
        homes,
        times,
        _motion("living"),
        _runs("tv", 5, 60),
        *(_motion("living", 120, 1200, chance=0.8) for _ in range(4)),
    )
    up = ~days.away
    diary.follow(
        days.home[up],
        days.rests[up] - 600,
        _motion("bathroom", chance=0.95),
        _runs("toilet", 60, 240, 0.8),
        _motion("bedroom", 20, 120),
        _motion("bedroom", 60, 200),
    )


def _outings(days: Days, diary: _SensorLog) -> None:
    """Add leaving the home and coming back."""
    out = np.isfinite(days.leaves) & ~days.away
    homes = days.home[out]
    diary.follow(homes, days.leaves[out] - 60, _motion("hall"), _opens("front"))
    diary.follow(
        homes,
        days.returns[out],
        _opens("front"),
        _motion("hall"),
        _motion("kitchen", 20, 200, chance=0.7),
        _motion("living", 60, 600, chance=0.7),
    )


def _read_meters(generated: Homes, days: Days, random: np.random.Generator) -> pa.Table:
    """Generate four readings per hour and home."""
    readings = int(generated.days * DAY / _METER)
    phase: Floats = np.floor(random.uniform(0, _METER, generated.homes))
    idle = random.uniform(60, 180, generated.homes)
    times = generated.start.timestamp() + np.arange(readings)[:, None] * _METER + phase
    homes = np.broadcast_to(np.arange(generated.homes), times.shape).ravel()
    day = (np.arange(readings) * _METER // DAY).astype(np.int64)[:, None]
    which = (np.arange(generated.homes) * generated.days + day).ravel()
    times = times.ravel()
    order = np.lexsort((homes, times))
    used = 150 * days.at_home(which, times) * random.gamma(2.0, 0.5, len(times))
    watts = np.round((idle[homes] + used) * random.uniform(0.9, 1.1, len(times)), 1)
    return pa.table(
        _subjects_and_times(homes[order], times[order]) | {"watts": pa.array(watts[order])}
    )
