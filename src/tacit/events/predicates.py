"""Conditions on a single tuple, in SQL: read by Polars, checked, and made safe.

Polars reads the expression; what it read is then looked at as a tree (its own
serialised form). Three things are seen to:

- Only what a tuple says by itself counts. Aggregates, window functions, subqueries and
  the clock would make an answer depend on other tuples, or on how the input is cut.
- A number that is not finite counts as null, as an attribute or as a result (`1 / 0`).
- A cast or a parse that does not succeed is null, never an error amid the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias

import polars as pl
from polars.exceptions import PanicException

Tree: TypeAlias = dict[str, Any]

_NODES = {"Column", "Literal", "BinaryExpr", "Cast", "Ternary", "Function", "Alias"}
_FUNCTIONS = {
    "Abs", "Atan2", "Bitwise", "Boolean", "Ceil", "Clip", "Coalesce", "Exp", "FillNull", "Floor",
    "ListExpr", "Log", "Log1p", "MaxHorizontal", "MinHorizontal", "Negate", "Pow", "Round", "Sign",
    "Sql", "StringExpr", "StructExpr", "TemporalExpr", "Trigonometry",
}  # fmt: skip
_NOT_BY_ROW = {
    "All", "And", "Any", "ConcatVertical", "IsDuplicated", "IsFirstDistinct", "IsLastDistinct",
    "IsUnique", "Or", "Xor",
}  # fmt: skip
"""Members of the families above that look at a whole column."""
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_CLOCK = re.compile(
    r"\b(NOW\s*\(|(?:CURRENT_|LOCAL)(?:DATE|TIMESTAMP|TIME)\b|(?:TODAY|GETDATE)\s*\()", re.I
)
_COMPARISONS = {"Eq", "NotEq", "Lt", "LtEq", "Gt", "GtEq", "Ne", "Le", "Ge"}
_ARITHMETIC = {"Plus", "Minus", "Multiply", "Divide", "TrueDivide", "FloorDivide", "Modulus"}


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on a tuple's columns."""

    tree: Tree
    columns: tuple[str, ...]

    @property
    def expression(self) -> pl.Expr:
        """What Polars evaluates."""
        return polars_expression(self.tree)

    def dtype(self, schema: pl.Schema) -> pl.DataType:
        """The type of its value over such columns; raises Polars' errors where it has none."""
        return value_types([self], schema)[0]

    def factors(self) -> tuple[Predicate, ...]:
        """Predicates that all hold where this one does: the parts of an AND at the top.

        This is exact in three-valued logic too, since only truth counts at the top.
        """
        node = self.tree.get("BinaryExpr")
        if node is None or node["op"] != "And":
            return (self,)
        sides = _predicate(node["left"]), _predicate(node["right"])
        return tuple(factor for side in sides for factor in side.factors())

    def finite(self, schema: pl.Schema) -> Predicate:
        """The same with null in place of computed numbers that are not finite."""
        return replace(self, tree=_finite(self.tree, schema, False))

    def steps(self) -> list[Fraction] | None:
        """The numbers between which it is constant, or None where that is not known.

        Known for comparisons of one column with numbers and what AND, OR and NOT make
        of them.
        """
        found: list[Fraction] = []
        return found if len(self.columns) == 1 and _find_steps(self.tree, found) else None


def value_types(predicates: Sequence[Predicate], schema: pl.Schema) -> list[pl.DataType]:
    """The types of their values; raises Polars' errors where one has none.

    They are tried on a tuple without values, since not all of Polars' checks come before.
    """
    columns = dict.fromkeys(column for predicate in predicates for column in predicate.columns)
    frame = pl.DataFrame({name: pl.Series([None], dtype=schema[name]) for name in columns})
    return frame.select(p.expression.alias(str(i)) for i, p in enumerate(predicates)).dtypes


