"""The option that lets a specification name files outside of its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_KEY = "tacit.allow_paths"


def allow_path(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--allow-path`."""

    def keep(context: click.Context, _: click.Parameter, value: tuple[Path, ...]) -> None:
        context.meta[_KEY] = value

    return click.option(
        "--allow-path",
        metavar="DIR",
        type=click.Path(path_type=Path),
        multiple=True,
        expose_value=False,
        callback=keep,
        help="The specification may also name files below DIR (can be given several times).",
    )(command)


def allowed_paths() -> tuple[Path, ...]:
    """What the command line allows, as long as its command runs in this thread."""
    context = click.get_current_context(silent=True)
    paths: tuple[Path, ...] = () if context is None else context.meta.get(_KEY, ())
    return paths
