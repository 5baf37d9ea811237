"""Compare cluster engines: ours on Flink against Flink SQL, MATCH_RECOGNIZE and Spark.

All run on this machine, with as many tasks as cores, from the same files. They are CSV: Flink reads
Parquet only with a JAR that its Python package lacks. Rivals answer without privacy, write results
to files, and take no checkpoints except those that Spark requires.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks import data, flink, foreign, ours, protected
from benchmarks.data import START, WINDOW, Scale
from benchmarks.foreign import Done, UnavailableError
from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import Spent, timed
from benchmarks.ours import Queries
from benchmarks.report import OURS, Finding, Skipped, against
from tacit.connectors.files import open_source
from tacit.connectors.openers import open_resumable_sink, open_sink
from tacit.ledger.ledger import Ledger
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.planner import plan_without_history
from tacit.spec.specification import Private, Specification
from tacit.spec.subjects import SubjectFile
from tacit.spec.yaml_writer import to_yaml

_FILES = 4


@dataclass(frozen=True, slots=True)
class Job:
    """Queries over events in files."""

    operator: str
    queries: Queries
    scale: Scale
    parts: data.Parts

    @property
    def name(self) -> str:
        """The name of the job."""
        number = "one query" if len(self.queries) == 1 else f"{len(self.queries)} queries"
        return (
            f"{self.operator}, {number}, {self.scale.events:,} events of"
            f" {self.scale.subjects:,} subjects, {_FILES} files of CSV"
        )

    @property
    def files(self) -> list[Path]:
        """The files that our engine reads."""
        return sorted(self.parts.named.iterdir())

    @property
    def spec(self) -> Specification:
        """The queries, and private patterns, which only our engine uses."""
        plain = ours.specification(self.operator, self.queries, self.scale, unit="ms")
        private = tuple(Private(pattern=text, epsilon=Decimal(1)) for text in protected.PRIVATE)
        return plain.model_copy(update={"private": private}).checked()


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival for the same job, and the target ratio of our speed."""

    name: str
    target: float | None
    """None if it does not do exactly the same."""
    run: Callable[[Job, Setting], Done]


