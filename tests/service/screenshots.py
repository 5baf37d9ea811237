"""Make the screenshots of docs/service.md from the demo.

    python -m tests.service.screenshots

It starts `tacit serve --demo`, logs in with the printed links, and writes docs/service/*.png.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[2] / "docs" / "service"
PAGES = {
    "operator": ("operator", "/console"),
    "consumer": ("consumer", "/console"),
    "timeline": ("consumer", "/console/queries/cruising"),
    "subject": ("subject", "/console"),
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
    while len(links) < 4:
        line = process.stderr.readline()
        if not line:
            raise SystemExit("the demo ended")
        if found := re.match(r"  (\w+) \S+ +(http\S+)$", line):
            links[found[1]] = found[2]
    return process, links


def main() -> None:
    """Take all pictures, light and dark."""
    OUT.mkdir(exist_ok=True)
    process, links = start_demo()
    try:
        time.sleep(60)  # until some windows are live
        with sync_playwright() as player:
            browser = player.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for name, (role, path) in PAGES.items():
                scheme = "dark" if name == "timeline" else "light"
                context = browser.new_context(
                    color_scheme=scheme,  # type: ignore[arg-type]
                    viewport={"width": 1180, "height": 860},
                )
                page = context.new_page()
                page.goto(links[role])
                page.wait_for_url("**/console")
                page.goto(links[role].split("/login")[0] + path)
                page.wait_for_timeout(800)
                page.screenshot(path=OUT / f"{name}.png")
                context.close()
            browser.close()
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    main()
