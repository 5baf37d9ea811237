"""Derive the relation of two conditions on one tuple: implied, excluded or independent.

Each column's constants divide its values into cells: the constants themselves, the intervals
between them, and null. A condition that compares columns with constants is constant on every
combination of cells, so trying one value of each decides exactly. Numbers are all rational
numbers, texts all texts, times all microseconds. Areas are cells too: those combinations of
"inside this one, outside that one" for which there is a position.

Any other expression (`LENGTH(name) > 3`) may be true, false or unknown on any tuple. Then
implication and exclusion are claimed only if they hold in every case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import pi, prod
from typing import Literal, TypeAlias

import numpy as np
import shapely
from numpy.typing import NDArray

from tacit.events.predicates import list_columns
from tacit.events.shapes import EARTH, OUTSIDE, WHOLLY, Box, Circle, Polygon, Shape, haversine
from tacit.events.sql import Column, FunctionCall, Tree
from tacit.events.sql import Literal as Constant

Relation: TypeAlias = Literal["implies", "implied by", "same", "excludes", "overlaps"]
"""How one condition is related to another: `implies` means that the other holds on the tuple."""
Truth: TypeAlias = bool | None
Assignment: TypeAlias = Mapping[Tree, int | None]
"""A cell for each column, and a truth value for each opaque expression."""
Membership: TypeAlias = tuple[bool, ...]
"""The areas that contain a position."""
Key: TypeAlias = tuple[str, Fraction | str | bool]
"""A constant: its kind, and what it is ordered by."""

MOST_CELLS = 4096
"""The most combinations of cells that are tried."""
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEEPEST = 9
"""The most divisions of a cell of the map."""


class NotDerivedError(Exception):
    """A relation cannot be derived."""


@dataclass(frozen=True, slots=True)
class TupleCondition:
    """A condition on one tuple: an expression, and a position in one of some areas."""

    tree: Tree | None = None
    areas: tuple[Shape, ...] = ()
    position: tuple[str, str] = ("lon", "lat")
    """The columns of longitude and latitude."""


def relate(one: TupleCondition, other: TupleCondition) -> Relation | None:
    """Derive the relation of `one` to `other` on a single tuple; None if that is not possible."""
    try:
        return _relate(one, other)
    except NotDerivedError:
        return None


def _relate(one: TupleCondition, other: TupleCondition) -> Relation | None:
    ours, theirs = one, other
    if all(isinstance(area, Box) for area in (*one.areas, *other.areas)):
        ours, theirs = _replace_boxes(one), _replace_boxes(other)
    shapes = list(dict.fromkeys([*ours.areas, *theirs.areas]))
    reads = {name for c in (ours, theirs) if c.tree for name in list_columns(c.tree)}
    if shapes and reads & {*one.position, *other.position}:
        raise NotDerivedError
    world = _ValueSpace.of([c.tree for c in (ours, theirs) if c.tree is not None])
    possible, certain = _memberships(shapes)
    seen: dict[tuple[bool, bool], bool] = {}
    if world.size * len(possible) > MOST_CELLS:
        raise NotDerivedError
    for inside in possible:
        for values in world.assignments():
            both = (
                _holds(ours, world, values, shapes, inside),
                _holds(theirs, world, values, shapes, inside),
            )
            sure = inside in certain and not world.opaque
            seen[both] = seen.get(both, False) or sure
    return _choose_relation(seen)


def _choose_relation(seen: Mapping[tuple[bool, bool], bool]) -> Relation | None:
    """Choose the relation from the possible cases; the value is whether a case is certain."""
    both, first, second = (case in seen for case in ((True, True), (True, False), (False, True)))
    if not both:
        return "excludes"
    if not first:
        return "implies" if second else "same"
    if not second:
        return "implied by"
    certain = all(seen[case] for case in ((True, True), (True, False), (False, True)))
    return "overlaps" if certain else None


def _holds(
    condition: TupleCondition,
    world: _ValueSpace,
    values: Assignment,
    shapes: Sequence[Shape],
    inside: tuple[bool, ...],
) -> bool:
    if condition.areas and not any(inside[shapes.index(area)] for area in condition.areas):
        return False
    return condition.tree is None or world.truth(condition.tree, values) is True


# Columns and constants.


@dataclass(frozen=True, slots=True)
class _ValueSpace:
    """The values that tuples can have, as far as conditions distinguish them."""

    keys: Mapping[Column, tuple[Key, ...]]
    """The constants that each column is compared with, in order."""
    opaque: frozenset[Tree]
    """The opaque expressions, which may have any value."""

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> _ValueSpace:
        """Collect the cells that some conditions distinguish."""
        constants: dict[Column, set[Key]] = {}
        opaque: set[Tree] = set()
        for tree in trees:
            _gather(tree, constants, opaque)
        for found in constants.values():
            if len({kind for kind, _ in found}) > 1:
                raise NotDerivedError
        keys = {column: tuple(sorted(found)) for column, found in constants.items()}
        return cls(keys, frozenset(opaque))

    @property
    def size(self) -> int:
        """How many combinations of cells there are."""
        sizes = [*(len(_cells(keys)) for keys in self.keys.values()), *(3 for _ in self.opaque)]
        return prod(sizes)

    def assignments(self) -> Iterator[Assignment]:
        """Yield every combination of cells."""
        names: list[Tree] = [*self.keys, *self.opaque]
        known = [_cells(keys) for keys in self.keys.values()]
        unknown: list[Sequence[int | None]] = [(True, False, None) for _ in self.opaque]
        for values in product(*known, *unknown):
            yield dict(zip(names, values, strict=True))

    def truth(self, tree: Tree, values: Assignment) -> Truth:
        """Evaluate a condition in three-valued logic."""
        match tree:
            case FunctionCall("AND", parts):
                return _all([self.truth(part, values) for part in parts])
            case FunctionCall("OR", parts):
                return _not(_all([_not(self.truth(part, values)) for part in parts]))
            case FunctionCall("NOT", (part,)):
                return _not(self.truth(part, values))
            case FunctionCall("IS TRUE", (part,)):
                return self.truth(part, values) is True
            case Constant(bool() | None as constant):
                return constant
        if tree in self.opaque:
            found = values[tree]
            return None if found is None else bool(found)
        atom = _atom(tree)
        assert atom is not None
        return self._compared(*atom, values)

    def _compared(
        self, sign: str, column: Column, constants: Sequence[Constant], values: Assignment
    ) -> Truth:
        cell = values[column]
        places = [self._place(column, constant) for constant in constants]
        match sign:
            case "IS NULL":
                return cell is None
            case "IS":
                return None if cell is None else bool(cell)
            case "IS DISTINCT FROM":
                return cell != places[0]
        if cell is None:
            return None
        if sign == "IN":
            return True if cell in places else None if None in places else False
        (place,) = places
        return None if place is None else _COMPARE[sign](cell, place)

    def _place(self, column: Column, constant: Constant) -> int | None:
        """Return the cell of a constant."""
        if constant.value is None or isinstance(constant.value, bool):
            return constant.value
        return 2 * self.keys[column].index(_key(constant)) + 1


def _cells(keys: Sequence[Key]) -> list[int | None]:
    """List the cells of a column that contain values, and null.

    An odd number is that of a constant, an even one that of the values before the next. The
    cells of truth values are 0 and 1.
    """
    if not keys:
        return [None, 0]
    if keys[0][0] == "truth value":
        return [None, 0, 1]
    filled: list[int | None] = [None, *range(1, 2 * len(keys), 2), 2 * len(keys)]
    if keys[0] != ("text", ""):
        filled.append(0)
    filled += [2 * place for place, pair in enumerate(pairwise(keys), 1) if not _adjacent(*pair)]
    return filled


def _adjacent(one: Key, other: Key) -> bool:
    """Return whether there is no value between two constants."""
    (kind, low), (_, high) = one, other
    if isinstance(low, str) and isinstance(high, str):
        return high == low + "\0"
    if kind == "number" or isinstance(low, str) or isinstance(high, str):
        return False
    return high - low == 1


def _key(constant: Constant) -> Key:
    """Return the sort key of a constant."""
    match constant.value:
        case bool(value):
            return "truth value", value
        case int() | float() as value if abs(value) < 2**53:
            return "number", Fraction(value)
        case str(value):
            return "text", value
        case datetime() as value:
            return "time", Fraction((value - _EPOCH) // timedelta(microseconds=1))
        case date() as value:
            return "time", Fraction((value - _EPOCH.date()) // timedelta(microseconds=1))
        case time() as value:
            since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
            return "time of day", Fraction(since // timedelta(microseconds=1) + value.microsecond)
        case timedelta() as value:
            return "length", Fraction(value // timedelta(microseconds=1))
    raise NotDerivedError


def _atom(tree: Tree) -> tuple[str, Column, list[Constant]] | None:
    """Return a comparison of a column with constants as operator, column and constants."""
    match tree:
        case Column():
            return "IS", tree, []
        case FunctionCall("IS NULL", (Column() as column,)):
            return "IS NULL", column, []
        case FunctionCall("IN" | "IS DISTINCT FROM" as name, (Column() as column, *items)) if all(
            isinstance(item, Constant) for item in items
        ):
            return name, column, [item for item in items if isinstance(item, Constant)]
        case FunctionCall(name, (Column() as column, Constant() as constant)) if name in _FLIPPED:
            return name, column, [constant]
        case FunctionCall(name, (Constant() as constant, Column() as column)) if name in _FLIPPED:
            return _FLIPPED[name], column, [constant]
    return None


def _gather(tree: Tree, constants: dict[Column, set[Key]], opaque: set[Tree]) -> None:
    """Collect the constants that columns are compared with; everything else is opaque."""
    match tree:
        case FunctionCall("AND" | "OR" | "NOT" | "IS TRUE", parts):
            for part in parts:
                _gather(part, constants, opaque)
            return
        case Constant(bool() | None):
            return
    atom = _atom(tree)
    if atom is None:
        opaque.add(tree)
        return
    sign, column, compared = atom
    keys = {_key(constant) for constant in compared if constant.value is not None}
    constants.setdefault(column, set()).update(keys)
    if sign == "IS":
        constants[column].add(("truth value", True))


def _all(truths: Sequence[Truth]) -> Truth:
    return False if False in truths else None if None in truths else True


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


# Areas.


def _replace_boxes(condition: TupleCondition) -> TupleCondition:
    """Replace boxes by comparisons of longitude and latitude."""
    boxes = [area for area in condition.areas if isinstance(area, Box)]
    if not boxes:
        return condition
    inside = FunctionCall("OR", tuple(_in_box(box, *condition.position) for box in boxes))
    tree = inside if condition.tree is None else FunctionCall("AND", (inside, condition.tree))
    return TupleCondition(tree, (), condition.position)


def _in_box(box: Box, lon: str, lat: str) -> Tree:
    sides = [
        (">=", lon, box.west),
        ("<=", lon, box.east),
        (">=", lat, box.south),
        ("<=", lat, box.north),
    ]
    return FunctionCall(
        "AND",
        tuple(
            FunctionCall(sign, (Column(name), Constant(float(edge)))) for sign, name, edge in sides
        ),
    )


def _memberships(shapes: Sequence[Shape]) -> tuple[set[Membership], set[Membership]]:
    """Find which combinations of inside and outside are possible, and which surely occur.

    A tuple without a position is outside of every area, so this combination occurs.
    """
    nowhere = (False,) * len(shapes)
    if len(shapes) <= 1:
        every = {nowhere, *((True,) for _ in shapes)}
        return every, every
    if len(shapes) == 2:
        exact = _pair(*shapes)
        if exact is not None:
            return exact | {nowhere}, exact | {nowhere}
    possible, certain = _divide(shapes)
    for (i, one), (j, other) in combinations(enumerate(shapes), 2):
        exact = _pair(one, other)
        if exact is not None:
            exact = exact | {(False, False)}
            possible = {inside for inside in possible if (inside[i], inside[j]) in exact}
    return possible | {nowhere}, certain | {nowhere}


def _pair(one: Shape, other: Shape) -> set[Membership] | None:
    """Find the combinations for two areas: polygons by geometry, circles by distance."""
    if isinstance(one, Circle) and isinstance(other, Circle):
        return _circles(one, other)
    if isinstance(one, Circle) or isinstance(other, Circle):
        return None
    ours, theirs = _geometry(one), _geometry(other)
    cases = {
        (True, True): bool(shapely.intersects(ours, theirs)),
        (True, False): not shapely.covers(theirs, ours),
        (False, True): not shapely.covers(ours, theirs),
    }
    return {case for case, occurs in cases.items() if occurs}


def _geometry(shape: Box | Polygon) -> shapely.geometry.base.BaseGeometry:
    return shapely.box(*shape.bounds) if isinstance(shape, Box) else shape.geometry


def _circles(one: Circle, other: Circle) -> set[Membership] | None:
    """Compare circles by the distance of their centres; None if rounding could decide."""
    distance = float(haversine(one.lon, one.lat, np.array([other.lon]), np.array([other.lat]))[0])
    close = 1e-3
    if one.radius + other.radius > EARTH * pi / 2:
        return None
    limits = one.radius + other.radius, abs(one.radius - other.radius)
    if any(abs(distance - limit) < close for limit in limits):
        return None
    apart, within = distance > limits[0], distance < limits[1]
    return {
        case
        for case, occurs in {
            (True, True): not apart,
            (True, False): not (within and one.radius < other.radius),
            (False, True): not (within and other.radius < one.radius),
        }.items()
        if occurs
    }


def _divide(shapes: Sequence[Shape]) -> tuple[set[Membership], set[Membership]]:
    """Divide the map where it is not decided yet; a cell's shapes are in, out, or either."""
    bounds = np.array([shape.bounds for shape in shapes])
    cells = np.array([[*bounds[:, :2].min(axis=0), *bounds[:, 2:].max(axis=0)]])
    possible: set[Membership] = set()
    certain: set[Membership] = set()
    for depth in range(_DEEPEST + 1):
        related = np.stack([shape.relate(cells) for shape in shapes], axis=1)
        decided = np.isin(related, (OUTSIDE, WHOLLY)).all(axis=1)
        for row in np.unique(related[decided] == WHOLLY, axis=0):
            certain.add(tuple(map(bool, row)))
        if depth == _DEEPEST or decided.all() or len(cells) > MOST_CELLS:
            break
        cells = _quarters(cells[~decided])
    for row in np.unique(related[~decided], axis=0):
        choices = [
            (True, False) if r not in (OUTSIDE, WHOLLY) else (bool(r == WHOLLY),) for r in row
        ]
        possible |= set(product(*choices))
    return possible | certain, certain


def _quarters(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    west, south, east, north = cells.T
    lon, lat = (west + east) / 2, (south + north) / 2
    parts = [
        (west, south, lon, lat), (lon, south, east, lat), (west, lat, lon, north),
        (lon, lat, east, north),
    ]  # fmt: skip
    return np.concatenate([np.stack(part, axis=1) for part in parts])