def cluster_and(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure 20 AND queries."""
    queries = data.draw_queries(20, setting.scale.kinds)
    yield from _compare_on("AND", queries, setting.scale, [FLINK_SQL, FLINK_BATCH, SPARK], setting)


def cluster_seq(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure one SEQ query for few subjects, who have many events each."""
    scale = Scale(setting.scale.events, flink.SUBJECTS)
    yield from _compare_on("SEQ", flink.QUERIES, scale, [MATCH_RECOGNIZE, MATCH_BATCH], setting)


def cluster_seq_many(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure one SEQ query for more subjects."""
    rivals = [MATCH_RECOGNIZE, MATCH_BATCH]
    yield from _compare_on("SEQ", flink.QUERIES, setting.scale, rivals, setting)


def _compare_on(
    operator: str, queries: Queries, scale: Scale, rivals: Sequence[Rival], setting: Setting
) -> Iterator[Finding | Skipped]:
    job = Job(operator, queries, scale, data.parts(scale, setting.folder, _FILES))
    yield from _compare(job, rivals, setting)


def ours_on_flink(job: Job, setting: Setting) -> Done:
    """Run `tacit submit` inside one process, and compare with true answers of another run.

    The measured time is that of the protected run, with ledger, checkpoints and delivery, from the
    moment when all readers are ready until the last window is released.
    """
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        started = time.perf_counter()
        found = _on_flink(job.files, job.spec, folder)
        whole = time.perf_counter() - started
        answers = pl.read_parquet(folder / "true" / "*.parquet")
        detected = _dense(answers, job.scale, job.spec)
    true = Spent(found["true"]["elapsed"], found["true"]["processor"])
    start = whole - found["elapsed"] - true.elapsed
    return Done(Spent(found["elapsed"], found["processor"]), start, detected, true)


def cluster_state(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure state and checkpoints for a million subjects, and the cost of 100 times as many."""
    job, found = "10,000 to 1,000,000 subjects on Flink", {}
    events = setting.scale.events // 4
    windows = 6
    try:
        for subjects in (10_000, 1_000_000):
            scale = Scale(events, subjects, windows)
            parts = data.parts(scale, setting.folder, _FILES)
            few = Job("AND", data.draw_queries(1, scale.kinds), scale, parts)
            with tempfile.TemporaryDirectory(dir=setting.folder) as name:
                found[subjects] = _on_flink(few.files, few.spec, Path(name), "--only-timed")
    except UnavailableError as error:
        yield Skipped(job, str(error))
        return
    small, large = found[10_000], found[1_000_000]
    spent = {
        f"{subjects:,} subjects": Spent(one["elapsed"], one["processor"])
        for subjects, one in found.items()
    }
    yield Finding(
        job,
        f"times the cost, for {events:,} events in {windows} windows, one query",
        large["elapsed"] / small["elapsed"],
        large["processor"] / small["processor"],
        seconds=spent,
        note=f"a checkpoint has {large['state'] / 1e6:.0f} MB for a million subjects and takes"
        f" {large['checkpoint']:.2f} s on average; {small['state'] / 1e6:.1f} MB and"
        f" {small['checkpoint']:.2f} s for 10,000",
    )


def _on_flink(
    files: Sequence[Path], spec: Specification, folder: Path, *words: str
) -> dict[str, Any]:
    """Run our job in the environment that has PyFlink; return its measurements."""
    words = (*words, "--parallelism", str(os.cpu_count() or 1))
    return _run_script("flink_ours", files, spec, folder, *words)


def cluster_start(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure the time from `tacit submit` on a running cluster to the first answer in a file."""
    job = "First answer of a job on a running Flink cluster"
    scale = Scale(200_000, 1_000, 10)
    parts = data.parts(scale, setting.folder, _FILES)
    small = Job("AND", data.draw_queries(3, scale.kinds), scale, parts)
    try:
        with tempfile.TemporaryDirectory(dir=setting.folder) as name:
            found = _run_script("flink_start", small.files, small.spec, Path(name))
    except UnavailableError as error:
        yield Skipped(job, str(error))
        return
    yield Finding(
        job,
        "s from the command to the first answer, the median of three",
        found["elapsed"],
        target=10,
        bound="at most",
        unit="s",
        seconds={"submit": Spent(found["elapsed"], found["processor"])},
        note=f"the job is started after {found['started']:.1f} s and its readers begin after"
        f" {found['began']:.1f} s; a first job on the cluster, not counted, took"
        f" {found['first']:.1f} s",
    )


def _run_script(
    script: str, files: Sequence[Path], spec: Specification, folder: Path, *words: str
) -> dict[str, Any]:
    """Run a script in the environment that has PyFlink; return what it prints."""
    python = Path(sys.prefix).with_name(".flink") / "bin" / "python"
    if shutil.which("java") is None:
        raise UnavailableError("no Java on this machine; Flink needs Java 17")
    if not python.exists():
        raise UnavailableError("there is no .flink here: run make .flink/.ready")
    (folder / "subjects.txt").write_text("".join(f"{name}\n" for name in _subjects(spec)))
    listed = spec.model_copy(update={"subjects": SubjectFile(file="subjects.txt")})
    (folder / "spec.yaml").write_text(to_yaml(listed))
    command = [str(python), "-m", f"benchmarks.{script}", *words]
    command += [str(folder / "spec.yaml"), str(folder), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=foreign.ROOT)
    if done.returncode:
        raise RuntimeError(f"{script}.py failed ({done.returncode}): {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _subjects(spec: Specification) -> tuple[str | int, ...]:
    listed = spec.subjects
    if not isinstance(listed, tuple):
        raise TypeError("subjects are listed here")
    return listed


def _dense(answers: pl.DataFrame, scale: Scale, spec: Specification) -> NDArray[np.bool_]:
    """Convert rows to `[window][subject][query]`."""
    detected = np.zeros((scale.windows, scale.subjects, len(spec.queries)), np.bool_)
    numbers = {query.name: number for number, query in enumerate(spec.queries)}
    claimed = answers.filter(pl.col("detected"))
    windows = claimed["window_start"].cast(pl.Int64).to_numpy() // WINDOW - START // WINDOW
    asked = claimed["query"].cast(pl.String).replace_strict(numbers, return_dtype=pl.Int64)
    subjects = claimed["subject"].cast(pl.String).cast(pl.Int64)
    detected[windows, subjects.to_numpy(), asked.to_numpy()] = True
    return detected


def _compare(job: Job, rivals: Sequence[Rival], setting: Setting) -> Iterator[Finding | Skipped]:
    """Run each engine once, after warming up; all must give the answers of the local engine."""
    expected = true_answers(job)
    alone = _alone(job, setting)
    met: dict[Rival, Done] = {}
    for rival in rivals:
        try:
            met[rival] = _agreed(rival.name, rival.run(job, setting), expected)
        except UnavailableError as error:
            yield Skipped(f"{job.name}, {rival.name}", str(error))
    if met:
        every = {OURS: alone} | {rival.name: done.spent for rival, done in met.items()}
        note = f"{int(expected.sum()):,} of {expected.size:,} detected, the same for all"
        yield against(f"{job.name}, one process", every, None, note=note)
    on_flink = f"{job.name}, on Flink"
    try:
        mine = _agreed(OURS, ours_on_flink(job, setting), expected)
    except UnavailableError as error:
        yield Skipped(on_flink, str(error))
        return
    for rival, done in met.items():
        note = "not counted: the start and a small job to warm up"
        note += f" ({OURS} {mine.start:.1f} s, {rival.name} {done.start:.1f} s)"
        seconds = {OURS: mine.spent, rival.name: done.spent}
        yield against(on_flink, seconds, rival.target, note=note)
        if mine.true is not None:
            true = {OURS: mine.true, rival.name: done.spent}
            yield against(
                f"{on_flink}, true answers", true, None, note="without privacy, as theirs"
            )
    yield Finding(
        on_flink,
        "of the speed in one process",
        alone.elapsed / mine.spent.elapsed,
        alone.processor / mine.spent.processor,
        0.6,
        seconds={"one process": alone, "on Flink": mine.spent},
        note="by processor time: what is left per core",
    )
    durable = _durable(job, setting)
    yield Finding(
        on_flink,
        "of the speed in one process with a ledger",
        durable.elapsed / mine.spent.elapsed,
        durable.processor / mine.spent.processor,
        seconds={"one process with a ledger": durable, "on Flink": mine.spent},
        note="both commit each window to a ledger, and deliver from there into a folder",
    )


def true_answers(job: Job) -> NDArray[np.bool_]:
    """Compute the answers of the local engine."""
    return ours.dense(Run(job.spec, _inputs(job)), job.scale, len(job.queries))


def _agreed(way: str, done: Done, expected: NDArray[np.bool_]) -> Done:
    """Check that the answers are the expected ones."""
    differ = int((done.detected != expected).sum())
    if differ:
        raise UnequalError(f"{way} differs from the local engine in {differ} answers")
    return done


def _inputs(job: Job) -> list[Input]:
    return [Input("events", open_source(path)) for path in job.files]


def _alone(job: Job, setting: Setting) -> Spent:
    """Run `tacit run` without a ledger, once to warm up and once to measure."""
    spec = job.spec
    plan = plan_without_history(spec, "uniform")

    def release() -> None:
        run = Run(spec, _inputs(job), plan=plan)
        with open_sink(setting.folder / "alone.parquet", run.schema) as sink:
            run.add_sink(sink)
            run.run()

    release()
    return timed(release)[1]


def _durable(job: Job, setting: Setting) -> Spent:
    """Run `tacit run` with a ledger and a folder for answers, once, when everything is warm."""
    plan = plan_without_history(job.spec, "uniform")
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        with (
            Ledger.open(str(folder / "ledger.db")) as ledger,
            open_resumable_sink(f"{folder / 'answers'}/") as sink,
        ):
            run = Run(job.spec, _inputs(job), plan=plan, ledger=ledger, sinks=[sink], name="bench")
            return timed(run.run)[1]


def _flink(ask: str, mode: str, job: Job, setting: Setting) -> Done:
    python = flink.environment(setting)
    return foreign.run(python, "flink_job", (ask, mode), job.parts, job.queries, job.scale)


def _spark(job: Job, setting: Setting) -> Done:
    python = foreign.java_environment(setting.folder / "spark", "pyspark>=4", "psutil")
    # An hour after the last window.
    closing = START // 1000 + (job.scale.windows + 60) * (WINDOW // 1000)
    words = ("--closing", str(closing))
    return foreign.run(python, "spark_job", words, job.parts, job.queries, job.scale)


FLINK_SQL = Rival("Flink SQL", 4, partial(_flink, "presence", "streaming"))
MATCH_RECOGNIZE = Rival("MATCH_RECOGNIZE", 10, partial(_flink, "order", "streaming"))
SPARK = Rival("Spark", 1, _spark)
# A batch has no watermarks, and answers when all of its input is there.
FLINK_BATCH = Rival("Flink SQL as a batch", 1, partial(_flink, "presence", "batch"))
MATCH_BATCH = Rival("MATCH_RECOGNIZE as a batch", 10, partial(_flink, "order", "batch"))
