"""Every input that was ever found to be interesting is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_the_corpus_breaks_a_parser(target: str) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs, "a target without a corpus was never fuzzed"
    for path in inputs:
        TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=15)
@given(data=st.data())
def test_no_damage_to_an_input_of_the_corpus_breaks_a_parser(
    target: str, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted((CORPUS / target).iterdir())))
    octets = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(octets) - 1)))
        octets[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    TARGETS[target](bytes(octets))
