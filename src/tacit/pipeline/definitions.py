"""Event types by what they are, whatever they are called.

A reload may rename a type, or give its name to another condition. What was private before is
therefore recognised by its definition: the stream, the condition in the form in which it is
evaluated, the types of the columns that it reads, and the geometry of the areas.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from tacit.events.areas import Area
from tacit.events.predicates import parse_predicate
from tacit.privacy.policies import Policies
from tacit.spec.columntypes import SpecColumns


def definition(columns: SpecColumns, name: str) -> str:
    """What makes a tuple an event of this type: the same text only for the same predicate.

    Two types with different texts may still mean the same. GeoJSON must be written out.
    """
    spec = columns.spec
    event = spec.events[name]
    stream = spec.streams[event.stream]
    where = None if event.where is None else parse_predicate(event.where)
    read = () if where is None else where.columns
    types = {column: columns.resolve(event.stream, column).type for column in read}
    parts = [
        event.stream,
        stream.model_dump(mode="json"),
        None if where is None else where.tree,
        types,
        sorted({_geometry(spec.areas[area]) for area in event.areas}),
    ]
    return json.dumps(parts, sort_keys=True, default=str)


def public_before(old: SpecColumns, new: SpecColumns) -> NDArray[np.uint64]:
    """`[policy][word]`: the types of `new` that show nothing which `old` keeps private.

    Policies are those of `old`. A type is among them if a type with the same definition was
    public, or if its tuples cannot have been private ones: no type of its stream was private.
    """
    types, events = new.spec.types, new.spec.events
    policies = Policies(old.spec).policies
    public = np.zeros((len(policies), -(-len(events) // 64)), np.uint64)
    for place, policy in enumerate(policies):
        shown = {definition(old, name) for name in old.spec.events if name not in policy.private}
        guarded = {old.spec.events[name].stream for name in policy.private}
        for name, number in types.items():
            if definition(new, name) in shown or events[name].stream not in guarded:
                public[place, number // 64] |= np.uint64(1) << np.uint64(number % 64)
    return public


def _geometry(area: Area) -> str:
    if isinstance(area.geojson, str):
        raise AssertionError("a file may have changed since it was read; write it out first")
    return json.dumps(area.model_dump(mode="json"), sort_keys=True)
