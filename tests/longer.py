"""Cases that `make soak` runs and `make test` leaves out: the same tests with other values."""

from __future__ import annotations

from typing import Any

import pytest


def longer(*values: Any) -> list[Any]:
    """Mark values of a parameter; a tuple has one for each of several parameters."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.soak)
        for one in values
    ]
