"""The console without a browser: sessions, forms, who sees which page, and text as text."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tacit.ledger.database import now
from tacit.service.console.charts import draw_grid
from tacit.service.console.timelines import make_grid
from tacit.service.feed import FeedSelection
from tacit.service.routes import event_streams
from tacit.service.sessions import LIFETIME
from tests.service.services import Running, running, within, write_tuples
from tests.service.test_access import WORKFLOW_FORMS, WORKFLOW_PAGES

ROLES = {"source": "sensor", "consumer": "city", "subject": "t1", "operator": "ann"}
EVIL = "<script>alert(1)</script>"
EVIL_SPEC = """
version: 1
streams: {s: {subject: who, time: at, columns: {who: text, at: integer, kind: text}}}
subjects: ["<script>alert(1)</script>", "a\\"b'&c"]
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 'a'"}
private:
  - {pattern: a, epsilon: 1}
queries:
  - {name: asked, consumer: "<script>alert(1)</script>", pattern: a}
mechanism: uniform
"""


@contextlib.contextmanager
def browser(service: Running, role: str, name: str) -> Iterator[httpx.Client]:
    """A client that has logged in with the form."""
    with service.client() as client:
        response = client.post("/login", data={"token": service.token(role, name)})
        assert response.status_code == 303, response.text
        assert response.headers["location"] == "/console"
        yield client


def csrf(page: httpx.Response) -> str:
    """The value that the forms of a page carry."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service in which everything is called like a script."""
    folder = tmp_path_factory.mktemp("evil")
    source = folder / "tuples.csv"
    source.write_text(f"who,at,kind\n{EVIL},1,a\n{EVIL},61,a\n{EVIL},121,b\n")
    with running(folder, [source], spec=EVIL_SPEC) as service:
        service.wait(3 * 2)
        yield service


def test_without_a_session_every_page_leads_to_the_login(served: Running) -> None:
    with served.client() as client:
        for path in ("/console", "/console/live", "/console/tokens", "/console/queries/both"):
            response = client.get(path)
            assert (response.status_code, response.headers["location"]) == (303, "/login")
        part = client.get("/console/live", headers={"HX-Request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/login")
        assert client.get("/").headers["location"] == "/console"
        assert client.get("/login").status_code == 200


@pytest.mark.parametrize("role", ROLES)
def test_everyone_has_a_page_and_only_operators_have_tokens(served: Running, role: str) -> None:
    with browser(served, role, ROLES[role]) as client:
        for path in ("/console", "/console/live"):
            page = client.get(path)
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
        allowed = role == "operator"
        page = client.get("/console/tokens")
        assert page.status_code == (200 if allowed else 403)
        token = csrf(client.get("/console"))
        form = {"csrf": token, "role": "consumer", "name": "x"}
        assert client.post("/console/tokens", data=form).status_code == (200 if allowed else 403)
        gone = client.post("/console/tokens/nope/revoke", data={"csrf": token})
        assert gone.status_code == (404 if allowed else 403)
        query = client.get("/console/queries/both")
        assert query.status_code == (200 if role in ("consumer", "operator") else 403)
        with client.stream("GET", "/console/events") as events:
            assert "event: released" in next(events.iter_text())


@pytest.mark.parametrize("path", ["/console/events", "/v1/answers/stream?after=-1"])
def test_a_stream_ends_with_its_session_and_not_with_another(
    served: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_HEARTBEAT", 3600.0)  # so only the logout can end it
    with (
        browser(served, "consumer", "city") as client,
        browser(served, "consumer", "city") as other,
    ):
        token = csrf(client.get("/console"))
        with client.stream("GET", path) as mine, other.stream("GET", "/console/events") as theirs:
            parts = theirs.iter_text()
            assert "released" in next(parts)
            assert client.post("/logout", data={"csrf": token}).status_code == 303
            assert "event: " in "".join(mine.iter_text())  # it has an end
            served.service.state.signal.ring()
            assert "released" in next(parts)
        assert client.get("/v1/queries").status_code == 401


@pytest.mark.parametrize("path", ["/console/events", "/v1/answers/stream?after=-1"])
def test_a_stream_ends_when_its_session_expires(
    served: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_HEARTBEAT", 0.1)
    with browser(served, "consumer", "city") as client, client.stream("GET", path) as events:
        parts = events.iter_text()
        assert "event: " in "".join(itertools.islice(parts, 2))
        later = now() + LIFETIME * 1_000_000
        monkeypatch.setattr("tacit.service.sessions.now", lambda: later)
        for _ in within(parts):
            pass  # it has an end


@pytest.mark.parametrize("role", ROLES)
def test_pages_of_the_workflow_are_for_their_roles(served: Running, role: str) -> None:
    with browser(served, role, ROLES[role]) as client:
        token = csrf(client.get("/console"))
        for path, allowed in WORKFLOW_PAGES:
            expected = 200 if role == allowed else 403
            assert client.get(path).status_code == expected, path
        for path, allowed in WORKFLOW_FORMS:
            place = path.replace("{number}", "99")
            status = client.post(place, data={"csrf": token}).status_code
            assert (status == 403) == (role != allowed and allowed != "everyone"), path
            assert client.post(place, data={"csrf": "0" * 64}).status_code == 403


def test_a_query_is_checked_while_it_is_typed(served: Running) -> None:
    with browser(served, "consumer", "city") as client:
        token = csrf(client.get("/console/propose"))
        form = {"csrf": token, "name": "typed", "pattern": "SEQ(a, nope)", "alpha": "0.5"}
        found = client.post("/console/propose/check", data=form).text
        assert "nope" in found
        assert "<html" not in found
        found = client.post("/console/propose/check", data=form | {"pattern": "SEQ(a, b)"}).text
        assert "This can be proposed" in found
        assert "visit" in found
        assert "0.5" in client.post("/console/propose/check", data=form | {"alpha": "x"}).text
        for more, said in (
            ({"kind": "count"}, "This can be proposed"),
            ({"kind": "count", "by": "x"}, "registry file"),
            ({"kind": "times", "up_to": "2"}, "This can be proposed"),
            ({"kind": "times", "up_to": "x"}, "expected a number, such as 3"),
            ({"kind": "one_of", "values": "x: a\ny: SEQ(b, c)"}, "This can be proposed"),
            ({"kind": "one_of", "values": "x: a\ny"}, "expected a line such as"),
            ({"kind": "one_of", "values": "x: a\nx: b"}, "x is there twice"),
            ({"kind": "one_of"}, "Answers: this is missing"),
            ({"kind": "nothing"}, "Choose what you want to know"),
        ):
            whole = form | {"pattern": "SEQ(a, b)"} | more
            assert said in client.post("/console/propose/check", data=whole).text, more
        refused = client.post("/console/propose", data=form | {"name": EVIL})
        assert refused.status_code == 422
        assert EVIL not in refused.text


def test_a_consumer_sees_its_own_queries_alone(served: Running) -> None:
    with browser(served, "consumer", "clinic") as client:
        page = client.get("/console").text
        assert "open" in page
        assert "both" not in page
        other = client.get("/console/queries/both")
        none = client.get("/console/queries/nothing")
        assert other.status_code == none.status_code == 404
        assert other.content == none.content
        assert client.get("/v1/answers?limit=1").status_code == 200  # reading with the session
        assert client.post("/v1/tokens", json={}).status_code == 401  # but not writing


def test_a_form_from_elsewhere_or_from_another_session_is_refused(served: Running) -> None:
    with (
        browser(served, "operator", "ann") as client,
        browser(served, "operator", "ben") as other,
    ):
        form = {"role": "consumer", "name": "x"}
        assert client.post("/console/tokens", data=form).status_code == 403
        theirs = csrf(other.get("/console/tokens"))
        assert client.post("/console/tokens", data={**form, "csrf": theirs}).status_code == 403
        own = {**form, "csrf": csrf(client.get("/console/tokens"))}
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert client.post("/console/tokens", data=own, headers=headers).status_code == 403
        assert client.post("/console/tokens", data=own).status_code == 200
        large = {**own, "note": "x" * 20_000}
        assert client.post("/console/tokens", data=large).status_code == 413


def test_a_token_is_created_shown_once_and_revoked(served: Running) -> None:
    with browser(served, "operator", "ann") as client:
        token = csrf(client.get("/console/tokens"))
        form = {"csrf": token, "role": "subject", "name": "t4", "expires": "1 d", "note": EVIL}
        created = client.post("/console/tokens", data=form)
        found = re.search(r"tacit_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", created.text)
        assert found is not None
        assert found[0] not in client.get("/console/tokens").text
        assert EVIL not in created.text
        mistake = client.post("/console/tokens", data={**form, "expires": "soon"})
        assert mistake.status_code == 422
        assert 'role="alert"' in mistake.text
        revoked = client.post(f"/console/tokens/{found[1]}/revoke", data={"csrf": token})
        assert revoked.status_code == 303
        assert served.service.state.tokens.check(found[0]) is None


def test_a_form_with_a_mistake_keeps_what_was_typed(served: Running) -> None:
    with browser(served, "operator", "ann") as client:
        form = {"csrf": csrf(client.get("/console/tokens")), "role": "subject", "name": "t3"}
        again = client.post("/console/tokens", data={**form, "expires": "soon", "note": EVIL})
        assert again.status_code == 422
        assert "<option selected>subject</option>" in again.text
        for typed in ("t3", "soon", "&lt;script&gt;alert(1)&lt;/script&gt;"):
            assert f'value="{typed}"' in again.text
        assert "got &#39;soon&#39;." in again.text
    with browser(served, "subject", "t3") as client:
        form = {"csrf": csrf(client.get("/console/policies")), "pattern": "visit"}
        for epsilon, said in (("9", "Epsilon must be"), ("x", "Epsilon must be a number")):
            wrong = client.post("/console/policies", data={**form, "epsilon": epsilon})
            assert wrong.status_code == 422
            card = wrong.text.split("<h2>visit</h2>")[1].split("</section>")[0]
            assert said in card
            assert f'value="{epsilon}"' in card
        unknown = client.post("/console/policies", data={**form, "pattern": "nope", "epsilon": "1"})
        assert "The catalogue has no pattern of this name." in unknown.text


def test_an_epsilon_is_shown_with_its_unit(served: Running) -> None:
    unit = "for one subject, one private pattern, one window"
    with browser(served, "subject", "t3") as client:
        policies, page = client.get("/console/policies").text, client.get("/console").text
    assert f"Now: epsilon 2 {unit}, and at most epsilon 20 per day." in policies
    assert "A 50:50 guess about one window can become 89 : 11 at most." in policies
    assert f"epsilon 2 {unit}" in page
    assert 'data-form="long">01 Jan 1970 00:00 UTC</time>' in page  # when the period began
    with browser(served, "operator", "ann") as client:
        assert "epsilon 16 of 20 per day" in client.get("/console").text
    with browser(served, "consumer", "city") as client:
        assert f"(epsilon 2 {unit})" in client.get("/console/queries/both").text


def test_problems_are_shown_with_the_pages_of_the_role(served: Running) -> None:
    with browser(served, "consumer", "city") as client:
        for path in ("/console/tokens", "/console/queries/nothing"):
            page = client.get(path).text
            assert 'href="/console/propose"' in page
            assert "Back to the overview" in page
        assert "You have no query of this name." in page


def test_a_session_ends_with_logout_and_with_its_token(served: Running) -> None:
    with browser(served, "consumer", "leaving") as client:
        cookie = dict(client.cookies)
        token = csrf(client.get("/console"))
        assert client.post("/logout", data={"csrf": token}).status_code == 303
        again = httpx.get(f"{served.url}/console", cookies=cookie)
        assert again.status_code == 303
    with browser(served, "consumer", "revoked") as client:
        served.service.state.tokens.revoke(
            served.token("consumer", "revoked").split("_")[1], actor="test"
        )
        assert client.get("/console").status_code == 303


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(served: Running) -> None:
    with served.client() as client:
        response = client.post("/login", data={"token": served.token("consumer", "city")})
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    place = Path(served.service.options.ledger_place or "")
    stored = b"".join(path.read_bytes() for path in place.parent.glob("ledger.db*"))
    value = cookie_value(response)
    assert len(value) == 43
    assert value.encode() not in stored


def cookie_value(response: httpx.Response) -> str:
    """The value of the session's cookie."""
    found = re.search("tacit_session=([^;]+)", response.headers["set-cookie"])
    assert found is not None
    return found[1]


def test_wrong_tokens_are_throttled_at_the_login_too(served: Running) -> None:
    guess = served.token("consumer", "login guess")[:-3] + "AAA"
    with served.client() as client:
        codes = [client.post("/login", data={"token": guess}).status_code for _ in range(11)]
    assert codes == [401] * 10 + [429]


@pytest.mark.parametrize("role", ["consumer", "subject", "operator"])
def test_names_with_markup_are_text(evil: Running, role: str) -> None:
    with browser(evil, role, EVIL) as client:
        paths = ["/console", "/console/live"]
        if role != "subject":
            paths += ["/console/queries/asked", "/console/queries/asked/live"]
        for path in paths:
            page = client.get(path)
            assert page.status_code == 200, path
            assert EVIL not in page.text
            # Parts name only subjects that were answered yes, which is up to the noise.
            assert "&lt;script&gt;" in page.text or path.endswith("/live")


def test_pages_have_no_inline_script_or_style_and_load_nothing_from_elsewhere(
    served: Running,
) -> None:
    with browser(served, "operator", "ann") as client:
        pages = [client.get(path).text for path in ("/console", "/console/tokens", "/login")]
    for page in pages:
        assert not re.search(r"<script(?![^>]*\bsrc=)", page)
        assert not re.search(r"<style|\sstyle=|\son\w+=", page)
        places = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert all(place.startswith(("/", "#")) for place in places)


@pytest.mark.parametrize("role", ROLES)
def test_no_page_shows_the_inside_of_the_program(served: Running, role: str) -> None:
    """Or breaks the content security policy; forms show again what was typed."""
    paths = ["/console", "/console/map", "/console/queries/both", "/console/tokens"]
    paths += [path for path, _ in WORKFLOW_PAGES if "checks" not in path and "/plan" not in path]
    with browser(served, role, ROLES[role]) as client:
        pages = [client.get(path).text for path in paths]
        if role == "consumer":
            typed = {"name": "more", "kind": "one_of", "values": "home: (", "pattern": "home: ("}
            form = {**typed, "csrf": csrf(client.get("/console/propose"))}
            pages.append(client.post("/console/propose", data=form).text)
            assert ">home: (</textarea>" in pages[-1]
            assert "<textarea" in pages[paths.index("/console/propose")]
    for page in pages:
        assert not re.search(r"object at 0x|built-in|&lt;bound|Undefined|>None<", page)
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)


def test_static_files_are_served_with_their_licence(served: Running) -> None:
    with served.client() as client:
        for name in ("console.css", "console.js", "htmx.min.js", "htmx.LICENSE.txt", "icon.svg"):
            response = client.get(f"/static/{name}")
            assert response.status_code == 200
            assert "max-age" in response.headers["cache-control"]
        assert client.get("/static/../pages.py").status_code == 404


def test_before_the_first_window_pages_say_so(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        for role, name, text in (
            ("consumer", "city", "No answers yet"),
            ("consumer", "nobody", "You have no queries yet"),
            ("subject", "t1", "Nobody was told anything about you yet"),
            ("operator", "ann", "nothing released"),
            ("source", "sensor", "open"),
        ):
            with browser(service, role, name) as client:
                page = client.get("/console")
                assert page.status_code == 200, page.text
                if text not in page.text and role == "subject":
                    text = "does not know a subject"
                assert text in page.text


def test_the_grid_shows_what_was_released(served: Running) -> None:
    feed = served.service.state.feed
    tables = feed.read_last(FeedSelection("city", ("both",)), 5)
    grid = make_grid(tables, "subject")
    assert grid.rows == [f"t{n}" for n in range(5)]
    assert len(grid.starts) == 5
    rows = [row for table in tables for row in table.to_pylist()]
    for row in rows:
        place = grid.rows.index(row["subject"]), grid.starts.index(row["window_start"])
        assert grid.detected[place] == row["detected"]
        assert grid.confidence[place] == pytest.approx(row["confidence"])
    drawn = str(draw_grid(grid, "answers"))
    assert drawn.count('class="yes"') == sum(row["detected"] for row in rows)
    assert drawn.count('class="no"') == sum(not row["detected"] for row in rows)
    most = grid.top(2)
    assert len(most.rows) == 2
    assert (most.detected.sum(axis=1) >= 0).all()


def test_a_subject_sees_its_spending_and_odds(served: Running) -> None:
    with browser(served, "subject", "t1") as client:
        page = client.get("/console").text
    assert "of 20 epsilon (20 per day)" in page
    assert "89 : 11" in page
    assert "near certainty" not in page or "99" in page


def test_where_windows_slide_odds_are_about_one_occurrence(tmp_path: Path) -> None:
    spec = EVIL_SPEC.replace("size: 1 min", "size: 2 min, slide: 1 min")
    with running(tmp_path, spec=spec) as service:
        with browser(service, "subject", EVIL) as client:
            page = client.get("/console").text
            assert "about one occurrence into at most" in page
            assert "about three occurrences together into at most" in page
            assert "one window" not in page
        with browser(service, "operator", "ann") as client:
            page = client.get("/console/plan").text
            assert "one subject, one private pattern, one occurrence." in page


def test_more_windows_appear_when_they_are_released(tmp_path: Path) -> None:
    source = write_tuples(tmp_path / "tuples.csv", 3)
    with running(tmp_path, [source], follow=True) as service:
        service.wait(2 * 15)
        with browser(service, "consumer", "city") as client:
            before = client.get("/console/queries/both/live").text
            write_tuples(tmp_path / "tuples.csv", 3, first=3)
            service.wait(5 * 15)
            after = client.get("/console/queries/both/live").text
    assert before.count("<title>") == 2 * 5
    assert after.count("<title>") == 5 * 5


def test_a_page_that_is_closed_leaves_nothing_waiting() -> None:
    """Tasks that wait for the next release end; asyncio logs those that stay as errors."""

    async def leave() -> set[asyncio.Task[Any]]:
        released, ended = asyncio.Event(), asyncio.Event()
        page = asyncio.create_task(event_streams._is_set_soon(released, ended))
        await asyncio.sleep(0.01)
        page.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await page
        await asyncio.sleep(0)
        own = asyncio.current_task()
        return {one for one in asyncio.all_tasks() if one is not own}

    assert asyncio.run(leave()) == set()
