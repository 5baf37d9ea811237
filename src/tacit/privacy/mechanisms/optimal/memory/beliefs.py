"""Beliefs of a run: for each subject, how likely each value of a component's variables is.

A belief depends on public events and released symbols alone. So it may choose channels, decode
answers and decide which windows are paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.errors import StateError
from tacit.kernels.lanes import LANES
from tacit.privacy.mechanisms.optimal.memory import kernels
from tacit.privacy.mechanisms.optimal.memory.channel_tables import ChannelTables
from tacit.privacy.mechanisms.optimal.memory.kernels import (
    WHOLE,
    Numbers,
    Parts,
    Singles,
    Whole,
    Words,
)
from tacit.privacy.mechanisms.optimal.memory.transitions import (
    DECAY,
    SWITCH,
    CellLayout,
    Transitions,
    divide_week,
)
from tacit.privacy.mechanisms.optimal.part_tables import PartTables
from tacit.privacy.sampling import Sampler

Bits = NDArray[np.bool_]
Arrays = Mapping[str, NDArray[Any]]
Given = tuple[Any, ...]
"""Arguments that several kernels have in common."""

_ROWS: Final = 64
"""The number of rows that are advanced together."""
_NO_GROUP: Final = -1
"""The group before a subject's first window."""


@dataclass(frozen=True, slots=True, eq=False)
class BeliefState:
    """What is remembered about each subject of a component after a window.

    At most 64 probabilities of two bytes, and four bytes more.
    """

    beliefs: NDArray[np.uint16]
    """`[subject][chain][value]`, in parts of 65535."""
    openness: NDArray[np.uint16]
    """`[subject]`: the running average of whether something was open, in parts of 65535."""
    groups: NDArray[np.int16]
    """`[subject]`: the group of the last context; -1 before a subject's first window."""

    @classmethod
    def start(cls, subjects: int, chains: int, values: int) -> BeliefState:
        """Return the state before the first window."""
        return cls(
            np.zeros((subjects, chains, values), np.uint16),
            np.full(subjects, WHOLE // 2, np.uint16),
            np.full(subjects, _NO_GROUP, np.int16),
        )

    def widen(self, subjects: int) -> BeliefState:
        """Add subjects that are new."""
        new = subjects - len(self.groups)
        if not new:
            return self
        more = BeliefState.start(new, *self.beliefs.shape[1:])
        return BeliefState(
            np.concatenate([self.beliefs, more.beliefs]),
            np.concatenate([self.openness, more.openness]),
            np.concatenate([self.groups, more.groups]),
        )

    def take(self, rows: slice) -> BeliefState:
        """Return the state of some subjects."""
        return BeliefState(self.beliefs[rows], self.openness[rows], self.groups[rows])

    @classmethod
    def like(cls, state: BeliefState) -> BeliefState:
        """Return room for the state of as many subjects."""
        return cls(
            allocate(state.beliefs.shape, np.uint16),
            np.empty_like(state.openness),
            np.empty_like(state.groups),
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return plain arrays for a snapshot."""
        return {"beliefs": self.beliefs, "openness": self.openness, "groups": self.groups}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> BeliefState:
        """Read what `to_arrays` returned."""
        return cls(arrays["beliefs"], arrays["openness"], arrays["groups"])


class Prediction(NamedTuple):
    """The beliefs of a window before its symbols, and the channels chosen by them."""

    signals: Words
    contexts: Numbers
    groups_before: NDArray[np.int16]
    groups: NDArray[np.int16]
    slot: int
    """The part of the week."""
    cells: Whole
    """The cell of the step to this window; those of all parts of the week have one number."""
    lanes: Singles
    """`[row][chain][lane]`: the beliefs, with the zeros that fill lanes."""
    chosen: Numbers
    """`[row][block]`: the number of the candidate."""
    gains: Singles
    values: int
    """The number of values of a chain."""

    @property
    def beliefs(self) -> Singles:
        """`[row][chain][value]`"""
        return self.lanes[:, :, : self.values]


class Update(NamedTuple):
    """The beliefs of a window with its symbols."""

    lanes: Singles
    """`[row][chain][lane]`: the beliefs, with the zeros that fill lanes."""
    state: BeliefState
    parts: Parts
    """`[row][part]`: how likely each part is, in parts of 65535; 0 or all where it is decided."""

    @property
    def beliefs(self) -> Singles:
        """`[row][chain][value]`"""
        return self.lanes[:, :, : self.state.beliefs.shape[2]]


class Arguments(NamedTuple):
    """What the steps of some windows follow from, and where results go, of all subjects.

    Windows have the same part of the week.
    """

    signals: Words
    """`[window][row][word]`"""
    contexts: Numbers
    """`[window][row]`"""
    slot: int
    state: BeliefState
    after: BeliefState
    parts: Parts
    """`[window][row][column]`"""
    own: Parts
    """The parts of this component."""
    given: Given
    """What the compiled loop reads."""


class BeliefFilter:
    """Follows the beliefs of one component's subjects from window to window.

    It has no state of its own: states go in and come out.
    """

    def __init__(self, transitions: Transitions, tables: ChannelTables) -> None:
        self.transitions = transitions
        self.tables = tables
        self.joint = transitions.joint
        self.few = self.joint and transitions.values <= LANES
        """Whether chains have at most eight values: there are kernels for that."""
        self._changing: Given = transitions.weights.astype(np.float32), SWITCH
        self._start = pad_lanes(transitions.start, tables.width)
        self._at_slot: dict[int, Singles] = {}
        edges = np.ceil(np.array(transitions.layout.edges) * WHOLE)
        self._edges = np.clip(edges, 0, WHOLE).astype(np.uint16)

    @cached_property
    def _parts(self) -> PartTables:
        """The parts for rows of contexts whose parts are not tabulated."""
        every = range(len(self.tables.component.variables))
        blocks = [tuple(every)] if self.joint else [(variable,) for variable in every]
        return PartTables(self.tables.component, blocks)

    @property
    def layout(self) -> CellLayout:
        """How cells are numbered."""
        return self.transitions.layout

    def start(self, subjects: int) -> BeliefState:
        """Return the state before the first window."""
        return BeliefState.start(subjects, self.transitions.chains, self.transitions.values)

    def read_state(self, arrays: Arrays, most: int) -> BeliefState:
        """Read a state of at most so many subjects; raise StateError if it does not fit."""
        try:
            state = BeliefState.from_arrays(arrays)
        except KeyError as error:
            raise StateError("the saved memory is incomplete") from error
        subjects = state.groups.size
        shape = (subjects, self.transitions.chains, self.transitions.values)
        groups = len(self.layout.groups)
        fitting = (
            state.beliefs.dtype == np.uint16
            and state.beliefs.shape == shape
            and state.openness.dtype == np.uint16
            and state.openness.shape == (subjects,)
            and state.groups.dtype == np.int16
            and state.groups.shape == (subjects,)
            and subjects <= most
            and int(state.groups.max(initial=0)) < groups
            and int(state.groups.min(initial=0)) >= _NO_GROUP
        )
        if not fitting:
            raise StateError("the saved memory does not fit the plan")
        return state

    def find_slot(self, hour: int) -> int:
        """Return the part of the week that an hour of it is in."""
        return _find_slot(hour, self.layout.slots)

    def find_tables(self, slot: int) -> Singles:
        """Return the plan's transitions in a part of the week, with the zeros that fill lanes."""
        if slot not in self._at_slot:
            own = self.transitions.tables[slot :: self.layout.slots]
            self._at_slot[slot] = pad_lanes(own, self.tables.width)
        return self._at_slot[slot]

    def predict(
        self,
        state: BeliefState,
        signals: Words,
        hour: int,
        tables: Singles | None = None,
        contexts: Numbers | None = None,
    ) -> Prediction:
        """Predict the beliefs of a window from its public events, and choose channels.

        `tables` are transitions in this part of the week that were learned since. If `contexts`
        are given, other threads may do the same for other subjects.
        """
        slot, flat = self.find_slot(hour), self.tables
        if contexts is None:
            contexts = flat.find_contexts(signals)
        rows, chains, _ = state.beliefs.shape
        groups = np.empty(rows, np.int16)
        cells = np.empty(rows, np.int64)
        beliefs = np.empty((rows, chains, flat.width), np.float32)
        chosen = np.full((rows, flat.most_blocks), -1, np.int32)
        gains = np.zeros(rows, np.float32)
        table = self.find_tables(slot) if tables is None else tables
        given = self._list_given(state, contexts, table)
        is_choice = flat.is_open if flat.gains else flat.is_choice
        blocks: Given = flat.first_block, flat.blocks, is_choice
        sums = np.empty(flat.most_queries, np.float32)
        found: Given = groups, cells, beliefs, chosen
        if self.few:
            channels: Given = flat.candidates, flat.mixed, flat.gains, sums
            found = np.empty(LANES, np.float32), *found, gains
            kernels.predict_few(*given, *self._changing, *blocks, *channels, *found)
        else:
            choosing = np.empty(rows, np.int64)
            found = *found, choosing
            if self.joint:
                room: Given = (np.empty(chains * flat.width, np.float32),)
                waiting = kernels.predict_joint(*given, *self._changing, *blocks, *room, *found)
            else:
                waiting = kernels.predict_factored(*given, *blocks, *found)
            if waiting:
                kernels.choose_channels(
                    choosing[:waiting],
                    contexts,
                    beliefs,
                    self.joint,
                    flat.values,
                    flat.first_block,
                    flat.blocks,
                    flat.candidates,
                    flat.class_of,
                    flat.variables,
                    flat.places,
                    flat.mixed,
                    flat.gains,
                    np.empty(flat.most_classes, np.float32),
                    sums,
                    chosen,
                    gains,
                )
        return Prediction(
            signals,
            contexts,
            state.groups,
            groups,
            slot,
            cells,
            beliefs,
            chosen,
            gains,
            flat.values,
        )

    def _list_given(self, state: BeliefState, contexts: Numbers, tables: Singles) -> Given:
        """Return what predictions follow from, for kernels."""
        return (
            state.beliefs,
            state.openness,
            state.groups,
            contexts,
            self.tables.group_of,
            self.layout.groups,
            self.layout.kinds,
            self._edges,
            tables,
            self._start,
        )

    def draw(self, predicted: Prediction, values: Words, silent: Bits) -> Numbers:
        """Draw a symbol for each open block of the rows that are not silent, `[row][block]`."""
        chosen, flat = predicted.chosen, self.tables
        rows, places = np.empty((2, chosen.size), np.int64)
        drawn = kernels.find_rows(
            predicted.contexts,
            silent,
            values,
            self.joint,
            flat.first_block,
            flat.blocks,
            flat.candidates,
            flat.class_of,
            flat.variables,
            flat.places,
            chosen,
            rows,
            places,
        )
        found = flat.sampler.sample(rows[:drawn]) if drawn else np.empty(0, np.int32)
        if drawn == chosen.size:
            return found.reshape(chosen.shape)
        symbols = np.full(chosen.shape, -1, np.int32)
        kernels.place_symbols(found, places[:drawn], symbols.reshape(-1))
        return symbols

    def update(
        self,
        state: BeliefState,
        predicted: Prediction,
        symbols: Numbers,
        parts: Parts | None = None,
        begin: int = 0,
        after: BeliefState | None = None,
    ) -> Update:
        """Use the symbols of a window.

        How likely parts are is written to the columns of `parts` from `begin` on, and the state
        to `after`, if they are given.
        """
        flat, contexts, chosen = self.tables, predicted.contexts, predicted.chosen
        if parts is None:
            parts = np.empty((len(contexts), flat.columns), np.uint16)
        if after is None:
            after = BeliefState.like(state)
        after.groups[:] = predicted.groups
        if self.joint:
            beliefs = np.empty_like(predicted.lanes)
            given: Given = (
                contexts,
                predicted.lanes,
                flat.first_block,
                flat.candidates,
                flat.likely,
                chosen,
                symbols,
                state.openness,
                DECAY,
                flat.truths,
                begin,
            )
            found: Given = beliefs, after.beliefs, after.openness, parts
            room: Given = (np.empty(flat.width, np.float32),)
            use = kernels.use_symbols_of_few if self.few else kernels.use_symbols_jointly
            other = use(*given, *room, *found)
            if other:
                rows = np.flatnonzero(flat.truths[contexts, 0, 0, 0] == kernels.UNKNOWN)
                self._read_all(parts, begin, predicted.signals[rows], beliefs[rows], rows)
        else:
            beliefs = predicted.lanes.copy()
            kernels.use_symbols_by_variable(
                contexts,
                beliefs,
                flat.first_block,
                flat.blocks,
                flat.candidates,
                flat.variables,
                flat.places,
                flat.likely,
                chosen,
                symbols,
                state.openness,
                DECAY,
                np.empty((len(flat.component.variables), 2), np.float32),
                after.beliefs,
                after.openness,
            )
            self._read_all(parts, begin, predicted.signals, beliefs, np.arange(len(beliefs)))
        own = parts[:, begin : begin + len(self.tables.component.parts)]
        return Update(beliefs, after, own)

    def can_advance(self, contexts: Numbers) -> bool:
        """Return whether `advance` takes the steps of a window with these contexts.

        That depends on public events alone.
        """
        flat = self.tables
        return (
            self.joint
            and self.transitions.chains == 1
            and flat.values == LANES
            and type(flat.sampler) is Sampler  # a sampler of another kind draws in its own way
            and flat.sampler.private
            and (
                flat.all_tabulated
                or bool((flat.truths[contexts, 0, 0, 0] != kernels.UNKNOWN).all())
            )
        )

    def list_arguments(
        self,
        state: BeliefState,
        signals: Words,
        hour: int,
        tables: Singles,
        contexts: Numbers,
        values: Words,
        silent: Bits,
        parts: Parts,
        begin: int,
        after: BeliefState,
    ) -> Arguments:
        """Return what `advance` reads and writes in some windows, of all subjects."""
        flat = self.tables
        given: Given = (
            *self._list_given(state, contexts, tables),
            self.layout.groups[flat.group_of],
            flat.is_open * ((1 - DECAY) * WHOLE),
            flat.first_block,
            flat.blocks,
            flat.is_choice,
            flat.candidates,
            flat.mixed,
            flat.class_of,
            flat.rows,
            flat.factors,
            values[..., 0],
            silent,
            flat.likely,
            DECAY,
            flat.truths,
            begin,
        )
        own = parts[..., begin : begin + len(self.tables.component.parts)]
        return Arguments(signals, contexts, self.find_slot(hour), state, after, parts, own, given)

    def advance(
        self, rows: slice, told: Arguments, *, kept: bool
    ) -> tuple[Prediction, Update] | None:
        """Predict windows, draw for them and use the symbols: all of it in one compiled loop.

        For each window it does the same as `predict`, `draw` and `update`; see `can_advance`. What
        was predicted and used in a single window is returned if it is to be `kept`.
        """
        flat, after = self.tables, told.after
        size = rows.stop - rows.start if kept else _ROWS
        cells = np.empty(size, np.int64)
        predicted, beliefs = np.empty((2, size, 1, LANES), np.float32)
        found: Given = (
            np.empty((3, _ROWS), np.int64),
            np.empty(_ROWS, np.float64),
            np.empty(_ROWS, np.float32),
            np.empty(_ROWS * LANES, np.float32),
            np.empty(flat.most_blocks, np.int32),
            kept,
            cells,
            predicted,
            beliefs,
            after.groups,
            after.beliefs,
            after.openness,
            told.parts,
        )
        done = rows.start
        while done < rows.stop:
            least = len(told.contexts) * flat.most_blocks
            octets = flat.sampler.draw_octets((rows.stop - done) * least, least)
            random: Given = octets, *flat.sampler.tables
            done = kernels.advance_eight(done, rows.start, rows.stop, *told.given, *random, *found)
        if not kept:
            return None
        prediction = Prediction(
            told.signals[0, rows],
            told.contexts[0, rows],
            told.state.groups[rows],
            after.groups[rows],
            told.slot,
            cells,
            predicted,
            np.empty((0, flat.most_blocks), np.int32),
            np.empty(0, np.float32),
            flat.values,
        )
        return prediction, Update(beliefs, after.take(rows), told.own[0, rows])

    def _read_all(
        self, found: Parts, begin: int, signals: Words, lanes: Singles, rows: Whole
    ) -> None:
        """Write how likely parts are for rows of contexts whose parts are not tabulated."""
        number = len(rows) if self.joint else len(rows) * lanes.shape[1]
        chances = np.empty((number, self._parts.width if self.joint else 2))
        sums = self._parts.sums[0] if self.joint else np.empty((0, 0))
        kernels.read_beliefs(lanes, self.joint, sums, chances)
        # Codes of readings are stored from -2 downwards.
        codes = (-2 - np.arange(number, dtype=np.int32)).reshape(len(rows), -1)
        kernels.weigh_parts(signals, codes, chances, *self._parts.arrays, rows, begin, found)


@cache
def _find_slot(hour: int, slots: int) -> int:
    return int(divide_week(np.array([hour]), slots)[0])


def pad_lanes(table: Singles, width: int) -> Singles:
    """Return a table with zeros at the end of its rows, up to a width."""
    padded = np.zeros((*table.shape[:-1], width), np.float32)
    padded[..., : table.shape[-1]] = table
    return padded
