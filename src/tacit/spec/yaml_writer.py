"""Specifications to YAML, readable and without loss."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

import yaml

from tacit.config import Number
from tacit.durations import format_duration
from tacit.spec.nodes import INTEGER, NUMBER
from tacit.spec.specification import Specification

_ORDER = [
    "version", "streams", "areas", "windows", "events", "patterns", "private", "queries",
    "mechanism", "decode", "objective", "memory", "subjects", "zone",
]  # fmt: skip
_LINE = 90


def to_yaml(spec: Specification) -> str:
    """Write a specification as YAML that reads back as an equal one.

    Fields that have their default value are left out, except version and mechanism.
    """
    plain = spec.model_dump(exclude_defaults=True)
    plain.update(version=spec.version, mechanism=spec.mechanism)
    if spec.windows.close == "clock":  # where the default is another
        plain["windows"]["future"] = format_duration(spec.windows.future)
    for private, written in zip(spec.private, plain.get("private", ()), strict=True):
        written["epsilon"] = private.epsilon
    for query, written in zip(spec.queries, plain.get("queries", ()), strict=True):
        if query.share is not None:
            written["share"] = query.share
    return "\n".join(_write(name, plain[name]) for name in _ORDER if name in plain)


def _write(name: str, section: Any) -> str:
    """Write a section, with each of its parts in one line if it fits."""
    if name in ("private", "queries"):
        return f"{name}:\n" + "".join(f"  - {_flow(part)}\n" for part in section)
    if name in ("streams", "areas", "events", "patterns"):
        parts = (f"  {_flow(key)}: {_flow(part)}\n" for key, part in section.items())
        return f"{name}:\n" + "".join(parts)
    return f"{name}: {_flow(section)}\n"


def _flow(value: Any) -> str:
    text: str = yaml.dump(
        [value],
        Dumper=_Dumper,
        default_flow_style=True,
        sort_keys=False,
        allow_unicode=True,
        width=_LINE,
    )
    return text.strip()[1:-1].replace("\n", "\n     ")


class _Dumper(yaml.CSafeDumper):
    """Quotes what either version of YAML would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write everything out."""
        return True


def _represent_decimal(dumper: yaml.CSafeDumper, number: Decimal) -> yaml.ScalarNode:
    text = str(number)
    kind = "int" if INTEGER.fullmatch(text) else "float"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{kind}", text)


def _represent_moment(dumper: yaml.CSafeDumper, moment: datetime) -> yaml.ScalarNode:
    return dumper.represent_str(moment.isoformat().replace("+00:00", "Z"))


_Dumper.add_representer(Number, lambda dumper, number: dumper.represent_float(float(number)))
_Dumper.add_representer(Decimal, _represent_decimal)
_Dumper.add_representer(datetime, _represent_moment)
_Dumper.add_representer(tuple, lambda dumper, data: dumper.represent_list(data))
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"(?:{NUMBER.pattern})\Z"), list("+-.0123456789")
)
