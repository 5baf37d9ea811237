"""Accounts that several runs have declared for the same elements."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.ledger.charges import Account
from tacit.ledger.declarations import DeclaredAccount
from tacit.pipeline.accountant import share_accounts

DAY = 86_400_000_000
IDS = np.arange(2)
EVERYONE = np.ones(2, np.bool_)
DEFINITIONS = {"a": "speed < 1", "b": "speed < 9"}


@pytest.mark.parametrize("until", [None, 5 * DAY])
def test_an_account_that_is_declared_now_has_no_end_whatever_it_is_merged_with(
    until: int | None,
) -> None:
    """This run declares `visit` about `a`; a run before it declared it about `a` and `b`."""
    visit = Account("visit", 3, 10, DAY, EVERYONE, frozenset("a"))
    stay = Account("stay", 4, None, DAY, EVERYONE, frozenset("b"))
    both = frozenset(DEFINITIONS.values())
    other = DeclaredAccount("before", "visit", both, 7, DAY, EVERYONE, until)
    merged, alone = share_accounts([visit, stay], [other], DEFINITIONS, IDS, "now")
    assert (merged.name, merged.limit, merged.until) == ("visit", 10, None)
    assert merged.elements == frozenset("ab")
    assert merged.amount == 3 + 7
    assert alone is stay


def test_of_two_declarations_that_ended_the_later_end_counts() -> None:
    stay = Account("stay", 4, None, DAY, EVERYONE, frozenset("ab"))
    ended = [
        DeclaredAccount(run, "visit", frozenset([DEFINITIONS[name]]), None, DAY, EVERYONE, until)
        for run, name, until in (("one", "a", 2 * DAY), ("other", "b", 3 * DAY))
    ]
    _, merged = share_accounts([stay], ended, DEFINITIONS, IDS, "now")
    assert merged.until == 3 * DAY
    assert merged.elements == frozenset("ab")
