"""What subjects may choose: private patterns with epsilon and limit, within the operator's bounds.

A choice becomes an entry of the specification that names its subjects, and replaces the entry for
all subjects. Which subject protects what counts as known, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError, model_validator

from tacit.config import Config
from tacit.errors import OptionError, SpecificationError, nearest
from tacit.patterns.language import parse_pattern
from tacit.spec.epsilon import Epsilon, Limit, LimitText
from tacit.spec.specification import Private, Specification

MOST_POLICIES: Final = 64
"""The most different policies: each has mechanisms of its own, which must be planned."""


class CatalogueEntry(Config):
    """The bounds for the choices of one private pattern."""

    epsilon: tuple[Epsilon, Epsilon]
    """The least and the most epsilon."""
    limit: tuple[LimitText, LimitText] | None = None
    """The least and the most limit; by default the limit of the specification stays."""

    @model_validator(mode="after")
    def _check_order(self) -> CatalogueEntry:
        if self.epsilon[0] > self.epsilon[1]:
            raise ValueError("the least epsilon is more than the most")
        if self.limit is not None and (
            self.limit[0].horizon != self.limit[1].horizon
            or self.limit[0].amount > self.limit[1].amount
        ):
            raise ValueError("the two limits need the same period, the smaller one first")
        return self


@dataclass(frozen=True, slots=True)
class Choice:
    """What a subject chose for a private pattern."""

    subject: str
    pattern: str
    epsilon: Decimal
    limit: Limit | None

    def to_dict(self) -> dict[str, str | None]:
        """Return plain data that can be written as JSON."""
        return {
            "subject": self.subject,
            "pattern": self.pattern,
            "epsilon": str(self.epsilon),
            "limit": None if self.limit is None else str(self.limit),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Choice:
        """Read what `to_dict` wrote."""
        return cls(
            plain["subject"],
            plain["pattern"],
            Decimal(plain["epsilon"]),
            read_limit(plain["limit"]),
        )


Catalogue = Mapping[str, CatalogueEntry]
"""The bounds of each private pattern, by the name of the pattern."""


def load_catalogue(path: Path, spec: Specification) -> Catalogue:
    """Read a catalogue file: for each pattern the bounds of epsilon and limit."""
    try:
        plain = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError(f"{path} cannot be read as YAML") from error
    if not isinstance(plain, dict) or not plain:
        raise OptionError(
            f"{path}: expected patterns with bounds, such as visit: {{epsilon: [1, 2]}}"
        )
    known = [*spec.patterns, *spec.events]
    found = {}
    for name, bounds in plain.items():
        if name not in known:
            raise OptionError(
                f"{path}: no pattern or event is called '{name}'.{nearest(str(name), known)}"
            )
        try:
            found[str(name)] = CatalogueEntry.model_validate(bounds)
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"])
            raise OptionError(
                f"{path}: {name}: {reason}; expected bounds such as {{epsilon: [0.5, 2], limit:"
                " [10 per day, 100 per day]}"
            ) from error
    return found


def default_catalogue(spec: Specification) -> Catalogue:
    """Return the bounds without a catalogue file: whatever is stricter than what is declared."""
    found = {}
    for private in spec.private:
        if private.subjects is None and private.name in {*spec.patterns, *spec.events}:
            least = min(private.epsilon, Decimal("0.01"))
            limit = None
            if private.limit is not None:
                low = private.limit.model_copy(update={"amount": least})
                limit = (low, private.limit)
            found[private.name] = CatalogueEntry.model_construct(
                epsilon=(least, private.epsilon), limit=limit
            )
    return found


def read_epsilon(text: str) -> Decimal:
    """Read an epsilon that someone typed."""
    try:
        return Decimal(text.strip())
    except InvalidOperation as error:
        raise OptionError(f"epsilon must be a number, such as 1.0; got {text[:40]!r}") from error


def read_limit(text: str | None) -> Limit | None:
    """Read a limit that someone typed; nothing is no limit."""
    if text is None or not text.strip():
        return None
    try:
        return Limit.model_validate(text.strip())
    except ValidationError as error:
        raise OptionError("expected a limit such as '20 per day'") from error


def find_declared(spec: Specification, subject: str, pattern: str) -> Private | None:
    """Return the entry of a pattern that applies to a subject; None if it is not private."""
    own = (spec.private[number] for number in sorted(spec.applying(subject)))
    return next((private for private in own if private.name == pattern), None)


def check_choice(catalogue: Catalogue, choice: Choice) -> None:
    """Raise OptionError if a choice is outside of the operator's bounds."""
    bounds = catalogue.get(choice.pattern)
    if bounds is None:
        raise OptionError(f"the catalogue has no pattern called '{choice.pattern}'")
    low, high = bounds.epsilon
    if not (choice.epsilon.is_finite() and low <= choice.epsilon <= high):
        raise OptionError(f"epsilon must be from {low} to {high}")
    if bounds.limit is not None:
        least, most = bounds.limit
        limit = choice.limit
        if (
            limit is None
            or limit.horizon != least.horizon
            or not least.amount <= limit.amount <= most.amount
        ):
            raise OptionError(f"the limit must be from {least} to {most}")


def is_stricter(before: Private | None, choice: Choice) -> bool:
    """Return whether a choice reveals no more than what applied before, in every respect."""
    if before is None:
        return True
    if choice.epsilon > before.epsilon:
        return False
    if before.limit is None:
        return True
    return (
        choice.limit is not None
        and choice.limit.horizon == before.limit.horizon
        and choice.limit.amount <= before.limit.amount
    )


def apply_choices(base: Specification, choices: Sequence[Choice]) -> Specification:
    """Return the specification with the choices of subjects; raise if it has mistakes.

    Subjects with the same choice share an entry, and so a policy.
    """
    if not choices:
        return base
    chosen: dict[str, set[str]] = {}
    groups: dict[tuple[str, Decimal, str], list[Choice]] = {}
    for choice in sorted(choices, key=lambda one: (one.pattern, one.subject)):
        chosen.setdefault(choice.pattern, set()).add(choice.subject)
        key = choice.pattern, choice.epsilon, str(choice.limit)
        groups.setdefault(key, []).append(choice)
    kept = []
    for private in base.private:
        if private.subjects is not None and private.name in chosen:
            rest = tuple(one for one in private.subjects if one not in chosen[private.name])
            if not rest:
                continue
            private = private.model_copy(update={"subjects": rest})
        kept.append(private)
    made = [
        Private(
            pattern=parse_pattern(pattern),
            epsilon=epsilon,
            limit=own[0].limit,
            subjects=tuple(one.subject for one in own),
        )
        for (pattern, epsilon, _), own in sorted(groups.items())
    ]
    spec = base.model_copy(update={"private": (*kept, *made)})
    mistakes = spec.check()
    if mistakes:
        raise SpecificationError(mistakes)
    return spec
