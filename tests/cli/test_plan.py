"""`tacit plan`: what it tells, what it writes, and how it ends."""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from tacit.planning.plan import Plan
from tacit.spec.yaml_reader import load
from tests.cli.small_runs import SPEC, specified, tacit, tuples


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification in a file."""
    return specified(tmp_path)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Windows of the past."""
    return tuples(tmp_path / "history.csv", seed=1)


def test_a_plan_is_written_and_fits_its_specification(
    spec: Path, history: Path, tmp_path: Path
) -> None:
    """The same figures are in the file, in the text and in JSON."""
    out = tmp_path / "plan.json"
    shown = tacit("plan", spec, "--history", history, "-o", out)
    assert shown.exit_code == 0, shown.output
    plan = Plan.load(out, load(spec))
    assert plan.mechanism == "optimal"
    assert plan.windows == 600
    assert plan.expected is not None
    row = plan.expected.rows()[0]
    line = next(line for line in shown.stdout.splitlines() if line.startswith("  both"))
    assert line.split()[1:] == [f"{row[k]:.3f}" for k in ("precision", "recall", "quality", "mre")]
    told = json.loads(tacit("plan", spec, "--history", history, "--json").stdout)
    assert told["queries"][0] == {**row, "exact": False, "needs": None}
    assert told["fingerprint"] == load(spec).fingerprint
    assert told["plan"] is None


def test_a_query_that_touches_nothing_private_is_exact(spec: Path, history: Path) -> None:
    shown = tacit("plan", spec, "--history", history).stdout
    line = next(line for line in shown.splitlines() if line.startswith("  open"))
    assert line.split() == ["open", "exact"]
    assert "for one subject, one private pattern and one window" in shown
    assert re.search(r"^  visit +2 +2$", shown, re.MULTILINE)
    assert "reveal nothing" not in shown
    assert "Precision is 1 if nothing is claimed and nothing is there" in " ".join(shown.split())
    assert "600 windows of history" in shown


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive"])
def test_the_epsilon_of_every_element_is_reported_exactly(
    spec: Path, history: Path, mechanism: str
) -> None:
    """And adds up to at most the pattern's own."""
    asked = ("plan", spec, "--history", history, "--mechanism", mechanism)
    told = json.loads(tacit(*asked, "--json").stdout)
    shares = {name: Fraction(share) for name, share in told["elements"][0].items()}
    assert shares.keys() == {"a", "b"}
    assert sum(shares.values()) <= 2
    shown = tacit(*asked).stdout
    for name, share in told["elements"][0].items():
        assert f"  {name}  {share}" in shown


@pytest.mark.parametrize("gap", [2e-5, -2e-5], ids=["falls short", "reaches it"])
def test_a_quality_close_to_the_required_one_has_digits_that_show_it(
    history: Path, tmp_path: Path, gap: float
) -> None:
    """Not '0.920 where 0.92 is needed falls short'."""
    plain = specified(tmp_path)
    told = json.loads(tacit("plan", plain, "--history", history, "--json").stdout)
    quality = told["queries"][0]["quality"]
    asked = SPEC.replace('"AND(a, c)"}', f'"AND(a, c)", quality: {quality + gap:.6f}}}')
    shown = tacit("plan", specified(tmp_path, asked), "--history", history).stdout
    line = next(line for line in shown.splitlines() if line.startswith("  both"))
    _, _, _, found, _, needed, *said = line.split()
    assert " ".join(said) == ("falls short" if gap > 0 else "")
    assert (float(found) < float(needed)) == (gap > 0)


def test_auto_tells_the_figures_of_all_three(spec: Path, history: Path) -> None:
    """And takes the best."""
    told = json.loads(
        tacit("plan", spec, "--history", history, "--mechanism", "auto", "--json").stdout
    )
    assert list(told["compared"]) == ["uniform", "adaptive", "optimal"]
    best = max(told["compared"], key=lambda name: told["compared"][name]["quality"])
    assert told["mechanism"] == best
    assert told["all"] == told["compared"][best]
    shown = tacit("plan", spec, "--history", history, "--mechanism", "auto").stdout
    assert "auto chose the best expected Q: uniform 0." in shown


