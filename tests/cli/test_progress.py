"""Progress: a bar on a terminal that does not promise too much, and nothing in a pipe."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from tacit.cli.progress import show_progress
from tests.cli.small_runs import specified, tacit, tuples


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
