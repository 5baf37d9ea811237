"""However a specification is damaged, it is read or its mistakes are told: nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import Mistake, SpecificationError
from tacit.spec.nodes import read_nodes
from tacit.spec.yaml_reader import loads

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = (EXAMPLES / "taxi.yaml").read_text()
ODD: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, "", "x", "é\n", "SEQ(", "1 h", [], [None], {}, {"a": [1]},
    [[1]], "a" * 2000, "{", "- ", "*a",
]  # fmt: skip


def told(text: str) -> list[Mistake]:
    """The mistakes of a text, or none; anything else that is raised is a failure."""
    try:
        loads(text, "taxi.yaml", EXAMPLES)
    except SpecificationError as error:
        return list(error.mistakes)
    return []


def paths(data: Any) -> list[tuple[Any, ...]]:
    """The way to every value."""
    inner = list(data.items() if isinstance(data, dict) else enumerate(data))
    deeper = [
        (key, *path)
        for key, value in inner
        if isinstance(value, dict | list)
        for path in paths(value)
    ]
    return [(key,) for key, _ in inner] + deeper


ROOT, _ = read_nodes(TEXT, "taxi.yaml")
assert ROOT is not None
DATA = ROOT.data
PATHS = paths(DATA)


@given(st.sampled_from(PATHS), st.sampled_from(ODD), st.booleans())
@settings(max_examples=50)
def test_a_value_of_any_kind_anywhere(path: tuple[Any, ...], odd: Any, rename: bool) -> None:
    data = copy.deepcopy(DATA)
    holder = data
    for part in path[:-1]:
        holder = holder[part]
    if rename and isinstance(holder, dict):
        holder[str(odd)] = holder.pop(path[-1])
    else:
        holder[path[-1]] = odd
    text = json.dumps(data)
    for mistake in told(text):
        assert mistake.line == 1
        assert mistake.column is not None
        assert len(mistake.message) < 700
        assert "Input should" not in mistake.message


@given(
    st.integers(0, len(TEXT)),
    st.integers(0, 30),
    st.text(st.sampled_from("{}[]:,-'\"|>&*!#\n\t ab0é\0"), max_size=4),
)
@settings(max_examples=40)
def test_a_text_cut_and_patched_anywhere(start: int, length: int, patch: str) -> None:
    text = TEXT[:start] + patch + TEXT[start + length :]
    lines = text.count("\n") + 1
    found = told(text)
    for mistake in found:
        assert mistake.line is not None
        assert mistake.column is not None
        assert 1 <= mistake.line <= lines
        assert mistake.column >= 1
    assert found == sorted(found, key=lambda each: (each.line or 0, each.column or 0))
