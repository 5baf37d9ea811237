"""Plan memory from history, and judge it on stretches that were held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS
from tacit.privacy.components import Exposure
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, Context
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter
from tacit.privacy.mechanisms.optimal.memory.candidates import CandidateBook, design_candidates
from tacit.privacy.mechanisms.optimal.memory.channel_tables import ChannelTables
from tacit.privacy.mechanisms.optimal.memory.fitting import (
    ComponentHistory,
    can_predict,
    can_remember,
    describe_history,
    fit_component,
    fit_without,
)
from tacit.privacy.mechanisms.optimal.memory.model import ComponentMemory
from tacit.privacy.mechanisms.optimal.memory.simulation import (
    Decision,
    TrueAnswers,
    count_windows,
    simulate,
)
from tacit.privacy.mechanisms.optimal.memory.spending import SimulatedPayments, fit_pacing
from tacit.privacy.mechanisms.optimal.memory.transitions import Transitions
from tacit.privacy.mechanisms.optimal.symbol_readings import SymbolReadings
from tacit.privacy.noise import Noise
from tacit.privacy.pacing import Pacing, SpendingLimit
from tacit.privacy.policies import Policy
from tacit.privacy.quality import Confusion, QualityObjective
from tacit.privacy.randomness import SeededSource
from tacit.privacy.sequences import Sequences
from tacit.privacy.statistics import Statistics
from tacit.privacy.thresholds import PosteriorCounts, add_confusions, judge
from tacit.progress import ProgressCallback, ignore_progress, scale_progress

Floats = NDArray[np.float64]

_FOLDS: Final = 5
_ROWS: Final = 25_000
"""The number of windows of subjects that are simulated for each fold."""
_LEAST: Final = 48
"""The least number of windows of a fold that are simulated, however many subjects there are."""
_DRAWN: Final = 50_000
"""Shorter histories are drawn repeatedly, for about so many windows of all folds."""
_MOST_DRAWS: Final = 16
_FEW: Final = 8
"""If there are more components, fewer windows are simulated, and new contexts get no channels of
their own there. Otherwise planning would take long, and so many parts differ little by chance."""
_CONTEXTS: Final = 64
"""The number of contexts of all components that have channels to choose from."""
_SAMPLED: Final = 4000
"""The number of beliefs of a block that represent it."""
_TOGETHER: Final = 1 << 22
"""The number of subjects and parts, of several windows, that are counted together."""
_NO_BELIEFS: Final = np.empty((0, 0))


class PlannedParts(NamedTuple):
    """The parts of a plan without memory that memory builds on."""

    exposure: Exposure
    channels: tuple[ComponentChannels, ...]
    planned: tuple[Mapping[bytes, Context], ...]
    books: tuple[ChannelBook, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """Memory, and what to expect of it."""

    components: tuple[ComponentMemory, ...]
    thresholds: Floats
    expected: Confusion[Floats]
    """If every window is paid for."""
    limited: Confusion[Floats] | None = None
    """With limits; None if there are none."""
    pacing: Pacing | None = None


def plan_memory(
    parts: PlannedParts,
    statistics: Statistics,
    objective: QualityObjective,
    policy: Policy,
    limits: Mapping[str, SpendingLimit],
    *,
    always: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> MemoryPlan | None:
    """Fit memory to history and judge it; None if history does not support it.

    With `always`, it need not predict anything, if history is long enough.

    `policy` has the epsilons of a window. With limits, thresholds are chosen for windows of which
    only some are paid for.
    """
    sequences = statistics.sequences
    if sequences is None or not all(can_remember(one, sequences) for one in parts.channels):
        return None
    if "memory" not in sequences.fits:
        sequences.fits["memory"] = Fits.make(parts, sequences, scale_progress(progress, 0, 0.2))
    fits: Fits = sequences.fits["memory"]
    own = {one.name: limits[one.name] for one in policy.patterns if one.name in limits}
    if not fits.predict and not own and not always:
        return None
    fits.fit_folds(scale_progress(progress, 0.2, 0.4))
    # What does not depend on the amounts of limits is the same for all of them.
    paced = sorted(name for name, limit in own.items() if limit.paced)
    epsilons = [(one.name, str(one.epsilon)) for one in policy.patterns]
    key = f"memory {epsilons} {objective} {paced}"
    if key not in sequences.fits:
        progress(0.4, "planning memory")
        books = _design_books(parts, fits.whole, sequences)
        judging = scale_progress(progress, 0.5, 0.7 if own else 1.0)
        counts = count_held_out(parts, fits, books, statistics, progress=judging)
        filters = make_filters(parts, fits.whole, books)
        pacing = fit_pacing(filters, sequences, policy, own) if own else None
        sequences.fits[key] = books, counts, pacing
    books, counts, pacing = sequences.fits[key]
    if not own:
        thresholds, expected = judge(counts, objective, uncertain=True)
        components = tuple(map(ComponentMemory, fits.whole, books))
        return MemoryPlan(components, thresholds, expected)
    spending = _Spending(policy, own, pacing)
    frugal = [] if pacing is not None else _spare_books(parts, books)
    plans = []
    for tried in [books, frugal] if frugal else [books]:
        paid = count_held_out(
            parts, fits, tried, statistics, spending, scale_progress(progress, 0.7, 1.0)
        )
        thresholds, limited = judge(paid, objective, uncertain=True)
        if tried is frugal:
            counts = count_held_out(parts, fits, frugal, statistics)
        expected = add_confusions([one.confusion(thresholds) for one in counts])
        components = tuple(map(ComponentMemory, fits.whole, tried))
        plans.append(MemoryPlan(components, thresholds, expected, limited, pacing))
    return max(plans, key=lambda plan: objective.value(plan.limited or plan.expected))


class _Spending(NamedTuple):
    """How limits are spent."""

    policy: Policy
    limits: Mapping[str, SpendingLimit]
    pacing: Pacing | None


@dataclass(slots=True, eq=False)
class Fits:
    """The transitions of all components, which are the same for every epsilon."""

    histories: tuple[ComponentHistory, ...]
    sizes: tuple[int, ...]
    """The number of variables of each component."""
    whole: tuple[Transitions, ...]
    bounds: tuple[int, ...]
    """The first window of each fold, and the end of the last."""
    predict: bool
    """Whether they predict windows better than contexts alone. If not, memory is of no use, except
    to spend limits where answers gain most."""
    without: tuple[tuple[Transitions, ...], ...] = ()
    """`[fold][component]`: from all other folds; empty until they are needed."""

    @classmethod
    def make(cls, parts: PlannedParts, sequences: Sequences, progress: ProgressCallback) -> Fits:
        """Fit transitions to all of history."""
        histories, whole = [], []
        sizes = tuple(len(one.component.variables) for one in parts.channels)
        for number, (one, book, sequence) in enumerate(
            zip(parts.channels, parts.books, sequences.components, strict=True)
        ):
            progress(number / len(sizes), "planning memory")
            readings = SymbolReadings(one.component, one.prior, [b.variables for b in book.blocks])
            history = describe_history(readings, sequence, sequences)
            histories.append(history)
            whole.append(fit_component(history, one.prior.groups, sizes[number], len(sizes)))
        bounds = tuple(sequences.windows * fold // _FOLDS for fold in range(_FOLDS + 1))
        predict = any(
            can_predict(history, own, size, len(sizes))
            for history, own, size in zip(histories, whole, sizes, strict=True)
        )
        return cls(tuple(histories), sizes, tuple(whole), bounds, predict)

    def fit_folds(self, progress: ProgressCallback) -> None:
        """Fit transitions to history without each fold, unless that is done."""
        if self.without:
            return
        without = []
        for fold, (begin, end) in enumerate(pairwise(self.bounds)):
            progress(fold / _FOLDS, "planning memory")
            without.append(
                tuple(
                    fit_without(history, own, size, begin, end)
                    for history, own, size in zip(
                        self.histories, self.whole, self.sizes, strict=True
                    )
                )
            )
        self.without = tuple(without)


def make_filters(
    parts: PlannedParts,
    fitted: Sequence[Transitions],
    books: Sequence[CandidateBook],
    seed: int = 0,
) -> list[BeliefFilter]:
    """Make the filters of all components, with seeded draws."""
    noise = Noise(SeededSource(seed))
    few = len(fitted) <= _FEW
    return [
        BeliefFilter(
            own,
            ChannelTables(channels, book, candidates, planned, noise, joint=own.joint, design=few),
        )
        for own, channels, book, candidates, planned in zip(
            fitted, parts.channels, parts.books, books, parts.planned, strict=True
        )
    ]


def _design_books(
    parts: PlannedParts, fitted: Sequence[Transitions], sequences: Sequences
) -> list[CandidateBook]:
    """Design the candidates of common contexts, for the beliefs that occur in history."""
    share = max(1, _CONTEXTS // max(1, len(fitted)))
    common = [
        [key for key, context in planned.items() if context.blocks][:share]
        for planned in parts.planned
    ]
    books = [
        CandidateBook(
            {
                key: tuple(
                    design_candidates(block, _NO_BELIEFS) for block, _ in planned[key].blocks
                )
                for key in keys
            }
        )
        for planned, keys in zip(parts.planned, common, strict=True)
    ]
    varied = [
        any(len(block.choice.answers) > 2 for key in keys for block, _ in planned[key].blocks)
        for planned, keys in zip(parts.planned, common, strict=True)
    ]
    if not any(varied):
        return books  # the best channel for two classes is the same for all priors
    beliefs = _collect_beliefs(make_filters(parts, fitted, books), sequences)
    return [
        CandidateBook(
            {
                key: tuple(
                    design_candidates(block, _join(found.get((key, number))))
                    for number, (block, _) in enumerate(planned[key].blocks)
                )
                for key in keys
            }
        )
        for planned, keys, found in zip(parts.planned, common, beliefs, strict=True)
    ]


def _spare_books(parts: PlannedParts, books: Sequence[CandidateBook]) -> list[CandidateBook]:
    """Return books that draw nothing where the plan without memory draws nothing.

    Candidates draw in every open window, since every symbol helps later. Where nothing is paced,
    a limit may then be used up by windows in which no draw changes an answer. Without memory the
    channels of such contexts are constant, and cost nothing. The list is empty if there are none.
    """
    found, changed = [], False
    for book, planned in zip(books, parts.planned, strict=True):
        contexts = {}
        for key, blocks in book.contexts.items():
            made = [channel.channel for _, channel in planned[key].blocks]
            silent = [bool((own.table == own.table[0]).all()) for own in made]
            contexts[key] = tuple(
                (own,) if nothing else block
                for own, nothing, block in zip(made, silent, blocks, strict=True)
            )
            changed = changed or any(silent)
        found.append(CandidateBook(contexts))
    return found if changed else []


def _join(found: list[Floats] | None) -> Floats:
    return np.concatenate(found)[:_SAMPLED] if found else _NO_BELIEFS


def _collect_beliefs(
    filters: Sequence[BeliefFilter], sequences: Sequences
) -> list[dict[tuple[bytes, int], list[Floats]]]:
    """Return for each component the beliefs about the classes of each context's blocks."""
    found: list[dict[tuple[bytes, int], list[Floats]]] = [{} for _ in filters]
    counts: Counter[tuple[int, bytes, int]] = Counter()
    end = min(sequences.windows, _find_length(sequences))
    for window in simulate(filters, sequences, 0, end):
        for place, (one, predicted) in enumerate(zip(filters, window.predicted, strict=True)):
            for key, number, beliefs in one.tables.list_open(predicted.contexts, predicted.beliefs):
                if counts[place, key, number] < _SAMPLED:
                    counts[place, key, number] += len(beliefs)
                    found[place].setdefault((key, number), []).append(beliefs)
    return found


