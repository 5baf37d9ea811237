"""Plans: data that says what is done with private elements and open answers, and how well.

A plan is made for one specification and carries it with its fingerprint. What it protects comes
from the specification each time it is read; a plan can only say how.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError, SinkError
from tacit.events.streams import COLUMN_TYPES
from tacit.patterns.tree import Pattern
from tacit.privacy.exponentials import written
from tacit.privacy.mechanisms import load
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.policies import Policies, Policy, declared_patterns
from tacit.privacy.quality import Confusion, micro_alpha
from tacit.spec.canon import canonical
from tacit.spec.columntypes import RecordedTypes
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Private, Specification

FORMAT: Final = 1


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
        counts = [np.array(plain[part], np.float64) for part in ("tp", "fp", "fn")]
        names, alphas = tuple(map(str, plain["queries"])), tuple(map(float, plain["alphas"]))
        if any(part.shape != (len(names),) or not np.isfinite(part).all() for part in counts):
            raise ValueError("counts")
        if len(alphas) != len(names):
            raise ValueError("alphas")
        return cls(names, alphas, Confusion(*counts))


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What a protected run does, for each policy of a specification."""

    spec: Specification
    mechanism: str
    decode: str
    mechanisms: tuple[Mechanism, ...]
    """For each policy what protects it, in the specification's order."""
    windows: int = 0
    """How many windows of history it was made from; 0 is none."""
    expected: Expected | None = None
    share: Fraction = Fraction(1)
    """The share of every private pattern's epsilon that is spent."""
    past: Expected | None = None
    """What to expect for subjects whose limit is reached, where there are limits."""
    written: Mapping[str, Any] | None = None
    """The specification as it is written in a plan, where it was read from there."""
    columns: RecordedTypes = field(default_factory=dict)
    """For each stream the types that columns had in history."""

    @property
    def specification(self) -> Mapping[str, Any]:
        """The canonical form of the specification that it was made for."""
        return canonical(self.spec) if self.written is None else self.written

    @property
    def fingerprint(self) -> str:
        """That of the specification that it was made for."""
        return self.spec.fingerprint if self.written is None else _fingerprint(self.written)

    def check(self, spec: Specification) -> None:
        """Raise PlanError unless it was made for this specification; the registry may differ."""
        same = spec
        if spec.subjects != self.spec.subjects:
            same = spec.model_copy(update={"subjects": self.spec.subjects})
        if same.fingerprint != self.fingerprint:
            raise PlanError(_OTHER)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies with the epsilons that are spent on a unit: a window, or an occurrence."""
        return tuple(policy.scaled(self.share) for policy in Policies(self.spec).policies)

    def spent_per_window(self, private: Private) -> Fraction:
        """What each released window costs one of the specification's private patterns.

        Where windows slide, a mechanism that flips elements draws for each pane, and one pane ends
        with each window. One that draws answers does so for each window: all windows that an
        occurrence may change cost its epsilon together.
        """
        pattern = declared_patterns(self.spec)[self.spec.private.index(private)]
        windows = 1 if self.draws_panes else pattern.windows(self.spec.windows.panes)
        return pattern.epsilon * self.share / windows

    @property
    def draws_panes(self) -> bool:
        """Whether noise is drawn for panes, by any of its mechanisms; else it is for windows."""
        return any(mechanism.draws_panes for mechanism in self.mechanisms)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        columns = {"columns": self.columns} if self.columns else {}
        return columns | {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "specification": self.specification,
            "mechanism": self.mechanism,
            "decode": self.decode,
            "share": written(self.share),
            "windows": self.windows,
            "expected": None if self.expected is None else self.expected.to_dict(),
            "past": None if self.past is None else self.past.to_dict(),
            "schemes": [write_mechanism(mechanism) for mechanism in self.mechanisms],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, whole or not at all, readable by its owner alone.

        It holds figures about history, so keep it from consumers.
        """
        folder, name = os.path.split(os.fspath(path))
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=folder or ".")
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    json.dump(self.to_dict(), file)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise SinkError(f"{path} cannot be written: {why}; choose another place") from error

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], spec: Specification | None = None) -> Plan:
        """The plan that was written, audited again, for a specification.

        Without one, for the specification that is written in it, which is enough for an audit;
        areas and the conditions of events are left out, since no epsilon depends on them.
        """
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise PlanError(_NO_PLAN)
        try:
            written = None if spec is not None else plain["specification"]
            if spec is None:
                spec, fingerprint = _outlined(plain["specification"]), _fingerprint(written)
            else:
                fingerprint = spec.fingerprint
            if plain.get("fingerprint") != fingerprint:
                raise PlanError(_OTHER if written is None else _CHANGED)
            return _read(plain, spec, written)
        except _DAMAGED as error:
            raise PlanError(f"the plan is damaged ({type(error).__name__}); {_AGAIN}") from error

    @classmethod
    def load(cls, path: str | PathLike[str], spec: Specification | None = None) -> Plan:
        """Read a plan for this specification; raises PlanError where it is not one."""
        return cls.from_dict(read_plain(path), spec)

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


