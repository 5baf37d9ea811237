"""What `tacit run` reports to the operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final

from tacit.cli.run_summary import RunSummary
from tacit.engines.setup import Place
from tacit.pipeline.settlement import RunOutcome
from tacit.planning.plan import Plan, describe_unit
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.prices import NANO
from tacit.quantities import count

AGAIN: Final = "Another run over the same windows draws new noise and spends this epsilon again."
SEEDED: Final = (
    "NOT PRIVATE: the noise is seeded. Anyone who knows the seed can compute the true answers;"
    " never give these answers to consumers."
)


@dataclass(frozen=True)
class RunReport:
    """The report on a protected run without a ledger."""

    plan: Plan
    plan_file: Plan | Place | None
    summary: RunSummary
    warnings: Sequence[str]
    """Warnings about names in the registry."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            **self.summary.to_dict(),
            "for": "the operator alone",
            "not_private": None if self.summary.protected else SEEDED,
            "mechanism": self.plan.mechanism,
            "decode": self.plan.decode,
            "plan": None if self.plan_file is None else str(self.plan_file),
            "spent": list_spent(self.plan),
            "unit": describe_unit(self.plan.spec),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        source = "without a plan" if self.plan_file is None else f"using the plan {self.plan_file}"
        made = "protected with" if self.summary.protected else "with seeded noise from"
        lines = [f"Answers {made} {self.plan.mechanism}, {source}."]
        amounts = [
            f"{one['epsilon']} for {one['private']}{_format_subjects(one['subjects'])}"
            for one in list_spent(self.plan)
        ]
        if amounts and not self.summary.windows:
            nothing = "Nothing was spent: no window was released."
            lines += [nothing, self._format_consequences()]
        elif amounts:
            spent = f"Spent {describe_unit(self.plan.spec)}: at most epsilon {', '.join(amounts)}."
            lines += [spent, self._format_consequences()]
        else:
            lines = ["Nothing is declared private, so the answers are true."]
        if not self.summary.protected:
            lines.insert(0, SEEDED)
        lines += [f"For the operator only: {self.summary}"]
        return "\n".join([*lines, *(f"Warning: {message}." for message in self.warnings)])

    def _format_consequences(self) -> str:
        """Say what another run over the same windows does."""
        return AGAIN if self.summary.windows else "Another run over this input draws new noise."


@dataclass(frozen=True)
class LedgerRunReport(RunReport):
    """The report on a protected run with a ledger."""

    outcome: RunOutcome
    ledger: str
    name: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            **super().to_dict(),
            "ledger": self.ledger,
            "run": self.name,
            "outcome": asdict(self.outcome),
        }

    def _format_consequences(self) -> str:
        """Say what was charged, and how the run ended."""
        outcome = self.outcome
        amounts = ", ".join(
            f"{format_epsilon(Fraction(amount, NANO))} for {private}"
            for private, amount in outcome.charged.items()
        )
        started = "resumed" if outcome.resumed else "started"
        lines = [
            f"The run '{self.name}' {started} in the ledger {self.ledger}:"
            f" {count(outcome.windows, 'window')}, charged"
            f" epsilon {amounts or 0}, summed over subjects and windows."
        ]
        if outcome.finished and outcome.resumed and not outcome.windows:
            lines.append("All windows of this input were already released.")
        earlier = outcome.delivered - self.summary.answers
        if earlier > 0:
            lines.append(
                f"Delivered {count(earlier, 'answer')} of earlier releases that the output did not"
                " have yet."
            )
        if outcome.exhausted:
            lines.append(
                f"Not paid for: {count(outcome.exhausted, 'time')}, counted by subject and window,"
                " because a limit was reached or saved for later. Those answers use only public"
                " events and what was known before."
            )
        if not outcome.finished:
            lines.append(
                "The run was stopped. Open windows are saved; give the same command again to"
                " resume."
            )
        if outcome.undelivered:
            lines.append("Some releases are not delivered yet; they will be when the run resumes.")
        return "\n".join(lines)


def list_spent(plan: Plan) -> list[dict[str, Any]]:
    """Return what is spent for each declared private pattern."""
    return [
        {
            "private": private.name,
            "epsilon": format_epsilon(plan.spent(private)),
            "subjects": None if private.subjects is None else len(private.subjects),
        }
        for private in plan.spec.private
    ]


def _format_subjects(subjects: int | None) -> str:
    return "" if subjects is None else f" of {count(subjects, 'subject')}"
