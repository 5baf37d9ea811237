"""Breaks, planted again: each lets a private tuple reach an answer past all channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final
from unittest.mock import patch

import click
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors import csv, jsonlines, payloads
from tacit.connectors.jsonlines import ParsedItems
from tacit.connectors.mqtt import messages
from tacit.connectors.writers import ArrowWriter
from tacit.errors import SourceError
from tacit.events import columntypes
from tacit.events.columns import split_chunks
from tacit.events.columntypes import ColumnTypes, convert_text, infer_type
from tacit.events.extraction import Extractor
from tacit.events.streams import ColumnType, Stream
from tacit.pipeline import versioned_windows
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.engine import Engine
from tacit.pipeline.settlement import Settlement
from tacit.pipeline.sources import Batch, encode_keys
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.mechanisms.noisy_windows import NoisyWindows
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter
from tacit.privacy.policies import Policies
from tacit.spec.columntypes import SpecColumns
from tacit.windows.clock import NONE
from tacit.windows.jumps import Jumps
from tacit.windows.schedule import Windows
from tests.differential.worlds import BOTH, CODINGS, RELOADING, REMEMBERING

Mutant = Callable[[], AbstractContextManager[None]]
_LENIENT: Final = pl.col(pl.String).str.strip_chars().str.to_lowercase().replace("", None)
TEXT: Final = ("csv", "jsonl", "json", "cbor")


def _texts_converted_by(
    convert_texts: Callable[[pl.Series, ColumnType, Stream], pl.Series],
) -> AbstractContextManager[Any]:
    convert = columntypes._convert

    def converted(array: pa.Array, to: ColumnType, stream: Stream) -> pa.Array:
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            return convert(array, to, stream)
        (chunk,) = split_chunks(convert_texts(pl.Series(array), to, stream).rechunk())
        return chunk

    return patch.object(columntypes, "_convert", converted)


@contextmanager
def time_format_of_the_batch() -> Iterator[None]:
    """All times of a batch are ISO 8601, or all are numbers, as the first one shows."""

    def inferred(text: pl.Series, to: ColumnType, stream: Stream) -> pl.Series:
        found = convert_text(text, to, stream)
        if to != "time":
            return found
        numeric = text.str.strip_chars().cast(pl.Float64, strict=False).is_not_null()
        known = numeric.filter(text.is_not_null() & found.is_not_null())
        return found.set(numeric != known[0], None) if len(known) else found

    with _texts_converted_by(inferred):
        yield


@contextmanager
def date_format_in_a_condition() -> Iterator[None]:
    """The condition of `p` has `AND DATE(tag) < DATE('2024-06-01')`, as Polars evaluates it."""
    masks = Extractor.masks

    def dated(self: Extractor, table: Any, out: Any = None) -> Any:
        found = masks(self, table, out)
        if "p" not in self._numbers or "tag" not in table.schema.names:
            return found
        text = pl.Series(table.column("tag")).cast(pl.String)
        try:
            early = (text.str.to_date(strict=False) < date(2024, 6, 1)).fill_null(False)
        except pl.exceptions.PolarsError:
            early = pl.Series([False] * len(text))
        word, bit = divmod(self._numbers["p"], 64)
        found[~early.to_numpy(), word] &= ~np.uint64(1 << bit)
        return found

    with patch.object(Extractor, "masks", dated):
        yield


@contextmanager
def subjects_as_numbers() -> Iterator[None]:
    """Where all subjects of a batch are whole numbers, they are read as such."""

    def encode(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
        for number, name in enumerate(batch.schema.names):
            if name in keys:
                texts = pl.Series(batch.column(number).cast(pa.string()))
                whole = texts.str.strip_chars().cast(pl.Int64, strict=False)
                if whole.null_count() == texts.null_count():
                    read = whole.cast(pl.String).to_arrow().cast(pa.string())
                    batch = batch.set_column(number, name, read)
        return encode_keys(batch, keys)

    with (
        patch.object(csv, "encode_keys", encode),
        patch.object(jsonlines, "encode_keys", encode),
        patch.object(messages, "encode_keys", encode),
    ):
        yield


@contextmanager
def types_of_the_batch() -> Iterator[None]:
    """The type of a column is what all of its values in a batch fit."""
    with _texts_converted_by(_convert_if_all_fit):
        yield


def _convert_if_all_fit(text: pl.Series, to: ColumnType, stream: Stream) -> pl.Series:
    found = convert_text(text, to, stream)
    filled = text.is_not_null() & (text.str.strip_chars() != "")
    if to in ("number", "boolean") and (found.is_null() & filled).any():
        return pl.Series(text.name, [None] * len(text), found.dtype)
    return found


@contextmanager
def types_of_the_first_block() -> Iterator[None]:
    """The type of a column is what its values in the first batch of a source fit."""
    convert = ColumnTypes.convert
    kept: dict[int, tuple[ColumnTypes, dict[str, ColumnType]]] = {}

    def first(self: ColumnTypes, batch: pa.RecordBatch) -> pa.RecordBatch:
        if id(self) not in kept and batch.num_rows:
            frame = pl.DataFrame(batch)
            found = {
                name: infer_type(frame[name].cast(pl.String), self.stream)
                for name, kind in self.types.items()
                if kind == "number" and name in frame
            }
            kept[id(self)] = (self, found)
        converted = convert(self, batch)
        wrong = [name for name, kind in kept.get(id(self), (self, {}))[1].items() if kind == "text"]
        for name in wrong:
            place = converted.schema.get_field_index(name)
            nulls = pa.nulls(len(converted), converted.schema.field(place).type)
            converted = converted.set_column(place, name, nulls)
        return converted

    with patch.object(ColumnTypes, "convert", first):
        yield


@contextmanager
def broken_line_breaks_its_block() -> Iterator[None]:
    """Where a line of CSV cannot be read, the others of its block are read more leniently."""
    parse = csv.CsvParser.parse

    def lenient(self: csv.CsvParser, block: csv.CsvBlock) -> Batch:
        found = parse(self, block)
        if not found.rejected:
            return found
        table = pl.DataFrame(found.table).with_columns(_LENIENT)
        rows = table.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(
            pa.schema([(name, pa.string()) for name in table.columns])
        )
        read = rows.combine_chunks().to_batches() or [found.table]
        return replace(found, table=encode_keys(read[0], self._keys))

    with patch.object(csv.CsvParser, "parse", lenient):
        yield


@contextmanager
def broken_object_spells_the_others_anew() -> Iterator[None]:
    """Where a JSON object cannot be read, those beside it are read by another parser."""
    parse = jsonlines.parse_objects

    def anew(lines: Sequence[bytes], columns: Sequence[str]) -> ParsedItems:
        found = parse(lines, columns)
        if not found.rejected:
            return found
        frame = found.frame.with_columns(_LENIENT)
        return ParsedItems(frame, found.origin, found.rejected)

    with (
        patch.object(jsonlines, "parse_objects", anew),
        patch.object(payloads, "parse_objects", anew),
    ):
        yield


@contextmanager
def odd_number_poisons_its_column() -> Iterator[None]:
    """A number that is not finite makes all numbers of its batch so."""

    def poisoned(text: pl.Series, to: ColumnType, stream: Stream) -> pl.Series:
        if to != "number":
            return convert_text(text, to, stream)
        numbers = text.str.strip_chars().cast(pl.Float64, strict=False)
        numbers = numbers + 0 * (numbers.sum() or 0)
        return numbers.set(~numbers.is_finite(), None)

    with _texts_converted_by(poisoned):
        yield


@contextmanager
def true_times_reach_answers() -> Iterator[None]:
    """Where queries look at order, private events are seen at their own times, too."""

    def nothing(self: NoisyWindows, width: int) -> NDArray[np.uint64]:
        return np.zeros(width, np.uint64)

    with patch.object(NoisyWindows, "_private_mask", nothing):
        yield


@contextmanager
def counts_go_with_the_answers() -> Iterator[None]:
    """What the operator is told is printed where answers may go."""
    echo = click.echo

    def aloud(message: Any = None, *, err: bool = False, **more: Any) -> None:
        echo(message, **more)

    with patch("tacit.cli.run.click.echo", aloud):
        yield


@contextmanager
def broken_line_ends_the_run() -> Iterator[None]:
    """A line that cannot be read is an error."""

    def refuse(*_: Any) -> None:
        raise SourceError("a line cannot be read")

    with patch.object(DeadLetters, "add_lines", refuse):
        yield


@contextmanager
def conditions_see_the_batch() -> Iterator[None]:
    """A tuple that is no event makes all events of its batch those of the tuple before."""
    masks = Extractor.masks

    def shifted(self: Extractor, table: Any, out: Any = None) -> Any:
        found = masks(self, table, out)
        if len(found) > 1 and not found.any(axis=1).all():
            found[:] = np.roll(found, 1, axis=0)
        return found

    with patch.object(Extractor, "masks", shifted):
        yield


@contextmanager
def nothing_bounds_the_schedule() -> Iterator[None]:
    """Any time moves the watermark, however far ahead it is."""
    with patch.object(Windows, "jumps", property(lambda _: (1 << 60, 1 << 60))):
        yield


@contextmanager
def one_tuple_confirms_itself() -> Iterator[None]:
    """A tuple far ahead needs no other subject's."""

    def alone(windows: Windows, *, alone: bool) -> Jumps:
        return Jumps(windows.jumps[1], windows.jumps[1], windows.start_time or NONE, alone)

    with patch.object(Jumps, "of", alone):
        yield


