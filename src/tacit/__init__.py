"""Complex event processing with differential privacy for private patterns.

>>> import tacit
>>> spec = tacit.loads('''
... streams: {door: {subject: home, time: at}}
... windows: {size: 1 h}
... events:
...   opened: {stream: door, where: "open"}
...   closed: {stream: door, where: "NOT open"}
... queries:
...   - {name: aired, consumer: us, pattern: "SEQ(opened, closed) WITHIN 5 min"}
... ''')
>>> import polars as pl
>>> frame = pl.DataFrame({"home": [7, 7], "at": [0, 240], "open": [True, False]})
>>> tacit.detect(spec, frame).polars().item(0, "detected")
True

Names are imported when they are first used, so that `import tacit` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.answers.answers import Answers as Answers
    from tacit.answers.collection import CollectedAnswers as CollectedAnswers
    from tacit.answers.count_estimates import CountEstimates as CountEstimates
    from tacit.engines.flink.submission import submit as submit
    from tacit.engines.ledger_reports import archive_ledger as archive_ledger
    from tacit.engines.ledger_reports import export_ledger as export_ledger
    from tacit.engines.ledger_reports import show_ledger as show_ledger
    from tacit.engines.ledger_reports import verify_ledger as verify_ledger
    from tacit.engines.ledger_run import DeliveredAnswers as DeliveredAnswers
    from tacit.engines.ledger_run import open_run as open_run
    from tacit.engines.local import detect as detect
    from tacit.engines.local import least_epsilon as least_epsilon
    from tacit.engines.local import least_limit as least_limit
    from tacit.engines.local import limit_curve as limit_curve
    from tacit.engines.local import plan as plan
    from tacit.engines.local import run as run
    from tacit.engines.warmup import warm as warm
    from tacit.errors import TacitError as TacitError
    from tacit.evaluation.matrices import protect_matrix as protect_matrix
    from tacit.events.areas import Area as Area
    from tacit.events.streams import Stream as Stream
    from tacit.events.types import EventType as EventType
    from tacit.insight.attack import attack as attack
    from tacit.insight.audit import audit as audit
    from tacit.insight.counts import estimate_counts as estimate_counts
    from tacit.insight.counts import fit_counts as fit_counts
    from tacit.insight.curve import curve as curve
    from tacit.insight.doctor import doctor as doctor
    from tacit.insight.explain import explain as explain
    from tacit.insight.leaks import leaks as leaks
    from tacit.insight.report_page import report as report
    from tacit.ledger.answers import released as released
    from tacit.patterns.language import parse_pattern as parse_pattern
    from tacit.patterns.tree import And as And
    from tacit.patterns.tree import Name as Name
    from tacit.patterns.tree import Not as Not
    from tacit.patterns.tree import Or as Or
    from tacit.patterns.tree import Seq as Seq
    from tacit.pipeline.run import Run as Run
    from tacit.planning.plan import Plan as Plan
    from tacit.service.client import ServiceClient as ServiceClient
    from tacit.service.client import connect as connect
    from tacit.spec.schema import json_schema as json_schema
    from tacit.spec.specification import Private as Private
    from tacit.spec.specification import Query as Query
    from tacit.spec.specification import Specification as Specification
    from tacit.spec.validation import validate as validate
    from tacit.spec.yaml_reader import load as load
    from tacit.spec.yaml_reader import loads as loads
    from tacit.spec.yaml_writer import to_yaml as to_yaml
    from tacit.windows.schedule import Windows as Windows

_HOMES = {
    "And": "tacit.patterns.tree",
    "Answers": "tacit.answers.answers",
    "Area": "tacit.events.areas",
    "CollectedAnswers": "tacit.answers.collection",
    "CountEstimates": "tacit.answers.count_estimates",
    "DeliveredAnswers": "tacit.engines.ledger_run",
    "EventType": "tacit.events.types",
    "Name": "tacit.patterns.tree",
    "Not": "tacit.patterns.tree",
    "Or": "tacit.patterns.tree",
    "Plan": "tacit.planning.plan",
    "Private": "tacit.spec.specification",
    "Query": "tacit.spec.specification",
    "Run": "tacit.pipeline.run",
    "Seq": "tacit.patterns.tree",
    "ServiceClient": "tacit.service.client",
    "Specification": "tacit.spec.specification",
    "Stream": "tacit.events.streams",
    "TacitError": "tacit.errors",
    "Windows": "tacit.windows.schedule",
    "archive_ledger": "tacit.engines.ledger_reports",
    "attack": "tacit.insight.attack",
    "audit": "tacit.insight.audit",
    "connect": "tacit.service.client",
    "curve": "tacit.insight.curve",
    "detect": "tacit.engines.local",
    "doctor": "tacit.insight.doctor",
    "estimate_counts": "tacit.insight.counts",
    "explain": "tacit.insight.explain",
    "export_ledger": "tacit.engines.ledger_reports",
    "fit_counts": "tacit.insight.counts",
    "json_schema": "tacit.spec.schema",
    "leaks": "tacit.insight.leaks",
    "least_epsilon": "tacit.engines.local",
    "least_limit": "tacit.engines.local",
    "limit_curve": "tacit.engines.local",
    "load": "tacit.spec.yaml_reader",
    "loads": "tacit.spec.yaml_reader",
    "open_run": "tacit.engines.ledger_run",
    "parse_pattern": "tacit.patterns.language",
    "plan": "tacit.engines.local",
    "protect_matrix": "tacit.evaluation.matrices",
    "released": "tacit.ledger.answers",
    "report": "tacit.insight.report_page",
    "run": "tacit.engines.local",
    "show_ledger": "tacit.engines.ledger_reports",
    "submit": "tacit.engines.flink.submission",
    "to_yaml": "tacit.spec.yaml_writer",
    "validate": "tacit.spec.validation",
    "verify_ledger": "tacit.engines.ledger_reports",
    "warm": "tacit.engines.warmup",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
