"""What one tuple can do to the schedule of a whole run, and what is said of refused input."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import tacit
from tacit.cli.main import main
from tacit.errors import RefusedInputError, RefusedInputWarning
from tacit.pipeline.refusals import Refusals
from tacit.spec.yaml_reader import loads
from tacit.windows.clock import FUTURE, LATE, REASONS, UNREGISTERED

SPEC = """
version: 1
streams: {s: {subject: who, time: at, unit: s}}
windows: {size: 1 min}
events:
  secret: {stream: s, where: "kind = 1"}
  seen: {stream: s, where: "kind = 0"}
private: [{pattern: secret, epsilon: 1}]
queries:
  - {name: q, consumer: c, pattern: "OR(seen, secret)"}
  - {name: p, consumer: c, pattern: seen}
"""
MINUTE, HOUR, DAY = 60, 3600, 86400
Row = tuple[str, int, int]
STEADY: list[Row] = [("ab"[place % 2], 5 * place, 0) for place in range(60)]
"""Two subjects for five minutes."""


def frame(rows: list[Row]) -> pl.DataFrame:
    """Rows as a frame."""
    return pl.DataFrame(rows, ["who", "at", "kind"], orient="row")


def answers(rows: list[Row], spec: str = SPEC) -> pl.DataFrame:
    """True answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RefusedInputWarning)
        return pl.DataFrame(tacit.detect(loads(spec), frame(rows)))


def shifted(rows: list[Row], seconds: int) -> list[Row]:
    """The same at another time."""
    return [(who, at + seconds, kind) for who, at, kind in rows]


@pytest.mark.cases(8)
@pytest.mark.parametrize("ahead", [3 * HOUR, 20 * HOUR, 6 * DAY])
@pytest.mark.parametrize("place", [0, 1, 30, 60])
@pytest.mark.parametrize("many", [1, 5])
def test_private_events_far_ahead_add_no_row_and_make_nothing_late(
    ahead: int, place: int, many: int
) -> None:
    """Before all others, among them, and after them."""
    private = [("a", ahead + number, 1) for number in range(many)]
    assert answers(STEADY[:place] + private + STEADY[place:]).equals(answers(STEADY))


def test_a_first_tuple_in_the_year_9999_is_refused_alone() -> None:
    wild = ("b", 253_000_000_000, 0)
    assert answers([wild, *STEADY]).equals(answers(STEADY))
    assert answers([("b", 0, 0), *shifted(STEADY, 40 * 365 * DAY)]).equals(
        answers(shifted(STEADY, 40 * 365 * DAY))
    )


@pytest.mark.parametrize("gap", [12 * HOUR, 62 * HOUR])
def test_nights_and_weekends_lose_nothing(gap: int) -> None:
    found = answers(STEADY + shifted(STEADY, gap))
    assert found["window_start"].n_unique() == gap // MINUTE + 5
    assert found.filter(pl.col("query") == "p")["detected"].sum() == 20


def test_an_only_subject_passes_a_weekend_by_itself() -> None:
    rows: list[Row] = [("a", 0, 0), ("a", 62 * HOUR, 0)]
    assert answers(rows).filter(pl.col("query") == "p")["detected"].sum() == 2


def test_several_sources_are_checked_each_by_itself() -> None:
    """A wild tuple does not make the rest of its source wait behind the others, and come late."""
    spec = loads(SPEC)
    wild = [*STEADY[:9], ("a", 20 * HOUR, 1), *STEADY[9:]]
    one, two = frame(wild), frame(shifted(STEADY, 2))
    plain = pl.DataFrame(tacit.detect(spec, frame(STEADY), two))
    assert pl.DataFrame(tacit.detect(spec, one, two)).equals(plain)


def test_jump_is_what_the_specification_says() -> None:
    wider = SPEC.replace("size: 1 min", "size: 1 min, jump: 3 h")
    rows = [*STEADY, ("a", 2 * HOUR, 0)]
    assert answers(rows)["window_start"].n_unique() == 5
    assert answers(rows, wider)["window_start"].n_unique() == 121


def test_history_of_windows_that_close_by_the_clock_may_have_gaps() -> None:
    """There the default for `future` is one window, which is for live tuples."""
    clock = SPEC.replace("size: 1 min", "size: 1 min, close: clock")
    rows = STEADY + shifted(STEADY, 12 * HOUR)
    assert answers(rows, clock).equals(answers(rows))


LATE_ROWS: list[Row] = [*STEADY[:2], *[("a", -HOUR * n, 0) for n in range(1, 20)]]


def test_python_warns_where_most_of_the_input_is_refused() -> None:
    with pytest.warns(RefusedInputWarning, match=r"19 of 21 .* \(90\.5%\).*late.*sort it by time"):
        tacit.detect(loads(SPEC), frame(LATE_ROWS))
    with pytest.warns(RefusedInputWarning):
        tacit.run(loads(SPEC.replace("queries", "mechanism: uniform\nqueries")), frame(LATE_ROWS))
    with pytest.warns(RefusedInputWarning):
        tacit.plan(loads(SPEC), frame(LATE_ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tacit.detect(loads(SPEC), frame(STEADY))


def test_most_is_more_than_half_and_the_main_reason_is_named() -> None:
    half = Refusals(3, {REASONS[LATE]: 1, REASONS[UNREGISTERED]: 2})
    assert not half.exceed(0.5)
    more = Refusals(2, half.reasons)
    assert more.exceed(0.5)
    assert "2 of them for this reason: the subject is not registered" in str(more)
    assert "registry" in str(more)
    assert "windows.future" in str(Refusals(0, {REASONS[FUTURE]: 1}))
    with pytest.raises(RefusedInputError):
        more.check(0.5)
    half.check(0.5)
    Refusals(0, {}).check(0)


@pytest.mark.parametrize("command", ["detect", "run", "ledger", "plan"])
def test_the_command_line_warns_and_fails_on_request_alone(command: str, tmp_path: Path) -> None:
    """What consumers get is the same either way."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("queries", "mechanism: uniform\nqueries"))
    frame(LATE_ROWS).write_parquet(tmp_path / "rows.parquet")
    spec, rows = str(tmp_path / "spec.yaml"), str(tmp_path / "rows.parquet")
    found = []
    for number, limit in enumerate(([], ["0.95"], ["0.9"])):
        out = tmp_path / f"out{number}.jsonl"
        noisy = ["run", spec, rows, "--seed", "1", "--to", str(out)]
        ways = {
            "detect": ["detect", spec, rows, "--to", str(out)],
            "run": [*noisy, "--no-ledger"],
            "ledger": [*noisy, "--ledger", str(tmp_path / f"{number}.db")],
            "plan": ["plan", spec, "--history", rows],
        }
        asked = [f"--fail-if-refused={share}" for share in limit]
        result = CliRunner().invoke(main, [*ways[command], *asked])
        assert "19 of 21 tuples were refused" in result.stderr
        assert result.exit_code == (11 if limit == ["0.9"] else 0)
        if command != "plan":
            read = [json.loads(line) for line in out.read_text().splitlines()]
            found.append([(row["window_start"], row["subject"], row["detected"]) for row in read])
    assert all(one == found[0] for one in found)
