"""Read and clean T-Drive: GPS reports of Beijing taxis, from the public release or Parquet.

Its licence forbids redistribution, so this project contains no row of it. `Trips` generates reports
with the same columns as a replacement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import SchemaError, SourceError
from tacit.kernels import compiled
from tacit.quantities import count

Box = tuple[float, float, float, float]
"""Smallest longitude and latitude, largest longitude and latitude."""

ZONE: Final = "Asia/Shanghai"
"""The zone of times without one."""
MUNICIPALITY: Final[Box] = (115.4, 39.4, 117.6, 41.1)
"""Beijing with its outer districts, where taxis go."""
FASTEST: Final = 150.0
"""The most kilometres per hour of a taxi in a straight line between two reports."""
SCHEMA: Final = {
    "taxi_id": pl.Int32(),
    "ts": pl.Datetime("us", ZONE),
    "lon": pl.Float64(),
    "lat": pl.Float64(),
}

_ABOUT: Final = (
    "T-Drive is not part of Tacit: its licence (Microsoft Research, for non-commercial use) "
    "forbids redistribution. Get the 'T-Drive trajectory data sample' from Microsoft Research, "
    "unpack it, and give the folder of its text files (1.txt, 2.txt, ...), or a Parquet file "
    "with the columns taxi_id, ts, lon and lat. The generator tacit.evaluation.trips.Trips "
    "generates reports that can replace it."
)
_NAMED: Final = 5
_AT_ONCE: Final = 1 << 26
_DEGREE: Final = 111_195.0
_BROKEN: Final = {"file": pl.String(), "line": pl.Int64(), "reason": pl.String()}


@dataclass(frozen=True, slots=True)
class Cleaning:
    """How many reports each rule removed; the rules apply in this order."""

    read: int
    duplicates: int
    """Reports equal in every field to one that is kept."""
    outside: int
    """Reports outside of the box, or with a missing value."""
    contradictions: int
    """Reports of a taxi at several places in the same second; none of these is kept."""
    jumps: int
    """Reports too far from the last kept one to be reached in time."""

    @property
    def kept(self) -> int:
        """The number of remaining reports."""
        return self.read - self.duplicates - self.outside - self.contradictions - self.jumps

    def __str__(self) -> str:
        return (
            f"{count(self.read, 'report')} read, {self.kept:,} kept; removed: "
            f"{self.duplicates:,} exact duplicates, {self.outside:,} outside of the city, "
            f"{self.contradictions:,} at several places in one second, "
            f"{self.jumps:,} impossible jumps"
        )


@dataclass(frozen=True, slots=True)
class TDrive:
    """The clean reports in order of time, and the problems of the others."""

    reports: pl.DataFrame
    """`taxi_id`, `ts`, `lon` and `lat`."""
    cleaning: Cleaning
    files: int = 1
    """The number of files."""
    empty: tuple[str, ...] = ()
    """Empty files; the public release has some."""
    broken: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_BROKEN))
    """`file`, `line` and `reason` of unreadable lines; without a line, the whole file."""

    def __str__(self) -> str:
        parts = [str(self.cleaning)]
        if self.empty:
            parts.append(f"{len(self.empty):,} of {count(self.files, 'file')} without content")
        if self.broken.height:
            parts.append(
                f"{count(self.broken.height, 'line')} not read: {_format_places(self.broken)}"
            )
        return "\n".join(parts)


def read_tdrive(path: str | PathLike[str]) -> TDrive:
    """Read and clean reports from the release's folder of text files, or from a Parquet file.

    Lines that are not reports are listed in the result. Raises SourceError if there is no report.
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"{path} does not exist. {_ABOUT}")
    if not path.is_dir():
        reports, cleaning = clean(_read_parquet(path))
        return TDrive(reports, cleaning)
    files = sorted(
        (file for file in path.rglob("*.txt") if file.stem.isdecimal()),
        key=lambda file: (int(file.stem), file),
    )
    if not files:
        raise SourceError(f"{path} has no file such as 1.txt. {_ABOUT}")
    texts, empty, unread = _split_by_content(files)
    parts = [_parse(some, path) for some in texts]
    broken = pl.concat([_unreadable(unread, path), *(bad for _, bad in parts)])
    raw = pl.concat([pl.DataFrame(schema=SCHEMA), *(good for good, _ in parts)])
    if not raw.height:
        found = _format_places(broken) if broken.height else "all files are empty"
        raise SourceError(f"{path} has no readable report: {found}. {_ABOUT}")
    reports, cleaning = clean(raw)
    names = tuple(str(file.relative_to(path)) for file in empty)
    return TDrive(reports, cleaning, len(files), names, broken)