def _find_length(sequences: Sequences) -> int:
    """Return the number of windows that are simulated in a stretch."""
    subjects: int = sequences.known.shape[1]
    rows = _ROWS * _FEW // max(_FEW, len(sequences.components))
    return max(_LEAST, rows // max(1, subjects))


def count_held_out(
    parts: PlannedParts,
    fits: Fits,
    books: Sequence[CandidateBook],
    statistics: Statistics,
    spending: _Spending | None = None,
    progress: ProgressCallback = ignore_progress,
) -> list[PosteriorCounts]:
    """Count held-out windows by posterior: each stretch is predicted from the others.

    With `spending`, windows are paid for as limits allow.
    """
    sequences = statistics.sequences
    assert sequences is not None
    sequences = sequences.thin(_FOLDS * _ROWS)
    sequences = sequences.repeat(min(_MOST_DRAWS, max(1, _DRAWN // max(1, sequences.known.size))))
    truth = TrueAnswers(parts.exposure)
    width = sum(len(one.component.parts) for one in parts.channels)
    most = max(1, _TOGETHER // max(1, width * sequences.known.shape[1]))
    found, rows = [], 0
    for fold, (begin, stop) in enumerate(pairwise(fits.bounds)):
        progress(fold / _FOLDS, "judging memory")
        end = min(stop, begin + _find_length(sequences))
        counts = PosteriorCounts.zeros(len(parts.exposure.questions))
        warm = max(0, begin - (end - begin))  # by then, beliefs are what they are in a run
        filters = make_filters(parts, fits.without[fold], books, fold)
        decide: Decision | None = None
        if spending is not None:
            decide = SimulatedPayments(filters, sequences, *spending, fold)
            # Limits are whole at the beginning of a day.
            days = sequences.local // MICROSECONDS["d"]
            warm = int(np.searchsorted(days, days[warm]))
        simulated = simulate(filters, sequences, warm, end, decide)
        held_out = (window for window in simulated if window.number >= begin)
        while several := list(islice(held_out, most)):
            rows += count_windows(counts, truth, sequences, several)
        found.append(counts)
    scale = statistics.windows / max(1, rows)
    scaled = [PosteriorCounts(one.true * scale, one.false * scale) for one in found]
    for query, question in enumerate(parts.exposure.questions):
        if not question.parts:
            for one in scaled:
                one.add_exact(query, float(statistics.positives[query]) / len(scaled))
    return scaled
