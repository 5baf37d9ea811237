"""The systemd units in examples/: systemd takes them, and they say what the command line knows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tacit.cli.exit_codes import CODES
from tacit.cli.main import main
from tacit.errors import FencedError, LedgerError, SinkError, SourceError

EXAMPLES = Path(__file__).parents[2] / "examples"
UNITS = ("tacit.service", "tacit-plan.service")


def setting(unit: str, name: str) -> str:
    """The value of a setting, its continued lines joined."""
    text = (EXAMPLES / unit).read_text().replace("\\\n", " ")
    (found,) = re.findall(rf"^{name}=(.*)$", text, re.M)
    return str(found)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong(unit: str, tmp_path: Path) -> None:
    """With a program that is there in the place of the one that may not be."""
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd is not installed")
    text = (EXAMPLES / unit).read_text().replace("/opt/tacit/bin/tacit", "/bin/true")
    (tmp_path / unit).write_text(text)
    done = subprocess.run(
        [analyse, "verify", "--recursive-errors=no", str(tmp_path / unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS)
def test_the_command_has_the_options_that_are_given_to_it(unit: str) -> None:
    _, name, *arguments = setting(unit, "ExecStart").split()
    command = main.get_command(click.Context(main), name)
    assert command is not None
    known = {
        spelling
        for param in command.params
        if isinstance(param, click.Option)
        for spelling in (*param.opts, *param.secondary_opts)
    }
    given = {word for word in arguments if word.startswith("-")}
    assert given <= known
    # A command keeps the help option of its first context, which `-h` in the whole program needs.
    names = ["-h", "--help"]
    with command.make_context(name, list(arguments), help_option_names=names) as context:
        assert context.params["spec"] == Path("/etc/tacit/spec.yaml")


def test_it_is_not_restarted_where_that_cannot_help() -> None:
    """An engine that was taken over must stay down; one that lost something comes again."""
    codes = dict(CODES)
    final = {int(code) for code in setting("tacit.service", "RestartPreventExitStatus").split()}
    assert codes[FencedError] in final
    assert {codes[kind] for kind in (SourceError, SinkError, LedgerError)}.isdisjoint(final)


def test_both_units_mean_the_same_run() -> None:
    run, plan = setting("tacit.service", "ExecStart"), setting("tacit-plan.service", "ExecStart")
    for place in ("/etc/tacit/spec.yaml", "/var/lib/tacit/plan.json", "/run/tacit/main.pid"):
        assert place in run
        assert place in plan
