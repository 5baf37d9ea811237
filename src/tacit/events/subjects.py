"""The registry of subjects: it maps names to slots and back, for the whole run.

Names are text, exactly as written: '007' is not '7'. An integer in a column stands for its decimal
digits. Other types (fractions, booleans, bytes) are refused: cast them to text first. A null or an
empty text is not a subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.errors import SchemaError, StateError
from tacit.events.columns import (
    freeze,
    read_numbers,
    read_text,
    read_validity,
    split_chunks,
    to_plain_text,
)
from tacit.events.interners import UNKNOWN, DecimalIndex, Numbers, TextInterner
from tacit.kernels import compiled

NO_SUBJECT = -2
"""The slot of a tuple without a subject; UNKNOWN (-1) is an unregistered subject."""
_SIGNED = {pa.int32().id, pa.int64().id}
Column: TypeAlias = pa.Array | pa.ChunkedArray | pl.Series


def check_subject_type(dtype: pa.DataType) -> None:
    """Raise SchemaError unless columns of this type can contain subjects: text or integers."""
    kind = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    if not (pa.types.is_integer(kind) or _is_text(kind) or pa.types.is_null(kind)):
        raise SchemaError(f"subjects are text or integers, not {kind}; cast them to text")


class Subjects:
    """Names, numbered in order of registration."""

    def __init__(self) -> None:
        self._texts = TextInterner()
        self._integers = DecimalIndex()
        self._dictionary: tuple[pa.Array, int, Numbers] | None = None
        self._names = pa.array([], pa.large_string())

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"<Subjects: {len(self)}>"

    @property
    def names(self) -> pa.Array:
        """The names in the order of their slots; the same array until names are added."""
        if len(self._names) < len(self):
            text, ends = self._texts.names
            buffers = [None, pa.py_buffer(ends.copy()), pa.py_buffer(text.copy())]
            self._names = pa.Array.from_buffers(pa.large_string(), len(self), buffers)
        return self._names

    def slots(self, column: Column) -> Numbers:
        """Return each tuple's slot: UNKNOWN if unregistered, NO_SUBJECT without a subject."""
        return self.find(column)[0]

    def find(self, column: Column) -> tuple[Numbers, bool]:
        """Return each tuple's slot as `slots` does, and whether all are known to be registered.

        It is known where looking them up shows it anyway.
        """
        if isinstance(column, pa.Array):
            if column.type.id in _SIGNED and not column.null_count:
                integers = column.to_numpy()
                found = self._integers.find(integers)  # the most common case
                return found, found is integers
            return self._slots(column, False), False
        return _joined([self._slots(chunk, False) for chunk in split_chunks(column)]), False

    def learn(self, column: Column) -> Numbers:
        """Return each tuple's slot; register new subjects in order of first appearance."""
        return _joined([self._slots(chunk, True) for chunk in split_chunks(column)])

    def add(self, names: Column | Sequence[int] | Sequence[str]) -> int:
        """Register names that are not known yet; return the first new slot."""
        first = len(self)
        self.enrol(names)
        return first

    def enrol(self, names: Column | Sequence[int] | Sequence[str]) -> Numbers:
        """Register names that are not known yet; return the slot of each name."""
        if not isinstance(names, pa.Array | pa.ChunkedArray | pl.Series):
            try:
                names = pa.array(names, pa.large_string())
            except (pa.ArrowInvalid, pa.ArrowTypeError):  # integers, or integers among texts
                texts = [name if name is None else str(name) for name in names]
                names = pa.array(texts, pa.large_string())
        if (self.slots(names) == NO_SUBJECT).any():
            raise ValueError("a subject's name must not be empty or null")
        return self.learn(names)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as plain arrays."""
        text, ends = self._texts.names
        return {"text": text.copy(), "ends": ends.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]]) -> Subjects:
        """Restore a registry from its state.

        Older registries could contain integers; they are read as their decimal digits.
        """
        subjects = cls()
        match dict(state):
            case {"integers": integers}:
                found = subjects.learn(pa.array(np.asarray(integers, np.int64)))
            case {"text": text, "ends": ends} if len(ends) and ends[-1] == len(text):
                found = subjects._learn_texts(freeze(text), freeze(ends))
            case _:
                raise StateError("this is not the state of a registry of subjects")
        if len(subjects) != len(found):
            raise StateError("a saved registry names a subject twice; the state is damaged")
        return subjects

    def _learn_texts(self, text: NDArray[np.uint8], ends: NDArray[np.integer]) -> Numbers:
        found = self._texts.learn(text, ends)
        self._integers.add(*self._texts.names)
        return found

    def _slots(self, array: pa.Array, learning: bool) -> Numbers:
        check_subject_type(array.type)
        if pa.types.is_dictionary(array.type):
            return self._coded(array, learning)
        if pa.types.is_null(array.type):
            return np.full(len(array), NO_SUBJECT, np.int32)
        if pa.types.is_integer(array.type):
            return self._integer_slots(array, learning)
        return self._text_slots(to_plain_text(array), learning)

    def _integer_slots(self, array: pa.Array, learning: bool) -> Numbers:
        values = _signed(array)
        if values is None:
            return self._text_slots(array.cast(pa.large_string()), learning)
        found = self._integers.find(values)
        if array.null_count:
            if found is values:
                found = found.copy()
            _refuse_nulls(*read_validity(array), found)
        if learning and (found == UNKNOWN).any():
            new = pc.unique(array.filter(pa.array(found == UNKNOWN)))
            self._learn_texts(*read_text(new.cast(pa.large_string())))
            return self._integer_slots(array, False)
        return found

    def _text_slots(self, array: pa.Array, learning: bool) -> Numbers:
        text, ends = read_text(array)
        if not learning:
            found = self._texts.find(text, ends)
            _refuse_empty(ends, found)
            _refuse_nulls(*read_validity(array), found)
            return found
        named = np.diff(ends) > 0
        if array.null_count:
            named &= array.is_valid().to_numpy(zero_copy_only=False)
        if named.all():
            return self._learn_texts(text, ends)
        found = np.full(len(array), NO_SUBJECT, np.int32)
        found[named] = self._learn_texts(*read_text(array.filter(pa.array(named))))
        return found

    def _coded(self, array: pa.Array, learning: bool) -> Numbers:
        """Look up the values of a dictionary once, then the codes of the tuples."""
        codes = array.indices
        slots = self._dictionary_slots(array.dictionary)
        found = allocate(len(codes), np.int32)
        if _look_up(read_numbers(codes), *read_validity(codes), slots, found) and learning:
            new = read_numbers(codes)[found == UNKNOWN]
            order = new[np.sort(np.unique(new, return_index=True)[1])]
            self._slots(to_plain_text(array.dictionary).take(pa.array(order)), True)
            return self._coded(array, False)
        return found

    def _dictionary_slots(self, dictionary: pa.Array) -> Numbers:
        """Return the slots of a dictionary's values, cached until it or the registry changes."""
        if self._dictionary is not None:
            known, size, slots = self._dictionary
            if size == len(self) and dictionary.equals(known):
                return slots
        slots = self._slots(dictionary, False)
        self._dictionary = dictionary, len(self), slots
        return slots


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _signed(array: pa.Array) -> NDArray[np.int32] | NDArray[np.int64] | None:
    """Return the integers of an array as signed 32 or 64 bits; None if they do not fit."""
    values = read_numbers(array)
    if values.dtype == np.uint64 and (pc.max(array).as_py() or 0) >= 2**63:
        return None
    return values if values.dtype == np.int32 else values.astype(np.int64, copy=False)


def _joined(chunks: list[Numbers]) -> Numbers:
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.int32), *chunks])


@compiled
def _refuse_nulls(bits: NDArray[np.uint8], offset: int, found: Numbers) -> None:
    if len(bits):
        for row in range(len(found)):
            if not bits[(offset + row) >> 3] >> ((offset + row) & 7) & 1:
                found[row] = NO_SUBJECT


@compiled
def _refuse_empty(ends: NDArray[Any], found: Numbers) -> None:
    for row in range(len(found)):
        if ends[row] == ends[row + 1]:
            found[row] = NO_SUBJECT


@compiled
def _look_up(
    codes: NDArray[Any], bits: NDArray[np.uint8], offset: int, slots: Numbers, found: Numbers
) -> bool:
    """Write the slots of codes; return whether any of them is unregistered."""
    unregistered = False
    for row in range(len(codes)):
        if len(bits) and not bits[(offset + row) >> 3] >> ((offset + row) & 7) & 1:
            found[row] = NO_SUBJECT
        else:
            found[row] = slots[codes[row]]
            unregistered |= found[row] == UNKNOWN
    return unregistered
