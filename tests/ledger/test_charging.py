"""The benchmark of charging compares like with like."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from benchmarks import charging
from benchmarks.data import Scale
from benchmarks.jobs import Setting, UnequalError


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(Scale(events=20_000, subjects=100, windows=4), 1, tmp_path, 0, 0, 0)


def test_everyone_comes_to_the_same_balances(setting: Setting) -> None:
    rows, statement = charging.charging(setting)
    assert rows.job == "Charging 1,000 subjects for a window"
    assert "a row for each subject" in rows.measure
    assert "one statement" in statement.measure


def test_other_balances_are_refused(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "_total", lambda _: 7)
    with pytest.raises(UnequalError, match="balances differ"):
        list(charging.charging(setting))
