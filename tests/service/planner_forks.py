"""Plans in forks of a process that has everything imported, so that they begin at once.

Used as `python -m tests.service.planner_forks SOCKET`. Who connects hands over its standard input
and output; a fork does there what `python -m tacit.service.planner` does, and then hangs up.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from tacit.service import planner

COMMAND: Final = planner.COMMAND
"""Starts the planner's own process, also while services plan in forks."""
CLIENT: Final = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [b"."], [0, 1])
    server.recv(1)
"""
PATIENCE: Final = 120.0


def serve(place: str) -> None:
    """Fork for everyone who connects."""
    import tacit.engines.local
    import tacit.insight.curve
    import tacit.insight.leaks
    from tests.engines.forking import load_kernels

    del tacit
    load_kernels()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}.new")
        listener.listen()
        os.rename(f"{place}.new", place)  # it is there once one can connect
        while True:
            connection, _ = listener.accept()
            _, given, _, _ = socket.recv_fds(connection, 1, 2)
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    sys.stdin, sys.stdout = os.fdopen(given[0]), os.fdopen(given[1], "w")
                    planner.main()
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            for descriptor in given:
                os.close(descriptor)
            connection.close()


@contextmanager
def forked_plans(folder: Path) -> Iterator[None]:
    """Let services plan in forks while the block lasts."""
    place = folder / "planner"
    command = [sys.executable, "-m", "tests.service.planner_forks", str(place)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root) as server:
        try:
            deadline = time.monotonic() + PATIENCE
            while not place.exists():
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            client = (sys.executable, "-I", "-S", "-c", CLIENT, str(place))
            with patch("tacit.service.planner.COMMAND", client):
                yield
        finally:
            server.kill()


if __name__ == "__main__":
    serve(sys.argv[1])
