"""The demo: a plan, taxis that report, and links that log in."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

from tacit.service.demo import DemoOptions, create_links, prepare_demo, send_trips
from tacit.service.server import ServerOptions
from tacit.service.serving import open_inputs, open_service
from tests.cli.small_runs import tacit
from tests.service.services import bearer, join


@pytest.mark.soak
def test_the_demo_answers_for_every_role(tmp_path: Path) -> None:
    demo = DemoOptions(taxis=6, speed=600)
    given, setup = prepare_demo(tmp_path, demo)
    version = given.read()
    with (
        open_inputs(given, version.spec) as opened,
        open_service(given, version, opened, ServerOptions(port=0), setup) as service,
    ):
        links = create_links(service.state.tokens, service.url)
        assert opened.inbox is not None

        def answer() -> None:
            with service.open_run() as run:
                service.answer(run)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            with send_trips(opened.inbox, demo):
                deadline = time.monotonic() + 60
                while service.state.feed.last_id() < 6 * 7 * 12:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            for who, link in links.items():
                page, _, token = link.partition("#")
                assert page == f"{service.url}/login"
                me = httpx.get(f"{service.url}/v1/me", headers=bearer(token)).json()
                assert f"{me['role']} {me['name']}" == who
        finally:
            service.stop()
            join(thread)


def test_the_demo_takes_nothing_else(tmp_path: Path) -> None:
    for more in (["spec.yaml"], ["--ledger", str(tmp_path / "x.db")]):
        refused = tacit("serve", "--demo", *more)
        assert refused.exit_code == 2
        assert "--demo has its own" in refused.output
    assert "or --demo" in tacit("serve").output
