"""The registry of subjects: a list, a file, or learned from the first part of the stream.

Names are text, exactly as written: '007' is not '7'. An integer becomes its decimal digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from tacit.config import Config, Number, Span, describe
from tacit.errors import SourceError
from tacit.events.streams import check_zone
from tacit.spec.nodes import INTEGER


def _read_subject(value: Any) -> str:
    if isinstance(value, Number) and INTEGER.fullmatch(value.text):
        value = value.text  # as it is written: +7, or more digits than numbers have
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = str(int(value))
    if not isinstance(value, str):
        raise ValueError(f"a subject is a name or a whole number; got {describe(value)}")
    if value == "":
        raise ValueError("a subject's name cannot be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            "a subject's name contains half a character (an unpaired surrogate)"
        ) from error
    return value


def _different(subjects: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    if not subjects:
        raise ValueError("expected at least one subject")
    for subject in subjects:
        if subject in seen:
            raise ValueError(f"subject {describe(subject)} is listed twice")
        seen.add(subject)
    return subjects


Subject = Annotated[
    str, PlainValidator(_read_subject), WithJsonSchema({"type": ["string", "integer"]})
]
"""A subject: what its stream's subject column holds, as text."""
Subjects = Annotated[tuple[Subject, ...], AfterValidator(_different)]


class SubjectFile(Config):
    """Subjects listed in a file: one in each line, or a column of a CSV or Parquet file."""

    file: str = Field(min_length=1)
    """The file, relative to the specification's folder."""
    column: str | None = None
    """The column that holds the subjects; by default each line of the file is one."""
    zone: str | None = None
    """The column with the time zone of each subject; empty cells mean that of the specification."""

    @model_validator(mode="after")
    def _check_zone(self) -> SubjectFile:
        if self.zone is not None and self.column is None:
            raise ValueError(
                "a column of time zones needs a column of subjects, as in {file: subjects.csv,"
                " column: subject, zone: zone}"
            )
        return self

    def read_zones(self, folder: Path = Path()) -> dict[str, str]:
        """Return the time zone of each subject that has one."""
        if self.zone is None or self.column is None:
            return {}
        with self._reading():
            names, zones = _columns(folder / self.file, self.column, self.zone)
        found: dict[str, str] = {}
        for name, zone in zip(names, zones, strict=True):
            if name and zone:
                found.setdefault(name, zone)
        for zone in sorted(set(found.values())):
            try:
                check_zone(zone)
            except ValueError as error:
                raise SourceError(f"the column '{self.zone}' of '{self.file}': {error}") from error
        return found

    def read_column(self, name: str, folder: Path = Path()) -> dict[str, str]:
        """Return the value of another column for each subject that has one."""
        if self.column is None:
            return {}
        with self._reading():
            names, values = _columns(folder / self.file, self.column, name)
        found: dict[str, str] = {}
        for subject, value in zip(names, values, strict=True):
            if subject and value:
                found.setdefault(subject, value)
        return found

    def has_column(self, name: str, folder: Path = Path()) -> bool:
        """Return whether the file has a column of this name; only its head is read."""
        import polars as pl

        path = folder / self.file
        with self._reading():
            if not path.exists():
                raise FileNotFoundError(path)
            csv = path.suffix != ".parquet"
            scan = pl.scan_csv(path, infer_schema=False) if csv else pl.scan_parquet(path)
            return name in scan.collect_schema()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Explain why the file cannot be read."""
        try:
            yield
        except FileNotFoundError as error:
            raise SourceError(f"the file of subjects '{self.file}' does not exist") from error
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"cannot read the subjects from '{self.file}'; expected lines of UTF-8 text"
            ) from error

    def read(self, folder: Path = Path()) -> list[str]:
        """Return the distinct subjects in the file's order; raise SourceError if it is unreadable.

        Names are text as the file has it; integers in Parquet are their digits. Empty lines and
        cells do not count.
        """
        path = folder / self.file
        with self._reading():
            found = _lines(path) if self.column is None else _column(path, self.column)
        if not found:
            raise SourceError(f"'{self.file}' lists no subjects; a run needs at least one")
        return found


class LearnedSubjects(Config):
    """Subjects learned from the first part of the stream and then announced."""

    learn: Span
    """The length of that part."""


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return list(dict.fromkeys(line for line in lines if line.strip()))


def _column(path: Path, column: str) -> list[str]:
    (names,) = _columns(path, column)
    return list(dict.fromkeys(name for name in names if name))


def _columns(path: Path, *columns: str) -> list[list[str | None]]:
    """Read columns as text, exactly as they are written."""
    import polars as pl

    found = []
    for column in columns:
        try:
            if path.suffix == ".parquet":
                scan = pl.scan_parquet(path)
            else:
                scan = pl.scan_csv(path, infer_schema=False)
            values = scan.select(pl.col(column)).collect().to_series()
        except pl.exceptions.ColumnNotFoundError as error:
            raise SourceError(f"'{path.name}' has no column '{column}' of subjects") from error
        except pl.exceptions.PolarsError as error:
            raise SourceError(
                f"cannot read subjects from '{path.name}'; is the file complete?"
            ) from error
        kind = values.dtype
        if not (kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum)):
            raise SourceError(
                f"the column '{column}' of '{path.name}' must hold text or whole numbers; it"
                f" holds {kind}"
            )
        found.append(values.cast(pl.String).to_list())
    return found


def _read_registry(value: Any) -> Any:
    """Find the form that was probably meant, so that mistakes refer to it."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return (LearnedSubjects if "learn" in value else SubjectFile).model_validate(value)
    if isinstance(value, SubjectFile | LearnedSubjects | None):
        return value
    raise ValueError(
        "expected a list of subjects, {file: subjects.txt} or {learn: 1 h}; "
        f"got {describe(value)}"
    )


Registry = Annotated[Subjects | SubjectFile | LearnedSubjects, BeforeValidator(_read_registry)]


def list_subjects(
    registry: tuple[str, ...] | SubjectFile | LearnedSubjects | None, folder: Path
) -> list[str]:
    """Return the subjects that a registry lists, itself or in a file; none if they are learned."""
    if isinstance(registry, SubjectFile):
        return registry.read(folder)
    return list(registry) if isinstance(registry, tuple) else []


def list_zones(
    registry: tuple[str, ...] | SubjectFile | LearnedSubjects | None, folder: Path
) -> dict[str, str]:
    """Return the time zones that a registry names; subjects without one are not included."""
    return registry.read_zones(folder) if isinstance(registry, SubjectFile) else {}
