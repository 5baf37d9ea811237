"""Accounts in memory equal a slow and obvious computation."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import LONGEST, Account, Charge, count_windows, merge_charges
from tacit.ledger.codec import (
    pack_amounts,
    pack_ids,
    pack_names,
    unpack_amounts,
    unpack_ids,
    unpack_names,
)
from tacit.ledger.zones import FURTHEST
from tacit.spec.specification import Private

SUBJECTS = 5
masks = st.lists(st.booleans(), min_size=SUBJECTS, max_size=SUBJECTS).map(np.array)


@st.composite
def private(draw: st.DrawFn, name: str) -> Account:
    """What a pattern costs some subjects."""
    limit = draw(st.none() | st.integers(0, 20))
    return Account(name, draw(st.integers(1, 5)), limit, draw(st.integers(1, 7)), draw(masks))


@settings(max_examples=50)
@given(
    st.tuples(private("a"), private("b")),
    st.lists(masks, min_size=1, max_size=12),
    st.permutations(range(SUBJECTS)),
    st.integers(-9, 9),
)
def test_accounts_agree_with_charges_one_by_one(
    patterns: tuple[Account, ...], registered: list[np.ndarray], ids: list[int], first: int
) -> None:
    accounts = Accounts(np.array(ids), patterns)
    spent: dict[tuple[int, str, int], int] = defaultdict(int)
    for window, known in enumerate(registered, first):
        found = accounts.find_exhausted(window)
        charged = {
            (int(number), charge.private)
            for charge in accounts.charge(window, found, known)
            for number in np.flatnonzero(charge.ids)
        }
        expected = set()
        for subject, number in enumerate(ids):
            own = [one for one in patterns if one.mask[subject]]
            beyond = any(
                one.limit is not None
                and spent[subject, one.name, window // one.horizon] + one.amount > one.limit
                for one in own
            )
            assert found[subject] == beyond
            if known[subject] and not beyond:
                for one in own:
                    spent[subject, one.name, window // one.horizon] += one.amount
                    expected.add((number, one.name))
        assert charged == expected
        for one in patterns:
            ours = [spent[subject, one.name, window // one.horizon] for subject in range(SUBJECTS)]
            assert accounts.spent(one, window).tolist() == ours


def test_balances_are_kept_until_no_zone_is_in_their_horizon() -> None:
    """Local time may be a day behind, so a horizon of UTC is needed for a day after its end."""
    account = Account("a", 1, None, 10, np.ones(1, np.bool_))
    accounts = Accounts(np.zeros(1, np.int64), [account])
    accounts.charge(5, np.zeros(1, np.bool_), np.ones(1, np.bool_))
    (key,) = accounts.balances
    for until, kept in ((10, True), (10 + FURTHEST - 1, True), (10 + FURTHEST, False)):
        accounts.settle({}, until)
        assert (key in accounts.balances) == kept


def test_an_account_rounds_costs_up_and_limits_down() -> None:
    everyone = np.ones(1, np.bool_)
    private = Private.model_validate(
        {"pattern": "a", "epsilon": Decimal("0.0000000011"), "limit": "0.0000000029 per 12 h"}
    )
    account = Account.of(private, everyone)
    assert (account.name, account.amount, account.limit) == ("a", 2, 2)
    assert account.horizon == 12 * 3_600_000_000
    unlimited = Account.of(Private.model_validate({"pattern": "a", "epsilon": 1}), everyone)
    assert (unlimited.limit, unlimited.horizon) == (None, 86_400_000_000)


@given(st.lists(masks, max_size=12), st.integers(1, 4), st.integers(1, 9), st.integers(-20, 20))
def test_merged_charges_are_the_same_charges(
    chosen: list[np.ndarray], slide: int, horizon: int, first: int
) -> None:
    single = [
        Charge(name, 1, first + slide * window, horizon, mask, None)
        for window, mask in enumerate(chosen)
        for name in ("a", "b")
    ]
    together = list(merge_charges(single, slide))

    def spread(charges: list[Charge]) -> list[tuple[str, int, tuple[bool, ...]]]:
        return sorted(
            (charge.private, charge.first + charge.slide * n, tuple(charge.ids.tolist()))
            for charge in charges
            for n in range(charge.windows)
        )

    assert spread(together) == spread(single)
    assert all(charge.last // horizon == charge.first // horizon for charge in together)


def test_no_charge_reaches_over_a_day_however_long_its_horizon() -> None:
    everyone = np.ones(2, np.bool_)
    half = LONGEST // 2
    single = [Charge("a", 1, half * n, 7 * LONGEST, everyone, None) for n in range(5)]
    together = [(charge.first, charge.windows) for charge in merge_charges(single, half)]
    assert together == [(0, 2), (2 * half, 2), (4 * half, 1)]


@given(
    st.integers(-30, 30), st.integers(1, 9), st.integers(1, 7), st.integers(-30, 30),
    st.integers(0, 30),
)  # fmt: skip
def test_windows_in_a_stretch_are_counted_one_by_one(
    first: int, windows: int, slide: int, start: int, length: int
) -> None:
    starts = [first + slide * n for n in range(windows)]
    expected = sum(start <= moment < start + length for moment in starts)
    assert count_windows(first, windows, slide, start, start + length) == expected


@given(st.lists(st.booleans(), max_size=70), st.lists(st.integers(0, 2**62), max_size=70))
def test_what_is_packed_comes_back_without_the_empty_end(
    chosen: list[bool], amounts: list[int]
) -> None:
    ids = unpack_ids(pack_ids(np.array(chosen, np.bool_))).tolist()
    assert ids + [False] * (len(chosen) - len(ids)) == chosen
    assert not ids or ids[-1]
    spent = unpack_amounts(pack_amounts(np.array(amounts, np.int64))).tolist()
    assert spent + [0] * (len(amounts) - len(spent)) == amounts


@given(st.lists(st.text(min_size=1), max_size=9))
def test_packed_names_come_back(names: list[str]) -> None:
    assert unpack_names(pack_names(pa.array(names, pa.string()))).to_pylist() == names


@pytest.mark.parametrize("wrong", [{"amount": -1}, {"horizon": 0}, {"windows": 0}])
def test_a_charge_of_less_than_nothing_is_refused(wrong: dict[str, int]) -> None:
    usual = {"private": "a", "amount": 1, "first": 0, "horizon": 1, "ids": np.ones(1, np.bool_)}
    with pytest.raises(ValueError, match="must be positive"):
        Charge(**(usual | wrong))  # type: ignore[arg-type]
