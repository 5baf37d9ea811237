"""Counts from released answers: estimates with intervals, measured on history where needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import polars as pl
import pyarrow as pa

from tacit.answers.collection import CollectedAnswers
from tacit.answers.count_estimates import LEVEL, CountEstimates, Method, check_options, estimate
from tacit.answers.count_model import CountModel
from tacit.answers.count_sums import (
    COLUMNS,
    OPTIONAL,
    Per,
    WeighedPlan,
    add_windows,
    check_columns,
)
from tacit.connectors.files import open_source
from tacit.engines.local import detect, run
from tacit.errors import OptionError
from tacit.ledger.answers import released
from tacit.options import option
from tacit.planning.plan import Plan
from tacit.progress import ProgressCallback, ignore_progress, scale_progress
from tacit.spec.specification import Specification
from tacit.spec.subjects import SubjectFile

_ROUNDS: Final = 3
"""How often history is run with other noise."""
_SUFFIXES: Final = (".parquet", ".csv", ".jsonl", ".arrow", ".gz", ".zst")

Grouping = str | Mapping[str, str] | None


def estimate_counts(
    answers: Any,
    plan: Plan | str | PathLike[str],
    *history: Any,
    spec: Specification | None = None,
    by: Grouping = None,
    per: Per = "window",
    method: Method = "auto",
    level: float = LEVEL,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> CountEstimates:
    """Estimate how many subjects truly have each pattern, from released answers.

    `answers` are the answers of a run, a frame, a file, or a ledger. The `plan` is the one that
    the run used. Answers that do not identify counts get a model from `history`, which is given as
    for `tacit.plan`. `by` is a column of the registry of subjects, or a mapping of subjects to
    groups. `per` is `window` or `hour`; the count of an hour is the sum over its windows.
    `method` is `auto` (unbiased where channels identify counts, a model elsewhere), `unbiased`
    (the same without a model) or `model` (a model everywhere). `level` is that of the intervals.
    """
    check_options(per, method, level)
    progress = progress or ignore_progress
    loaded = plan if isinstance(plan, Plan) else Plan.load(plan, spec)
    groups = read_groups(spec or loaded.spec, by)
    model = None
    if history or streams:
        measured = scale_progress(progress, 0, 0.8)
        model = fit_counts(loaded, *history, by=groups, per=per, progress=measured, **streams)
    found = estimate(
        open_tables(answers),
        loaded,
        model=model,
        groups=groups,
        per=per,
        method=method,
        level=level,
    )
    progress(1.0, "done")
    return found


def fit_counts(
    plan: Plan,
    *history: Any,
    by: Grouping = None,
    per: Per = "window",
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> CountModel:
    """Measure on history how true counts follow from a plan's answers, for `estimate`.

    The plan is run over history several times, with seeded noise.
    """
    check_options(per)
    return fit_periods(plan, (per,), *history, by=by, progress=progress, **streams)[per]


def fit_periods(
    plan: Plan,
    periods: Sequence[Per],
    *history: Any,
    by: Grouping = None,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> dict[Per, CountModel]:
    """Measure the models of several periods on the same runs over history."""
    progress = progress or ignore_progress
    if plan.written is not None:
        raise OptionError(
            f"a model needs the specification of the plan; give {option('spec')} as well"
        )
    groups = read_groups(plan.spec, by)
    weighed = WeighedPlan.build(plan.spec, plan.mechanisms)
    steps = [
        scale_progress(progress, n / (_ROUNDS + 1), (n + 1) / (_ROUNDS + 1))
        for n in range(_ROUNDS + 1)
    ]
    true = detect(plan.spec, *history, progress=steps[0], **streams)
    rounds = [
        _add_periods(weighed.sum_windows(found, groups), periods)
        for found in (
            _simulate(plan, seed, history, streams, steps[seed]) for seed in range(1, _ROUNDS + 1)
        )
    ]
    truth = _add_periods(weighed.sum_windows(open_tables(true), groups), periods)
    progress(1.0, "done")
    return {
        per: CountModel.fit(
            [one[per] for one in rounds],
            truth[per],
            len(weighed.queries),
            per,
            grouped=groups is not None,
        )
        for per in periods
    }


def _add_periods(cells: pl.DataFrame, periods: Sequence[Per]) -> dict[Per, pl.DataFrame]:
    """Add the sums of windows up to those of each period."""
    return {per: add_windows(cells, per) for per in periods}


def _simulate(
    plan: Plan,
    seed: int,
    history: Sequence[Any],
    streams: Mapping[str, Any],
    progress: ProgressCallback,
) -> Iterator[pa.Table]:
    """Run history with seeded noise; limits count in a ledger that is then deleted."""
    if any(private.limit is not None for private in plan.spec.private):
        with TemporaryDirectory() as folder:
            place = Path(folder) / "ledger.db"
            found = run(
                plan.spec,
                *history,
                plan=plan,
                seed=seed,
                ledger=place,
                progress=progress,
                **streams,
            )
            yield from open_tables(found)
        return
    found = run(plan.spec, *history, plan=plan, seed=seed, progress=progress, **streams)
    yield from open_tables(found)


def read_groups(spec: Specification, by: Grouping) -> Mapping[str, str] | None:
    """Return the group of each subject: a column of the registry's file, or what is given."""
    if by is None or not isinstance(by, str):
        return by
    if not isinstance(spec.subjects, SubjectFile) or spec.subjects.column is None:
        raise OptionError(
            f"{option('by')} needs a registry with columns, as in subjects: {{file: subjects.csv,"
            " column: subject}"
        )
    return spec.subjects.read_column(by, spec.folder)


def open_tables(answers: Any) -> Iterator[pa.Table]:
    """Yield answers as tables: of a run, a frame, a file or a ledger."""
    if isinstance(answers, CollectedAnswers):
        if answers.parts:
            for part in answers.parts:
                yield from (pa.Table.from_batches([batch]) for batch in part.batches())
        else:
            yield answers.arrow()
    elif isinstance(answers, str | PathLike):
        yield from _read_file(fspath(answers))
    elif hasattr(answers, "__arrow_c_stream__"):
        yield pa.table(answers)
    elif hasattr(answers, "arrow"):
        yield answers.arrow()
    elif isinstance(answers, Iterable):
        yield from answers
    else:
        raise OptionError("expected the answers of a run, a frame, a file or a ledger")


def _read_file(name: str) -> Iterator[pa.Table]:
    """Read a file of answers, or a ledger."""
    if not Path(name).is_dir() and not name.endswith(_SUFFIXES):
        with released(name) as found:
            yield from found
        return
    source = open_source(name)
    there = COLUMNS if source.keyed else source.schema().names
    check_columns(there)
    for batch in source.batches([column for column in COLUMNS if column in there]):
        table = batch.table
        optional = [column for column in OPTIONAL if column in table.column_names]
        empty = [column for column in optional if table[column].null_count == len(table)]
        yield table.drop_columns(empty)
