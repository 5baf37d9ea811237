"""Jobs on Flink that tests/flink has no time for."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tacit
from tacit.engines.flink.launch import RunningJob, start
from tacit.engines.flink.submission import submit
from tacit.errors import EngineError
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tacit.spec.yaml_reader import loads
from tests.connectors.kafka_ends import config
from tests.engines.sharded.test_sharded import SPEC, written
from tests.flink.test_answers import QUICK
from tests.flink.test_live import WINDOWS, run_in_stages
from tests.services import Kafka

__all__ = ["config"]  # a fixture

COUNTED = """
  - {name: doors, consumer: city, count: "AND(door, bed)"}
  - {name: rooms, consumer: care, count: door, by: room}
subjects: {file: people.csv, column: who}
private:
  - {pattern: door, epsilon: 80}
"""


def test_counts_are_drawn_once_for_all_shards(tmp_path: Path) -> None:
    """With so much epsilon there is hardly any noise: counts are those of one machine."""
    people = pl.DataFrame({"who": [f"p{n}" for n in range(1, 30)]})
    people = people.with_columns(room=pl.Series([str(n % 3) for n in range(29)]))
    people.write_csv(tmp_path / "people.csv")
    (tmp_path / "home.yaml").write_text(SPEC.rstrip() + COUNTED)
    sources = [path for _, path in written(tmp_path, 4, 2, 600)]
    outcome = submit(
        tmp_path / "home.yaml",
        *sources,
        to=tmp_path / "answers.jsonl",
        counts_to=tmp_path / "counts.csv",
        folder=tmp_path / "job",
        mechanism="uniform",
        parallelism=2,
        settings=QUICK,
    )
    assert outcome.finished
    true = tacit.detect(tmp_path / "home.yaml", *sources).counted()
    found = pl.read_csv(tmp_path / "counts.csv", try_parse_dates=True)
    assert found.height == true.height == 4 * outcome.windows
    assert found["query"].to_list() == true["query"].cast(pl.String).to_list()
    assert found["count"].to_list() == true["count"].to_list()
    assert "drawn" in found["method"].to_list()
    assert (found["left_out"] == 0).all()
    with Ledger.open(str(tmp_path / "job" / "ledger.db")) as ledger:
        assert verify(ledger).passed


def test_a_job_from_kafka_to_kafka_is_resumed_from_a_savepoint_with_another_parallelism(
    kafka: Kafka, config: Path, tmp_path: Path
) -> None:
    stages = (
        (900, 3, 11, "2", signal.SIGKILL),
        (1500, 3, 21, "1", signal.SIGTERM),
        (2400, 4, WINDOWS, "2", signal.SIGTERM),
    )
    run_in_stages(kafka, config, tmp_path, stages)


def test_a_mistake_in_a_reader_ends_the_job_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that vanishes between the check and the reading cannot be mended by restarts."""
    spec, sources = loads(SPEC + "subjects: [p1, p2]\n"), written(tmp_path, 6, 1, 100)
    path = sources[0][1]

    def vanish(*given: Any, **named: Any) -> RunningJob:
        path.unlink()
        return start(*given, **named)

    monkeypatch.setattr("tacit.engines.flink.submission.start", vanish)
    settings = {**QUICK, "restart-strategy.type": "none"}
    place = f"{tmp_path}/answers/"
    with pytest.raises(EngineError, match="last checkpoint") as caught:
        submit(spec, path, to=place, folder=tmp_path / "job", settings=settings)
    assert str(path) in str(caught.value)
