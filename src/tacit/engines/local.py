"""The engine on this machine: sources in, answers out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tacit.answers.answers import Answers, schema
from tacit.answers.collected import Collected
from tacit.connectors.confirmation import confirmed
from tacit.connectors.deadletters import DeadLetters
from tacit.connectors.files import STANDARD_INPUT
from tacit.connectors.frames import FrameSource
from tacit.connectors.merge import Timed, merge
from tacit.connectors.opening import open_input, open_sink
from tacit.connectors.prefetch import prefetch
from tacit.connectors.sinks import CallableSink, Sink
from tacit.connectors.sources import Batch, EmptySourceError, Source
from tacit.engines.refusals import Refusals
from tacit.engines.setup import (
    RETAIN,
    LedgerOptions,
    chosen_plan,
    letters_beside,
    refuse_overwrite,
    with_registry,
)
from tacit.errors import OptionError, SourceError, nearest
from tacit.events.columntypes import column_type, infer_type
from tacit.events.streams import ColumnType
from tacit.events.subjects import Subjects
from tacit.options import command, option
from tacit.pipeline.arrivals import Arrivals, Rows
from tacit.pipeline.asking import Asking
from tacit.pipeline.engine import Engine, Refused
from tacit.pipeline.flow import Flow
from tacit.pipeline.release import Release
from tacit.pipeline.surveying import Surveying
from tacit.planning.plan import Plan
from tacit.planning.planner import MECHANISMS, Least, make_plan, plan_without_history
from tacit.planning.planner import least_epsilon as least
from tacit.planning.requirements import DECLARED, read_prior, required_qualities
from tacit.planning.survey import Statistics
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.columntypes import RecordedTypes
from tacit.spec.reading import load
from tacit.spec.specification import Specification
from tacit.spec.subjects import Learned, SubjectFile, listed
from tacit.windows.clock import REASONS, TAKEN

Place: TypeAlias = str | PathLike[str]
SpecSource: TypeAlias = Specification | str | PathLike[str]
"""A specification, or the path of its file."""
Target: TypeAlias = str | PathLike[str] | Callable[[pa.Table], None]
"""Where answers go: a path or URL, or a function that gets them as Arrow tables."""
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
        known = self.flow.asking.protects or isinstance(spec.subjects, SubjectFile)
        if known and not self.engine.learning:
            self.engine.check_names()

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
        engine = make(self.flow, Subjects(), refused=self._refused, ticking=ticking)
        engine.restore(snapshot)
        names = listed(self.spec.subjects, self.spec.folder)
        if names:
            engine.register(names)
        return engine

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answers."""
        protected = isinstance(self.flow.asking, Release)
        return schema(protected=protected, private=self.flow.asking.private)

    def __iter__(self) -> Iterator[Answers]:
        flows = [self._extracted(input_) for input_ in self.inputs]
        for merged in merge(flows, self.spec.windows.jumps[1]):
            (masks,) = merged.columns
            yield from self.engine.take(
                Arrivals(merged.slots, merged.times, masks, merged.origins, merged.part, merged.row)
            )
        yield from self.engine.finish()

    def _extracted(self, input_: Input) -> Iterator[Timed]:
        """A source's tuples as events, worked out in a thread while others are laid.

        While subjects are learned the registry changes, so that only one thread may use it.
        """
        flow, jumps = self._extract(input_), self.engine.jumps
        if jumps is not None:
            flow = confirmed(flow, jumps)
        return prefetch(flow, 0 if self.engine.learning else _AHEAD)

    def _extract(self, input_: Input) -> Iterator[Timed]:
        for batch in self.batches(input_):
            rows = rows_of(input_, batch)
            events = self.engine.extract(rows)
            yield Timed(events.times, events.slots, (events.masks,), rows)

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

    @property
    def refusals(self) -> Refusals:
        """How much of the input was refused, and why."""
        counts = self.engine.counts.tolist()
        reasons = {reason: counts[code] for code, reason in REASONS.items() if counts[code]}
        for (_, reason), times in self.dead_letters.counts.items():
            if reason not in REASONS.values():  # lines that could not be read
                reasons[reason] = reasons.get(reason, 0) + times
        return Refusals(counts[TAKEN], reasons)

    def _registry(self) -> tuple[Subjects, int]:
        """The registry, and how long to learn it from the stream.

        Where nothing is said, subjects are learned from the whole input if it can be read
        twice, else from the first windows.
        """
        given, subjects = self.spec.subjects, Subjects()
        passing = any(input_.source.once or input_.source.live for input_ in self.inputs)
        if given is None and not passing:
            return all_subjects(self.flow, self.inputs), 0
        if given is None or isinstance(given, Learned):
            return subjects, given.learn if given else _STRETCH * self.spec.windows.size
        subjects.add(listed(given, self.spec.folder))
        return subjects, 0


