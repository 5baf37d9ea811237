"""A service that is killed loses nothing, and tells nothing twice."""

from __future__ import annotations

from pathlib import Path

from tests.engines.forking import Forks
from tests.service.crashes import survive_kills


def test_killed_between_input_and_output_nothing_is_lost_or_told_twice(
    forks: Forks, tmp_path: Path
) -> None:
    """Tuples come by HTTP and answers go as server-sent events; `make soak` kills it often."""
    survive_kills(forks, tmp_path, kills=1, seed=7)
