"""Format the results of an experiment as a table and as a short report in Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from tacit.evaluation.bands import Band
from tacit.evaluation.experiments import WINDOW_UNIT, ExperimentOutcome
from tacit.evaluation.methods import OPTIMAL, PPMS, PRIOR, REMEMBERING, Method
from tacit.privacy.exponentials import format_epsilon
from tacit.quantities import count

CONVENTIONS: Final = (
    "MRE = (Q of true answers - Q) / Q of true answers, and true answers have Q = 1. Q = alpha *"
    " precision + (1 - alpha) * recall, alpha 0.5 unless it is varied. Precision is 1 if nothing"
    " is claimed and nothing is there, and 0 if something is there and nothing is claimed; recall"
    " is 1 if nothing is there. Micro average, unless it says macro: counts are first added up over"
    " all queries, subjects and windows of a data set. Macro: the mean of the queries'"
    " errors. A row is the mean over data sets; its band contains the true mean with 95 %"
    " confidence (Student's t). All methods use the same data sets. Ratios are of means,"
    " with bands from the paired differences. Plans and decoders are made from history windows, and"
    " errors are counted on other windows. Memory starts from the prior in the first of these."
)
BASELINES: Final = (
    "Baselines are calibrated so that they give the same guarantee as the PPMs: epsilon for one"
    " subject, one private pattern and one window. Suppression gives no such guarantee, and prior"
    " alone has epsilon 0; both are the same for every epsilon."
)
VARIANTS: Final = (
    "Each panel grants the baselines one more thing: noise on private event types only, randomised"
    " response instead of Laplace noise, memory (a hidden Markov model over what was released), and"
    " the same total over w windows, where a single window may cost more than epsilon."
)


def format_unit(outcome: ExperimentOutcome) -> str:
    """Format what an epsilon is for."""
    return f"Every epsilon is for {outcome.experiment.unit}."


def to_csv(outcome: ExperimentOutcome) -> str:
    """Format the rows as CSV."""
    rows = outcome.to_list()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def make_table(outcome: ExperimentOutcome, score: str = "micro") -> list[tuple[str, ...]]:
    """Return a header, then for each method its mean error at each epsilon, or for each value."""
    experiment, varied = outcome.experiment, outcome.experiment.variation
    several = any(method.variant for method in outcome.methods)

    def name(method: Method) -> tuple[str, ...]:
        return (method.name, *((method.variant,) if several else ()), method.decode)

    title = ("method", *(("variant",) if several else ()), "decode")
    if varied is None:
        columns = [(epsilon, None) for epsilon in experiment.epsilons]
        head = [format_epsilon(epsilon) for epsilon in experiment.epsilons]
        return [
            (*title, *head),
            *(
                (*name(method), *_means(outcome, method, columns, score))
                for method in outcome.methods
            ),
        ]
    head = [f"{value:g}" for value in varied.values]
    return [
        (*title, "epsilon", *head),
        *(
            (
                *name(method),
                format_epsilon(epsilon),
                *_means(outcome, method, [(epsilon, value) for value in varied.values], score),
            )
            for epsilon in experiment.epsilons
            for method in outcome.methods
        ),
    ]


def _means(
    outcome: ExperimentOutcome,
    method: Method,
    columns: Sequence[tuple[Fraction, float | None]],
    score: str,
) -> list[str]:
    means = (outcome.of(method, epsilon, value, score).mean() for epsilon, value in columns)
    return [f"{mean:.3f}" for mean in means]


def make_query_table(outcome: ExperimentOutcome) -> list[tuple[str, ...]]:
    """Return a header, then the mean error of `optimal` for each query that has a name."""
    epsilons, ours = outcome.experiment.epsilons, find_optimal(outcome)
    return [
        ("query", *(format_epsilon(epsilon) for epsilon in epsilons)),
        *(
            (query, *_means(outcome, ours, [(epsilon, None) for epsilon in epsilons], query))
            for query in outcome.experiment.scores[2:]
        ),
    ]


def make_ratios(outcome: ExperimentOutcome) -> list[tuple[str, ...]]:
    """Return a header, then optimal's error compared with the others' at each epsilon.

    It has memory if that was measured.
    """
    ours = find_optimal(outcome)
    others = [method for method in PPMS if method != ours and method in outcome.methods]
    return _compare(outcome, "optimal against", [(ours, other, str(other)) for other in others])


def find_optimal(outcome: ExperimentOutcome) -> Method:
    """Return optimal as it is by default, with memory, or without if that was not measured."""
    return REMEMBERING if REMEMBERING in outcome.methods else OPTIMAL


def make_gains(outcome: ExperimentOutcome) -> list[tuple[str, ...]]:
    """Return a header, then each method's error as a share of the prior's at each epsilon."""
    others = [method for method in outcome.methods if method != PRIOR]
    return _compare(outcome, "against the prior", [(one, PRIOR, str(one)) for one in others])


def _compare(
    outcome: ExperimentOutcome, title: str, pairs: Sequence[tuple[Method, Method, str]]
) -> list[tuple[str, ...]]:
    epsilons = outcome.experiment.epsilons
    head = (title, *(format_epsilon(epsilon) for epsilon in epsilons))
    body = [
        (name, *(_format_ratio(outcome.ratio(one, other, epsilon)) for epsilon in epsilons))
        for one, other, name in pairs
    ]
    return [head, *body]


def _format_ratio(ratio: Band | None) -> str:
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
        format_unit(outcome),
        "![The mean error of every method](figure.svg)",
        "## Mean MRE of Q",
        "Columns are epsilons." if varied is None else f"Columns are: {varied.label}.",
        format_markdown(make_table(outcome)),
    ]
    if varied is None:
        ratios, gains = make_ratios(outcome), PRIOR in outcome.methods
        if len(ratios) > 1:
            parts += [
                "## Optimal against the others",
                f"Mean error of `optimal` ({find_optimal(outcome).decode}) as a share of another's,"
                " with its band. Below 1, `optimal` is better.",
                format_markdown(ratios),
            ]
        if gains:
            parts += [
                "## Gain over the prior",
                "Mean error as a share of that of the prior alone, with its band. Below 1, a"
                " method is better than public events and history.",
                format_markdown(make_gains(outcome)),
            ]
        parts += ["## Macro average", format_markdown(make_table(outcome, "macro"))]
        if len(experiment.scores) > 2 and find_optimal(outcome) in outcome.methods:
            parts += ["## Queries", "`optimal`.", format_markdown(make_query_table(outcome))]
    parts += ["## Conventions", CONVENTIONS]
    if experiment.unit == WINDOW_UNIT and any(method not in PPMS for method in outcome.methods):
        parts.append(BASELINES)
    if any(method.variant for method in outcome.methods):
        parts.append(VARIANTS)
    parts.append("`table.csv` has all rows with their bands.")
    return "\n\n".join(parts) + "\n"
