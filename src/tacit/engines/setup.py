"""What the command line and Python share before a run: its registry, plan, ledger and places."""

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
"""How long a ledger keeps answers that have arrived, if nothing is said."""


@dataclass(frozen=True)
class LedgerOptions:
    """What a run leaves in a ledger."""

    place: str | None = field(repr=False)
    """The ledger; None where nothing is charged."""
    name: str
    """What the run is called there."""
    uncounted: bool = False
    """Whether the user said that what is spent is not counted."""
    follow: bool = False
    retain: float | None = None
    """Seconds for which answers that have arrived are kept."""

    @classmethod
    def of(
        cls,
        default_name: str,
        ledger: str | PathLike[str] | bool | None,
        name: str | None = None,
        follow: bool = False,
        retain: str = RETAIN,
    ) -> LedgerOptions:
        """As they were given; `ledger` is False where nobody is to count."""
        place = None if ledger is None or isinstance(ledger, bool) else os.fspath(ledger)
        if ledger is True:
            raise OptionError(f"{option('ledger')}: name a file, or postgresql://...")
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
                f"{limited.name} has a limit ({limited.limit}), which only a ledger can count:"
                f" name one with {option('ledger')}, or say {option('no-ledger')}"
            )
        live = next((one.source for one in inputs if one.source.live), None)
        if live is not None:
            raise OptionError(
                f"{live.name} has no end, so answers can only be released from a ledger: name one"
                f" with {option('ledger')}"
            )


def with_registry(
    spec: Specification, subjects: str | PathLike[str] | None, learn: str | None
) -> Specification:
    """The specification with another registry: a file of subjects, or a stretch to learn from."""
    if subjects is not None and learn is not None:
        raise OptionError(f"{option('subjects')} and {option('learn')} exclude each other")
    if subjects is not None:
        given: SubjectFile | LearnedSubjects = SubjectFile(file=os.path.abspath(subjects))
    elif learn is not None:
        try:
            long = parse_duration(learn)
        except ValueError as error:
            raise OptionError(f"{option('learn')}: {error}") from error
        if not long:
            raise OptionError(f"{option('learn')}: learn from more than nothing")
        given = LearnedSubjects.model_validate({"learn": learn})
    else:
        return spec
    return spec.model_copy(update={"subjects": given})


def chosen_plan(
    spec: Specification, plan: Plan | str | PathLike[str] | None, mechanism: str | None = None
) -> Plan:
    """The plan that is given, or in a file; or one that needs no history, if that will do."""
    if plan is None:
        private = {name for pattern in spec.private_patterns for name in elements(pattern)}
        asked = {name for pattern in spec.query_patterns.values() for name in elements(pattern)}
        # Where no query touches anything private, there is nothing to plan.
        return plan_without_history(spec, mechanism if private & asked else "uniform")
    what = "the plan" if isinstance(plan, Plan) else os.fspath(plan)
    if not isinstance(plan, Plan):
        plan = Plan.load(plan, spec)
    if mechanism not in (None, "auto", plan.mechanism):
        made = command(f"tacit plan --mechanism {mechanism}", f"plan(mechanism='{mechanism}')")
        raise PlanError(
            f"{what} is for the mechanism {plan.mechanism}, not for {mechanism}: make another with"
            f" {made}, or leave {option('mechanism')} out"
        )
    return plan


def letters_beside(sink: str, letters: Path | None) -> Path | None:
    """Where dead letters go: where it says, or beside the sink."""
    if letters is None and has_placeholders(sink):
        template = FileTemplate(sink)
        beside = template.base / "dead-letters.jsonl"
        return template.base / ".dead-letters.jsonl" if template.matches(beside) else beside
    if letters is None and sink != "-" and "://" not in sink and Path(sink).name:
        return Path(sink).with_suffix(".dead-letters.jsonl")
    return letters


def refuse_overwrite(
    targets: Iterable[str | PathLike[str] | None], inputs: Iterable[str | PathLike[str] | None]
) -> None:
    """Refuse to write over what is read."""
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
    """The same for a name with placeholders: one of its files might be an input."""
    template = FileTemplate(target)
    for given in inputs:
        if os.path.exists(given) and template.matches(given, folders=True):
            raise SinkError(f"{target} may be {given}, which is read; choose another place")
