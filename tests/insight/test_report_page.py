"""`tacit report`: one page that says what a plan and a ledger say, and loads nothing."""

from __future__ import annotations

import re
import shutil
import sqlite3
import stat
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tacit as library
from tests.cli.small_runs import SPEC, specified, tacit, tuples

LIMITED = SPEC.replace("epsilon: 2}", "epsilon: 2, limit: 40 per day}").replace("us,", "<us>,")
UNASKED = SPEC.replace("kind = 'c'", "kind = 'never'").replace("OR(a, b)", "SEQ(c, a)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a ledger, and answers."""
    place = tmp_path_factory.mktemp("report")
    spec, source = specified(place, LIMITED), tuples(place / "in.csv", seed=1)
    plan, ledger = place / "plan.json", place / "spent.db"
    planned = tacit("plan", spec, "--history", source, "-o", plan)
    assert planned.exit_code == 0, planned.output
    to = place / "out.jsonl"
    ran = tacit("run", spec, source, "--plan", plan, "--ledger", ledger, "--to", to)
    assert ran.exit_code == 0, ran.output
    return place


class Page(HTMLParser):
    """The text of a page; fails on tags that are not closed, scripts and links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        assert tag not in ("script", "link", "img", "iframe")
        assert not [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag without content."""
        assert tag in ("rect", "line")

    def handle_endtag(self, tag: str) -> None:
        """A tag ends."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._open[-1:] != ["style"]:
            self.text += f" {data} "


def test_the_page_of_a_plan_and_a_ledger_says_what_they_say(folder: Path) -> None:
    out = folder / "report.html"
    done = tacit("report", folder / "spent.db", folder / "plan.json", "-o", out)
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    html = out.read_text()
    assert "url(" not in html
    text = re.sub(r"\s+", " ", Page(html).text)
    plan = library.Plan.load(folder / "plan.json")
    assert plan.expected is not None
    assert f"{plan.expected.quality:.3f}" in text
    assert "passed exact audit" in text
    assert "unchanged ledger" in text
    assert "40 per 1 d" in text
    assert "at most 89 : 11" in text or "at most 89:11" in text
    statement = library.show_ledger(folder / "spent.db")
    assert statement.hash in text
    assert f"{statement.answers:,} answers released" in text
    assert "<us>" in text  # names are escaped


def test_the_statement_of_a_subject_has_what_consumers_were_told(folder: Path) -> None:
    page = library.report(folder / "spent.db", subject="3")
    text = re.sub(r"\s+", " ", Page(page.to_html()).text)
    told = library.released(folder / "spent.db", subject="3").polars()
    yes = told.filter(told["query"] == "either")["detected"].sum()
    assert f"<us> either 60 {yes}" in text
    assert "180 answers about you" in text
    assert "1,800" not in text  # nothing about the others
    assert "expected quality" not in text


def test_where_nothing_was_spent_the_page_says_so_instead_of_drawing_it(tmp_path: Path) -> None:
    """All queries need a public event that never occurs: every window is free."""
    spec = specified(tmp_path, UNASKED)
    source, plan, ledger = tmp_path / "in.csv", tmp_path / "plan.json", tmp_path / "spent.db"
    tuples(source, seed=1)
    assert tacit("plan", spec, "--history", source, "-o", plan).exit_code == 0
    to = tmp_path / "out.jsonl"
    ran = tacit("run", spec, source, "--plan", plan, "--ledger", ledger, "--to", to)
    assert ran.exit_code == 0, ran.output
    assert tacit("report", ledger, "-o", tmp_path / "report.html").exit_code == 0
    text = re.sub(r"\s+", " ", Page((tmp_path / "report.html").read_text()).text)
    assert "Nothing was spent, and there is no limit." in text
    assert "Spent in each horizon" not in text
    assert "subjects who spent" in text
    assert "Odds are" not in text  # without a plan the page shows none


def test_where_windows_slide_odds_are_about_an_occurrence(tmp_path: Path) -> None:
    length = "size: 1 min"
    spec = specified(tmp_path, SPEC.replace(length, f"{length}, slide: 30 s"))
    plan = tmp_path / "plan.json"
    history = tuples(tmp_path / "in.csv", seed=1)
    assert tacit("plan", spec, "--history", history, "-o", plan).exit_code == 0
    assert tacit("report", plan, "-o", tmp_path / "report.html").exit_code == 0
    text = re.sub(r"\s+", " ", Page((tmp_path / "report.html").read_text()).text)
    assert "50:50 about one occurrence into" in text
    assert "50:50 about one window" not in text


def test_a_changed_ledger_is_reported(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "spent.db"
    shutil.copy(folder / "spent.db", copy)
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE tacit_charges SET amount = amount + 1")
    connection.close()
    text = Page(library.report(copy).to_html()).text
    assert "CHANGED" in text
    assert "nothing was changed" not in text


def test_wrong_places_are_refused(folder: Path) -> None:
    plan = folder / "plan.json"
    assert "one plan, one ledger" in tacit("report", plan, plan).stderr
    assert "needs a ledger" in tacit("report", plan, "--subject", "3").stderr
    missing = tacit("report", folder / "nowhere.db", "-o", folder / "x.html")
    assert missing.exit_code == 8
    spec = tacit("report", folder / "spec.yaml", "-o", folder / "x.html")
    assert spec.exit_code != 0
