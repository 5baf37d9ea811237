"""What attackers may try: forged forms, timing, many attempts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest

from tacit.service.access import RequestRates
from tacit.service.console.views import show_subject
from tacit.service.roles import Principal, Role
from tacit.service.routes import event_streams
from tests.service.services import Running
from tests.service.test_console import browser, csrf

UNKNOWN = "tacit_000000000000_" + 43 * "x"


def test_tokens_are_compared_in_constant_time_also_if_there_is_none(
    served: Running, compared: list[tuple[Any, Any]]
) -> None:
    right = served.token("consumer", "compared")
    tokens = served.service.state.tokens
    for given, known in ((right, True), (right[:-3] + "AAA", False), (UNKNOWN, False)):
        compared.clear()
        assert (tokens.check(given) is not None) == known
        ((one, other),) = compared  # a token that is unknown takes as long as a wrong one
        assert (len(one), len(other), one == other) == (32, 32, known)


def test_forms_are_compared_in_constant_time(
    served: Running, compared: list[tuple[Any, Any]]
) -> None:
    with browser(served, "operator", "ann") as client:
        right = csrf(client.get("/console/tokens"))
        for given, status in ((right, 200), ("0" * 64, 403), ("", 403)):
            compared.clear()
            sent = client.post("/console/verify", data={"csrf": given})
            assert sent.status_code == status
            assert (given.encode(), right.encode()) in compared


def test_a_forged_form_revokes_nothing_and_logs_nobody_out(served: Running) -> None:
    """Forms of the workflow are in `test_pages_of_the_workflow_are_for_their_roles`."""
    tokens = served.service.state.tokens
    served.token("consumer", "kept")
    (kept,) = (one.id for one in tokens.list_all() if one.name == "kept")
    with browser(served, "operator", "ann") as client:
        for path in (f"/console/tokens/{kept}/revoke", "/logout"):
            for form in ({}, {"csrf": "0" * 64}):
                assert client.post(path, data=form).status_code == 403
        assert tokens.find(kept) is not None
        assert client.get("/console").status_code == 200


def test_pages_of_the_console_count_as_requests_of_their_token(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.service.state.access, "rates", RequestRates(lambda: 0.0))
    monkeypatch.setattr("tacit.service.access._MOST_AT_ONCE", 3)
    with browser(served, "consumer", "city") as client, browser(served, "subject", "t1") as other:
        statuses = [client.get("/console").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert "Too Many Requests" in client.get("/console").text
        assert client.get("/v1/me").status_code == 429  # with the cookie, too
        assert other.get("/console").status_code == 200


def test_a_stream_tells_nothing_more_after_its_token_is_revoked(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_HEARTBEAT", 3600.0)
    tokens, signal = served.service.state.tokens, served.service.state.signal
    with served.client("consumer", "city", note="streaming") as client:
        client.timeout = httpx.Timeout(20)
        with client.stream("GET", "/v1/answers/stream?after=-1") as events:
            parts = events.iter_text()
            assert "event: answers" in "".join(next(parts) for _ in range(2))
            (mine,) = (one.id for one in tokens.list_all() if one.note == "streaming")
            tokens.revoke(mine, actor="test")
            signal.ring()
            assert "retry" not in "".join(parts)  # it has an end


def test_nobody_withdraws_a_proposal_of_someone_else(served: Running) -> None:
    workflow = served.service.state.workflow
    proposed = workflow.propose_query(
        Principal(Role.CONSUMER, "city", ""), {"name": "mine", "pattern": "AND(b, c)"}
    )
    place = f"/v1/proposals/{proposed.number}"
    for role, name in (("consumer", "clinic"), ("subject", "t1"), ("operator", "ann")):
        with served.client(role, name) as client:
            assert client.delete(place).status_code == 404, role
    with served.client("consumer", "city") as client:
        assert client.delete(place).json()["state"] == "withdrawn"


def test_the_page_of_a_subject_has_its_own_answers_alone(served: Running) -> None:
    for subject in ("t1", "t2"):
        with served.client("subject", subject) as client:
            answers = client.get("/v1/answers?limit=1000").json()["answers"]
        assert {one["subject"] for one in answers} == {subject}
        told = {
            one["query"]: one["yes"] for one in show_subject(served.service.state, subject)["told"]
        }
        counted = Counter(one["query"] for one in answers if one["detected"])
        assert told == {name: counted[name] for name in told}
