"""The built packages: complete, checked, and enough for the lean core without any extra.

The empty environment has the wheel and the distributions that it requires without extras, taken
from the environment of the tests: nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cli.small_runs import SPEC

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder


def list_distributions(*extras: str) -> list[Distribution]:
    """Everything that the wheel requires, directly or not; without extras unless they are given."""
    found: dict[str, Distribution] = {}
    own = [Requirement(text) for text in distribution("tacit").requires or ()]
    wanted = [one for one in own if _is_needed(one, *extras)]
    while wanted:
        need = wanted.pop()
        one = distribution(need.name)
        assert need.specifier.contains(one.version, prereleases=True)
        if one.name not in found:
            found[one.name] = one
            wanted += [r for r in map(Requirement, one.requires or ()) if _is_needed(r)]
    return list(found.values())


def _is_needed(one: Requirement, *extras: str) -> bool:
    return one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))


@pytest.fixture(scope="module")
def lean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment without extras."""
    return install(built, tmp_path_factory.mktemp("lean"))


@pytest.fixture(scope="module")
def with_ledger(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with tacit[ledger]."""
    return install(built, tmp_path_factory.mktemp("ledger"), "ledger")


def install(built: Path, folder: Path, *extras: str) -> Path:
    """Create an environment with the wheel; return the folder of its programs."""
    venv.create(folder / "env", symlinks=True)
    programs = folder / "env" / "bin"
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    for one in list_distributions(*extras):
        for top in {file.parts[0] for file in one.files or () if file.parts[0] != ".."}:
            source = Path(str(one.locate_file(top)))
            if top != "__pycache__" and source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Kernels that the tests have compiled fit the wheel too: they are named by their code.
    for kernel in (ROOT / "src").rglob("__pycache__/*.nbc"):
        target = packages / kernel.relative_to(ROOT / "src")
        target.parent.mkdir(exist_ok=True)
        shutil.copy(kernel, target)
    program = programs / "tacit"
    program.write_text(
        f"#!{programs / 'python'}\nfrom tacit.cli.main import main\nmain(prog_name='tacit')\n"
    )
    program.chmod(0o755)
    return programs


def run(program: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the lean environment."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [program, *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_wheel_and_the_source_have_what_they_need(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "tacit/py.typed", "tacit/kernels/needs.json", "tacit/evaluation/taxi.yaml",
        "tacit/insight/templates/mqtt.yaml",
    ):  # fmt: skip
        assert needed in names
    assert any(name.startswith("tacit/ledger/migrations/") for name in names)
    assert not [name for name in names if name.endswith((".nbc", ".pyc"))]
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"):
        assert needed in inside
    assert not [name for name in inside if re.search(r"\.parquet$|\.nbc$|^demo-output", name)]


def test_twine_finds_nothing_wrong(built: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


def test_the_lean_core_answers_queries(lean: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "in.csv").write_text("who,at,kind\nx,2026-01-01T00:00:00,a\nx,2026-01-01,c\n")
    version = run(lean / "tacit", "--version", folder=tmp_path)
    assert distribution("tacit").version in version.stdout
    answered = run(
        lean / "tacit", "run", "spec.yaml", "in.csv", "--mechanism", "uniform", "--no-ledger",
        "--to", "out.csv", folder=tmp_path,
    )  # fmt: skip
    assert answered.returncode == 0, answered.stderr
    assert (tmp_path / "out.csv").read_text().count("\n") == 4


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("plot", "plan spec.yaml --history in.csv --plot curve.svg"),
        ("ledger", "run spec.yaml in.csv --mechanism uniform --ledger spent.db --to out.csv"),
        ("ledger", "ledger show spent.db"),
        ("ledger]', or 'tacit[postgres", "ledger show postgresql://localhost/x"),
        ("mqtt", "detect spec.yaml mqtt://localhost/a"),
        ("kafka", "detect spec.yaml kafka://localhost/a"),
        ("flink", "submit spec.yaml in.csv --ledger l.db --to out/"),
    ],
)
def test_a_missing_extra_gives_the_line_to_type(
    extra: str, arguments: str, lean: Path, tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "in.csv").write_text("who,at,kind\nx,2026-01-01T00:00:00,a\n")
    (tmp_path / "spent.db").touch()
    done = run(lean / "tacit", *arguments.split(), folder=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert f"pip install 'tacit[{extra}]'" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("postgres", "ledger show postgresql://localhost/x"),
        ("metrics", "run spec.yaml in.csv --mechanism uniform --ledger l.db --metrics 0"),
    ],
)
def test_extras_that_need_a_ledger_are_named_once_there_is_one(
    extra: str, arguments: str, with_ledger: Path, tmp_path: Path
) -> None:
    test_a_missing_extra_gives_the_line_to_type(extra, arguments, with_ledger, tmp_path)
