"""A version of the specification with its plan."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tacit.errors import StateError, TacitError
from tacit.events.areas import Area
from tacit.kernels.threads import ALL_CORES, Workers
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.definitions import format_definition
from tacit.pipeline.protected_evaluator import ProtectedEvaluator, name_policy
from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.counts import MEMORY
from tacit.privacy.noise import Noise
from tacit.spec.columntypes import SpecColumns
from tacit.spec.groups import SubjectGroups
from tacit.spec.specification import Specification
from tacit.spec.subjects import list_zones
from tacit.spec.yaml_reader import loads
from tacit.spec.yaml_writer import to_yaml


@dataclass(frozen=True, eq=False)
class SpecVersion:
    """A specification, and the plan that protects its answers.

    GeoJSON files are read once, when it is created: they may change later.
    """

    spec: Specification
    plan: Plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", _inline_files(self.spec))

    def check(self) -> None:
        """Raise PlanError if they do not fit together."""
        self.plan.check(self.spec)

    def compile(self, noise: Noise, workers: Workers = ALL_CORES) -> CompiledSpec:
        """Compile the specification with the plan's mechanisms."""
        plan = self.plan
        evaluator = ProtectedEvaluator(
            self.spec,
            plan.mechanisms,
            noise,
            plan.counts,
            self.groups,
            plan.count_memories,
            plan.answer_counts,
            workers,
        )
        return CompiledSpec(self.spec, evaluator, self.plan.columns)

    @cached_property
    def columns(self) -> SpecColumns:
        """The columns that are read, and their types."""
        return SpecColumns(self.spec, self.plan.columns or {})

    @cached_property
    def groups(self) -> SubjectGroups:
        """The groups of subjects that counts need; they are fixed for a version."""
        return SubjectGroups.read(self.spec)

    @cached_property
    def zones(self) -> dict[str, str] | None:
        """The time zones that the registry names; None if the registry is not known."""
        return list_zones(self.spec.subjects, self.spec.folder)

    def find_zones(self, names: pa.Array) -> list[str] | None:
        """Return the time zone of each subject; None if the registry is not known."""
        if self.zones is None:
            return None
        default = self.spec.zone
        if not self.zones:
            return [default] * len(names)
        return [self.zones.get(name, default) for name in names.to_pylist()]

    @cached_property
    def definitions(self) -> dict[str, str]:
        """The definition of each event type, as a hash: accounts compare elements by it."""
        return {
            name: hashlib.sha256(format_definition(self.columns, name).encode()).hexdigest()
            for name in self.spec.events
        }

    def find_remembered(self, following: SpecVersion) -> set[str]:
        """Return the policies, by name, whose memory the next version can keep.

        Their subjects, events and mechanisms are the same. All others start from the prior. Counts
        continue if all of them, their groups and their models are the same.
        """
        kept = [one.model_copy(update={"limit": None}) for one in self.spec.private]
        others = [one.model_copy(update={"limit": None}) for one in following.spec.private]
        if kept != others or self.definitions != following.definitions:
            return set()
        pairs = zip(self.plan.mechanisms, following.plan.mechanisms, strict=True)
        found = {
            name_policy(number)
            for number, (one, other) in enumerate(pairs)
            if one is other or one.to_dict() == other.to_dict()
        }
        if self._count_terms() == following._count_terms():
            found.add(MEMORY)
        return found

    def _count_terms(self) -> tuple[Any, ...]:
        """Return all that the memory of counts depends on."""
        memories = {name: one.to_dict() for name, one in self.plan.count_memories.items()}
        asked = [(query.name, query.by) for query in self.spec.count_queries]
        windows = self.spec.windows
        return asked, self.spec.count_patterns, windows.size, windows.panes, self.groups, memories

    @property
    def consumers(self) -> dict[str, str]:
        """The consumer of each query."""
        return {query.name: query.consumer for query in self.spec.queries}

    @cached_property
    def plan_digest(self) -> str:
        """The plan's own fingerprint."""
        text = json.dumps(self.plan.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def packed(self) -> bytes:
        """The version as bytes that need no other file, without the registry."""
        plain: dict[str, Any] = {
            "fingerprint": self.spec.fingerprint,
            "specification": to_yaml(_without_registry(self.spec)),
            "plan": self.plan.to_dict(),
        }
        if self.groups.columns:
            plain["by"] = {query.name: query.by for query in self.spec.queries if query.by}
            plain["groups"] = self.groups.columns
        return zlib.compress(json.dumps(plain, sort_keys=True).encode())

    @cached_property
    def digest(self) -> str:
        """A hash that identifies the version."""
        return hashlib.sha256(zlib.decompress(self.packed)).hexdigest()

    def unpack_or_self(self, packed: bytes) -> SpecVersion:
        """Unpack a version; return `self` if it is the same."""
        if packed == self.packed:
            return self
        version = SpecVersion.unpack(packed)
        return self if version.digest == self.digest else version

    @classmethod
    def unpack(cls, packed: bytes) -> SpecVersion:
        """Decode what `packed` returned, with the fingerprint of the original specification."""
        try:
            plain = json.loads(zlib.decompress(packed))
            spec = _add_groups(loads(plain["specification"]), plain.get("by", {}))
            spec = _set_fingerprint(spec, plain["fingerprint"])
            planned = _set_fingerprint(spec.model_copy(), plain["plan"]["fingerprint"])
            version = cls(spec, Plan.from_dict(plain["plan"], planned))
        except (ValueError, KeyError, TypeError, zlib.error, TacitError) as error:
            raise StateError(
                "the specification and the plan in the checkpoint cannot be read: it is damaged,"
                " or was made by another version"
            ) from error
        # Packing again would differ in spelling, since GeoJSON files are inline now.
        vars(version)["packed"] = packed
        vars(version)["zones"] = None
        vars(version)["groups"] = SubjectGroups(plain.get("groups", {}))
        return version


def _without_registry(spec: Specification) -> Specification:
    """Return the specification without its registry, and without the columns that counts need."""
    queries = tuple(query.model_copy(update={"by": None}) for query in spec.queries)
    return spec.model_copy(update={"subjects": None, "queries": queries})


def _add_groups(spec: Specification, by: Mapping[str, str]) -> Specification:
    """Return the specification with the columns by which it counts."""
    queries = tuple(query.model_copy(update={"by": by.get(query.name)}) for query in spec.queries)
    return spec.model_copy(update={"queries": queries})


def _inline_files(spec: Specification) -> Specification:
    """Replace GeoJSON files by their contents."""
    if not any(isinstance(area.geojson, str) for area in spec.areas.values()):
        return spec
    areas = {name: _inline_geojson(area, spec) for name, area in spec.areas.items()}
    return _set_fingerprint(spec.model_copy(update={"areas": areas}), spec.fingerprint)


def _inline_geojson(area: Area, spec: Specification) -> Area:
    if not isinstance(area.geojson, str):
        return area
    held: dict[str, Any] = json.loads((spec.folder / area.geojson).read_text("utf-8"))
    return Area(geojson=held)


def _set_fingerprint(spec: Specification, fingerprint: str) -> Specification:
    """Set the fingerprint that the specification had with its files and its registry."""
    vars(spec)["fingerprint"] = fingerprint
    return spec
