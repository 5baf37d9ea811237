"""Rows of counts: what is drawn, what is certain, and rows without a count."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.counts import CountAnswers, count_schema
from tacit.privacy.mechanisms.counts import add_methods
from tacit.service.console.charts import draw_counts
from tacit.service.console.views import _list_groups

UNKNOWN = np.full((1, 4), np.nan)
FORMER: list[NDArray[Any]] = [
    np.array([[7, 3, 2, 0]]),
    np.array([[5, 3, 2, 0]]),
    np.array([[9, 3, 2, 0]]),
    np.array([[0.97, 1, 1, 1]], np.float32),
    np.array([[20, 20, 4, 0]]),
    np.array([[0, 0, 16, 20]]),
    *(UNKNOWN,) * 3,
]
"""Columns that a former version released: drawn, exact, and two that were not drawn."""


def rows() -> CountAnswers:
    """What was released, as it is read now."""
    groups = ["drawn", "exact", "some", "nobody"]
    draws = add_methods(FORMER)
    return CountAnswers(["n"] * 4, ["city"] * 4, groups, 0, 60_000_000, 60_000_000, draws)


def test_a_row_without_a_count_has_none_and_says_what_is_certain() -> None:
    frame = pl.DataFrame(rows().table())
    assert rows().table().schema == count_schema()
    shown = frame.select("count", "low", "high", "confidence", "method").rows()
    assert [(*row[:3], row[4]) for row in shown] == [
        (7, 5, 9, "drawn"),
        (3, 3, 3, "exact"),
        (None, 2, 18, "none"),
        (None, 0, 20, "none"),
    ]
    assert [row[3] < 1 for row in shown] == [True, False, False, False]


def test_the_console_says_that_a_count_was_not_drawn() -> None:
    drawn, exact, some, nobody = _list_groups(rows().table(), "n")
    assert (drawn["count"], exact["count"], some["count"], nobody["count"]) == (7, 3, None, None)
    assert "the last is 7, from 5 to 9" in drawn["chart"]
    assert "the last is not drawn, from 0 to 20" in nobody["chart"]
    assert "None" not in nobody["chart"]
    assert drawn["chart"].count('class="bar"') == 1
    assert nobody["chart"].count('class="bar"') == 0
    assert nobody["chart"].count('class="interval"') == 1
    assert draw_counts([], "nothing").count("<g>") == 0
