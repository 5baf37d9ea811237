"""The command line as people use it, good input and bad."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from tacit.cli import demo
from tacit.cli.main import COMMANDS, main
from tests.engines.forking import Forks

SPEC = """
version: 1
streams:
  gps: {subject: taxi, time: at}
areas:
  square: {box: [0, 0, 1, 1]}
windows: {size: 1 min, lateness: 10 s}
events:
  slow: {stream: gps, where: "speed < 10"}
  fast: {stream: gps, where: "NOT (speed < 10)"}
  there: {stream: gps, inside: square}
queries:
  - {name: jam, consumer: city, pattern: "SEQ(slow, slow)"}
  - {name: quick, consumer: city, pattern: fast}
  - {name: visit, consumer: city, pattern: there}
"""
HEADER = "taxi,at,speed,lon,lat"


def tacit(*arguments: str | Path, input: str | None = None) -> Result:  # noqa: A002
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=input)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification in a file."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def csv(folder: Path, *rows: str, name: str = "tuples.csv") -> Path:
    """A CSV file with these rows."""
    path = folder / name
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def answers(path: Path) -> dict[tuple[str, str, str], bool]:
    """Answers from a CSV sink, by window, subject and query."""
    frame = pl.read_csv(path, schema_overrides={"subject": pl.String})
    keys = frame.select("window_start", "subject", "query").iter_rows()
    return dict(zip(keys, frame["detected"].to_list(), strict=True))


def test_help_and_exit_codes_are_shown_for_every_command() -> None:
    """Each command has help with an example."""
    assert "Exit codes" in tacit("--help").output
    for command in COMMANDS:
        shown = tacit(command, "--help")
        assert shown.exit_code == 0
        assert f"tacit {command}" in shown.output.split("Example", 1)[1]


@pytest.mark.parametrize("group", [[], ["ledger"], ["reproduce"]])
def test_the_list_of_commands_shows_whole_sentences(group: list[str]) -> None:
    commands = tacit(*group, "--help").output.split("Commands:")[1].split("Exit codes")[0]
    lines = commands.strip().splitlines()
    assert lines
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


def test_a_right_specification_is_said_to_be_right(spec: Path) -> None:
    """As text, and as JSON with the fingerprint."""
    assert tacit("validate", spec).exit_code == 0
    report = json.loads(tacit("validate", spec, "--json").output)
    assert report["valid"] is True
    assert len(report["fingerprint"]) == 64


def test_all_mistakes_are_reported_with_their_places(spec: Path) -> None:
    """With exit code 3, as text and as JSON."""
    spec.write_text(SPEC.replace("lateness: ", "latenes: ").replace("slow, slow", "slow, slo"))
    shown = tacit("validate", spec)
    assert shown.exit_code == 3
    assert f"{spec}:7:24" in shown.output
    assert "Did you mean 'lateness'?" in shown.output
    assert "Did you mean 'slow'?" in shown.output
    report = json.loads(tacit("validate", spec, "--json").output)
    assert [mistake["line"] for mistake in report["mistakes"]] == [7, 13]


def test_the_schema_is_json() -> None:
    assert json.loads(tacit("schema").output)["type"] == "object"


def test_answers_are_said_to_be_true_and_unprotected(spec: Path, tmp_path: Path) -> None:
    """In the text for people and in the summary for programs."""
    source = csv(tmp_path, "7,2024-01-01T00:00:01Z,5,0.5,0.5", "7,2024-01-01T00:00:02Z,5,2,2")
    sink = tmp_path / "answers.csv"
    shown = tacit("detect", spec, source, "--to", sink, "--json")
    assert "true and unprotected" in shown.stderr
    summary = json.loads(shown.stdout)
    assert summary["protected"] is False
    assert summary["detected"] == {"jam": 1, "quick": 0, "visit": 1}
    assert summary["tuples"] == summary["taken"] == 2
    assert answers(sink)["2024-01-01T00:00:00Z", "7", "jam"] is True


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_every_format_goes_in_and_out(spec: Path, tmp_path: Path, suffix: str) -> None:
    """What one format gives, another takes."""
    frame = pl.DataFrame(
        {"taxi": [1, 2, 1], "at": [0, 30, 100], "speed": [1.0, 50.0, 2.0], "lon": 0.5, "lat": 9.0}
    )
    source, sink = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    write: dict[str, Callable[[Path], object]] = {
        "csv": frame.write_csv,
        "jsonl": frame.write_ndjson,
        "parquet": frame.write_parquet,
        "arrow": frame.write_ipc,
    }
    write[suffix](source)
    assert tacit("detect", spec, source, "--to", sink).exit_code == 0
    read: dict[str, Callable[[Path], pl.DataFrame]] = {
        "csv": pl.read_csv,
        "jsonl": pl.read_ndjson,
        "parquet": pl.read_parquet,
        "arrow": pl.read_ipc,
    }
    found = read[suffix](sink)
    assert found.height == 2 * 2 * 3
    columns = ["window_start", "window_end", "subject", "consumer", "query", "detected"]
    assert found.columns == columns
    assert found["detected"].sum() == 1


def test_json_lines_flow_from_standard_input_to_standard_output(spec: Path, forks: Forks) -> None:
    """And the summary does not get between the answers."""
    lines = [
        json.dumps({"taxi": "a", "at": at, "speed": 5, "lon": 0, "lat": 0}) for at in (0, 1, 70)
    ]
    shown = subprocess.run(
        [forks.program, "detect", spec, "-", "--json"],
        input="\n".join(lines), capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(rows) == 2 * 3
    assert rows[0] == {
        "window_start": "1970-01-01T00:00:00Z",
        "window_end": "1970-01-01T00:01:00Z",
        "subject": "a",
        "consumer": "city",
        "query": "jam",
        "detected": True,
    }
    assert '"answers": 6' in shown.stderr


def test_several_streams_come_from_several_sources(tmp_path: Path) -> None:
    """Merged by time, so that no source makes another's tuples late."""
    spec = tmp_path / "home.yaml"
    spec.write_text(
        """
streams:
  doors: {subject: home, time: at}
  power: {subject: home, time: at}
windows: {size: 1 min}
events:
  opened: {stream: doors, where: "open"}
  oven: {stream: power, where: "watts > 1000"}
queries:
  - {name: baking, consumer: us, pattern: "SEQ(oven, opened)"}
"""
    )
    pl.DataFrame({"home": 1, "at": range(0, 600, 10), "open": True}).write_csv(tmp_path / "d.csv")
    pl.DataFrame({"home": 1, "at": range(0, 600, 7), "watts": 2000}).write_parquet(
        tmp_path / "p.parquet"
    )
    sources = [f"doors={tmp_path}/d.csv", f"power={tmp_path}/p.parquet"]
    sink = tmp_path / "answers.csv"
    shown = tacit("detect", spec, *sources, "--to", sink, "--json")
    assert json.loads(shown.stdout)["refused"] == {}
    assert json.loads(shown.stdout)["detected"] == {"baking": 10}
    nameless = tacit("detect", spec, tmp_path / "d.csv")
    assert nameless.exit_code == 4
    assert "Write stream=" in nameless.stderr
    wrong = tacit("detect", spec, f"door={tmp_path}/d.csv")
    assert "Did you mean 'doors'?" in wrong.stderr


