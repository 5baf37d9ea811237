"""Counts: their channel is exact, and with all other answers it keeps the joint guarantee."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import AuditError, PlanError, PrivacyError
from tacit.insight.audit import audit
from tacit.planning import count_split
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.channel_audit import Neighbours
from tacit.privacy.channels import Channel
from tacit.privacy.count_channels import CountChannel, make_count_channel
from tacit.privacy.mechanisms.counts import CountLayout, CountRelease
from tacit.privacy.mechanisms.mechanism import PatternIndex
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import RandomSource, SeededSource
from tacit.spec.epsilon_split import EpsilonSplit, split_epsilon
from tacit.spec.groups import SubjectGroups
from tacit.spec.specification import Specification
from tests.privacy.enumeration import row_of, within
from tests.privacy.worlds import all_cases, broken, by_hand, furthest, random_cases, specification

Patch = pytest.MonkeyPatch
EPSILONS = ("0.05", "0.3", "1", "2.5", "6", "40")


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("most", [1, 4, 9])
def test_all_neighbouring_counts_are_within_epsilon(epsilon: str, most: int) -> None:
    exact = Fraction(Decimal(epsilon))
    channel = make_count_channel(exact, most)
    table = [row_of(channel, count) for count in range(most + 1)]
    assert {sum(row) for row in table} == {2**63}
    pairs = [Neighbours([count, count + 1], exact) for count in range(most)]
    found = Channel(table, pairs).audit()  # compares every column, and raises if one fails
    assert found.worst is not None
    assert found.worst.ratio == channel.ratio


def test_the_noise_is_geometric_but_for_the_last_digits() -> None:
    channel = make_count_channel(Fraction(1))
    ratio = np.exp(-1.0)
    peak = (1 - ratio) / (1 + ratio)
    for distance in range(20):
        share = channel.weights[distance] / 2**63
        assert share == pytest.approx(peak * ratio**distance, rel=1e-9)
    assert channel.weights[-1] >= 1
    assert 0 <= channel.remainder < 2**20


def test_a_geometric_that_is_only_rounded_fails_the_audit() -> None:
    ratio = np.exp(-1.0)
    peak = (1 - ratio) / (1 + ratio) * 2**63
    rounded = [max(1, round(peak * ratio**distance)) for distance in range(60)]
    rounded[0] -= 2 * 10**8
    with pytest.raises(AuditError):
        CountChannel(Fraction(1), tuple(rounded))


def test_groups_may_have_millions_of_subjects_and_epsilon_has_a_least_value() -> None:
    channel = make_count_channel(Fraction(1))
    assert channel.most >= 10**6
    drawn = channel.draw(np.array([0, 10**6, channel.most]), SeededSource(1))
    assert (abs(drawn - [0, 10**6, channel.most]) < 40).all()
    with pytest.raises(PrivacyError, match="at most"):
        channel.draw(np.array([channel.most + 1]), SeededSource(1))
    with pytest.raises(PrivacyError, match="at least"):
        make_count_channel(Fraction(1, 10**6))


class GivenWords(RandomSource):
    """Gives these words."""

    private = False

    def __init__(self, words: list[int]) -> None:
        self.words = np.array(words, np.uint64)

    def draw(self, number: int) -> bytes:
        """Give all of them."""
        assert number == 8 * len(self.words)
        return self.words.tobytes()


@pytest.mark.parametrize("count", [0, 2, 3])
def test_every_output_is_drawn_for_exactly_as_many_numbers_as_its_entry(count: int) -> None:
    """The numbers of an output form intervals; their ends show how many there are."""
    channel = make_count_channel(Fraction(3), 3)
    band = [w - channel.floor for w in channel.weights[:-1]]
    lengths = [*band[:0:-1], *band, *[channel.floor] * channel.columns, channel.remainder]
    outputs = [count + place for place in range(1 - channel.reach, channel.reach)]
    outputs += [*range(-channel.reach, channel.most + channel.reach + 1), -channel.reach]
    ends = np.cumsum(np.array(lengths, object))
    assert ends[-1] == 2**63
    total: Counter[int] = Counter()
    for length, output, end in zip(lengths, outputs, ends, strict=True):
        if length:
            words = [2 * (end - length), 2 * (end - 1) + 1]
            drawn = channel.draw(np.array([count, count]), GivenWords(words))
            assert drawn.tolist() == [output, output]
        total[output] += length
    assert [total[o] for o in sorted(total)] == row_of(channel, count)


def distance_from(epsilon: Fraction, drawn: np.ndarray[Any, Any]) -> float:
    """Chi-square of the distances 0 to 5 and beyond, by their degrees of freedom."""
    shares = np.array([w / 2**63 for w in make_count_channel(epsilon).weights[:6]])
    shares[1:] *= 2
    expected = len(drawn) * np.append(shares, 1 - shares.sum())
    seen = np.bincount(np.minimum(abs(drawn), 6), minlength=7)
    return float(((seen - expected) ** 2 / expected).sum() / 6)


def test_draws_come_as_often_as_the_table_says_and_not_as_a_nearby_one_does() -> None:
    channel = make_count_channel(Fraction(1))
    drawn = channel.draw(np.full(400_000, 7), SeededSource(3)) - 7
    assert distance_from(Fraction(1), drawn) < 3
    assert distance_from(Fraction(102, 100), drawn) > 5
    assert abs(drawn.mean()) < 5 * drawn.std() / len(drawn) ** 0.5
    assert abs(drawn).mean() == pytest.approx(channel.mean_error, rel=0.01)
    inside = (abs(drawn) <= channel.half_width).mean()
    assert inside == pytest.approx(channel.coverage, abs=0.002)
    assert channel.coverage >= 0.95


@given(st.fractions(Fraction(1, 50), 8, max_denominator=1000))
@settings(max_examples=30)
def test_channels_of_all_epsilons_are_tight(epsilon: Fraction) -> None:
    channel = make_count_channel(epsilon)
    assert channel.true_epsilon == pytest.approx(float(epsilon), rel=1e-6)
    assert channel.remainder < 2**40


MIXED = {
    "counts beside answers": specification(
        [("AND(a, b)", "8"), ("b", "5")], ["AND(a, s)"], types="abs", counts=["a", "AND(b, s)"]
    ),
    "counts alone": specification([("AND(a, b)", "4")], ["s"], types="abs", counts=["OR(a, b)"]),
    "one pattern counted, the other asked": specification(
        [("a", "4"), ("b", "5")], ["SEQ(b, s)"], types="abs", counts=["SEQ(a, s)"]
    ),
    "a count of public events": specification(
        [("a", "2")], ["AND(a, s)"], types="as", counts=["SEQ(s, s)"]
    ),
    "order and several counts": specification(
        [("SEQ(a, b)", "9")], ["SEQ(a, b)"], types="abs", counts=["SEQ(a, s)", "SEQ(b, NOT a)"]
    ),
    "a count from answers, beside one with a channel": specification(
        [("AND(a, b)", "6")],
        ["AND(a, s)", "OR(b, s)"],
        types="abs",
        counts=["OR(b, s)", "b"],
        told=[0],
    ),
}


def plain(spec: Specification, mechanism: str) -> Plan:
    return make_plan(spec, by_hand(spec, {}), mechanism, "posterior")


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
@pytest.mark.parametrize("name", MIXED)
def test_counts_and_answers_together_keep_the_joint_guarantee(name: str, mechanism: str) -> None:
    spec = MIXED[name]
    plan = plain(spec, mechanism)
    found = furthest(spec, plan, random_cases(1, spec, bases=2, number=6))
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
    assert any(ratio != 1 for _, ratio in found.values())
    report = audit(plan)
    assert report.passed
    for one in report.policies[0].patterns:
        assert one.whole is not None
        assert one.name in found
        assert within(found[one.name][1], one.whole)  # the audit does not say less than there is
        assert one.whole <= one.asked


def test_subjects_with_several_policies_share_the_least_epsilon() -> None:
    spec = specification(
        [("a", "4"), ("AND(a, b)", "3", "x")], ["AND(a, s)"], types="abs", counts=["a"]
    )
    assert plain(spec, "uniform").counts == {"n0": Fraction(3, 2)}
    assert not broken(spec, plain(spec, "uniform"), random_cases(2, spec, bases=1, number=5))


def test_epsilon_of_counts_is_not_wasted() -> None:
    spec = specification([("a", "4")], ["s"], types="as", counts=["a"])
    ((epsilon, ratio),) = furthest(spec, plain(spec, "uniform"), all_cases(spec)).values()
    assert ratio is not None
    assert 0.7 * np.exp(float(epsilon)) < float(ratio) <= np.exp(float(epsilon))


# Mistakes that the same check has to find


def test_counts_and_mechanism_with_all_of_epsilon_each_are_noticed(monkeypatch: Patch) -> None:
    spec = specification([("a", "3")], ["AND(a, s)"], types="as", counts=["a"])
    assert not broken(spec, plain(spec, "uniform"), all_cases(spec))

    def greedy(spec: Specification) -> EpsilonSplit:
        """Everything twice."""
        whole = {name: Fraction(3) for name in split_epsilon(spec).counts}
        return EpsilonSplit(whole, {"a": Fraction(1)})

    monkeypatch.setattr(count_split, "split_epsilon", greedy)
    with pytest.raises(PlanError, match="more than the epsilon"):
        plain(spec, "uniform")
    monkeypatch.setattr(Plan, "check_counts", lambda _: None)
    assert broken(spec, plain(spec, "uniform"), all_cases(spec)) == ["a"]
    assert not audit(plain(spec, "uniform")).passed


def test_a_decision_that_knows_private_events_is_noticed(monkeypatch: Patch) -> None:
    spec = specification([("a", "3")], ["s"], types="as", counts=["AND(a, s)"])
    assert not broken(spec, plain(spec, "uniform"), all_cases(spec))
    decide = CountRelease._decide

    def exact(self: CountRelease, windows: Any, policies: Any) -> Any:
        """Noise only where the pattern is detected: noise on demand."""
        opened, decided = decide(self, windows, policies)
        return opened & windows.bits[:, self._status.columns], decided

    monkeypatch.setattr(CountRelease, "_decide", exact)
    assert broken(spec, plain(spec, "uniform"), all_cases(spec)) == ["a"]


def test_an_estimate_that_reads_true_answers_is_noticed(monkeypatch: Patch) -> None:
    spec = specification([("a", "2")], ["AND(a, s)"], types="as", counts=["AND(a, s)"], told=[0])
    plan = plain(spec, "uniform")
    assert plan.counts == {"n0": 0}
    assert plan.answer_counts["n0"].query == "q0"
    assert plan.share_of("a") == 1  # answers have all of epsilon
    assert not broken(spec, plan, all_cases(spec))
    draw = CountRelease.draw

    def peek(self: CountRelease, windows: Any, *rest: Any) -> Any:
        """Estimate from what is true, not from what is released."""
        *others, answers = rest
        true = answers._replace(bits=windows.bits[:, self._status.columns])
        return draw(self, windows, *[*others, true])

    monkeypatch.setattr(CountRelease, "draw", peek)
    assert broken(spec, plan, all_cases(spec)) == ["a"]


def test_several_counts_that_do_not_share_epsilon_are_noticed(monkeypatch: Patch) -> None:
    spec = specification([("a", "4")], ["s"], types="as", counts=["a", "AND(a, s)"])
    assert not broken(spec, plain(spec, "uniform"), all_cases(spec))
    monkeypatch.setattr(Plan, "check_counts", lambda _: None)
    monkeypatch.setattr(
        count_split,
        "split_epsilon",
        lambda spec: EpsilonSplit({name: Fraction(4) for name in spec.count_patterns}, {}),
    )
    assert broken(spec, plain(spec, "uniform"), all_cases(spec)) == ["a"]


def test_a_plan_whose_counts_spend_more_is_refused() -> None:
    spec = specification([("a", "3")], ["AND(a, s)"], types="as", counts=["a"])
    written = plain(spec, "uniform").to_dict()
    assert Plan.from_dict(written, spec).counts == {"n0": Fraction(3, 2)}
    with pytest.raises(PlanError, match="more than the epsilon"):
        Plan.from_dict(written | {"counts": {"n0": "1.6"}}, spec)
    with pytest.raises(PlanError, match="other counts"):
        Plan.from_dict(written | {"counts": {}}, spec)
    with pytest.raises(PlanError, match="damaged"):
        Plan.from_dict(written | {"shares": {"a": "0"}, "counts": {"n0": "3"}}, spec)
    with pytest.raises(PlanError, match="how each count is made"):
        Plan.from_dict(written | {"counts": {"n0": "0"}}, spec)
    other = {"query": "q0", "slope": 1, "base": 0, "noise": 0.2, "drift": 0.1, "error": 1}
    with pytest.raises(PlanError, match="how each count is made"):  # q0 asks something else
        Plan.from_dict(written | {"counts": {"n0": "0"}, "answer_counts": {"n0": other}}, spec)


def test_a_run_without_an_epsilon_for_a_count_is_refused() -> None:
    spec = specification([("a", "3")], ["s"], types="as", counts=["a"])
    layout = CountLayout(spec, SubjectGroups({"own": {}}))
    with pytest.raises(PrivacyError, match="has no epsilon"):
        CountRelease(spec, {}, layout, PatternIndex(), Noise(SeededSource(1)))
