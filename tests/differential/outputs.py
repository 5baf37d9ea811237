"""Run the command line over the variants of a world, and compare all that consumers could see."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from click.testing import CliRunner
from numpy.typing import NDArray

from tacit.cli.main import main
from tacit.connectors import pieces
from tacit.connectors.mqtt.address import Inward
from tacit.connectors.mqtt.messages import Message, Rows
from tacit.connectors.opening import open_input
from tacit.events.grid import Grid
from tacit.events.shapes import Shape
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import CHARGES, RELEASES
from tacit.pipeline import sources
from tacit.pipeline.sources import Batch, Source
from tacit.spec.writing import to_yaml
from tests.differential.codings import payloads, write_files
from tests.differential.draws import fixed_draws
from tests.differential.worlds import RawTuple, Variant, World, describe

MESSAGES = ("json", "cbor")


@dataclass(frozen=True)
class Outputs:
    """All that consumers could see of a run, and what the operator is told if it fails."""

    exit_code: int
    files: Mapping[str, bytes]
    printed: bytes
    ledger: Sequence[Any]
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
        if self.ledger != other.ledger:
            pairs = zip(self.ledger, other.ledger, strict=False)
            found = next(((a, b) for a, b in pairs if a != b), "their number")
            return f"the ledger: {found}"
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
        self._inward = Inward("tuples/#", coding)  # type: ignore[arg-type]
        self._messages = [
            Message(number, 0, False, "tuples/x", payload)
            for number, payload in enumerate(messages)
        ]
        self._most = Random(layout).choice((1, 3, 8, 1000))

    def schema(self) -> pa.Schema:
        """None: payloads name their own columns."""
        return pa.schema([])

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """So many messages at a time."""
        rows = Rows(self._inward, columns, keys)
        for start in range(0, len(self._messages), self._most):
            part = self._messages[start : start + self._most]
            table, origin, rejected = rows.read(part)
            places = np.array([message.place for message in part], np.int64)[origin]
            yield Batch(table, start, start + len(part), self.name, tuple(rejected), places)


class Runs:
    """Runs of one world in a folder."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        rng = Random(f"runs {world.seed}")
        self._spec, self._plan = folder / "spec.yaml", folder / "plan.json"
        self._spec.write_text(to_yaml(world.spec))
        world.plan.save(self._plan)
        self._ledger = rng.random() < (0.5 if world.limited else 0.05)
        self._sink = rng.choice(("csv", "jsonl", "csv.gz", "jsonl.zst"))
        if not self._ledger:
            self._sink = rng.choice((self._sink, "csv", "parquet", "arrow", "-"))
        self._piece = rng.choice((300, 1000, 1 << 23, 1 << 23))
        self._rows = rng.choice((5, 11, 1 << 18, 1 << 18))
        self._ahead = rng.random() < 0.1
        self._number = 0

    def run(self, variant: Variant) -> Outputs:
        """The outputs of the command line for one variant."""
        return self.run_tuples(
            [*self.world.public_tuples(variant), *self.world.free_tuples(variant)]
        )

    def run_tuples(self, tuples: Sequence[RawTuple]) -> Outputs:
        """The outputs of the command line for some tuples."""
        self._number += 1
        place = self.folder / f"run-{self._number}"
        (place / "out").mkdir(parents=True)
        arguments, opened = [], {}
        for shape in self.world.sources:
            own = [one for one in tuples if one.stream == shape.stream]
            if shape.coding in MESSAGES:
                name = f"mqtt://{shape.stream}"
                opened[name] = PayloadSource(name, shape.coding, payloads(shape, own), shape.layout)
            else:
                name = str(write_files(self.world, shape, own, place / shape.stream))
            arguments.append(f"{shape.stream}={name}")
        return self._invoke(place, arguments, opened)

    def _invoke(
        self, place: Path, arguments: Sequence[str], opened: Mapping[str, Source]
    ) -> Outputs:
        sink = "-" if self._sink == "-" else str(place / "out" / f"answers.{self._sink}")
        ledger = place / "ledger.db"
        command = ["run", str(self._spec), *arguments, "--plan", str(self._plan), "--to", sink]
        command += ["--dead-letters", str(place / "letters.jsonl")]
        if self._ledger:
            _empty_ledger(ledger)
            command += ["--ledger", str(ledger), "--name", "run"]
        elif self.world.limited:
            command += ["--no-ledger"]
        with (
            patch("tacit.events.sieves.Grid", _grid),
            _small(self._piece, self._rows),
            _threads(ahead=self._ahead),
            _openable(opened),
            _standard_output(place / "printed"),
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
        kept = _charges(ledger) if self._ledger and shown.exit_code == 0 else []
        printed = shown.stdout_bytes + (place / "printed").read_bytes()
        return Outputs(shown.exit_code, files, printed, kept, shown.stderr[-500:])


_GRIDS: dict[Any, Grid] = {}


def _grid(shapes: Sequence[Shape], masks: NDArray[np.uint64]) -> Grid:
    """The grid of some areas, made once: all worlds have the same."""
    key = (tuple(map(repr, shapes)), masks.tobytes())
    if key not in _GRIDS:
        _GRIDS[key] = Grid(shapes, masks)
    return _GRIDS[key]


@contextmanager
def _small(piece: int, rows: int) -> Iterator[None]:
    """Pieces of files and batches of rows as small as can be."""
    with patch.object(pieces, "PIECE", piece), patch.object(sources, "MOST_ROWS", rows):
        yield


@contextmanager
def _threads(*, ahead: bool) -> Iterator[None]:
    """Read ahead in threads, or do one thing after the other, which is quicker for few rows."""
    if ahead:
        yield
        return
    with (
        patch.object(Source, "ahead", 0),
        patch("tacit.engines.local._AHEAD", 0),
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

    with ExitStack() as stack:
        stack.enter_context(patch("tacit.cli.sources.open_input", open_any))
        yield


@cache
def _template() -> bytes:
    """A ledger in which nothing is, since it takes long to make one."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "ledger.db"
        with Ledger.open(str(place)):
            pass
        return place.read_bytes()


def _empty_ledger(place: Path) -> None:
    place.write_bytes(_template())


def _charges(ledger: Path) -> list[Any]:
    """What was charged to whom in which window, however windows were put into releases."""
    engine = sa.create_engine(f"sqlite:///{ledger}")
    with engine.connect() as connection:
        found: list[Any] = []
        for row in connection.execute(sa.select(CHARGES)).mappings():
            spans = range(row["first"], row["last"] + 1, row["slide"] or 1)
            assert len(spans) >= 1
            found += [
                (start, row["private"], row["amount"], row["limit"], row["ids"]) for start in spans
            ]
        releases = connection.execute(sa.select(RELEASES)).mappings().all()
        found.append(("windows", sum(row["windows"] for row in releases)))
        found.append(("answers", sum(row["answers"] for row in releases)))
    engine.dispose()
    return sorted(found, key=repr)


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
