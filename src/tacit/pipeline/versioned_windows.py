"""Open windows under the current version of the specification and under the next one.

After a reload, windows before a boundary belong to the old version, and windows from there on to
the new one. The boundary is the first window that has no tuple, or, where windows close by the
clock, that can have none. Until the last old window is closed, each tuple is inserted into the
windows of the version that it belongs to.

Where windows slide, the last old windows and the first new ones share panes, and the tuples there
are inserted into both. Only one version may use a private event: with windows of k panes, the new
version starts k panes after the last pane that the old one used. So no occurrence inside one window
affects the answers of both versions, and it is charged once. Until then the new version answers
from public events and the prior alone.

In these panes an event counts as public only if it was public under the old version too, by its
definition and not by its name. So an occurrence that was private under the old version, and that
an old window contains in part, never affects a new window, whatever its types are called there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.errors import Mistake, SpecificationError
from tacit.events.columntypes import ColumnTypes
from tacit.events.masks import EventMasks
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import EventBatch, MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec, SourceColumns
from tacit.pipeline.definitions import find_public_types
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.named_subjects import check_names
from tacit.privacy.prices import Claim
from tacit.quantities import count
from tacit.spec.specification import Specification
from tacit.spec.subjects import list_subjects
from tacit.windows.clock import NONE, Verdicts
from tacit.windows.panes import choose_capacity
from tacit.windows.staging import StagedPresence

_NOT_OWN: Final = np.uint8(255)
"""A verdict: the tuple was accepted, but belongs to the windows of the other version."""


@dataclass(frozen=True, slots=True)
class NextVersion:
    """The version that owns the windows from `boundary` on."""

    version: SpecVersion
    compiled: CompiledSpec
    window_state: WindowState
    boundary: int
    public: NDArray[np.uint64]
    """`[old policy][word]`: its types that reveal nothing private, from `find_public_types`."""

    @property
    def begin(self) -> int:
        """The first pane of its first window."""
        return self.boundary - self.version.spec.windows.panes + 1

    @property
    def clear(self) -> int:
        """The first pane that shares no occurrence with an old window."""
        return self.boundary + self.version.spec.windows.panes - 1

    @property
    def protected_from(self) -> int:
        """The first of its windows that uses private events."""
        # If noise is drawn per pane, only the window's last pane counts; else all of its panes.
        all_panes = self.clear + self.version.spec.windows.panes - 1
        plan = self.version.plan
        # Counts are always drawn per window.
        return self.clear if plan.draws_panes and not any(plan.counts.values()) else all_panes

    def visible(
        self, masks: NDArray[np.uint64], times: NDArray[np.int64], policies: NDArray[np.int32]
    ) -> NDArray[np.uint64]:
        """Return the events that its windows may use; `policies` are the subjects' old ones."""
        early = times < self.clear * self.version.spec.windows.pane
        if not early.any():
            return masks
        shown = masks & self.public[policies]
        return np.where(early[:, np.newaxis], shown, masks)

    def skip(self, closed: ClosedWindows) -> None:
        """Keep the panes that its first windows share with the last windows of the old version."""
        first, stop = closed.panes.first, closed.panes.first + len(closed.panes.words)
        for early in self.window_state.close(max(first, self.begin), stop):
            self.window_state.skip(early)


