"""The built packages: complete, checked, and enough for the lean core without any extra.

The empty environment has the wheel and the distributions that it requires without extras, taken
from the environment of the tests: nothing is downloaded.
"""

from __future__ import annotations

import json
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
        timeout=600,
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


def install(built: Path, folder: Path) -> Path:
    """Create an environment with the wheel; return the folder of its programs."""
    venv.create(folder / "env", symlinks=True)
    programs = folder / "env" / "bin"
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    link_distributions(packages, list_distributions())
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


def link_distributions(packages: Path, chosen: list[Distribution]) -> None:
    """Put distributions of this environment into another folder of packages."""
    for one in chosen:
        for top in {file.parts[0] for file in one.files or () if file.parts[0] != ".."}:
            source = Path(str(one.locate_file(top)))
            if top != "__pycache__" and source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)


def run(
    program: Path, *arguments: str | Path, folder: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in the lean environment."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [program, *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in hidden} | env,
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


@pytest.mark.soak
def test_twine_finds_nothing_wrong(built: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()],
        capture_output=True,
        text=True,
        timeout=600,
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


# The extra that each command lacks, in an environment without any, and in one with a ledger.
WITHOUT_EXTRAS = {
    "plan spec.yaml --history in.csv --plot curve.svg": "plot",
    "run spec.yaml in.csv --mechanism uniform --ledger spent.db --to out.csv": "ledger",
    "ledger show spent.db": "ledger",
    "ledger show postgresql://localhost/x": "ledger]', or 'tacit[postgres",
    "detect spec.yaml mqtt://localhost/a": "mqtt",
    "detect spec.yaml kafka://localhost/a": "kafka",
    "submit spec.yaml in.csv --ledger l.db --to out/": "flink",
    "serve --demo": "service",
}
WITH_A_LEDGER = {
    "ledger show postgresql://localhost/x": "postgres",
    "run spec.yaml in.csv --mechanism uniform --ledger l.db --metrics 0": "metrics",
}
EACH = """
import json, sys
from click.testing import CliRunner
from tacit.cli.main import main
found = [CliRunner().invoke(main, one.split()) for one in sys.argv[1:]]
print(json.dumps([[one.exit_code, one.stderr] for one in found]))
"""
"""Runs several commands in one process, which takes a fraction of the time of one for each."""


def check_each(expected: dict[str, str], programs: Path, folder: Path, **env: str) -> None:
    """Every command exits with 12, and names the extra that it lacks."""
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "in.csv").write_text("who,at,kind\nx,2026-01-01T00:00:00,a\n")
    (folder / "spent.db").touch()
    done = run(programs / "python", "-c", EACH, *expected, folder=folder, **env)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for (command, extra), (code, told) in zip(expected.items(), results, strict=True):
        assert code == 12, (command, told)
        assert "Traceback" not in told
        assert f"pip install 'tacit[{extra}]'" in told, (command, told)


def test_a_missing_extra_gives_the_line_to_type(lean: Path, tmp_path: Path) -> None:
    check_each(WITHOUT_EXTRAS, lean, tmp_path)


@pytest.mark.soak
def test_extras_that_need_a_ledger_are_named_once_there_is_one(lean: Path, tmp_path: Path) -> None:
    """The environment with tacit[ledger] is the lean one with more packages on its path."""
    more = tmp_path / "more"
    more.mkdir()
    own = {one.name for one in list_distributions()}
    link_distributions(more, [one for one in list_distributions("ledger") if one.name not in own])
    check_each(WITH_A_LEDGER, lean, tmp_path, PYTHONPATH=str(more))
