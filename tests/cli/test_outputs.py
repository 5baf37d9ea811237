"""Outputs that cannot be written: a message and an exit code, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.cli.ledger import ledger
from tacit.cli.main import COMMANDS
from tests.cli.small_runs import specified, tacit, tuples
from tests.longer import longer

ROOT = Path(__file__).parents[2]
RUNNER = """
import atexit, gc, importlib, json, os, pkgutil, sys, threading
import tacit
from tacit.cli.main import main
from tests.engines.forking import load_kernels

# Once for all: otherwise every child would import and load what it needs.
for module in pkgutil.walk_packages(tacit.__path__, "tacit."):
    if "flink" not in module.name and "__main__" not in module.name:
        importlib.import_module(module.name)
load_kernels()
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm") as name:
        assert not name.read().startswith("polars-0"), "an import uses Polars: forks would hang"
gc.freeze()  # or every child would collect it all when it ends
for number, (arguments, how) in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.dup2(os.open(f"stderr-{number}", os.O_WRONLY | os.O_CREAT), 2)
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(writing if how == "pipe" else full, 1)
    if how == "both":
        os.dup2(full, 2)
    sys.argv = ["tacit", *arguments]
    try:
        main()
    except SystemExit as end:
        if how != "full":
            raise
        # What Python does at its end; to take everything apart would take longer than the command.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands need."""
    folder = tmp_path_factory.mktemp("outputs")
    spec, source = specified(folder), tuples(folder / "in.csv", seed=1)
    plan = tacit("plan", spec, "--history", source, "-o", folder / "plan.json")
    assert plan.exit_code == 0, plan.output
    ledger = ["--ledger", str(folder / "spent.db"), "--to", str(folder / "out.jsonl")]
    run = tacit("run", spec, source, "--plan", folder / "plan.json", *ledger)
    assert run.exit_code == 0, run.output
    (folder / "wrong.yaml").write_text("streams: 7")
    return folder


PRINTING = [
    ["--version"],
    ["--help"],
    ["ledger", "--help"],
    ["validate", "spec.yaml"],
    ["validate", "spec.yaml", "--json"],
    ["validate", "wrong.yaml", "--json"],
    ["schema"],
    ["explain", "spec.yaml"],
    ["detect", "spec.yaml", "in.csv"],
    ["detect", "spec.yaml", "in.csv", "--to", "x.csv", "--json"],
    ["plan", "spec.yaml", "--history", "in.csv"],
    ["run", "spec.yaml", "in.csv", "--plan", "plan.json"],
    ["run", "spec.yaml", "in.csv", "--plan", "plan.json", "--ledger", "other.db"],
    ["audit", "plan.json"],
    ["doctor", "spec.yaml"],
    ["leaks", "spec.yaml"],
    ["attack", "spec.yaml", "--plan", "plan.json", "--history", "in.csv", "--json"],
    ["init", "--template", "taxi"],
    ["completion", "bash"],
    ["token", "list", "spent.db"],
    ["report", "plan.json", "-o", "report.html"],
    ["demo", "--taxis", "3", "--days", "0.1"],
    ["warm", "spec.yaml"],
    ["count", "out.jsonl", "--plan", "plan.json"],
    ["ledger", "acts", "spent.db"],
    ["ledger", "show", "spent.db"],
    ["ledger", "export", "spent.db", "--to", "-"],
    ["ledger", "verify", "spent.db"],
]
STREAMING = [
    ["run", "--help"],
    ["explain", "spec.yaml"],
    ["detect", "spec.yaml", "in.csv"],
    ["run", "spec.yaml", "in.csv", "--plan", "plan.json", "--ledger", "another.db"],
    ["ledger", "export", "spent.db", "--to", "-"],
]
"""All ways of printing: by click, at once, as answers come, and by a thread."""
CODES = {"full": 5, "pipe": 141}


@pytest.mark.parametrize(
    "cases",
    [
        [
            *((arguments, "full") for arguments in PRINTING[::7]),
            *((arguments, "pipe") for arguments in STREAMING),
            *((arguments, "both") for arguments in STREAMING[:3]),
        ],
        *longer([(arguments, "full") for arguments in PRINTING]),
    ],
    ids=["all ways of printing", "all commands"],
)
def test_no_command_shows_a_traceback_where_its_output_fails(
    folder: Path, cases: list[tuple[list[str], str]]
) -> None:
    """Where the disk is full; a pipe fails in the same places, with another error."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(cases),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    codes = map(int, done.stdout.split())
    for number, ((arguments, how), code) in enumerate(zip(cases, codes, strict=True)):
        assert code == CODES.get(how, code) != 0, (arguments, how)
        said = (folder / f"stderr-{number}").read_text()
        assert "Traceback" not in said, arguments
        assert "Exception ignored" not in said, arguments
        if how == "full":
            assert "tacit: " in said, arguments
            assert "full" in said, arguments


def test_every_command_that_prints_is_tried() -> None:
    """A new command must be added above."""
    tried = {" ".join(arguments[:2]) for arguments in PRINTING} | {one[0] for one in PRINTING}
    silent = {"submit", "serve", "reproduce", "ledger", "ledger answers", "ledger archive"}
    names = set(COMMANDS) | {f"ledger {name}" for name in ledger.commands}
    assert names - tried - silent == set()


@pytest.mark.parametrize("place", ["/dev/null/demo", "/proc/demo"])
def test_a_demo_that_cannot_be_written_says_so(place: str) -> None:
    shown = tacit("demo", "--out", place)
    assert shown.exit_code == 5
    assert f"{place} cannot be written" in shown.stderr or "/proc" in shown.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_demo_in_a_folder_of_others_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    shown = tacit("demo", "--out", tmp_path / "demo")
    assert shown.exit_code == 5


@pytest.mark.soak
def test_an_output_that_knows_few_letters_is_explained(folder: Path) -> None:
    (folder / "letters.yaml").write_text((folder / "spec.yaml").read_text().replace("us,", "Ü,"))
    done = subprocess.run(
        [sys.executable, "-m", "tacit", "explain", "letters.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"},
        timeout=600,
    )
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "PYTHONUTF8=1" in done.stderr


def test_want_of_memory_is_said(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tacit.insight.explain.explain", exhausted)
    shown = tacit("explain", folder / "spec.yaml")
    assert shown.exit_code == 1
    assert "not enough memory" in shown.stderr
