"""A small specification with private patterns, and random tuples for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from click.testing import CliRunner, Result

from tacit.cli.main import main

SPEC = """
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
  c: {stream: s, where: "kind = 'c'"}
  d: {stream: s, where: "kind = 'd'"}
patterns: {visit: "SEQ(a, b)"}
private:
  - {pattern: visit, epsilon: 2}
queries:
  - {name: both, consumer: us, pattern: "AND(a, c)"}
  - {name: either, consumer: us, pattern: "OR(a, b)"}
  - {name: open, consumer: us, pattern: "SEQ(c, d)"}
"""


def tacit(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def specified(folder: Path, text: str = SPEC) -> Path:
    """A specification in a file."""
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


def tuples(path: Path, seed: int, windows: int = 60, subjects: int = 10) -> Path:
    """Random tuples of all kinds for some subjects."""
    chance = np.random.default_rng(seed)
    there = chance.random((windows, subjects, 4)) < [0.4, 0.5, 0.6, 0.5]
    window, subject, kind = np.nonzero(there)
    at = window * 60 + chance.integers(60, size=len(window))
    frame = pl.DataFrame({"who": subject, "at": at, "kind": np.array(list("abcd"))[kind]})
    frame.sort("at").write_csv(path)
    return path
