"""Attacks: as strong as the bounds where that is possible, and never stronger."""

from __future__ import annotations

import json
from itertools import product
from math import exp
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tacit
from tacit.errors import OptionError, PlanError, SourceError
from tacit.insight import attack_channels
from tacit.insight.attack_model import AttackChain, Model, infer
from tacit.insight.attack_report import RATES, AttackReport, Guess
from tacit.privacy.channels import Channel
from tests.cli.small_runs import tacit as command
from tests.insight.leak_data import draw_stays
from tests.longer import longer

TIGHT = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 h}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
  c: {stream: s, where: "kind = 'c'"}
private: [{pattern: a, epsilon: 1}]
queries: [{name: asked, consumer: us, pattern: a}]
mechanism: uniform
"""
OPTIMAL = TIGHT.replace("epsilon: 1}", "epsilon: 2}").replace("uniform", "optimal")
"""At epsilon 1 the best answer would be a yes in every window, which reveals nothing."""


def tuples(present: dict[str, NDArray[np.bool_]]) -> pl.DataFrame:
    """An event for each kind, subject and hour in which it is present, `[subject][window]`."""
    parts = []
    for kind, there in present.items():
        subject, window = np.nonzero(there)
        parts.append(pl.DataFrame({"who": subject, "at": window * 3600 + 60, "kind": kind}))
    subjects, windows = next(iter(present.values())).shape
    # Everybody is heard in the first and the last window.
    ends = np.array([(s, w * 3600) for s in range(subjects) for w in (0, windows - 1)])
    parts.append(pl.DataFrame({"who": ends[:, 0], "at": ends[:, 1], "kind": "none"}))
    return pl.concat(parts).sort("at")


def attacked(spec: str, history: pl.DataFrame, period: str = "1 d", **more: object) -> AttackReport:
    """The attack on the best plan for a history."""
    loaded = tacit.loads(spec)
    mechanism = more.get("mechanism")
    plan = tacit.plan(loaded, history, mechanism=None if mechanism is None else str(mechanism))
    return tacit.attack(loaded, history, plan=plan, period=period)


def check_bounds(guess: Guess) -> None:
    """No guess is above the bound that applies, beyond sampling error."""
    applying = guess.window_bound if guess.kind == "window" else guess.several_bound
    curve = guess.window_detection if guess.kind == "window" else guess.several_detection
    epsilon = guess.window_epsilon if guess.kind == "window" else guess.several_epsilon
    assert applying is not None
    assert epsilon is not None
    assert guess.attacker <= applying + 4 * guess.error + 1 / guess.number
    assert guess.moved <= epsilon + 1e-6, "the odds, whatever the sample"
    if guess.detection is not None and curve is not None:
        positives = max(1.0, guess.number * guess.share)
        for found, most in zip(guess.detection, curve, strict=True):
            slack = 0.001 if guess.kind == "window" else 0.02  # a prior may be wrong
            assert found <= most + 5 * np.sqrt(most * (1 - most) / positives) + slack


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=20)
def test_beliefs_equal_a_sum_over_all_paths(seed: int) -> None:
    chance = np.random.default_rng(seed)
    states, groups, length = 3, 2, 4
    chain = AttackChain(
        chance.dirichlet(np.ones(states), groups),
        chance.dirichlet(np.ones(groups), (groups, states)),
        chance.dirichlet(np.ones(states), (groups, states)),
        np.array([False, True, bool(seed % 2)]),
    )
    seen = chance.integers(0, groups, 2 * length)
    likely = chance.random((2 * length, states)) + 0.01
    bounds = np.array([0, length, 2 * length])
    for symbols in (likely, None):
        beliefs = infer(chain, seen, symbols, bounds)
        for sequence in range(2):
            own = slice(sequence * length, (sequence + 1) * length)
            total, never, at = 0.0, 0.0, np.zeros(length)
            for path in product(range(states), repeat=length):
                weight = chain.start[seen[own][0], path[0]]
                for t, state in enumerate(path):
                    weight *= 1.0 if symbols is None else symbols[own][t, state]
                    if t:
                        last, now = seen[own][t - 1 : t + 1]
                        weight *= chain.public[last, path[t - 1], now]
                        weight *= chain.moves[now, path[t - 1], state]
                total += weight
                at += weight * chain.occurred[list(path)]
                never += 0.0 if chain.occurred[list(path)].any() else weight
            assert beliefs.windows[own] == pytest.approx(at / total)
            assert beliefs.ever[sequence] == pytest.approx(1 - never / total)


def independent() -> pl.DataFrame:
    """One event, present in half of the windows, independently."""
    return tuples({"a": np.random.default_rng(0).random((150, 72)) < 0.5})


@pytest.fixture(scope="module")
def tight() -> AttackReport:
    """The attack on a query that asks directly."""
    return attacked(TIGHT, independent())


@pytest.mark.parametrize(("spec", "epsilon"), [(TIGHT, 1.0), (OPTIMAL, 2.0)])
def test_one_window_reaches_its_bound_on_a_tight_specification(spec: str, epsilon: float) -> None:
    (pattern,) = attacked(spec, independent()).patterns
    one = pattern.guesses[0]
    best = exp(epsilon) / (1 + exp(epsilon))
    assert one.window_bound == pytest.approx(best, abs=0.003)
    assert one.attacker == pytest.approx(best, abs=4 * one.error)
    assert one.prior == pytest.approx(0.5, abs=0.01)
    assert one.moved == pytest.approx(epsilon, abs=0.001)
    for rate in (0.001, 0.01, 0.1):
        _, found, most, _ = one.detection_at(rate)
        assert found == pytest.approx(most, rel=0.1)
    check_bounds(one)


def test_several_windows_reach_their_bound_where_the_pattern_lasts() -> None:
    """What lasts all day has the sum of all windows: at few false alarms, that bound is met."""
    chance = np.random.default_rng(1)
    there = np.repeat(chance.random((400, 20)) < 0.5, 3, axis=1)
    report = attacked(TIGHT, tuples({"a": there}), "3 h")
    one, smoothed, day = report.patterns[0].guesses
    for guess in (one, smoothed, day):
        check_bounds(guess)
    assert day.several_epsilon == pytest.approx(3.0, abs=0.01)
    assert day.moved == pytest.approx(3.0, abs=0.05)
    for rate, near in ((0.001, 0.5), (0.01, 0.25), (0.02, 0.15)):  # few have few false alarms
        found, most = day.detection_at(rate)[1::2]
        assert found == pytest.approx(most, rel=near)
    # All answers of the day tell more about one window than the promise for one window.
    assert smoothed.moved > 2.5
    assert smoothed.window_bound is not None
    assert smoothed.attacker > smoothed.window_bound + 10 * smoothed.error


SEVERAL = """
streams: {{s: {{subject: who, time: at}}}}
windows: {{size: 1 h}}
events:
  a: {{stream: s, where: "kind = 'a'"}}
  b: {{stream: s, where: "kind = 'b'"}}
  c: {{stream: s, where: "kind = 'c'"}}
  d: {{stream: s, where: "kind = 'd'"}}
