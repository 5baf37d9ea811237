"""Small runs that between them call the kernels that first runs call.

`python -m tests.kernels.scenarios` records which, for `tacit.kernels.needs`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from tacit.evaluation.trips import Trips
from tacit.kernels import needs
from tacit.kernels.ahead import KernelSignature
from tacit.kernels.needs import RecordedRun

SUBJECTS = [f"t{number}" for number in range(10)]
NUMBERS = [f'"{number}"' for number in range(10)]
HEAD = """
version: 1
streams: {{gps: {{subject: taxi, time: at}}}}
windows: {{size: 10 min, lateness: 30 s{windows}}}
areas: {{hospital: {{circle: [116.39, 39.91, 600 m]}}}}
events:
  parked: {{stream: gps, where: "speed < 1"}}
  slow: {{stream: gps, where: "speed BETWEEN 1 AND 10"}}
  fast: {{stream: gps, where: "speed > 15"}}
{area}
private: [{{pattern: {private}, epsilon: 1.0}}]
queries: [{{name: asked, consumer: city, pattern: "{pattern}"}}]
subjects: [{subjects}]
"""
AREA = "  near: {stream: gps, inside: hospital}"
PATTERNS = (
    "parked",
    "AND(slow, parked)",
    "OR(slow, NOT parked)",
    "SEQ(slow, parked)",
    "SEQ(slow{2,}) WITHIN 8 min",
    "SEQ(slow, parked) WITHIN 8 min",
    "SEQ(slow, NOT fast, parked)",
    "SEQ(slow a, fast b) WHERE b.speed > 2 * a.speed",
)
RECORD = """
import json, sys
from tacit.cli.main import main
from tacit.kernels import KERNELS, ahead, cache, needs
from tacit.kernels.signatures import format_type
features, runs, loaded = {}, [], []
def find(asked):
    found = needed(asked)
    features[id(found)] = found, sorted(asked)
    return found
def begin(wanted, **_named):
    runs.append([features[id(wanted)][1], len(loaded)])
    return 0
def load(self, signature, context):
    name = f"{self._function.__module__}.{self._function.__qualname__}"
    try:
        loaded.append([name, [format_type(one) for one in signature]])
    except ValueError:
        pass
    return read(self, signature, context)
needed, needs.find_kernels = needs.find_kernels, find
read, cache.KernelCache.load_overload = cache.KernelCache.load_overload, load
ahead.compile_ahead = begin
main(sys.argv[1:], standalone_mode=False)
ends = [first for _, first in runs[1:]] + [len(loaded)]
found = [[own, loaded[begin:end]] for (own, _), begin, end in zip(runs, [0, *ends], ends)]
compiled = sum(sum(kernel.stats.cache_misses.values()) for kernel in KERNELS.values())
print(json.dumps([found, compiled]))
"""
"""Runs a command and prints which features it has and which kernels it loaded, in this order.

A command that compiles twice counts as two runs, each with the kernels that it loaded until the
next one. Kernels that only other kernels call are part of these, so that they are not loaded where
all are compiled already."""


@dataclass(frozen=True)
class Scenario:
    """A command, and the specification it is given."""

    command: str
    pattern: str
    source: str = "csv"
    options: tuple[str, ...] = ()
    area: bool = False
    sliding: bool = False
    numbered: bool = False
    """Whether subjects are integers in the file."""
    learned: bool = False
    """Whether the registry is learned."""
    demo: bool = False
    """Whether the specification and the tuples are those of `tacit demo`."""
    sink: str = "csv"

    @property
    def spec(self) -> str:
        """The specification's text."""
        if self.demo:
            return files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8")
        head = HEAD.replace("subjects: [{subjects}]\n", "") if self.learned else HEAD
        return head.format(
            windows=", slide: 5 min" if self.sliding else "",
            area=AREA if self.area else "",
            private="near" if self.area else "parked",
            pattern=self.pattern,
            subjects=", ".join(f'"{n}"' for n in range(10))
            if self.numbered
            else ", ".join(SUBJECTS),
        )

    def arguments(self, folder: Path) -> list[str]:
        """The command line, for files in a folder."""
        name = "demo" if self.demo else "numbered" if self.numbered else "tuples"
        spec, source = folder / "spec.yaml", folder / f"{name}.{self.source}"
        spec.write_text(self.spec)
        options = [one.format(folder=folder) for one in self.options]
        if self.command == "demo":
            return ["demo", "--out", str(folder / "demo"), *options]
        if self.command == "plan":
            return ["plan", str(spec), "--history", str(source), *options]
        sink = folder / f"out.{self.sink}"
        return [self.command, str(spec), str(source), "--to", str(sink), *options]


