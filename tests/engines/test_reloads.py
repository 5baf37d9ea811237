"""Reloading a run with a ledger: each window released once, under the old terms or the new ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tacit.connectors.files import open_source
from tacit.engines.local import detect
from tacit.ledger.alchemy import sa
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import CHARGES, RELEASES
from tacit.ledger.verification import verify
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.sinks import ReleaseBatch, Sink
from tacit.pipeline.sources import Batch, Source
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import load
from tests.engines.crashes import (
    KEY,
    SPEC,
    check_released_once,
    released,
    released_until,
    specified,
    tuples,
)
from tests.engines.forking import Forks
from tests.engines.publishing import Publisher, open_session
from tests.services import Mosquitto

OTHER = SPEC.replace(
    '  - {name: exact, consumer: care, pattern: "SEQ(stove, bed)"}',
    '  - {name: exact, consumer: care, pattern: "SEQ(bed, stove)"}\n'
    '  - {name: strong, consumer: care, pattern: "AND(loud, bed)"}',
).replace("private:", '  loud: {stream: home, where: "level > 5"}\nprivate:')
"""One query says something else, and another looks at a column that was not read before."""


class Kept(Sink):
    """Remembers what arrives."""

    name = "kept"

    def __init__(self) -> None:
        self.batches: list[ReleaseBatch] = []

    def deliver(self, batch: ReleaseBatch) -> None:
        """It has arrived."""
        self.batches.append(batch)

    def close(self) -> None:
        """Nothing is held back."""


class Live(Source):
    """Batches as they happen; between two of them something may be done."""

    name = "live"
    live = True
    ahead = 0

    def __init__(self, frames: Sequence[pl.DataFrame], between: Callable[[int], None]) -> None:
        self._tables = [frame.to_arrow().combine_chunks() for frame in frames]
        self._between = between
        self._begin = 0
        self.opened: list[tuple[str, ...]] = []

    def schema(self) -> pa.Schema:
        """That of all batches."""
        return self._tables[0].schema

    def resume(self, token: Any) -> None:
        """Begin with the batch of this number."""
        self._begin = token or 0

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Batch by batch, with some silence in between."""
        self.opened.append(tuple(columns))
        for number in range(self._begin, len(self._tables)):
            self._between(number)
            table = self._tables[number].select(list(columns)).to_batches()[0]
            yield Batch(table, 1, number, self.name, token=number)
            yield Batch(table.slice(0, 0), 1, number, self.name, token=number + 1)
            time.sleep(0.01)


def flow(minutes: int) -> list[pl.DataFrame]:
    """Tuples of so many minutes, in batches of twenty seconds."""
    frames = [tuples(1_700_000_040 + 20 * n, 150, n, 20) for n in range(3 * minutes)]
    return [
        frame.with_columns(level=pl.int_range(pl.len()) * (n + 1) % 10)
        for n, frame in enumerate(frames)
    ]


def terms(path: Path) -> SpecVersion:
    """The specification in a file, with a plan that needs no history."""
    spec = load(path)
    return SpecVersion(spec, plan_without_history(spec))


def check(
    answers: pl.DataFrame, old: Path, new: Path, source: object, gap: int = 0
) -> datetime | None:
    """The first window that is under the new terms; all windows say what their terms say.

    But for what is asked of a type that is new, in windows that begin in the first `gap` seconds.
    """
    asked = answers.group_by("window_start").agg(pl.col("query").unique()).sort("window_start")
    fresh = [("strong" in names) for names in asked["query"]]
    assert fresh == sorted(fresh)
    boundary = asked["window_start"][fresh.count(False)] if any(fresh) else None
    for path, newer in ((old, False), (new, True)):
        true = detect(load(path), source).polars().with_columns(pl.col(KEY[1:]).cast(pl.String))
        true = true.with_columns(pl.col("window_start").cast(pl.Datetime("us", "UTC")))
        true = true.filter(pl.col("window_start") <= answers["window_start"].max())
        if boundary is not None:
            late = pl.col("window_start") >= boundary
            true = true.filter(late if newer else ~late)
        elif newer:
            true = true.head(0)
        own = answers.join(true, on=KEY, how="inner", suffix="_true")
        assert own.height == true.height
        exact = own.filter(pl.col("query") != "guarded")
        if boundary is not None:
            seen = pl.col("window_start") >= boundary + timedelta(seconds=gap)
            exact = exact.filter(seen | (pl.col("query") != "strong"))
        assert exact["detected"].equals(exact["detected_true"])
    return boundary


