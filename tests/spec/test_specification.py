"""Specifications written in Python, their summaries, and files of subjects."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from tacit.errors import SourceError, SpecificationError
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.tree import Name, Not, Seq
from tacit.spec.epsilon import Limit
from tacit.spec.specification import Private, Query, Specification
from tacit.spec.subjects import SubjectFile
from tacit.spec.yaml_reader import loads
from tacit.windows.schedule import Windows
from tests.spec.test_mistakes import HEAD


def build(**changes: Any) -> Specification:
    """A small specification, with some parts changed."""
    parts = {
        "streams": {"gps": Stream(subject="taxi", time="ts")},
        "windows": Windows(size="10 min"),
        "events": {"slow": EventType(stream="gps"), "parked": EventType(stream="gps")},
        "patterns": {"stop": Seq("slow", "parked")},
        "private": [Private(pattern="stop", epsilon=1)],
        "queries": [Query(name="q", consumer="c", pattern=Seq(Name("stop"), Not("slow")))],
    }
    return Specification(**{**parts, **changes})


def test_a_sound_specification_has_no_mistakes() -> None:
    spec = build()
    assert spec.check() == []
    assert repr(spec.query_patterns["q"]) == "SEQ(SEQ(slow, parked), NOT slow)"
    assert spec.resolved(spec.private[0]) == Seq("slow", "parked")
    assert spec.private_patterns == (Seq("slow", "parked"),)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"streams": {"gsp": Stream(subject="a", time="t")}}, "Did you mean 'gsp'?"),
        ({"patterns": {"stop": Seq("stop", "slow")}}, "pattern 'stop': 'stop' refers to itself"),
        ({"patterns": {"slow": Seq("parked", "slow")}}, "an event already"),
        ({"patterns": {}}, "query 'q': 'stop' is neither an event nor"),
        ({"windows": Windows(size="1 s"), "patterns": {"stop": Seq("slow").within(seconds=2)}},
         "pattern 'stop' asks for WITHIN 2 s"),
        ({"private": [Private(pattern="stop", epsilon=1)] * 2}, "private twice"),
        ({"queries": [Query(name="q", consumer="c", pattern="slow")] * 2}, "another query"),
        ({"events": {"a b": EventType(stream="gps")}}, "cannot be a name"),
        ({"subjects": ["x"], "private": [Private(pattern="stop", epsilon=1, subjects=["y"])]},
         "subject 'y' is not registered"),
    ],
)  # fmt: skip
def test_the_same_mistakes_are_found_without_places(changes: dict[str, Any], fragment: str) -> None:
    spec = build(**changes)
    found = spec.check()
    assert any(fragment in mistake.message for mistake in found), found
    assert all((mistake.file, mistake.line) == (None, None) for mistake in found)
    with pytest.raises(SpecificationError):
        spec.checked()


@pytest.mark.parametrize(
    "epsilon", [0, -1, float("inf"), float("nan"), "1", True, None, 1e7, 1e-10, Decimal("9e-10")]
)
def test_an_epsilon_that_is_none_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValidationError):
        Private(pattern="stop", epsilon=epsilon)


def test_epsilon_is_exact_from_whatever_it_is_given_as() -> None:
    given: list[Any] = [0.1, Decimal("0.1"), Decimal("0.10")]
    assert {Private(pattern="a", epsilon=each).epsilon for each in given} == {Decimal("0.1")}


def test_the_same_private_pattern_may_have_an_epsilon_for_each_subject() -> None:
    private = [
        Private(pattern="stop", epsilon=1, subjects=["a"]),
        Private(pattern="stop", epsilon=2, subjects=["b"]),
    ]
    assert build(private=private).check() == []


@pytest.mark.parametrize(
    ("written", "again"),
    [
        ("20 per day", "20 per day"),
        ("0.5 per 24 h", "0.5 per day"),
        ("5 per week", "5 per 7 d"),
        ("5 per 90 min", "5 per 90 min"),
        ("1 per second", "1 per second"),
    ],
)
def test_a_limit_prints_back(written: str, again: str) -> None:
    limit = Limit.model_validate(written)
    assert str(limit) == again
    assert Limit.model_validate(str(limit)) == limit


def test_parts_are_frozen() -> None:
    spec = build()
    with pytest.raises(ValidationError, match="frozen"):
        spec.mechanism = "uniform"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        spec.windows.size = 1  # type: ignore[misc]


def test_summaries_are_short_and_escape_what_they_show() -> None:
    spec = build(events={"slow": EventType(stream="gps", where="a < 'x' AND b > 1")})
    assert str(spec) == (
        "1 stream, 1 event type, 1 private pattern, 1 query, windows of 10 min, optimal"
    )
    assert repr(spec) == f"<Specification: {spec}>"
    table = spec._repr_html_()
    assert "a &lt; &#x27;x&#x27; AND b &gt; 1" in table
    assert "<caption>Specification: 1 stream" in table


def test_long_specifications_are_cut_short_in_a_notebook() -> None:
    queries = [Query(name=f"q{n}", consumer="c", pattern="slow") for n in range(1000)]
    table = build(queries=queries)._repr_html_()
    assert "988 more" in table
    assert len(table) < 10_000


def test_subjects_are_read_from_lines(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("anna\r\nbert\n\nanna\n12\n")
    (tmp_path / "numbers.txt").write_text("12\n7\n12\n")
    (tmp_path / "zeros.txt").write_text("012\n7\n")
    assert SubjectFile(file="names.txt").read(tmp_path) == ["anna", "bert", "12"]
    (tmp_path / "odd.txt").write_text(" 7\n7 \n7\u2028b\n\ufeff7\n", "utf-8")
    assert SubjectFile(file="numbers.txt").read(tmp_path) == ["12", "7"]
    assert SubjectFile(file="zeros.txt").read(tmp_path) == ["012", "7"]
    assert SubjectFile(file="odd.txt").read(tmp_path) == [" 7", "7 ", "7\u2028b", "\ufeff7"]


def test_subjects_are_read_from_a_column(tmp_path: Path) -> None:
    frame = pl.DataFrame({"taxi": [3, 1, None, 3], "name": ["c", "a", "b", "c"], "x": [0.5] * 4})
    frame.write_csv(tmp_path / "taxis.csv")
    frame.write_parquet(tmp_path / "taxis.parquet")
    for file in ("taxis.csv", "taxis.parquet"):
        assert SubjectFile(file=file, column="taxi").read(tmp_path) == ["3", "1"]
        assert SubjectFile(file=file, column="name").read(tmp_path) == ["c", "a", "b"]
        with pytest.raises(SourceError, match="no column 'y'"):
            SubjectFile(file=file, column="y").read(tmp_path)
    with pytest.raises(SourceError, match="text or whole numbers"):
        SubjectFile(file="taxis.parquet", column="x").read(tmp_path)


def test_a_column_of_subjects_is_text_as_it_is_written(tmp_path: Path) -> None:
    """What looks like another type stays what it is, in any row."""
    written = ["007", "7", "1e3", "true", "2024-01-01", " 7", "0.5", "\u0667", '"', "a,b"]
    frame = pl.DataFrame({"name": [*written, "", "007", None]})
    frame.write_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "a.parquet")
    frame.select(pl.col("name").cast(pl.Categorical)).write_parquet(tmp_path / "b.parquet")
    for file in ("a.csv", "a.parquet", "b.parquet"):
        assert SubjectFile(file=file, column="name").read(tmp_path) == written
    large = pl.DataFrame({"name": pl.Series([2**64 - 1, 7], dtype=pl.UInt64)})
    large.write_parquet(tmp_path / "a.parquet")
    found = SubjectFile(file="a.parquet", column="name").read(tmp_path)
    assert found == ["18446744073709551615", "7"]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00", b"PAR1"])
def test_a_file_without_subjects_is_refused(content: bytes | None, tmp_path: Path) -> None:
    for name, column in [("a.txt", None), ("a.parquet", "x"), ("a.csv", "x")]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        if column is None and content == b"PAR1":
            continue
        with pytest.raises(SourceError):
            SubjectFile(file=name, column=column).read(tmp_path)


@pytest.mark.parametrize(
    ("written", "name"), [("{file: a.txt}", "SubjectFile"), ("{learn: 1 h}", "LearnedSubjects")]
)
def test_the_registry_may_be_a_file_or_learned(written: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    spec = loads(HEAD + f"subjects: {written}\n", folder=tmp_path)
    assert type(spec.subjects).__name__ == name
