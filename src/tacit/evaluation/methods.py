"""The methods to compare: the three PPMs and every baseline, each with its decodings.

A comparison is a list of panels, and a panel a list of methods with their labels. To compare
something else, add a method to a panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation import measurement
from tacit.evaluation.baselines import (
    ANSWER_RESPONSES,
    BASELINES,
    VARIANTS,
    Baseline,
    Decoding,
    Setting,
    answer_vectors,
)
from tacit.evaluation.baselines import measure as measure_baseline
from tacit.evaluation.baselines.decoding import compare, compute_true_answers
from tacit.evaluation.measurement import Presence, Streams, compute_scores, compute_statistics
from tacit.evaluation.memory_steps import drop_memory, has_memory, remember_in_decoding
from tacit.evaluation.own_methods import load_methods
from tacit.evaluation.synthetic import LARGEST_EPSILON
from tacit.planning.planner import make_plan
from tacit.privacy.evidence import Decode
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion
from tacit.privacy.randomness import SeededSource
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification

Floats = NDArray[np.float64]

DECODES: Final[tuple[Decode, ...]] = ("literal", "posterior")
SCORES: Final = ("micro", "macro")
"""What is measured: the error of the micro average, and the mean error of the queries."""


MethodDecoding: TypeAlias = Decoding | Literal["own"]
"""How a method's output is decoded; `own` if it answers queries itself."""


class Method(NamedTuple):
    """A mechanism or baseline, how its noisy output is decoded, and its variant, if any."""

    name: str
    decode: MethodDecoding
    variant: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.name, self.variant, self.decode)))


class Panel(NamedTuple):
    """A panel of a figure: its title, and methods with their labels."""

    title: str
    methods: tuple[tuple[str, Method], ...]


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """Methods that are compared with each other."""

    name: str
    panels: tuple[Panel, ...]
    one_scale: bool = False
    """Whether all panels have the same scale of errors."""
    own: tuple[str, ...] = ()
    """The names of methods from a file."""

    @property
    def methods(self) -> tuple[Method, ...]:
        """All methods, each once."""
        named = (method for panel in self.panels for _, method in panel.methods)
        return tuple(dict.fromkeys(named))


REMEMBERING: Final = Method("optimal", "memory")
"""Optimal as it is by default; with posterior decoding it is without memory."""
DECODING: Final = "memory in decoding"
"""A variant of optimal whose channels are chosen without memory."""
PPMS: Final = (
    *(Method(name, decode) for name in MECHANISMS for decode in DECODES),
    REMEMBERING,
)
METHODS: Final = PPMS + tuple(
    Method(baseline.name, decode) for baseline in BASELINES for decode in DECODES
)
WITHOUT_EPSILON: Final = frozenset(one.name for one in BASELINES if not one.uses_epsilon)
"""Baselines that are the same for every epsilon."""
OPTIMAL: Final = Method("optimal", "posterior")
PRIOR: Final = Method("prior alone", "posterior")
TITLES: Final[dict[Decode, str]] = {
    "literal": "literal decoding: noisy events count as true",
    "posterior": "posterior decoding: noise combined with history",
}


def _label(*methods: Method) -> tuple[tuple[str, Method], ...]:
    return tuple(
        ("optimal, memory" if method == REMEMBERING else method.name, method) for method in methods
    )


def _choose(methods: Sequence[Method], decode: Decode) -> tuple[tuple[str, Method], ...]:
    """Choose the methods of a panel; memory is a kind of posterior decoding."""
    wanted = {"literal": ("literal",), "posterior": ("posterior", "memory")}[decode]
    return _label(*(method for method in methods if method.decode in wanted))


def _panel(title: str, variant: str, decode: Decoding) -> Panel:
    """Make a panel of one variant of all baselines, between the prior and optimal."""
    these = (Method(baseline.name, decode, variant) for baseline in VARIANTS[variant])
    return Panel(title, _label(REMEMBERING, OPTIMAL, PRIOR, *these))


_ANSWERS: Final = tuple(Method(one.name, "posterior") for one in ANSWER_RESPONSES)
_START, _UNIFORM = "as published", "randomised response"

MAIN: Final = MethodComparison(
    "main",
    tuple(Panel(TITLES[decode], _choose(METHODS, decode)) for decode in DECODES),
    one_scale=True,
)
PPMS_ONLY: Final = MethodComparison(
    "mechanisms",
    tuple(Panel(TITLES[decode], _choose(PPMS, decode)) for decode in DECODES),
    one_scale=True,
)
FAIR: Final = MethodComparison(
    "fair",
    (
        _panel("baselines as published", "as published", "posterior"),
        _panel("private event types only, Laplace noise", "private types", "posterior"),
        _panel("private types, randomised response", "randomised response", "posterior"),
        _panel("private types, randomised response, memory", "randomised response", "memory"),
        _panel("the same, w * epsilon over w windows", "same total", "posterior"),
        _panel("the same, w * epsilon over w windows, memory", "same total", "memory"),
        Panel(
            "randomised response on answers",
            _label(REMEMBERING, OPTIMAL, PRIOR, Method("adaptive", "posterior"), *_ANSWERS),
        ),
    ),
)
ABLATION: Final = MethodComparison(
    "ablation",
    (
        Panel(
            "what each step adds",
            (
                ("noise on all event types", Method("event-level", "literal", _START)),
                ("public types untouched", Method("event-level", "literal", _UNIFORM)),
                ("posterior decoding", Method("event-level", "posterior", _UNIFORM)),
                ("shares of epsilon chosen", Method("adaptive", "posterior")),
                ("optimal channel", OPTIMAL),
                ("memory in decoding", Method("optimal", "memory", DECODING)),
                ("memory in choosing channels", REMEMBERING),
                ("prior alone", PRIOR),
                ("memory, without the channel", Method("event-level", "memory", _UNIFORM)),
            ),
        ),
    ),
)
"""Where the gain comes from: every step has those before it. The last two are for comparison."""
COMPARISONS: Final = {one.name: one for one in (MAIN, FAIR, ABLATION)}


