"""Where Flink keeps the checkpoints and savepoints of a job, and which of them is the newest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tacit.engines.flink.folders import Folders
from tacit.errors import EngineError
from tacit.options import option

_CHECKPOINTS: Final = ("execution.checkpointing.dir", "state.checkpoints.dir")
_SAVEPOINTS: Final = ("execution.checkpointing.savepoint-dir", "state.savepoints.dir")
"""The settings, and their names in earlier versions of Flink."""
_METADATA: Final = "_metadata"
_PREFIX: Final = 6
"""How many characters of the job's id are in the name of a savepoint."""


@dataclass(frozen=True, slots=True)
class StatePlaces:
    """The folders of checkpoints and savepoints, as URIs: any file system that Flink knows."""

    checkpoints: str
    savepoints: str

    @classmethod
    def choose(cls, folders: Folders, settings: Mapping[str, str]) -> StatePlaces:
        """Choose the places that the settings give, or the folder of the job."""
        return cls(
            _find(_CHECKPOINTS, settings) or folders.checkpoints.as_uri(),
            _find(_SAVEPOINTS, settings) or folders.savepoints.as_uri(),
        )

    def find_latest(self, folders: Folders) -> str | None:
        """Find the newest complete checkpoint or savepoint of the job, if there is one.

        Other jobs may use the same places, so only those of the job's own ids count.
        """
        found: list[tuple[int, str]] = []
        for job in folders.read_job_ids():
            found += _list_states(f"{self.checkpoints.rstrip('/')}/{job}", "chk-")
            found += _list_states(self.savepoints, f"savepoint-{job[:_PREFIX]}-")
        return max(found, default=(0, None))[1]


def _find(names: tuple[str, ...], settings: Mapping[str, str]) -> str | None:
    return next((settings[name] for name in names if settings.get(name)), None)


def _list_states(place: str, prefix: str) -> Iterator[tuple[int, str]]:
    """Yield the times and URIs of the complete states in a folder."""
    if place.startswith(("file:", "/")):
        folder = Path("/" + place.removeprefix("file:").lstrip("/"))
        for path in folder.glob(f"{prefix}*/{_METADATA}"):
            yield path.stat().st_mtime_ns // 1_000_000, path.parent.as_uri()
        return
    yield from _list_remote(place, prefix)


def _list_remote(place: str, prefix: str) -> Iterator[tuple[int, str]]:
    """Yield the same from a file system that only Flink knows, such as S3 or HDFS."""
    try:
        files = _load_file_systems()
        folder = files.Path(place)
        system = folder.getFileSystem()
        if not system.exists(folder):
            return
        for status in system.listStatus(folder):
            metadata = files.Path(status.getPath(), _METADATA)
            if status.getPath().getName().startswith(prefix) and system.exists(metadata):
                changed = system.getFileStatus(metadata).getModificationTime()
                yield int(changed), str(status.getPath().toString())
    except Exception as error:  # from Java
        raise EngineError(
            f"the checkpoints in {place} cannot be listed: put the plugin of this file system into"
            " the folder that FLINK_PLUGINS_DIR names, or name the state to resume from with"
            f" {option('set')} execution.state-recovery.path=..."
        ) from error


@lru_cache(maxsize=1)
def _load_file_systems() -> Any:
    """Load the plugins of Flink's file systems into the driver's Java; return Flink's package.

    Only once: each time, the plugins get other classes of the same names, and the gateway between
    Python and Java takes one for the other.
    """
    from pyflink.java_gateway import get_gateway

    flink = get_gateway().jvm.org.apache.flink
    # Addresses and keys of file systems are in Flink's own configuration (FLINK_CONF_DIR).
    configuration = flink.configuration.GlobalConfiguration.loadConfiguration()
    plugins = flink.core.plugin.PluginUtils.createPluginManagerFromRootFolder(configuration)
    flink.core.fs.FileSystem.initialize(configuration, plugins)
    return flink.core.fs
