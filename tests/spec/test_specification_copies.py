"""Copies of a specification forget what was worked out from the fields they replace."""

from __future__ import annotations

from decimal import Decimal

from tacit.spec.specification import Private
from tacit.spec.yaml_reader import loads

SPEC = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 1"}
  b: {stream: s, where: "kind = 2"}
private: [{pattern: a, epsilon: 1}]
queries: [{name: q, consumer: c, pattern: a}]
"""


def test_a_copy_with_other_private_patterns_has_its_own_fingerprint_and_patterns() -> None:
    spec = loads(SPEC)
    before = spec.fingerprint, spec.private_patterns
    other = spec.model_copy(update={"private": (Private(pattern="b", epsilon=Decimal(1)),)})
    assert other.fingerprint != before[0]
    assert [repr(pattern) for pattern in other.private_patterns] == ["b"]
    assert (spec.fingerprint, spec.private_patterns) == before
    assert spec.model_copy().fingerprint == spec.fingerprint
