"""Check a set-up before it runs, without changing it and without touching a run in progress.

It takes the steps by which a run is set up (`tacit.engines.setup`, `tacit.pipeline.startup`) and
turns their errors into findings. A step is skipped if it needs one that failed. Nothing is started:
no run is taken over, no output is opened, and nothing is acknowledged to a broker.

The findings are for the operator. They mention files, brokers and counts of subjects, never
events.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tacit.connectors.brokers import is_broker, probe, required_modules
from tacit.connectors.openers import check_sink, open_input, open_resumable_sink
from tacit.connectors.placeholders import FileTemplate, has_placeholders
from tacit.engines.local import name_sources
from tacit.engines.setup import RETAIN, Place, RunOptions, SpecSource, assign, choose_plan
from tacit.errors import OutdatedLedgerError, SourceError, StateError, TacitError
from tacit.insight.audit import audit
from tacit.insight.environment import (
    check_clock,
    check_extras,
    check_permissions,
    check_space,
    is_remote,
    list_needed_modules,
)
from tacit.insight.findings import Findings
from tacit.options import command, option
from tacit.pipeline.checkpoints import Checkpoint
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input, check_different, resume_inputs
from tacit.pipeline.reloads import check_inputs
from tacit.pipeline.sinks import check_regular
from tacit.pipeline.sources import STANDARD_INPUT, EmptySourceError, Source
from tacit.pipeline.startup import check_sources, open_engine, read_checkpoint, with_content
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.mechanisms.optimal.memory.learning import count_recent_steps
from tacit.quantities import count
from tacit.spec.specification import Specification

if TYPE_CHECKING:  # it needs an extra
    from tacit.ledger.overview import LedgerOverview, RunOverview


_DRIFTED: Final = 0.1
"""Above this share of changes that history does not predict, a new plan is advised."""
_ENOUGH: Final = 1000
"""With fewer recent changes, drift may be chance."""


def examine(options: RunOptions) -> Findings:
    """Check all parts; an error in one part does not prevent the check of the others."""
    sources = _paths(source for _, source in options.sources)
    ledger, target = options.ledger_place, options.target
    findings = Findings(_paths([*sources, ledger, target]))
    declared = _specification(findings, options)
    missing = check_extras(findings, list_needed_modules(sources, target, ledger))
    spec = version = compiled = None
    if declared is not None:
        with findings.catch_errors("registry"):
            spec = options.register(declared)
            version = _plan(findings, options, declared, spec)
            compiled = CompiledSpec(spec) if version is None else version.compile(options.noise())
    opened, inputs = _sources(findings, options, compiled, missing)
    found = _ledger(findings, options, spec, opened, missing)
    letters = _sink(findings, options, missing)
    checkpoint = None
    if found is not None and found.run is not None:
        checkpoint = _checkpoint(findings, options, found.run)
    subjects = None
    if compiled is not None:
        subjects = _engine(findings, options, compiled, version, inputs, checkpoint)
    if subjects is None and found is not None:
        subjects = found.subjects or None
    check_space(findings, spec, subjects, target, ledger)
    live = any(input_.source.live for input_ in opened) or any(map(is_broker, sources))
    committed, ahead = (None, None) if found is None else (found.committed, found.ahead)
    check_clock(findings, spec, live=live, committed=committed, ahead=ahead)
    plans = _paths([options.plan])
    secret = spec is None or bool(spec.private)
    private = _paths([*sources, ledger, letters, *plans]) if secret else []
    files = [Path(place) for place in private if place != "-" and "://" not in place]
    check_permissions(findings, files, [Path(place) for place in (*_paths([options.spec]), *plans)])
    return findings


def doctor(
    spec: SpecSource,
    *sources: Place | Mapping[str, Place],
    plan: Place | None = None,
    mechanism: str | None = None,
    to: Place | None = None,
    dead_letters: Place | None = None,
    subjects: Place | None = None,
    learn: str | None = None,
    seed: int | None = None,
    ledger: Place | Literal[False] | None = None,
    name: str | None = None,
    follow: bool = False,
    retain: str = RETAIN,
    **streams: Place,
) -> Findings:
    """Check a set-up before it runs: pass the arguments of `tacit.run`, as paths and URLs.

    Nothing is changed. `passed` of the result says whether everything is right.
    """
    given = name_sources(sources, streams)
    options = RunOptions(spec, given, plan, mechanism, to, dead_letters, subjects, learn, seed)
    return examine(replace(options, ledger=ledger, name=name, follow=follow, retain=retain))


def _paths(given: Iterable[Any]) -> list[str]:
    """Return the paths and URLs among these, as text."""
    return [os.fspath(one) for one in given if isinstance(one, str | os.PathLike)]


def _specification(findings: Findings, options: RunOptions) -> Specification | None:
    with findings.catch_errors("specification"):
        spec = options.load()
        findings.ok("specification", f"{options.spec} is valid: {spec}")
        if not spec.queries:
            findings.warn("specification", "there are no queries, so there will be no answers")
        if not spec.private:
            findings.warn("specification", "nothing is private, so all answers are true")
        return spec
    return None


def _plan(
    findings: Findings, options: RunOptions, declared: Specification, spec: Specification
) -> SpecVersion | None:
    """Return the specification with its plan, if the plan can be used."""
    with findings.catch_errors("plan"):
        plan = choose_plan(declared, options.plan, options.mechanism)
        version = SpecVersion(spec, plan)
        version.check()
        past = f"{count(plan.windows, 'window')} of history" if plan.windows else "no history"
        if options.plan is None:
            reason = f"{plan.mechanism} does without" if spec.private else "nothing is private"
            findings.ok("plan", f"none is needed: {reason}")
        elif audit(plan).passed:
            fits = f"{options.plan} fits and passes its audit"
            memory = " with memory" if plan.has_memory else ""
            findings.ok("plan", f"{fits}: {plan.mechanism}{memory}, {past}")
        else:
            findings.wrong(
                "plan",
                f"{options.plan} reveals more than it may"
                f" ({command('tacit audit', 'tacit.audit')} says where); make a new one with"
                f" {command('tacit plan', 'tacit.plan')}",
            )
        return version
    return None


def _sources(
    findings: Findings, options: RunOptions, compiled: CompiledSpec | None, missing: Sequence[str]
) -> tuple[list[Input], list[Input] | None]:
    """Return what can be opened, and the inputs of the run; None if it would refuse them."""
    before = len(findings.of("wrong"))
    opened: list[Input] = []
    readable: list[Input] = []
    for stream, given in options.sources:
        if missing and is_broker(str(given)):
            continue
        with findings.catch_errors("source"):
            source = options.open_source(stream, given)
            if compiled is not None:
                opened += assign(compiled.spec, [(stream, source)])
                readable += _readable(findings, options, compiled, opened[-1], given)
    if compiled is None or not options.sources:
        return opened, None
    if len(opened) == len(options.sources):
        durable = options.ledger_place is not None
        with findings.catch_errors("source"):
            check_sources(compiled.spec, opened, durable=durable)
        with findings.catch_errors("source"):
            check_different(opened, resumable=durable)
    empty = _columns(findings, compiled, readable, complete=len(readable) == len(options.sources))
    for _, given in options.sources:
        if is_broker(str(given)) and not missing:
            with findings.catch_errors("source"):
                findings.ok("source", probe(given, source=True))
    if len(opened) < len(options.sources) or len(findings.of("wrong")) > before:
        return opened, None
    return opened, [input_ for input_ in opened if input_ not in empty]


def _readable(
    findings: Findings, options: RunOptions, compiled: CompiledSpec, input_: Input, given: Any
) -> list[Input]:
    """Return the input, or a growing file as it is now, if a check can read it.

    A run waits for the first line of a growing file, and reads standard input as it comes.
    """
    if input_.source.name == STANDARD_INPUT:
        findings.ok("source", "standard input: it is checked when it is read")
        return []
    if not options.follow or is_broker(str(given)):
        return [input_]
    try:
        source = open_input(given)
        source.separate_by(compiled.spec.streams[input_.stream].delimiter)
        source.schema()
    except SourceError as error:
        if not isinstance(error, EmptySourceError) and not Path(given).is_dir():
            raise
        findings.warn("source", f"{given} holds nothing yet: a run waits for it")
        return []
    return [Input(input_.stream, source)]


def _columns(
    findings: Findings, compiled: CompiledSpec, inputs: Sequence[Input], *, complete: bool
) -> list[Input]:
    """Check the columns; return the empty inputs.

    All may be empty only if there are others: if these are not the `complete` inputs of the run.
    """
    full: list[Input] = []
    empty: list[Input] = []
    for input_ in inputs:
        with findings.catch_errors("source"):
            try:
                full += with_content([input_])
            except EmptySourceError:
                empty.append(input_)
    with findings.catch_errors("source"):
        if complete and not full:
            with_content(empty)
        for input_ in empty:
            findings.warn("source", f"{input_.source.name} is empty")
    for input_ in full:
        source, stream = input_.source, input_.stream
        with suppress(TacitError):
            check_inputs(compiled, [input_])
            columns = "; ".join(
                _describe_column(one, source, compiled, stream) for one in compiled.columns(stream)
            )
            findings.ok("source", f"{source.name} can be read as {stream}. Columns: {columns}")
    with findings.catch_errors("source"):
        check_inputs(compiled, full)
    return empty


def _describe_column(name: str, source: Source, compiled: CompiledSpec, stream: str) -> str:
    """Describe the type of a column, and how it is known."""
    if not source.textual and name not in compiled.spec.streams[stream].columns:
        return f"{name} is {source.schema().field(name).type} (the source's own type)"
    found = compiled.types.resolve(stream, name, source.declared_types())
    return f"{name} is {found.type} ({found.origin})"


def _ledger(
    findings: Findings,
    options: RunOptions,
    spec: Specification | None,
    inputs: Sequence[Input],
    missing: Sequence[str],
) -> LedgerOverview | None:
    """Return an overview of the ledger, if it exists and can be read."""
    place = options.ledger_place
    with findings.catch_errors("ledger"):
        options.check_options()
        if spec is not None:
            options.check_ledger(spec, inputs)
            if place is None and spec.private:
                findings.warn("ledger", f"none: spending is not recorded; see {option('ledger')}")
        if place is None or {"sqlalchemy", "alembic", "psycopg"}.intersection(missing):
            return None
        from tacit.ledger.overview import read_overview

        path = Path(place).expanduser().absolute()
        if "://" not in place and path.parent.is_dir() and is_remote(path.parent):
            findings.warn(
                "ledger",
                f"{path} is on a network disk, where locks may not work; put it on a local disk"
                ", or use postgresql://",
            )
        try:
            found = read_overview(place, options.run_name)
        except OutdatedLedgerError as error:
            findings.warn("ledger", str(error))
            return None
        if found is None:
            findings.ok("ledger", "none yet: the first run creates it")
        elif not found.sound:
            findings.wrong(
                "ledger",
                "its last link is broken: it was changed since it was written. Run tacit ledger"
                " verify, and restore a backup",
            )
        else:
            holds = f"{count(found.releases, 'release')}, {count(found.subjects, 'subject')}"
            findings.ok("ledger", f"{found.name} can be read, and its last link holds: {holds}")
        return found
    return None


def _checkpoint(findings: Findings, options: RunOptions, run: RunOverview) -> Checkpoint | None:
    """Return the checkpoint that the run would resume from."""
    name = options.run_name
    if not run.sound:
        findings.wrong("run", f"the state of '{name}' was changed; restore a backup of it")
        return None
    with findings.catch_errors("run"):
        checkpoint = read_checkpoint(run.checkpoint(), private=options.seed is None)
        if checkpoint is None:
            findings.ok("run", f"'{name}' has begun, and has no checkpoint yet")
        return checkpoint
    return None


def _engine(
    findings: Findings,
    options: RunOptions,
    compiled: CompiledSpec,
    version: SpecVersion | None,
    inputs: Sequence[Input] | None,
    checkpoint: Checkpoint | None,
) -> int | None:
    """Create the engine of the run; return its number of subjects, if that is known."""
    spec = compiled.spec
    named = sum(len(private.subjects or ()) for private in spec.private)
    if checkpoint is not None and checkpoint.fingerprint != spec.fingerprint:
        findings.warn(
            "run",
            "it was last run with another specification or registry: this one is used from the next"
            f" window on. To start from the beginning, give another {option('name')}",
        )
    if checkpoint is not None and version is None:
        return None
    if checkpoint is None and spec.subjects is None and not (named and inputs):
        _report_learned(
            findings, named
        )  # a run reads whole files for their subjects; that is too long
        return None
    with findings.catch_errors("registry"), findings.catch_errors("run", StateError):
        engine = open_engine(compiled, version, options.noise(), inputs or (), checkpoint)
        if checkpoint is not None:
            findings.ok("run", f"'{options.run_name}' resumes where it stopped")
            _check_drift(findings, engine)
        if engine.learning:
            _report_learned(findings, named)
            return None
        engine.check_names()
        for message in engine.warnings:
            findings.warn("registry", message)
        findings.ok("registry", count(len(engine.subjects), "subject"))
        if checkpoint is not None and inputs:
            with findings.catch_errors("source"):
                resume_inputs(inputs, checkpoint.positions)
        return len(engine.subjects)
    return None


def _check_drift(findings: Findings, engine: Engine) -> None:
    """Say how far the present of a run is from history, if it has memory."""
    drift = engine.drift
    if drift is None:
        return
    steps = count_recent_steps(engine.window_state.memory)
    share = f"drift {drift:.0%}: so many of the recent changes are not predicted by history"
    if steps < _ENOUGH:
        findings.ok("memory", f"{share}; there were only {steps:,.0f} of them, too few to judge")
    elif drift > _DRIFTED:
        again = command("tacit plan", "tacit.plan")
        findings.warn("memory", f"{share}. Plan again from newer history, with {again}")
    else:
        findings.ok("memory", share)


def _report_learned(findings: Findings, named: int) -> None:
    findings.ok("registry", "learned from what comes in, then announced: see docs/operators.md")
    if named:
        findings.warn(
            "registry",
            f"private patterns name {count(named, 'subject')}. If one of them does not occur while"
            " subjects are learned, the run ends with an error before it releases anything; list"
            " the subjects to be sure",
        )


def _sink(findings: Findings, options: RunOptions, missing: Sequence[str]) -> Path | None:
    """Check the outputs for answers and dead letters; return the file for the latter."""
    target, letters = options.target, None
    with findings.catch_errors("sink"):
        letters = options.letters
        options.check_places()
        if letters is not None:
            check_regular(letters)
    if target is None or required_modules(target).keys() & set(missing):
        return letters
    with findings.catch_errors("sink"):
        if options.ledger_place is None:
            check_sink(target)
        else:
            open_resumable_sink(target).close()
        if is_broker(target):
            findings.ok("sink", probe(target, source=False))
        elif target == "-":
            findings.ok("sink", "standard output, as JSON lines")
        elif has_placeholders(target):
            findings.ok("sink", f"{target}: {FileTemplate(target).base} can be written")
        else:
            findings.ok("sink", f"{target} can be written")
    return letters
