"""Predict true counts from sums of answers, as measured on past windows.

Where answers do not identify counts, history does: the plan is run over it with seeded noise, and
the true counts of the open answers are regressed on their sums. The prediction's error follows
from the same windows, so it has everything in it that moves counts away from what the plan
assumes: hours of the day, subjects that behave alike, the error of the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.count_sums import KEYS, Per
from tacit.errors import OptionError

Floats = NDArray[np.float64]

_FEATURES: Final = ("likely", "yes", "weighted", "open")
_LEAST: Final = 24
"""The least number of past windows that errors are measured by."""
_RIDGE: Final = 1e-6
_SHRINK: Final = 2.0
"""How many windows the sum of probabilities counts for, besides those of history."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryModel:
    """How the true count of a query follows from the sums of its open answers."""

    coefficients: tuple[float, ...]
    """Of the sums of probabilities, of yes answers, of weights, and of the number of answers."""
    noise: float
    """The variance of the error, as a multiple of the variance of the probabilities."""
    drift: float
    """What is added to it, as a multiple of the squared number of answers."""
    errors: Floats
    """The sizes of past errors relative to their standard deviation, sorted."""

    def predict(self, sums: pl.DataFrame) -> tuple[Floats, Floats]:
        """Return the predicted counts of open answers, and their standard errors."""
        found = sums.select(_FEATURES).to_numpy() @ np.array(self.coefficients)
        return found, self._scale(sums)

    def _scale(self, sums: pl.DataFrame) -> Floats:
        opened = sums["open"].to_numpy()
        variance = self.noise * sums["spread"].to_numpy() + self.drift * opened**2
        return np.sqrt(np.maximum(variance, 1e-12))

    def quantile(self, level: float) -> float:
        """Return how many standard errors an interval of this level extends to each side."""
        number = len(self.errors)
        # Split conformal prediction: one more than the windows that it was measured by.
        place = min(number, int(np.ceil((number + 1) * level)))
        normal = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt((self.errors**2).mean())
        # A quantile of few windows is unsteady, and that of a normal ignores heavy tails.
        return float(self.errors[place - 1] + normal) / 2


@dataclass(frozen=True, slots=True)
class CountModel:
    """The models of all queries, for one length of periods and one way of grouping."""

    queries: tuple[QueryModel | None, ...]
    """None for a query with too little history."""
    per: Per
    grouped: bool

    def check(self, per: Per, *, grouped: bool) -> None:
        """Raise OptionError if it was measured for other periods or groups."""
        if (per, grouped) != (self.per, self.grouped):
            raise OptionError(
                "the model was measured for other periods or groups; measure it with the same per="
                " and by="
            )

    @classmethod
    def fit(
        cls, rounds: list[pl.DataFrame], truth: pl.DataFrame, queries: int, per: Per, *,
        grouped: bool,
    ) -> CountModel:  # fmt: skip
        """Fit all models to the sums of several runs over history, and the sums of the truth."""
        true = truth.select(*KEYS, pl.col("certain").alias("true"))
        joined = [sums.join(true, on=KEYS).filter(pl.col("open") > 0) for sums in rounds]
        models = []
        for query in range(queries):
            own = pl.concat([sums.filter(pl.col("query") == query) for sums in joined])
            cells = len(own) // max(1, len(rounds))
            models.append(_fit(own) if cells >= _LEAST else None)
        return cls(tuple(models), per, grouped)


def _fit(sums: pl.DataFrame) -> QueryModel:
    """Regress the true counts; larger cells have larger errors."""
    features = sums.select(_FEATURES).to_numpy()
    true = (sums["true"] - sums["certain"]).to_numpy()
    opened, spread = sums["open"].to_numpy(), np.maximum(sums["spread"].to_numpy(), 1e-9)
    scale = np.sqrt(spread)
    coefficients = np.zeros(len(_FEATURES))
    for _ in range(3):
        coefficients = _regress(features / scale[:, np.newaxis], true / scale)
        residuals = true - features @ coefficients
        noise, drift = _split_variance(residuals, spread, opened)
        scale = np.sqrt(np.maximum(noise * spread + drift * opened**2, 1e-9))
    inflated = np.sqrt(len(true) / max(1, len(true) - len(coefficients)))
    errors = np.sort(np.abs(residuals) / scale * inflated)
    return QueryModel(tuple(coefficients.tolist()), noise, drift, errors)


def _regress(features: Floats, true: Floats) -> Floats:
    """Return ridge coefficients, shrunk towards the sum of probabilities alone."""
    start = np.array([1.0, 0.0, 0.0, 0.0])
    size = (features**2).mean(axis=0)
    ridge = np.diag(_SHRINK * size + _RIDGE * size.sum() + 1e-12)
    moved = np.linalg.solve(features.T @ features + ridge, features.T @ (true - features @ start))
    return start + moved


def _split_variance(residuals: Floats, spread: Floats, opened: Floats) -> tuple[float, float]:
    """Split the error into a part that grows with the answers, and one with their square."""
    from scipy.optimize import nnls

    # Relative to the size, so that large cells do not decide alone.
    size = spread + 1e-3 * opened**2
    terms = np.stack([spread / size, opened**2 / size], axis=1)
    (noise, drift), _ = nnls(terms, residuals**2 / size)
    if noise + drift == 0:
        noise = 1e-6
    return float(noise), float(drift)
