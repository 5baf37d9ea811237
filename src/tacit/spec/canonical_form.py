"""The canonical form of a specification: the same for all equivalent spellings."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tacit.events.areas import Area
from tacit.spec.subjects import SubjectFile

if TYPE_CHECKING:
    from pathlib import Path

    from tacit.spec.specification import Specification


def make_canonical(spec: Specification) -> dict[str, Any]:
    """Plain data with only what affects the meaning.

    The order of events is kept, since it numbers the event types, as is that of lists.
    """
    plain: dict[str, Any] = spec.model_dump()
    plain["events"] = list(plain["events"].items())
    if spec.objective == "micro":
        del plain["objective"]  # as before there was a choice
    if spec.memory:
        del plain["memory"]  # as before there was a choice
    if spec.windows.close == "events":
        del plain["windows"]["close"]  # as before there was a choice
    if spec.windows.jump is None:
        del plain["windows"]["jump"]
    if spec.windows.start is not None:
        plain["windows"]["start"] = spec.windows.start.isoformat()
    if spec.zone == "UTC":
        del plain["zone"]  # as before limits had a time zone
    if isinstance(spec.subjects, SubjectFile) and spec.subjects.zone is None:
        del plain["subjects"]["zone"]
    for name, stream in plain["streams"].items():
        for unset in spec.streams[name].later_fields:
            del stream[unset]
        if not stream["columns"]:
            del stream["columns"]  # as before types could be declared
    for private, written in zip(spec.private, plain["private"], strict=True):
        written["epsilon"] = _shortest(private.epsilon)
        if private.limit is None or private.spend == "paced":
            del written["spend"]  # as before there was a choice
        if private.limit is not None:
            written["limit"] = [_shortest(private.limit.amount), private.limit.horizon]
    for query, written in zip(spec.queries, plain["queries"], strict=True):
        for unset in ("one_of", "times", "up_to", "count", "by", "share"):
            if written[unset] is None:
                del written[unset]  # as before there were other queries than for a pattern
        if query.count is not None:
            del written["alpha"], written["quality"]  # they are for answers about single subjects
        if query.share is not None:
            written["share"] = _shortest(query.share)
        if query.one_of is not None:
            written["one_of"] = list(written["one_of"].items())  # the order counts
    for name, area in spec.areas.items():
        plain["areas"][name] = _canonical_area(area, spec.folder)
    return plain


def _shortest(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _canonical_area(area: Area, folder: Path) -> Any:
    """Return an area; a file counts by its contents, or by its path if it cannot be read."""
    if not isinstance(area.geojson, str):
        return area.model_dump()
    try:
        content = (folder / area.geojson).read_bytes()
    except OSError:
        return area.model_dump()
    return hashlib.sha256(content).hexdigest()
