"""Aliases: the names of single events in a match, for conditions.

A condition may use the aliases that every match of its part binds: those that are not inside
a NOT or a repetition, and in an OR are in every branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from tacit.errors import PatternError, nearest
from tacit.patterns.conditions import (
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Conjunction,
    Constant,
    Disjunction,
    Negation,
    Term,
    attributes,
)
from tacit.patterns.tree import (
    And,
    Name,
    Not,
    Or,
    Pattern,
    Repeat,
    Seq,
    Where,
    Within,
    children,
    walk,
)


def check_aliases(pattern: Pattern) -> list[PatternError]:
    """Return every mistake in the aliases of a pattern.

    >>> from tacit.patterns.language import parse_pattern
    >>> [str(mistake) for mistake in check_aliases(parse_pattern("SEQ(a p, b p) WHERE q.v > 1"))]
    ["the alias 'p' is given twice: ...", "the condition uses 'q', ..."]
    """
    mistakes: list[PatternError] = []
    _collect(pattern, mistakes)
    return mistakes


def find_bound_aliases(pattern: Pattern) -> frozenset[str]:
    """Return the aliases that every match of a pattern binds.

    >>> from tacit.patterns.language import parse_pattern
    >>> sorted(find_bound_aliases(parse_pattern("SEQ(a p, OR(b q, c q), NOT d)")))
    ['p', 'q']
    """
    match pattern:
        case Name(_, alias):
            return frozenset({alias} if alias else ())
        case Seq(parts) | And(parts):
            return frozenset[str]().union(*(find_bound_aliases(part) for part in parts))
        case Or(parts):
            return frozenset.intersection(*(find_bound_aliases(part) for part in parts))
        case Within(part) | Where(part):
            return find_bound_aliases(part)
        case Not() | Repeat():
            return frozenset()


def rename(pattern: Pattern, aliases: Mapping[str, str]) -> Pattern:
    """Return the pattern with other aliases, in its conditions too."""
    if all(alias == other for alias, other in aliases.items()):
        return pattern

    def leaf(node: Name) -> Name:
        return Name(node.name, aliases.get(node.alias, node.alias) if node.alias else None)

    return rebuild(pattern, leaf, aliases)


def _collect(pattern: Pattern, mistakes: list[PatternError]) -> tuple[set[str], set[str]]:
    """Add a pattern's mistakes, from the bottom up.

    Return the aliases that it defines, and those that no condition has used yet.
    """
    below = [_collect(part, mistakes) for part in children(pattern)]
    given = set[str]().union(*(part for part, _ in below))
    free = set[str]().union(*(part for _, part in below))
    match pattern:
        case Name(_, alias):
            return ({alias}, {alias}) if alias else (set(), set())
        case Seq() | And():
            times = Counter(alias for part, _ in below for alias in part)
            for alias in sorted(alias for alias in given if times[alias] > 1):
                mistakes.append(_mistake(alias, _TWICE.format(alias)))
        case Not() | Repeat():
            what = "a NOT" if isinstance(pattern, Not) else "a repetition"
            for alias in sorted(free):
                mistakes.append(_mistake(alias, _UNBOUND.format(alias, what)))
            return given, set()
        case Where(part, condition):
            bound = find_bound_aliases(part)
            for alias in dict.fromkeys(found.alias for found in attributes(condition)):
                if alias not in bound:
                    mistakes.append(_mistake(alias, _why_unbound(alias, part, bound)))
            return given, set()
    return given, free


_TWICE = "the alias '{}' is given twice: only branches of one OR may share an alias"
_UNBOUND = (
    "the alias '{}' is inside {} and has no meaning outside of it: "
    "remove it, or put its WHERE inside too"
)


def _why_unbound(alias: str, part: Pattern, bound: Collection[str]) -> str:
    if alias in iterate_given_aliases(part):
        return (
            f"the condition uses '{alias}', which some matches lack: give the alias in "
            f"every branch of the OR, and outside NOT and repetition"
        )
    hint = nearest(alias, sorted(bound)) or f" Put it after an event: pickup {alias}."
    return f"the condition uses '{alias}', which is not an alias in the part before WHERE.{hint}"


def _mistake(alias: str, message: str) -> PatternError:
    return PatternError(message, word=alias)


def iterate_given_aliases(pattern: Pattern) -> Iterator[str]:
    """Yield every alias in a pattern, at any depth."""
    return (node.alias for node in walk(pattern) if isinstance(node, Name) and node.alias)


def rebuild(
    pattern: Pattern, leaf: Callable[[Name], Pattern], aliases: Mapping[str, str] | None = None
) -> Pattern:
    """Return the pattern with `leaf` applied to its names."""
    parts = [rebuild(part, leaf, aliases) for part in children(pattern)]
    match pattern:
        case Name():
            return leaf(pattern)
        case Seq() | And() | Or():
            return type(pattern)(*parts)
        case Not():
            return Not(parts[0])
        case Repeat(_, least, most):
            return Repeat(parts[0], least, most)
        case Within(_, span):
            return Within(parts[0], span)
        case Where(_, condition):
            return Where(parts[0], _rename_condition(condition, aliases) if aliases else condition)


def _rename_condition(condition: Condition, aliases: Mapping[str, str]) -> Condition:
    """Return a condition with renamed aliases."""
    match condition:
        case Comparison(comparator, left, right):
            return Comparison(comparator, _rename_term(left, aliases), _rename_term(right, aliases))
        case Negation(part):
            return Negation(_rename_condition(part, aliases))
        case Conjunction(left, right):
            return Conjunction(_rename_condition(left, aliases), _rename_condition(right, aliases))
        case Disjunction(left, right):
            return Disjunction(_rename_condition(left, aliases), _rename_condition(right, aliases))


def _rename_term(term: Term, aliases: Mapping[str, str]) -> Term:
    match term:
        case Constant():
            return term
        case Attribute(alias, column):
            return Attribute(aliases.get(alias, alias), column)
        case Arithmetic(sign, left, right):
            return Arithmetic(sign, _rename_term(left, aliases), _rename_term(right, aliases))
