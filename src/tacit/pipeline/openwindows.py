"""Open windows under the version of the specification in use, and under the next one.

After a reload, windows before a boundary are those of the old version, and windows from there on
those of the new one. The boundary is the first window that no tuple has reached, or, where windows
close by the clock, that none can have reached. Until the last old window is closed each tuple is
inserted into the windows of the version that it belongs to.

Where windows slide, the last old windows and the first new ones share panes, and the tuples there
are inserted into both. Only one of the two versions may look at a private event: the new one does
from k panes after the last that the old one looked at, for windows of k panes. So no occurrence
inside one window is answered for by both, and what each version spends on it is all that is spent.
Until then the new version answers from public events and the prior alone.

Public are there only events that were public under the old version too, by their definition and
not by their name. All others come into the new windows from the same pane on as private ones. So an
occurrence that the old version kept private, and of which an old window sees any part, never shows
in a new window, whatever its types are called there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.errors import Mistake, SpecificationError
from tacit.events.columntypes import ColumnTypes
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import EventBatch, MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec, SourceColumns
from tacit.pipeline.definitions import public_before
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.named_subjects import check_names
from tacit.quantities import count
from tacit.spec.specification import Specification
from tacit.spec.subjects import listed
from tacit.windows.clock import NONE, Verdicts
from tacit.windows.panes import ring_capacity

_NOT_OWN: Final = np.uint8(255)
"""In place of a verdict: the tuple was taken, but belongs to the other version's windows."""


@dataclass(frozen=True, slots=True)
class NextVersion:
    """The version that has the windows from `boundary` on."""

    version: SpecVersion
    flow: CompiledSpec
    shard: WindowState
    boundary: int
    public: NDArray[np.uint64]
    """`[old policy][word]`: its event types that show nothing private, by `public_before`."""

    @property
    def begin(self) -> int:
        """The first pane of its first window."""
        return self.boundary - self.version.spec.windows.panes + 1

    @property
    def clear(self) -> int:
        """The first pane that no old window and no window before it shares an occurrence with."""
        return self.boundary + self.version.spec.windows.panes - 1

    @property
    def protected_from(self) -> int:
        """The first of its windows for which private events are looked at."""
        # Where panes are drawn, that is only the window's last; else it is all of its panes.
        all_panes = self.clear + self.version.spec.windows.panes - 1
        return self.clear if self.version.plan.draws_panes else all_panes

    def visible(
        self, masks: NDArray[np.uint64], times: NDArray[np.int64], policies: NDArray[np.int32]
    ) -> NDArray[np.uint64]:
        """What its windows may see of tuples, given the old policy of each one's subject."""
        early = times < self.clear * self.version.spec.windows.pane
        if not early.any():
            return masks
        shown = masks & self.public[policies]
        return np.where(early[:, np.newaxis], shown, masks)

    def skip(self, closed: ClosedWindows) -> None:
        """Keep what its first windows share with some of the last of the old version."""
        first, stop = closed.closed.first, closed.closed.first + len(closed.closed.words)
        for early in self.shard.close(max(first, self.begin), stop):
            self.shard.skip(early)


