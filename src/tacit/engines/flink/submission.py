"""Submit a job: check everything, write its folder, and run it to the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tacit.connectors.openers import open_resumable_sink
from tacit.durations import parse_duration
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.gateway import start_gateway
from tacit.engines.flink.java import require_flink, require_java
from tacit.engines.flink.launch import find_running, start
from tacit.engines.flink.releaser import ReleaseTarget
from tacit.engines.flink.run import FlinkRun, SubmitOutcome
from tacit.engines.metrics import Metrics, MetricsAddress
from tacit.engines.setup import choose_plan, replace_registry
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.preparation import SHARDS, check_same, check_same_request, prepare
from tacit.errors import EngineError, OptionError, SinkError
from tacit.ledger.ledger import Ledger
from tacit.options import option
from tacit.pipeline.sinks import Sink
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load

GATEWAY: Final = "PYFLINK_GATEWAY_PORT"
"""The variable in which Flink tells a Python program that it has started where its Java is."""
_OWN_ADDRESS: Final = "localhost:8081"
"""The REST API of the cluster of an application, as seen by its program."""


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
    detach: bool = False
    """Whether to return as soon as the job is started on the cluster."""
    counts_to: str | None = field(default=None, repr=False)
    """Where counts go; by default they stay in the ledger."""
    application: bool = False
    """Whether a cluster that is only for this job has started this process."""

    def __post_init__(self) -> None:
        if self.application and GATEWAY not in os.environ:
            raise OptionError(
                f"{option('application')} is for a command that Flink itself starts, with"
                " standalone-job.sh or flink run: give the REST address of a running cluster with"
                f" {option('cluster')} instead"
            )
        if self.detach and self.cluster is None and not self.application:
            raise OptionError(
                f"{option('detach')} needs {option('cluster')}: without a cluster the job runs"
                " inside this process, and ends with it"
            )

    @property
    def address(self) -> str | None:
        """The cluster's REST API; None if Flink runs in this process."""
        return self.cluster or (_OWN_ADDRESS if self.application else None)


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
    start_gateway()
    folders = Folders(options.folder.absolute())
    given = [(stream, _make_absolute(source)) for stream, source in sources]
    running = None
    if not options.application:  # there Flink itself finds out whether it has recovered the job
        running = find_running(options.name, folders, options.cluster, options.settings)
    if running is not None:
        job = _read_running(folders, options.name)
        check_same_request(version, [source for _, source in given], options.shards, job)
        yield FlinkRun(options.name, job, folders, running, detach=options.detach)
        return
    job = _prepare_folder(version, given, [_make_absolute(place) for place in to], options, true)
    launch = partial(
        start,
        options.name,
        folders,
        len(job.partitions),
        job.shards,
        options.parallelism,
        options.address,
        options.settings,
        options.python,
        application=options.application,
    )
    # The end of a JobManager ends this process too, but not the job.
    yield FlinkRun(
        options.name,
        job,
        folders,
        launch,
        detach=options.detach,
        attached=options.application,
    )


def attach(name: str, folder: str | os.PathLike[str], cluster: str) -> FlinkRun:
    """Return a run that watches a running job; its `stop` does not stop the job."""
    require_flink()
    folders = Folders(Path(folder).absolute())
    running = find_running(name, folders, cluster, {})
    if running is None:
        raise EngineError(
            f"no job with the name {name} runs on the cluster at {cluster}. Start it with the"
            f" command without {option('attach')}, which resumes it if it ran before"
        )
    return FlinkRun(name, _read_running(folders, name), folders, running, attached=True)


def _read_running(folders: Folders, name: str) -> ShardedJob:
    if not ShardedJob.is_in(folders.job):
        raise EngineError(
            f"a job with the name {name} is running, but its folder is not {folders.root}. Give"
            f" the {option('folder')} that it was started with, or another {option('name')}"
        )
    return ShardedJob.read(folders.job)


