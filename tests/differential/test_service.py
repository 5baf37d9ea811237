"""Tuples by HTTP, and every response to consumers and subjects: private tuples change nothing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pyarrow as pa
import pytest

from tacit.engines.setup import RunOptions
from tacit.errors import SourceError
from tacit.events.types import EventType
from tacit.ledger.alchemy import sa
from tacit.ledger.tables import RELEASES
from tacit.patterns.tree import elements
from tacit.pipeline.reloads import Reloads
from tacit.pipeline.run import Run
from tacit.planning.planner import plan_without_history
from tacit.service.console import views
from tacit.service.console.maps import AreaFigure, collect_figures
from tacit.service.roles import Role
from tacit.service.routes import answers, row_files
from tacit.service.server import ServerOptions
from tacit.service.serving import Service, open_inputs, open_service
from tacit.service.tables import ProposalState
from tacit.spec.specification import Private, Query
from tests.differential.codings import payloads
from tests.differential.draws import fixed_draws
from tests.differential.neighbours import variants
from tests.differential.outputs import LEDGER
from tests.differential.test_broker import closing_tuples
from tests.differential.worlds import Variant, World, describe, make_world
from tests.service.planner_forks import forked_plans
from tests.service.services import TLS, Running
from tests.service.test_access import list_routes

PATIENCE = 60.0
PATHS = (
    "/v1/health",
    "/v1/ready",
    "/v1/me",
    "/v1/queries",
    "/v1/private",
    "/v1/statement",
    "/v1/status",
    "/v1/metrics",
    "/v1/answers?limit=10000",
    "/v1/answers?after=3&limit=5",
    "/v1/answers?query=nope",
    "/v1/answers.csv",
    "/v1/answers.jsonl",
    "/v1/answers.parquet",
    "/v1/answers.arrow",
    "/v1/counts",
    "/v1/counts?limit=1",
    "/v1/counts?query=nope",
    "/v1/counts?query=how_many",
    "/v1/counts.csv",
    "/v1/counts.parquet",
    "/v1/counts.arrow",
    "/v1/counts.jsonl",
    "/v1/tokens",
    "/v1/openapi.json",
    "/v1/nowhere",
    "/v1/proposals",
    "/v1/proposals/1",
    "/v1/catalogue",
    "/v1/policies",
    "/v1/versions",
    "/v1/versions/1",
    "/v1/versions/1/changes",
    "/v1/acts",
    "/",
    "/login",
    "/login/openid",
    "/login/openid/done",
    "/console/propose",
    "/console/propose/live",
    "/console/policies",
    "/console/policies/live",
    "/console/approvals",
    "/console/approvals/live",
    "/console/versions",
    "/console/acts",
    "/console",
    "/console/live",
    "/console/tokens",
    "/console/map",
    "/console/map/live",
    "/console/plan",
    "/console/plan/live",
    "/console/checks",
    "/console/checks/live",
)
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", "/v1/queries", {"name": "more", "pattern": "("}),
    ("DELETE", "/v1/queries/nope", {}),
    ("DELETE", "/v1/proposals/9", {}),
    ("POST", "/v1/proposals/9/approve", {}),
    ("POST", "/v1/proposals/9/reject", {}),
    ("PUT", "/v1/policies/nope", {"epsilon": "1"}),
    ("DELETE", "/v1/policies/nope", {}),
    ("POST", "/v1/versions/1/approve", {}),
    ("POST", "/v1/tokens", {"role": "operator", "name": "me"}),
    ("DELETE", "/v1/tokens/000000000000", {}),
    ("POST", "/v1/streams/nope/tuples", {}),
)
"""Requests that change nothing here: they are mistaken, or for others."""
FORMS = (
    "/console/propose",
    "/console/propose/check",
    "/console/policies",
    "/console/policies/withdraw",
    "/console/proposals/9/withdraw",
    "/console/proposals/9/decide",
    "/console/versions/9/approve",
    "/console/verify",
    "/console/tokens",
    "/console/tokens/000000000000/revoke",
)
Seen = dict[tuple[str, str], Any]
EMPTY = {"json": (b"{}", b"{} "), "cbor": (b"\xa0", b"\xa0\xa0")}
"""Bodies without a tuple that can be read."""
WAITING = (ProposalState.PLANNING, ProposalState.READY)
RANDOM = re.compile(
    rb'(?<="token":")[^"]+|(?<="id":")[^"]+|(?<="created":")[^"]+|(?<="decided":")[^"]+'
    rb'|(?<="revoked":")[^"]+'
)
"""What differs each time: secrets and the time of day."""


@pytest.fixture(scope="module", autouse=True)
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services plan in forks of one process."""
    with forked_plans(tmp_path_factory.mktemp("planner")):
        yield


