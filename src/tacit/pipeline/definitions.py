"""Compare event types by their definitions instead of their names.

A reload may rename a type, or give its name to another condition. So types that were private
before are recognised by their definition: the stream, the parsed condition, the types of the
columns that it reads, and the geometry of the areas.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from tacit.events.areas import Area
from tacit.events.predicates import parse_predicate
from tacit.privacy.policies import Policies
from tacit.spec.columntypes import SpecColumns


def format_definition(columns: SpecColumns, name: str) -> str:
    """Format the definition of an event type as text: equal texts mean equal predicates.

    Two types with different texts may still be equivalent. GeoJSON must be inline.
    """
    spec = columns.spec
    event = spec.events[name]
    stream = spec.streams[event.stream]
    where = None if event.where is None else parse_predicate(event.where)
    read = () if where is None else where.columns
    types = {column: columns.resolve(event.stream, column).type for column in read}
    parts = [
        event.stream,
        stream.model_dump(mode="json", exclude=stream.later_fields),
        None if where is None else where.tree,
        types,
        sorted({_geometry(spec.areas[area]) for area in event.areas}),
    ]
    return json.dumps(parts, sort_keys=True, default=str)


def find_public_types(old: SpecColumns, new: SpecColumns) -> NDArray[np.uint64]:
    """Find the types of `new` that reveal nothing that is private in `old`: `[policy][word]`.

    The policies are those of `old`. A type is included if a type with the same definition was
    public, or if no type of its stream was private.
    """
    types, events = new.spec.types, new.spec.events
    policies = Policies(old.spec).policies
    public = np.zeros((len(policies), -(-len(events) // 64)), np.uint64)
    for place, policy in enumerate(policies):
        public_definitions = {
            format_definition(old, name) for name in old.spec.events if name not in policy.private
        }
        private_streams = {old.spec.events[name].stream for name in policy.private}
        for name, number in types.items():
            if (
                format_definition(new, name) in public_definitions
                or events[name].stream not in private_streams
            ):
                public[place, number // 64] |= np.uint64(1) << np.uint64(number % 64)
    return public


def _geometry(area: Area) -> str:
    if isinstance(area.geojson, str):
        raise AssertionError("GeoJSON must be inline: a file may have changed since it was read")
    return json.dumps(area.model_dump(mode="json"), sort_keys=True)