class VersionedWindows:
    """The open windows of all subjects, under one or two versions of the specification.

    `version` is None where the specification cannot change: for true answers and for surveys.
    """

    def __init__(
        self, compiled: CompiledSpec, window_state: WindowState, version: SpecVersion | None = None
    ) -> None:
        self.compiled = compiled
        self.window_state = window_state
        self.version = version
        self.next: NextVersion | None = None
        self.consumers = {} if version is None else version.consumers
        """The consumer of every query of this run: old answers may still be delivered."""
        self.protected_from = NONE
        """The first window for which the current version uses private events."""

    @property
    def versions(self) -> list[SpecVersion]:
        """The versions in use, the old one first."""
        found = [self.version, None if self.next is None else self.next.version]
        return [version for version in found if version is not None]

    @property
    def capacity(self) -> int:
        """The most panes that can be open at the same time."""
        window_states = [
            self.window_state,
            *([] if self.next is None else [self.next.window_state]),
        ]
        return min(window_state.panes.capacity for window_state in window_states)

    @property
    def _compiled_specs(self) -> list[CompiledSpec]:
        return [self.compiled, *([] if self.next is None else [self.next.compiled])]

    # Versions

    def start_version(self, next_version: NextVersion) -> None:
        """Use another version for the windows from its boundary on."""
        self.next = next_version
        self.consumers = {**self.consumers, **next_version.version.consumers}

    def prepare_version(
        self, version: SpecVersion, compiled: CompiledSpec, begin: int
    ) -> NextVersion:
        """Prepare another version, whose first window starts with the pane `begin`."""
        assert self.version is not None
        boundary = begin + version.spec.windows.panes - 1
        window_state = make_window_state(compiled, self.window_state.subjects)
        window_state.since, window_state.settled = (
            self.window_state.since.copy(),
            self.window_state.settled,
        )
        window_state.order = self.window_state.order
        public = find_public_types(self.version.columns, version.columns)
        return NextVersion(version, compiled, window_state, boundary, public)

    def finish_version(self) -> None:
        """Drop the old version."""
        assert self.next is not None
        self._carry_memory(self.next)
        done, self.next = self.next, None
        self.version, self.compiled, self.window_state = (
            done.version,
            done.compiled,
            done.window_state,
        )
        self.protected_from = done.protected_from

    @property
    def memory(self) -> tuple[Mapping[str, NDArray[Any]], ...]:
        """What is remembered under each version in use. The arrays never change."""
        states = [self.window_state, *([] if self.next is None else [self.next.window_state])]
        return tuple(state.memory for state in states)

    def restore_memory(self, memory: tuple[Mapping[str, NDArray[Any]], ...]) -> None:
        """Forget the windows that were answered since `memory` was read."""
        self.window_state.memory = memory[0]
        if self.next is not None:
            self.next.window_state.memory = memory[1]

    def find_version(self, closed: ClosedWindows) -> SpecVersion | None:
        """Return the version under which these windows are answered."""
        following = self._following(closed)
        return self.version if following is None else following.version

    def is_public_only(self, closed: ClosedWindows) -> bool:
        """Return whether these windows are answered from public events and the prior alone."""
        following = self._following(closed)
        since = self.protected_from if following is None else following.protected_from
        return closed.panes.first < since

    def _following(self, closed: ClosedWindows) -> NextVersion | None:
        """Return the next version if these windows belong to it."""
        following = self.next
        old = following is None or closed.panes.first < following.boundary
        return None if old else following

    def check_version(self, version: SpecVersion, *, learning: bool) -> None:
        """Refuse what cannot change while windows are open, and a plan that does not fit."""
        assert self.version is not None
        spec, ours, mistakes = version.spec, self.version.spec, []
        if spec.windows != ours.windows:
            mistakes.append("windows cannot be changed during a run; start another run for that")
        if spec.streams != ours.streams:
            mistakes.append("streams cannot be changed during a run; start another run for that")
        if _has_limits(spec) != _has_limits(ours):
            mistakes.append(
                "during a run limits can be changed, but you cannot add the first one or remove the"
                " last one: answers would have other columns; start another run for that"
            )
        mistakes += [
            f"the query {query.name} belongs to another consumer now; give it another name, since"
            " answers for the former consumer may not be delivered yet"
            for query in spec.queries
            if self.consumers.get(query.name, query.consumer) != query.consumer
        ]
        mistakes += self._find_registry_mistakes(spec, learning=learning)
        if mistakes:
            raise SpecificationError([Mistake(message) for message in mistakes])
        version.check()

    def _find_registry_mistakes(self, spec: Specification, *, learning: bool) -> Iterator[str]:
        registry = self.window_state.registered
        names = pa.array(list_subjects(spec.subjects, spec.folder), pa.large_string())
        if len(names):
            gone = int(np.count_nonzero(~np.asarray(pc.is_in(registry, value_set=names))))
            if gone:
                yield (
                    f"{count(gone, 'subject')} would lose their answers: during a run subjects can"
                    " only be added to the registry; start another run for that"
                )
        elif learning:
            return  # checked when the registry is complete
        try:
            check_names(spec, _add_listed(registry, spec))
        except SpecificationError as error:
            yield str(error)

    def check_names(self, offered: SpecVersion | None) -> list[str]:
        """Raise SpecificationError if a private pattern names a subject that is not registered.

        This covers all versions in use and one that is offered. Returns warnings for the operator.
        """
        registry = self.window_state.registered
        found = [
            message
            for spec in ([one.spec for one in self.versions] or [self.compiled.spec])
            for message in check_names(spec, registry)
        ]
        if offered is not None:
            found += check_names(offered.spec, _add_listed(registry, offered.spec))
        return list(dict.fromkeys(found))

    def register(self, names: Sequence[str], since: int) -> None:
        """Add subjects to the registry; they get answers from the window `since` on."""
        self.window_state.register(names, since)
        if self.next is not None:
            window_state = self.next.window_state
            window_state.make_room()
            window_state.since, window_state.order = (
                self.window_state.since.copy(),
                self.window_state.order,
            )

    # From rows to answers

    def columns(self, stream: str) -> tuple[str, ...]:
        """Return the columns of a stream that are read."""
        return tuple(
            dict.fromkeys(
                name for compiled in self._compiled_specs for name in compiled.columns(stream)
            )
        )

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """Return the column types of a source; they are the same for all versions."""
        found = [
            compiled.column_types(stream, source) for compiled in reversed(self._compiled_specs)
        ]
        types = {name: kind for part in found for name, kind in part.types.items()}
        return ColumnTypes(self.compiled.spec.streams[stream], types)

    def extract(self, rows: Rows, *, learn: bool) -> EventBatch:
        """Extract the events from rows of a stream, for each version."""
        batch = self.compiled.extract(rows, self.window_state.subjects, learn=learn)
        if self.next is None:
            return batch
        masks = self.next.compiled.extractors[rows.stream].masks(rows.table)
        both = np.concatenate([batch.masks.dense, masks], axis=1)
        return replace(batch, masks=EventMasks(both))

    def stages(self, batch: EventBatch, *, ahead: bool) -> bool:
        """Return whether presence can be found before tuples are judged."""
        state = self.window_state
        return self.next is None and state.panes.stages(
            batch.masks, len(state.subjects), ahead=ahead
        )

    def stage(self, batch: EventBatch) -> StagedPresence:
        """Find the presence of tuples before they are judged."""
        state = self.window_state
        return state.panes.stage(batch.times, batch.slots, batch.masks, len(state.subjects))

    def insert(self, batch: MergedBatch, verdicts: Verdicts, begin: int, end: int) -> None:
        """Insert the accepted tuples from `begin` to `end`."""
        if self.next is None:
            self.window_state.insert(batch, verdicts, begin, end)
            return
        following, size = self.next, self.window_state.size
        words = len(self.compiled.evaluator.ordered_types)
        masks = batch.masks.dense
        old, new = masks[:, :words], masks[:, words:]
        # Tuples of unregistered subjects are refused; any policy will do for them.
        policies = np.append(self.window_state.policy_numbers(), 0)[np.maximum(batch.slots, 0)]
        new = following.visible(new, batch.times, policies)
        for window_state, own_masks, others in (
            (self.window_state, old, batch.times >= following.boundary * size),
            (following.window_state, new, batch.times < following.begin * size),
        ):
            own = replace(batch, masks=EventMasks(np.ascontiguousarray(own_masks)), staged=None)
            window_state.insert(
                own, Verdicts.of(np.where(others, _NOT_OWN, verdicts.each)), begin, end
            )

    def close(self, first: int, stop: int, most: int | None) -> Iterator[ClosedWindows]:
        """Close windows; each group has one version, and is public-only or not."""
        following = self.next
        middle = stop if following is None else min(stop, max(first, following.boundary))
        for closed in _close(self.window_state, first, middle, self.protected_from, most):
            if following is not None:
                following.skip(closed)
            yield closed
        if following is not None:
            protected_from = following.protected_from
            yield from _close(following.window_state, middle, stop, protected_from, most)

    def price(self, closed: ClosedWindows, claims: Sequence[Claim]) -> NDArray[np.int64]:
        """Return what answering closed windows costs, as `WindowState.price` does."""
        window_state = self._own_state(closed)
        return window_state.price(closed, claims, public_only=self.is_public_only(closed))

    def price_counts(
        self, closed: ClosedWindows, claims: Sequence[Claim]
    ) -> NDArray[np.int64] | None:
        """Return what the counts of the windows that were priced last cost; None without counts."""
        if self.is_public_only(closed):
            return None
        return self._own_state(closed).price_counts(claims)

    def gains(self, closed: ClosedWindows) -> NDArray[np.float64]:
        """Return what the draws of the window that was priced last gain."""
        return self._own_state(closed).gains()

    def policy_numbers(self, closed: ClosedWindows) -> NDArray[np.int32]:
        """Return by slot the number of each subject's policy, in the version of these windows."""
        return self._own_state(closed).policy_numbers()

    def find_memory(self, closed: ClosedWindows) -> Mapping[str, NDArray[Any]]:
        """Return what is remembered under the version of these windows."""
        return self._own_state(closed).memory

    def _own_state(self, closed: ClosedWindows) -> WindowState:
        """Return the state that answers these windows; a new version continues with old memory."""
        following = self._following(closed)
        if following is None:
            return self.window_state
        self._carry_memory(following)
        return following.window_state

    def _carry_memory(self, following: NextVersion) -> None:
        """Give the next version the memory of the old one, as far as it can."""
        state = following.window_state
        if not state.memory and self.window_state.memory:
            assert self.version is not None
            kept = self.version.find_remembered(following.version)
            state.memory = {
                name: array
                for name, array in self.window_state.memory.items()
                if name.partition(".")[0] in kept
            }

    def answer(
        self,
        closed: ClosedWindows,
        exhausted: NDArray[np.bool_] | None = None,
        uncounted: NDArray[np.bool_] | None = None,
    ) -> Answers:
        """Answer closed windows under the version that they belong to."""
        return self._own_state(closed).answer(
            closed, exhausted, uncounted, public_only=self.is_public_only(closed)
        )


def make_window_state(compiled: CompiledSpec, subjects: Subjects) -> WindowState:
    """Create empty windows for these subjects."""
    windows = compiled.spec.windows
    words = len(compiled.evaluator.ordered_types)
    pane = windows.pane
    capacity = choose_capacity(
        pane, windows.lateness, len(subjects) or 10_000, words, windows.panes
    )
    return WindowState(
        compiled.evaluator, compiled.policies, subjects, pane, capacity, windows.panes
    )


def _close(
    window_state: WindowState, first: int, stop: int, protected_from: int, most: int | None
) -> Iterator[ClosedWindows]:
    middle = min(stop, max(first, protected_from))
    yield from window_state.close(first, middle, most)
    yield from window_state.close(middle, stop, most)


def _has_limits(spec: Specification) -> bool:
    return any(private.limit is not None for private in spec.private)


def _add_listed(registry: pa.Array, spec: Specification) -> pa.Array:
    """Return the registry with the subjects that a specification adds."""
    more = pa.array(list_subjects(spec.subjects, spec.folder), pa.large_string())
    return pc.unique(pa.concat_arrays([registry, more]))
