"""What a specification may reach: `tacit validate` opens no file that it should not."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tacit.errors import SpecificationError
from tacit.spec.yaml_reader import load, loads
from tests.cli.small_runs import tacit

SPEC = """
streams: {gps: {subject: taxi, time: at}}
windows: {size: 10 min}
"""
BOX = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A specification's folder, beside a secret and a shared one."""
    for name in ("specs", "shared"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared" / "box.geojson").write_text(json.dumps(BOX))
    (tmp_path / "shared" / "names.txt").write_text("ann\nbob\n")
    return tmp_path / "specs"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC + "\n".join(lines) + "\n")
    return path


def with_area(folder: Path, file: str | Path) -> Path:
    return written(
        folder, f"areas: {{home: {{geojson: '{file}'}}}}",
        "events: {here: {stream: gps, inside: home}}",
    )  # fmt: skip


def with_subjects(folder: Path, file: str | Path) -> Path:
    return written(folder, f"subjects: {{file: '{file}'}}", "events: {any: {stream: gps}}")


@pytest.mark.parametrize("make", [with_area, with_subjects])
@pytest.mark.parametrize("way", ["relative", "absolute", "link", "linked folder"])
def test_a_file_outside_of_the_folder_is_refused_unless_it_is_allowed(
    folder: Path, make: object, way: str
) -> None:
    assert callable(make)
    shared = folder.parent / "shared"
    name = "box.geojson" if make is with_area else "names.txt"
    (folder / "link").symlink_to(shared / name)
    (folder / "down").symlink_to(shared)
    file = {
        "relative": f"../shared/{name}", "absolute": str(shared / name), "link": "link",
        "linked folder": f"down/{name}",
    }[way]  # fmt: skip
    spec = make(folder, file)
    with pytest.raises(SpecificationError, match="outside of the specification's folder") as caught:
        load(spec)
    assert caught.value.mistakes[0].line is not None
    assert load(spec, [shared]).folder == folder
    with pytest.raises(SpecificationError, match="outside"):
        load(spec, [folder.parent / "sha"])


def test_a_file_below_the_folder_needs_nothing(folder: Path) -> None:
    (folder / "areas").mkdir()
    (folder / "areas" / "box.geojson").write_text(json.dumps(BOX))
    load(with_area(folder, "areas/box.geojson"))
    load(with_area(folder, folder / "areas" / "box.geojson"))


@pytest.mark.parametrize("make", [with_area, with_subjects])
def test_a_pipe_or_a_folder_is_refused_and_never_opened(folder: Path, make: object) -> None:
    """Nobody writes to the pipe, so that to open it would hang."""
    assert callable(make)
    os.mkfifo(folder / "pipe")
    (folder / "empty").mkdir()
    for name in ("pipe", "empty"):
        with pytest.raises(SpecificationError, match="not a plain file"):
            load(make(folder, name))


@pytest.mark.parametrize("make", [with_area, with_subjects])
def test_a_device_is_refused_even_where_it_is_allowed(folder: Path, make: object) -> None:
    assert callable(make)
    with pytest.raises(SpecificationError, match="outside"):
        load(make(folder, "/dev/zero"))
    with pytest.raises(SpecificationError, match="not a plain file"):
        load(make(folder, "/dev/zero"), ["/dev"])


@pytest.mark.parametrize("name", ["missing.geojson", "a\\0b", "x" * 5000])
def test_a_path_that_cannot_be_is_a_mistake_and_no_traceback(folder: Path, name: str) -> None:
    text = SPEC + f'areas: {{home: {{geojson: "{name}"}}}}\nevents: {{any: {{stream: gps}}}}\n'
    with pytest.raises(SpecificationError, match="file"):
        loads(text, folder=folder)


def test_the_command_line_allows_folders(folder: Path) -> None:
    spec = with_area(folder, "../shared/box.geojson")
    refused = tacit("validate", spec)
    assert refused.exit_code == 3
    assert "--allow-path DIR" in refused.stderr
    for command in ("validate", "explain"):
        allowed = tacit(command, spec, "--allow-path", folder.parent / "shared")
        assert allowed.exit_code == 0, allowed.stderr


def test_to_validate_a_condition_opens_no_file_and_no_connection(folder: Path) -> None:
    secret = folder / "notes.csv"
    os.mkfifo(secret)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/notes.csv"
        for place in (secret, url):
            spec = written(
                folder,
                "events: {a: {stream: gps, where: "
                f"\"kind IN (SELECT nope FROM read_csv('{place}'))\"}}}}",
            )
            found = tacit("validate", spec)
            assert found.exit_code == 3
            assert "only conditions on one tuple" in found.stderr
            assert "SELECT" in found.stderr
        with pytest.raises(BlockingIOError):
            server.accept()
