"""Where machine code is kept between runs.

Anyone who can write there can run code as you. So a folder that other users can write is never used
unless you name it yourself, in `NUMBA_CACHE_DIR`.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numba

_LOG: Final = logging.getLogger(__name__)
_CONFIG: Final[Any] = numba.config


@dataclass(frozen=True, slots=True)
class CacheFolders:
    """Folders for the kernels of one room."""

    readable: tuple[Path, ...]
    """Where to look, in this order: it may be filled by who installed the package."""
    writable: Path | None
    """Where to write; None if there is no safe place."""


@cache
def cache_folders(room: Path) -> CacheFolders:
    """Where the kernels of a room of the package are kept."""
    # A room's own name, and a digest of its path: several installations may share a folder.
    name = f"{room.name}_{sha256(str(room).encode()).hexdigest()[:16]}"
    if _CONFIG.CACHE_DIR:
        places = [Path(_CONFIG.CACHE_DIR) / name]
    else:
        home = _user_cache()
        # Who can write a room's __pycache__ can write what Python itself runs from there.
        places = [room / "__pycache__", *([] if home is None else [home / "tacit" / name])]
    for place in places:
        if _can_write(place):
            return CacheFolders(tuple(places), place)
    private = _private_folder()
    if private is None:
        return CacheFolders(tuple(places), None)
    return CacheFolders((*places, private / name), private / name)


def _user_cache() -> Path | None:
    """The user's folder for caches; None if there is none, or if it is not the user's own."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        return None
    ours = folder / "tacit"
    # With HOME=/tmp, which occurs, anyone could have put something there.
    existing = next(one for one in (ours, *ours.parents) if os.path.lexists(one))
    found = existing.lstat()
    owned = found.st_uid in (os.geteuid(), 0) and not found.st_mode & stat.S_IWOTH
    return folder if owned and stat.S_ISDIR(found.st_mode) else None


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def _private_folder() -> Path | None:
    """A folder for temporary files that only this user can read or write."""
    try:
        folder = _private_below(Path(tempfile.gettempdir()))
    except OSError:
        folder = None
    reason = "neither the package's folder nor a cache folder of yours can be written"
    advice = "set NUMBA_CACHE_DIR to a folder of your own to keep them"
    if folder is None:
        _LOG.warning("Compiled kernels are not kept: %s; %s.", reason, advice)
    else:
        _LOG.warning("Compiled kernels are kept in %s: %s; %s.", folder, reason, advice)
    return folder


def _private_below(place: Path) -> Path | None:
    """The folder that an earlier start made, or a new one with a random name."""
    shared = place.stat().st_mode
    if shared & stat.S_IWOTH and not shared & stat.S_ISVTX:
        return None  # anyone could put another folder in its place
    prefix = f"tacit-kernels-{os.geteuid()}-"
    for folder in sorted(place.glob(f"{prefix}*")):
        if _is_secret(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix=prefix, dir=place))


def _is_secret(folder: Path) -> bool:
    """Whether only this user can even look into a folder."""
    with suppress(OSError):
        found = folder.lstat()
        mode = stat.S_IMODE(found.st_mode)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and mode == 0o700
    return False
