"""Draft a specification from the columns and values of a file, for people to change.

A draft names values of columns. So that it says nothing about a single subject, it names only
values that several subjects share, and rounds numbers.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.connectors.files import open_file
from tacit.connectors.jsonlines import JsonLinesSource
from tacit.errors import SourceError
from tacit.events.columntypes import convert_text, infer_type, to_column_type
from tacit.events.streams import ColumnType, Stream
from tacit.events.times import NO_TIME, to_microseconds
from tacit.patterns.conditions import KEYWORDS
from tacit.pipeline.sources import Rejected
from tacit.quantities import count

SHARED_BY: Final = 3
"""The number of subjects that must have a value before a draft names it."""
_ROWS: Final = 50_000
"""The number of rows that a draft looks at."""
_MOST_VALUES: Final = 4
"""The number of events from one column of text."""
_MOST_EVENTS: Final = 8
_DELIMITERS: Final = (",", ";", "\t", "|")
_FORMATS: Final = (
    "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%d/%m/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M %p",
    "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p", "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M", "%Y%m%d%H%M%S", "%Y%m%d %H:%M:%S", "%d-%m-%Y %H:%M:%S", "%d-%m-%Y %H:%M",
    "%m-%d-%Y %H:%M:%S", "%m-%d-%Y %H:%M", "%d %b %Y %H:%M:%S", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y",
    "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d",
)  # fmt: skip
"""Formats of times to try, if they are not ISO 8601."""
_EARLIEST: Final = 631_152_000_000_000
_LATEST: Final = 4_102_444_800_000_000
"""A draft takes values for times if they are from 1990 to 2100: in microseconds since 1970."""
_DAY: Final = 86_400_000_000
_TIME_OF_DAY: Final = r"^ *[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?( *[AaPp][Mm])? *$"
_TIME_NAMES: Final = re.compile(r"(^|_)(ts|time|timestamp|date|datetime|at|when|last_seen)($|_)")
_SUBJECT_NAMES: Final = re.compile(
    r"(^|_)(subject|id|user|person|patient|customer|taxi|vehicle|car|driver|home|house|household"
    r"|who)($|_)"
)
_LON, _LAT = ("lon", "lng", "long", "longitude", "x_lon"), ("lat", "latitude", "y_lat")
_SIZES: Final = (
    ("10 s", 10), ("1 min", 60), ("5 min", 300), ("10 min", 600), ("30 min", 1800), ("1 h", 3600),
    ("6 h", 21_600), ("1 d", 86_400),
)  # fmt: skip
_LATENESS: Final = ("1 min", 60)
"""The lateness of a draft, and in seconds, unless more is needed."""
_MOST_TIMES: Final = 0.8
"""In a column of times, more than this share of the values are times."""
_IN_A_WINDOW: Final = 8
"""The number of tuples of a subject that a drafted window should hold."""


@dataclass(frozen=True, slots=True)
class DraftEvent:
    """An event type of a draft: its condition, and the share of tuples that meet it."""

    name: str
    definition: str
    share: float | None = None

    def to_yaml(self, width: int) -> str:
        """Return it as a line of YAML."""
        comment = "" if self.share is None else f"   # {self.share:.1%} of the tuples"
        return f"  {self.name + ':':<{width}} {self.definition}{comment}"


@dataclass
class SpecificationDraft:
    """A drafted specification, as YAML text with comments."""

    file: Path
    stream: str
    subject: str
    time: str
    options: dict[str, str]
    """Other fields of the stream, as they are written."""
    columns: dict[str, ColumnType]
    """Columns whose types must be declared."""
    window: str
    lateness: str
    area: tuple[float, float] | None
    events: list[DraftEvent] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    """What was guessed, for the person who reads the draft."""
    notes: list[str] = field(default_factory=list)
    """What is unusual about the file, for the same person."""

    def to_yaml(self, schema: str) -> str:
        """Return the draft as YAML; `schema` is the path of the schema for editors."""
        options = "".join(f", {name}: {value}" for name, value in self.options.items())
        types = ", ".join(f"{_plain(name)}: {kind}" for name, kind in self.columns.items())
        private = self.events[0].name
        public = self.events[1].name if len(self.events) > 1 else private
        asked = f'"AND({private}, {public})"'
        width = max(len(event.name) for event in self.events) + 1
        return _DRAFT.format(
            schema=schema,
            file=self.file.name,
            stream=self.stream,
            subject=_plain(self.subject),
            time=_plain(self.time),
            options=options + (f",\n    columns: {{{types}}}" if types else ""),
            areas="" if self.area is None else _AREAS.format(*self.area),
            window=self.window,
            lateness=self.lateness,
            events="\n".join(event.to_yaml(width) for event in self.events),
            private=private,
            public=public,
            both="" if public == private else _BOTH.format(asked),
        )


_DRAFT: Final = """\
# yaml-language-server: $schema={schema}
# Drafted by tacit init from {file}. Everything here is a guess: read it and
# change it. In particular decide what is private, and how much may be revealed about it.
version: 1

