"""The console in Chromium: the story of all roles, without errors, for everyone's senses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.service.services import PLACES, RICH, Running, running, write_registry

OPERATOR_PAGES = ("approvals", "versions?number=1", "acts", "checks", "plan", "queries/present")
CITY_PAGES = ("map", "queries/place", "queries/calls", "queries/based", "queries/dry", "propose")
LINES = {"Content-Type": "application/x-ndjson"}
AXE = "axe.run(document, {resultTypes: ['violations']})"
CONTRAST = "axe.run(document, {resultTypes: ['violations'], runOnly: ['color-contrast']})"
"""All that another colour scheme can change."""
NARROW: ViewportSize = {"width": 390, "height": 800}
pytestmark = pytest.mark.usefixtures("forked_planner")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser of the machine."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed; make test installs it where it may")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that reads tuples from HTTP, with areas and queries of all kinds."""
    folder = tmp_path_factory.mktemp("browser")
    write_registry(folder)
    with running(folder, spec=RICH) as service:
        yield service


def open_page(browser: Browser, errors: list[str], **options: Any) -> Page:
    """A page of its own; what its console reports as an error goes to the list."""
    page = browser.new_context(**options).new_page()
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page


def log_in(page: Page, service: Running, role: str, name: str) -> None:
    """Follow a login link, whose token stays in the browser."""
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.goto(f"{service.url}/login#{service.token(role, name)}")
    page.wait_for_url("**/console")
    assert not [url for url in seen if "tacit_" in url]


def send(service: Running, first: int, windows: int) -> None:
    """Send tuples of all subjects in some windows."""
    rows = [
        {
            "who": f"t{subject}",
            "at": 60 * window + subject,
            "kind": "abc"[(window + subject) % 3],
            "lon": PLACES[(window + subject) % 3][0],
            "lat": PLACES[(window + subject) % 3][1],
        }
        for window in range(first, first + windows)
        for subject in range(5)
    ]
    body = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with service.client("source", "sensor") as client:
        sent = client.post("/v1/streams/s/tuples", content=body, headers=LINES)
        assert sent.status_code == 200