def survey(
    spec: Specification,
    inputs: Sequence[Input],
    *,
    literal: bool,
    progress: Callable[[Source, int], None] | None = None,
    refusals: Callable[[Refusals], None] = Refusals.warn,
) -> list[Statistics]:
    """What the history in these sources says, for each policy of the specification.

    The types of columns that nothing else shows are inferred from history, and recorded.
    `refusals` is called with what was refused, when all is read.
    """
    asking = Surveying(spec, literal=literal)
    recorded = history_types(Flow(spec, asking), inputs)
    run = Detection(spec, inputs, asking=asking, progress=progress, recorded=recorded)
    for answers in run:
        asking.count(answers, asking.policies.of(run.engine.subjects))
    refusals(run.refusals)
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

    Only the registry may be another. Raises SpecificationError where the registry lacks a subject
    that private patterns name; where it is learned, that is raised when it is complete, before
    the first answer.
    """
    plan.insist(spec)
    release = Release(spec, plan.schemes, noise or Noise())
    return Detection(
        spec,
        inputs,
        asking=release,
        dead_letters=dead_letters,
        progress=progress,
        snapshot=snapshot,
        engine=engine,
        recorded=plan.columns,
    )


def assign(spec: Specification, sources: Sequence[tuple[str | None, Source]]) -> list[Input]:
    """Which source feeds which stream; a source without a name feeds the only stream."""
    inputs = []
    for stream, source in sources:
        if stream is None and len(spec.streams) > 1:
            raise SourceError(
                f"{source.name}: which of the streams {', '.join(spec.streams)} is this? "
                + command(
                    f"Write stream={source.name}", "Name the stream: {'stream': source}, or stream="
                )
            )
        name = next(iter(spec.streams)) if stream is None else stream
        if name not in spec.streams:
            raise SourceError(f"no stream is called '{name}'.{nearest(name, list(spec.streams))}")
        inputs.append(Input(name, source))
    return inputs


def all_subjects(flow: Flow, inputs: Sequence[Input]) -> Subjects:
    """All subjects that occur in sources, in order of name: the order of arrival is private."""
    found, ordered = Subjects(), Subjects()
    for input_ in inputs:
        subject = flow.spec.streams[input_.stream].subject
        types = flow.column_types(input_.stream, input_.source)
        for batch in input_.source.batches([subject], [subject], types):
            found.learn(batch.table.column(subject))
    ordered.add(found.names.take(pc.sort_indices(found.names)))
    return ordered


def _check_fed(spec: Specification, inputs: Sequence[Input]) -> None:
    """Refuse a run in which the events of a stream could never come."""
    given = [input_.stream for input_ in inputs]
    missing = [stream for stream in spec.streams if stream not in given]
    if missing:
        raise SourceError(
            f"no source is given for {', '.join(missing)}; write {missing[0]}="
            f"{command('SOURCE', '')} for it"
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


def detect(
    spec: SpecSource,
    *sources: Any,
    to: Target | None = None,
    dead_letters: Place | None = None,
    subjects: Place | None = None,
    learn: str | None = None,
    **streams: Any,
) -> Collected:
    """The true, unprotected answers for frames or files; name the streams if there are several.

    A specification may be given as the path of its file. A source is a frame (Polars, pandas,
    Arrow), an iterator of frames, a path, or a mapping of streams to sources.

    With `to` answers go there and are not held in memory: a path such as `answers.parquet` or
    `answers/{consumer}.csv`, or a function that gets Arrow tables. Refused tuples are counted, and
    written to `dead_letters`. `subjects` (a file) or `learn` (a duration) replace the registry.
    """
    loaded = with_registry(load_spec(spec), subjects, learn)
    inputs = open_inputs(loaded, sources, streams)
    with DeadLetters(letters_for(to, dead_letters, sources, streams)) as letters:
        run = Detection(loaded, inputs, dead_letters=letters)
        return _collected(run, to, protected=False)


def plan(
    spec: SpecSource,
    *history: Any,
    mechanism: str | None = None,
    decode: str | None = None,
    prior: Mapping[str, float] | Place | None = None,
    out: Place | None = None,
    **streams: Any,
) -> Plan:
    """The best plan for a specification, from history: frames or files, as for `detect`.

    Instead of history, a `prior` may say how likely each event type is in a window: a mapping, or
    a file of YAML or JSON. The plan is saved to `out`.
    """
    spec = load_spec(spec)
    if not history and not streams:
        rates = read_prior(Path(prior), spec) if isinstance(prior, str | PathLike) else prior
        made = plan_without_history(spec, mechanism, decode, rates)
    else:
        if prior is not None:
            raise OptionError(f"{option('history')} and {option('prior')} exclude each other")
        chosen = mechanism or spec.mechanism
        statistics = surveyed(spec, history, streams, decode)
        names = MECHANISMS if chosen == "auto" else (chosen,)
        plans = [make_plan(spec, statistics, name, decode) for name in names]
        made = max(plans, key=lambda plan: plan.expected.quality if plan.expected else 0.0)
    if out is not None:
        made.save(Path(out))
    return made


def least_epsilon(
    spec: SpecSource,
    *history: Any,
    quality: float | str = DECLARED,
    mechanism: str | None = None,
    decode: str | None = None,
    **streams: Any,
) -> Least:
    """The least epsilon with which every query reaches a quality, from history.

    `quality` is a number for all queries, or 'declared' for what each of them declares. `plan` of
    what comes back is the plan, if the specification grants that epsilon.
    """
    spec = load_spec(spec)
    required = required_qualities(spec, quality)
    statistics = surveyed(spec, history, streams, decode)
    return least(spec, statistics, required, mechanism, decode)


def run(
    spec: SpecSource,
    *sources: Any,
    plan: Plan | Place | None = None,
    mechanism: str | None = None,
    to: Target | None = None,
    dead_letters: Place | None = None,
    subjects: Place | None = None,
    learn: str | None = None,
    seed: int | None = None,
    ledger: Place | Literal[False] | None = None,
    name: str | None = None,
    follow: bool = False,
    retain: str = RETAIN,
    metrics: str | None = None,
    **streams: Any,
) -> Collected:
    """The protected answers for frames or files, as for `detect`, by a plan.

    With a `ledger` (a file or postgresql://...) every window is released and charged once, under
    the `name` of the run: what was released before is not released again, and answers that have
    not arrived come first. Where private patterns have limits there must be one; `ledger=False`
    says that nobody counts. Without one, each call draws new noise and spends each private
    pattern's epsilon once more for every window.

    With a `seed` answers can be made again, and are not private.
    """
    options = LedgerOptions.of(run_name(spec), ledger, name, follow, retain)
    if options.place is not None:
        from tacit.engines.ledger_run import collect_run  # it needs an extra

        return collect_run(
            spec,
            sources,
            streams,
            plan=plan,
            mechanism=mechanism,
            to=to,
            dead_letters=dead_letters,
            subjects=subjects,
            learn=learn,
            seed=seed,
            ledger=options.place,
            name=name,
            follow=follow,
            retain=retain,
            metrics=metrics,
        )
    if metrics is not None:
        raise OptionError(f"{option('metrics')} needs {option('ledger')}: it is for runs that last")
    declared = load_spec(spec)
    loaded = with_registry(declared, subjects, learn)
    inputs = open_inputs(loaded, sources, streams)
    options.check(loaded, inputs)
    chosen = chosen_plan(declared, plan, mechanism)
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    with DeadLetters(letters_for(to, dead_letters, sources, streams)) as letters:
        guarded = protected(loaded, inputs, chosen, noise=noise, dead_letters=letters)
        collected = _collected(guarded, to, protected=noise.private)
    for message in guarded.engine.warnings:
        warnings.warn(message, stacklevel=2)
    return collected


def _collected(run: Detection, to: Target | None, *, protected: bool) -> Collected:
    """All answers, in memory; or none, where they went elsewhere as they came."""
    parts = []
    if to is None:
        parts = list(run)
    else:
        with _sink(run, to) as sink:
            for answers in run:
                for batch in answers.batches():
                    sink.write(pa.Table.from_batches([batch]))
    run.refusals.warn()
    refused = refused_by_reason(run.dead_letters)
    return Collected(parts, run.schema, run.flow.names, protected=protected, refused=refused)


def _sink(run: Detection, to: Target) -> Sink:
    if callable(to):
        return CallableSink(to)
    consumers = {query.name: query.consumer for query in run.spec.queries}
    return open_sink(to, run.schema, consumers)


def refused_by_reason(letters: DeadLetters) -> dict[str, int]:
    """How many tuples were refused for which reason: for the operator alone."""
    refused: dict[str, int] = {}
    for (_, reason), times in letters.counts.items():
        refused[reason] = refused.get(reason, 0) + times
    return refused


def letters_for(
    to: Target | None,
    letters: Place | None,
    sources: Sequence[Any],
    streams: Mapping[str, Any],
    ledger: str | None = None,
) -> Path | None:
    """Where dead letters go; nothing that is read is written over."""
    target = None if to is None or callable(to) else os.fspath(to)
    path = None if letters is None else Path(letters)
    if path is None and target is not None:
        path = letters_beside(target, None)
    given = [one for _, one in named_sources(sources, streams) if isinstance(one, str | PathLike)]
    refuse_overwrite([target, path, ledger], given)
    return path


def surveyed(
    spec: Specification, history: Sequence[Any], streams: Mapping[str, Any], decode: str | None
) -> list[Statistics]:
    """What history says: frames or files, as they are given to a function."""
    literal = (decode or spec.decode) == "literal"
    return survey(spec, open_inputs(spec, history, streams), literal=literal)


def load_spec(spec: SpecSource) -> Specification:
    """A specification, read if it is a path."""
    return spec if isinstance(spec, Specification) else load(spec)


def run_name(spec: SpecSource) -> str:
    """What a run is called if nothing is said: as the specification's file."""
    return "tacit" if isinstance(spec, Specification) else Path(spec).stem


def named_sources(
    sources: Sequence[Any], streams: Mapping[str, Any]
) -> list[tuple[str | None, Any]]:
    """Each source with its stream, if that was named."""
    given: list[tuple[str | None, Any]] = []
    for source in sources:
        given += source.items() if isinstance(source, Mapping) else [(None, source)]
    return given + list(streams.items())


def open_inputs(
    spec: Specification,
    sources: Sequence[Any],
    streams: Mapping[str, Any],
    *,
    follow: bool = False,
) -> list[Input]:
    """Frames, paths and sources as they are given to a function, each for its stream."""
    given = named_sources(sources, streams)
    opened = [(stream, _source(source, stream or "frame", follow)) for stream, source in given]
    return assign(spec, opened)


def _source(given: Any, name: str, follow: bool) -> Source:
    if isinstance(given, Source):
        return given
    if isinstance(given, str | PathLike):
        return open_input(given, follow=follow)
    return FrameSource(given, name)
