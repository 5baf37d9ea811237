"""Small programs with kernels, each run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MODULE = """
import numpy as np
from tacit.kernels import compiled

@compiled
def total(values):
    found = values[0] * 0
    for value in values:
        found += value
    return found
"""
COUNT = """
import atexit, numba
from numba.core import event
recorded = event.RecordingListener()
event.register("numba:compile", recorded)
def compilations():
    return sum(found.is_start for _, found in recorded.buffer)
"""
"""Counts how often Numba compiles anything."""


def environment(cache: Path | None, **more: str) -> dict[str, str]:
    """This process's environment with another cache of kernels."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    named = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    return {**kept, **named, "PYTHONDONTWRITEBYTECODE": "1", **more}


def start(
    folder: Path,
    code: str,
    cache: Path | None,
    *,
    module: str = MODULE,
    prefix: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a program that can import `module` as `sums` and count compilations."""
    (folder / "sums.py").write_text(module)
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", COUNT + code],
        cwd=folder,
        env=environment(cache, **(variables or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What a program printed; it must end well and say nothing on standard error."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors == ""
    return output.strip()


def run(folder: Path, code: str, cache: Path | None, *, module: str = MODULE) -> str:
    """Run a program to its end."""
    return finish(start(folder, code, cache, module=module))
