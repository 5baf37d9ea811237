"""Submit a job: check everything, write its folder, and run it to the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tacit.connectors.openers import open_resumable_sink
from tacit.durations import parse_duration
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.java import require_flink, require_java
from tacit.engines.flink.rest import Cluster
from tacit.engines.flink.run import FlinkRun, SubmitOutcome
from tacit.engines.setup import choose_plan, replace_registry
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
    """The options of a job; its answers do not depend on them."""

    name: str
    """The job's name on the cluster, and the run's in the ledger."""
    folder: Path
    """The folder of its files; every machine must have it under this name."""
    ledger: str | None = field(default=None, repr=False)
    """The default is a file in the folder."""
    parallelism: int = 1
    cluster: str | None = None
    """HOST:PORT of a cluster's REST API; None runs Flink in this process."""
    python: str | None = None
    """The interpreter on the cluster's machines; the default is the path of this one."""
    shards: int = SHARDS
    follow: bool = False
    """Whether files and folders are read as they grow."""
    idle: int = 60_000_000
    """Microseconds without a tuple after which the others no longer wait for a partition."""
    repeats: bool = False
    """Whether consumers may see a release twice after a crash, always with the same answers."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of Flink, such as `execution.checkpointing.interval`."""


@contextmanager
def open_submission(
    version: SpecVersion,
    sources: Sequence[tuple[str | None, str]],
    to: Sequence[str],
    options: JobOptions,
    *,
    true: bool = False,
) -> Iterator[FlinkRun]:
    """Check everything, and open a run that is ready to start."""
    require_flink()
    require_java()
    if options.cluster is not None:
        Cluster(options.cluster).get_overview()
    folders = Folders(options.folder.absolute())
    sinks = [open_resumable_sink(place) for place in to]
    if not options.repeats:
        check_exactly_once(sinks)
    folders.create()
    place = options.ledger or os.fspath(folders.root / "ledger.db")
    with Ledger.open(place) as ledger:
        lease = ledger.take_over(options.name, version.spec.fingerprint)
        job = prepare(
            version,
            [(stream, _make_absolute(source)) for stream, source in sources],
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
                sinks,
                parallelism=options.parallelism,
                cluster=options.cluster,
                python=options.python,
                settings=options.settings,
            )
        finally:
            for sink in sinks:
                sink.close()


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

    With `true` answers are true and unprotected, for tests and for the operator only. Warns with
    RefusedInputWarning if most of the input was refused; `outcome.refusals` has the numbers.
    """
    declared = spec if isinstance(spec, Specification) else load(spec)
    plan = choose_plan(declared, plan, mechanism)
    declared = replace_registry(declared, subjects, None)
    try:
        idle_time = parse_duration(idle)
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
        idle_time,
        repeats,
        settings or {},
    )
    with open_submission(
        SpecVersion(declared, plan), given, [os.fspath(to)], options, true=true
    ) as run:
        outcome = run.run()
    outcome.refusals.warn()
    return outcome


def check_exactly_once(sinks: Sequence[Sink]) -> None:
    """Refuse sinks that may deliver a release twice after a crash."""
    for sink in sinks:
        if not sink.once:
            raise SinkError(
                f"{sink.name} cannot undo a delivery: after a crash the last release may be"
                " delivered again, with the same answers and ids. Choose files or Kafka, or accept"
                f" it with {option('repeats')}"
            )


def _make_absolute(source: str) -> str:
    """Make the path of a source absolute."""
    return source if source == "-" or "://" in source else os.path.abspath(source)
