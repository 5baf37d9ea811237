"""`tacit report`: one page about a plan and a ledger."""

from __future__ import annotations

from pathlib import Path

import click

from tacit.cli import options
from tacit.cli.progress import show_spinner


@click.command()
@click.argument("places", metavar="PLAN|LEDGER...", nargs=-1, required=True)
@options.file("-o", "--out", metavar="FILE", help="Where to write the page. [default: report.html]")
@click.option("--subject", metavar="NAME", help="A statement for this subject alone.")
def report(places: tuple[str, ...], out: Path | None, subject: str | None) -> None:
    """Write one self-contained page about a plan, a ledger, or both.

    What was protected, what quality consumers get, what was spent, the audit, and whether the
    ledger is unchanged, with pictures, for a data protection officer. With --subject, a statement
    for one subject: what was spent for it, and what consumers were told about it. Show the page to
    operators, subjects and officers, not to consumers.

    \b
    Examples:
      tacit report plan.json spent.db -o report.html
      tacit report spent.db plan.json --subject taxi-7 -o taxi-7.html
    """
    from tacit.cli.sources import check_targets
    from tacit.insight.report_page import report as make_report

    target = out or Path("report.html")
    check_targets([target], list(places))
    with show_spinner("Reading ..."):
        page = make_report(*places, subject=subject)
    page.save(target)
    click.echo(f"Wrote {target}. It is not for consumers.")
