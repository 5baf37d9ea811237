"""Simulate taxis, in compiled code that can stop and resume at any time.

A taxi is a row of state and is always on one leg: a straight drive, or a stay. Each has its own
random numbers, so it does not depend on other taxis or on how time is divided.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tacit.evaluation.city import CENTRE, FREE_SPEED, METRES, MOTORWAY, City
from tacit.kernels import compiled, inlined

OFF, BREAK, WAIT, CRUISE, BOARD, RIDE, ALIGHT, HOMEWARD = range(8)

TAXI: Final = np.dtype(
    [
        ("key", "u8"),  # of the random numbers that decide the trips
        ("faults", "u8"),  # of those that decide delays and imperfections
        ("device", "i8"),
        ("phase", "i8"),
        ("started", "f8"),  # this leg: times in seconds since the epoch, metres from the centre
        ("ends", "f8"),
        ("x0", "f8"),
        ("y0", "f8"),
        ("x1", "f8"),
        ("y1", "f8"),
        ("speed", "f8"),
        ("held", "b1"),  # at a red light
        ("crossing", "i8"),  # the last or next on the way
        ("goal", "i8"),
        ("arriving", "b1"),
        ("door_x", "f8"),
        ("door_y", "f8"),
        ("home", "i8"),
        ("rises", "f8"),  # hours of the day; a shift may end after midnight, as 26
        ("rests", "f8"),
        ("ate", "f8"),
        ("fare", "f8"),
        ("due", "f8"),  # the next report
    ],
    align=True,
)

FLAG_FALL: Final = 10.0
PER_KILOMETRE: Final = 2.0
PER_SECOND: Final = 0.008

_RUSH = np.concatenate(
    (
        [0, 0, 0, 0, 0, 0.05, 0.2, 0.8, 1, 0.65, 0.35, 0.35],
        [0.4, 0.35, 0.35, 0.4, 0.6, 0.95, 1, 0.65, 0.3, 0.2, 0.1, 0.05],
    )
)
_DEMAND = np.concatenate(
    (
        [0.4, 0.25, 0.15, 0.1, 0.1, 0.2, 0.5, 0.9, 1, 0.9, 0.75, 0.75],
        [0.75, 0.75, 0.75, 0.75, 0.9, 1, 1, 0.95, 0.85, 0.8, 0.7, 0.5],
    )
)
_FREE_SPEED = np.array(FREE_SPEED)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)


@compiled
def _uniform(key: Any) -> float:
    """Return a number in [0, 1) for this key: the output function of SplitMix64."""
    key = (key ^ (key >> _S30)) * _MIX1
    key = (key ^ (key >> _S27)) * _MIX2
    return float((key ^ (key >> _S31)) >> _S11) * 2.0**-53


@compiled
def _draw(taxi: Any) -> float:
    taxi.key += _GOLDEN
    return _uniform(taxi.key)


@compiled
def _draw_fault(taxi: Any) -> float:
    taxi.faults += _GOLDEN
    return _uniform(taxi.faults)


@compiled
def _at_hour(profile: Any, time: float) -> float:
    """Interpolate a daily profile between its hours."""
    hour = time % 86_400 / 3600
    whole = int(hour)
    return float(profile[whole] + (hour - whole) * (profile[(whole + 1) % 24] - profile[whole]))


@inlined
def _rush(time: float) -> float:
    """Return how full the roads are, 0 to 1; half as full at weekends."""
    weekend = (int(time // 86_400) + 3) % 7 >= 5
    return _at_hour(_RUSH, time) * (0.5 if weekend else 1.0)


@inlined
def _road_speed(
    road: int, here: int, there: int, x: float, y: float, time: float, town: Any
) -> float:
    """Return kilometres per hour; a jam lasts half an hour, for all taxis on the road."""
    central = 1 / (1 + (x * x + y * y) / 7000.0**2)
    rush = _rush(time)
    stretch = np.uint64(here * 4096 + there) * _MIX2 + np.uint64(int(time // 1800)) * _MIX1
    luck = _uniform(town ^ stretch)
    jammed = (0.006 + 0.13 * rush * rush) * (0.2 + central)
    if luck < jammed:
        return 3.5 + 4.0 * luck / jammed
    return float(_FREE_SPEED[road] / (1 + 1.3 * rush * (0.3 + central)))


@compiled
def _go(taxi: Any, x: float, y: float, speed: float) -> None:
    """Start a leg to a point."""
    length = np.sqrt((x - taxi.x0) ** 2 + (y - taxi.y0) ** 2)
    taxi.x1, taxi.y1, taxi.speed = x, y, speed
    taxi.ends = taxi.started + max(1.0, length / speed * 3.6)


@compiled
def _stay(taxi: Any, seconds: float) -> None:
    """Start a stop; it ends on a whole second, like a taximeter."""
    taxi.x1, taxi.y1, taxi.speed = taxi.x0, taxi.y0, 0.0
    taxi.ends = np.ceil(taxi.started + seconds)


@compiled
def _set_out(taxi: Any, goal: int, city: City) -> None:
    """Leave for a door at or near a crossing, via the nearest crossing."""
    taxi.goal, taxi.arriving, taxi.held = goal, False, True
    spread = city.spread[goal]
    k = int(8 * _draw(taxi))
    there = city.links[goal, k]
    if spread > 0:
        taxi.door_x = city.x[goal] + spread * (_draw(taxi) + _draw(taxi) - 1)
        taxi.door_y = city.y[goal] + spread * (_draw(taxi) + _draw(taxi) - 1)
    elif there >= 0 and goal != taxi.home:
        part = 0.45 * _draw(taxi)
        taxi.door_x = city.x[goal] + part * (city.x[there] - city.x[goal])
        taxi.door_y = city.y[goal] + part * (city.y[there] - city.y[goal])
    else:
        taxi.door_x, taxi.door_y = city.x[goal], city.y[goal]
    _go(taxi, city.x[taxi.crossing], city.y[taxi.crossing], 18.0)


@compiled
def _pick(taxi: Any, demand: Any) -> int:
    """Draw a crossing by demand."""
    sought = _draw(taxi) * demand[-1]
    low, high = 0, len(demand) - 1
    while low < high:
        middle = (low + high) // 2
        if demand[middle] > sought:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _seek(taxi: Any, city: City) -> None:
    """Cruise to the nearest of a few crossings where passengers are likely now."""
    demand = city.origins[int(taxi.started % 86_400 / 3600)]
    goal, least = taxi.home, np.inf
    for _ in range(3):
        found = _pick(taxi, demand)
        away = (city.x[found] - taxi.x0) ** 2 + (city.y[found] - taxi.y0) ** 2
        if away < least:
            goal, least = found, away
    taxi.phase = CRUISE
    _set_out(taxi, goal, city)


@inlined
def _carry(taxi: Any, city: City) -> None:
    """Choose the passenger's destination: long and very short trips are rarer."""
    demand = city.destinations[int(taxi.started % 86_400 / 3600)]
    goal = taxi.home
    for _ in range(8):
        goal = _pick(taxi, demand)
        away = (city.x[goal] - taxi.x0) ** 2 + (city.y[goal] - taxi.y0) ** 2
        place = city.spread[goal] > 0  # at any distance
        if away > 1500.0**2 and (place or _draw(taxi) < 1 / (1 + away / 6_000.0**2)):
            break
    taxi.fare = FLAG_FALL
    taxi.phase = RIDE
    _set_out(taxi, goal, city)


