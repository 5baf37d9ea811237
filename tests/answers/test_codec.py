"""Packed answers are the same rows again, under ids that count up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.answers.codec import _encode_values, pack, unpack
from tacit.errors import LedgerError
from tacit.privacy.certainty import Certainty, Shares
from tacit.windows.clock import NEVER, NONE

OFFSET = 7
"""The ledger knows others too."""


class Given(Certainty):
    """Confidences that are given: `[window][query][subject]`."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """As they are."""
        return self.values[windows, query, slots]


def made(
    windows: int,
    subjects: int,
    queries: int,
    *,
    values: int,
    first: int = 100,
    limited: bool = False,
    private: bool = True,
    newcomers: bool = False,
    seed: int = 0,
) -> Answers:
    """Random answers whose confidences are of so many values."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**64, (windows, queries, -(-subjects // 64)), dtype=np.uint64)
    sure = random.random(values)[random.integers(0, values, (windows, queries, subjects))]
    since = np.full(subjects, NONE)
    if newcomers:
        since[::3] = first + 1
        since[1] = NEVER
    names = pa.array([f"s{n}" for n in range(subjects)], pa.large_string())
    return Answers(
        [f"q{n}" for n in range(queries)],
        60_000_000,
        first,
        names,
        since,
        bits,
        Given(sure),
        private=private,
        exhausted=random.random(subjects) < 0.3 if limited else None,
        slide=20_000_000,
        consumers=[f"for {n % 2}" for n in range(queries)],
    )


def back(parts: list[Answers], first_id: int = 0) -> pa.Table:
    """Packed and unpacked; subject n has the number n + OFFSET in the ledger."""
    ids = [np.arange(len(part.subjects)) + OFFSET for part in parts]

    def names(ids: NDArray[np.int64]) -> pa.Array:
        return parts[0].subjects.take(pa.array(ids - OFFSET))

    consumers = dict(zip(parts[0].queries, parts[0].consumers, strict=True))
    table, found = unpack(pack(parts, ids, consumers), first_id, names)
    assert found == consumers
    return table


@pytest.mark.parametrize("values", [1, 3, 256, 257, 5000], ids=lambda n: f"{n} values")
@pytest.mark.parametrize("newcomers", [False, True], ids=["settled", "newcomers"])
def test_answers_come_back_as_they_were(values: int, newcomers: bool) -> None:
    """For any number of confidences, and any registry."""
    part = made(3, 700, 4, values=values, newcomers=newcomers)
    found = back([part], 41)
    assert found["id"].to_pylist() == list(range(41, 41 + len(part)))
    assert found.drop_columns("id").equals(part.table())


@pytest.mark.parametrize("private", [True, False], ids=["private", "seeded"])
def test_what_is_exhausted_and_what_came_from_a_seed_is_kept(private: bool) -> None:
    part = made(1, 100, 2, values=2, limited=True, private=private)
    found = back([part])
    assert ("private" in found.column_names) is not private
    assert found.drop_columns("id").equals(part.table())
    assert 0 < sum(found["exhausted"].to_pylist()) < found.num_rows


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 130))
def test_parts_follow_each_other(windows: list[int], subjects: int) -> None:
    """One release may hold windows that were answered apart."""
    parts, first = [], 5
    for seed, count in enumerate(windows):
        parts.append(made(count, subjects, 2, values=3, first=first, seed=seed))
        first += count
    found = back(parts)
    whole = pa.concat_tables([part.table() for part in parts])
    assert found["id"].to_pylist() == list(range(whole.num_rows))
    assert found.drop_columns("id").to_pylist() == whole.to_pylist()


def test_few_bytes_are_needed_for_an_answer() -> None:
    """A bit for the answer, and the entropy of the confidence."""
    part = made(4, 10_000, 20, values=8)
    assert len(pack([part], [np.arange(10_000)], dict.fromkeys(part.queries, "us"))) < 0.6 * len(
        part
    )


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 6))
def test_distinct_values_are_numbered_once_in_order_of_appearance(
    given: list[int], room: int
) -> None:
    values, codes = np.zeros(room, np.uint32), np.zeros(len(given), np.uint8)
    found = _encode_values(np.array(given, np.uint32), values, codes)
    distinct = list(dict.fromkeys(given))
    assert found == (len(distinct) if len(distinct) <= room else -1)
    if found >= 0:
        assert values[:found].tolist() == distinct
        assert codes.tolist() == [distinct.index(value) for value in given]


def test_damaged_bytes_are_an_error_of_the_ledger() -> None:
    body = pack([made(1, 10, 1, values=1)], [np.arange(10)], {"q0": "us"})
    names = lambda ids: pa.array(["s"] * 10, pa.large_string())  # noqa: E731
    for broken in (b"", body[:10], b"X" + body[1:], body[:-5], body[:30] + b"\0" + body[31:]):
        with pytest.raises(LedgerError, match="damaged"):
            unpack(broken, 0, names)
