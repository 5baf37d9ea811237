"""An engine whose terms can change while it runs: from one window on, none lost, none twice.

There is one clock, so tuples are judged as by one engine whatever its terms. Windows before a
boundary, the first window that no tuple has reached (or, where windows close by the clock, can
have reached), are those of the old terms; from there on they are those of the new ones. Until
the last of the old windows is closed there are two shards, and each tuple is laid into the one
that has its window.

Where windows slide, the last of the old ones and the first of the new ones share panes, and
their tuples are laid into both. Private events are looked at by one of the two only: by the new
terms from k panes after the last that the old terms looked at, for windows of k panes. So no
occurrence inside one window is told by both, and what each of them spends on it is all that is
spent. Until then the new terms answer from public events and the prior alone.

Public are there only events that were public under the old terms too, by their definition and
not by their name. All others come into the new windows from the same pane on as private ones. So
an occurrence that the old terms kept private, and of which an old window sees any part, never
shows in a new window, whatever its types are called there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.counting import count
from tacit.engines.definitions import public_before
from tacit.engines.local import Input
from tacit.engines.terms import Terms
from tacit.errors import Mistake, SpecificationError, StateError
from tacit.events.columntypes import ColumnTypes
from tacit.events.subjects import Subjects
from tacit.pipeline.arrivals import Arrivals, Rows
from tacit.pipeline.engine import Engine, Refused
from tacit.pipeline.flow import Flow, SourceColumns
from tacit.pipeline.shard import Handed, Shard
from tacit.privacy.naming import check_names
from tacit.privacy.noise import Noise
from tacit.spec.specification import Specification
from tacit.spec.subjects import listed
from tacit.windows.clock import NONE, Verdicts

_FORMAT: Final = 2
_ANOTHERS: Final = np.uint8(255)
"""In place of a verdict: the tuple was taken, but into the other's windows."""


@dataclass(frozen=True, slots=True)
class Heir:
    """Who has the windows from `boundary` on; of its engine only flow and shard are used."""

    terms: Terms
    engine: Engine
    boundary: int
    public: NDArray[np.uint64]
    """`[old policy][word]`: its event types that show nothing private, by `public_before`."""

    @property
    def begin(self) -> int:
        """The first pane of its first window."""
        return self.boundary - self.terms.spec.windows.panes + 1

    @property
    def clear(self) -> int:
        """The first pane that no old window and no window before it shares an occurrence with."""
        return self.boundary + self.terms.spec.windows.panes - 1

    @property
    def sighted(self) -> int:
        """The first of its windows for which private events are looked at."""
        # Where panes are drawn, that is only the window's last; else it is all of its panes.
        all_panes = self.clear + self.terms.spec.windows.panes - 1
        return self.clear if self.terms.plan.draws_panes else all_panes

    def masks(
        self, masks: NDArray[np.uint64], times: NDArray[np.int64], policies: NDArray[np.int32]
    ) -> NDArray[np.uint64]:
        """What its windows may see of tuples, given the old policy of each one's subject."""
        early = times < self.clear * self.terms.spec.windows.pane
        if not early.any():
            return masks
        shown = masks & self.public[policies]
        return np.where(early[:, np.newaxis], shown, masks)

    def pass_over(self, handed: Handed) -> None:
        """Keep what its first windows share with some of the last of the old terms."""
        first, stop = handed.closed.first, handed.closed.first + len(handed.closed.words)
        for early in self.engine.shard.close(max(first, self.begin), stop):
            self.engine.shard.pass_over(early)


