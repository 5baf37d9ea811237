"""Methods of your own, from a Python file, compared with all others in an experiment.

The file has a list `METHODS`. Each entry is

- a function `(presence, setting, epsilon, random)` that returns answers, or an object with such a
  method `answer` and a `name`. Answers are booleans `[query][window]` or, if presence is
  `[subject][window][event type]`, `[query][subject][window]`.
- or a baseline: an object with `name` and `release`, which returns noisy presence (`Baseline` in
  `baselines/releases.py`). Its release is decoded literally and by posterior.

That a method keeps its epsilon is its author's claim: nothing here checks it.
"""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tacit.errors import OptionError
from tacit.evaluation.baselines import (
    ANSWER_RESPONSES,
    BASELINES,
    Baseline,
    Decoding,
    Setting,
)
from tacit.evaluation.baselines import measure as measure_baseline
from tacit.evaluation.baselines.decoding import compare, compute_true_answers
from tacit.evaluation.baselines.releases import Amount
from tacit.evaluation.baselines.setting import Floats, Presence
from tacit.options import option
from tacit.privacy.quality import Confusion
from tacit.spec.mechanisms import MECHANISMS

Answer: TypeAlias = Callable[[Presence, Setting, Amount, np.random.Generator], NDArray[np.bool_]]


@runtime_checkable
class AnsweringMethod(Protocol):
    """A method that answers queries itself."""

    name: str

    def answer(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Return answers `[query][window]`, or `[query][subject][window]`."""


@dataclass(frozen=True)
class OwnMethod:
    """A method from a file: one that answers, or a baseline that releases noisy presence."""

    name: str
    answer: Answer | None
    baseline: Baseline | None

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """How its release is decoded; empty if it answers itself."""
        return () if self.baseline is None else ("literal", "posterior")

    def measure(
        self,
        setting: Setting,
        test: Presence,
        epsilon: Amount,
        random: np.random.Generator,
    ) -> dict[str, Confusion[Floats]]:
        """Count its errors for each query, with each decoding; `own` if it answers itself."""
        if self.baseline is not None:
            found = measure_baseline(self.baseline, setting, test, epsilon, random, self.decodings)
            return {str(decode): counts for decode, counts in found.items()}
        assert self.answer is not None
        truth = compute_true_answers(setting, test)
        answers = np.asarray(self.answer(test, setting, epsilon, random))
        if answers.shape != truth.shape or answers.dtype != np.bool_:
            raise OptionError(
                f"{option('method')}: {self.name} must return booleans of the shape {truth.shape},"
                f" [query]{'[subject]' if truth.ndim > 2 else ''}[window]; got {answers.dtype}"
                f" {answers.shape}"
            )
        return {"own": compare(truth, answers)}


@lru_cache(maxsize=4)
def load_methods(path: Path) -> tuple[OwnMethod, ...]:
    """Run a Python file and return the methods of its list `METHODS`."""
    try:
        found = runpy.run_path(str(path)).get("METHODS")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OptionError(f"{option('method')}: {path} cannot be read: {why}") from error
    except Exception as error:
        raise OptionError(
            f"{option('method')}: {path} fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise OptionError(
            f"{option('method')}: {path} needs a list METHODS of functions or objects with a name"
        )
    methods = tuple(_method(path, one) for one in found)
    taken = [*MECHANISMS, *(one.name for one in (*BASELINES, *ANSWER_RESPONSES))]
    for method in methods:
        if method.name in taken:
            raise OptionError(
                f"{option('method')}: the name {method.name!r} is taken; choose another"
            )
        taken.append(method.name)
    return methods


def identify_file(path: Path) -> str:
    """Hash a file, so that results of another version of it are not taken for its own."""
    try:
        return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OptionError(f"{option('method')}: {path} cannot be read: {why}") from error


def _method(path: Path, given: Any) -> OwnMethod:
    name = getattr(given, "name", None) or getattr(given, "__name__", "").replace("_", " ")
    if isinstance(name, str) and name.strip():
        if hasattr(given, "release"):
            return OwnMethod(name, None, given)
        if isinstance(given, AnsweringMethod):
            return OwnMethod(name, given.answer, None)
        if callable(given):
            return OwnMethod(name, given, None)
    raise OptionError(
        f"{option('method')}: an entry of METHODS in {path} must be a function, or have a name and"
        f" a method answer or release; got {type(given).__name__}"
    )
