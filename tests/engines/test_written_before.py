"""Ledgers of the version before, in which subjects could be integers: they go on as their digits.

The files in `written_before` are ledgers of that version, packed with gzip. Each holds a run that
was stopped in the middle of the input below: with a list of subjects, while subjects were being
learned, and after that.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from tacit.connectors.files import open_source
from tacit.connectors.openers import open_resumable_sink
from tacit.engines.local import detect
from tacit.engines.setup import assign
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import read_statement
from tacit.ledger.verification import verify
from tacit.pipeline.run import Run
from tacit.pipeline.settlement import RunOutcome
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import load

SPEC = """
version: 1
streams:
  gps: {subject: taxi, time: at, unit: s}
windows: {size: 1 min, lateness: 5 s}
events:
  secret: {stream: gps, where: "kind = 0"}
  open: {stream: gps, where: "kind = 1"}
private:
  - {pattern: secret, epsilon: 1, subjects: [7, 1200], limit: 50 per day}
queries:
  - {name: exact, consumer: city, pattern: open}
  - {name: noisy, consumer: city, pattern: secret}
mechanism: uniform
subjects: REGISTRY
"""
REGISTRIES = {
    "listed": "[7, 1200, 35]",
    "learned": "{learn: 3 min}",
    "announced": "{learn: 1 min}",
}
TAXIS = (7, 1200, 35)


def fill(folder: Path) -> None:
    """The input of all runs: integers in Parquet."""
    folder.mkdir()
    for part in range(4):
        at = range(120 * part, 120 * (part + 1), 5)
        frame = pl.DataFrame(
            {
                "taxi": [TAXIS[second // 5 % 3] for second in at],
                "at": list(at),
                "kind": [second // 5 % 5 % 2 for second in at],
            }
        )
        frame.write_parquet(folder / f"{part}.parquet")


def go_on(place: str) -> RunOutcome:
    spec = load("spec.yaml")
    inputs = assign(spec, [(None, open_source("input"))])
    plan = plan_without_history(spec)
    with Ledger.open(place) as ledger, open_resumable_sink("answers.jsonl") as sink:
        return Run(spec, inputs, plan=plan, ledger=ledger, sinks=[sink], name="home").run()


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_run_with_integer_subjects_goes_on_with_their_digits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packed = Path(__file__).parent / "written_before" / f"{kind}.ledger.gz"
    Path("spent.db").write_bytes(gzip.decompress(packed.read_bytes()))
    Path("spec.yaml").write_text(SPEC.replace("REGISTRY", REGISTRIES[kind]))
    fill(Path("input"))
    with Ledger.open("spent.db") as ledger:
        before = read_statement(ledger)
    outcome = go_on("spent.db")
    assert outcome.resumed
    assert outcome.finished
    with Ledger.open("spent.db") as ledger:
        after = read_statement(ledger, subject="7")
        assert verify(ledger).passed
    assert before.runs[0].windows + outcome.windows == after.runs[0].windows == 8
    # Charges go on under the same accounts: one for each window.
    assert sum(entry.windows for entry in after.entries) == 8
    assert after.subjects == 3
    truth = detect(load("spec.yaml"), "input").polars().filter(pl.col("query") == "exact")
    exact = pl.read_ndjson("answers.jsonl").filter(pl.col("query") == "exact")
    assert exact["subject"].dtype == pl.String
    assert exact.height == 3 * 8  # those that were released before are delivered as text too
    both = exact.with_columns(
        pl.col("window_start").str.to_datetime(time_unit="us", time_zone="UTC")
    ).join(truth.with_columns(pl.col("subject").cast(pl.String)), on=["window_start", "subject"])
    assert both.height == exact.height
    assert both["detected"].equals(both["detected_right"], check_names=False)
    noisy = pl.read_ndjson("answers.jsonl").filter(pl.col("query") == "noisy")
    sure = dict(noisy.group_by("subject").agg(pl.col("confidence").max()).iter_rows())
    assert sure["35"] == 1
    assert sure["7"] < 1
    assert sure["1200"] < 1
