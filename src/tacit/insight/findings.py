"""Findings of checks: what was checked, the result, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any, Final, Literal, TypeAlias

from tacit.errors import SpecificationError, TacitError
from tacit.masking import scrub
from tacit.quantities import count

Grade: TypeAlias = Literal["ok", "warning", "wrong"]
_WIDTH: Final = 100
_ABOUT: Final = 14


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    grade: Grade
    about: str
    """What was checked, in a word."""
    says: str
    """What was found, and what to do if it is wrong."""

    def lines(self) -> list[str]:
        """Format the finding for a terminal."""
        lead = f"{self.grade:<8} {self.about:<{_ABOUT}}"
        return wrap(
            self.says,
            _WIDTH,
            initial_indent=f"{lead} ",
            subsequent_indent=" " * (len(lead) + 1),
            break_long_words=False,
            break_on_hyphens=False,
        )


@dataclass(slots=True)
class Findings:
    """All findings, in the order of the checks.

    No finding repeats a secret from one of the `addresses`.
    """

    addresses: Sequence[str] = field(default=(), repr=False)
    all: list[Finding] = field(default_factory=list)

    def ok(self, about: str, says: str) -> None:
        """Record that a check passed."""
        self._add("ok", about, says)

    def warn(self, about: str, says: str) -> None:
        """Record a warning: it would run, but the operator should know."""
        self._add("warning", about, says)

    def wrong(self, about: str, says: str) -> None:
        """Record an error: it would not run, or not correctly."""
        self._add("wrong", about, says)

    @contextmanager
    def catch_errors(self, about: str, kind: type[TacitError] = TacitError) -> Iterator[None]:
        """Turn errors of this kind into findings, so that the remaining checks still run.

        An error that was found before is not repeated.
        """
        try:
            yield
        except kind as error:
            several = error.mistakes if isinstance(error, SpecificationError) else [error]
            known = {finding.says for finding in self.of("wrong")}
            for text in map(str, several):
                if scrub(text, *self.addresses) not in known:
                    self.wrong(about, text)

    def _add(self, grade: Grade, about: str, says: str) -> None:
        self.all.append(Finding(grade, about, scrub(says, *self.addresses)))

    def of(self, grade: Grade) -> Sequence[Finding]:
        """Return the findings of one grade."""
        return [finding for finding in self.all if finding.grade == grade]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.of("wrong")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, fit for JSON."""
        return {
            "passed": self.passed,
            "wrong": len(self.of("wrong")),
            "warnings": len(self.of("warning")),
            "findings": [asdict(finding) for finding in self.all],
        }

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [line for finding in self.all for line in finding.lines()]
        wrong, warnings = len(self.of("wrong")), len(self.of("warning"))
        last = "All is well." if not wrong + warnings else ""
        if wrong or warnings:
            found = [count(warnings, "warning")] if warnings else []
            found = [f"{wrong:,} wrong", *found] if wrong else found
            last = f"{', '.join(found)}." + ("" if wrong else " It can run.")
        return "\n".join([*lines, "", last])