streams:
  {stream}: {{subject: {subject}, time: {time}{options}}}
{areas}
# Every subject gets an answer to every query in every window. Tuples may come late by lateness.
windows: {{size: {window}, lateness: {lateness}}}

# An event type is a condition on one tuple, in SQL. Text takes single quotes.
events:
{events}

# Patterns: SEQ (in this order), AND, OR, NOT, repetition such as a{{2,}}, WITHIN 5 min.
patterns:
  secret: {private}

# What subjects keep private, and how much all answers together may reveal about it. With epsilon
# 1 someone who knows everything else can turn a guess of 50:50 about one window into at most 74:26.
# A limit such as `limit: 20 per day` bounds the sum over windows; it needs a run with --ledger.
private:
  - {{pattern: secret, epsilon: 1.0}}

# What consumers ask about every subject.
queries:
  - {{name: {public}_seen, consumer: someone, pattern: {public}}}
{both}"""
_AREAS: Final = """
areas:                          # longitude, latitude, radius
  somewhere: {{circle: [{}, {}, 500 m]}}
"""
_BOTH: Final = "  - {{name: both_seen, consumer: someone, pattern: {}}}\n"


def draft_specification(path: Path) -> SpecificationDraft:
    """Draft a specification from the columns and the first rows of a file."""
    delimiter = _sniff_delimiter(path)
    frame, textual, refused = _read(path, delimiter)
    unread = "" if not refused else f"the first is line {refused[0].place}: {refused[0].reason}"
    if not frame.height:
        why = f"no row that could be read ({unread})" if unread else "no rows"
        convert = "; convert it, for example with iconv -t UTF-8" if "UTF-8" in unread else ""
        raise SourceError(f"{path} has {why}, so there is nothing to draft from{convert}")
    time, options = _find_time(frame, path)
    if textual and delimiter is not None and _time_options(pl.Series([time]))[0]:
        raise SourceError(
            f"the first line of {path} has a time where the name of a column should be; write the"
            " names of the columns into a first line, for example subject,time,value"
        )
    stream = Stream(subject="", time=time, **_stream_options(options))
    times = to_microseconds(frame[time], stream)
    dated = times != NO_TIME
    timeless = frame.height - int(dated.sum())
    frame, moments = frame.filter(pl.Series(dated)), times[dated]
    subject = _find_subject(frame, time, path)
    typed = _convert(frame, textual, stream, {subject, time})
    if delimiter not in (None, ","):
        options["delimiter"] = '"\\t"' if delimiter == "\t" else f'"{delimiter}"'
    longitude, latitude = _find(frame, _LON), _find(frame, _LAT)
    area = None
    if longitude and latitude and {typed[longitude].dtype, typed[latitude].dtype} <= _NUMBERS:
        area = _middle(typed, longitude, latitude)
        options |= {"lon": _plain(longitude)} if longitude != "lon" else {}
        options |= {"lat": _plain(latitude)} if latitude != "lat" else {}
    name = _name(path.name.split(".")[0]) or "tuples"
    lateness, disorder = _choose_lateness(moments)
    found = SpecificationDraft(
        path,
        name,
        subject,
        time,
        options,
        _list_undetermined(typed, textual),
        _choose_window(frame[subject], moments),
        lateness,
        area,
    )
    found.guesses = [
        f"subjects are in the column {subject}: {frame[subject].n_unique():,} of them in "
        + ("this file" if len(frame) < _ROWS else f"the first {count(_ROWS, 'row')}"),
        f"times are in the column {time}"
        + (f", as {options['format']}" if "format" in options else ""),
    ]
    found.notes += _doubt_times(frame, time, moments, options)
    if timeless:
        found.notes.append(
            f"{count(timeless, 'time')} in the first {count(len(times), 'row')} cannot be read; a"
            " run refuses such rows"
        )
    if disorder:
        found.notes.append(
            f"{disorder}, so windows wait for late tuples: lateness {lateness}. If you sort the"
            f" file by {time}, {_LATENESS[0]} or less is enough"
        )
    if unread:
        found.notes.append(f"{count(len(refused), 'line')} of the file cannot be read; {unread}")
    for column in typed.columns:
        if _has_decimal_commas(typed[column]):
            found.notes.append(
                f"{column} is text, because its numbers have a decimal comma. To compare them,"
                " write them with a point"
            )
    rest = [column for column in typed.columns if column not in (longitude, latitude)]
    found.events = list(_draft_events(found, typed.select(rest), frame[subject], area))
    if not found.events:
        raise SourceError(
            f"{path} has no column that conditions could be drafted from, besides its subject"
            f" '{subject}' and its time '{time}'; start from a template: tacit init --template"
        )
    return found


_NUMBERS: Final = {pl.Float64(), pl.Float32(), pl.Int64(), pl.Int32()}


def _sniff_delimiter(path: Path) -> str | None:
    """Return the delimiter of a CSV file's header; None for other files."""
    if path.suffix.lower() != ".csv":
        return None
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            header = file.readline(1 << 20)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; check the path") from error

    def fields(delimiter: str) -> int:
        return len(next(csv.reader(io.StringIO(header), delimiter=delimiter), []))

    return max(_DELIMITERS, key=fields)


