"""The report of an attack: success, advantage and detection rates, beside the bounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp
from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import polars as pl

from tacit.html_tables import format_html_table
from tacit.insight.tabular import align
from tacit.quantities import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GuessKind: TypeAlias = Literal["window", "window of the day", "day"]

RATES: Final = (
    0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07,
    0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0,
)  # fmt: skip
"""The false-positive rates at which true-positive rates are computed."""
SHOWN_RATES: Final = (0.001, 0.01, 0.1)
_TITLES: Final[dict[GuessKind, str]] = {
    "window": "in a window, from its answers",
    "window of the day": "in a window, from all answers of the day",
    "day": "at least once in the day",
}


@dataclass(frozen=True, slots=True)
class Guess:
    """How well one kind of guess succeeds."""

    kind: GuessKind
    """In one window from its own answers, in one window from all answers of its day, or on a day.
    """
    number: int
    """How many windows or days were guessed, in each round of noise."""
    share: float
    """The share of them in which the pattern occurred."""
    prior: float
    """The share of right guesses without answers, from public events and the prior."""
    attacker: float
    """The share of right guesses with the answers."""
    error: float
    """The standard error of that."""
    window_bound: float | None
    """At most this share is possible given the epsilon of one window; None if it does not apply."""
    several_bound: float | None
    """The same for the sum of the epsilons of the day's windows."""
    prior_detection: tuple[float, ...] | None
    """The true-positive rates at `RATES`, without answers; None if all truths are equal."""
    detection: tuple[float, ...] | None
    """The same with the answers."""
    window_detection: tuple[float, ...] | None
    several_detection: tuple[float, ...] | None
    """The bounds of these rates."""
    moved: float
    """The largest change of the log odds by the answers."""
    window_epsilon: float | None
    """The largest epsilon of a window."""
    several_epsilon: float | None
    """The largest sum of the epsilons of a day."""

    @property
    def advantage(self) -> float:
        """How many more guesses are right because of the answers."""
        return self.attacker - self.prior

    @property
    def title(self) -> str:
        """What is guessed."""
        return _TITLES[self.kind]

    def detection_at(self, rate: float) -> tuple[float | None, ...]:
        """Return the rates of the prior and the attacker, then both bounds, at one of `RATES`."""
        place = RATES.index(rate)
        curves = (
            self.prior_detection, self.detection, self.window_detection, self.several_detection
        )  # fmt: skip
        return tuple(None if curve is None else curve[place] for curve in curves)


@dataclass(frozen=True, slots=True)
class PatternAttack:
    """The attack on one private pattern."""

    private: str
    epsilon: float
    """The epsilon that the plan spends, for one subject and one window."""
    guesses: tuple[Guess, ...]
    windows: int
    subjects: int
    days: int
    repeats: int
    """How often noise was drawn for each window."""
    states: int
    """The number of states of the attacker's model."""


