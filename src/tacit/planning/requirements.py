"""Parse what users give the planner: a required quality, and a file with a prior."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from tacit.errors import OptionError, SourceError, nearest
from tacit.options import option
from tacit.planning.plan import Expected
from tacit.spec.boolean_queries import find_query
from tacit.spec.specification import Specification

DECLARED: Final = "declared"


def parse_required_quality(spec: Specification, quality: float | str) -> list[float | None]:
    """Return each query's required quality: one number for all, or what queries declare."""
    if quality == DECLARED:
        return [query.quality for query in spec.boolean_queries]
    try:
        wanted = float(quality)
    except ValueError:
        wanted = 0.0
    if not 0 < wanted <= 1:
        raise OptionError(
            f"{option('quality')}: expected a number above 0 and up to 1, such as 0.9, or"
            f" '{DECLARED}'; got {quality}"
        )
    return [wanted] * len(spec.boolean_queries)


def find_lack(
    expected: Expected, required: Sequence[float | None], windows: float
) -> tuple[float, str]:
    """Return by how much a query misses its quality at most, and that query.

    Of a query with several values, it is by how much it is right too rarely.
    """
    reached = {row["query"]: row["quality"] for row in expected.rows()}
    reached |= {one.query: one.least_accuracy for one in expected.values(max(1, windows))}
    lacks = [
        (needed - reached[find_query(name)], find_query(name))
        for name, needed in zip(expected.queries, required, strict=True)
        if needed is not None
    ]
    return max(lacks, default=(0.0, ""))


def read_prior(path: Path, spec: Specification) -> dict[str, float]:
    """Read a prior from a file: for each event type the probability that a window has it."""
    try:
        plain = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SourceError(f"{path} cannot be read as YAML or JSON") from error
    if not isinstance(plain, dict):
        raise SourceError(f"{path}: expected event types with probabilities, such as parked: 0.3")
    for name, rate in plain.items():
        if name not in spec.events:
            raise SourceError(
                f"{path}: no event type is called '{name}'.{nearest(str(name), list(spec.events))}"
            )
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise SourceError(f"{path}: the probability of {name} must be a number from 0 to 1")
    return {name: float(rate) for name, rate in plain.items()}
