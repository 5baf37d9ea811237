"""Run the benchmarks: `python -m benchmarks [--quick] [--only NAME] [--json FILE]`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

from benchmarks import (
    charging,
    delivery,
    distributed,
    durable,
    flink,
    jobs,
    kafka,
    latency,
    memory,
    mqtt,
    planning,
    protected,
    quality,
    report,
    sampling,
    service,
    startup,
    streams,
    threads,
)
from benchmarks.data import Scale
from benchmarks.jobs import Setting
from benchmarks.report import Finding, Skipped

JOBS: dict[str, Callable[[Setting], Iterator[Finding | Skipped]]] = {
    "presence": jobs.presence,
    "parquet": jobs.parquet,
    "order": jobs.order,
    "scaling": jobs.scaling,
    "threads": threads.threads,
    "batching": jobs.batching,
    "memory": memory.memory,
    "startup": startup.startup,
    "sampling": sampling.sampling,
    "protected": protected.run,
    "planning": planning.planning,
    "entangled": protected.entangled,
    "quality": quality.quality,
    "charging": charging.charging,
    "durable": durable.durable,
    "delivery": delivery.delivery,
    "mqtt": mqtt.mqtt,
    "kafka": kafka.kafka,
    "service": service.service,
    "streams": streams.streams,
    "latency": latency.latency,
    "flink": flink.flink,
    "cluster-and": distributed.cluster_and,
    "cluster-seq": distributed.cluster_seq,
    "cluster-seq-many": distributed.cluster_seq_many,
    "cluster-state": distributed.cluster_state,
    "cluster-start": distributed.cluster_start,
}
RESULTS = Path(__file__).with_name("results")


def setting(folder: Path, *, quick: bool) -> Setting:
    """Return the sizes: those of the targets, or small ones for a quick try."""
    if quick:
        return Setting(Scale(1_000_000), 2, folder, 10_000_000, 10_000_000, 100_000)
    return Setting(Scale(20_000_000), 5, folder, 200_000_000, 100_000_000, 2_000_000)


@click.command()
@click.option("--quick", is_flag=True, help="Small data: to try things out, not to measure.")
@click.option("--only", multiple=True, type=click.Choice(list(JOBS)), help="Only these jobs.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where the JSON goes.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a target is missed by the clock.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "tacit-benchmarks",
    help="Where generated files, Flink and Spark are kept for the next time.",
)
def main(quick: bool, only: tuple[str, ...], path: Path | None, strict: bool, folder: Path) -> None:
    """Compare the engine with rivals in the same run, and check that answers are equal."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    where = report.machine() | {"quick": quick}
    console = Console(stderr=True)
    found: list[Finding | Skipped] = []
    for name in only or JOBS:
        for finding in JOBS[name](setting(folder, quick=quick)):
            found.append(finding)
            verdict = finding.verdict if isinstance(finding, Finding) else "skipped"
            console.print(f"{finding.job}: {verdict}")
    report.show(found, where)
    report.write(found, where, path or RESULTS / f"{'quick' if quick else 'full'}.json")
    if strict and any(isinstance(f, Finding) and f.verdict not in report.FINE for f in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
