"""Checks of the machine that a run needs: extras, disk space, the clock, file permissions."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tacit.connectors.brokers import required_modules
from tacit.durations import MICROSECONDS
from tacit.insight.findings import Findings
from tacit.quantities import count
from tacit.spec.specification import Specification

_LEDGER: Final = {"sqlalchemy": "ledger", "alembic": "ledger"}
_POSTGRES: Final = {"psycopg": "postgres"}
_BYTES: Final = {".jsonl": 190, ".ndjson": 190, ".csv": 110, ".parquet": 4, ".arrow": 30}
"""The approximate bytes of an answer in a file of this format."""
_PACKED: Final = 10
"""The approximate compression ratio of text."""
_KEPT: Final = 2
"""The most bytes of an answer in a ledger."""
_DAYS: Final = 7
"""How long a ledger keeps delivered answers by default."""
_SLACK: Final = 2.0
"""The most seconds between two clocks without a warning."""
_FIRST_YEAR: Final = 2025
_UNSYNCHRONISED: Final = 5
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs")


def list_needed_modules(
    sources: Iterable[str], sink: str | None, ledger: str | None
) -> dict[str, str]:
    """Return the modules that these connectors and this ledger need, with their extras."""
    needed: dict[str, str] = {}
    if ledger is not None:
        needed |= _LEDGER | (_POSTGRES if "://" in ledger else {})
    for place in (*sources, *([sink] if sink else [])):
        needed |= required_modules(place)
    return needed


def check_extras(findings: Findings, modules: Mapping[str, str]) -> list[str]:
    """Find the missing modules."""
    missing = [name for name in modules if find_spec(name) is None]
    for extra in dict.fromkeys(modules[name] for name in missing):
        findings.wrong("extras", f"needs the extra tacit[{extra}]: pip install 'tacit[{extra}]'")
    if modules and not missing:
        findings.ok("extras", f"{', '.join(modules)}: installed")
    return missing


def check_clock(
    findings: Findings,
    spec: Specification | None,
    *,
    live: bool,
    committed: int | None,
    ahead: float | None,
) -> None:
    """Check that the time is plausible; `committed` is the time of the ledger's last release."""
    now = time.time()
    before = len(findings.all)
    if time.gmtime(now).tm_year < _FIRST_YEAR:
        findings.wrong("clock", f"it is not {time.gmtime(now).tm_year}; set the clock")
    if committed is not None and committed / 1e6 > now + _SLACK:
        late = committed / 1e6 - now
        findings.wrong(
            "clock",
            f"it is {late:,.0f} s behind the ledger's last release: one of the two clocks was"
            " wrong; correct this one",
        )
    if ahead is not None and abs(ahead) > _SLACK:
        findings.warn(
            "clock",
            f"the database's is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} ours;"
            " synchronise both with NTP",
        )
    by_clock = spec is not None and spec.windows.close == "clock"
    if (by_clock or live) and _drifts():
        findings.warn("clock", "it is not synchronised; use NTP")
    if len(findings.all) == before:
        findings.ok("clock", f"plausible. {_zone(now)}")


def _drifts() -> bool:
    """Return whether the kernel reports that its clock is not synchronised."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return False  # not Linux
    # All zeros: read the state without changing it.
    return int(ask(ctypes.create_string_buffer(512))) == _UNSYNCHRONISED


def _zone(now: float) -> str:
    offset = time.localtime(now).tm_gmtoff
    if not offset:
        return "Windows and limits use UTC, and so does this machine."
    sign, minutes = ("+" if offset > 0 else "-"), abs(offset) // 60
    return (
        f"Windows and limits use UTC; local time is UTC{sign}{minutes // 60}:{minutes % 60:02},"
        " so their days do not start at local midnight."
    )


def check_permissions(findings: Findings, secrets: Sequence[Path], guarded: Sequence[Path]) -> None:
    """Check that other users of this machine cannot read secrets or change the protection."""
    before = len(findings.all)
    for path in _find_existing(secrets):
        if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            findings.warn(
                "permissions",
                f"everyone on this machine can read {path}, which contains private events:"
                f" chmod o-rwx {path}",
            )
    for path in _find_existing(guarded):
        if path.stat().st_mode & stat.S_IWOTH:
            findings.warn(
                "permissions",
                f"everyone on this machine can change {path}, which defines what is protected:"
                f" chmod o-w {path}",
            )
    if len(findings.all) == before and (secrets or guarded):
        findings.ok("permissions", "other users cannot read or change the files")


def _find_existing(paths: Sequence[Path]) -> list[Path]:
    return [path for path in dict.fromkeys(paths) if path.exists()]


def check_space(
    findings: Findings,
    spec: Specification | None,
    subjects: int | None,
    sink: str | None,
    ledger: str | None,
) -> None:
    """Check that a day's answers fit on the disk."""
    if spec is None or subjects is None:
        return
    windows = MICROSECONDS["d"] // spec.windows.pane
    answers = windows * subjects * len(spec.subject_queries)
    wanted: dict[Path, int] = {}
    if sink is not None and sink != "-" and "://" not in sink:
        folder = _existing(Path(sink))
        wanted[folder] = answers * _size(sink)
    if ledger is not None and "://" not in ledger:
        folder = _existing(Path(ledger).expanduser().absolute().parent)
        wanted[folder] = wanted.get(folder, 0) + answers * _KEPT * _DAYS
    for folder, size in wanted.items():
        free = shutil.disk_usage(folder).free
        summary = (
            f"{folder}: {_format_size(free)} are free; {count(answers, 'answer')} a day take about"
            f" {_format_size(size)}"
        )
        if free < size:
            findings.wrong("disk", f"{summary}; free some space, or choose another place")
        elif free < _DAYS * size:
            findings.warn("disk", f"{summary}; that is not enough for a week")
        else:
            findings.ok("disk", summary)


def _size(sink: str) -> int:
    """Return the approximate bytes of an answer in a sink."""
    name = sink.lower()
    kind = next((kind for kind in _BYTES if kind in name), ".parquet")
    packed = name.endswith((".gz", ".zst"))
    return max(1, _BYTES[kind] // (_PACKED if packed else 1))


def _existing(folder: Path) -> Path:
    """Find the nearest parent folder that exists."""
    found = folder.absolute()
    while not found.is_dir():
        found = found.parent
    return found


def _format_size(size: int) -> str:
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def is_remote(path: Path) -> bool:
    """Return whether a path is on a network file system; False if that is unknown."""
    try:
        mounts = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    own = os.path.realpath(path)
    best = ("", "")
    for line in mounts:
        _, place, kind, *_ = line.split()
        inside = own == place or own.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best[0]):
            best = place, kind
    return best[1] in _REMOTE
