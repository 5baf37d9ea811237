"""Run Tacit, and store protected answers in PostgreSQL: python store.py SPEC SOURCE --plan PLAN."""

from __future__ import annotations

import argparse
from typing import Any

import psycopg
import pyarrow as pa

import tacit

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    id bigint PRIMARY KEY,
    window_start timestamptz NOT NULL,
    window_end timestamptz NOT NULL,
    subject text NOT NULL,
    consumer text NOT NULL,
    query text NOT NULL,
    detected boolean NOT NULL,
    confidence real NOT NULL,
    exhausted boolean NOT NULL
);
CREATE INDEX IF NOT EXISTS answers_by_time ON answers (window_start, query);
"""
_COLUMNS = (
    "id", "window_start", "window_end", "subject", "consumer", "query", "detected", "confidence",
    "exhausted",
)  # fmt: skip


def store(connection: psycopg.Connection[Any], answers: pa.Table) -> None:
    """Insert the answers of a release; after a crash it may come again, with the same ids."""
    if "exhausted" not in answers.column_names:
        none = pa.array([False] * answers.num_rows)
        answers = answers.append_column("exhausted", none)
    rows = zip(*(answers.column(name).to_pylist() for name in _COLUMNS), strict=True)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE coming (LIKE answers) ON COMMIT DROP")
        with cursor.copy(f"COPY coming ({', '.join(_COLUMNS)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        cursor.execute("INSERT INTO answers SELECT * FROM coming ON CONFLICT (id) DO NOTHING")


def main() -> None:
    """Run until the source ends; brokers and followed files have no end."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("spec")
    arguments.add_argument("source")
    arguments.add_argument("--plan")
    arguments.add_argument("--ledger", required=True)
    arguments.add_argument("--database", required=True)
    arguments.add_argument("--follow", action="store_true")
    given = arguments.parse_args()
    with psycopg.connect(given.database, autocommit=True) as connection:
        connection.execute(_TABLE)
        tacit.run(
            given.spec,
            given.source,
            plan=given.plan,
            ledger=given.ledger,
            follow=given.follow,
            to=lambda table: store(connection, table),
        )


if __name__ == "__main__":
    main()