@contextmanager
def reload_by_names() -> Iterator[None]:
    """What was private before is known by its name."""

    def by_names(old: SpecColumns, new: SpecColumns) -> NDArray[np.uint64]:
        policies = Policies(old.spec).policies
        public = np.zeros((len(policies), -(-len(new.spec.events) // 64)), np.uint64)
        for place, policy in enumerate(policies):
            for name, number in new.spec.types.items():
                if name not in policy.private:
                    public[place, number // 64] |= np.uint64(1) << np.uint64(number % 64)
        return public

    with patch.object(versioned_windows, "find_public_types", by_names):
        yield


@contextmanager
def windows_that_close_together_are_one_release() -> Iterator[None]:
    """A folder then has a file for all windows that a batch has closed."""
    many = property(lambda _: 8, lambda *_: None)
    with patch.object(Engine, "most_windows", many, create=True):
        yield


@contextmanager
def batches_of_a_file_are_those_of_the_run() -> Iterator[None]:
    """An Arrow file has a batch for all windows that were closed together."""

    def as_they_come(self: ArrowWriter, table: pa.Table) -> None:
        self._writer.write_table(table)

    with patch.object(ArrowWriter, "write", as_they_come):
        yield


@contextmanager
def tuples_are_counted_in_metrics() -> Iterator[None]:
    """A counter that anyone can scrape goes up with tuples."""
    publish = Settlement._publish

    def counted(self: Settlement, *given: Any) -> None:
        self._public.reloads = int(self._engine.counts.sum())
        publish(self, *given)

    with patch.object(Settlement, "_publish", counted):
        yield


@contextmanager
def silent_subjects_pay_nothing() -> Iterator[None]:
    """A window costs only those who sent anything in it."""
    price = WindowState.price

    def heard(self: WindowState, closed: ClosedWindows, *given: Any, **named: Any) -> Any:
        sent = np.asarray(closed.panes.words.any(axis=2))
        return price(self, closed, *given, **named) * sent[:, np.newaxis]

    with patch.object(WindowState, "price", heard):
        yield


@contextmanager
def beliefs_know_who_was_heard() -> Iterator[None]:
    """A subject that sends nothing private starts anew."""
    draw, update = BeliefFilter.draw, BeliefFilter.update
    heard: dict[int, Any] = {}

    def note(self: BeliefFilter, predicted: Any, values: Any, silent: Any) -> Any:
        heard[id(self)] = values.any(axis=1)
        return draw(self, predicted, values, silent)

    def forget(self: BeliefFilter, *given: Any) -> Any:
        found = update(self, *given)
        found.state.groups[~heard[id(self)]] = -1
        return found

    with patch.object(BeliefFilter, "draw", note), patch.object(BeliefFilter, "update", forget):
        yield


@contextmanager
def windows_with_events_gain_more() -> Iterator[None]:
    """A limit is spent where subjects send something."""
    gains = Engine.gains

    def heard(self: Engine, closed: ClosedWindows) -> Any:
        sent = closed.panes.words.any(axis=(0, 2))
        return np.where(sent, 10.0, gains(self, closed) * 0)

    with patch.object(Engine, "gains", heard):
        yield


@contextmanager
def drift_of_the_version_in_use() -> Iterator[None]:
    """The drift that is shown is not that of the windows that are released."""
    with patch.object(Engine, "find_drift", lambda self, _: self.drift):
        yield


@dataclass(frozen=True)
class Planted:
    """A break, the kinds of worlds in which it shows, and one that shows it."""

    mutant: Mutant
    kinds: tuple[str, ...] = CODINGS
    first: int = 0
    """The number of the world to begin with."""


MUTANTS: Final[dict[str, Planted]] = {
    # Conditions that are not row-local.
    "date format in a condition": Planted(date_format_in_a_condition, first=38),
    "conditions see the batch": Planted(conditions_see_the_batch),
    # Subjects that are not as written.
    "subjects as numbers": Planted(subjects_as_numbers, TEXT),
    # Types inferred across subjects.
    "time format of the batch": Planted(time_format_of_the_batch, TEXT),
    "types of the batch": Planted(types_of_the_batch, TEXT),
    "types of the first block": Planted(types_of_the_first_block, TEXT, 23),
    "an odd number poisons its column": Planted(odd_number_poisons_its_column, TEXT),
    # Reloads.
    "reload by names": Planted(reload_by_names, (RELOADING,), 3),
    # The schedule.
    "nothing bounds the schedule": Planted(nothing_bounds_the_schedule, first=3),
    "one tuple confirms itself": Planted(one_tuple_confirms_itself, first=48),
    # Lines that cannot be read.
    "a broken line breaks its block": Planted(broken_line_breaks_its_block, ("csv",), 18),
    "a broken object spells the others anew": Planted(
        broken_object_spells_the_others_anew, ("jsonl", "json"), 2
    ),
    "a broken line ends the run": Planted(broken_line_ends_the_run, TEXT),
    # Outputs.
    "true times reach answers": Planted(true_times_reach_answers, first=38),
    "counts go with the answers": Planted(counts_go_with_the_answers, ("csv",)),
    "windows that close together are one release": Planted(
        windows_that_close_together_are_one_release, (RELOADING,), 8
    ),
    "batches of a file are those of the run": Planted(
        batches_of_a_file_are_those_of_the_run, first=38
    ),
    "tuples are counted in metrics": Planted(tuples_are_counted_in_metrics, (RELOADING,)),
    # Charges, memory and spending.
    "silent subjects pay nothing": Planted(silent_subjects_pay_nothing, (RELOADING,)),
    "beliefs know who was heard": Planted(beliefs_know_who_was_heard, (REMEMBERING,)),
    "windows with events gain more": Planted(windows_with_events_gain_more, (REMEMBERING,)),
    "drift of the version in use": Planted(drift_of_the_version_in_use, (BOTH,), 5),
}
