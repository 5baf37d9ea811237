"""Where machine code is kept: never where another user could have put it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.kernels import folders
from tacit.kernels.folders import find_cache_folders
from tests.kernels.programs import start

NOBODY = 65534
USE = "import numpy as np, sums\nprint(sums.total(np.arange(5)), compilations() > 0)\n"
ROOT = os.geteuid() == 0
# Nobody: who may read what root may read, so that Python itself can be read, and write nothing.
AS_NOBODY = (
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files as `/tmp` is, and nothing else that can be written."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(folders, "_can_write", lambda _: False)
    for one in (find_cache_folders, folders._private_folder):
        one.cache_clear()
    yield folder
    for one in (find_cache_folders, folders._private_folder):
        one.cache_clear()


def mode(path: Path) -> int:
    """Who may do what."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.soak
@pytest.mark.skipif(not (ROOT and shutil.which("setpriv")), reason="only root can become nobody")
def test_a_user_who_can_write_nothing_gets_answers_and_a_notice(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    variables = {"HOME": "/nonexistent", "TMPDIR": str(temporary), "XDG_CACHE_HOME": ""}

    def answers() -> tuple[str, str]:
        process = start(tmp_path, USE, None, prefix=AS_NOBODY, variables=variables)
        output, errors = process.communicate(timeout=120)
        return output.strip(), errors

    output, errors = answers()
    assert output == "10 True"
    assert "Traceback" not in errors
    assert errors.count("\n") == 1
    assert errors.startswith(f"Compiled kernels are stored in {temporary}/tacit-kernels-{NOBODY}-")
    (folder,) = temporary.iterdir()
    assert mode(folder) == 0o700
    assert folder.stat().st_uid == NOBODY
    assert answers()[0] == "10 False"
    assert list(temporary.iterdir()) == [folder]
    # What was compiled when the package was installed is used, though it cannot be written.
    installed = start(tmp_path, USE, None)
    assert installed.communicate(timeout=120)[0] == "10 True\n"
    shutil.rmtree(folder)
    assert answers()[0] == "10 False"


def test_the_private_folder_has_a_random_name_and_is_used_again(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = find_cache_folders(Path("/room"))
    (folder,) = shared.iterdir()
    assert first.writable is not None
    assert first.writable.parent == folder
    assert mode(folder) == 0o700
    assert len(caplog.records) == 1
    assert find_cache_folders(Path("/other")).writable != first.writable
    assert len(caplog.records) == 1
    folders._private_folder.cache_clear()
    find_cache_folders.cache_clear()
    assert find_cache_folders(Path("/room")) == first
    shutil.rmtree(folder)
    again = folders._find_private(shared)
    assert again is not None
    assert again.name != folder.name


def test_a_folder_that_another_could_write_or_made_is_not_used(
    shared: Path, tmp_path: Path
) -> None:
    prefix = f"tacit-kernels-{os.geteuid()}-"
    for name, permissions in (("a", 0o777), ("b", 0o770), ("c", 0o755)):
        (shared / f"{prefix}{name}").mkdir()
        (shared / f"{prefix}{name}").chmod(permissions)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (shared / f"{prefix}d").symlink_to(elsewhere)
    (shared / f"{prefix}e").write_text("")
    if ROOT:
        (shared / f"{prefix}f").mkdir(mode=0o700)
        os.chown(shared / f"{prefix}f", NOBODY, NOBODY)
    before = set(shared.iterdir())
    chosen = find_cache_folders(Path("/room")).writable
    assert chosen is not None
    assert chosen.parent not in before
    assert chosen.parent.parent == shared


def test_where_anyone_can_rename_a_folder_nothing_is_kept(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared.chmod(0o777)
    assert find_cache_folders(Path("/room")).writable is None
    assert list(shared.iterdir()) == []
    assert "not stored" in caplog.text


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_home_that_anyone_can_write_is_not_used(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert folders._user_cache() in (tmp_path, tmp_path / ".cache")
    tmp_path.chmod(0o1777)
    assert folders._user_cache() is None
    tmp_path.chmod(0o700)
    if ROOT:
        os.chown(tmp_path, NOBODY, NOBODY)
        assert folders._user_cache() is None