TaxiPart: TypeAlias = Literal["all", "tuning", "test"]
"""Which taxis: those on which parameters were chosen, the others, or all."""


def select_taxis(reports: pl.DataFrame, part: TaxiPart) -> pl.DataFrame:
    """Select the taxis for tuning (odd numbers), those for results (even numbers), or all.

    Parameters (the w of baselines, candidates of spending policies) are chosen on tuning taxis.
    Of every part, the first half of the days is history and the rest is answered.
    """
    if part == "all":
        return reports
    return reports.filter(pl.col("taxi_id") % 2 == (part == "tuning"))


def clean(reports: pl.DataFrame, *, box: Box = MUNICIPALITY) -> tuple[pl.DataFrame, Cleaning]:
    """Clean reports by the rules of `Cleaning` and sort them by time."""
    west, south, east, north = box
    there = pl.col("taxi_id").is_not_null() & pl.col("ts").is_not_null()
    within = pl.col("lon").is_between(west, east) & pl.col("lat").is_between(south, north)
    distinct = reports.unique()
    inside = distinct.filter(there & within)
    certain = inside.filter(~pl.struct("taxi_id", "ts").is_duplicated()).sort("taxi_id", "ts")
    seconds = certain["ts"].dt.timestamp("us").to_numpy() / 1e6
    lon, lat = certain["lon"].to_numpy(), certain["lat"].to_numpy()
    driven = _find_reachable(certain["taxi_id"].to_numpy(), seconds, lon, lat, FASTEST / 3.6)
    kept = certain.filter(pl.Series(driven)).sort("ts", "taxi_id")
    sizes = [frame.height for frame in (reports, distinct, inside, certain, kept)]
    gone = (before - after for before, after in pairwise(sizes))
    return kept, Cleaning(len(reports), *gone)


@compiled
def _find_reachable(
    taxis: NDArray[np.int32],
    seconds: NDArray[np.float64],
    lon: NDArray[np.float64],
    lat: NDArray[np.float64],
    fastest: float,
) -> NDArray[np.bool_]:
    """Find the reports, by taxi and time, that can be reached from the last kept one.

    A taxi's first report counts only if the next one can be reached from it. Otherwise a wrong
    first report would remove all that follow for as long as a drive from there takes.
    """
    kept = np.zeros(len(taxis), np.bool_)
    last = -1
    for row in range(len(taxis)):
        if last >= 0 and taxis[last] != taxis[row]:
            last = -1
        if last >= 0:
            kept[row] = _driven(seconds, lon, lat, last, row, fastest)
        else:
            alone = row + 1 == len(taxis) or taxis[row + 1] != taxis[row]
            kept[row] = alone or _driven(seconds, lon, lat, row, row + 1, fastest)
        if kept[row]:
            last = row
    return kept


@compiled
def _driven(
    seconds: NDArray[np.float64],
    lon: NDArray[np.float64],
    lat: NDArray[np.float64],
    here: int,
    there: int,
    fastest: float,
) -> bool:
    north = (lat[there] - lat[here]) * _DEGREE
    east = (lon[there] - lon[here]) * _DEGREE * np.cos(np.radians(lat[here]))
    return bool(np.hypot(north, east) <= fastest * (seconds[there] - seconds[here]))


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        found = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SourceError(f"{path} is neither a Parquet file nor a folder. {_ABOUT}") from error
    missing = [name for name in SCHEMA if name not in found.columns]
    if missing:
        raise SchemaError(
            f"{path} lacks {', '.join(missing)}; expected the columns {', '.join(SCHEMA)}"
        )
    times = found.schema["ts"]
    if not isinstance(times, pl.Datetime):
        raise SchemaError(f"{path}: expected timestamps in ts; got {times}")
    ts = pl.col("ts").cast(pl.Datetime("us", times.time_zone))
    zoned = ts.dt.replace_time_zone(ZONE) if times.time_zone is None else ts
    try:
        reports = found.select("taxi_id", zoned, "lon", "lat").cast(pl.Schema(SCHEMA))
    except pl.exceptions.PolarsError as error:
        raise SchemaError(
            f"{path}: expected whole numbers in taxi_id and numbers in lon and lat"
        ) from error
    if not reports.height:
        raise SourceError(f"{path} has no reports. {_ABOUT}")
    return reports


