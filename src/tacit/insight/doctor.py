"""Check a set-up before it runs, without changing it and without touching a run in progress.

The findings are for the operator. They mention files, brokers and counts of subjects, never
events.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tacit.connectors.brokers import is_broker, probe, required_modules
from tacit.connectors.openers import open_input, open_resumable_sink
from tacit.connectors.placeholders import FileTemplate, has_placeholders
from tacit.connectors.writers import SUFFIXES
from tacit.engines.local import assign, named_sources
from tacit.engines.setup import letters_beside
from tacit.errors import LedgerError, SchemaError, SinkError, SourceError, SpecificationError
from tacit.insight.audit import audit
from tacit.insight.findings import Findings
from tacit.insight.surroundings import (
    is_remote,
    look_at_clock,
    look_at_doors,
    look_at_extras,
    look_at_room,
    needed_modules,
)
from tacit.options import command, option
from tacit.pipeline.checkpoints import Checkpoint
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.registry import read_subjects
from tacit.pipeline.sources import EmptySourceError, Source
from tacit.planning.plan import Plan
from tacit.planning.planner import plan_without_history
from tacit.privacy.named_subjects import check_names
from tacit.quantities import count
from tacit.spec.specification import Specification
from tacit.spec.subjects import LearnedSubjects, SubjectFile, listed
from tacit.spec.yaml_reader import load

if TYPE_CHECKING:  # it needs an extra
    from tacit.ledger.overview import LedgerOverview


@dataclass(frozen=True)
class Setup:
    """The set-up to check, with the options of `tacit run`."""

    spec: Path
    sources: tuple[str, ...] = field(default=(), repr=False)
    plan: Path | None = None
    ledger: str | None = field(default=None, repr=False)
    run: str | None = None
    """What the run is called in the ledger; by default as the specification's file."""
    sink: str | None = field(default=None, repr=False)
    subjects: Path | None = None
    dead_letters: Path | None = None
    allow_paths: tuple[Path, ...] = ()
    """Folders outside of the specification's in which it may name files."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Whatever may hold a secret."""
        return tuple(one for one in (*self.sources, self.ledger, self.sink) if one is not None)


def examine(setup: Setup) -> Findings:
    """Check all parts; an error in one part does not prevent the check of the others."""
    findings = Findings(setup.addresses)
    spec = _specification(findings, setup)
    bare = [_stream_and_place(text)[1] for text in setup.sources]
    missing = look_at_extras(findings, needed_modules(bare, setup.sink, setup.ledger))
    plan = None if spec is None else _plan(findings, setup, spec)
    subjects = None if spec is None else _registry(findings, setup, spec, missing)
    live = _sources(findings, setup, spec, plan, missing)
    found = _ledger(findings, setup, spec, missing)
    _sink(findings, setup, missing)
    if subjects is None and found is not None:
        subjects = found.subjects or None
    look_at_room(findings, spec, subjects, setup.sink, setup.ledger)
    committed, ahead = (None, None) if found is None else (found.committed, found.ahead)
    look_at_clock(findings, spec, live=live, committed=committed, ahead=ahead)
    files = [Path(text) for text in bare if text != "-" and "://" not in text]
    ledger = [] if setup.ledger is None or "://" in setup.ledger else [Path(setup.ledger)]
    letters = [] if setup.dead_letters is None else [setup.dead_letters]
    plans = [] if setup.plan is None else [setup.plan]
    look_at_doors(findings, [*files, *ledger, *letters, *plans], [setup.spec, *plans])
    return findings


def doctor(
    spec: str | os.PathLike[str],
    *sources: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    plan: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    to: str | os.PathLike[str] | None = None,
    name: str | None = None,
    subjects: str | os.PathLike[str] | None = None,
    dead_letters: str | os.PathLike[str] | None = None,
    **streams: str | os.PathLike[str],
) -> Findings:
    """Check a set-up before it runs: pass the arguments of `tacit.run`, as paths and URLs.

    Nothing is changed. `passed` of the result says whether everything is right.
    """
    sink = None if to is None else os.fspath(to)
    letters = None if dead_letters is None else Path(dead_letters)
    return examine(
        Setup(
            Path(spec),
            tuple(
                os.fspath(source) if stream is None else f"{stream}={os.fspath(source)}"
                for stream, source in named_sources(sources, streams)
            ),
            None if plan is None else Path(plan),
            None if ledger is None else os.fspath(ledger),
            name,
            sink,
            None if subjects is None else Path(subjects),
            letters if sink is None else letters_beside(sink, letters),
        )
    )


def _specification(findings: Findings, setup: Setup) -> Specification | None:
    with findings.judging("specification"):
        spec = load(setup.spec, setup.allow_paths)
        findings.ok("specification", f"{setup.spec} is valid: {spec}")
        if not spec.queries:
            findings.warn("specification", "there are no queries, so there will be no answers")
        if not spec.private:
            findings.warn("specification", "nothing is private, so all answers are true")
        limited = next((one for one in spec.private if one.limit is not None), None)
        if limited is not None and setup.ledger is None:
            findings.wrong(
                "specification",
                f"{limited.name} has a limit ({limited.limit}), which only a ledger can count:"
                f" name one with {option('ledger')}",
            )
        return spec
    return None


