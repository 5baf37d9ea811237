"""The Python functions that run on one machine: detect, plan, run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from tacit.answers.collection import CollectedAnswers
from tacit.answers.counts import count_schema
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
from tacit.pipeline.sources import EmptySourceError
from tacit.pipeline.survey import HistorySurvey
from tacit.planning.least_epsilon import Least, LeastEpsilon, find_least_epsilon
from tacit.planning.limits import LeastLimit, LimitCurve, find_least_limit, predict_curve
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan, plan_without_history
from tacit.planning.requirements import DECLARED, parse_required_quality, read_prior
from tacit.privacy.statistics import Statistics
from tacit.progress import ProgressCallback, ignore_progress, scale_progress
from tacit.spec.specification import Specification


def survey(
    spec: Specification,
    inputs: Sequence[Input],
    *,
    literal: bool,
    progress: ProgressCallback = ignore_progress,
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
    counts_to: Target | None = None,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> CollectedAnswers:
    """Compute the true, unprotected answers for frames or files.

    A specification may be the path of its file. Name the streams if there are several. A source
    is a frame (Polars, pandas, Arrow), an iterator of frames, a path, or a mapping of streams to
    sources.

    With `to` answers are written there and not held in memory: a path such as `answers.parquet` or
    `answers/{consumer}.csv`, or a function that receives Arrow tables. Refused tuples are counted,
    and written to `dead_letters`. `subjects` (a file) or `learn` (a duration) replace the registry.
    Counts are in `counted()` of the result, or are written to `counts_to`. `threads` are those that
    insert tuples; by default one for each core. `progress` is called with the finished share of the
    work and what is being done.
    """
    given = name_sources(sources, streams)
    options = RunOptions(spec, given, None, None, to, dead_letters, subjects, learn)
    options = replace(options, counts_to=counts_to, threads=threads)
    loaded = options.register(options.load())
    inputs = options.open_inputs(loaded)
    options.check_counts(loaded)
    options.check_places()
    with DeadLetters(options.letters) as letters:
        run = Run(
            loaded,
            inputs,
            dead_letters=letters,
            progress=progress or ignore_progress,
            workers=options.workers,
        )
        collected = _collect(run, to, counts_to, protected=False)
    if progress is not None:
        progress(1.0, "done")
    return collected


def plan(
    spec: SpecSource,
    *history: Any,
    mechanism: str | None = None,
    decode: str | None = None,
    prior: Mapping[str, float] | Place | None = None,
    objective: str | None = None,
    out: Place | None = None,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> Plan:
    """Make the best plan for a specification from history: frames or files, as for `detect`.

    Instead of history, a `prior` may give the probability of each event type in a window: a
    mapping, or a YAML or JSON file. The `objective` is `micro` or `macro`: quality over all
    answers, or the mean of the queries' qualities. The plan is saved to `out`. Its `warnings` name
    queries that it answers always the same way. `progress` is called with the finished share of
    the work and what is being done; reading history counts for half.
    """
    if objective not in (None, "micro", "macro"):
        raise OptionError(f"{option('objective')}: expected micro or macro; got {objective}")
    spec, progress = load_spec(spec), progress or ignore_progress
    if not history and not streams:
        rates = read_prior(Path(prior), spec) if isinstance(prior, str | PathLike) else prior
        made = plan_without_history(spec, mechanism, decode, rates)
    else:
        if prior is not None:
            raise OptionError(f"{option('history')} and {option('prior')} exclude each other")
        statistics = survey_history(
            spec, history, streams, decode, scale_progress(progress, 0, 0.5)
        )
        planning = scale_progress(progress, 0.5, 0.99)
        made = make_plan(
            spec, statistics, mechanism, decode, objective=objective, progress=planning
        )
    if out is not None:
        made.save(Path(out))
    progress(1.0, "done")
    return made


def least_epsilon(
    spec: SpecSource,
    *history: Any,
    quality: float | str = DECLARED,
    mechanism: str | None = None,
    decode: str | None = None,
    least: Least = "total",
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> LeastEpsilon:
    """Find the least epsilon with which every query reaches a quality, from history.

    `quality` is a number for all queries, or 'declared' for the quality that each query declares.
    `least` says what is made as small as possible: the `total` of the private patterns' epsilons,
    or the `largest` of them. The result's `epsilons` are what each private pattern needs, and its
    `plan` is the plan, if the specification grants them. `progress` is as for `plan`.
    """
    if least not in ("total", "largest"):
        raise OptionError(f"{option('least')}: expected total or largest; got {least}")
    spec, progress = load_spec(spec), progress or ignore_progress
    required = parse_required_quality(spec, quality)
    statistics = survey_history(spec, history, streams, decode, scale_progress(progress, 0, 0.5))
    searching = scale_progress(progress, 0.5, 0.99)
    found = find_least_epsilon(
        spec, statistics, required, mechanism, decode, least=least, progress=searching
    )
    progress(1.0, "done")
    return found


def least_limit(
    spec: SpecSource,
    *history: Any,
    quality: float | str = DECLARED,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> LeastLimit:
    """Find the least limits with which every query reaches a quality, from history.

    All limits of the specification are changed in proportion. `quality` and `progress` are as for
    `least_epsilon`. The result's `point.limits` are the limits, if it is `enough`.
    """
    spec, progress = load_spec(spec), progress or ignore_progress
    required = parse_required_quality(spec, quality)
    statistics = survey_history(spec, history, streams, None, scale_progress(progress, 0, 0.5))
    found = find_least_limit(spec, statistics, required, scale_progress(progress, 0.5, 0.99))
    progress(1.0, "done")
    return found


def limit_curve(
    spec: SpecSource,
    *history: Any,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> LimitCurve:
    """Predict quality against limits from history; all limits are changed in proportion."""
    spec, progress = load_spec(spec), progress or ignore_progress
    statistics = survey_history(spec, history, streams, None, scale_progress(progress, 0, 0.5))
    found = predict_curve(spec, statistics, progress=scale_progress(progress, 0.5, 0.99))
    progress(1.0, "done")
    return found


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
    counts_to: Target | None = None,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> CollectedAnswers:
    """Compute the protected answers for frames or files by a plan; sources are as for `detect`.

    With a `ledger` (a file or postgresql://...) every window is released and charged once, under
    the `name` of the run. Windows that were released before are not released again, and answers
    that were not delivered come first. Private patterns with limits need a ledger, unless
    `ledger=False` turns counting off. Without a ledger, each call draws new noise and spends each
    private pattern's epsilon again for every window.

    Counts are in `counted()` of the result, or are written to `counts_to`. `threads` are those that
    insert tuples and draw noise; by default one for each core. With a `seed` answers are
    reproducible, whatever the number of threads, and not private. `progress` is called with the
    finished share of the work and what is being done; 1 means that all answers are delivered.
    """
    progress = progress or ignore_progress
    given = name_sources(sources, streams)
    options = RunOptions(spec, given, plan, mechanism, to, dead_letters, subjects, learn, seed)
    options = replace(
        options, ledger=ledger, name=name, follow=follow, retain=retain, counts_to=counts_to
    )
    options = replace(options, threads=threads)
    if options.ledger_place is not None:
        from tacit.engines.ledger_run import collect_run  # it needs an extra

        return collect_run(options, metrics, progress)
    if metrics is not None:
        raise OptionError(f"{option('metrics')} needs {option('ledger')}: it is for runs that last")
    version = options.read()
    inputs = options.prepare(version.spec)
    noise = options.noise()
    with DeadLetters(options.letters) as letters:
        started = Run(
            version.spec,
            inputs,
            plan=version.plan,
            noise=noise,
            dead_letters=letters,
            progress=progress,
            workers=options.workers,
        )
        collected = _collect(started, to, counts_to, protected=noise.private)
    progress(1.0, "done")
    for message in started.engine.warnings:
        warnings.warn(message, stacklevel=2)
    return collected


def _collect(
    run: Run, to: Target | None, counts_to: Target | None, *, protected: bool
) -> CollectedAnswers:
    """Run and collect all answers in memory; none if `to` receives them."""
    with ExitStack() as stack:
        consumers = {query.name: query.consumer for query in run.spec.subject_queries}
        if to is not None:
            run.add_sink(stack.enter_context(_open_sink(to, run.schema, consumers)))
        if counts_to is not None:
            schema = count_schema(private=run.compiled.evaluator.private)
            run.add_sink(stack.enter_context(open_counts_sink(run, counts_to, schema)))
        parts = [] if to is not None else list(run)
        if to is not None:
            run.run()
    run.refusals.warn()
    refused = count_refused(run.dead_letters)
    return CollectedAnswers(
        parts, run.schema, run.compiled.names, protected=protected, refused=refused
    )


def _open_sink(to: Target, schema: pa.Schema, consumers: Mapping[str, str]) -> Sink:
    return CallableSink(to) if callable(to) else open_sink(to, schema, consumers)


def open_counts_sink(run: Run, to: Target, schema: pa.Schema) -> Sink:
    """Open a file or function for the counts of a run without a ledger."""
    consumers = {query.name: query.consumer for query in run.spec.count_queries}
    sink = _open_sink(to, schema, consumers)
    sink.content = "counts"
    return sink


def count_refused(dead_letters: DeadLetters) -> dict[str, int]:
    """Count the refused tuples by reason; for the operator only."""
    refused: dict[str, int] = {}
    for (_, reason), times in dead_letters.counts.items():
        refused[reason] = refused.get(reason, 0) + times
    return refused


def survey_history(
    spec: Specification,
    history: Sequence[Any],
    streams: Mapping[str, Any],
    decode: str | None,
    progress: ProgressCallback = ignore_progress,
) -> list[Statistics]:
    """Compute the statistics of history that is given as frames or files."""
    literal = (decode or spec.decode) == "literal"
    return survey(spec, open_inputs(spec, history, streams), literal=literal, progress=progress)


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
