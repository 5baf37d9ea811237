"""Runs with memory and a ledger that break down after a release and go on: exact, all outcomes.

Noise is never drawn a second time for a window that was released: everything that was ever released
about a window counts, and together it tells no more than the window's charge. The mistakes that are
planted below have to be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.connectors.frames import FrameSource
from tacit.errors import TacitError
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.settlement import Settlement
from tacit.planning.plan import Plan
from tacit.privacy.prices import NANO
from tests.differential.outputs import _empty_ledger
from tests.privacy.enumeration import FIRST, _products, _untried
from tests.privacy.memories import (
    Broken,
    Likely,
    Stream,
    Told,
    add_up,
    batches,
    find_broken,
    plan_by_hand,
    remembering,
)
from tests.privacy.test_memory_guarantee import RunNoise

Patch = pytest.MonkeyPatch
SPEC = remembering([("a", "1")], ["AND(a, s)"], "as").model_copy(update={"subjects": ("0", "1")})
STREAMS: list[Stream] = [("s", "s"), ("s", "as")]


@cache
def plan() -> Plan:
    """Its plan, with memory."""
    return plan_by_hand(SPEC)


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: Patch) -> None:
    """Windows are released as they close."""
    monkeypatch.setattr(Settlement, "is_due", lambda self: self.pending)


def told_about(stream: Stream, noise: RunNoise, ledger: Path) -> Told:
    """All that is released about a stream by engines that break down after each release."""
    frame = pl.DataFrame(pa.Table.from_batches(batches(SPEC, [stream])))
    ledger.write_bytes(_empty_ledger())
    answers, charges = [b""] * len(stream), [0] * len(stream)
    for _ in range(2 * len(stream) + 1):
        with noise.watching(), Ledger.open(str(ledger)) as opened:
            source = Input("p", FrameSource(frame, "p"))
            run = Run(SPEC, [source], plan=plan(), noise=noise, ledger=opened, name="run")
            found = next(iter(run), None)
            if found is not None:
                window = found.first - FIRST
                answers[window] += found.detected[0, :, 0].tobytes()
                answers[window] += found.confidence(0)[0, :1].tobytes()
                charges[window] += run.outcome.charged.get("a", 0)
            if run.outcome.finished and found is None:
                break
    else:
        raise AssertionError("the run never ends")
    return Told(b"|".join(answers), b"", (), tuple((charge,) for charge in charges))


def enumerated(streams: Sequence[Stream], ledger: Path) -> Likely:
    """All that may be told about each of the streams."""
    found: list[tuple[int, Told, int, int]] = []
    for number, stream in enumerate(streams):
        scripts = [np.empty(0, np.int64)]
        while scripts:
            script = scripts.pop()
            noise = RunNoise(script[np.newaxis], 2)
            told = told_about(stream, noise, ledger)
            kinds, picks, drawn = noise.kinds[:1], noise.picks[:1], noise.drawn[:1]
            (weight,), (exponent,) = _products(noise, kinds, picks, drawn)
            found.append((number, told, weight, int(exponent)))
            given = np.array([len(script)])
            _, following = _untried(noise, np.zeros(1, np.int64), given, kinds, picks, drawn)
            scripts += [one[one >= 0] for one in following]
    return add_up(len(streams), found)


def breaks(folder: Path) -> tuple[Likely, list[Broken]]:
    """What may be told, and the neighbours that are told apart."""
    likely = enumerated(STREAMS, folder / "ledger.db")
    return likely, find_broken(SPEC, likely, STREAMS)


def test_a_window_that_was_released_is_never_drawn_again(tmp_path: Path) -> None:
    likely, broken = breaks(tmp_path)
    assert broken == []
    outcomes = {outcome for chances in likely for outcome in chances}
    assert len(outcomes) == 4  # two symbols in each of two windows
    assert {one.charges for one in outcomes} == {((NANO,), (NANO,))}


def forget_progress(monkeypatch: Patch) -> None:
    """A checkpoint is written one commit late: a release is not in the state that goes with it."""
    write = Lease._write_checkpoint
    before: list[bytes] = []

    def late(self: Lease, connection: Any, run: Any, checkpoint: bytes, **moved: Any) -> None:
        if run["checkpoint"] is None:
            before.clear()
        before.append(checkpoint)
        write(self, connection, run, before[-2:][0], **moved)

    monkeypatch.setattr(Lease, "_write_checkpoint", late)


def test_a_state_without_the_release_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    """The ledger knows up to where windows were released, whatever a checkpoint says."""
    forget_progress(monkeypatch)
    with pytest.raises(TacitError):
        breaks(tmp_path)


def test_noise_that_is_drawn_again_after_a_restart(tmp_path: Path, monkeypatch: Patch) -> None:
    forget_progress(monkeypatch)
    monkeypatch.setattr(Lease, "_check_next", lambda *_: None)
    likely, broken = breaks(tmp_path)
    assert {one.windows for one in broken} == {(1,), (0, 1)}
    assert {len(outcome.answers) for outcome in likely[0]} == {28}  # the second window twice
