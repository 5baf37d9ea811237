"""Store results as they come, so that an interrupted experiment can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import StateError, translate_write_errors

FORMAT: Final = 2
PARAMETERS: Final = "run.json"
RESULTS: Final = "results.jsonl"


class StoredResults:
    """The results of data sets, in a folder or, without one, in memory.

    A folder belongs to one run: its results must come from the same parameters.
    """

    def __init__(
        self, folder: Path | None, parameters: Mapping[str, Any], shape: tuple[int, ...]
    ) -> None:
        self.done: dict[int, NDArray[np.float64]] = {}
        self._folder = folder
        self._shape = shape
        if folder is None:
            return
        # Compared later in the form in which it is read again.
        parameters = json.loads(json.dumps(parameters))
        with translate_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / PARAMETERS).exists():
                _check_same(folder, parameters)
                self._read(folder / RESULTS)
            else:
                (folder / RESULTS).write_text("", "utf-8")
                text = json.dumps({"format": FORMAT, "parameters": parameters}, indent=2)
                (folder / PARAMETERS).write_text(text + "\n", "utf-8")

    def store(self, number: int, errors: NDArray[np.float64]) -> None:
        """Store the results of a data set."""
        self.done[number] = errors
        if self._folder is None:
            return
        line = json.dumps({"dataset": number, "errors": errors.tolist()})
        with (
            translate_write_errors(self._folder),
            (self._folder / RESULTS).open("a", encoding="utf-8") as file,
        ):
            file.write(line + "\n")

    def _read(self, path: Path) -> None:
        """Read stored results. An incomplete line is ignored, and its data set is repeated."""
        text = path.read_text("utf-8") if path.exists() else ""
        for line in text.splitlines():
            try:
                plain = json.loads(line)
                number, errors = int(plain["dataset"]), np.array(plain["errors"], np.float64)
            except (KeyError, TypeError, ValueError):
                continue
            if errors.shape == self._shape:
                self.done[number] = errors
        if text and not text.endswith("\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")


def _check_same(folder: Path, parameters: Mapping[str, Any]) -> None:
    """Refuse results of other parameters, and name the difference."""
    try:
        plain = json.loads((folder / PARAMETERS).read_text("utf-8"))
        kept = plain["parameters"]
        known = plain["format"] == FORMAT and isinstance(kept, dict)
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise StateError(
            f"{folder / PARAMETERS} is damaged or from another version; choose another folder"
        )
    names = [*parameters, *(name for name in kept if name not in parameters)]
    differing = [
        f"{name} was {_format_value(kept.get(name))}, now {_format_value(parameters.get(name))}"
        for name in names
        if kept.get(name) != parameters.get(name)
    ]
    if differing:
        raise StateError(
            f"{folder} has a run with other parameters: {'; '.join(differing)}. "
            "Choose another folder, or use the same parameters to continue"
        )


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not given" if value is None else str(value)
