"""What the examples of a page write goes to a folder of its own."""

from pathlib import Path

import pytest

_WRITING = {"python.md", "leaks.md", "attack.md", "researchers.md", "limits.md"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.path.name in _WRITING:
        monkeypatch.chdir(tmp_path)
