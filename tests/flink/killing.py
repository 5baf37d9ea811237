"""A job on a standalone cluster whose machines and driver are killed while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np
import polars as pl

from tacit.connectors.files import open_source
from tacit.engines.setup import assign
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tacit.pipeline.run import Run
from tacit.spec.yaml_reader import load
from tests.engines.sharded.test_sharded import KEY, SPEC, plain
from tests.flink.cluster import StandaloneCluster

BEGIN = 1_700_000_040
PEOPLE = 30
PRIVATE = "private:\n  - {pattern: door, epsilon: 0.5}\nsubjects: {file: subjects.txt}\n"


class Feeder(threading.Thread):
    """Appends tuples to two files, ten seconds of event time at a time."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.paths = [folder / f"home{number}.jsonl" for number in range(2)]
        self._random = np.random.default_rng(seed)
        self._stopping = threading.Event()
        self.steps = 0
        self.feed()

    def run(self) -> None:
        """Go on until it is stopped."""
        while not self._stopping.wait(0.15):
            self.feed()

    def feed(self) -> None:
        """Append what happened in the next ten seconds."""
        for path in self.paths:
            rows = 60
            frame = pl.DataFrame(
                {
                    "who": [f"p{n}" for n in self._random.integers(0, PEOPLE, rows)],
                    "at": BEGIN + 10 * self.steps + self._random.integers(-12, 10, rows),
                    "kind": self._random.integers(0, 4, rows),
                    "level": self._random.integers(0, 10, rows),
                }
            )
            with path.open("ab") as file:
                file.write(frame.write_ndjson().encode())
                file.write(f"{{ {self.steps}\n".encode())  # not JSON
        self.steps += 1

    def stop(self) -> None:
        """Nothing happens any more."""
        self._stopping.set()
        self.join(300)


