"""The interface of sources, and their batches.

To add a source, subclass `Source`: implement `schema` and `read`. `Source.batches` does the rest
for every format: it checks columns, splits batches to a bounded size, converts types, and reads
ahead in a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
"""The most rows in a batch: large enough for speed, small enough for the processor's cache."""


STANDARD_INPUT = "standard input"


class EmptySourceError(SourceError):
    """The input is empty."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An unreadable line, for the dead letters."""

    place: int
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The rows of a batch that come from one partition of its source.

    Each partition has its own order, position and watermark. The number of a row is the offset of
    its message, and an offset is the token of its message: reading can resume at every message.
    """

    name: str
    begin: int
    """The first of its rows in the batch, which holds the rows of one partition together."""
    end: int
    token: int
    """The offset of the first message."""
    after: int
    """The offset after the last message; negative if no offset of the partition is known."""
    receipt: Any = None
    rejected: tuple[Rejected, ...] = ()
    awaited: bool = True
    """Whether earlier tuples may follow soon, so that tuples of other partitions wait for it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a source, in its order.

    `first_row` is the number of the first row (the line, in a file of lines),
    counted from 1. `places` holds the number of every row if they are not
    consecutive, because lines were skipped or rows span several lines.
    """

    table: pa.RecordBatch
    first_row: int
    position: int
    """How much of the source has been read including this batch, in `Source.unit`s."""
    source: str
    """The file or connection that the rows come from."""
    rejected: tuple[Rejected, ...] = ()
    places: NDArray[np.int64] | None = None
    token: Any = None
    """Where to resume the source so that this batch comes first, as plain data fit for JSON.

    None is its beginning, from which rows are counted.
    """
    receipt: Any = None
    """What to acknowledge when this batch and all before it are safe, or None."""
    raw: pa.RecordBatch | None = None
    """The original rows, if columns of `table` were converted."""
    partitions: tuple[PartitionRows, ...] = ()
    """Where the rows come from, if the source has partitions; they have tokens, receipts and
    rejected lines instead of the batch."""

    def number_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the source of these rows of the table."""
        return rows + self.first_row if self.places is None else self.places[rows]

    def split(self, most: int) -> Iterator[Batch]:
        """Split into batches of at most `most` rows; the first has the rejected lines."""
        if self.table.num_rows <= most or self.partitions:
            yield self
            return
        for start in range(0, self.table.num_rows, most):
            yield replace(
                self.slice(start, most),
                rejected=() if start else self.rejected,
                receipt=self.receipt if start + most >= self.table.num_rows else None,
            )

    def slice(self, start: int, most: int | None = None) -> Batch:
        """Return the rows from `start` on, at most `most`."""
        if not start and most is None:
            return self
        stop = None if most is None else start + most
        return replace(
            self,
            table=self.table.slice(start, most),
            first_row=int(self.number_rows(np.array([start]))[0]),
            places=None if self.places is None else self.places[start:stop],
            raw=None if self.raw is None else self.raw.slice(start, most),
        )

    def convert(self, types: ColumnTypes) -> Batch:
        """Return the same rows with converted columns."""
        table = types.convert(self.table)
        return self if table is self.table else replace(self, table=table, raw=self.table)


class Source(ABC):
    """A source of tuples.

    A batch has the types of the schema; text in a column of keys may be dictionary-encoded. The
    columns of a text source are all text: `batches` converts them to the given types.
    """

    textual: bool = False
    """Whether values are text until they are converted, as in CSV, JSON lines and messages."""
    keyed: bool = False
    """Whether each row names its own columns, as JSON objects do: a column that a row lacks is
    null, and `schema` is empty."""
    unit: Literal["rows", "bytes"] = "rows"
    ahead: ClassVar[int] = 2
    """How many batches to read ahead; 0 reads in the same thread."""
    most_rows: ClassVar[int] = MOST_ROWS
    """The most rows of a batch."""
    name: str
    once: bool = False
    """Whether it can be read only once, like a pipe."""
    total: int | None = None
    """All rows or bytes, for progress; None if unknown."""
    replayable: bool = True
    """Whether tuples can be read again from a token, in another process."""
    live: bool = False
    """Whether tuples arrive in real time. Such a source has no end. While nothing arrives it yields
    empty batches, several per second. Other sources never wait for it."""

    patient: bool = False
    """Whether nobody waits until its tuples are acknowledged, because it has stored them itself."""

    @property
    def listening(self) -> bool:
        """Whether it receives tuples sent from now on: a broker needs a subscription first.

        It can become true only while the source is read.
        """
        return True

    def separate_by(self, delimiter: str) -> None:  # noqa: B027 - most formats have no delimiter
        """Set the character between the fields of a line, before anything is read."""

    def resume(self, token: Any) -> None:
        """Start at this token when it is read next."""
        if token is not None:
            raise SourceError(
                f"{self.name} cannot be resumed in the middle; start from the beginning"
            )

    def resume_partitions(self, tokens: Mapping[str, int]) -> None:  # noqa: B027 - most have none
        """Start at these tokens in these partitions; those of `resume` are for the others."""

    def count_partitions(self) -> int:
        """Return how many partitions it has now that can be read separately."""
        return 1

    def take_share(self, number: int, count: int) -> None:
        """Read only every `count`th partition from this number on, before anything is read.

        Partitions that are added later are divided in the same way.
        """
        if count > 1:
            raise SourceError(
                f"{self.name} has no partitions that can be read separately: {number}"
            )

    def pause(self, partitions: AbstractSet[str]) -> None:  # noqa: B027 - most have none
        """Read no more of these partitions for now, and of all others. Any thread may call it."""

    def acknowledge(self, receipt: Any) -> None:  # noqa: B027 - files need no acknowledgement
        """Acknowledge the batch with this receipt and all before it: they are safe."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns and their types without reading everything; text in a text source."""

    def declared_types(self) -> Mapping[str, ColumnType]:
        """Return the column types that the source's address declares."""
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
        """Yield the rows in order, in batches of bounded size; `keys` are columns of subjects.

        Without `columns`, it reads all of the schema. Columns are converted to `types` in the
        thread that reads ahead.
        """
        known = [] if self.keyed else self.schema().names
        wanted = list(dict.fromkeys(known if columns is None else columns))
        if not self.keyed:  # a folder determines its format only here
            check_columns(self.name, wanted, known)
        with closing(prefetch(self._read_converted(wanted, keys, types), self.ahead)) as batches:
            for batch in batches:
                yield from batch.split(self.most_rows)

    def _read_converted(
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
    """Refuse two columns of the same name."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise SourceError(
            f"{source} has more than one column named {', '.join(map(repr, twice))}; "
            "give every column its own name"
        )


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is text, dictionary-encoded or not."""
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
