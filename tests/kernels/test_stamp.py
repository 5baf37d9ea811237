"""A kernel is compiled anew as soon as anything that it depends on has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.kernels import stamp
from tacit.kernels.stamp import compute_stamp
from tests.kernels.programs import COUNT, environment

PROGRESS = """
import numpy as np
from tacit.pipeline.batches import running_progress
print(running_progress(np.array([10]), 5, 0)[0], compilations() > 0)
"""


def function(source: str, **names: Any) -> FunctionType:
    """A function by the name `f`, among other globals."""
    space: dict[str, Any] = {"__name__": "room", "np": np, **names}
    exec(source, space)
    made: FunctionType = space["f"]
    return made


def stamped(source: str, **names: Any) -> str:
    """The stamp of `f` in a source."""
    return compute_stamp(function(source, **names))


def test_a_constant_of_another_room_compiles_a_kernel_anew(tmp_path: Path) -> None:
    """In a copy of the package: 5 counts as the time that means no time."""
    ignored = shutil.ignore_patterns("__pycache__")
    package = shutil.copytree(Path(tacit.__file__).parent, tmp_path / "tacit", ignore=ignored)

    def progress() -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-c", COUNT + PROGRESS],
            cwd=tmp_path,
            env=environment(tmp_path / "cache", PYTHONPATH=str(tmp_path)),
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
        return ran.stdout.split()

    assert progress() == ["5", "True"]
    assert progress() == ["5", "False"]
    times = package / "events" / "times.py"
    text = times.read_text()
    assert "\nNO_TIME = -(2**63)\n" in text
    times.write_text(text.replace("\nNO_TIME = -(2**63)\n", "\nNO_TIME = 5\n"))
    assert progress() == ["10", "True"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x + 1.0"),
        ("def f(x): return x + 1", "def f(x): return x + True"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x): return x.size", "def f(x): return x.ndim"),
        ("def f(x, y=1): return x + y", "def f(x, y=2): return x + y"),
        ("def f(x): return (lambda y: y + 1)(x)", "def f(x): return (lambda y: y + 2)(x)"),
        ("def f(x): return min(x, 1)", "def f(x): return max(x, 1)"),
    ],
)
def test_other_code_has_another_stamp(first: str, second: str) -> None:
    assert stamped(first) == stamped(first)
    assert stamped(first) != stamped(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (1, np.int64(1)),
        (np.int64(1), np.uint64(1)),
        (np.int64(1), np.int64(2)),
        (np.arange(3), np.arange(4)),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.arange(3), np.arange(3).astype(np.int32)),
        ((1, 2), (2, 1)),
        ((1, (2, 3)), (1, 2, 3)),
        (frozenset({1}), frozenset({2})),
        (np.int64, np.int32),
        (np.add, np.subtract),
        (function("def f(x): return x + 1"), function("def f(x): return x + 2")),
        (function("def f(x): return A", A=1), function("def f(x): return A", A=2)),
    ],
)
def test_a_global_that_changed_makes_another_stamp(first: Any, second: Any) -> None:
    """Also through another function, and through a function inside of the function."""
    for source in (
        "def f(x): return x + A",
        "def g(x): return x + A\ndef f(x): return g(x)",
        "def f(x):\n  def g(y): return y + A\n  return g(x)",
    ):
        assert stamped(source, A=first) == stamped(source, A=first)
        assert stamped(source, A=first) != stamped(source, A=second)


def test_what_a_function_encloses_counts() -> None:
    source = "def make(a):\n  def f(x): return x + a\n  return f\nf = make({})"
    assert stamped(source.format(1)) != stamped(source.format(2))


def test_what_a_kernel_does_not_use_does_not_count() -> None:
    source = '"""Text."""\n\nB = 3\n\n\ndef f(x): return x + A'
    assert stamped("def f(x): return x + A", A=1) == stamped(source, A=1, C=7)


def test_functions_that_call_each_other_have_a_stamp() -> None:
    source = "def g(x): return f(x) + {}\ndef f(x): return g(x) if x else 0"
    assert stamped(source.format(1)) != stamped(source.format(2))


def test_a_global_of_an_unknown_kind_depends_on_the_whole_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One whose meaning for Numba the stamp cannot tell."""
    monkeypatch.setattr(stamp, "_hash_package", lambda: "as it is")
    first = stamped("def f(x): return A.b", A=object())
    monkeypatch.setattr(stamp, "_hash_package", lambda: "edited")
    assert stamped("def f(x): return A.b", A=object()) != first
    assert stamped("def f(x): return x") == stamped("def f(x): return x")


@pytest.mark.parametrize("library", ["numba", "llvmlite", "numpy"])
def test_another_version_of_a_library_makes_another_stamp(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def f(x): return x"
    first = stamped(source)
    monkeypatch.setattr(stamp, "version", lambda name: version(name) + "1" * (name == library))
    stamp._describe_environment.cache_clear()
    assert stamped(source) != first
    monkeypatch.undo()
    stamp._describe_environment.cache_clear()
    assert stamped(source) == first
