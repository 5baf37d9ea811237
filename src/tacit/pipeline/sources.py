"""Where tuples come from: what a source is, and what it hands over.

To add a source, subclass `Source`: say the schema and read the batches. Columns
are checked, batches cut to a bounded size and read ahead in a thread by
`Source.batches`, the same for every format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import SchemaError, SourceError, nearest
from tacit.events.columntypes import ColumnTypes
from tacit.events.streams import ColumnType
from tacit.pipeline.prefetch import prefetch

MOST_ROWS = 1 << 18
"""The most rows in a batch: large enough for speed, small enough to stay near the processor."""


STANDARD_INPUT = "standard input"


class EmptySourceError(SourceError):
    """Input without a single line."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that could not be read: for the dead letters."""

    place: int
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a source, in its order.

    `first_row` is the number of the first row (the line, in a file of lines),
    counted from 1. `places` holds the number of every row where they do not
    simply count up, because lines were skipped or span several.
    """

    table: pa.RecordBatch
    first_row: int
    position: int
    """How much of the source is read with this batch, in `Source.unit`s."""
    source: str
    """The file that the rows stand in."""
    rejected: tuple[Rejected, ...] = ()
    places: NDArray[np.int64] | None = None
    token: Any = None
    """Where to resume the source so that this batch comes first, as plain data fit for JSON.

    None is its beginning, from which rows are counted.
    """
    receipt: Any = None
    """What to acknowledge when this batch and all before it are safe; None where nothing is."""
    raw: pa.RecordBatch | None = None
    """The rows as they came, where columns of `table` were converted."""

    def place(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers in the source of these rows of the table."""
        return rows + self.first_row if self.places is None else self.places[rows]

    def cut(self, most: int) -> Iterator[Batch]:
        """The same rows in batches of at most `most`; the first carries what was rejected."""
        if self.table.num_rows <= most:
            yield self
            return
        for start in range(0, self.table.num_rows, most):
            yield replace(
                self.slice(start, most),
                rejected=() if start else self.rejected,
                receipt=self.receipt if start + most >= self.table.num_rows else None,
            )

    def slice(self, start: int, most: int | None = None) -> Batch:
        """The rows from `start` on, at most so many."""
        if not start and most is None:
            return self
        stop = None if most is None else start + most
        return replace(
            self,
            table=self.table.slice(start, most),
            first_row=int(self.place(np.array([start]))[0]),
            places=None if self.places is None else self.places[start:stop],
            raw=None if self.raw is None else self.raw.slice(start, most),
        )

    def convert(self, types: ColumnTypes) -> Batch:
        """The same rows with converted columns."""
        table = types.convert(self.table)
        return self if table is self.table else replace(self, table=table, raw=self.table)


class Source(ABC):
    """A flow of tuples.

    A batch has the types of the schema; text in a column of keys comes dictionary-encoded. The
    columns of a text source are all text: `batches` converts them to the types it is given.
    """

    textual: bool = False
    """Whether values are text until they are converted, as in CSV, JSON lines and messages."""
    keyed: bool = False
    """Whether rows name their own columns, as JSON objects do: a column that a row lacks is null,
    and `schema` names none."""
    unit: Literal["rows", "bytes"] = "rows"
    ahead: ClassVar[int] = 2
    """How many batches are read ahead of their use; 0 reads in the same thread."""
    name: str
    once: bool = False
    """Whether it can be read only once, as a pipe."""
    total: int | None = None
    """Rows or bytes in all, for progress; None where that is not known."""
    replayable: bool = True
    """Whether tuples can be read again from a token, in another process."""
    live: bool = False
    """Whether tuples come as they happen. Such a source has no end and gives empty batches while
    it is silent, several in a second; nobody waits for it in favour of another."""

    @property
    def listening(self) -> bool:
        """Whether a tuple that is sent from now on comes: a broker must know us first.

        It can become true only while the source is read.
        """
        return True

    def resume(self, token: Any) -> None:
        """Begin at a batch's token when it is read next."""
        if token is not None:
            raise SourceError(f"{self.name} cannot be resumed in the middle; begin anew")

    def acknowledge(self, receipt: Any) -> None:  # noqa: B027 - files need no word of it
        """The batch with this receipt and all before it are safe: they need not come again."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns and their types, without reading everything; all text in a text source."""

    def declared_types(self) -> Mapping[str, ColumnType]:
        """The types of columns that the source's address declares."""
        return {}

    @abstractmethod
    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Read these columns, in this order, in bounded memory."""

    def batches(
        self,
        columns: Sequence[str] | None = None,
        keys: Sequence[str] = (),
        types: ColumnTypes | None = None,
    ) -> Iterator[Batch]:
        """The rows in order, in batches of bounded size; `keys` are columns of subjects.

        Without `columns`, all of the schema. Columns are converted to `types`, ahead of their
        use, in the thread that reads.
        """
        known = [] if self.keyed else self.schema().names
        wanted = list(dict.fromkeys(known if columns is None else columns))
        if not self.keyed:  # a folder knows only now what its files are
            check_columns(self.name, wanted, known)
        with closing(prefetch(self._converted(wanted, keys, types), self.ahead)) as flow:
            for batch in flow:
                yield from batch.cut(MOST_ROWS)

    def _converted(
        self, columns: Sequence[str], keys: Sequence[str], types: ColumnTypes | None
    ) -> Iterator[Batch]:
        for batch in self.read(columns, keys):
            yield batch if types is None else batch.convert(types)


def check_columns(source: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Refuse columns that a source does not have."""
    missing = [name for name in wanted if name not in known]
    if missing:
        hints = " ".join(f"'{name}' is not there.{nearest(name, known)}" for name in missing)
        raise SchemaError(f"{source} has the columns {', '.join(known)}. {hints}")


def check_names(source: str, names: Sequence[str]) -> None:
    """Refuse columns of the same name: it would not be known which one is meant."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise SourceError(
            f"{source} has more than one column named {', '.join(map(repr, twice))}; "
            "give every column its own name"
        )


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds text, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def encode_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Dictionary-encode the columns of keys that hold text."""
    for number, field in enumerate(batch.schema):
        if field.name in keys and is_text(field.type) and not pa.types.is_dictionary(field.type):
            encoded = batch.column(number).dictionary_encode()
            batch = batch.set_column(number, field.name, encoded)
    return batch
