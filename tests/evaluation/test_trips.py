"""Generated trips: the same everywhere, lifelike in the figures that matter, and in order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.evaluation import city
from tacit.evaluation.trips import MEAN_INTERVAL, SCHEMA, Trips

MINUTE = timedelta(minutes=1)


@cache
def workday() -> pl.DataFrame:
    return frame(Trips())


def frame(trips: Trips) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(trips.table()))


def steps(reports: pl.DataFrame) -> pl.DataFrame:
    """Seconds and metres between a taxi's consecutive reports."""
    east = pl.col("lon").diff().over("taxi_id") * city.METRES[0]
    north = pl.col("lat").diff().over("taxi_id") * city.METRES[1]
    return reports.select(
        "ts",
        seconds=pl.col("ts").diff().over("taxi_id").dt.total_seconds(),
        metres=(east * east + north * north).sqrt(),
    ).drop_nulls()


def inside(place: city.Place) -> pl.Expr:
    east = (pl.col("lon") - place.lon) * city.METRES[0]
    north = (pl.col("lat") - place.lat) * city.METRES[1]
    return east * east + north * north < place.radius**2


def rate(reports: pl.DataFrame, found: pl.Expr) -> float:
    """The share of taxis and ten-minute windows of a day of 200 taxis in which it is found."""
    windows = reports.group_by("taxi_id", pl.col("ts").dt.truncate("10m")).agg(found=found)
    return float(windows["found"].sum()) / (200 * 144)


PICKUP = pl.col("hired") & (pl.col("fare") <= 10)
DROPOFF = ~pl.col("hired") & pl.col("fare").is_not_null()
PARKED = pl.col("speed") < 1
SLOW = pl.col("speed").is_between(1, 10)


def test_a_seed_gives_the_same_trips_and_another_seed_others() -> None:
    small = Trips(taxis=5, days=0.2, seed=4)
    assert small.table().equals(small.table())
    assert not small.table().equals(Trips(taxis=5, days=0.2, seed=5).table())


def test_trips_do_not_change_from_machine_to_machine() -> None:
    reports = frame(Trips(taxis=5, days=0.5, seed=1))
    degrees = (reports["lon"] * 1e5).round().cast(pl.Int64).sum()
    assert (len(reports), degrees) == (1343, 15631456637)


def test_a_taxi_is_the_same_however_many_there_are() -> None:
    few = frame(Trips(taxis=7, days=0.5))
    many = frame(Trips(taxis=40, days=0.5))
    assert few.equals(many.filter(pl.col("taxi_id") < 7))


def test_a_longer_time_begins_with_the_shorter() -> None:
    short = frame(Trips(taxis=10, days=0.25))
    assert short.equals(frame(Trips(taxis=10, days=0.5)).head(len(short)))


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 3000),
    seed=st.integers(0, 2**40),
    late=st.sampled_from([0, 1, 400]),
    shares=st.sampled_from([0.0, 0.2]),
)
def test_batches_hold_the_same_reports_as_the_table(
    rows: int, seed: int, late: int, shares: float
) -> None:
    trips = Trips(
        taxis=4,
        days=0.3,
        seed=seed,
        disorder=timedelta(seconds=late),
        duplicates=shares,
        strays=shares,
    )
    batches = list(trips.batches(rows))
    assert all(batch.schema.equals(SCHEMA) and len(batch) for batch in batches)
    assert pl.concat([pl.DataFrame(pl.from_arrow(batch)) for batch in batches]).equals(frame(trips))


def test_reports_are_in_order_and_within_their_days() -> None:
    reports = workday()
    assert reports["ts"].is_sorted()
    assert reports["ts"].min() >= datetime(2008, 2, 4, tzinfo=UTC)  # type: ignore[operator]
    assert reports["ts"].max() < datetime(2008, 2, 5, tzinfo=UTC)  # type: ignore[operator]
    assert not reports.select("taxi_id", "ts").is_duplicated().any()
    assert reports["taxi_id"].unique().sort().to_list() == list(range(200))


def test_reports_lie_within_the_city() -> None:
    west, south, east, north = city.EXTENT
    reports = workday()
    assert reports["lon"].is_between(west, east).all()
    assert reports["lat"].is_between(south, north).all()


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intervals_and_distances_are_those_of_t_drive(seed: int) -> None:
    between = steps(frame(Trips(seed=seed)))
    assert between["seconds"].mean() == pytest.approx(MEAN_INTERVAL, rel=0.03)
    assert between["metres"].mean() == pytest.approx(623, rel=0.1)
    still = (between["metres"] < 30).mean()
    assert 0.3 < float(still) < 0.5  # type: ignore[arg-type]


def test_intervals_cluster_and_have_gaps() -> None:
    seconds = steps(workday())["seconds"]
    for favourite in (60, 180, 300):
        assert (seconds == favourite).mean() > 0.05  # type: ignore[operator]
    assert seconds.min() == 1
    assert seconds.max() > 1200  # type: ignore[operator]


def test_rush_hours_are_slow_and_jammed() -> None:
    reports = workday().with_columns(hour=pl.col("ts").dt.hour())
    moving = reports.filter(~PARKED).group_by("hour").agg(pl.col("speed").median())
    speed = dict(moving.iter_rows())
    assert max(speed[8], speed[17]) < 0.75 * min(speed[11], speed[13], speed[21])
    jam = SLOW.sum() >= 3
    evening, noon, night = (
        rate(reports.filter(pl.col("hour").is_in(hours)), jam)
        for hours in ([17, 18], [12, 13], [2, 3])
    )
    assert evening > 2 * noon > 4 * night
    assert evening * 12 > 0.04


