"""Jobs on Flink, embedded: the same answers and dead letters as on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

import tacit
from tacit.cli.main import main
from tacit.engines.flink.submission import submit
from tacit.errors import RefusedInputWarning, SourceError
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import read_statement
from tacit.ledger.verification import verify
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.test_sharded import (
    SPEC,
    counted,
    lettered,
    plain,
    written,
)

QUICK = {"execution.checkpointing.interval": "500 ms"}


def test_true_answers_and_dead_letters_are_those_of_one_machine(tmp_path: Path) -> None:
    """All operators, out of order, with late, unfit and future tuples, in several files.

    A line that cannot be read may contain what others take for the end of a line.
    """
    spec, sources = loads(SPEC), written(tmp_path, 3, 3, 3000)
    bad = "{ \u2028 \u2029 \x85 \x0b \x1c \t this is no JSON"
    with sources[2][1].open("a", encoding="utf-8") as lines:
        lines.write(f"{bad}\n{bad}\n")
    outcome = submit(
        spec,
        *(path for _, path in sources),
        to=f"{tmp_path}/answers/",
        folder=tmp_path / "job",
        true=True,
        parallelism=2,
        settings=QUICK,
    )
    expected, refused, counts = counted(spec, sources)
    assert outcome.finished
    assert outcome.refusals == counts
    assert counts.refused
    assert plain(pl.read_parquet(tmp_path / "answers" / "*.parquet")).equals(expected)
    letters = [path.read_bytes() for path in (tmp_path / "job" / "letters").glob("*.jsonl")]
    assert lettered(b"".join(letters)).equals(refused)
    found = [json.loads(letter)["raw"] for letter in b"".join(letters).split(b"\n")[:-1]]
    assert found.count(bad) == 2


COUNT = """
  - {name: kitchen, consumer: city, count: "AND(stove, bed)"}
private:
  - {pattern: door, epsilon: 0.5, limit: 3 per 10 min}
"""


class FinishedJob:
    """A protected job with a limit, most of whose input is refused, after its end."""

    def __init__(self, folder: Path) -> None:
        text = SPEC.rstrip() + COUNT
        self.folder = folder
        self.spec = folder / "home.yaml"
        self.spec.write_text(text)
        self.sources = [path for _, path in written(folder, 4, 3, 600)]
        with self.sources[2].open("a") as lines:
            lines.write("{ no JSON\n" * 3000)
        self.answers = folder / "answers.jsonl"
        self.counts = folder / "counts.csv"
        self.first = self.submit("--json", "--fail-if-refused", "0.9")
        self.found = pl.read_ndjson(self.answers)

    def submit(self, *more: str) -> Result:
        """Submit the job, or submit it again."""
        command = ["submit", str(self.spec), *map(str, self.sources), "--to", str(self.answers)]
        command += ["--mechanism", "uniform", "--folder", str(self.folder / "job")]
        command += ["--parallelism", "2", "--log-level", "error", "--counts-to", str(self.counts)]
        command += ["--set", "execution.checkpointing.interval=500 ms", *more]
        return CliRunner().invoke(main, command, catch_exceptions=False)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    return FinishedJob(tmp_path_factory.mktemp("protected"))


def reported(ran: Result) -> dict[str, Any]:
    """The summary that a command prints with --json."""
    found, _ = json.JSONDecoder().raw_decode(ran.stderr[ran.stderr.index("{") :])
    assert isinstance(found, dict)
    return found


def test_a_protected_job_is_charged_until_its_limit(job: FinishedJob) -> None:
    assert job.first.exit_code == 0, job.first.output
    outcome = reported(job.first)["outcome"]
    assert outcome["finished"]
    assert outcome["answers"] == job.found.height
    assert job.found["id"].to_list() == list(range(job.found.height))
    assert job.found["exhausted"].any()
    with Ledger.open(str(job.folder / "job" / "ledger.db")) as ledger:
        assert verify(ledger).passed
        horizons = read_statement(ledger).horizons
    assert max(one.spent for one in horizons) == 3_000_000_000
    exhausted = job.found.filter("exhausted").select("window_start", "subject").n_unique()
    everyone = job.found.select("window_start", "subject").n_unique()
    assert sum(one.asked + one.free for one in horizons) == everyone - exhausted
    assert all(one.free for one in horizons)


def test_counts_are_those_of_one_machine(job: FinishedJob) -> None:
    """One count for all shards. This one is public; `make soak` has private ones."""
    true = tacit.detect(job.spec, *job.sources).counted()
    found = pl.read_csv(job.counts)
    assert true["count"].n_unique() > 3
    assert found["count"].to_list() == true["count"].to_list()


def test_refused_input_is_a_warning_and_a_failure_on_request(job: FinishedJob) -> None:
    """As for a run on one machine; the answers are released anyway.

    Submitted again, the finished job releases nothing more.
    """
    outcome = reported(job.first)["outcome"]
    refused = sum(outcome["refused"].values())
    total = outcome["taken"] + refused
    assert total == 3 * 600 + 3000
    assert 3000 < refused < 0.9 * total
    warning = f"{refused:,} of {total:,} tuples were refused ({refused / total:.1%}), 3,000 of them"
    assert warning in job.first.stderr
    failed = job.submit("--fail-if-refused", f"{refused / total - 0.01:.3f}", "--json")
    assert failed.exit_code == 11, failed.output
    assert warning in reported(failed)["warnings"][0]
    assert reported(failed)["outcome"]["windows"] == 0
    with pytest.warns(RefusedInputWarning, match=f"{refused:,} of {total:,} tuples were refused"):
        again = submit(
            job.spec,
            *job.sources,
            to=job.answers,
            mechanism="uniform",
            name="home",
            folder=job.folder / "job",
        )
    assert again.windows == 0
    assert pl.read_ndjson(job.answers).equals(job.found)


def test_sources_without_any_subject_are_refused(tmp_path: Path) -> None:
    """A job for nobody would read nothing, and report nothing of what cannot be read."""
    path = tmp_path / "home.jsonl"
    path.write_text("{ no JSON\n" * 9)
    place = f"{tmp_path}/answers/"
    with pytest.raises(SourceError, match="contain no subject"):
        submit(loads(SPEC), path, to=place, folder=tmp_path / "job", true=True)
