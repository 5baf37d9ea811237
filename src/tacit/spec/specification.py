"""A specification: what subjects, consumers and operators write down, as checked objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from tacit.config import Config, describe
from tacit.errors import Mistake, PatternError, SpecificationError
from tacit.events.areas import Area
from tacit.events.streams import Stream, Zone
from tacit.events.types import EventType
from tacit.patterns.language import parse_pattern
from tacit.patterns.names import Names
from tacit.patterns.tree import (
    MAX_DEPTH,
    And,
    Name,
    Not,
    Or,
    Pattern,
    Repeat,
    Seq,
    Where,
    Within,
    depth,
)
from tacit.spec.boolean_queries import MOST_VALUES, BooleanQuery, list_boolean_queries
from tacit.spec.checks import PartialSpec, find_mistakes
from tacit.spec.epsilon import Epsilon, EpsilonShare, LimitText
from tacit.spec.epsilon_split import find_overspending
from tacit.spec.mechanisms import mechanism_choices
from tacit.spec.subjects import Registry, Subjects
from tacit.windows.schedule import Windows


def _read_pattern(value: Any) -> Pattern:
    if isinstance(value, Name | Seq | And | Or | Not | Repeat | Within | Where):
        if depth(value) > MAX_DEPTH:
            raise ValueError(f"this pattern is nested more than {MAX_DEPTH} deep; name its parts")
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected a pattern, such as SEQ(a, b); got {describe(value)}")
    try:
        return parse_pattern(value)
    except PatternError as error:
        place = {"line": error.line, "column": error.column}
        context = {"message": error.message, **place}
        raise PydanticCustomError("pattern", "{message}", context) from error


def _read_share(value: Any) -> float:
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise ValueError(f"expected a number between 0 and 1, such as 0.5; got {describe(value)}")
    return float(value)


def _check_quality(quality: float) -> float:
    if quality == 0:
        raise ValueError("a required quality must be more than 0; leave it out to require none")
    return quality


def _read_optional_pattern(value: Any) -> Pattern | None:
    return None if value is None else _read_pattern(value)


def _write_optional_pattern(pattern: Pattern | None) -> str | None:
    return None if pattern is None else repr(pattern)


if TYPE_CHECKING:
    PatternText: TypeAlias = Pattern
    OptionalPattern: TypeAlias = Pattern | None
else:  # validating the tree's own types would only slow the start: `_read_pattern` does it
    _PATTERN_SCHEMA = WithJsonSchema(
        {"type": "string", "minLength": 1, "examples": ["SEQ(a, NOT b, c)"]}
    )
    PatternText = Annotated[
        Any, PlainValidator(_read_pattern), PlainSerializer(repr), _PATTERN_SCHEMA
    ]
    OptionalPattern = Annotated[
        Any,
        PlainValidator(_read_optional_pattern),
        PlainSerializer(_write_optional_pattern),
        _PATTERN_SCHEMA,
    ]
"""A pattern: text in a specification, a tree inside."""
Share = Annotated[
    float,
    BeforeValidator(_read_share),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]
Quality = Annotated[
    Share,
    AfterValidator(_check_quality),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
]


class Private(Config):
    """A pattern that subjects keep private, and how much may be revealed about it."""

    pattern: PatternText
    """The name of a pattern or event, or a pattern itself."""
    epsilon: Epsilon
    """How much may be revealed for each subject and window."""
    subjects: Subjects | None = None
    """The subjects that it applies to; by default all that no other entry of the pattern names."""
    limit: LimitText | None = None
    """The epsilon that may be spent in a period, such as `20 per day`; by default no limit."""
    spend: Literal["paced", "every"] = "paced"
    """How a limit is spent: `paced` over the period, where answers gain most from it, or on `every`
    open window until it is reached. Pacing needs memory."""

    @property
    def name(self) -> str:
        """The pattern's name, or its text."""
        return repr(self.pattern)


_BELONGING = {
    "pattern": ("alpha",),
    "one_of": (),
    "times": ("up_to",),
    "count": ("by", "share"),
}
"""The kinds of queries: the field that each has, and further fields that only it can have."""


