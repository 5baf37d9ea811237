"""Small files of a job that only their owner can read, replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically; only its owner can read it."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")  # another process may write it too
    temporary.touch(mode=0o600)
    temporary.chmod(0o600)
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
