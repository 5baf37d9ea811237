"""A version of the specification: what is asked, and the plan that protects it."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.errors import StateError, TacitError
from tacit.events.areas import Area
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.release import Release
from tacit.planning.plan import Plan
from tacit.privacy.noise import Noise
from tacit.spec.columntypes import SpecColumns
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.spec.yaml_writer import to_yaml


@dataclass(frozen=True, eq=False)
class SpecVersion:
    """A specification, and the plan by which its answers are protected.

    GeoJSON files are read once, when it is made: they may change before they are looked at again.
    """

    spec: Specification
    plan: Plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", _without_files(self.spec))

    def check(self) -> None:
        """Raise PlanError where they do not fit together."""
        self.plan.check(self.spec)

    def flow(self, noise: Noise) -> CompiledSpec:
        """What they ask to be done with tuples."""
        release = Release(self.spec, self.plan.mechanisms, noise)
        return CompiledSpec(self.spec, release, self.plan.columns)

    @cached_property
    def columns(self) -> SpecColumns:
        """The columns that are read, and their types."""
        return SpecColumns(self.spec, self.plan.columns or {})

    @property
    def consumers(self) -> dict[str, str]:
        """Who asks each query."""
        return {query.name: query.consumer for query in self.spec.queries}

    @cached_property
    def plan_digest(self) -> str:
        """The plan's own fingerprint."""
        text = json.dumps(self.plan.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def packed(self) -> bytes:
        """All of it as bytes that need no file beside them; the registry is left out."""
        plain = {
            "fingerprint": self.spec.fingerprint,
            "specification": to_yaml(self.spec.model_copy(update={"subjects": None})),
            "plan": self.plan.to_dict(),
        }
        return zlib.compress(json.dumps(plain, sort_keys=True).encode())

    @cached_property
    def digest(self) -> str:
        """The same for the same version."""
        return hashlib.sha256(zlib.decompress(self.packed)).hexdigest()

    def or_unpacked(self, packed: bytes) -> SpecVersion:
        """This version, if that is what was packed; else the one that was."""
        if packed == self.packed:
            return self
        version = SpecVersion.unpacked(packed)
        return self if version.digest == self.digest else version

    @classmethod
    def unpacked(cls, packed: bytes) -> SpecVersion:
        """What `packed` gave; the fingerprint is that of the specification as it was written."""
        try:
            plain = json.loads(zlib.decompress(packed))
            spec = _named(loads(plain["specification"]), plain["fingerprint"])
            planned = _named(spec.model_copy(), plain["plan"]["fingerprint"])
            version = cls(spec, Plan.from_dict(plain["plan"], planned))
        except (ValueError, KeyError, TypeError, zlib.error, TacitError) as error:
            raise StateError(
                "the checkpoint holds a specification and a plan that cannot be read any more: it"
                " is damaged, or was made by another version"
            ) from error
        # Made once more they would differ in spelling, as GeoJSON files are written out.
        vars(version)["packed"] = packed
        return version


def _without_files(spec: Specification) -> Specification:
    """The same with GeoJSON files written out."""
    if not any(isinstance(area.geojson, str) for area in spec.areas.values()):
        return spec
    areas = {name: _written_out(area, spec) for name, area in spec.areas.items()}
    return _named(spec.model_copy(update={"areas": areas}), spec.fingerprint)


def _written_out(area: Area, spec: Specification) -> Area:
    if not isinstance(area.geojson, str):
        return area
    held: dict[str, Any] = json.loads((spec.folder / area.geojson).read_text("utf-8"))
    return Area(geojson=held)


def _named(spec: Specification, fingerprint: str) -> Specification:
    """The specification under the fingerprint that it had with its files and its registry."""
    vars(spec)["fingerprint"] = fingerprint
    return spec
