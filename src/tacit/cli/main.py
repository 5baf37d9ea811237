"""The command line: `tacit COMMAND`.

Each command has a module of its own, which is imported when the command is used. Command modules
import heavy libraries inside their functions, so that help is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

from tacit.cli.exit_codes import EXIT_CODES, exit_on_error
from tacit.masking import find_exposed

COMMANDS: Final = (
    "attack",
    "audit",
    "completion",
    "count",
    "demo",
    "detect",
    "doctor",
    "explain",
    "init",
    "leaks",
    "ledger",
    "plan",
    "report",
    "reproduce",
    "run",
    "schema",
    "serve",
    "submit",
    "token",
    "validate",
    "warm",
)
"""The commands; each one is the object of this name in the module `tacit.cli.NAME`."""

_ARGUMENTS: Final = "tacit.arguments"
_CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group that imports a command when it is used, and turns its errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"tacit.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the arguments; mistakes in them end the program too."""
        given = tuple(args)  # parsing removes them from the list
        with exit_on_error(given):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_ARGUMENTS] = given
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        given = ctx.meta[_ARGUMENTS]
        for warning in find_exposed(given):
            click.echo(f"tacit: warning: {warning}.", err=True)
        with exit_on_error(given):
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings=_CONTEXT, epilog=EXIT_CODES)
@click.version_option(package_name="tacit")
def main() -> None:
    """Complex event processing with differential privacy for private patterns.

    \b
    Example:
      tacit explain taxi.yaml
      tacit plan taxi.yaml --history january.parquet -o plan.json
      tacit run taxi.yaml february.parquet --plan plan.json --to answers.parquet
    """
