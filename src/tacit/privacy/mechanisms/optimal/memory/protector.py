"""The draws of optimal with memory, in a run.

For each window: predict the belief about each subject from the window before, choose a channel by
it, draw a symbol, and answer from the belief with the symbol. A subject that does not pay is
answered from the prediction, and nothing is drawn for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.kernels.threads import run_in_turn
from tacit.privacy.certainty import Certainty, Shares
from tacit.privacy.components import Question
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Prices,
    Protector,
    RunMemory,
    RunSetup,
    WindowBits,
    pack_slots,
)
from tacit.privacy.mechanisms.optimal.draw import gather_each
from tacit.privacy.mechanisms.optimal.memory import kernels
from tacit.privacy.mechanisms.optimal.memory.beliefs import (
    Arguments,
    BeliefFilter,
    BeliefState,
    Prediction,
    Update,
)
from tacit.privacy.mechanisms.optimal.memory.channel_tables import ChannelTables
from tacit.privacy.mechanisms.optimal.memory.kernels import Numbers, Parts, Singles, Words
from tacit.privacy.mechanisms.optimal.memory.learning import (
    HALF_LIFE,
    LEVELS,
    LearnedSteps,
    LearnedThresholds,
    StepLearner,
    ThresholdLearner,
    choose_sample,
    is_counted,
    is_used,
)
from tacit.privacy.mechanisms.optimal.memory.spending import add_prices
from tacit.privacy.prices import Claim
from tacit.privacy.quality import make_objective
from tacit.privacy.sequences import find_hours, to_local

if TYPE_CHECKING:
    from tacit.privacy.mechanisms.optimal.mechanism import Optimal

Bits = NDArray[np.bool_]
Codes = NDArray[np.uint8]

_STRETCH: Final = 8192
"""The largest number of subjects that are followed at once."""
_STEPS: Final = 4096
"""Probabilities are looked up in steps of this fraction."""
_STATED_LATER: Final = 1 << 22
"""The largest number of probabilities that are kept until their levels are asked for."""
CONFIDENCES: Final = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-8.5, 8.5, 254))), [1.0]])
"""The probabilities that answers are stated with: 0 and 1 are for decided ones alone."""


def _tabulate_levels() -> Codes:
    middle = (np.arange(_STEPS + 1) + 0.5) / _STEPS
    logits = np.log(np.minimum(middle, 1 - 1e-9) / np.maximum(1 - middle, 1e-9))
    inner = 1 + np.clip(np.round((logits + 8.5) / 17 * 253), 0, 253)
    inner[0], inner[-1] = 0, 255
    return inner.astype(np.uint8)


_LEVELS: Final = _tabulate_levels()


class _Pending(NamedTuple):
    """What was predicted for the price of a window, until it is answered."""

    bits: Columns
    before: object
    """The memory that it follows from."""
    own: Bits | None
    predicted: list[tuple[Prediction, ...]]
    """For each stretch of subjects."""


class _Latest(NamedTuple):
    """The memory that was written last, and what it was made from: it need not be read again."""

    memory: object
    states: list[BeliefState]
    learned: list[LearnedSteps]


class MemoryProtector(Protector):
    """Follows the beliefs of the subjects of one policy, and draws by them."""

    remembers = True

    def __init__(self, planned: Optimal, run: RunSetup) -> None:
        assert planned.memory is not None
        self._exposure = planned.exposure
        self._thresholds = planned.thresholds
        self._name = run.policy
        self._pane, self._zone = run.spec.windows.pane, run.spec.zone
        self._filters = [
            BeliefFilter(
                memory.transitions,
                ChannelTables(
                    channels,
                    book,
                    memory.candidates,
                    known,
                    run.noise,
                    joint=memory.transitions.joint,
                    gains=planned.pacing is not None,
                ),
            )
            for channels, book, known, memory in zip(
                planned.component_channels,
                planned.books,
                planned.planned,
                planned.memory,
                strict=True,
            )
        ]
        questions = self._exposure.questions
        self._exact = [query for query, found in enumerate(questions) if not found.parts]
        self._exact_columns = run.index.columns([run.queries[query] for query in self._exact])
        self._columns = list(accumulate((one.tables.columns for one in self._filters), initial=0))
        """Where the columns of each component's parts begin."""
        self._terms = _Terms.of(questions, self._columns)
        components = self._exposure.components
        self._signals = [run.index.columns(one.signals) for one in components]
        self._variables = [
            run.index.columns([variable.atom for variable in one.variables]) for one in components
        ]
        self._pending: _Pending | None = None
        self._latest: _Latest | None = None
        # Seeded draws must come in the same order every time, however windows are batched.
        self._grouped = run.noise.private
        self._parallel = run.workers.run if self._grouped else run_in_turn
        forget = 0.5 ** (run.spec.windows.pane / HALF_LIFE)
        self._learners = [StepLearner(one, forget) for one in self._filters]
        self._threshold_learner = ThresholdLearner(
            planned.thresholds,
            CONFIDENCES,
            make_objective(run.spec, run.spec.objective),
            [query for query, found in enumerate(questions) if found.parts],
            forget,
        )

    # What a window costs and gains

    def price(self, windows: WindowBits, claims: Sequence[Claim]) -> Prices:
        """Charge the audited loss of the channels that the beliefs choose."""
        slots = _list_slots(windows, windows.own)
        predicted = self._predict_priced(windows)
        full = np.zeros((1, len(claims), windows.slots), np.int64)
        if self._filters:
            told = tuple(claims)
            found = [add_prices(self._filters, one, told) for one in predicted]
            full[0, :, slots] = np.concatenate(found, axis=1).T
        return full

    def gains(self, windows: WindowBits) -> Singles:
        """Return by slot how much a draw is expected to improve the answers of a window."""
        found = np.zeros(windows.slots, np.float32)
        predicted = self._predict_priced(windows)
        if self._filters:
            gains = [np.sum([own.gains for own in one], axis=0) for one in predicted]
            found[_list_slots(windows, windows.own)] = np.concatenate(gains)
        return found

    def _predict_priced(self, windows: WindowBits) -> list[tuple[Prediction, ...]]:
        """Predict a single window, and keep the prediction until it is answered."""
        memory, own = _memory(windows), windows.own
        if len(windows.bits) != 1:
            raise AssertionError("with memory, windows are priced one by one")
        pending = self._pending
        if pending is None or not _same(pending, windows, own):
            slots = _list_slots(windows, own)
            batch = self._read(windows, own, self._gather(windows, self._signals, slots, own))
            states, learned = self._load(memory, len(slots))
            found = self._prepare(learned, batch, range(1))
            predicted = self._parallel(
                [partial(self._predict, found, states, rows) for rows in _divide(len(slots))]
            )
            pending = self._pending = _Pending(windows.bits, memory.before, own, predicted)
        return pending.predicted

    # Answers

    def protect(self, windows: WindowBits, own: Bits | None) -> tuple[Columns, Certainty]:
        """Draw for every component, window by window, and answer from the beliefs."""
        slots = _list_slots(windows, own)
        memory = _memory(windows)
        states, learned = self._load(memory, len(slots))
        thresholds = self._load_thresholds(memory)
        words = self._gather(windows, [*self._signals, *self._variables], slots, own)
        signals, values = words[: len(self._signals)], words[len(self._signals) :]
        number, questions = len(windows.bits), self._exposure.questions
        result = np.zeros((number, len(questions), windows.bits.shape[2]), np.uint64)
        result[:, self._exact] = windows.bits[:, self._exact_columns]
        shape = (number, len(questions), len(slots))
        levels = StatedLevels(self._terms, shape, self._columns[-1])
        stretches = _divide(len(slots))
        predicted: Sequence[tuple[Prediction, ...] | None] = [None] * len(stretches)
        pending, self._pending = self._pending, None
        batch: _Batch | None = None
        if pending is not None and number == 1 and _same(pending, windows, own):
            predicted = pending.predicted
        else:
            batch = self._read(windows, own, signals)
        registered = _list_registered(windows, slots) if batch is None else batch.registered
        silent = np.zeros(len(slots), np.bool_)
        if windows.silent is not None:
            silent = windows.silent[slots]
        first = windows.closed.first
        for group in self._group(first, number, levels):
            steps: list[_Step] = []
            for run in self._split(group, first, batch):
                chosen = slice(run.start, run.stop)
                after = [BeliefState.like(state) for state in states]
                prepared = None if batch is None else self._prepare(learned, batch, run)
                own_values, parts = [part[chosen] for part in values], levels.parts(run)
                answers = result[chosen]
                if own is not None:
                    answers = np.zeros((*answers.shape[:2], -(-len(slots) // 64)), np.uint64)
                step = _Step(
                    run,
                    states,
                    after,
                    own_values,
                    silent,
                    prepared,
                    self._list_arguments(prepared, states, own_values, silent, parts, after),
                    is_counted(first + run.start),
                    [_sample(memory, slots, first + n, registered[n]) for n in run],
                    thresholds.thresholds[self._terms.queries],
                    parts,
                    answers,
                )
                steps.append(step)
                states = after
            done = self._parallel(
                [
                    partial(self._advance_all, rows, given, steps)
                    for rows, given in zip(stretches, predicted, strict=True)
                ]
            )
            for step, advanced in zip(steps, zip(*done, strict=True), strict=True):
                if own is not None:
                    for answers, window in zip(step.answers, step.run, strict=True):
                        dense = _spread_bits(answers, slots, result.shape[2])
                        result[window, self._terms.queries] = dense[self._terms.queries]
                levels.add(step.run)
                if step.counted:
                    learned = self._learn(learned, stretches, step, advanced, first)
                counts = np.sum([one.counts for one in advanced], axis=0)
                for place, (window, sample) in enumerate(
                    zip(step.run, step.learned_from, strict=True)
                ):
                    thresholds = self._threshold_learner.learn(
                        thresholds, None if sample is None else counts[place], first + window
                    )
        for place, (state, known) in enumerate(zip(states, learned, strict=True)):
            for name, array in (state.to_arrays() | known.to_arrays()).items():
                memory.after[f"{self._name}.{place}.{name}"] = array
        for name, array in thresholds.to_arrays().items():
            memory.after[f"{self._name}.{name}"] = array
        self._latest = _Latest(memory.after, states, learned)
        return result, BeliefCertainty(levels, slots, frozenset(self._exact))

    def _group(self, first: int, number: int, levels: StatedLevels) -> Iterator[range]:
        """Divide windows into groups; nothing that is learned in a group is used in it.

        Threads wait for each other only between groups.
        """
        begin = 0
        for end in range(1, number + 1):
            if end == number or not (self._grouped and levels.later) or is_used(first + end - 1):
                yield range(begin, end)
                begin = end

    def _split(self, group: range, first: int, batch: _Batch | None) -> Iterator[range]:
        """Divide a group into runs of windows whose steps are taken in one compiled loop.

        They are in the same hour. A window in which steps are counted is a run of its own.
        """
        begin = group.start
        for end in range(begin + 1, group.stop + 1):
            if (
                batch is None
                or end == group.stop
                or not batch.together
                or is_counted(first + end - 1)
                or is_counted(first + end)
                or batch.hours[end] != batch.hours[begin]
            ):
                yield range(begin, end)
                begin = end

    def _advance_all(
        self, rows: slice, predicted: tuple[Prediction, ...] | None, steps: Sequence[_Step]
    ) -> list[_Advanced]:
        """Draw for a stretch of subjects in one window after the other."""
        return [self._advance(rows, predicted, step) for step in steps]

    def _advance(
        self, rows: slice, predicted: tuple[Prediction, ...] | None, step: _Step
    ) -> _Advanced:
        """Draw for a stretch of subjects in a run of windows, and answer all queries about them."""
        kept: list[tuple[Prediction, Update] | None] = []
        for place in range(len(self._filters)):
            if predicted is not None:
                kept.append(self._draw(place, rows, predicted[place], step))
            elif (told := step.told[place]) is not None:
                # All steps of the windows in one compiled loop.
                kept.append(self._filters[place].advance(rows, told, kept=step.counted))
            else:
                assert step.prepared is not None
                found = self._predict_one(place, step.prepared, step.states, rows)
                kept.append(self._draw(place, rows, found, step))
        samples = [sample is not None for sample in step.learned_from]
        windows, words = len(samples), step.answers.shape[2]
        sampled = np.zeros((windows, words if any(samples) else 0), np.uint64)
        for window, sample in enumerate(step.learned_from):
            if sample is not None:
                sampled[window] = sample.words
        counts = np.zeros((windows if any(samples) else 0, step.answers.shape[1], LEVELS), np.int64)
        kernels.answer_queries(
            step.parts,
            rows.start,
            rows.stop,
            *self._terms.arrays,
            step.thresholds,
            _LEVELS,
            sampled,
            np.empty(64 * self._columns[-1], np.float32),
            np.empty(64, np.int32),
            step.answers,
            counts,
        )
        return _Advanced(kept, counts)

    def _draw(
        self, place: int, rows: slice, predicted: Prediction, step: _Step
    ) -> tuple[Prediction, Update]:
        """Draw for a component in a single window, step by step."""
        one = self._filters[place]
        symbols = one.draw(predicted, step.values[place][0, rows], step.silent[rows])
        given = step.parts[0, rows], self._columns[place], step.after[place].take(rows)
        return predicted, one.update(step.states[place].take(rows), predicted, symbols, *given)

    def _learn(
        self,
        learned: Sequence[LearnedSteps],
        stretches: Sequence[slice],
        step: _Step,
        done: Sequence[_Advanced],
        first: int,
    ) -> list[LearnedSteps]:
        """Learn from some of the subjects of a window, component by component."""
        (window,), (sample,) = step.run, step.learned_from
        assert sample is not None

        def learn(place: int) -> LearnedSteps:
            learner, known = self._learners[place], learned[place]
            for rows, one in zip(stretches, done, strict=True):
                kept = one.kept[place]
                assert kept is not None
                slot, before = kept[0].slot, step.states[place].take(rows)
                learner.count(known, before, *kept, sample.rows[rows])
            return learner.learn(known, slot, first + window)

        return self._parallel([partial(learn, place) for place in range(len(self._filters))])

    def _load(
        self, memory: RunMemory, subjects: int
    ) -> tuple[list[BeliefState], list[LearnedSteps]]:
        """Return the states of all components, and what was learned about them.

        Subjects that are new start from the prior.
        """
        latest = self._latest
        if latest is not None and latest.memory is memory.before:
            return [state.widen(subjects) for state in latest.states], latest.learned
        states, learned = [], []
        for place, one in enumerate(self._filters):
            known = _select(memory, f"{self._name}.{place}.")
            state = one.read_state(known, subjects) if known else one.start(0)
            states.append(state.widen(subjects))
            learned.append(
                LearnedSteps.from_arrays(known, one.transitions)
                if known
                else LearnedSteps.start(one.transitions)
            )
        return states, learned

    def _load_thresholds(self, memory: RunMemory) -> LearnedThresholds:
        known = _select(memory, f"{self._name}.")
        if "levels" not in known:
            return LearnedThresholds.start(self._thresholds)
        return LearnedThresholds.from_arrays(known, len(self._thresholds))

    def _read(self, windows: WindowBits, own: Bits | None, signals: Sequence[Words]) -> _Batch:
        """Find the contexts of windows, and their hours."""
        number, slots = len(windows.bits), _list_slots(windows, own)
        starts = (windows.closed.first + np.arange(number)) * self._pane
        registered = _list_registered(windows, slots)
        counted = [None if one.all() else one for one in registered]
        contexts = [
            one.tables.find_all_contexts(found, counted)
            for one, found in zip(self._filters, signals, strict=True)
        ]
        return _Batch(
            find_hours(to_local(starts, self._zone)).tolist(),
            signals,
            contexts,
            registered,
            self._grouped
            and all(one.can_advance(own) for one, own in zip(self._filters, contexts, strict=True)),
        )

    def _prepare(self, learned: Sequence[LearnedSteps], batch: _Batch, run: range) -> _Prepared:
        """Return the contexts of a run of windows, and the transitions at their time."""
        chosen, hour = slice(run.start, run.stop), batch.hours[run.start]
        tables = [
            learner.tables(steps, one.find_slot(hour))
            for one, learner, steps in zip(self._filters, self._learners, learned, strict=True)
        ]
        return _Prepared(
            hour,
            [words[chosen] for words in batch.signals],
            [contexts[chosen] for contexts in batch.contexts],
            tables,
        )

    def _list_arguments(
        self,
        prepared: _Prepared | None,
        states: Sequence[BeliefState],
        values: Sequence[Words],
        silent: Bits,
        parts: Parts,
        after: Sequence[BeliefState],
    ) -> list[Arguments | None]:
        """Return the arguments of each component whose steps are taken in one compiled loop."""
        found: list[Arguments | None] = [None] * len(self._filters)
        if prepared is None:
            return found
        for place, one in enumerate(self._filters):
            contexts = prepared.contexts[place]
            if one.can_advance(contexts):
                found[place] = one.list_arguments(
                    states[place],
                    prepared.signals[place],
                    prepared.hour,
                    prepared.tables[place],
                    contexts,
                    values[place],
                    silent,
                    parts,
                    self._columns[place],
                    after[place],
                )
        return found

    def _predict(
        self, prepared: _Prepared, states: Sequence[BeliefState], rows: slice
    ) -> tuple[Prediction, ...]:
        """Predict a window for a stretch of subjects."""
        places = range(len(self._filters))
        return tuple(self._predict_one(place, prepared, states, rows) for place in places)

    def _predict_one(
        self, place: int, prepared: _Prepared, states: Sequence[BeliefState], rows: slice
    ) -> Prediction:
        return self._filters[place].predict(
            states[place].take(rows),
            prepared.signals[place][0, rows],
            prepared.hour,
            prepared.tables[place],
            prepared.contexts[place][0, rows],
        )

    def _gather(
        self,
        windows: WindowBits,
        columns: Sequence[list[int]],
        slots: NDArray[np.int64],
        own: Bits | None,
    ) -> list[Words]:
        """Return for each list of columns `[window][subject][word]`."""
        return [
            np.ascontiguousarray(words).reshape(len(windows.bits), len(slots), words.shape[1])
            for words in gather_each(windows, columns, slots, own)
        ]


class _Batch(NamedTuple):
    """What is known about windows that closed together, before anything is drawn for them."""

    hours: Sequence[int]
    signals: Sequence[Words]
    """For each component `[window][row][word]`."""
    contexts: Sequence[Numbers]
    """For each component `[window][row]`."""
    registered: Sequence[Bits]
    """For each window, who is registered."""
    together: bool
    """Whether steps of several windows can be taken in one compiled loop, for all components."""


class _Prepared(NamedTuple):
    """What predictions for a run of windows follow from besides beliefs, by component."""

    hour: int
    signals: Sequence[Words]
    contexts: Sequence[Numbers]
    tables: Sequence[Singles]


class _Sample(NamedTuple):
    """The subjects from which something is learned in a window."""

    rows: Bits
    words: Words
    """The same as a bit for each subject."""


class _Step(NamedTuple):
    """A run of windows of all subjects: what its answers follow from, and where they go."""

    run: range
    states: list[BeliefState]
    after: list[BeliefState]
    """The states after the last window."""
    values: Sequence[Words]
    silent: Bits
    prepared: _Prepared | None
    """None if the window was predicted for its price."""
    told: list[Arguments | None]
    """For each component, if all its steps are taken in one compiled loop."""
    counted: bool
    """Whether steps are counted, so that beliefs are kept."""
    learned_from: Sequence[_Sample | None]
    """For each window."""
    thresholds: NDArray[np.float64]
    """Those of queries about private events."""
    parts: Parts
    """`[window][row][column]`: how likely each part is, with rows that fill the last word."""
    answers: Columns


class _Advanced(NamedTuple):
    """A run of windows of a stretch of subjects, after its symbols."""

    kept: list[tuple[Prediction, Update] | None]
    """For each component, if it is kept."""
    counts: NDArray[np.int64]
    """`[window][query][level]`: how many answers have each level, of subjects that are learned
    from; no windows if there are none."""


def _divide(rows: int) -> list[slice]:
    """Divide subjects into stretches that fit into a cache, of whole words."""
    count = max(1, -(-rows // _STRETCH))
    if count > 1:
        count += count % 2  # two cores have the same to do
    size = max(64, -(-rows // count // 64) * 64)
    return [slice(begin, min(rows, begin + size)) for begin in range(0, max(1, rows), size)]


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """The queries about private events, and the columns of their parts."""

    queries: NDArray[np.int64]
    columns: NDArray[np.int64]
    firsts: NDArray[np.int64]
    """Where each query's columns begin; one more at the end."""
    every: Bits
    """Whether all parts of a query must be true, or any."""

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Bits, NDArray[np.int64]]:
        """All of them, for kernels."""
        return self.columns, self.firsts, self.every, self.queries

    @classmethod
    def of(cls, questions: Sequence[Question], begins: Sequence[int]) -> _Terms:
        """Return the terms of these questions, for columns of components that begin there."""
        own = [(query, one) for query, one in enumerate(questions) if one.parts]
        return cls(
            np.array([query for query, _ in own], np.int64),
            np.array([begins[place] + n for _, one in own for place, n in one.parts], np.int64),
            np.cumsum([0, *(len(one.parts) for _, one in own)]),
            np.array([one.every for _, one in own], np.bool_),
        )


def _spread_bits(answers: Columns, slots: NDArray[np.int64], words: int) -> Columns:
    """Turn a bit for each of some subjects into a bit for each slot."""
    octets = answers.astype("<u8").view(np.uint8)
    bits = np.zeros((len(answers), words * 64), np.uint8)
    bits[:, slots] = np.unpackbits(octets, axis=1, bitorder="little", count=len(slots))
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def _list_registered(windows: WindowBits, slots: NDArray[np.int64]) -> list[Bits]:
    """Return for each window who is registered; nobody is removed."""
    memory, first = _memory(windows), windows.closed.first
    found = [memory.is_registered(slots, first)]
    for window in range(first + 1, first + len(windows.bits)):
        whole = found[-1].all()
        found.append(found[-1] if whole else memory.is_registered(slots, window))
    return found


def _sample(
    memory: RunMemory, slots: NDArray[np.int64], window: int, registered: Bits
) -> _Sample | None:
    """Return the subjects from which something is learned in a window; None if there are none.

    If there are many, nothing is learned from windows in which no steps are counted.
    """
    # The number of registered subjects is public; that of slots may not be.
    step = choose_sample(int(np.count_nonzero(registered)))
    if step > 1 and not is_counted(window):
        return None
    rows = registered if step == 1 else registered & memory.is_sampled(slots, window, step)
    return _Sample(rows, pack_slots(rows))


def _same(pending: _Pending, windows: WindowBits, own: Bits | None) -> bool:
    """Return whether a prediction is for these windows, memory and subjects."""
    same = pending.bits is windows.bits and pending.before is _memory(windows).before
    if pending.own is None or own is None:
        return same and pending.own is own
    return same and np.array_equal(pending.own, own)


def _select(memory: RunMemory, prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in memory.before.items()
        if name.startswith(prefix)
    }


def _memory(windows: WindowBits) -> RunMemory:
    assert windows.memory is not None, "these windows have no memory"
    return windows.memory


def _list_slots(windows: WindowBits, own: Bits | None) -> NDArray[np.int64]:
    return np.arange(windows.slots) if own is None else np.flatnonzero(own)


class StatedLevels:
    """The level of each query's probability, among `CONFIDENCES`.

    The levels of a few windows are found when they are asked for: not everyone asks.
    """

    def __init__(self, terms: _Terms, shape: tuple[int, int, int], columns: int) -> None:
        windows, _, subjects = shape
        rows = -(-subjects // 64) * 64
        self._terms = terms
        self.later = windows * rows * columns <= _STATED_LATER
        """Whether probabilities are kept, and levels are found when they are asked for."""
        self._parts = allocate((windows if self.later else 1, rows, columns), np.uint16)
        self._parts[:, subjects:] = 0  # rows that fill the last word are read, too
        self._found = np.zeros(shape if not self.later else (0, 0, 0), np.uint8)
        self._shape = shape

    def parts(self, run: range) -> Parts:
        """Return where the probabilities of parts go, `[window][row][column]`.

        If they are not kept, a run has a single window.
        """
        return self._parts[run.start : run.stop] if self.later else self._parts

    def add(self, run: range) -> None:
        """Add windows whose probabilities are known."""
        if not self.later:
            self._find(*run)

    def _find(self, window: int) -> None:
        parts = self.parts(range(window, window + 1))
        columns = np.empty(64 * parts.shape[2], np.float32)
        places = np.empty(64, np.int32)
        found = self._found[window]
        kernels.find_levels(parts, *self._terms.arrays, _LEVELS, columns, places, found)

    @property
    def codes(self) -> Codes:
        """`[window][query][subject]`"""
        if self.later:
            self._found = np.zeros(self._shape, np.uint8)
            for window in range(len(self._found)):
                self._find(window)
            self.later = False
            self._parts = np.empty((0, 0, 0), np.uint16)
        return self._found


@dataclass(frozen=True, slots=True, eq=False)
class BeliefCertainty(Certainty):
    """How likely each query is, for some of the subjects."""

    levels: StatedLevels
    slots: NDArray[np.int64]
    exact: frozenset[int]
    """The queries that no private event can change."""

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Return the probability that the given answers are right."""
        likely = np.ones(answers.shape)
        if query in self.exact:
            return likely
        begin, end = np.searchsorted(self.slots, [slots.start, slots.stop])
        own = self.slots[begin:end] - slots.start
        if len(own):
            likely[:, own] = CONFIDENCES[self.levels.codes[windows, query, begin:end]]
        return np.where(answers, likely, 1 - likely)