class OpenWindows:
    """The open windows of all subjects, under one version of the specification or two.

    `version` is None where the specification cannot change: for true answers and for surveys.
    """

    def __init__(
        self, flow: CompiledSpec, shard: WindowState, version: SpecVersion | None = None
    ) -> None:
        self.flow = flow
        self.shard = shard
        self.version = version
        self.next: NextVersion | None = None
        self.consumers = {} if version is None else version.consumers
        """Who asked each query, of all that were ever asked: answers may still be on their way."""
        self.protected_from = NONE
        """The first window for which the version in use looks at private events."""

    @property
    def versions(self) -> list[SpecVersion]:
        """Those in use, the old one first."""
        found = [self.version, None if self.next is None else self.next.version]
        return [version for version in found if version is not None]

    @property
    def capacity(self) -> int:
        """How many panes are held at once."""
        shards = [self.shard, *([] if self.next is None else [self.next.shard])]
        return min(shard.panes.capacity for shard in shards)

    @property
    def _flows(self) -> list[CompiledSpec]:
        return [self.flow, *([] if self.next is None else [self.next.flow])]

    # Versions

    def start_version(self, next_version: NextVersion) -> None:
        """From its boundary on, windows are those of another version."""
        self.next = next_version
        self.consumers = {**self.consumers, **next_version.version.consumers}

    def prepare_version(self, version: SpecVersion, flow: CompiledSpec, begin: int) -> NextVersion:
        """Another version, whose first window begins with this pane."""
        assert self.version is not None
        boundary = begin + version.spec.windows.panes - 1
        shard = make_shard(flow, self.shard.subjects)
        shard.since, shard.settled = self.shard.since.copy(), self.shard.settled
        shard.order = self.shard.order
        public = public_before(self.version.columns, version.columns)
        return NextVersion(version, flow, shard, boundary, public)

    def finish_version(self) -> None:
        """The old version is not needed any more."""
        assert self.next is not None
        done, self.next = self.next, None
        self.version, self.flow, self.shard = done.version, done.flow, done.shard
        self.protected_from = done.protected_from

    def version_of(self, closed: ClosedWindows) -> SpecVersion | None:
        """The version under which these windows are answered."""
        following = self._following(closed)
        return self.version if following is None else following.version

    def is_public_only(self, closed: ClosedWindows) -> bool:
        """Whether these windows are answered from public events and the prior alone."""
        following = self._following(closed)
        since = self.protected_from if following is None else following.protected_from
        return closed.closed.first < since

    def _following(self, closed: ClosedWindows) -> NextVersion | None:
        """The next version, if these windows are under it."""
        following = self.next
        old = following is None or closed.closed.first < following.boundary
        return None if old else following

    def check_version(self, version: SpecVersion, *, learning: bool) -> None:
        """Refuse what cannot change while windows are open, and a plan that does not fit."""
        assert self.version is not None
        spec, ours, mistakes = version.spec, self.version.spec, []
        if spec.windows != ours.windows:
            mistakes.append("windows cannot be changed while it runs; begin another run for that")
        if spec.streams != ours.streams:
            mistakes.append("streams cannot be changed while it runs; begin another run for that")
        if _limited(spec) != _limited(ours):
            mistakes.append(
                "while it runs, limits can be changed, but neither the first added nor the last"
                " taken away: answers would have other columns; begin another run for that"
            )
        mistakes += [
            f"the query {query.name} belongs to another consumer now; give it another name, since"
            " answers to the former one may be on their way"
            for query in spec.queries
            if self.consumers.get(query.name, query.consumer) != query.consumer
        ]
        mistakes += self._find_registry_mistakes(spec, learning=learning)
        if mistakes:
            raise SpecificationError([Mistake(message) for message in mistakes])
        version.check()

    def _find_registry_mistakes(self, spec: Specification, *, learning: bool) -> Iterator[str]:
        registry = self.shard.registered
        names = pa.array(listed(spec.subjects, spec.folder), pa.large_string())
        if len(names):
            gone = int(np.count_nonzero(~np.asarray(pc.is_in(registry, value_set=names))))
            if gone:
                yield (
                    f"{count(gone, 'subject')} would lose their answers: while it runs, subjects"
                    " can only be added to the registry; begin another run for that"
                )
        elif learning:
            return  # it is checked when the registry is complete
        try:
            check_names(spec, _with_listed(registry, spec))
        except SpecificationError as error:
            yield str(error)

    def check_names(self, offered: SpecVersion | None) -> list[str]:
        """Raise SpecificationError if a private pattern names a subject that is not registered.

        This holds for all versions in use and for one that is offered. What else the operator
        should look at comes back.
        """
        registry = self.shard.registered
        found = [
            message
            for spec in ([one.spec for one in self.versions] or [self.flow.spec])
            for message in check_names(spec, registry)
        ]
        if offered is not None:
            found += check_names(offered.spec, _with_listed(registry, offered.spec))
        return list(dict.fromkeys(found))

    def register(self, names: Sequence[str], since: int) -> None:
        """Add subjects to the registry; they have answers from the window `since` on."""
        self.shard.register(names, since)
        if self.next is not None:
            shard = self.next.shard
            shard.make_room()
            shard.since, shard.order = self.shard.since.copy(), self.shard.order

    # From rows to answers

    def columns(self, stream: str) -> tuple[str, ...]:
        """The columns of a stream that are read."""
        return tuple(dict.fromkeys(name for flow in self._flows for name in flow.columns(stream)))

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """The types that the columns of a source get; they are the same for all versions."""
        found = [flow.column_types(stream, source) for flow in reversed(self._flows)]
        types = {name: kind for part in found for name, kind in part.types.items()}
        return ColumnTypes(self.flow.spec.streams[stream], types)

    def extract(self, rows: Rows, *, learn: bool) -> EventBatch:
        """The events that rows of a stream give, by each of the versions."""
        batch = self.flow.extract(rows, self.shard.subjects, learn=learn)
        if self.next is None:
            return batch
        masks = self.next.flow.extractors[rows.stream].masks(rows.table)
        return replace(batch, masks=np.concatenate([batch.masks, masks], axis=1))

    def insert(self, batch: MergedBatch, verdicts: Verdicts, begin: int, end: int) -> None:
        """Insert the tuples from `begin` to `end` that were taken."""
        if self.next is None:
            self.shard.insert(batch, verdicts, begin, end)
            return
        following, size = self.next, self.shard.size
        words = len(self.flow.evaluator.ordered_types)
        old, new = batch.masks[:, :words], batch.masks[:, words:]
        # Tuples of unregistered subjects are not taken; any policy does for them.
        policies = np.append(self.shard.policy_numbers(), 0)[np.maximum(batch.slots, 0)]
        new = following.visible(new, batch.times, policies)
        for shard, masks, others in (
            (self.shard, old, batch.times >= following.boundary * size),
            (following.shard, new, batch.times < following.begin * size),
        ):
            own = replace(batch, masks=np.ascontiguousarray(masks))
            shard.insert(own, Verdicts.of(np.where(others, _NOT_OWN, verdicts.each)), begin, end)

    def close(self, first: int, stop: int, most: int | None) -> Iterator[ClosedWindows]:
        """Close windows; those of two versions, or public-only and others, come apart."""
        following = self.next
        middle = stop if following is None else min(stop, max(first, following.boundary))
        for closed in _close(self.shard, first, middle, self.protected_from, most):
            if following is not None:
                following.skip(closed)
            yield closed
        if following is not None:
            protected_from = following.protected_from
            yield from _close(following.shard, middle, stop, protected_from, most)

    def answer(self, closed: ClosedWindows, exhausted: NDArray[np.bool_] | None = None) -> Answers:
        """The answers of closed windows, by the version that they are under."""
        following = self._following(closed)
        shard = self.shard if following is None else following.shard
        return shard.answer(closed, exhausted, public_only=self.is_public_only(closed))


def make_shard(flow: CompiledSpec, subjects: Subjects) -> WindowState:
    """Windows of these subjects, all empty."""
    windows = flow.spec.windows
    words = len(flow.evaluator.ordered_types)
    pane = windows.pane
    capacity = ring_capacity(pane, windows.lateness, len(subjects) or 10_000, words, windows.panes)
    return WindowState(flow.evaluator, flow.policies, subjects, pane, capacity, windows.panes)


def _close(
    shard: WindowState, first: int, stop: int, protected_from: int, most: int | None
) -> Iterator[ClosedWindows]:
    middle = min(stop, max(first, protected_from))
    yield from shard.close(first, middle, most)
    yield from shard.close(middle, stop, most)


def _limited(spec: Specification) -> bool:
    return any(private.limit is not None for private in spec.private)


def _with_listed(registry: pa.Array, spec: Specification) -> pa.Array:
    """The registry with the subjects that a specification adds to it."""
    more = pa.array(listed(spec.subjects, spec.folder), pa.large_string())
    return pc.unique(pa.concat_arrays([registry, more]))
