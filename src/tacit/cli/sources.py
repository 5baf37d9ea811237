"""Sources and sinks as the command line names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.cli.report import AnswerCounts, RunSummary
from tacit.connectors.openers import open_input, open_sink
from tacit.engines.local import assign
from tacit.engines.setup import refuse_overwrite
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.spec.specification import Specification


def open_sources(
    spec: Specification, sources: Sequence[str], *, follow: bool = False
) -> list[Input]:
    """Open the sources of a command line and assign each to its stream."""
    given = [split_stream(text, spec) for text in sources]
    return assign(spec, [(stream, open_input(name, follow=follow)) for stream, name in given])


def split_stream(text: str, spec: Specification) -> tuple[str | None, str]:
    """Split `stream=source`; the stream is None if the text names only a source."""
    stream, sign, source = text.partition("=")
    if sign and (stream in spec.streams or stream.isidentifier()) and not Path(text).exists():
        return stream, source
    return None, text


def check_targets(
    targets: Sequence[str | Path | None], inputs: Sequence[str | Path | None]
) -> None:
    """Refuse to overwrite an input; inputs may be written as `stream=source`."""
    refuse_overwrite(targets, [str(one).rpartition("=")[2] for one in inputs if one is not None])


def write_answers(run: Run, sink: str, *, protected: bool = False) -> RunSummary:
    """Write the answers of a run; the file appears only when it is complete."""
    counts = AnswerCounts()
    consumers = {query.name: query.consumer for query in run.spec.queries}
    with open_sink(sink, run.schema, consumers) as file:
        run.add_sink(file)
        for answers in run:
            counts.add(answers)
    return RunSummary.of(run, counts, protected=protected)