@lru_cache(maxsize=4096)
def parse_predicate(where: str) -> Predicate:
    """Read an SQL condition on one tuple; ValueError where it is not that."""
    clock = _CLOCK.search(_QUOTED.sub(" ", where))
    if clock:
        raise ValueError(
            f"'{clock[1].rstrip('( ')}' depends on the clock; "
            "an event may only depend on the tuple's own columns"
        )
    try:
        tree = json.loads(pl.sql_expr(where).meta.serialize(format="json"))
        forgiving = _forgiving(tree)
    except (pl.exceptions.PolarsError, PanicException) as error:
        reason = (str(error).splitlines() or ["it cannot be read"])[0]
        raise ValueError(f"not an SQL expression: {reason[:200]}") from None
    except RecursionError:
        raise ValueError("the SQL expression is nested too deeply") from None
    _check_tree(tree)
    _check_patterns(tree)
    return _predicate(forgiving)


def _predicate(tree: Tree) -> Predicate:
    columns = (node["Column"] for node in _walk(tree) if "Column" in node)
    return Predicate(tree, tuple(dict.fromkeys(columns)))


def polars_expression(tree: Tree) -> pl.Expr:
    """The expression that Polars evaluates."""
    return pl.Expr.deserialize(BytesIO(json.dumps(tree).encode()), format="json")


def children(node: Tree) -> list[Tree]:
    """The expressions right below one."""
    (kind, body), *_ = node.items()
    match kind:
        case "BinaryExpr":
            return [body["left"], body["right"]]
        case "Function":
            return list(body["input"])
        case "Ternary":
            return [body["predicate"], body["truthy"], body["falsy"]]
        case "Cast":
            return [body["expr"]]
        case "Alias":
            return [body[0]]
    return []


def _walk(tree: Tree) -> Iterator[Tree]:
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(reversed(children(node)))
        else:
            yield {str(node): None}


def function_of(node: Tree) -> tuple[str, str]:
    """A function's family and its name in it, such as `Boolean`, `Not`."""
    function = node["Function"]["function"]
    if isinstance(function, str):
        return function, ""
    ((family, member),) = function.items()
    if isinstance(member, dict) and member:
        member = next(iter(member.values())) if "Binary" in member else next(iter(member))
    return family, str(member)


def _check_tree(tree: Tree) -> None:
    """Refuse what does not depend on one tuple alone."""
    for node in _walk(tree):
        kind = next(iter(node))
        if kind == "Function":
            family, member = function_of(node)
            known = family in _FUNCTIONS and member not in _NOT_BY_ROW
            if member == "IsIn":  # in a list that is written out, not in a whole column
                known = not any("Column" in part for part in _walk(node["Function"]["input"][1]))
            kind = f"the function {member or family}"
        else:
            known = kind in _NODES
        if not known:
            raise ValueError(
                f"only conditions on one tuple are possible here, without aggregates, window "
                f"functions, subqueries or wildcards; this one uses {_plain(kind)}"
            )


def _plain(kind: str) -> str:
    names = {
        "Agg": "an aggregate", "Len": "an aggregate (COUNT)", "Over": "a window function",
        "SubPlan": "a subquery", "Selector": "a wildcard", "Explode": "UNNEST",
    }  # fmt: skip
    return names.get(kind, kind)


def _check_patterns(tree: Tree) -> None:
    """Try the regular expressions that are written out, so that a wrong one is told early."""
    for node in _walk(tree):
        if "Function" in node and function_of(node) == ("StringExpr", "Contains"):
            pattern = node["Function"]["input"][1]
            if "Literal" in pattern:
                try:
                    pl.select(pl.lit("").str.contains(polars_expression(pattern)))
                except pl.exceptions.PolarsError:
                    raise ValueError("it holds a regular expression that is not valid") from None


