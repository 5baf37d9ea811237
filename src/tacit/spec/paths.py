"""Which files a specification may name: those below its folder, and below allowed folders."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from tacit.config import describe
from tacit.options import option


def check_path(name: str, folder: Path, allowed: Iterable[Path] = ()) -> None:
    """Raise ValueError unless a specification may name this file, and it is a plain file.

    Links are followed first: one below the folder that leads out of it is outside.
    """
    try:
        path = (folder / name).resolve()
        inside = any(path.is_relative_to(other.resolve()) for other in (folder, *allowed))
        if inside:
            mode = path.stat().st_mode
    except FileNotFoundError:
        raise ValueError(f"there is no file {describe(name)}") from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a path"
        raise ValueError(f"cannot access the file {describe(name)}: {reason}") from None
    if not inside:
        raise ValueError(
            f"the file {describe(name)} is outside of the specification's folder; move it there, "
            f"or allow its folder with {option('allow-path', 'DIR')}"
        )
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{describe(name)} is not a plain file; a folder, pipe or device is not read"
        )
