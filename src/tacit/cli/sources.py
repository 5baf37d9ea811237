"""Sources and sinks as the command line names them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tacit.answers.counts import count_schema
from tacit.cli.run_summary import AnswerCounts, RunSummary
from tacit.connectors.openers import open_sink
from tacit.engines.local import open_counts_sink
from tacit.engines.setup import refuse_overwrite
from tacit.pipeline.run import Run


def split_streams(sources: Sequence[str]) -> list[tuple[str | None, str]]:
    """Split each `stream=source`; the stream is None if the text names only a source."""
    return [_split_stream(text) for text in sources]


def _split_stream(text: str) -> tuple[str | None, str]:
    stream, sign, source = text.partition("=")
    if sign and stream.isidentifier() and not Path(text).exists():
        return stream, source
    return None, text


def check_targets(
    targets: Sequence[str | Path | None], inputs: Sequence[str | Path | None]
) -> None:
    """Refuse to overwrite an input; inputs may be written as `stream=source`."""
    refuse_overwrite(targets, [str(one).rpartition("=")[2] for one in inputs if one is not None])


def write_answers(
    run: Run, sink: str, counts_to: str | None = None, *, protected: bool = False
) -> RunSummary:
    """Write the answers and counts of a run; the files appear only when they are complete."""
    counts = AnswerCounts()
    consumers = {query.name: query.consumer for query in run.spec.subject_queries}
    with ExitStack() as stack:
        run.add_sink(stack.enter_context(open_sink(sink, run.schema, consumers)))
        if counts_to is not None:
            schema = count_schema(private=run.compiled.evaluator.private)
            run.add_sink(stack.enter_context(open_counts_sink(run, counts_to, schema)))
        for answers in run:
            counts.add(answers)
    return RunSummary.of(run, counts, protected=protected)