class Query(Config):
    """What a consumer asks in every window: about each subject, or about how many subjects.

    It has one of `pattern`, `one_of`, `times` and `count`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [field]} for field in ("pattern", "one_of", "times", "count")],
            "dependentRequired": {
                "by": ["count"],
                "share": ["count"],
                "times": ["up_to"],
                "up_to": ["times"],
            },
        }
    )

    name: str
    """The name of the query in its answers."""
    consumer: str = Field(min_length=1)
    """Who receives the answers."""
    pattern: OptionalPattern = None
    """The pattern to detect for each subject: the name of a pattern or event, or a pattern."""
    one_of: dict[str, PatternText] | None = None
    """Which of these patterns is detected: the name of the first one, or `none`."""
    times: OptionalPattern = None
    """How often this pattern occurs: the number of matches one after the other, up to `up_to`."""
    up_to: Annotated[int, Field(ge=1, le=MOST_VALUES)] | None = None
    """The largest number that `times` reports; more matches count as this many."""
    count: OptionalPattern = None
    """The pattern to count instead: in how many subjects' windows it is detected."""
    by: Annotated[str, Field(min_length=1)] | None = None
    """For counts: a column of the registry file; there is one count for each of its values."""
    share: EpsilonShare | None = None
    """For counts: the share of epsilon that it may spend; 0 if it is to be counted from the answers
    to a query with the same pattern. By default the planner splits epsilon, and picks."""
    alpha: Share = 0.5
    """The weight of precision in its quality; recall has the rest."""
    quality: Quality | None = None
    """The quality that the consumer needs; by default the best possible. For `one_of` and `times`
    it is the share of windows in which the value is right."""

    @model_validator(mode="after")
    def _check_kind(self) -> Query:
        given = [kind for kind in _BELONGING if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                "a query has one of pattern: (whether it is detected), one_of: (which of several"
                " is), times: (how often it is) and count: (how many subjects); this one has"
                f" {' and '.join(given) or 'none of them'}"
            )
        for kind, fields in _BELONGING.items():
            for field in fields:
                if kind != given[0] and field in self.model_fields_set:
                    raise ValueError(
                        f"the field '{field}' is for queries with {kind}:; remove it here"
                    )
        if self.count is not None and "quality" in self.model_fields_set:
            raise ValueError(
                "the field 'quality' is for queries with pattern:, one_of: or times:; remove it"
                " here"
            )
        if self.times is not None and self.up_to is None:
            raise ValueError("times: needs up_to:, the largest number to tell, such as 5")
        return self

    @property
    def asks(self) -> str:
        """What it asks, as text."""
        if self.one_of is not None:
            return f"one of {', '.join(f'{name}: {own!r}' for name, own in self.one_of.items())}"
        if self.times is not None:
            return f"how often {self.times!r}, up to {self.up_to}"
        if self.count is None:
            return repr(self.pattern)
        return f"how many {self.count!r}" + ("" if self.by is None else f" by {self.by}")


def _read_mechanism(value: Any) -> str:
    if isinstance(value, str) and value in mechanism_choices():
        return value
    *first, last = (f"'{choice}'" for choice in mechanism_choices())
    # The error of a field with a fixed list of values, so that it reads like all the others.
    raise PydanticCustomError(
        "literal_error", "Input should be {expected}", {"expected": f"{', '.join(first)} or {last}"}
    )


MechanismName: TypeAlias = Annotated[
    str,
    PlainValidator(_read_mechanism),
    WithJsonSchema({"enum": mechanism_choices(), "type": "string"}),
]


class Settings(Config):
    """The simple fields of a specification."""

    version: Literal[1] = 1
    """The version of this format."""
    mechanism: MechanismName = "optimal"
    """How answers are protected; `auto` takes the mechanism with the best expected quality."""
    decode: Literal["posterior", "literal"] = "posterior"
    """How noisy events become answers: `posterior` or `literal` decoding."""
    objective: Literal["micro", "macro"] = "micro"
    """What plans maximise: quality over all answers, or the mean of the queries' qualities."""
    memory: bool = True
    """Whether answers also use what was released before, where history supports it."""
    subjects: Registry | None = None
    """The registry: a list of subjects, a file of them, or learned; by default set by the run."""
    zone: Zone = "UTC"
    """The time zone in which limits count, for subjects whose registry names no other."""


NOT_WRITTEN = ("folder", "allow_paths")
"""Fields that are not part of the written specification."""


