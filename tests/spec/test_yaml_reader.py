"""Reading whole specifications: many mistakes at once, files, and limits."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path

import pytest

from tacit.errors import SpecificationError
from tacit.patterns.language import parse_pattern
from tacit.patterns.tree import Seq
from tacit.spec.yaml_reader import LARGEST, load, loads
from tacit.spec.yaml_writer import to_yaml
from tests.spec.test_mistakes import HEAD, mistakes

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_is_read_with_all_its_parts() -> None:
    spec = load(EXAMPLES / "taxi.yaml")
    assert spec.streams["gps"].subject == "taxi_id"
    assert spec.windows.size == 600_000_000
    assert spec.types["at_hospital"] == 0
    assert spec.private[0].epsilon == Decimal("1.0")
    assert str(spec.private[0].limit) == "150 per day"
    assert spec.query_patterns["clinic_trips"] == parse_pattern("SEQ(at_hospital, parked)")
    assert spec.private_patterns[1] == parse_pattern("out_of_town")
    assert spec.check() == []
    assert spec.checked() is spec


def test_all_mistakes_are_reported_at_once_in_order_of_place() -> None:
    text = """\
streams: {gps: {subject: taxi, tme: ts}}
windows: {size: 10}
events:
  slow: {stream: gps, where: "speed <"}
  parked: {stream: gsp, inside: nowhere}
