"""Set a run up: its specification, plan, registry, sources, ledger and outputs.

`RunOptions` has a step for each of these, and each step raises an error if something is wrong. A
run takes the steps in order. `tacit doctor` takes the same steps, reports every error, and starts
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tacit.connectors.frames import FrameSource
from tacit.connectors.openers import open_input
from tacit.connectors.placeholders import FileTemplate, has_placeholders
from tacit.durations import parse_duration
from tacit.errors import OptionError, PlanError, SinkError, SourceError, nearest
from tacit.kernels.threads import ALL_CORES, Workers
from tacit.options import command, option
from tacit.patterns.tree import elements
from tacit.pipeline.reader import Input
from tacit.pipeline.sources import Source
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.planning.planner import plan_without_history
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec import yaml_reader
from tacit.spec.specification import Specification
from tacit.spec.subjects import LearnedSubjects, SubjectFile

Place: TypeAlias = str | PathLike[str]
SpecSource: TypeAlias = Specification | str | PathLike[str]
"""A specification, or the path of its file."""
Target: TypeAlias = str | PathLike[str] | Callable[[pa.Table], None]
"""The target of answers: a path or URL, or a function that receives Arrow tables."""
RETAIN = "7 d"
"""The default time for which a ledger keeps delivered answers."""


@dataclass(frozen=True)
class RunOptions:
    """A run as its user describes it, and the steps that set it up."""

    spec: SpecSource
    sources: Sequence[tuple[str | None, Any]] = field(default=(), repr=False)
    """Each source with its stream, if that was named."""
    plan: Plan | Place | None = None
    mechanism: str | None = None
    to: Target | None = field(default=None, repr=False)
    dead_letters: Place | None = None
    subjects: Place | None = None
    learn: str | None = None
    seed: int | None = None
    ledger: Place | bool | None = field(default=None, repr=False)
    """False turns the counting of epsilon off."""
    name: str | None = None
    follow: bool = False
    retain: str = RETAIN
    threads: int | None = None
    """The threads that insert tuples and draw noise; None for all cores."""
    counts_to: Target | None = field(default=None, repr=False)
    """Where counts go; by default they stay in memory or in the ledger."""
    allow_paths: Sequence[Path] = ()
    """Folders outside of the specification's in which it may name files."""

    def check_options(self) -> None:
        """Raise OptionError for options that are invalid or contradict each other."""
        if self.ledger is True:
            raise OptionError(f"{option('ledger')}: give a file, or postgresql://...")
        if self.ledger_place is None and (self.name is not None or self.follow):
            needs = option("follow" if self.follow else "name")
            raise OptionError(f"{needs} needs {option('ledger')}")
        if self.name is not None and not self.name.strip():
            raise OptionError(f"{option('name')}: a run needs a name")
        self.retain_seconds()

    @property
    def workers(self) -> Workers:
        """The threads of the run."""
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"{option('threads')}: expected at least 1; got {self.threads}")
        return ALL_CORES if self.threads is None else Workers(self.threads)

    def load(self) -> Specification:
        """Read the specification."""
        if isinstance(self.spec, Specification):
            return self.spec
        if not isinstance(self.spec, str | PathLike) or "\n" in os.fspath(self.spec):
            raise OptionError(
                "expected a specification or the path of its file; tacit.loads reads one from YAML"
                " text or a dictionary"
            )
        return yaml_reader.load(self.spec, self.allow_paths)

    def register(self, declared: Specification) -> Specification:
        """Return the specification with the registry of these options."""
        return replace_registry(declared, self.subjects, self.learn)

    def read(self) -> SpecVersion:
        """Read the specification and the plan."""
        self.check_options()
        declared = self.load()
        plan = choose_plan(declared, self.plan, self.mechanism)
        return SpecVersion(self.register(declared), plan)

    def open_inputs(self, spec: Specification) -> list[Input]:
        """Open all sources and assign them to streams."""
        opened = [(stream, self.open_source(stream, given)) for stream, given in self.sources]
        return assign(spec, opened)

    def open_source(self, stream: str | None, given: Any) -> Source:
        """Open a source: an open one, a path or URL, or a frame."""
        if isinstance(given, Source):
            return given
        if isinstance(given, str | PathLike):
            return open_input(given, follow=self.follow)
        return FrameSource(given, stream or "frame")

    def check_ledger(self, spec: Specification, inputs: Sequence[Input]) -> None:
        """Raise OptionError if the run needs a ledger and has none."""
        if self.ledger_place is not None:
            return
        limited = next((one for one in spec.private if one.limit is not None), None)
        if limited is not None and self.ledger is not False:
            raise OptionError(
                f"{limited.name} has a limit ({limited.limit}), which only a ledger can enforce:"
                f" set one with {option('ledger')}, or use {option('no-ledger')}"
            )
        live = next((one.source for one in inputs if one.source.live), None)
        if live is not None:
            raise OptionError(
                f"{live.name} has no end, so answers can only be released from a ledger: set one"
                f" with {option('ledger')}"
            )

    def check_counts(self, spec: Specification) -> None:
        """Raise OptionError if counts have no place to go, or a place and none to go there."""
        if self.counts_to is not None and not spec.count_queries:
            raise OptionError(
                f"{option('counts-to')}: no query of this specification counts subjects; write one"
                " with count:"
            )
        lost = self.counts_to is None and self.to is not None and self.ledger_place is None
        if spec.count_queries and lost:
            raise OptionError(
                f"the query {spec.count_queries[0].name} counts subjects: say where its counts go"
                f" with {option('counts-to')}"
            )

    def check_places(self) -> None:
        """Raise an error if an output would overwrite an input."""
        written = [self.target, self.letters, self.ledger_place, self.counts_target]
        given = [self.spec, self.plan, self.subjects, *(source for _, source in self.sources)]
        refuse_overwrite(written, [one for one in given if isinstance(one, str | PathLike)])

    def prepare(self, spec: Specification) -> list[Input]:
        """Open the sources, and check that answers can be released and written."""
        inputs = self.open_inputs(spec)
        self.check_counts(spec)
        self.check_ledger(spec, inputs)
        self.check_places()
        return inputs

    @property
    def run_name(self) -> str:
        """The name of the run in its ledger; by default that of the specification's file."""
        default = "tacit" if isinstance(self.spec, Specification) else Path(self.spec).stem
        return self.name or default

    def retain_seconds(self) -> float:
        """Return for how long the ledger keeps delivered answers."""
        try:
            return parse_duration(self.retain) / 1_000_000
        except ValueError as error:
            raise OptionError(f"{option('retain')}: {error}") from error

    @property
    def ledger_place(self) -> str | None:
        """The path or URL of the ledger, if there is one."""
        given = self.ledger
        return None if given is None or isinstance(given, bool) else os.fspath(given)

    @property
    def target(self) -> str | None:
        """The path or URL that answers are written to, if there is one."""
        return None if self.to is None or callable(self.to) else os.fspath(self.to)

    @property
    def counts_target(self) -> str | None:
        """The path or URL that counts are written to, if there is one."""
        given = self.counts_to
        return None if given is None or callable(given) else os.fspath(given)

    @property
    def letters(self) -> Path | None:
        """The file for dead letters, if there is one."""
        given = None if self.dead_letters is None else Path(self.dead_letters)
        return given if self.target is None else letters_beside(self.target, given)

    def noise(self) -> Noise:
        """Return the source of randomness."""
        return Noise() if self.seed is None else Noise(SeededSource(self.seed))