def _read(path: Path, delimiter: str | None) -> tuple[pl.DataFrame, bool, list[Rejected]]:
    """Return the first rows, whether all columns are text, and which lines could not be read."""
    source = open_file(path)
    if delimiter is not None:
        source.separate_by(delimiter)
    names = source.first_keys() if isinstance(source, JsonLinesSource) else source.schema().names
    parts = []
    rows = 0
    refused: list[Rejected] = []
    for batch in islice(source.batches(names), 100):
        parts.append(pl.DataFrame(batch.table))
        refused += batch.rejected
        rows += len(parts[-1])
        if rows >= _ROWS:
            break
    frame = pl.concat(parts) if parts else pl.DataFrame(schema=dict.fromkeys(names, pl.String()))
    return frame.head(_ROWS), source.textual, refused


def _stream_options(options: dict[str, str]) -> dict[str, str]:
    return {"format": options["format"].strip('"')} if "format" in options else {}


def _find_time(frame: pl.DataFrame, path: Path) -> tuple[str, dict[str, str]]:
    """Return the column of times, and its format if it is not ISO 8601 or a number."""
    found: list[tuple[int, str, dict[str, str]]] = []
    for place, column in enumerate(frame.columns):
        share, options = _time_options(frame[column])
        if share > _MOST_TIMES:
            named = bool(_TIME_NAMES.search(_split_words(column)))
            plain = frame[column].dtype.is_temporal() or "format" in options
            found.append((-10 * named - 5 * plain + 4 * (share < 1) + place, column, options))
    if not found:
        raise SourceError(
            f"{path} has no column that looks like times (timestamps, ISO 8601, seconds since 1970,"
            " or a common format); start from a template: tacit init --template"
        )
    _, column, options = min(found)
    return column, options


def _doubt_times(
    frame: pl.DataFrame, time: str, moments: NDArray[np.int64], options: dict[str, str]
) -> Iterator[str]:
    """Yield what could be wrong with the times of a draft, although they can be read."""
    other = _swap_day_and_month(_stream_options(options).get("format", ""))
    if other and _share_of_times(frame[time], {"format": other}) == 1:
        yield (
            f'every time in {time} could also be read as "{other}", with day and month the other'
            " way round: check the format"
        )
    if len(moments) and (moments % _DAY == 0).all():
        clock = [column for column in frame.columns if _is_time_of_day(frame[column])]
        where = f" The time of day seems to be in {clock[0]}: join" if clock else " If you have"
        rest = " both into one column" if clock else " the time of day, add it to this column"
        yield (
            f"{time} has days only, so all tuples of a day count as one moment."
            f"{where}{rest}, such as 2026-03-01T08:30:00"
        )


def _is_time_of_day(values: pl.Series) -> bool:
    """Return whether all values are times of the day, such as 8:30 or 08:30:00 PM."""
    if values.dtype != pl.String():
        return bool(values.dtype == pl.Time())
    return bool(values.count() and values.drop_nulls().str.contains(_TIME_OF_DAY).all())


def _swap_day_and_month(format_: str) -> str:
    """Return a numeric format of dates with day and month swapped; empty for all others."""
    found = re.match(r"%([dm])([./-])%([dm])", format_)
    if found is None:
        return ""
    first, between, second = found.groups()
    return f"%{second}{between}%{first}{format_[found.end() :]}"


