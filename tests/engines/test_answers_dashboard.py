"""The Grafana dashboard of answers: its README is followed, and PostgreSQL answers every panel."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psycopg
import pytest

import tacit
from tests.engines.forking import Forks
from tests.services import Postgres

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "grafana"
SPEC = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 h}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
private: [{pattern: a, epsilon: 1, limit: 3 per day}]
queries:
  - {name: both, consumer: us, pattern: "AND(a, b)"}
  - {name: public, consumer: us, pattern: b}
"""


@pytest.fixture(scope="module")
def stored(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> str:
    """The URL of a database with the answers of a day, stored as the README says."""
    root, url = tmp_path_factory.mktemp("answers"), postgres.database("answers")
    folder = root / "demo-output"
    folder.mkdir()
    (folder / "taxi.yaml").write_text(SPEC)
    there = np.random.default_rng(1).random((5, 24, 2)) < 0.5
    who, hour, kind = np.nonzero(there)
    rows = pl.DataFrame({"who": who, "at": 3600 * hour, "kind": np.array(["a", "b"])[kind]})
    rows.sort("at").write_parquet(folder / "trips.parquet")
    tacit.plan(folder / "taxi.yaml", folder / "trips.parquet").save(folder / "plan.json")
    text = (EXAMPLE / "README.md").read_text()
    (command,) = re.findall(r"^python (examples/.*\\\n.*)$", text, re.M)
    words = command.replace("postgresql:///answers", url).replace("\\\n", " ").split()
    script = [str(forks.program), str(EXAMPLE.parent.parent / words[0]), *words[1:]]
    for _ in range(2):  # the second time there is nothing new
        subprocess.run(script, cwd=root, check=True, timeout=300, capture_output=True)
    return url


def fill(sql: str) -> str:
    """Replace what Grafana replaces."""
    sql = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 BETWEEN '1970-01-01Z' AND '1970-01-02Z'", sql)
    return sql.replace("$query", "'both', 'public'")


def list_panels() -> list[dict[str, Any]]:
    """The panels of the dashboard."""
    panels: list[dict[str, Any]] = json.loads((EXAMPLE / "answers.json").read_text())["panels"]
    return panels


@pytest.mark.cases(4)
@pytest.mark.parametrize("panel", list_panels(), ids=lambda panel: panel["title"])
def test_every_panel_has_its_figures(stored: str, panel: dict[str, Any]) -> None:
    (target,) = panel["targets"]
    with psycopg.connect(stored) as connection:
        cursor = connection.execute(fill(target["rawSql"]).encode())
        names = [column.name for column in cursor.description or ()]
        rows = cursor.fetchall()
    assert rows
    assert all(value is not None for row in rows for value in row)
    if target["format"] == "time_series":
        assert names[:2] == ["time", "metric"]
        assert len(rows) == 24 * 2, "a row for each window and query"


def test_the_figures_are_those_of_the_answers(stored: str) -> None:
    by_title = {panel["title"]: panel["targets"][0]["rawSql"] for panel in list_panels()}
    with psycopg.connect(stored) as connection:
        ((number,),) = connection.execute(fill(by_title["Answers"]).encode()).fetchall()
        ((unpaid,),) = connection.execute(fill(by_title["Not paid for"]).encode()).fetchall()
    assert number == 24 * 5 * 2, "each answer once, though the engine ran twice"
    assert 0 < unpaid < 1


def test_the_choice_of_queries_works(stored: str) -> None:
    dashboard = json.loads((EXAMPLE / "answers.json").read_text())
    (variable,) = [one for one in dashboard["templating"]["list"] if one["name"] == "query"]
    with psycopg.connect(stored) as connection:
        assert connection.execute(variable["query"].encode()).fetchall() == [("both",), ("public",)]
