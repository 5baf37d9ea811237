"""Run the notebooks of the documentation: `python docs/run_notebooks.py` writes their outputs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
_SECONDS = 300
"""The longest time for one cell: kernels may have to be compiled."""


def run_notebook(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells in a folder; the notebook then has what they print."""
    client = NotebookClient(
        notebook, timeout=_SECONDS, kernel_name="python3", record_timing=False,
        extra_arguments=["--log-level=40"], resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    # A shell line such as `!tacit validate` finds the commands of this environment.
    here = str(Path(sys.executable).parent)
    client.execute(env=os.environ | {"PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"})


def main() -> None:
    """Run all notebooks, and store what they print in them."""
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            run_notebook(notebook, Path(folder))
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        for cell in notebook.cells:
            cell.metadata = {}
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size // 1000:,} kB")


if __name__ == "__main__":
    main()
