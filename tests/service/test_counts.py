"""Counts over HTTP are those that the ledger has, for those who may see them."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

import tacit
from tacit.errors import ServiceError
from tacit.service.count_feed import EARLIEST, CountFeed, CountSelection
from tacit.service.tokens import public_id
from tests.service.services import SPEC, SUBJECTS, Running, running, within, write_tuples
from tests.service.test_console import browser

WINDOWS = 6
COUNTING = SPEC.replace(
    "subjects: [t0, t1, t2, t3, t4]", "subjects: {file: subjects.csv, column: who}"
).replace(
    "queries:",
    """queries:
  - {name: visits, consumer: city, count: "AND(a, c)", by: fleet}
  - {name: total, consumer: city, count: "OR(a, b)"}
  - {name: quiet, consumer: clinic, count: c, by: fleet}""",
)
GROUPS = {"<red>": 3, "blue": 2}
COLUMNS = {
    *("window_start", "window_end", "consumer", "query", "group", "count"),
    *("low", "high", "confidence", "subjects", "left_out"),
    *("estimate", "estimate_low", "estimate_high", "method"),
}


def write_subjects(folder: Path) -> None:
    """A registry of five subjects in two fleets."""
    fleets = [name for name, number in GROUPS.items() for _ in range(number)]
    names = [f"t{number}" for number in range(SUBJECTS)]
    pl.DataFrame({"who": names, "fleet": fleets}).write_csv(folder / "subjects.csv")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with count queries of two consumers, which has read its file."""
    folder = tmp_path_factory.mktemp("counting")
    write_subjects(folder)
    source = write_tuples(folder / "tuples.csv", WINDOWS)
    with running(folder, [source], spec=COUNTING) as service:
        service.wait(WINDOWS * SUBJECTS * 3)
        yield service


def fetch(client: httpx.Client, **params: Any) -> dict[str, Any]:
    """A page of counts."""
    response = client.get("/v1/counts", params=params)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


def ledger_rows(service: Running, **selected: Any) -> list[dict[str, Any]]:
    """The same counts, read from the ledger directly."""
    with tacit.released(service.service.options.ledger_place or "", **selected) as found:
        rows = found.counted().to_dicts()
    for row in rows:
        for name in ("window_start", "window_end"):
            row[name] = row[name].strftime("%Y-%m-%dT%H:%M:%SZ")
        row["confidence"] = pytest.approx(row["confidence"])
    return rows


def test_a_consumer_gets_exactly_the_counts_of_its_own_queries(counting: Running) -> None:
    with counting.client("consumer", "city") as client:
        page = fetch(client)
    rows = page["counts"]
    assert rows == ledger_rows(counting, consumer="city")
    assert len(rows) == WINDOWS * (len(GROUPS) + 1)
    assert all(row.keys() == COLUMNS for row in rows)
    assert {row["query"] for row in rows} == {"visits", "total"}
    assert {(row["query"], row["group"]) for row in rows} == {
        ("total", None),
        *(("visits", group) for group in GROUPS),
    }
    for row in rows:
        number = SUBJECTS if row["group"] is None else GROUPS[row["group"]]
        assert row["subjects"] + row["left_out"] == number
    assert page["more"] is False


def test_an_operator_gets_all_and_a_consumer_without_counts_none(counting: Running) -> None:
    with counting.client("operator", "ann") as client:
        assert fetch(client)["counts"] == ledger_rows(counting)
    with counting.client("consumer", "nobody") as client:
        assert fetch(client)["counts"] == []


def test_counts_are_not_for_subjects(counting: Running) -> None:
    with counting.client("subject", "t1") as client:
        for place in ("/v1/counts", "/v1/counts.csv"):
            refused = client.get(place)
            assert refused.status_code == 403
            assert refused.headers["content-type"] == "application/problem+json"


def test_another_consumers_count_looks_like_one_that_does_not_exist(counting: Running) -> None:
    with counting.client("consumer", "city") as client:
        for place in ("/v1/counts", "/v1/counts.csv"):
            other = client.get(place, params={"query": "quiet"})
            unknown = client.get(place, params={"query": "no"})
            assert other.status_code == unknown.status_code == 404
            assert other.content == unknown.content
        assert "quiet" not in client.get("/v1/counts.csv").text
        assert "quiet" not in client.get("/v1/queries").text


