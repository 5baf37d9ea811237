"""The notebooks of the documentation run as they are, and are stored with what they print."""

from __future__ import annotations

import importlib
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LONGER = ("a-days-limit", "choosing-epsilon")
"""Notebooks that compute long; `make soak` and `make notebooks` run them."""
TAXIS = 8
_LARGEST = 400_000
"""Bytes: pages must load quickly."""


def list_kinds(cell: Any) -> list[set[str]]:
    """The formats of each output of a cell; text that is printed may come in pieces."""
    kinds = [one.get("data", {"printed": ""}) for one in cell.get("outputs", ())]
    return [set(kind) for kind, _ in groupby(kinds)]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.soak] if path.stem in LONGER else [])
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_and_shows_what_is_stored_in_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer taxis and data sets. Noise is fresh, so only the kinds of outputs are compared."""
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    nbformat: Any = importlib.import_module("nbformat")
    run_notebook = importlib.import_module("run_notebooks").run_notebook
    notebook = nbformat.read(path, as_version=4)
    stored = [list_kinds(cell) for cell in notebook.cells]
    for cell in notebook.cells:
        cell.source = re.sub(r"taxis=\d+", f"taxis={TAXIS}", cell.source)
        cell.source = cell.source.replace("for seed in (1, 2, 3)", "for seed in (1,)")
    run_notebook(notebook, tmp_path)
    assert [list_kinds(cell) for cell in notebook.cells] == stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_pictures_and_without_errors(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert any("image/png" in kinds for cell in cells for kinds in list_kinds(cell))
    assert "stderr" not in {one.get("name") for cell in cells for one in cell.get("outputs", ())}
    assert path.stat().st_size < _LARGEST
    assert sys.prefix not in path.read_text(), "no paths of a machine"


def test_all_topics_have_their_notebook() -> None:
    assert {path.stem for path in NOTEBOOKS} == {
        "from-csv", "choosing-epsilon", "a-days-limit", "your-own-method",
    }  # fmt: skip