@inlined
def _roll(taxi: Any, city: City, town: Any) -> None:
    """Continue from a crossing: wait for green, take the next road, or turn to the door."""
    here = taxi.crossing
    if here == taxi.goal:
        taxi.arriving = True
        _go(taxi, taxi.door_x, taxi.door_y, 18.0)
        return
    k = city.routes[taxi.goal, here]
    road = city.roads[here, k]
    if not taxi.held and road != MOTORWAY and _draw(taxi) < 0.35:
        taxi.held = True
        _stay(taxi, 8 + 37 * _draw(taxi))
        return
    there = city.links[here, k]
    speed = _road_speed(road, here, there, taxi.x0, taxi.y0, taxi.started, town)
    speed *= 0.8 + 0.4 * _draw(taxi)
    if taxi.phase == CRUISE:
        speed *= 0.7
    taxi.crossing, taxi.held = there, False
    _go(taxi, city.x[there], city.y[there], speed)


@inlined
def _choose(taxi: Any, city: City) -> None:
    """Choose what follows a passenger: home, a meal, a taxi rank, or the next passenger."""
    time = taxi.started
    hour = time % 86_400 / 3600
    idle = 1 - _at_hour(_DEMAND, time)
    if not (taxi.rises <= hour < taxi.rests or hour + 24 < taxi.rests):
        taxi.phase = HOMEWARD
        _set_out(taxi, taxi.home, city)
    elif time - taxi.ate > 16_000 and _draw(taxi) < 0.4:
        taxi.ate = time
        taxi.phase = BREAK
        _stay(taxi, 1200 + 2000 * _draw(taxi))
    elif _draw(taxi) < (0.6 if city.spread[taxi.goal] > 0 else 0.25) + 0.4 * idle:
        taxi.phase = WAIT
        _stay(taxi, (200 + 550 * _draw(taxi)) * (1 + 2 * idle))
    else:
        _seek(taxi, city)