def add_own(comparison: MethodComparison, path: Path | None) -> MethodComparison:
    """Add a panel with the methods of a file, between the prior and optimal."""
    if path is None:
        return comparison
    own = load_methods(path)
    listed: list[tuple[str, Method]] = []
    for method in own:
        decodings: tuple[MethodDecoding, ...] = method.decodings or ("own",)
        for decode in decodings:
            label = method.name if len(decodings) == 1 else f"{method.name}, {decode}"
            listed.append((label, Method(method.name, decode)))
    panel = Panel(f"methods of {path.name}", (*_label(OPTIMAL, PRIOR), *listed))
    names = tuple(method.name for method in own)
    return replace(comparison, panels=(*comparison.panels, panel), own=names)


def measure_errors(
    spec: Specification,
    history: Presence | Streams,
    test: Presence | Streams,
    epsilons: Sequence[Fraction],
    seed: int,
    methods: Sequence[Method] = METHODS,
    own: Path | None = None,
) -> Floats:
    """Measure the errors of methods on one data set, `[epsilon][method][score]`.

    Windows are streams, or arrays without an order for mechanisms: `[window][event type]`, or
    `[subject][window][event type]` for the sake of baselines. Every private pattern of the
    specification has the largest epsilon. Every method draws its noise from the same seed. Scores
    are those of `SCORES`, then one for each query. `own` is a file with methods.
    """
    past, present = (
        part.presence if isinstance(part, Streams) else part for part in (history, test)
    )
    ours = _Mechanisms(spec, _for_mechanisms(history), _for_mechanisms(test), seed)
    setting = Setting.of(spec, past)
    of_file = {} if own is None else {method.name: method for method in load_methods(own)}
    alphas = [query.alpha for query in spec.boolean_queries]
    errors = []
    for epsilon in epsilons:
        found: dict[Method, Confusion[Floats]] = {}
        for method in methods:
            if method in found:
                continue
            if method.name in MECHANISMS:
                found[method] = ours.measure(method, epsilon)
                continue
            random = np.random.default_rng([seed, 6])
            if method.name in of_file:
                counted = of_file[method.name].measure(setting, present, epsilon, random)
                found |= {one: counted[one.decode] for one in methods if one.name == method.name}
                continue
            same = {
                decode
                for one in methods
                if (one.name, one.variant) == method[::2] and (decode := one.decode) != "own"
            }
            for decode, counts in _measure(method, setting, present, epsilon, random, same).items():
                found[method._replace(decode=decode)] = counts
        errors.append([compute_scores(found[method], alphas) for method in methods])
    return np.array(errors)


def _for_mechanisms(windows: Presence | Streams) -> Presence | Streams:
    return windows if isinstance(windows, Streams) else windows.reshape(-1, windows.shape[-1])


class _Mechanisms:
    """Measures mechanisms on one data set."""

    def __init__(
        self,
        spec: Specification,
        history: Presence | Streams,
        test: Presence | Streams,
        seed: int,
    ) -> None:
        self._spec = spec
        self._statistics = compute_statistics(spec, history)
        self._test = test
        self._seed = seed

    def measure(self, method: Method, epsilon: Fraction) -> Confusion[Floats]:
        """Plan with this epsilon per window, run the plan, and count errors."""
        remembering = method.decode == "memory"
        spec = self._spec if remembering else drop_memory(self._spec)
        decode: Decode = "literal" if method.decode == "literal" else "posterior"
        share = epsilon / Fraction(LARGEST_EPSILON)
        plan = make_plan(spec, self._statistics, method.name, decode, share, fall_back=False)
        if method.variant == DECODING:
            plan = remember_in_decoding(plan, self._statistics)
        # Without memory windows do not depend on each other, and one draw for all is faster.
        windows = self._test
        if isinstance(windows, Streams) and not has_memory(plan):
            windows = windows.flat
        return measurement.measure(plan, windows, Noise(SeededSource(self._seed)))


def find_baseline(method: Method) -> Baseline:
    """Return the baseline that a method names."""
    listed = VARIANTS[method.variant] if method.variant else BASELINES
    return next(baseline for baseline in listed if baseline.name == method.name)


def _measure(
    method: Method,
    setting: Setting,
    test: Presence,
    epsilon: Fraction,
    random: np.random.Generator,
    decodings: set[Decoding],
) -> dict[Decoding, Confusion[Floats]]:
    for response in ANSWER_RESPONSES:
        if response.name == method.name:
            truth = compute_true_answers(setting, test.reshape(-1, test.shape[-1]))
            answers = answer_vectors(response, setting, test, epsilon, random)
            return {decode: compare(truth, answers[decode]) for decode in decodings}
    return measure_baseline(find_baseline(method), setting, test, epsilon, random, decodings)