def read_plain(path: str | PathLike[str]) -> Mapping[str, Any]:
    """The plain data of a plan in a file, not looked at but for its format."""
    try:
        plain = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError as error:
        raise PlanError(f"the plan {path} does not exist; make it with tacit plan") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not a plan; make it with tacit plan") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise PlanError(f"{path}: {_NO_PLAN}")
    return plain


_AGAIN: Final = "make a new one with tacit plan"
_NO_PLAN: Final = "this is not a plan, or one of another version; make it with tacit plan"
_OTHER: Final = (
    "this plan was made for another specification, or the specification has changed since;"
    f" {_AGAIN}"
)
_CHANGED: Final = (
    "the specification in this plan is not the one that the plan was made for: the file was "
    f"changed; {_AGAIN}"
)
_DAMAGED: Final = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)


def _read(plain: Mapping[str, Any], spec: Specification, written: Mapping[str, Any] | None) -> Plan:
    share = Fraction(plain["share"])
    expected, past = plain["expected"], plain.get("past")
    policies = [policy.scaled(share) for policy in Policies(spec).policies]
    queries = tuple(spec.query_patterns.values())
    if not 0 < share <= 1 or len(policies) != len(plain["schemes"]):
        raise ValueError("share or schemes")
    name = str(plain["mechanism"])
    return Plan(
        spec,
        name,
        str(plain["decode"]),
        tuple(
            read_mechanism(name, part, policy, queries, spec.windows.panes)
            for part, policy in zip(plain["schemes"], policies, strict=True)
        ),
        int(plain["windows"]),
        None if expected is None else Expected.from_dict(expected),
        share,
        None if past is None else Expected.from_dict(past),
        written,
        _recorded(plain.get("columns", {}), spec),
    )


def write_mechanism(mechanism: Mechanism) -> dict[str, Any]:
    """What protects one policy, as plain data."""
    return {"kind": mechanism.kind, **mechanism.to_dict()}


def read_mechanism(
    name: str, plain: Mapping[str, Any], policy: Policy, queries: Sequence[Pattern], panes: int = 1
) -> Mechanism:
    """What was written for one policy by the mechanism of this name.

    What is protected comes from the specification, not from what was written: channels are
    audited against the neighbours and the epsilons that it asks for.
    """
    try:
        known = {chosen.kind: chosen for chosen in (Unprotected, load(name))}
        if plain["kind"] not in known:
            raise PlanError(f"the plan is not one of the mechanism {name}; {_AGAIN}")
        return known[plain["kind"]].from_dict(plain, policy, queries, panes)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PlanError(f"the plan is damaged ({type(error).__name__}); {_AGAIN}") from error


def _recorded(plain: Mapping[str, Any], spec: Specification) -> RecordedTypes:
    """The types of columns; those of streams that the specification has."""
    found = {stream: dict(types) for stream, types in plain.items()}
    if not found.keys() <= spec.streams.keys() or any(
        kind not in COLUMN_TYPES for types in found.values() for kind in types.values()
    ):
        raise ValueError("columns")
    return found


def _fingerprint(written: Mapping[str, Any] | None) -> str:
    """The fingerprint of a specification in its canonical form."""
    text = json.dumps(written, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _outlined(written: Mapping[str, Any]) -> Specification:
    """What a canonical form says about private patterns and queries."""
    return Specification.model_validate(
        {
            "mechanism": written["mechanism"],
            "decode": written["decode"],
            "streams": written["streams"],
            "windows": _spans(written["windows"]),
            "events": {name: {"stream": event["stream"]} for name, event in written["events"]},
            "patterns": written["patterns"],
            "private": [
                {**private, "epsilon": Decimal(private["epsilon"]), "limit": None}
                for private in written["private"]
            ],
            "queries": written["queries"],
        }
    )


def _spans(written: Mapping[str, Any]) -> dict[str, Any]:
    """The size of windows and how far apart they begin."""
    return {name: written[name] for name in ("size", "slide") if written.get(name) is not None}


def unit(spec: Specification) -> str:
    """What every epsilon of a specification is for."""
    return f"for one subject, one private pattern and one {spec.windows.unit}"


def overlapping(plan: Plan) -> list[str]:
    """Where windows slide, what is drawn how often, and what that spends; else nothing."""
    panes = plan.spec.windows.panes
    if panes == 1:
        return []
    if MECHANISMS[plan.mechanism].randomises == "elements":
        return [
            f"A window has {panes} panes. Noise is drawn once for each pane, and an occurrence"
            " changes each element in one."
        ]
    return [
        f"An occurrence of {pattern.name} may change {pattern.windows(panes)} windows: in each of"
        f" them epsilon {written(plan.spent_per_window(private))} is spent."
        for private, pattern in zip(plan.spec.private, declared_patterns(plan.spec), strict=True)
    ]


def element_shares(mechanisms: Sequence[Mechanism]) -> list[dict[str, Fraction]]:
    """For each policy the epsilon of each element, where it flips elements."""
    return [mechanism.element_epsilons for mechanism in mechanisms]
