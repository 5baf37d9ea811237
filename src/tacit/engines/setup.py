"""Set-up of a run, shared by the command line and Python: registry, plan, ledger and paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.connectors.placeholders import FileTemplate, has_placeholders
from tacit.durations import parse_duration
from tacit.errors import OptionError, PlanError, SinkError
from tacit.options import command, option
from tacit.patterns.tree import elements
from tacit.planning.plan import Plan
from tacit.planning.planner import plan_without_history
from tacit.spec.specification import Specification
from tacit.spec.subjects import LearnedSubjects, SubjectFile

if TYPE_CHECKING:
    from tacit.pipeline.reader import Input

RETAIN = "7 d"
"""The default time for which a ledger keeps delivered answers."""


@dataclass(frozen=True)
class LedgerOptions:
    """The options of a run that concern its ledger."""

    place: str | None = field(repr=False)
    """The file or URL of the ledger; None without one."""
    name: str
    """The name of the run in the ledger."""
    uncounted: bool = False
    """Whether the user turned counting off."""
    follow: bool = False
    retain: float | None = None
    """Seconds for which delivered answers are kept."""

    @classmethod
    def of(
        cls,
        default_name: str,
        ledger: str | PathLike[str] | bool | None,
        name: str | None = None,
        follow: bool = False,
        retain: str = RETAIN,
    ) -> LedgerOptions:
        """Check and convert the options of a user; `ledger` is False to turn counting off."""
        place = None if ledger is None or isinstance(ledger, bool) else os.fspath(ledger)
        if ledger is True:
            raise OptionError(f"{option('ledger')}: give a file, or postgresql://...")
        if place is None and (name is not None or follow):
            raise OptionError(f"{option('follow' if follow else 'name')} needs {option('ledger')}")
        if name is not None and not name.strip():
            raise OptionError(f"{option('name')}: a run needs a name")
        try:
            kept = parse_duration(retain) / 1_000_000
        except ValueError as error:
            raise OptionError(f"{option('retain')}: {error}") from error
        return cls(place, name or default_name, ledger is False, follow, kept)

    def check(self, spec: Specification, inputs: Sequence[Input]) -> None:
        """Refuse a run that needs a ledger and has none."""
        if self.place is not None:
            return
        limited = next((one for one in spec.private if one.limit is not None), None)
        if limited is not None and not self.uncounted:
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


def replace_registry(
    spec: Specification, subjects: str | PathLike[str] | None, learn: str | None
) -> Specification:
    """Replace the registry of a specification: by a file of subjects, or a time to learn."""
    if subjects is not None and learn is not None:
        raise OptionError(f"{option('subjects')} and {option('learn')} exclude each other")
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
