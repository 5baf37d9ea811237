"""Attack: how well private patterns are guessed by an attacker who knows everything else.

The attacker knows the plan, the prior, all public events and the events of all other private
patterns, and sees every symbol that is released about the pattern: more than any consumer sees.
Symbols are drawn from the plan's channels for the true windows of history, with a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tacit.durations import format_duration, parse_duration
from tacit.engines.local import load_spec, name_sources
from tacit.engines.setup import Place, RunOptions, SpecSource, choose_plan
from tacit.errors import OptionError, PlanError, SourceError
from tacit.insight.attack_bounds import (
    Bits,
    Floats,
    bound_detection,
    bound_success,
    measure_detection,
    measure_success,
)
from tacit.insight.attack_channels import AttackedPattern, Situation, attack_pattern
from tacit.insight.attack_model import (
    AttackSequences,
    Model,
    States,
    Whole,
    find_states,
    find_telling,
    group_situations,
)
from tacit.insight.attack_report import RATES, AttackReport, Guess, GuessKind, PatternAttack
from tacit.insight.window_columns import WindowColumns, read_columns
from tacit.options import option
from tacit.patterns.tree import Name, Pattern
from tacit.pipeline.reader import Input
from tacit.pipeline.refusals import Refusals
from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.mechanism import PatternIndex
from tacit.progress import ProgressCallback, ignore_progress, scale_progress
from tacit.spec.specification import Private, Specification

PERIOD: Final = "1 d"
MOST_WINDOWS: Final = 400_000
"""The most windows that are attacked; of more, every n-th subject is."""
_ENOUGH: Final = 100_000
"""Fewer windows are attacked several times, with new noise."""
_MOST_REPEATS: Final = 20
_MOST_TELLING: Final = 4
"""How many public event types the prior uses, besides what the queries about the pattern use."""
_LARGEST: Final = 500.0
"""A larger sum of epsilons is no bound at all, and would overflow."""


def attack(
    spec: SpecSource,
    *history: Any,
    plan: Plan | Place | None = None,
    period: str = PERIOD,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> AttackReport:
    """Attack a plan with the windows of history: frames or files, as for `tacit.plan`.

    Guesses about one window use its answers, or all answers of its day; guesses about a day are
    whether the pattern occurred at least once. `period` is another length of a day. Without a
    `plan`, the mechanism must need none.
    """
    loaded = load_spec(spec)
    given = name_sources(history, streams)
    if not given:
        raise OptionError(f"an attack needs history: give {option('history')}")
    inputs = RunOptions(loaded, given).open_inputs(loaded)
    made = choose_plan(loaded, plan, None)
    return attack_plan(
        loaded, made, inputs, period=period, seed=seed, progress=progress or ignore_progress
    )


def attack_plan(
    spec: Specification,
    plan: Plan,
    inputs: Sequence[Input],
    *,
    period: str = PERIOD,
    seed: int = 0,
    progress: ProgressCallback = ignore_progress,
    refusals: Callable[[Refusals], None] = Refusals.warn,
) -> AttackReport:
    """Attack a plan with the windows of history."""
    length = _read_period(spec, period)
    plan.check(spec)
    index = PatternIndex()
    targets = [
        _Target(
            number,
            spec.private[place],
            attacked,
            place,
            tuple(name for name in spec.events if name not in policy.private),
        )
        for number, (policy, mechanism) in enumerate(
            zip(plan.policies, plan.mechanisms, strict=True)
        )
        for pattern in policy.patterns
        for place in [[private.name for private in spec.private].index(pattern.name)]
        for attacked in [attack_pattern(mechanism, pattern)]
    ]
    for target in targets:
        index.column(spec.private_patterns[target.place])
        index.columns([*target.attacked.known, *target.attacked.own])
        index.columns([Name(name) for name in target.public])
    reading = scale_progress(progress, 0, 0.5)
    columns = read_columns(spec, inputs, index, progress=reading, refusals=refusals)
    if not columns.registered.any():
        raise SourceError("the history has no usable tuple, so there is no window to attack")
    found = []
    for done, target in enumerate(targets):
        progress(0.5 + 0.5 * done / len(targets), f"attacking {target.private.name}")
        own = columns.policies == target.policy
        if own.any():
            windows = _AttackedWindows(spec, target, columns.choose(_thin(own, columns)), index)
            found.append(windows.attack(length, seed))
    progress(1.0, "done")
    return AttackReport(plan.mechanism, plan.decode, tuple(found), format_duration(length))


def _read_period(spec: Specification, period: str) -> int:
    try:
        length = parse_duration(period)
    except ValueError as error:
        raise OptionError(f"{option('period')}: expected a duration such as 1 d") from error
    if length < spec.windows.size:
        raise OptionError(f"{option('period')}: expected at least the length of a window")
    if spec.windows.panes > 1:
        raise PlanError("attacks need windows that do not overlap: leave 'slide' out")
    return length


def _thin(own: Bits, columns: WindowColumns) -> Bits:
    """Choose every n-th subject of a policy, so that there are not too many windows."""
    chosen = np.flatnonzero(own)
    step = -(-len(chosen) * columns.windows // MOST_WINDOWS)
    kept = np.zeros_like(own)
    kept[chosen[:: max(1, step)]] = True
    return kept


@dataclass(frozen=True, slots=True)
class _Target:
    policy: int
    private: Private
    attacked: AttackedPattern
    place: int
    """The place of the private pattern in the specification."""
    public: tuple[str, ...]
    """The event types that are public for the subjects of the policy."""


class _AttackedWindows:
    """All windows of a policy's subjects, one subject after the other, in time order."""

    def __init__(
        self, spec: Specification, target: _Target, columns: WindowColumns, index: PatternIndex
    ) -> None:
        known = columns.known
        self._target = target
        self._step = spec.windows.size
        subjects, windows = np.nonzero(known)
        self.subjects: Whole = subjects
        self.starts: Whole = (windows + columns.first) * self._step

        def read(patterns: Sequence[Pattern]) -> Bits:
            """Return `[window][pattern]`."""
            found = np.empty((len(subjects), len(patterns)), np.bool_)
            for place, one in enumerate(patterns):
                found[:, place] = columns.unpack(index.column(one))[known]
            return found

        self.truth = read([spec.private_patterns[target.place]])[:, 0]
        self._known = read(target.attacked.known)
        self._values = read(target.attacked.own)
        self._public = read([Name(name) for name in target.public])

    def attack(self, period: int, seed: int) -> PatternAttack:
        """Guess each window and each day, with new noise as often as needed."""
        bounds = self._bounds(period)
        states, numbers = self._states()
        situations, kinds = _number_rows(self._known)
        released = [self._target.attacked.release(kind, states.values) for kind in kinds]
        epsilon, open_ = self._spend(np.array([one.epsilon for one in released])[situations])
        groups = group_situations(self._fine(), situations)
        sequences = AttackSequences(states.state[numbers], groups, bounds)
        model = Model(sequences, self.subjects[bounds[:-1]], states.occurred)
        repeats = min(_MOST_REPEATS, -(-_ENOUGH // len(self.truth)))
        random = np.random.default_rng(seed)
        rounds = [
            _draw(released, situations, numbers, states, open_, random) for _ in range(repeats)
        ]
        guesses = _Guesses(self.truth, self.subjects, epsilon, bounds, model)
        return PatternAttack(
            self._target.private.name,
            float(self._target.attacked.pattern.epsilon),
            tuple(guesses.judge(rounds)),
            len(self.truth),
            len(np.unique(self.subjects)),
            len(bounds) - 1,
            repeats,
            len(states.occurred),
        )

    def _bounds(self, period: int) -> Whole:
        """Return where each subject's days begin, and the end."""
        days = self.starts // period
        new = (np.diff(days, prepend=days[0] - 1) != 0) | (
            np.diff(self.subjects, prepend=self.subjects[0]) != 0
        )
        return np.append(np.flatnonzero(new), len(days))

    def _states(self) -> tuple[States, Whole]:
        """Return the states, and the number of each window's value."""
        rows = np.column_stack([self.truth, self._values])
        numbers, kinds = _number_rows(rows)
        return find_states(kinds[:, 1:], kinds[:, 0], numbers), numbers

    def _fine(self) -> Whole:
        """Number what is known of each window, with the public event types that tell most."""
        telling = self._public[:, find_telling(self._public, self.truth, _MOST_TELLING)]
        return _number_rows(np.column_stack([self._known, telling]))[0]

    def _spend(self, epsilon: Floats) -> tuple[Floats, Bits]:
        """Return what each window spends, and whether anything is released in it.

        Once the pattern's limit is reached, nothing is released until the horizon ends.
        """
        limit = self._target.private.limit
        if limit is None:
            return epsilon, epsilon > 0
        bounds = self._bounds(limit.horizon)
        total = np.cumsum(epsilon)
        before = np.repeat((total - epsilon)[bounds[:-1]], np.diff(bounds))
        within = total - before <= float(limit.amount) * (1 + 1e-12)
        return np.where(within, epsilon, 0.0), within & (epsilon > 0)


def _number_rows(rows: Bits) -> tuple[Whole, Bits]:
    """Number the distinct rows; return the number of each row, and the distinct ones."""
    if not rows.shape[1]:
        return np.zeros(len(rows), np.int64), np.zeros((1, 0), np.bool_)
    packed = np.packbits(rows, axis=1)
    _, firsts, numbers = np.unique(
        np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel(),
        return_index=True,
        return_inverse=True,
    )
    return numbers.ravel(), rows[firsts]


def _draw(
    released: Sequence[Situation],
    situations: Whole,
    numbers: Whole,
    states: States,
    open_: Bits,
    random: np.random.Generator,
) -> Floats:
    """Draw the symbols of all windows; return `[window][state]`: how likely they are."""
    likely = np.ones((len(numbers), states.weights.shape[1]))
    order = np.argsort(situations, kind="stable")
    ends = np.searchsorted(situations[order], np.arange(len(released) + 1))
    for number, situation in enumerate(released):
        own = order[ends[number] : ends[number + 1]]
        own = own[open_[own]]
        if not len(own) or not situation.symbols:
            continue
        chance = np.ones((len(own), len(states.values)))
        for table, rows in situation.symbols:
            cumulative = np.cumsum(table, axis=1)
            true = cumulative[rows[numbers[own]]]
            drawn = (random.random((len(own), 1)) * true[:, -1:] >= true[:, :-1]).sum(axis=1)
            chance *= table[rows][:, drawn].T
        likely[own] = chance @ states.weights
    return likely


@dataclass(frozen=True, eq=False)
class _Guesses:
    """Guesses about windows and days, judged by the truth."""

    truth: Bits
    subjects: Whole
    epsilon: Floats
    bounds: Whole
    model: Model

    def judge(self, rounds: Sequence[Floats]) -> list[Guess]:
        """Judge the guesses of several rounds of noise."""
        repeats = len(rounds)
        days = self.bounds[:-1]
        sums = np.minimum(np.add.reduceat(self.epsilon, days), _LARGEST)
        ever = np.add.reduceat(self.truth, days) > 0
        prior = self.model.prior()
        occurred = self.model.occurred
        alone = prior[:, occurred].sum(axis=1)
        public = self.model.infer(None)
        single, smoothed, over = [], [], []
        for likely in rounds:
            joint = prior * likely
            single.append(joint[:, occurred].sum(axis=1) / joint.sum(axis=1))
            beliefs = self.model.infer(likely)
            smoothed.append(beliefs.windows)
            over.append(beliefs.ever)
        subjects, own = self.subjects, np.tile(self.truth, repeats)
        spread = np.repeat(sums, np.diff(self.bounds))
        return [
            _judge(
                "window", own, alone, single, subjects,
                window=self.epsilon, share=_find_share(self.truth, self.model.groups),
            ),
            _judge(
                "window of the day", own, public.windows, smoothed, subjects,
                window=self.epsilon, several=spread,
            ),
            _judge(
                "day", np.tile(ever, repeats), public.ever, over, subjects[days], several=sums
            ),
        ]  # fmt: skip


def _judge(
    kind: GuessKind,
    truth: Bits,
    prior: Floats,
    found: Sequence[Floats],
    subjects: Whole,
    *,
    window: Floats | None = None,
    several: Floats | None = None,
    share: Floats | None = None,
) -> Guess:
    """Judge guesses; bounds are for the true `share`, or for the prior where it is unknown."""
    share = prior if share is None else share
    score, repeats = np.concatenate(found), len(found)
    before, people = np.tile(prior, repeats), np.tile(subjects, repeats)
    success, error = measure_success(truth, score, people)
    bounds = {"window": window, "several": several}
    usable = 0 < prior.mean() < 1
    curves = {
        name: None
        if epsilon is None or not usable
        else tuple(bound_detection(share, epsilon, np.array(RATES)).tolist())
        for name, epsilon in bounds.items()
    }
    limits = {
        name: None if epsilon is None else bound_success(share, epsilon)
        for name, epsilon in bounds.items()
    }
    moved = np.abs(_log_odds(score) - _log_odds(before))
    return Guess(
        kind,
        len(prior),
        float(truth.mean()),
        measure_success(truth, before, people)[0],
        success,
        error,
        limits["window"],
        limits["several"],
        _detect(truth, before),
        _detect(truth, score),
        curves["window"],
        curves["several"],
        float(moved.max(initial=0.0)),
        None if window is None else float(window.max(initial=0.0)),
        None if several is None else float(several.max(initial=0.0)),
    )


def _find_share(truth: Bits, groups: Whole) -> Floats:
    """Return for each window the true share of occurrences in its group.

    Guesses from a window's answers tell the windows of a group apart by nothing else, so the bounds
    hold for these shares. For the prior they would hold only as far as it is right.
    """
    return np.asarray((np.bincount(groups, truth) / np.bincount(groups))[groups])


def _detect(truth: Bits, score: Floats) -> tuple[float, ...] | None:
    found = measure_detection(truth, score, np.array(RATES))
    return None if found is None else tuple(found.tolist())


def _log_odds(chance: Floats) -> Floats:
    """Return log odds; certain beliefs have finite ones, so that they can be subtracted."""
    inside = np.clip(chance, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(inside) - np.log1p(-inside))