def _time_options(values: pl.Series) -> tuple[float, dict[str, str]]:
    """Return the largest share of values that are times from 1990 to 2100, and its options."""
    if values.dtype.is_temporal() and values.dtype != pl.Time():
        return 1.0, {}
    if not (values.dtype.is_integer() or values.dtype.is_float() or values.dtype == pl.String()):
        return 0.0, {}
    filled = values.drop_nulls().head(1000)
    best: tuple[float, dict[str, str]] = (0.0, {})
    candidates: list[dict[str, str]] = [{}]
    candidates += [{"format": text} for text in _FORMATS]
    for options in candidates if len(filled) else []:
        share = _share_of_times(filled, options)
        if share == 1 and (other := _swap_day_and_month(options.get("format", ""))):
            options = max(options, {"format": other}, key=lambda some: _rate_times(values, some))
        if share > best[0]:
            best = share, {name: f'"{value}"' for name, value in options.items()}
        if share == 1:
            break
    return best


def _share_of_times(values: pl.Series, options: dict[str, str]) -> float:
    """Return the share of the values that are times from 1990 to 2100, read with these options."""
    return _rate_times(values, options)[0]


def _rate_times(values: pl.Series, options: dict[str, str]) -> tuple[float, float]:
    """Return the share of times, and minus the time from the first to the last of them.

    If all dates can be read with day and month in either order, the right order most likely gives
    days that follow each other, and the wrong one gives a day in each of several months.
    """
    filled = values.drop_nulls()
    stream = Stream.model_validate({"subject": "", "time": "", **options})
    times = to_microseconds(filled, stream)
    read = times[(times > _EARLIEST) & (times < _LATEST)]
    return (len(read) / len(filled), -float(np.ptp(read))) if len(read) else (0.0, 0.0)


