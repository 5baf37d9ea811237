"""`tacit demo`: the whole story on generated taxi trips."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.table import Table

from tacit.cli.detecting import write_answers
from tacit.connectors.appending import failing
from tacit.connectors.files import open_source
from tacit.engines.local import Detection, Input, assign, protected, survey
from tacit.errors import ClosedPipeError
from tacit.evaluation.trips import Trips
from tacit.insight.audit import Report, audit
from tacit.insight.curve import Curve, curve
from tacit.insight.explain import UNIT, explain
from tacit.planning.plan import Expected, Plan
from tacit.planning.planner import make_plan
from tacit.planning.quality import Confusion
from tacit.privacy.exponentials import written
from tacit.spec.reading import load
from tacit.spec.specification import Specification

_SHOWN = 8
_MORNING = 8
_EPSILONS = {"0.5", "1", "2", "3", "5", "10"}
_WRITTEN = {
    "taxi.yaml": "the specification: what is asked, and what is private",
    "history.parquet": "trips of the past, which the plan was made from",
    "trips.parquet": "trips of another day",
    "plan.json": "the plan; for operators and subjects",
    "answers.parquet": "protected answers; for consumers",
    "truth.parquet": "true answers; for the operator alone",
    "quality.svg": "quality against epsilon; also quality.png",
    "demo.svg": "what you see here",
}


class _Console(Console):
    """Leaves it to the command to end where nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        raise ClosedPipeError("standard output was closed by its reader")


def show(out: Path, taxis: int, days: float, seed: int) -> None:
    """Generate trips, plan, run protected, and show the answers beside the truth."""
    console = _Console(width=110, record=True)
    with failing(str(out)):
        out.mkdir(parents=True, exist_ok=True)
        _check_written(out)
    spec = _specified(out / "taxi.yaml")
    _title(console, 1, "Taxis report where they are")
    with console.status("Generating taxi trips ..."):
        past, today = _driven(out, taxis, days, seed)
    console.print(f"{past:,} reports of {taxis:,} taxis are history; {today:,} are of another day.")
    _title(console, 2, "Passengers and drivers say what is private")
    _tell_private(console, spec)
    _title(console, 3, "The planner looks at history for the best channels")
    with console.status("Planning ..."):
        statistics = survey(spec, _inputs(spec, out / "history.parquet"), literal=False)
        plan = make_plan(spec, statistics)
        plan.save(out / "plan.json")
        made = curve(spec, statistics)
        for suffix in (".svg", ".png"):
            made.save(out / f"quality{suffix}")
    _tell_curve(console, plan, made)
    _title(console, 4, "Another day is answered: what consumers see, beside the truth")
    with console.status("Answering ..."):
        trips = out / "trips.parquet"
        truth = Detection(spec, _inputs(spec, trips))
        write_answers(truth, str(out / "truth.parquet"))
        run = protected(spec, _inputs(spec, trips), Plan.load(out / "plan.json", spec))
        write_answers(run, str(out / "answers.parquet"), protected=True)
    both = _both(out)
    assert plan.expected is not None, "the history has windows"
    console.print(_agreement(both, spec, plan.expected))
    console.print("\nA morning, truth and protected answer; ! marks where they differ:")
    console.print(_some(both, spec))
    _title(console, 5, "The audit reckons what was given away, in whole numbers")
    _tell_audit(console, audit(plan))
    _title(console, 6, f"Written to {out}")
    for name, what in _WRITTEN.items():
        console.print(f"  {name:<16} {what}", highlight=False)
    (out / "demo.svg").write_text(_picture(console), "utf-8")
    console.print(f"\nNext: tacit explain {out / 'taxi.yaml'}", highlight=False)


def _check_written(out: Path) -> None:
    """Fail now rather than after a minute's work."""
    probe = out / ".written"
    probe.touch()
    probe.unlink()


