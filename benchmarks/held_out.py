"""Expected quality against quality on fresh windows, over random specifications.

`python -m benchmarks.held_out [SPECIFICATIONS [MOST_QUERIES [FIRST]]]` draws specifications of
every kind and size: few and many queries, private patterns with and without common elements, rare
and common events, short and long history. For each it plans with every mechanism, and runs the plan
on windows of the same process that it was not made from. The specifications are those of the seeds
from FIRST on; without it, others are drawn each time.

The same for plans with memory: their windows are those of subjects, in order of time, and what is
there lasts for some windows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation.measurement import (
    Streams,
    answer,
    compute_statistics,
    compute_true_bits,
    unpack,
)
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.tree import And, Name, Not, Or, Pattern
from tacit.planning.plan import Plan
from tacit.planning.planner import choose_optimal, compare_mechanisms, make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion, QualityObjective
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.mechanisms import AUTO, MECHANISMS
from tacit.spec.specification import Private, Query, Specification
from tacit.windows.schedule import Windows

Presence = NDArray[np.bool_]

SUBJECTS = 60
"""The number of subjects with memory, in history; twice as many have fresh windows."""
WINDOWS = 120
"""The number of their windows; half as many fresh ones come before those that are judged."""


@dataclass(frozen=True)
class World:
    """A specification, and a process that draws windows for it."""

    spec: Specification
    moods: NDArray[np.float64]
    """`[mood][event type]`: the probability of the event type in a window of this mood."""
    history: int
    """The number of windows of history."""
    lasting: float = 0.0
    """How likely a mood, and each event type, stays as it is from one window to the next."""

    def draw(self, windows: int, seed: int) -> Presence:
        """Draw windows, each in one of the moods."""
        random = np.random.default_rng(seed)
        mood = random.integers(0, len(self.moods), windows)
        return np.asarray(random.random((windows, self.moods.shape[1])) < self.moods[mood])

    def draw_streams(self, subjects: int, windows: int, seed: int) -> Presence:
        """Draw `[subject][window][event type]`: windows in order of time."""
        random = np.random.default_rng(seed)
        types = self.moods.shape[1]
        mood = random.integers(0, len(self.moods), subjects)
        there = random.random((subjects, types)) < self.moods[mood]
        found = np.empty((subjects, windows, types), np.bool_)
        for window in range(windows):
            found[:, window] = there
            other = random.integers(0, len(self.moods), subjects)
            mood = np.where(random.random(subjects) < self.lasting, mood, other)
            drawn = random.random((subjects, types)) < self.moods[mood]
            there = np.where(random.random((subjects, types)) < self.lasting, there, drawn)
        return found


def draw_world(seed: int, most_queries: int = 24) -> World:
    """Draw a specification and its process."""
    random = np.random.default_rng([seed, 16])
    public = [f"b{n}" for n in range(random.integers(1, 13))]
    private = [f"x{n}" for n in range(random.integers(1, 9))]
    names = public + private
    rare = random.random() < 0.3
    rates = random.beta(0.6, 6.0 if rare else 1.5, (int(random.integers(1, 4)), len(names)))
    number = int(random.integers(1, 4))
    groups = [
        random.choice(private, min(len(private), int(random.integers(1, 4))), replace=False)
        for _ in range(number)
    ]
    if random.random() < 0.4:  # without common elements
        parts = np.array_split(random.permutation(private), min(number, len(private)))
        groups = [part for part in parts if len(part)]
    queries = int(np.exp(random.uniform(0, np.log(most_queries))))
    return World(
        Specification(
            streams={"s": Stream(subject="subject", time="time")},
            windows=Windows(size="1 min"),
            events={
                name: EventType(stream="s", where=f"kind = {n}") for n, name in enumerate(names)
            },
            private=tuple(
                Private(
                    pattern=And(*map(str, group)) if len(group) > 1 else Name(str(group[0])),
                    epsilon=round(float(random.uniform(0.3, 4)), 2),
                )
                for group in groups
            ),
            queries=tuple(
                Query(name=f"q{n}", consumer="all", pattern=_draw_query(random, public, private))
                for n in range(queries)
            ),
        ),
        np.clip(rates, 0.002, 0.998),
        int(np.exp(random.uniform(np.log(300), np.log(6000)))),
    )


def draw_lasting_world(seed: int, most_queries: int = 24) -> World:
    """Draw the same, with windows that tell about the next."""
    lasting = np.random.default_rng([seed, 17]).uniform(0.8, 0.97)
    return replace(draw_world(seed, most_queries), lasting=float(lasting))


def _draw_query(random: np.random.Generator, public: list[str], private: list[str]) -> Pattern:
    """Draw an AND or OR of a few event types, some of them negated or nested."""

    def leaf() -> Pattern:
        name = Name(str(random.choice(private if random.random() < 0.6 else public)))
        return Not(name) if random.random() < 0.2 else name

    parts = [leaf() for _ in range(int(random.integers(1, 4)))]
    if random.random() < 0.3:
        parts.append((Or if random.random() < 0.5 else And)(leaf(), leaf()))
    if len(parts) == 1:
        return parts[0]
    return (And if random.random() < 0.6 else Or)(*parts)


@dataclass(frozen=True)
class Comparison:
    """What a plan expects, and what it gets on fresh windows."""

    mechanism: str
    expected: float
    found: float
    """The quality of the answers of a run."""
    error: float
    """The standard error of the difference, from both samples: history and fresh windows."""
    averaged: float
    """The quality with the noise averaged: what is compared between mechanisms."""

    @property
    def deviation(self) -> float:
        """How many standard errors the two differ by."""
        return (self.expected - self.found) / max(self.error, 1e-4)


def compare(world: World, seed: int, fresh: int = 20_000) -> list[Comparison]:
    """Plan with every mechanism and with auto, and judge the plans on fresh windows."""
    history = compute_statistics(world.spec, world.draw(world.history, 2 * seed))
    windows = world.draw(fresh, 2 * seed + 1)
    test = compute_statistics(world.spec, windows)[0]
    ranked = compare_mechanisms(world.spec, history)
    plans = {plan.mechanism: plan for plan in ranked} | {AUTO: ranked[0]}
    alphas = tuple(query.alpha for query in world.spec.queries)
    plans["optimal"] = choose_optimal(plans["optimal"], plans["adaptive"], QualityObjective(alphas))
    judged = {id(plan): judge_plan(plan, windows, world.history, test) for plan in plans.values()}
    return [replace(judged[id(plans[name])], mechanism=name) for name in (*MECHANISMS, AUTO)]


def compare_memory(world: World, seed: int) -> Comparison | None:
    """Plan with memory, and judge it on windows of other subjects; None if the plan has none."""
    history = Streams(world.draw_streams(SUBJECTS, WINDOWS, 2 * seed))
    plan = make_plan(
        world.spec, compute_statistics(world.spec, history), "optimal", fall_back=False
    )
    if not plan.has_memory:
        return None
    first = WINDOWS // 2
    fresh = world.draw_streams(2 * SUBJECTS, first + WINDOWS, 2 * seed + 1)
    before, windows = Streams(fresh[:, :first]), Streams(fresh[:, first:], first)
    return judge_plan(plan, windows, SUBJECTS * WINDOWS, before=before)


def judge_plan(
    plan: Plan,
    windows: Presence | Streams,
    history: int,
    test: Statistics | None = None,
    before: Streams | None = None,
) -> Comparison:
    """Run a plan on fresh windows; return its quality, and the error of the difference.

    `test` are the statistics of these windows, to average noise. With memory there are windows
    `before` them instead.
    """
    alpha = float(np.mean(plan.expected.alphas)) if plan.expected else 0.5
    total, spread = run_plan(plan, windows, alpha, before=before)
    number = len(windows.flat) if isinstance(windows, Streams) else len(windows)
    error = spread * (1 / history + 1 / number) ** 0.5
    # Ratios of small counts are skewed: a term that falls with the counts themselves.
    fewest = min(total.tp + total.fn, total.tp + total.fp) * history / number
    error += 0.25 / max(fewest, 0.25)
    expected = plan.expected.quality if plan.expected else 0.0
    found = total.quality(alpha)
    if test is None:
        return Comparison("memory", expected, found, float(error), found)
    (mechanism,) = plan.mechanisms
    averaged = mechanism.expect(test).total().quality(alpha)
    return Comparison(plan.mechanism, expected, found, float(error), averaged)


def run_plan(
    plan: Plan,
    windows: Presence | Streams,
    alpha: float,
    draws: int = 4,
    before: Streams | None = None,
) -> tuple[Confusion[float], float]:
    """Count the answers of a run, averaged over some draws.

    Return also the standard deviation of what one window adds to the quality, times their number.
    Windows of one subject hang together, so it is that of the subjects' means, scaled.
    """
    streams = windows if isinstance(windows, Streams) else Streams(windows[:, np.newaxis])
    subjects, length, _ = streams.presence.shape
    noise = Noise(SeededSource(1))
    if before is None:
        given = answer(plan, np.tile(streams.flat, (draws, 1)), noise)
    else:
        again, earlier = (
            replace(part, presence=np.tile(part.presence, (draws, 1, 1)))
            for part in (streams, before)
        )
        given = answer(plan, again, noise, before=earlier)
    given = given.reshape(len(given), draws, subjects, length).mean(axis=1)
    true = unpack(compute_true_bits(plan.spec, streams), subjects).transpose(1, 2, 0)
    found, claimed, there = (x.sum(axis=0) for x in (given * true, given, true.astype(np.float64)))
    both = float(found.sum())
    total = Confusion(both, float(claimed.sum()) - both, float(there.sum()) - both)
    precision, recall = (found.sum() / max(whole.sum(), 1e-9) for whole in (claimed, there))
    added = alpha * (found - precision * claimed) / max(claimed.mean(), 1e-9)
    added = added + (1 - alpha) * (found - recall * there) / max(there.mean(), 1e-9)
    return total, float(added.mean(axis=1).std() * length**0.5)


def find_faults(row: list[Comparison]) -> list[str]:
    """Say what is wrong with the plans of one specification.

    Expected quality may be off by four standard errors. Other mechanisms may be better than the one
    that auto takes, and adaptive than optimal, by a hundredth.
    """
    faults = [f"{one.mechanism} is off" for one in row if abs(one.deviation) > 4]
    *each, auto = (one.averaged for one in row)
    if auto < max(each) - 0.01:
        faults.append("auto is behind")
    if each[2] < each[1] - 0.01:
        faults.append("optimal is behind adaptive")
    return faults


def find_bias(rows: list[Comparison]) -> float:
    """Return how many standard errors one mechanism is off by over many specifications."""
    return float(sum(one.deviation for one in rows) / np.sqrt(len(rows)))


def main(specifications: int = 300, most_queries: int = 60, first: int | None = None) -> int:
    """Print a line for each specification with a fault, and a summary; return their number."""
    first = first if first is not None else int(np.random.default_rng().integers(10**6, 10**9))
    print(f"Specifications {first} to {first + specifications - 1}, up to {most_queries} queries")
    found: list[list[Comparison]] = []
    bad = 0
    for seed in range(first, first + specifications):
        world = draw_world(seed, most_queries)
        row = compare(world, seed)
        found.append(row)
        if faults := find_faults(row):
            bad += 1
            print(
                f"{seed}: {', '.join(faults)};",
                f"{len(world.spec.queries)} queries, {world.history} windows;",
                ", ".join(
                    f"{one.mechanism} {one.expected:.3f} got {one.found:.3f} ({one.deviation:+.1f})"
                    for one in row
                ),
                flush=True,
            )
    for place, name in enumerate((*MECHANISMS, AUTO)):
        rows = [row[place] for row in found]
        gaps = np.array([one.expected - one.found for one in rows])
        deviations = np.array([one.deviation for one in rows])
        bias = find_bias(rows)
        bad += abs(bias) > 4
        print(
            f"{name}: mean gap {gaps.mean():+.4f} ({bias:+.1f} standard errors), deviations spread"
            f" by {deviations.std():.2f}, beyond 3: {np.mean(abs(deviations) > 3):.1%},"
            f" largest {abs(deviations).max():.1f}"
        )
    lost = [max(one.averaged for one in row[:-1]) - row[-1].averaged for row in found]
    behind = [row[1].averaged - row[2].averaged for row in found]
    bad += check_memory(first, specifications, most_queries)
    print(
        f"auto behind the best: at most {max(lost):.4f}; optimal behind adaptive: {max(behind):.4f}"
    )
    return bad


def check_memory(first: int, specifications: int, most_queries: int) -> int:
    """Print the same for plans with memory; return the number of faults."""
    found, bad = [], 0
    for seed in range(first, first + specifications):
        one = compare_memory(draw_lasting_world(seed, most_queries), seed)
        if one is None:
            continue
        found.append(one)
        if abs(one.deviation) > 4:
            bad += 1
            print(f"{seed}: memory is off; {one.expected:.3f} got {one.found:.3f}", flush=True)
    if not found:
        return bad
    bias = find_bias(found)
    deviations = np.array([one.deviation for one in found])
    gap = np.mean([one.expected - one.found for one in found])
    print(
        f"memory, {len(found)} specifications: mean gap {gap:+.4f} ({bias:+.1f} standard errors),"
        f" deviations spread by {deviations.std():.2f}, largest {abs(deviations).max():.1f}"
    )
    return bad + (abs(bias) > 4)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