def _plan(findings: Findings, setup: Setup, spec: Specification) -> Plan | None:
    """The plan, if there is one that can be used."""
    with findings.judging("plan"):
        if setup.plan is None:
            made = plan_without_history(spec)
            findings.ok("plan", f"none is needed: {made.mechanism} does without")
            return None
        plan = Plan.load(setup.plan, spec)
        report = audit(plan)
        if not report.passed:
            findings.wrong(
                "plan",
                f"{setup.plan} reveals more than it may"
                f" ({command('tacit audit', 'tacit.audit')} says where); make a new one with"
                f" {command('tacit plan', 'tacit.plan')}",
            )
            return None
        past = f"{count(plan.windows, 'window')} of history" if plan.windows else "no history"
        findings.ok("plan", f"{setup.plan} fits and passes its audit: {plan.mechanism}, {past}")
        return plan
    return None


def _registry(
    findings: Findings, setup: Setup, spec: Specification, missing: Sequence[str]
) -> int | None:
    """How many subjects there are, as far as that is known before the run."""
    given = spec.subjects
    if setup.subjects is not None:
        given = SubjectFile(file=str(setup.subjects.absolute()))
    with findings.judging("registry"):
        if given is None or isinstance(given, LearnedSubjects):
            registry = (
                None if isinstance(given, LearnedSubjects) else _occurring(setup, spec, missing)
            )
        else:
            registry = pa.array(listed(given, spec.folder), pa.large_string())
        if registry is None:
            _learned(findings, spec)
            return None
        for message in check_names(spec, registry):
            findings.warn("registry", message)
        findings.ok("registry", count(len(registry), "subject"))
        return len(registry)
    return None


def _learned(findings: Findings, spec: Specification) -> None:
    findings.ok("registry", "learned from what comes in, then announced: see docs/operators.md")
    named = sum(len(private.subjects or ()) for private in spec.private)
    if named:
        findings.warn(
            "registry",
            f"private patterns name {count(named, 'subject')}. If one of them does not occur while"
            " subjects are learned, the run ends with an error before it releases anything; list"
            " the subjects to be sure",
        )


def _occurring(setup: Setup, spec: Specification, missing: Sequence[str]) -> pa.Array | None:
    """The subjects of files, if somebody is named who must be among them; None for other sources.

    What is wrong with a file is found when sources are looked at.
    """
    if missing or not setup.sources or not any(private.subjects for private in spec.private):
        return None
    given = [_stream_and_place(text) for text in setup.sources]
    if any(place == "-" or is_broker(place) for _, place in given):
        return None
    try:
        inputs = assign(spec, [(stream, open_input(place)) for stream, place in given])
        if any(input_.source.once or input_.source.live for input_ in inputs):
            return None
        return read_subjects(CompiledSpec(spec), inputs).names
    except (SourceError, SchemaError, SpecificationError):
        return None


def _stream_and_place(text: str) -> tuple[str | None, str]:
    stream, _, place = text.partition("=")
    return (stream, place) if _names_stream(text) else (None, text)


def _names_stream(text: str) -> bool:
    stream, sign, _ = text.partition("=")
    return bool(sign) and stream.isidentifier() and not Path(text).exists()


def _sources(
    findings: Findings,
    setup: Setup,
    spec: Specification | None,
    plan: Plan | None,
    missing: Sequence[str],
) -> bool:
    """Whether any of them has no end."""
    live, fed = False, set[str]()
    recorded = {} if plan is None else plan.columns
    flow = None if spec is None else CompiledSpec(spec, recorded=recorded)
    for text in setup.sources:
        stream, place = _stream_and_place(text)
        lives = is_broker(place)
        live |= lives
        if spec is not None:
            fed.add(stream or next(iter(spec.streams)))
        if lives and missing:
            continue
        with findings.judging("source"):
            source = open_input(place)
            if spec is not None and flow is not None:
                (input_,) = assign(spec, [(stream, source)])
                _one_source(findings, place, source, flow, input_.stream)
        if lives:
            with findings.judging("source"):
                findings.ok("source", probe(place, source=True))
    if spec is not None and setup.sources:
        for stream in spec.streams.keys() - fed:
            findings.wrong("source", f"no source is given for {stream}: write {stream}=SOURCE")
    if spec is not None and spec.windows.close == "clock" and setup.sources and not live:
        findings.wrong(
            "source",
            "windows close by the clock (windows.close: clock), but these are files; read a source"
            " that lives, or write close: events",
        )
    return live


def _one_source(
    findings: Findings, place: str, source: Source, flow: CompiledSpec, stream: str
) -> None:
    """Whether it can be read, and has the columns that are wanted."""
    if place == "-":
        findings.ok("source", "standard input: it is looked at when it comes")
        return
    try:
        schema = flow.schema(stream, source)
    except EmptySourceError:
        findings.warn("source", f"{source.name} is empty")
        return
    flow.check([(stream, schema)])
    columns = "; ".join(_described(name, source, flow, stream) for name in flow.columns(stream))
    findings.ok("source", f"{source.name} can be read as {stream}. Columns: {columns}")


