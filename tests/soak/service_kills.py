"""A service that is killed or changed often while tuples come in and answers go out."""

from __future__ import annotations

import time
from pathlib import Path

from tests.engines.forking import Forks
from tests.service.crashes import survive_kills
from tests.service.test_workflow import change_under_load


def test_the_service(tmp_path: Path) -> None:
    """Every tuple counts once, and every answer is told once, as it was released."""
    seed = time.time_ns()
    print(f"seed {seed}", flush=True)
    with Forks() as forks:
        print(survive_kills(forks, tmp_path, kills=20, seed=seed), flush=True)


def test_changes_of_the_specification(tmp_path: Path) -> None:
    """Every window is released once, by one version."""
    change_under_load(tmp_path, changes=300)
