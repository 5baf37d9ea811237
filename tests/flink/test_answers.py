"""Jobs on Flink, embedded: the same answers and dead letters as on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from tacit.cli.main import main
from tacit.engines.flink.launch import RunningJob, start
from tacit.engines.flink.submission import submit
from tacit.errors import EngineError, RefusedInputWarning, SourceError
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.test_sharded import (
    SLIDING,
    SPEC,
    alone,
    counted,
    lettered,
    plain,
    written,
)

QUICK = {"execution.checkpointing.interval": "500 ms"}


@pytest.mark.parametrize(
    ("text", "files", "parallelism"),
    [(SPEC, 3, 4), (SLIDING, 3, 2)],
    ids=["tumbling", "sliding"],
)
def test_true_answers_and_dead_letters_are_those_of_one_machine(
    tmp_path: Path, text: str, files: int, parallelism: int
) -> None:
    """All operators, out of order, with late, unfit and future tuples, in several files."""
    spec, sources = loads(text), written(tmp_path, files, files, 3000)
    outcome = submit(
        spec,
        *(path for _, path in sources),
        to=f"{tmp_path}/answers/",
        folder=tmp_path / "job",
        true=True,
        parallelism=parallelism,
        settings=QUICK,
    )
    expected, refused, counts = counted(spec, sources)
    assert outcome.finished
    assert outcome.refusals == counts
    assert counts.refused
    assert plain(pl.read_parquet(tmp_path / "answers" / "*.parquet")).equals(expected)
    letters = [path.read_bytes() for path in (tmp_path / "job" / "letters").glob("*.jsonl")]
    assert lettered(b"".join(letters)).equals(refused)


def test_a_dead_letter_stays_one_whatever_it_holds(tmp_path: Path) -> None:
    """A line that cannot be read may hold what others take for the end of a line."""
    path = tmp_path / "home.jsonl"
    good = {"who": "p1", "at": 1_700_000_000, "kind": 0, "level": 1}
    bad = "{ \u2028 \u2029 \x85 \x0b \x1c \t this is no JSON"
    path.write_text(f"{json.dumps(good)}\n{bad}\n{json.dumps(good)}\n{bad}\n", "utf-8")
    spec = loads(SPEC)
    place = f"{tmp_path}/answers/"
    submit(spec, path, to=place, folder=tmp_path / "job", true=True, settings=QUICK)
    letters = [one.read_bytes() for one in (tmp_path / "job" / "letters").glob("*.jsonl")]
    whole = b"".join(letters)
    assert [json.loads(letter)["raw"] for letter in whole.split(b"\n")[:-1]] == [bad, bad]
    assert lettered(whole).equals(alone(spec, [("home", path)])[1])


def test_a_protected_job_is_charged_and_said_again_gives_nothing_new(tmp_path: Path) -> None:
    """The command line: limits, the summary, and the same command once more."""
    text = SPEC + "private:\n  - {pattern: door, epsilon: 0.5, limit: 3 per 10 min}\n"
    (tmp_path / "home.yaml").write_text(text)
    sources = [str(path) for _, path in written(tmp_path, 4, 2, 1000)]
    folder, answers = tmp_path / "home.job", tmp_path / "answers.jsonl"
    command = ["submit", str(tmp_path / "home.yaml"), *sources, "--to", str(answers), "--json"]
    command += ["--mechanism", "uniform", "--folder", str(folder), "--parallelism", "2"]
    command += ["--set", "execution.checkpointing.interval=500 ms", "--log-level", "error"]
    ran = CliRunner().invoke(main, command, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stderr[ran.stderr.index("{") :])
    found = pl.read_ndjson(answers)
    assert told["outcome"]["finished"]
    assert told["outcome"]["answers"] == found.height
    assert found["id"].to_list() == list(range(found.height))
    by_window = found.group_by("window_start").agg(pl.col("exhausted").n_unique())
    assert by_window["exhausted"].max() == 1
    assert found["exhausted"].any()
    with Ledger.open(str(folder / "ledger.db")) as ledger:
        assert verify(ledger).passed
    again = CliRunner().invoke(main, command, catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stderr[again.stderr.index("{") :])["outcome"]["windows"] == 0
    assert pl.read_ndjson(answers).equals(found)


def test_refused_input_is_a_warning_and_a_failure_on_request(tmp_path: Path) -> None:
    """As for a run on one machine; answers are released all the same, and said again it says so."""
    (tmp_path / "home.yaml").write_text(f"{SPEC}subjects: [p1, p2]\n")
    path = tmp_path / "home.jsonl"
    good = [f'{{"who": "p{1 + n % 2}", "at": {1_700_000_000 + n}, "kind": 0}}' for n in range(10)]
    path.write_text("\n".join([*good, *["{ no JSON"] * 29, '{"who": "p9", "at": 1}', ""]))
    answers = tmp_path / "answers.jsonl"
    command = ["submit", str(tmp_path / "home.yaml"), str(path), "--to", str(answers)]
    command += ["--mechanism", "uniform", "--folder", str(tmp_path / "job")]
    command += ["--set", "execution.checkpointing.interval=500 ms", "--log-level", "error"]
    ran = CliRunner().invoke(main, [*command, "--fail-if-refused", "0.75"])
    assert ran.exit_code == 0, ran.output
    assert "Refused: 30 tuples of 40" in ran.stderr
    assert "tacit: warning: 30 of 40 tuples were refused (75.0%), 29 of them" in ran.stderr
    found = answers.read_text()
    assert found
    failed = CliRunner().invoke(main, [*command, "--fail-if-refused", "0.7"])
    assert failed.exit_code == 11, failed.output
    assert "30 of 40 tuples were refused" in failed.stderr
    assert answers.read_text() == found
    told = CliRunner().invoke(main, [*command, "--json", "--fail-if-refused", "0.7"])
    assert told.exit_code == 11
    report, _ = json.JSONDecoder().raw_decode(told.stderr[told.stderr.index("{") :])
    assert report["outcome"]["taken"] == 10
    assert sum(report["outcome"]["refused"].values()) == 30
    assert "30 of 40 tuples were refused" in report["warnings"][0]
    with pytest.warns(RefusedInputWarning, match="30 of 40 tuples were refused"):
        submit(
            tmp_path / "home.yaml",
            path,
            to=answers,
            mechanism="uniform",
            name="home",
            folder=tmp_path / "job",
        )


def test_sources_without_any_subject_are_refused(tmp_path: Path) -> None:
    """A job for nobody would read nothing, and report nothing of what cannot be read."""
    path = tmp_path / "home.jsonl"
    path.write_text("{ no JSON\n" * 9)
    place = f"{tmp_path}/answers/"
    with pytest.raises(SourceError, match="contain no subject"):
        submit(loads(SPEC), path, to=place, folder=tmp_path / "job", true=True)


def test_a_mistake_in_a_reader_ends_the_job_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that vanishes between the check and the reading cannot be mended by restarts."""
    spec, sources = loads(SPEC + "subjects: [p1, p2]\n"), written(tmp_path, 6, 1, 100)
    path = sources[0][1]

    def vanish(*given: Any, **named: Any) -> RunningJob:
        path.unlink()
        return start(*given, **named)

    monkeypatch.setattr("tacit.engines.flink.run.start", vanish)
    settings = {**QUICK, "restart-strategy.type": "none"}
    place = f"{tmp_path}/answers/"
    with pytest.raises(EngineError, match="last checkpoint") as caught:
        submit(spec, path, to=place, folder=tmp_path / "job", settings=settings)
    assert str(path) in str(caught.value)
