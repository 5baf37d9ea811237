"""Private tuples by hypothesis: their values look like values of other types."""

from __future__ import annotations

import json
from typing import Final

from hypothesis import strategies as st

from tests.differential.values import COLUMNS, ODD, WILD, Broken, Cell
from tests.differential.worlds import BEGIN, RawTuple, World

_DATES: Final = st.datetimes().flatmap(
    lambda moment: st.sampled_from(
        ("%Y-%m-%d", "%d/%m/%Y", "%m/%d/%y", "%Y%m%d", "%d %b %Y", "%Y-%m-%dT%H:%M:%SZ", "%H:%M")
    ).map(moment.strftime)
)
_NUMBERS: Final = st.one_of(
    st.integers(), st.integers(10**38, 10**41), st.floats(), st.floats(-10, 10), st.booleans()
)
_NUMBERS_AS_TEXT: Final = st.one_of(
    _NUMBERS.map(str),
    st.integers().map(hex),
    st.integers(0, 99).map(lambda number: f"00{number}"),
    st.integers(0, 99).map(lambda number: f"+{number}"),
    st.integers(400, 999).map(lambda power: f"1e{power}"),
    st.text(st.characters(categories=["Nd", "Nl", "No"]), min_size=1, max_size=4),
    _NUMBERS.map(lambda number: f" {number} "),
)
_TEXTS: Final = st.one_of(
    st.just(""),
    st.sampled_from(("unknown", "NaN", "0x1F", "null", "true", "N/A", "-")),
    st.text(" \t\u00a0\u200b", min_size=1, max_size=3),
    st.text("\"'\\,;{}[]", min_size=1, max_size=5),
    st.text(st.characters(categories=["Cs", "Ll"]), max_size=3),
    st.text(max_size=8),
)
VALUES: Final[st.SearchStrategy[Cell]] = st.one_of(
    st.none(),
    st.sampled_from(ODD),
    st.sampled_from(WILD),
    _NUMBERS,
    _NUMBERS_AS_TEXT,
    _DATES,
    st.integers(0, 2 * 10**9),
    _TEXTS,
    st.lists(_NUMBERS | _TEXTS, max_size=3),
    st.dictionaries(st.sampled_from(COLUMNS), _TEXTS, max_size=2),
)
RAW: Final = st.one_of(
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    st.recursive(
        st.none() | _NUMBERS | _TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
)
"""Lines and messages that are no tuple."""


@st.composite
def free_tuples(draw: st.DrawFn, world: World) -> RawTuple:
    """A tuple that is no public event of its subject, or something unreadable."""
    subject = draw(st.sampled_from(world.subjects))
    own = [name for name in world.kinds if name in world.private_types[subject]]
    kind = draw(st.sampled_from([*own, "other", "P", ""]))
    event = world.spec.events.get(kind)
    stream = event.stream if event else draw(st.sampled_from(list(world.spec.streams)))
    pane = draw(st.integers(0, world.panes - 1))
    time = BEGIN + pane * world.pane + draw(st.integers(0, world.pane - 1))
    lateness = world.spec.windows.lateness / 1_000_000
    delay = draw(st.floats(0, 0.999))
    arrival = time + delay * lateness if lateness else pane + delay
    cells: dict[str, Cell] = {name: draw(VALUES) for name in COLUMNS if name != "kind"}
    if world.areas_alone:
        cells["lon"] = draw(st.sampled_from((None, 50, "abc", -7.5, "1e400", "")))
    who = draw(st.just(subject) | st.sampled_from((None, "", " 007", "07", "0007", "nobody", 7.5)))
    at = draw(st.just(time) | st.none() | st.text("-:TZ./+ \u200b", max_size=6))
    cells |= {"who": who, "at": at, "kind": kind}
    return RawTuple(
        stream,
        arrival,
        cells,
        public=False,
        broken=draw(st.none() | st.sampled_from(Broken)),
        spelling=draw(st.integers(0, 2**32)),
        raw=draw(st.none() | RAW),
    )
