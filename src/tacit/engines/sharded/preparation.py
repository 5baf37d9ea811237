"""Prepare a job: check everything before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from tacit.connectors.openers import open_input
from tacit.engines.setup import assign
from tacit.engines.sharded.job import Partition, ShardedJob
from tacit.errors import Mistake, SourceError, SpecificationError, StateError
from tacit.ledger.lease import Lease
from tacit.options import option
from tacit.pipeline.accountant import declare_accounts
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.versions import SpecVersion

SHARDS: Final = 16
_LOG: Final = logging.getLogger(__name__)


def prepare(
    version: SpecVersion,
    sources: Sequence[tuple[str | None, str]],
    lease: Lease,
    *,
    follow: bool = False,
    shards: int = SHARDS,
    tasks: int = 1,
    true: bool = False,
    idle: int = 60_000_000,
) -> ShardedJob:
    """Create the job for this version of the specification and these sources.

    Each source is a partition, and so is each partition of a broker's topic, as far as there are
    shards, or tasks if these are more: then every task has something to read. Subjects come from
    the registry; without one, files are read once for them. With `true`, answers are true and
    unprotected.
    """
    spec = version.spec
    if spec.windows.close == "clock":
        raise SpecificationError(
            [
                Mistake(
                    "windows close by the clock only on one machine; here they close by event"
                    " time: remove `close: clock`"
                )
            ]
        )
    opened = [(stream, open_input(name, follow=follow)) for stream, name in sources]
    for _, source in opened:
        is_pipe = source.once and not source.live
        if is_pipe or not source.replayable:
            raise SourceError(
                f"{source.name} cannot be read again from a checkpoint; use files, a folder or"
                " Kafka, or run it on one machine with tacit run"
            )
    inputs = assign(spec, opened)
    run = Run(spec, inputs, plan=None if true else version.plan)
    if run.engine.learning:
        raise SpecificationError(
            [
                Mistake(
                    "the subjects of sources without an end must be listed, as in"
                    " `subjects: {file: subjects.txt}`"
                )
            ]
        )
    for message in run.engine.warnings:
        _LOG.warning("%s", message)
    subjects = run.engine.subjects
    if not len(subjects):
        raise SourceError(
            "the sources contain no subject, so there is nothing to answer. Check with tacit"
            " detect which lines are refused and why, or list the subjects, as in"
            " `subjects: {file: subjects.txt}`"
        )
    partitions = [
        partition
        for input_, (_, name) in zip(assign(spec, opened), sources, strict=True)
        if input_ in run.inputs
        for partition in _divide_source(input_, name, follow=follow, most=max(shards, tasks))
    ]
    ids = lease.enrol(subjects.names)
    if true:
        return ShardedJob(version, subjects, ids, tuple(partitions), shards, False, idle)
    until = lease.read_until()
    start = lease.read_latest() if until is None else until
    accounts = declare_accounts(version, subjects.names, ids, lease, start)
    return ShardedJob(
        version,
        subjects,
        ids,
        tuple(partitions),
        shards,
        True,
        idle,
        lease.read_spent([one.name for one in accounts if one.limit is not None]),
        tuple(accounts),
        lease.register_zones(ids, version.find_zones(subjects.names), start),
    )


def _divide_source(input_: Input, name: str, *, follow: bool, most: int) -> list[Partition]:
    """Return a partition for the source, or one for each of its own partitions."""
    count = min(input_.source.count_partitions(), most)
    if count == 1:
        return [Partition(input_.stream, name, follow)]
    return [Partition(input_.stream, name, follow, (number, count)) for number in range(count)]


def check_same(job: ShardedJob, before: ShardedJob) -> None:
    """Refuse to continue a job with other parameters."""
    changed = _list_changes(job.version, job.shards, before)
    if _list_sources(job) != _list_sources(before):
        changed.append("the sources")
    if not job.subjects.names.equals(before.subjects.names):
        changed.append("the registry")
    _refuse_changes(changed)


def check_same_request(
    version: SpecVersion, sources: Sequence[str], shards: int, running: ShardedJob
) -> None:
    """Refuse to take a running job for another one; nothing is read or changed for this."""
    changed = _list_changes(version, shards, running)
    if [source for _, source, _ in _list_sources(running)] != list(sources):
        changed.append("the sources")
    _refuse_changes(changed)


def _list_sources(job: ShardedJob) -> list[tuple[str, str, bool]]:
    """Return the sources of a job; a topic may have got more partitions since it was started."""
    return list(dict.fromkeys((one.stream, one.source, one.follow) for one in job.partitions))


def _list_changes(version: SpecVersion, shards: int, before: ShardedJob) -> list[str]:
    changed = []
    if version.digest != before.version.digest:
        changed.append("the specification or the plan")
    if shards != before.shards:
        changed.append("the number of shards")
    return changed


def _refuse_changes(changed: Sequence[str]) -> None:
    if changed:
        raise StateError(
            f"{', '.join(changed)} changed since this job was started. Give them as they were, or"
            f" another {option('name')} for a new job"
        )
