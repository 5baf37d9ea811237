"""Find the folders for compiled kernels.

Anyone who can write there can run code as you. So a folder that other users can write is never
used, unless you set it yourself in `NUMBA_CACHE_DIR`.
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
    """The folders for the kernels of one subpackage."""

    readable: tuple[Path, ...]
    """The folders to read, in this order; the installer of the package may have filled them."""
    writable: Path | None
    """The folder to write; None if there is no safe one."""


@cache
def find_cache_folders(package: Path) -> CacheFolders:
    """Find the folders for the kernels of a subpackage."""
    # With a digest of the path: several installations may share a folder.
    name = f"{package.name}_{sha256(str(package).encode()).hexdigest()[:16]}"
    if _CONFIG.CACHE_DIR:
        places = [Path(_CONFIG.CACHE_DIR) / name]
    else:
        home = _user_cache()
        # Who can write __pycache__ can change what Python itself runs from there.
        places = [package / "__pycache__", *([] if home is None else [home / "tacit" / name])]
    for place in places:
        if _can_write(place):
            return CacheFolders(tuple(places), place)
    private = _private_folder()
    if private is None:
        return CacheFolders(tuple(places), None)
    return CacheFolders((*places, private / name), private / name)


def _user_cache() -> Path | None:
    """Find the user's folder for caches; None if there is none, or others own it."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        return None
    ours = folder / "tacit"
    # With HOME=/tmp anyone could have put something there.
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
    """Find or create a temporary folder that only this user can read or write."""
    try:
        folder = _find_private(Path(tempfile.gettempdir()))
    except OSError:
        folder = None
    reason = "the package's folder and your cache folder cannot be written"
    advice = "set NUMBA_CACHE_DIR to one of your own folders to store them"
    if folder is None:
        _LOG.warning("Compiled kernels are not stored: %s; %s.", reason, advice)
    else:
        _LOG.warning("Compiled kernels are stored in %s: %s; %s.", folder, reason, advice)
    return folder


def _find_private(place: Path) -> Path | None:
    """Return the folder of an earlier process, or a new one with a random name."""
    shared = place.stat().st_mode
    if shared & stat.S_IWOTH and not shared & stat.S_ISVTX:
        return None  # anyone could replace the folder
    prefix = f"tacit-kernels-{os.geteuid()}-"
    for folder in sorted(place.glob(f"{prefix}*")):
        if _is_private(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix=prefix, dir=place))


def _is_private(folder: Path) -> bool:
    """Return whether only this user can read a folder."""
    with suppress(OSError):
        found = folder.lstat()
        mode = stat.S_IMODE(found.st_mode)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and mode == 0o700
    return False
