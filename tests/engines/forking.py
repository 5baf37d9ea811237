"""Runs the command line in forks of a process that has everything imported, to start at once.

Used as `python -m tests.engines.forking DESCRIPTOR`: reads a JSON line `[output, argument, ...]`,
forks, and answers with the child's number; the child writes to the file `output` and ends as the
command does. `["wait", pid]` answers with how a child ended. A child that does not end in time is
aborted, with the stacks of its threads in its output.

`Forks.program` is a program that takes the place of `tacit`, or of `python` for a script, or for
code after `-c`. It hands
its arguments, folder, environment and standard streams to a fork, over a socket, whose descriptor
the server is given. It passes signals on, and ends as the fork ends. If it is killed, so is the
fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

_PATIENCE: Final = 180.0
"""Seconds that a child may take to end once somebody waits for it."""
_PROGRAM: Final = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    pid = int.from_bytes(server.recv(4), "big")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(int.from_bytes(server.recv(4), "big"))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
"""What takes the place of `tacit`."""


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


def serve(child: Callable[[str, list[str]], None], listener: socket.socket | None = None) -> None:
    """Answer requests until standard input ends; `child` runs in the forks."""
    waiting = [sys.stdin, *([] if listener is None else [listener])]
    attendants: set[int] = set()
    while True:
        ready, _, _ = select.select(waiting, [], [])
        attendants = {pid for pid in attendants if os.waitpid(pid, os.WNOHANG)[0] == 0}
        if listener in ready:
            assert listener is not None
            connection, _ = listener.accept()
            pid = os.fork()
            if not pid:
                _attend(connection)
                os._exit(0)
            attendants.add(pid)
            connection.close()
            continue
        line = sys.stdin.readline()
        if not line:
            return
        first, *rest = json.loads(line)
        if first == "wait":
            print(_wait(rest[0]), flush=True)
            continue
        pid = os.fork()
        if not pid:
            _end(partial(child, first, rest))
        print(pid, flush=True)


def _end(work: Callable[[], None]) -> NoReturn:
    """Do something, and end this process as a program ends."""
    code = 70
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _attend(connection: socket.socket) -> None:
    """Run what a program asks for, until that ends or the program is killed."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as request:
        arguments, folder, environment = json.loads(request.read(int.from_bytes(size, "big")))
    pid = os.fork()
    if not pid:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        _end(lambda: _type(arguments))
    for stream in streams:
        os.close(stream)
    connection.sendall(pid.to_bytes(4, "big"))
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, connection.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(status.to_bytes(4, "big"))


def _type(arguments: list[str]) -> None:
    """Run a script of Python, or code after `-c`, or else `tacit`."""
    faulthandler.enable()
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    if arguments[0].endswith(".py"):
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
        return
    from tacit.cli.main import main

    main(arguments)


class Forks:
    """A server of forks: `module` is a program that calls `serve`."""

    def __init__(self, module: str = "tests.engines.forking") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tacit-forks-"))
        self.program = self._folder / "tacit"
        place = str(self._folder / "socket")
        self.program.write_text(_PROGRAM.format(python=sys.executable, place=place))
        self.program.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(place)
            listener.listen()
            self._server = subprocess.Popen(
                [sys.executable, "-m", module, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
                pass_fds=[listener.fileno()],
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
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    _import_everything()
    serve(_child, socket.socket(fileno=int(sys.argv[1])))
