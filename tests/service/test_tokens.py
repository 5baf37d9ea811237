"""Tokens in memory: read ahead while they are in use, and never used for longer than allowed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tacit.errors import LedgerLostError
from tacit.ledger.database import now
from tacit.ledger.ledger import Ledger
from tacit.service.access import Access
from tacit.service.problems import Problem
from tacit.service.roles import Role
from tacit.service.tokens import Tokens
from tests.service.services import PATIENCE, join


class Shop:
    """Tokens as this process has them, as another one has them, and a clock for both."""

    def __init__(self, ledger: Ledger) -> None:
        self.database = ledger.database
        self.mine, self.others = Tokens(ledger.database), Tokens(ledger.database)
        self.access = Access(self.mine)
        self.moment = 1000.0
        self.reads = 0

    def create(self, **more: Any) -> str:
        """Create a token as another process would."""
        return self.others.create(Role.CONSUMER, "city", creator="test", **more)[0]

    def refresh(self) -> None:
        """Read ahead, as the service does all the time."""
        asyncio.run(self.access.refresh())

    def count_reads(self, action: Callable[[], Any]) -> int:
        """Return how often something reads the database."""
        before = self.reads
        action()
        return self.reads - before


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        found = Shop(ledger)
        clock = SimpleNamespace(monotonic=lambda: found.moment)
        monkeypatch.setattr("tacit.service.tokens.time", clock)
        monkeypatch.setattr("tacit.service.access.time", clock)
        reading = ledger.database.reading

        @contextmanager
        def counted() -> Iterator[Any]:
            found.reads += 1
            with reading() as connection:
                yield connection

        monkeypatch.setattr(ledger.database, "reading", counted)
        yield found


def test_no_request_reads_the_database_while_tokens_are_read_ahead(shop: Shop) -> None:
    token = shop.create()
    assert shop.access.check(token, "here").name == "city"
    for _ in range(100):
        shop.moment += 0.5
        assert shop.count_reads(shop.refresh) == 1
        assert shop.count_reads(lambda: shop.access.check(token, "here")) == 0


def test_tokens_are_read_ahead_only_while_valid_ones_are_used(shop: Shop) -> None:
    token = shop.create()
    assert shop.count_reads(shop.refresh) == 0
    shop.access.check(token, "here")
    shop.moment += 59
    assert shop.count_reads(shop.refresh) == 1
    with pytest.raises(Problem):
        shop.access.check(token[:-4] + "AAAA", "here")
    shop.moment += 2
    assert shop.count_reads(shop.refresh) == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_token_that_another_process_revokes_is_refused_within_a_second(
    shop: Shop, *, ahead: bool
) -> None:
    token = shop.create()
    shop.access.check(token, "here")
    shop.moment += 0.4
    shop.others.revoke(token.split("_")[1], actor="test")
    if ahead:
        shop.refresh()
    else:
        shop.access.check(token, "here")  # not known yet
        shop.moment += 0.6
    with pytest.raises(Problem) as refused:
        shop.access.check(token, "here")
    assert refused.value.status == 401


def test_a_token_that_is_revoked_here_is_refused_at_once_also_beside_reads(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that have read the token and the last act before must not bring it back."""
    token, reading = shop.create(), shop.database.reading
    shop.mine.refresh()
    go_on = [threading.Event(), threading.Event()]
    has_read = [threading.Event(), threading.Event()]
    threads = [
        threading.Thread(target=target)
        for target in (shop.mine.refresh, lambda: shop.mine.check(token))
    ]

    @contextmanager
    def slow() -> Iterator[Any]:
        with reading() as connection:
            yield connection
        if threading.current_thread() in threads:
            number = threads.index(threading.current_thread())
            has_read[number].set()
            assert go_on[number].wait(PATIENCE)

    monkeypatch.setattr(shop.database, "reading", slow)
    for thread, event in zip(threads, has_read, strict=True):
        thread.start()
        assert event.wait(PATIENCE)
    shop.mine.revoke(token.split("_")[1], actor="test")
    for thread, event in zip(threads, go_on, strict=True):
        event.set()
        join(thread)
    assert shop.mine.check(token) is None


def test_reading_ahead_prolongs_no_token(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    token = shop.create(expires=now() + 60_000_000)
    shop.access.check(token, "here")
    shop.refresh()
    later = now() + 60_000_001
    monkeypatch.setattr("tacit.service.tokens.now", lambda: later)

    def use() -> None:
        with pytest.raises(Problem):
            shop.access.check(token, "here")

    assert shop.count_reads(use) == 0


def test_if_the_ledger_does_not_answer_the_next_request_asks_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = shop.create()
    shop.access.check(token, "here")

    @contextmanager
    def lost() -> Iterator[Any]:
        raise LedgerLostError("gone")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(shop.database, "reading", lost)
        shop.refresh()
        shop.moment += 1
        with pytest.raises(LedgerLostError):
            shop.access.check(token, "here")
    assert shop.count_reads(lambda: shop.access.check(token, "here")) > 0


def test_whoever_has_no_valid_token_learns_nothing_about_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal reads the same, after one comparison in constant time of as many bytes."""
    valid, revoked = shop.create(), shop.create()
    expired = shop.create(expires=now() + 1_000_000)
    shop.others.revoke(revoked.split("_")[1], actor="test")
    unknown = f"tacit_{'0' * 12}_{valid.split('_', 2)[2]}"
    later = now() + 2_000_000
    monkeypatch.setattr("tacit.service.tokens.now", lambda: later)
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("tacit.service.tokens.hmac.compare_digest", compare)
    for ahead in (False, True):
        shop.access.check(valid, "here")
        refused = set()
        for token in (unknown, valid[:-4] + "AAAA", revoked, expired):
            if ahead:
                shop.refresh()
            compared.clear()
            with pytest.raises(Problem) as problem:
                shop.access.check(token, "here")
            refused.add((problem.value.response().body, str(problem.value.headers)))
            assert compared == [(32, 32)]
        assert len(refused) == 1
