"""`tacit detect`: sources in, true answers out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click
import pyarrow as pa

from tacit.cli.reporting import UNPROTECTED, Summary, Tally, watching
from tacit.connectors.deadletters import DeadLetters
from tacit.connectors.opening import open_input, open_sink
from tacit.connectors.placeholders import FileTemplate, has_placeholders
from tacit.durations import parse_duration
from tacit.engines.local import Detection, Input, assign
from tacit.errors import SinkError
from tacit.spec.reading import load
from tacit.spec.specification import Specification
from tacit.spec.subjects import Learned, SubjectFile


def run_detection(
    spec_file: Path,
    sources: tuple[str, ...],
    sink: str,
    letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    as_json: bool,
) -> None:
    """Run, and say what came of it."""
    spec = registered(load(spec_file), subjects, learn)
    inputs = opened(spec, sources)
    letters = letters_beside(sink, letters)
    spare([sink, letters], [spec_file, *sources])
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


def letters_beside(sink: str, letters: Path | None) -> Path | None:
    """Where dead letters go: where it says, or beside the sink."""
    if letters is None and has_placeholders(sink):
        template = FileTemplate(sink)
        beside = template.base / "dead-letters.jsonl"
        return template.base / ".dead-letters.jsonl" if template.matches(beside) else beside
    if letters is None and sink != "-" and "://" not in sink and Path(sink).name:
        return Path(sink).with_suffix(".dead-letters.jsonl")
    return letters


def named(text: str, spec: Specification) -> tuple[str | None, str]:
    """`stream=source`, where what stands before the sign can be a stream's name."""
    stream, sign, source = text.partition("=")
    if sign and (stream in spec.streams or stream.isidentifier()) and not Path(text).exists():
        return stream, source
    return None, text


def registered(spec: Specification, subjects: Path | None, learn: str | None) -> Specification:
    """The specification with the registry that the command line names."""
    if subjects is not None and learn is not None:
        raise click.UsageError("--subjects and --learn exclude each other")
    if subjects is not None:
        given: SubjectFile | Learned = SubjectFile(file=str(subjects.absolute()))
    elif learn is not None:
        try:
            long = parse_duration(learn)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--learn") from error
        if not long:
            raise click.BadParameter("learn from more than nothing", param_hint="--learn")
        given = Learned.model_validate({"learn": learn})
    else:
        return spec
    return spec.model_copy(update={"subjects": given})


def spare(targets: Sequence[str | Path | None], inputs: Sequence[str | Path | None]) -> None:
    """Refuse to write over what is read; an input may be written `stream=source`."""
    names = [str(text).rpartition("=")[2] for text in inputs if text is not None]
    for target in (one for one in targets if one is not None):
        if has_placeholders(str(target)):
            _spare_matching(str(target), names)
        for given in names:
            if not (os.path.exists(target) and os.path.exists(given)):
                continue
            folder = Path(given) if Path(given).is_dir() else None
            if os.path.samefile(target, given) or Path(target).absolute().parent == folder:
                raise SinkError(f"{target} is read by this run; choose another place to write to")


def _spare_matching(target: str, inputs: Sequence[str]) -> None:
    """The same for a name with placeholders: one of its files might be an input."""
    template = FileTemplate(target)
    for given in inputs:
        if os.path.exists(given) and template.matches(given, folders=True):
            raise SinkError(f"{target} may be {given}, which is read; choose another place")
