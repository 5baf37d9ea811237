"""Compare randomised response with OpenDP and diffprivlib, per bit and with secure randomness.

The rivals run in a separate Python environment, in the same run, with the same epsilon. All rates
of flips are checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import Spent, race
from benchmarks.report import OURS, Finding, Skipped, against
from tacit.privacy.channels import Channel
from tacit.privacy.randomness import SecureSource
from tacit.privacy.sampling import Sampler, flip_bits

# diffprivlib needs an internal name of scikit-learn that was removed in 1.7.
_PACKAGES = ("opendp", "diffprivlib", "scikit-learn<1.7")
_EPSILON = Decimal(1)
_JOB = "Randomised response, a million bits"
_BITS = 64_000_000
_TARGET = 100


def sampling(setting: Setting) -> Iterator[Finding | Skipped]:
    """Compare the speed of flips with the better rival; measure symbols for reference."""
    yield _symbols(setting.rounds)
    try:
        python = _environment(setting.folder / "sampling")
    except subprocess.CalledProcessError:
        yield Skipped(_JOB, "opendp and diffprivlib cannot be installed from the package index")
        return
    script = Path(__file__).with_name("sampling_job.py")
    command = [str(python), str(script), "--epsilon", str(_EPSILON)]
    command += ["--rounds", str(setting.rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = {OURS: _ours(setting.rounds)}
    for name, found in json.loads(done.stdout).items():
        _check(name, found["flipped"], found["bits"])
        seconds[name] = _per_million(Spent(*found["spent"]), found["bits"])
    rate = 1e-3 / seconds[OURS].elapsed
    yield against(_JOB, seconds, _TARGET, note=f"{rate:.2f} billion bits a second; rates checked")


def _ours(rounds: int) -> Spent:
    words = np.zeros(_BITS // 64, dtype=np.uint64)
    channel, source = Channel.flip(_EPSILON), SecureSource()

    def read(name: str, flipped: Any) -> None:
        _check(name, int(np.bitwise_count(flipped).sum()), _BITS)

    outcome = race({OURS: lambda: flip_bits(words, channel, source)}, rounds, read)[OURS]
    return _per_million(outcome.spent, _BITS)


def _symbols(rounds: int) -> Finding:
    """Measure draws from a channel of eight classes."""
    columns = [{row} for row in range(8)]
    channel = Channel.staircase(columns, [1.0] * 8, _EPSILON, inputs=range(8))
    sampler = Sampler(channel, SecureSource())
    rows = np.random.default_rng(0).integers(0, 8, 8_000_000)
    outcome = race({OURS: lambda: sampler.sample(rows)}, rounds, lambda name, _: name)[OURS]
    million = len(rows) / 1e6
    return Finding(
        "Symbols of a channel with 8 classes",
        "million draws a second",
        million / outcome.spent.elapsed,
        million / outcome.spent.processor,
        unit="",
    )


def _per_million(spent: Spent, bits: int) -> Spent:
    return Spent(spent.elapsed * 1e6 / bits, spent.processor * 1e6 / bits)


def _check(name: str, flipped: int, bits: int) -> None:
    """Check that the rate of flips is that of epsilon, within six standard deviations."""
    rate = 1 / (1 + float(_EPSILON.exp()))
    if abs(flipped - bits * rate) > 6 * sqrt(bits * rate * (1 - rate)):
        raise UnequalError(f"{name} flips {flipped} of {bits} bits, not {rate:.4f} of them")


def _environment(folder: Path) -> Path:
    """Create a Python environment with only the rivals, once."""
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        base = getattr(sys, "_base_executable", sys.executable)
        for step in (
            [base, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *_PACKAGES],
        ):
            subprocess.run(step, check=True, capture_output=True)
        ready.touch()
    return python
