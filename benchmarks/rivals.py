"""The same job without privacy in Polars and DuckDB, each in several ways.

Both group by window and subject. They return a row for each group with events and a bool for each
query (presence), or a row for each detection (order). We return a bit for every registered subject,
window and query. All of them use all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.data import START, WINDOW, Scale

Queries = Sequence[tuple[int, int, int]]
Ways = dict[str, Callable[[], Any]]
_FIRST = START // WINDOW


def scan(source: pa.Table | Path) -> pl.LazyFrame:
    """Scan a table or Parquet file with Polars, without a copy of the table."""
    if isinstance(source, Path):
        return pl.scan_parquet(source)
    frame = pl.from_arrow(source)
    assert isinstance(frame, pl.DataFrame)
    return frame.lazy()


def _mask(query: tuple[int, int, int]) -> int:
    return sum(1 << kind for kind in query)


# Presence in Polars.

_MINUTE = (pl.col("time").to_physical() // WINDOW - _FIRST).cast(pl.Int32)


def _bit(kinds: int) -> pl.Expr:
    """Compute the bit of a tuple's kind; a look-up is the fastest way to shift."""
    bits = pl.Series([1 << kind for kind in range(kinds)], dtype=pl.Int32)
    return pl.lit(bits).gather(pl.col("kind"))


def _asked(queries: Queries) -> list[pl.Expr]:
    return [
        ((pl.col("bits") & _mask(query)) == _mask(query)).alias(f"q{number}")
        for number, query in enumerate(queries)
    ]


def _polars_bits(events: pl.LazyFrame, queries: Queries, scale: Scale) -> pl.DataFrame:
    return (
        events.select(_MINUTE.alias("window"), "subject", _bit(scale.kinds).alias("bits"))
        .group_by("window", "subject")
        .agg(pl.col("bits").bitwise_or())
        .select("window", "subject", *_asked(queries))
        .collect(engine="streaming")
    )


