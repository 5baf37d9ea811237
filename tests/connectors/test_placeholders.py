"""File names with placeholders: a file for each name, inside its folder, and no two the same."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.connectors.files import open_source
from tacit.connectors.openers import open_resumable_sink, open_sink
from tacit.connectors.placeholders import FileTemplate
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch
from tests.connectors.checks import CONSUMERS, batch, file_rows

NASTY = ["..", ".", "", "/", "a/../b", "\0", "%2F", "%", "a%z", "-", "a-", "\ud800", "x" * 400]
NAMES = st.one_of(
    st.sampled_from(NASTY),
    st.text("ab-_./%\0zx", max_size=5),
    st.text(max_size=80),
    st.text("ab", min_size=120, max_size=400),
)
PAIRS = st.fixed_dictionaries({"consumer": NAMES, "query": NAMES})
TEMPLATES = [
    "out/{consumer}/{query}.csv",
    "out/{consumer}-{query}.csv",
    "out/{consumer}-of-{query}/x.csv",
    "out/{query}_{consumer}/",
    "out/{consumer}{0}.csv".replace("{0}", "...{query}"),
]


@pytest.mark.parametrize("text", TEMPLATES)
@given(first=PAIRS, second=PAIRS)
@example(first={"consumer": "a-b", "query": "c"}, second={"consumer": "a", "query": "b-c"})
@example(first={"consumer": "", "query": "x"}, second={"consumer": "%z", "query": "x"})
@example(first={"consumer": "a/b", "query": "c"}, second={"consumer": "a", "query": "b/c"})
def test_different_names_have_different_files_and_none_leaves_the_folder(
    text: str, first: dict[str, str], second: dict[str, str]
) -> None:
    template = FileTemplate(text)
    one, two = template.path(first), template.path(second)
    assert (one == two) == (first == second)
    for path in (one, two):
        assert os.path.normpath(path) == str(path)
        assert path.is_relative_to(Path("out").absolute())
        assert len(path.parts) == len(Path(text).absolute().parts)
        assert all(0 < len(os.fsencode(part)) < 256 - 20 for part in path.parts[1:])
        assert not path.relative_to(template.base).parts[0].startswith(".")
        assert "\0" not in str(path)
        assert template.matches(path)


def test_the_files_of_nasty_names_can_be_written_and_are_as_many(tmp_path: Path) -> None:
    template = FileTemplate(f"{tmp_path}/{{consumer}}.csv")
    for name in NASTY:
        template.path({"consumer": name}).write_text("x")
    assert len(os.listdir(tmp_path)) == len(NASTY)


@pytest.mark.parametrize("name", ["{consumers}.csv", "a/{window}/", "{}.csv", "{ query }.jsonl"])
@pytest.mark.parametrize("ledger", [False, True])
def test_an_unknown_placeholder_is_an_error_that_names_the_known_ones(
    name: str, ledger: bool, tmp_path: Path
) -> None:
    if name.endswith("/") and not ledger:
        name += "a.csv"
    opening = open_resumable_sink if ledger else open_sink
    with pytest.raises(SinkError, match=r"Known are \{consumer\}, \{query\}, \{subject\}"):
        opening(f"{tmp_path}/{name}")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["{consumer}{query}.csv", "{consumer}and{query}.csv"])
def test_names_that_would_run_together_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="between two placeholders"):
        open_sink(tmp_path / name)


def read(folder: Path, suffix: str) -> dict[str, pl.DataFrame]:
    """The files in a folder and below, by their names without the suffix."""
    return {
        str(path.relative_to(folder)).removesuffix(suffix): pl.DataFrame(file_rows(path))
        for path in sorted(folder.rglob(f"*{suffix}"))
        if not path.name.startswith(".")
    }


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow", ".csv.gz"])
@pytest.mark.parametrize("name", ["{consumer}", "{consumer}/{query}", "{subject}"])
def test_each_file_holds_the_rows_of_its_name_in_their_order(
    name: str, suffix: str, tmp_path: Path
) -> None:
    table = pa.concat_tables([batch(1, 60).table, batch(2, 60).table])
    with open_sink(f"{tmp_path}/{name}{suffix}", table.schema, CONSUMERS) as sink:
        sink.write(table.slice(0, 50))
        sink.write(table.slice(50))
    found = read(tmp_path, suffix)
    columns = [part.strip("{}") for part in name.split("/")]
    whole = pl.DataFrame(table).with_columns(pl.col(columns).cast(pl.String))
    wanted = {
        str(key): part["id"].to_list()
        for key, part in whole.partition_by(columns, as_dict=True, maintain_order=True).items()
    }
    assert sorted(part["id"].to_list() for part in found.values()) == sorted(wanted.values())
    if name == "{consumer}":
        assert list(found) == ["city", "clinic"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_query_has_its_file_though_nothing_is_written(suffix: str, tmp_path: Path) -> None:
    """A missing file would tell."""
    schema = batch(1).table.schema
    open_sink(f"{tmp_path}/{{consumer}}/{{query}}{suffix}", schema, CONSUMERS).close()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob(f"*{suffix}"))
    assert found == [f"city/jam{suffix}", f"city/rush{suffix}", f"clinic/visit{suffix}"]
    assert all(open_source(tmp_path / name).schema().names == schema.names for name in found)


@pytest.mark.parametrize("name", ["{consumer}/{query}.csv", "{consumer}/{query}/"])
def test_a_release_without_rows_for_a_query_reaches_its_file_too(name: str, tmp_path: Path) -> None:
    part = batch(1)
    with open_resumable_sink(f"{tmp_path}/{name}") as sink:
        sink.recover(None)
        sink.deliver(ReleaseBatch(1, part.table.slice(0, 1), part.consumers))
    files = [p for p in tmp_path.rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert {path.relative_to(tmp_path).parts[0] for path in files} == {"city", "clinic"}
    assert len(files) == 3


def test_files_are_all_whole_or_all_absent(tmp_path: Path) -> None:
    class OhError(Exception): ...

    def broken() -> None:
        with open_sink(f"{tmp_path}/{{consumer}}.csv", batch(1).table.schema, CONSUMERS) as sink:
            sink.write(batch(1).table)
            raise OhError

    with pytest.raises(OhError):
        broken()
    assert not os.listdir(tmp_path)


def test_subjects_may_be_more_than_files_that_can_be_open(tmp_path: Path) -> None:
    count = 400
    table = pa.table({"subject": [f"s{n}" for n in range(count)] * 2, "n": list(range(2 * count))})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    (tmp_path / "kept").mkdir()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with open_sink(f"{tmp_path}/{{subject}}.csv", table.schema) as sink:
            sink.write(table)
        with open_resumable_sink(f"{tmp_path}/kept/{{subject}}.csv") as resumable:
            resumable.recover(None)
            for release in (1, 2):
                resumable.deliver(ReleaseBatch(release, table, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "s7.csv").read_text() == "subject,n\ns7,7\ns7,407\n"
    assert (tmp_path / "kept/s7.csv").read_text() == "subject,n\n" + "s7,7\ns7,407\n" * 2
    assert len(list(tmp_path.glob("s*.csv"))) == count


def test_a_delivery_that_fails_in_one_file_comes_again_once_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first files have the release already when the disk is full."""
    with open_resumable_sink(f"{tmp_path}/{{query}}.jsonl") as sink:
        sink.recover(None)
        sink.deliver(batch(1))
        calls = 0

        def full_later(_: int) -> None:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise OSError(28, "full")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full_later)
            with pytest.raises(UnreachableError):
                sink.deliver(batch(2))
        sink.deliver(batch(2))
    ids = [row for part in read(tmp_path, ".jsonl").values() for row in part["id"].to_list()]
    wanted = [row for n in (1, 2) for row in batch(n).table["id"].to_pylist()]
    assert sorted(ids) == sorted(wanted)


def test_a_folder_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    for opening in (open_sink, open_resumable_sink):
        with pytest.raises(SinkError, match=r"does not exist; create it"):
            opening(f"{tmp_path}/no/{{consumer}}.csv")