def scenarios() -> Iterator[Scenario]:
    """Each feature with as few others as possible, and pairs that bring kernels of their own."""
    uniform = ("--mechanism", "uniform")
    for pattern in PATTERNS:
        yield Scenario("detect", pattern)
        yield Scenario("run", pattern, options=uniform)
    for pattern in ("parked", "SEQ(slow, parked)", "SEQ(slow, parked) WITHIN 8 min"):
        yield Scenario("detect", pattern, sliding=True)
        for mechanism in ("optimal", "adaptive"):
            plan = ("-o", "{folder}/plan.json", "--mechanism", mechanism)
            yield Scenario("plan", pattern, options=plan)
            yield Scenario("run", pattern, options=("--plan", "{folder}/plan.json"))
    for source in ("parquet", "jsonl", "arrow"):
        yield Scenario("detect", "parked", source)
        if source != "jsonl":
            yield Scenario("detect", "parked", source, numbered=True)
    yield Scenario("detect", "parked", area=True)
    yield Scenario("run", "parked", options=(*uniform, "--ledger", "{folder}/ledger.db"))
    yield Scenario("run", "parked", options=uniform, sliding=True)
    for source in ("csv", "parquet"):
        yield Scenario("detect", "parked", source, learned=True)
    yield Scenario("detect", "parked", "parquet", numbered=True, learned=True)
    yield Scenario("detect", "parked", sink="parquet")
    yield Scenario("detect", "", "parquet", demo=True, sink="parquet")
    for mechanism in ("optimal", "adaptive", "uniform"):
        plan = ("-o", "{folder}/plan.json", "--mechanism", mechanism)
        drawn = (*plan, "--plot", "{folder}/plot.svg")
        yield Scenario("plan", "", "parquet", drawn, demo=True)
        planned = ("--plan", "{folder}/plan.json")
        yield Scenario("run", "", "parquet", planned, demo=True, sink="parquet")
    yield DEMO


DEMO = Scenario("demo", "", demo=True)


def write_tuples(folder: Path) -> None:
    """The same tuples in every format."""
    rng, rows = np.random.default_rng(1), 2000
    tuples = pl.DataFrame(
        {
            "taxi": [SUBJECTS[number % 10] for number in range(rows)],
            "at": [1_700_000_000 + 3 * number for number in range(rows)],
            "lon": 116.38 + 0.04 * rng.random(rows),
            "lat": 39.9 + 0.02 * rng.random(rows),
            "speed": 20 * rng.random(rows),
        }
    )
    tuples.write_csv(folder / "tuples.csv")
    tuples.write_ndjson(folder / "tuples.jsonl")
    timed = tuples.with_columns(pl.from_epoch("at"))
    timed.write_parquet(folder / "tuples.parquet")
    timed.write_ipc(folder / "tuples.arrow")
    numbered = timed.with_columns(pl.Series("taxi", np.arange(rows) % 10))
    numbered.write_parquet(folder / "numbered.parquet")
    numbered.write_ipc(folder / "numbered.arrow")
    pq.write_table(Trips(taxis=20, days=0.5, seed=1).table(), folder / "demo.parquet")


def record(scenario: Scenario, folder: Path) -> list[RecordedRun]:
    """What a run needs, which shows where nothing is left to be compiled."""
    while True:
        for name in ("ledger.db", "out.csv", "out.parquet"):
            (folder / name).unlink(missing_ok=True)
        ran = subprocess.run(
            [sys.executable, "-c", RECORD, *scenario.arguments(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if ran.returncode:
            raise RuntimeError(f"{scenario}: {ran.stderr}")
        found, compiled = json.loads(ran.stdout.splitlines()[-1])
        if not compiled:
            return [
                RecordedRun(
                    frozenset(features), tuple(dict.fromkeys(map(KernelSignature.of, kernels)))
                )
                for features, kernels in found
            ]


def record_all(chosen: Sequence[Scenario]) -> list[RecordedRun]:
    """What all of them need, in parts; those with the same features together."""
    runs: dict[frozenset[str], dict[KernelSignature, None]] = {}
    with TemporaryDirectory() as name:
        write_tuples(Path(name))
        for scenario in chosen:
            for run in record(scenario, Path(name)):
                print(f"{len(run.kernels):4} {' '.join(sorted(run.features))}", flush=True)
                for part in [run] if scenario is DEMO else needs.split_run(run):
                    runs.setdefault(part.features, {}).update(dict.fromkeys(part.kernels))
    return [RecordedRun(features, tuple(kernels)) for features, kernels in runs.items()]


if __name__ == "__main__":
    target = Path(needs.__file__).with_name(needs.FILE)
    target.write_text(needs.format_runs(record_all(list(scenarios()))))
