"""Measure the growth of a ledger, and the cost of archiving and verifying it.

`python -m benchmarks.ledger_growth --days 4`

One-minute windows, each a release, for 10,000 subjects and one private pattern, written by the code
of a run. Answers were delivered and deleted, as after --retain.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tacit.ledger.archival import archive
from tacit.ledger.charges import Charge
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import record_verification, verify

_MINUTE, _DAY = 60_000_000, 86_400_000_000
_AMOUNT = 10**9
_AT_ONCE = 120
R = TypeVar("R")


def main() -> None:
    """Fill a ledger, verify it, archive it, and verify it again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--subjects", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.days, given.subjects)


def measure(folder: Path, days: int, subjects: int) -> None:
    """Print the times and sizes."""
    place, file = folder / "ledger.db", folder / "old.archive"
    with Ledger.open(str(place)) as ledger:
        _timed(f"write {days * 1440:,} releases", lambda: _fill(ledger, 0, days - 1, subjects))
        first, _ = _timed("verify, the first time", lambda: verify(ledger))
        record_verification(ledger, first)
        _fill(ledger, days - 1, days, subjects)
        last, whole = _timed("verify in full", lambda: verify(ledger, full=True))
        again, part = _timed("verify what one day has added", lambda: verify(ledger))
        ledger.database.compact()
        print(f"{'ledger':<34} {_size(place):>10,} bytes")
        _timed("archive all but a day", lambda: archive(ledger, (days - 1) * _DAY, file))
        print(f"{'ledger':<34} {_size(place):>10,} bytes")
        print(f"{'archive':<34} {_size(file):>10,} bytes")
        after, rest = _timed("verify in full", lambda: verify(ledger, full=True))
        joined, _ = _timed(
            "verify in full with the archive", lambda: verify(ledger, full=True, archives=[file])
        )
    for verdict in (first, last, again, after, joined):
        if not verdict.passed:
            raise SystemExit(f"the ledger was changed: {verdict.faults[0]}")
    print(f"a day against all: 1 : {whole / part:.1f}; after archiving 1 : {whole / rest:.1f}")


def _fill(ledger: Ledger, begin: int, end: int, subjects: int) -> None:
    lease = ledger.take_over("taxi", "specification")
    lease.enrol(pa.array([f"taxi {number}" for number in range(subjects)]))
    everyone = np.ones(subjects, np.bool_)
    number = 0
    for first in range(begin * 1440, end * 1440, _AT_ONCE):
        drafts = [
            ReleaseDraft(
                start,
                1,
                _MINUTE,
                _MINUTE,
                "0" * 64,
                "1" * 64,
                subjects,
                os.urandom(64),
                [Charge("hospital_visit", _AMOUNT, start, _DAY, everyone, 2000 * _AMOUNT)],
            )
            for start in range(first * _MINUTE, (first + _AT_ONCE) * _MINUTE, _MINUTE)
        ]
        number = lease.commit(b"state", *drafts) or 0
    lease.record_delivery("answers.csv", number)
    lease.drop_delivered(["answers.csv"], 2**62)


def _timed(what: str, job: Callable[[], R]) -> tuple[R, float]:
    began = time.perf_counter()
    result = job()
    seconds = time.perf_counter() - began
    print(f"{what:<34} {seconds:>10.2f} s")
    return result, seconds


def _size(path: Path) -> int:
    return sum(other.stat().st_size for other in path.parent.glob(f"{path.name}*"))


if __name__ == "__main__":
    main()
