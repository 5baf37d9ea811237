"""Variants of a world that differ in private tuples alone."""

from __future__ import annotations

from random import Random

from tests.differential.worlds import Variant, World


def variants(world: World, number: int = 2) -> list[Variant]:
    """So many: one with plain values only, one without any private tuple or with one window of
    one subject changed, and others with values of any kind and broken lines.
    """
    rng = Random(f"variants {world.seed}")
    if world.then is not None:
        return _before(world, world.then.clear)
    found = [Variant(0, odd=world.odd)]
    place = (rng.choice(world.subjects), rng.randrange(world.panes))
    others = [
        Variant(1, odd=0.0),
        Variant(2, empty=True),
        Variant(3, frozenset({place}), odd=1.0),
        Variant(4, odd=1.0),
        Variant(5, odd=0.5),
    ]
    return found + rng.sample(others, number - 1)


def _before(world: World, pane: int) -> list[Variant]:
    """Variants that differ before a pane alone."""
    places = frozenset((subject, early) for subject in world.subjects for early in range(pane))
    return [Variant(0, odd=world.odd), Variant(1, places, odd=world.odd)]
