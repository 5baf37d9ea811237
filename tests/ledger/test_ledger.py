"""What every ledger does, in whatever database it is."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from tacit.errors import FencedError, LedgerError, StaleError
from tacit.ledger.accounts import Accounts
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tests.ledger.drafts import DAY, MINUTE, NANO, account, draft, opened, release


def test_a_ledger_is_found_again_as_it_was_left(place: str) -> None:
    with Ledger.open(place) as first:
        lease = first.take_over("run", "specification")
        assert lease.read_checkpoint() is None
        lease.commit(b"before", draft(7))
        assert lease.commit(b"after") is None
        known = first.id
    with Ledger.open(place, create=False) as again:
        assert again.id == known
        lease = again.take_over("run", "specification")
        assert lease.read_checkpoint() == b"after"
        assert lease.read_until() == 8 * MINUTE
        assert [waiting.body for waiting in lease.iterate_undelivered("file")] == [draft(7).body]


def test_releases_are_numbered_and_so_are_their_answers(ledger: Ledger) -> None:
    one, other = ledger.take_over("one", "a"), ledger.take_over("other", "b")
    assert one.commit(b"", draft(3, answers=10)) == 1
    assert other.commit(b"", draft(5, answers=4)) == 2
    assert one.commit(b"", draft(4, answers=6)) == 3
    assert [(w.release, w.first_id, w.answers) for w in one.iterate_undelivered("x")] == [
        (1, 0, 10),
        (3, 14, 6),
    ]
    assert [(w.release, w.first_id, w.answers) for w in other.iterate_undelivered("x")] == [
        (2, 10, 4)
    ]


def test_what_waits_has_all_that_was_drafted(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    lease.commit(b"", draft(3, windows=5))
    (waiting,) = lease.iterate_undelivered("x")
    assert (waiting.first, waiting.windows) == (3 * MINUTE, 5)
    assert (waiting.size, waiting.slide) == (MINUTE, MINUTE)
    assert (waiting.fingerprint, waiting.plan) == ("specification", "plan")


def test_each_sink_is_remembered_for_itself(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    for window in range(4):
        lease.commit(b"", draft(window))
    assert lease.read_position("file") == (0, None)
    lease.record_delivery("file", 2, {"bytes": 17})
    lease.record_delivery("broker", 1)
    lease.record_delivery("broker", 3)
    assert lease.read_position("file") == (2, {"bytes": 17})
    assert lease.read_position("broker") == (3, None)
    assert [waiting.release for waiting in lease.iterate_undelivered("file")] == [3, 4]
    assert [waiting.release for waiting in lease.iterate_undelivered("broker")] == [4]
    assert [waiting.release for waiting in lease.iterate_undelivered("file", after=3)] == [4]


def test_what_is_released_while_sinks_wait_comes_too(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    lease.commit(b"", draft(0))
    waiting = lease.iterate_undelivered("x")
    assert next(waiting).release == 1
    lease.commit(b"", draft(1))
    assert next(waiting).release == 2
    assert next(waiting, None) is None


def test_answers_are_dropped_only_when_all_sinks_have_them_and_time_is_over(
    ledger: Ledger,
) -> None:
    lease = ledger.take_over("run", "a")
    for window in range(4):
        lease.commit(b"state", draft(window))
    assert lease.drop_delivered([], 2**62) == 0
    lease.record_delivery("file", 3)
    assert lease.drop_delivered(["file", "broker"], 2**62) == 0
    lease.record_delivery("broker", 2)
    assert lease.drop_delivered(["file", "broker"], 0) == 0
    assert lease.drop_delivered(["file", "broker"], 2**62) == 2
    assert lease.drop_delivered(["file", "broker"], 2**62) == 0
    assert [waiting.release for waiting in lease.iterate_undelivered("new")] == [3, 4]
    assert lease.read_checkpoint() == b"state"
    assert verify(ledger).passed


def test_an_engine_that_was_taken_over_can_do_nothing_more(ledger: Ledger) -> None:
    old = ledger.take_over("run", "a")
    old.commit(b"old", draft(0))
    waiting = old.iterate_undelivered("x")
    next(waiting)
    new = ledger.take_over("run", "a")
    for attempt in (
        lambda: old.commit(b"late"),
        lambda: old.commit(b"late", draft(1)),
        lambda: old.record_delivery("x", 1),
        lambda: old.drop_delivered([], 0),
        lambda: old.read_checkpoint(),
        lambda: next(waiting),
    ):
        with pytest.raises(FencedError, match="run 'run' was taken over"):
            attempt()
    assert new.read_checkpoint() == b"old"
    assert new.commit(b"new", draft(1)) == 2


def test_other_runs_are_not_taken_over(ledger: Ledger) -> None:
    one = ledger.take_over("one", "a")
    ledger.take_over("other", "a")
    assert one.commit(b"", draft(0)) == 1


def test_a_window_is_released_once(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    lease.commit(b"", draft(5, windows=2))
    for window in (4, 5, 6):
        with pytest.raises(LedgerError, match="has already released the window"):
            lease.commit(b"", draft(window, body=b"drawn anew"))
    assert lease.commit(b"", draft(7)) == 2


def test_no_window_is_left_out(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    lease.commit(b"", draft(5))
    with pytest.raises(LedgerError, match="every window is answered"):
        lease.commit(b"", draft(7))


def test_a_commit_that_was_not_heard_of_may_be_repeated(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    accounts = opened(lease, ["a", "b"])
    charges = accounts.charge(0, accounts.find_exhausted(0))
    assert lease.commit(b"state", draft(0, charges)) == 1
    assert lease.commit(b"state", draft(0, charges)) == 1
    assert accounts.spent(accounts.private[0], 0).tolist() == [NANO, NANO]
    assert len(list(lease.iterate_undelivered("x"))) == 1
    assert verify(ledger).charges == 1


def test_subjects_keep_their_ids_when_another_engine_enrols_them(ledger: Ledger) -> None:
    one, other = ledger.take_over("one", "a"), ledger.take_over("other", "b")
    assert one.enrol(pa.array(["x", "y", "x"])).tolist() == [0, 1, 0]
    assert other.enrol(pa.array(["z", "y", "7"])).tolist() == [2, 1, 3]
    assert one.enrol(pa.array([7, 8])).tolist() == [3, 4]
    assert one.enrol(pa.array(["z", "x"]).dictionary_encode()).tolist() == [2, 0]
    assert one.enrol(pa.chunked_array([["y"], ["8"]])).tolist() == [1, 4]
    assert one.enrol(pa.array([], pa.string())).tolist() == []


@pytest.mark.parametrize("name", ["", None])
def test_nobody_without_a_name_is_enrolled(ledger: Ledger, name: str | None) -> None:
    with pytest.raises(LedgerError, match="must not be empty or null"):
        ledger.take_over("run", "a").enrol(pa.array(["x", name]))


def test_limits_hold_over_windows_releases_and_restarts(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    accounts = opened(lease, ["a", "b"], account(2, limit=3 * NANO))
    assert release(lease, accounts, 0, windows=2) == [[False] * 2] * 2
    lease = ledger.take_over("run", "a")
    accounts = opened(lease, ["a", "b"], account(2, limit=3 * NANO))
    assert release(lease, accounts, 2, windows=2) == [[False] * 2, [True] * 2]
    assert release(lease, accounts, 4) == [[True] * 2]
    assert accounts.find_exhausted(DAY).tolist() == [False, False]
    assert verify(ledger).passed


def test_a_subject_that_cannot_pay_for_one_pattern_pays_for_none(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    mask = np.array([True, False])
    accounts = opened(
        lease, ["a", "b"], account(2, "rare", limit=NANO, mask=mask), account(2, limit=None)
    )
    assert release(lease, accounts, 0, windows=3) == [[False, False], [True, False], [True, False]]
    assert accounts.spent(accounts.private[0], 0).tolist() == [NANO, 0]
    assert accounts.spent(accounts.private[1], 0).tolist() == [NANO, 3 * NANO]


def test_an_older_view_of_balances_cannot_overspend(ledger: Ledger) -> None:
    one, other = ledger.take_over("one", "a"), ledger.take_over("other", "b")
    limit = account(1, limit=2 * NANO)
    mine, theirs = opened(one, ["a"], limit), opened(other, ["a"], limit)
    assert not mine.find_exhausted(0).any()
    release(other, theirs, 0)
    release(one, mine, 0)  # there is enough for both
    assert not theirs.find_exhausted(MINUTE).any()
    with pytest.raises(StaleError, match="since its balances were read"):
        release(other, theirs, 1)
    theirs = opened(other, ["a"], limit)
    assert release(other, theirs, 1) == [[True]]
    assert verify(ledger).passed


def test_a_stale_release_leaves_nothing_behind(ledger: Ledger) -> None:
    one, other = ledger.take_over("one", "a"), ledger.take_over("other", "b")
    limit = account(1, limit=NANO)
    mine, theirs = opened(one, ["a"], limit), opened(other, ["a"], limit)
    mine.find_exhausted(0)
    release(other, theirs, 0)
    with pytest.raises(StaleError):
        release(one, mine, 0)
    assert list(one.iterate_undelivered("x")) == []
    assert one.read_checkpoint() is None
    assert verify(ledger).releases == 1


def test_a_commit_that_ends_early_leaves_nothing_behind(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at its beginning, as above, but after the answers and charges were written."""
    lease = ledger.take_over("run", "a")
    mine = opened(lease, ["a"], account(1, limit=2 * NANO))
    release(lease, mine, 0)
    before = lease.read_checkpoint()
    with monkeypatch.context() as during:
        during.setattr(Lease, "_write_checkpoint", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            release(lease, mine, 1)
    again = ledger.take_over("run", "a")
    assert len(list(again.iterate_undelivered("x"))) == verify(ledger).releases == 1
    assert again.read_checkpoint() == before
    assert again.read_until() == MINUTE
    assert release(again, opened(again, ["a"], account(1, limit=2 * NANO)), 1) == [[False]]
    assert verify(ledger).passed


def test_limits_of_different_horizons_see_the_same_charges(ledger: Ledger) -> None:
    day = ledger.take_over("day", "a")
    hour = ledger.take_over("hour", "b")
    daily, hourly = account(1, limit=5 * NANO), account(1, limit=2 * NANO, horizon=60 * MINUTE)
    by_day = opened(day, ["a"], daily)
    release(day, by_day, 58, windows=4)  # two in the first hour, two in the second
    by_hour = opened(hour, ["a"], hourly)
    assert by_hour.find_exhausted(59 * MINUTE).all()
    assert by_hour.find_exhausted(61 * MINUTE).all()
    assert not by_hour.find_exhausted(120 * MINUTE).any()
    assert release(hour, by_hour, 120) == [[False]]
    by_day = opened(day, ["a"], daily)
    assert release(day, by_day, 62) == [[True]]
    assert verify(ledger).passed


def test_limits_of_another_horizon_are_checked_when_others_charge_first(ledger: Ledger) -> None:
    day, hour = ledger.take_over("day", "a"), ledger.take_over("hour", "b")
    by_hour = opened(hour, ["a"], account(1, limit=NANO, horizon=60 * MINUTE))
    by_day = opened(day, ["a"], account(1, limit=None))
    assert not by_hour.find_exhausted(0).any()  # there is no balance yet that could be outdated
    release(day, by_day, 0)
    with pytest.raises(StaleError):
        release(hour, by_hour, 0)


def test_windows_that_cost_the_same_are_one_row(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    accounts = opened(lease, list(range(100)), account(100, limit=None))
    release(lease, accounts, 1430, windows=20)
    assert verify(ledger).charges == 2  # the horizon ends at 1440
    assert verify(ledger).balances == 2


def test_a_long_horizon_adds_up_what_short_ones_hold(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    weekly = account(1, limit=None, horizon=7 * DAY)
    release(lease, opened(lease, ["a"], weekly), 1430, windows=2000)
    daily = account(1, limit=None)
    by_day = opened(lease, ["a"], daily)
    days = [int(by_day.spent(daily, day * DAY)[0]) // NANO for day in range(4)]
    assert days == [10, 1440, 550, 0]
    by_week = opened(lease, ["a"], weekly)
    assert by_week.spent(weekly, 0).tolist() == [2000 * NANO]
    assert verify(ledger).passed


def test_an_account_that_overflows_is_refused(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    accounts = opened(lease, ["a"], account(1, amount=2**62, limit=None))
    release(lease, accounts, 0)
    with pytest.raises(LedgerError, match="exceed the largest balance"):
        release(lease, accounts, 1)


def test_a_release_charges_for_its_own_windows_alone() -> None:
    accounts = Accounts(np.arange(1), [account(1)])
    charges = accounts.charge(5 * MINUTE, np.zeros(1, np.bool_))
    with pytest.raises(ValueError, match="its own windows"):
        draft(4, charges)
    with pytest.raises(ValueError, match="at least one window"):
        draft(4, windows=0)


def test_a_large_body_and_checkpoint_come_back_whole(ledger: Ledger) -> None:
    lease = ledger.take_over("run", "a")
    body, checkpoint = bytes(range(256)) * 40_000, b"\x00" * 10_000_000
    lease.commit(checkpoint, draft(0, body=body))
    assert lease.read_checkpoint() == checkpoint
    assert next(lease.iterate_undelivered("x")).body == body
    assert verify(ledger).passed
