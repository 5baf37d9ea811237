"""Epsilons as exact decimal numbers, and limits per horizon."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from tacit.config import Config, Number, Span, describe
from tacit.durations import format_duration, parse_duration

_LEAST, _MOST = Decimal("1e-9"), Decimal("1e6")
_NANO = 10**9


def _read_decimal(value: Any) -> Decimal:
    """Return a number, exactly as it was written."""
    match value:
        case Decimal():
            return value
        case Number():
            return Decimal(value.text.replace(".inf", "inf").replace(".nan", "nan"))
        case bool() | str() | None:
            raise ValueError(f"expected a number, such as 1.0; got {describe(value)}")
        case int() | float():
            return Decimal(repr(value))
        case _:
            raise ValueError(f"expected a number, such as 1.0; got {describe(value)}")


def _check_epsilon(epsilon: Decimal) -> Decimal:
    if not epsilon.is_finite() or epsilon <= 0:
        raise ValueError(
            f"epsilon must be a finite number greater than 0, such as 1.0; got {epsilon}"
        )
    if not _LEAST <= epsilon <= _MOST:
        raise ValueError("epsilon must be between 0.000000001 and 1000000, such as 1.0")
    return epsilon


Exact = Annotated[Decimal, PlainValidator(_read_decimal), PlainSerializer(str)]
Epsilon = Annotated[
    Exact,
    AfterValidator(_check_epsilon),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}),
]
"""An epsilon: an exact decimal number."""


def name_horizon(length: int) -> str:
    """Say how long a horizon is: `day`, or `12 h`."""
    horizon = format_duration(length)
    words = {"1 d": "day", "1 h": "hour", "1 min": "minute", "1 s": "second"}
    return words.get(horizon, horizon)


def _check_portion(portion: Decimal) -> Decimal:
    if not portion.is_finite() or not 0 <= portion <= 1:
        raise ValueError(f"expected a share of epsilon: a number from 0 to 1; got {portion}")
    return portion


EpsilonShare = Annotated[
    Exact,
    AfterValidator(_check_portion),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]
"""A share of an epsilon: an exact decimal number."""


class Limit(Config):
    """An epsilon for each horizon: `20 per day`.

    >>> Limit.model_validate("20 per 24 h")
    20 per day
    """

    amount: Epsilon
    """The epsilon that may be spent."""
    horizon: Span
    """The length of the horizon in which it may be spent."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        amount, per, horizon = str(value).partition(" per ")
        if not per or not isinstance(value, str):
            raise ValueError(f"expected a limit such as '20 per day'; got {describe(value)}")
        horizon = "7 d" if horizon.strip() == "week" else horizon.strip()
        spelled = horizon if re.match(r"\d", horizon) else f"1 {horizon}"
        try:
            parse_duration(spelled)
            return {"amount": Number(amount.strip()), "horizon": spelled}
        except ValueError as error:
            raise ValueError(
                f"expected a limit such as '20 per day' or '5 per 12 h'; got {describe(value)}"
            ) from error

    def windows(self, epsilon: Decimal | Fraction) -> int:
        """Return how many windows of this cost the limit allows in each horizon.

        Costs are counted in whole nano-epsilon and rounded up, limits down.

        >>> Limit.model_validate("20 per day").windows(Decimal("1.5"))
        13
        """
        return floor(self.amount * _NANO) // ceil(Fraction(epsilon) * _NANO)

    @model_serializer
    def _write(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.amount} per {name_horizon(self.horizon)}"

    __repr__ = __str__


LimitText = Annotated[
    Limit,
    WithJsonSchema({"type": "string", "pattern": " per ", "examples": ["20 per day"]}),
]
