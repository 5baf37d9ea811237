"""The smart home: lifelike in what plans depend on, and protected end to end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tacit
from tacit.evaluation import home
from tacit.evaluation.home import Homes, load_home_specification
from tacit.privacy.quality import Confusion
from tests.longer import longer

ROOT = Path(__file__).parents[2]
START = datetime(2024, 1, 1, tzinfo=UTC)
TURN = START + timedelta(days=14)


@cache
def tables() -> dict[str, pa.Table]:
    return Homes(homes=150, days=21).tables()


def stream(name: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(tables()[name]))


def cut(later: bool) -> dict[str, pa.Table]:
    turn = pa.scalar(TURN, pa.timestamp("us", "UTC"))
    compare = pc.greater_equal if later else pc.less
    return {name: table.filter(compare(table["at"], turn)) for name, table in tables().items()}


@cache
def rates() -> pl.DataFrame:
    """The share of homes in which each query and private pattern is found, by window."""
    spec = load_home_specification()
    private = tuple(
        tacit.Query(name=part.name, consumer="us", pattern=part.pattern) for part in spec.private
    )
    asked = spec.model_copy(update={"queries": spec.queries + private})
    found = tacit.detect(asked, **tables()).polars()
    return found.group_by("query", "window_start").agg(pl.col("detected").mean())


def rate(query: str, when: pl.Expr | None = None) -> float:
    found = rates().filter(pl.col("query") == query)
    found = found if when is None else found.filter(when)
    return float(found["detected"].mean())  # type: ignore[arg-type]


HOUR = pl.col("window_start").dt.hour()
WEEKEND = pl.col("window_start").dt.weekday() >= 6


def test_the_example_is_the_same_specification() -> None:
    shipped = Path(home.__file__).with_name("home.yaml").read_bytes()
    assert (ROOT / "examples" / "home.yaml").read_bytes() == shipped
    assert load_home_specification().check() == []


def test_a_seed_gives_the_same_homes_and_another_seed_others() -> None:
    small = Homes(homes=5, days=2, seed=3)
    assert all(table.equals(small.tables()[name]) for name, table in small.tables().items())
    assert not small.tables()["motion"].equals(Homes(homes=5, days=2, seed=4).tables()["motion"])


def test_every_stream_is_in_order_and_within_its_days() -> None:
    assert set(tables()) == set(load_home_specification().streams)
    for name in tables():
        frame = stream(name)
        assert frame["at"].is_sorted()
        assert frame["at"].min() >= START  # type: ignore[operator]
        assert frame["at"].max() < START + timedelta(days=21)  # type: ignore[operator]
        assert frame["home"].n_unique() == 150
        assert frame["at"].dt.microsecond().max() == 0


def test_meters_are_read_four_times_an_hour_whatever_happens() -> None:
    hours = stream("meter").group_by("home", pl.col("at").dt.truncate("1h")).len()
    assert hours.height == 150 * 21 * 24
    assert hours["len"].unique().to_list() == [4]


def test_each_private_pattern_and_query_happens_and_none_always() -> None:
    spec = load_home_specification()
    for name in [query.name for query in spec.queries] + [part.name for part in spec.private]:
        assert 0.001 < rate(name) < 0.7, name


def test_days_have_their_hours() -> None:
    night, day = HOUR.is_between(1, 4), HOUR.is_between(10, 20)
    assert rate("someone_up", night) < 0.25 < 0.6 < rate("someone_up", day)
    assert rate("bathroom_by_night", night) > 0.04
    assert rate("bathroom_by_night", day) == 0
    assert rate("takes_medicine", HOUR.is_between(6, 9)) > 0.08
    assert rate("takes_medicine", HOUR.is_between(13, 17)) < 0.005
    assert rate("evening_in", HOUR.is_between(19, 22)) > 0.1


def test_some_go_to_work_on_week_days() -> None:
    forenoon = HOUR.is_between(10, 14)
    assert rate("inactive", forenoon & ~WEEKEND) > rate("inactive", forenoon & WEEKEND) + 0.05
    early = HOUR == 6
    assert rate("someone_up", early & ~WEEKEND) > rate("someone_up", early & WEEKEND) + 0.05


def test_the_first_and_the_last_night_are_like_the_others() -> None:
    """Nights lie between two days, so that the edges are easily forgotten."""
    for edge in (
        (HOUR < 5) & (pl.col("window_start") < START + timedelta(hours=5)),
        (HOUR == 23) & (pl.col("window_start") >= START + timedelta(days=20)),
    ):
        assert rate("restless", edge) == pytest.approx(0.09, abs=0.05)


def test_homes_have_habits_of_their_own() -> None:
    """Far more variety between homes than chance alone would make."""
    cabinet = stream("doors").filter((pl.col("door") == "cabinet") & pl.col("open"))
    counts = cabinet.group_by("home").len()["len"]
    assert counts.var() > 3 * counts.mean()  # type: ignore[operator]


def test_no_homes_and_no_days_give_no_rows() -> None:
    for none in (Homes(homes=0), Homes(days=0)):
        assert [table.num_rows for table in none.tables().values()] == [0] * 4
        assert none.tables()["motion"].schema.equals(tables()["motion"].schema)


def test_unfit_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Homes(homes=-1)
    with pytest.raises(ValueError, match="midnight"):
        Homes(start=datetime(2024, 1, 1, 7, tzinfo=UTC))


@cache
def true_answers() -> pl.DataFrame:
    """The true answers of the third week."""
    return tacit.detect(load_home_specification(), **cut(later=True)).polars()


@cache
def answered(mechanism: str, decode: str) -> tuple[tacit.Plan, pl.DataFrame]:
    """A plan from the first two weeks, and its answers in the third."""
    spec = load_home_specification()
    plan = tacit.plan(spec, mechanism=mechanism, decode=decode, **cut(later=False))
    return plan, tacit.run(spec, plan=plan, seed=5, **cut(later=True)).polars()


def quality(mechanism: str, decode: str) -> tuple[float, float]:
    """What is expected from the first two weeks, and what comes of the third."""
    plan, answers = answered(mechanism, decode)
    truth = true_answers()
    both = truth.join(answers, on=["window_start", "subject", "query"], suffix="_told")
    assert both.height == truth.height == 150 * 7 * 24 * len(plan.spec.queries)
    true, told = pl.col("detected"), pl.col("detected_told")
    counts = both.select((true & told).sum(), fp=(~true & told).sum(), fn=(true & ~told).sum())
    assert plan.expected is not None
    return plan.expected.quality, Confusion(*map(float, counts.row(0))).quality(0.5)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mechanism", "decode"),
    [
        ("optimal", "posterior"),
        *longer(("uniform", "literal"), ("adaptive", "literal")),
    ],
)
def test_a_later_week_is_answered_as_well_as_the_plan_expects(mechanism: str, decode: str) -> None:
    expected, measure = quality(mechanism, decode)
    assert measure == pytest.approx(expected, abs=0.015)


@pytest.mark.soak
def test_better_mechanisms_answer_better() -> None:
    uniform, adaptive = quality("uniform", "literal")[1], quality("adaptive", "literal")[1]
    optimal = quality("optimal", "posterior")[1]
    assert uniform < adaptive < optimal
    assert optimal > 0.95


def test_queries_that_touch_nothing_private_are_exact() -> None:
    _, answers = answered("optimal", "posterior")
    keys = ["window_start", "subject", "query"]
    both = true_answers().join(answers, on=keys, suffix="_told")
    same = both.group_by("query").agg((pl.col("detected") == pl.col("detected_told")).all())
    exact = dict(same.with_columns(pl.col("query").cast(pl.String)).iter_rows())
    assert [exact[name] for name in ("hot_drink", "gone_out", "evening_in")] == [True] * 3
    assert not exact["restless"]
