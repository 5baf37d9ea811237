"""T-Drive's loader, on generated files: its rows may not be copied, so none are here.

With TACIT_TDRIVE set to the real folder or Parquet file, a last test looks at that too.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from functools import cache
from math import cos, hypot, radians
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import SchemaError, SourceError
from tacit.evaluation.tdrive import FASTEST, MUNICIPALITY, SCHEMA, ZONE, clean, read_tdrive
from tacit.evaluation.trips import Trips

NOON = datetime(2008, 2, 4, 12)


@cache
def generated() -> pl.DataFrame:
    """Generated reports with T-Drive's faults, as it writes them: by the city's own clock."""
    table = Trips(taxis=12, days=0.5, duplicates=0.05, strays=0.02).table()
    frame = pl.DataFrame(pl.from_arrow(table)).select("taxi_id", "ts", "lon", "lat")
    return frame.with_columns(pl.col("ts").dt.replace_time_zone(None).dt.cast_time_unit("ms"))


def reports(*rows: tuple[int, float, float, float]) -> pl.DataFrame:
    """Reports of (taxi, seconds after noon, longitude, latitude)."""
    return pl.DataFrame(
        [(taxi, NOON + timedelta(seconds=at), lon, lat) for taxi, at, lon, lat in rows],
        schema={**SCHEMA, "ts": pl.Datetime("us")},
        orient="row",
    ).with_columns(pl.col("ts").dt.replace_time_zone(ZONE))


def write_folder(folder: Path, frame: pl.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = frame.with_columns(pl.col("ts").dt.strftime("%Y-%m-%d %H:%M:%S"))
    for (taxi,), part in lines.group_by("taxi_id", maintain_order=True):
        part.write_csv(folder / f"{taxi}.txt", include_header=False)
    return folder


def line(taxi: int = 1, second: int = 0, lon: str = "116.4", lat: str = "39.9") -> str:
    return f"{taxi},2008-02-04 12:00:{second:02},{lon},{lat}\n"


def test_text_files_and_parquet_give_the_same_reports(tmp_path: Path) -> None:
    write_folder(tmp_path / "release" / "taxi_log_2008_by_id", generated())
    generated().write_parquet(tmp_path / "reports.parquet")
    from_text = read_tdrive(tmp_path / "release")
    from_parquet = read_tdrive(tmp_path / "reports.parquet")
    assert from_text.reports.equals(from_parquet.reports)
    assert from_text.cleaning == from_parquet.cleaning
    assert from_text.files == 12
    assert from_text.broken.is_empty()


def test_what_is_left_is_what_was_generated_without_faults() -> None:
    faulty = generated().with_columns(pl.col("ts").dt.replace_time_zone(ZONE))
    plain = pl.DataFrame(pl.from_arrow(Trips(taxis=12, days=0.5).table()))
    kept, cleaning = clean(faulty.with_columns(pl.col("ts").dt.cast_time_unit("us")))
    clocks = kept.with_columns(pl.col("ts").dt.replace_time_zone("UTC"))
    true = plain.select("taxi_id", "ts", "lon", "lat").sort("ts", "taxi_id")
    # A stray may by chance lie in the municipality and be near enough; most reports are as made.
    assert clocks.join(true, on=list(SCHEMA), how="semi").height == clocks.height
    assert clocks.height > 0.97 * true.height
    assert cleaning.duplicates > 0
    assert cleaning.outside > 0


def test_times_are_those_of_beijing_unless_they_say_otherwise(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text(line())
    local = reports((1, 0, 116.4, 39.9))
    local.with_columns(pl.col("ts").dt.convert_time_zone("UTC")).write_parquet(tmp_path / "z")
    local.with_columns(pl.col("ts").dt.replace_time_zone(None)).write_parquet(tmp_path / "n")
    for source in (tmp_path, tmp_path / "z", tmp_path / "n"):
        found = read_tdrive(source).reports
        assert found.schema == SCHEMA
        assert found["ts"].dt.convert_time_zone("UTC").dt.hour().to_list() == [4]


def test_each_rule_is_counted_once() -> None:
    kept, cleaning = clean(
        reports(
            (1, 0, 116.4, 39.9),
            (1, 0, 116.4, 39.9),  # an exact duplicate
            (1, 60, 0.0, 0.0),  # outside
            (1, 120, 116.41, 39.9),
            (1, 180, 116.42, 39.9),  # two places at once: neither is believed
            (1, 180, 116.43, 39.9),
            (1, 240, 117.4, 39.9),  # 85 km in two minutes
            (1, 300, 116.42, 39.9),
            (2, 301, 117.4, 39.9),  # another taxi may be there
        )
    )
    assert (cleaning.duplicates, cleaning.outside) == (1, 1)
    assert (cleaning.contradictions, cleaning.jumps) == (2, 1)
    assert cleaning.kept == kept.height == 4
    assert kept["taxi_id"].to_list() == [1, 1, 1, 2]
    assert "9 reports read, 4 kept" in str(cleaning)


def test_the_box_has_its_edges_and_nothing_beyond() -> None:
    west, south, east, north = MUNICIPALITY
    corners = reports((1, 0, west, south), (2, 0, east, north), (3, 0, west, north))
    assert clean(corners)[1].outside == 0
    beyond = reports((1, 0, np.nextafter(west, 0), south), (2, 0, east, np.nextafter(north, 90)))
    assert clean(beyond)[1].outside == 2


def test_a_wrong_first_report_does_not_cost_those_that_follow() -> None:
    kept, cleaning = clean(
        reports((1, 0, 117.4, 39.9), *((1, 60 * n, 116.4, 39.9) for n in range(1, 20)))
    )
    assert cleaning.jumps == 1
    assert kept["lon"].unique().to_list() == [116.4]


def test_something_missing_is_not_kept() -> None:
    whole = reports(*((1, 60 * n, 116.4, 39.9) for n in range(5)))
    holes = whole.with_columns(
        taxi_id=pl.Series([None, 1, 1, 1, 1], dtype=pl.Int32),
        ts=pl.when(pl.int_range(5) != 1).then("ts"),
        lon=pl.Series([116.4, 116.4, None, 116.4, 116.4]),
        lat=pl.Series([39.9, 39.9, 39.9, float("nan"), 39.9]),
    )
    kept, cleaning = clean(holes)
    assert (kept.height, cleaning.outside, cleaning.kept) == (1, 4, 1)


def slowly_reachable(frame: pl.DataFrame) -> list[tuple[int, datetime]]:
    """The rule for jumps, written out; `frame` has a row for each taxi and time."""

    def drives(here: dict[str, Any], there: dict[str, Any]) -> bool:
        north = (there["lat"] - here["lat"]) * 111_195
        east = (there["lon"] - here["lon"]) * 111_195 * cos(radians(here["lat"]))
        seconds: float = (there["ts"] - here["ts"]).total_seconds()
        return hypot(north, east) <= seconds * FASTEST / 3.6

    kept = []
    for _, taxi in frame.sort("taxi_id", "ts").group_by("taxi_id", maintain_order=True):
        rows = taxi.rows(named=True)
        while len(rows) > 1 and not drives(rows[0], rows[1]):
            rows = rows[1:]
        chain = rows[:1]
        for row in rows[1:]:
            if drives(chain[-1], row):
                chain.append(row)
        kept += [(row["taxi_id"], row["ts"]) for row in chain]
    return sorted(kept)


wild = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 4000),
        st.integers(0, 60).map(lambda n: 115.3 + n / 25),
        st.integers(0, 48).map(lambda n: 39.3 + n / 25),
    ),
    min_size=1,
    max_size=40,
)


@given(rows=wild)
@settings(max_examples=40)
def test_jumps_are_found_as_one_by_one(rows: list[tuple[int, float, float, float]]) -> None:
    frame = reports(*{(taxi, at): (taxi, at, lon, lat) for taxi, at, lon, lat in rows}.values())
    kept, _ = clean(frame, box=(-180, -90, 180, 90))
    assert sorted(kept.select("taxi_id", "ts").rows()) == slowly_reachable(frame)


@given(rows=wild, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_order_does_not_matter_and_clean_stays_clean(
    rows: list[tuple[int, float, float, float]], seed: int
) -> None:
    frame = reports(*rows, *rows[::3])
    kept, cleaning = clean(frame)
    assert cleaning.kept == kept.height
    shuffled = clean(frame.sample(fraction=1.0, shuffle=True, seed=seed))
    assert shuffled[0].equals(kept)
    assert shuffled[1] == cleaning
    assert clean(kept)[0].equals(kept)


def test_broken_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(
        line(second=1).replace("\n", "\r\n").encode()
        + b"\n"
        + b"1,2008-02-04 12:00:02,116.98765\n"
        + b"x,2008-02-04 12:00:03,116.4,39.9\n"
        + b"1,2008-02-30 12:00:04,116.4,39.9\n"
        + b"1,2008-02-04 12:00:05,nan,39.9\n"
        + b"1,2008-02-04 12:00:06,116.4,\xff\xfe\n"
        + b"1,2008-02-04 12:00:07,116.4,39.9,7\n"
        + b"99999999999,2008-02-04 12:00:07,116.4,39.9\n"
        + line(second=8).strip().encode()
    )
    (tmp_path / "2.txt").write_text(line(taxi=2) + "2,2008-02-0")
    found = read_tdrive(tmp_path)
    assert found.reports["taxi_id"].to_list() == [2, 1, 1]
    assert found.cleaning.read == 3
    places = found.broken.select("file", "line").rows()
    assert places == [("1.txt", n) for n in range(3, 10)] + [("2.txt", 2)]
    reasons = found.broken["reason"].to_list()
    for reason, word in zip(
        reasons,
        ["4 fields", "taxi", "time", "longitude", "latitude", "4 fields", "taxi", "4 fields"],
        strict=True,
    ):
        assert word in reason
    said = str(found)
    assert "8 lines not read: 1.txt:3: expected 4 fields" in said
    assert "and 3 more" in said
    assert "116.98765" not in said


def test_empty_and_unreadable_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("")
    (tmp_path / "2.txt").write_text(line(taxi=2))
    (tmp_path / "3.txt").mkdir()
    (tmp_path / "4.txt").write_text(" \n\n")
    (tmp_path / "readme.txt").write_text("about the taxis")
    found = read_tdrive(tmp_path)
    assert found.reports["taxi_id"].to_list() == [2]
    assert (found.files, found.empty) == (4, ("1.txt", "4.txt"))
    assert found.broken.select("file", "line").rows() == [("3.txt", None)]
    assert "2 of 4 files without content" in str(found)


def test_many_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, generated())
    whole = read_tdrive(tmp_path)
    monkeypatch.setattr("tacit.evaluation.tdrive._AT_ONCE", 20_000)
    assert read_tdrive(tmp_path).reports.equals(whole.reports)


def test_what_is_missing_is_said_with_where_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("about the taxis")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SourceError, match=r"Microsoft Research.*forbids redistribution"):
            read_tdrive(path)


def test_a_folder_without_a_single_report_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("")
    with pytest.raises(SourceError, match="all files are empty"):
        read_tdrive(tmp_path)
    (tmp_path / "2.txt").write_text("1;2\n3;4\n")
    with pytest.raises(SourceError, match=r"2\.txt:1: expected 4 fields.*2\.txt:2"):
        read_tdrive(tmp_path)


def test_unfit_parquet_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "reports.parquet"
    path.write_text("no Parquet")
    with pytest.raises(SourceError, match="neither a Parquet file nor a folder"):
        read_tdrive(path)
    generated().drop("lat").write_parquet(path)
    with pytest.raises(SchemaError, match="lacks lat"):
        read_tdrive(path)
    generated().with_columns(ts=pl.lit("noon")).write_parquet(path)
    with pytest.raises(SchemaError, match="expected timestamps in ts; got String"):
        read_tdrive(path)
    generated().with_columns(lon=pl.lit("east")).write_parquet(path)
    with pytest.raises(SchemaError, match="numbers in lon and lat"):
        read_tdrive(path)
    generated().clear().write_parquet(path)
    with pytest.raises(SourceError, match="has no report"):
        read_tdrive(path)


@pytest.mark.skipif("TACIT_TDRIVE" not in os.environ, reason="TACIT_TDRIVE is not set")
def test_the_real_reports_are_mostly_kept() -> None:
    found = read_tdrive(os.environ["TACIT_TDRIVE"])
    cleaning = found.cleaning
    assert cleaning.kept > 0.8 * cleaning.read
    assert cleaning.duplicates > 0.01 * cleaning.read
    assert cleaning.jumps + cleaning.contradictions < 0.01 * cleaning.read