@contextmanager
def serving(world: World, place: Path) -> Iterator[Service]:
    """A service for this world, with draws by position."""
    place.mkdir()
    given = RunOptions(world.spec, plan=world.plan, ledger=str(place / LEDGER), name="run")
    with fixed_draws():
        version = given.read()
        with (
            open_inputs(given, version.spec) as opened,
            open_service(given, version, opened, ServerOptions(port=0)) as service,
        ):

            def answer() -> None:
                with service.open_run() as run:
                    service.answer(run)

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            try:
                yield service
            finally:
                service.stop()
                thread.join(PATIENCE)
                assert not thread.is_alive()


def send(service: Service, world: World, variant: Variant) -> Seen:
    """Send the tuples of a variant, a request for each; wait until all windows are released.

    Returns the responses, each once: how many requests there are is not the same in all variants.
    """
    (shape,) = world.sources
    public = world.public_tuples(variant)
    ending, last = closing_tuples(world, public)
    token, _ = service.state.tokens.create(Role.SOURCE, "all", creator="test")
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": f"application/{shape.coding}",
    }
    told: set[str] = set()
    with httpx.Client(headers=headers, timeout=PATIENCE, verify=TLS) as client:
        for body in payloads(shape, [*public, *world.free_tuples(variant), *ending]):
            if body.strip():  # an empty body is refused at once
                place = f"{service.url}/v1/streams/{shape.stream}/tuples"
                response = client.post(place, content=body)
                assert response.status_code == 200
                told.add(repr(_show(response)))
    deadline = time.monotonic() + PATIENCE
    while _find_last(service) < last:
        assert time.monotonic() < deadline, describe(world)
        time.sleep(0.02)
    return {("source all", "acknowledged"): sorted(told)}


def _find_last(service: Service) -> int:
    with service.state.ledger.database.reading() as connection:
        return connection.execute(sa.select(sa.func.max(RELEASES.c.first))).scalar() or 0


def look(service: Service, world: World, paths: Sequence[str] = PATHS) -> Seen:
    """All that consumers, subjects and callers without a token can see, or some of it."""
    people = {(Role.CONSUMER, query.consumer) for query in world.spec.queries}
    people |= {(Role.SUBJECT, subject) for subject in world.subjects}
    seen: Seen = {}
    chosen = [*sorted(people)[:2], *sorted(people)[-1:]]  # consumers come first
    for role, name in chosen:
        token, _ = service.state.tokens.create(role, name, creator="test")
        with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=TLS) as client:
            client.post("/login", data={"token": token})
            own = [f"/console/queries/{query.name}" for query in world.spec.queries]
            for path in (*paths, *own, *(f"{page}/live" for page in own)):
                seen[f"{role} {name}", path] = _show(client.get(path))
            bearer = {"Authorization": f"Bearer {token}"}
            for method, path, body in CALLS:
                called = client.request(method, path, json=body, headers=bearer)
                seen[f"{role} {name}", f"{method} {path}"] = _show(called)
            csrf = re.search('name="csrf" value="([0-9a-f]+)"', client.get("/console").text)
            assert csrf is not None
            for path in FORMS:
                fields = {"csrf": csrf[1], "name": "more", "kind": "pattern", "pattern": "("}
                seen[f"{role} {name}", f"POST {path}"] = _show(client.post(path, data=fields))
            events = list(world.spec.events)
            asked: dict[str, Any] = {"name": "more", "pattern": events[0]}
            checked = client.post("/v1/queries/check", json=asked, headers=bearer)
            seen[f"{role} {name}", "check"] = _show(checked)
            for more in ({"count": events[0]}, {"times": events[0], "up_to": 2}, {"count": "no"}):
                asked = {"name": "more", **more}
                checked = client.post("/v1/queries/check", json=asked, headers=bearer)
                seen[f"{role} {name}", f"check {more}"] = _show(checked)
            last = service.state.feed.last_id()
            seen[f"{role} {name}", "stream"] = _read_stream(client, "answers/stream?after=-1", last)
            if role is Role.CONSUMER and "how_many" in client.get("/v1/queries").text:
                start = service.state.counts.last_start()
                assert start is not None
                place = "counts/stream?after=1969-01-01T00:00:00Z"
                seen[f"{role} {name}", "counts stream"] = _read_stream(client, place, start)
    with httpx.Client(base_url=service.url, verify=TLS) as client:
        for path in paths:
            seen["nobody", path] = _show(client.get(path))
        for method, path, body in CALLS:
            seen["nobody", f"{method} {path}"] = _show(client.request(method, path, json=body))
        for path in FORMS:
            seen["nobody", f"POST {path}"] = _show(client.post(path))
    return seen


