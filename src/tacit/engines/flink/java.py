"""The requirements of Flink on this machine: Java and its Python package."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tacit.errors import EngineError, MissingExtraError

FLINK: Final = "2.3"
_OLDEST: Final = 17
_NEWEST: Final = 21
_WHAT_TO_DO: Final = (
    "install Java 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS:"
    " brew install openjdk@17), and set JAVA_HOME if it is not the first on PATH"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(?P<major>\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java."""

    program: Path
    version: int


def require_java() -> Java:
    """Return the Java that Flink would use; raise if Flink does not support it."""
    program = _find_program()
    version = _read_version(program)
    if not _OLDEST <= version <= _NEWEST:
        age = "too old" if version < _OLDEST else "too new"
        raise EngineError(
            f"{program} is Java {version}, which is {age} for Flink {FLINK}: {_WHAT_TO_DO}"
        )
    return Java(program, version)


def require_flink() -> str:
    """Return the version of the installed package; raise if Tacit does not support it."""
    version = find_flink_version()
    if minor_version(version) != FLINK:
        raise EngineError(
            f"the installed package apache-flink is {version}, but Tacit needs {FLINK}: in a"
            " separate environment, pip install 'tacit[flink]'"
        )
    return version


def find_flink_version() -> str:
    """Return the version of the package apache-flink; raise if it is not installed."""
    try:
        return importlib.metadata.version("apache-flink")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            "the engine flink needs the package apache-flink, which is not installed: install"
            " it in a separate environment, since it needs older packages:"
            " pip install 'tacit[flink]'"
        ) from error


def minor_version(version: str) -> str:
    """Return the part of a version that must match.

    >>> minor_version("2.3.1")
    '2.3'
    """
    return ".".join(version.split(".")[:2])


def _find_program() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        if not os.access(program, os.X_OK):
            raise EngineError(f"JAVA_HOME is {home}, but there is no bin/java in it: {_WHAT_TO_DO}")
        return program
    found = shutil.which("java")
    if found is None:
        raise EngineError(f"Flink needs Java, and none was found: {_WHAT_TO_DO}")
    return Path(found)


def _read_version(program: Path) -> int:
    try:
        run = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{program} cannot be run: {_WHAT_TO_DO}") from error
    found = _VERSION.search(run.stderr + run.stdout)
    if found is None:
        raise EngineError(f"{program} does not report its version: {_WHAT_TO_DO}")
    return int(found["major"])