@dataclass(frozen=True, slots=True)
class AttackReport:
    """How well an attacker who knows everything else guesses private patterns."""

    mechanism: str
    decode: str
    patterns: tuple[PatternAttack, ...]
    period: str = "1 d"
    """The length of a day."""

    def polars(self) -> pl.DataFrame:
        """Return a frame with a row for each private pattern and kind of guess."""
        rows = []
        for pattern in self.patterns:
            for guess in pattern.guesses:
                row: dict[str, Any] = {
                    "private": pattern.private,
                    "guess": guess.kind,
                    "number": guess.number,
                    "share": guess.share,
                    "prior": guess.prior,
                    "attacker": guess.attacker,
                    "error": guess.error,
                    "advantage": guess.advantage,
                    "window_bound": guess.window_bound,
                    "several_bound": guess.several_bound,
                }
                for rate in SHOWN_RATES:
                    names = ("prior", "attacker", "window_bound", "several_bound")
                    values = guess.detection_at(rate)
                    row |= {
                        f"{name}_at_{rate:g}": value
                        for name, value in zip(names, values, strict=True)
                    }
                rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "mechanism": self.mechanism,
            "decode": self.decode,
            "period": self.period,
            "false_positive_rates": list(RATES),
            "patterns": [
                asdict(pattern)
                | {
                    "guesses": [
                        {
                            name: list(value) if isinstance(value, tuple) else value
                            for name, value in asdict(guess).items()
                        }
                        | {"advantage": guess.advantage}
                        for guess in pattern.guesses
                    ]
                }
                for pattern in self.patterns
            ],
        }

    def __str__(self) -> str:
        lines = [f"Attack on {self.mechanism}, decoded by {self.decode}. A day is {self.period}."]
        for pattern in self.patterns:
            lines += ["", *_pattern_lines(pattern)]
        return "\n".join([*lines, "", fill(_MEANING, 100)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [
            (pattern.private, *_row(guess))
            for pattern in self.patterns
            for guess in pattern.guesses
        ]
        caption = f"Attack on {self.mechanism}: share of right guesses"
        return format_html_table(caption, ("private pattern", *_HEAD), rows)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the rates of prior, attacker and bounds; with a path, write the figure there too."""
        from tacit.insight.attack_plot import draw_attack
        from tacit.pictures import make_picture

        return make_picture(lambda: draw_attack(self), path)


_USEFUL: Final = 15.0
"""A larger epsilon allows practically any guess."""
_HEAD: Final = (
    "what is guessed", "occurs", "prior", "attacker", "+/-", "one window", "the day",
)  # fmt: skip
_MEANING: Final = (
    "prior: guesses from public events and the prior alone; attacker: with the answers too, +/- is"
    " two standard errors. 'one window' is the bound of the promise for one window, given"
    " everything else. It does not hold for guesses from several windows where these depend on"
    " each other: there the bound is the sum over the windows of the day, 'the day'."
)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _row(guess: Guess) -> tuple[str, ...]:
    return (
        guess.title,
        _percent(guess.share),
        _percent(guess.prior),
        _percent(guess.attacker),
        _percent(2 * guess.error),
        _percent(guess.window_bound),
        _percent(guess.several_bound),
    )


def _pattern_lines(pattern: PatternAttack) -> list[str]:
    lines = [
        f"{pattern.private}: epsilon {pattern.epsilon:g} for one subject, one private pattern and"
        f" one window; {count(pattern.windows, 'window')} of {count(pattern.subjects, 'subject')}.",
        "Share of right guesses, and the most that is possible:",
        *align([_HEAD, *map(_row, pattern.guesses)]),
    ]
    detections = [
        (
            guess.title,
            f"{rate:.1%}",
            *(_percent(value) for value in (before, after)),
            "",
            *(_percent(value) for value in bounds),
        )
        for guess in pattern.guesses
        if guess.detection is not None
        for rate in SHOWN_RATES[:2]
        for before, after, *bounds in [guess.detection_at(rate)]
    ]
    if detections:
        head = (_HEAD[0], "false", *_HEAD[2:4], "", *_HEAD[5:])
        lines.append("Share of occurrences that are found, at a share of false alarms:")
        lines += align([head, *detections])
    return [*lines, *(fill(text, 100) for text in _sentences(pattern))]


def _sentences(pattern: PatternAttack) -> list[str]:
    """Say in plain words what the figures mean."""
    one, smoothed, day = pattern.guesses
    texts = [
        f"In words: of 1,000 windows, somebody who knows everything else guesses"
        f" {1000 * one.prior:.0f} right without the answers of the window and"
        f" {1000 * one.attacker:.0f} with them; with any answers of this epsilon at most"
        f" {1000 * (one.window_bound or 0):.0f}. All answers of the day give"
        f" {1000 * smoothed.attacker:.0f}."
    ]
    if smoothed.window_epsilon is not None and smoothed.moved > smoothed.window_epsilon:
        texts.append(
            f"All answers of a day moved the odds of one window by up to"
            f" {_factor(smoothed.moved)}, more than {_factor(smoothed.window_epsilon)}, which is"
            " the bound for one window, because windows depend on each other."
        )
    if day.several_epsilon:
        texts.append(_describe_sum(day.several_epsilon))
    if day.detection is not None:
        texts.append(
            f"Whether it occurred on a day is guessed right for {day.attacker:.1%} of days, instead"
            f" of {day.prior:.1%} without answers."
        )
    return texts


def _describe_sum(epsilon: float) -> str:
    if epsilon <= _USEFUL:
        return f"The promise for the day, epsilon {epsilon:.3g}, allows {_factor(epsilon)}."
    return (
        f"The epsilons of a day add up to {epsilon:.3g}. That bounds hardly anything; a limit per"
        " day would."
    )


def _factor(logarithm: float) -> str:
    factor = exp(min(logarithm, 700.0))
    return f"a factor of {factor:,.0f}" if 100 <= factor < 1e7 else f"a factor of {factor:.3g}"
