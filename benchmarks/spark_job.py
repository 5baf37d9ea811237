"""Presence of kinds per subject and window in Spark Structured Streaming.

Runs in a separate Python environment, which has PySpark and not our engine. It reads events from
CSV files as a stream, writes the detections of each subject and window as CSV, and prints the
seconds, elapsed and of processor time, of the job itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession  # type: ignore[import-not-found]
from pyspark.sql import functions as sql

from benchmarks.processes import used


def main() -> None:
    """Run the job, after a small job for warming up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=Path, help="a folder of files")
    parser.add_argument("few", type=Path, help="some of the events, to warm up with")
    parser.add_argument("found", type=Path)
    parser.add_argument("--queries", nargs="+", required=True, help="three kinds each: 1,2,3")
    parser.add_argument("--size", type=int, required=True, help="of a window, in milliseconds")
    parser.add_argument("--lateness", type=int, required=True, help="in seconds")
    parser.add_argument("--closing", type=int, required=True, help="a time after all windows")
    parser.add_argument("--parallelism", type=int, required=True)
    asked = parser.parse_args()

    spark = _session(asked.parallelism)
    _run(spark, asked, asked.few, asked.found.with_name(f"{asked.found.name}.warm"))
    elapsed, processor = _run(spark, asked, asked.events, asked.found)
    spark.stop()
    print(elapsed, processor)


def _session(cores: int) -> SparkSession:
    """Start Spark within this process, without monitoring."""
    settings = {
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": cores,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _run(
    spark: SparkSession, asked: argparse.Namespace, events: Path, found: Path
) -> tuple[float, float]:
    """Read all files as a stream, group, query and write; return the seconds."""
    work = found.with_name(f"{found.name}.work")
    _give(events, work / "given", asked.closing)
    started, worked = time.perf_counter(), used()
    answers = _answers(spark, asked, work / "given")
    written = answers.writeStream.format("csv").trigger(availableNow=True)
    written.start(str(found), checkpointLocation=str(work / "checkpoints")).awaitTermination()
    return time.perf_counter() - started, used() - worked


def _answers(spark: SparkSession, asked: argparse.Namespace, given: Path) -> DataFrame:
    """Query with the kinds of a group as bits of a number, which keeps the output small."""
    events = spark.readStream.csv(str(given), "subject INT, ms BIGINT, kind INT")
    moments = events.withColumn("moment", sql.expr("timestamp_millis(ms)"))
    moments = moments.withWatermark("moment", f"{asked.lateness} seconds")
    window = sql.window("moment", f"{asked.size} milliseconds")
    return (
        moments.groupBy(window, "subject")
        .agg(sql.expr("bit_or(1 << kind)").alias("kinds"))
        .selectExpr(
            "subject",
            f"unix_millis(window.start) div {asked.size} AS win",
            " + ".join(_bit(*query) for query in enumerate(asked.queries)) + " AS found",
        )
    )


def _give(events: Path, folder: Path, closing: int) -> None:
    """Copy the files and add a last event: the end of input does not close windows in Spark.

    Files much older than the newest are ignored, so the added file gets the same age.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    last = folder / "closing.csv"
    last.write_text(f"-1,{closing},0\n")
    for path in events.iterdir():
        os.link(path, folder / path.name)
        shutil.copystat(path, last)


def _bit(number: int, query: str) -> str:
    mask = sum(1 << int(kind) for kind in query.split(","))
    return f"if((kinds & {mask}) = {mask}, {1 << number}, 0)"


if __name__ == "__main__":
    main()
