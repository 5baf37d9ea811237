"""Logging in with OpenID Connect, at a real provider on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from tacit.errors import OptionError
from tacit.service.openid import LoginAttempt, OpenIdError, OpenIdLogin, OpenIdSettings
from tests.service.services import TLS, Running, killing_after, running, write_tuples

PROVIDER = """
import time
from oidc_provider_mock import User, run_server_in_thread
verified = {"email": "ann@example.org", "email_verified": True}
users = [
    User(sub="ann", claims=verified),
    User(sub="bob", claims={}),
    User(sub="eve", claims={**verified, "email_verified": False}),
]
with run_server_in_thread(user_claims=users, require_nonce=True) as server:
    print(server.server_port, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """A provider in a process of its own; its address."""
    command = [sys.executable, "-W", "ignore", "-c", PROVIDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            with killing_after(process):
                port = int(process.stdout.readline())
            yield f"http://localhost:{port}"
        finally:
            process.kill()


def write_settings(folder: Path, issuer: str, claim: str = "sub") -> Path:
    (folder / "secret.txt").write_text("our secret\n")
    path = folder / "openid.yaml"
    path.write_text(
        f"issuer: {issuer}\nclient_id: tacit\nclient_secret_file: secret.txt\nclaim: {claim}\n"
        "people:\n"
        "  ann: {role: operator, name: Ann}\n"
        "  bob: {role: consumer, name: city}\n"
        "  ann@example.org: {role: operator, name: Ann}\n"
    )
    return path


@pytest.fixture(scope="module")
def guarded(provider: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("openid")
    source = write_tuples(folder / "tuples.csv", 1)
    with running(folder, [source], openid=write_settings(folder, provider)) as service:
        yield service


def log_in(browser: httpx.Client, user: str) -> httpx.Response:
    """Follow the link at the login page, and log in at the provider."""
    begun = browser.get("/login/openid")
    assert begun.status_code == 303
    back = httpx.post(begun.headers["location"], data={"sub": user})
    assert back.status_code in (302, 303), back.text
    return browser.get(back.headers["location"])


def test_the_login_page_leads_to_the_provider(guarded: Running) -> None:
    page = httpx.get(f"{guarded.url}/login").text
    assert 'href="/login/openid"' in page
    location = httpx.get(f"{guarded.url}/login/openid").headers["location"]
    asked = parse_qs(urlsplit(location).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{guarded.url}/login/openid/done"]


@pytest.mark.parametrize(("user", "shown"), [("ann", "operator"), ("bob", "consumer")])
def test_people_get_the_session_of_their_role(guarded: Running, user: str, shown: str) -> None:
    with httpx.Client(base_url=guarded.url, verify=TLS) as browser:
        done = log_in(browser, user)
        assert done.status_code == 200
        assert "/console" in done.text
        assert browser.get("/console").status_code == 200
        me = browser.get("/v1/me").json()
    assert me["role"] == shown
    newest = guarded.service.state.tokens.list_all()[0]
    assert newest.role == shown
    assert newest.expires is not None
    assert "OpenID Connect" in newest.creator


def test_a_revoked_login_ends_its_session(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url, verify=TLS) as browser:
        log_in(browser, "ann")
        tokens = guarded.service.state.tokens
        tokens.revoke(tokens.list_all()[0].id, actor="test")
        assert browser.get("/console").headers["location"] == "/login"


def test_someone_unknown_gets_no_session(
    guarded: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with httpx.Client(base_url=guarded.url, verify=TLS) as browser:
        caplog.clear()
        refused = log_in(browser, "mallory<b>")
        assert refused.status_code == 403
        assert (
            "The provider knows you as mallory&lt;b&gt;, but you have no role here" in refused.text
        )
        assert "no role here" in caplog.text
        assert "mallory" not in caplog.text
        assert browser.get("/console").headers["location"] == "/login"


def test_a_response_for_another_browser_or_login_is_refused(guarded: Running) -> None:
    with (
        httpx.Client(base_url=guarded.url, verify=TLS) as victim,
        httpx.Client(verify=TLS) as attacker,
    ):
        begun = attacker.get(f"{guarded.url}/login/openid").headers["location"]
        back = attacker.post(begun, data={"sub": "ann"}).headers["location"]
        assert victim.get(back).status_code == 403  # no login was begun here
        victim.get("/login/openid")
        assert victim.get(back).status_code == 403  # another one was
        assert victim.get("/console").headers["location"] == "/login"


def test_a_code_works_once_and_cancelling_is_no_login(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url, verify=TLS) as browser:
        begun = browser.get("/login/openid")
        back = httpx.post(begun.headers["location"], data={"sub": "ann"}).headers["location"]
        kept = dict(browser.cookies)
        assert browser.get(back).status_code == 200
    with httpx.Client(base_url=guarded.url, cookies=kept) as again:
        assert again.get(back).status_code == 403
    guarded.service.state.access.failures.__init__()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("error=access_denied", "was cancelled at the provider"),
        ("error=temporarily_unavailable", "cannot log anyone in now"),
        ("error=%3Cb%3Enot+ours", "The provider refused the login"),
        ("", "The provider refused the login"),
        ("code=x&state=y", "took longer than 10 minutes, or was begun in another browser"),
    ],
)
def test_a_login_that_fails_says_why_and_can_be_begun_again(
    guarded: Running, query: str, says: str
) -> None:
    guarded.service.state.access.failures.__init__()  # type: ignore[misc]
    with httpx.Client(base_url=guarded.url, verify=TLS) as browser:
        refused = browser.get(f"/login/openid/done?{query}")
        assert refused.status_code == 403
        assert says in refused.text
        assert "not ours" not in refused.text
        assert 'href="/login/openid"' in refused.text
        assert log_in(browser, "bob").status_code == 200


def test_failed_logins_are_throttled(guarded: Running) -> None:
    failures = guarded.service.state.access.failures
    failures.__init__()  # type: ignore[misc]
    with httpx.Client(base_url=guarded.url, verify=TLS) as browser:
        found = [browser.get("/login/openid/done?code=x&state=y") for _ in range(12)]
        assert [one.status_code for one in found] == [403] * 10 + [429] * 2
        assert 0 < int(found[-1].headers["retry-after"]) <= 61
        assert "Too many logins from your address have failed" in found[-1].text
        assert log_in(browser, "ann").status_code == 429
        failures.__init__()  # type: ignore[misc]
        assert log_in(browser, "ann").status_code == 200


def test_the_state_and_the_nonce_must_be_those_of_the_attempt(
    provider: str, tmp_path: Path, compared: list[tuple[Any, Any]]
) -> None:
    """Both are compared in constant time."""
    login = OpenIdLogin(OpenIdSettings.load(write_settings(tmp_path, provider)))
    attempt, redirect = LoginAttempt.start(), "http://localhost/login/openid/done"
    back = httpx.post(login.begin(attempt, redirect), data={"sub": "ann"})
    code = parse_qs(urlsplit(back.headers["location"]).query)["code"][0]
    with pytest.raises(OpenIdError, match="another browser"):
        login.finish(attempt, "another state", code, redirect)
    assert (attempt.state.encode(), b"another state") in compared
    other = replace(attempt, nonce="another nonce")
    with pytest.raises(OpenIdError, match="belongs to another login"):
        login.finish(other, attempt.state, code, redirect)
    assert (attempt.nonce.encode(), b"another nonce") in compared


def test_an_email_counts_only_if_it_is_verified(provider: str, tmp_path: Path) -> None:
    login = OpenIdLogin(OpenIdSettings.load(write_settings(tmp_path, provider, "email")))
    for user, verified in (("ann", True), ("eve", False)):
        attempt, redirect = LoginAttempt.start(), "http://localhost/login/openid/done"
        back = httpx.post(login.begin(attempt, redirect), data={"sub": user})
        given = parse_qs(urlsplit(back.headers["location"]).query)
        if verified:
            person = login.finish(attempt, given["state"][0], given["code"][0], redirect)
            assert person.name == "Ann"
        else:
            with pytest.raises(OpenIdError, match="verified"):
                login.finish(attempt, given["state"][0], given["code"][0], redirect)


def test_a_provider_that_does_not_tell_the_claim_is_reported(tmp_path: Path) -> None:
    settings = OpenIdSettings.load(write_settings(tmp_path, "http://localhost:9", "badge"))
    with pytest.raises(OpenIdError, match="does not tell your badge"):
        OpenIdLogin(settings)._find_person({"sub": "ann"})


def test_forged_id_tokens_are_refused(provider: str, tmp_path: Path) -> None:
    login = OpenIdLogin(OpenIdSettings.load(write_settings(tmp_path, provider)))
    moment = int(time.time())
    claims = {
        "iss": provider, "aud": "tacit", "sub": "ann", "iat": moment, "exp": moment + 60,
        "nonce": "n",
    }  # fmt: skip
    kid = httpx.get(f"{provider}/jwks").json()["keys"][0].get("kid")
    for key, algorithm in (("", "none"), ("k" * 64, "HS256")):
        forged = jwt.encode(claims, key or None, algorithm, headers={"kid": kid})  # type: ignore[arg-type]
        with pytest.raises(OpenIdError, match="not valid"):
            login._verify(forged, "n")


def test_a_provider_that_is_down_is_reported(tmp_path: Path) -> None:
    login = OpenIdLogin(OpenIdSettings.load(write_settings(tmp_path, "http://localhost:9")))
    with pytest.raises(OpenIdError, match="cannot be reached"):
        login.begin(LoginAttempt.start(), "http://localhost/")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("issuer: http://id.example.org", "https"),
        ("issuer: [", "YAML"),
        ("client: x", "issuer"),
    ],
)
def test_wrong_settings_are_reported(text: str, message: str, tmp_path: Path) -> None:
    path = write_settings(tmp_path, "https://id.example.org")
    path.write_text(path.read_text().replace("issuer: https://id.example.org", text))
    with pytest.raises(OptionError, match=message):
        OpenIdSettings.load(path)