def _described(name: str, source: Source, flow: CompiledSpec, stream: str) -> str:
    """The type of a column, and where it is known from."""
    if not source.textual and name not in flow.spec.streams[stream].columns:
        return f"{name} is {source.schema().field(name).type} (the source's own type)"
    found = flow.types.resolve(stream, name, source.declared_types())
    return f"{name} is {found.type} ({found.origin})"


def _ledger(
    findings: Findings, setup: Setup, spec: Specification | None, missing: Sequence[str]
) -> LedgerOverview | None:
    """What it says of itself, if it is there and can be read."""
    if setup.ledger is None:
        if spec is not None and spec.private:
            findings.warn("ledger", f"none: spending is not recorded; see {option('ledger')}")
        return None
    if {"sqlalchemy", "alembic", "psycopg"}.intersection(missing):
        return None
    from tacit.ledger.overview import glance

    name = setup.run or setup.spec.stem
    with findings.judging("ledger"):
        _place(findings, setup.ledger)
        found = glance(setup.ledger, name)
        if found is None:
            findings.ok("ledger", "none yet: the first run creates it")
            return None
        if not found.sound:
            findings.wrong(
                "ledger",
                "its last link is broken: it was changed since it was written. Run tacit ledger"
                " verify, and restore a backup",
            )
        else:
            told = f"{count(found.releases, 'release')}, {count(found.subjects, 'subject')}"
            findings.ok("ledger", f"{found.name} can be read, and its last link holds: {told}")
        if found.run is not None:
            _run(findings, name, found.run.checkpoint, found.run.sound, spec)
        return found
    return None


def _place(findings: Findings, place: str) -> None:
    """Whether a ledger in a file can be written there."""
    if "://" in place:
        return
    path = Path(place).expanduser().absolute()
    if not path.parent.is_dir():
        raise LedgerError(f"{path.parent} is no folder; create it or choose another place")
    closed = [one for one in (path.parent, path) if one.exists() and not os.access(one, os.W_OK)]
    if closed:
        raise LedgerError(f"{closed[0]} cannot be written, but a ledger must be; change its owner")
    if is_remote(path.parent):
        findings.warn(
            "ledger",
            f"{path} lies on another machine's disk, where locks may not hold; put it on a disk of"
            " this one, or use postgresql://",
        )


def _run(
    findings: Findings,
    name: str,
    checkpoint: bytes | None,
    sound: bool,
    spec: Specification | None,
) -> None:
    """Whether a run can go on from where it was."""
    if not sound:
        findings.wrong(
            "run", f"the state of '{name}' in the ledger was changed; restore a backup of it"
        )
        return
    if checkpoint is None:
        findings.ok("run", f"'{name}' has begun, and has no checkpoint yet")
        return
    kept = Checkpoint.from_bytes(checkpoint)
    if spec is None or kept.fingerprint == spec.fingerprint:
        findings.ok("run", f"'{name}' resumes where it stopped")
        return
    findings.warn(
        "run",
        f"'{name}' was last run with another specification, or another registry: it resumes"
        " only if windows and streams are the same. To start from the beginning, give another"
        f" {option('name')}",
    )


def _sink(findings: Findings, setup: Setup, missing: Sequence[str]) -> None:
    if setup.sink is None:
        return
    with findings.judging("sink"):
        if is_broker(setup.sink):
            if required_modules(setup.sink).keys() & set(missing):
                return
            if setup.ledger is None:
                raise SinkError(
                    f"answers go to a broker from a ledger alone: name one with {option('ledger')}"
                )
            open_resumable_sink(setup.sink).close()
            findings.ok("sink", probe(setup.sink, source=False))
            return
        if setup.ledger is not None:
            open_resumable_sink(setup.sink).close()
        elif setup.sink != "-" and not setup.sink.lower().endswith(tuple(SUFFIXES)):
            raise SinkError(f"{setup.sink}: expected a name ending in {', '.join(SUFFIXES)}, or -")
        if setup.sink == "-":
            findings.ok("sink", "standard output, as JSON lines")
            return
        if has_placeholders(setup.sink):
            template = FileTemplate(setup.sink)
            _writable(template.base / "answers")
            findings.ok("sink", f"{setup.sink}: {template.base} can be written")
            return
        findings.ok("sink", f"{_writable(Path(setup.sink))} can be written")


def _writable(path: Path) -> Path:
    """The file or folder itself; raises SinkError where it cannot be written."""
    # A folder of parts may be written folder/*.csv, and is made if only it is missing.
    target = path.parent if path.name.startswith("*") else path
    folder = target.absolute().parent
    if not folder.is_dir():
        raise SinkError(f"{path}: its folder does not exist; create it or choose another place")
    for place in (folder, target):
        if place.exists() and not os.access(place, os.W_OK):
            raise SinkError(f"{place} cannot be written; change its owner or choose another place")
    return path
