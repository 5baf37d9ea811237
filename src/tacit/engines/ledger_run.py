"""Runs with a ledger from Python: each window is released and charged once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import polars as pl
import pyarrow as pa

from tacit.answers.collection import CollectedAnswers
from tacit.connectors.frames import FrameSource
from tacit.connectors.openers import open_resumable_sink
from tacit.connectors.sinks import CallableSink
from tacit.engines.local import (
    Place,
    SpecSource,
    Target,
    choose_dead_letters,
    count_refused,
    default_run_name,
    load_spec,
    open_inputs,
)
from tacit.engines.metrics import Metrics, MetricsAddress
from tacit.engines.setup import RETAIN, LedgerOptions, choose_plan, replace_registry
from tacit.errors import OptionError
from tacit.ledger.ledger import Ledger
from tacit.options import option
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.run import Run
from tacit.pipeline.settlement import RunOutcome
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
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
    ) -> None:
        super().__init__([], schema, queries, protected=protected, refused=refused)
        self.outcome = outcome
        """What was released and charged, and how the run ended."""
        self._tables = tables

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def arrow(self) -> pa.Table:
        """Return an Arrow table with a row for each window, subject and query."""
        if not self._tables:
            return self._schema.empty_table()
        # The first release with a limit adds a column.
        return pa.concat_tables(self._tables, promote_options="default").unify_dictionaries()

    def wide(self) -> pl.DataFrame:
        """Return a Polars frame with a row per window and subject, and a column per query."""
        columns = ["window_start", "subject", "query", "detected"]
        frame = self.polars().select(columns)
        return frame.pivot("query", index=columns[:2], values="detected", maintain_order=True)

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
    **streams: Any,
) -> Iterator[Run]:
    """Open a run with a ledger that is ready to start; the arguments are those of `tacit.run`.

    `run.run()` returns when the input ends. Any thread may call `run.stop()` and `run.reload()`
    meanwhile. `run.status` is for the operator only.
    """
    options = LedgerOptions.of(default_run_name(spec), ledger, name, follow, retain)

    def read() -> SpecVersion:
        declared = load_spec(spec)
        version = SpecVersion(declared, choose_plan(declared, plan, mechanism))
        return SpecVersion(replace_registry(declared, subjects, learn), version.plan)

    version = read()
    inputs = open_inputs(version.spec, sources, streams, follow=follow)
    for input_ in inputs:
        if isinstance(input_.source, FrameSource):
            input_.source.identify()  # another frame is another source, with its own position
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    path = choose_dead_letters(to, dead_letters, sources, streams, os.fspath(ledger))
    address = _parse_address(metrics)
    with ExitStack() as stack:
        opened = stack.enter_context(Ledger.open(os.fspath(ledger)))
        sink = CallableSink(to) if callable(to) else stack.enter_context(open_resumable_sink(to))
        run = Run(
            version.spec,
            inputs,
            plan=version.plan,
            ledger=opened,
            sinks=[sink],
            name=options.name,
            noise=noise,
            dead_letters=stack.enter_context(DeadLetters(path, keep=True)),
            retain=options.retain,
            reread=None if isinstance(spec, Specification) else read,
        )
        if address is not None:
            stack.enter_context(Metrics(address, run.status.public, time.time()))
        yield run


def collect_run(
    spec: SpecSource,
    sources: Sequence[Any],
    streams: Mapping[str, Any],
    *,
    to: Target | None,
    seed: int | None,
    **options: Any,
) -> DeliveredAnswers:
    """Run to the end of the input; return the answers, unless `to` receives them."""
    tables: list[pa.Table] = []
    target = tables.append if to is None else to
    with open_run(spec, *sources, to=target, seed=seed, **options, **streams) as run:
        live = next((one.source for one in run.inputs if one.source.live), None)
        if live is not None and to is None:
            raise OptionError(
                f"{live.name} has no end, so answers would fill the memory: set a file, URL or"
                f" function with {option('to')}"
            )
        outcome = run.run()
        run.refusals.warn()
        return DeliveredAnswers(
            tables,
            run.schema,
            run.compiled.names,
            protected=seed is None,
            refused=count_refused(run.dead_letters),
            outcome=outcome,
        )


def _parse_address(metrics: str | None) -> MetricsAddress | None:
    try:
        return None if metrics is None else MetricsAddress.parse(metrics)
    except ValueError as error:
        raise OptionError(f"{option('metrics')}: {error}") from error
