"""A job: everything that readers and shards need, in a folder that every machine can read."""

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
from tacit.kernels.threads import ONE_THREAD
from tacit.ledger.accounts import Amounts, Key
from tacit.ledger.charges import Account
from tacit.ledger.zones import Zones
from tacit.patterns.tree import elements
from tacit.pipeline.accountant import list_claims
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.evaluators import Detector
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.noise import Noise
from tacit.privacy.prices import Claim
from tacit.windows.panes import choose_capacity

_FORMAT: Final = 4
_PLAIN, _ARRAYS, _VERSION = "job.json", "job.npz", "terms"
_PARTS: Final = 16
"""Open windows are divided into at least so many parts to see how much memory they take."""
_RING_BYTES: Final = 4 << 20
"""The most memory for open windows beyond the necessary ones: they are written with every
checkpoint.
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A source, or a share of its partitions, that is read separately, in its own order."""

    stream: str
    source: str
    """Its name, for `open_input`."""
    follow: bool = False
    share: tuple[int, int] | None = None
    """If the source has partitions of its own: every so many of them, from this number on."""


@dataclass(frozen=True)
class ShardedJob:
    """The specification and plan of a job, its subjects, and its sources."""

    version: SpecVersion
    subjects: Subjects
    ids: NDArray[np.int64]
    """The ledger's id of each subject, by slot."""
    partitions: tuple[Partition, ...]
    shards: int
    protected: bool = True
    """Whether answers are protected; true answers are for the operator only."""
    idle: int = 60_000_000
    """Microseconds without a tuple after which the others no longer wait for a partition."""
    opening: Mapping[Key, Amounts] = field(default_factory=dict)
    """What was spent before the job, by ledger id, if there are limits."""
    accounts: tuple[Account, ...] = ()
    """The accounts that windows are charged to, with a mask of subjects by slot."""
    zones: Zones | None = None
    """The time zones of subjects, by slot; None for UTC."""

    @property
    def limited(self) -> bool:
        """Whether a subject may reach a limit."""
        return any(account.limit is not None for account in self.accounts)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What each account must be paid for."""
        return list_claims(self.accounts)

    @cached_property
    def layout(self) -> Layout:
        """The assignment of subjects to shards."""
        return Layout(self.subjects, self.shards)

    @cached_property
    def compiled(self) -> CompiledSpec:
        """The compiled specification; noise comes from the machine's own source.

        A task has one core: the others have tasks of their own.
        """
        if self.protected:
            return self.version.compile(Noise(), ONE_THREAD)
        detector = Detector(self.version.spec, self.version.groups)
        detector.workers = ONE_THREAD
        return CompiledSpec(self.version.spec, detector)

    @property
    def words(self) -> int:
        """How many words hold the event types of a tuple."""
        return len(self.compiled.evaluator.ordered_types)

    @cached_property
    def used_types(self) -> NDArray[np.uint64]:
        """The event types that occur in a query or private pattern, as mask words."""
        spec = self.version.spec
        found = np.zeros(self.words, np.uint64)
        asked = (*spec.query_patterns.values(), *spec.count_patterns.values())
        for pattern in (*asked, *spec.private_patterns):
            for name in elements(pattern):
                word, bit = divmod(spec.types[name], 64)
                found[word] |= np.uint64(1 << bit)
        return found

    @cached_property
    def only_presence(self) -> bool:
        """Whether answers depend only on which event types a subject has in a window."""
        evaluator = self.compiled.evaluator
        return not evaluator.ordered_types.any() and not evaluator.attributes

    @property
    def capacity(self) -> int:
        """How many panes a reader may be ahead of its closed ones, and a shard can hold."""
        windows = self.version.spec.windows
        subjects = len(self.subjects)
        members = -(-subjects // max(self.shards, _PARTS))
        needed = -(-windows.lateness // windows.pane) + 2
        held = choose_capacity(windows.pane, windows.lateness, members, self.words, windows.panes)
        affordable = _RING_BYTES // max(1, subjects * self.words * 8)
        return max(needed + 2, min(held, affordable))

    def write(self, folder: Path) -> None:
        """Write it to a folder; `job.json` comes last, so if it exists, everything does."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _VERSION).write_bytes(self.version.packed)
        arrays: dict[str, NDArray[Any]] = {
            f"subjects.{name}": part for name, part in self.subjects.state().items()
        }
        arrays["ids"] = self.ids
        arrays |= {f"opening.{n}": spent for n, spent in enumerate(self.opening.values())}
        arrays |= {f"account.{n}": account.mask for n, account in enumerate(self.accounts)}
        zones = Zones.utc(len(self.subjects)) if self.zones is None else self.zones
        arrays["zones"] = zones.places
        with (folder / _ARRAYS).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        plain = {
            "format": _FORMAT,
            "digest": self.version.digest,
            "partitions": [
                (one.stream, one.source, one.follow, one.share) for one in self.partitions
            ],
            "shards": self.shards,
            "protected": self.protected,
            "idle": self.idle,
            "opening": list(self.opening),
            "accounts": [
                (
                    one.name,
                    one.amount,
                    one.limit,
                    one.horizon,
                    sorted(one.elements),
                    one.until,
                    one.counts,
                )
                for one in self.accounts
            ],
            "zones": zones.histories,
        }
        temporary = folder / f".{_PLAIN}"
        temporary.write_text(json.dumps(plain, indent=1), "utf-8")
        os.replace(temporary, folder / _PLAIN)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether a folder holds a job."""
        return (folder / _PLAIN).exists()

    @classmethod
    def read(cls, folder: Path) -> ShardedJob:
        """Read what `write` wrote."""
        try:
            plain = json.loads((folder / _PLAIN).read_text("utf-8"))
            if plain["format"] != _FORMAT:
                raise ValueError("format")
            with np.load(folder / _ARRAYS, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            version = SpecVersion.unpack((folder / _VERSION).read_bytes())
            named = {
                name.removeprefix("subjects."): part
                for name, part in arrays.items()
                if name.startswith("subjects.")
            }
            keys = [cast("Key", tuple(key)) for key in plain["opening"]]
            return cls(
                version,
                Subjects.from_state(named),
                arrays["ids"],
                tuple(
                    Partition(stream, source, follow, None if share is None else tuple(share))
                    for stream, source, follow, share in plain["partitions"]
                ),
                plain["shards"],
                plain["protected"],
                plain["idle"],
                {key: arrays[f"opening.{n}"] for n, key in enumerate(keys)},
                tuple(
                    Account(
                        name,
                        amount,
                        limit,
                        horizon,
                        arrays[f"account.{n}"],
                        frozenset(own),
                        until,
                        counts,
                    )
                    for n, (name, amount, limit, horizon, own, until, counts) in enumerate(
                        plain["accounts"]
                    )
                ),
                Zones(
                    arrays["zones"],
                    [
                        tuple((str(zone), int(since)) for zone, since in history)
                        for history in plain["zones"]
                    ],
                ),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"the job in {folder} cannot be read: every machine must have this folder under"
                " the same name, and the same version of Tacit"
            ) from error
