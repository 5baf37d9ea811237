"""Runs with a ledger: free windows, accounts by elements, limits in a subject's own time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import tacit
from tacit.ledger import zones
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import Horizon, read_statement
from tacit.ledger.verification import verify
from tacit.pipeline import accountant
from tacit.planning.planner import make_plan
from tacit.planning.survey import assume_statistics
from tacit.privacy.policies import Policies
from tacit.privacy.prices import NANO

Patch = pytest.MonkeyPatch
SPEC = """
version: 1
streams: {home: {subject: who, time: at, unit: s}}
windows: {size: 1 h}
events:
  door: {stream: home, where: "kind = 0"}
  stove: {stream: home, where: "kind = 1"}
patterns: {coming: door, leaving: door}
private:
  - {pattern: coming, epsilon: 1}
queries:
  - {name: both, consumer: care, pattern: "AND(door, stove)"}
subjects: [ann, bob]
mechanism: uniform
"""
BEGIN = int(datetime(2024, 6, 1, tzinfo=UTC).timestamp())
HOUR = 3600


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> None:
    """Everything is in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def rows(hours: int = 48, *, stove: int = 2) -> pl.DataFrame:
    """Ann has the stove on in every so many hours, Bob in none; both open a door each hour."""
    kinds = [("ann", 0), ("bob", 0), ("ann", 1)]
    found = [
        (who, BEGIN + hour * HOUR + 60 * place, kind)
        for hour in range(hours)
        for place, (who, kind) in enumerate(kinds)
        if kind == 0 or hour % stove == 0
    ]
    return pl.DataFrame(found, schema=["who", "at", "kind"], orient="row")


def run(text: str, frame: pl.DataFrame, name: str = "home") -> None:
    """Run a specification on some rows, with a ledger."""
    Path("spec.yaml").write_text(text)
    frame.write_csv(f"{name}.csv")
    spec = tacit.load("spec.yaml")
    queries = tuple(spec.query_patterns.values())
    statistics = [assume_statistics(policy, queries, {}) for policy in Policies(spec).policies]
    plan = make_plan(spec, statistics)
    tacit.run(spec, f"{name}.csv", plan=plan, ledger="spent.db", name=name, to=f"{name}-out.csv")


def horizons(subject: str, private: str) -> list[Horizon]:
    """What a subject has spent for a private pattern."""
    with Ledger.open("spent.db") as ledger:
        verdict = verify(ledger, full=True)
        assert verdict.passed, verdict.faults
        return list(read_statement(ledger, subject=subject, private=private).horizons)


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_windows_where_nothing_is_open_are_free(mechanism: str) -> None:
    run(SPEC.replace("uniform", mechanism), rows())
    days = [(one.asked, one.free, one.spent) for one in horizons("ann", "coming")]
    assert days == [(12, 12, 12 * NANO)] * 2
    assert [(one.asked, one.free, one.spent) for one in horizons("bob", "coming")] == [
        (0, 24, 0)
    ] * 2
    everyone = tacit.show_ledger("spent.db").horizons
    assert [(one.subjects, one.asked, one.free) for one in everyone] == [(1, 12, 36)] * 2
    exported = pl.DataFrame(tacit.export_ledger("spent.db"))
    assert exported.height == 2 * 48
    assert exported.filter(nano_epsilon=0)["subject"].cast(pl.String).value_counts(
        sort=True
    ).rows() == [("bob", 48), ("ann", 24)]


def test_a_free_window_needs_no_limit() -> None:
    """Past the limit, windows in which nothing is open are answered as ever."""
    run(SPEC.replace("epsilon: 1}", "epsilon: 1, limit: 3 per day}"), rows(24))
    answers = pl.read_csv("home-out.csv")
    paid = answers.filter(subject="ann").with_columns(
        hour=pl.col("window_start").str.slice(11, 2).cast(pl.Int64)
    )
    expected = [hour % 2 == 0 and hour >= 6 for hour in range(24)]
    assert paid.sort("hour")["exhausted"].to_list() == expected
    assert not answers.filter(subject="bob")["exhausted"].any()
    (day,) = horizons("ann", "coming")
    assert (day.asked, day.free, day.spent) == (3, 12, 3 * NANO)


OTHER = SPEC.replace("pattern: coming", "pattern: leaving")


def test_a_release_is_charged_to_every_account_with_its_elements() -> None:
    """Whichever run it comes from, and whatever the pattern is called there."""
    run(SPEC, rows(24))
    run(OTHER, rows(24), "other")
    assert [one.spent for one in horizons("ann", "leaving")] == [12 * NANO]
    assert [one.spent for one in horizons("ann", "coming")] == [24 * NANO]


