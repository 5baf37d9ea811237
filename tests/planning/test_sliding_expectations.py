"""What plans promise where windows slide, against protected runs on fresh data."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.engines.local import survey
from tacit.errors import AuditError, PlanError, PrivacyError
from tacit.insight.audit import audit
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.evidence import Evidence, apply_flips, transition_probabilities
from tacit.privacy.mechanisms.objective import ElementObjective, flip_probability
from tacit.privacy.noise import Noise
from tacit.privacy.pane_counts import PaneCounts, spread_evenly
from tacit.privacy.policies import PrivatePattern
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tests.planning.test_expectations import (
    EVERY_WAY,
    NAMES,
    QUERIES,
    SPEC,
    SUBJECTS,
    WIDE,
    process,
    source,
)

SLIDES = pytest.mark.parametrize("panes", [2, 5])


@cache
def specification(panes: int) -> Specification:
    events = [f'  {name}: {{stream: s, where: "kind = {k}"}}' for k, name in enumerate(NAMES)]
    subjects = ", ".join(map(str, range(SUBJECTS)))
    sliding = SPEC.replace("size: 100 us", f"size: 100 us, slide: {100 // panes} us")
    return loads(sliding.format(subjects=subjects, events="\n".join(events), wide=WIDE))


@cache
def statistics(panes: int) -> list[Statistics]:
    return survey(specification(panes), source(1), literal=True)


@cache
def plan(panes: int, mechanism: str, decode: str, share: str = "1") -> Plan:
    return make_plan(
        specification(panes), statistics(panes), mechanism, decode, Fraction(share), fall_back=False
    )


def detected(parts: list[Answers]) -> NDArray[np.bool_]:
    """`[query][window and subject]`"""
    whole = np.concatenate([part.detected for part in parts])
    return whole.transpose(1, 0, 2).reshape(QUERIES, -1)


@cache
def truth(panes: int) -> NDArray[np.bool_]:
    return detected(list(Run(specification(panes), source(2))))


@cache
def answered(panes: int, mechanism: str, decode: str) -> list[Answers]:
    made = plan(panes, mechanism, decode)
    return list(Run(specification(panes), source(2), plan=made, noise=Noise(SeededSource(3))))


def furthest(panes: int, mechanism: str, decode: str, share: str = "1") -> float:
    """How many standard errors the expected counts are from the counted ones, at most."""
    expected = plan(panes, mechanism, decode, share).expected
    assert expected is not None
    found, true = detected(answered(panes, mechanism, decode)), truth(panes)
    worst = 0.0
    for promised, counted in (
        (expected.confusion.tp, (found & true).sum(axis=1)),
        (expected.confusion.fp, (found & ~true).sum(axis=1)),
        (expected.confusion.fn, (~found & true).sum(axis=1)),
    ):
        mean = (promised + counted) / 2
        # History and test are samples, and each event counts in so many windows.
        error = np.sqrt(2 * panes * np.maximum(mean, 4) * (1 - mean / true.shape[1]))
        worst = max(worst, float(np.abs((counted - promised) / error).max()))
    return worst


@pytest.mark.cases(2)
@EVERY_WAY
def test_a_protected_run_counts_what_its_plan_expects(mechanism: str, decode: str) -> None:
    assert furthest(2, mechanism, decode) < 4


@pytest.mark.soak
@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_the_same_with_more_panes(mechanism: str) -> None:
    assert furthest(5, mechanism, "posterior") < 4


@pytest.mark.cases(2)
@EVERY_WAY
def test_a_run_with_a_little_more_noise_is_told_from_the_plan(mechanism: str, decode: str) -> None:
    assert furthest(2, mechanism, decode, "0.8") > 4


@pytest.mark.cases(3)
@SLIDES
@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
def test_answers_are_right_as_often_as_they_say(mechanism: str, panes: int) -> None:
    """Over queries and deciles of confidence."""
    parts = answered(panes, mechanism, "posterior")
    right = detected(parts) == truth(panes)
    noticed = 0
    for query in range(QUERIES):
        sure = np.concatenate([part.confidence(query) for part in parts]).ravel()
        decile = np.minimum(sure * 10, 9).astype(int)
        for level in np.unique(decile):
            chosen = decile == level
            count = int(chosen.sum())
            said, was = float(sure[chosen].mean()), float(right[query][chosen].mean())
            error = np.sqrt(2 * panes * max(said * (1 - said), 0.002) / count) + panes / count
            assert abs(was - said) < 4.5 * error, (query, level, count)
            noticed += 4.5 * error < 0.05
    assert noticed >= QUERIES - 1


@SLIDES
def test_sightings_are_those_of_history(panes: int) -> None:
    found = statistics(panes)[0].pane_counts
    assert found is not None
    events = np.zeros((SUBJECTS, 60 * panes + 2 * panes, len(NAMES)), np.bool_)
    for who, at, kind in process(1).rows():
        events[who, panes + at // (100 // panes), kind] = True
    first = panes + int(process(1)["at"].min() or 0) // (100 // panes)  # type: ignore[arg-type]
    last = panes + int(process(1)["at"].max() or 0) // (100 // panes)  # type: ignore[arg-type]
    for name in ("x", "z", "w3"):
        seen = events[:, :, NAMES.index(name)]
        windows = range(first - panes + 1, last + 1)
        counts = np.bincount(
            np.concatenate([seen[:, w : w + panes].sum(axis=1) for w in windows]),
            minlength=panes + 1,
        ).astype(np.float64)
        expected = PaneCounts.from_counts(panes, {name: counts}).shares[name]
        assert found.shares[name] == pytest.approx(expected, abs=1e-12)


def test_noise_of_panes_is_what_their_flips_come_to() -> None:
    """Against all noises of all panes, written out."""
    flip, panes = 0.3, 3
    for there in range(panes + 1):
        true = np.arange(panes) < there
        shown = 0.0
        for mask in range(2**panes):
            flipped = (mask >> np.arange(panes)) & 1 > 0
            chance = np.where(flipped, flip, 1 - flip).prod()
            shown += chance * (true ^ flipped).any()
        sure = np.zeros(panes)
        sure[max(0, there - 1)] = 1
        alarm, miss = PaneCounts(panes, {"a": sure}).window_flip("a", flip)
        assert shown == pytest.approx(1 - miss if there else alarm)


@given(st.integers(1, 20), st.floats(0.001, 0.999))
def test_by_hand_panes_are_alike(panes: int, rate: float) -> None:
    shares = spread_evenly(panes, rate)
    assert shares.sum() == pytest.approx(1)
    each = 1 - (1 - rate) ** (1 / panes)
    assert shares @ np.arange(1, panes + 1) * rate == pytest.approx(panes * each)


def test_pairs_that_are_alike_are_flips() -> None:
    flips = np.array([0.1, 0.3, 0.45])
    pairs = np.stack([flips, flips], axis=1)
    rng = np.random.default_rng(1)
    windows = rng.random((4, 2, 8))
    assert np.allclose(transition_probabilities(flips), transition_probabilities(pairs))
    assert np.allclose(apply_flips(windows, flips), apply_flips(windows, pairs))
    known = Evidence(("a", "b", "c"), windows, rng.random((4, 8)))
    for decode in ("literal", "posterior"):
        one, other = (known.confusion(noise, decode) for noise in (flips, pairs))
        assert np.allclose([one.tp, one.fp, one.fn], [other.tp, other.fp, other.fn])


@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_an_objective_values_what_evidence_expects(decode: str) -> None:
    part = statistics(2)[0]
    assert part.pane_counts is not None
    evidence = [known for known in part.evidence if isinstance(known, Evidence)]
    objective = ElementObjective(
        evidence,
        [0.5] * len(evidence),
        decode=decode,  # type: ignore[arg-type]
        threshold=0.4,
        pane_counts=part.pane_counts,
    )
    epsilons = {"x": 0.7, "y": 2.0, "z": 0.1}
    right = wrong = 0.0
    for known in evidence:
        flips = np.array([flip_probability(epsilons[name]) for name in known.elements])
        noise = part.pane_counts.window_flips(known.elements, flips)
        found = known.confusion(noise, decode, 0.4)  # type: ignore[arg-type]
        right, wrong = right + found.tp, wrong + found.fp
    assert objective.value(epsilons) == pytest.approx(objective.quality(right, wrong, 0.0))
    standing = objective.at({**epsilons, "x": 2.0})
    assert standing.try_changes({"x": 0.7}) == pytest.approx(objective.value(epsilons))


@EVERY_WAY
def test_a_plan_can_be_written_and_read_and_passes_its_audit(
    mechanism: str, decode: str, tmp_path: Path
) -> None:
    made = plan(2, mechanism, decode)
    made.save(tmp_path / "plan")
    again = Plan.load(tmp_path / "plan", specification(2))
    assert again.to_dict() == made.to_dict()
    alone = Plan.load(tmp_path / "plan")  # as for an audit, without the specification
    assert alone.spec.windows.panes == 2
    reports = [audit(one) for one in (made, again, alone)]
    assert reports[0].passed
    assert reports[0] == reports[1] == reports[2]
    both = reports[0].policies[0].patterns[0]
    assert both.draws == (3 if mechanism == "optimal" else 1)
    assert both.whole is not None
    assert Fraction("2.4") < both.whole <= Fraction("2.5")
    told = str(reports[0])
    assert "epsilon for one subject, one private pattern, one occurrence" in told
    drawn = "all answers about its private patterns, one window"
    assert (drawn if mechanism == "optimal" else "one element, one pane") in told
    assert ("may change 3 windows, each with its own draw: 5/6" in told) == (mechanism == "optimal")


def test_a_plan_for_other_windows_is_refused(tmp_path: Path) -> None:
    plan(2, "uniform", "posterior").save(tmp_path / "plan")
    with pytest.raises(PlanError, match="another specification"):
        Plan.load(tmp_path / "plan", specification(5))


def test_a_plan_that_gives_windows_more_than_their_part_is_refused() -> None:
    """As if it had been made for windows that do not overlap."""
    written = plan(2, "optimal", "posterior").to_dict()
    tumbling = json.loads(json.dumps(plan(5, "optimal", "posterior").to_dict()))
    written["schemes"], five = tumbling["schemes"], written["schemes"]
    assert Plan.from_dict(written, specification(2)).mechanism == "optimal"  # less is allowed
    tumbling["schemes"] = five
    with pytest.raises((AuditError, PrivacyError, PlanError)):
        Plan.from_dict(tumbling, specification(5))


@pytest.mark.parametrize(("made", "called"), [("uniform", "optimal"), ("optimal", "adaptive")])
def test_a_plan_under_the_name_of_another_mechanism_is_refused(made: str, called: str) -> None:
    """A window would be charged as if it were another's."""
    written = plan(5, made, "posterior").to_dict() | {"mechanism": called}
    with pytest.raises(PlanError):
        Plan.from_dict(written, specification(5))


def test_what_a_window_costs() -> None:
    spec = specification(5)
    both, single, wide = spec.private
    costs = plan(5, "optimal", "posterior").spent_per_window
    assert [costs(both), costs(single)] == [Fraction("2.5") / 9, Fraction("1.5") / 5]
    assert costs(wide) == Fraction(12) / 9
    half = plan(5, "uniform", "posterior", "0.5")
    assert half.spent_per_window(both) == Fraction("1.25")
    assert PrivatePattern("p", frozenset("ab"), Fraction(1)).count_windows(1) == 1


def test_auto_takes_what_is_better() -> None:
    ways = {m: plan(2, m, "posterior").expected for m in ("uniform", "adaptive", "optimal")}
    best = max(ways, key=lambda name: ways[name].quality)  # type: ignore[union-attr]
    made = make_plan(specification(2), statistics(2), "auto", "posterior")
    assert made.mechanism == best
