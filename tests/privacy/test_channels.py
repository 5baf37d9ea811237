"""No channel that breaks its promise can be built, and every wish can be made to keep it."""

from __future__ import annotations

import json
import pickle
import time
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.errors import AuditError, PrivacyError
from tacit.privacy.channel_audit import Neighbours, audit
from tacit.privacy.channels import BITS, Channel
from tacit.privacy.exponentials import exp_below
from tests.privacy.strategies import epsilons, groups

ONE = Neighbours([0, 1], 1)


def lawful(table: list[list[int]], neighbours: list[Neighbours]) -> bool:
    """The definition, word for word."""
    return all(
        Fraction(table[i][column]) <= exp_below(group.epsilon) * table[j][column]
        for group in neighbours
        for i, j in permutations(group.rows, 2)
        for column in range(len(table[0]))
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[int]], list[Neighbours]]:
    """Small tables, often lawful and often not, rows summing to 64."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    table = []
    for _ in range(rows):
        cuts = sorted(draw(st.integers(0, 64)) for _ in range(columns - 1))
        table.append([b - a for a, b in zip([0, *cuts], [*cuts, 64], strict=True)])
    return table, draw(groups(rows))


@given(tables())
def test_the_audit_agrees_with_the_definition(
    case: tuple[list[list[int]], list[Neighbours]],
) -> None:
    table, neighbours = case
    found = audit(np.array(table, dtype=np.uint64), neighbours)
    assert found.passed == lawful(table, neighbours)
    if found.passed:
        assert Channel(table, neighbours).audit() == found
    else:
        with pytest.raises(AuditError):
            Channel(table, neighbours)


@given(tables())
def test_the_audit_names_the_pair_that_is_furthest_apart(
    case: tuple[list[list[int]], list[Neighbours]],
) -> None:
    table, neighbours = case
    for group, finding in zip(
        neighbours, audit(np.array(table, dtype=np.uint64), neighbours).findings, strict=True
    ):
        ratios = [
            (Fraction(table[i][c], table[j][c]) if table[j][c] else None)
            for i in group.rows
            for j in group.rows
            for c in range(len(table[0]))
            if table[i][c]
        ]
        high, low = table[finding.high][finding.column], table[finding.low][finding.column]
        if None in ratios:
            assert (finding.ratio, finding.epsilon, low) == (None, None, 0)
            assert high > 0
        else:
            assert finding.ratio == max(r for r in ratios if r) == Fraction(high, low)
            assert finding.epsilon is not None
            assert exp_below(finding.epsilon, 256) >= finding.ratio or finding.passed


@given(tables())
def test_the_true_epsilon_is_lawful_and_a_little_less_is_not(
    case: tuple[list[list[int]], list[Neighbours]],
) -> None:
    table, neighbours = case
    found = audit(np.array(table, dtype=np.uint64), neighbours)
    for group, finding in zip(neighbours, found.findings, strict=True):
        if finding.epsilon is None:
            continue
        assert lawful(table, [Neighbours(group.rows, finding.epsilon)])
        if finding.epsilon:
            tighter = finding.epsilon * (1 - Fraction(1, 10**15))
            assert not lawful(table, [Neighbours(group.rows, tighter)])


def test_a_zero_beside_something_fails_whatever_epsilon_is() -> None:
    with pytest.raises(AuditError, match="no epsilon at all") as caught:
        Channel([[4, 0], [3, 1]], [Neighbours([0, 1], 10**6)])
    error = caught.value
    assert (error.asked, error.true) == (Fraction(10**6), None)
    assert (error.high, error.low, error.column) == (1, 0, 1)


def test_an_audit_error_carries_its_numbers() -> None:
    with pytest.raises(AuditError) as caught:
        Channel([[1, 3], [2, 2], [3, 1]], [Neighbours([1, 2], 1), Neighbours([0, 2], 1)])
    error = caught.value
    assert (error.asked, error.high, error.low, error.column) == (Fraction(1), 2, 0, 0)
    assert error.true is not None
    assert round(float(error.true), 9) == 1.098612289
    assert "rows 2 and 0 within epsilon 1, but output 0" in str(error)


@pytest.mark.parametrize(
    "table",
    [
        [],
        [[]],
        [[1, 1], [1]],
        [1, 1],
        [[0.5, 0.5], [0.5, 0.5]],
        np.array([[1.0, 1.0]]),
        [[3, -1], [1, 1]],
        [["1", "1"]],
        [[2**64, 2**64]],
        np.array([[2**64 - 1, 1]], dtype=np.uint64),
    ],
)
def test_what_is_no_table_of_whole_numbers_is_refused(table: Any) -> None:
    with pytest.raises(PrivacyError, match="whole numbers from 0 to"):
        Channel(table, [])


@pytest.mark.parametrize(
    "table",
    [
        [[1, 1], [1, 3]],
        [[1, 2]],
        [[0, 0]],
        [[1, 0]],
        [[2**63, 2**63]],
        [[2**63, 2**63, 2**63, 2**63, 2]],
    ],
)
def test_rows_must_sum_to_one_power_of_two(table: list[list[int]]) -> None:
    with pytest.raises(PrivacyError, match="same sum"):
        Channel(table, [])


def test_labels_and_neighbours_must_fit() -> None:
    with pytest.raises(PrivacyError, match="different labels"):
        Channel([[1, 1]], [], outputs=["a", "a"])
    with pytest.raises(PrivacyError, match="as many different labels; got 3"):
        Channel([[1, 1]], [], outputs="abc")
    odd: list[Any] = [frozenset(), 0.5, {}]
    for label in odd:
        with pytest.raises(PrivacyError, match="labels are text"):
            Channel([[1, 1]], [], inputs=[label])
    for rows in ([0, 2], [-1, 0]):
        with pytest.raises(PrivacyError, match="rows of the channel, 0 to 1"):
            Channel([[1, 1], [1, 1]], [Neighbours(rows, 1)])
        with pytest.raises(PrivacyError, match="rows of the channel, 0 to 1"):
            Channel.from_probabilities([[1, 1], [1, 1]], [Neighbours(rows, 1)])
    for rows in ([], [1, 1]):
        with pytest.raises(PrivacyError, match="each named once"):
            Neighbours(rows, 1)


@given(epsilons(), st.integers(1, BITS))
@example(Fraction(0), BITS)
@example(Fraction(10**6), BITS)
def test_a_flip_is_the_rarest_that_keeps_its_promise(epsilon: Fraction, bits: int) -> None:
    channel = Channel.flip(epsilon, bits)
    flips, kept = int(channel.table[0, 1]), int(channel.table[0, 0])
    assert channel.bits == bits
    assert 0 < flips <= kept
    assert channel.audit().epsilon is not None
    assert channel.audit().epsilon <= epsilon  # type: ignore[operator]
    # A table rounded the wrong way is caught.
    with pytest.raises(AuditError):
        Channel([[kept + 1, flips - 1], [flips - 1, kept + 1]], [Neighbours([0, 1], epsilon)])


def test_a_flip_has_the_usual_probability_and_a_fair_coin_at_zero() -> None:
    flip = Channel.flip(Decimal("1.5"))
    assert abs(float(flip.probability(1, 0)) - 1 / (1 + np.exp(1.5))) < 1e-15
    assert Channel.flip(0).probability(0, 1) == Fraction(1, 2)


def test_a_given_flip_probability_is_rounded_up() -> None:
    channel = Channel.flip_with(Fraction(1, 3))
    assert 0 <= channel.probability(0, 1) - Fraction(1, 3) < Fraction(1, 2**BITS)
    assert Channel.flip_with(Fraction(1, 10**30)).probability(0, 1) == Fraction(1, 2**BITS)


@pytest.mark.parametrize("probability", [Fraction(0), Fraction(-1, 4), Fraction(3, 4)])
def test_no_flips_and_more_than_half_are_refused(probability: Fraction) -> None:
    with pytest.raises(PrivacyError, match="flip probability must be more than 0"):
        Channel.flip_with(probability)


@pytest.mark.parametrize("bits", [0, 64])
def test_bits_have_bounds(bits: int) -> None:
    refused = f"1 to 63 bits; got {bits}"
    with pytest.raises(PrivacyError, match=refused):
        Channel.flip(1, bits)
    with pytest.raises(PrivacyError, match=refused):
        Channel.flip_with(Fraction(1, 4), bits)
    with pytest.raises(PrivacyError, match=refused):
        Channel.staircase([{0}], [1.0], 1, inputs="ab", bits=bits)


@st.composite
def staircases(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(1, 12))
    subset = st.frozensets(st.integers(0, rows - 1))
    columns = draw(st.lists(subset, min_size=1, max_size=8, unique=True))
    weight = st.floats(0, 1e300) | st.floats(0, 1) | st.integers(0, 3).map(float)
    return {
        "columns": columns,
        "weights": draw(st.lists(weight, min_size=len(columns), max_size=len(columns))),
        "epsilon": draw(epsilons(-6, 1) | st.integers(0, 50).map(Fraction)),
        "inputs": range(rows),
        "bits": draw(st.sampled_from([1, 4, 10, 40, BITS])),
    }


@given(staircases())
def test_every_weighted_staircase_becomes_a_lawful_channel(case: dict[str, Any]) -> None:
    channel = Channel.staircase(**case)
    assert channel.bits == case["bits"]
    assert channel.audit().passed
    assert channel.outputs.count(()) == 1
    for column, subset in enumerate(channel.outputs):
        entries = channel.table[:, column].tolist()
        if subset != () and isinstance(subset, tuple):
            highs = {entries[row] for row in subset}
            lows = {entry for row, entry in enumerate(entries) if row not in subset}
            assert len(highs) <= 1
            assert len(lows) <= 1
            assert max(lows, default=0) <= max(highs, default=2**63)


@given(st.data(), st.integers(2, 5), epsilons(-6, 1))
def test_any_wish_under_any_neighbours_becomes_a_lawful_channel(
    data: st.DataObject, rows: int, epsilon: Fraction
) -> None:
    row = st.lists(st.floats(0, 1), min_size=3, max_size=3)
    wished = data.draw(st.lists(row, min_size=rows, max_size=rows))
    neighbours = data.draw(groups(rows))
    bits = data.draw(st.sampled_from([3, 12, BITS]))
    channel = Channel.from_probabilities(wished, neighbours, bits=bits)
    assert channel.audit().passed
    assert lawful(channel.table.tolist(), neighbours)


@given(epsilons(-6, 1), st.integers(2, 12))
def test_a_lawful_wish_is_granted_nearly_exactly(epsilon: Fraction, rows: int) -> None:
    """k-ary randomised response: every row has the same sum, up to floats."""
    factor = float(exp_below(epsilon))
    low = 1 / (rows - 1 + factor)
    channel = Channel.staircase(
        [{i} for i in range(rows)], [low] * rows, epsilon, inputs=range(rows)
    )
    for i in range(rows):
        assert abs(float(channel.probability(i, i)) - low * factor) < 1e-9
        assert abs(float(channel.probability(i, (i + 1) % rows)) - low) < 1e-9
        assert channel.probability(i, rows) < Fraction(1, 10**9)


@given(
    st.dictionaries(
        st.frozensets(st.integers(0, 6), min_size=2), st.floats(0.01, 1), min_size=1, max_size=6
    ),
    epsilons(-6, 1),
)
def test_rows_with_equal_sums_and_odd_weights_lose_next_to_nothing(
    weights: dict[frozenset[int], float], epsilon: Fraction
) -> None:
    """Columns for single rows make their sums equal; each row rounds in its own way."""
    high = [sum(weight for rows, weight in weights.items() if row in rows) for row in range(7)]
    singles = {frozenset({row}): max(high) - high[row] for row in range(7)}
    columns = weights | singles
    channel = Channel.staircase(list(columns), list(columns.values()), epsilon, inputs=range(7))
    assert channel.table[:, -1].max() < 2**63 * 1e-8


def test_weights_of_unequal_rows_cost_only_what_they_must() -> None:
    """One column that favours row 0; what row 1 lacks is its opposite: randomised response."""
    channel = Channel.staircase([{0}], [1.0], Decimal("0.5"), inputs="ab")
    top = float(channel.probability(0, 0))
    assert channel.audit().epsilon == pytest.approx(0.5, rel=1e-15)
    assert abs(top - 1 / (1 + np.exp(-0.5))) < 1e-9


def test_what_is_left_over_goes_where_it_is_told() -> None:
    wished = [[0.7, 0.3], [0.3, 0.7]]
    channel = Channel.from_probabilities(wished, [ONE], outputs=["no", "yes"], rest="no")
    assert channel.outputs == ("no", "yes")
    named = Channel.from_probabilities(wished, [ONE], outputs=["no", "yes"])
    assert named.outputs == ("no", "yes", None)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -0.1, Fraction(-1, 2)])
def test_weights_must_be_finite_and_not_negative(weight: float) -> None:
    with pytest.raises(PrivacyError, match="finite and not negative"):
        Channel.staircase([{0}, {1}], [1.0, weight], 1, inputs="ab")


def test_columns_and_weights_must_fit() -> None:
    with pytest.raises(PrivacyError, match="2 columns need as many weights; got 1"):
        Channel.staircase([{0}, {1}], [1.0], 1, inputs="ab")
    with pytest.raises(PrivacyError, match="different labels"):
        Channel.staircase([{0}, {0}], [1.0, 1.0], 1, inputs="ab")
    with pytest.raises(PrivacyError, match="as many entries in each row"):
        Channel.from_probabilities([[1.0], [0.5, 0.5]], [ONE])
    with pytest.raises(PrivacyError, match="high rows must be among"):
        Channel.staircase([{2}], [1.0], 1, inputs="ab")


@given(staircases())
def test_probabilities_of_a_row_sum_to_one(case: dict[str, Any]) -> None:
    channel = Channel.staircase(**case)
    for row in range(len(channel.inputs)):
        assert sum(channel.probability(row, c) for c in range(len(channel.outputs))) == 1


@given(staircases())
def test_a_channel_survives_json_and_pickle(case: dict[str, Any]) -> None:
    channel = Channel.staircase(**case)
    again = Channel.from_dict(json.loads(json.dumps(channel.to_dict())))
    assert again == channel
    assert hash(again) == hash(channel)
    assert pickle.loads(pickle.dumps(channel)) == channel


def test_a_channel_changed_on_the_way_is_audited_again() -> None:
    plain = Channel.flip(1).to_dict()
    plain["neighbours"][0]["epsilon"] = "0.5"
    with pytest.raises(AuditError):
        Channel.from_dict(plain)


@pytest.mark.parametrize(
    "damage",
    [
        {"table": [["x"]]},
        {"table": None},
        {"table": [[1.5, 0.5], [0.5, 1.5]]},
        {"neighbours": [{"rows": ["0", "1"], "epsilon": "1"}]},
        {"neighbours": [{"rows": [0]}]},
        {"neighbours": [{"rows": [0, 1], "epsilon": "1/0"}]},
        {"inputs": 3},
    ],
)
def test_damaged_plain_data_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError, match="this one is damaged"):
        Channel.from_dict(Channel.flip(1).to_dict() | damage)


def test_neither_the_caller_nor_a_reader_can_change_a_channel() -> None:
    entries = np.array([[3, 1], [1, 3]], dtype=np.uint64)
    channel = Channel(entries, [Neighbours([0, 1], 2)])
    entries[0] = 4, 0
    assert channel.table.tolist() == [[3, 1], [1, 3]]
    with pytest.raises(ValueError, match="read-only"):
        channel.table[0, 0] = 4
    with pytest.raises(AttributeError):
        channel.bits = 3  # type: ignore[misc]


def test_thousands_of_rows_are_audited_in_linear_time() -> None:
    table = np.full((4096, 256), 2**40, dtype=np.uint64)
    table[np.arange(4096), np.arange(4096) % 256] += np.uint64(2**40)
    table[np.arange(4096), (np.arange(4096) + 1) % 256] -= np.uint64(2**40 - 2**39)
    table[np.arange(4096), (np.arange(4096) + 2) % 256] -= np.uint64(2**40 - 2**39)
    begun = time.process_time()
    channel = Channel(table, [Neighbours(range(4096), Decimal("1.4"))])
    assert time.process_time() - begun < 3
    finding = channel.audit().worst
    assert finding is not None
    assert finding.ratio == 4


def test_a_channel_shows_its_audit_and_escapes_its_labels() -> None:
    channel = Channel([[3, 1], [1, 3]], [Neighbours([0, 1], 2)], inputs=["<a>", "b"])
    assert repr(channel) == (
        "Channel(2 x 2 of 2**2, audit passed: true epsilon at most 1.09861228867 per draw)"
    )
    shown = channel._repr_html_()
    assert "&lt;a&gt;" in shown
    assert "<td>0.75</td><td>0.25</td>" in shown


def test_a_channel_without_neighbours_promises_nothing_and_may_tell_all() -> None:
    channel = Channel([[2, 0], [0, 2]], [])
    assert channel.audit().passed
    assert channel.audit().worst is None
    assert channel.audit().epsilon == 0
