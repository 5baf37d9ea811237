"""Every route against every role and against no one; tokens; attempts that fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from tacit.ledger.database import now
from tacit.service.access import FailedAttempts, RequestRates
from tacit.service.roles import Principal, Role
from tacit.service.routes.workflow import show_proposal
from tacit.service.tables import OPEN, ProposalState
from tacit.service.workflow import Proposal, ProposalKind
from tests.service.services import Running, bearer

ROLES: tuple[str | None, ...] = (None, "source", "consumer", "subject", "operator")
NAMES = {"source": "sensor", "consumer": "city", "subject": "t1", "operator": "ann"}
EVERYONE = set(ROLES)
READERS: set[str | None] = {"consumer", "subject", "operator"}
ALLOWED: dict[tuple[str, str], set[str | None]] = {
    ("GET", "/v1/health"): EVERYONE,
    ("GET", "/v1/ready"): EVERYONE,
    ("GET", "/v1/openapi.json"): EVERYONE,
    ("GET", "/v1/me"): EVERYONE - {None},
    ("GET", "/v1/metrics"): {"operator"},
    ("GET", "/v1/answers"): READERS,
    ("GET", "/v1/answers/stream"): READERS,
    ("GET", "/v1/answers.{suffix}"): READERS,
    ("GET", "/v1/counts"): {"consumer", "operator"},
    ("GET", "/v1/counts/stream"): {"consumer", "operator"},
    ("GET", "/v1/counts.{suffix}"): {"consumer", "operator"},
    ("POST", "/v1/streams/{stream}/tuples"): {"source"},
    ("GET", "/v1/queries"): READERS,
    ("GET", "/v1/private"): READERS,
    ("GET", "/v1/statement"): {"subject", "operator"},
    ("GET", "/v1/status"): {"operator"},
    ("GET", "/v1/acts"): {"operator"},
    ("POST", "/v1/queries"): {"consumer"},
    ("POST", "/v1/queries/check"): {"consumer"},
    ("DELETE", "/v1/queries/{name}"): {"consumer"},
    ("GET", "/v1/proposals"): READERS,
    ("GET", "/v1/proposals/{number}"): READERS,
    ("DELETE", "/v1/proposals/{number}"): READERS,
    ("POST", "/v1/proposals/{number}/approve"): {"operator"},
    ("POST", "/v1/proposals/{number}/reject"): {"operator"},
    ("GET", "/v1/catalogue"): READERS,
    ("GET", "/v1/policies"): {"subject"},
    ("PUT", "/v1/policies/{pattern}"): {"subject"},
    ("DELETE", "/v1/policies/{pattern}"): {"subject"},
    ("GET", "/v1/versions"): {"operator"},
    ("GET", "/v1/versions/{number}"): {"operator"},
    ("GET", "/v1/versions/{number}/changes"): {"operator"},
    ("POST", "/v1/versions/{number}/approve"): {"operator"},
    ("GET", "/"): EVERYONE,
    ("GET", "/login"): EVERYONE,
    ("GET", "/login/openid"): EVERYONE,
    ("GET", "/login/openid/done"): EVERYONE,
    ("GET", "/v1/tokens"): {"operator"},
    ("POST", "/v1/tokens"): {"operator"},
    ("DELETE", "/v1/tokens/{token_id}"): {"operator"},
}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/queries"): {"name": "more", "pattern": "AND(b, c)"},
    ("POST", "/v1/queries/check"): {"name": "more", "pattern": "AND(b, c)"},
    ("PUT", "/v1/policies/{pattern}"): {"epsilon": "1", "limit": "10 per day"},
    ("POST", "/v1/tokens"): {"role": "subject", "name": "t1"},
}


def list_routes(served: Running) -> set[tuple[str, str]]:
    """All routes of the application, by method and path."""
    from tacit.service.app import create_app

    found = {("GET", "/v1/openapi.json")}
    for included in create_app(served.service.state).routes:
        router = getattr(included, "original_router", None)
        for route in [] if router is None else router.routes:
            assert isinstance(route, APIRoute)
            prefix = included.include_context.prefix  # type: ignore[attr-defined]
            found |= {(method, prefix + route.path) for method in route.methods or ()}
    return found


WORKFLOW_PAGES = (
    ("/console/propose", "consumer"),
    ("/console/propose/live", "consumer"),
    ("/console/policies", "subject"),
    ("/console/policies/live", "subject"),
    ("/console/approvals", "operator"),
    ("/console/approvals/live", "operator"),
    ("/console/versions", "operator"),
    ("/console/acts", "operator"),
    ("/console/checks", "operator"),
    ("/console/checks/live", "operator"),
    ("/console/plan", "operator"),
    ("/console/plan/live", "operator"),
)
"""Pages of the set-up workflow, and the role that each is for."""
WORKFLOW_FORMS = (
    ("/console/propose", "consumer"),
    ("/console/propose/check", "consumer"),
    ("/console/policies", "subject"),
    ("/console/policies/withdraw", "subject"),
    ("/console/proposals/{number}/withdraw", "everyone"),
    ("/console/proposals/{number}/decide", "operator"),
    ("/console/versions/{number}/approve", "operator"),
    ("/console/verify", "operator"),
)
FORMS = {"/login", "/logout", "/console"}
"""Pages behind a session, which `test_console` checks for every role."""


def test_the_matrix_has_every_route_and_no_other(served: Running) -> None:
    found = list_routes(served)
    pages = {route for route in found if route[1].startswith(tuple(FORMS)) and route not in ALLOWED}
    assert found - pages == set(ALLOWED)
    assert pages == {
        ("GET", "/console"),
        ("GET", "/console/events"),
        ("GET", "/console/live"),
        ("GET", "/console/map"),
        ("GET", "/console/map/live"),
        ("GET", "/console/queries/{query}"),
        ("GET", "/console/queries/{query}/live"),
        ("GET", "/console/tokens"),
        ("POST", "/console/tokens"),
        ("POST", "/console/tokens/{token_id}/revoke"),
        ("POST", "/login"),
        ("POST", "/logout"),
        *(("GET", path) for path, _ in WORKFLOW_PAGES),
        *(("POST", path) for path, _ in WORKFLOW_FORMS),
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_token_alone_opens_no_page_of_the_console(served: Running, role: str | None) -> None:
    """Pages and their forms need a session, whatever token is sent with the request."""
    with served.client(role, "" if role is None else NAMES[role]) as client:
        for method, path in sorted(list_routes(served) - set(ALLOWED) - {("POST", "/login")}):
            place = path.replace("{query}", "both").replace("{token_id}", "000000000000")
            place = place.replace("{number}", "99")
            response = client.request(method, place)
            assert (response.status_code, response.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("method", "path"), sorted(ALLOWED))
def test_a_route_is_open_to_its_roles_and_closed_to_others(
    served: Running, method: str, path: str, role: str | None
) -> None:
    place = path.replace("{suffix}", "csv").replace("{token_id}", "000000000000")
    place = place.replace("{stream}", "s").replace("{pattern}", "visit")
    place = place.replace("{name}", "no").replace("{number}", "99")
    with (
        served.client(role, "" if role is None else NAMES[role]) as client,
        client.stream(method, place, json=BODIES.get((method, path))) as response,
    ):
        status = response.status_code
        kind = response.headers.get("content-type")
    if role in ALLOWED[method, path]:
        # The service reads a file, so no stream is open for sources; there is no proposal 99, and
        # no OpenID provider.
        assert status < 400 or (status == 404 and ("{" in path or "openid" in path))
    else:
        assert status == (401 if role is None else 403)
        assert kind == "application/problem+json"
        assert ("www-authenticate" in response.headers) == (role is None)


PLANNED: dict[str, Any] = {
    "quality": [{"query": "late", "expected_after": "0.83", "reached": False}],
    "costs": [],
}


@pytest.mark.parametrize("state", list(ProposalState))
def test_what_a_proposal_tells_each_role(served: Running, state: ProposalState) -> None:
    """Nothing of a plan is for consumers; with an approval, whether it is good enough."""
    query = {"name": "late", "pattern": "b", "quality": 0.9}
    planned = None if state is ProposalState.PLANNING else PLANNED
    why = "no history" if state is ProposalState.FAILED else ""
    proposal = Proposal(1, 0, Role.CONSUMER, "city", ProposalKind.QUERY, query, False, state, 1,
                        why, planned, None, "", "", None)  # fmt: skip
    waiting = state in OPEN
    told = {
        role: show_proposal(served.service.state, Principal(role, NAMES[role], ""), proposal)
        for role in (Role.CONSUMER, Role.OPERATOR)
    }
    city, ann = told[Role.CONSUMER], told[Role.OPERATOR]
    assert (city.progress, city.doing, city.reason, city.effect) == (None, None, None, None)
    assert city.state == ("waiting" if waiting else state)
    assert city.reached is (False if state is ProposalState.APPROVED else None)
    assert "0.83" not in city.model_dump_json()
    assert (ann.state, ann.effect, ann.reason) == (state, planned, why or None)
    assert ann.reached is (None if planned is None else False)
    assert (ann.progress is None) == (state is not ProposalState.PLANNING)
    others = {name: getattr(ann, name) for name in ("effect", "reached", "state", "reason")}
    same = ann.model_copy(update={"progress": None, "doing": None, **others})
    assert same.model_dump(exclude=set(others)) == city.model_dump(exclude=set(others))


def test_a_token_is_created_used_listed_and_revoked(served: Running) -> None:
    with served.client("operator", "ann") as operator:
        wanted = {"role": "consumer", "name": "city", "note": "for <script>"}
        created = operator.post("/v1/tokens", json=wanted)
        assert created.status_code == 201
        fields = created.json()
        secret = fields.pop("token")
        assert fields["creator"] == "operator ann"
        with served.client() as client:
            me = client.get("/v1/me", headers=bearer(secret))
            assert me.json() == {"role": "consumer", "name": "city", "streams": []}
            listed = operator.get("/v1/tokens")
            assert secret.split("_", 2)[2] not in listed.text
            assert fields in listed.json()
            assert operator.delete(f"/v1/tokens/{fields['id']}").json()["state"] == "revoked"
            assert client.get("/v1/me", headers=bearer(secret)).status_code == 401


def test_a_token_expires(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = served.service.state.tokens
    secret = served.token("consumer", "short", expires=now() + 60_000_000)
    assert tokens.check(secret) is not None
    later = now() + 61_000_000
    monkeypatch.setattr("tacit.service.tokens.now", lambda: later)
    assert tokens.check(secret) is None


def test_the_database_has_no_secret(served: Running) -> None:
    secret = served.token("consumer", "city").split("_", 2)[2]
    place = served.service.options.ledger_place or ""
    stored = b"".join(path.read_bytes() for path in Path(place).parent.glob("ledger.db*"))
    assert b"city" in stored
    assert secret.encode() not in stored


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "king", "name": "x"},
        {"role": "consumer"},
        {"role": "consumer", "name": ""},
        {"role": "consumer", "name": "a\nb"},
        {"role": "consumer", "name": "x", "streams": ["s"]},
        {"role": "source", "name": "x", "streams": ["nope"]},
        {"role": "consumer", "name": "x", "expires": "2001-01-01T00:00:00Z"},
        {"role": "consumer", "name": "x", "unknown": 1},
    ],
)
def test_a_wrong_token_request_is_refused_with_a_reason(served: Running, wrong: Any) -> None:
    with served.client("operator", "ann") as client:
        response = client.post("/v1/tokens", json=wrong)
    assert response.status_code == 422
    assert response.json()["status"] == 422


def test_guessing_a_token_is_throttled_and_keeps_nobody_else_out(served: Running) -> None:
    victim = served.token("consumer", "guessed")
    guess = victim[:-4] + "AAAA"
    with served.client() as client:
        statuses = [client.get("/v1/me", headers=bearer(guess)).status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        response = client.get("/v1/me", headers=bearer(victim))
        assert response.status_code == 429  # who guesses learns nothing more
        assert 0 < int(response.headers["retry-after"]) <= 61
        other = served.token("consumer", "city")
        assert client.get("/v1/me", headers=bearer(other)).status_code == 200


def test_failed_attempts_are_forgotten_after_a_minute_and_bounded() -> None:
    clock = [0.0]
    failures = FailedAttempts(lambda: clock[0])
    for _ in range(10):
        failures.add(("here", ""))
    assert failures.wait(("here", "")) == 60
    assert failures.wait(("there", "")) == 0
    clock[0] = 61
    assert failures.wait(("here", "")) == 0
    for number in range(20_000):
        failures.add((str(number), ""))
    assert len(failures._failures) == 10_000


def test_a_token_may_make_many_requests_but_not_without_end() -> None:
    clock = [0.0]
    rates = RequestRates(lambda: clock[0])
    assert [rates.take("a") for _ in range(1000)] == [0] * 1000
    assert 0 < rates.take("a") <= 0.02
    assert rates.take("b") == 0
    clock[0] += 1
    assert [rates.take("a") for _ in range(50)] == [0] * 50
    assert rates.take("a") > 0
    clock[0] += 3600
    assert [rates.take("a") for _ in range(1001)][999:] == [0, pytest.approx(0.02)]
    for number in range(20_000):
        rates.take(str(number))
    assert len(rates._left) == 10_000


def test_too_many_requests_are_refused_for_a_while(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = served.service.state
    monkeypatch.setattr(state.access, "rates", RequestRates(lambda: 0.0))
    monkeypatch.setattr("tacit.service.access._MOST_AT_ONCE", 3)
    with served.client("consumer", "city") as client, served.client("subject", "t1") as other:
        found = [client.get("/v1/me") for _ in range(4)]
        assert [one.status_code for one in found] == [200, 200, 200, 429]
        assert found[3].headers["retry-after"] == "1"
        assert other.get("/v1/me").status_code == 200
        assert client.get("/v1/health").status_code == 200


def test_bodies_are_limited_before_anyone_reads_them(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b'{"name": "' + b"x" * (256 << 10) + b'"}'
    kind = {"Content-Type": "application/json"}

    def drip() -> Iterator[bytes]:
        for _ in range(20):
            yield b"{"
            time.sleep(0.1)

    with served.client() as client:
        for body in (large, iter([large[:1000], large[1000:]])):
            response = client.post("/v1/queries", content=body, headers=kind)
            assert response.status_code == 413
            assert response.headers["content-type"] == "application/problem+json"
        assert client.post("/login", content=large).status_code == 413
        monkeypatch.setattr("tacit.service.app._BODY_SECONDS", 0.2)
        assert client.post("/v1/queries", content=drip(), headers=kind).status_code == 408


def test_errors_are_problem_details_everywhere(served: Running) -> None:
    with served.client("operator", "ann") as client:
        for response, status in (
            (client.get("/v1/nowhere"), 404),
            (client.post("/v1/answers"), 405),
            (client.get("/v1/answers?limit=0"), 422),
            (client.get("/v1/answers?after=x"), 422),
            (client.get("/v1/answers.exe"), 422),
            (client.get("/v1/answers?query=nope"), 404),
            (client.get("/v1/counts?limit=0"), 422),
            (client.get("/v1/counts.exe"), 422),
            (client.get("/v1/counts?query=nope"), 404),
        ):
            assert response.status_code == status
            assert response.headers["content-type"] == "application/problem+json"
            problem = response.json()
            assert {"type", "title", "status", "detail"} <= problem.keys()
            assert problem["status"] == status


def test_every_response_has_the_security_headers(served: Running) -> None:
    with served.client() as client:
        for response in (client.get("/v1/health"), client.get("/v1/me"), client.get("/nowhere")):
            assert response.headers["cache-control"] == "no-store"
            assert "default-src 'self'" in response.headers["content-security-policy"]
            assert "unsafe" not in response.headers["content-security-policy"]
            assert response.headers["x-content-type-options"] == "nosniff"
            assert "strict-transport-security" not in response.headers  # that needs TLS
            assert "server" not in response.headers


def test_behind_tls_browsers_use_nothing_else(served: Running) -> None:
    """A proxy on this machine says that it terminates TLS; the cookie is for this host alone."""
    with served.client() as client:
        behind = {"X-Forwarded-Proto": "https"}
        for path in ("/v1/health", "/v1/me", "/nowhere", "/static/console.css"):
            response = client.get(path, headers=behind)
            assert response.headers["strict-transport-security"] == "max-age=31536000"
        token = served.token("consumer", "city")
        cookie = client.post("/login", data={"token": token}, headers=behind).headers["set-cookie"]
    assert cookie.startswith("__Host-tacit_session=")
    assert "; Secure" in cookie


def test_nothing_secret_is_logged(
    served: Running, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = served.token("consumer", "city")
    with caplog.at_level(logging.DEBUG), served.client() as client:
        client.get("/v1/me", headers=bearer(secret))
        client.get("/v1/me", headers=bearer(secret[:-1] + "_"))
        client.get("/v1/answers?query=nope", headers=bearer(secret))
    ours = [
        record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    ]
    shown = "".join(record.getMessage() for record in ours) + "".join(capfd.readouterr())
    assert secret.split("_", 2)[2][:-1] not in shown


def test_the_openapi_document_describes_every_route_and_its_problems(served: Running) -> None:
    with served.client() as client:
        document = client.get("/v1/openapi.json").json()
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    hidden = {route for route in ALLOWED if not route[1].startswith("/v1/")}
    assert described == set(ALLOWED) - hidden - {("GET", "/v1/openapi.json")}
    assert "ProblemDetails" in document["components"]["schemas"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for methods in document["paths"].values():
        for described_route in methods.values():
            assert described_route["summary"]
            assert described_route["description"]
            for status, answer in described_route["responses"].items():
                if status >= "400":
                    assert "application/problem+json" in answer["content"], described_route


def test_facts_are_those_of_the_specification(served: Running) -> None:
    with served.client("consumer", "city") as client:
        assert [query["name"] for query in client.get("/v1/queries").json()] == ["both", "either"]
    with served.client("subject", "t1") as client:
        (private,) = client.get("/v1/private").json()
        assert (private["name"], private["epsilon"], private["limit"]) == (
            "visit",
            "2",
            "20 per day",
        )
        assert private["even_odds"] == "89"
        (horizon,) = client.get("/v1/statement").json()["horizons"]
        assert (horizon["spent"], horizon["limit"]) == (16.0, 20.0)
    with served.client("subject", "stranger") as client:
        assert client.get("/v1/statement").json()["horizons"] == []
    with served.client("operator", "ann") as client:
        status = client.get("/v1/status").json()
        assert (status["subjects"], status["windows"], status["tuples"]) == (5, 8, 40)
        metrics = client.get("/v1/metrics").text
        assert "tacit_windows_released_total 8.0" in metrics
        assert "tuples" not in metrics
