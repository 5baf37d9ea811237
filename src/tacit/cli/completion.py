"""`tacit completion`: the script that completes commands and options in a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_TACIT_COMPLETE"
"""The environment variable with which a shell asks for completions."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script for completion in your shell.

    \b
    Examples, which install it:
      tacit completion bash > ~/.local/share/bash-completion/completions/tacit
      tacit completion zsh > ~/.zfunc/_tacit        # with fpath+=~/.zfunc before compinit
      tacit completion fish > ~/.config/fish/completions/tacit.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "tacit", VARIABLE)
    click.echo(script.source_template % script.source_vars())
