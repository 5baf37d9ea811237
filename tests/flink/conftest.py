"""These tests run in the environment that has PyFlink."""

from __future__ import annotations

import pytest

pytest.importorskip("pyflink", reason="there is no PyFlink for this version of Python")
