"""`tacit demo`: plan, run and audit on generated taxi trips."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from tacit.insight.audit import AuditReport
    from tacit.insight.curve import Curve
    from tacit.insight.leak_report import LeakReport
    from tacit.pipeline.reader import Input
    from tacit.planning.plan import Plan
    from tacit.spec.specification import Specification

_EPSILONS: Final = {"0.5", "1", "2", "3", "5", "10"}
_WRITTEN: Final = {
    "taxi.yaml": "the specification: what is asked, and what is private",
    "history.parquet": "past trips, from which the plan was made",
    "trips.parquet": "trips of another day",
    "plan.json": "the plan; for operators and subjects",
    "answers.parquet": "protected answers; for consumers",
    "truth.parquet": "true answers; for the operator only",
    "counts.yaml": "a specification that asks how many, not who",
    "counts.parquet": "protected counts with estimates; for consumers",
    "safer.yaml": "the specification without the leak that was found",
    "quality.svg": "quality against epsilon; also quality.png",
    "demo.svg": "this output",
}


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="demo-output",
              show_default=True, help="The folder to write everything to.")  # fmt: skip
@click.option("--taxis", type=click.IntRange(1, 100_000), default=500, show_default=True,
              help="Number of taxis.")  # fmt: skip
@click.option("--days", type=click.FloatRange(0.05, 60), default=2.0, show_default=True,
              help="Days of history; the run covers one more day.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True,
              help="Seed of the generated trips.")  # fmt: skip
def demo(out: Path, taxis: int, days: float, seed: int) -> None:
    """Show all of Tacit on generated taxi trips, in about a minute.

    Makes a plan from history, runs it over another day, shows what consumers see next to the truth,
    counts taxis with error bars, audits the plan, finds a leak and closes it, and plots quality
    against epsilon.

    \b
    Example:
      tacit demo --taxis 1000 --days 7
    """
    run_demo(out, taxis, days, seed)


def run_demo(out: Path, taxis: int, days: float, seed: int) -> None:
    """Generate trips, plan, run with protection, and show the answers next to the truth."""
    from tacit.cli.demo_tables import compare_answers, join_truth, show_morning
    from tacit.cli.sources import write_answers
    from tacit.cli.warm import show_compilation
    from tacit.engines.local import survey
    from tacit.errors import translate_write_errors
    from tacit.insight.audit import audit
    from tacit.insight.curve import compute_curve
    from tacit.kernels.ahead import compile_ahead, compile_beside
    from tacit.kernels.needs import find_kernels
    from tacit.pipeline.run import Run
    from tacit.planning.plan import Plan
    from tacit.planning.planner import make_plan

    console = _open_console()
    with translate_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        _check_writable(out)
    spec = _write_spec(out / "taxi.yaml")
    counting = _write_counting_spec(out)
    _print_title(console, 1, "Taxis report where they are")
    of_planning, of_answers = find_kernels({"demo:planning"}), find_kernels({"demo:answers"})
    # Helpers begin at the end of the list. They compile the rest while this process plans.
    with compile_beside([*of_answers, *of_planning]):
        with console.status("Generating taxi trips ..."):
            past, today = _generate_trips(out, taxis, days, seed)
        console.print(
            f"{past:,} reports of {taxis:,} taxis are history; {today:,} are from another day."
        )
        with show_compilation(always=True) as progress:
            compile_ahead(of_planning, helpers=0, progress=progress)
        _print_title(console, 2, "Passengers and drivers declare what is private")
        _print_private(console, spec)
        _print_title(console, 3, "The planner computes the best channels from history")
        with console.status("Planning ..."):
            statistics = survey(spec, _open_trips(spec, out / "history.parquet"), literal=False)
            plan = make_plan(spec, statistics)
            plan.save(out / "plan.json")
            drawn = compute_curve(spec, statistics)
            for suffix in (".svg", ".png"):
                drawn.plot(out / f"quality{suffix}")
        with show_compilation() as progress:
            compile_ahead(of_answers, helpers=0, progress=progress)
    _print_curve(console, plan, drawn)
    _print_title(console, 4, "Answers for another day: what consumers see, next to the truth")
    with console.status("Answering ..."):
        trips = out / "trips.parquet"
        truth = Run(spec, _open_trips(spec, trips))
        write_answers(truth, str(out / "truth.parquet"))
        saved = Plan.load(out / "plan.json", spec)
        run = Run(spec, _open_trips(spec, trips), plan=saved)
        write_answers(run, str(out / "answers.parquet"), protected=True)
    both = join_truth(out)
    assert plan.expected is not None, "the history has windows"
    console.print(compare_answers(both, spec, plan.expected))
    console.print(
        "\nOne morning, truth and protected answer; ! marks where they differ. An answer may be"
        " less than 50% sure:\nthe planner answers yes where that gains more recall than it costs"
        " precision."
    )
    console.print(show_morning(both, spec))
    _print_title(console, 5, "Dispatch only needs to know how many: a count with error bars")
    with console.status("Counting ..."):
        true, counted = _count_taxis(counting, out)
    _print_counts(console, true, counted)
    _print_title(console, 6, "The audit computes the exact epsilon, in integer arithmetic")
    _print_audit(console, audit(plan))
    _print_title(console, 7, "Public events may tell what is private: a leak, found and closed")
    with console.status("Searching for leaks ..."):
        found = _find_leak(spec, out)
    console.print(found, highlight=False)
    _print_title(console, 8, f"Written to {out}")
    for name, what in _WRITTEN.items():
        if name == "safer.yaml" and not (out / name).exists():
            continue
        console.print(f"  {name:<16} {what}", highlight=False)
    (out / "demo.svg").write_text(_export_svg(console), "utf-8")
    console.print(f"\nNext: tacit explain {out / 'taxi.yaml'}", highlight=False)


def _open_console() -> Console:
    """Return a console that leaves the handling of a broken pipe to the command."""
    from rich.console import Console

    from tacit.errors import ClosedPipeError

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise ClosedPipeError("standard output was closed by its reader")

    return PipeConsole(width=110, record=True)


def _check_writable(out: Path) -> None:
    """Fail now, not after a minute of work."""
    probe = out / ".written"
    probe.touch()
    probe.unlink()


def _print_title(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")


def _write_spec(path: Path) -> Specification:
    """Copy the example specification to a file and load it."""
    from tacit.spec.yaml_reader import load

    text = files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8")
    path.write_text(text, "utf-8")
    return load(path)


def _write_counting_spec(out: Path) -> Specification:
    """Write a specification with one count and a limit per day, and load it."""
    from tacit.spec.yaml_reader import load

    text = files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8")
    text = text[: text.index("queries:")]
    text = text.replace("epsilon: 2.0}", "epsilon: 2.0, limit: 20 per day}")
    asked = (
        'queries:\n  - {name: free_taxis, consumer: dispatch, count: "AND(in_centre, vacant)"}\n'
    )
    (out / "counts.yaml").write_text(text + asked, "utf-8")
    return load(out / "counts.yaml")


def _count_taxis(spec: Specification, out: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the true counts of the other day, and what is released of them."""
    import tacit

    plan = tacit.plan(spec, out / "history.parquet")
    true = tacit.detect(spec, out / "trips.parquet").counted()
    # The demo is run again and again, on generated trips: it needs no ledger.
    found = tacit.run(spec, out / "trips.parquet", plan=plan, ledger=False).counted()
    found.write_parquet(out / "counts.parquet")
    return true, found


