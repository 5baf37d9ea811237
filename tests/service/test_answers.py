"""Answers over HTTP are those that the ledger has, for those who may see them."""

from __future__ import annotations

import io
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pyarrow as pa
import pytest

import tacit
from tacit.answers.rows import answer_schema
from tacit.service.feed import AnswerFeed, FeedSelection, UnpackedRelease, unpack_release
from tacit.service.recent_values import RecentValues
from tests.service.conftest import WINDOWS
from tests.service.services import QUERIES, SUBJECTS, Running, join, running, within, write_tuples
from tests.services import Postgres

ALL = WINDOWS * SUBJECTS * QUERIES


def fetch(client: httpx.Client, **params: Any) -> dict[str, Any]:
    """A page of answers."""
    response = client.get("/v1/answers", params=params)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


def ledger_rows(service: Running, **selected: Any) -> list[dict[str, Any]]:
    """The same answers, read from the ledger directly."""
    with tacit.released(service.service.options.ledger_place or "", **selected) as found:
        rows: list[dict[str, Any]] = found.arrow().to_pylist()
    for row in rows:
        for name in ("window_start", "window_end"):
            row[name] = row[name].strftime("%Y-%m-%dT%H:%M:%SZ")
        row |= {"confidence": pytest.approx(row["confidence"]), "value": None}
    return rows