private:
  - {{pattern: "AND(a, b)", epsilon: 1}}
  - {{pattern: c, epsilon: 0.5}}
queries:
  - {{name: one, consumer: us, pattern: "AND(a, d)"}}
  - {{name: two, consumer: us, pattern: "OR(b, c)"}}
  - {{name: three, consumer: us, pattern: "AND(c, NOT d)"}}
mechanism: {0}
decode: {1}
"""


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
@pytest.mark.parametrize("seed", [1, *longer(2)])
def test_no_guess_is_above_the_bound_that_applies(mechanism: str, seed: int) -> None:
    """Two private patterns that depend on each other, public events that tell, and stays."""
    chance = np.random.default_rng(seed)
    shape, even = (150, 72), np.full(150, 0.3)
    a = draw_stays(chance, shape, even, 0.7)
    b = np.where(chance.random(shape) < 0.6, a, draw_stays(chance, shape, even, 0.5))
    c = np.where(chance.random(shape) < 0.4, a, draw_stays(chance, shape, even, 0.8))
    d = np.where(chance.random(shape) < 0.3, c, draw_stays(chance, shape, even, 0.2))
    decode = "literal" if mechanism == "uniform" else "posterior"
    text = SEVERAL.format(mechanism, decode)
    report = attacked(text, tuples({"a": a, "b": b, "c": c, "d": d}), "6 h")
    assert [pattern.private for pattern in report.patterns] == ["AND(a, b)", "c"]
    for pattern in report.patterns:
        for guess in pattern.guesses:
            check_bounds(guess)
        assert pattern.guesses[0].attacker >= pattern.guesses[0].prior - 4 * guess.error


def test_a_channel_that_reveals_more_than_it_claims_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks above mean something: a table with less noise crosses every bound."""

    def sharpen(channel: Channel) -> NDArray[np.float64]:
        table = (channel.table / 2.0**channel.bits) ** 2
        return np.asarray(table / table.sum(axis=1, keepdims=True), np.float64)

    chance = np.random.default_rng(0)
    history = tuples({"a": chance.random((150, 48)) < 0.5})
    monkeypatch.setattr(attack_channels, "_to_probabilities", sharpen)
    one = attacked(TIGHT, history).patterns[0].guesses[0]
    assert one.window_bound is not None
    assert one.attacker > one.window_bound + 10 * one.error
    with pytest.raises(AssertionError):
        check_bounds(one)


