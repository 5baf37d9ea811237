"""`tacit detect`: true answers, for operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.report import check_refusals
from tacit.cli.warm import compile_kernels

UNPROTECTED: Final = "These answers are true and unprotected: they are for the operator only."


@click.command()
@options.spec
@options.allow_path
@options.sources
@options.sink
@options.dead_letters
@options.subjects
@options.learn
@options.fail_if_refused
@options.as_json("Print the summary as JSON.")
def detect(
    spec: Path,
    sources: tuple[str, ...],
    sink: str,
    dead_letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    allowed: float | None,
    as_json: bool,
) -> None:
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
    from tacit.cli.sources import check_targets, open_sources, write_answers
    from tacit.engines.setup import letters_beside, replace_registry
    from tacit.engines.warmup import list_run_features
    from tacit.pipeline.deadletters import DeadLetters
    from tacit.pipeline.run import Run
    from tacit.spec.yaml_reader import load

    checked = replace_registry(load(spec, options.allowed_paths()), subjects, learn)
    inputs = open_sources(checked, sources)
    letters_file = letters_beside(sink, dead_letters)
    check_targets([sink, letters_file], [spec, *sources])
    compile_kernels(list_run_features("detect", checked, inputs))
    with (
        show_progress([input_.source for input_ in inputs]) as progress,
        DeadLetters(letters_file) as letters,
    ):
        run = Run(checked, inputs, dead_letters=letters, progress=progress)
        summary = write_answers(run, sink)
    click.echo(UNPROTECTED, err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict(), indent=2), err=sink == "-")
    else:
        click.echo(summary, err=True)
    check_refusals(run.refusals, allowed)
