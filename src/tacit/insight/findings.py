"""Findings: what was looked at, how it stands, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any, Final, Literal, TypeAlias

from tacit.counting import count
from tacit.errors import SpecificationError, TacitError
from tacit.masking import scrub

Grade: TypeAlias = Literal["ok", "warning", "wrong"]
_WIDTH: Final = 100
_ABOUT: Final = 14


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    grade: Grade
    about: str
    """What was looked at, in a word."""
    says: str
    """What was found, and what to do where it is not right."""

    def lines(self) -> list[str]:
        """For a terminal."""
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
    """All that was found, in the order in which it was looked at.

    No finding repeats a secret that stands in one of the `addresses`.
    """

    addresses: Sequence[str] = field(default=(), repr=False)
    all: list[Finding] = field(default_factory=list)

    def ok(self, about: str, says: str) -> None:
        """Something is as it should be."""
        self._add("ok", about, says)

    def warn(self, about: str, says: str) -> None:
        """It would run, but the operator should know."""
        self._add("warning", about, says)

    def wrong(self, about: str, says: str) -> None:
        """It would not run, or not as it should."""
        self._add("wrong", about, says)

    @contextmanager
    def judging(self, about: str) -> Iterator[None]:
        """What is raised on purpose is something wrong, and the rest is looked at all the same."""
        try:
            yield
        except SpecificationError as error:
            for mistake in error.mistakes:
                self.wrong(about, str(mistake))
        except TacitError as error:
            self.wrong(about, str(error))

    def _add(self, grade: Grade, about: str, says: str) -> None:
        self.all.append(Finding(grade, about, scrub(says, *self.addresses)))

    def of(self, grade: Grade) -> Sequence[Finding]:
        """Those of a grade."""
        return [finding for finding in self.all if finding.grade == grade]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.of("wrong")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "passed": self.passed,
            "wrong": len(self.of("wrong")),
            "warnings": len(self.of("warning")),
            "findings": [asdict(finding) for finding in self.all],
        }

    def __str__(self) -> str:
        lines = [line for finding in self.all for line in finding.lines()]
        wrong, warnings = len(self.of("wrong")), len(self.of("warning"))
        last = "All is well." if not wrong + warnings else ""
        if wrong or warnings:
            found = [count(warnings, "warning")] if warnings else []
            found = [f"{wrong:,} wrong", *found] if wrong else found
            last = f"{', '.join(found)}." + ("" if wrong else " It can run.")
        return "\n".join([*lines, "", last])
