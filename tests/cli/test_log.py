"""Logs: a line for each thing that happens, and never what an event holds."""

from __future__ import annotations

import json
import logging

import pytest

from tacit.cli.log import log_to_stderr
from tacit.errors import SourceError

SECRET = "marker-7f3a"


def test_lines_for_people_say_when_how_grave_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr():
        logging.getLogger("tacit.engines").info("released %d windows", 2, extra={"release": 7})
    line = capsys.readouterr().err
    assert line.endswith(" info: released 2 windows (release=7)\n")
    assert line[:4].isdigit()


def test_lines_for_machines_are_json_with_a_field_for_each_thing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with log_to_stderr("json"):
        logging.getLogger("tacit.delivery").warning("waits", extra={"sink": "file"})
    entry = json.loads(capsys.readouterr().err)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warning",
        "logger": "tacit.delivery",
        "message": "waits",
        "sink": "file",
    }


def test_only_what_is_grave_enough_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr(level="warning"):
        logging.getLogger("tacit").info("no")
        logging.getLogger("tacit").error("yes")
    assert [line[-3:] for line in capsys.readouterr().err.splitlines()] == ["yes"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_of_others_is_logged_without_its_words(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may quote a row; what Tacit raises on purpose never does."""
    log = logging.getLogger("tacit.engines")
    with log_to_stderr(form):
        for error in (ValueError(f"could not parse '{SECRET}'"), SourceError("a.csv is gone")):
            try:
                raise error
            except Exception:
                log.exception("a batch failed")
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 2
    assert SECRET not in said
    assert "ValueError" in said
    assert "test_log.py" in said
    assert "a.csv is gone" in said


def test_the_words_of_other_libraries_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr():
        logging.getLogger("sqlalchemy.pool").error("parameters: %s", SECRET, extra={"x": SECRET})
        logging.getLogger("sqlalchemy.engine").info("parameters: %s", SECRET)
    said = capsys.readouterr().err
    assert SECRET not in said
    assert said.count("sqlalchemy.pool logged a message, left out") == 1
    assert "sqlalchemy.engine" not in said


def test_a_message_of_many_lines_is_logged_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr():
        logging.getLogger("tacit").error("first\nsecond")
    assert capsys.readouterr().err.endswith("error: first | second\n")


def test_a_log_that_nobody_reads_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    with log_to_stderr():
        monkeypatch.setattr("sys.stderr", Gone())
        logging.getLogger("tacit").error("nobody hears this")
        monkeypatch.undo()


def test_afterwards_logging_is_as_it_was() -> None:
    root, ours = logging.getLogger(), logging.getLogger("tacit")
    before = [*root.handlers], [*ours.handlers], ours.level, ours.propagate
    with log_to_stderr("json", "debug"):
        assert ours.handlers != before[1]
    assert ([*root.handlers], [*ours.handlers], ours.level, ours.propagate) == before
