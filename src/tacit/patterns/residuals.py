"""What remains of a query when private events are unknown.

A query is a boolean formula over what is found in a window: the presence of event types, and
ordered or conditional sub-patterns. Where these depend on private events they are *variables*.
For each choice of the variables what remains is a pattern over public events alone, a
*cofactor*. A window's public events decide the cofactors, and these say what the query is as
a function of the variables: always true, always false, or open.

The presence of a private event type is a variable that may take either value. A sub-pattern
that looks at order or attributes has two bounds over public events (see `ternary`): it is
detected wherever its underapproximation is, and nowhere that its overapproximation is not; between
them it is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product
from operator import is_

from tacit.patterns.simplification import holds_condition, simplify
from tacit.patterns.ternary import make_and, make_not, make_or, overapproximate, underapproximate
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, children, elements, walk

MOST_VARIABLES = 6
"""A query with more variables is treated as one variable: it would have too many cofactors."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Something in a window that private events decide, at least in part."""

    atom: Pattern
    """The event type, or the sub-pattern, that is detected or not."""
    elements: frozenset[str]
    """The private event types that it depends on."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A query, given its variables: `cofactors[n]` where variable i has the value of n's bit i."""

    variables: tuple[Variable, ...]
    cofactors: tuple[Pattern | bool, ...]


def find_residual(
    pattern: Pattern, private: AbstractSet[str], most: int = MOST_VARIABLES
) -> Residual:
    """Return what remains of a pattern when the private event types are unknown.

    A pattern with more than `most` variables is treated as a single one.

    >>> left = find_residual(And("a", Or("x", "b")), {"x"})
    >>> [variable.atom for variable in left.variables], left.cofactors
    ([x], (AND(a, b), a))
    """
    plain = lift_booleans(pattern)
    atoms, places = _place_atoms(plain, private)
    if len(atoms) > most:
        plain, atoms, places = pattern, (pattern,), {id(pattern): 0}
    variables = tuple(Variable(atom, frozenset(elements(atom)) & private) for atom in atoms)
    bounds = [_bounds(atom, private) for atom in atoms]
    cofactors = []
    for values in product((0, 1), repeat=len(atoms)):
        # The first variable is the lowest bit, so it must change fastest.
        chosen = [bound[value] for bound, value in zip(bounds, reversed(values), strict=True)]
        cofactors.append(_substitute(plain, places, chosen))
    return Residual(variables, tuple(cofactors))


def _place_atoms(
    pattern: Pattern, private: AbstractSet[str]
) -> tuple[tuple[Pattern, ...], dict[int, int]]:
    """Return the private atoms, and the number of the atom at each node, by the node's identity."""
    numbers: dict[Pattern, int] = {}
    places: dict[int, int] = {}
    pending = [pattern]
    while pending:
        node = pending.pop()
        if isinstance(node, And | Or | Not):
            pending.extend(reversed(children(node)))
        elif not private.isdisjoint(elements(node)):
            places[id(node)] = numbers.setdefault(node, len(numbers))
    return tuple(numbers), places


def _bounds(atom: Pattern, private: AbstractSet[str]) -> tuple[Pattern | bool, Pattern | bool]:
    if isinstance(atom, Name):
        return False, True
    least, most = underapproximate(atom, private), overapproximate(atom, private)
    return (
        least if isinstance(least, bool) else lift_booleans(least),
        most if isinstance(most, bool) else lift_booleans(most),
    )


def lift_booleans(pattern: Pattern) -> Pattern:
    """Return the pattern with as many boolean operators as possible outside of ordered parts."""
    match pattern:
        case Name(name, alias):
            return Name(name) if alias else pattern
        case And(parts) | Or(parts):
            plain = tuple(map(lift_booleans, parts))
            same = all(map(is_, plain, parts))
            return pattern if same else type(pattern)(*plain)
        case Not(part):
            inner = lift_booleans(part)
            return pattern if inner is part else Not(inner)
        case Repeat(part, 1, _):
            return lift_booleans(part)
    if holds_condition(pattern):
        return pattern
    plainer = simplify(pattern)
    return plainer if plainer == pattern else lift_booleans(plainer)


def find_private_atoms(pattern: Pattern, private: AbstractSet[str]) -> tuple[Pattern, ...]:
    """Return the event types and sub-patterns outside of order that depend on private events."""
    return _place_atoms(pattern, private)[0]


def list_atoms(pattern: Pattern, private: AbstractSet[str]) -> tuple[Pattern, ...]:
    """Return the atoms of the variables that `find_residual` finds."""
    atoms = find_private_atoms(lift_booleans(pattern), private)
    return atoms if len(atoms) <= MOST_VARIABLES else (pattern,)


def _substitute(
    pattern: Pattern, places: Mapping[int, int], chosen: Sequence[Pattern | bool]
) -> Pattern | bool:
    """Return the pattern with something in place of its private atoms."""
    number = places.get(id(pattern))
    if number is not None:
        return chosen[number]
    match pattern:
        case And(parts):
            return make_and(_substitute(part, places, chosen) for part in parts)
        case Or(parts):
            return make_or(_substitute(part, places, chosen) for part in parts)
        case Not(part):
            return make_not(_substitute(part, places, chosen))
        case _:
            return pattern


def is_presence(pattern: Pattern) -> bool:
    """Return whether a pattern in boolean form asks only which event types are present."""
    return all(isinstance(node, Name | And | Or | Not) for node in walk(pattern))