def _title(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")


def _specified(path: Path) -> Specification:
    """The example's specification, written to a folder and read from there."""
    text = files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8")
    path.write_text(text, "utf-8")
    return load(path)


def _driven(out: Path, taxis: int, days: float, seed: int) -> tuple[int, int]:
    """Trips of the past and of another day; how many reports each has."""
    trips = Trips(taxis=taxis, days=days + 1, seed=seed)
    table = trips.table()
    turn = pa.scalar(trips.start + timedelta(days=days), table.schema.field("ts").type)
    earlier = pc.less(table.column("ts"), turn)
    past, today = table.filter(earlier), table.filter(pc.invert(earlier))
    pq.write_table(past, out / "history.parquet")
    pq.write_table(today, out / "trips.parquet")
    return past.num_rows, today.num_rows


def _inputs(spec: Specification, path: Path) -> list[Input]:
    return assign(spec, [(None, open_source(path))])


def _tell_private(console: Console, spec: Specification) -> None:
    console.print(f"Every epsilon is for {UNIT}.")
    for private in explain(spec).private:
        even = private.odds.even
        console.print(
            f"{private.name}: [yellow]{private.pattern}[/], epsilon {written(private.epsilon)}:"
            f" a 50:50 guess can become at most {even}:{100 - even}.",
            highlight=False,
        )


def _tell_curve(console: Console, plan: Plan, made: Curve) -> None:
    console.print(
        f"{plan.windows:,} windows of history. The quality Q to expect, half precision and half"
        " recall, over all queries:",
        highlight=False,
    )
    rows = Table(*made.rows()[0], box=None, padding=(0, 2))
    declared = written(made.declared)
    for row in made.rows()[1:]:
        if row[0] in _EPSILONS | {declared}:
            rows.add_row(*row, style="bold" if row[0] == declared else "dim")
    console.print(rows)
    console.print(f"This run uses {plan.mechanism}, with epsilon {declared}.", highlight=False)


def _both(out: Path) -> pl.DataFrame:
    """Protected answers with the truth beside them."""
    keys = ["window_start", "subject", "query"]
    texts = pl.col("subject", "query").cast(pl.String)
    truth = pl.read_parquet(out / "truth.parquet").with_columns(texts)
    answers = pl.read_parquet(out / "answers.parquet").with_columns(texts)
    return answers.join(
        truth.select(*keys, pl.col("detected").alias("truth")), on=keys, maintain_order="left"
    )


def _agreement(both: pl.DataFrame, spec: Specification, expected: Expected) -> Table:
    """For each query how often the protected answer is the true one, and its quality."""
    yes, true = pl.col("detected"), pl.col("truth")
    counted = both.group_by("query").agg(
        (yes == true).mean().alias("agree"),
        (yes & true).sum().alias("tp"),
        (yes & ~true).sum().alias("fp"),
        (~yes & true).sum().alias("fn"),
    )
    found = {row["query"]: row for row in counted.iter_rows(named=True)}
    table = Table("query", "asks", box=None, padding=(0, 1))
    for name in ("truly yes", "answered yes", "agree", "Q", "Q expected"):
        table.add_column(name, justify="right")
    for query, row in zip(spec.queries, expected.rows(), strict=True):
        own = found[query.name]
        confusion = Confusion(float(own["tp"]), float(own["fp"]), float(own["fn"]))
        exact = own["fp"] == own["fn"] == 0 and row["mre"] == 0
        table.add_row(
            query.name,
            repr(query.pattern),
            f"{own['tp'] + own['fn']:,}",
            f"{own['tp'] + own['fp']:,}",
            f"{own['agree']:.1%}",
            "exact" if exact else f"{confusion.quality(query.alpha):.3f}",
            "exact" if exact else f"{row['quality']:.3f}",
        )
    return table


def _some(both: pl.DataFrame, spec: Specification) -> Table:
    """The morning of a taxi about which much can be asked, for queries with noise.

    It is chosen by the truth alone, so that the answers are no better than others.
    """
    noisy = both.filter(pl.col("confidence") < 1)["query"].unique()
    names = [query.name for query in spec.queries if query.name in noisy][-4:]
    start, query, truth = pl.col("window_start"), pl.col("query"), pl.col("truth")
    asked = both.filter(query.is_in(names))
    windows = asked.select(start.unique().sort()).filter(start.dt.hour() >= _MORNING).head(_SHOWN)
    morning = asked.join(windows, on="window_start")
    varied = morning.group_by("subject", "query").agg(truth.n_unique(), truth.sum().alias("yes"))
    best = varied.group_by("subject").agg(truth.sum(), pl.col("yes").sum())
    order = best.sort("truth", "yes", "subject", descending=[True, True, False])
    subject = order.item(0, "subject")
    cells = {
        (row["window_start"], row["query"]): row
        for row in morning.filter(pl.col("subject") == subject).iter_rows(named=True)
    }
    table = Table(f"taxi {subject}", box=None, padding=(0, 2))
    for name in names:
        table.add_column(f"{name}\ntruth answer sure")
    for moment in windows["window_start"]:
        table.add_row(f"{moment:%H:%M}", *(_cell(cells[moment, name]) for name in names))
    return table


def _cell(row: dict[str, object]) -> str:
    """Truth, answer and confidence; an answer that is wrong stands out."""
    word = {True: "yes", False: "no"}
    truth, answer = word[bool(row["truth"])], word[bool(row["detected"])]
    shown = f"[green]{answer:<6}[/]" if truth == answer else f"[bold red]{answer + ' !':<6}[/]"
    return f"{truth:<5} {shown} {float(str(row['confidence'])):.0%}"


def _tell_audit(console: Console, report: Report) -> None:
    channels = [channel for policy in report.policies for channel in policy.channels]
    for policy in report.policies:
        for pattern in policy.patterns:
            true = "without limit" if pattern.whole is None else f"{float(pattern.whole):.12g}"
            console.print(
                f"{pattern.name}: true epsilon at most {true}, of {written(pattern.asked)} that was"
                " asked, for one subject and window.",
                highlight=False,
            )
    word = "[green]passed[/]" if report.passed else "[bold red]FAILED[/]"
    console.print(f"{len(channels)} channels: {word}.", highlight=False)


def _picture(console: Console) -> str:
    """What the console shows as SVG, without a font that would have to be fetched."""
    frame = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="tacit demo", clear=False, code_format=frame)