def test_missing_columns_are_reported_before_the_run(spec: Path, tmp_path: Path) -> None:
    """All of them, with the nearest name."""
    source = tmp_path / "tuples.csv"
    source.write_text("taxi,at,spead,lon\n1,0,1,1\n")
    shown = tacit("detect", spec, source, "--to", tmp_path / "out.csv")
    assert shown.exit_code == 4
    assert "no column 'speed'" in shown.stderr
    assert "Did you mean 'spead'?" in shown.stderr
    assert "no column 'lat'" in shown.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "is empty"),
        ("empty.jsonl", b"", "is empty"),
        ("empty.parquet", b"", "Parquet"),
        ("twice.csv", b"taxi,at,taxi\n1,2,3\n", "more than one column named 'taxi'"),
        ("tuples.txt", b"", "expected a file ending in"),
    ],
)
def test_unreadable_input_is_refused_clearly(
    spec: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    shown = tacit("detect", spec, source, "--to", tmp_path / "out.csv")
    assert shown.exit_code == 4
    assert said in shown.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_parquet_file_that_was_cut_short_is_refused(spec: Path, tmp_path: Path) -> None:
    source = tmp_path / "tuples.parquet"
    pl.DataFrame({"taxi": range(1000), "at": range(1000), "speed": 1.0}).write_parquet(source)
    source.write_bytes(source.read_bytes()[:-200])
    shown = tacit("detect", spec, source)
    assert shown.exit_code == 4
    assert "cut short" in shown.stderr


def test_a_header_without_rows_gives_no_answers(spec: Path, tmp_path: Path) -> None:
    """No tuple, no schedule; the sink is there and has its columns."""
    sink = tmp_path / "out.csv"
    assert tacit("detect", spec, csv(tmp_path), "--to", sink).exit_code == 0
    assert sink.read_text().strip() == "window_start,window_end,subject,consumer,query,detected"


def letters(path: Path) -> list[tuple[int, str]]:
    """Place and reason of each dead letter."""
    return [
        (letter["place"], letter["reason"])
        for letter in map(json.loads, path.read_text().splitlines())
    ]


def test_ragged_rows_and_odd_values_go_to_the_dead_letters(spec: Path, tmp_path: Path) -> None:
    """Each with its line and reason, and all other tuples are taken."""
    source = csv(
        tmp_path,
        "a,2024-01-01T00:00:05Z,5,nan,0.5",
        "a,2024-01-01T00:00:06Z,5",
        ",2024-01-01T00:00:07Z,5,0,0",
        "a,,5,0,0",
        "a,no time at all,5,0,0",
        "a,9999-01-01T00:00:00Z,5,0,0",
        "a,1969-12-31T23:59:59Z,5,0,0",
        "a,2024-01-01T00:00:08Z,inf,inf,0.5",
    )
    sink = tmp_path / "out.csv"
    shown = tacit("detect", spec, source, "--to", sink, "--json")
    assert json.loads(shown.stdout)["taken"] == 2
    found = letters(tmp_path / "out.dead-letters.jsonl")
    assert [place for place, _ in sorted(found)] == [3, 4, 5, 6, 7, 8]
    reasons = dict(found)
    assert "no subject" in reasons[4]
    assert "no time" in reasons[5]
    assert "no time" in reasons[6]
    assert "future" in reasons[7]
    assert "late" in reasons[8]
    assert set(answers(sink).values()) == {False}


def test_one_broken_line_among_many_goes_to_the_dead_letters(spec: Path, tmp_path: Path) -> None:
    """With its number; the others lose nothing."""
    lines = [
        json.dumps({"taxi": 1, "at": n // 100, "speed": 50, "lon": 0, "lat": 0})
        for n in range(30_000)
    ]
    lines[17_000] = lines[17_000][:-5]
    source = tmp_path / "tuples.jsonl"
    source.write_text("\n".join(lines))
    shown = tacit("detect", spec, source, "--to", tmp_path / "out.csv", "--json")
    assert json.loads(shown.stdout)["taken"] == 29_999
    assert [place for place, _ in letters(tmp_path / "out.dead-letters.jsonl")] == [17_001]


def test_subjects_may_be_long_and_hold_newlines(spec: Path, tmp_path: Path) -> None:
    """They come out as they went in."""
    names = ["x" * 10_000, "two\nlines", 'quote"d', "ünï"]
    source = tmp_path / "tuples.jsonl"
    source.write_text(
        "\n".join(
            json.dumps({"taxi": name, "at": 1, "speed": 50, "lon": 0, "lat": 0}) for name in names
        )
    )
    sink = tmp_path / "out.csv"
    assert tacit("detect", spec, source, "--to", sink).exit_code == 0
    assert {subject for _, subject, _ in answers(sink)} == set(names)


@pytest.mark.parametrize("count", [0, 2_000])
def test_no_queries_and_two_thousand_queries_work(tmp_path: Path, count: int) -> None:
    spec = tmp_path / "spec.yaml"
    queries = [
        f'  - {{name: q{n}, consumer: c, pattern: "AND(slow, NOT there)"}}' for n in range(count)
    ]
    spec.write_text(SPEC.split("queries:")[0] + "\n".join(["queries:", *queries] if count else []))
    shown = tacit(
        "detect", spec, csv(tmp_path, "1,5,1,9,9"), "--to", tmp_path / "o.parquet", "--json"
    )
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["answers"] == count


def test_a_pattern_nested_two_hundred_deep_works(spec: Path, tmp_path: Path) -> None:
    deep = "SEQ(slow, " * 200 + "slow" + ")" * 200
    spec.write_text(SPEC.replace("SEQ(slow, slow)", deep))
    rows = [f"1,{n / 10},5,9,9" for n in range(201)]
    shown = tacit("detect", spec, csv(tmp_path, *rows), "--to", tmp_path / "out.csv", "--json")
    assert json.loads(shown.stdout)["detected"]["jam"] == 1
    fewer = tacit("detect", spec, csv(tmp_path, *rows[1:]), "--to", tmp_path / "o.csv", "--json")
    assert json.loads(fewer.stdout)["detected"]["jam"] == 0


def test_a_huge_specification_is_refused_quickly(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_bytes(b"# " + b"x" * 50_000_000)
    shown = tacit("validate", spec)
    assert shown.exit_code == 3
    assert "larger than" in shown.output or "at most" in shown.output


def test_a_closed_pipe_ends_the_command_quietly(spec: Path, tmp_path: Path, forks: Forks) -> None:
    """Its answers are more than a pipe holds; `test_outputs` has what cannot be written at all."""
    rows = [f"{taxi},{minute * 60},5,0,0" for minute in range(200) for taxi in range(50)]
    command = [str(forks.program), "detect", str(spec), str(csv(tmp_path, *rows))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_sink_that_fails_leaves_nothing_that_looks_whole(spec: Path, tmp_path: Path) -> None:
    """Stopped in the middle, there is no answer file, and an older one is untouched."""
    sink = tmp_path / "out.csv"
    sink.write_text("older")
    source = csv(tmp_path, "1,5,1,9,9", "1,7,1,9,9")
    broken = csv(tmp_path, "1,5,1,9,9", name="other.csv")
    broken.write_text(broken.read_text().replace("speed", "velocity"))
    assert tacit("detect", spec, broken, "--to", sink).exit_code == 4
    assert sink.read_text() == "older"
    missing = tacit("detect", spec, source, "--to", tmp_path / "no" / "such" / "out.csv")
    assert missing.exit_code == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other.csv",
        "out.csv",
        "spec.yaml",
        "tuples.csv",
    ]


def test_the_registry_can_be_given_on_the_command_line(spec: Path, tmp_path: Path) -> None:
    """Others are refused; those that are silent are answered."""
    subjects = tmp_path / "taxis.txt"
    subjects.write_text("1\n3\n")
    source = csv(tmp_path, "1,5,1,9,9", "2,6,1,9,9")
    sink = tmp_path / "out.csv"
    shown = tacit("detect", spec, source, "--to", sink, "--subjects", subjects, "--json")
    assert json.loads(shown.stdout)["subjects"] == 2
    assert {subject for _, subject, _ in answers(sink)} == {"1", "3"}
    assert letters(tmp_path / "out.dead-letters.jsonl")[0][0] == 3
    wrong = tacit("detect", spec, source, "--learn", "5", "--to", sink)
    assert wrong.exit_code == 2
    assert "unit" in wrong.stderr


def test_the_demo_tells_the_whole_story(tmp_path: Path) -> None:
    """Plan, answers beside the truth, a count, audit, a leak and pictures; all in one folder."""
    shown = tacit("demo", "--out", tmp_path, "--taxis", "20", "--days", "0.3")
    assert shown.exit_code == 0, shown.stderr
    for said in (
        *("a 50:50 guess", "optimal, with epsilon 2", "truth answer sure", "passed"),
        *("of the intervals hold the truth", "a leak, found and closed"),
    ):
        assert said in shown.output
    written = {
        "answers.parquet", "counts.parquet", "counts.yaml", "demo.svg", "history.parquet",
        "plan.json", "quality.png", "quality.svg", "taxi.yaml", "trips.parquet", "truth.parquet",
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == written
    for name in written - {"quality.png"}:
        assert name in shown.output
    answers = pl.read_parquet(tmp_path / "answers.parquet")
    assert answers["confidence"].min() < 1.0  # type: ignore[operator]
    assert tacit("audit", tmp_path / "plan.json", "--spec", tmp_path / "taxi.yaml").exit_code == 0


@pytest.mark.soak
def test_the_demo_finds_a_leak_and_closes_it(tmp_path: Path) -> None:
    """So few taxis as in the test above show none."""
    spec = demo._write_spec(tmp_path / "taxi.yaml")
    demo._generate_trips(tmp_path, 100, 0.5, 0)
    found = demo._find_leak(spec, tmp_path)
    assert "The strongest: where " in found
    assert "safer.yaml makes slow private too" in found
    assert "0 of them about slow." in found
    assert "OR(break, slow)" in (tmp_path / "safer.yaml").read_text()


def modules_after(statement: str) -> Sequence[str]:
    """The modules that are imported by a statement in a new interpreter."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    return shown.stdout.split()


HEAVY = {"numba", "polars", "pyarrow", "pydantic", "numpy", "rich", "lark", "shapely"}


def test_help_imports_no_heavy_library() -> None:
    """The help of every command is quick; importing the libraries takes a second or two."""
    modules = [f"tacit.cli.{name}" for name in COMMANDS]
    assert not HEAVY & set(modules_after("import tacit"))
    assert not HEAVY & set(modules_after(f"import tacit.cli.main, {', '.join(modules)}"))


def test_the_version_imports_no_command() -> None:
    code = "from tacit.cli.main import main; main(['--version'], standalone_mode=False)"
    assert not {f"tacit.cli.{name}" for name in COMMANDS} & set(modules_after(code))


def test_the_modules_for_explain_do_not_import_the_compiler() -> None:
    assert "numba" not in modules_after("import tacit.insight.explain, tacit.spec.yaml_reader")


def test_what_is_read_is_never_written_over(spec: Path, tmp_path: Path) -> None:
    """Neither by answers nor by dead letters, whatever the paths are called."""
    source = csv(tmp_path, "1,5,1,9,9")
    before = source.read_text()
    other_name = tmp_path / ".." / tmp_path.name / source.name
    for option, target in (
        ("--to", source),
        ("--to", other_name),
        ("--dead-letters", source),
        ("--dead-letters", spec),
        ("--to", spec),
    ):
        shown = tacit("detect", spec, source, option, target)
        assert shown.exit_code in (3, 5)
        assert source.read_text() == before
        assert spec.read_text() == SPEC


def test_a_stream_without_a_source_is_missed(tmp_path: Path) -> None:
    """Its events could never come; so is a condition on one of two streams no obstacle."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        """
streams: {a: {subject: who, time: at, columns: {v: number}}, b: {subject: who, time: at}}
windows: {size: 1 min}
events: {x: {stream: a}, y: {stream: b}}
queries:
  - {name: rise, consumer: c, pattern: "SEQ(x p, x q) WHERE q.v > p.v"}
  - {name: both, consumer: c, pattern: "AND(x, y)"}
"""
    )
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("who,at,v\n1,1,5\n1,2,6\n")
    two.write_text("who,at\n1,1\n")
    missing = tacit("detect", spec, f"a={one}")
    assert missing.exit_code == 4
    assert "write b=SOURCE" in missing.stderr
    shown = tacit("detect", spec, f"a={one}", f"b={two}", "--to", tmp_path / "o.csv", "--json")
    assert json.loads(shown.stdout)["detected"] == {"rise": 1, "both": 1}
    two.write_text("")
    shown = tacit("detect", spec, f"a={one}", f"b={two}", "--to", tmp_path / "o.csv", "--json")
    assert json.loads(shown.stdout)["detected"] == {"rise": 1, "both": 0}
    twice = tacit("detect", spec, "a=-", "b=-")
    assert "only one stream" in twice.stderr


def test_learning_from_nothing_is_wrong_usage(spec: Path, tmp_path: Path) -> None:
    assert tacit("detect", spec, csv(tmp_path), "--learn", "0 s").exit_code == 2
