"""What the layout of answers must not tell: who came first, who came too late, when."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tacit
from tacit.connectors import sinks
from tacit.connectors.openers import open_sink
from tacit.errors import PlanError, SpecificationError

SPEC = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events:
  x: {stream: s, where: "kind = 1"}
  u: {stream: s, where: "kind = 2"}
private:
  - {pattern: x, epsilon: 1}
queries:
  - {name: q, consumer: c, pattern: x}
  - {name: r, consumer: c, pattern: u}
"""


def rows(*given: tuple[str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(given, ["who", "at", "kind"], orient="row")


def names(answers: pl.DataFrame) -> list[str]:
    return answers["subject"].cast(pl.String).unique(maintain_order=True).to_list()


@pytest.mark.parametrize("learned", [False, True])
def test_rows_do_not_tell_who_was_heard_of_first(learned: bool) -> None:
    """One neighbour sends its private event first, the other not at all."""
    spec = tacit.loads(SPEC + ("subjects: {learn: 2 min}\n" if learned else ""))
    plan = tacit.plan(spec, mechanism="uniform")
    later = [("bob", 5, 2), ("ann", 6, 2), ("cid", 200, 2)]
    for first in ("ann", "bob"):
        sent = rows((first, 1, 1), *later)
        found = tacit.run(spec, iter([sent]) if learned else sent, plan=plan).polars()
        assert names(found)[:2] == ["ann", "bob"]


def test_who_was_heard_of_too_late_leaves_no_trace() -> None:
    spec = tacit.loads(SPEC + "subjects: {learn: 1 min}\n")
    plan = tacit.plan(spec, mechanism="uniform")
    sent = rows(("ann", 1, 2), ("ann", 130, 2), ("late", 131, 1), ("ann", 400, 2))
    table = tacit.run(spec, iter([sent]), plan=plan).arrow()
    assert table.column("subject").unique().to_pylist() == ["ann"]
    for chunk in table.column("subject").chunks:
        assert chunk.dictionary.to_pylist() == ["ann"]


def test_groups_of_rows_in_a_file_do_not_tell_when_windows_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_GROUP", 100)
    table = pa.table({"n": list(range(430))})
    for name, cuts in (("a", [0, 30, 31, 250, 430]), ("b", [0, 430])):
        with open_sink(tmp_path / f"{name}.parquet", table.schema) as sink:
            for begin, end in pairwise(cuts):
                sink.write(table.slice(begin, end - begin))
    first, second = (tmp_path / f"{name}.parquet" for name in "ab")
    groups = [pq.ParquetFile(path).metadata for path in (first, second)]
    sizes = [[meta.row_group(n).num_rows for n in range(meta.num_row_groups)] for meta in groups]
    assert sizes[0] == sizes[1] == [100, 100, 100, 100, 30]
    assert pq.read_table(first).equals(table)


def test_a_plan_for_another_specification_does_not_run() -> None:
    """A larger epsilon, or another pattern, would be protected less than was asked."""
    spec = tacit.loads(SPEC)
    sent = rows(("ann", 1, 1))
    for other in (
        SPEC.replace("epsilon: 1", "epsilon: 40"),
        SPEC.replace("pattern: x, e", "pattern: u, e"),
    ):
        plan = tacit.plan(tacit.loads(other), mechanism="uniform")
        with pytest.raises(PlanError, match="another specification"):
            tacit.run(spec, sent, plan=plan)
    registered = spec.model_copy(update={"subjects": ("ann", "bob")})
    assert len(tacit.run(registered, sent, plan=tacit.plan(spec, mechanism="uniform"))) == 4


def test_a_name_that_the_registry_does_not_have_stops_the_run() -> None:
    named = SPEC.replace("epsilon: 1}", "epsilon: 1, subjects: [Ann]}")
    spec = tacit.loads(named).model_copy(update={"subjects": ("ann",)})
    with pytest.raises(SpecificationError, match="'Ann'"):
        tacit.run(spec, rows(("ann", 1, 1)), plan=tacit.plan(spec, mechanism="uniform"))


def test_seeded_answers_say_in_every_row_that_they_are_not_private() -> None:
    spec = tacit.loads(SPEC)
    plan = tacit.plan(spec, mechanism="uniform")
    sent = rows(("ann", 1, 1), ("bob", 70, 2))
    seeded = tacit.run(spec, sent, plan=plan, seed=1).polars()
    assert seeded["private"].to_list() == [False] * len(seeded)
    assert "private" not in tacit.run(spec, sent, plan=plan).polars().columns
