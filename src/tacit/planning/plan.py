"""Plans: data that says what is done with private elements and open answers, and how well.

A plan is made for one specification and carries its fingerprint. What it protects comes from
the specification each time it is read; a plan can only say how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.planning.quality import Confusion, micro_alpha
from tacit.planning.schemes import ElementScheme, OptimalScheme, Scheme, scheme_from_dict
from tacit.privacy.exponentials import written
from tacit.privacy.policies import Policies, Policy
from tacit.spec.specification import Specification

FORMAT: Final = 1
UNIT: Final = "for one subject, one private pattern and one window"


@dataclass(frozen=True, slots=True)
class Expected:
    """What to expect of the answers to each query, in windows of history."""

    queries: tuple[str, ...]
    alphas: tuple[float, ...]
    confusion: Confusion[NDArray[np.float64]]

    @property
    def quality(self) -> float:
        """The micro average over all queries."""
        return self.confusion.total().quality(micro_alpha(self.alphas))

    @property
    def mre(self) -> float:
        """The share of quality that is lost, over all queries."""
        return self.confusion.total().mre(micro_alpha(self.alphas))

    def rows(self) -> list[dict[str, Any]]:
        """For each query its expected precision, recall, quality and error."""
        alphas = np.array(self.alphas)
        columns = {
            "precision": self.confusion.precision,
            "recall": self.confusion.recall,
            "quality": self.confusion.quality(alphas),
            "mre": self.confusion.mre(alphas),
        }
        return [
            {"query": name} | {label: float(column[n]) for label, column in columns.items()}
            for n, name in enumerate(self.queries)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "queries": list(self.queries),
            "alphas": list(self.alphas),
            **{part: getattr(self.confusion, part).tolist() for part in ("tp", "fp", "fn")},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Expected:
        """What was written."""
        counts = (np.array(plain[part], np.float64) for part in ("tp", "fp", "fn"))
        return cls(tuple(plain["queries"]), tuple(plain["alphas"]), Confusion(*counts))


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What a protected run does, for each policy of a specification."""

    spec: Specification
    mechanism: str
    decode: str
    schemes: tuple[Scheme, ...]
    """For each policy, in the specification's order."""
    windows: int = 0
    """How many windows of history it was made from; 0 is none."""
    expected: Expected | None = None
    share: Fraction = Fraction(1)
    """The share of every private pattern's epsilon that is spent."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies with the epsilons that are spent."""
        return tuple(policy.scaled(self.share) for policy in Policies(self.spec).policies)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "format": FORMAT,
            "fingerprint": self.spec.fingerprint,
            "mechanism": self.mechanism,
            "decode": self.decode,
            "share": written(self.share),
            "windows": self.windows,
            "expected": None if self.expected is None else self.expected.to_dict(),
            "schemes": [scheme.to_dict() for scheme in self.schemes],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON; it holds figures about history, so keep it from consumers."""
        Path(path).write_text(json.dumps(self.to_dict()), "utf-8")

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], spec: Specification) -> Plan:
        """The plan that was written for this specification, audited again."""
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise PlanError(
                "this is not a plan, or one of another version; make it with tacit plan"
            )
        if plain.get("fingerprint") != spec.fingerprint:
            raise PlanError(
                "this plan was made for another specification, or the specification has changed "
                "since; make it anew with tacit plan"
            )
        try:
            share = Fraction(plain["share"])
            expected = plain["expected"]
            policies = [policy.scaled(share) for policy in Policies(spec).policies]
            queries = tuple(spec.query_patterns.values())
            if not 0 < share <= 1 or len(policies) != len(plain["schemes"]):
                raise ValueError("share or schemes")
            return cls(
                spec,
                str(plain["mechanism"]),
                str(plain["decode"]),
                tuple(
                    scheme_from_dict(scheme, policy, queries)
                    for scheme, policy in zip(plain["schemes"], policies, strict=True)
                ),
                int(plain["windows"]),
                None if expected is None else Expected.from_dict(expected),
                share,
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise PlanError(
                f"the plan is damaged ({type(error).__name__}); make it anew with tacit plan"
            ) from error

    @classmethod
    def load(cls, path: str | PathLike[str], spec: Specification) -> Plan:
        """Read a plan for this specification; raises PlanError where it is not one."""
        try:
            plain = json.loads(Path(path).read_text("utf-8"))
        except FileNotFoundError as error:
            raise PlanError(f"the plan {path} does not exist; make it with tacit plan") from error
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise PlanError(f"{path} is not a plan; make it with tacit plan") from error
        return cls.from_dict(plain, spec)

    def __repr__(self) -> str:
        kept = f", {self.windows:,} windows of history" if self.windows else ", no history"
        quality = "" if self.expected is None else f", expected Q {self.expected.quality:.3f}"
        return f"<Plan: {self.mechanism}, decoded by {self.decode}{kept}{quality}>"

    def _repr_html_(self) -> str:
        if self.expected is None:
            return f"<p>{escape(repr(self))}</p>"
        rows = "".join(
            f"<tr><td>{escape(row['query'])}</td>"
            + "".join(
                f"<td>{row[label]:.3f}</td>" for label in ("precision", "recall", "quality", "mre")
            )
            + "</tr>"
            for row in self.expected.rows()
        )
        return (
            f"<table><caption>{escape(repr(self))}</caption><thead><tr><th>query</th>"
            "<th>precision</th><th>recall</th><th>Q</th><th>MRE</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def element_shares(schemes: Sequence[Scheme]) -> list[dict[str, Fraction]]:
    """For each scheme the epsilon of each element, where it flips elements."""
    return [
        scheme.elements.epsilons if isinstance(scheme, ElementScheme) else {} for scheme in schemes
    ]


def channels_made(schemes: Sequence[Scheme]) -> int:
    """How many channels a plan holds."""
    total = 0
    for scheme in schemes:
        if isinstance(scheme, ElementScheme):
            total += len(scheme.elements.channels)
        elif isinstance(scheme, OptimalScheme):
            total += sum(len(c.blocks) for planned in scheme.planned for c in planned.values())
    return total
