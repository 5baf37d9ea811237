"""The engine on this machine: sources in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tacit.answers.answers import Answers, schema
from tacit.answers.collected import Collected
from tacit.connectors.deadletters import DeadLetters
from tacit.connectors.files import STANDARD_INPUT, open_source
from tacit.connectors.frames import FrameSource
from tacit.connectors.merge import Timed, merge
from tacit.connectors.prefetch import prefetch
from tacit.connectors.sources import Batch, EmptySourceError, Source
from tacit.counting import count
from tacit.errors import Mistake, SourceError, SpecificationError, nearest
from tacit.events.columntypes import column_type, infer_type
from tacit.events.streams import ColumnType
from tacit.events.subjects import Subjects, subject_kind
from tacit.pipeline.arrivals import Arrivals, Rows
from tacit.pipeline.asking import Asking
from tacit.pipeline.engine import Engine, Refused
from tacit.pipeline.flow import Flow
from tacit.pipeline.release import Release
from tacit.pipeline.surveying import Surveying
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan, plan_without_history
from tacit.planning.survey import Statistics
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.columntypes import RecordedTypes
from tacit.spec.reading import load
from tacit.spec.specification import Specification
from tacit.spec.subjects import Learned, SubjectFile
from tacit.windows.clock import REASONS

_AHEAD: Final = 2
_STRETCH: Final = 10
"""Windows from which the subjects of a flow are learned where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Input:
    """A source of tuples for a stream."""

    stream: str
    source: Source


def rows_of(input_: Input, batch: Batch) -> Rows:
    """The rows of a batch as the engine takes them."""
    return Rows(input_.stream, batch.table, batch.source, batch.first_row, batch.places, batch.raw)


