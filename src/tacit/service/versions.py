"""Versions of the specification: kept, compared, and what a change would do."""

from __future__ import annotations

import difflib
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from tacit.patterns.tree import elements
from tacit.planning.plan import Plan
from tacit.privacy.exponentials import format_epsilon
from tacit.service.catalogue import Choice, apply_choices
from tacit.spec.specification import Private, Specification
from tacit.spec.yaml_reader import loads
from tacit.spec.yaml_writer import to_yaml


@dataclass(frozen=True, eq=False)
class StoredVersion:
    """A specification with the choices of subjects, and its plan."""

    base: Specification
    """Without the choices of subjects."""
    choices: tuple[Choice, ...]
    plan_dict: Mapping[str, Any]

    @cached_property
    def spec(self) -> Specification:
        """The specification with the choices of subjects."""
        return apply_choices(self.base, self.choices)

    @cached_property
    def plan(self) -> Plan:
        """The plan, audited against the specification."""
        return Plan.from_dict(self.plan_dict, self.spec)

    @cached_property
    def plan_digest(self) -> str:
        """The plan's fingerprint, as in releases."""
        return hashlib.sha256(json.dumps(self.plan_dict, sort_keys=True).encode()).hexdigest()

    def pack(self) -> bytes:
        """Return it as bytes."""
        plain = {
            "base": to_yaml(self.base),
            "choices": [choice.to_dict() for choice in self.choices],
            "plan": self.plan_dict,
        }
        return zlib.compress(json.dumps(plain, sort_keys=True).encode())

    @classmethod
    def unpack(cls, packed: bytes, files: Specification) -> StoredVersion:
        """Read what `pack` returned; relative paths begin where those of `files` do."""
        plain = json.loads(zlib.decompress(packed))
        base = loads(plain["base"], "<version>", files.folder, files.allow_paths)
        return cls(base, tuple(map(Choice.from_dict, plain["choices"])), plain["plan"])


def compare(before: StoredVersion, after: StoredVersion) -> dict[str, Any]:
    """Return what differs: queries, private patterns, expected quality, and the lines of YAML."""
    old, new = (to_yaml(one.spec).splitlines() for one in (before, after))
    return {
        "queries": _compare_parts(_queries(before.spec), _queries(after.spec)),
        "private": _compare_parts(_private(before.spec), _private(after.spec)),
        "quality": describe_quality(before, after),
        "lines": [
            line
            for line in difflib.unified_diff(old, new, n=2, lineterm="")
            if not line.startswith(("---", "+++"))
        ],
    }


def describe_effect(before: StoredVersion, after: StoredVersion) -> dict[str, Any]:
    """Return what a change would do: quality before and after, obstacles, and costs."""
    plan = after.plan
    return {
        "mechanism": plan.mechanism,
        "history": plan.windows,
        "quality": describe_quality(before, after),
        "costs": [
            {
                "name": private.name,
                "subjects": None if private.subjects is None else len(private.subjects),
                "epsilon": format_epsilon(price_window(plan, private)),
                "limit": None if private.limit is None else str(private.limit),
                "queries_before": find_touching(before.spec, private.name),
                "queries_after": find_touching(after.spec, private.name),
            }
            for private in after.spec.private
        ],
        "warnings": [str(one) for one in (*plan.warnings, *plan.history_warnings)],
    }


def price_window(plan: Plan, private: Private) -> Fraction:
    """Return the epsilon that a window costs a private pattern: for answers and for counts."""
    return plan.spent_per_window(private) + sum(plan.spent_on_counts(private), Fraction(0))


def describe_quality(before: StoredVersion, after: StoredVersion) -> list[dict[str, Any]]:
    """Return the expected quality of every query before and after, and what stands in its way."""
    rows = [_read_expected(one.plan) for one in (before, after)]
    texts = [describe_expected(one.plan) for one in (before, after)]
    names = dict.fromkeys(query.name for one in (before, after) for query in one.spec.queries)
    queries = {query.name: query for one in (before, after) for query in one.spec.queries}
    expected = after.plan.limited or after.plan.expected
    values = [] if expected is None else expected.values(max(1, after.plan.windows))
    right = {one.query: one.least_accuracy for one in values}
    found = []
    for name in names:
        query, quality = queries[name], rows[1].get(name)
        there = any(one.name == name for one in after.spec.queries)
        reached = right.get(name, quality)
        lacking = query.quality is not None and reached is not None and reached < query.quality
        found.append(
            {
                "query": name,
                "consumer": query.consumer,
                "before": rows[0].get(name),
                "after": quality,
                "expected_before": texts[0].get(name),
                "expected_after": texts[1].get(name),
                "required": query.quality,
                "reached": None if query.quality is None or reached is None else not lacking,
                "obstacles": find_obstacles(after.spec, name) if there else [],
            }
        )
    return found


def find_obstacles(spec: Specification, query: str) -> list[str]:
    """Return the private patterns whose events a query depends on."""
    patterns = [one.pattern for one in spec.boolean_queries if one.query == query]
    if query in spec.count_patterns:
        patterns.append(spec.count_patterns[query])
    asked = {name for pattern in patterns for name in elements(pattern)}
    return list(
        dict.fromkeys(
            private.name
            for private, pattern in zip(spec.private, spec.private_patterns, strict=True)
            if asked & set(elements(pattern))
        )
    )


def find_touching(spec: Specification, private: str) -> list[str]:
    """Return the queries that depend on a private pattern."""
    return [query.name for query in spec.queries if private in find_obstacles(spec, query.name)]


def describe_expected(plan: Plan) -> dict[str, str]:
    """Return in a few words what to expect of each query; what depends on history may be missing.

    For a pattern it is the quality, for one of several values how often it is right, for a number
    how far it is off on average, and for a count its interval, which follows from its epsilon.
    """
    expected = plan.limited or plan.expected
    found = {name: f"{quality:.2f}" for name, quality in _read_expected(plan).items()}
    for value in [] if expected is None else expected.values(max(1, plan.windows)):
        if value.accuracy is None:
            found[value.query] = f"off by {value.error:.2f}"
        else:
            found[value.query] = f"≥ {value.accuracy[0]:.0%} right"
    for row in plan.count_rows():
        found[row["query"]] = f"± {row['half_width']}" if row["epsilon"] else "exact"
        if "from_answers" in row:
            found[row["query"]] = f"off by {row['expected_error']:.2f}"
    return found


def _read_expected(plan: Plan) -> dict[str, float]:
    expected = plan.limited or plan.expected
    return {} if expected is None else {row["query"]: row["quality"] for row in expected.rows()}


def _queries(spec: Specification) -> dict[str, str]:
    return {
        query.name: f"{query.consumer}: {query.asks}, alpha {query.alpha:g}"
        + ("" if query.quality is None else f", quality {query.quality:g}")
        for query in spec.queries
    }


def _private(spec: Specification) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for one in spec.private:
        limit = "no limit" if one.limit is None else str(one.limit)
        who = "all" if one.subjects is None else ", ".join(one.subjects)
        found.setdefault(one.name, []).append(f"epsilon {one.epsilon}, {limit}, for {who}")
    return {name: "; ".join(entries) for name, entries in found.items()}


def _compare_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, Any]]:
    names: Sequence[str] = list(dict.fromkeys([*before, *after]))
    return [
        {"name": name, "before": before.get(name), "after": after.get(name)}
        for name in names
        if before.get(name) != after.get(name)
    ]
