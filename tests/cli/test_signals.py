"""Signals: asked once it stops cleanly, asked twice it ends, and SIGHUP reloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tacit.cli.signals import SignalRelay, handle_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_to_stop(number: signal.Signals) -> None:
    asked = threading.Event()
    before = signal.getsignal(number)
    with handle_signals(asked.set):
        os.kill(os.getpid(), number)
        assert asked.wait(5)
    assert signal.getsignal(number) == before


def test_a_hangup_asks_to_reload_as_often_as_it_comes() -> None:
    reloads: list[None] = []
    with handle_signals(lambda: None, lambda: reloads.append(None)):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
    assert len(reloads) == 3


def test_a_run_that_cannot_reload_outlives_a_hangup() -> None:
    with handle_signals(lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)


def test_what_is_asked_before_a_run_is_there_is_passed_on_to_it_once() -> None:
    """A start takes its time; a hangup in it must neither be lost nor end the process."""
    said: list[str] = []
    relay = SignalRelay()
    with handle_signals(relay.stop, relay.reload):
        os.kill(os.getpid(), signal.SIGHUP)
        assert said == []
        relay.connect(lambda: said.append("stop"), lambda: said.append("reload"))
        assert said == ["reload"]
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert said == ["reload", "stop", "reload"]


STUBBORN = """
import sys, time
from tacit.cli.signals import handle_signals
with handle_signals(lambda: print("asked", flush=True)):
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(second)
        assert process.wait(10) == -second
