"""Follow the README of an example in a copy of its folder."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


class Example:
    """A copy of an example, and the processes that its commands start.

    A program takes the place of `tacit` and `python`, so that they start at once.
    """

    def __init__(self, name: str, folder: Path, program: Path) -> None:
        self._program = program
        self.folder = folder / name
        shutil.copytree(EXAMPLES / name, self.folder)
        self._running: list[subprocess.Popen[bytes]] = []

    def replace(self, file: str, replaced: Mapping[str, str]) -> None:
        """Replace words in a file."""
        path = self.folder / file
        path.write_text(_replace(path.read_text(), replaced))

    def commands(self, replaced: Mapping[str, str]) -> list[str]:
        """The commands of the README, in order, with some words replaced."""
        programs = {
            "python ": f"exec {self._program} ",
            "tacit run": f"exec {self._program} run",
            "tacit ledger": f"{self._program} ledger",
        }
        found = re.findall(r"```sh\n(.*?)```", (self.folder / "README.md").read_text(), re.S)
        return [_replace(command, {**replaced, **programs}) for command in found]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on."""
        with (self.folder / f"log-{len(self._running)}").open("w") as log:
            self._running.append(
                subprocess.Popen(["bash", "-ec", command], cwd=self.folder, stdout=log, stderr=log)
            )
        return self._running[-1]

    def said(self, number: int) -> str:
        """What the command that was started as this one has printed."""
        return (self.folder / f"log-{number}").read_text()

    def run(self, command: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout

    def __enter__(self) -> Example:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in reversed(self._running):
            process.kill()
            process.wait(30)


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text
