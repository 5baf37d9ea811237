"""One ordered query in Flink: SEQ(a, b, c) per subject and window, by MATCH_RECOGNIZE.

Runs in a Python environment of its own, which has PyFlink and nothing of ours. It reads
events as CSV, writes the subjects and windows in which the pattern is found as CSV, and
prints the seconds, elapsed and of processor time, that the job itself took.
"""

from __future__ import annotations

import argparse
import time

import psutil
from pyflink.table import EnvironmentSettings, TableEnvironment

SOURCE = """
CREATE TABLE {name} (
  subject INT, ms BIGINT, kind INT,
  win AS ms / {size},
  moment AS TO_TIMESTAMP_LTZ(ms, 3),
  WATERMARK FOR moment AS moment - INTERVAL '{lateness}' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""

SINK = """
CREATE TABLE {name} (subject INT, win BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""

# Only the three event types reach the matcher, and what may stand between two elements is
# anything but the next one: so there is one way to match, and little state. The window is a
# part of the key, which makes windows tumble; distinct rows are left to the reader.
QUERY = """
INSERT INTO {sink}
SELECT subject, win FROM (SELECT * FROM {source} WHERE kind IN ({a}, {b}, {c}))
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


def main() -> None:
    """Run the job in the mode that was asked for, after a small one that warms up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events")
    parser.add_argument("small", help="some of the events, to warm up with")
    parser.add_argument("found")
    parser.add_argument("--elements", type=int, nargs=3, required=True)
    parser.add_argument("--size", type=int, required=True, help="of a window, in milliseconds")
    parser.add_argument("--lateness", type=int, required=True, help="in seconds")
    parser.add_argument("--parallelism", type=int, required=True)
    parser.add_argument("--mode", choices=["batch", "streaming"], required=True)
    asked = parser.parse_args()

    batch = asked.mode == "batch"
    settings = EnvironmentSettings.in_batch_mode if batch else EnvironmentSettings.in_streaming_mode
    tables = TableEnvironment.create(settings())
    tables.get_config().set("parallelism.default", str(asked.parallelism))
    _match(tables, asked, "small", asked.small, f"{asked.found}.warm")
    begun, worked = time.perf_counter(), _processor_time()
    _match(tables, asked, "events", asked.events, asked.found)
    print(time.perf_counter() - begun, _processor_time() - worked)


def _match(
    tables: TableEnvironment, asked: argparse.Namespace, name: str, events: str, found: str
) -> None:
    """Read events, match, and write where the pattern was found; back when it is done."""
    sink = f"{name}_found"
    tables.execute_sql(
        SOURCE.format(name=name, path=events, size=asked.size, lateness=asked.lateness)
    )
    tables.execute_sql(SINK.format(name=sink, path=found))
    a, b, c = asked.elements
    # Matches that cannot be completed any more are forgotten; a batch ends by itself.
    within = "" if asked.mode == "batch" else f" WITHIN INTERVAL '{asked.size // 1000}' SECOND"
    query = QUERY.format(source=name, sink=sink, a=a, b=b, c=c, within=within)
    tables.execute_sql(query).wait()


def _processor_time() -> float:
    """What this process and its Java machine have used so far."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(spent.user + spent.system for spent in times))


if __name__ == "__main__":
    main()
