"""Format the results of an experiment as a table and as a short report in Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from tacit.evaluation.bands import Band
from tacit.evaluation.experiments import ExperimentOutcome
from tacit.evaluation.methods import PPMS, Method
from tacit.privacy.exponentials import format_epsilon
from tacit.quantities import count

UNIT: Final = "Every epsilon is for one subject, one private pattern and one window."
CONVENTIONS: Final = (
    "MRE = (Q of true answers - Q) / Q of true answers, and true answers have Q = 1. Q = alpha *"
    " precision + (1 - alpha) * recall, alpha 0.5 unless it is varied. Precision is 1 if nothing"
    " is claimed and nothing is there, and 0 if something is there and nothing is claimed; recall"
    " is 1 if nothing is there. Micro average: counts are first added up over all queries, subjects"
    " and windows of a data set. A row is the mean over data sets; its band contains the true mean"
    " with 95 % confidence (Student's t). All methods use the same data sets. Ratios are of means,"
    " with bands from the paired differences. Plans and decoders are made from history windows, and"
    " errors are counted on other windows."
)
BASELINES: Final = (
    "Baselines are calibrated so that they give the same guarantee as the PPMs: epsilon for one"
    " subject, one private pattern and one window. Suppression gives no such guarantee, and prior"
    " alone has epsilon 0; both are the same for every epsilon."
)
_OPTIMAL: Final = Method("optimal", "posterior")


def to_csv(outcome: ExperimentOutcome) -> str:
    """Format the rows as CSV."""
    rows = outcome.to_list()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def make_table(outcome: ExperimentOutcome) -> list[tuple[str, ...]]:
    """Return a header, then for each method its mean error at each epsilon, or for each value."""
    experiment, varied = outcome.experiment, outcome.experiment.variation
    if varied is None:
        columns = [(epsilon, None) for epsilon in experiment.epsilons]
        head = [format_epsilon(epsilon) for epsilon in experiment.epsilons]
        return [
            ("method", "decode", *head),
            *(
                (method.name, method.decode, *_means(outcome, method, columns))
                for method in experiment.methods
            ),
        ]
    head = [f"{value:g}" for value in varied.values]
    return [
        ("method", "decode", "epsilon", *head),
        *(
            (
                method.name,
                method.decode,
                format_epsilon(epsilon),
                *_means(outcome, method, [(epsilon, value) for value in varied.values]),
            )
            for epsilon in experiment.epsilons
            for method in experiment.methods
        ),
    ]


def _means(
    outcome: ExperimentOutcome, method: Method, columns: Sequence[tuple[Fraction, float | None]]
) -> list[str]:
    return [f"{outcome.band(method, epsilon, value).mean:.3f}" for epsilon, value in columns]


def make_ratios(outcome: ExperimentOutcome) -> list[tuple[str, ...]]:
    """Return a header, then optimal's error compared with the others' at each epsilon."""
    experiment = outcome.experiment
    head = ("optimal against", *(format_epsilon(epsilon) for epsilon in experiment.epsilons))
    others = [method for method in PPMS if method != _OPTIMAL]
    body = [
        (str(other), *(_shown(outcome.ratio(_OPTIMAL, other, e)) for e in experiment.epsilons))
        for other in others
    ]
    return [head, *body]


def _shown(ratio: Band | None) -> str:
    if ratio is None:
        return "-"
    if ratio.high == float("inf"):
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def format_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table in Markdown; the first is its header."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_report(outcome: ExperimentOutcome, command: str) -> str:
    """Format a report: the experiment, its results, and how to read them."""
    experiment, varied = outcome.experiment, outcome.experiment.variation
    title = f"# {experiment.title}: error against "
    parts = [
        title + ("epsilon" if varied is None else varied.label),
        f"Made by `{command}`. {experiment.about} {count(outcome.datasets, 'data set')}.",
        UNIT,
        "![The mean error of every method](figure.svg)",
        "## Mean MRE of Q",
        "Columns are epsilons." if varied is None else f"Columns are: {varied.label}.",
        format_markdown(make_table(outcome)),
    ]
    if varied is None:
        parts += [
            "## Optimal against the others",
            "Mean error of `optimal` (posterior) as a share of another's, with its band. Below 1,"
            " `optimal` is better.",
            format_markdown(make_ratios(outcome)),
        ]
    parts += ["## Conventions", CONVENTIONS]
    if len(experiment.methods) > len(PPMS):
        parts.append(BASELINES)
    parts.append("`table.csv` has all rows with their bands.")
    return "\n\n".join(parts) + "\n"
