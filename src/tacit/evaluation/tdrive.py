"""T-Drive: GPS reports of Beijing taxis, read from the public release or Parquet and cleaned.

Its licence forbids redistribution, so that no row of it is a part of this project. `Trips`
makes reports with the same columns where it cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import SchemaError, SourceError
from tacit.kernels import compiled
from tacit.quantities import count

Box = tuple[float, float, float, float]
"""Least longitude, least latitude, greatest longitude, greatest latitude."""

ZONE: Final = "Asia/Shanghai"
"""Of times that carry none."""
MUNICIPALITY: Final[Box] = (115.4, 39.4, 117.6, 41.1)
"""Around Beijing with its outer districts: taxis do go there."""
FASTEST: Final = 150.0
"""Kilometres an hour that a taxi may have gone in a straight line between two reports."""
SCHEMA: Final = {
    "taxi_id": pl.Int32(),
    "ts": pl.Datetime("us", ZONE),
    "lon": pl.Float64(),
    "lat": pl.Float64(),
}

_ABOUT: Final = (
    "T-Drive is not a part of Tacit: its licence (Microsoft Research, for non-commercial use) "
    "forbids redistribution. Get the 'T-Drive trajectory data sample' from Microsoft Research, "
    "unpack it, and give the folder of its text files (1.txt, 2.txt, ...), or a Parquet file "
    "with the columns taxi_id, ts, lon and lat. The generator tacit.evaluation.trips.Trips "
    "makes reports that can stand in for it."
)
_NAMED: Final = 5
_AT_ONCE: Final = 1 << 26
_DEGREE: Final = 111_195.0
_BROKEN: Final = {"file": pl.String(), "line": pl.Int64(), "reason": pl.String()}


@dataclass(frozen=True, slots=True)
class Cleaning:
    """How many reports each rule took away; the rules apply in this order."""

    read: int
    duplicates: int
    """Equal in every field to a report that is kept."""
    outside: int
    """With a position outside of the box, or with something missing."""
    contradictions: int
    """Of a taxi that was at several places in the same second; none of these is kept."""
    jumps: int
    """Too far from the last report that is kept to have been driven since."""

    @property
    def kept(self) -> int:
        """How many are left."""
        return self.read - self.duplicates - self.outside - self.contradictions - self.jumps

    def __str__(self) -> str:
        return (
            f"{count(self.read, 'report')} read, {self.kept:,} kept; taken away: "
            f"{self.duplicates:,} exact duplicates, {self.outside:,} outside of the city, "
            f"{self.contradictions:,} at several places in one second, "
            f"{self.jumps:,} impossible jumps"
        )


@dataclass(frozen=True, slots=True)
class TDrive:
    """Clean reports in order of time, and what was wrong with the others."""

    reports: pl.DataFrame
    """`taxi_id`, `ts`, `lon` and `lat`."""
    cleaning: Cleaning
    files: int = 1
    """How many files were found."""
    empty: tuple[str, ...] = ()
    """Files without a single line; the public release has some."""
    broken: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_BROKEN))
    """`file`, `line` and `reason` of what could not be read; without a line, the whole file."""

    def __str__(self) -> str:
        said = [str(self.cleaning)]
        if self.empty:
            said.append(f"{len(self.empty):,} of {count(self.files, 'file')} without content")
        if self.broken.height:
            said.append(f"{count(self.broken.height, 'line')} not read: {_named(self.broken)}")
        return "\n".join(said)


def read_tdrive(
    path: str | PathLike[str], *, box: Box = MUNICIPALITY, fastest: float = FASTEST
) -> TDrive:
    """Clean reports from the release's folder of text files, or from a Parquet file.

    Lines that are no reports are named and the others read. SourceError where nothing can be.
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"{path} does not exist. {_ABOUT}")
    if not path.is_dir():
        reports, cleaning = clean(_read_parquet(path), box=box, fastest=fastest)
        return TDrive(reports, cleaning)
    files = sorted(
        (file for file in path.rglob("*.txt") if file.stem.isdecimal()),
        key=lambda file: (int(file.stem), file),
    )
    if not files:
        raise SourceError(f"{path} holds no file such as 1.txt. {_ABOUT}")
    texts, empty, unread = _split_by_content(files)
    parts = [_parse(some, path) for some in texts]
    broken = pl.concat([_unreadable(unread, path), *(bad for _, bad in parts)])
    raw = pl.concat([pl.DataFrame(schema=SCHEMA), *(good for good, _ in parts)])
    if not raw.height:
        found = _named(broken) if broken.height else "all files are empty"
        raise SourceError(f"{path} holds no report that can be read: {found}. {_ABOUT}")
    reports, cleaning = clean(raw, box=box, fastest=fastest)
    names = tuple(str(file.relative_to(path)) for file in empty)
    return TDrive(reports, cleaning, len(files), names, broken)


