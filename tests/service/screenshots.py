"""Make the screenshots of docs/service.md from the demo.

    python -m tests.service.screenshots [NAME...]

It starts `tacit serve --demo`, logs in with the printed links, and writes docs/service/*.png: those
with these names, or all.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
from playwright.sync_api import sync_playwright

import tacit
from tests.service.services import TLS, bearer, killing_after

OUT = Path(__file__).parents[2] / "docs" / "service"
_PATIENCE = 900_000
"""Milliseconds to wait for curves and leaks, which are computed in the background."""

_WINDOWS = 6
"""How many windows are released before the first picture."""


class Picture(NamedTuple):
    """A page, and how it is shown."""

    role: str
    path: str
    ready: str
    """What is there when the page can be taken."""
    scheme: Literal["light", "dark"] = "light"
    wide: int = 1180
    whole: bool = False
    """Whether the picture has all of the page, not only the first screen."""


PICTURES = {
    "operator": Picture("operator", "/console", ".tiles"),
    "consumer": Picture("consumer", "/console", ".bars"),
    "timeline": Picture("consumer", "/console/queries/cruising", "svg.grid", "dark"),
    "map": Picture("consumer", "/console/map", "svg.map"),
    "counts": Picture("consumer", "/console/queries/on_break", "svg.counts", "dark"),
    "propose": Picture("consumer", "/console/propose", "#kind"),
    "phone": Picture("consumer", "/console/map", "svg.map", "dark", 390),
    "subject": Picture("subject", "/console", "svg.grid"),
    "plan": Picture("operator", "/console/plan", "svg.curves", whole=True),
    "leaks": Picture("operator", "/console/checks", "text=Odds move by", "dark", whole=True),
    "approval": Picture("operator", "/console/approvals", "text=Approve", whole=True),
    "versions": Picture("operator", "/console/versions?number=2", "pre.diff", whole=True),
}


def start_demo() -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Start the demo; return its process and the link of each role."""
    program = "from tacit.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--demo", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    links: dict[str, str] = {}
    assert process.stderr is not None
    with killing_after(process, 900):
        while len(links) < 4:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the demo ended")
            if found := re.match(r"  (\w+) \S+ +(http\S+)$", line):
                links[found[1]] = found[2]
    return process, links


def connect(link: str) -> tacit.ServiceClient:
    """Connect with the token of a link."""
    url, token = link.split("/login#")
    return tacit.connect(url, token)


def propose(links: dict[str, str]) -> None:
    """Propose a query, and wait until it can be approved."""
    connect(links["consumer"]).propose_query(
        "moving_off", "SEQ(parked, slow)", alpha=0.5, quality=0.8
    )
    deadline = time.monotonic() + _PATIENCE / 1000
    while connect(links["operator"]).proposal(1)["state"] != "ready":
        assert time.monotonic() < deadline, "the planner takes too long"
        time.sleep(1)


def wait_for_windows(links: dict[str, str]) -> None:
    """Wait until some windows are live."""
    url, token = links["operator"].split("/login#")
    deadline = time.monotonic() + _PATIENCE / 1000
    while (
        httpx.get(f"{url}/v1/status", headers=bearer(token), verify=TLS).json()["windows"]
        < _WINDOWS
    ):
        assert time.monotonic() < deadline, "the demo releases no windows"
        time.sleep(1)


def main() -> None:
    """Take the pictures that are named, or all of them."""
    OUT.mkdir(exist_ok=True)
    chosen = sys.argv[1:] or [*PICTURES]
    process, links = start_demo()
    try:
        with sync_playwright() as player:
            browser = player.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page()
            page.goto(links["operator"])
            page.wait_for_url("**/console")
            for name in {"plan", "leaks"} & {*chosen}:  # what they show is computed then
                page.goto(links["operator"].split("/login")[0] + PICTURES[name].path)
            page.close()
            wait_for_windows(links)
            for name, picture in PICTURES.items():
                if name not in chosen:
                    continue
                if name == "approval":
                    propose(links)
                elif name == "versions":
                    connect(links["operator"]).approve(1)
                context = browser.new_context(
                    color_scheme=picture.scheme, viewport={"width": picture.wide, "height": 860}
                )
                page = context.new_page()
                link = links[picture.role]
                page.goto(link)
                page.wait_for_url("**/console")
                page.goto(link.split("/login")[0] + picture.path)
                page.wait_for_selector(picture.ready, timeout=_PATIENCE)
                page.wait_for_timeout(800)
                page.screenshot(path=OUT / f"{name}.png", full_page=picture.whole)
                context.close()
            browser.close()
    finally:
        process.terminate()
        with killing_after(process):
            process.communicate()


if __name__ == "__main__":
    main()
