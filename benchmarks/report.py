"""Report measurements and targets, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Spent

OURS = "Tacit"
FINE = ("met", "reported")
"""Verdicts that count as met."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured number and its target."""

    job: str
    measure: str
    """The unit of the number, such as 'times as fast as the best rival'."""
    value: float
    by_processor: float | None = None
    """The same by processor time, if that makes sense."""
    target: float | None = None
    bound: Literal["at least", "at most"] = "at least"
    unit: str = "x"
    seconds: Mapping[str, Spent] = field(default_factory=dict)
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met: by the clock, or only by processor time."""
        if self.target is None:
            return "reported"
        if self._meets(self.value):
            return "met"
        processor = self.by_processor
        return "met by CPU" if processor is not None and self._meets(processor) else "missed"

    def _meets(self, value: float) -> bool:
        assert self.target is not None
        return value >= self.target if self.bound == "at least" else value <= self.target


@dataclass(frozen=True, slots=True)
class Skipped:
    """A job that cannot run here, and why."""

    job: str
    reason: str


def against(
    job: str, seconds: Mapping[str, Spent], target: float | None, *, note: str = "", only: str = ""
) -> Finding:
    """Compare with the best rival; the best may differ by clock and CPU."""
    ours = seconds[OURS]
    rivals = {name: s for name, s in seconds.items() if name != OURS and name.startswith(only)}
    best = min(rivals, key=lambda name: rivals[name].elapsed)
    return Finding(
        job,
        f"times as fast as {best}",
        rivals[best].elapsed / ours.elapsed,
        min(spent.processor for spent in rivals.values()) / ours.processor,
        target,
        seconds=seconds,
        note=note,
    )


def machine() -> dict[str, Any]:
    """Describe the machine, and how busy it was just before."""
    packages = ("tacit", "polars", "duckdb", "pyarrow", "numba", "numpy")
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "busy_percent": psutil.cpu_percent(interval=1.0),
        "packages": {package: version(package) for package in packages},
    }


def show(found: Sequence[Finding | Skipped], where: Mapping[str, Any]) -> None:
    """Print the findings as a table, with each contestant's seconds below it."""
    console = Console()
    busy = where["busy_percent"]
    console.print(
        f"{where['cores']} cores, {where['memory_gib']} GiB, Python {where['python']}; before the"
        f" first job others kept {busy:.0f} % of the processors busy"
    )
    table = Table(title="Ratios: by the clock, and by processor time")
    for heading in ("job", "measure"):
        table.add_column(heading, overflow="fold")
    for heading in ("clock", "CPU", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for finding in found:
        table.add_row(*_row(finding))
    console.print(table)
    for finding in found:
        if isinstance(finding, Finding) and (finding.seconds or finding.note):
            console.print(f"[bold]{finding.job}[/bold] {finding.note}")
            for name, spent in sorted(finding.seconds.items(), key=lambda item: item[1].elapsed):
                console.print(f"  {name:32} {spent.elapsed:9.3f} s  {spent.processor:9.3f} s CPU")


def _row(finding: Finding | Skipped) -> tuple[str, ...]:
    if isinstance(finding, Skipped):
        return finding.job, finding.reason, "", "", "", "skipped"
    processor = finding.by_processor
    return (
        finding.job,
        finding.measure,
        f"{finding.value:.2f} {finding.unit}",
        "" if processor is None else f"{processor:.2f} {finding.unit}",
        "" if finding.target is None else f"{finding.bound} {finding.target:g}",
        finding.verdict,
    )


def write(found: Sequence[Finding | Skipped], where: Mapping[str, Any], path: Path) -> None:
    """Write everything as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    findings = [
        asdict(finding) | ({"verdict": finding.verdict} if isinstance(finding, Finding) else {})
        for finding in found
    ]
    path.write_text(json.dumps({"machine": dict(where), "findings": findings}, indent=2) + "\n")