def _find_subject(frame: pl.DataFrame, time: str, path: Path) -> str:
    """Return the column whose values most likely name subjects: by its name, or the text with
    most different values that occur repeatedly."""
    found: list[tuple[int, int, str]] = []
    for column in frame.columns:
        values = frame[column]
        if column == time or not values.count() or _is_time_of_day(values):
            continue
        named = bool(_SUBJECT_NAMES.search(_split_words(column)))
        whole = values.dtype.is_integer()
        if values.dtype == pl.String():
            kind = infer_type(values, Stream(subject="", time=""))
            whole = kind == "number" and not values.str.contains(".", literal=True).any()
            text = kind == "text" and not _has_decimal_commas(values)
        else:
            text = values.dtype == pl.Categorical()
        if text or (whole and named):
            repeated = values.n_unique() <= max(2, len(values) // 2)
            found.append((-2 * named - repeated, -values.n_unique(), column))
    if not found:
        raise SourceError(
            f"{path} has no column of text or whole numbers that could name subjects; add one that"
            " says in each row which person, car or home it belongs to"
        )
    return min(found)[2]


def _split_words(column: str) -> str:
    """Return the words of a column's name in lower case, with underscores between them."""
    return re.sub(r"\W+|(?<=[a-z])(?=[A-Z])", "_", column).lower()


def _has_decimal_commas(values: pl.Series) -> bool:
    """Return whether all values are numbers, and some have a decimal comma."""
    if values.dtype != pl.String():
        return False
    filled = values.drop_nulls()
    return bool(
        filled.str.contains(r"^[+-]?[0-9]+(,[0-9]+)?$").all()
        and filled.str.contains(",", literal=True).any()
    )


def _convert(frame: pl.DataFrame, textual: bool, stream: Stream, without: set[str]) -> pl.DataFrame:
    """Return the other columns with the types that their values have."""
    columns = [frame[name] for name in frame.columns if name not in without]
    if not textual:
        return pl.DataFrame(columns)
    return pl.DataFrame([convert_text(c, infer_type(c, stream), stream) for c in columns])


def _list_undetermined(typed: pl.DataFrame, textual: bool) -> dict[str, ColumnType]:
    """Return the types to declare: in a text format, those of all columns."""
    return {n: to_column_type(kind) for n, kind in typed.schema.items()} if textual else {}


def _find(frame: pl.DataFrame, names: Sequence[str]) -> str | None:
    return next((column for column in frame.columns if column.lower() in names), None)


def _middle(typed: pl.DataFrame, longitude: str, latitude: str) -> tuple[float, float]:
    """Return the median position, rounded to about a kilometre."""
    middle = [typed[column].cast(pl.Float64).median() for column in (longitude, latitude)]
    return round(float(str(middle[0] or 0)), 2), round(float(str(middle[1] or 0)), 2)


def _choose_window(subjects: pl.Series, moments: NDArray[np.int64]) -> str:
    """Return a size with several tuples of a subject in a window."""
    times = pl.DataFrame({"subject": subjects, "time": pl.Series("time", moments)})
    gaps = times.sort("subject", "time").select(pl.col("time").diff().over("subject").alias("gap"))[
        "gap"
    ]
    typical = gaps.filter(gaps > 0).median()
    wanted = _IN_A_WINDOW * float(str(typical or 60_000_000)) / 1e6
    return next((text for text, seconds in _SIZES if seconds >= wanted), _SIZES[-1][0])


def _choose_lateness(moments: NDArray[np.int64]) -> tuple[str, str]:
    """Return a lateness with which no tuple comes too late, and what is out of order."""
    behind = (np.maximum.accumulate(moments) - moments) / 1e6
    late, most = float((behind > _LATENESS[1]).mean()), float(behind.max())
    if not late:
        return _LATENESS[0], ""
    days = f"{int(most // 86_400) + 1} d"
    enough = next((text for text, seconds in _SIZES if seconds >= most), days)
    share = "under 1 %" if late < 0.01 else f"{late:.0%}".replace("%", " %")
    return enough, (
        f"times are out of order: {share} of the tuples are more than {_LATENESS[0]} older than"
        " one before them"
    )


def _draft_events(
    draft: SpecificationDraft,
    typed: pl.DataFrame,
    subjects: pl.Series,
    area: tuple[float, float] | None,
) -> Iterator[DraftEvent]:
    """Yield event types for the columns, the most interesting first."""
    found: list[DraftEvent] = []
    for column in typed.columns:
        found += _column_events(draft.stream, column, typed[column], subjects)
    names: set[str] = set()
    for event in found:
        if event.name not in names and len(names) < _MOST_EVENTS:
            names.add(event.name)
            yield event
    if area is not None:
        yield DraftEvent("there", f"{{stream: {draft.stream}, inside: somewhere}}")


def _column_events(
    stream: str, column: str, values: pl.Series, subjects: pl.Series
) -> Iterator[DraftEvent]:
    written = column if column.isidentifier() and column.isascii() else f'"{column}"'
    base = _name(column) or "column"

    def make(name: str, condition: str, holds: pl.Series) -> DraftEvent:
        quoted = condition.replace("\\", "\\\\").replace('"', '\\"')
        definition = f'{{stream: {stream}, where: "{quoted}"}}'
        return DraftEvent(name, definition, float(str(holds.fill_null(value=False).mean() or 0)))

    if values.dtype == pl.Boolean():
        yield make(base, written, values)
    elif values.dtype.is_numeric():
        high = values.cast(pl.Float64).quantile(0.9)
        if high is not None and values.n_unique() > 1:
            bound = _round(high)
            yield make(
                f"high_{base}", f"{written} >= {bound}", values.cast(pl.Float64) >= float(bound)
            )
    elif values.dtype == pl.String():
        for value in _find_shared_values(values, subjects):
            name = _name(f"{base}_{value}")
            if name:
                text = value.replace("'", "''")
                yield make(name, f"{written} = '{text}'", values == value)


def _find_shared_values(values: pl.Series, subjects: pl.Series) -> list[str]:
    """Return the most common values that several subjects have; none of a column of free text."""
    counted = (
        pl.DataFrame({"value": values, "subject": subjects})
        .drop_nulls()
        .group_by("value")
        .agg(pl.len().alias("rows"), pl.col("subject").n_unique().alias("subjects"))
        .filter(pl.col("subjects") >= min(SHARED_BY, subjects.n_unique()))
        .sort(["rows", "value"], descending=[True, False])
    )
    if values.n_unique() > max(20, len(values) // 20):
        return []
    return [str(value) for value in counted["value"].head(_MOST_VALUES) if len(str(value)) <= 40]


def _round(number: float) -> str:
    """Return a number with two significant digits."""
    return f"{float(f'{number:.1e}'):g}"


def _name(text: str) -> str:
    """Return a name for the specification; empty if nothing of the text can be in one."""
    plain = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text))  # without accents
    found = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_").lower()
    if not found:
        return ""
    named = f"n{found}" if found[0].isdigit() else found
    return f"{named}_" if named.upper() in KEYWORDS else named


def _plain(column: str) -> str:
    """Return a column's name as a scalar in a flow mapping of YAML."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column) and column.lower() not in _WORDS:
        return column
    return "'" + column.replace("'", "''") + "'"


_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
