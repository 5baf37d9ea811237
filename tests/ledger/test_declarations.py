"""What a run declares: an account for every declaration."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import tacit


def test_a_pattern_declared_for_different_subjects_has_an_account_for_each(tmp_path: Path) -> None:
    """Each declaration is charged and limited by its own epsilon and limit."""
    spec = tacit.loads("""
version: 1
streams: {s: {subject: who, time: at, columns: {who: text, at: integer, kind: text}}}
subjects: [t0, t1, t2]
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
patterns: {visit: "SEQ(a, b)"}
private:
  - {pattern: visit, epsilon: 1, limit: 2 per day, subjects: [t0]}
  - {pattern: visit, epsilon: 2, limit: 20 per day, subjects: [t1, t2]}
queries:
  - {name: either, consumer: city, pattern: "OR(a, b)"}
mechanism: uniform
""")
    rows = [(f"t{n % 3}", 60 * (n // 3) + n % 3, "a") for n in range(24)]
    place = tmp_path / "ledger.db"
    answers = tacit.run(spec, pl.DataFrame(rows, ["who", "at", "kind"], orient="row"), ledger=place)
    exhausted = answers.polars().group_by("subject").agg(pl.col("exhausted").sum())
    assert dict(exhausted.cast({"subject": pl.String}).iter_rows()) == {"t0": 6, "t1": 0, "t2": 0}
    for subject, spent, limit in (("t0", 2, 2), ("t1", 16, 20)):
        (horizon,) = tacit.show_ledger(place, subject=subject).horizons
        assert (horizon.spent, horizon.limit) == (spent * 10**9, limit * 10**9)
    assert tacit.verify_ledger(place).passed