def _find_leak(spec: Specification, out: Path) -> str:
    """Find the strongest leak, close it, and search again."""
    from dataclasses import replace

    from tacit.insight.leaks import find_leaks

    def search(asked: Specification) -> LeakReport:
        return find_leaks(asked, lambda: _open_trips(asked, history), least=2, costs=0)

    history = out / "history.parquet"
    report = search(spec)
    (out / "safer.yaml").unlink(missing_ok=True)
    if not report.leaks:
        return "No public event moves the odds of a private pattern by a factor of 2."
    leak = report.leaks[0]
    closed = replace(report, leaks=report.leaks[:1])
    closed.save_fix(out / "safer.yaml")
    left = search(closed.fix()).leaks
    open_again = [one for one in left if set(one.types) & set(leak.protect)]
    protected = ", ".join(leak.protect)
    return (
        f"{len(report.leaks)} findings. The strongest: where {leak.signal} is seen, {leak.private}"
        f" is there in {leak.chance_seen:.0%} of windows,\nand in {leak.chance_unseen:.0%} where it"
        f" is not. safer.yaml makes {protected} private too.\n"
        f"Searched again: {len(left)} findings, {len(open_again)} of them about {protected}."
    )


def _generate_trips(out: Path, taxis: int, days: float, seed: int) -> tuple[int, int]:
    """Write trips of the past and of another day; returns the number of reports in each."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from tacit.evaluation.trips import Trips

    trips = Trips(taxis=taxis, days=days + 1, seed=seed)
    table = trips.table()
    turn = pa.scalar(trips.start + timedelta(days=days), table.schema.field("ts").type)
    earlier = pc.less(table.column("ts"), turn)
    past, today = table.filter(earlier), table.filter(pc.invert(earlier))
    pq.write_table(past, out / "history.parquet")
    pq.write_table(today, out / "trips.parquet")
    return past.num_rows, today.num_rows


def _open_trips(spec: Specification, path: Path) -> list[Input]:
    from tacit.connectors.files import open_source
    from tacit.engines.setup import assign

    return assign(spec, [(None, open_source(path))])


def _print_private(console: Console, spec: Specification) -> None:
    from tacit.insight.explain import UNIT, explain
    from tacit.privacy.exponentials import format_epsilon

    console.print(f"Every epsilon is for {UNIT}.")
    for private in explain(spec).private:
        even = private.odds.even
        console.print(
            f"{private.name}: [yellow]{private.pattern}[/],"
            f" epsilon {format_epsilon(private.epsilon)}:"
            " someone who knows everything else can turn a 50:50 guess about one window into at"
            f" most {even}:{100 - even}.",
            highlight=False,
        )


def _print_curve(console: Console, plan: Plan, drawn: Curve) -> None:
    from rich.table import Table

    from tacit.privacy.exponentials import format_epsilon

    console.print(
        f"{plan.windows:,} windows of history. Expected quality Q, half precision and half recall,"
        " over all queries:",
        highlight=False,
    )
    rows = Table(*drawn.rows()[0], box=None, padding=(0, 2))
    declared = format_epsilon(drawn.declared)
    for row in drawn.rows()[1:]:
        if row[0] in _EPSILONS | {declared}:
            rows.add_row(*row, style="bold" if row[0] == declared else "dim")
    console.print(rows)
    console.print(f"This run uses {plan.mechanism}, with epsilon {declared}.", highlight=False)


def _print_counts(console: Console, true: pl.DataFrame, counted: pl.DataFrame) -> None:
    from tacit.cli.demo_tables import join_counts, measure_counts, show_counts

    console.print(
        "Free taxis in the centre. Epsilon 20 for one subject, one private pattern and one day."
        "\nA noisy count is drawn in some windows; estimates follow from the counts drawn so far."
        "\nThe line is the 95 % interval, o the estimate, x the truth.",
        highlight=False,
    )
    both = join_counts(true, counted)
    console.print(show_counts(both))
    error, inside = measure_counts(both)
    console.print(
        f"Mean error over the day {error:.1f}; {inside:.0%} of the intervals hold the truth.",
        highlight=False,
    )


def _print_audit(console: Console, report: AuditReport) -> None:
    from tacit.privacy.exponentials import format_epsilon

    channels = [channel for policy in report.policies for channel in policy.channels]
    for policy in report.policies:
        for pattern in policy.patterns:
            true = "without limit" if pattern.whole is None else f"{float(pattern.whole):.12g}"
            console.print(
                f"{pattern.name}: true epsilon at most {true}"
                f" of the {format_epsilon(pattern.asked)} granted, for one subject and window.",
                highlight=False,
            )
    word = "[green]passed[/]" if report.passed else "[bold red]FAILED[/]"
    console.print(f"{len(channels)} channels: {word}.", highlight=False)


def _export_svg(console: Console) -> str:
    """Export what the console shows as SVG, without a font to download."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    frame = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="tacit demo", clear=False, code_format=frame)
