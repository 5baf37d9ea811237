"""Make a job of what an operator gives: everything is checked before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from tacit.connectors.openers import open_input
from tacit.engines.local import assign
from tacit.engines.sharded.job import Partition, ShardedJob
from tacit.errors import Mistake, SourceError, SpecificationError, StateError
from tacit.ledger.lease import Lease
from tacit.options import option
from tacit.pipeline.run import Run
from tacit.pipeline.versions import SpecVersion

SHARDS: Final = 16
_LOG: Final = logging.getLogger(__name__)


def prepare(
    terms: SpecVersion,
    sources: Sequence[tuple[str | None, str]],
    lease: Lease,
    *,
    follow: bool = False,
    shards: int = SHARDS,
    true: bool = False,
    idle: int = 60_000_000,
) -> ShardedJob:
    """The job that answers these terms from these sources.

    Each source is a partition. Subjects are those of the registry; where none is given, files
    are read once for them. With `true`, answers are true and unprotected.
    """
    spec = terms.spec
    if spec.windows.close == "clock":
        raise SpecificationError(
            [
                Mistake(
                    "windows that close by the clock are for an engine on one machine; here they"
                    " close by event time: take out `close: clock`"
                )
            ]
        )
    opened = [(stream, open_input(name, follow=follow)) for stream, name in sources]
    for _, source in opened:
        passing = source.once and not source.live
        if passing or not source.replayable:
            raise SourceError(
                f"{source.name} cannot be read again from where a checkpoint was made; give files,"
                " a folder or Kafka, or run it on one machine with tacit run"
            )
    inputs = assign(spec, opened)
    run = Run(spec, inputs, plan=None if true else terms.plan)
    if run.engine.learning:
        raise SpecificationError(
            [
                Mistake(
                    "sources that go on for ever do not tell who there is: list the subjects, as in"
                    " `subjects: {file: subjects.txt}`"
                )
            ]
        )
    for message in run.engine.warnings:
        _LOG.warning("%s", message)
    subjects = run.engine.subjects
    if not len(subjects):
        raise SourceError(
            "the sources name no subject, so there is nobody to answer for. See which lines are"
            " refused, and why, with tacit detect; or list the subjects, as in"
            " `subjects: {file: subjects.txt}`"
        )
    partitions = [
        Partition(input_.stream, name, follow)
        for input_, (_, name) in zip(assign(spec, opened), sources, strict=True)
        if input_ in run.inputs
    ]
    return ShardedJob(
        terms,
        subjects,
        lease.enrol(subjects.names),
        tuple(partitions),
        shards,
        not true,
        idle,
        {}
        if true
        else lease.read_spent([one.name for one in spec.private if one.limit is not None]),
    )


def check_same(job: ShardedJob, before: ShardedJob) -> None:
    """Refuse to go on with a job as another one."""
    wrong = []
    if job.terms.digest != before.terms.digest:
        wrong.append("the specification or the plan")
    if job.partitions != before.partitions:
        wrong.append("the sources")
    if job.shards != before.shards:
        wrong.append("the number of shards")
    if not job.subjects.names.equals(before.subjects.names):
        wrong.append("the registry")
    if wrong:
        raise StateError(
            f"this job was begun with other terms: {', '.join(wrong)} changed since. Give them as"
            f" they were, or another {option('name')} for a new job"
        )
