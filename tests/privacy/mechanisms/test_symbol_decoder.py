"""Symbols are decoded in one pass: the answers are those of the general way."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.privacy.mechanisms.optimal.symbol_decoder import SymbolDecoder
from tacit.spec.specification import Specification

KINDS = "abcdst"
QUERIES = ["AND(a, s)", "OR(a, c)", "AND(a, c, s)", "s", "AND(b, d)", "OR(b, AND(d, t))", "d"]


def specification(decode: str) -> Specification:
    """Two private patterns, and queries about one of them, both or none."""
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min"},
            "events": {kind: {"stream": "events", "where": f"kind = '{kind}'"} for kind in KINDS},
            "private": [
                {"pattern": "AND(a, b)", "epsilon": 2.0},
                {"pattern": "AND(c, d)", "epsilon": 1.0},
            ],
            "queries": [
                {"name": f"q{number}", "consumer": "all", "pattern": pattern}
                for number, pattern in enumerate(QUERIES)
            ],
            "subjects": [f"s{number:03}" for number in range(101)],
            "decode": decode,
            "memory": "off",
        }
    ).checked()


def events(seed: int) -> pl.DataFrame:
    """Random events of 101 subjects: the last word of a bit column is not full."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 5 * 60, 3000)) * 1_000_000
    return pl.DataFrame(
        {
            "who": [f"s{number:03}" for number in rng.integers(0, 101, 3000)],
            "at": pl.Series(times).cast(pl.Datetime("us")),
            "kind": [KINDS[number] for number in rng.integers(0, len(KINDS), 3000)],
        }
    )


@pytest.mark.parametrize("decode", ["posterior", "literal"])
def test_decoding_at_once_gives_the_same_answers(
    decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specification(decode)
    plan = tacit.plan(spec, events(1), mechanism="optimal")
    used: list[bool] = []
    decoded = SymbolDecoder.decode

    def counting(self: SymbolDecoder, *given: Any) -> None:
        used.append(True)
        decoded(self, *given)

    monkeypatch.setattr(SymbolDecoder, "decode", counting)
    fast = tacit.run(spec, events(2), plan=plan, seed=3).polars()
    if decode == "posterior":
        assert used, "the usual case was not met"
    monkeypatch.setattr(SymbolDecoder, "can_decode", lambda *_: False)
    general = tacit.run(spec, events(2), plan=plan, seed=3).polars()
    assert fast.equals(general)
    assert 0 < fast["detected"].sum() < len(fast)
