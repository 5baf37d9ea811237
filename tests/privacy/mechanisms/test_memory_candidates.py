"""Which channels memory chooses from: only those that are worth it."""

from __future__ import annotations

from itertools import product

import numpy as np

from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory.candidates import CandidateBook, design_candidates
from tacit.privacy.mechanisms.optimal.memory.planning import PlannedParts, _spare_books
from tests.privacy.memories import remembering
from tests.privacy.worlds import by_hand

RARE = remembering([("AND(a, b)", "1")], ["AND(a, s)", "OR(b, t)"], "abst")


def planned(rates: dict[str, float]) -> PlannedParts:
    """All contexts of a plan without memory, for events with these rates."""
    (mechanism,) = make_plan(RARE, by_hand(RARE, rates), "optimal").mechanisms
    assert isinstance(mechanism, Optimal)
    (channels,) = mechanism.component_channels
    known = {}
    for bits in product((False, True), repeat=len(channels.component.signals)):
        context = channels.context(np.array(bits, np.bool_))
        assert context is not None
        known[np.packbits(bits).tobytes()] = context
    return mechanism.parts._replace(planned=(known,))


def make_book(parts: PlannedParts) -> CandidateBook:
    """The candidates of all contexts, without beliefs of history."""
    none = np.empty((0, 0))
    return CandidateBook(
        {
            key: tuple(design_candidates(block, none) for block, _ in context.blocks)
            for key, context in parts.planned[0].items()
        }
    )


def test_a_channel_that_gains_no_more_than_others_is_left_out() -> None:
    rng = np.random.default_rng(0)
    several = 0
    for context in planned({}).planned[0].values():
        for block, _ in context.blocks:
            classes = len(block.choice.answers)
            alike = np.tile(rng.dirichlet(np.ones(classes)), (50, 1))
            assert len(design_candidates(block, alike)) == 1
            varied = rng.dirichlet(np.full(classes, 0.1), 200)
            several = max(several, len(design_candidates(block, varied)))
    assert several > 1


def test_books_can_draw_nothing_where_a_plan_without_memory_draws_nothing() -> None:
    parts = planned({"a": 0.01, "b": 0.4})
    (known,) = parts.planned
    book = make_book(parts)
    (spare,) = _spare_books(parts, [book])
    silent = 0
    for key, context in known.items():
        for (_, design), own, made in zip(
            context.blocks, spare.contexts[key], book.contexts[key], strict=True
        ):
            table = design.channel.table
            constant = bool((table == table[0]).all())
            assert own == ((design.channel,) if constant else made)
            silent += constant
    assert 0 < silent < sum(len(context.blocks) for context in known.values())
    # Candidates say something in each of them, whatever it costs.
    assert all(
        (channel.table != channel.table[0]).any()
        for blocks in book.contexts.values()
        for channels in blocks
        for channel in channels
    )


def test_books_that_never_draw_for_nothing_stay_as_they_are() -> None:
    parts = planned({})
    assert _spare_books(parts, [make_book(parts)]) == []
