"""Examples of the OpenAPI document: everything has one, and it is what would be sent."""

from __future__ import annotations

import base64
import copy
import io
import json
from typing import Any

import cbor2
import jsonschema
import polars as pl
import pyarrow as pa
import pytest

from tacit.service.examples import list_bodies
from tests.service.services import Running


@pytest.fixture
def document(served: Running) -> dict[str, Any]:
    """The OpenAPI document."""
    with served.client() as client:
        found: dict[str, Any] = client.get("/v1/openapi.json").json()
    return found


def find_faults(document: dict[str, Any]) -> list[str]:
    """Return which bodies have no example, or one that does not fit its schema."""
    components, faults = document["components"], []
    for place, body in list_bodies(document):
        named = (one["value"] for one in body.get("examples", {}).values())
        examples = [body["example"]] if "example" in body else list(named)
        if not examples:
            faults.append(place)
        for example in examples if "schema" in body else ():
            schema = {**body["schema"], "components": components}
            if place.endswith("application/json") and "binary" not in body["schema"].values():
                closed = forbid_others(schema)
                mistakes = jsonschema.Draft202012Validator(closed)
                faults += [f"{place}: {one.message}" for one in mistakes.iter_errors(example)]
            elif not isinstance(example, str):
                faults.append(f"{place}: no text")
    return faults


def forbid_others(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have no other properties, so that none is misspelt."""
    closed = copy.deepcopy(schema)
    for one in closed["components"]["schemas"].values():
        if "properties" in one and one["title"] != "ProblemDetails":
            one.setdefault("additionalProperties", False)
    return closed


def test_every_body_has_an_example_that_fits_its_schema(document: dict[str, Any]) -> None:
    assert find_faults(document) == []
    places = [place for place, _ in list_bodies(document)]
    assert len(places) > 40
    for expected in (
        "GET /v1/health 200 application/json",
        "POST /v1/tokens request application/json",
        "POST /v1/tokens 201 application/json",
        "GET /v1/metrics 200 text/plain",
        "GET /v1/counts.{suffix} 200 text/csv",
        "GET /v1/answers/stream 200 text/event-stream",
        "POST /v1/streams/{stream}/tuples request application/cbor",
    ):
        assert expected in places


def test_a_missing_or_a_wrong_example_is_found(document: dict[str, Any]) -> None:
    """Planted faults."""
    paths = document["paths"]
    token = paths["/v1/tokens"]["post"]["responses"]["201"]["content"]["application/json"]
    del paths["/v1/metrics"]["get"]["responses"]["200"]["content"]["text/plain"]["example"]
    del token["example"]["id"]
    page = paths["/v1/answers"]["get"]["responses"]["200"]["content"]["application/json"]
    page["example"]["answers"][0]["exausted"] = True
    missing, page_fault, token_fault = sorted(find_faults(document), key=len)
    assert missing == "GET /v1/metrics 200 text/plain"
    assert "'id' is a required property" in token_fault + page_fault
    assert "exausted" in token_fault + page_fault


@pytest.mark.parametrize("what", ["answers", "counts"])
def test_files_and_streams_show_the_row_of_the_page(document: dict[str, Any], what: str) -> None:
    def find(path: str) -> Any:
        return document["paths"][f"/v1/{path}"]["get"]["responses"]["200"]["content"]

    (row,) = find(what)["application/json"]["example"][what]
    event = find(f"{what}/stream")["text/event-stream"]["example"]
    _, number, name, data = event.strip().replace("\n\n", "\n").split("\n")
    assert number.startswith("id: ")
    assert name == f"event: {what}"
    assert json.loads(data.removeprefix("data: ")) == [row]
    files = find(f"{what}.{{suffix}}")
    columns = json.loads(files["application/x-ndjson"]["example"])
    assert columns == pytest.approx(row)
    assert files["text/csv"]["example"].splitlines()[0].split(",") == list(columns)
    for kind, read in (
        ("application/vnd.apache.parquet", pl.read_parquet),
        ("application/vnd.apache.arrow.file", pl.read_ipc),
    ):
        value = files[kind]["examples"]["base64"]["value"]
        (found,) = read(io.BytesIO(base64.b64decode(value))).to_dicts()
        assert list(found) == list(columns)
        assert found["query"] == row["query"]
        assert found["window_start"].isoformat().replace("+00:00", "Z") == row["window_start"]


def test_the_same_tuple_is_shown_in_each_format(document: dict[str, Any]) -> None:
    sent = document["paths"]["/v1/streams/{stream}/tuples"]["post"]["requestBody"]["content"]
    (row,) = json.loads(sent["application/json"]["example"])
    assert json.loads(sent["application/x-ndjson"]["example"]) == row
    packed = sent["application/cbor"]["examples"]["base64"]["value"]
    assert cbor2.loads(base64.b64decode(packed)) == row
    stream = sent["application/vnd.apache.arrow.stream"]["examples"]["base64"]["value"]
    assert pa.ipc.open_stream(base64.b64decode(stream)).read_all().to_pylist() == [row]


def test_rows_of_no_schema_have_the_keys_of_real_ones(
    document: dict[str, Any], served: Running
) -> None:
    with served.client("operator", "ann") as client:
        (real, *_) = client.get("/v1/versions/1").json()["quality"]
    for path in ("/v1/versions/{number}", "/v1/versions/{number}/changes"):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]
        (row,) = content["application/json"]["example"]["quality"]
        assert row.keys() == real.keys()


def test_metrics_that_are_shown_exist(document: dict[str, Any], served: Running) -> None:
    with served.client("operator", "ann") as client:
        real = client.get("/v1/metrics").text
    content = document["paths"]["/v1/metrics"]["get"]["responses"]["200"]["content"]
    for line in content["text/plain"]["example"].splitlines():
        assert line.rpartition(" ")[0] in real, line
