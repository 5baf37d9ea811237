"""A real service on loopback: uvicorn, a ledger, and a run over generated tuples."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tacit.engines.setup import RunOptions
from tacit.service.roles import Role
from tacit.service.server import ServerOptions
from tacit.service.serving import Service, SetupOptions, open_inputs, open_service

SPEC = """
version: 1
streams: {s: {subject: who, time: at, columns: {who: text, at: integer, kind: text}}}
subjects: [t0, t1, t2, t3, t4]
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
  c: {stream: s, where: "kind = 'c'"}
patterns: {visit: "SEQ(a, b)"}
private:
  - {pattern: visit, epsilon: 2, limit: 20 per day}
queries:
  - {name: both, consumer: city, pattern: "AND(a, c)"}
  - {name: either, consumer: city, pattern: "OR(a, b)"}
  - {name: open, consumer: clinic, pattern: "AND(c, NOT b)"}
mechanism: uniform
"""
RICH = (
    SPEC.replace("kind: text}", "kind: text, lon: number, lat: number}")
    .replace("subjects: [t0, t1, t2, t3, t4]", "subjects: {file: subjects.csv, column: who}")
    .replace(
        "events:",
        """areas:
  clinic: {circle: [8.40, 49.01, 400 m]}
  depot: {box: [8.41, 49.00, 8.42, 49.01]}
  lake: {geojson: {type: Polygon, coordinates: [[[8.39, 49], [8.4, 49], [8.39, 49.1], [8.39, 49]]]}}
events:
  at_clinic: {stream: s, inside: clinic}
  at_depot: {stream: s, inside: depot}
  wet: {stream: s, inside: lake}""",
    )
    .replace(
        "queries:",
        """queries:
  - {name: place, consumer: city, one_of: {clinic: at_clinic, depot: at_depot}}
  - {name: dry, consumer: city, pattern: "AND(at_depot, NOT wet)"}
  - {name: calls, consumer: city, times: at_depot, up_to: 2}
  - {name: present, consumer: city, count: at_clinic}
  - {name: based, consumer: city, count: c, by: home}
  - {name: swim, consumer: clinic, count: wet, by: fleet}""",
    )
    .replace(
        "{pattern: visit, epsilon: 2, limit: 20 per day}",
        "{pattern: visit, epsilon: 2, limit: 20 per day}\n  - {pattern: at_clinic, epsilon: 1}",
    )
)
"""The same with areas, and queries of all kinds; it needs a registry file."""
HOMES = ("depot", "depot", "lake", "lake", "elsewhere")
PLACES = ((8.40, 49.01), (8.415, 49.005), (8.391, 49.001))
"""Positions in the clinic, the depot and the lake."""
SUBJECTS = 5
QUERIES = 3
PATIENCE = 300.0
"""Seconds that anything may take."""
TLS = ssl.create_default_context()
"""For all clients: to read the certificates of the machine takes longer than a request."""
T = TypeVar("T")


@dataclass
class Running:
    """A running service and tokens for it."""

    service: Service
    failures: list[BaseException]
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its address."""
        return self.service.url

    def token(self, role: str, name: str, **more: Any) -> str:
        """A token for this role and name."""
        key = f"{role} {name} {more}"
        if key not in self.tokens:
            tokens = self.service.state.tokens
            self.tokens[key] = tokens.create(Role(role), name, creator="test", **more)[0]
        return self.tokens[key]

    def client(self, role: str | None = None, name: str = "", **more: Any) -> httpx.Client:
        """A client with a token, or without one."""
        headers = {} if role is None else bearer(self.token(role, name, **more))
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=TLS)

    def wait(self, answers: int) -> None:
        """Wait until so many answers are released."""
        deadline = time.monotonic() + PATIENCE
        while self.service.state.feed.last_id() + 1 < answers:
            if self.failures:
                raise self.failures[0]
            assert time.monotonic() < deadline, "the run released too little"
            time.sleep(0.02)


def within(items: Iterable[T], seconds: float = PATIENCE) -> Iterator[T]:
    """The same items; an error if the next one comes too late, also if comments come before it."""
    deadline = time.monotonic() + seconds
    for item in items:
        assert time.monotonic() < deadline, "what was expected did not come"
        yield item


@contextlib.contextmanager
def killing_after(process: subprocess.Popen[str], seconds: float = PATIENCE) -> Iterator[None]:
    """Kill a process if the block takes too long, so that reading from it ends."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def join(*threads: threading.Thread) -> None:
    """Wait for threads to end, but not forever."""
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} does not end"


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


def write_tuples(path: Path, windows: int, first: int = 0) -> Path:
    """Tuples of all subjects in so many windows, and one in the window after them."""
    lines = [] if path.exists() else ["who,at,kind"]
    for window in range(first, first + windows):
        for subject in range(SUBJECTS):
            kind = "abc"[(window + subject) % 3]
            lines.append(f"t{subject},{60 * window + subject},{kind}")
    with path.open("a") as file:
        file.write("\n".join(lines) + "\n")
    return path


def write_registry(folder: Path) -> None:
    """A registry of five subjects with homes, two of which are areas, and fleets."""
    lines = [f"t{number},{home},f{number % 2}\n" for number, home in enumerate(HOMES)]
    (folder / "subjects.csv").write_text("who,home,fleet\n" + "".join(lines))


@contextlib.contextmanager
def running(
    folder: Path,
    sources: Sequence[Any] = (),
    *,
    ledger: str | None = None,
    spec: str = SPEC,
    openid: Path | None = None,
    setup: SetupOptions | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Run a service until the block ends; errors of the run are raised there."""
    path = folder / "spec.yaml"
    path.write_text(spec)
    given = RunOptions(
        path,
        [(None, str(source)) for source in sources],
        ledger=ledger or str(folder / "ledger.db"),
        **options,
    )
    version = given.read()
    failures: list[BaseException] = []
    with (
        open_inputs(given, version.spec) as opened,
        open_service(
            given, version, opened, ServerOptions(port=0, openid=openid), setup
        ) as service,
    ):

        def answer() -> None:
            try:
                with service.open_run() as run:
                    service.answer(run)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield Running(service, failures)
        finally:
            service.stop()
            join(thread)
    if failures:
        raise failures[0]
