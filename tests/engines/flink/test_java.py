"""What Flink needs is looked for before anything starts, and named where it is missing."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tacit.engines.flink import java
from tacit.engines.flink.java import Java, require_flink, require_java
from tacit.errors import EngineError, MissingExtraError


def fake_java(folder: Path, says: str) -> Path:
    """A program that is called java and says this of its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
    ],
)
def test_java_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_java: None, says: str, version: int
) -> None:
    program = fake_java(tmp_path, says)
    monkeypatch.setenv("PATH", str(program.parent))
    assert require_java() == Java(program, version)


def test_java_home_comes_before_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_java: None
) -> None:
    first = fake_java(tmp_path / "home", 'openjdk version "21.0.2"')
    second = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(second.parent))
    assert require_java() == Java(first, 21)


@pytest.mark.parametrize(
    ("says", "fault"),
    [
        ('java version "1.8.0_402"', "is Java 8, which is too old for Flink 2.3"),
        ('openjdk version "11.0.22"', "is Java 11, which is too old for Flink 2.3"),
        ('openjdk version "25-ea"', "is Java 25, which is too new for Flink 2.3"),
        ("cannot open shared library", "does not report its version"),
    ],
)
def test_a_java_that_does_not_fit_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_java: None, says: str, fault: str
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, says).parent))
    with pytest.raises(EngineError, match=fault) as caught:
        require_java()
    assert "install Java 17 or 21" in str(caught.value)


def test_a_machine_without_java_is_told_so(no_java: None) -> None:
    with pytest.raises(EngineError, match="needs Java, and none was found: install Java 17"):
        require_java()


def test_a_java_home_without_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_java: None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=r"there is no bin/java in it"):
        require_java()


def test_a_java_that_cannot_be_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_java: None
) -> None:
    program = fake_java(tmp_path, "")
    program.write_text("#!/nowhere\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match="cannot be run"):
        require_java()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'tacit\[flink\]'"):
        require_flink()


def test_a_package_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.2.1")
    with pytest.raises(EngineError, match=r"apache-flink is 2\.2\.1, but Tacit needs 2\.3"):
        require_flink()


def test_a_patch_release_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: f"{java.FLINK}.7")
    assert require_flink() == "2.3.7"