@inlined
def _arrive(taxi: Any, city: City) -> None:
    """Handle the arrival at the door."""
    if taxi.phase == RIDE:
        taxi.phase = ALIGHT
        _stay(taxi, 20 + 50 * _draw(taxi))
    elif taxi.phase == HOMEWARD:
        midnight = taxi.started // 86_400 * 86_400
        rises = midnight + taxi.rises * 3600 + 900 * _draw(taxi)
        taxi.phase = OFF
        _stay(taxi, (rises if rises > taxi.started else rises + 86_400) - taxi.started)
    else:
        idle = 1 - _at_hour(_DEMAND, taxi.started)
        ranked = city.spread[taxi.goal] > 0 or _draw(taxi) < 0.2 + 0.5 * idle
        if ranked:
            taxi.phase = WAIT
            _stay(taxi, (120 + 480 * _draw(taxi)) * (1 + 2 * idle))
        else:
            taxi.phase = BOARD
            _stay(taxi, 15 + 30 * _draw(taxi))


@compiled
def _next_leg(taxi: Any, city: City, town: Any) -> None:
    """Start the next leg."""
    if taxi.phase == RIDE:
        length = np.sqrt((taxi.x1 - taxi.x0) ** 2 + (taxi.y1 - taxi.y0) ** 2)
        taxi.fare += PER_KILOMETRE * length / 1000 + PER_SECOND * (taxi.ends - taxi.started)
    taxi.started, taxi.x0, taxi.y0 = taxi.ends, taxi.x1, taxi.y1
    if taxi.phase == CRUISE or taxi.phase == RIDE or taxi.phase == HOMEWARD:
        if taxi.arriving:
            _arrive(taxi, city)
        else:
            _roll(taxi, city, town)
    elif taxi.phase == WAIT:
        taxi.phase = BOARD
        _stay(taxi, 15 + 30 * _draw(taxi))
    elif taxi.phase == BOARD:
        _carry(taxi, city)
    elif taxi.phase == ALIGHT:
        _choose(taxi, city)
    else:
        _seek(taxi, city)


