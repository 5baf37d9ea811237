"""`tacit demo`: the engine at work on generated taxi trips."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.table import Table

from tacit.cli.detecting import write_answers
from tacit.cli.reporting import UNPROTECTED
from tacit.connectors.files import open_source
from tacit.engines.local import Detection, assign
from tacit.evaluation.trips import Trips
from tacit.spec.reading import load

_BARS = " ▁▂▃▄▅▆▇█"


def show(out: Path, taxis: int, days: float, seed: int) -> None:
    """Generate trips, detect the example's patterns in them, and show what was found."""
    console = Console(width=110, record=True)
    out.mkdir(parents=True, exist_ok=True)
    spec_file, trips, answers = out / "taxi.yaml", out / "trips.parquet", out / "answers.parquet"
    spec_file.write_text(
        files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8"), "utf-8"
    )
    with console.status("Generating taxi trips ..."):
        table = Trips(taxis=taxis, days=days, seed=seed).table()
        pq.write_table(table, trips)
    console.print(f"[bold]1[/] {table.num_rows:,} GPS reports of {taxis:,} taxis -> {trips}")
    spec = load(spec_file)
    console.print(f"[bold]2[/] {spec_file}: {spec}")
    with console.status("Detecting patterns ..."):
        run = Detection(spec, assign(spec, [(None, open_source(trips))]))
        summary = write_answers(run, str(answers))
    console.print(f"[bold]3[/] {summary} -> {answers}")
    found = pl.read_parquet(answers)
    rows = Table("query", "pattern", "detected", "share", "by hour of the day", box=None)
    for query in spec.queries:
        hours = _by_hour(found.filter(pl.col("query") == query.name))
        count = summary.detected[query.name]
        share = count / max(1, summary.answers // len(spec.queries))
        rows.add_row(query.name, repr(query.pattern), f"{count:,}", f"{share:.1%}", _bars(hours))
    console.print(rows)
    console.print(f"[yellow]{UNPROTECTED}[/]")
    (out / "demo.svg").write_text(_picture(console), "utf-8")
    console.print(f"The picture of this: {out / 'demo.svg'}")
    console.print(f"Next: tacit detect {spec_file} {trips} --to answers.csv")


def _picture(console: Console) -> str:
    """What the console shows as SVG, without a font that would have to be fetched."""
    frame = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="tacit demo", clear=False, code_format=frame)


def _by_hour(answers: pl.DataFrame) -> list[float]:
    """The share of windows in which a query was answered with yes, for each hour of the day."""
    shares = answers.group_by(pl.col("window_start").dt.hour().alias("hour")).agg(
        pl.col("detected").mean()
    )
    known = dict(shares.iter_rows())
    return [known.get(hour, 0.0) for hour in range(24)]


def _bars(values: list[float]) -> str:
    """Numbers as small bars, the largest the full height.

    >>> _bars([0.0, 0.5, 1.0])
    ' ▄█'
    """
    top = max(values) or 1.0
    return "".join(_BARS[round(value / top * 8)] for value in values)
