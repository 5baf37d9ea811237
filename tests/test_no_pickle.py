"""Reading a pickle can run any code: nothing in the package reads one, with one known exception."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tacit

ROOT = Path(tacit.__file__).parent
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
MACHINE_CODE = "kernels/cache.py"
"""Numba's own form of compiled kernels, which are code anyway: docs/threat-model.md."""


def faults(source: str) -> Iterator[str]:
    """What reads pickles in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in MODULES:
                yield str(node.module)
        elif isinstance(node, ast.Attribute) and node.attr == "PICKLED_BYTE_ARRAY":
            yield node.attr
        elif isinstance(node, ast.Call):
            allowed = [one.value for one in node.keywords if one.arg == "allow_pickle"]
            if any(not (isinstance(one, ast.Constant) and one.value is False) for one in allowed):
                yield "allow_pickle"
            if not allowed and ast.unparse(node.func) in ("np.load", "np.save", "np.savez"):
                yield ast.unparse(node.func)


def test_nothing_but_the_cache_of_machine_code_reads_pickles() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(faults(path.read_text("utf-8")))
        for path in ROOT.rglob("*.py")
    }
    assert {place: told for place, told in found.items() if told} == {MACHINE_CODE: ["pickle"]}
    assert len(found) > 100


def test_what_reads_pickles_is_found() -> None:
    for source in (
        "import pickle",
        "from cloudpickle import loads",
        "import os, _pickle as quick",
        "state = ValueStateDescriptor('x', Types.PICKLED_BYTE_ARRAY())",
        "np.load(file, allow_pickle=True)",
        "np.load(file, allow_pickle=chosen)",
        "np.load(file)",
    ):
        assert list(faults(source)), source
    assert not list(faults("np.load(file, allow_pickle=False)"))
