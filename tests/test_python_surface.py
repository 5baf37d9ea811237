"""What the command line can do, Python can: the table in docs/python.md is complete and true."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import tacit
from tacit.cli.main import main

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
ROW = re.compile(r"^\| `([a-z ]+)` \| (?:`([^`]+)`)? ?\| (.+) \|$", re.M)
CALL = re.compile(r"`(tacit[\w.]*)(?:\((\w+)=\)|\(\))?`")


def options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every command with each of its options, as they are written."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            yield from options(one, (*path, name))
        return
    name = " ".join(path)
    if not command.params:
        yield name, ""
    for param in command.params:
        written = param.make_metavar(click.Context(command))
        yield name, max(param.opts, key=len) if isinstance(param, click.Option) else written


def resolve(path: str) -> Any:
    """What a dotted name stands for."""
    found: Any = tacit
    done = "tacit"
    for part in path.split(".")[1:]:
        done = f"{done}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(done)
    return found


ROWS = {
    (command, option.replace(r"\|", "|")): told
    for command, option, told in ROW.findall(PAGE.read_text())
}


def test_no_row_is_cut_by_a_bar_inside_a_cell() -> None:
    """A bar ends a cell, also in code, unless a backslash is in front of it."""
    rows = [line for line in PAGE.read_text().splitlines() if ROW.match(line)]
    assert len(rows) > 200
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != 4] == []


def test_every_option_of_every_command_has_a_row_and_no_row_is_left_over() -> None:
    known = {*options(main)}
    assert ROWS.keys() - known == set()
    assert known - ROWS.keys() == set()


@pytest.mark.parametrize("pair", ROWS, ids=" ".join)
def test_every_counterpart_exists_and_takes_the_argument(pair: tuple[str, str]) -> None:
    told = ROWS[pair]
    named = CALL.findall(told)
    assert named or told.startswith("—: ")
    for path, argument in named:
        found = resolve(path)
        if argument:
            assert argument in inspect.signature(found).parameters, (path, argument)


def test_open_run_takes_what_run_takes() -> None:
    run, opened = (inspect.signature(one).parameters for one in (tacit.run, tacit.open_run))
    assert set(run) == set(opened)


def test_everything_that_is_offered_can_be_imported() -> None:
    for name in tacit.__all__:
        assert getattr(tacit, name) is not None
