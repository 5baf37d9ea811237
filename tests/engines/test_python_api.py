"""Python can do what the command line can, by the same rules, and its errors name arguments."""

from __future__ import annotations

import ast
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import tacit
from tacit.errors import (
    LedgerError,
    OptionError,
    PlanError,
    SchemaError,
    SinkError,
    SourceError,
    StateError,
    TacitError,
)
from tests.cli.small_runs import tacit as command
from tests.services import free_port

TEXT = """
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
subjects: [x, y]
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
private:
  - {pattern: a, epsilon: 1, limit: 10 per day}
queries:
  - {name: seen, consumer: us, pattern: "OR(a, b)"}
  - {name: other, consumer: them, pattern: b}
mechanism: uniform
"""
SPEC = tacit.loads(TEXT)


def tuples(first: int, minutes: int) -> pl.DataFrame:
    """Tuples of two subjects in these minutes."""
    at = [60 * (first + n // 2) + n % 2 for n in range(2 * minutes)]
    return pl.DataFrame(
        {
            "who": ["x", "y"] * minutes,
            "at": at,
            "kind": ["ab"[n // 2 % 2] for n in range(2 * minutes)],
        }
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger that does not exist yet."""
    return tmp_path / "spent.db"


def test_a_limit_needs_a_ledger_in_python_too() -> None:
    with pytest.raises(OptionError, match=r"10 per day.*ledger=, or use ledger=False"):
        tacit.run(SPEC, tuples(0, 3))


def test_who_says_that_nobody_counts_gets_the_answers() -> None:
    assert len(tacit.run(SPEC, tuples(0, 3), ledger=False)) == 3 * 4


def test_limits_are_kept_over_several_calls(ledger: Path) -> None:
    """Ten windows are paid for, however often is asked; in every second one nothing is open."""
    exhausted: list[bool] = []
    for first in (0, 6, 12, 18):
        answers = tacit.run(SPEC, tuples(first, 6), ledger=ledger)
        assert isinstance(answers, tacit.DeliveredAnswers)
        frame = answers.polars().filter(pl.col("query") == "seen")
        exhausted += frame.filter(pl.col("subject") == "x")["exhausted"].to_list()
    assert exhausted == [window >= 20 and window % 2 == 0 for window in range(24)]
    spent = tacit.show_ledger(ledger, subject="x").horizons
    assert [one.spent for one in spent] == [10 * 10**9]


@pytest.mark.filterwarnings("ignore::tacit.errors.RefusedInputWarning")
def test_a_window_is_released_once_and_a_frame_is_known_again(ledger: Path) -> None:
    first = tacit.run(SPEC, tuples(0, 5), ledger=ledger)
    assert len(first) == 5 * 4
    assert first.counts()["other"] == 4
    wide = first.wide()
    assert wide.columns == ["window_start", "subject", "seen", "other"]
    assert wide["other"].sum() == 4
    assert wide.height == 10
    again = tacit.run(SPEC, tuples(0, 5).to_pandas(), ledger=ledger)
    assert len(again) == 0
    assert again.refused == {} or set(again.refused) == {"late: its window is closed"}
    later = tacit.run(SPEC, tuples(5, 2), ledger=ledger)
    assert (
        later.polars()["window_start"].min()
        == pl.Series([300 * 10**6]).cast(pl.Datetime("us", "UTC"))[0]
    )
    assert tacit.verify_ledger(ledger).passed


def test_what_could_not_be_delivered_comes_first_the_next_time(ledger: Path) -> None:
    class OhError(Exception): ...

    taken: list[pa.Table] = []

    def frail(table: pa.Table) -> None:
        if taken:
            raise OhError
        taken.append(table)

    with pytest.raises(OhError):
        tacit.run(SPEC, tuples(0, 6), ledger=ledger, to=frail)
    rest = tacit.run(SPEC, tuples(0, 6), ledger=ledger)
    ids = [row for table in (*taken, rest.arrow()) for row in table["id"].to_pylist()]
    assert len(ids) == len(set(ids)) == 6 * 4


def test_a_run_can_be_stopped_and_goes_on_where_it_was(ledger: Path, tmp_path: Path) -> None:
    source, answers = tmp_path / "in.jsonl", tmp_path / "out"
    tuples(0, 4).write_ndjson(source)
    answers.mkdir()
    (tmp_path / "spec.yaml").write_text(TEXT)

    def work(until: int) -> None:
        with tacit.open_run(
            tmp_path / "spec.yaml",
            source,
            ledger=ledger,
            to=answers / "{consumer}.csv",
            follow=True,
            metrics=str(port),
        ) as run:
            thread = threading.Thread(target=run.run)
            thread.start()
            while run.status.public.windows < until and thread.is_alive():
                thread.join(0.05)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
                assert b"tacit_" in reply.read()
            run.reload()
            run.stop()
            thread.join(30)
            assert not thread.is_alive()

    port = free_port()
    work(3)
    with source.open("a") as file:
        file.write(tuples(4, 3).write_ndjson())
    work(3)
    for name in ("us", "them"):
        frame = pl.read_csv(answers / f"{name}.csv")
        assert frame["id"].n_unique() == frame.height == 6 * 2
        assert set(frame["consumer"]) == {name}


def test_files_come_out_as_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(TEXT)
    tuples(0, 4).write_csv(tmp_path / "in.csv")
    with (tmp_path / "in.csv").open("a") as file:
        file.write("x,,a\n")
    shown = command(
        *("detect", tmp_path / "spec.yaml", tmp_path / "in.csv", "--to", tmp_path / "a.csv")
    )
    assert shown.exit_code == 0
    done = tacit.detect(tmp_path / "spec.yaml", tmp_path / "in.csv", to=tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert done.refused == {"no time: it is null or cannot be read": 1}
    letters = [tmp_path / f"{name}.dead-letters.jsonl" for name in "ab"]
    assert letters[0].read_bytes() == letters[1].read_bytes()
    assert len(done) == 0


def test_plans_qualities_and_curves(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    history = tuples(0, 200).with_columns(kind=pl.Series(chance.choice(list("abcd"), 400)))
    plan = tacit.plan(SPEC, history, out=tmp_path / "plan.json")
    assert tacit.audit(tmp_path / "plan.json", SPEC).passed
    assert tacit.Plan.load(tmp_path / "plan.json", SPEC).to_dict() == plan.to_dict()
    least = tacit.least_epsilon(SPEC, history, quality=0.7)
    assert least.total is not None
    assert tacit.least_epsilon(SPEC, history, quality=0.99).total != least.total
    curve = tacit.curve(SPEC, history)
    assert {point.mechanism for point in curve.points} == {"uniform", "adaptive", "optimal"}
    history.write_csv(tmp_path / "history.csv")
    (tmp_path / "spec.yaml").write_text(TEXT)
    by_path = tacit.curve(tmp_path / "spec.yaml", tmp_path / "history.csv")
    assert by_path.to_dict() == curve.to_dict()
    (tmp_path / "prior.yaml").write_text("a: 0.3\n")
    by_file = tacit.plan(SPEC, prior=tmp_path / "prior.yaml", mechanism="optimal")
    assert by_file.to_dict() == tacit.plan(SPEC, prior={"a": 0.3}, mechanism="optimal").to_dict()


Calls = list[tuple[float, str]]


def reported(job: Callable[[Callable[[float, str], None]], object]) -> Calls:
    """What a job reports: shares that never fall, and the whole only at the end."""
    calls: Calls = []
    job(lambda fraction, what: calls.append((fraction, what)))
    shares = [fraction for fraction, _ in calls]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert [number for number, share in enumerate(shares) if share >= 1] == [len(shares) - 1]
    return calls


def test_long_calls_report_their_progress(tmp_path: Path) -> None:
    tuples(0, 300).write_csv(tmp_path / "in.csv")
    history = [tuples(0, 100), tuples(100, 100)]
    path, open_spec = tmp_path / "in.csv", SPEC.model_copy(update={"mechanism": "auto"})
    unlisted = SPEC.model_copy(update={"subjects": None})
    jobs: dict[str, Callable[[Any], object]] = {
        "planning": lambda on: tacit.plan(open_spec, path, progress=on),
        "least epsilon": lambda on: tacit.least_epsilon(SPEC, path, quality=0.7, progress=on),
        "curve": lambda on: tacit.curve(SPEC, path, progress=on),
        "tuples/s": lambda on: tacit.detect(SPEC, path, progress=on),
        "reading": lambda on: tacit.run(SPEC, path, ledger=False, progress=on),
        "starting": lambda on: tacit.run(SPEC, *history, ledger=False, progress=on),
        "names of subjects": lambda on: tacit.detect(unlisted, *history, progress=on),
    }
    for said, job in jobs.items():
        calls = reported(job)
        assert any(said in what for _, what in calls), (said, calls)
    planned = [what for _, what in reported(jobs["planning"])]
    assert {"planning uniform", "planning adaptive", "planning optimal"} <= set(planned)


@pytest.mark.parametrize("kept", [False, True], ids=["directly", "from a ledger"])
def test_a_run_is_not_done_before_its_answers_are_written(kept: bool, tmp_path: Path) -> None:
    tuples(0, 50).write_csv(tmp_path / "in.csv")
    target = tmp_path / "answers.csv"
    complete: list[bool] = []

    def progress(fraction: float, _what: str) -> None:
        if fraction == 1:
            complete.append(pl.read_csv(target).height == 200)

    ledger: Path | Literal[False] = tmp_path / "spent.db" if kept else False
    tacit.run(SPEC, tmp_path / "in.csv", ledger=ledger, to=target, progress=progress)
    assert complete == [True]


def test_progress_says_what_is_left_to_deliver(tmp_path: Path) -> None:
    """Everything is read long before the last answers are delivered."""
    tuples(0, 5).write_csv(tmp_path / "in.csv")
    slow = lambda _: time.sleep(0.1)  # noqa: E731
    calls = reported(
        lambda on: tacit.run(
            SPEC, tmp_path / "in.csv", ledger=tmp_path / "spent.db", to=slow, progress=on
        )
    )
    left = [(share, what) for share, what in calls if what.startswith("delivering answers")]
    assert left
    assert all(share < 1 for share, _ in left)


def test_specifications_and_set_ups_are_checked(tmp_path: Path, ledger: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    assert tacit.validate(path) == tacit.validate(SPEC) == []
    assert "10 per day" in str(tacit.explain(path))
    tuples(0, 2).write_parquet(tmp_path / "in.parquet")
    sink = tmp_path / "out.jsonl"
    found = tacit.doctor(path, {"s": tmp_path / "in.parquet"}, ledger=ledger, to=sink)
    assert found.passed, str(found)
    found = tacit.doctor(path, tmp_path / "in.parquet")
    assert "set one with ledger=" in " ".join(str(found).split())
    path.write_text(TEXT.replace("kind = 'a'", "kind ="))
    assert [mistake.line for mistake in tacit.validate(path)] == [7]
    assert "properties" in tacit.json_schema()


MISTAKES: list[tuple[type[TacitError], str, Callable[[Path], Any]]] = [
    (OptionError, "name= needs ledger=", lambda _: tacit.run(SPEC, tuples(0, 1), name="n")),
    (OptionError, "follow= needs ledger=", lambda _: tacit.run(SPEC, "x", follow=True)),
    (OptionError, "metrics= needs", lambda _: tacit.run(SPEC, "x", ledger=False, metrics="1")),
    (OptionError, "retain=: ", lambda p: tacit.run(SPEC, "x", ledger=p / "l", retain="soon")),
    (OptionError, "ledger=: give a file", lambda _: tacit.run(SPEC, "x", ledger=True)),  # type: ignore[arg-type]
    (OptionError, "subjects= and learn= exclude", lambda _: tacit.detect(
        SPEC, tuples(0, 1), subjects="s", learn="1 h")),
    (OptionError, "quality=", lambda _: tacit.least_epsilon(SPEC, tuples(0, 1), quality=7)),
    (PlanError, r"tacit\.plan\(spec, history\), or use mechanism='uniform'", lambda _: tacit.run(
        SPEC, tuples(0, 1), mechanism="optimal", ledger=False)),
    (LedgerError, r"tacit\.run\(..., ledger=", lambda p: tacit.show_ledger(p / "no.db")),
    (StateError, "seed=", lambda p: [tacit.run(
        SPEC, tuples(n, 1), ledger=p / "l", seed=seed) for n, seed in enumerate((1, None))]),
    (SourceError, "which of the streams", lambda _: tacit.detect(tacit.loads(
        TEXT.replace("streams: {s:", "streams: {t: {subject: w, time: at}, s:")), tuples(0, 1))),
    (SinkError, "is read by this run", lambda p: [tuples(0, 1).write_csv(p / "x.csv"),
        tacit.detect(SPEC, p / "x.csv", to=p / "x.csv")]),
    (OptionError, "fill the memory", lambda p: [tuples(0, 1).write_csv(p / "x.csv"),
        tacit.run(SPEC, p / "x.csv", ledger=p / "l", follow=True)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "says", "call"), MISTAKES, ids=[says for _, says, _ in MISTAKES])
def test_errors_name_arguments_and_not_flags(
    kind: type[TacitError], says: str, call: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=says) as raised:
        call(tmp_path)
    assert "--" not in str(raised.value)


def test_the_command_line_names_flags_for_the_same_mistakes(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(TEXT)
    tuples(0, 2).write_csv(tmp_path / "in.csv")
    shown = command("run", tmp_path / "spec.yaml", tmp_path / "in.csv")
    assert shown.exit_code == 2
    assert "set one with --ledger, or use --no-ledger" in shown.output
    shown = command("run", tmp_path / "spec.yaml", tmp_path / "in.csv", "--name", "n")
    assert shown.exit_code == 2
    assert "--name needs --ledger" in shown.output
    shown = command("ledger", "show", tmp_path / "no.db")
    assert "tacit run --ledger creates one" in shown.output


FOR_THE_COMMAND_LINE = ("options.py", "drafting.py", "report_page.py")
"""Modules that only commands use, or that write pages; the last has variables of style sheets."""


def test_no_message_outside_of_the_command_line_writes_a_flag() -> None:
    """They say `option("ledger")`, which is right for both."""
    root = Path(tacit.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if {"cli", "service"} & {*parts} or path.name in FOR_THE_COMMAND_LINE:
            continue
        tree = ast.parse(path.read_text())
        quoted = {  # docstrings, and command lines that stand beside a call
            id(part)
            for node in ast.walk(tree)
            if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command")
            for part in ast.walk(node)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.search(r"(?:^|[ (])--[a-z]", node.value)
                and id(node) not in quoted
            ):
                found.append(f"{path.relative_to(root)}:{node.lineno}: {node.value}")
    assert found == []


def test_a_column_of_several_types_is_named_and_its_values_are_not() -> None:
    frame = tuples(0, 2).to_pandas().astype(object)
    frame.loc[1, "kind"] = 4711
    with pytest.raises(SchemaError, match=r"column 'kind' are of several types.*astype") as raised:
        tacit.detect(SPEC, frame)
    assert "4711" not in str(raised.value)
