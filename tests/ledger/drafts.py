"""Releases to try a ledger with: windows of a minute, a body that says which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account, Charge
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.lease import Lease

MINUTE = 60_000_000
DAY = 1440 * MINUTE
NANO = 10**9


def draft(
    window: int,
    charges: Sequence[Charge] = (),
    *,
    windows: int = 1,
    body: bytes | None = None,
    answers: int = 10,
) -> ReleaseDraft:
    """The release of some minutes."""
    text = body if body is not None else f"answers from window {window} on".encode()
    return ReleaseDraft(
        window * MINUTE, windows, MINUTE, MINUTE, "specification", "plan", answers, text, charges
    )


def account(
    subjects: int,
    name: str = "visit",
    *,
    amount: int = NANO,
    limit: int | None = 3 * NANO,
    horizon: int = DAY,
    mask: NDArray[np.bool_] | None = None,
) -> Account:
    """An account that all of some subjects have."""
    chosen = np.ones(subjects, np.bool_) if mask is None else mask
    return Account(name, amount, limit, horizon, chosen)


def opened(lease: Lease, names: Sequence[str | int], *private: Account) -> Accounts:
    """The accounts of subjects."""
    ids = lease.enrol(pa.array(names))
    return lease.open_accounts(ids, private or [account(len(names))])


def release(lease: Lease, accounts: Accounts, window: int, windows: int = 1) -> list[list[bool]]:
    """Release some minutes; who was exhausted in each."""
    exhausted, charges = [], []
    for number in range(window, window + windows):
        beyond = accounts.find_exhausted(number * MINUTE)
        charges += accounts.charge(number * MINUTE, beyond)
        exhausted.append(beyond.tolist())
    lease.commit(b"state", draft(window, charges, windows=windows))
    return exhausted
