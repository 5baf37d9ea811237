"""The registry of subjects: a list, a file, or learned from the first stretch of the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from tacit.config import Config, Span, describe
from tacit.errors import SourceError
from tacit.spec.nodes import INTEGER


def _read_subject(value: Any) -> str | int:
    if isinstance(value, bool | float) or not isinstance(value, str | int):
        raise ValueError(f"a subject is a name or a whole number; got {describe(value)}")
    if value == "":
        raise ValueError("a subject's name cannot be empty")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(
            "a subject's number must fit into 64 bits; put it in quotes to make a name"
        )
    return value


def _different(subjects: tuple[str | int, ...]) -> tuple[str | int, ...]:
    seen: set[str | int] = set()
    if not subjects:
        raise ValueError("expected at least one subject")
    for subject in subjects:
        if subject in seen:
            raise ValueError(f"subject {describe(subject)} is listed twice")
        seen.add(subject)
    return subjects


Subject = Annotated[
    str | int, PlainValidator(_read_subject), WithJsonSchema({"type": ["string", "integer"]})
]
"""A subject: what its stream's subject column holds."""
Subjects = Annotated[tuple[Subject, ...], AfterValidator(_different)]


class SubjectFile(Config):
    """Subjects listed in a file: one in each line, or a column of a CSV or Parquet file."""

    file: str = Field(min_length=1)
    """The file, relative to the specification's folder."""
    column: str | None = None
    """The column that holds the subjects; by default each line of the file is one."""

    def read(self, folder: Path = Path()) -> list[str] | list[int]:
        """The subjects, each once, in the file's order; raises SourceError where it cannot.

        Lines are whole numbers if all of them are, else names; empty lines do not count.
        """
        path = folder / self.file
        try:
            found = _lines(path) if self.column is None else _column(path, self.column)
        except FileNotFoundError as error:
            raise SourceError(f"the file of subjects '{self.file}' does not exist") from error
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"cannot read the subjects from '{self.file}'; expected lines of UTF-8 text"
            ) from error
        if not found:
            raise SourceError(f"'{self.file}' lists no subjects; a run needs at least one")
        return found


class Learned(Config):
    """Subjects learned from the first stretch of the stream and then announced."""

    learn: Span
    """How long the first stretch is."""


def _lines(path: Path) -> list[str] | list[int]:
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    names = list(dict.fromkeys(lines))
    if not all(INTEGER.fullmatch(name) and len(name) < 19 for name in names):
        return names
    return list(dict.fromkeys(int(name) for name in names))


def _column(path: Path, column: str) -> list[str] | list[int]:
    import polars as pl

    scan = pl.scan_parquet if path.suffix == ".parquet" else pl.scan_csv
    try:
        frame = scan(path).select(pl.col(column)).unique(maintain_order=True).collect()
    except pl.exceptions.ColumnNotFoundError as error:
        raise SourceError(f"'{path.name}' has no column '{column}' of subjects") from error
    except pl.exceptions.PolarsError as error:
        raise SourceError(f"cannot read subjects from '{path.name}'; is the file whole?") from error
    values = frame.to_series().drop_nulls()
    if not (values.dtype.is_integer() or values.dtype == pl.String):
        raise SourceError(
            f"the column '{column}' of '{path.name}' must hold names or whole numbers; "
            f"it holds {values.dtype}"
        )
    return values.to_list()


def _read_registry(value: Any) -> Any:
    """Say which form was probably meant, so that mistakes are told in its terms."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return (Learned if "learn" in value else SubjectFile).model_validate(value)
    if isinstance(value, SubjectFile | Learned | None):
        return value
    raise ValueError(
        "expected a list of subjects, {file: subjects.txt} or {learn: 1 h}; "
        f"got {describe(value)}"
    )


Registry = Annotated[Subjects | SubjectFile | Learned, BeforeValidator(_read_registry)]