def _forgiving(tree: Any) -> Any:
    """The same tree with null in place of errors: casts, parses and patterns."""
    if isinstance(tree, list):
        return [_forgiving(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "Literal" in tree:
        return tree
    same = {name: _forgiving(part) for name, part in tree.items()}
    if same.get("strict") is True:
        same["strict"] = False
    if same.get("options") == "Strict":
        same["options"] = "NonStrict"
    return same


def _finite(tree: Tree, schema: pl.Schema, inner: bool) -> Tree:
    """Wrap computations of floating-point numbers, except inside those that are wrapped anyway."""
    (kind, body), *_ = tree.items()
    parts = [_finite(part, schema, _passes_on(tree)) for part in children(tree)]
    match kind:
        case "BinaryExpr":
            tree = {kind: {**body, "left": parts[0], "right": parts[1]}}
        case "Function":
            tree = {kind: {**body, "input": parts}}
        case "Ternary":
            tree = {kind: dict(zip(("predicate", "truthy", "falsy"), parts, strict=True))}
        case "Cast":
            tree = {kind: {**body, "expr": parts[0]}}
        case "Alias":
            tree = parts[0]
    if not inner and _computes(tree) and _predicate(tree).dtype(schema).is_float():
        is_finite = {"Function": {"input": [tree], "function": {"Boolean": "IsFinite"}}}
        null = {"Literal": {"Scalar": {"Null": "Null"}}}
        tree = {"Ternary": {"predicate": is_finite, "truthy": tree, "falsy": null}}
    return tree


def _computes(tree: Tree) -> bool:
    """Whether a node may make a number that is not finite out of numbers that are."""
    if "BinaryExpr" in tree:
        return tree["BinaryExpr"]["op"] in _ARITHMETIC
    if "Function" in tree:
        family, member = function_of(tree)
        return family in {"Exp", "Log", "Log1p", "Pow", "Trigonometry"} or (
            family == "Sql" and member not in _COMPARISONS and member != "IsIn"
        )
    return "Cast" in tree


def _passes_on(tree: Tree) -> bool:
    """Whether a number that is not finite always leads to another one (1 / infinity does not)."""
    if "Function" in tree:
        return function_of(tree) == ("Sql", "Mul")
    return "BinaryExpr" in tree and tree["BinaryExpr"]["op"] in {"Plus", "Minus", "Multiply"}


def _find_steps(tree: Tree, found: list[Fraction]) -> bool:
    """Collect the numbers a column is compared with; false if there is anything else."""
    if "Function" in tree:
        family, member = function_of(tree)
        parts = tree["Function"]["input"]
        if (family, member) == ("Boolean", "Not"):
            return _find_steps(parts[0], found)
        if family == "Boolean" and member in {"IsNull", "IsNotNull"}:
            return "Column" in parts[0]
        compares = family == "Sql" and member in _COMPARISONS
    elif "BinaryExpr" in tree:
        parts = children(tree)
        if tree["BinaryExpr"]["op"] in {"And", "Or"}:
            return all(_find_steps(part, found) for part in parts)
        compares = tree["BinaryExpr"]["op"] in _COMPARISONS
    elif "Cast" in tree:  # what NOT puts around its part
        to_truth = tree["Cast"]["dtype"] == {"Literal": "Boolean"}
        return to_truth and _find_steps(tree["Cast"]["expr"], found)
    else:
        return False
    numbers = [_number(part) for part in parts if "Column" not in part]
    if not compares or len(numbers) != 1 or numbers[0] is None:
        return False
    found.append(numbers[0])
    return True


def _number(tree: Tree) -> Fraction | None:
    """A literal number that a double holds exactly enough, or None."""
    match tree.get("Literal"):
        case {"Dyn": {"Int": int(value)}}:
            number = Fraction(value)
        case {"Dyn": {"Float": float(value)}}:
            number = Fraction(value)
        case {"Scalar": {"Decimal": [int(value), _, int(scale)]}}:
            number = Fraction(value, 10**scale)
        case _:
            return None
    return number if abs(number) < 2**53 else None
