"""Bit-sliced programs give what evaluating each expression for each subject gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random

import numpy as np
import pytest

from tacit.patterns.booleans import BLOCK, FALSE, TRUE, GateGraph, scatter, to_columns
from tests.patterns.windowing import bits

Truth = Callable[[list[bool]], bool]


def random_formula(rng: Random, gates: GateGraph, columns: int, depth: int) -> tuple[int, Truth]:
    """A literal and what it should mean."""
    if depth == 0 or rng.random() < 0.1:
        column = rng.randrange(columns)
        return gates.column(column), lambda row: row[column]
    parts = [random_formula(rng, gates, columns, depth - 1) for _ in range(rng.randint(1, 4))]
    literals, truths = [literal for literal, _ in parts], [truth for _, truth in parts]
    match rng.choice(("all", "any", "not")):
        case "all":
            return gates.all(literals), lambda row: all(truth(row) for truth in truths)
        case "any":
            return gates.any(literals), lambda row: any(truth(row) for truth in truths)
        case _:
            return literals[0] ^ 1, lambda row: not truths[0](row)


@pytest.mark.parametrize("seed", range(20))
def test_programs_compute_their_formulas(seed: int) -> None:
    rng = Random(seed)
    gates, columns, subjects = GateGraph(), 7, 64 * 3
    formulas = [random_formula(rng, gates, columns, rng.randint(0, 4)) for _ in range(30)]
    outputs = [literal for literal, _ in formulas] + [FALSE, TRUE, formulas[0][0] ^ 1]
    program = gates.program(outputs, {column: column for column in range(columns)})
    data = np.array([rng.getrandbits(64) for _ in range(2 * columns * 3)], np.uint64)
    data = data.reshape(2, columns, 3)
    given, found = bits(data, subjects), bits(program.run(data), subjects)
    for window in range(2):
        for subject in range(subjects):
            row = given[window, :, subject].tolist()
            wanted = [truth(row) for _, truth in formulas]
            assert found[window, :, subject].tolist() == [*wanted, False, True, not wanted[0]]


def test_columns_longer_than_a_block_are_computed_to_the_end() -> None:
    gates = GateGraph()
    literal = gates.all([gates.column("a"), gates.column("b") ^ 1])
    words = 2 * BLOCK + 5
    data = np.random.default_rng(1).integers(0, 2**63, (1, 2, words)).astype(np.uint64)
    found = gates.program([literal], {"a": 0, "b": 1}).run(data)
    assert np.array_equal(found[0, 0], data[0, 0] & ~data[0, 1])


def test_equal_gates_are_computed_once_and_registers_are_used_again() -> None:
    gates = GateGraph()
    names: dict[Hashable, int] = {name: name for name in range(20)}
    columns = [gates.column(name) for name in names]
    outputs = [gates.all(rotated(columns, start)[:12]) for start in range(20)]
    program = gates.program(outputs + outputs, names)
    assert len(program.steps) <= 11 * 20 + 2 * 20
    assert program.registers <= 1 + 20 + 20
    with_inverse = gates.program([*outputs, *(output ^ 1 for output in outputs)], names)
    assert len(with_inverse.steps) == len(program.steps)


def rotated(row: list[int], start: int) -> list[int]:
    return row[start:] + row[:start]


@pytest.mark.parametrize("types", [1, 3, 16, 20, 33, 64, 65, 130])
@pytest.mark.parametrize("subjects", [1, 63, 64, 200])
def test_columns_hold_each_subjects_types(types: int, subjects: int) -> None:
    rng = np.random.default_rng(types * subjects)
    present = rng.random((2, subjects, types)) < 0.5
    words = np.zeros((2, subjects, -(-types // 64)), np.uint64)
    for number in range(types):
        words[:, :, number // 64] |= present[:, :, number].astype(np.uint64) << np.uint64(
            number % 64
        )
    found = bits(to_columns(words, types), subjects)
    assert np.array_equal(found, present.transpose(0, 2, 1))


@pytest.mark.parametrize("ordered", [True, False])
def test_scattered_results_reach_their_subject_and_others_get_the_default(ordered: bool) -> None:
    rng = np.random.default_rng(2)
    windows, subjects, patterns = 3, 150, 5
    keys = rng.choice(windows * subjects, 200, replace=False)
    keys = np.sort(keys) if ordered else keys
    results = rng.random((200, patterns)) < 0.5
    default = np.array([True, False, True, False, False])
    wanted = np.tile(default, (windows * subjects, 1))
    wanted[keys] = results
    found = bits(scatter(keys, results, default, windows, subjects), subjects)
    assert np.array_equal(found, wanted.reshape(windows, subjects, patterns).transpose(0, 2, 1))


def test_nothing_to_scatter_gives_the_default_everywhere() -> None:
    none = np.zeros((0, 2), np.bool_)
    columns = scatter(np.zeros(0, np.int64), none, np.array([True, False]), 2, 70)
    assert columns[:, 0].all()
    assert not columns[:, 1].any()
    assert scatter(np.zeros(0, np.int64), none[:, :0], np.zeros(0, np.bool_), 2, 70).shape == (
        2,
        0,
        2,
    )