def _polars_key(events: pl.LazyFrame, queries: Queries, scale: Scale) -> pl.DataFrame:
    """Group by one number for window and subject: possible if subjects are small numbers."""
    key = _MINUTE * scale.subjects + pl.col("subject")
    return (
        events.select(key.alias("key"), _bit(scale.kinds).alias("bits"))
        .group_by("key")
        .agg(pl.col("bits").bitwise_or())
        .select(
            (pl.col("key") // scale.subjects).alias("window"),
            (pl.col("key") % scale.subjects).alias("subject"),
            *_asked(queries),
        )
        .collect(engine="streaming")
    )


def _polars_any(events: pl.LazyFrame, queries: Queries, scale: Scale) -> pl.DataFrame:
    present = [(pl.col("kind") == kind).any().alias(f"k{kind}") for kind in range(scale.kinds)]
    return (
        events.select(_MINUTE.alias("window"), "subject", "kind")
        .group_by("window", "subject")
        .agg(*present)
        .select(
            "window",
            "subject",
            *(
                pl.all_horizontal(*(f"k{kind}" for kind in query)).alias(f"q{number}")
                for number, query in enumerate(queries)
            ),
        )
        .collect(engine="streaming")
    )


# Presence in DuckDB.


def _duckdb_asked(queries: Queries) -> str:
    return ", ".join(
        f"(bits & {_mask(query)}) = {_mask(query)} AS q{number}"
        for number, query in enumerate(queries)
    )


_DUCKDB_MINUTE = f"(epoch_us(time) // {WINDOW} - {_FIRST})::INTEGER"


def _duckdb_bits(queries: Queries) -> str:
    return (
        f"SELECT minute AS window, subject, {_duckdb_asked(queries)} FROM ("
        f" SELECT {_DUCKDB_MINUTE} AS minute, subject, bit_or(1::INTEGER << kind) AS bits"
        " FROM events GROUP BY ALL)"
    )


def _duckdb_key(queries: Queries, scale: Scale) -> str:
    many = scale.subjects
    return (
        f"SELECT key // {many} AS window, key % {many} AS subject, {_duckdb_asked(queries)} FROM ("
        f" SELECT {_DUCKDB_MINUTE} * {many} + subject AS key, bit_or(1::INTEGER << kind) AS bits"
        " FROM events GROUP BY ALL)"
    )


def _duckdb_any(queries: Queries, scale: Scale) -> str:
    present = ", ".join(f"bool_or(kind = {kind}) AS k{kind}" for kind in range(scale.kinds))
    asked = ", ".join(
        f"{' AND '.join(f'k{kind}' for kind in query)} AS q{number}"
        for number, query in enumerate(queries)
    )
    return (
        f"SELECT minute AS window, subject, {asked} FROM ("
        f" SELECT {_DUCKDB_MINUTE} AS minute, subject, {present} FROM events GROUP BY ALL)"
    )


def _duckdb(source: pa.Table | Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET preserve_insertion_order = false")
    # It may use an array instead of a hash table for small ranges of groups.
    connection.execute("SET perfect_ht_threshold = 24")
    if isinstance(source, Path):
        connection.execute(f"CREATE VIEW events AS FROM read_parquet('{source}')")
    else:
        connection.register("events", source)
    return connection


def decoding(path: Path, *, text: bool = False) -> Ways:
    """Return ways to only decode the columns of a Parquet file.

    Into memory as a whole, or in batches that are dropped at once, which saves memory.
    """
    columns, keys = ["subject", "time", "kind"], ["subject"] if text else []
    return {
        "PyArrow": lambda: pq.read_table(path, columns=columns, read_dictionary=keys),
        "PyArrow, in batches": lambda: _drop_arrow(path, columns, keys),
        "Polars": lambda: pl.read_parquet(path, columns=columns),
        "Polars, in batches": lambda: _drop_polars(path, columns),
    }


def _drop_arrow(path: Path, columns: list[str], keys: list[str]) -> None:
    with pq.ParquetFile(path, read_dictionary=keys) as file:
        for _ in file.iter_batches(1 << 18, columns=columns):
            pass


def _drop_polars(path: Path, columns: list[str]) -> None:
    for _ in pl.scan_parquet(path).select(columns).collect_batches(maintain_order=True):
        pass


def presence(
    source: pa.Table | Path, queries: Queries, scale: Scale, *, text: bool = False
) -> Ways:
    """Return ways to answer AND queries of three kinds each."""
    events, connection = scan(source), _duckdb(source)
    statements = {"bits": _duckdb_bits(queries), "any": _duckdb_any(queries, scale)}
    ways: Ways = {
        "Polars bits": lambda: _polars_bits(events, queries, scale),
        "Polars any": lambda: _polars_any(events, queries, scale),
    }
    if not text:
        statements["key"] = _duckdb_key(queries, scale)
        ways["Polars key"] = lambda: _polars_key(events, queries, scale)
    for label, statement in statements.items():
        ways[f"DuckDB {label}"] = partial(_arrow, connection, statement)
    return ways


def _arrow(connection: duckdb.DuckDBPyConnection, statement: str) -> pa.Table:
    return connection.sql(statement).to_arrow_table()


# Order.


def _keyed(events: pl.LazyFrame, scale: Scale) -> pl.LazyFrame:
    return events.select(
        (_MINUTE * scale.subjects + pl.col("subject")).alias("key"),
        pl.col("time").to_physical().alias("at"),
        "kind",
    )


def _chain(
    first: pl.LazyFrame, second: pl.LazyFrame, third: pl.LazyFrame, number: int
) -> pl.LazyFrame:
    """Find the earliest second after the earliest first, and any third after that."""
    met = (
        second.join(first, on="key")
        .filter(pl.col("at") >= pl.col("since"))
        .group_by("key")
        .agg(pl.col("at").min().alias("since"))
    )
    return (
        third.join(met, on="key")
        .filter(pl.col("at") >= pl.col("since"))
        .select("key", pl.lit(number, pl.Int32).alias("query"))
        .unique()
    )


def _polars_joins(events: pl.LazyFrame, queries: Queries, scale: Scale) -> pl.DataFrame:
    """Join for each query separately; the optimiser finds common parts."""
    keyed = _keyed(events, scale)
    kinds = [keyed.filter(pl.col("kind") == kind) for kind in range(scale.kinds)]
    earliest = [part.group_by("key").agg(pl.col("at").min().alias("since")) for part in kinds]
    chains = [
        _chain(earliest[a], kinds[b], kinds[c], number) for number, (a, b, c) in enumerate(queries)
    ]
    return pl.concat(pl.collect_all(chains, engine="streaming"))


def _split_by_kind(events: pl.LazyFrame, scale: Scale) -> list[pl.LazyFrame]:
    """Split the events by kind, once for all queries."""
    parts = _keyed(events, scale).collect(engine="streaming").partition_by("kind", as_dict=True)
    return [parts[(kind,)].drop("kind").lazy() for kind in range(scale.kinds)]


def _once(part: pl.LazyFrame, edge: pl.Expr) -> pl.LazyFrame:
    """Find the earliest or latest of a kind in each group, once for all queries."""
    return part.group_by("key").agg(edge).collect(engine="streaming").lazy()


def _polars_between(events: pl.LazyFrame, queries: Queries, scale: Scale) -> pl.DataFrame:
    """Find a second between the earliest first and the latest third, which is enough for three."""
    kinds = _split_by_kind(events, scale)
    since, until = pl.col("at").min().alias("since"), pl.col("at").max().alias("until")
    earliest = {a: _once(kinds[a], since) for a in {query[0] for query in queries}}
    latest = {c: _once(kinds[c], until) for c in {query[2] for query in queries}}
    return pl.concat(
        kinds[b]
        .join(
            earliest[a].join(latest[c], on="key").filter(pl.col("since") <= pl.col("until")), "key"
        )
        .filter(pl.col("at").is_between("since", "until"))
        .select("key", pl.lit(number, pl.Int32).alias("query"))
        .unique()
        .collect(engine="streaming")
        for number, (a, b, c) in enumerate(queries)
    )


def _polars_shared(events: pl.LazyFrame, queries: Queries, scale: Scale) -> pl.DataFrame:
    """Split by kind and find the earliest of each kind once, for all queries."""
    kinds = _split_by_kind(events, scale)
    since = pl.col("at").min().alias("since")
    earliest = {a: _once(kinds[a], since) for a in {query[0] for query in queries}}
    return pl.concat(
        _chain(earliest[a], kinds[b], kinds[c], number).collect(engine="streaming")
        for number, (a, b, c) in enumerate(queries)
    )


def _duckdb_joins(connection: duckdb.DuckDBPyConnection, queries: Queries, scale: Scale) -> Any:
    """Join in the same way; events are keyed and split by kind once."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE keyed AS SELECT {_DUCKDB_MINUTE} * {scale.subjects}"
        " + subject AS key, epoch_us(time) AS moment, kind FROM events"
    )
    for kind in range(scale.kinds):
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE k{kind} AS"
            f" SELECT key, moment FROM keyed WHERE kind = {kind}"
        )
    found = [
        connection.sql(
            f"WITH x AS (SELECT key, min(moment) AS since FROM k{a} GROUP BY key),"
            f" y AS (SELECT key, min(k{b}.moment) AS since FROM k{b} JOIN x USING (key)"
            f" WHERE k{b}.moment >= x.since GROUP BY key)"
            f" SELECT DISTINCT key, {number}::INTEGER AS query FROM k{c} JOIN y USING (key)"
            f" WHERE k{c}.moment >= y.since"
        ).to_arrow_table()
        for number, (a, b, c) in enumerate(queries)
    ]
    return pa.concat_tables(found)


def order(source: pa.Table | Path, queries: Queries, scale: Scale) -> Ways:
    """Return ways to answer SEQ queries of three different kinds each by joins."""
    events, connection = scan(source), _duckdb(source)
    return {
        "Polars joins": lambda: _polars_joins(events, queries, scale),
        "Polars joins, shared parts": lambda: _polars_shared(events, queries, scale),
        "Polars joins, between": lambda: _polars_between(events, queries, scale),
        "DuckDB joins, shared parts": lambda: _duckdb_joins(connection, queries, scale),
    }


# The answers in one form.


def dense(result: Any, scale: Scale, queries: int) -> NDArray[np.bool_]:
    """Convert a result to `[window][subject][query]`."""
    frame = result if isinstance(result, pl.DataFrame) else pl.DataFrame(result)
    found = np.zeros((scale.windows, scale.subjects, queries), dtype=np.bool_)
    if "query" in frame.columns:
        keys = frame["key"].to_numpy()
        found.reshape(-1, queries)[keys, frame["query"].to_numpy()] = True
        return found
    subjects = frame["subject"]
    if subjects.dtype == pl.String:
        subjects = subjects.str.slice(len("vehicle-")).cast(pl.Int32)
    answers = frame.select(f"q{number}" for number in range(queries)).to_numpy()
    found[frame["window"].to_numpy(), subjects.to_numpy()] = answers
    return found
