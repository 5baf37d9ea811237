"""Panes put together, and clocks on the wall."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import SpecificationError
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.windows.panes import choose_capacity
from tacit.windows.sliding import combine_panes
from tests.pipeline.test_engine import Row, batch, flat
from tests.pipeline.test_sliding import sliding


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32))
def test_a_window_has_what_any_of_its_panes_has(panes: int, windows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = np.uint64(1) << rng.integers(0, 64, (panes + windows - 1, 2, 3), np.uint64)
    words[rng.random(words.shape) < 0.5] = 0
    found = combine_panes(words, panes)
    assert len(found) == windows
    for window in range(windows):
        assert np.array_equal(found[window], np.bitwise_or.reduce(words[window : window + panes]))


def test_panes_that_memory_cannot_hold_are_a_mistake() -> None:
    assert choose_capacity(1, 0, 1000, 1, 500) >= 2
    with pytest.raises(SpecificationError, match="make the lateness shorter or the slide longer"):
        choose_capacity(1, 0, 10_000_000, 1, 500)


def test_windows_that_slide_may_close_by_the_clock() -> None:
    """A window ends with each tick that passes the end of a pane, whether or not anybody sends."""
    spec = sliding(2)
    windows = spec.windows.model_copy(update={"close": "clock", "lateness": 0})
    registry = Subjects()
    registry.add([1])
    engine = Engine(
        CompiledSpec(spec.model_copy(update={"windows": windows})), registry, ticking=True
    )
    answers = []
    for now in (3, 11, 12, 16):
        answers += [engine.answer(part) for part in engine.tick(now)]
        answers += engine.push(Rows("s", batch([Row(1, now, 0, None)])))
    assert {start for start, _, _ in flat(answers)} == {-5, 0, 5}
    found = flat([*answers, *engine.finish()])
    assert {start for start, _, _ in found} == {-5, 0, 5, 10, 15}
    assert not any(found[start, 1, "none"] for start in (-5, 0, 5, 10, 15))
