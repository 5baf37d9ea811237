"""Kernels compiled ahead: by several processes, only those needed, and never a reason to fail."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from numba import types as numba_types

from tacit.cli.main import main
from tacit.cli.warm import show_compilation
from tacit.kernels import needs
from tacit.kernels.ahead import KernelSignature, _find
from tacit.kernels.needs import find_kernels, read_recorded_runs
from tacit.kernels.signatures import format_type, parse_type
from tests.kernels.programs import MODULE, Programs, environment
from tests.kernels.scenarios import Scenario, record, write_tuples

types: Any = numba_types
KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
AHEAD = """
import sums
from tacit.kernels.ahead import KernelSignature, compile_ahead
wanted = [KernelSignature("sums.total", (f"{kind}[1C]",)) for kind in %r]
seen = []
found = compile_ahead(wanted, helpers=%d, progress=lambda done, all: seen.append((done, all)))
print(found, compilations(), seen == sorted(seen), seen[-1:])
"""
BESIDE = """
import time
from pathlib import Path
import sums
from tacit.kernels.ahead import KernelSignature, compile_ahead, compile_beside
wanted = [KernelSignature("sums.total", (f"{kind}[1C]",)) for kind in %r]
with compile_beside(wanted, helpers=2):
    until = time.monotonic() + 300
    while len(list(Path(%r).rglob("*.nbc"))) < 8 and time.monotonic() < until:
        time.sleep(0.05)
print(compile_ahead(wanted, helpers=0), sum(sums.total.stats.cache_misses.values()))
"""


INSTALL = """
import os, subprocess, sys, time
from pathlib import Path
helper, cache = %r, Path(%r)
installer = '''
import os, subprocess, sys, time
from pathlib import Path
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]])
until = time.monotonic() + 300
while len(list(Path(sys.argv[3]).rglob("*.nbc"))) < 2 and time.monotonic() < until:
    time.sleep(0.05)
Path("late.py").write_text(Path("sums.py").read_text())
'''
subprocess.run([sys.executable, "-c", installer, helper, str(os.getpid()), cache], check=True)
until = time.monotonic() + 300
while len(list(cache.rglob("*.nbc"))) < 3 and time.monotonic() < until:
    time.sleep(0.05)
"""
"""A process whose child starts a helper, installs a module, and ends."""

HELPER = """
import runpy, sys
from tacit.kernels import needs
from tacit.kernels.ahead import KernelSignature as S
wanted = {
    "demo:answers": [S("sums.total", ("int64[1C]",))],
    "demo:planning": [S("late.total", ("int64[1C]",)), S("sums.total", ("int32[1C]",))],
}
needs.find_kernels = lambda features: [kernel for one in features for kernel in wanted[one]]
sys.argv = ["kernels", sys.argv[1], sys.argv[2], *wanted]
runpy.run_module("tacit.kernels", run_name="__main__")
"""


def kept(cache: Path) -> int:
    """How many files the cache has."""
    return len(list(cache.rglob("*.nbc")))


@pytest.mark.parametrize(
    "kind",
    [
        types.int64,
        types.boolean,
        types.float64,
        types.Array(types.uint64, 3, "C"),
        types.Array(types.uint8, 1, "C", readonly=True),
        types.Array(types.boolean, 2, "A"),
        types.UniTuple(types.int64, 2),
        types.Tuple((types.int64, types.Array(types.int8, 1, "C"), types.UniTuple(types.bool_, 2))),
    ],
)
def test_a_type_is_read_as_it_was_written(kind: Any) -> None:
    assert parse_type(json.loads(json.dumps(format_type(kind)))) == kind


@pytest.mark.parametrize("text", ["int63", "int64[1X]", "Array", "__name__", "", "int64[C]"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a type"):
        parse_type(text)


def test_a_type_without_a_notation_is_refused() -> None:
    with pytest.raises(ValueError, match="no"):
        format_type(types.unicode_type)


def test_alone_a_process_compiles_everything_and_shows_how_far_it_is(
    programs: Programs, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    found, compilations, in_order, *last = programs.run(AHEAD % (KINDS, 0), cache).split(" ", 3)
    assert (found, in_order, last) == ("8", "True", ["[(8, 8)]"])
    assert int(compilations) >= 8
    assert kept(cache) == 8
    assert programs.run(AHEAD % (KINDS, 0), cache) == "0 0 True []"


def test_helpers_take_a_part_of_the_work(programs: Programs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert programs.run(BESIDE % (KINDS, str(cache)), cache) == "0 0"
    assert kept(cache) == 8


def test_a_helper_stops_when_its_process_is_gone(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(MODULE)
    task = json.dumps([["sums.total", ["int64[1C]"]]])

    def help_process(parent: str) -> None:
        command = [sys.executable, "-m", "tacit.kernels", parent]
        env = environment(tmp_path / "cache")
        subprocess.run(
            command, input=task, text=True, cwd=tmp_path, env=env, check=True, timeout=600
        )

    help_process("1" if Path("/proc/self").exists() else "0")
    assert kept(tmp_path / "cache") == 0


def test_kernels_of_a_module_that_is_installed_later_are_compiled_when_it_is_there(
    tmp_path: Path,
) -> None:
    """As `make demo` does while it installs packages."""
    (tmp_path / "sums.py").write_text(MODULE)
    cache = tmp_path / "cache"
    program = INSTALL % (HELPER, str(cache))
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(cache), check=True
    )
    assert kept(cache) == 3


def test_a_helper_of_an_installation_ends_when_all_of_it_is_gone(tmp_path: Path) -> None:
    """Also if the installation had ended before the helper looked for the first time."""
    (tmp_path / "sums.py").write_text(MODULE)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    command = [sys.executable, "-c", HELPER, str(gone.pid), str(gone.pid)]
    env = environment(tmp_path / "cache")
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=60)
    assert kept(tmp_path / "cache") == 0


def test_collecting_garbage_is_as_often_as_before_once_kernels_are_compiled(
    programs: Programs, tmp_path: Path
) -> None:
    code = """