def test_charging_by_names_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(accountant, "share_accounts", lambda own, *_: list(own))
    run(SPEC, rows(24))
    run(OTHER, rows(24), "other")
    assert [one.spent for one in horizons("ann", "coming")] != [24 * NANO]


def test_another_definition_under_the_same_event_name_is_another_element() -> None:
    run(SPEC, rows(24))
    run(OTHER.replace("kind = 0", "kind + 0 = 0"), rows(24), "other")
    assert [one.spent for one in horizons("ann", "coming")] == [12 * NANO]


def test_a_new_name_does_not_give_a_new_limit_before_the_horizon_ends() -> None:
    """The account that the run has withdrawn keeps its limit until then."""
    limited = SPEC.replace("epsilon: 1}", "epsilon: 1, limit: 20 per day}")
    run(limited, rows(24, stove=1).filter(pl.col("at") < BEGIN + 12 * HOUR))
    run(limited.replace("pattern: coming", "pattern: leaving"), rows(48, stove=1))
    assert [one.spent for one in horizons("ann", "coming")] == [20 * NANO]
    first, second = horizons("ann", "leaving")
    assert first.spent <= 9 * NANO
    assert second.spent == 20 * NANO


ZONED = """who,zone
ann,Asia/Tokyo
bob,
"""
LOCAL = SPEC.replace("[ann, bob]", "{file: people.csv, column: who, zone: zone}").replace(
    "epsilon: 1}", "epsilon: 1, limit: 5 per day}"
)


def paid(subject: str) -> list[int]:
    """The hours since the beginning that a subject has paid for."""
    table = pl.DataFrame(tacit.export_ledger("spent.db", subject=subject))
    starts = table.filter(pl.col("nano_epsilon") > 0)["window_start"].dt.epoch("s")
    return [(start - BEGIN) // HOUR for start in starts.sort()]


def both_on(hours: int) -> pl.DataFrame:
    """Everything is open for both in all hours."""
    frame = rows(hours, stove=1)
    more = frame.filter(who="ann", kind=1).with_columns(pl.lit("bob").alias("who"))
    return pl.concat([frame, more]).sort("at")


def test_a_day_begins_at_midnight_where_the_subject_is() -> None:
    """In Tokyo that is 15:00 UTC; who has no zone is in that of the specification."""
    Path("people.csv").write_text(ZONED)
    run(f"{LOCAL}zone: Europe/Berlin\n", both_on(48))
    assert paid("ann") == [*range(5), *range(15, 20), *range(39, 44)]
    assert paid("bob") == [*range(5), *range(22, 27), *range(46, 48)]
    # At 00:00 UTC it is 9:00 in Tokyo: that day has the first five.
    starts = [one.start // 3_600_000_000 - BEGIN // HOUR for one in horizons("ann", "coming")]
    assert starts == [0, 24, 48]


def test_a_limit_that_ignores_the_zone_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(zones, "_offset", lambda *_: 0)
    Path("people.csv").write_text(ZONED)
    run(LOCAL, both_on(48))
    assert paid("ann") == [*range(5), *range(24, 29)]


def move_to_tokyo() -> None:
    """A run in which ann's zone changes after 16 hours."""
    Path("people.csv").write_text(ZONED.replace("Asia/Tokyo", "Europe/Berlin"))
    run(LOCAL, both_on(48).filter(pl.col("at") < BEGIN + 16 * HOUR))
    Path("people.csv").write_text(ZONED)
    run(LOCAL, both_on(48))


def test_a_change_of_zone_takes_effect_when_the_day_ends() -> None:
    """Until then the old zone counts: no second limit by moving."""
    move_to_tokyo()
    # At 16:00 UTC it is the next day in Tokyo already, and still the same in Berlin until 22:00.
    assert paid("ann") == [*range(5), *range(22, 27), *range(39, 44)]


def test_a_change_of_zone_that_takes_effect_at_once_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(zones, "_find_end", lambda _zone, _horizon, moment: moment)
    move_to_tokyo()
    assert paid("ann") == [*range(5), *range(16, 21), *range(39, 44)]


def test_an_unknown_zone_is_refused() -> None:
    Path("people.csv").write_text(ZONED.replace("Tokyo", "Atlantis"))
    with pytest.raises(tacit.TacitError, match="Asia/Atlantis"):
        run(LOCAL, both_on(1))
    with pytest.raises(tacit.TacitError, match="Mars"):
        run(f"{SPEC}zone: Mars\n", both_on(1))