class Specification(Settings):
    """Everything that is declared before a run."""

    streams: dict[str, Stream]
    """The streams of tuples, by name."""
    areas: dict[str, Area] = Field(default={})
    """Geographic areas, by name."""
    windows: Windows
    """The public schedule of answers."""
    events: dict[str, EventType]
    """The event types, by name: predicates over the tuples of one stream."""
    patterns: dict[str, PatternText] = Field(default={})
    """Patterns that others refer to, by name."""
    private: tuple[Private, ...] = ()
    """What subjects keep private."""
    queries: tuple[Query, ...] = ()
    """What consumers ask."""
    folder: SkipJsonSchema[Path] = Field(default=Path(), exclude=True, repr=False)
    """Where relative paths begin; not a part of the written specification."""
    allow_paths: SkipJsonSchema[tuple[Path, ...]] = Field(default=(), exclude=True, repr=False)
    """Folders outside of `folder` in which files may be named; not a part of it either."""

    def check(self) -> list[Mistake]:
        """Return every mistake that concerns several parts."""
        partial = PartialSpec(
            streams=self.streams,
            areas=self.areas,
            windows=self.windows,
            events=self.events,
            patterns=self.patterns,
            private=self.private,
            queries=self.queries,
            subjects=self.subjects,
            folder=self.folder,
            allow_paths=self.allow_paths,
        )
        found = list(find_mistakes(partial)) or list(find_overspending(self))
        return [Mistake(finding.message) for finding in found]

    def checked(self) -> Specification:
        """Return the specification itself; raise SpecificationError if it has mistakes."""
        if mistakes := self.check():
            raise SpecificationError(mistakes)
        return self

    @cached_property
    def types(self) -> dict[str, int]:
        """The number of each event type, in order of definition."""
        return {name: number for number, name in enumerate(self.events)}

    @cached_property
    def subject_queries(self) -> tuple[Query, ...]:
        """The queries that get an answer for each subject."""
        return tuple(query for query in self.queries if query.count is None)

    @cached_property
    def boolean_queries(self) -> tuple[BooleanQuery, ...]:
        """What is matched for each subject and window: one or several for each query."""
        resolve = self._names.resolve
        return tuple(
            one for query in self.subject_queries for one in list_boolean_queries(query, resolve)
        )

    @cached_property
    def count_queries(self) -> tuple[Query, ...]:
        """The queries that count subjects."""
        return tuple(query for query in self.queries if query.count is not None)

    @cached_property
    def query_patterns(self) -> dict[str, Pattern]:
        """The pattern of each boolean query, over event types only."""
        return {query.name: query.pattern for query in self.boolean_queries}

    @cached_property
    def count_patterns(self) -> dict[str, Pattern]:
        """The pattern of each query that counts subjects, over event types only."""
        return {
            query.name: self._names.resolve(query.count)
            for query in self.count_queries
            if query.count is not None
        }

    @cached_property
    def private_patterns(self) -> tuple[Pattern, ...]:
        """The patterns of `private`, in its order, over event types only."""
        return tuple(self.resolved(private) for private in self.private)

    @cached_property
    def _named(self) -> dict[str, frozenset[int]]:
        """The private patterns that name each subject, by number."""
        found: dict[str, set[int]] = {}
        for number, private in enumerate(self.private):
            for subject in private.subjects or ():
                found.setdefault(subject, set()).add(number)
        return {subject: frozenset(numbers) for subject, numbers in found.items()}

    def applying(self, subject: str | None) -> frozenset[int]:
        """Return the private patterns that apply to a subject, by number; None is any unnamed one.

        An entry that names the subject replaces the entry of the same pattern for all subjects.
        """
        own = frozenset() if subject is None else self._named.get(subject, frozenset())
        replaced = {self.private[number].pattern for number in own}
        return own | {
            number
            for number, private in enumerate(self.private)
            if private.subjects is None and private.pattern not in replaced
        }

    def resolved(self, private: Private) -> Pattern:
        """Return the pattern of a private pattern, over event types only."""
        return self._names.resolve(private.pattern)

    @cached_property
    def _names(self) -> Names:
        return Names(self.patterns, self.events)

    @cached_property
    def fingerprint(self) -> str:
        """The same for all spellings of the same specification; it covers GeoJSON files."""
        from tacit.spec.canonical_form import make_canonical

        text = json.dumps(make_canonical(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Specification:
        """Return a copy with some fields replaced; cached results of the old ones are dropped."""
        copy = super().model_copy(update=update, deep=deep)
        for name in vars(copy).keys() - Specification.model_fields.keys():
            del copy.__dict__[name]
        return copy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Specification):
            return NotImplemented
        ours = ((name, getattr(self, name)) for name in Specification.model_fields)
        same = all(value == getattr(other, name) for name, value in ours if name not in NOT_WRITTEN)
        return same and list(self.events) == list(other.events)

    def __str__(self) -> str:
        from tacit.spec.display import summarise_spec

        return summarise_spec(self)

    def __repr__(self) -> str:
        return f"<Specification: {self}>"

    def _repr_html_(self) -> str:
        from tacit.spec.display import format_table

        return format_table(self)