@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_pages_of_any_size_have_every_count_once(counting: Running, limit: int) -> None:
    found: list[dict[str, Any]] = []
    with counting.client("consumer", "city") as client:
        place: dict[str, Any] = {}
        pages = 0
        while pages < WINDOWS:
            pages += 1
            page = fetch(client, **place, limit=limit)
            found += page["counts"]
            assert len(page["counts"]) <= limit * (len(GROUPS) + 1)
            place = {"after": page["next"]}
            if not page["more"]:
                break
        assert fetch(client, **place) == {"counts": [], "next": page["next"], "more": False}
    assert found == ledger_rows(counting, consumer="city")
    assert pages == -(-WINDOWS // limit)


@pytest.mark.parametrize(
    "selected",
    [
        {"query": "total"},
        {"query": ["visits", "total"], "since": "1970-01-01T00:02:00Z"},
        {"since": "1970-01-01T00:01:00Z", "until": "1970-01-01T00:03:00Z"},
    ],
)
def test_filters_select_as_the_ledger_does(counting: Running, selected: dict[str, Any]) -> None:
    with counting.client("consumer", "city") as client:
        found = fetch(client, **selected)["counts"]
    assert found == ledger_rows(counting, consumer="city", **selected)
    assert found


def test_groups_are_selected(counting: Running) -> None:
    with counting.client("consumer", "city") as client:
        blue = fetch(client, group="blue")["counts"]
        assert blue == [
            row
            for row in ledger_rows(counting)
            if row["group"] == "blue" and row["consumer"] == "city"
        ]
        assert len(fetch(client, group=["blue", "<red>"])["counts"]) == 2 * WINDOWS
        assert fetch(client, group="no")["counts"] == []


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow", "jsonl"])
def test_a_download_has_all_counts(counting: Running, suffix: str) -> None:
    readers: dict[str, Any] = {
        "parquet": pl.read_parquet,
        "csv": pl.read_csv,
        "arrow": pl.read_ipc,
        "jsonl": pl.read_ndjson,
    }
    expected = ledger_rows(counting, consumer="city")
    with counting.client("consumer", "city") as client:
        response = client.get(f"/v1/counts.{suffix}")
        frame = readers[suffix](io.BytesIO(response.content))
        assert frame["count"].to_list() == [row["count"] for row in expected]
        assert frame["group"].to_list() == [row["group"] for row in expected]
        none = client.get(f"/v1/counts.{suffix}", params={"since": "2100-01-01T00:00:00Z"})
    assert response.headers["content-disposition"] == f'attachment; filename="counts.{suffix}"'
    assert none.status_code == 200
    if suffix != "jsonl":
        empty = readers[suffix](io.BytesIO(none.content))
        assert (empty.height, set(empty.columns)) == (0, COLUMNS)


def read_events(response: httpx.Response, most: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """The first events of a stream: each one's id, and its counts."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    number = 0
    for line in within(response.iter_lines()):
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            found.append((number, json.loads(value)))
            if len(found) == most:
                break
    return found


def test_a_stream_has_an_event_for_each_window(counting: Running) -> None:
    with (
        counting.client("consumer", "city") as client,
        client.stream("GET", "/v1/counts/stream?after=1969-12-31T23:59:59Z") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        events = read_events(response, WINDOWS)
    assert [number for number, _ in events] == [60_000_000 * window for window in range(WINDOWS)]
    rows = [row for _, own in events for row in own]
    assert rows == ledger_rows(counting, consumer="city")


def follow(
    read: Callable[[CountSelection, int, int], tuple[int, bytes] | None], selection: CountSelection
) -> bytes:
    """Read events to the end."""
    found, after = b"", EARLIEST
    while (event := read(selection, after, 1)) is not None:
        assert event[0] > after
        after = event[0]
        found += event[1]
    return found


def test_events_from_the_ledger_and_from_memory_are_the_same(
    counting: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = counting.service.state
    feed = CountFeed(state.ledger, state.name)
    monkeypatch.setattr(feed, "last_start", lambda: EARLIEST)  # as if nothing was released yet
    with feed.streaming():
        feed.announce()
        some = CountSelection("city", ("visits",), ("blue",), 60_000_000, 180_000_000)
        for selection in (
            CountSelection(),
            some,
            CountSelection("nobody"),
            replace(some, groups=()),
        ):
            assert follow(feed.recall_event, selection) == follow(feed.read_event, selection)
        assert follow(feed.recall_event, some).count(b"event: counts") == 2
        last = 60_000_000 * (WINDOWS - 1)
        assert (feed.is_latest(last), feed.is_latest(last - 1)) == (True, False)
        one = feed._windows[0].rows.size
        monkeypatch.setattr("tacit.service.count_feed._MOST_BYTES", 2 * one)
        feed.announce()
        assert 0 < len(feed._windows) < WINDOWS
        assert feed.recall_event(CountSelection(), EARLIEST, 1) is None  # it may miss some
        kept = feed._windows[0].start
        event = feed.recall_event(CountSelection(), kept - 60_000_000, 1)
        assert event is not None
        assert event[0] == kept
    feed.announce()
    assert not feed._windows  # nobody reads


def test_a_stream_of_counts_continues_where_it_was(counting: Running) -> None:
    found = []
    with counting.client("consumer", "city") as client:
        headers = {"Last-Event-ID": "-1"}
        for _ in range(WINDOWS):
            with client.stream(
                "GET", "/v1/counts/stream?query=visits&group=blue", headers=headers
            ) as response:
                ((number, rows),) = read_events(response, 1)
            headers["Last-Event-ID"] = str(number)
            found += rows
    assert found == [row for row in ledger_rows(counting, query="visits") if row["group"] == "blue"]


def test_a_stream_tells_nothing_of_other_consumers_and_ends_with_its_token(
    counting: Running,
) -> None:
    with counting.client("consumer", "nobody") as client:
        assert client.get("/v1/counts/stream?query=quiet").status_code == 404
    with counting.client("consumer", "short") as client:
        token = counting.token("consumer", "short")
        with client.stream("GET", "/v1/counts/stream") as response:
            lines = within(response.iter_lines())
            assert next(lines) == "retry: 2000"
            counting.service.state.tokens.revoke(public_id(token), actor="test")
            counting.service.state.signal.ring()
            assert not [line for line in lines if line.startswith("data")]


def test_the_client_follows_counts(counting: Running) -> None:
    client = tacit.connect(counting.url, counting.token("consumer", "city"))
    frames = client.follow_counts(query="visits", after="1969-12-31T00:00:00Z")
    windows = [next(frames) for _ in range(WINDOWS)]
    assert [frame.height for frame in windows] == [len(GROUPS)] * WINDOWS
    whole = pl.concat(windows)
    assert whole["count"].to_list() == client.counts(query="visits")["count"].to_list()
    assert whole.schema["window_start"] == pl.Datetime("us", "UTC")


def test_the_client_returns_a_frame(counting: Running) -> None:
    client = tacit.connect(counting.url, counting.token("consumer", "city"))
    frame = client.counts(query="visits", group="blue", since="1970-01-01T00:01:00Z")
    rows = [row for row in ledger_rows(counting, query="visits") if row["group"] == "blue"]
    assert frame["count"].to_list() == [row["count"] for row in rows][1:]
    assert frame.schema["query"] == pl.String
    assert len(client.counts()) == WINDOWS * (len(GROUPS) + 1)
    subject = tacit.connect(counting.url, counting.token("subject", "t1"))
    with pytest.raises(ServiceError) as refused:
        subject.counts()
    assert refused.value.status == 403


def test_queries_that_count_are_listed(counting: Running) -> None:
    with counting.client("consumer", "city") as client:
        queries = {one["name"]: one["pattern"] for one in client.get("/v1/queries").json()}
    assert set(queries) == {"visits", "total", "both", "either"}
    assert queries["visits"] == "how many AND(a, c) by fleet"


def test_a_specification_with_counts_alone_is_served(tmp_path: Path) -> None:
    write_subjects(tmp_path)
    alone = re.sub(r"\n  - \{name: \w+, consumer: \w+, pattern: .*", "", COUNTING)
    with running(tmp_path, spec=alone) as service:
        operator = tacit.connect(service.url, service.token("operator", "ann"))
        assert operator.counts().is_empty()
        released = service.service.state.signal.next
        tuples = pl.read_csv(write_tuples(tmp_path / "tuples.csv", WINDOWS + 1))
        tacit.connect(service.url, service.token("source", "sensor")).send("s", tuples)
        deadline = time.monotonic() + 90
        while operator.counts().height < WINDOWS * (2 * len(GROUPS) + 1):
            assert not service.failures
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert operator.answers().is_empty()
        while not released.is_set():  # open pages are told
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_console_shows_counts_with_intervals(counting: Running) -> None:
    rows = ledger_rows(counting, query="visits")[-len(GROUPS) :]
    with browser(counting, "consumer", "city") as client:
        home = client.get("/console").text
        page = client.get("/console/queries/visits").text
        assert client.get("/console/queries/quiet").status_code == 404
        total = client.get("/console/queries/total/live").text
    assert "queries/quiet" not in home
    assert 'href="/console/queries/visits"' in home
    largest = max(row["count"] for row in rows)
    assert f'<span class="big">{largest}</span>' in home
    assert "<red>" not in home + page
    assert "&lt;red&gt;" in page
    assert "/v1/counts.csv?query=visits" in page
    assert "/v1/answers" not in page
    for row in rows:
        assert f"{row['low']} to {row['high']}" in page
        name = row["group"].replace("<", "&lt;").replace(">", "&gt;")
        what = f"Counts of visits for {name} in the last {WINDOWS} windows; the last is"
        assert f'aria-label="{what} {row["count"]}, from {row["low"]} to {row["high"]}"' in page
    assert page.count('class="interval"') == WINDOWS * len(GROUPS)
    assert "all subjects" in total
    with browser(counting, "operator", "ann") as client:
        assert client.get("/console/queries/quiet").status_code == 200


def test_before_the_first_window_a_count_says_so(tmp_path: Path) -> None:
    write_subjects(tmp_path)
    with (
        running(tmp_path, spec=COUNTING) as service,
        browser(service, "consumer", "city") as client,
    ):
        assert "No counts yet" in client.get("/console/queries/visits").text
        assert "visits" in client.get("/console").text