def act(service: Service, world: World) -> Seen:
    """What is told about requests that change something, and what everyone sees after them."""
    seen: Seen = {}
    consumer, subject = world.spec.queries[0].consumer, sorted(world.subjects)[0]

    def call(
        role: Role, name: str, method: str, path: str, place: str = "", **more: Any
    ) -> httpx.Response:
        """Send a request; `place` is shown in place of a path that differs each time."""
        token, _ = service.state.tokens.create(role, name, creator="test")
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=TLS) as client:
            response = client.request(method, path, headers=headers, **more)
        seen[f"{role} {name}, {len(seen)}", f"{method} {place or path}"] = _show(response)
        return response

    (shape,) = world.sources
    kind, place = f"application/{shape.coding}", f"/v1/streams/{shape.stream}/tuples"
    body, other = EMPTY[shape.coding]
    statuses = []
    for number, content in ((0, body), (0, body), (1, body), (1, other), (3, body)):
        headers = {"Content-Type": kind, "Tacit-Sequence": str(number)}
        sent = call(Role.SOURCE, "all", "POST", place, headers=headers, content=content)
        statuses.append(sent.status_code)
    assert statuses == [200, 200, 200, 409, 409]

    asked = {"name": "more", "pattern": next(iter(world.spec.events))}
    proposed = call(Role.CONSUMER, consumer, "POST", "/v1/queries", json=asked)
    assert proposed.status_code == 201
    call(Role.CONSUMER, consumer, "GET", "/v1/proposals")
    own = f"/v1/proposals/{proposed.json()['number']}"
    assert call(Role.CONSUMER, consumer, "DELETE", own).status_code == 200
    ended = call(Role.CONSUMER, consumer, "DELETE", f"/v1/queries/{world.spec.queries[0].name}")
    assert ended.status_code == 200

    for policy in call(Role.SUBJECT, subject, "GET", "/v1/policies").json():
        if policy["private"]:
            choice = {"epsilon": policy["epsilon"], "limit": policy["limit"]}
            change = f"/v1/policies/{policy['pattern']}"
            chosen = call(Role.SUBJECT, subject, "PUT", change, json=choice)
            assert chosen.status_code == 200
            number = chosen.json()["number"]
            _wait_until_used(service, number)
            call(Role.SUBJECT, subject, "GET", f"/v1/proposals/{number}")
            stricter = {**choice, "epsilon": str(float(policy["epsilon"]) / 2)}
            with _refusing_reloads():
                chosen = call(Role.SUBJECT, subject, "PUT", change, json=stricter)
                number = chosen.json()["number"]
                refused = _wait_until_refused(service, number)
            for path in (f"/v1/proposals/{number}", "/v1/proposals", "/v1/policies"):
                shown = call(Role.SUBJECT, subject, "GET", path)
                assert ("is not in use" in shown.text) == (refused and "policies" not in path)
            break
    for path in ("/v1/policies", "/v1/private", "/v1/statement"):
        call(Role.SUBJECT, subject, "GET", path)
    call(Role.CONSUMER, consumer, "GET", "/v1/queries")

    wanted = {"role": "subject", "name": "new", "expires": "2100-01-01T00:00:00Z"}
    made = call(Role.OPERATOR, "ann", "POST", "/v1/tokens", json=wanted)
    assert made.status_code == 201
    made_id = made.json()["id"]
    ended = call(Role.OPERATOR, "ann", "DELETE", f"/v1/tokens/{made_id}", "/v1/tokens/made")
    assert ended.status_code == 200
    return seen | _log_in_and_out(service, consumer)


@contextmanager
def _refusing_reloads() -> Iterator[None]:
    """Let the run refuse versions that were approved."""

    def refuse(*_: Any) -> None:
        raise SourceError("a column is missing")

    with patch.object(Run, "check_version"), patch.object(Reloads, "check", refuse):
        yield


