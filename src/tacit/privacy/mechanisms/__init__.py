"""Mechanisms: each with its planning hook, its draws, its decoding and a link to its proof.

`tacit.spec.mechanisms.MECHANISMS` lists them. `docs/extending.md` shows how to add one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tacit.spec.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from tacit.privacy.mechanisms.mechanism import Mechanism


def load(name: str) -> type[Mechanism]:
    """Import the mechanism of this name.

    >>> load("uniform")
    <class 'tacit.privacy.mechanisms.uniform.Uniform'>
    """
    module, _, attribute = MECHANISMS[name].where.partition(":")
    found: type[Mechanism] = getattr(import_module(module), attribute)
    return found
