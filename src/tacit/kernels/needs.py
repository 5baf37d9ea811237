"""Find the kernels that a run needs, to compile them in advance.

`needs.json` has recorded runs: for each its features, such as `source:CsvSource` or `operator:Seq`,
and the kernels that it called. A run needs the kernels of all recorded runs whose features are a
subset of its own. Missing kernels are compiled when they are called. `make kernels` records again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from tacit.kernels.ahead import KernelSignature

FILE: Final = "needs.json"
_DETERMINED_BY: Final = {
    "tacit.connectors.parquet_pages.": ("sink",),
    "tacit.connectors.": ("source", "column"),
    "tacit.events.grid.": ("areas",),
    "tacit.events.interners.": ("source", "subject", "registry"),
    "tacit.events.filters.": ("column",),
    "tacit.events.subjects.": ("source", "subject"),
    "tacit.events.times.": ("source", "time"),
    "tacit.": ("command", "operator", "mechanism", "windows", "ledger"),
}
"""The features that determine whether kernels of a module are called; the first match counts."""


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run, or a part of it."""

    features: frozenset[str]
    kernels: tuple[KernelSignature, ...]


def split_run(run: RecordedRun) -> Iterator[RecordedRun]:
    """Split a run into parts, each with only the features that determine its kernels."""
    parts: dict[tuple[str, ...], list[KernelSignature]] = {}
    for kernel in run.kernels:
        kinds = next(
            kinds for name, kinds in _DETERMINED_BY.items() if kernel.name.startswith(name)
        )
        parts.setdefault(kinds, []).append(kernel)
    for kinds, kernels in parts.items():
        features = frozenset(one for one in run.features if one.partition(":")[0] in kinds)
        yield RecordedRun(features, tuple(kernels))


def read_recorded_runs() -> list[RecordedRun]:
    """Read all parts of recorded runs."""
    content = json.loads(files(__package__).joinpath(FILE).read_text("utf-8"))
    kernels = [KernelSignature.of(one) for one in content["kernels"]]
    return [
        RecordedRun(frozenset(run["features"]), tuple(kernels[number] for number in run["kernels"]))
        for run in content["runs"]
    ]


def format_runs(runs: Sequence[RecordedRun]) -> str:
    """Format runs for the file: a line for each kernel and each run."""
    kernels = {one: number for number, one in enumerate(_distinct(runs))}
    called = [
        {"features": sorted(run.features), "kernels": [kernels[one] for one in run.kernels]}
        for run in runs
    ]
    first = ",\n".join(json.dumps(kernel.as_json()) for kernel in kernels)
    return (
        f'{{"kernels": [\n{first}\n], "runs": [\n' + ",\n".join(map(json.dumps, called)) + "\n]}\n"
    )


def find_kernels(features: Iterable[str] | None = None) -> list[KernelSignature]:
    """Find the kernels of a run with these features; of any run without features.

    A feature that ends with `*` means all of its kind.
    """
    runs = read_recorded_runs()
    if features is None:
        return _distinct(runs)
    known = frozenset(features)
    kinds = tuple(one.removesuffix("*") for one in known if one.endswith("*"))
    return _distinct(
        run
        for run in runs
        if all(one in known or (kinds and one.startswith(kinds)) for one in run.features)
    )


def _distinct(runs: Iterable[RecordedRun]) -> list[KernelSignature]:
    return list(dict.fromkeys(kernel for run in runs for kernel in run.kernels))
