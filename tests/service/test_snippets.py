"""What the console prints for programs runs as it is printed: curl, Python and SQL."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.services import PATIENCE, PLACES, RICH, Running, bearer, running, write_registry
from tests.service.test_console import browser

WINDOWS = 3
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def list_snippets(page: httpx.Response) -> list[str]:
    """The texts that can be copied from a page."""
    assert page.status_code == 200
    found = re.findall(r'class="copy quiet" type="button">Copy</button><pre[^>]*>(.*?)</pre>',
                       page.text, re.DOTALL)  # fmt: skip
    return [html.unescape(text) for text in found]


def run_shell(command: str, token: str, folder: Path) -> str:
    """What a command prints that somebody pastes."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "TOKEN": token},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose tuples were sent with the snippet of its source."""
    folder = tmp_path_factory.mktemp("snippets")
    write_registry(folder)
    with running(folder, spec=RICH) as service:
        with browser(service, "source", "sensor") as client:
            page = client.get("/console")
        (snippet,) = list_snippets(page)
        shown = re.search(r'<pre class="example"[^>]*>(.*?)</pre>', page.text)
        assert shown is not None
        example = json.loads(html.unescape(shown[1]))
        assert example == {
            "who": "...", "at": 1772352000, "kind": "...", "lon": 1.5, "lat": 1.5
        }  # fmt: skip
        rows = [
            {
                **example,
                "who": f"t{subject}",
                "at": 60 * window + subject,
                "kind": "abc"[subject % 3],
            }
            | dict(zip(("lon", "lat"), PLACES[subject % 3], strict=True))
            for window in range(WINDOWS + 1)
            for subject in range(5)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "tuples.jsonl").write_text(lines)
        token = service.token("source", "sensor")
        sent = json.loads(run_shell(snippet, token, folder))
        again = json.loads(run_shell(snippet, token, folder))
        assert (sent["duplicate"], again["duplicate"]) == (False, True)
        service.wait(WINDOWS * 5 * 6)
        yield service


@pytest.mark.parametrize(
    ("query", "kind"), [("both", "answers"), ("place", "answers"), ("based", "counts")]
)
def test_snippets_run_as_they_are_printed(
    fed: Running, tmp_path: Path, query: str, kind: str
) -> None:
    duckdb = pytest.importorskip("duckdb")
    token = fed.token("consumer", "city")
    with browser(fed, "consumer", "city") as client:
        page = client.get(f"/console/queries/{query}")
        page_of, stream, python, sql = list_snippets(page)
        link = re.search(r'href="([^"]+)" download>Parquet', page.text)
        assert link is not None
        downloaded = client.get(html.unescape(link[1]))
    (tmp_path / f"{kind}.parquet").write_bytes(downloaded.content)
    rows = json.loads(run_shell(page_of, token, tmp_path))[kind]
    assert {row["query"] for row in rows} == {query}
    begun = run_shell(stream.replace("curl", "curl --max-time 2"), token, tmp_path)
    assert begun.startswith("retry: 2000")
    script = f"{python}\nprint({kind}.height)"
    printed = run_shell(f"{sys.executable} - <<'END'\n{script}\nEND", token, tmp_path)
    assert int(printed) == len(rows)
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        found = duckdb.sql(sql).pl()
    finally:
        os.chdir(here)
    assert found["window_start"].n_unique() == WINDOWS
    told = {"both": "yes", "place": "value", "based": "group"}[query]
    assert {told, "window_start"} < {*found.columns}


def test_the_openapi_document_is_where_the_page_of_a_query_says(fed: Running) -> None:
    with browser(fed, "consumer", "city") as client:
        assert "/v1/openapi.json" in client.get("/console/queries/both").text
        document = client.get("/v1/openapi.json", headers=bearer(fed.token("consumer", "city")))
        assert document.json()["info"]["title"] == "Tacit"
