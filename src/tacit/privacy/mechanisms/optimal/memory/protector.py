"""The draws of optimal with memory, in a run.

For each window: predict the belief about each subject from the window before, choose a channel by
it, draw a symbol, and answer from the belief with the symbol. A subject that does not pay is
answered from the prediction, and nothing is drawn for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.threads import run_in_threads, run_in_turn
from tacit.privacy.certainty import Certainty, Shares
from tacit.privacy.components import Question
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Prices,
    Protector,
    RunMemory,
    RunSetup,
    WindowBits,
)
from tacit.privacy.mechanisms.optimal.draw import gather_words
from tacit.privacy.mechanisms.optimal.memory import kernels
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter, BeliefState, Prediction
from tacit.privacy.mechanisms.optimal.memory.channel_tables import ChannelTables
from tacit.privacy.mechanisms.optimal.memory.kernels import Singles, Words
from tacit.privacy.mechanisms.optimal.memory.learning import (
    HALF_LIFE,
    SAMPLED,
    LearnedSteps,
    LearnedThresholds,
    StepLearner,
    ThresholdLearner,
)
from tacit.privacy.mechanisms.optimal.memory.simulation import combine_parts
from tacit.privacy.mechanisms.optimal.memory.spending import add_prices
from tacit.privacy.prices import Claim
from tacit.privacy.quality import make_objective
from tacit.privacy.sequences import find_hours, to_local

if TYPE_CHECKING:
    from tacit.privacy.mechanisms.optimal.mechanism import Optimal

Bits = NDArray[np.bool_]
Codes = NDArray[np.uint8]

_STEPS: Final = 4096
"""Probabilities are looked up in steps of this fraction."""
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
    predicted: tuple[Prediction, ...]


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
        self._several = [query for query, found in enumerate(questions) if len(found.parts) > 1]
        self._single = [_find_single(questions, number) for number in range(len(self._filters))]
        components = self._exposure.components
        self._signals = [run.index.columns(one.signals) for one in components]
        self._variables = [
            run.index.columns([variable.atom for variable in one.variables]) for one in components
        ]
        self._pending: _Pending | None = None
        for one in self._filters:
            one.wants_gains = planned.pacing is not None
        # Seeded draws must come in the same order every time.
        self._parallel = run_in_threads if run.noise.private else run_in_turn
        forget = 0.5 ** (run.spec.windows.pane / HALF_LIFE)
        self._learners = [StepLearner(one.transitions, forget) for one in planned.memory]
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
            full[0, :, slots] = add_prices(self._filters, predicted, tuple(claims)).T
        return full

    def gains(self, windows: WindowBits) -> Singles:
        """Return by slot how much a draw is expected to improve the answers of a window."""
        found = np.zeros(windows.slots, np.float32)
        predicted = self._predict_priced(windows)
        found[_list_slots(windows, windows.own)] = np.sum([one.gains for one in predicted], axis=0)
        return found

    def _predict_priced(self, windows: WindowBits) -> tuple[Prediction, ...]:
        """Predict a single window, and keep the prediction until it is answered."""
        memory, own = _memory(windows), windows.own
        if len(windows.bits) != 1:
            raise AssertionError("with memory, windows are priced one by one")
        pending = self._pending
        if pending is None or not _same(pending, windows, own):
            slots = _list_slots(windows, own)
            signals = self._gather(windows, self._signals, slots, own)
            states, learned = self._load(memory, len(slots))
            predicted = self._predict(states, learned, signals, 0, windows)
            pending = self._pending = _Pending(windows.bits, memory.before, own, predicted)
        return pending.predicted

    # Answers

    def protect(self, windows: WindowBits, own: Bits | None) -> tuple[Columns, Certainty]:
        """Draw for every component, window by window, and answer from the beliefs."""
        slots = _list_slots(windows, own)
        memory = _memory(windows)
        states, learned = self._load(memory, len(slots))
        thresholds = self._load_thresholds(memory)
        silent = np.zeros(len(slots), np.bool_)
        if windows.silent is not None:
            silent = windows.silent[slots]
        signals = self._gather(windows, self._signals, slots, own)
        values = self._gather(windows, self._variables, slots, own)
        number, questions = len(windows.bits), self._exposure.questions
        result = np.zeros((number, len(questions), windows.bits.shape[2]), np.uint64)
        result[:, self._exact] = windows.bits[:, self._exact_columns]
        codes = np.zeros((number, len(questions), len(slots)), np.uint8)
        pending, self._pending = self._pending, None
        for window in range(number):
            if pending is not None and number == 1 and _same(pending, windows, own):
                predicted = pending.predicted
            else:
                predicted = self._predict(states, learned, signals, window, windows)
            number_in_schedule = windows.closed.first + window
            registered = memory.is_registered(slots, number_in_schedule)
            sampled = registered & memory.is_sampled(slots, number_in_schedule, SAMPLED)
            calls = [
                partial(
                    self._advance,
                    place,
                    predicted[place],
                    states[place],
                    learned[place],
                    values[place][window],
                    silent,
                    sampled,
                    number_in_schedule,
                )
                for place in range(len(self._filters))
            ]
            done = self._parallel(calls)
            states = [state for state, _, _ in done]
            learned = [own for _, own, _ in done]
            parts = [part for _, _, part in done]
            self._answer(parts, thresholds.thresholds, slots, result[window], codes[window])
            thresholds = self._threshold_learner.learn(
                thresholds, codes[window], registered, number_in_schedule
            )
        for place, (state, steps) in enumerate(zip(states, learned, strict=True)):
            for name, array in (state.to_arrays() | steps.to_arrays()).items():
                memory.after[f"{self._name}.{place}.{name}"] = array
        for name, array in thresholds.to_arrays().items():
            memory.after[f"{self._name}.{name}"] = array
        return result, BeliefCertainty(codes, slots, frozenset(self._exact))

    def _advance(
        self,
        place: int,
        predicted: Prediction,
        state: BeliefState,
        learned: LearnedSteps,
        values: Words,
        silent: Bits,
        sampled: Bits,
        window: int,
    ) -> tuple[BeliefState, LearnedSteps, Singles]:
        """Draw for one component, and return its state, what was learned, and its parts."""
        one = self._filters[place]
        updated = one.update(state, predicted, one.draw(predicted, values, silent))
        learned = self._learners[place].learn(learned, predicted, updated, sampled, window)
        return updated.state, learned, one.read(predicted, updated.beliefs)

    def _load(
        self, memory: RunMemory, subjects: int
    ) -> tuple[list[BeliefState], list[LearnedSteps]]:
        """Return the states of all components, and what was learned about them.

        Subjects that are new start from the prior.
        """
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

    def _predict(
        self,
        states: Sequence[BeliefState],
        learned: Sequence[LearnedSteps],
        signals: Sequence[Words],
        window: int,
        windows: WindowBits,
    ) -> tuple[Prediction, ...]:
        start = np.array([(windows.closed.first + window) * self._pane])
        hour = int(find_hours(to_local(start, self._zone))[0])
        return tuple(
            self._parallel(
                [
                    partial(one.predict, state, own[window], hour, learner.tables(steps))
                    for one, state, own, learner, steps in zip(
                        self._filters, states, signals, self._learners, learned, strict=True
                    )
                ]
            )
        )

    def _gather(
        self,
        windows: WindowBits,
        columns: Sequence[list[int]],
        slots: NDArray[np.int64],
        own: Bits | None,
    ) -> list[Words]:
        """Return for each component `[window][subject][word]`."""
        found = []
        for listed in columns:
            words = gather_words(windows, listed, slots, own)
            if not listed:
                words = np.zeros((len(windows.bits) * len(slots), 1), np.uint64)
            found.append(np.ascontiguousarray(words).reshape(len(windows.bits), len(slots), -1))
        return found

    def _answer(
        self,
        parts: Sequence[Singles],
        thresholds: NDArray[np.float64],
        slots: NDArray[np.int64],
        result: Columns,
        codes: Codes,
    ) -> None:
        """Answer all queries about private events from the probabilities of their parts."""
        for found, (queries, columns) in zip(parts, self._single, strict=True):
            if len(queries):
                own = thresholds[queries]
                kernels.answer_queries(found, columns, queries, own, slots, _LEVELS, result, codes)
        if self._several:
            whole = combine_parts(self._exposure, parts)
            for query in self._several:
                likely = whole[query]
                assert likely is not None
                kernels.answer_queries(
                    likely[:, np.newaxis],
                    np.zeros(1, np.int64),
                    np.array([query]),
                    thresholds[[query]],
                    slots,
                    _LEVELS,
                    result,
                    codes,
                )


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


def _find_single(
    questions: Sequence[Question], component: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the queries with one part, which is in this component, and these parts."""
    found = [
        (query, question.parts[0][1])
        for query, question in enumerate(questions)
        if len(question.parts) == 1 and question.parts[0][0] == component
    ]
    table = np.array(found, np.int64).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


@dataclass(frozen=True, slots=True, eq=False)
class BeliefCertainty(Certainty):
    """How likely each query is, for some of the subjects."""

    codes: Codes
    """`[window][query][subject]`: the level of the probability, among `CONFIDENCES`."""
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
            likely[:, own] = CONFIDENCES[self.codes[windows, query, begin:end]]
        return np.where(answers, likely, 1 - likely)
