"""True values of patterns over history, by subject: 64 windows to a word.

Leaks and attacks compare windows of one subject with each other, so a subject's windows stand in a
row here. This is raw history: it is for the trusted engine, and only figures computed from it are
shown, to operators and subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.engines.local import infer_history_types
from tacit.patterns.booleans import to_columns
from tacit.patterns.tree import Pattern
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.evaluators import Evaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.refusals import Refusals
from tacit.pipeline.run import Run
from tacit.privacy.mechanisms.mechanism import PatternIndex, RunMemory
from tacit.privacy.policies import Policies
from tacit.progress import ProgressCallback, ignore_progress
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes

Words = NDArray[np.uint64]

MOST_BYTES: Final = 1 << 30
"""The most memory for the values of history. Beyond it, every second block of 64 subjects goes."""


@dataclass(frozen=True, eq=False)
class WindowColumns:
    """The values of patterns in the windows of history."""

    bits: Words
    """`[pattern][subject][word]`: window `w` of a subject is bit `w % 64` of word `w // 64`."""
    registered: Words
    """`[subject][word]`: the windows in which the subject is registered."""
    policies: NDArray[np.int32]
    """The policy of each subject."""
    windows: int
    """The number of windows from the first to the last."""
    subjects: int
    """The number of subjects in history, of which these are some or all."""
    first: int = 0
    """The number of the first window: window n starts n steps after the epoch."""

    def choose(self, own: NDArray[np.bool_]) -> WindowColumns:
        """Return the windows of some subjects."""
        return WindowColumns(
            self.bits[:, own],
            self.registered[own],
            self.policies[own],
            self.windows,
            self.subjects,
            self.first,
        )

    def unpack(self, column: int) -> NDArray[np.bool_]:
        """Return `[subject][window]`: the values of a pattern."""
        return self._unpacked(self.bits[column])

    @property
    def known(self) -> NDArray[np.bool_]:
        """`[subject][window]`: whether the subject is registered."""
        return self._unpacked(self.registered)

    def _unpacked(self, words: Words) -> NDArray[np.bool_]:
        octets = np.ascontiguousarray(words, "<u8").view(np.uint8)
        flat = np.unpackbits(octets, axis=-1, bitorder="little", count=self.windows)
        return flat.view(np.bool_)


class PatternEvaluator(Evaluator):
    """Matches patterns on windows of history."""

    def __init__(self, spec: Specification, patterns: Sequence[Pattern]) -> None:
        self._matched = compile_queries(spec, patterns)
        super().__init__([str(number) for number in range(len(patterns))], [self._matched])

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],  # noqa: ARG002 - true values do not depend on them
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> tuple[Words, None]:
        """Return what was detected."""
        return self._matched.match(closed, rows), None


def read_columns(
    spec: Specification,
    inputs: Sequence[Input],
    index: PatternIndex,
    *,
    progress: ProgressCallback = ignore_progress,
    refusals: Callable[[Refusals], None] = Refusals.warn,
    most_bytes: int = MOST_BYTES,
) -> WindowColumns:
    """Match the patterns of an index on all windows of history."""
    evaluator = PatternEvaluator(spec, index.patterns)
    recorded = infer_history_types(CompiledSpec(spec, evaluator), inputs)
    run = Run(spec, inputs, evaluator=evaluator, progress=progress, recorded=recorded)
    collected = _WindowCollector(most_bytes)
    for answers in run:
        collected.add(answers)
    refusals(run.refusals)
    return collected.columns(Policies(spec).assign(run.engine.subjects))


class _WindowCollector:
    """Collects answered windows, as many subjects as fit into the memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._parts: list[Words] = []
        self._since: NDArray[np.int64] = np.empty(0, np.int64)
        self._first = 0
        self._stride = 1
        """Every how many-th block of 64 subjects is kept."""

    def add(self, answers: Answers) -> None:
        if not self._parts:
            self._first = answers.first
        self._since = answers.since
        self._parts.append(np.ascontiguousarray(answers.bits[:, :, :: self._stride]))
        while sum(part.nbytes for part in self._parts) > self._most and self._widest > 1:
            self._stride *= 2
            self._parts = [np.ascontiguousarray(part[:, :, ::2]) for part in self._parts]

    @property
    def _widest(self) -> int:
        return max(int(part.shape[2]) for part in self._parts)

    def columns(self, policies: NDArray[np.int32]) -> WindowColumns:
        slots = np.arange(len(policies))
        kept = slots // 64 % self._stride == 0
        own, subjects = slots[kept], len(policies)
        windows = sum(len(part) for part in self._parts)
        words = -(-windows // 64)
        if not windows or not len(own):
            patterns = self._parts[0].shape[1] if self._parts else 0
            nothing = np.zeros((patterns, len(own), words), np.uint64)
            empty = np.zeros((len(own), words), np.uint64)
            return WindowColumns(nothing, empty, policies[own], windows, subjects)
        # Subjects may be added while history is read.
        whole = np.zeros((windows, self._parts[0].shape[1], self._widest), np.uint64)
        begin = 0
        for part in self._parts:
            whole[begin : begin + len(part), :, : part.shape[2]] = part
            begin += len(part)
        bits = to_columns(np.ascontiguousarray(whole.transpose(1, 0, 2)), len(own))
        since = np.maximum(self._since[own], self._first) - self._first
        known = since[:, np.newaxis] <= np.arange(64 * words)
        known[:, windows:] = False
        registered = np.packbits(known, axis=1, bitorder="little").view("<u8").astype(np.uint64)
        bits &= registered
        return WindowColumns(bits, registered, policies[own], windows, subjects, self._first)


def shift_windows(words: Words, windows: int) -> Words:
    """Move values `[...][word]` to later windows, or to earlier ones if `windows` is negative.

    >>> shift_windows(np.array([1 << 63, 4], np.uint64), 1).tolist()
    [0, 9]
    """
    result = np.zeros_like(words)
    whole, rest = divmod(abs(windows), 64)
    width = words.shape[-1] - whole
    if width <= 0:
        return result
    low, high = np.uint64(rest), np.uint64(64 - rest)
    if windows >= 0:
        result[..., whole:] = words[..., :width] << low
        if rest:
            result[..., whole + 1 :] |= words[..., : width - 1] >> high
        return result
    result[..., :width] = words[..., whole:] >> low
    if rest:
        result[..., : width - 1] |= words[..., whole + 1 :] << high
    return result
