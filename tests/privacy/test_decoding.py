"""Decoding noisy columns: programs against tables, and how sure answers are, cut anyhow."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tacit.answers.rows as module
from tacit.answers.answers import Answers
from tacit.answers.collection import CollectedAnswers
from tacit.answers.rows import answer_schema
from tacit.privacy.certainty import Certainty, CertaintyByPolicy, ExactCertainty, Shares
from tacit.privacy.decoding import TableCertainty, TableDecoder, build_tables, compile_decoders
from tacit.windows.clock import NONE
from tests.patterns.windowing import bits as unpacked

Bits = NDArray[np.bool_]


def pack(plain: Bits) -> NDArray[np.uint64]:
    """Bit columns of `[window][column][subject]`; what lies beyond the subjects is noise."""
    subjects = plain.shape[2]
    padded = np.ones((*plain.shape[:2], -(-subjects // 64) * 64), np.bool_)
    padded[:, :, :subjects] = plain
    return np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)


def random_decoders(rng: np.random.Generator, columns: int, queries: int) -> list[TableDecoder]:
    """Decoders over some of the columns, called "c0" and so on, in any order."""
    made = []
    for query in range(queries):
        chosen = rng.permutation(columns)[: rng.integers(0, min(7, columns) + 1)]
        size = 1 << len(chosen)
        # Tables in which columns often do not matter, as well as any tables.
        yes = rng.random(size) < rng.choice([0.0, 0.1, 0.5, 1.0])
        if rng.random() < 0.3 and size > 1:
            yes = np.tile(yes[: size // 2], 2)
        names: tuple[Hashable, ...] = tuple(f"c{c}" for c in chosen)
        made.append(TableDecoder(3 * query, names, rng.random((size, 2)), yes))
    return made


def cells(decoder: TableDecoder, numbers: dict[Hashable, int], plain: Bits) -> NDArray[np.int64]:
    """`[window][subject]`: the cell of each, bit by bit."""
    found = np.zeros((plain.shape[0], plain.shape[2]), np.int64)
    for bit, name in enumerate(decoder.columns):
        found += plain[:, numbers[name]].astype(np.int64) * 2**bit
    return found


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 200))
def test_the_program_answers_what_the_tables_say(seed: int, columns: int, subjects: int) -> None:
    rng = np.random.default_rng(seed)
    decoders = random_decoders(rng, columns, 4)
    numbers: dict[Hashable, int] = {f"c{c}": int(n) for c, n in enumerate(rng.permutation(columns))}
    plain = rng.random((2, columns, subjects)) < 0.5
    answers = unpacked(compile_decoders(decoders, numbers).run(pack(plain)), subjects)
    for place, decoder in enumerate(decoders):
        assert decoder.yes is not None
        assert np.array_equal(answers[:, place], decoder.yes[cells(decoder, numbers, plain)])


@given(st.integers(0, 2**32), st.integers(1, 200))
def test_how_sure_an_answer_is_stands_in_its_cell(seed: int, subjects: int) -> None:
    """For any stretch of windows and subjects; queries without a decoder are exact."""
    rng = np.random.default_rng(seed)
    decoders = {decoder.query: decoder for decoder in random_decoders(rng, 5, 3)}
    numbers: dict[Hashable, int] = {f"c{c}": c for c in range(5)}
    plain = rng.random((4, 5, subjects)) < 0.5
    certainty = TableCertainty(build_tables(decoders.values(), numbers), pack(plain))
    windows = slice(*sorted(rng.integers(0, 5, 2)))
    slots = slice(*sorted(rng.integers(0, subjects + 1, 2)))
    shape = (windows.stop - windows.start, slots.stop - slots.start)
    answers = rng.random(shape) < 0.5
    for query, decoder in decoders.items():
        whole = decoder.right[cells(decoder, numbers, plain)[windows, slots], answers.astype(int)]
        assert np.array_equal(certainty.compute_confidence(query, windows, slots, answers), whole)
    assert np.array_equal(certainty.compute_confidence(1, windows, slots, answers), np.ones(shape))


class Numbered(Certainty):
    """A different share for each window, subject, query and answer."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def compute_confidence(self, query: int, windows: slice, slots: slice, answers: Bits) -> Shares:
        """Told by place."""
        places = np.add.outer(
            1000.0 * np.arange(windows.start, windows.stop), np.arange(slots.start, slots.stop)
        )
        return self.scale * (places + 1e6 * query) + answers * 0.5


@pytest.mark.parametrize("rows", [1, 70, 500, 1 << 20])
def test_confidence_comes_with_its_answer_however_rows_are_cut(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With subjects of three policies, and some who are registered late."""
    monkeypatch.setattr(module, "MOST_ROWS", rows)
    rng = np.random.default_rng(1)
    windows, subjects, queries = 3, 150, 2
    plain = rng.random((windows, queries, subjects)) < 0.4
    policies = rng.integers(0, 3, subjects).astype(np.int32)
    certainty = CertaintyByPolicy(policies, [Numbered(1.0), ExactCertainty(), Numbered(-1.0)])
    since = np.where(np.arange(subjects) % 7 == 3, 11, NONE)
    names = pa.array([f"s{n}" for n in range(subjects)], pa.large_string())
    answers = Answers(["q", "r"], 10, 10, names, since, pack(plain), certainty)
    found = answers.table()
    assert found.schema == answer_schema(protected=True)
    expected = []
    for window in range(windows):
        for who in range(subjects):
            for query in range(queries if since[who] <= 10 + window else 0):
                share = {0: 1.0, 1: None, 2: -1.0}[int(policies[who])]
                place = 1000.0 * window + who + 1e6 * query
                yes = bool(plain[window, query, who])
                sure = 1.0 if share is None else share * place + yes * 0.5
                expected.append((f"s{who}", "qr"[query], yes, np.float32(sure)))
    columns = [found[c].to_pylist() for c in ("subject", "query", "detected", "confidence")]
    assert list(zip(*columns, strict=True)) == expected


def test_a_part_of_a_part_keeps_its_place() -> None:
    plain = np.random.default_rng(1).random((5, 1, 200)) < 0.5
    names = pa.array(np.arange(200))
    since = np.full(200, NONE)
    whole = Answers(["q"], 10, 0, names, since, pack(plain), Numbered(1.0))
    inner = whole._part(slice(1, 4), slice(64, 200))._part(slice(1, 3), slice(64, 136))
    assert np.array_equal(inner.confidence(0), whole.confidence(0)[2:4, 128:])


def test_protected_answers_have_a_column_more_and_true_ones_have_not() -> None:
    columns = answer_schema().names
    assert answer_schema(protected=True).names == [*columns, "confidence"]
    empty = Answers([], 10, 0, pa.array([], pa.large_string()), np.empty(0, np.int64),
                    np.empty((3, 0, 0), np.uint64), ExactCertainty())  # fmt: skip
    assert empty.table().schema == answer_schema(protected=True)
    collected = CollectedAnswers([empty], empty.table().schema, [], protected=True)
    assert collected.polars().columns == [*columns, "confidence"]
    assert "protected" in repr(collected)


def test_true_answers_are_sure() -> None:
    plain = np.random.default_rng(1).random((2, 1, 70)) < 0.5
    answers = Answers(["q"], 10, 0, pa.array(np.arange(70)), np.full(70, NONE), pack(plain))
    assert (answers.confidence(0) == 1).all()