def _wait_until_refused(service: Service, proposal: int) -> bool:
    """Wait until a proposal is refused by the run; return False if it has no plan."""
    workflow, deadline = service.state.workflow, time.monotonic() + PATIENCE
    while workflow.read(proposal).state in WAITING or (
        workflow.read(proposal).version is not None and not workflow.refused
    ):
        assert time.monotonic() < deadline, workflow.read(proposal)
        time.sleep(0.02)
    return bool(workflow.refused)


def _wait_until_used(service: Service, proposal: int) -> None:
    """Wait until a proposal is planned, and the run has taken up the latest version."""
    workflow, deadline = service.state.workflow, time.monotonic() + PATIENCE
    while workflow.read(proposal).state in WAITING or (
        service.state.spec.fingerprint != workflow.latest()[1].spec.fingerprint
    ):
        assert time.monotonic() < deadline, workflow.read(proposal)
        time.sleep(0.02)


def _log_in_and_out(service: Service, consumer: str) -> Seen:
    """What is told about logging in, what a page of the console hears at first, and logging out."""
    seen: Seen = {}
    who = f"consumer {consumer}"
    token, _ = service.state.tokens.create(Role.CONSUMER, consumer, creator="test")
    with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=TLS) as client:
        seen[who, "POST /login wrong"] = _show(client.post("/login", data={"token": "wrong"}))
        seen[who, "POST /login"] = _show(client.post("/login", data={"token": token}))
        with client.stream("GET", "/console/events") as response:
            found = b""
            for part in response.iter_bytes():
                found += part
                if found.endswith(b"\n\n"):
                    break
            headers = sorted(pair for pair in response.headers.items() if pair[0] != "date")
        seen[who, "GET /console/events"] = (response.status_code, headers, found)
        csrf = re.search('name="csrf" value="([0-9a-f]+)"', client.get("/console").text)
        assert csrf is not None
        left = client.post("/logout", data={"csrf": csrf[1]})
        assert left.status_code == 303
        seen[who, "POST /logout"] = _show(left)
        seen[who, "/console after it"] = _show(client.get("/console"))
    return seen


def find_unseen(service: Service, seen: Seen) -> set[tuple[str, str]]:
    """The routes of which no response was compared."""
    asked = {("GET", path.partition("?")[0]) for _, path in seen if path.startswith("/")}
    asked |= {(where.partition(" ")[0], where.partition(" ")[2]) for _, where in seen}
    streams = {"stream": "/v1/answers/stream", "counts stream": "/v1/counts/stream"}
    asked |= {("GET", streams[where]) for _, where in seen if where in streams}
    asked |= {("POST", "/v1/queries/check") for _, where in seen if where == "check"}
    return {
        (method, path)
        for method, path in list_routes(Running(service, []))
        if not any(
            method == one and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", path), place)
            for one, place in asked
        )
    }


def _show(response: httpx.Response) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = sorted(
        (name, re.sub("=[0-9A-Za-z_-]{20,}|expires=[^;]+", "=", value))  # the session
        for name, value in response.headers.items()
        if name != "date"
    )
    body = re.sub(rb'(name="csrf" value=")[0-9a-f]{64}', rb"\1", response.content)
    body = re.sub(rb"127\.0\.0\.1:\d+", b"HOST", body)  # snippets name the port, which is free
    return response.status_code, headers, RANDOM.sub(b"", body)


def _read_stream(client: httpx.Client, place: str, last: int) -> bytes:
    """The events up to the last one."""
    found, deadline = b"", time.monotonic() + PATIENCE
    with client.stream("GET", f"/v1/{place}") as response:
        for part in response.iter_bytes():
            found += part
            if b"id: %d\n" % last in found and found.endswith(b"\n\n"):
                break
            assert time.monotonic() < deadline, found[-1000:]
    return found


def see_both(world: World, folder: Path, paths: Sequence[str] = PATHS) -> tuple[Seen, Seen]:
    """What is seen of two variants that differ in private tuples alone."""
    found = []
    for number, variant in enumerate(variants(world)):
        with serving(world, folder / f"run-{number}") as service:
            told = send(service, world, variant)
            found.append(told | look(service, world, paths))
            if paths is PATHS:
                found[-1] |= act(service, world)
                counted = any(where == "counts stream" for _, where in found[-1])
                unseen = set() if counted else {("GET", "/v1/counts/stream")}
                assert find_unseen(service, found[-1]) == unseen
    first, second = found
    return first, second


def choose_world(kind: str) -> World:
    """A world with one source."""
    worlds = (make_world(kind, number) for number in range(100, 120))
    return next(one for one in worlds if len(one.sources) == 1)


