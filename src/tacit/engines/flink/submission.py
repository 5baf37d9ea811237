"""Submit a job: check everything, put what workers need into its folder, and see it through."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tacit.connectors.openers import open_resumable_sink
from tacit.durations import parse_duration
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.java import need_flink, need_java
from tacit.engines.flink.rest import Cluster
from tacit.engines.flink.run import FlinkRun, SubmitOutcome
from tacit.engines.setup import chosen_plan, with_registry
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.preparation import SHARDS, check_same, prepare
from tacit.errors import OptionError, SinkError
from tacit.ledger.ledger import Ledger
from tacit.options import option
from tacit.pipeline.sinks import Sink
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load


@dataclass(frozen=True)
class JobOptions:
    """How a job runs; what it answers does not depend on any of this."""

    name: str
    """The job's name on the cluster, and the run's in the ledger."""
    folder: Path
    """Where its files lie: every machine must reach it under this name."""
    ledger: str | None = field(default=None, repr=False)
    """By default a file in the folder."""
    parallelism: int = 1
    cluster: str | None = None
    """HOST:PORT of a cluster's REST API; None: Flink runs in this process."""
    python: str | None = None
    """The interpreter on the cluster's machines; by default as this one is called."""
    shards: int = SHARDS
    follow: bool = False
    """Whether files and folders are read as they grow."""
    idle: int = 60_000_000
    """Microseconds without a tuple after which the others no longer wait for a partition."""
    repeats: bool = False
    """Whether consumers may see a release twice after a crash, always with the same answers."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Flink's own, such as `execution.checkpointing.interval`."""


@contextmanager
def submitted(
    terms: SpecVersion,
    sources: Sequence[tuple[str | None, str]],
    to: Sequence[str],
    options: JobOptions,
    *,
    true: bool = False,
) -> Iterator[FlinkRun]:
    """A run that is ready to start; everything is checked."""
    need_flink()
    need_java()
    if options.cluster is not None:
        Cluster(options.cluster).overview()
    folders = Folders(options.folder.absolute())
    outlets = [open_resumable_sink(place) for place in to]
    if not options.repeats:
        check_unique(outlets)
    folders.make()
    place = options.ledger or os.fspath(folders.root / "ledger.db")
    with Ledger.open(place) as ledger:
        lease = ledger.take_over(options.name, terms.spec.fingerprint)
        job = prepare(
            terms,
            [(stream, _reachable(source)) for stream, source in sources],
            lease,
            follow=options.follow,
            shards=options.shards,
            true=true,
            idle=options.idle,
        )
        if ShardedJob.is_in(folders.job):
            check_same(job, ShardedJob.read(folders.job))
            job = ShardedJob.read(folders.job)
        else:
            job.write(folders.job)
        try:
            yield FlinkRun(
                options.name,
                job,
                folders,
                ledger,
                lease,
                outlets,
                parallelism=options.parallelism,
                cluster=options.cluster,
                python=options.python,
                settings=options.settings,
            )
        finally:
            for outlet in outlets:
                outlet.close()


def submit(
    spec: Specification | str | os.PathLike[str],
    *sources: str | os.PathLike[str],
    to: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    plan: Plan | str | os.PathLike[str] | None = None,
    mechanism: str | None = None,
    subjects: str | os.PathLike[str] | None = None,
    name: str = "tacit",
    true: bool = False,
    streams: Mapping[str, str | os.PathLike[str]] | None = None,
    ledger: str | None = None,
    parallelism: int = 1,
    cluster: str | None = None,
    follow: bool = False,
    idle: str = "60 s",
    shards: int = SHARDS,
    python: str | None = None,
    repeats: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SubmitOutcome:
    """Run a job on Flink until its input ends; the same as `tacit submit`.

    With `true` answers are true and unprotected, for tests and for the operator alone. Warns with
    RefusedInputWarning if most of the input was refused; `outcome.refusals` has the numbers.
    """
    declared = spec if isinstance(spec, Specification) else load(spec)
    plan = chosen_plan(declared, plan, mechanism)
    declared = with_registry(declared, subjects, None)
    try:
        patience = parse_duration(idle)
    except ValueError as error:
        raise OptionError(f"{option('idle')}: {error}") from error
    given: list[tuple[str | None, str]] = [(None, os.fspath(source)) for source in sources]
    given += [(stream, os.fspath(source)) for stream, source in (streams or {}).items()]
    options = JobOptions(
        name,
        Path(folder),
        ledger,
        parallelism,
        cluster,
        python,
        shards,
        follow,
        patience,
        repeats,
        settings or {},
    )
    with submitted(SpecVersion(declared, plan), given, [os.fspath(to)], options, true=true) as run:
        outcome = run.run()
    outcome.refusals.warn()
    return outcome


def check_unique(outlets: Sequence[Sink]) -> None:
    """Refuse outlets that may show a release twice after a crash."""
    for outlet in outlets:
        if not outlet.once:
            raise SinkError(
                f"{outlet.name} cannot take back what it has shown: after a crash the last release"
                " may come again, with the same answers and ids. Choose files or Kafka, or accept"
                f" it with {option('repeats')}"
            )


def _reachable(source: str) -> str:
    """A source as every machine may call it."""
    return source if source == "-" or "://" in source else os.path.abspath(source)
