"""Runs with a ledger from Python: each window is released and charged once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

from tacit.answers.collection import CollectedAnswers
from tacit.connectors.frames import FrameSource
from tacit.connectors.openers import open_resumable_sink
from tacit.connectors.sinks import CallableSink
from tacit.engines.local import count_refused, name_sources
from tacit.engines.metrics import Metrics, MetricsAddress
from tacit.engines.setup import RETAIN, Place, RunOptions, SpecSource, Target
from tacit.errors import OptionError
from tacit.ledger.ledger import Ledger
from tacit.options import option
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.settlement import RunOutcome
from tacit.pipeline.sinks import Sink
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.progress import ProgressCallback, ignore_progress
from tacit.spec.specification import Specification


class DeliveredAnswers(CollectedAnswers):
    """The answers that a run with a ledger has delivered, each with its `id`.

    Answers that an earlier run of the same name released but could not deliver come first.
    """

    def __init__(
        self,
        tables: Sequence[pa.Table],
        schema: pa.Schema,
        queries: Sequence[str],
        *,
        protected: bool,
        refused: Mapping[str, int],
        outcome: RunOutcome,
        counted: Sequence[pa.Table] = (),
    ) -> None:
        super().__init__([], schema, queries, protected=protected, refused=refused)
        self.outcome = outcome
        """What was released and charged, and how the run ended."""
        self._tables = tables
        self._counted = counted

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def arrow(self) -> pa.Table:
        """Return an Arrow table with a row for each window, subject and query."""
        if not self._tables:
            return self._schema.empty_table()
        # The first release with a limit adds a column.
        return pa.concat_tables(self._tables, promote_options="default").unify_dictionaries()

    def counted(self) -> pl.DataFrame:
        """Return the counts as a Polars frame: a row for each window, count query and group."""
        if not self._counted:
            return super().counted()
        return pl.DataFrame(pa.concat_tables(self._counted).unify_dictionaries())

    def wide(self) -> pl.DataFrame:
        """Return a Polars frame with a row per window and subject, and a column per query."""
        frame, keys = self.polars(), ["window_start", "subject"]
        wide = frame.pivot("query", index=keys, values="detected", maintain_order=True)
        if "value" not in frame.columns:
            return wide
        valued = frame.filter(pl.col("value").is_not_null())
        values = valued.pivot("query", index=keys, values="value", maintain_order=True)
        others = wide.drop(set(values.columns) - set(keys))
        return others.join(values, on=keys, how="left", maintain_order="left")

    def counts(self) -> dict[str, int]:
        """Return how often each query was answered with yes."""
        found = self.polars().filter(pl.col("detected"))["query"].cast(pl.String).value_counts()
        return dict.fromkeys(self.queries, 0) | dict(found.iter_rows())


@contextmanager
def open_run(
    spec: SpecSource,
    *sources: Any,
    ledger: Place,
    plan: Plan | Place | None = None,
    mechanism: str | None = None,
    to: Target,
    dead_letters: Place | None = None,
    subjects: Place | None = None,
    learn: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    follow: bool = False,
    retain: str = RETAIN,
    metrics: str | None = None,
    counts_to: Target | None = None,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> Iterator[Run]:
    """Open a run with a ledger that is ready to start; the arguments are those of `tacit.run`.

    `run.run()` returns when the input ends. Any thread may call `run.stop()` and `run.reload()`
    meanwhile. `run.status` is for the operator only.
    """
    given = name_sources(sources, streams)
    options = RunOptions(spec, given, plan, mechanism, to, dead_letters, subjects, learn, seed)
    options = replace(
        options, ledger=ledger, name=name, follow=follow, retain=retain, counts_to=counts_to
    )
    options = replace(options, threads=threads)
    progress = progress or ignore_progress
    with _open(options, to, metrics, progress) as run:
        yield run
    if run.outcome.finished:
        progress(1.0, "done")


def collect_run(
    options: RunOptions, metrics: str | None, progress: ProgressCallback
) -> DeliveredAnswers:
    """Run to the end of the input; the answers, unless they go elsewhere."""
    tables: list[pa.Table] = []
    counted: list[pa.Table] = []
    if options.to is None and options.counts_to is None and options.load().count_queries:
        options = replace(options, counts_to=counted.append)
    target = tables.append if options.to is None else options.to
    with _open(options, target, metrics, progress) as run:
        live = next((one.source for one in run.inputs if one.source.live), None)
        if live is not None and options.to is None:
            raise OptionError(
                f"{live.name} has no end, so answers would fill the memory: set a file, URL or"
                f" function with {option('to')}"
            )
        outcome = run.run()
        run.refusals.warn()
    progress(1.0, "done")
    return DeliveredAnswers(
        tables,
        run.schema,
        run.compiled.names,
        protected=options.seed is None,
        refused=count_refused(run.dead_letters),
        outcome=outcome,
        counted=counted,
    )


@contextmanager
def _open(
    options: RunOptions, to: Target, metrics: str | None, progress: ProgressCallback
) -> Iterator[Run]:
    version = options.read()
    inputs = options.prepare(version.spec)
    for input_ in inputs:
        if isinstance(input_.source, FrameSource):
            input_.source.identify()  # another frame is another source, with a place of its own
    address = _address(metrics)
    with open_prepared(options, version, inputs, to, progress) as run, ExitStack() as stack:
        if address is not None:
            stack.enter_context(Metrics(address, run.status.public, time.time()))
        yield run


@contextmanager
def open_prepared(
    options: RunOptions,
    version: SpecVersion,
    inputs: Sequence[Input],
    to: Target | Sink,
    progress: ProgressCallback = ignore_progress,
    reread: Callable[[], SpecVersion] | None = None,
) -> Iterator[Run]:
    """The run whose specification and sources were read and checked.

    `reread` returns the version for a reload; by default it is read from the files again.
    """
    if reread is None and not isinstance(options.spec, Specification):
        reread = options.read
    with (
        Ledger.open(options.ledger_place or "") as ledger,
        ExitStack() as sinks,
        DeadLetters(options.letters, keep=True) as letters,
    ):
        opened = [sinks.enter_context(_open_sink(to))]
        if options.counts_to is not None:
            counts_sink = sinks.enter_context(_open_sink(options.counts_to, "python-counts"))
            counts_sink.content = "counts"
            opened.append(counts_sink)
        yield Run(
            version.spec,
            inputs,
            plan=version.plan,
            ledger=ledger,
            sinks=opened,
            name=options.run_name,
            noise=options.noise(),
            dead_letters=letters,
            progress=progress,
            retain=options.retain_seconds(),
            reread=reread,
            workers=options.workers,
        )


def _open_sink(to: Target | Sink, name: str = "python") -> Sink:
    if isinstance(to, Sink):
        return to
    return CallableSink(to, name) if callable(to) else open_resumable_sink(to)


def _address(metrics: str | None) -> MetricsAddress | None:
    try:
        return None if metrics is None else MetricsAddress.parse(metrics)
    except ValueError as error:
        raise OptionError(f"{option('metrics')}: {error}") from error
