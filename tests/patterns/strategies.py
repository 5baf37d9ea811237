"""Random patterns and windows: for a seeded sweep, and as strategies for hypothesis.

Small on purpose: few times, so that many are equal; tuples of several types; types that
repeat; `NOT` everywhere; spans that cut through the windows. Both kinds come from the same
code, fed by `random.Random` or by hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from random import Random
from typing import Any, get_args

from hypothesis import strategies as st

from tacit.patterns.conditions import (
    Arithmetic,
    Attribute,
    Comparator,
    Comparison,
    Condition,
    Conjunction,
    Constant,
    Disjunction,
    Negation,
    Operator,
    Term,
)
from tacit.patterns.reference import Tuple
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Where, Within

TYPES = ("a", "b", "c")
COLUMNS = ("v", "w")
LATEST = 5
VALUES = (0, 1, 2, 3, 0.5, -1, None, nan, inf)


def random_pattern(
    rng: Random,
    types: Sequence[str] = TYPES,
    depth: int = 3,
    *,
    where: bool = False,
    negation: bool = True,
    repetition: bool = True,
    spans: Sequence[int] = (0, 1, 2, 3),
) -> Pattern:
    """A pattern over these types, at most `depth` operators deep.

    With `where`, it has conditions at random places, on elements that every match binds.
    Without `negation`, `repetition` or `spans` it has no NOT, no repetition or no WITHIN.
    """
    makers = ["seq", "seq", "seq", "and", "or"]
    makers += ["not"] * negation + ["repeat"] * repetition + ["within"] * bool(spans)
    makers += ["where"] * (2 * where)
    pattern, bound = _Maker(rng, types, spans, makers, depth).pattern(depth, named=where)
    return Where(pattern, random_condition(rng, bound)) if where and bound else pattern


def random_window(
    rng: Random,
    types: Sequence[str] = TYPES,
    *,
    most: int = 6,
    latest: int = LATEST,
    attributes: bool = False,
) -> list[Tuple]:
    """Up to `most` tuples in any order, at times from 0 to `latest`, of none to all types."""
    return [
        Tuple(
            rng.randint(0, latest),
            frozenset(rng.choice(types) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3)))),
            {column: rng.choice(VALUES) for column in COLUMNS} if attributes else {},
        )
        for _ in range(rng.randint(0, most))
    ]


def random_condition(rng: Random, aliases: Sequence[str], depth: int = 2) -> Condition:
    """A condition on the numbers in the columns of the elements with these aliases."""
    kind = rng.choice(("compare", "compare", "compare", "both", "either", "negation"))
    if kind == "compare" or depth == 0:
        comparator: Comparator = rng.choice(get_args(Comparator))
        return Comparison(comparator, _term(rng, aliases, 1), _term(rng, aliases, 1))
    if kind == "negation":
        return Negation(random_condition(rng, aliases, depth - 1))
    join = Conjunction if kind == "both" else Disjunction
    return join(
        random_condition(rng, aliases, depth - 1), random_condition(rng, aliases, depth - 1)
    )


def _term(rng: Random, aliases: Sequence[str], depth: int) -> Term:
    kind = rng.choice(("attribute", "attribute", "attribute", "constant", "arithmetic"))
    if kind == "constant":
        return Constant(rng.choice((0, 1, 2, -1, 0.5)))
    if kind == "attribute" or depth == 0:
        return Attribute(rng.choice(aliases), rng.choice(COLUMNS))
    sign: Operator = rng.choice(get_args(Operator))
    return Arithmetic(sign, _term(rng, aliases, depth - 1), _term(rng, aliases, depth - 1))


@dataclass
class _Maker:
    """Makes a pattern together with the aliases that each of its matches binds."""

    rng: Random
    types: Sequence[str]
    spans: Sequence[int]
    makers: Sequence[str]
    depth: int
    aliases: int = 0

    def pattern(self, depth: int, *, named: bool) -> tuple[Pattern, list[str]]:
        if depth == 0 or (depth < self.depth and self.rng.random() < 0.2):
            return self.name(named=named)
        match self.rng.choice(self.makers):
            case "seq":
                parts, bound = self.several(depth, named=named)
                return Seq(*parts), bound
            case "and":
                parts, bound = self.several(depth, named=named)
                return And(*parts), bound
            case "or":
                return self.branches(depth, named=named)
            case "not":
                return Not(self.closed(depth - 1)), []
            case "repeat":
                least = self.rng.choice((1, 1, 2, 2, 3))
                most = self.rng.choice((None, least, least + 1))
                return Repeat(self.closed(depth - 1), least, most), []
            case "within":
                part, bound = self.pattern(depth - 1, named=named)
                return Within(part, self.rng.choice(self.spans)), bound
            case _:
                part, bound = self.pattern(depth - 1, named=named)
                if not bound:
                    return part, bound
                return Where(part, random_condition(self.rng, bound)), bound

    def closed(self, depth: int) -> Pattern:
        """A pattern without aliases, or whose aliases are used by its own condition."""
        named = "where" in self.makers and self.rng.random() < 0.3
        part, bound = self.pattern(depth, named=named)
        if bound:
            return Where(part, random_condition(self.rng, bound))
        return self.pattern(depth, named=False)[0] if named else part

    def several(self, depth: int, *, named: bool) -> tuple[list[Pattern], list[str]]:
        parts: list[Pattern] = []
        bound: list[str] = []
        for _ in range(self.rng.choice((1, 2, 2, 2, 3, 3))):
            if "not" in self.makers and self.rng.random() < 0.2:
                parts.append(Not(self.closed(depth - 1)))
                continue
            part, names = self.pattern(depth - 1, named=named)
            parts.append(part)
            bound += names
        return parts, bound

    def branches(self, depth: int, *, named: bool) -> tuple[Pattern, list[str]]:
        """An OR; an alias that is bound in one branch is bound in all of them."""
        if named and self.rng.random() < 0.5:
            first, bound = self.name(named=True)
            alias = bound[0] if bound else None
            return Or(first, *(Name(self.rng.choice(self.types), alias) for _ in range(2))), bound
        parts, _ = self.several(depth, named=False)
        return Or(*parts), []

    def name(self, *, named: bool) -> tuple[Pattern, list[str]]:
        type_ = self.rng.choice(self.types)
        if not named or self.rng.random() < 0.2:
            return Name(type_), []
        self.aliases += 1
        alias = f"bound{self.aliases}"
        return Name(type_, alias), [alias]


@st.composite
def patterns(
    draw: st.DrawFn, /, types: Sequence[str] = TYPES, depth: int = 3, **options: Any
) -> Pattern:
    """As `random_pattern`, for hypothesis."""
    return random_pattern(draw(st.randoms(use_true_random=False)), types, depth, **options)


@st.composite
def windows(draw: st.DrawFn, /, types: Sequence[str] = TYPES, **options: Any) -> list[Tuple]:
    """As `random_window`, for hypothesis."""
    return random_window(draw(st.randoms(use_true_random=False)), types, **options)
