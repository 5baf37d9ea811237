"""Runs the command line in forks of a process that has everything imported, to start at once.

Used as `python -m tests.engines.forking`: reads a JSON line `[output, argument, ...]`, forks, and
answers with the child's number; the child writes to the file `output` and ends as the command
does. `["wait", pid]` answers with how a child ended. A child that does not end in time is ended,
with the stacks of its threads in its output.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_PATIENCE: Final = 180.0
"""Seconds that a child may take to end once somebody waits for it."""


def _child(output: str, arguments: list[str]) -> None:
    from tacit.cli.main import main

    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    main(arguments)


def load_kernels() -> None:
    """Load the kernels that runs use: forks have them, and need not load them again."""
    from tacit.kernels.ahead import _find
    from tacit.kernels.needs import find_kernels

    for _, kernel in _find(find_kernels()):
        kernel.compile(wait=True)


def _import_everything() -> None:
    """What a run takes most of its start for; nothing that has threads is used."""
    import alembic.context
    import pandas as pd
    import psycopg  # noqa: F401
    from paho.mqtt import client  # noqa: F401

    import tacit.cli.monitoring
    import tacit.cli.run_report
    import tacit.cli.sources
    import tacit.ledger.verification
    import tacit.pipeline.run

    del alembic, pd, tacit
    load_kernels()


def _wait(pid: int) -> int:
    """Return how a child ended; abort it if it does not end in time."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGABRT)
            deadline = float("inf")
        time.sleep(0.005)


def serve(child: Callable[[str, list[str]], None]) -> None:
    """Answer requests until standard input ends; `child` runs in the forks."""
    for line in sys.stdin:
        first, *rest = json.loads(line)
        if first == "wait":
            print(_wait(rest[0]), flush=True)
            continue
        pid = os.fork()
        if not pid:
            try:
                child(first, rest)
                sys.stdout.flush()
                os._exit(0)
            except SystemExit as end:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(70)
        print(pid, flush=True)


class Forks:
    """A server of forks: `module` is a program that calls `serve`."""

    def __init__(self, module: str = "tests.engines.forking") -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def start(self, output: Path, *arguments: object) -> int:
        """Start `tacit` with these arguments; the number of its process."""
        return int(self._ask([str(output), *map(str, arguments)]))

    def wait(self, pid: int) -> int:
        """How a process ended: its exit code, or minus the signal that killed it."""
        return int(self._ask(["wait", pid]))

    def _ask(self, request: list[Any]) -> str:
        stdin, stdout = self._server.stdin, self._server.stdout
        if stdin is None or stdout is None:
            raise AssertionError
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return stdout.readline()

    def close(self) -> None:
        """No more forks."""
        if self._server.stdin is not None:
            self._server.stdin.close()
        if self._server.stdout is not None:
            self._server.stdout.close()
        self._server.wait(30)

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    _import_everything()
    serve(_child)
