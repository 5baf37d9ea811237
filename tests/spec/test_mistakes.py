"""Every mistake is told with its place and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.errors import Mistake, SpecificationError
from tacit.spec.yaml_reader import loads

HEAD = """\
streams: {gps: {subject: taxi, time: ts}}
windows: {size: 10 min}
events: {slow: {stream: gps, where: "speed < 8"}, parked: {stream: gps}}
"""
"""Three lines; what a case adds begins in line 4."""


def mistakes(text: str, folder: Path | None = None) -> list[Mistake]:
    """The mistakes of a text that has some."""
    with pytest.raises(SpecificationError) as caught:
        loads(text, "spec.yaml", folder)
    return list(caught.value.mistakes)


CASES = {
    # YAML
    "an empty text": ("", 1, 1, "is empty"),
    "only a comment": ("# nothing\n", 1, 1, "is empty"),
    "a list": ("- a\n- b\n", 1, 1, "got a list"),
    "a word": ("\n  hello\n", 2, 3, "got 'hello'"),
    "a syntax error": ("streams: {gps: {\nwindows:\n", 3, 1, "not YAML"),
    "an open quote": ("streams: 'gps\nwindows: 1\n", 1, 10, "a quoted scalar"),
    "a word between fields": (HEAD + "hello\nversion: 1\n", 4, 1, "expected ':'"),
    "a tab": ("streams:\n\tgps: 1\n", 2, 1, "indent with spaces"),
    "a control character": ("a: 1\nb: \x00\n", 2, 4, "text file"),
    "two documents": (HEAD + "---\nversion: 1\n", 4, 1, "one YAML document"),
    "nesting without end": ("a: " + "[" * 5000, 1, 67, "nested more than 64"),
    "an alias to nothing": ("a: *b\n", 1, 4, "no anchor &b"),
    "an alias to itself": ("a: &b [*b]\n", 1, 8, "refers to itself"),
    "a merge key": (HEAD + "x: &x {}\nareas:\n  <<: *x\n", 6, 3, "merge keys"),
    "a tag": (HEAD + "mechanism: !!str optimal\n", 4, 12, "tags"),
    "a list as a name": (HEAD + "areas: {[a]: 1}\n", 4, 9, "must be a word"),
    "a key twice": (HEAD + "version: 1\nversion: 1\n", 5, 1, "twice (first in line 4)"),
    # Fields
    "a misspelt section": (HEAD + "querys: []\n", 4, 1, "Did you mean 'queries'?"),
    "an unknown section": (HEAD + "zzz: []\n", 4, 1, "Known here: version"),
    "the inner field folder": (HEAD + "folder: /tmp\n", 4, 1, "no field 'folder'"),
    "no windows": ("streams: {gps: {subject: a, time: b}}\nevents: {e: {stream: gps}}\n",
                   1, 1, "'windows' is missing"),
    "empty events": ("streams: {gps: {subject: a, time: b}}\nwindows: {size: 1 s}\nevents:\n",
                     3, 8, "events is empty"),
    "no streams at all": (
        "streams: {}\nwindows: {size: 1 s}\nevents: {}\n", 1, 10, "streams is empty"),
    "a misspelt field": (HEAD.replace("windows: {", "windows: {latenes: 1 s, "),
                         2, 11, "Did you mean 'lateness'?"),
    "an unknown field": (HEAD + "private:\n  - {pattern: slow, epsilon: 1, zzz: 2}\n",
                         5, 33, "Known here: pattern, epsilon"),
    "a missing field": (HEAD + "queries:\n- name: jam\n  pattern: slow\n",
                        5, 3, "'consumer' is missing"),
    "a list for a mapping": (HEAD + "patterns: [a]\n", 4, 11, "must be names"),
    "a mapping for a list": (HEAD + "queries: {a: 1}\n", 4, 10, "must be a list"),
    "a word for a part": (HEAD + "queries: [jam]\n", 4, 11, "expected a mapping; got 'jam'"),
    "a number for text": (HEAD.replace("subject: taxi", "subject: 12"), 1, 26, "put it in quotes"),
    "a list for text": (HEAD.replace("time: ts", "time: [ts]"), 1, 38, "expected text; got a list"),
    "nothing for text": (HEAD.replace("time: ts", "time: "), 1, 38, "expected text; got nothing"),
    "a wrong version": (HEAD + "version: 2\n", 4, 10, "expected 1; got 2"),
    "an unknown mechanism": (HEAD + "mechanism: optimel\n", 4, 12, "Did you mean 'optimal'?"),
    "an unknown decoding": (HEAD + "decode: best\n", 4, 9, "expected posterior or literal"),
    # Names
    "a name with a dash": (HEAD + "patterns: {a-b: slow}\n", 4, 12, "cannot be a name"),
    "a number as a name": (HEAD + "areas: {1: {box: [1, 1, 2, 2]}}\n", 4, 9, "cannot be a name"),
    "a keyword as a name": (HEAD + "patterns: {within: slow}\n", 4, 12, "word of the pattern"),
    "a query's name": (HEAD + "queries:\n- {name: a b, consumer: c, pattern: slow}\n",
                       5, 10, "cannot be a name"),
    "an event and a pattern": (HEAD + "patterns: {slow: parked}\n", 4, 12, "an event already"),
    "two queries with a name": (
        HEAD + "queries:\n- {name: a, consumer: c, pattern: slow}\n"
        "- {name: a, consumer: d, pattern: parked}\n", 6, 10, "another query called 'a'"),
    # Counts
    "neither pattern nor count": (HEAD + "queries:\n- {name: a, consumer: c}\n",
                                  5, 3, "this one has none of them"),
    "pattern and count": (HEAD + "queries:\n- {name: a, consumer: c, pattern: slow, count: slow}\n",
                          5, 3, "this one has pattern and count"),
    "a share of a pattern": (
        HEAD + "queries:\n- {name: a, consumer: c, pattern: slow, share: 0.5}\n",
        5, 3, "'share' is for queries with count"),
    "an alpha of a count": (HEAD + "queries:\n- {name: a, consumer: c, count: slow, alpha: 1}\n",
                            5, 3, "'alpha' is for queries with pattern"),
    "a share above 1": (HEAD + "queries:\n- {name: a, consumer: c, count: slow, share: 1.5}\n",
                        5, 46, "from 0 to 1; got 1.5"),
    "an unknown name in a count": (
        HEAD + "queries:\n- {name: a, consumer: c, count: 'SEQ(slow, sloww)'}\n",
        5, 44, "Did you mean 'slow'"),
    "counts by a column without a registry file": (
        HEAD + "queries:\n- {name: a, consumer: c, count: slow, by: fleet}\n",
        5, 43, "need a registry file with that column"),
    "shares above 1": (
        HEAD + "private: [{pattern: slow, epsilon: 1}]\nqueries:\n"
        "- {name: a, consumer: c, count: slow, share: 0.6}\n"
        "- {name: b, consumer: c, count: slow, share: 0.6}\n", 6, 46, "claim 1.2 of its epsilon"),
    "shares that leave nothing": (
        HEAD + "private: [{pattern: slow, epsilon: 1}]\nqueries:\n"
        "- {name: a, consumer: c, count: slow, share: 1}\n"
        "- {name: b, consumer: c, pattern: slow}\n", 6, 46, "another query depends on it too"),
    # Windows
    "no unit": (HEAD.replace("10 min", "10"), 2, 17, "such as '10 s'"),
    "an unknown unit": (HEAD.replace("10 min", "10 parsecs"), 2, 17, "us, ms, s, min, h or d"),
    "a negative size": (HEAD.replace("10 min", "-10 min"), 2, 17, "cannot be negative"),
    "a size of zero": (HEAD.replace("10 min", "0 s"), 2, 17, "more than 0"),
    "a slide that does not fit": (HEAD.replace("10 min", "10 min, slide: 4 min"),
                                  2, 32, "a multiple of slide"),
    "a slide beyond the size": (HEAD.replace("10 min", "10 min, slide: 20 min"),
                                2, 32, "a multiple of slide"),
    "a slide that is too short": (HEAD.replace("10 min", "10 min, slide: 500 ms"),
                                  2, 32, "at most 1,000 times"),
    "a start that is none": (HEAD.replace("10 min", "10 min, start: soon"), 2, 32, "ISO 8601"),
    "a start in numbers": (HEAD.replace("10 min", "10 min, start: 12"), 2, 32, "ISO 8601"),
    # Events and areas
    "an unknown stream": (HEAD.replace("parked: {stream: gps", "parked: {stream: gsp"),
                          3, 68, "Did you mean 'gps'?"),
    "an unknown area": (HEAD.replace("parked: {stream: gps", "parked: {stream: gps, inside: x"),
                        3, 81, "Declare it under areas"),
    "an unknown area of two": (
        HEAD.replace("parked: {", "parked: {inside: [a, b], ") + "areas: {a: {box: [1, 1, 2, 2]}}",
        3, 72, "inside 'b'"),
    "a broken condition": (HEAD.replace("speed < 8", "speed <"), 3, 37, "SQL"),
    "a condition on many rows": (HEAD.replace("speed < 8", "MAX(speed) < 8"), 3, 37, "aggregate"),
    "a box upside down": (HEAD + "areas: {a: {box: [2, 1, 1, 2]}}\n", 4, 18, "min lon, min lat"),
    "a box off the earth": (HEAD + "areas: {a: {box: [1, 1, 200, 2]}}\n", 4, 18, "[-180, 180]"),
    "a box of three": (HEAD + "areas: {a: {box: [1, 1, 2]}}\n", 4, 18, "expected 4 values; got 3"),
    "a box of five": (HEAD + "areas: {a: {box: [1, 1, 2, 2, 3]}}\n", 4, 18, "got 5"),
    "a box of words": (HEAD + "areas: {a: {box: [1, 1, 2, x]}}\n", 4, 28, "expected a number"),
    "a radius without unit": (HEAD + "areas: {a: {circle: [1, 1, 300]}}\n", 4, 28, "its unit"),
    "two shapes": (HEAD + "areas: {a: {box: [1, 1, 2, 2], circle: [1, 1, 1 m]}}\n",
                   4, 12, "exactly one of"),
    "no such shape file": (HEAD + "areas: {a: {geojson: none.json}}\n", 4, 22, "none.json"),
    "a shape file in a list": (HEAD + "areas: {a: {geojson: [x]}}\n",
                               4, 22, "expected text or a mapping; got a list"),
    # Patterns
    "a pattern that is not one": (HEAD + "patterns: {a: SEQ}\n", 4, 18, "expected '('"),
    "a pattern of numbers": (HEAD + "patterns: {a: 12}\n", 4, 15, "expected a pattern"),
    "an unknown name": (HEAD + "patterns: {a: \"SEQ(slow, parkd)\"}\n", 4, 26, "'parked'?"),
    "an unknown name in a query": (HEAD + "queries:\n- {name: q, consumer: c, pattern: fast}\n",
                                   5, 35, "query 'q': 'fast' is neither an event"),
    "a pattern of itself": (HEAD + "patterns: {a: \"SEQ(slow, a)\"}\n", 4, 26, "refers to itself"),
    "a circle": (HEAD + "patterns:\n  a: SEQ(slow, b)\n  b: AND(slow, a)\n",
                 5, 16, "a -> b -> a"),
    "an unknown alias": (HEAD + "patterns:\n  a: SEQ(slow s, parked) WHERE t.x > s.x\n",
                         5, 32, "'t'"),
    "a long WITHIN": (HEAD + "patterns:\n  a: SEQ(slow, parked) WITHIN 11 min\n",
                      5, 24, "windows are 10 min long"),
    "an unquoted comma": (HEAD + "queries:\n- {name: q, consumer: c, pattern: SEQ(slow, parked)}\n",
                          5, 45, "a comma ends a value"),
    # Private patterns
    "epsilon 0": (HEAD + "private:\n- {pattern: slow, epsilon: 0}\n", 5, 28, "greater than 0"),
    "epsilon below 0": (HEAD + "private:\n- {pattern: slow, epsilon: -1.5}\n", 5, 28, "got -1.5"),
    "epsilon infinite": (HEAD + "private:\n- {pattern: slow, epsilon: .inf}\n", 5, 28, "finite"),
    "epsilon no number": (HEAD + "private:\n- {pattern: slow, epsilon: .nan}\n", 5, 28, "finite"),
    "epsilon in words": (HEAD + "private:\n- {pattern: slow, epsilon: one}\n", 5, 28, "got 'one'"),
    "epsilon beyond count": (HEAD + "private:\n- {pattern: slow, epsilon: 1e999999999}\n",
                             5, 28, "between 0.000000001 and 1000000"),
    "private twice": (HEAD + "private:\n- {pattern: slow, epsilon: 1}\n"
                      "- {pattern: slow, epsilon: 2}\n", 6, 13, "declared private twice"),
    "private twice by text": (HEAD + "private:\n- {pattern: slow, epsilon: 1, subjects: [7]}\n"
                              '- {pattern: slow, epsilon: 2, subjects: ["7"]}\n',
                              6, 13, "declared private twice"),
    "a limit without time": (HEAD + "private:\n- {pattern: slow, epsilon: 1, limit: 20}\n",
                             5, 38, "such as '20 per day'"),
    "a limit per nothing": (HEAD + "private:\n- {pattern: slow, epsilon: 1, limit: 2 per x}\n",
                            5, 38, "got '2 per x'"),
    "a limit below epsilon": (HEAD + "private:\n- {pattern: slow, epsilon: 2, limit: 1 per day}\n",
                              5, 38, "less than the epsilon of one window"),
    "a limit below what a window is charged": (
        HEAD + "private:\n- {pattern: slow, epsilon: 0.3333333333, limit: 0.3333333333 per day}\n",
        5, 49, "counted in whole nano-epsilon, is less than the epsilon of one window"),
    "no private subjects": (HEAD + "private:\n- {pattern: slow, epsilon: 2, subjects: []}\n",
                            5, 41, "at least one subject"),
    "an unregistered subject": (
        HEAD + "subjects: [anna, bert]\n"
        "private:\n- {pattern: slow, epsilon: 2, subjects: [anna, brt]}\n", 6, 48, "'bert'?"),
    # Queries
    "alpha above 1": (HEAD + "queries:\n- {name: q, consumer: c, pattern: slow, alpha: 2}\n",
                      5, 48, "between 0 and 1"),
    "alpha true": (HEAD + "queries:\n- {name: q, consumer: c, pattern: slow, alpha: true}\n",
                   5, 48, "got true"),
    "quality 0": (HEAD + "queries:\n- {name: q, consumer: c, pattern: slow, quality: 0}\n",
                  5, 50, "more than 0"),
    "quality above 1": (HEAD + "queries:\n- {name: q, consumer: c, pattern: slow, quality: 1.1}\n",
                        5, 50, "between 0 and 1"),
    "no consumer's name": (HEAD + "queries:\n- {name: q, consumer: '', pattern: slow}\n",
                           5, 23, "not empty"),
    # Subjects
    "subjects in a word": (HEAD + "subjects: all\n", 4, 11, "expected a list of subjects"),
    "a subject twice": (HEAD + "subjects: [a, b, a]\n", 4, 11, "listed twice"),
    "a subject of a kind": (HEAD + "subjects: [a, 1.5]\n", 4, 15, "a name or a whole number"),
    "a number and its digits": (HEAD + "subjects: [7, '7']\n", 4, 11, "'7' is listed twice"),
    "a truth value": (HEAD + "subjects: [a, true]\n", 4, 15, "a name or a whole number; got true"),
    "nothing as a subject": (HEAD + "subjects: [a, ~]\n", 4, 15, "a name or a whole number"),
    "an unknown way": (HEAD + "subjects: {fil: a}\n", 4, 12, "Did you mean 'file'?"),
    "learning for no time": (HEAD + "subjects: {learn: 0 s}\n", 4, 19, "more than 0"),
    "no such file": (HEAD + "subjects: {file: none.txt}\n", 4, 18, "no file 'none.txt'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_reported_with_its_place(case: str, tmp_path: Path) -> None:
    text, line, column, fragment = CASES[case]
    found = mistakes(text, tmp_path)
    places = [(mistake.line, mistake.column) for mistake in found if fragment in mistake.message]
    assert places == [(line, column)], "\n".join(map(str, found))
    assert all(mistake.file == "spec.yaml" for mistake in found)
    told = " ".join(mistake.message for mistake in found)
    for jargon in ("pydantic", "Input should", "http", "Value error", "validat", "Extra inputs"):
        assert jargon not in told


def test_the_head_of_the_cases_has_no_mistake() -> None:
    assert list(loads(HEAD).types) == ["slow", "parked"]
