"""Settings for these tests, which start the command line a thousand times."""

from collections.abc import Iterator

import pytest

from tests.differential.outputs import rare_collection


@pytest.fixture(autouse=True, scope="module")
def _rare_collection() -> Iterator[None]:
    with rare_collection():
        yield
