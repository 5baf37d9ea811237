"""The notebooks of the documentation run as they are, and are stored with what they print."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
_LARGEST = 400_000
"""Bytes: pages must load quickly."""


def list_kinds(cell: Any) -> list[set[str]]:
    """The formats of each output of a cell."""
    return [set(one.get("data", {"text/plain": ""})) for one in cell.get("outputs", ())]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored_in_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is fresh, so only the kinds of outputs are compared."""
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    run_notebook = importlib.import_module("run_notebooks").run_notebook
    stored = json.loads(path.read_text())["cells"]
    done = run_notebook(path, tmp_path).cells
    assert [list_kinds(cell) for cell in done] == [list_kinds(cell) for cell in stored]
    assert any("image/png" in kinds for cell in stored for kinds in list_kinds(cell))
    assert "stderr" not in {one.get("name") for cell in stored for one in cell.get("outputs", ())}
    assert path.stat().st_size < _LARGEST
    assert sys.prefix not in path.read_text(), "no paths of a machine"


def test_all_topics_have_their_notebook() -> None:
    assert {path.stem for path in NOTEBOOKS} == {
        "from-csv", "choosing-epsilon", "a-days-limit", "your-own-method",
    }  # fmt: skip
