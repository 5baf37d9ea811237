"""The Grafana dashboard asks for metrics that exist, and for all of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from tacit.engines.metrics import Figures
from tacit.pipeline.status import PublicStatus

DASHBOARD = Path(__file__).parent.parent.parent / "examples" / "grafana" / "tacit.json"


def served() -> set[str]:
    """The names of all metrics that a run serves."""
    registry = CollectorRegistry()
    registry.register(Figures(PublicStatus(), time.time()))
    text = generate_latest(registry).decode()
    return set(re.findall(r"^# TYPE (\w+) ", text, re.M))


def test_every_panel_asks_for_metrics_that_are_served() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\btacit_\w+", target["expr"])
    }
    known = served()
    assert asked <= known
    assert known - asked <= {name for name in known if name.endswith("_created")}
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
