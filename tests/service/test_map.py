"""The map: areas of one's own queries, with what was released about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.events.shapes import Box, Circle, Shape, parse_polygon
from tacit.service.console.map_picture import draw_map
from tacit.service.console.maps import AreaFigure, find_areas
from tacit.spec.yaml_reader import loads
from tests.service.services import PLACES, RICH, SUBJECTS, Running, running, write_registry
from tests.service.test_console import browser

WINDOWS = 4


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with areas, which has read its file."""
    folder = tmp_path_factory.mktemp("map")
    write_registry(folder)
    lines = ["who,at,kind,lon,lat"]
    for window in range(WINDOWS):
        for subject in range(SUBJECTS):
            lon, lat = PLACES[(window + subject) % 3]
            lines.append(f"t{subject},{60 * window + subject},c,{lon},{lat}")
    source = folder / "tuples.csv"
    source.write_text("\n".join(lines) + "\n")
    with running(folder, [source], spec=RICH) as service:
        service.wait(WINDOWS * SUBJECTS * 6)
        yield service


def find_query(service: Running, name: str) -> Any:
    """A query of the specification."""
    return next(one for one in service.service.state.spec.queries if one.name == name)


def test_the_areas_of_a_query_are_those_that_make_it_likelier(city: Running) -> None:
    spec = city.service.state.spec
    found = {query.name: find_areas(spec, query) for query in spec.queries}
    assert found == {
        "place": {"clinic": ("clinic",), "depot": ("depot",)},
        "dry": {"": ("depot",)},
        "calls": {"": ("depot",)},
        "present": {"": ("clinic",)},
        "based": {"": ()},
        "swim": {"": ("lake",)},
        "both": {"": ()},
        "either": {"": ()},
        "open": {"": ()},
    }


def test_the_map_shows_what_was_released_last(city: Running) -> None:
    with city.client("consumer", "city") as client:
        rows = client.get("/v1/answers", params={"limit": 10_000}).json()["answers"]
        counts = client.get("/v1/counts").json()["counts"]
    last = [row for row in rows if row["window_end"] == rows[-1]["window_end"]]
    counted = [row for row in counts if row["window_end"] == counts[-1]["window_end"]]
    with browser(city, "consumer", "city") as client:
        page = client.get("/console/map").text
        own = client.get("/console/queries/place").text
        none = client.get("/console/queries/both").text
    for area in ("clinic", "depot"):
        number = sum(row["query"] == "place" and row["value"] == area for row in last)
        assert f">{number} {area}</td>" in page
        assert f">{number} {area}</td>" in own
    dry = sum(row["query"] == "dry" and row["detected"] for row in last)
    assert f">{dry} yes</td>" in page
    for row in counted:
        shown = f">{row['count']}, {row['low']} to {row['high']}</td>"
        assert (shown in page) == (row["query"] == "present" or row["group"] in ("depot", "lake"))
    assert page.count('class="place"') == 3
    assert own.count('class="place"') == 2
    assert 'class="place"' not in none


def test_the_surest_answers_say_what_the_answer_is(city: Running) -> None:
    with city.client("consumer", "city") as client:
        client.post("/login", data={"token": city.token("consumer", "city")})
        page = client.get("/console").text
    surest = page.split("Surest answers", 1)[1]
    rows = re.findall(r"<tr><td>(t\d)</td><td>(\w+)</td><td>(\w+)</td>", surest)
    assert len(rows) == 8
    assert {value for _, query, value in rows if query == "place"} <= {"clinic", "depot"}
    assert {value for _, query, value in rows if query == "dry"} <= {"yes"}


def test_a_consumer_sees_no_area_of_others(city: Running) -> None:
    with browser(city, "consumer", "clinic") as client:
        page = client.get("/console/map").text
    assert "lake" not in page  # the groups of its count are fleets, not areas
    assert "depot" not in page
    with browser(city, "consumer", "nobody") as client:
        assert "No areas yet" in client.get("/console/map/live").text


def test_a_map_is_for_consumers(city: Running) -> None:
    for role, name in (("subject", "t1"), ("source", "sensor"), ("operator", "ann")):
        with browser(city, role, name) as client:
            assert client.get("/console/map").status_code == 403
            assert client.get("/console/map/live").status_code == 403


def test_outlines_keep_their_proportions_and_labels_do_not_overlap() -> None:
    """At 60 degrees a degree of longitude is half as long as one of latitude."""
    shapes: dict[str, Shape] = {"square": Box(10, 60, 10.2, 60.1), "<b>": Circle(10.1, 60.05, 1000)}
    figures = [AreaFigure("square", "q", "", 3, 9), AreaFigure("<b>", "q", "", 1, 9)]
    drawn = str(draw_map(shapes, figures, "a <map>"))
    assert "<b>" not in drawn
    assert "&lt;b&gt;: 1 of 9" in drawn
    outline = drawn.split(' d="M')[1].split("Z")[0].split("L")
    points = [tuple(map(float, point.split())) for point in outline]
    wide = max(x for x, _ in points) - min(x for x, _ in points)
    tall = max(y for _, y in points) - min(y for _, y in points)
    assert wide == pytest.approx(tall, rel=0.01)


def test_holes_and_several_parts_are_drawn() -> None:
    ring = [[0, 0], [9, 0], [9, 9], [0, 9], [0, 0]]
    hole = [[3, 3], [6, 3], [6, 6], [3, 6], [3, 3]]
    far = [[20, 0], [21, 0], [21, 1], [20, 1], [20, 0]]
    shape = parse_polygon({"type": "MultiPolygon", "coordinates": [[ring, hole], [far]]})
    drawn = str(draw_map({"a": shape}, [], "map"))
    assert drawn.count("M") == 3 + 1  # and the scale
    assert "nothing yet" in drawn


def test_a_hundred_areas_have_no_labels_on_top_of_each_other(tmp_path: Path) -> None:
    shapes = {f"cell_{n}": Box(n % 10, n // 10, n % 10 + 1, n // 10 + 1) for n in range(100)}
    figures = [AreaFigure(name, "q", "", 1, 1) for name in shapes]
    drawn = str(draw_map(shapes, figures, "cells"))
    assert drawn.count('<path class="place"') == 100
    assert 0 < drawn.count('class="area-name"') < 100


def test_a_pattern_of_patterns_is_resolved() -> None:
    spec = loads(
        """
        version: 1
        streams: {s: {subject: who, time: at, lon: x, lat: y}}
        areas: {home: {box: [0, 0, 1, 1]}}
        windows: {size: 1 min}
        events: {at_home: {stream: s, inside: home}}
        patterns: {quiet: NOT at_home, loud: NOT quiet}
        queries:
          - {name: q, consumer: c, pattern: quiet}
          - {name: l, consumer: c, pattern: loud}
        """
    )
    assert [find_areas(spec, query) for query in spec.queries] == [{"": ()}, {"": ("home",)}]
