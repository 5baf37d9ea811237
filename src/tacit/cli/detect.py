"""`tacit detect`: true answers, for operators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.run_summary import check_refusals, check_times, format_occurrences
from tacit.cli.warm import compile_kernels

if TYPE_CHECKING:
    from tacit.engines.setup import RunOptions

UNPROTECTED: Final = "These answers are true and unprotected: they are for the operator only."


@click.command()
@options.spec
@options.allow_path
@options.sources
@options.sink
@options.counts_to
@options.dead_letters
@options.subjects
@options.learn
@options.threads
@options.fail_if_refused
@options.as_json("Print the summary as JSON.")
@options.as_run
def detect(given: RunOptions, allowed: float | None, as_json: bool) -> None:
    """Write the TRUE, UNPROTECTED answers, for operators only.

    A SOURCE is a path (.parquet, .csv, .jsonl, .arrow, a folder or a glob such as 'trips/*.csv'),
    or - for JSON lines on standard input. Write STREAM=SOURCE if the specification has several
    streams. If nothing names the subjects, they are learned from the whole input, or from the first
    ten windows if the input can be read only once.

    \b
    Examples:
      tacit detect examples/taxi.yaml trips.parquet --to answers.parquet
      tacit detect home.yaml doors=doors.csv power=power.jsonl --to answers.csv
      zcat trips.jsonl.gz | tacit detect examples/taxi.yaml - > answers.jsonl
    """
    from tacit.cli.sources import write_answers
    from tacit.engines.warmup import list_run_features
    from tacit.pipeline.deadletters import DeadLetters
    from tacit.pipeline.evaluators import CountingDetector
    from tacit.pipeline.run import Run

    checked = given.register(given.load())
    inputs = given.open_inputs(checked)
    given.check_counts(checked)
    given.check_places()
    compile_kernels(list_run_features("detect", checked, inputs, target=given.target))
    with (
        show_progress("Reading ...") as progress,
        DeadLetters(given.letters) as letters,
    ):
        evaluator = CountingDetector(checked)
        run = Run(
            checked,
            inputs,
            evaluator=evaluator,
            dead_letters=letters,
            progress=progress,
            workers=given.workers,
        )
        summary = write_answers(run, given.target or "-", given.counts_target)
    click.echo(UNPROTECTED, err=True)
    if as_json:
        fields = summary.to_dict() | {"events": evaluator.occurrences}
        click.echo(json.dumps(fields, indent=2), err=given.target == "-")
    else:
        click.echo(summary, err=True)
        for line in format_occurrences(summary, evaluator.occurrences):
            click.echo(line, err=True)
    check_refusals(run.refusals, allowed)
    check_times(summary)