@pytest.fixture
def specs(tmp_path: Path) -> tuple[Path, Path]:
    """The old specification and the new one."""
    old = specified(tmp_path)
    new = tmp_path / "other.yaml"
    new.write_text(OTHER)
    return old, new


def reloaded(
    batches: list[pl.DataFrame], old: Path, new: Path, ledger: Ledger, sink: Sink
) -> tuple[Run, Live]:
    """A live run that is told of new terms after its seventh batch, to its end."""
    first = terms(old)
    run: Run

    def between(number: int) -> None:
        if number == 7 and len(source.opened) == 1:
            time.sleep(0.3)
            run.reload()
            time.sleep(0.3)

    source = Live(batches, between)
    inputs = [Input("home", source)]
    run = Run(
        first.spec,
        inputs,
        plan=first.plan,
        ledger=ledger,
        sinks=[sink],
        name="home",
        reread=lambda: terms(new),
    )
    run.run()
    return run, source


def test_a_live_run_goes_by_the_new_terms_from_the_next_window_on(
    tmp_path: Path, specs: tuple[Path, Path]
) -> None:
    """It is told in the middle of a window; sources are read anew for a column that is new."""
    old, new = specs
    frames, place, sink = flow(8), str(tmp_path / "spent.db"), Kept()
    with Ledger.open(place) as ledger:
        run, source = reloaded(frames, old, new, ledger, sink)
    assert run.outcome.finished
    assert (run.status.public.reloads, run.status.public.reloads_refused) == (1, 0)
    assert [("level" in columns) for columns in source.opened] == [False, True]
    answers = released(place)
    newest = pl.concat(frames[:7])["at"].max()
    assert isinstance(newest, int)
    boundary = datetime.fromtimestamp((newest // 60 + 1) * 60, UTC)
    assert check(answers, old, new, pl.concat(frames)) == boundary
    arrived = pl.concat([pl.DataFrame(batch.table) for batch in sink.batches])
    assert arrived["id"].to_list() == answers["id"].to_list()
    last = sink.batches[-1]
    assert last.consumers == {"exact": "care", "strong": "care", "guarded": "city"}


def test_windows_of_old_and_new_terms_that_close_at_once_are_released_apart(
    tmp_path: Path, specs: tuple[Path, Path]
) -> None:
    """A single batch closes the last windows of the old terms and some of the new ones."""
    old, new = specs
    frames, place = flow(8), str(tmp_path / "spent.db")
    batches = [*frames[:7], pl.concat(frames[7:])]
    with Ledger.open(place) as ledger:
        reloaded(batches, old, new, ledger, Kept())
        query = sa.select(RELEASES.c.fingerprint, RELEASES.c.plan).order_by(RELEASES.c.number)
        with ledger.database.reading() as connection:
            made = [tuple(row) for row in connection.execute(query)]
    assert check(released(place), old, new, pl.concat(frames)) is not None
    wanted = [(one.spec.fingerprint, one.plan_digest) for one in (terms(old), terms(new))]
    assert list(dict.fromkeys(made)) == wanted


def test_windows_that_slide_go_on_too_and_those_that_look_at_nothing_private_cost_nothing(
    tmp_path: Path, specs: tuple[Path, Path]
) -> None:
    """Windows of three panes: two panes after the change are not drawn, and not charged."""
    for path in specs:
        path.write_text(path.read_text().replace("size: 1 min", "size: 1 min, slide: 20 s"))
    old, new = specs
    frames, place = flow(8), str(tmp_path / "spent.db")
    with Ledger.open(place) as ledger:
        reloaded(frames, old, new, ledger, Kept())
        with ledger.database.reading() as connection:
            numbers = connection.execute(
                sa.select(RELEASES.c.number, RELEASES.c.first).order_by(RELEASES.c.number)
            ).all()
            charged = set(connection.execute(sa.select(CHARGES.c.release)).scalars())
        assert verify(ledger).passed
    boundary = check(released(place), old, new, pl.concat(frames), gap=80)
    assert boundary is not None
    starts = [first for number, first in numbers if number not in charged]
    begin = int(boundary.timestamp() * 1_000_000)
    assert starts == [begin, begin + 20_000_000]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("size: 1 min", "size: 2 min"), "windows cannot be changed"),
        (("epsilon: 1.0", "epsilon: much"), "expected a number"),
        (("kind = 1", "colour = 1"), "colour"),
        (("epsilon: 1.0", "epsilon: 1.0, subjects: [P1]"), "'P1' (did you mean 'p1', which"),
    ],
)
def test_what_is_wrong_with_a_new_specification_is_logged_and_the_old_one_stays(
    change: tuple[str, str],
    complaint: str,
    tmp_path: Path,
    specs: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new = specs
    new.write_text(SPEC.replace(*change))
    first, frames = terms(old), flow(3)
    run: Run
    source = Live(frames, lambda number: run.reload() if number == 2 else None)
    with Ledger.open(str(tmp_path / "spent.db")) as ledger:
        run = Run(
            first.spec,
            [Input("home", source)],
            plan=first.plan,
            ledger=ledger,
            sinks=[Kept()],
            name="home",
            reread=lambda: terms(new),
        )
        run.run()
    assert (run.status.public.reloads, run.status.public.reloads_refused) == (0, 1)
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert complaint in said.getMessage()
    assert check(released(str(tmp_path / "spent.db")), old, old, pl.concat(frames)) is None


def test_files_that_are_read_ahead_are_read_anew(tmp_path: Path, specs: tuple[Path, Path]) -> None:
    """What was extracted by the old terms is not taken for something else."""
    old, new = specs
    folder = tmp_path / "input"
    folder.mkdir()
    for number, frame in enumerate(flow(20)):
        frame.write_parquet(folder / f"{number:03}.parquet")
    first = terms(old)
    run: Run
    seen: list[float] = []

    def progress(fraction: float, _what: str) -> None:
        seen.append(fraction)
        if len(seen) == 7:
            run.reload()

    with Ledger.open(str(tmp_path / "spent.db")) as ledger:
        run = Run(
            first.spec,
            [Input("home", open_source(folder))],
            plan=first.plan,
            ledger=ledger,
            sinks=[Kept()],
            name="home",
            progress=progress,
            reread=lambda: terms(new),
        )
        run.run()
    boundary = check(released(str(tmp_path / "spent.db")), old, new, folder)
    assert boundary is not None
    assert 180 <= boundary.timestamp() - 1_700_000_040 <= 900


def test_a_broker_is_asked_anew_for_what_was_on_its_way(forks: Forks, tmp_path: Path) -> None:
    """The new terms look at a column that was not read: the connection is made once more."""
    spec, old = specified(tmp_path), tmp_path / "old.yaml"
    old.write_text(SPEC)
    ledger, answers, frames = str(tmp_path / "spent.db"), tmp_path / "answers.jsonl", flow(12)
    with Mosquitto(tmp_path) as broker:
        columns = "who:text,at:integer,kind:integer,level:integer"
        url = f"mqtt://127.0.0.1:{broker.port}/home/+?client=engine&columns={columns}"
        open_session(broker.port, "engine", "home/+")
        before, after = (Publisher(broker.port, some, 0.1) for some in (frames[:12], frames[12:]))
        before.start()
        arguments = ["run", spec, url, "--ledger", ledger, "--to", answers]
        pid = forks.start(tmp_path / "log", *arguments)
        while not _size(answers):
            time.sleep(0.01)
        spec.write_text(OTHER)
        os.kill(pid, signal.SIGHUP)
        before.finish()
        after.start()
        after.finish()
        deadline = time.monotonic() + 60
        while released_until(ledger) < 1_700_000_040 + 60 * 11:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        os.kill(pid, signal.SIGTERM)
        assert forks.wait(pid) == 0, (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "the specification is reloaded" in log, log
    found = check(check_released_once(ledger, answers), old, spec, pl.concat(frames))
    assert found is not None, log


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
