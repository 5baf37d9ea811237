"""A job: all that readers and shards must know, in a folder that every machine reaches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from tacit.engines.sharded.layout import Layout
from tacit.errors import StateError
from tacit.events.subjects import Subjects
from tacit.ledger.accounts import Amounts, Key
from tacit.patterns.tree import elements
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.noise import Noise
from tacit.windows.panes import ring_capacity

_FORMAT: Final = 1
_PLAIN, _ARRAYS, _TERMS = "job.json", "job.npz", "terms"
_RING_BYTES: Final = 256 << 10
"""What a shard's open windows may take where more of them are held than must be: they are
written with every checkpoint.
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A source that is read by itself, in its own order."""

    stream: str
    source: str
    """Its name, as `open_input` takes it."""
    follow: bool = False


@dataclass(frozen=True)
class ShardedJob:
    """What is asked of which subjects, and where the tuples come from."""

    terms: SpecVersion
    subjects: Subjects
    ids: NDArray[np.int64]
    """The ledger's number of each subject, by slot."""
    partitions: tuple[Partition, ...]
    shards: int
    protected: bool = True
    """Whether answers are protected; the true ones are for the operator alone."""
    idle: int = 60_000_000
    """Microseconds without a tuple after which the others no longer wait for a partition."""
    opening: Mapping[Key, Amounts] = field(default_factory=dict)
    """What had been spent before, by ledger number, where there are limits."""

    @cached_property
    def layout(self) -> Layout:
        """Who is in which shard."""
        return Layout(self.subjects, self.shards)

    @cached_property
    def compiled(self) -> CompiledSpec:
        """What is done with tuples; noise is drawn from the machine's own source."""
        return self.terms.compile(Noise()) if self.protected else CompiledSpec(self.terms.spec)

    @property
    def words(self) -> int:
        """How many words hold the event types of a tuple."""
        return len(self.compiled.evaluator.ordered_types)

    @cached_property
    def looked_at(self) -> NDArray[np.uint64]:
        """The event types that any query or private pattern looks at, as mask words."""
        spec = self.terms.spec
        found = np.zeros(self.words, np.uint64)
        for pattern in (*spec.query_patterns.values(), *spec.private_patterns):
            for name in elements(pattern):
                word, bit = divmod(spec.types[name], 64)
                found[word] |= np.uint64(1 << bit)
        return found

    @property
    def capacity(self) -> int:
        """How many panes a reader may be ahead of what it has closed, and a shard can hold."""
        windows = self.terms.spec.windows
        members = -(-len(self.subjects) // self.shards)
        needed = -(-windows.lateness // windows.pane) + 2
        held = ring_capacity(windows.pane, windows.lateness, members, self.words, windows.panes)
        affordable = _RING_BYTES // max(1, members * self.words * 8)
        return max(needed + 2, min(held, affordable))

    def write(self, folder: Path) -> None:
        """Write it to a folder; the plain part comes last, so where it is, all of it is."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _TERMS).write_bytes(self.terms.packed)
        arrays: dict[str, NDArray[Any]] = {
            f"subjects.{name}": part for name, part in self.subjects.state().items()
        }
        arrays["ids"] = self.ids
        arrays |= {f"opening.{n}": spent for n, spent in enumerate(self.opening.values())}
        with (folder / _ARRAYS).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        plain = {
            "format": _FORMAT,
            "digest": self.terms.digest,
            "partitions": [(one.stream, one.source, one.follow) for one in self.partitions],
            "shards": self.shards,
            "protected": self.protected,
            "idle": self.idle,
            "opening": list(self.opening),
        }
        beside = folder / f".{_PLAIN}"
        beside.write_text(json.dumps(plain, indent=1), "utf-8")
        os.replace(beside, folder / _PLAIN)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a folder holds a job."""
        return (folder / _PLAIN).exists()

    @classmethod
    def read(cls, folder: Path) -> ShardedJob:
        """What `write` put there."""
        try:
            plain = json.loads((folder / _PLAIN).read_text("utf-8"))
            if plain["format"] != _FORMAT:
                raise ValueError("format")
            with np.load(folder / _ARRAYS, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            terms = SpecVersion.unpack((folder / _TERMS).read_bytes())
            named = {
                name.removeprefix("subjects."): part
                for name, part in arrays.items()
                if name.startswith("subjects.")
            }
            keys = [cast("Key", tuple(key)) for key in plain["opening"]]
            return cls(
                terms,
                Subjects.from_state(named),
                arrays["ids"],
                tuple(Partition(*one) for one in plain["partitions"]),
                plain["shards"],
                plain["protected"],
                plain["idle"],
                {key: arrays[f"opening.{n}"] for n, key in enumerate(keys)},
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder} holds no job that can be read: every machine must reach this folder"
                " under the same name, and have the same version of Tacit"
            ) from error