patterns:
  a: SEQ(slow, b
  b: SEQ(slow, c)
  c: b
private:
  - {pattern: nothing, epsilon: 0}
  - {pattern: slw, epsilon: 1}
queries:
  - {name: q, pattern: a}
  - {name: q, consumer: c, pattern: parked, alpha: 7}
  - {name: r, consumer: c, pattern: prked}
colour: red
"""
    found = mistakes(text)
    assert [(mistake.line, mistake.column) for mistake in found] == [
        (1, 16),  # time is missing
        (1, 32),  # tme is unknown
        (2, 17),  # no unit
        (4, 30),  # not SQL
        (5, 20),  # gsp
        (5, 33),  # nowhere
        (7, 17),  # not closed
        (8, 16),  # b -> c -> b
        (11, 15),  # nothing
        (11, 33),  # epsilon 0
        (12, 15),  # slw
        (14, 5),  # no consumer
        (15, 12),  # q again
        (15, 52),  # alpha
        (16, 37),  # prked
        (17, 1),  # colour
    ]
    with pytest.raises(SpecificationError) as caught:
        loads(text, "x.yaml")
    assert str(caught.value).splitlines()[0].startswith("x.yaml:1:16: the field 'time' is missing")


def test_a_mistake_in_a_field_hides_none_in_another() -> None:
    text = """\
subjects: [anna]
mechanism: best
private:
- {pattern: slw, epsilon: 0, limit: 5}
- {epsilon: 5, limit: 1 per day, subjects: [bert]}
- {pattern: slow, epsilon: 1, subjects: []}
- {pattern: slow, epsilon: 1}
queries:
- {name: q, pattern: fast}
- {consumer: c, pattern: fast, alpha: 2}
- {name: q, consumer: c, pattern: "SEQ("}
"""
    found = [(mistake.line, mistake.column) for mistake in mistakes(HEAD + text)]
    assert found == [
        (5, 12), (7, 13), (7, 27), (7, 37), (8, 3), (8, 23), (8, 45), (9, 41),
        (12, 3), (12, 22), (13, 3), (13, 26), (13, 39), (14, 10), (14, 40),
    ]  # fmt: skip


def test_a_part_with_mistakes_is_still_known_by_name() -> None:
    text = HEAD.replace("speed < 8", "speed <") + "patterns: {a: 'SEQ(slow, b)', b: 'SEQ('}\n"
    assert [mistake.line for mistake in mistakes(text)] == [3, 4]


@pytest.mark.parametrize("size", [0, 10_000])
def test_any_number_of_queries_is_read_in_seconds(size: int) -> None:
    names = [f"e{number}" for number in range(200)]
    events = "".join(f"  {name}: {{stream: gps}}\n" for name in names)
    queries = "".join(
        f"  - {{name: q{n}, consumer: c, pattern: 'SEQ({names[n % 200]}, {names[n % 7]})'}}\n"
        for n in range(size)
    )
    begin = time.process_time()
    spec = loads(
        "streams: {gps: {subject: a, time: t}}\nwindows: {size: 1 s}\n"
        f"events:\n{events}queries:\n{queries}"
    )
    assert len(spec.query_patterns) == size
    assert time.process_time() - begin < 20


def test_ten_thousand_mistakes_are_reported_in_seconds() -> None:
    events = "".join(f"  event_{number}: {{stream: gps}}\n" for number in range(200))
    queries = "".join(
        f"  - {{name: q{n}, consumer: c, pattern: evnt_{n}}}\n" for n in range(10_000)
    )
    begin = time.process_time()
    found = mistakes(
        "streams: {gps: {subject: a, time: t}}\nwindows: {size: 1 s}\n"
        f"events:\n{events}queries:\n{queries}"
    )
    assert len(found) == 10_000
    assert time.process_time() - begin < 30


def test_a_huge_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    begin = time.process_time()
    with pytest.raises(SpecificationError, match=r"at most 16 MiB.*subjects: {file"):
        load(path)
    assert time.process_time() - begin < 1
    with pytest.raises(SpecificationError, match="at most 16 MiB"):
        loads("#" * (LARGEST + 1))


def test_aliases_within_aliases_are_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    begin = time.process_time()
    found = mistakes("\n".join(lines))
    assert "aliases (*name) written out" in found[-1].message
    assert time.process_time() - begin < 5


def test_patterns_within_patterns_are_bounded() -> None:
    lines = ["  p0: AND(slow, parked)"]
    lines += [f"  p{n}: AND(p{n - 1}, p{n - 1}, p{n - 1})" for n in range(1, 40)]
    found = mistakes(HEAD + "patterns:\n" + "\n".join(lines))
    assert "parts once its names are replaced" in found[0].message


def test_a_pattern_may_be_nested_200_deep() -> None:
    deep = "AND(" * 200 + "slow" + ")" * 200
    spec = loads(HEAD + f"queries: [{{name: q, consumer: c, pattern: {deep}}}]\n")
    assert spec.query_patterns["q"] == parse_pattern(deep)


def test_an_anchor_may_be_used_again() -> None:
    text = HEAD.replace('"speed < 8"', '&where "speed < 8"').replace(
        "parked: {stream: gps}", "parked: {stream: gps, where: *where}"
    )
    assert loads(text).events["parked"].where == "speed < 8"


@pytest.mark.parametrize("make", ["missing", "folder", "binary", "utf16", "nul"])
def test_a_file_that_holds_no_text_is_reported_by_name(make: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    match make:
        case "folder":
            path.mkdir()
        case "binary":
            path.write_bytes(b"a: 1\nb: \xff\xfe\x00\x9f")
        case "utf16":
            path.write_bytes("version: 1".encode("utf-16"))
        case "nul":
            path = tmp_path / "a\0b"
    with pytest.raises(SpecificationError) as caught:
        load(path)
    (mistake,) = caught.value.mistakes
    assert mistake.file == str(path)
    assert "read" in mistake.message or "UTF-8" in mistake.message
    assert (mistake.line, mistake.column) == {"binary": (2, 4), "utf16": (1, 1)}.get(
        make, (None, None)
    )


def test_a_byte_order_mark_and_windows_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode())
    assert load(str(path)) == loads(HEAD)
    path.write_bytes(HEAD.replace("\n", "\r\n").encode() + b"patterns:\r\n  a: SEQ(slow, parkd)")
    with pytest.raises(SpecificationError) as caught:
        load(path)
    assert (caught.value.mistakes[0].line, caught.value.mistakes[0].column) == (5, 16)


@pytest.mark.parametrize("written", ["yes", "on", "no", "007", "1_000", "12:30", "0x1f"])
def test_words_that_other_readers_take_for_values_are_names(written: str) -> None:
    spec = loads(HEAD + f"subjects: [{written}, other]\n")
    assert spec.subjects == (written, "other")


def test_epsilon_is_kept_exactly_as_written() -> None:
    text = "0.1000000000000000055511151231257827"
    spec = loads(HEAD + f"private:\n- {{pattern: slow, epsilon: {text}}}\n")
    assert str(spec.private[0].epsilon) == text


def test_sections_without_content_are_empty() -> None:
    assert loads(HEAD + "queries:\npatterns:\nprivate:\nareas:\n") == loads(HEAD)


def test_windows_that_slide_are_cut_into_panes() -> None:
    windows = loads(HEAD.replace("10 min", "10 min, slide: 150 s")).windows
    assert (windows.panes, windows.pane, windows.unit) == (4, 150_000_000, "occurrence")
    assert loads(HEAD).windows.panes == 1
    assert loads(HEAD).windows.unit == "window"


def test_sliding_by_the_whole_size_is_tumbling() -> None:
    assert loads(HEAD.replace("10 min", "10 min, slide: 600 s")) == loads(HEAD)


def test_relative_paths_begin_at_the_specification(tmp_path: Path) -> None:
    (tmp_path / "campus.geojson").write_bytes((EXAMPLES / "campus.geojson").read_bytes())
    (tmp_path / "spec.yaml").write_text(HEAD + "areas: {campus: {geojson: campus.geojson}}\n")
    assert load(tmp_path / "spec.yaml").folder == tmp_path
    with pytest.raises(SpecificationError, match=r"campus\.geojson"):
        loads((tmp_path / "spec.yaml").read_text(), folder=tmp_path / "elsewhere")


def test_subjects_are_text_as_they_are_written() -> None:
    """An unquoted number is its digits; what YAML might take for another number stays as it is."""
    written = [
        "7",
        "007",
        "08",
        "0o7",
        "0x1F",
        "+7",
        "-7",
        "-0",
        "1_000",
        "12:30:45",
        "yes",
        "9" * 50,
    ]
    spec = loads(
        HEAD
        + f"subjects: [{', '.join(written)}, '1.5', 'true', '~']\n"
        + "private: [{pattern: slow, epsilon: 1, subjects: [007, 7]}]\n"
    )
    assert spec.subjects == (*written, "1.5", "true", "~")
    assert spec.private[0].subjects == ("007", "7")
    again = loads(to_yaml(spec))
    assert again.subjects == spec.subjects
    assert again.fingerprint == spec.fingerprint
    for wrong in ("1.5", "1e3", "true", "~", ".inf", "1."):
        with pytest.raises(SpecificationError, match="a name or a whole number"):
            loads(HEAD + f"subjects: [{wrong}]\n")


def test_a_dictionary_is_read_like_text() -> None:
    plain = {
        "streams": {"s": {"subject": "who", "time": "at"}},
        "windows": {"size": "1 min"},
        "events": {"a": {"stream": "s", "where": "kind = 'a'"}},
        "private": [{"pattern": "a", "epsilon": 0.5}],
        "queries": ({"name": "q", "consumer": "x", "pattern": Seq("a", "a")},),
    }
    text = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events: {a: {stream: s, where: "kind = 'a'"}}
private: [{pattern: a, epsilon: 0.5}]
queries: [{name: q, consumer: x, pattern: "SEQ(a, a)"}]
"""
    assert loads(plain).fingerprint == loads(text).fingerprint
    with pytest.raises(SpecificationError, match=r"^there is no field 'window' here"):
        loads(plain | {"window": {}})
    with pytest.raises(TypeError, match="expected YAML text or a dictionary; got int"):
        loads(7)  # type: ignore[arg-type]