class Driver:
    """`tacit submit`, as a process."""

    def __init__(
        self, folder: Path, address: str, sources: list[Path], settings: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.answers = folder / "answers.jsonl"
        self._address = address
        self._command = [
            str(Path(sys.executable).with_name("tacit")),
            "submit",
            str(folder / "home.yaml"),
            *map(str, sources),
            *("--mechanism", "uniform", "--follow", "--cluster", address),
            *("--to", str(self.answers), "--folder", str(folder / "home.job")),
            *("--set", "execution.checkpointing.interval=500 ms"),
            *("--set", "restart-strategy.type=fixed-delay"),
            *("--set", "restart-strategy.fixed-delay.attempts=1000000"),
            *("--set", "restart-strategy.fixed-delay.delay=200 ms"),
            *(word for one in settings.items() for word in ("--set", "=".join(one))),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.folder / "log").read_text()

    def start(self, parallelism: int, *more: str) -> None:
        """Start it, or start it again."""
        self._run([*self._command, "--parallelism", str(parallelism), *more])

    def attach(self) -> None:
        """Watch the job with another process; it needs neither the specification nor sources."""
        self._run(
            [
                *(self._command[0], "submit", "--attach", "--name", "home"),
                *("--cluster", self._address, "--folder", str(self.folder / "home.job")),
            ]
        )

    @property
    def last_log(self) -> str:
        """What it has said since it was started last."""
        return self.log[self._said :]

    def _run(self, command: list[str]) -> None:
        self._said = len(self.log) if (self.folder / "log").exists() else 0
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        """Let it stop the job with a savepoint."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(180) == 0, self.log

    def released(self) -> int:
        """How many windows have arrived."""
        found = self.read()
        return 0 if found is None else found["window_start"].n_unique()

    def read(self) -> pl.DataFrame | None:
        """The answers that have arrived; the last line may be on its way."""
        if not self.answers.exists():
            return None
        whole = self.answers.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        return pl.read_ndjson(whole) if whole else None

    def wait_for(
        self, windows: int, cluster: StandaloneCluster, timeout: float = 240, *, alone: bool = False
    ) -> None:
        """Until so many windows have arrived; `alone` if no driver runs."""
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while self.released() < windows:
            cluster.heal()
            assert time.monotonic() < deadline, self.log
            assert (self.process.poll() is None) != alone, self.log
            time.sleep(0.2)


def check(driver: Driver, sources: list[Path]) -> pl.DataFrame:
    """Every window is there once, in order; what is public is true; the ledger is sound.

    And every line that cannot be read has one dead letter.
    """
    answers = driver.read()
    assert answers is not None
    assert answers["id"].to_list() == list(range(answers.height))
    starts = answers["window_start"].str.to_datetime(time_zone="UTC")
    windows = starts.unique(maintain_order=True)
    assert windows.is_sorted()
    assert windows.diff().drop_nulls().unique().dt.total_seconds().to_list() == [60]
    assert answers.height == len(windows) * PEOPLE * 6
    with Ledger.open(str(driver.folder / "home.job" / "ledger.db")) as ledger:
        verdict = verify(ledger)
    assert verdict.passed, verdict.faults
    assert verdict.releases == len(windows)
    files = (driver.folder / "home.job" / "letters").glob("*.jsonl")
    letters = [json.loads(line) for path in files for line in path.read_bytes().splitlines()]
    for path in sources:
        numbers = [
            int(letter["raw"].removeprefix("{ "))
            for letter in letters
            if (letter["reason"], letter["source"]) == ("not JSON", str(path))
        ]
        assert sorted(numbers) == list(range(len(numbers)))
        assert len(numbers) > len(windows)
    spec = load(driver.folder / "home.yaml")
    run = Run(spec, assign(spec, [("home", open_source(path)) for path in sources]))
    true = plain(pl.concat([pl.DataFrame(part.table()) for part in run]))
    public = ["thrice"]
    found = plain(answers.with_columns(window_start=starts.cast(pl.Datetime("us", "UTC"))))
    both = found.join(true, on=KEY, how="left", suffix="_true").filter(
        pl.col("query").is_in(public)
    )
    assert both["detected"].equals(both["detected_true"], check_names=False)
    return answers


def prepare(
    folder: Path, address: str, seed: int, settings: Mapping[str, str] | None = None
) -> tuple[Feeder, Driver]:
    """Sources that grow, and a job over them with these settings that is not started yet."""
    (folder / "home.yaml").write_text(SPEC + PRIVATE)
    (folder / "subjects.txt").write_text("".join(f"p{n}\n" for n in range(PEOPLE)))
    feeder = Feeder(folder, seed)
    return feeder, Driver(folder, address, feeder.paths, settings or {})


def killed(
    folder: Path, cluster: StandaloneCluster, kills: int, seed: int, *, rescaled: bool
) -> tuple[int, int]:
    """Kill TaskManagers and the driver at random points; how many of each.

    With `rescaled`, the job is then stopped and resumed with another parallelism.
    """
    random = Random(seed)
    feeder, driver = prepare(folder, cluster.address, seed)
    machines = drivers = 0
    driver.start(2)
    feeder.start()
    driver.wait_for(2, cluster)
    try:
        while machines < kills:
            time.sleep(random.uniform(0.5, 6))
            cluster.heal()
            if random.random() < 0.3:
                driver.kill()
                drivers += 1
                time.sleep(random.uniform(0, 2))
                driver.start(2)
            if random.random() < 0.25:  # now and then let it come to itself
                driver.wait_for(driver.released() + 2, cluster)
            cluster.kill_taskmanager(random)
            machines += 1
            cluster.heal()
        driver.wait_for(driver.released() + 3, cluster)
        if rescaled:
            driver.stop()
            before = driver.released()
            cluster.heal()
            cluster.wait_for_taskmanagers()
            driver.start(4)
            driver.wait_for(before + 3, cluster)
    finally:
        feeder.stop()
    driver.stop()
    check(driver, feeder.paths)
    return machines, drivers
