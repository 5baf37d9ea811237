"""`tacit ledger show --plot`: a day of one subject."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.engines.ledger_reports import show_ledger
from tacit.errors import LedgerError, MissingExtraError, SinkError
from tacit.ledger.charges import Charge
from tacit.ledger.day_picture import find_days
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import Statement, UnpaidWindows
from tests.cli.small_runs import tacit
from tests.ledger.drafts import DAY, MINUTE, NANO, account, draft, opened

PAID, UNPAID, FREE = range(3)
HOUR = 60 * MINUTE


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A ledger in a file: what is drawn does not depend on the kind of database."""
    return str(tmp_path / "spent.db")


@pytest.fixture
def filled(place: str) -> str:
    """A day of `a`: windows that are free, paid for, and not paid for; `b` pays for nothing."""
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("taxis", "specification")
        both = opened(lease, ["a", "b"], account(2, limit=3 * NANO))
        only_a = np.array([True, False])
        for window, price in enumerate([0, 1, None, 0, 1, 1, None, None]):
            charges: list[Charge] = []
            if price is not None:
                prices = np.array([[price * NANO, 0]])
                charges = both.charge(window * MINUTE, ~only_a, None, prices)
            lease.commit(b"state", draft(window, charges))
    return place


def read(place: str, subject: str | None = "a") -> Statement:
    return show_ledger(place, subject=subject)


def test_a_day_has_every_window_once_with_how_it_was_answered(filled: str) -> None:
    (day,) = find_days(read(filled))
    assert (day.private, day.start, day.end, day.limit) == ("visit", 0, DAY, 3 * NANO)
    assert (day.starts // MINUTE).tolist() == list(range(8))
    assert day.kinds.tolist() == [FREE, PAID, UNPAID, FREE, PAID, PAID, UNPAID, UNPAID]
    assert day.counts == [3, 3, 2]
    assert day.list_bars(PAID) == [(MINUTE, MINUTE), (4 * MINUTE, 2 * MINUTE)]
    assert day.list_bars(UNPAID) == [(2 * MINUTE, MINUTE), (6 * MINUTE, 2 * MINUTE)]


def test_spending_adds_up_to_what_the_statement_says(filled: str) -> None:
    statement = read(filled)
    times, spent = find_days(statement)[0].accumulate()
    assert (times // MINUTE).tolist() == [0, *range(8), 8]
    assert (spent // NANO).tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3]
    assert spent[-1] == statement.horizons[0].spent


def test_a_statement_has_the_windows_that_were_not_paid_for(filled: str) -> None:
    assert read(filled).unpaid == (
        UnpaidWindows("visit", "taxis", 2 * MINUTE, 1, MINUTE, 0),
        UnpaidWindows("visit", "taxis", 6 * MINUTE, 2, MINUTE, 0),
    )
    assert read(filled, None).unpaid == ()


def test_windows_before_a_subject_and_under_other_specifications_are_not_its_own(
    place: str,
) -> None:
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("taxis", "specification")
        first = opened(lease, ["a"], account(1))
        for window in range(2):
            lease.commit(b"", draft(window, first.charge(window * MINUTE, np.array([False]))))
        second = opened(lease, ["a", "b"], account(2))
        lease.commit(b"", draft(2, second.charge(2 * MINUTE, np.array([False, False]))))
        lease.commit(b"", replace(draft(3), fingerprint="nothing is private"))
    assert read(place).unpaid == read(place, "b").unpaid == ()
    assert find_days(read(place, "b"))[0].counts == [1, 0, 0]


def test_a_shorter_horizon_begins_anew_within_the_day(place: str) -> None:
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("taxis", "specification")
        accounts = opened(lease, ["a"], account(1, limit=4 * NANO, horizon=HOUR))
        for window in range(58, 62):
            lease.commit(b"", draft(window, accounts.charge(window * MINUTE, np.array([False]))))
    (day,) = find_days(read(place))
    times, spent = day.accumulate()
    assert (times // MINUTE).tolist() == [0, 58, 59, 60, 60, 61, 62]
    assert (spent // NANO).tolist() == [0, 1, 2, 0, 1, 2, 2]
    assert (day.start, day.end) == (0, DAY)


def test_the_day_can_be_chosen(place: str) -> None:
    with Ledger.open(place) as ledger:
        lease = ledger.take_over("taxis", "specification")
        accounts = opened(lease, ["a"], account(1))
        for window in (1439, 1440):
            lease.commit(b"", draft(window, accounts.charge(window * MINUTE, np.array([False]))))
    assert find_days(read(place))[0].start == DAY
    assert find_days(read(place), "1970-01-01")[0].start == 0
    with pytest.raises(LedgerError, match="no window on 1970-01-03"):
        find_days(read(place), "1970-01-03")
    with pytest.raises(LedgerError, match="'soon' is not a date"):
        find_days(read(place), "soon")


def test_pictures_show_names_limit_and_counts(filled: str, tmp_path: Path) -> None:
    picture = tmp_path / "day.svg"
    done = tacit("ledger", "show", filled, "--subject", "a", "--plot", picture)
    assert done.exit_code == 0, done.output
    assert "Not paid for: 3 windows for visit." in done.output
    text = picture.read_text()
    for shown in ("visit, subject a, 1970-01-01", "limit: 3", "paid for (3)", "free (2)"):
        assert shown in text
    read(filled).plot(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == picture.read_bytes()
    read(filled).plot(tmp_path / "day.png", day="1970-01-01")
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_subject_the_spending_of_all_is_drawn(filled: str, tmp_path: Path) -> None:
    picture = tmp_path / "spending.svg"
    done = tacit("ledger", "show", filled, "--plot", picture)
    assert done.exit_code == 0, done.output
    text = picture.read_text()
    assert "visit: the largest spending of a subject per day, limit 3 (black line)" in text
    assert "1 subject" in text, "who has reached the limit"
    (axes,) = read(filled, None).plot().axes
    assert [bar.get_height() for bar in axes.patches] == [3.0]  # type: ignore[attr-defined]


def test_what_cannot_be_drawn_is_refused(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = tacit(
        "ledger", "show", filled, "--plot", tmp_path / "day.svg", "--day", "1970-01-01"
    )
    assert everyone.exit_code != 0
    assert "--subject SUBJECT" in everyone.output
    alone = tacit("ledger", "show", filled, "--subject", "a", "--day", "1970-01-01")
    assert alone.exit_code != 0
    assert "--day needs --plot" in alone.output
    with pytest.raises(LedgerError, match="give subject="):
        read(filled, None).plot(tmp_path / "day.svg", day="1970-01-01")
    with pytest.raises(SinkError, match=r"\.svg, \.png or \.pdf"):
        read(filled).plot(tmp_path / "day.gif")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tacit\[plot\]'"):
        read(filled).plot(tmp_path / "day.svg")
