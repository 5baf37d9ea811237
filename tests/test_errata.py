"""Every erratum of the paper is shown by an example that runs, and says what we do instead."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "errata.md").read_text()
TABLE, *REST = re.split(r"^## (.+)$", PAGE, flags=re.M)
SECTIONS = dict(zip(REST[0::2], REST[1::2], strict=True))
LISTED = re.findall(r"\]\(#([\w-]+)\) \|$", TABLE, re.M)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


ERRATA = {anchor(heading): text for heading, text in SECTIONS.items() if anchor(heading) in LISTED}


def test_every_section_but_the_last_is_an_erratum_in_the_table() -> None:
    assert [anchor(heading) for heading in SECTIONS][:-1] == LISTED


@pytest.mark.parametrize("name", LISTED)
def test_an_erratum_has_a_counter_example_that_shows_something(name: str) -> None:
    examples = doctest.DocTestParser().get_examples(ERRATA[name])
    assert any(example.want or example.exc_msg for example in examples)


@pytest.mark.parametrize("name", LISTED)
def test_an_erratum_says_what_tacit_does_instead(name: str) -> None:
    assert "**Tacit**" in ERRATA[name]
