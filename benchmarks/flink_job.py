"""Queries in Flink SQL: presence of kinds per subject and window, or one ordered query.

Runs in a separate Python environment, which has PyFlink and not our engine. It reads events from
CSV files, writes the subjects and windows with a detection as CSV, and prints the seconds, elapsed
and of processor time, of the job itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

from benchmarks.processes import used

SOURCE = """
CREATE TABLE {name} (
  subject INT, ms BIGINT, kind INT,
  win AS ms / {size},
  moment AS TO_TIMESTAMP_LTZ(ms, 3),
  WATERMARK FOR moment AS moment - INTERVAL '{lateness}' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""

# Detections as bits of a number: the smallest output.
SINK = """
CREATE TABLE {name} (subject INT, win BIGINT, found BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""

# Only the three event types reach the matcher, and between two elements anything but the next one
# is allowed: so there is one way to match, and little state. The window is part of the key, which
# makes windows tumble; the reader removes duplicate rows.
ORDER = """
SELECT subject, win, 1 FROM (SELECT * FROM {source} WHERE kind IN ({a}, {b}, {c}))
MATCH_RECOGNIZE (
  PARTITION BY subject, win
  ORDER BY moment
  MEASURES C.kind AS last_kind
  ONE ROW PER MATCH
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (A X* B Y* C){within}
  DEFINE
    A AS A.kind = {a},
    X AS X.kind <> {b},
    B AS B.kind = {b},
    Y AS Y.kind <> {c},
    C AS C.kind = {c}
) AS matched
"""

# Flink has no aggregate for bitwise or. A stream collects kinds in a bitmap, which is cheaper than
# a maximum for each; a batch cannot compile that. It does not need a window either: the number of
# the window is a sufficient key.
STREAMED = """
SELECT subject, TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) / {seconds},
  {found}
FROM (
  SELECT subject, window_start, BITMAP_BUILD_AGG(kind) AS kinds
  FROM TABLE(TUMBLE(TABLE {source}, DESCRIPTOR(moment), INTERVAL '{seconds}' SECOND))
  GROUP BY subject, window_start, window_end
)
"""
IN_BITMAP = "BITMAP_CARDINALITY(BITMAP_AND(kinds, BITMAP_BUILD(ARRAY[{a}, {b}, {c}]))) = 3"
BATCHED = """
SELECT subject, win, {found}
FROM (SELECT subject, win, {each} FROM {source} GROUP BY subject, win)
"""
IN_COLUMNS = "k{a} + k{b} + k{c} = 3"
COLUMN = "MAX(CASE WHEN kind = {kind} THEN 1 ELSE 0 END) AS k{kind}"


def main() -> None:
    """Run the job in the requested mode, after a small job for warming up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ask", choices=["presence", "order"])
    parser.add_argument("mode", choices=["batch", "streaming"])
    parser.add_argument("events", type=Path, help="a folder of files")
    parser.add_argument("few", type=Path, help="some of the events, to warm up with")
    parser.add_argument("found", type=Path)
    parser.add_argument("--queries", nargs="+", required=True, help="three kinds each: 1,2,3")
    parser.add_argument("--size", type=int, required=True, help="of a window, in milliseconds")
    parser.add_argument("--lateness", type=int, required=True, help="in seconds")
    parser.add_argument("--parallelism", type=int, required=True)
    asked = parser.parse_args()

    batch = asked.mode == "batch"
    settings = EnvironmentSettings.in_batch_mode if batch else EnvironmentSettings.in_streaming_mode
    tables = TableEnvironment.create(settings())
    tables.get_config().set("parallelism.default", str(asked.parallelism))
    tables.get_config().set("pipeline.object-reuse", "true")
    tables.get_config().set("table.local-time-zone", "UTC")
    _run(tables, asked, "few", asked.few, asked.found.with_name(f"{asked.found.name}.warm"))
    started, worked = time.perf_counter(), used()
    _run(tables, asked, "events", asked.events, asked.found)
    print(time.perf_counter() - started, used() - worked)


def _run(
    tables: TableEnvironment, asked: argparse.Namespace, name: str, events: Path, found: Path
) -> None:
    """Read events, run the query, and write the results; return when it is finished."""
    # In a stream each file has its own watermark: if one reader read them one after the other, all
    # events of the second file would be late.
    paths = [events] if asked.mode == "batch" else sorted(events.iterdir())
    for number, path in enumerate(paths):
        source = {"name": f"{name}_{number}", "path": path}
        tables.execute_sql(SOURCE.format(**source, size=asked.size, lateness=asked.lateness))
    every = " UNION ALL ".join(f"SELECT * FROM {name}_{number}" for number in range(len(paths)))
    tables.execute_sql(f"CREATE VIEW {name} AS {every}")
    tables.execute_sql(SINK.format(name=f"{name}_found", path=found))
    ask = _presence if asked.ask == "presence" else _order
    tables.execute_sql(f"INSERT INTO {name}_found {ask(name, asked)}").wait()


def _order(source: str, asked: argparse.Namespace) -> str:
    # Incomplete matches are dropped; a batch ends by itself.
    within = "" if asked.mode == "batch" else f" WITHIN INTERVAL '{asked.size // 1000}' SECOND"
    return ORDER.format(source=source, within=within, **_kinds(asked.queries[0]))


def _presence(source: str, asked: argparse.Namespace) -> str:
    queries = [_kinds(query) for query in asked.queries]
    holds = IN_COLUMNS if asked.mode == "batch" else IN_BITMAP
    found = " + ".join(
        f"CASE WHEN {holds.format(**kinds)} THEN {1 << number} ELSE 0 END"
        for number, kinds in enumerate(queries)
    )
    if asked.mode == "streaming":
        return STREAMED.format(source=source, found=found, seconds=asked.size // 1000)
    kinds = sorted({kind for query in queries for kind in query.values()}, key=int)
    each = ", ".join(COLUMN.format(kind=kind) for kind in kinds)
    return BATCHED.format(source=source, found=found, each=each)


def _kinds(query: str) -> dict[str, str]:
    return dict(zip("abc", query.split(","), strict=True))


if __name__ == "__main__":
    main()