def find_violations(page: Page, rules: str = AXE) -> list[str]:
    """What axe-core finds on the page, and where."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found: dict[str, Any] = page.evaluate(rules)
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:100]}"
        for one in found["violations"]
        if one["impact"] in ("moderate", "serious", "critical")
    ]


def test_the_story_of_all_roles(service: Running, chromium: Browser, tmp_path: Path) -> None:
    errors: list[str] = []
    operator = open_page(chromium, errors)
    log_in(operator, service, "operator", "ann")
    assert "Overview" in operator.inner_text("h1")
    operator.click("nav >> text=Tokens")
    operator.select_option("#role", "consumer")
    operator.fill("#name", "city")
    operator.click("button:has-text('Create')")
    token = operator.inner_text(".notice pre")

    consumer = open_page(chromium, errors)
    consumer.goto(f"{service.url}/login")
    consumer.fill("#token", token)
    consumer.press("#token", "Enter")
    consumer.wait_for_url("**/console")
    assert "No answers yet" in consumer.inner_text("main")
    send(service, 0, 3)
    consumer.wait_for_selector("text=subjects answered yes")  # without a reload
    consumer.click(".card.query:has-text('both')")
    consumer.wait_for_selector("svg.grid")
    cells = consumer.locator("svg.grid rect:not(.exhausted)")
    assert cells.count() == 2 * 5
    send(service, 3, 2)
    expect(cells).to_have_count(4 * 5, timeout=60_000)
    with consumer.expect_download() as download:
        consumer.click("text=CSV")
    assert len(download.value.path().read_text().splitlines()) == 4 * 5 + 1
    consumer.click("nav >> text=Map")
    expect(consumer.locator("svg.map path.place")).to_have_count(3)
    until = consumer.inner_text(".stand")
    send(service, 5, 1)
    expect(consumer.locator(".stand")).not_to_have_text(until, timeout=60_000)  # without a reload
    consumer.click("table >> text=present")
    consumer.wait_for_selector("svg.counts")

    subject = open_page(chromium, errors, viewport=NARROW)
    log_in(subject, service, "subject", "t2")
    assert "of 20 epsilon (20 per day)" in subject.inner_text("main")
    spent = subject.locator(".private .big").first
    before = spent.inner_text()
    send(service, 6, 1)
    expect(spent).not_to_have_text(before, timeout=60_000)
    wide = subject.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390

    operator.click("nav >> text=Tokens")
    operator.click("tr:has-text('city') >> text=Revoke")  # the question is answered with no
    assert consumer.goto(f"{service.url}/console")
    assert consumer.url.endswith("/console")
    operator.on("dialog", lambda dialog: dialog.accept())
    operator.click("tr:has-text('city') >> text=Revoke")
    consumer.goto(f"{service.url}/console")
    assert consumer.url.endswith("/login")
    assert errors == []


@pytest.mark.soak
def test_the_story_of_a_proposal(tmp_path: Path, chromium: Browser) -> None:
    """A consumer proposes, a subject sets a limit, an operator approves, an answer arrives."""
    errors: list[str] = []
    write_registry(tmp_path)
    with running(tmp_path, spec=RICH) as service:
        send(service, 0, 3)
        service.wait(2 * 5 * 6)
        consumer = open_page(chromium, errors)
        log_in(consumer, service, "consumer", "city")
        consumer.click("nav >> text=Propose")
        consumer.fill("#name", "late")
        consumer.locator("#pattern").press_sequentially("SEQ(c, nope)")
        consumer.wait_for_selector("#checked .alert:has-text('nope')")
        consumer.fill("#pattern", "SEQ(c, b)")
        consumer.wait_for_selector("#checked .fine:has-text('visit')")
        consumer.fill("#quality", "0.9")
        consumer.press("#quality", "Enter")
        consumer.wait_for_selector("td:has-text('query late for city')")
        assert consumer.inner_text(".steps .now") == "planning and review"
        consumer.fill("#name", "fleets")
        consumer.select_option("#kind", "count")
        expect(consumer.locator("#quality")).to_be_hidden()
        consumer.fill("#pattern", "a")
        consumer.locator("#by").press_sequentially("fleets")
        consumer.wait_for_selector("#checked .alert:has-text('fleets')")
        consumer.fill("#by", "fleet")
        consumer.wait_for_selector("#checked .fine:has-text('visit')")
        consumer.press("#by", "Enter")
        consumer.wait_for_selector("td:has-text('how many a by fleet')")

        subject = open_page(chromium, errors, viewport=NARROW)
        log_in(subject, service, "subject", "t1")
        subject.click("main >> text=Privacy settings")
        subject.fill("#epsilon-1", "0.5")
        subject.fill("#limit-1", "10 per day")
        subject.click("button:has-text('Save')")
        assert subject.evaluate("document.documentElement.scrollWidth") <= 390
        expect(subject.locator("#live .chip").first).to_have_text("approved", timeout=300_000)
        used = "epsilon 0.5 for one subject, one private pattern, one window"
        expect(subject.locator("#now-1")).to_contain_text(used, timeout=60_000)  # without a reload
        expect(subject.locator("#now-1 .chip")).to_have_text("your choice")

        operator = open_page(chromium, errors)
        log_in(operator, service, "operator", "ann")
        operator.click("nav >> text=Approvals")
        for name in ("late", "fleets"):  # the second is planned again after the first
            card = operator.locator(f".card:has(h2:has-text('query {name}'))")
            expect(card.locator("button:has-text('Approve')")).to_be_visible(timeout=300_000)
            assert find_violations(operator) == []
            card.locator("input[name=note]").fill("from now on")
            if name == "fleets":
                card.locator("input[name=tell]").check()
            card.locator("button:has-text('Approve')").click()
        operator.wait_for_selector("text=Nothing waits for you")
        operator.click("nav >> text=Versions")
        operator.click("text=with 3")
        assert "fleets" in operator.inner_text(".diff .added")
        consumer.goto(f"{service.url}/console/propose")
        said = consumer.inner_text("tr:has-text('query fleets')")
        assert "from now on. Expected quality: ± " in said

        for window in range(3, 12):
            send(service, window, 1)
            consumer.goto(f"{service.url}/console")
            cards = consumer.locator(".card.query:has-text('late'), .card.query:has-text('fleets')")
            if cards.locator(".bars").count() == 2:
                break
            consumer.wait_for_timeout(500)
        consumer.click(".card.query:has-text('fleets')")
        consumer.wait_for_selector("td:has-text('f1') ~ td >> svg.counts")
        consumer.go_back()
        consumer.click(".card.query:has-text('late')")
        consumer.wait_for_selector("svg.grid")
        operator.click("nav >> text=Audit log")
        operator.click("text=Verify the ledger")
        operator.wait_for_selector("text=The ledger is unchanged")
        assert "operator ann" in operator.inner_text("main")
        assert errors == []


def inspect_page(page: Page) -> list[str]:
    """What is wrong with the page, in both colour schemes and on a phone."""
    found = find_violations(page)
    page.emulate_media(color_scheme="dark")
    found += [f"dark: {one}" for one in find_violations(page, CONTRAST)]
    page.emulate_media(color_scheme="light")
    wide = page.viewport_size
    assert wide is not None
    page.set_viewport_size(NARROW)
    if page.evaluate("document.documentElement.scrollWidth") > NARROW["width"]:
        found.append("wider than a phone")
    page.set_viewport_size(wide)
    return found


def test_axe_finds_nothing_and_pages_fit_on_a_phone(service: Running, chromium: Browser) -> None:
    send(service, 7, 2)
    errors: list[str] = []
    page = open_page(chromium, errors, color_scheme="light", bypass_csp=True)
    page.goto(f"{service.url}/login")
    found = {"login": inspect_page(page)}
    people = {"operator": "ann", "consumer": "city", "subject": "t1", "source": "sensor"}
    for role, name in people.items():
        log_in(page, service, role, name)
        found[role] = inspect_page(page)
        more = {
            "operator": ["/console/tokens", *(f"/console/{page}" for page in OPERATOR_PAGES)],
            "consumer": [f"/console/{page}" for page in CITY_PAGES],
            "subject": ["/console/policies"],
        }
        for path in more.get(role, []):
            page.goto(service.url + path)
            found[path] = inspect_page(page)
            if path == "/console/propose":
                for kind in ("one_of", "times", "count"):
                    page.select_option("#kind", kind)
                    found[f"{path} {kind}"] = inspect_page(page)
    assert len(found) == 1 + len(people) + 1 + len(OPERATOR_PAGES) + len(CITY_PAGES) + 3 + 1
    assert {where: what for where, what in found.items() if what} == {}
    assert errors == []


def test_axe_finds_nothing_on_pages_with_mistakes(service: Running, chromium: Browser) -> None:
    page = open_page(chromium, [], color_scheme="light", bypass_csp=True)
    page.goto(f"{service.url}/login")
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    page.wait_for_selector(".alert:has-text('The token is unknown, expired or revoked.')")
    found = {"login": inspect_page(page)}
    for role, name, path, fields in (
        ("consumer", "city", "propose", {"name": "a b", "pattern": "SEQ(a", "quality": "x"}),
        ("subject", "t1", "policies", {"epsilon-1": "x"}),
        ("operator", "ann", "tokens", {"name": "t1", "expires": "soon"}),
    ):
        log_in(page, service, role, name)
        page.goto(f"{service.url}/console/{path}")
        for field, typed in fields.items():
            page.fill(f"#{field}", typed)
        page.locator("main form button[type=submit]").first.click()
        page.wait_for_selector(".alert")
        assert page.input_value(f"#{next(iter(fields))}") == next(iter(fields.values()))
        found[path] = inspect_page(page)
        for wrong in ("nothing", "queries/nothing", "acts" if role != "operator" else "map"):
            answer = page.goto(f"{service.url}/console/{wrong}")
            assert answer is not None
            assert answer.status in (403, 404)
            found[f"{role} {wrong}"] = inspect_page(page)
    assert {where: what for where, what in found.items() if what} == {}


@pytest.mark.soak
def test_everything_can_be_reached_with_the_keyboard(service: Running, chromium: Browser) -> None:
    page = open_page(chromium, [])
    log_in(page, service, "consumer", "clinic")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Parquet", "CSV", "Arrow"} <= set(reached)
    assert any("open" in text for text in reached)
    log_in(page, service, "consumer", "city")
    page.goto(f"{service.url}/console/propose")
    page.focus("#name")
    page.keyboard.type("typed")
    page.keyboard.press("Tab")
    page.keyboard.type("for how")  # chooses an option by its first letters
    page.keyboard.press("Tab")
    page.keyboard.type("a")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "by"
    page.wait_for_selector("#checked .fine")


def test_times_are_shown_in_the_readers_zone(service: Running, chromium: Browser) -> None:
    send(service, 9, 2)
    page = open_page(chromium, [], timezone_id="Asia/Tokyo", locale="en-GB")
    log_in(page, service, "consumer", "clinic")
    assert "1 Jan, 09:" in page.inner_text(".stand")  # minutes after midnight UTC