def test_nights_are_for_sleeping() -> None:
    parked = workday().group_by(pl.col("ts").dt.hour()).agg(PARKED.mean())
    share = dict(parked.iter_rows())
    assert share[5] > 0.7
    assert share[13] < 0.45


def test_weekends_have_milder_rush_hours() -> None:
    rush = pl.col("ts").dt.hour().is_between(16, 18) & ~PARKED
    sunday = frame(Trips(start=datetime(2008, 2, 3, tzinfo=UTC)))
    speeds = [day.filter(rush)["speed"].median() for day in (sunday, workday())]
    assert speeds[0] > 1.1 * speeds[1]  # type: ignore[operator]


def test_meters_report_each_pickup_and_dropoff_in_turn() -> None:
    meter = pl.when(PICKUP).then(1).when(DROPOFF).then(0)
    turns = workday().with_columns(meter=meter).drop_nulls("meter")
    follows = turns.select(pl.col("meter").diff().over("taxi_id")).to_series().drop_nulls()
    assert (follows != 0).all()
    assert (turns["speed"] == 0).all()
    assert 15 < turns["meter"].sum() / 200 < 40


def test_fares_run_only_while_hired() -> None:
    reports = workday()
    assert reports.filter("hired")["fare"].is_not_null().all()
    hired = pl.col("hired")
    during = reports.with_columns(
        rise=pl.col("fare").diff().over("taxi_id"), was=hired.shift(1).over("taxi_id")
    ).filter(hired & pl.col("was"))
    assert (during["rise"] >= 0).all()
    paid = reports.filter(DROPOFF)["fare"]
    assert paid.min() > 10  # type: ignore[operator]
    assert 20 < paid.mean() < 60  # type: ignore[operator]


@pytest.mark.parametrize(
    ("place", "least", "most"),
    [
        (city.HOSPITAL, 0.015, 0.06),
        (city.STATION, 0.015, 0.06),
        (city.WEST_STATION, 0.01, 0.06),
        (city.BUSINESS_DISTRICT, 0.02, 0.1),
        (city.UNIVERSITY, 0.01, 0.06),
        (city.BARS, 0.01, 0.06),
        (city.AIRPORT, 0.005, 0.06),
        (city.AIRPORT_ROAD, 0.005, 0.06),
    ],
)
def test_places_are_visited_at_sensible_rates(place: city.Place, least: float, most: float) -> None:
    assert least < rate(workday(), inside(place).any()) < most


def test_a_place_lies_in_its_box() -> None:
    reports = workday().filter(inside(city.HOSPITAL))
    west, south, east, north = city.HOSPITAL.box
    assert reports["lon"].is_between(west, east).all()
    assert reports["lat"].is_between(south, north).all()


def test_disorder_stays_within_its_bound() -> None:
    reports = frame(Trips(taxis=50, days=0.5, disorder=5 * MINUTE))
    behind = reports["ts"].cum_max() - reports["ts"]
    assert behind.max() < 5 * MINUTE  # type: ignore[operator]
    assert behind.max() > 4 * MINUTE  # type: ignore[operator]
    assert reports.sort("ts", "taxi_id").equals(frame(Trips(taxis=50, days=0.5)))


def test_duplicates_are_exact_and_as_many_as_asked_for() -> None:
    plain = frame(Trips(taxis=50))
    reports = frame(Trips(taxis=50, duplicates=0.04))
    assert reports.unique(maintain_order=True).equals(plain)
    assert len(reports) / len(plain) - 1 == pytest.approx(0.04, abs=0.005)


def test_strays_change_only_positions_and_as_many_as_asked_for() -> None:
    plain = frame(Trips(taxis=50))
    reports = frame(Trips(taxis=50, strays=0.01))
    assert reports.drop("lon", "lat").equals(plain.drop("lon", "lat"))
    moved = (reports["lon"] != plain["lon"]) | (reports["lat"] != plain["lat"])
    assert moved.mean() == pytest.approx(0.01, abs=0.003)
    west, south, east, north = city.EXTENT
    far = ~(pl.col("lon").is_between(west, east) & pl.col("lat").is_between(south, north))
    assert reports.filter(far).height >= 0.99 * int(moved.sum())


def test_every_crossing_in_demand_can_be_reached() -> None:
    town = city.build_city()
    wanted = np.flatnonzero(np.diff(town.homes, prepend=0) > 0)
    ways = town.routes[np.ix_(wanted, wanted)]
    np.fill_diagonal(ways, 0)
    assert (ways >= 0).all()
    assert len(wanted) > 1000


def test_following_the_routes_leads_to_the_goal() -> None:
    town = city.build_city()
    wanted = np.flatnonzero(np.diff(town.homes, prepend=0) > 0)
    goals = wanted[::40]
    here = np.repeat(wanted[:, None], len(goals), axis=1)
    for _ in range(150):
        k = town.routes[goals, here]
        here = np.where(here == goals, here, town.links[here, k])
    assert (here == goals).all()


def test_no_taxis_and_no_days_give_no_rows() -> None:
    assert Trips(taxis=0).table().num_rows == 0
    assert Trips(days=0).table().num_rows == 0


def test_unfit_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Trips(start=datetime(2008, 2, 4))
    with pytest.raises(ValueError, match="shares"):
        Trips(strays=1.5)
    with pytest.raises(ValueError, match="negative"):
        Trips(taxis=-1)