def _prepare_folder(
    version: SpecVersion,
    sources: Sequence[tuple[str | None, str]],
    to: Sequence[str],
    options: JobOptions,
    true: bool,
) -> ShardedJob:
    """Check everything, and write the job and where its answers go to its folder."""
    folders = Folders(options.folder.absolute())
    counts_to = None if options.counts_to is None else _make_absolute(options.counts_to)
    if counts_to is not None and not version.spec.count_queries:
        raise OptionError(
            f"{option('counts-to')}: no query of this specification counts subjects; write one"
            " with count:"
        )
    _check_sinks([*to, *([] if counts_to is None else [counts_to])], repeats=options.repeats)
    folders.create()
    place = _make_absolute(options.ledger or os.fspath(folders.root / "ledger.db"))
    with Ledger.open(place) as ledger:
        lease = ledger.take_over(options.name, version.spec.fingerprint)
        job = prepare(
            version,
            sources,
            lease,
            follow=options.follow,
            shards=options.shards,
            tasks=options.parallelism,
            true=true,
            idle=options.idle,
        )
    if ShardedJob.is_in(folders.job):
        check_same(job, ShardedJob.read(folders.job))
        job = ShardedJob.read(folders.job)
    else:
        job.write(folders.job)
    ReleaseTarget(options.name, place, to, counts_to).write(folders.release)
    return job


def _check_sinks(to: Sequence[str], *, repeats: bool) -> None:
    """Refuse sinks that a machine of the cluster cannot write to, or not as often as asked."""
    if "-" in to:
        raise SinkError(
            "answers are written by a machine of the cluster, which has no standard output of"
            " yours: choose files, a folder, Kafka or MQTT"
        )
    with ExitStack() as stack:
        sinks = [open_resumable_sink(place) for place in to]
        for sink in sinks:
            stack.callback(sink.close)
        if not repeats:
            check_exactly_once(sinks)


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
    detach: bool = False,
    metrics: str | None = None,
    counts_to: str | os.PathLike[str] | None = None,
    application: bool = False,
) -> SubmitOutcome:
    """Run a job on Flink until its input ends; the same as `tacit submit`.

    With `detach` it returns as soon as the job is started; the job goes on without this process.
    `metrics` is `[HOST:]PORT`, where metrics for Prometheus are served meanwhile. Counts are
    written to `counts_to`, if it is given, and stay in the ledger. `application` is for a program
    that an application cluster of Flink has started for this job.
    With `true` answers are true and unprotected, for tests and for the operator only. Warns with
    RefusedInputWarning if most of the input was refused; `outcome.refusals` has the numbers.
    """
    require_flink()
    start_gateway()
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
        detach,
        None if counts_to is None else os.fspath(counts_to),
        application,
    )
    version = SpecVersion(declared, plan)
    with (
        open_submission(version, given, [os.fspath(to)], options, true=true) as run,
        serve_metrics(run, metrics),
    ):
        outcome = run.run()
    outcome.refusals.warn()
    return outcome


@contextmanager
def serve_metrics(run: FlinkRun, address: str | None) -> Iterator[None]:
    """Serve the public status of a run at `[HOST:]PORT`, if that is given."""
    if address is None:
        yield
        return
    try:
        place = MetricsAddress.parse(address)
    except ValueError as error:
        raise OptionError(f"{option('metrics')}: {error}") from error
    with Metrics(place, run.public, time.time()):
        yield


def check_exactly_once(sinks: Sequence[Sink]) -> None:
    """Refuse sinks that may deliver a release twice after a crash."""
    for sink in sinks:
        if not sink.once:
            raise SinkError(
                f"{sink.name} cannot undo a delivery: after a crash the last release may be"
                " delivered again, with the same answers and ids. Choose files or Kafka, or accept"
                f" it with {option('repeats')}"
            )


def _make_absolute(place: str) -> str:
    """Make the path of a source, sink or ledger absolute; a folder keeps its slash at the end."""
    return place if place == "-" or "://" in place else os.path.join(os.getcwd(), place)
