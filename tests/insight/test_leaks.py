"""Leaks: planted ones are found where they are, with their costs, and can be fixed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.engines.local import open_inputs
from tacit.errors import OptionError, SinkError
from tacit.insight.leak_report import LeakReport
from tacit.insight.window_columns import read_columns
from tacit.privacy.mechanisms.mechanism import PatternIndex
from tests.cli.small_runs import tacit as command
from tests.insight.leak_data import draw_stays, draw_without_leak, measure, plant, to_columns
from tests.insight.leak_data import specified as specify

SPEC = """
streams: {gps: {subject: taxi, time: at}}
windows: {size: 10 min}
events:
  at_clinic: {stream: gps, where: "place = 'clinic'"}
  parked: {stream: gps, where: "speed < 1"}
  slow: {stream: gps, where: "speed < 10"}
  hired: {stream: gps, where: "hired"}
  dark: {stream: gps, where: "NOT lights"}
patterns: {visit: "AND(at_clinic, parked)"}
private: [{pattern: visit, epsilon: 1}]
queries:
  - {name: jam, consumer: city, pattern: "AND(slow, NOT hired)"}
  - {name: stops, consumer: city, pattern: "OR(at_clinic, hired)"}
  - {name: unlit, consumer: police, pattern: dark}
"""


def trips(seed: int = 1, taxis: int = 120, windows: int = 80) -> pl.DataFrame:
    """Visits last; slow taxis tell about them, hired ones too, unlit ones do not."""
    chance = np.random.default_rng(seed)
    visit = draw_stays(chance, (taxis, windows), np.full(taxis, 0.12), 0.5)
    other = chance.random((4, taxis, windows))
    subject, window = np.indices(visit.shape).reshape(2, -1)
    return pl.DataFrame(
        {
            "taxi": subject,
            "at": window * 600 + 60,
            "place": np.where(visit | (other[0] < 0.05), "clinic", "street").ravel(),
            "speed": np.where(visit, 0.5, np.where(other[1] < 0.3, 5.0, 30.0)).ravel(),
            "hired": (other[2] < np.where(visit, 0.2, 0.5)).ravel(),
            "lights": (other[3] < 0.8).ravel(),
        }
    ).sort("at")


@pytest.fixture(scope="module")
def found() -> LeakReport:
    """Leaks of taxis."""
    return tacit.leaks(tacit.loads(SPEC), trips())


def test_what_follows_from_the_specification_is_found_without_history() -> None:
    report = tacit.leaks(tacit.loads(SPEC))
    assert [(one.private, one.public, one.relation) for one in report.shared] == [
        ("parked", "slow", "implies")
    ]
    assert report.leaks == ()
    assert "there is no history" in str(report)


def test_the_strongest_leaks_come_first_and_nothing_else_is_reported(found: LeakReport) -> None:
    strengths = [leak.strength for leak in found.leaks]
    assert strengths == sorted(strengths, reverse=True)
    assert found.leaks[0].signal == "slow"
    assert found.leaks[0].when == "same"
    assert found.leaks[0].high == np.inf, "a visit is never fast"
    assert {name for leak in found.leaks for name in leak.types} <= {"slow", "hired"}
    jam = next(leak for leak in found.leaks if leak.kind == "query" and leak.when == "same")
    assert (jam.signal, jam.types) == ("jam", ("slow", "hired"))
    assert jam.low > 3


def test_chances_are_those_of_history(found: LeakReport) -> None:
    frame = trips().with_columns(
        visit=(pl.col("place") == "clinic") & (pl.col("speed") < 1), slow=pl.col("speed") < 10
    )
    leak = found.leaks[0]
    assert leak.chance_seen == pytest.approx(frame.filter("slow")["visit"].mean())
    assert leak.chance_unseen == 0
    assert leak.seen == frame["slow"].sum()
    assert (found.windows, found.subjects) == (120 * 80, 120)
    later = next(one for one in found.leaks if one.when != "same")
    assert later.windows == 120 * 79


def test_costs_are_what_plans_say(found: LeakReport) -> None:
    spec = tacit.loads(SPEC)
    before = tacit.plan(spec, trips()).expected
    leak = next(one for one in found.leaks if one.protect == ("slow",))
    changed = tacit.loads(SPEC.replace("pattern: visit,", 'pattern: "OR(visit, slow)",'))
    after = tacit.plan(changed, trips()).expected
    assert before is not None
    assert after is not None
    assert leak.cost is not None
    assert leak.cost.before == pytest.approx(before.quality)
    assert leak.cost.after == pytest.approx(after.quality)
    assert leak.cost.loss > 0
    assert leak.cost.query == "jam"
    whole = tacit.plan(found.fix(), trips()).expected
    assert whole is not None
    assert found.expected is not None
    assert found.expected.after == pytest.approx(whole.quality)


def test_the_fix_protects_all_findings_and_is_a_specification(
    found: LeakReport, tmp_path: Path
) -> None:
    found.save_fix(tmp_path / "fixed.yaml")
    fixed = tacit.load(tmp_path / "fixed.yaml")
    assert fixed == found.fix()
    assert [private.name for private in fixed.private] == ["OR(visit, slow, hired)"]
    again = tacit.leaks(fixed, trips(), costs=0)
    assert {name for leak in again.leaks for name in leak.types} & {"slow", "hired"} == set()
    with pytest.raises(SinkError, match="choose another place"):
        found.save_fix(tmp_path / "no" / "fixed.yaml")


def test_a_fix_stays_beside_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "taxis.txt").write_text("\n".join(map(str, range(120))))
    (tmp_path / "spec.yaml").write_text(SPEC + "subjects: {file: taxis.txt}\n")
    report = tacit.leaks(tmp_path / "spec.yaml", trips(), costs=0)
    report.save_fix(tmp_path / "fixed.yaml")
    (tmp_path / "other").mkdir()
    with pytest.raises(OptionError, match="relative to its folder"):
        report.save_fix(tmp_path / "other" / "fixed.yaml")


def test_a_frame_has_a_row_for_each_finding(found: LeakReport) -> None:
    frame = found.polars()
    assert frame["signal"].to_list() == [leak.signal for leak in found.leaks]
    assert frame["quality_after"].null_count() == 0
    assert tacit.leaks(tacit.loads(SPEC)).polars().schema == frame.schema
    assert "<table>" in found._repr_html_()


def test_a_picture_is_drawn(found: LeakReport, tmp_path: Path) -> None:
    found.plot(tmp_path / "leaks.svg")
    assert "odds of visit" in (tmp_path / "leaks.svg").read_text()
    labels = [label.get_text() for label in found.plot().axes[0].get_yticklabels()]
    assert labels[0] == "slow"
    assert len(labels) == len(found.leaks)
    (note,) = tacit.leaks(tacit.loads(SPEC)).plot().axes[0].texts
    assert note.get_text() == "no finding"


@pytest.mark.parametrize(("by", "when"), [(1, "before"), (-1, "after"), (0, "same")])
def test_a_leak_is_found_in_the_window_where_it_is(by: int, when: str) -> None:
    private, signals = draw_without_leak(5, subjects=150)
    chance = np.random.default_rng(0)
    private = chance.random(private.shape) < 0.15
    # What tells about the next window is planted on windows moved back by one.
    signals[2] = plant(chance, np.roll(private, -by, axis=1), 0.1, 4.0)
    leaks = measure(private, signals).leaks
    assert [(leak.signal, leak.when) for leak in leaks] == [("e2", when)]
    assert leaks[0].low < 4.0 < leaks[0].high


def test_sliding_windows_are_compared_with_the_next_that_does_not_overlap() -> None:
    chance = np.random.default_rng(0)
    private = chance.random((150, 96)) < 0.15
    signals = chance.random((2, 150, 96)) < 0.1
    signals[0] = plant(chance, np.roll(private, -3, axis=1), 0.1, 4.0)
    spec = specify(2)
    slid = spec.windows.model_copy(update={"slide": spec.windows.size // 3})
    search, columns = to_columns(spec.model_copy(update={"windows": slid}), private, signals)
    leaks = search.compare(columns, 0.05, 1.0).leaks
    assert [(leak.signal, leak.when) for leak in leaks] == [("e0", "before")]


def test_a_pair_that_tells_more_than_its_parts_is_found() -> None:
    """The private pattern follows one of two signals, but not both: neither tells anything."""
    chance = np.random.default_rng(2)
    signals = chance.random((6, 200, 96)) < 0.5
    differ = signals[1] ^ signals[4]
    private = chance.random(differ.shape) < np.where(differ, 0.3, 0.1)
    leaks = measure(private, signals).leaks
    assert [(leak.kind, leak.types, leak.when) for leak in leaks] == [
        ("pair", ("e1", "e4"), "same")
    ]
    assert leaks[0].odds_ratio < 1


def test_a_pair_that_tells_no_more_than_one_of_its_parts_is_not_reported() -> None:
    private, signals = draw_without_leak(8, subjects=200)
    signals[0] = plant(np.random.default_rng(8), private, 0.1, 5.0)
    assert {leak.kind for leak in measure(private, signals).leaks} == {"event"}


def test_windows_in_which_a_subject_is_not_registered_do_not_count() -> None:
    chance = np.random.default_rng(3)
    private, signals = draw_without_leak(3, subjects=200, signals=3)
    known = np.arange(96) >= chance.integers(0, 64, 200)[:, np.newaxis]
    search, columns = to_columns(specify(3), private, signals, known)
    report = search.compare(columns, 0.05, 1.0)
    assert report.windows == known.sum()
    assert report.leaks == ()


def test_weak_findings_are_left_out_on_request(found: LeakReport) -> None:
    strong = tacit.leaks(tacit.loads(SPEC), trips(), least=3, costs=0)
    assert 0 < len(strong.leaks) < len(found.leaks)
    assert all(leak.strength >= 3 for leak in strong.leaks)
    assert strong.unpriced == "none were asked for"
    for wrong in ({"rate": 0.0}, {"rate": 1.0}, {"least": 0.5}, {"costs": -1}):
        with pytest.raises(OptionError, match="expected a number"):
            tacit.leaks(tacit.loads(SPEC), trips(), **wrong)


def test_an_event_type_that_is_private_for_some_is_public_for_others() -> None:
    named = ", ".join(f"'{taxi}'" for taxi in range(60))
    text = SPEC.replace(
        "epsilon: 1}]", f"epsilon: 1}}, {{pattern: slow, epsilon: 1, subjects: [{named}]}}]"
    )
    report = tacit.leaks(tacit.loads(text), trips(windows=200), costs=0)
    slow = [leak for leak in report.leaks if leak.types == ("slow",)]
    assert {leak.private for leak in slow} == {"visit"}
    assert max(leak.windows for leak in slow) == 60 * 200
    about_slow = [leak for leak in report.leaks if leak.private == "slow"]
    assert all("slow" not in leak.types for leak in about_slow)


def test_history_that_can_be_read_once_has_no_costs() -> None:
    report = tacit.leaks(tacit.loads(SPEC), iter([trips()]))
    assert report.leaks
    assert report.expected is None
    assert report.unpriced == "history can be read only once"
    assert "was not computed" in str(report)


def test_too_much_history_keeps_every_second_block_of_subjects() -> None:
    spec = tacit.loads(SPEC)
    index = PatternIndex()
    index.column(spec.private_patterns[0])
    inputs = open_inputs(spec, [trips(taxis=200)], {})
    part = read_columns(spec, inputs, index, most_bytes=80 * 2 * 8)
    inputs = open_inputs(spec, [trips(taxis=200)], {})
    whole = read_columns(spec, inputs, index)
    kept = np.arange(200) // 64 % 2 == 0
    assert (part.subjects, len(part.policies)) == (200, kept.sum())
    assert (part.bits == whole.choose(kept).bits).all()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a specification and history."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    trips().write_parquet(tmp_path / "past.parquet")
    return tmp_path


def test_the_command_reports_draws_and_fixes(files: Path) -> None:
    arguments: list[str | Path] = [
        "leaks",
        files / "spec.yaml",
        "--history",
        files / "past.parquet",
    ]
    shown = command(*arguments, "--plot", files / "l.svg", "--fix", files / "fixed.yaml")
    assert shown.exit_code == 0, shown.output
    assert "private 'parked'" in shown.stdout
    assert "Strongest: a window with slow has at least" in shown.stdout
    assert "Protecting all of them: Q" in shown.stdout
    assert (files / "l.svg").exists()
    assert tacit.load(files / "fixed.yaml").private[0].name == "OR(visit, slow, hired)"
    as_json = command(*arguments, "--least", "3", "--costs", "0", "--json")
    report = json.loads(as_json.stdout)
    assert report["leaks"][0]["high"] is None
    assert report["fix"] is None
    assert report["unpriced"] == "none were asked for"


def test_the_command_works_without_history_and_refuses_what_needs_it(files: Path) -> None:
    shown = command("leaks", files / "spec.yaml")
    assert shown.exit_code == 0
    assert "Give --history to measure." in shown.stdout
    assert command("leaks", files / "spec.yaml", "--fix", files / "f.yaml").exit_code == 2
    over = command(
        "leaks", files / "spec.yaml", "--history", files / "past.parquet", "--fix",
        files / "spec.yaml",
    )  # fmt: skip
    assert over.exit_code != 0
    assert (files / "spec.yaml").read_text() == SPEC


def test_nothing_to_fix_writes_nothing(files: Path) -> None:
    arguments: list[str | Path] = [
        "leaks",
        files / "spec.yaml",
        "--history",
        files / "past.parquet",
    ]
    shown = command(*arguments, "--least", "1000000", "--fix", files / "fixed.yaml")
    assert "Nothing to fix" in shown.stdout
    assert not (files / "fixed.yaml").exists()
