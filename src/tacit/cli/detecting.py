"""`tacit detect`: sources in, true answers out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import pyarrow as pa

from tacit.cli.paths import allowed_paths
from tacit.cli.reporting import UNPROTECTED, Summary, Tally, judge_refusals, watching
from tacit.cli.warming import warm_up
from tacit.connectors.deadletters import DeadLetters
from tacit.connectors.opening import open_input, open_sink
from tacit.engines.local import Detection, Input, assign
from tacit.engines.setup import letters_beside, refuse_overwrite, with_registry
from tacit.engines.warming import run_features
from tacit.spec.reading import load
from tacit.spec.specification import Specification


def run_detection(
    spec_file: Path,
    sources: tuple[str, ...],
    sink: str,
    letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    as_json: bool,
    allowed: float | None = None,
) -> None:
    """Run, and say what came of it; fail if more than the `allowed` share was refused."""
    spec = with_registry(load(spec_file, allowed_paths()), subjects, learn)
    inputs = opened(spec, sources)
    letters = letters_beside(sink, letters)
    spare([sink, letters], [spec_file, *sources])
    warm_up(run_features("detect", spec, inputs))
    with (
        watching([input_.source for input_ in inputs]) as watch,
        DeadLetters(letters) as dead_letters,
    ):
        run = Detection(spec, inputs, dead_letters=dead_letters, progress=watch)
        summary = write_answers(run, sink)
    click.echo(UNPROTECTED, err=True)
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=2), err=sink == "-")
    else:
        click.echo(summary, err=True)
    judge_refusals(run.refusals, allowed)


def write_answers(run: Detection, sink: str, *, protected: bool = False) -> Summary:
    """Write a run's answers, whole or not at all."""
    tally = Tally()
    consumers = {query.name: query.consumer for query in run.spec.queries}
    with open_sink(sink, run.schema, consumers) as file:
        for answers in run:
            tally.add(answers)
            for batch in answers.batches():
                file.write(pa.Table.from_batches([batch]))
    return Summary.of(run, tally, protected=protected)


def opened(spec: Specification, sources: Sequence[str], *, follow: bool = False) -> list[Input]:
    """The sources as they are written on the command line, each for its stream."""
    given = [named(text, spec) for text in sources]
    return assign(spec, [(stream, open_input(name, follow=follow)) for stream, name in given])


def named(text: str, spec: Specification) -> tuple[str | None, str]:
    """`stream=source`, where what stands before the sign can be a stream's name."""
    stream, sign, source = text.partition("=")
    if sign and (stream in spec.streams or stream.isidentifier()) and not Path(text).exists():
        return stream, source
    return None, text


def spare(targets: Sequence[str | Path | None], inputs: Sequence[str | Path | None]) -> None:
    """Refuse to write over what is read; an input may be written `stream=source`."""
    refuse_overwrite(targets, [str(one).rpartition("=")[2] for one in inputs if one is not None])