def assign(spec: Specification, sources: Sequence[tuple[str | None, Source]]) -> list[Input]:
    """Assign sources to streams; a source without a name feeds the only stream."""
    inputs = []
    for stream, source in sources:
        if stream is None and len(spec.streams) > 1:
            raise SourceError(
                f"{source.name}: which of the streams {', '.join(spec.streams)} is this? "
                + command(
                    f"Write stream={source.name}", "Name the stream: {'stream': source}, or stream="
                )
            )
        name = next(iter(spec.streams)) if stream is None else stream
        if name not in spec.streams:
            raise SourceError(f"no stream is called '{name}'.{nearest(name, list(spec.streams))}")
        source.separate_by(spec.streams[name].delimiter)
        inputs.append(Input(name, source))
    return inputs


def replace_registry(
    spec: Specification, subjects: str | PathLike[str] | None, learn: str | None
) -> Specification:
    """Replace the registry of a specification: by a file of subjects, or a time to learn."""
    if subjects is not None and learn is not None:
        raise OptionError(f"{option('subjects')} and {option('learn')} exclude each other")
    by = next((query for query in spec.count_queries if query.by is not None), None)
    if by is not None and (subjects is not None or learn is not None):
        raise OptionError(
            f"the counts of {by.name} need the column {by.by} of the registry file: name the file"
            f" under subjects in the specification, not with"
            f" {option('learn' if subjects is None else 'subjects')}"
        )
    if subjects is not None:
        given: SubjectFile | LearnedSubjects = SubjectFile(file=os.path.abspath(subjects))
    elif learn is not None:
        try:
            duration = parse_duration(learn)
        except ValueError as error:
            raise OptionError(f"{option('learn')}: {error}") from error
        if not duration:
            raise OptionError(f"{option('learn')}: the duration must be more than 0")
        given = LearnedSubjects.model_validate({"learn": learn})
    else:
        return spec
    return spec.model_copy(update={"subjects": given})