def events(lines: Iterator[str]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The events of a stream: each one's id, and its answers."""
    number = -1
    for line in within(lines):
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield number, json.loads(value)


def test_a_consumer_gets_exactly_the_answers_to_its_own_queries(served: Running) -> None:
    with served.client("consumer", "city") as client:
        page = fetch(client, limit=10_000)
    assert page["answers"] == ledger_rows(served, consumer="city")
    assert {row["query"] for row in page["answers"]} == {"both", "either"}
    assert (page["more"], page["next"], page["kept_from"]) == (False, ALL - 1, 0)


def test_a_subject_gets_what_everyone_was_told_about_it_and_nothing_else(served: Running) -> None:
    with served.client("subject", "t3") as client:
        assert fetch(client)["answers"] == ledger_rows(served, subject="t3")
        assert client.get("/v1/answers", params={"subject": "t1"}).status_code == 403


def test_an_operator_gets_everything(served: Running) -> None:
    with served.client("operator", "ann") as client:
        assert fetch(client)["answers"] == ledger_rows(served)


def test_a_consumer_without_queries_gets_nothing(served: Running) -> None:
    with served.client("consumer", "nobody") as client:
        assert fetch(client)["answers"] == []


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
def test_pages_of_any_size_have_every_answer_once(served: Running, limit: int) -> None:
    found: list[dict[str, Any]] = []
    with served.client("consumer", "city") as client:
        after, more = -1, True
        while more:
            page = fetch(client, after=after, limit=limit)
            assert len(page["answers"]) <= limit
            found += page["answers"]
            assert page["next"] > after
            after, more = page["next"], page["more"]
    assert found == ledger_rows(served, consumer="city")


def test_every_id_is_found_by_bisection(served: Running) -> None:
    """The release of an id is found by halving; no id may be skipped or repeated."""
    with served.client("operator", "ann") as client:
        for after in range(-1, ALL - 1, 7):
            page = fetch(client, after=after, limit=1)
            assert page["answers"][0]["id"] == after + 1
        assert fetch(client, after=ALL - 1)["answers"] == []


@pytest.mark.parametrize(
    "selected",
    [
        {"query": "both"},
        {"query": ["both", "either"], "subject": ["t0", "t4"]},
        {"subject": "t2", "since": "1970-01-01T00:02:00Z"},
        {"since": "1970-01-01T00:01:00Z", "until": "1970-01-01T00:03:00Z"},
    ],
)
def test_filters_select_as_the_ledger_does(served: Running, selected: dict[str, Any]) -> None:
    with served.client("consumer", "city") as client:
        page = fetch(client, **selected)
    assert page["answers"] == ledger_rows(served, consumer="city", **selected)
    assert page["answers"]


def test_a_query_of_somebody_else_looks_like_one_that_does_not_exist(served: Running) -> None:
    with served.client("consumer", "city") as client:
        other = client.get("/v1/answers", params={"query": "open"})
        none = client.get("/v1/answers", params={"query": "there is none"})
    assert other.status_code == none.status_code == 404
    assert other.content == none.content


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow", "jsonl"])
def test_a_download_has_the_same_rows(served: Running, suffix: str) -> None:
    with served.client("consumer", "city") as client:
        response = client.get(f"/v1/answers.{suffix}", params={"subject": "t1"})
    assert response.status_code == 200
    assert f'filename="answers.{suffix}"' in response.headers["content-disposition"]
    read = {
        "parquet": pl.read_parquet,
        "csv": pl.read_csv,
        "arrow": pl.read_ipc,
        "jsonl": pl.read_ndjson,
    }[suffix]
    frame: pl.DataFrame = read(io.BytesIO(response.content))  # type: ignore[operator]
    expected = ledger_rows(served, consumer="city", subject="t1")
    assert frame["id"].to_list() == [row["id"] for row in expected]
    assert frame["detected"].to_list() == [row["detected"] for row in expected]
    assert set(frame.columns) == set(expected[0])


def test_an_empty_download_has_the_columns(served: Running) -> None:
    with served.client("consumer", "nobody") as client:
        frame = pl.read_parquet(io.BytesIO(client.get("/v1/answers.parquet").content))
    assert len(frame) == 0
    assert frame.columns[:3] == ["id", "window_start", "window_end"]


def test_a_stream_that_was_interrupted_continues_where_it_was(served: Running) -> None:
    expected = ledger_rows(served, consumer="city", query="both")
    found: list[dict[str, Any]] = []
    last = ""
    with served.client("consumer", "city") as client:
        while len(found) < len(expected):  # a new connection for every event
            headers = {"Last-Event-ID": last}
            with client.stream(
                "GET", "/v1/answers/stream?query=both&after=-1", headers=headers
            ) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                number, rows = next(events(response.iter_lines()))
                found += rows
                last = str(number)
    assert found == expected


def test_a_stream_sends_answers_as_they_are_released(tmp_path: Path) -> None:
    source = write_tuples(tmp_path / "tuples.csv", 3)
    with running(tmp_path, [source], follow=True) as service:
        service.wait(2 * SUBJECTS * QUERIES)
        with (
            service.client("consumer", "clinic") as client,
            client.stream("GET", "/v1/answers/stream?after=-1") as response,
        ):
            flow = events(response.iter_lines())
            before = [row for _, rows in itertools.islice(flow, 2) for row in rows]
            assert len(before) == 2 * SUBJECTS
            write_tuples(tmp_path / "tuples.csv", 3, first=3)
            after = [row for _, rows in itertools.islice(flow, 3) for row in rows]
        assert before + after == ledger_rows(service, consumer="clinic")


def test_a_slow_reader_delays_nobody(served: Running) -> None:
    with (
        served.client("operator", "ann") as slow,
        slow.stream("GET", "/v1/answers/stream?after=-1") as stuck,
    ):
        assert stuck.status_code == 200  # and nothing of it is read
        with served.client("consumer", "city") as client:
            assert len(fetch(client)["answers"]) == WINDOWS * SUBJECTS * 2


def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    source = write_tuples(tmp_path / "tuples.csv", 3)
    with running(tmp_path, [source], follow=True) as service:
        service.wait(2 * SUBJECTS * QUERIES)
        token = service.token("consumer", "city")
        ended = threading.Event()

        def listen() -> None:
            with (
                service.client("consumer", "city") as client,
                client.stream("GET", "/v1/answers/stream") as response,
            ):
                for _ in response.iter_lines():
                    pass
            ended.set()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        service.service.state.tokens.revoke(token.split("_")[1], actor="test")
        for _ in within(itertools.repeat(None)):  # it ends at the next release
            if ended.wait(0.2):
                break
            write_tuples(tmp_path / "tuples.csv", 1, first=3)
            first = service.service.state.feed.last_id()
            assert first < 10_000
            service.service.state.signal.ring()
        join(thread)


def test_answers_are_served_from_postgresql_too(tmp_path: Path, postgres: Postgres) -> None:
    source = write_tuples(tmp_path / "tuples.csv", 3)
    ledger = postgres.database("service_answers")
    with running(tmp_path, [source], ledger=ledger) as service:
        service.wait(3 * SUBJECTS * QUERIES)
        with service.client("consumer", "city") as client:
            assert fetch(client)["answers"] == ledger_rows(service, consumer="city")
            assert client.get("/v1/statement").status_code == 403
        with service.client("subject", "t1") as client:
            spent = client.get("/v1/statement").json()["horizons"]
    assert spent[0]["private"] == "visit"


def test_answers_survive_a_restart_with_the_same_ids(tmp_path: Path) -> None:
    source = write_tuples(tmp_path / "tuples.csv", 3)
    with running(tmp_path, [source], follow=True) as service:
        service.wait(2 * SUBJECTS * QUERIES)
        with service.client("operator", "ann") as client:
            before = fetch(client)["answers"]
    write_tuples(tmp_path / "tuples.csv", 2, first=3)
    with running(tmp_path, [source], follow=True) as service:
        service.wait(4 * SUBJECTS * QUERIES)
        with service.client("operator", "ann") as client:
            after = fetch(client)["answers"]
    assert after[: len(before)] == before
    assert len(after) == 4 * SUBJECTS * QUERIES


def follow(
    read: Callable[[FeedSelection, int, int], tuple[int, bytes] | None], selection: FeedSelection
) -> list[int]:
    """Read events of at most two answers to the end; return the ids of the answers."""
    found: list[int] = []
    after = -1
    while (event := read(selection, after, 2)) is not None:
        assert event[0] > after
        after, text = event
        for number, rows in events(iter(text.decode().splitlines())):
            assert number == after
            assert len(rows) <= 2
            found += [row["id"] for row in rows]
    return found


def test_events_from_the_ledger_and_from_memory_are_the_answers_that_were_selected(
    served: Running,
) -> None:
    feed = AnswerFeed(served.service.state.ledger, served.service.state.name)
    chosen = FeedSelection("city", ("both",), ("t4", "t1", "t4", "nobody"))
    for selection in (chosen, FeedSelection(), FeedSelection(subjects=("nobody",))):
        tables = [table for _, table in feed.read(selection)]
        expected = [number for table in tables for number in table["id"].to_pylist()]
        assert follow(feed.read_event, selection) == expected
        assert follow(feed.recall_event, selection) == expected


def test_memory_for_releases_is_bounded_also_when_they_are_formatted(served: Running) -> None:
    feed = AnswerFeed(served.service.state.ledger, served.service.state.name)
    first = feed.read_event(FeedSelection(), -1, 1000)
    assert first is not None
    one = next(iter(feed._recent)).rows.size
    feed._recent.most = 3 * one
    after: int = first[0]
    while (event := feed.read_event(FeedSelection(), after, 1000)) is not None:
        after = event[0]
        assert sum(release.rows.size for release in feed._recent) == feed._recent.size <= 3 * one
        assert len(feed._places) == len(feed._recent)
    assert len(feed._recent) < WINDOWS


def test_what_was_used_last_is_kept_and_a_value_may_grow() -> None:
    recent = RecentValues[str](10)
    assert recent.keep(1, "a", 4) == []
    assert recent.keep(2, "b", 4) == []
    assert recent.find(1) == "a"
    assert recent.find(3) is None
    assert recent.keep(3, "c", 2) == []
    assert recent.keep(1, "a", 5) == ["b"]
    assert (list(recent), recent.size) == (["c", "a"], 7)
    assert recent.keep(4, "d", 11) == ["c", "a"]
    assert (list(recent), len(recent), recent.size) == (["d"], 1, 11)


def unpacked(order: Sequence[str], last: UnpackedRelease | None = None) -> UnpackedRelease:
    """A release with answers to two queries about each of these subjects."""
    plain = answer_schema(protected=True).insert(0, pa.field("id", pa.int64()))
    values: dict[str, list[Any]] = {name: [None] * 2 * len(order) for name in plain.names}
    values |= {
        "id": list(range(2 * len(order))),
        "subject": [subject for subject in order for _ in range(2)],
        "consumer": ["city"] * 2 * len(order),
        "query": ["x", "y"] * len(order),
    }
    row = {"number": 1, "first": 0, "windows": 1, "slide": 1, "first_id": 0, "answers": len(values)}
    return unpack_release(row, pa.table(values, schema=plain), -1, last)


def test_windows_of_one_release_are_selected_by_their_starts() -> None:
    """From `since` on, and before `until`; both are starts of windows here."""
    release = unpacked("abcd")
    starts = pa.array([0, 0, 10, 10, 20, 20, 30, 30]).cast(pa.timestamp("us", "UTC"))
    place = release.rows.table.column_names.index("window_start")
    table = release.rows.table.set_column(place, "window_start", starts)
    row = {"number": 1, "first": 0, "windows": 4, "slide": 10, "first_id": 0, "answers": 8}
    release = unpack_release(row, table, -1)
    for since, until, expected in (
        (None, 20, [0, 1, 2, 3]),
        (20, None, [4, 5, 6, 7]),
        (10, 30, [2, 3, 4, 5]),
        (11, 31, [4, 5, 6, 7]),
        (20, 20, []),
    ):
        selected = release.select(FeedSelection(since=since, until=until), -1)
        assert selected["id"].to_pylist() == expected


def test_places_of_chosen_answers_are_used_again_only_while_names_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    selections = [
        FeedSelection("city", ("y",), ("a", "c")),
        FeedSelection("city", None, ("b",)),
        FeedSelection(None, ("x", "y"), ("d", "a")),
    ]
    last = None
    for order in ("abc", "abc", "cba", "cbad", "cbad", "ad"):
        before, last = last, unpacked(order, last)
        assert (before is not None and before.chosen is last.chosen) == (
            before is not None and before.rows.table["subject"].equals(last.rows.table["subject"])
        )
        for selection, after in itertools.product(selections, (-1, 1)):
            rows = last.select(selection, after)["id"].to_pylist()
            places = last._find_rows(selection, after, again=True)  # those of streams are kept
            assert rows == (last.first_id + places).tolist()
            assert rows == [
                number
                for number in range(after + 1, 2 * len(order))
                if order[number // 2] in (selection.subjects or ())
                and "xy"[number % 2] in (selection.queries or ("x", "y"))
            ]
    monkeypatch.setattr("tacit.service.feed._MOST_CHOSEN", 6)
    release = unpacked("abcd")
    kept = []
    for subjects in ("a", "b", "c", "ab", "d"):
        release._find_rows(FeedSelection("city", None, tuple(subjects)), -1, again=True)
        kept.append([rows.size for rows in release.chosen.rows.values()])
    assert kept == [[2], [2, 2], [2, 2, 2], [2, 2, 2], [2]]  # four are too many to be kept
