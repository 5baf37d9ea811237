"""The Python functions that run on one machine: detect, plan, run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import polars as pl

from tacit.answers.collection import CollectedAnswers
from tacit.connectors.openers import open_sink
from tacit.connectors.sinks import CallableSink
from tacit.engines.setup import RETAIN, Place, RunOptions, SpecSource, Target
from tacit.errors import OptionError
from tacit.events.columntypes import infer_type, to_column_type
from tacit.events.streams import ColumnType
from tacit.options import option
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.reader import Input
from tacit.pipeline.refusals import Refusals
from tacit.pipeline.run import Run
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import EmptySourceError, Source
from tacit.pipeline.survey import HistorySurvey
from tacit.planning.plan import Plan
from tacit.planning.planner import LeastEpsilon, make_plan, plan_without_history
from tacit.planning.planner import find_least_epsilon as least
from tacit.planning.requirements import DECLARED, parse_required_quality, read_prior
from tacit.privacy.statistics import Statistics
from tacit.spec.mechanisms import AUTO, MECHANISMS
from tacit.spec.specification import Specification


def survey(
    spec: Specification,
    inputs: Sequence[Input],
    *,
    literal: bool,
    progress: Callable[[Source, int], None] | None = None,
    refusals: Callable[[Refusals], None] = Refusals.warn,
) -> list[Statistics]:
    """Compute the statistics of history for each policy of the specification.

    Column types that are not declared are inferred from history and recorded. `refusals` is called
    with the refused tuples when everything is read.
    """
    evaluator = HistorySurvey(spec, literal=literal)
    recorded = infer_history_types(CompiledSpec(spec, evaluator), inputs)
    run = Run(spec, inputs, evaluator=evaluator, progress=progress, recorded=recorded)
    for answers in run:
        evaluator.count(answers, evaluator.policies.assign(run.engine.subjects))
    refusals(run.refusals)
    return [replace(found, columns=recorded) for found in evaluator.statistics()]


def infer_history_types(
    compiled: CompiledSpec, inputs: Sequence[Input]
) -> dict[str, dict[str, ColumnType]]:
    """Infer the column types of history, for a plan to record; the first source counts."""
    found: dict[str, dict[str, ColumnType]] = {stream: {} for stream in compiled.spec.streams}
    for input_ in inputs:
        with suppress(EmptySourceError):
            types = found[input_.stream]
            types |= _infer_source_types(compiled, input_) | types
    return found


def _infer_source_types(compiled: CompiledSpec, input_: Input) -> dict[str, ColumnType]:
    source, stream = input_.source, input_.stream
    columns, schema = compiled.columns(stream), source.schema()
    if not source.textual:
        known = pl.DataFrame(schema.empty_table()).schema
        return {name: to_column_type(known[name]) for name in columns if name in known}
    resolved = [compiled.types.resolve(stream, name, source.declared_types()) for name in columns]
    types = {one.column: one.type for one in resolved if one.type is not None}
    unknown = [one.column for one in resolved if one.type is None]
    if unknown and not source.once and (source.keyed or set(unknown) <= set(schema.names)):
        first = next(source.batches(unknown), None)
        frame = pl.DataFrame() if first is None else pl.DataFrame(first.table)
        types |= {
            name: infer_type(frame[name], compiled.spec.streams[stream]) for name in frame.columns
        }
    return types


def detect(
    spec: SpecSource,
    *sources: Any,
    to: Target | None = None,
    dead_letters: Place | None = None,
    subjects: Place | None = None,
    learn: str | None = None,
    **streams: Any,
) -> CollectedAnswers:
    """Compute the true, unprotected answers for frames or files.

    A specification may be the path of its file. Name the streams if there are several. A source
    is a frame (Polars, pandas, Arrow), an iterator of frames, a path, or a mapping of streams to
    sources.

    With `to` answers are written there and not held in memory: a path such as `answers.parquet` or
    `answers/{consumer}.csv`, or a function that receives Arrow tables. Refused tuples are counted,
    and written to `dead_letters`. `subjects` (a file) or `learn` (a duration) replace the registry.
    """
    given = name_sources(sources, streams)
    options = RunOptions(spec, given, None, None, to, dead_letters, subjects, learn)
    loaded = options.register(options.load())
    inputs = options.open_inputs(loaded)
    options.check_places()
    with DeadLetters(options.letters) as letters:
        run = Run(loaded, inputs, dead_letters=letters)
        return _collect(run, to, protected=False)


def plan(
    spec: SpecSource,
    *history: Any,
    mechanism: str | None = None,
    decode: str | None = None,
    prior: Mapping[str, float] | Place | None = None,
    out: Place | None = None,
    **streams: Any,
) -> Plan:
    """Make the best plan for a specification from history: frames or files, as for `detect`.

    Instead of history, a `prior` may give the probability of each event type in a window: a
    mapping, or a YAML or JSON file. The plan is saved to `out`.
    """
    spec = load_spec(spec)
    if not history and not streams:
        rates = read_prior(Path(prior), spec) if isinstance(prior, str | PathLike) else prior
        made = plan_without_history(spec, mechanism, decode, rates)
    else:
        if prior is not None:
            raise OptionError(f"{option('history')} and {option('prior')} exclude each other")
        chosen = mechanism or spec.mechanism
        statistics = survey_history(spec, history, streams, decode)
        names = tuple(MECHANISMS) if chosen == AUTO else (chosen,)
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
) -> LeastEpsilon:
    """Find the least epsilon with which every query reaches a quality, from history.

    `quality` is a number for all queries, or 'declared' for the quality that each query declares.
    The result's `plan` is the plan, if the specification grants that epsilon.
    """
    spec = load_spec(spec)
    required = parse_required_quality(spec, quality)
    statistics = survey_history(spec, history, streams, decode)
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
) -> CollectedAnswers:
    """Compute the protected answers for frames or files by a plan; sources are as for `detect`.

    With a `ledger` (a file or postgresql://...) every window is released and charged once, under
    the `name` of the run. Windows that were released before are not released again, and answers
    that were not delivered come first. Private patterns with limits need a ledger, unless
    `ledger=False` turns counting off. Without a ledger, each call draws new noise and spends each
    private pattern's epsilon again for every window.

    With a `seed` answers are reproducible, and not private.
    """
    given = name_sources(sources, streams)
    options = RunOptions(spec, given, plan, mechanism, to, dead_letters, subjects, learn, seed)
    options = replace(options, ledger=ledger, name=name, follow=follow, retain=retain)
    if options.ledger_place is not None:
        from tacit.engines.ledger_run import collect_run  # it needs an extra

        return collect_run(options, metrics)
    if metrics is not None:
        raise OptionError(f"{option('metrics')} needs {option('ledger')}: it is for runs that last")
    version = options.read()
    inputs = options.prepare(version.spec)
    noise = options.noise()
    with DeadLetters(options.letters) as letters:
        started = Run(version.spec, inputs, plan=version.plan, noise=noise, dead_letters=letters)
        collected = _collect(started, to, protected=noise.private)
    for message in started.engine.warnings:
        warnings.warn(message, stacklevel=2)
    return collected


def _collect(run: Run, to: Target | None, *, protected: bool) -> CollectedAnswers:
    """Run and collect all answers in memory; none if `to` receives them."""
    parts = []
    if to is None:
        parts = list(run)
    else:
        with _open_sink(run, to) as sink:
            run.add_sink(sink)
            run.run()
    run.refusals.warn()
    refused = count_refused(run.dead_letters)
    return CollectedAnswers(
        parts, run.schema, run.compiled.names, protected=protected, refused=refused
    )


def _open_sink(run: Run, to: Target) -> Sink:
    if callable(to):
        return CallableSink(to)
    consumers = {query.name: query.consumer for query in run.spec.queries}
    return open_sink(to, run.schema, consumers)


def count_refused(dead_letters: DeadLetters) -> dict[str, int]:
    """Count the refused tuples by reason; for the operator only."""
    refused: dict[str, int] = {}
    for (_, reason), times in dead_letters.counts.items():
        refused[reason] = refused.get(reason, 0) + times
    return refused


def survey_history(
    spec: Specification, history: Sequence[Any], streams: Mapping[str, Any], decode: str | None
) -> list[Statistics]:
    """Compute the statistics of history that is given as frames or files."""
    literal = (decode or spec.decode) == "literal"
    return survey(spec, open_inputs(spec, history, streams), literal=literal)


def load_spec(spec: SpecSource) -> Specification:
    """A specification, read if it is a path."""
    return RunOptions(spec).load()


def name_sources(
    sources: Sequence[Any], streams: Mapping[str, Any]
) -> list[tuple[str | None, Any]]:
    """List the sources, each with its stream if that is given."""
    given: list[tuple[str | None, Any]] = []
    for source in sources:
        given += source.items() if isinstance(source, Mapping) else [(None, source)]
    return given + list(streams.items())


def open_inputs(
    spec: Specification, sources: Sequence[Any], streams: Mapping[str, Any]
) -> list[Input]:
    """Frames, paths and sources as they are given to a function, each for its stream."""
    return RunOptions(spec, name_sources(sources, streams)).open_inputs(spec)
