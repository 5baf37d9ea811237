"""Run the command line over the variants of a world, and compare all that consumers could see."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from click.testing import CliRunner

from tacit.cli.main import main
from tacit.connectors import file_pieces
from tacit.connectors.mqtt.address import MqttSourceOptions
from tacit.connectors.mqtt.messages import Message, MessageRows
from tacit.connectors.openers import open_input
from tacit.engines.metrics import Figures
from tacit.engines.setup import choose_plan
from tacit.ledger.ledger import Ledger
from tacit.pipeline import sources
from tacit.pipeline.sources import Batch, Source
from tacit.pipeline.status import PublicStatus
from tacit.planning.plan import Plan
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load
from tacit.spec.yaml_writer import to_yaml
from tests.differential.codings import payloads, write_files
from tests.differential.draws import fixed_draws
from tests.differential.worlds import RawTuple, SourceShape, Variant, World, describe

T = TypeVar("T")
LEDGER: Final = "ledger.db"
MESSAGES: Final = ("json", "cbor")
FILES: Final = ("a.csv", "a.jsonl", "a.csv.gz", "a.jsonl.zst")
SINKS: Final = (*FILES, "a.parquet", "a.arrow", "-", "{consumer}.csv", "{query}-{subject}.parquet")
RESUMABLE_SINKS: Final = (
    *(*FILES, "-", "parts/", "parts/*.csv", "parts/*.arrow"),
    *("{consumer}.jsonl", "{subject}.csv", "{consumer}/{query}/"),
)
BY_RECEIVERS: Final = ("tacit_releases_undelivered", "tacit_delivery_retries_total")
"""Metrics that depend on how fast answers are delivered: they differ from run to run."""


@dataclass(frozen=True)
class Outputs:
    """All that consumers could see of a run, and what the operator is told if it fails."""

    exit_code: int
    files: Mapping[str, bytes]
    printed: bytes
    ledger: Sequence[Any]
    """Releases and charges."""
    metrics: Sequence[Mapping[str, float]]
    """What could be scraped after each release."""
    error: str

    def differs(self, other: Outputs) -> str | None:
        """What another run shows otherwise."""
        if self.exit_code != other.exit_code:
            return f"exit codes {self.exit_code}, {other.exit_code}: {self.error} {other.error}"
        for name in self.files.keys() | other.files.keys():
            mine, theirs = self.files.get(name), other.files.get(name)
            if mine is None or theirs is None:
                return f"{name} is not always there"
            if mine != theirs:
                return _first_difference(name, mine, theirs)
        if self.printed != other.printed:
            return _first_difference("stdout", self.printed, other.printed)
        for what, ours, others in (
            ("the ledger", self.ledger, other.ledger),
            ("metrics", self.metrics, other.metrics),
        ):
            if ours != others:
                pairs = zip(ours, others, strict=False)
                return f"{what}: {next(((a, b) for a, b in pairs if a != b), 'their number')}"
        return None


def _first_difference(name: str, mine: bytes, theirs: bytes) -> str:
    pairs = zip(mine.split(b"\n"), theirs.split(b"\n"), strict=False)
    for number, (left, right) in enumerate(pairs):
        if left != right:
            return f"{name} line {number + 1}: {left!r}, {right!r}"
    return f"{name}: {len(mine)} bytes, {len(theirs)} bytes"


class PayloadSource(Source):
    """Messages that have come, parsed as an MQTT source does it, in batches of any size."""

    textual = True
    keyed = True

    def __init__(self, name: str, coding: str, messages: Sequence[bytes], layout: int) -> None:
        self.name = name
        self._inward = MqttSourceOptions("tuples/#", coding)  # type: ignore[arg-type]
        self._messages = [
            Message(number, 0, False, "tuples/x", payload)
            for number, payload in enumerate(messages)
        ]
        self._most = Random(layout).choice((4, 16, 1000, 1000))
        self._begin = 0

    def schema(self) -> pa.Schema:
        """None: payloads name their own columns."""
        return pa.schema([])

    def resume(self, token: Any) -> None:
        """Begin with the message of this number."""
        self._begin = token or 0

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """So many messages at a time."""
        rows = MessageRows(self._inward, columns, keys)
        for start, stop in self._spans():
            part = self._messages[start:stop]
            table, origin, rejected = rows.read(part)
            places = np.array([message.place for message in part], np.int64)[origin]
            yield Batch(table, start, stop, self.name, tuple(rejected), places, start or None)

    def _spans(self) -> Iterator[tuple[int, int]]:
        return self._cut(self._begin, len(self._messages))

    def _cut(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        for start in range(begin, end, self._most):
            yield start, min(start + self._most, end)


class ReloadingSource(PayloadSource):
    """Before one of the messages, the specification is changed and the run is told of it.

    The engine has taken all messages before, and takes up the change after this one.
    """

    def __init__(
        self, shape: SourceShape, messages: Sequence[bytes], last: int, change: Callable[[], None]
    ) -> None:
        super().__init__("mqtt://s", shape.coding, messages, shape.layout)
        self._last = last
        self._change: Callable[[], None] | None = change

    def _spans(self) -> Iterator[tuple[int, int]]:
        yield from self._cut(self._begin, self._last)
        if self._change is not None:
            self._change()
            self._change = None
            os.kill(os.getpid(), signal.SIGHUP)
        yield from self._cut(max(self._begin, self._last), self._last + 1)
        yield from self._cut(max(self._begin, self._last + 1), len(self._messages))


class Runs:
    """Runs of one world in a folder."""

    def __init__(self, world: World, folder: Path, *, ledger: bool = False) -> None:
        self.world = world
        self.folder = folder
        rng = Random(f"runs {world.seed}")
        self._spec, self._plan = folder / "spec.yaml", folder / "plan.json"
        by_chance = rng.random() < (0.2 if world.limited else 0.02)
        remembers = world.limited and world.plan.has_memory
        self._ledger = ledger or world.then is not None or remembers or by_chance
        self._sink = rng.choice(RESUMABLE_SINKS if self._ledger else SINKS)
        self._piece = rng.choice((700, 2000, 1 << 23, 1 << 23))
        self._rows = rng.choice((5, 16, 1 << 18, 1 << 18))
        self._ahead = world.then is None and rng.random() < 0.1
        self._number = 0
        self._write(world.spec, world.plan)
        self._load = _once(load)
        self._chosen_plan = _once(choose_plan)

    def run(self, variant: Variant) -> Outputs:
        """The outputs of the command line for one variant."""
        return self.run_tuples(
            [*self.world.public_tuples(variant), *self.world.free_tuples(variant)]
        )

    def run_tuples(self, tuples: Sequence[RawTuple]) -> Outputs:
        """The outputs of the command line for some tuples."""
        place = self.new_folder()
        arguments, opened = [], {}
        for shape in self.world.sources:
            own = [one for one in tuples if one.stream == shape.stream]
            if shape.coding in MESSAGES:
                name = f"mqtt://{shape.stream}"
                opened[name] = self._source(name, shape, own)
            else:
                name = str(write_files(self.world, shape, own, place / shape.stream))
            arguments.append(f"{shape.stream}={name}")
        with _openable(opened), _threads(ahead=self._ahead), _small(self._piece, self._rows):
            return self.invoke(place, arguments)

    def new_folder(self) -> Path:
        """A folder for one more run, with the specification and the plan as they were."""
        self._number += 1
        place = self.folder / f"run-{self._number}"
        (place / "out").mkdir(parents=True)
        if self.world.then is not None:  # the last run has changed them
            self._write(self.world.spec, self.world.plan)
        return place

    def _write(self, spec: Specification, plan: Plan) -> None:
        self._spec.write_text(to_yaml(spec))
        plan.save(self._plan)

    def _source(self, name: str, shape: SourceShape, tuples: Sequence[RawTuple]) -> Source:
        messages, then = payloads(shape, tuples), self.world.then
        if then is None:
            return PayloadSource(name, shape.coding, messages, shape.layout)
        before = sum(one.arrival < then.after + 1 for one in tuples)
        change = partial(self._write, then.spec, then.plan)
        return ReloadingSource(shape, messages, before - 1, change)

    def invoke(self, place: Path, sources: Sequence[str]) -> Outputs:
        """The outputs of the command line for some sources."""
        sink = "-" if self._sink == "-" else f"{place}/out/{self._sink}"
        ledger = place / LEDGER
        command = ["run", str(self._spec), *sources, "--plan", str(self._plan), "--to", sink]
        command += ["--dead-letters", str(place / "letters.jsonl")]
        if self._ledger:
            ledger.write_bytes(_empty_ledger())
            command += ["--ledger", str(ledger), "--name", "run"]
        elif self.world.limited:
            command += ["--no-ledger"]
        with (
            patch("tacit.cli.run.compile_kernels"),  # they are compiled as they are needed
            patch("tacit.spec.yaml_reader.load", self._load),
            patch("tacit.engines.setup.choose_plan", self._chosen_plan),
            _standard_output(place / "printed"),
            _scraped() as metrics,
            fixed_draws(),
        ):
            shown = CliRunner().invoke(main, command)
        if shown.exception is not None and not isinstance(shown.exception, SystemExit):
            raise AssertionError(describe(self.world)) from shown.exception
        files = {
            str(path.relative_to(place)): path.read_bytes()
            for path in sorted((place / "out").rglob("*"))
            if path.is_file()
        }
        kept = _kept(ledger) if self._ledger and shown.exit_code == 0 else []
        printed = shown.stdout_bytes + (place / "printed").read_bytes()
        served = metrics if self._ledger else []  # else nobody can scrape them
        return Outputs(shown.exit_code, files, printed, kept, served, shown.stderr[-500:])


def _once(read: Callable[..., T]) -> Callable[..., T]:
    """Read each specification or plan once: neighbours have the same, and it takes long."""
    known: dict[tuple[bytes, ...], T] = {}

    def find(*given: Any) -> T:
        key = tuple(path.read_bytes() for path in given if isinstance(path, Path))
        if key not in known:
            known[key] = read(*given)
        return known[key]

    return find


@contextmanager
def _scraped() -> Iterator[list[Mapping[str, float]]]:
    """The metrics after each release, without those that wait for a receiver."""
    found: list[Mapping[str, float]] = []
    release = PublicStatus.release

    def scrape(self: PublicStatus, *given: Any, **named: Any) -> None:
        release(self, *given, **named)
        samples = [sample for one in Figures(self, 0.0).collect() for sample in one.samples]
        found.append(
            {
                f"{sample.name}{sample.labels}": sample.value
                for sample in samples
                if sample.name not in BY_RECEIVERS
            }
        )

    with (
        patch.object(PublicStatus, "release", scrape),
        patch("tacit.pipeline.status.time.time", lambda: 1e9),
    ):
        yield found


@contextmanager
def _small(piece: int, rows: int) -> Iterator[None]:
    """Pieces of files and batches of rows as small as can be."""
    with patch.object(file_pieces, "PIECE", piece), patch.object(sources.Source, "most_rows", rows):
        yield


@contextmanager
def _threads(*, ahead: bool) -> Iterator[None]:
    """Read ahead in threads, or do one thing after the other, which is quicker for few rows."""
    if ahead:
        yield
        return
    with (
        patch.object(Source, "ahead", 0),
        patch("tacit.pipeline.reader._AHEAD", 0),
    ):
        yield


@contextmanager
def _standard_output(path: Path) -> Iterator[None]:
    """Let what is written to the descriptor of standard output go to a file."""
    sys.stdout.flush()
    kept = os.dup(1)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


@contextmanager
def _openable(opened: Mapping[str, Source]) -> Iterator[None]:
    """Let the command line open these sources by their names."""

    def open_any(name: str | os.PathLike[str], *, follow: bool = False) -> Source:
        text = os.fspath(name)
        return opened[text] if text in opened else open_input(text, follow=follow)

    with patch("tacit.engines.setup.open_input", open_any):
        yield


@cache
def _empty_ledger() -> bytes:
    """A ledger in which nothing is, since it takes long to make one."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "ledger.db"
        with Ledger.open(str(place)):
            pass
        return place.read_bytes()


def _kept(ledger: Path) -> list[Any]:
    """What was released, and what was charged to whom in which window."""
    with closing(sqlite3.connect(ledger)) as database:
        found: list[Any] = database.execute(
            "SELECT number, first, windows, answers FROM tacit_releases ORDER BY number"
        ).fetchall()
        charges = database.execute(
            'SELECT release, first, last, slide, private, amount, "limit", "offset", ids'
            " FROM tacit_charges"
        ).fetchall()
    return found + sorted(charges, key=repr)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Look for cyclic garbage rarely: with all that is imported it takes a tenth of the time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def find_difference(world: World, folder: Path, variants: Sequence[Variant]) -> str | None:
    """What differs between runs whose private tuples differ."""
    runs = Runs(world, folder)
    first = runs.run(variants[0])
    for variant in variants[1:]:
        found = first.differs(runs.run(variant))
        if found is not None:
            return f"{describe(world)} {variant}: {found}"
    if first.exit_code:
        return f"{describe(world)}: {first.error}"
    return None