@compiled
def _interval(taxi: Any) -> float:
    """Draw whole seconds to the next report, by the kind of device, with gaps."""
    luck, shade = _draw(taxi), _draw(taxi)
    if luck < 0.03:
        return 2.0 + int(3 * shade)
    if luck < 0.033:
        return 900.0 + int(1800 * shade)
    if taxi.device == 0:
        return 60.0 if luck < 0.6 else (61.0 if luck < 0.75 else 20.0 + int(80 * shade))
    if taxi.device == 1:
        return 180.0 if luck < 0.4 else 15.0 + int(398 * shade)
    if luck < 0.6:
        return 300.0
    if luck < 0.78:
        return 302.0 if shade < 0.7 else 301.0
    return 600.0 if luck < 0.83 else 30.0 + int(270 * shade)


@compiled
def _report(taxi: Any, time: float, row: Any, stray: float) -> None:
    """Write a report with the position that the receiver measures."""
    part = (time - taxi.started) / max(taxi.ends - taxi.started, 1.0)
    moving = taxi.speed > 0
    error = 12.0 if moving else 5.0
    x = taxi.x0 + part * (taxi.x1 - taxi.x0) + error * (_draw(taxi) + _draw(taxi) - 1)
    y = taxi.y0 + part * (taxi.y1 - taxi.y0) + error * (_draw(taxi) + _draw(taxi) - 1)
    driven = taxi.phase == CRUISE or taxi.phase == RIDE or taxi.phase == HOMEWARD
    if moving:
        speed = max(1.5, taxi.speed * (0.75 + 0.5 * _draw(taxi)))
    else:  # noise of the receiver; some movement at a red light
        speed = (6.0 if driven else 0.6) * _draw(taxi)
    row.ts = int(time) * 1_000_000
    row.lon = np.floor((CENTRE[0] + x / METRES[0]) * 1e5 + 0.5) / 1e5
    row.lat = np.floor((CENTRE[1] + y / METRES[1]) * 1e5 + 0.5) / 1e5
    row.speed = np.floor(speed * 10 + 0.5) / 10
    row.hired = taxi.phase == RIDE or taxi.phase == ALIGHT
    row.fare = np.nan
    if row.hired:
        so_far = PER_SECOND * (time - taxi.started) if taxi.phase == RIDE else 0.0
        way = np.sqrt((taxi.x1 - taxi.x0) ** 2 + (taxi.y1 - taxi.y0) ** 2) / 1000
        row.fare = np.ceil((taxi.fare + so_far + PER_KILOMETRE * part * way) * 10) / 10
    if stray > 0 and _draw_fault(taxi) < stray:
        row.lon = np.floor(_draw_fault(taxi) * 160e5 + 0.5) / 1e5
        row.lat = np.floor(_draw_fault(taxi) * 90e5 + 0.5) / 1e5


@compiled
def drive(
    taxis: Any,
    until: float,
    city: City,
    town: Any,
    faults: tuple[float, float, float],
    rows: Any,
) -> int:
    """Simulate every taxi until a time; return the number of rows written.

    It returns early when `rows` is full; call it again to continue.
    """
    stray, twice, delay = faults
    n = 0
    for i in range(len(taxis)):
        taxi = taxis[i]
        while min(taxi.due, taxi.ends) < until:
            if n + 2 > len(rows):
                return n
            row = rows[n]
            if taxi.due < taxi.ends:
                _report(taxi, taxi.due, row, stray)
                taxi.due += _interval(taxi)
            else:
                left = taxi.phase == ALIGHT
                metered = left or taxi.phase == BOARD
                paid = taxi.fare
                _next_leg(taxi, city, town)
                if not metered:
                    continue
                _report(taxi, taxi.started, row, stray)
                row.speed = 0.0
                if left:
                    row.fare = np.ceil(paid * 10) / 10
                if taxi.due == taxi.started:
                    taxi.due += _interval(taxi)
            row.taxi_id = i
            row.arrival = row.ts
            n += 1
            if delay > 0:
                row.arrival += int(delay * _draw_fault(taxi))
            if twice > 0 and _draw_fault(taxi) < twice:
                rows[n] = row
                n += 1
    return n