def test_symbols_are_those_of_the_engine() -> None:
    """The engine says yes as often as the attacked channel has it."""
    chance = np.random.default_rng(3)
    history = tuples({"a": chance.random((200, 48)) < 0.5})
    spec = tacit.loads(OPTIMAL)
    plan = tacit.plan(spec, history)
    assert plan.mechanism == "optimal"
    attack = attack_channels.attack_pattern(plan.mechanisms[0], plan.policies[0].patterns[0])
    situation = attack.release(np.zeros(0, bool), np.array([[False], [True]]))
    ((table, rows),) = situation.symbols
    answers = tacit.run(spec, history, plan=plan, seed=1).polars()
    truth = tacit.detect(spec, history).polars()
    for value in (False, True):
        said = answers.filter(truth["detected"] == value)["detected"].mean()
        assert said == pytest.approx(float(table[rows[int(value)]].max()), abs=0.02) or (
            said == pytest.approx(float(table[rows[int(value)]].min()), abs=0.02)
        )
    assert situation.epsilon == pytest.approx(2.0, abs=1e-6)


def test_a_guess_is_not_above_the_bound_where_the_prior_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Model.prior

    def flatten(model: Model) -> NDArray[np.float64]:
        """A prior that learns too little from public events."""
        prior = counted(model)
        usual = prior.mean(axis=0)
        return np.asarray(usual + (prior - usual) / 5)

    chance = np.random.default_rng(3)
    b = chance.random((200, 48)) < 0.2
    a = chance.random(b.shape) < np.where(b, 0.6, 0.05)
    monkeypatch.setattr(Model, "prior", flatten)
    check_bounds(attacked(TIGHT, tuples({"a": a, "b": b}), "1 h").patterns[0].guesses[0])


def test_what_public_events_decide_tells_nothing_more() -> None:
    """Where `b` is missing, the query is decided: nothing is released and nothing is spent."""
    chance = np.random.default_rng(4)
    text = TIGHT.replace("pattern: a}]", 'pattern: "AND(a, b)"}]')
    never = np.zeros((120, 48), bool)
    a = chance.random(never.shape) < 0.4
    report = attacked(text, tuples({"a": a, "b": never}))
    for guess in report.patterns[0].guesses:
        assert guess.attacker == guess.prior
        assert guess.moved == pytest.approx(0, abs=1e-9)
    half = chance.random(never.shape) < 0.5
    report = attacked(text, tuples({"a": a, "b": half}))
    day = report.patterns[0].guesses[2]
    assert day.several_epsilon is not None
    assert 12 < day.several_epsilon < 24
    check_bounds(day)


def test_public_events_that_tell_are_part_of_the_prior() -> None:
    chance = np.random.default_rng(5)
    a = chance.random((120, 48)) < 0.4
    told = attacked(TIGHT, tuples({"a": a, "c": a ^ (chance.random(a.shape) < 0.1)}))
    assert told.patterns[0].guesses[0].prior == pytest.approx(0.9, abs=0.02)


def test_a_model_does_not_remember_what_it_guesses() -> None:
    """Public events that say nothing, in many combinations: no guess is better than the rate."""
    chance = np.random.default_rng(8)
    kinds = "abcdefgh"
    events = "".join(f"  {kind}: {{stream: s, where: \"kind = '{kind}'\"}}\n" for kind in kinds)
    head, tail = TIGHT.split("events:\n")
    queries = ", ".join(
        f"{{name: q{kind}, consumer: us, pattern: 'AND(a, {kind})'}}" for kind in kinds[1:]
    )
    private = tail[tail.index("private:") : tail.index("queries:")]
    text = f"{head}events:\n{events}{private}queries: [{queries}]\nmechanism: uniform\n"
    there = {kind: chance.random((100, 48)) < 0.4 for kind in kinds}
    one, smoothed, day = attacked(text, tuples(there), "4 h").patterns[0].guesses
    for guess in (one, smoothed, day):
        usual = max(guess.share, 1 - guess.share)
        assert guess.prior <= usual + 0.01
        assert guess.prior > usual - 0.05
        check_bounds(guess)


