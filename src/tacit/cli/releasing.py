"""`tacit run --ledger`: releases that are charged, kept until they have arrived, and made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from tacit.cli.operating import Operating
from tacit.cli.reporting import Summary, Tally, watching
from tacit.cli.running import Told
from tacit.connectors.deadletters import DeadLetters
from tacit.connectors.opening import open_outlet
from tacit.counting import count
from tacit.engines.durable import Durable, Outcome
from tacit.engines.local import Input
from tacit.engines.refusals import Refusals
from tacit.engines.setup import LedgerOptions
from tacit.engines.terms import Terms
from tacit.ledger.charges import NANO
from tacit.ledger.ledger import Ledger
from tacit.privacy.exponentials import written
from tacit.privacy.noise import Noise


def run_durably(
    terms: Terms,
    reread: Callable[[], Terms],
    inputs: Sequence[Input],
    plan_file: Path | None,
    sink: str,
    letters: Path | None,
    noise: Noise,
    options: LedgerOptions,
    operating: Operating,
) -> tuple[Charged, Refusals]:
    """Run until the input ends or a signal says stop; what came of it, and what was refused."""
    tally = Tally()
    live = any(input_.source.live for input_ in inputs)
    with (
        operating.logging(live=live),
        operating.listening() as calls,
        Ledger.open(options.place or "") as ledger,
        open_outlet(sink) as outlet,
        DeadLetters(letters, keep=True) as dead_letters,
        watching([] if live else [input_.source for input_ in inputs]) as watch,
    ):
        run = Durable(
            terms.spec,
            inputs,
            terms.plan,
            ledger,
            [outlet],
            run=options.name,
            noise=noise,
            dead_letters=dead_letters,
            progress=None if live else watch,
            released=tally.add,
            retain=options.retain,
            reread=reread,
        )
        calls.answer(run.stop, run.reload)
        with operating.showing(run.status, live=live):
            outcome = run.run()
        summary = Summary.of(run.detection, tally, protected=noise.private)
    plan = run.engine.terms.plan
    charged = Charged(
        plan, plan_file, summary, run.engine.warnings, outcome, ledger.name, options.name
    )
    return charged, run.detection.refusals


@dataclass(frozen=True)
class Charged(Told):
    """What the operator is told of a run with a ledger."""

    outcome: Outcome
    ledger: str
    name: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **super().as_dict(),
            "ledger": self.ledger,
            "run": self.name,
            "outcome": asdict(self.outcome),
        }

    def _afterwards(self) -> str:
        """What was charged, and how the run ended."""
        outcome = self.outcome
        amounts = ", ".join(
            f"{written(Fraction(amount, NANO))} for {private}"
            for private, amount in outcome.charged.items()
        )
        begun = "went on" if outcome.resumed else "was begun"
        lines = [
            f"The run '{self.name}' in the ledger {self.ledger} {begun}:"
            f" {count(outcome.windows, 'window')}, charged"
            f" epsilon {amounts or 0}, summed over subjects and windows."
        ]
        if outcome.finished and outcome.resumed and not outcome.windows:
            lines.append("All windows of this input had been released before; nothing is new.")
        if outcome.exhausted:
            lines.append(
                f"Limits were reached {count(outcome.exhausted, 'time')}, counted by subject and"
                " window: those answers are from public events and the prior alone."
            )
        if not outcome.finished:
            lines.append("It was told to stop; open windows are kept, and it can go on.")
        if outcome.undelivered:
            lines.append("Some releases have not arrived; they are delivered when it goes on.")
        return "\n".join(lines)
