"""The status line of a live run."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from tacit.cli.status_line import StatusLine, show_status
from tacit.pipeline.status import PublicStatus, RunStatus

DAY = 1_772_352_000  # 2026-03-01T08:00:00Z


def test_the_line_tells_rate_lag_windows_refusals_and_the_next_close() -> None:
    now = [float(DAY)]
    status = RunStatus(PublicStatus(windows=3, next_close=(DAY + 90) * 1_000_000))
    line = StatusLine(status, now=lambda: now[0])
    assert str(line).startswith("0 tuples/s · 0 windows open · 3 windows released")
    now[0] += 4
    status.tuples, status.newest, status.open_windows = 5000, (DAY + 2) * 1_000_000, 2
    status.late, status.refused = 7, 1200
    assert str(line) == (
        "1,250 tuples/s · lag 2.0 s · 2 windows open · 3 windows released · 7 late · 1,200 refused"
        " · next close 2026-03-01 08:01:30Z"
    )


def test_what_waits_for_sinks_and_who_has_reached_a_limit_is_reported_if_there_is_any() -> None:
    assert "undelivered" not in str(StatusLine(RunStatus()))
    said = str(StatusLine(RunStatus(PublicStatus(undelivered=1, exhausted=2))))
    assert "1 release undelivered · 2 subjects not paying" in said


def test_until_all_sources_are_connected_the_line_says_just_that() -> None:
    assert str(StatusLine(RunStatus(connecting=True))) == "connecting to the sources ..."


def test_a_slow_ledger_is_reported() -> None:
    assert "commits" not in str(StatusLine(RunStatus(commit_seconds=0.1)))
    assert "commits take 1.5 s" in str(StatusLine(RunStatus(commit_seconds=1.5)))


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = [0.0]
    status = RunStatus()
    line = StatusLine(status, now=lambda: now[0])
    for _ in range(100):
        now[0] += 1
        status.tuples += 10
        str(line)
    for _ in range(20):
        now[0] += 1
        str(line)
    assert str(line).startswith("0 tuples/s")


def test_times_ahead_of_the_clock_are_reported() -> None:
    status = RunStatus(newest=(DAY + 3600) * 1_000_000)
    assert "1 h 0 min ahead of the clock" in str(StatusLine(status, now=lambda: float(DAY)))


def test_a_time_beyond_the_calendar_is_no_trouble() -> None:
    assert str(StatusLine(RunStatus(PublicStatus(next_close=1 << 62)))).endswith("next close never")


def test_in_a_pipe_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with show_status(RunStatus()):
        pass
    assert written.getvalue() == ""


SHOWING = """
import logging, time
from tacit.cli.log import log_to_stderr
from tacit.cli.status_line import show_status
from tacit.pipeline.status import RunStatus
with log_to_stderr(), show_status(RunStatus(late=42)):
    time.sleep(1.2)
    logging.getLogger("tacit").info("above it")
    time.sleep(0.8)
print("answers")
"""


def test_on_a_terminal_it_is_shown_below_what_is_logged() -> None:
    """And where answers go there is nothing of it."""
    master, slave = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", SHOWING],
        stderr=slave,
        stdout=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "160", "TERM": "xterm"},
        text=True,
    )
    os.close(slave)
    said = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        said += part
    answers, _ = done.communicate(timeout=30)
    assert done.returncode == 0, said
    os.close(master)
    assert b"42 late" in said
    assert b"info: above it\r\n" in said
    assert answers == "answers\n"


@pytest.mark.parametrize(("drift", "shown"), [(None, False), (0.04, False), (0.06, True)])
def test_drift_is_shown_from_a_twentieth_on(drift: float | None, shown: bool) -> None:
    said = str(StatusLine(RunStatus(PublicStatus(drift=drift))))
    assert ("drift 6%" in said) is shown
