"""Processes for tests: forks of one that has imported what they need, since imports take long."""

from __future__ import annotations

import multiprocessing
from typing import Final

FORKSERVER: Final = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.ledger.racing", "tests.connectors.checks"])
