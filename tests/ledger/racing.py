"""Engines in processes of their own, which try to get in each other's way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tacit.errors import FencedError, LedgerError, StaleError
from tacit.ledger.ledger import Ledger
from tests.ledger.drafts import MINUTE, NANO, account, draft, opened
from tests.processes import FORKSERVER

NAMES = ["a", "b", "c"]
HORIZON = 10 * MINUTE
LIMIT = 12 * NANO


class Engine:
    """A process, and what it tells."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        self._ours, theirs = FORKSERVER.Pipe()
        self.process: BaseProcess = FORKSERVER.Process(
            target=_tell, args=(theirs, work, *arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """The next that it tells."""
        if not self._ours.poll(60):
            raise TimeoutError("an engine in another process does not answer")
        return self._ours.recv()

    def go(self) -> None:
        """Let it go on."""
        self._ours.send("go")

    def kill(self) -> None:
        """End it as suddenly as a crash does."""
        self.process.kill()
        self.process.join(60)


def _tell(to: Connection, work: Callable[..., Any], *arguments: Any) -> None:
    to.send(work(to, *arguments))


def open_only(_: Connection, place: str) -> str:
    """Open a ledger that may not be there."""
    with Ledger.open(place) as ledger:
        return ledger.id


def take_turns(to: Connection, place: str) -> tuple[list[int], int]:
    """Release for one run, taking it over again and again; the windows, and how often fenced."""
    released: list[int] = []
    fenced = 0
    with Ledger.open(place) as ledger:
        to.send("ready")
        to.recv()
        for _ in range(6):
            lease = ledger.take_over("run", "a")
            try:
                for _ in range(50):
                    window = (lease.read_until() or 0) // MINUTE
                    lease.commit(b"%d" % window, draft(window, body=random.randbytes(16)))
                    released.append(window)
                    lease.commit(b"after %d" % window)
                    time.sleep(0.001)  # or a waiting process may never get its turn
                return released, fenced
            except FencedError:
                fenced += 1
    return released, fenced


def share(to: Connection, place: str, run: str, windows: int) -> tuple[list[list[bool]], int]:
    """Release for a run whose accounts another one uses too; who paid, and how often stale."""
    paid: list[list[bool]] = []
    stale = 0
    with Ledger.open(place) as ledger:
        lease = ledger.take_over(run, run)
        limited = account(len(NAMES), limit=LIMIT, horizon=HORIZON)
        accounts = opened(lease, NAMES, limited)
        to.send("ready")
        to.recv()
        while len(paid) < windows:
            start = len(paid) * MINUTE
            beyond = accounts.find_exhausted(start)
            charges = accounts.charge(start, beyond)
            try:
                lease.commit(b"", draft(len(paid), charges, body=random.randbytes(16)))
                paid.append((~beyond).tolist())
            except StaleError:
                stale += 1
                accounts = opened(lease, NAMES, limited)
    return paid, stale


def go_on(to: Connection, place: str) -> None:
    """Release for ever, from where the run was left."""
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("run", "a")
        accounts = opened(lease, NAMES, account(len(NAMES), limit=LIMIT, horizon=HORIZON))
        window = (lease.read_until() or 0) // MINUTE
        to.send("ready")
        while True:
            charges = accounts.charge(window * MINUTE, accounts.find_exhausted(window * MINUTE))
            body = b"%d" % window * 5000
            lease.commit(b"%d" % window * 9000, draft(window, charges, body=body))
            lease.record_delivery("file", window + 1, window)
            lease.drop_delivered(["file"], 2**62)
            window += 1


def fill(_: Connection, place: str, size: int) -> tuple[str, str, int]:
    """Release until a file would be larger than it may; the error, and how many were released."""
    import resource

    with Ledger.open(place) as ledger:
        lease = ledger.take_over("run", "a")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        window = 0
        try:
            while True:
                lease.commit(b"%d" % window, draft(window, body=random.randbytes(50_000)))
                window += 1
        except LedgerError as error:
            return type(error).__name__, str(error), window
