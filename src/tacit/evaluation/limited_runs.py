"""Run a plan with limits on streams of presence, with the engine's own prices, accounts and pacing.

It does what a run with a ledger does, window by window, without tuples and without a database.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation.measurement import Presence, Streams, to_closed_panes, unpack
from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account
from tacit.ledger.zones import ALWAYS, Zones
from tacit.patterns.tree import elements
from tacit.pipeline.accountant import list_claims
from tacit.pipeline.pacing import Pacer
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.mechanism import RunMemory, hash_names
from tacit.privacy.noise import Noise
from tacit.windows.panes import ClosedPanes


class LimitedRun(NamedTuple):
    """The answers of a run with limits, and what it spent."""

    answers: Presence
    """`[query][subject][window]`"""
    spent: NDArray[np.int64]
    """`[private pattern][subject][window]`, in nano-epsilon."""


def run_limited(plan: Plan, streams: Streams, noise: Noise) -> LimitedRun:
    """Answer all windows in order; who pays is decided as the limits of the specification say."""
    spec, subjects = plan.spec, len(streams.presence)
    accounts = _open_accounts(plan, subjects)
    claims = list_claims(accounts.private)
    pacer = Pacer(spec, [mechanism.pacing for mechanism in plan.mechanisms], noise.source)
    evaluator = ProtectedEvaluator(spec, plan.mechanisms, noise)
    policies = np.zeros(subjects, np.int32)
    keys = hash_names(range(subjects))
    memory = RunMemory({}, keys=keys)
    answers, spent = [], []
    for closed in _split(to_closed_panes(streams)):
        start = closed.first * spec.windows.size
        (prices,) = evaluator.price(closed, {}, policies, claims, memory)
        silent = accounts.find_exhausted(start, prices)
        if pacer.active:
            gains = evaluator.gains(policies)
            silent |= pacer.find_declined(accounts, start, prices, gains, policies)
        accounts.charge(start, silent, None, prices)
        chosen = np.where(silent, policies + len(plan.mechanisms), policies)
        answers.append(evaluator.answer(closed, {}, chosen, memory)[0])
        spent.append(np.where(silent, 0, prices))
        memory = RunMemory(memory.after, keys=keys)
    found = unpack(np.concatenate(answers), subjects)
    return LimitedRun(found.transpose(1, 2, 0), np.stack(spent, axis=-1))


def _open_accounts(plan: Plan, subjects: int) -> Accounts:
    everyone = np.ones(subjects, np.bool_)
    private = [
        Account.of(
            one,
            everyone,
            plan.spent_per_window(one) / Fraction(one.epsilon),
            frozenset(elements(pattern)),
        )
        for one, pattern in zip(plan.spec.private, plan.spec.private_patterns, strict=True)
    ]
    zones = Zones(np.zeros(subjects, np.int32), [((plan.spec.zone, ALWAYS),)])
    return Accounts(np.arange(subjects), private, zones=zones)


def _split(closed: ClosedPanes) -> list[ClosedPanes]:
    """Return the windows one by one."""
    return [
        ClosedPanes(closed.first + n, closed.words[n : n + 1], closed.keys, closed.lists)
        for n in range(len(closed.words))
    ]
