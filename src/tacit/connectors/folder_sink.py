"""Write answers into a folder: one file per release, complete or absent."""

from __future__ import annotations

import filecmp
import io
import os
from pathlib import Path

from tacit.connectors.appending_sink import explain_error, open_locked, translate_errors
from tacit.connectors.sinks import FileSink
from tacit.connectors.writers import SUFFIXES
from tacit.errors import SinkError
from tacit.pipeline.sinks import ReleaseBatch, Sink


class FolderSink(Sink):
    """Writes each release to a file in a folder, named by the release's number.

    If a release is delivered again, its file is not changed. A hidden file in the folder is locked
    while the sink is open.
    """

    once = True

    def __init__(self, folder: Path, suffix: str = ".parquet") -> None:
        self._folder = Path(os.path.abspath(folder))
        self._suffix = suffix
        self._lock: io.FileIO | None = None
        self.name = str(self._folder / f"*{suffix}")

    def recover(self, position: None) -> None:  # noqa: ARG002 - the file names are enough
        """Create and lock the folder, and remove files of interrupted deliveries."""
        with translate_errors(self.name):
            self._folder.mkdir(exist_ok=True)
            self._lock_folder()
            for left in self._folder.glob(f".{'[0-9]' * 12}{self._suffix}.*.partial"):
                left.unlink(missing_ok=True)

    def is_missing(self, release: int, position: None) -> bool:  # noqa: ARG002
        """Return whether the file of the last delivered release is gone."""
        return not (self._folder / f"{release:012d}{self._suffix}").exists()

    def deliver(self, batch: ReleaseBatch) -> None:
        """Write and sync the release's file before it gets its final name."""
        with translate_errors(self.name):
            self._lock_folder()
        name = f"{batch.release:012d}{self._suffix}"
        target = self._folder / name
        if target.exists():
            again = self._folder / f".{name}.again.partial"
            self._write(again, batch)
            same = filecmp.cmp(again, target, shallow=False)
            again.unlink()
            if not same:
                raise SinkError(
                    f"{target} exists and has other answers, perhaps from another ledger; choose "
                    "another folder, or move it away"
                )
            return
        self._write(target, batch)

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _lock_folder(self) -> None:
        if self._lock is None:
            self._lock = open_locked(self._folder / f"{self._suffix}.lock", self.name)

    def _write(self, path: Path, batch: ReleaseBatch) -> None:
        try:
            with FileSink(path, SUFFIXES[self._suffix]) as sink:
                sink.write(batch.table)
        except SinkError as error:
            if isinstance(error.__cause__, OSError):
                raise explain_error(str(path), error.__cause__) from error
            raise
