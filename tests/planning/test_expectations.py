"""What plans promise, against protected runs on fresh data: counts, and how sure answers are."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SUBJECTS, WINDOWS = 200, 60
NAMES = ("a", "b", "c", "x", "y", "z", *(f"w{n}" for n in range(7)))
WIDE = ", ".join(f"w{n}" for n in range(7))
SPEC = """
version: 1
subjects: [{subjects}]
streams: {{s: {{subject: who, time: at, unit: us}}}}
windows: {{size: 100 us}}
events:
{events}
private:
  - {{pattern: "AND(x, y)", epsilon: 2.5}}
  - {{pattern: z, epsilon: 1.5}}
  - {{pattern: "OR({wide})", epsilon: 12}}
queries:
  - {{name: plain, consumer: c, pattern: "AND(a, b)"}}
  - {{name: there, consumer: c, pattern: "AND(a, x)"}}
  - {{name: either, consumer: c, pattern: "OR(AND(b, y), AND(a, c, NOT z))"}}
  - {{name: order, consumer: c, pattern: "SEQ(a, x)"}}
  - {{name: gap, consumer: c, pattern: "AND(SEQ(y, NOT b, c), OR(x, z))"}}
  - {{name: many, consumer: c, pattern: "OR(AND(a, w0, w1), AND(b, OR({wide})))"}}
"""
QUERIES = 6
WAYS = [(m, d) for m in ("uniform", "adaptive", "optimal") for d in ("posterior", "literal")]
EVERY_WAY = pytest.mark.parametrize(("mechanism", "decode"), WAYS)


@cache
def specification() -> Specification:
    events = [f'  {name}: {{stream: s, where: "kind = {k}"}}' for k, name in enumerate(NAMES)]
    subjects = ", ".join(map(str, range(SUBJECTS)))
    return loads(SPEC.format(subjects=subjects, events="\n".join(events), wide=WIDE))


@cache
def process(seed: int) -> pl.DataFrame:
    """Windows in one of two moods, in which events are more or less likely, at any time."""
    rng = np.random.default_rng(seed)
    mood = rng.random((WINDOWS, SUBJECTS)) < 0.5
    likely = (0.6, 0.6, 0.4, 0.6, 0.5, 0.4, *[0.08] * 7)
    unlikely = (0.4, 0.3, 0.5, 0.2, 0.3, 0.2, *[0.04] * 7)
    frames = []
    for kind, (high, low) in enumerate(zip(likely, unlikely, strict=True)):
        window, who = np.nonzero(rng.random(mood.shape) < np.where(mood, high, low))
        times = window * 100 + rng.integers(0, 100, len(window))
        kinds = np.full(len(window), kind)
        frames.append(pl.DataFrame({"who": who, "at": times, "kind": kinds}))
    return pl.concat(frames).sort("at")


def source(seed: int) -> list[Input]:
    return [Input("s", FrameSource(process(seed), "s"))]


@cache
def statistics(seed: int = 1) -> list[Statistics]:
    return survey(specification(), source(seed), literal=True)


@cache
def plan(mechanism: str, decode: str, share: str = "1") -> Plan:
    return make_plan(
        specification(), statistics(), mechanism, decode, Fraction(share), fall_back=False
    )


def detected(parts: list[Answers]) -> NDArray[np.bool_]:
    """`[query][window and subject]`"""
    whole = np.concatenate([part.detected for part in parts])
    return whole.transpose(1, 0, 2).reshape(QUERIES, -1)


@cache
def truth() -> NDArray[np.bool_]:
    return detected(list(Run(specification(), source(2))))


@cache
def answered(mechanism: str, decode: str) -> list[Answers]:
    made = plan(mechanism, decode)
    return list(Run(specification(), source(2), plan=made, noise=Noise(SeededSource(4))))


def furthest(mechanism: str, decode: str, share: str = "1") -> float:
    """How many standard errors the expected counts are from the counted ones, at most."""
    ((made, later),) = zip(plan(mechanism, decode, share).mechanisms, statistics(2), strict=True)
    expected = made.expect(later)
    found, true = detected(answered(mechanism, decode)), truth()
    worst = 0.0
    for promised, counted in (
        (expected.tp, (found & true).sum(axis=1)),
        (expected.fp, (found & ~true).sum(axis=1)),
        (expected.fn, (~found & true).sum(axis=1)),
    ):
        mean = (promised + counted) / 2
        # Some expectations are from samples too: at most twice the variance of one.
        error = np.sqrt(2 * np.maximum(mean, 4) * (1 - mean / true.shape[1]))
        worst = max(worst, float(np.abs((counted - promised) / error).max()))
    return worst


@pytest.mark.cases(3)
@EVERY_WAY
def test_a_protected_run_counts_what_its_plan_expects(mechanism: str, decode: str) -> None:
    """On windows that the plan has not seen, for queries of presence, of order, and wide ones."""
    assert furthest(mechanism, decode) < 4


@pytest.mark.cases(3)
@EVERY_WAY
def test_the_quality_of_a_plan_is_that_of_a_run_on_later_windows(
    mechanism: str, decode: str
) -> None:
    """Though thresholds of single folds may differ from the plan's."""
    expected = plan(mechanism, decode).expected
    assert expected is not None
    found, true = detected(answered(mechanism, decode)), truth()
    counted = Confusion(
        float((found & true).sum()), float((found & ~true).sum()), float((~found & true).sum())
    )
    assert counted.quality(0.5) == pytest.approx(expected.quality, abs=0.012)


@pytest.mark.cases(2)
@EVERY_WAY
def test_a_run_with_a_little_more_noise_is_told_from_the_plan(mechanism: str, decode: str) -> None:
    """What would be expected with four fifths of epsilon is not what is counted."""
    assert furthest(mechanism, decode, "0.8") > 4


@pytest.mark.cases(2)
@EVERY_WAY
def test_answers_are_right_as_often_as_they_say(mechanism: str, decode: str) -> None:
    """Over queries and deciles of confidence; a lie of a twentieth would be noticed."""
    parts = answered(mechanism, decode)
    right = detected(parts) == truth()
    noticed = 0
    for query in range(QUERIES):
        sure = np.concatenate([part.confidence(query) for part in parts]).ravel()
        decile = np.minimum(sure * 10, 9).astype(int)
        for level in np.unique(decile):
            chosen = decile == level
            count = int(chosen.sum())
            said, was = float(sure[chosen].mean()), float(right[query][chosen].mean())
            # A history of as many windows is behind the confidence, so twice the variance.
            error = np.sqrt(2 * max(said * (1 - said), 0.002) / count) + 1 / count
            assert abs(was - said) < 4.5 * error, (query, level, count)
            noticed += 4.5 * error < 0.05
    assert noticed >= QUERIES


def test_queries_that_touch_nothing_private_are_exact_and_sure() -> None:
    for mechanism, decode in WAYS:
        parts = answered(mechanism, decode)
        assert np.array_equal(detected(parts)[0], truth()[0])
        assert all((part.confidence(0) == 1).all() for part in parts)