class Detection:
    """A run over sources: iterate over it for the answers as windows close.

    They are true and unprotected, unless something else is made of windows by `asking`. When
    everything is checked, `snapshot` is asked for the state of an engine to go on from; where it
    has none, a new one is begun.
    """

    def __init__(
        self,
        spec: Specification,
        inputs: Sequence[Input],
        *,
        asking: Asking | None = None,
        dead_letters: DeadLetters | None = None,
        progress: Callable[[Source, int], None] | None = None,
        snapshot: Callable[[], bytes | None] | None = None,
        engine: Callable[..., Engine] = Engine,
        recorded: RecordedTypes | None = None,
    ) -> None:
        _check_fed(spec, inputs)
        self.spec = spec
        self.inputs = _with_content(inputs)
        self.dead_letters = dead_letters or DeadLetters()
        self.unreadable = 0
        """Lines that could not be read."""
        self._progress = progress
        self.flow = Flow(spec, asking, recorded)
        self.flow.check(
            [(one.stream, self.flow.schema(one.stream, one.source)) for one in self.inputs]
        )
        self.engine = self._engine(snapshot() if snapshot is not None else None, engine)

    def _engine(self, snapshot: bytes | None, make: Callable[..., Engine]) -> Engine:
        """A new engine, or one that goes on from a snapshot.

        Subjects that were added to a list since then have answers from the next window on.
        """
        # History and files are replayed: they go by event time, however late it is.
        live = all(input_.source.live for input_ in self.inputs)
        ticking = live and self.spec.windows.close == "clock"
        if snapshot is None:
            registry, learn = self._registry()
            return make(self.flow, registry, learn=learn, refused=self._refused, ticking=ticking)
        engine = make(self.flow, Subjects("text"), refused=self._refused, ticking=ticking)
        engine.restore(snapshot)
        listed = self._listed()
        if listed:
            engine.register(listed)
        return engine

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answers."""
        protected = isinstance(self.flow.asking, Release)
        kind, private = self.engine.subjects.names.type, self.flow.asking.private
        return schema(kind, protected=protected, private=private)

    def __iter__(self) -> Iterator[Answers]:
        flows = [self._extracted(input_) for input_ in self.inputs]
        for merged in merge(flows, self.spec.windows.future):
            slots, masks = merged.columns
            yield from self.engine.take(
                Arrivals(slots, merged.times, masks, merged.origins, merged.part, merged.row)
            )
        yield from self.engine.finish()

    def _extracted(self, input_: Input) -> Iterator[Timed]:
        """A source's tuples as events, worked out in a thread while others are laid.

        While subjects are learned the registry changes, so that only one thread may use it.
        """
        return prefetch(self._extract(input_), 0 if self.engine.learning else _AHEAD)

    def _extract(self, input_: Input) -> Iterator[Timed]:
        for batch in self.batches(input_):
            rows = rows_of(input_, batch)
            events = self.engine.extract(rows)
            yield Timed(events.times, (events.slots, events.masks), rows, events.slots)

    def batches(self, input_: Input, known: int = 0) -> Iterator[Batch]:
        """A source's rows; lines that cannot be read are dead letters.

        What was rejected among the first `known` rows was reported before.
        """
        stream = self.spec.streams[input_.stream]
        columns = self.engine.columns(input_.stream)
        types = self.engine.column_types(input_.stream, input_.source)
        for batch in input_.source.batches(columns, [stream.subject], types):
            rows = batch.table.num_rows
            known -= rows
            if batch.rejected and (known < 0 or known == rows == 0):
                self.unreadable += len(batch.rejected)
                self.dead_letters.lines(input_.stream, batch.source, batch.rejected)
            yield batch
            if self._progress is not None:
                self._progress(input_.source, batch.position)

    def _refused(self, refused: Refused) -> None:
        subject = self.spec.streams[refused.rows.stream].subject
        for reason in np.unique(refused.reasons):
            chosen = refused.reasons == reason
            self.dead_letters.rows(
                refused.rows,
                refused.chosen[chosen],
                REASONS[int(reason)],
                refused.times[chosen],
                subject,
            )

    def _registry(self) -> tuple[Subjects, int]:
        """The registry, and how long to learn it from the stream.

        Where nothing is said, subjects are learned from the whole input if it can be read
        twice, else from the first windows.
        """
        given, listed = self.spec.subjects, self._listed()
        subjects = Subjects(self._kind(listed))
        passing = any(input_.source.once or input_.source.live for input_ in self.inputs)
        if given is None and not passing:
            # In order of name, since the order of arrival is nobody's business.
            return _sorted(self._all_subjects(subjects)), 0
        if given is None or isinstance(given, Learned):
            return subjects, given.learn if given else _STRETCH * self.spec.windows.size
        subjects.add(listed)
        return subjects, 0

    def _listed(self) -> Sequence[Any]:
        """The subjects that the specification lists, all names or all numbers."""
        given = self.spec.subjects
        if isinstance(given, SubjectFile):
            return given.read(self.spec.folder)
        return given if isinstance(given, tuple) else ()

    def _all_subjects(self, subjects: Subjects) -> Subjects:
        """Whoever occurs in the input."""
        for input_ in self.inputs:
            subject = self.spec.streams[input_.stream].subject
            for batch in input_.source.batches([subject], [subject]):
                subjects.learn(batch.table.column(subject))
        return subjects

    def _kind(self, listed: Sequence[str | int]) -> Literal["int", "text"]:
        """Whole numbers only if all subjects are, in the registry and in the sources."""
        columns = [
            self.flow.schema(one.stream, one.source)
            .field(self.spec.streams[one.stream].subject)
            .type
            for one in self.inputs
        ]
        if listed and isinstance(listed[0], str):  # a registry is all of one kind
            return "text"
        return subject_kind(*columns) if columns else "text"


def survey(
    spec: Specification,
    inputs: Sequence[Input],
    *,
    literal: bool,
    progress: Callable[[Source, int], None] | None = None,
) -> list[Statistics]:
    """What the history in these sources says, for each policy of the specification.

    The types of columns that nothing else shows are inferred from history, and recorded.
    """
    asking = Surveying(spec, literal=literal)
    recorded = history_types(Flow(spec, asking), inputs)
    run = Detection(spec, inputs, asking=asking, progress=progress, recorded=recorded)
    for answers in run:
        asking.count(answers, asking.policies.of(run.engine.subjects))
    return [replace(found, columns=recorded) for found in asking.statistics()]


def history_types(flow: Flow, inputs: Sequence[Input]) -> dict[str, dict[str, ColumnType]]:
    """The types of columns in history, for a plan to record; the first source of each counts."""
    found: dict[str, dict[str, ColumnType]] = {stream: {} for stream in flow.spec.streams}
    for input_ in inputs:
        with suppress(EmptySourceError):
            types = found[input_.stream]
            types |= _source_types(flow, input_) | types
    return found


def _source_types(flow: Flow, input_: Input) -> dict[str, ColumnType]:
    source, stream = input_.source, input_.stream
    columns, schema = flow.columns(stream), source.schema()
    if not source.textual:
        known = pl.DataFrame(schema.empty_table()).schema
        return {name: column_type(known[name]) for name in columns if name in known}
    resolved = [flow.types.resolve(stream, name, source.declared_types()) for name in columns]
    types = {one.column: one.type for one in resolved if one.type is not None}
    unknown = [one.column for one in resolved if one.type is None]
    if unknown and not source.once and (source.keyed or set(unknown) <= set(schema.names)):
        first = next(source.batches(unknown), None)
        frame = pl.DataFrame() if first is None else pl.DataFrame(first.table)
        types |= {
            name: infer_type(frame[name], flow.spec.streams[stream]) for name in frame.columns
        }
    return types


def protected(
    spec: Specification,
    inputs: Sequence[Input],
    plan: Plan,
    *,
    noise: Noise | None = None,
    dead_letters: DeadLetters | None = None,
    progress: Callable[[Source, int], None] | None = None,
    snapshot: Callable[[], bytes | None] | None = None,
    engine: Callable[..., Engine] = Engine,
) -> Detection:
    """A run over sources whose answers are protected by a plan for this specification.

    Only the registry may be another. A subject that private patterns name and that a given
    registry does not have is an error: it would be left unprotected under its right name.
    """
    plan.insist(spec)
    release = Release(spec, plan.schemes, noise or Noise())
    run = Detection(
        spec,
        inputs,
        asking=release,
        dead_letters=dead_letters,
        progress=progress,
        snapshot=snapshot,
        engine=engine,
        recorded=plan.columns,
    )
    strangers = run.flow.policies.strangers(run.engine.subjects)
    if strangers and isinstance(spec.subjects, tuple | SubjectFile):
        raise SpecificationError(
            [
                Mistake(
                    f"private patterns name {count(len(strangers), 'subject')} that "
                    f"{'is' if len(strangers) == 1 else 'are'} not registered, such as "
                    f"'{strangers[0]}'; write the names as the registry has them"
                )
            ]
        )
    return run


def assign(spec: Specification, sources: Sequence[tuple[str | None, Source]]) -> list[Input]:
    """Which source feeds which stream; a source without a name feeds the only stream."""
    inputs = []
    for stream, source in sources:
        if stream is None and len(spec.streams) > 1:
            raise SourceError(
                f"{source.name}: which of the streams {', '.join(spec.streams)} is this? "
                f"Write stream={source.name}"
            )
        name = next(iter(spec.streams)) if stream is None else stream
        if name not in spec.streams:
            raise SourceError(f"no stream is called '{name}'.{nearest(name, list(spec.streams))}")
        inputs.append(Input(name, source))
    return inputs


def _sorted(subjects: Subjects) -> Subjects:
    """The same subjects in order of name."""
    ordered = Subjects("int" if pa.types.is_integer(subjects.names.type) else "text")
    ordered.add(subjects.names.take(pc.sort_indices(subjects.names)))
    return ordered


def _check_fed(spec: Specification, inputs: Sequence[Input]) -> None:
    """Refuse a run in which the events of a stream could never come."""
    given = [input_.stream for input_ in inputs]
    missing = [stream for stream in spec.streams if stream not in given]
    if missing:
        raise SourceError(
            f"no source is given for {', '.join(missing)}; write {missing[0]}=SOURCE for it"
        )
    if sum(input_.source.name == STANDARD_INPUT for input_ in inputs) > 1:
        raise SourceError("standard input can feed only one stream")


def _with_content(inputs: Sequence[Input]) -> list[Input]:
    """The inputs without empty ones; if all of them are, that is an error."""
    full = []
    for input_ in inputs:
        with suppress(EmptySourceError):
            input_.source.schema()
            full.append(input_)
    if inputs and not full:
        inputs[0].source.schema()
    return full


def detect(spec: Specification | str | PathLike[str], *sources: Any, **streams: Any) -> Collected:
    """The true, unprotected answers for frames or files; name the streams if there are several.

    A specification may be given as the path of its file. A source is a frame (Polars, pandas,
    Arrow), an iterator of frames, or a path.
    """
    spec = _loaded(spec)
    run = Detection(spec, _inputs(spec, sources, streams))
    answers = list(run)
    return Collected(answers, run.schema, run.flow.names, protected=False)


def plan(
    spec: Specification | str | PathLike[str],
    *history: Any,
    mechanism: str | None = None,
    decode: str | None = None,
    prior: Mapping[str, float] | None = None,
    **streams: Any,
) -> Plan:
    """The best plan for a specification, from history: frames or files, as for `detect`.

    Instead of history, a `prior` may say how likely each event type is in a window.
    """
    spec = _loaded(spec)
    if not history and not streams:
        return plan_without_history(spec, mechanism, decode, prior)
    literal = (decode or spec.decode) == "literal"
    statistics = survey(spec, _inputs(spec, history, streams), literal=literal)
    return make_plan(spec, statistics, mechanism, decode)


def run(
    spec: Specification | str | PathLike[str],
    *sources: Any,
    plan: Plan | str | PathLike[str] | None = None,
    seed: int | None = None,
    **streams: Any,
) -> Collected:
    """The protected answers for frames or files, as for `detect`, by a plan.

    Each call draws new noise, and so spends each private pattern's epsilon once more for every
    window. With a `seed` answers can be made again, and are not private.
    """
    spec = _loaded(spec)
    if plan is None:
        plan = plan_without_history(spec)
    elif not isinstance(plan, Plan):
        plan = Plan.load(plan, spec)
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    guarded = protected(spec, _inputs(spec, sources, streams), plan, noise=noise)
    answers = list(guarded)
    return Collected(answers, guarded.schema, guarded.flow.names, protected=noise.private)


def _loaded(spec: Specification | str | PathLike[str]) -> Specification:
    return spec if isinstance(spec, Specification) else load(spec)


def _inputs(spec: Specification, sources: Sequence[Any], streams: Mapping[str, Any]) -> list[Input]:
    given = [(None, source) for source in sources] + list(streams.items())
    opened = [(stream, _source(source, stream or "frame")) for stream, source in given]
    return assign(spec, opened)


def _source(given: Any, name: str) -> Source:
    if isinstance(given, Source):
        return given
    return open_source(given) if isinstance(given, str | PathLike) else FrameSource(given, name)
