"""Several engines on one ledger, whatever their timing; engines that are killed."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.errors import FencedError, StaleError
from tacit.ledger.charges import Charge
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.ledger import Ledger
from tacit.ledger.rows import iterate_rows as charged
from tacit.ledger.tables import RUNS
from tacit.ledger.verification import verify
from tests.ledger import racing
from tests.ledger.drafts import DAY, MINUTE, NANO, account, draft, opened
from tests.ledger.racing import LIMIT, NAMES, Engine

_EXAMPLES = count()


def spent(ledger: Ledger, private: str) -> dict[tuple[str, int], int]:
    """What each subject has spent in each horizon, row by row."""
    sums: dict[tuple[str, int], int] = {}
    for table in charged(ledger, private=private):
        for row in table.to_pylist():
            start = int(row["window_start"].timestamp() * 1e6)
            key = (row["subject"], start // racing.HORIZON)
            sums[key] = sums.get(key, 0) + row["nano_epsilon"]
    return sums


actions = st.sampled_from(
    ["draw", "draw", "draw", "commit", "commit", "commit", "read", "take over"]
)
steps = st.lists(st.tuples(st.integers(0, 2), actions), min_size=20, max_size=60)


@pytest.mark.cases(1)
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps, st.integers(1, 5))
def test_no_interleaving_overspends_or_releases_twice(
    ledger: Ledger, steps: list[tuple[int, str]], allowed: int
) -> None:
    """Three engines, two of them for the same run; each step of theirs may come at any time."""
    example = next(_EXAMPLES)
    private = f"visit {example}"
    limited = account(2, private, limit=allowed * NANO)
    runs = [f"{name} {example}" for name in ("one", "one", "other")]
    leases = [ledger.take_over(run, "a") for run in runs]
    views = [opened(lease, ["a", "b"], limited) for lease in leases]
    windows = [0, 0, 0]
    drawn: list[list[Charge] | None] = [None, None, None]
    released: list[tuple[str, int]] = []
    for engine, step in steps:
        lease, start = leases[engine], windows[engine] * MINUTE
        if step == "take over":
            leases[engine] = ledger.take_over(runs[engine], "a")
            windows[engine] = (leases[engine].read_until() or 0) // MINUTE
        if step in ("take over", "read"):
            views[engine], drawn[engine] = opened(leases[engine], ["a", "b"], limited), None
        elif step == "draw" and drawn[engine] is None:
            drawn[engine] = views[engine].charge(start, views[engine].find_exhausted(start))
        elif step == "commit" and drawn[engine] is not None:
            body = f"{engine} at {len(released)}".encode()
            ready = draft(windows[engine], drawn[engine] or (), body=body)
            try:
                lease.commit(b"", ready)
                released.append((runs[engine], windows[engine]))
                windows[engine] += 1
            except StaleError:
                views[engine] = opened(lease, ["a", "b"], limited)
            except FencedError:
                pass
            drawn[engine] = None
    assert len(set(released)) == len(released)
    verdict = verify(ledger)
    assert verdict.passed, verdict.faults
    lease = leases[0] = ledger.take_over(runs[0], "a")
    total = opened(lease, ["a", "b"], limited).spent(limited, 0)
    assert total.max() <= allowed * NANO
    if len(released) >= allowed:
        assert total.tolist() == [allowed * NANO] * 2
    assert DAY > 60 * MINUTE  # one horizon holds all of it


def test_a_charge_up_to_the_limit_is_accepted_and_one_beyond_it_is_stale(ledger: Ledger) -> None:
    """Two runs share an account, and neither knows what the other has charged since it began."""
    limited = account(2, limit=3 * NANO)
    leases = [ledger.take_over(run, "a") for run in ("one", "other")]
    views = [opened(leases[0], ["a", "b"], limited), opened(leases[1], ["a"], account(1))]

    def pay(engine: int, window: int) -> None:
        start = window * MINUTE
        charges = views[engine].charge(start, views[engine].find_exhausted(start))
        leases[engine].commit(b"", draft(window, charges))

    pay(0, 0)
    pay(1, 0)
    pay(1, 1)  # now one of the two subjects has reached the limit
    with pytest.raises(StaleError):
        pay(0, 1)
    views[0] = opened(leases[0], ["a", "b"], limited)
    assert views[0].find_exhausted(MINUTE).tolist() == [True, False]
    assert views[0].spent(limited, 0).tolist() == [3 * NANO, NANO]
    pay(0, 1)
    assert verify(ledger).passed


@pytest.mark.parametrize("released", [(), (draft(0),)], ids=["checkpoint", "release"])
def test_a_commit_that_meets_a_take_over_in_the_middle_is_fenced(
    ledger: Ledger, released: tuple[ReleaseDraft, ...]
) -> None:
    lease = ledger.take_over("run", "a")
    with ThreadPoolExecutor(1) as other:
        with ledger.database.writing() as connection:
            connection.execute(RUNS.update().values(epoch=RUNS.c.epoch + 1))
            late = other.submit(lease.commit, b"late", *released)
            with pytest.raises(TimeoutError):
                late.result(0.5)
        with pytest.raises(FencedError):
            late.result(30)
    with ledger.database.reading() as connection:
        assert connection.execute(sa.select(RUNS.c.checkpoint)).scalar() is None


@pytest.mark.cases(1)
def test_two_processes_that_take_turns_at_a_run_release_every_window_once(
    ledger: Ledger, place: str
) -> None:
    engines = [Engine(racing.take_turns, place) for _ in range(2)]
    assert [engine.hear() for engine in engines] == ["ready"] * 2
    for engine in engines:
        engine.go()
    outcomes = [engine.hear() for engine in engines]
    released = [window for windows, _ in outcomes for window in windows]
    assert sorted(released) == list(range(len(released)))
    assert sum(fenced for _, fenced in outcomes) > 0
    verdict = verify(ledger)
    assert verdict.passed, verdict.faults
    assert verdict.releases == len(released)


@pytest.mark.cases(1)
def test_two_processes_that_share_accounts_spend_the_limit_and_no_more(
    ledger: Ledger, place: str
) -> None:
    engines = [Engine(racing.share, place, run, 60) for run in ("one", "other")]
    assert [engine.hear() for engine in engines] == ["ready"] * 2
    for engine in engines:
        engine.go()
    paid = [engine.hear()[0] for engine in engines]
    verdict = verify(ledger)
    assert verdict.passed, verdict.faults
    assert verdict.releases == 120
    # Both have ten windows in a horizon, twelve of the twenty can be paid for.
    assert spent(ledger, "visit") == {(name, n): LIMIT for name in NAMES for n in range(6)}
    assert sum(sum(row) for rows in paid for row in rows) == len(NAMES) * 6 * 12


@pytest.mark.soak
def test_an_engine_that_is_killed_at_any_moment_leaves_a_whole_ledger(
    ledger: Ledger, place: str
) -> None:
    chance = random.Random(1)
    before = rounds = 0
    while rounds < 6 or (before == 0 and rounds < 60):
        rounds += 1
        engine = Engine(racing.go_on, place)
        assert engine.hear() == "ready"
        time.sleep(chance.uniform(0.0, 0.25))
        engine.kill()
        lease = ledger.take_over("run", "a")  # waits for what a server is still about to commit
        verdict = verify(ledger)
        assert verdict.passed, verdict.faults
        released = (lease.read_until() or 0) // MINUTE
        assert released == verdict.releases >= before
        if released:
            assert lease.read_checkpoint() == b"%d" % (released - 1) * 9000
            assert lease.read_position("file")[0] in (released - 1, released)
        waiting = [one.body for one in lease.iterate_undelivered("file")]
        assert waiting in ([], [b"%d" % (released - 1) * 5000])
        before = released
    assert before > 0
    assert all(amount <= LIMIT for amount in spent(ledger, "visit").values())


def test_processes_that_make_a_ledger_at_once_make_one(place: str) -> None:
    engines = [Engine(racing.open_only, place) for _ in range(4)]
    with Ledger.open(place) as ledger:
        assert {engine.hear() for engine in engines} == {ledger.id}
        assert verify(ledger).passed