def test_a_limit_bounds_the_day() -> None:
    chance = np.random.default_rng(6)
    there = np.repeat(chance.random((150, 6)) < 0.5, 12, axis=1)
    text = TIGHT.replace("epsilon: 1}", "epsilon: 1, limit: 4 per day}")
    day = attacked(text, tuples({"a": there})).patterns[0].guesses[2]
    assert day.several_epsilon == pytest.approx(4.0, abs=0.01)
    check_bounds(day)


def test_a_report_has_words_a_frame_and_a_picture(tight: AttackReport, tmp_path: Path) -> None:
    text = str(tight)
    assert "a: epsilon 1 for one subject, one private pattern and one window" in text
    assert "In words: of 1,000 windows" in text
    frame = tight.polars()
    assert frame["guess"].to_list() == ["window", "window of the day", "day"]
    assert frame["attacker_at_0.01"].to_list() == [
        guess.detection_at(0.01)[1] for guess in tight.patterns[0].guesses
    ]
    assert "<table>" in tight._repr_html_()
    tight.plot(tmp_path / "attack.svg")
    assert "bound for the day" in (tmp_path / "attack.svg").read_text()
    lines = {line.get_label() for axes in tight.plot().axes for line in axes.get_lines()}
    assert {"prior: no answers", "attacker", "bound for one window", "bound for the day"} <= lines


def test_the_same_seed_gives_the_same_attack(tight: AttackReport) -> None:
    spec, history = tacit.loads(TIGHT), independent()
    plan = tacit.plan(spec, history)
    assert tacit.attack(spec, history, plan=plan) == tight
    assert tacit.attack(spec, history, plan=plan, seed=1) != tight


def test_what_cannot_be_attacked_is_refused() -> None:
    spec = tacit.loads(TIGHT)
    history = tuples({"a": np.ones((3, 4), bool)})
    plan = tacit.plan(spec, history)
    with pytest.raises(OptionError, match="needs history"):
        tacit.attack(spec, plan=plan)
    for period in ("1 min", "often"):
        with pytest.raises(OptionError, match="period"):
            tacit.attack(spec, history, plan=plan, period=period)
    assert tacit.attack(spec, history).mechanism == "uniform"
    with pytest.raises(PlanError, match="needs history or a prior"):
        tacit.attack(tacit.loads(OPTIMAL), history)
    with pytest.raises(SourceError, match="no window to attack"):
        tacit.attack(spec, history.head(0), plan=plan)
    slid = tacit.loads(TIGHT.replace("size: 1 h", "size: 1 h, slide: 30 min"))
    with pytest.raises(PlanError, match="do not overlap"):
        tacit.attack(slid, history, plan=tacit.plan(slid, history))


@pytest.mark.soak
def test_the_command_reports_and_draws(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    (tmp_path / "spec.yaml").write_text(TIGHT)
    tuples({"a": chance.random((60, 48)) < 0.5}).write_csv(tmp_path / "past.csv")
    spec, past, plan = (tmp_path / name for name in ("spec.yaml", "past.csv", "plan.json"))
    assert command("plan", spec, "--history", past, "-o", plan).exit_code == 0
    arguments: list[str | Path] = [
        "attack",
        spec,
        "--plan",
        plan,
        "--history",
        past,
        "--period",
        "12 h",
    ]
    shown = command(*arguments, "--plot", tmp_path / "attack.pdf")
    assert shown.exit_code == 0, shown.output
    assert "A day is 12 h." in shown.stdout
    assert (tmp_path / "attack.pdf").read_bytes().startswith(b"%PDF")
    report = json.loads(command(*arguments, "--json").stdout)
    assert report["patterns"][0]["days"] == 60 * 4
    assert len(report["patterns"][0]["guesses"][0]["detection"]) == len(RATES)
    assert command("attack", spec, "--history", past).exit_code == 0, "uniform needs no plan"
