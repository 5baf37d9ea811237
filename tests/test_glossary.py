"""The glossary is sorted, has one term in each line, and is linked where readers begin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
ENTRIES = [line for line in GLOSSARY.splitlines() if line.startswith("- ")]
ENTRY = re.compile(r"- \*\*([^*]+)\*\*: (.+)\.")
NEEDED = """
    subject consumer query pattern element event tuple window pane watermark lateness channel
    context component epsilon horizon limit ledger release charge plan mechanism uniform adaptive
    optimal prior posterior decoding confidence registry policy checkpoint sink source
"""


def test_each_line_defines_one_term_in_one_sentence() -> None:
    for line in ENTRIES:
        matched = ENTRY.fullmatch(line)
        assert matched, line
        term, meaning = matched.groups()
        assert len(term.split()) <= 3, line
        assert "**" not in meaning, line
        assert not re.search(r"\. [A-Z]", meaning), line


def test_terms_are_sorted_and_none_stands_there_twice() -> None:
    terms = [line.split("**")[1].lower() for line in ENTRIES]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("term", [*NEEDED.split(), "dead letter", "event type", "private pattern"])
def test_the_terms_that_every_page_uses_are_defined(term: str) -> None:
    assert any(line.lower().startswith(f"- **{term}**:") for line in ENTRIES)


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md", "docs/index.md"])
def test_the_glossary_is_linked_where_readers_begin(page: str) -> None:
    assert "glossary.md)" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pattern_is_never_a_file_name(page: Path) -> None:
    """A file name with wildcards is a glob."""
    text = page.read_text("utf-8")
    assert not re.search(r"patterns? (of files?|such as `[^`]*\*)|all files that the pattern", text)
