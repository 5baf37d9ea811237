"""The registry of subjects: names to slots and back, for as long as a run lasts.

A registry holds either integers or texts. Columns of integers are looked up in a registry
of texts by what they look like written down (`7` is '7'); a column of texts does not fit a
registry of integers. Other types (fractions, truth values, bytes) name nobody: cast them
to text first. A null or an empty text is no subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from tacit.errors import SchemaError, StateError
from tacit.events.columns import arrow_chunks, frozen, numbers, plain, text_bytes, validity
from tacit.events.interning import UNKNOWN, IntegerInterner, Numbers, TextInterner
from tacit.kernels import compiled

NO_SUBJECT = -2
"""In place of a slot where a tuple names nobody; UNKNOWN (-1) where it names a stranger."""
Kind: TypeAlias = Literal["int", "text"]
_SIGNED = {pa.int32().id, pa.int64().id}
Column: TypeAlias = pa.Array | pa.ChunkedArray | pl.Series


def subject_kind(*dtypes: pa.DataType) -> Kind:
    """The kind of registry for columns of these types: integers only if all of them are."""
    kinds = [dtype.value_type if pa.types.is_dictionary(dtype) else dtype for dtype in dtypes]
    for kind in kinds:
        if not (pa.types.is_integer(kind) or _is_text(kind) or pa.types.is_null(kind)):
            raise SchemaError(f"subjects are integers or texts, not {kind}; cast them to text")
    named = [kind for kind in kinds if not pa.types.is_null(kind)]
    return "int" if named and all(pa.types.is_integer(kind) for kind in named) else "text"


class Subjects:
    """Names of one kind, numbered in order of registration."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self._integers = IntegerInterner()
        self._texts = TextInterner()
        self._dictionary: tuple[pa.Array, int, Numbers] | None = None
        self._names = pa.array([], pa.int64() if kind == "int" else pa.large_string())

    def __len__(self) -> int:
        return len(self._integers) if self.kind == "int" else len(self._texts)

    def __repr__(self) -> str:
        return f"<Subjects: {len(self)} of kind {self.kind}>"

    @property
    def names(self) -> pa.Array:
        """The names in the order of their slots; the same array until there are more."""
        if len(self._names) < len(self):
            self._names = self._copied()
        return self._names

    def slots(self, column: Column) -> Numbers:
        """Each tuple's slot: UNKNOWN for a stranger, NO_SUBJECT where nobody is named."""
        if isinstance(column, pa.Array):
            if self.kind == "int" and column.type.id in _SIGNED and not column.null_count:
                return self._integers.find(column.to_numpy())  # as most often
            return self._slots(column, False)
        return _joined([self._slots(chunk, False) for chunk in arrow_chunks(column)])

    def learn(self, column: Column) -> Numbers:
        """Each tuple's slot; strangers are registered in order of first appearance."""
        return _joined([self._slots(chunk, True) for chunk in arrow_chunks(column)])

    def add(self, names: Column | Sequence[int] | Sequence[str]) -> int:
        """Register names, those known already left alone; the first new slot."""
        first = len(self)
        self.enrol(names)
        return first

    def enrol(self, names: Column | Sequence[int] | Sequence[str]) -> Numbers:
        """Register names, those known already left alone; the slot of each."""
        if not isinstance(names, pa.Array | pa.ChunkedArray | pl.Series):
            if self.kind == "text":
                names = [name if name is None else str(name) for name in names]
            names = pa.array(names, pa.int64() if self.kind == "int" else pa.large_string())
        if (self.slots(names) == NO_SUBJECT).any():
            raise ValueError("a subject's name must not be empty or null")
        return self.learn(names)

    def state(self) -> dict[str, NDArray[Any]]:
        """All there is to know, as plain arrays."""
        if self.kind == "int":
            return {"integers": self._integers.names.copy()}
        text, ends = self._texts.names
        return {"text": text.copy(), "ends": ends.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]]) -> Subjects:
        """The registry that gave this state."""
        match dict(state):
            case {"integers": integers}:
                subjects = cls("int")
                found = subjects._integers.learn(np.ascontiguousarray(integers, np.int64))
            case {"text": text, "ends": ends} if len(ends) and ends[-1] == len(text):
                subjects = cls("text")
                found = subjects._texts.learn(frozen(text), frozen(ends))
            case _:
                raise StateError("this is not the state of a registry of subjects")
        if len(subjects) != len(found):
            raise StateError("a saved registry names a subject twice; the state is damaged")
        return subjects

    def _copied(self) -> pa.Array:
        if self.kind == "int":
            return pa.array(self._integers.names)
        text, ends = self._texts.names
        buffers = [None, pa.py_buffer(ends.copy()), pa.py_buffer(text.copy())]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def _slots(self, array: pa.Array, learning: bool) -> Numbers:
        if pa.types.is_dictionary(array.type):
            return self._coded(array, learning)
        if pa.types.is_null(array.type):
            return np.full(len(array), NO_SUBJECT, np.int32)
        if self.kind == "int":
            return self._integer_slots(array, learning)
        return self._text_slots(array, learning)

    def _integer_slots(self, array: pa.Array, learning: bool) -> Numbers:
        if subject_kind(array.type) != "int":
            raise SchemaError(
                "the registered subjects are integers, the column holds texts; "
                "register the subjects as texts"
            )
        known = array.drop_null() if learning and array.null_count else array
        values = _signed(known)
        if learning:
            found = self._integers.learn(values.astype(np.int64, copy=False))
        else:
            found = self._integers.find(values)
        if array.null_count and learning:
            spread = np.full(len(array), NO_SUBJECT, np.int32)
            spread[array.is_valid().to_numpy(zero_copy_only=False)] = found
            return spread
        _refuse_nulls(*validity(array), found)
        return found

    def _text_slots(self, array: pa.Array, learning: bool) -> Numbers:
        array = array.cast(pa.large_string()) if subject_kind(array.type) == "int" else plain(array)
        text, ends = text_bytes(array)
        if not learning:
            found = self._texts.find(text, ends)
            _refuse_empty(ends, found)
            _refuse_nulls(*validity(array), found)
            return found
        named = np.diff(ends) > 0
        if array.null_count:
            named &= array.is_valid().to_numpy(zero_copy_only=False)
        if named.all():
            return self._texts.learn(text, ends)
        found = np.full(len(array), NO_SUBJECT, np.int32)
        found[named] = self._texts.learn(*text_bytes(array.filter(pa.array(named))))
        return found

    def _coded(self, array: pa.Array, learning: bool) -> Numbers:
        """A dictionary is looked up once; the tuples are looked up in that."""
        codes = array.indices
        slots = self._dictionary_slots(array.dictionary)
        found = np.empty(len(codes), np.int32)
        if _look_up(numbers(codes), *validity(codes), slots, found) and learning:
            strangers = numbers(codes)[found == UNKNOWN]
            order = strangers[np.sort(np.unique(strangers, return_index=True)[1])]
            self._slots(plain(array.dictionary).take(pa.array(order)), True)
            return self._coded(array, False)
        return found

    def _dictionary_slots(self, dictionary: pa.Array) -> Numbers:
        """The slots of a dictionary's values, kept until it or the registry changes."""
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


def _signed(array: pa.Array) -> NDArray[np.int32] | NDArray[np.int64]:
    """The integers of an array as signed ones of 32 or 64 bits."""
    values = numbers(array)
    if values.dtype == np.uint64 and len(values) and array.null_count < len(array):
        most = pa.compute.max(array).as_py()
        if most >= 2**63:
            raise SchemaError(
                "a subject's number is greater than 2**63 - 1; register the subjects as texts"
            )
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
    """The slots of codes; whether there is a stranger among them."""
    strange = False
    for row in range(len(codes)):
        if len(bits) and not bits[(offset + row) >> 3] >> ((offset + row) & 7) & 1:
            found[row] = NO_SUBJECT
        else:
            found[row] = slots[codes[row]]
            strange |= found[row] == UNKNOWN
    return strange