def choose_plan(
    spec: Specification, plan: Plan | str | PathLike[str] | None, mechanism: str | None = None
) -> Plan:
    """Return the given plan, or read it; without one, plan without history if possible."""
    if plan is None:
        private = {name for pattern in spec.private_patterns for name in elements(pattern)}
        asked = {name for pattern in spec.query_patterns.values() for name in elements(pattern)}
        # If no query uses a private event type, there is nothing to plan.
        return plan_without_history(spec, mechanism if private & asked else "uniform")
    what = "the plan" if isinstance(plan, Plan) else os.fspath(plan)
    if not isinstance(plan, Plan):
        plan = Plan.load(plan, spec)
    if mechanism not in (None, "auto", plan.mechanism):
        maker = command(f"tacit plan --mechanism {mechanism}", f"plan(mechanism='{mechanism}')")
        raise PlanError(
            f"{what} is for the mechanism {plan.mechanism}, not for {mechanism}: make another with"
            f" {maker}, or leave {option('mechanism')} out"
        )
    return plan


def letters_beside(sink: str, dead_letters: Path | None) -> Path | None:
    """Return the file of dead letters: the given one, or one beside the sink."""
    if dead_letters is None and has_placeholders(sink):
        template = FileTemplate(sink)
        beside = template.base / "dead-letters.jsonl"
        return template.base / ".dead-letters.jsonl" if template.matches(beside) else beside
    if dead_letters is None and sink != "-" and "://" not in sink and Path(sink).name:
        return Path(sink).with_suffix(".dead-letters.jsonl")
    return dead_letters


def refuse_overwrite(
    targets: Iterable[str | PathLike[str] | None], inputs: Iterable[str | PathLike[str] | None]
) -> None:
    """Refuse to overwrite an input."""
    names = [os.fspath(one) for one in inputs if one is not None]
    for target in (os.fspath(one) for one in targets if one is not None):
        if has_placeholders(target):
            _refuse_matching(target, names)
        for given in names:
            if not (os.path.exists(target) and os.path.exists(given)):
                continue
            folder = Path(given) if Path(given).is_dir() else None
            if os.path.samefile(target, given) or Path(target).absolute().parent == folder:
                raise SinkError(f"{target} is read by this run; choose another place to write to")


def _refuse_matching(target: str, inputs: Sequence[str]) -> None:
    """Refuse a target with placeholders if one of its files may be an input."""
    template = FileTemplate(target)
    for given in inputs:
        if os.path.exists(given) and template.matches(given, folders=True):
            raise SinkError(f"{target} may be {given}, which is an input; choose another place")
