"""A mistake inside a pattern is found in the YAML text, however the pattern is written there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.spec.nodes import locate, read_nodes
from tests.spec.test_mistakes import HEAD, mistakes

WRITTEN = {
    "plain": "  a: SEQ(slow, parkd)\n",
    "plain over lines": "  a: SEQ(slow,\n      parkd)\n",
    "plain after a blank line": "  a: SEQ(slow,\n\n      parkd)\n",
    "single quotes": "  a: 'SEQ(slow, parkd)'\n",
    "single quotes with a doubled one": "  a: 'OR(SEQ(slow p) WHERE p.x = ''b'', parkd)'\n",
    "double quotes": '  a: "SEQ(slow, parkd)"\n',
    "double quotes with escapes": '  a: "SEQ(\\x73low,\\n\\tparkd)"\n',
    "double quotes over lines": '  a: "SEQ(slow, \\\n     parkd)"\n',
    "an anchor": "  a: &seq SEQ(slow, parkd)\n",
    "an anchor and quotes": "  a: &seq 'SEQ(slow, parkd)'\n",
    "a block": "  a: |\n    SEQ(\n      slow,\n      parkd)\n",
    "a block that is stripped": "  a: |-  # why\n    SEQ(slow,\n    parkd)\n",
    "a folded block": "  a: >\n    SEQ(slow,\n    parkd)\n",
    "a folded block with an indent": "  a: >2\n      SEQ(slow,\n\n    parkd)\n",
    "a block with a comment": "  a: |\n    SEQ(slow, -- not parkd\n      parkd)\n",
    "letters beyond ASCII": "  a: |\n    -- é 😀\n    SEQ(slow, parkd)\n",
}


@pytest.mark.parametrize("way", WRITTEN)
def test_an_unknown_name_is_found_in_every_way_to_write_text(way: str) -> None:
    text = HEAD + "patterns:\n" + WRITTEN[way]
    before = text[: text.rindex("parkd")]
    (mistake,) = mistakes(text)
    assert (mistake.line, mistake.column) == (
        before.count("\n") + 1,
        len(before.split("\n")[-1]) + 1,
    )


@pytest.mark.parametrize(
    ("written", "line", "column"),
    [
        ("  a: SEQ(slow,, parked)\n", 5, 15),
        ("  a: 'SEQ(slow, parked'\n", 5, 23),
        ("  a: |\n    SEQ(slow,\n        parked\n", 7, 15),
        ("  a: >\n    SEQ(slow\n    parked))\n", 7, 12),
        ('  a: "SEQ(slow\\n,\\n,parked)"\n', 5, 20),
        ("  a: SEQ(slow, parked) WITHIN 5 parsecs\n", 5, 31),
    ],
)
def test_a_syntax_error_is_found_inside_the_text(written: str, line: int, column: int) -> None:
    (mistake,) = mistakes(HEAD + "patterns:\n" + written)
    assert (mistake.line, mistake.column) == (line, column)


def test_a_second_place_in_a_message_is_in_the_file_too() -> None:
    (mistake,) = mistakes(HEAD + "patterns:\n  a: |\n    SEQ(slow,\n      AND(parked\n")
    assert "The '(' at line 7, column 10 is not closed" in mistake.message


@given(
    words=st.lists(st.text("ab'\"\\é,(", min_size=1, max_size=4), min_size=1, max_size=6),
    style=st.sampled_from(["'", '"', "|", ">"]),
    data=st.data(),
)
def test_every_character_that_shows_is_found(
    words: list[str], style: str, data: st.DataObject
) -> None:
    """Build the source word by word, so that each word's place is known."""
    blank = data.draw(st.sampled_from([" ", "\n   "])) if style in "'\"" else "\n   "
    source, starts = f"key: {style}", []
    source += "\n   " if style in "|>" else ""
    for word in words:
        starts.append(len(source))
        escaped = {"'": word.replace("'", "''"), '"': word.replace("\\", "\\\\")}.get(style, word)
        source += (escaped.replace('"', '\\"') if style == '"' else escaped) + blank
    source += style if style in "'\"" else ""
    root, _ = read_nodes(source, "x")
    assert root is not None
    node = root.values["key"]
    offset = 0
    for word, start in zip(words, starts, strict=True):
        offset = node.text.index(word, offset)
        line = source.count("\n", 0, start) + 1
        assert locate(node, source, offset) == (line, start - source.rfind("\n", 0, start))
        offset += len(word)