def _split_by_content(
    files: Sequence[Path],
) -> tuple[Iterator[list[tuple[Path, str]]], list[Path], list[tuple[Path, str]]]:
    """Return the texts of files in groups, the empty files, and the unreadable files with reasons.

    The two lists are complete once all texts were read.
    """
    empty: list[Path] = []
    unread: list[tuple[Path, str]] = []

    def texts() -> Iterator[list[tuple[Path, str]]]:
        some: list[tuple[Path, str]] = []
        size = 0
        for file in files:
            try:
                text = file.read_text("utf-8", errors="replace")
            except OSError as error:
                unread.append((file, error.strerror or type(error).__name__))
                continue
            if not text.strip():
                empty.append(file)
                continue
            some.append((file, text))
            size += len(text)
            if size >= _AT_ONCE:
                yield some
                some, size = [], 0
        yield some

    return texts(), empty, unread


def _parse(texts: Sequence[tuple[Path, str]], folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parse the reports in texts; also return the lines that are not reports."""
    names = [str(file.relative_to(folder)) for file, _ in texts]
    part = pl.col("text").str.split_exact(",", 3).struct
    lines = (
        pl.DataFrame({"file": names, "text": [text for _, text in texts]}, schema_overrides=_TEXT)
        .with_columns(pl.col("text").str.split("\n"))
        .with_columns(line=pl.int_ranges(1, pl.col("text").list.len() + 1))
        .explode("text", "line")
        .with_columns(pl.col("text").str.strip_chars())
        .filter(pl.col("text") != "")
        .with_columns(
            fields=pl.col("text").str.count_matches(",", literal=True) + 1,
            taxi_id=part.field("field_0").str.to_integer(dtype=pl.Int32, strict=False),
            ts=part.field("field_1")
            .str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False)
            .dt.replace_time_zone(ZONE, ambiguous="null", non_existent="null"),
            lon=_number(part.field("field_2")),
            lat=_number(part.field("field_3")),
        )
        .with_columns(reason=_reason())
    )
    good = lines.filter(pl.col("reason").is_null()).select(list(SCHEMA))
    return good, lines.filter(pl.col("reason").is_not_null()).select(list(_BROKEN))


_TEXT: Final = {"file": pl.String(), "text": pl.String()}


def _number(text: pl.Expr) -> pl.Expr:
    """Parse a finite number, else null."""
    number = text.cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def _reason() -> pl.Expr:
    """Return the problem of a line; null if there is none."""
    wrong = [
        (pl.col("fields") != 4, "expected 4 fields: taxi, time, longitude, latitude"),
        (pl.col("taxi_id").is_null(), "the taxi is not a whole number"),
        (pl.col("ts").is_null(), "the time is not written as 2008-02-02 15:36:08"),
        (pl.col("lon").is_null(), "the longitude is not a number"),
        (pl.col("lat").is_null(), "the latitude is not a number"),
    ]
    return pl.coalesce(pl.when(found).then(pl.lit(reason)) for found, reason in wrong)


def _unreadable(files: Sequence[tuple[Path, str]], folder: Path) -> pl.DataFrame:
    rows = [(str(file.relative_to(folder)), None, reason) for file, reason in files]
    return pl.DataFrame(rows, schema=_BROKEN, orient="row")


def _format_places(broken: pl.DataFrame) -> str:
    """Format the first few places, without their content."""
    named = [
        (f"{file}: {reason}" if line is None else f"{file}:{line}: {reason}")
        for file, line, reason in broken.head(_NAMED).iter_rows()
    ]
    more = broken.height - len(named)
    return "; ".join(named) + (f"; and {more:,} more" if more else "")
