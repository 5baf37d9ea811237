"""Every mechanism in the list passes every check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tacit.spec.mechanisms import MECHANISMS
from tests.privacy.mechanisms.checks import CHECKS


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_mechanism_passes_every_check(check: Callable[[str], None], name: str) -> None:
    check(name)