class Succession(Engine):
    """An engine that can be given new terms.

    What is offered is taken up at the next `turn`, for which nothing must be on its way between
    `extract` and `hand`: whoever runs it stops reading where `due`, turns it, and reads on, since
    other columns may be wanted.
    """

    def __init__(
        self,
        terms: Terms,
        flow: Flow,
        subjects: Subjects,
        *,
        noise: Noise,
        learn: int = 0,
        refused: Callable[[Refused], None] | None = None,
        ticking: bool = False,
    ) -> None:
        terms.check()
        super().__init__(flow, subjects, learn=learn, refused=refused, ticking=ticking)
        self.terms = terms
        self.consumers = terms.consumers
        """Who asked each query, of all that were ever asked: answers may still be on their way."""
        self.heir: Heir | None = None
        self._sighted = NONE
        """The first window for which the terms in use look at private events."""
        self._noise = noise
        self._offered: Terms | None = None

    # Taking up new terms

    def offer(self, terms: Terms) -> None:
        """New terms, to be taken up as soon as may be; raises where they cannot be."""
        self.check(terms)
        self._offered = terms

    @property
    def due(self) -> bool:
        """Whether `turn` would do anything."""
        waiting = self.heir is None and self._offered is not None and not self.learning
        return self._passed or waiting

    def turn(self) -> None:
        """Take the next step: give up the old terms, or begin to take up the new ones."""
        if not self.due:
            return
        if self.heir is not None:
            self._settle(self.heir)
        elif self._offered is not None:
            terms, self._offered = self._offered, None
            self._begin(terms)

    @property
    def crossing(self) -> bool:
        """Whether the last window of the old terms has been handed on, and the old terms not yet
        given up: what is handed on next is under other terms.
        """
        return self.heir is not None and self.clock.next_window >= self.heir.boundary

    @property
    def _passed(self) -> bool:
        """Whether the old terms are not needed any more: no open pane has anything to hide."""
        return self.heir is not None and self.clock.next_window >= self.heir.clear

    @property
    def latest(self) -> Terms:
        """The terms that were given last."""
        return self._offered or (self.terms if self.heir is None else self.heir.terms)

    def terms_of(self, handed: Handed) -> Terms:
        """The terms by which these windows are answered."""
        return self.terms if self.heir is None or self._old(handed) else self.heir.terms

    def blind(self, handed: Handed) -> bool:
        """Whether these windows are answered from public events and the prior alone."""
        return handed.closed.first < self._sighted_of(handed)

    def columns(self, stream: str) -> tuple[str, ...]:
        """The columns of a stream that are read."""
        flows = [self.flow, *([] if self.heir is None else [self.heir.engine.flow])]
        return tuple(dict.fromkeys(name for flow in flows for name in flow.columns(stream)))

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """The types that the columns of a source get; they are the same for all terms in use."""
        flows = [self.flow] if self.heir is None else [self.heir.engine.flow, self.flow]
        found = [flow.column_types(stream, source) for flow in flows]
        types = {name: kind for part in found for name, kind in part.types.items()}
        return ColumnTypes(self.flow.spec.streams[stream], types)

    def check_sources(self, terms: Terms, inputs: Sequence[Input]) -> Flow:
        """What the terms ask for; raises SchemaError where these sources do not have it."""
        flow = terms.flow(self._noise)
        flow.check([(one.stream, flow.schema(one.stream, one.source)) for one in inputs])
        return flow

    def _begin(self, terms: Terms) -> None:
        begin = self._unreached()
        if terms.digest != self.terms.digest:
            boundary = begin + terms.spec.windows.panes - 1
            engine = Engine(terms.flow(self._noise), self.subjects)
            heir = Heir(terms, engine, boundary, public_before(self.terms.columns, terms.columns))
            shard = heir.engine.shard
            shard.since, shard.settled = self.shard.since.copy(), self.shard.settled
            shard.order = self.shard.order
            self._take_over(heir)
        names = listed(terms.spec.subjects, terms.spec.folder)
        if names:
            self._register(names, begin)
        if self.heir is not None and self._passed:  # no window of the old terms is open
            self._settle(self.heir)

    def _take_over(self, heir: Heir) -> None:
        self.heir = heir
        self.consumers = {**self.consumers, **heir.terms.consumers}
        held = min(self.shard.panes.capacity, heir.engine.shard.panes.capacity)
        self.clock = replace(self.clock, capacity=held)

    def _settle(self, heir: Heir) -> None:
        self.terms, self.heir, self._sighted = heir.terms, None, heir.sighted
        self.flow, self.shard = heir.engine.flow, heir.engine.shard
        self.clock = replace(self.clock, capacity=self.shard.panes.capacity)

    def _unreached(self) -> int:
        """The first pane that no tuple has reached; by the clock, that none can have reached."""
        return self.clock.reachable if self.clock.ticking else self.clock.ended

    def check_names(self) -> None:
        """The same for all terms that windows are answered by, and for those that are offered."""
        registry, found = self.shard.registered, list[str]()
        for terms in (self.terms, *([] if self.heir is None else [self.heir.terms])):
            found += check_names(terms.spec, registry)
        if self._offered is not None:
            spec = self._offered.spec
            found += check_names(spec, _with_listed(registry, spec))
        self.warnings = list(dict.fromkeys(found))
        self._named = True

    def check(self, terms: Terms) -> None:
        """Refuse what cannot change while windows are open, and a plan that does not fit."""
        spec, ours, mistakes = terms.spec, self.terms.spec, []
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
        mistakes += self._wrong_registry(spec)
        if mistakes:
            raise SpecificationError([Mistake(message) for message in mistakes])
        terms.check()

    def _wrong_registry(self, spec: Specification) -> Iterator[str]:
        registry = self.shard.registered
        names = pa.array(listed(spec.subjects, spec.folder), pa.large_string())
        if len(names):
            gone = int(np.count_nonzero(~np.asarray(pc.is_in(registry, value_set=names))))
            if gone:
                yield (
                    f"{count(gone, 'subject')} would lose their answers: while it runs, subjects"
                    " can only be added to the registry; begin another run for that"
                )
        elif self.learning:
            return  # it is checked when the registry is complete
        try:
            check_names(spec, _with_listed(registry, spec))
        except SpecificationError as error:
            yield str(error)

    # What an engine does, for both

    def extract(self, rows: Rows) -> Arrivals:
        """The events that rows of a stream give; with an heir, also those by the new terms."""
        arrivals, heir = super().extract(rows), self.heir
        if heir is None:
            return arrivals
        masks = heir.engine.flow.extractors[rows.stream].masks(rows.table)
        return replace(arrivals, masks=np.concatenate([arrivals.masks, masks], axis=1))

    def answer(self, handed: Handed, exhausted: NDArray[np.bool_] | None = None) -> Answers:
        """The answers of windows that were handed on, by the terms that they are under."""
        old = self.heir is None or self._old(handed)
        shard = self.shard if self.heir is None or old else self.heir.engine.shard
        return shard.answer(handed, exhausted, blind=self.blind(handed))

    def register(self, names: Sequence[str]) -> None:
        """Add subjects to the registry; they have answers from the next window on."""
        self._register(names, self.clock.ended)

    def _register(self, names: Sequence[str], since: int) -> None:
        self.shard.register(names, since)
        if self.heir is not None:
            shard = self.heir.engine.shard
            shard.make_room()
            shard.since, shard.order = self.shard.since.copy(), self.shard.order

    def _old(self, handed: Handed) -> bool:
        return self.heir is None or handed.closed.first < self.heir.boundary

    def _sighted_of(self, handed: Handed) -> int:
        return self._sighted if self.heir is None or self._old(handed) else self.heir.sighted

    def _lay(self, arrivals: Arrivals, verdicts: Verdicts, begin: int, end: int) -> None:
        if self.heir is None:
            super()._lay(arrivals, verdicts, begin, end)
            return
        heir, size = self.heir, self.clock.size
        words = len(self.flow.asking.ordered_types)
        old, new = arrivals.masks[:, :words], arrivals.masks[:, words:]
        # Tuples of nobody known are not taken; any policy does for them.
        policies = np.append(self.shard.policy_numbers(), 0)[np.maximum(arrivals.slots, 0)]
        new = heir.masks(new, arrivals.times, policies)
        for shard, masks, others in (
            (self.shard, old, arrivals.times >= heir.boundary * size),
            (heir.engine.shard, new, arrivals.times < heir.begin * size),
        ):
            own = replace(arrivals, masks=np.ascontiguousarray(masks))
            shard.lay(own, Verdicts.of(np.where(others, _ANOTHERS, verdicts.each)), begin, end)

    def _shut(self, first: int, stop: int) -> Iterator[Handed]:
        heir = self.heir
        middle = stop if heir is None else min(stop, max(first, heir.boundary))
        for handed in self._cut(self.shard, first, middle, self._sighted):
            if heir is not None:
                heir.pass_over(handed)
            yield handed
        if heir is not None:
            yield from self._cut(heir.engine.shard, middle, stop, heir.sighted)

    def _cut(self, shard: Shard, first: int, stop: int, sighted: int) -> Iterator[Handed]:
        """Close windows; those that are blind and others are not handed on together."""
        middle = min(stop, max(first, sighted))
        yield from shard.close(first, middle, self.most_windows)
        yield from shard.close(middle, stop, self.most_windows)

    # State

    def snapshot(self) -> bytes:
        """The whole state as bytes, the terms included: they may be gone when it is restored."""
        parts = [self.terms.packed, super().snapshot()]
        if self.heir is not None:
            parts += [self.heir.terms.packed, self.heir.engine.snapshot()]
        head = {
            "succession": _FORMAT,
            "boundary": None if self.heir is None else self.heir.boundary,
            "sighted": self._sighted,
            "consumers": self.consumers,
            "sizes": [len(part) for part in parts],
        }
        return b"".join([json.dumps(head).encode(), b"\n", *parts])

    def restore(self, snapshot: bytes) -> None:
        """Take up a state, under the terms that it was made with.

        If these are not the ones that this engine was made with, those are offered to it.
        """
        head, parts = _unpacked(snapshot)
        wanted, noise = self.terms, self._noise
        given, *heirs = [wanted.or_unpacked(packed) for packed in parts[::2]]
        if given is not wanted:
            most = self.most_windows
            super().__init__(
                given.flow(noise),
                Subjects(),
                refused=self.refused,
                ticking=self.clock.ticking,
            )
            self.terms, self.most_windows = given, most
        super().restore(parts[1])
        self.heir, self._offered = None, None
        self.consumers = head["consumers"]
        self._sighted = int(head["sighted"])
        for terms in heirs:
            engine = Engine(terms.flow(noise), Subjects())
            engine.restore(parts[3])
            engine.shard.subjects = self.subjects
            public = public_before(self.terms.columns, terms.columns)
            self._take_over(Heir(terms, engine, int(head["boundary"]), public))
        if self.latest is not wanted:
            self.offer(wanted)


def _limited(spec: Specification) -> bool:
    return any(private.limit is not None for private in spec.private)


def _with_listed(registry: pa.Array, spec: Specification) -> pa.Array:
    """The registry with those whom a specification adds to it."""
    more = pa.array(listed(spec.subjects, spec.folder), pa.large_string())
    return pa.concat_arrays([registry, more])


def _unpacked(snapshot: bytes) -> tuple[dict[str, Any], list[bytes]]:
    line, _, rest = snapshot.partition(b"\n")
    try:
        head = json.loads(line)
        if head["succession"] != _FORMAT or sum(head["sizes"]) != len(rest):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            "this is not a checkpoint of an engine, or it is damaged, or of another version"
        ) from error
    ends = np.cumsum([0, *head["sizes"]]).tolist()
    return head, [rest[begin:end] for begin, end in pairwise(ends)]