def test_the_least_epsilon_is_enough_and_hardly_less_is_not(
    spec: Path, history: Path, tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    asked = ("plan", spec, "--history", history, "--quality", "0.75")
    told = json.loads(tacit(*asked, "-o", out, "--json").stdout)
    assert told["least"]["feasible"]
    assert told["least"]["granted"]
    assert all(row["quality"] >= 0.75 for row in told["queries"])
    needed = Fraction(told["private"][0]["needed"])
    assert 0 < needed < 2
    plan = Plan.load(out, load(spec))
    assert plan.share_of(plan.spec.private[0].name) == needed / 2
    less = SPEC.replace("epsilon: 2", f"epsilon: {float(needed) * 0.98:.6f}")
    spec.write_text(less)
    poorer = json.loads(tacit("plan", spec, "--history", history, "--json").stdout)
    assert min(row["quality"] for row in poorer["queries"]) < 0.75


def test_more_epsilon_than_is_granted_makes_no_plan(
    spec: Path, history: Path, tmp_path: Path
) -> None:
    """It says what the specification would have to grant; a file that was asked for is missed."""
    out = tmp_path / "plan.json"
    asked = ("plan", spec, "--history", history, "--quality", "0.999")
    told = tacit(*asked, "--json")
    assert told.exit_code == 0
    needed = json.loads(told.stdout)["private"][0]["needed"]
    assert Fraction(needed) > 2
    shown = tacit(*asked, "-o", out)
    assert shown.exit_code == 1
    assert "grants less than that" in shown.stdout
    assert f"visit to {needed}" in shown.stdout
    assert not out.exists()


def test_a_quality_that_no_epsilon_gives_names_the_obstacle(
    spec: Path, history: Path, tmp_path: Path
) -> None:
    """With literal reading, the order of private events is chance, whatever epsilon is."""
    spec.write_text(SPEC.replace('"AND(a, c)"', '"SEQ(a, c)"'))
    out = tmp_path / "plan.json"
    shown = tacit(
        "plan", spec, "--history", history, "--quality", "0.95", "--decode", "literal",
        "--mechanism", "uniform", "-o", out,
    )  # fmt: skip
    assert shown.exit_code == 1
    assert "Infeasible: both is the obstacle" in shown.stdout
    assert "The best possible" in shown.stdout
    assert "falls short" in shown.stdout
    assert not out.exists()


def test_declared_qualities_are_compared_and_can_be_asked_for(spec: Path, history: Path) -> None:
    spec.write_text(SPEC.replace('"AND(a, c)"', '"AND(a, c)", quality: 0.99'))
    shown = tacit("plan", spec, "--history", history).stdout
    line = next(line for line in shown.splitlines() if line.startswith("  both"))
    assert line.endswith("0.99  falls short")
    least = tacit("plan", spec, "--history", history, "--quality", "declared", "--json")
    told = json.loads(least.stdout)
    assert told["queries"][0]["quality"] >= 0.99
    assert [row["needs"] for row in told["queries"]] == [0.99, None, None]


def test_declared_qualities_are_missed_where_there_are_none(spec: Path, history: Path) -> None:
    shown = tacit("plan", spec, "--history", history, "--quality", "declared")
    assert shown.exit_code == 6
    assert "no quality is required" in shown.stderr


@pytest.mark.parametrize("quality", ["0", "1.2", "good", "nan"])
def test_a_quality_that_is_none_is_wrong_usage(spec: Path, history: Path, quality: str) -> None:
    assert tacit("plan", spec, "--history", history, "--quality", quality).exit_code == 2


def test_the_curve_is_drawn_and_told(spec: Path, history: Path, tmp_path: Path) -> None:
    plot = tmp_path / "curve.svg"
    told = json.loads(tacit("plan", spec, "--history", history, "--plot", plot, "--json").stdout)
    assert told["plot"] == str(plot)
    assert {point["mechanism"] for point in told["curve"]["points"]} == {
        "uniform", "adaptive", "optimal",
    }  # fmt: skip
    assert "optimal" in plot.read_text()
    own = [
        p for p in told["curve"]["points"] if p["mechanism"] == "optimal" and p["epsilon"] == "2"
    ]
    assert own[0]["quality"] == pytest.approx(told["all"]["quality"])


def test_a_picture_without_matplotlib_is_refused_before_any_work(
    spec: Path, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = tacit("plan", spec, "--history", "no such file", "--plot", tmp_path / "curve.svg")
    assert shown.exit_code == 12
    assert "pip install 'tacit[plot]'" in shown.stderr


def test_only_pictures_that_can_be_drawn_are_asked_for(spec: Path, history: Path) -> None:
    shown = tacit("plan", spec, "--history", history, "--plot", "curve.gif")
    assert shown.exit_code == 5
    assert ".svg, .png or .pdf" in shown.stderr


def test_history_of_several_streams_is_named(tmp_path: Path) -> None:
    spec = specified(
        tmp_path,
        SPEC.replace("streams: {s:", "streams: {t: {subject: who, time: at}, s:").replace(
            "d: {stream: s", "d: {stream: t"
        ),
    )
    one, two = tuples(tmp_path / "1.csv", seed=1), tuples(tmp_path / "2.csv", seed=2)
    shown = tacit("plan", spec, "--history", f"s={one}", "--history", f"t={two}", "--json")
    assert json.loads(shown.stdout)["windows"] == 600
    assert tacit("plan", spec, "--history", one).exit_code == 4


def test_a_prior_by_hand_replaces_history(spec: Path, tmp_path: Path) -> None:
    """It is enough for a plan, but not for what to expect."""
    prior, out = tmp_path / "prior.yaml", tmp_path / "plan.json"
    prior.write_text("a: 0.2\nb: 0.5\n")
    shown = tacit("plan", spec, "--prior", prior, "-o", out)
    assert shown.exit_code == 0, shown.output
    assert "the expected quality is unknown" in shown.stdout
    assert Plan.load(out, load(spec)).windows == 0
    for option in (("--quality", "0.9"), ("--plot", tmp_path / "curve.svg")):
        assert tacit("plan", spec, "--prior", prior, *option).exit_code == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aa: 0.2", "Did you mean 'a'?"),
        ("a: 1.5", "from 0 to 1"),
        ("a: often", "from 0 to 1"),
        ("a: true", "from 0 to 1"),
        ("- a", "expected event types"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_prior_is_refused(spec: Path, tmp_path: Path, text: str, said: str) -> None:
    prior = tmp_path / "prior.yaml"
    prior.write_text(text)
    shown = tacit("plan", spec, "--prior", prior)
    assert shown.exit_code == 4
    assert said in shown.stderr


def test_without_history_it_says_what_is_needed(spec: Path, history: Path, tmp_path: Path) -> None:
    """Uniform needs nothing."""
    shown = tacit("plan", spec)
    assert shown.exit_code == 6
    assert "--history" in shown.stderr
    assert tacit("plan", spec, "--mechanism", "uniform").exit_code == 0
    prior = tmp_path / "prior.yaml"
    prior.write_text("a: 0.2")
    assert tacit("plan", spec, "--prior", prior, "--history", history).exit_code == 2


def test_a_history_without_windows_is_refused(spec: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("who,at,kind\n")
    shown = tacit("plan", spec, "--history", empty)
    assert shown.exit_code == 4
    assert "no window" in shown.stderr


def test_planning_never_writes_over_what_it_reads(spec: Path, history: Path) -> None:
    before = history.read_text(), spec.read_text()
    for option in ("-o", "--plot"):
        for target in (history, spec):
            assert tacit("plan", spec, "--history", history, option, target).exit_code == 5
    assert before == (history.read_text(), spec.read_text())


def test_a_plan_that_cannot_be_written_leaves_nothing(spec: Path, history: Path) -> None:
    missing = spec.parent / "no" / "plan.json"
    shown = tacit("plan", spec, "--history", history, "-o", missing)
    assert shown.exit_code == 5
    assert sorted(path.name for path in spec.parent.iterdir()) == ["history.csv", "spec.yaml"]


def test_what_happens_past_a_limit_is_reported(spec: Path, history: Path) -> None:
    """How many windows it allows, and without memory what to expect of the prior alone."""
    limited = SPEC.replace("epsilon: 2", "epsilon: 2, limit: 20 per day") + "memory: false\n"
    assert "limit" not in tacit("plan", spec, "--history", history).stdout
    spec.write_text(limited)
    told = json.loads(tacit("plan", spec, "--history", history, "--json").stdout)
    (limit,) = told["limits"]
    windows = 86400 * 10**6 // load(spec).windows.size
    assert (limit["windows"], limit["of"]) == (10, windows)
    assert told["past"]["queries"][0]["quality"] < told["queries"][0]["quality"]
    assert told["limited"] is None
    shown = tacit("plan", spec, "--history", history).stdout
    words = " ".join(shown.split())
    assert f"20 per day: enough for 10 of {windows:,} windows." in words
    _, _, past = shown.partition("After limits are reached")
    line = next(line for line in past.splitlines() if line.startswith("  both"))
    assert line.split()[3] == f"{told['past']['queries'][0]['quality']:.3f}"


@pytest.mark.soak
def test_what_a_limit_gives_with_memory_is_reported(spec: Path, history: Path) -> None:
    """Over whole days, as windows are paid for; and against other limits."""
    spec.write_text(SPEC.replace("epsilon: 2", "epsilon: 2, limit: 20 per day"))
    told = json.loads(tacit("plan", spec, "--history", history, "--json", "--curve").stdout)
    shown = tacit("plan", spec, "--history", history).stdout
    _, _, limited = shown.partition("With limits and memory, over whole days:")
    line = next(line for line in limited.splitlines() if line.startswith("  both"))
    assert line.split()[3] == f"{told['limited']['queries'][0]['quality']:.3f}"
    few, many = (told["limit_curve"][place]["all"]["quality"] for place in (0, -1))
    assert few <= many + 0.02
    assert [one["limits"] for one in told["limit_curve"]][-1] != {"both": "20 per day"}


def test_the_least_limit_makes_no_plan(spec: Path, history: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace("epsilon: 2", "epsilon: 2, limit: 20 per day"))
    least = "--least", "limit"
    command = "plan", spec, "--history", history, *least
    assert "needs --quality" in tacit(*command).stderr
    quality = "--quality", "0.5"
    assert "makes no plan" in tacit(*command, *quality, "-o", tmp_path / "plan.json").stderr
    told = json.loads(tacit(*command, *quality, "--json").stdout)
    assert told["least_limit"]["feasible"]
    assert told["plan"] is None


def test_a_useless_plan_says_why(tmp_path: Path) -> None:
    """An event that never occurs, and a handful of windows, do not pass without a warning."""
    spec, source = tmp_path / "spec.yaml", tmp_path / "in.csv"
    spec.write_text(
        """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'B'"}
private: [{pattern: b, epsilon: 1}]
queries: [{name: q, consumer: x, pattern: "OR(a, b)"}]
"""
    )
    rows = "".join(f"x,2026-01-01T00:{n:02}:00,{'ab'[n % 2]}\n" for n in range(12))
    source.write_text(f"who,at,kind\n{rows}")
    shown = tacit("plan", spec, "--history", source).stdout.replace("\n", " ")
    assert "Warning: history has only 12 windows" in shown
    assert "Warning: the event 'b' never occurs in history" in shown
    assert "the event 'a'" not in shown
    assert "The tables of this plan reveal nothing about b: their true epsilon is 0." in shown
    report = json.loads(tacit("plan", spec, "--history", source, "--json").stdout)
    assert [one["about"] for one in report["history_warnings"]] == ["history", "b"]
    counted = tacit("detect", spec, source, "--to", tmp_path / "true.csv").stderr
    assert re.search(r"^  a +6  50\.00%$", counted, re.MULTILINE)
    assert re.search(r"^  b +0   0\.00%$", counted, re.MULTILINE)
    assert re.search(r"^  q +6  50\.00%$", counted, re.MULTILINE)


def test_numbers_that_are_no_times_give_a_warning(tmp_path: Path) -> None:
    spec, source = tmp_path / "spec.yaml", tmp_path / "in.csv"
    text = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events: {a: {stream: s, where: "kind = 'a'"}}
queries: [{name: q, consumer: x, pattern: a}]
"""
    spec.write_text(text)
    source.write_text("who,at,kind\nx,20260131,a\n")
    arguments = ("detect", spec, source, "--to", tmp_path / "out.csv")
    assert "the first window is in 1970" in tacit(*arguments).stderr
    spec.write_text(text.replace("time: at", "time: at, format: '%Y%m%d'"))
    assert "1970" not in tacit(*arguments).stderr
    assert "2026-01-31T00:00:00" in (tmp_path / "out.csv").read_text()
