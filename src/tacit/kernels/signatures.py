"""Argument types of kernels as JSON: scalar names, arrays as `const uint8[1C]`, tuples as lists."""

from __future__ import annotations

import re
from typing import Any, Final

from numba import types

_ARRAY: Final = re.compile(r"(const )?(\w+)\[(\d+)([CFA])\]")
_NUMBA: Final[Any] = types


def format_type(kind: Any) -> Any:
    """Format a type as JSON; raise ValueError if there is no notation for it.

    >>> format_type(types.Array(types.uint8, 1, "C", readonly=True))
    'const uint8[1C]'
    """
    if isinstance(kind, _NUMBA.BaseTuple):
        text: Any = [format_type(one) for one in kind.types]
    elif isinstance(kind, types.Array):
        text = f"{'' if kind.mutable else 'const '}{kind.dtype}[{kind.ndim}{kind.layout}]"
    else:
        text = str(kind)
    if parse_type(text) != kind:
        raise ValueError(f"no notation for {kind}")
    return text


def parse_type(text: Any) -> Any:
    """Parse a type from JSON; raise ValueError if it is invalid.

    >>> parse_type("const uint8[1C]")
    Array(uint8, 1, 'C', True, aligned=True)
    """
    if isinstance(text, list | tuple):
        return _NUMBA.BaseTuple.from_types([parse_type(one) for one in text])
    array = _ARRAY.fullmatch(text)
    if array is not None:
        constant, dtype, dimensions, layout = array.groups()
        return _NUMBA.Array(
            _parse_scalar(dtype), int(dimensions), layout, readonly=constant is not None
        )
    return _parse_scalar(text)


def _parse_scalar(name: str) -> Any:
    kind = getattr(types, "boolean" if name == "bool" else name, None)
    if not isinstance(kind, types.Number | types.Boolean | types.NoneType):
        raise ValueError(f"{name} is not a type of a kernel's argument")
    return kind