import gc
before = gc.get_threshold()
during = []
from tacit.kernels.ahead import KernelSignature as S, compile_ahead
wanted = [S("sums.total", ("int64[1C]",))]
compile_ahead(wanted, helpers=0, progress=lambda *_: during.append(gc.get_threshold()))
print(during[-1][0] > before[0], gc.get_threshold() == before)
"""
    assert programs.run(code, tmp_path / "cache") == "True True"


@pytest.mark.parametrize("part", ["planning", "answers"])
def test_the_kernels_of_the_demo_exist(part: str) -> None:
    """If this fails, kernels have changed: `make kernels` records them again."""
    recorded = find_kernels({f"demo:{part}"})
    assert len(recorded) > 10
    assert [signature for signature, _ in _find(recorded)] == recorded


def test_advice_that_does_not_fit_is_passed_over(programs: Programs, tmp_path: Path) -> None:
    """A module, a kernel, a type and a number of arguments that are not there; one that fails."""
    code = """
import sums
from tacit.kernels.ahead import KernelSignature as S, compile_ahead, count_unkept
wanted = [S("nothing.total", ("int64[1C]",)), S("sums.nothing", ("int64[1C]",)),
    S("sums.total", ("int63",)), S("sums.total", ()), S("sums.total", ("bool[3A]", "int64")),
    S("sums.total", ("int64",)), S("sums.total", ("float64[1C]",))]
compile_ahead(wanted, helpers=0)
print(count_unkept(wanted))
import numpy as np
print(sums.total(np.ones(3)))
"""
    assert programs.run(code, tmp_path / "cache").split() == ["0", "3.0"]
    assert kept(tmp_path / "cache") == 1


def test_a_run_needs_what_runs_with_no_more_features_needed() -> None:
    text = {"source:CsvSource", "subject:text", "time:text", "column:text"}
    simple = {"command:detect", "operator:And", *text}
    names = {kernel.name for kernel in find_kernels(simple)}
    assert "tacit.windows.clock._judge" in names
    assert "tacit.events.interners._find_texts" in names
    unneeded = ("tacit.privacy.", "tacit.planning.", "tacit.events.grid")
    assert not any(name.startswith(unneeded) for name in names)
    more = find_kernels({*simple, "operator:Seq"})
    assert set(find_kernels(simple)) < set(more)
    assert set(more) < set(find_kernels())
    wide = find_kernels({"command:*", "source:*", "column:*", "mechanism:*", "operator:And"})
    assert any(kernel.name.startswith("tacit.privacy.") for kernel in wide)
    assert set(wide) < set(find_kernels())


def test_the_features_of_a_source_do_not_decide_about_other_rooms() -> None:
    reading = needs.RecordedRun(
        frozenset({"source:CsvSource", "subject:text", "command:run", "operator:Seq"}),
        tuple(
            KernelSignature(f"tacit.{name}", ("int64",))
            for name in ("connectors.csv.scan", "events.subjects._look_up", "windows.a.b")
        ),
    )
    parts = {part.kernels[0].name: set(part.features) for part in needs.split_run(reading)}
    assert parts == {
        "tacit.connectors.csv.scan": {"source:CsvSource"},
        "tacit.events.subjects._look_up": {"source:CsvSource", "subject:text"},
        "tacit.windows.a.b": {"command:run", "operator:Seq"},
    }


def test_what_is_recorded_can_be_read() -> None:
    assert len(read_recorded_runs()) > 20
    for kernel in find_kernels():
        assert all(parse_type(one) is not None for one in kernel.types)


@pytest.mark.soak
def test_the_record_is_not_out_of_date(tmp_path: Path) -> None:
    """If this fails, kernels have changed: `make kernels` records them again."""
    write_tuples(tmp_path)
    scenario = Scenario("run", "SEQ(slow, parked)", "csv", ("--mechanism", "uniform"))
    [called] = record(scenario, tmp_path)
    expected = set(find_kernels(called.features))
    missed = [kernel for kernel in called.kernels if kernel not in expected]
    assert len(missed) <= len(called.kernels) // 4, missed


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with show_compilation() as progress:
            progress(12, 40)
        written = stream.getvalue()
        assert ("Compiling kernels for this machine, once: 12 of 40" in written) == expected
        assert bool(written) == expected
        assert written.endswith("\r\x1b[K") == expected


def test_warm_compiles_what_a_specification_needs(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(Scenario("detect", "AND(slow, parked)").spec)
    for _ in range(2):
        result = CliRunner().invoke(main, ["warm", str(tmp_path / "spec.yaml"), "--json"])
        assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["kernels"] > 20
    assert report["compiled"] == 0
    plain = CliRunner().invoke(main, ["warm", str(tmp_path / "spec.yaml")])
    assert plain.output == f"All {report['kernels']} kernels were already compiled.\n"


def test_warm_says_so_where_kernels_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.kernels.ahead.compile_ahead", lambda *_args, **_named: 3)
    monkeypatch.setattr("tacit.kernels.ahead.count_unkept", lambda _: 2)
    result = CliRunner().invoke(main, ["warm"])
    assert result.exit_code == 5
    assert "2 kernels could not be cached" in result.output


def test_warm_refuses_a_specification_with_mistakes(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("version: 1\n")
    assert CliRunner().invoke(main, ["warm", str(tmp_path / "spec.yaml")]).exit_code == 3
