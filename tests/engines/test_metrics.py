"""Metrics: what is served, where, and that nothing in it depends on a private event."""

from __future__ import annotations

import builtins
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.engines.metrics import Metrics, MetricsAddress
from tacit.engines.setup import assign
from tacit.errors import TacitError
from tacit.ledger.ledger import Ledger
from tacit.pipeline.run import Run
from tacit.pipeline.sinks import ReleaseBatch, Sink
from tacit.pipeline.status import PublicStatus, RunStatus
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import loads


def scraped(metrics: Metrics) -> str:
    """What a scraper gets."""
    with urllib.request.urlopen(str(metrics.address), timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def samples(text: str) -> dict[str, float]:
    """Each sample by its name and labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_figures_are_scraped_as_they_are_at_that_moment() -> None:
    public = PublicStatus()
    with Metrics(MetricsAddress(0), public, started=1000.0) as metrics:
        assert samples(scraped(metrics))["tacit_windows_released_total"] == 0
        public.release(
            2,
            20_000_000,
            42_000_000,
            slide=10_000_000,
            subjects=5,
            exhausted=1,
            charged={"visit": 1_500_000_000},
        )
        public.undelivered, public.retries, public.reloads = 1, 2, 3
        found = samples(scraped(metrics))
    released = found.pop("tacit_last_release_timestamp_seconds")
    assert released > 1.7e9
    assert found == {
        "tacit_start_timestamp_seconds": 1000.0,
        "tacit_subjects": 5,
        "tacit_windows_released_total": 2,
        "tacit_released_until_timestamp_seconds": 20.0,
        "tacit_next_close_timestamp_seconds": 42.0,
        'tacit_charged_epsilon_total{private="visit"}': 1.5,
        "tacit_subjects_exhausted": 1,
        "tacit_releases_undelivered": 1,
        "tacit_delivery_retries_total": 2,
        "tacit_reloads_total": 3,
        "tacit_reloads_refused_total": 0,
    }


def test_nothing_of_the_process_is_served() -> None:
    """Its memory and its time grow with the events that are kept."""
    with Metrics(MetricsAddress(0), PublicStatus(), started=0.0) as metrics:
        text = scraped(metrics)
    assert "process_" not in text
    assert "python_" not in text


def test_they_are_served_to_this_machine_alone_unless_told_otherwise() -> None:
    with Metrics(MetricsAddress.parse("0"), PublicStatus(), started=0.0) as metrics:
        assert metrics.address.host == "127.0.0.1"
        assert str(metrics.address) == f"http://127.0.0.1:{metrics.address.port}/metrics"


def test_after_the_end_nothing_is_served() -> None:
    with Metrics(MetricsAddress(0), PublicStatus(), started=0.0) as metrics:
        address = str(metrics.address)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)


@pytest.mark.parametrize("text", ["", "x", ":80", "host:", "99999", "-1", "1.5", "٣"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected \[HOST:\]PORT"):
        MetricsAddress.parse(text)


def test_a_port_that_is_taken_is_told() -> None:
    with (
        Metrics(MetricsAddress(0), PublicStatus(), started=0.0) as first,
        pytest.raises(TacitError, match="cannot be served at"),
    ):
        Metrics(first.address, PublicStatus(), started=0.0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [each for each in sys.modules if each.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TacitError, match=r"pip install 'tacit\[metrics\]'"):
        Metrics(MetricsAddress(0), PublicStatus(), started=0.0)


HEAD = """
version: 1
streams: {home: {subject: who, time: at, unit: s}}
windows: {size: 1 min, lateness: 20 s}
events:
  door: {stream: home, where: "kind = 0"}
  stove: {stream: home, where: "kind = 1"}
  bed: {stream: home, where: "kind = 2"}
private:
  - {pattern: "SEQ(door, door)", epsilon: 1.0, limit: 4 per h}
queries:
  - {name: exact, consumer: care, pattern: "SEQ(stove, bed)"}
  - {name: guarded, consumer: city, pattern: door}
"""
DOOR = 0


class Nowhere(Sink):
    """Everything arrives."""

    name = "nowhere"

    def deliver(self, batch: ReleaseBatch) -> None:
        """At once."""

    def close(self) -> None:
        """Nothing is held back."""


def whole(seed: int = 5) -> pl.DataFrame:
    """Tuples of ten minutes, some of them late; private ones far out of order as well."""
    random = np.random.default_rng(seed)
    at = np.sort(random.integers(0, 600, 4000)) + random.integers(-40, 20, 4000)
    kind = random.integers(0, 3, 4000)
    at[kind == DOOR] -= random.integers(0, 60, int((kind == DOOR).sum()))
    who = [f"p{n}" for n in random.integers(0, 33, 4000)]  # three of them are not registered
    frame = pl.DataFrame({"who": who, "at": at + 1_700_000_040, "kind": kind})
    # What moves the watermark is the same: when tuples come is no part of the guarantee.
    return frame.filter((pl.col("kind") != DOOR) | (pl.col("at") < pl.col("at").cum_max()))


def run_over(frame: pl.DataFrame, folder: Path) -> tuple[str, RunStatus]:
    """What is scraped when a run is over, and what only the operator knows."""
    subjects = ", ".join(f"p{n}" for n in range(30))
    spec = loads(HEAD + f"subjects: [{subjects}]\n")
    with Ledger.open(str(folder / "spent.db")) as ledger:
        run = Run(
            spec,
            assign(spec, [(None, FrameSource(frame, "frame"))]),
            plan=plan_without_history(spec, "uniform"),
            ledger=ledger,
            sinks=[Nowhere()],
            name="home",
        )
        with Metrics(MetricsAddress(0), run.status.public, started=time.time()) as metrics:
            run.run()
            return scraped(metrics), run.status


CLOCKED = ("tacit_start_timestamp_seconds ", "tacit_last_release_timestamp_seconds ")
"""When the run began is the operator's doing; when it last released, consumers see by the arrival
of their answers."""


def unclocked(text: str) -> str:
    """Without the samples that this machine's clock decides."""
    return "".join(line for line in text.splitlines(True) if not line.startswith(CLOCKED))


def one_window(frame: pl.DataFrame) -> pl.Expr:
    """The private events of one subject in one window: what neighbours may differ in."""
    window = (pl.col("at") - 1_700_000_040) // 60 == 4
    return (pl.col("kind") == DOOR) & (pl.col("who") == "p3") & window


def test_neighbours_give_the_same_metrics_to_the_byte(tmp_path: Path) -> None:
    """Private events are there or not, in one window or in all, in time or late."""
    frame = whole()
    assert frame.filter(one_window(frame)).height > 0
    inputs = {
        "all": frame,
        "one window without": frame.filter(~one_window(frame)),
        "none at all": frame.filter(pl.col("kind") != DOOR),
        "many more": frame.select(
            pl.all().repeat_by(1 + (pl.col("kind") == DOOR).cast(pl.Int32) * 2).explode()
        ),
    }
    found = {}
    for name, given in inputs.items():
        folder = tmp_path / name
        folder.mkdir()
        found[name] = run_over(given, folder)
    text = unclocked(found["all"][0])
    for scraped_, _ in found.values():
        assert unclocked(scraped_) == text
    shown = samples(text)
    assert shown["tacit_windows_released_total"] > 9
    assert shown["tacit_subjects"] == 30
    assert shown["tacit_subjects_exhausted"] == 30
    assert shown['tacit_charged_epsilon_total{private="SEQ(door, door)"}'] == 4 * 30
    # What is left out does tell them apart.
    assert len({status.tuples for _, status in found.values()}) == 4
    assert len({status.late for _, status in found.values()}) > 1
    assert len({status.refused for _, status in found.values()}) > 1
