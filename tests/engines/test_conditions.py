"""Whole protected runs: a private tuple of one subject never changes how others are read."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tacit.engines.local import run
from tacit.errors import SpecificationError
from tacit.spec.yaml_reader import loads

SPEC = """
streams: {{s: {{subject: who, time: at}}}}
windows: {{size: 1 h}}
subjects: [ann, bob]
events:
  secret: {{stream: s, where: "k = 'secret'"}}
  pub:    {{stream: s, where: "k = 'pass' AND {condition}"}}
private:
  - {{pattern: secret, epsilon: 1.0}}
queries:
  - {{name: q, consumer: city, pattern: pub}}
"""


def answers(condition: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The protected answers about bob; the query is public, so they are exact."""
    found = run(loads(SPEC.format(condition=condition)), pl.DataFrame(rows)).polars()
    return found.filter(pl.col("subject") == "bob").to_dicts()


def tuples(private: Any, public: Any) -> list[dict[str, Any]]:
    """A private tuple of ann, and a public one of bob."""
    return [
        {"who": "ann", "at": 10, "k": "secret", "d": private},
        {"who": "bob", "at": 20, "k": "pass", "d": public},
    ]


def test_a_date_without_a_format_is_refused_and_what_to_write_is_said() -> None:
    with pytest.raises(SpecificationError) as caught:
        answers("DATE(d) < DATE('2024-06-01')", tuples("31/01/2024", "01/02/2024"))
    assert "DATE(d, '%Y-%m-%d')" in str(caught.value)
    assert "declare the column as `time`" in str(caught.value)


@pytest.mark.parametrize("public", ["2024-01-31", "31/01/2024", "2024-07-01", "x"])
def test_the_format_of_one_subjects_private_date_changes_no_answer_of_another(public: str) -> None:
    condition = "DATE(d, '%Y-%m-%d') < DATE('2024-06-01')"
    told = [answers(condition, tuples(d, public)) for d in ("2024-01-31", "31/01/2024", "", None)]
    assert all(one == told[0] for one in told)
    assert [row["detected"] for row in told[0]] == [public == "2024-01-31"]


def test_one_subjects_private_tuple_changes_no_digit_of_anothers_division() -> None:
    """Polars divides a single row exactly, but more rows by multiplying with 1/3."""
    rounded = [x for x in map(float, range(1, 100)) if x / 3 != x * (1 / 3)]
    for x in rounded[:3]:
        condition = f"d / 3 = {x / 3!r}"
        alone = answers(condition, tuples(1.0, x)[1:])
        assert alone == answers(condition, tuples(1.0, x))
        assert [row["detected"] for row in alone] == [True]


def test_conditions_on_a_column_of_times_are_compared_and_taken_apart() -> None:
    rows = tuples(None, None)
    moments = pl.Series(
        "d", [1_700_000_000_000_000, 1_717_225_200_000_000], pl.Datetime("us", "UTC")
    )
    frame = pl.DataFrame(rows).with_columns(moments)
    for condition, holds in {
        "d >= TIMESTAMP '2024-06-01 07:00:00'": True,
        "d > '2024-06-01 07:00:00'": False,
        "d < TIMESTAMP '2024-06-01 09:00:01+02:00'": True,
        "d >= DATE '2024-06-01'": True,
        "EXTRACT(HOUR FROM d) = 7 AND EXTRACT(ISODOW FROM d) = 6": True,
        "EXTRACT(HOUR FROM d AT TIME ZONE 'Europe/Berlin') BETWEEN 9 AND 10": True,
        "CAST(d AS DATE) = '2024-06-01'": True,
        "d - TIMESTAMP '2024-06-01 06:00:00' > INTERVAL '1 hour'": False,
    }.items():
        found = run(loads(SPEC.format(condition=condition)), frame).polars()
        assert found.filter(subject="bob")["detected"].to_list() == [holds], condition
