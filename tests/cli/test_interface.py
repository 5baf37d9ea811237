"""Commands, options and exit codes are an interface: scripts rely on them.

`interface.txt` lists them all. If you change one on purpose, write the new list with

    python -m tests.cli.test_interface > tests/cli/interface.txt

and say so in the changelog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tacit.cli.exit_codes import CODES, EXIT_CODES
from tacit.cli.main import main

RECORDED = Path(__file__).with_name("interface.txt")


def list_interface(command: click.Command, name: str = "tacit") -> Iterator[str]:
    """List a command, its parameters in the order of its help, and the commands within it."""
    context = click.Context(command, info_name=name)
    yield name
    for param in command.params:
        yield f"  {describe(param, context)}"
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            inner = command.get_command(context, part)
            assert inner is not None
            yield from list_interface(inner, f"{name} {part}")


def describe(param: click.Parameter, context: click.Context) -> str:
    """Describe everything about a parameter that a user can rely on."""
    info = param.to_info_dict()
    words = (
        [", ".join(param.opts + param.secondary_opts)] if isinstance(param, click.Option) else []
    )
    if not info.get("is_flag"):
        words.append(param.make_metavar(context))
        kind = param.type.to_info_dict()
        rest = [
            f"{key}={value}" for key, value in kind.items() if key not in ("param_type", "name")
        ]
        words.append(" ".join([kind["name"], *rest]))
        words += [] if info["default"] is None else [f"default {info['default']!r}"]
    words += [word for word in ("required", "multiple", "hidden") if info.get(word)]
    if param.nargs != 1:
        words.append(f"nargs {param.nargs}")
    if param.envvar:
        words.append(f"environment {param.envvar}")
    return " | ".join(words)


def list_exit_codes() -> Iterator[str]:
    """List the exit code of every kind of error, and the codes that help documents."""
    yield "exit codes"
    for kind, code in CODES:
        yield f"  {code} {kind.__name__}"
    yield f"  documented: {' '.join(re.findall('^ +([0-9]+) ', EXIT_CODES, re.M))}"


def test_commands_options_and_exit_codes_are_those_that_are_recorded() -> None:
    found = [*list_interface(main), *list_exit_codes()]
    assert found == RECORDED.read_text().splitlines()


@pytest.mark.parametrize(
    "changed",
    [
        click.Option(["--seed", "other"], type=int, default=1),
        click.Option(["--seed"], type=int),
        click.Option(["--seeds"], type=int, default=1),
        click.Option(["--seed"], type=float, default=1),
        click.Option(["--seed"], type=int, default=1, metavar="N"),
        click.Option(["--seed"], type=int, default=1, multiple=True),
        click.Option(["--seed"], type=click.IntRange(0, 5), default=1),
        click.Option(["--seed"], type=int, default=1, required=True),
    ],
)
def test_a_changed_option_is_described_differently(changed: click.Option) -> None:
    """The name of the Python parameter is the only difference that does not matter."""
    before = click.Option(["--seed"], type=int, default=1)
    context = click.Context(main)
    same = describe(changed, context) == describe(before, context)
    assert same == (changed.name == "other")


if __name__ == "__main__":
    print("\n".join([*list_interface(main), *list_exit_codes()]))
