"""Progress: a bar on a terminal that does not promise too much, and nothing in a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.cli.progress import show_progress
from tests.cli.small_runs import specified, tacit, tuples
from tests.engines.forking import Forks


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def find_shares(text: str) -> list[int]:
    """The shares that a bar showed, in order."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [int(share) for share in re.findall(r"(\d+) %", plain)]


def test_the_share_is_rounded_down_and_what_is_done_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_progress("Starting ...") as progress:
        progress(0.999, "delivering answers, 3 releases left")
    written = terminal.getvalue()
    assert "delivering answers, 3 releases left" in written
    assert find_shares(written)[-1] == 99


def test_nothing_is_shown_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress("Starting ...") as progress:
        progress(0.5, "reading")
    assert stream.getvalue() == ""


def test_planning_in_a_pipe_prints_only_the_report(tmp_path: Path) -> None:
    spec, history = specified(tmp_path), tuples(tmp_path / "history.csv", seed=1)
    shown = tacit("plan", spec, "--history", history, "-o", tmp_path / "plan.json")
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == ""


def watch(forks: Forks, *arguments: object) -> str:
    """What a command writes to standard error if that is a terminal."""
    master, slave = pty.openpty()
    command = [str(forks.program), *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(
        command, stderr=slave, stdout=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(slave)
        written = b""
        # The end of a terminal is an error on Linux, and nothing elsewhere.
        with contextlib.suppress(OSError):
            while part := os.read(master, 4096):
                written += part
        os.close(master)
    assert process.returncode == 0, written
    return written.decode()


def test_on_a_terminal_plan_shows_a_share_and_the_time_left(tmp_path: Path, forks: Forks) -> None:
    """And neither it nor a run shows 100 % while something is left to do."""
    spec, history = specified(tmp_path), tuples(tmp_path / "history.csv", seed=1)
    plan, answers = tmp_path / "plan.json", tmp_path / "answers.csv"
    planned = watch(forks, "plan", spec, "--history", history, "-o", plan)
    assert "Planning ..." in planned
    assert re.search(r"\d+ % .*(\d+:\d\d:\d\d|-:--:--)", planned)
    ran = watch(forks, "run", spec, history, "--plan", plan, "--to", answers)
    assert "releasing the last windows" in ran
    for written in (planned, ran):
        shares = find_shares(written)
        assert shares
        assert max(shares) < 100
