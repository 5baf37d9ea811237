"""A run on a cold cache that is killed again and again gets to its answers: `make soak`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.kernels.programs import environment
from tests.kernels.scenarios import Scenario, write_tuples

MOST = 80


def test_a_run_that_is_killed_every_other_second_gets_to_its_answers(tmp_path: Path) -> None:
    """With its helpers. On a slow machine a life lasts longer: until it has compiled something."""
    write_tuples(tmp_path)
    cache, answers = tmp_path / "cache", tmp_path / "out.csv"
    command = [sys.executable, "-m", "tacit", *_scenario().arguments(tmp_path)]
    patience, kills, before = 2.0, 0, 0
    while kills < MOST:
        process = subprocess.Popen(
            command, env=environment(cache), stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            errors = process.communicate(timeout=patience)[1]
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
            kills += 1
        kept = len(list(cache.rglob("*.nbc")))
        patience += 1.0 if kept == before else 0.0
        before = kept
    assert process.returncode == 0, errors
    assert kills > 1
    expected = tmp_path / "expected.csv"
    arguments = [str(expected) if one == str(answers) else one for one in command]
    subprocess.run(arguments, check=True, capture_output=True)
    assert answers.read_bytes() == expected.read_bytes()


def _scenario() -> Scenario:
    return Scenario("detect", "AND(slow, parked)")