def counting_world() -> World:
    """A world with limits, one source, counts of a private type that occurs often, and a map.

    Whether someone is in an area is private too, and the map's queries depend on both.
    """
    world = make_world("json", 107)
    (private,) = sorted({one for own in world.spec.private_patterns for one in elements(own)})
    consumer = world.spec.queries[0].consumer
    (area,) = world.spec.areas
    here = EventType(stream=world.spec.events[private].stream, inside=area)
    asked = [
        {"name": "how_many", "consumer": consumer, "count": private},
        {"name": "inside", "consumer": consumer, "count": f"OR({private}, here)"},
        {"name": "there", "consumer": consumer, "pattern": f"OR({private}, here)"},
        {"name": "which", "consumer": consumer, "one_of": {"here": "here", "other": private}},
    ]
    hidden = Private.model_validate({"pattern": "here", "epsilon": 1})
    changed = {
        "events": {**world.spec.events, "here": here},
        "queries": (*world.spec.queries, *map(Query.model_validate, asked)),
        "private": (*world.spec.private, hidden),
        "mechanism": "uniform",
    }
    spec = world.spec.model_copy(update=changed).checked()
    return replace(world, spec=spec, plan=plan_without_history(spec, "uniform"))


@pytest.mark.parametrize("kind", ["cbor", "counts"])
def test_private_tuples_change_no_byte_of_any_response(kind: str, tmp_path: Path) -> None:
    """The world with counts sends JSON."""
    world = counting_world() if kind == "counts" else choose_world(kind)
    first, second = see_both(world, tmp_path)
    assert first.keys() == second.keys()
    assert [where for where in first if first[where] != second[where]] == [], describe(world)
    rows = [body for (_, path), (*_, body) in _pages(first) if path == "/v1/answers?limit=10000"]
    assert any(b'"detected"' in body for body in rows)
    counts = [body for (_, path), (*_, body) in _pages(first) if path == "/v1/counts"]
    assert any(b'"left_out"' in body for body in counts) == (kind == "counts")
    choices = [body for (_, path), (*_, body) in _pages(first) if path.startswith("PUT /v1/pol")]
    assert any(b"epsilon" in body for body in choices)
    states = [body for (_, path), (*_, body) in _pages(first) if path == "GET /v1/proposals/3"]
    assert any(b'"approved"' in body for body in states) == (kind == "counts")
    maps = [body for (_, path), (*_, body) in _pages(first) if path == "/console/map"]
    assert any(b'class="place"' in body for body in maps) == (kind == "counts")
    assert any("counts stream" in where for where in first) == (kind == "counts")


def _pages(seen: Seen) -> list[tuple[tuple[str, str], Any]]:
    return [(where, what) for where, what in seen.items() if "stream" not in where[1]]


def test_responses_that_count_tuples_are_found(tmp_path: Path) -> None:
    """Planted faults: rows end with as many blanks as there were tuples, and a map shows them."""
    world = counting_world()
    counted = {"/v1/answers?limit=10000", "/console/map", "/console/map/live"}
    others = {"/v1/queries", "/v1/answers.csv", "/console/propose"}
    known: list[Service] = []
    format_rows = row_files.format_rows

    def count() -> int:
        run = known[-1].state.run
        assert run is not None
        return run.status.tuples

    def pad(table: pa.Table) -> bytes:
        return format_rows(table) + b" " * count()

    def add(*given: Any) -> list[AreaFigure]:
        return [replace(one, number=one.number + count()) for one in collect_figures(*given)]

    seen = []
    with patch.object(answers, "format_rows", pad), patch.object(views, "collect_figures", add):
        for number, variant in enumerate(variants(world)):
            with serving(world, tmp_path / f"run-{number}") as service:
                known.append(service)
                send(service, world, variant)
                seen.append(look(service, world, [*counted, *others]))
    first, second = seen
    found = {path for who, path in first if first[who, path] != second[who, path]}
    assert counted <= found
    # With its own map; the count `inside` has no number there, since limits are reached in the end.
    assert "/console/queries/there" in found
    assert not found & others


def test_a_count_without_noise_is_found(tmp_path: Path) -> None:
    """A planted fault: counts are told as they are."""
    world = counting_world()
    with patch("tests.differential.draws.fixed_counts", lambda _channel, counts, _source: counts):
        first, second = see_both(world, tmp_path, ["/v1/counts", "/v1/counts.csv"])
    found = {path for who, path in first if first[who, path] != second[who, path]}
    assert {
        *("/v1/counts", "/v1/counts.csv", "counts stream", "/console/queries/how_many")
    } <= found