def clean(
    reports: pl.DataFrame, *, box: Box = MUNICIPALITY, fastest: float = FASTEST
) -> tuple[pl.DataFrame, Cleaning]:
    """Reports by the rules of `Cleaning`, in order of time; their own order does not matter."""
    west, south, east, north = box
    there = pl.col("taxi_id").is_not_null() & pl.col("ts").is_not_null()
    within = pl.col("lon").is_between(west, east) & pl.col("lat").is_between(south, north)
    distinct = reports.unique()
    inside = distinct.filter(there & within)
    certain = inside.filter(~pl.struct("taxi_id", "ts").is_duplicated()).sort("taxi_id", "ts")
    seconds = certain["ts"].dt.timestamp("us").to_numpy() / 1e6
    lon, lat = certain["lon"].to_numpy(), certain["lat"].to_numpy()
    driven = _reachable(certain["taxi_id"].to_numpy(), seconds, lon, lat, fastest / 3.6)
    kept = certain.filter(pl.Series(driven)).sort("ts", "taxi_id")
    sizes = [frame.height for frame in (reports, distinct, inside, certain, kept)]
    gone = (before - after for before, after in pairwise(sizes))
    return kept, Cleaning(len(reports), *gone)


@compiled
def _reachable(
    taxis: NDArray[np.int32],
    seconds: NDArray[np.float64],
    lon: NDArray[np.float64],
    lat: NDArray[np.float64],
    fastest: float,
) -> NDArray[np.bool_]:
    """Which reports, by taxi and time, could be driven to from the last one that is kept.

    A taxi's first report counts only if the next one could be driven to: were it wrong, it
    would cost all that follow for as long as a drive from there takes.
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
        raise SourceError(f"{path} is no Parquet file and no folder. {_ABOUT}") from error
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
        raise SourceError(f"{path} holds no report. {_ABOUT}")
    return reports


def _split_by_content(
    files: Sequence[Path],
) -> tuple[Iterator[list[tuple[Path, str]]], list[Path], list[tuple[Path, str]]]:
    """Texts of files, some at once; those without content; those that cannot be read, and why.

    The two lists are complete once the texts have been read to their end.
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
    """The reports in texts, and the lines that are none."""
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
    """A finite number, else null."""
    number = text.cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def _reason() -> pl.Expr:
    """What is wrong with a line; null where nothing is."""
    wrong = [
        (pl.col("fields") != 4, "expected 4 fields: taxi, time, longitude, latitude"),
        (pl.col("taxi_id").is_null(), "the taxi is no whole number"),
        (pl.col("ts").is_null(), "the time is not written as 2008-02-02 15:36:08"),
        (pl.col("lon").is_null(), "the longitude is no number"),
        (pl.col("lat").is_null(), "the latitude is no number"),
    ]
    return pl.coalesce(pl.when(found).then(pl.lit(reason)) for found, reason in wrong)


def _unreadable(files: Sequence[tuple[Path, str]], folder: Path) -> pl.DataFrame:
    rows = [(str(file.relative_to(folder)), None, reason) for file, reason in files]
    return pl.DataFrame(rows, schema=_BROKEN, orient="row")


def _named(broken: pl.DataFrame) -> str:
    """The first few places, without their content."""
    named = [
        (f"{file}: {reason}" if line is None else f"{file}:{line}: {reason}")
        for file, line, reason in broken.head(_NAMED).iter_rows()
    ]
    more = broken.height - len(named)
    return "; ".join(named) + (f"; and {more:,} more" if more else "")
