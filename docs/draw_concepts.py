"""Draw the pictures of concepts.md: `python docs/draw_concepts.py` writes docs/concepts/*.svg.

A picture is a list of shapes on a white or, for readers with a dark screen, a dark card.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

_STYLE: Final = """\
<style>
.k{fill:#fff}text{fill:#1c2530;font-size:13.5px}.s{fill:#5b6776;font-size:12.5px}
.t{font-weight:600}.m{font-family:ui-monospace,monospace;font-size:12.5px}
.b{fill:#f4f7f9;stroke:#b9c4cf}.e{fill:#e3f0f5;stroke:#0f5c7a;stroke-width:1.5}
.p{fill:#fbe9e3;stroke:#b4522d;stroke-width:1.5}.l{stroke:#b9c4cf;fill:none}
.d{stroke:#5b6776;stroke-dasharray:4 4;fill:none}
.a{stroke:#0f5c7a;stroke-width:1.8;fill:none;marker-end:url(#h)}.f{fill:#0f5c7a}
.g{fill:#b4522d}
@media (prefers-color-scheme: dark){.k{fill:#14181d}text{fill:#e7ecf1}.s{fill:#a3b0bd}
.b{fill:#1d242b;stroke:#45515d}.e{fill:#16303b;stroke:#7cc7e0}
.p{fill:#3a221a;stroke:#e59a78}.l{stroke:#45515d}.d{stroke:#a3b0bd}.a{stroke:#7cc7e0}
.f,#h path{fill:#7cc7e0}.g{fill:#e59a78}}
</style>
<defs>
<marker id="h" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"
orient="auto">
<path class="f" d="M0 0L10 5L0 10z"/>
</marker></defs>
"""
"""Classes: k card, b box, e box that matters, f and g dots, l line, d dashed line, a arrow;
t title, s small text, m monospaced text."""


@dataclass
class Picture:
    """Shapes of a given size, with a description for readers who do not see them."""

    width: int
    height: int
    label: str
    shapes: list[str] = field(default_factory=list)

    def box(
        self, kind: str, x: float, y: float, width: float, height: float, round_: int = 8
    ) -> None:
        """Add a rectangle."""
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.shapes.append(f'<rect class="{kind}" {place} rx="{round_}"/>')

    def dot(self, kind: str, x: float, y: float, radius: int = 6) -> None:
        """Add an event."""
        self.shapes.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}"/>')

    def line(self, kind: str, path: str) -> None:
        """Add a line or an arrow."""
        self.shapes.append(f'<path class="{kind}" d="{path}"/>')

    def text(self, kind: str, x: float, y: float, text: str, anchor: str = "") -> None:
        """Add text; it begins at x unless an anchor says otherwise."""
        where = f' text-anchor="{anchor}"' if anchor else ""
        self.shapes.append(
            f'<text class="{kind}" x="{x}" y="{y}"{where}>{escape(text, False)}</text>'
        )

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' font-family="system-ui, sans-serif" role="img" aria-label="{escape(self.label)}">'
        )
        card = f'<rect class="k" width="{self.width}" height="{self.height}" rx="8"/>'
        return "\n".join([head, _STYLE.rstrip(), card, *self.shapes, "</svg>", ""])


def draw_events() -> Picture:
    """One tuple, three conditions, two events."""
    picture = Picture(
        850,
        190,
        (
            "One tuple meets the conditions of two event types and gives two events;"
            " the third condition is not met"
        ),
    )
    picture.box("b", 10, 20, 300, 150, 10)
    picture.text("t", 26, 46, "A tuple of the stream gps")
    values = {"taxi": "17", "at": "2026-03-01 08:12", "speed": "0.4"}
    values["position"] = "in the hospital's area"
    for row, (column, value) in enumerate(values.items()):
        picture.text("m s", 26, 74 + 24 * row, column)
        picture.text("m", 110, 74 + 24 * row, value)
    conditions = ["speed < 1", "inside the area", "speed BETWEEN 1 AND 10"]
    for row, name in enumerate(["parked", "at_hospital", "jammed"]):
        y = 20 + 54 * row
        picture.box("b", 370, y, 210, 42, 6)
        picture.text("t", 386, y + 18, name)
        picture.text("m s", 386, y + 35, conditions[row])
        picture.line("a", f"M312 95L366 {y + 21}")
        if name == "jammed":
            picture.text("s", 596, y + 26, "no event")
        else:
            picture.line("a", f"M582 {y + 21}H636")
            picture.box("e", 640, y + 4, 190, 34, 6)
            picture.text("", 656, y + 26, f"event {name}, 08:12")
    return picture


def draw_windows() -> Picture:
    """Subjects and windows; the last subject sent nothing."""
    picture = Picture(
        860,
        256,
        (
            "Three subjects, three windows of ten minutes: every subject gets an"
            " answer in every window, also the one that sent nothing"
        ),
    )
    events = {"taxi 17": [150, 190, 420], "taxi 18": [330, 352, 366], "taxi 19": []}
    for row, (name, times) in enumerate(events.items()):
        y = 40 + 64 * row
        picture.text("t", 10, y + 24, name)
        for window in range(3):
            picture.box("b", 100 + 180 * window, y, 172, 36, 6)
        for x in times:
            picture.dot("f", x, y + 18, 5)
        picture.text("s", 650, y + 23, "3 answers to every query")
    for number, time in enumerate(["08:00", "08:10", "08:20", "08:30"]):
        picture.text("s", 98 + 180 * number, 28, time, "middle")
    picture.text(
        "s",
        100,
        244,
        (
            "Dots are events. Taxi 19 sent nothing, and gets answers all the same: a"
            " missing row would tell that."
        ),
    )
    return picture


def draw_panes() -> Picture:
    """Sliding windows: each pane is in several of them."""
    picture = Picture(
        860,
        232,
        (
            "Sliding windows of 15 minutes that begin every 5 minutes: each is made"
            " of three panes, and an event is in three windows"
        ),
    )
    for pane in range(6):
        x = 100 + 100 * pane
        picture.box("b", x, 40, 96, 34, 4)
        picture.text("s", x, 30, f"08:{5 * pane:02}", "middle")
    picture.text("s", 700, 30, "08:30", "middle")
    picture.text("t", 10, 62, "panes")
    for window in range(4):
        y = 88 + 26 * window
        inside = window < 3
        picture.box("e" if inside else "b", 100 + 100 * window, y, 296, 20, 4)
        end = 15 + 5 * window
        picture.text("s", 106 + 100 * window, y + 15, f"08:{5 * window:02} to 08:{end:02}")
    picture.text("t", 10, 104, "windows")
    picture.dot("f", 360, 57)
    picture.line("d", "M360 64V160")
    picture.text(
        "s",
        100,
        220,
        (
            "size: 15 min, slide: 5 min. The event at 08:13 is in the three windows"
            " that are highlighted."
        ),
    )
    return picture


def draw_patterns() -> Picture:
    """A sequence with a negation in three windows."""
    picture = Picture(
        860,
        272,
        ("A sequence pattern with a negation: detected in the first window, not in the two others"),
    )
    picture.text("m", 10, 28, "SEQ(opened, NOT closed, left)")
    rows = [
        ({110: "opened", 300: "moved", 430: "left"}, "detected", "in order, no closed between"),
        ({110: "opened", 270: "closed", 430: "left"}, "no", "closed came between"),
        ({150: "left", 390: "opened"}, "no", "wrong order"),
    ]
    kinds = {"moved": "s", "closed": "g"}
    for row, (events, answer, reason) in enumerate(rows):
        y = 80 + 70 * row
        picture.line("l", f"M60 {y}H480")
        for x, name in events.items():
            picture.dot(kinds.get(name, "f"), x, y)
            picture.text("s", x, y - 13, name, "middle")
        picture.box("e" if answer == "detected" else "b", 510, y - 20, 110, 36, 6)
        picture.text("", 565, y + 3, answer, "middle")
        picture.text("s", 636, y + 3, reason)
    picture.text(
        "s",
        60,
        258,
        ("Each line is one window of one subject. Events of other types in between do not matter."),
    )
    return picture


def draw_watermark() -> Picture:
    """The watermark behind the newest tuple."""
    picture = Picture(
        860,
        206,
        (
            "The watermark follows the newest tuple at the distance of the lateness;"
            " windows before it are closed, and tuples for them are refused"
        ),
    )
    picture.line("a", "M40 120H820")
    picture.text("s", 826, 140, "event time", "end")
    for x, time in {100: "08:00", 400: "08:10", 700: "08:20"}.items():
        picture.line("l", f"M{x} 60V130")
        picture.text("s", x, 150, time, "middle")
    picture.box("b", 100, 84, 300, 36, 0)
    picture.text("s", 250, 106, "closed: answers are final", "middle")
    picture.box("e", 400, 84, 300, 36, 0)
    picture.text("s", 550, 106, "open", "middle")
    picture.dot("f", 640, 120, 7)
    picture.text("t", 640, 52, "newest tuple", "middle")
    picture.line("d", "M640 60V108")
    picture.line("a", "M470 60V130")
    picture.text("t", 470, 52, "watermark", "middle")
    picture.line("a", "M632 72H478")
    picture.text("s", 556, 66, "lateness", "middle")
    picture.dot("g", 330, 120, 7)
    picture.line("d", "M330 132V176")
    picture.text("s", 330, 192, "late tuple: refused, to the dead letters", "middle")
    return picture


def draw_registry() -> Picture:
    """Tuples of registered subjects are taken, those of others are refused."""
    picture = Picture(
        860,
        214,
        (
            "The registry lists taxis 17, 18 and 19: their tuples are taken and all"
            " three get answers; a tuple of taxi 20 is refused"
        ),
    )
    for row, (name, known) in enumerate(
        {"taxi 17": True, "taxi 18": True, "taxi 20": False}.items()
    ):
        y = 34 + 52 * row
        picture.box("b", 20, y, 150, 36, 6)
        picture.text("", 34, y + 23, f"tuple of {name}")
        picture.line("a", f"M172 {y + 18}H296")
        if not known:
            picture.text("s", 310, y + 23, "not registered: refused, to the dead letters")
    picture.box("e", 300, 20, 200, 104)
    picture.text("t", 316, 44, "Registry, public")
    for row, name in enumerate(["taxi 17", "taxi 18", "taxi 19"]):
        picture.text("m", 316, 68 + 22 * row, name)
    picture.line("a", "M502 72H596")
    picture.box("b", 600, 20, 240, 104)
    picture.text("t", 616, 44, "Answers in every window")
    for row, name in enumerate(["taxi 17", "taxi 18", "taxi 19, which sent nothing"]):
        picture.text("s", 616, 68 + 22 * row, name)
    picture.text(
        "s",
        20,
        206,
        (
            "The list is given, or learned from the first part of the stream and then"
            " announced. No event adds to it later."
        ),
    )
    return picture


def draw_private() -> Picture:
    """Two inputs that differ in private events, and the distributions of all answers."""
    picture = Picture(
        860,
        246,
        (
            "Two worlds that differ only in the private events of one subject and"
            " window: each set of answers is nearly equally likely in both"
        ),
    )
    picture.text("t", 430, 28, "Probability of what all consumers get")
    bars = {"with the private events": [14, 22, 40, 30], "without them": [28, 38, 24, 16]}
    for row, (name, heights) in enumerate(bars.items()):
        y = 44 + 96 * row
        picture.box("b", 20, y, 330, 60)
        picture.text("s", 34, y + 22, name)
        picture.line("l", f"M34 {y + 44}H336")
        picture.dot("f", 80, y + 44, 5)
        picture.dot("f", 180, y + 44, 5)
        if row == 0:
            picture.dot("g", 270, y + 44, 7)
            picture.text("s", 270, y + 30, "hospital_visit", "middle")
        picture.line("a", f"M352 {y + 30}H420")
        for number, height in enumerate(heights):
            picture.box("f", 440 + 60 * number, y + 60 - height, 40, height, 0)
        picture.line("l", f"M430 {y + 60}H690")
    for number, answers in enumerate(["no, no", "no, yes", "yes, no", "yes, yes"]):
        picture.text("s", 460 + 60 * number, 220, answers, "middle")
    for row, text in enumerate(["Each bar is at most", "exp(epsilon) times", "the other one."]):
        picture.text("s", 706, 110 + 18 * row, text)
    picture.text("s", 20, 232, "Same subject, same window, same public events.")
    return picture


def draw_channel() -> Picture:
    """From public events to an answer; every row of the table sums to 1024."""
    picture = Picture(
        860,
        180,
        (
            "Public events decide what they can and select a channel; the true answer"
            " draws a symbol from its table; the symbol and the prior give the answer"
            " and its confidence"
        ),
    )
    boxes = [
        (10, 190, "Public events", "decide what they can:", "jam: yes, exact", "free_taxi: open"),
        (240, 180, "Context", "what is open here;", "selects one channel", "of the plan"),
        (700, 150, "Answer", "from symbol 1 and", "the prior: yes,", "confidence 0.94"),
    ]
    for x, width, title, *lines in boxes:
        picture.box("b", x, 40, width, 106)
        picture.text("t", x + 14, 64, title)
        for row, text in enumerate(lines):
            picture.text("s", x + 14, 84 + 20 * row, text)
    for x in (202, 422, 662):
        picture.line("a", f"M{x} 93H{x + 34}")
    picture.box("e", 460, 22, 200, 142)
    picture.text("t", 474, 46, "Channel")
    picture.text("s", 544, 46, "in whole numbers")
    picture.text("s", 560, 72, "symbol 1", "middle")
    picture.text("s", 626, 72, "2", "middle")
    for row, (name, entries) in enumerate({"true yes": (901, 123), "true no": (123, 901)}.items()):
        picture.text("s", 474, 98 + 26 * row, name)
        for column, entry in enumerate(entries):
            picture.text("m", 568 + 58 * column, 98 + 26 * row, str(entry), "middle")
    picture.text("s", 474, 152, "audited: ratio at most exp(2)")
    return picture


def draw_confidence() -> Picture:
    """Stated confidence against the share of right answers."""
    picture = Picture(
        700,
        262,
        ("Stated confidence against the share of right answers: the points lie on the diagonal"),
    )
    picture.line("l", "M70 220V30")
    picture.line("l", "M70 220H300")
    picture.line("d", "M70 220L300 30")
    for stated, right in {0.55: 0.54, 0.65: 0.66, 0.75: 0.74, 0.85: 0.86, 0.95: 0.95}.items():
        picture.dot("f", round(70 + 460 * (stated - 0.5)), round(220 - 380 * (right - 0.5)), 5)
    picture.text("s", 185, 250, "confidence that was stated", "middle")
    picture.text("s", 70, 20, "share of answers that were right")
    for mark in (0.5, 0.75, 1):
        picture.text("s", 70 + 460 * (mark - 0.5), 236, str(mark), "middle")
        picture.text("s", 60, 224 - 380 * (mark - 0.5), str(mark), "end")
    lines = [
        "Sketch: of all answers with confidence 0.85,",
        "about 85 of 100 are right.",
        "",
        "It is an average over subjects and windows:",
        "no single answer can be checked by it.",
        "It holds as far as the present is like history.",
    ]
    for row, text in enumerate(lines):
        if text:
            picture.text("s", 350, 80 + 24 * row, text)
    return picture


PICTURES: Final[dict[str, Callable[[], Picture]]] = {
    "events": draw_events,
    "windows": draw_windows,
    "panes": draw_panes,
    "patterns": draw_patterns,
    "watermark": draw_watermark,
    "registry": draw_registry,
    "private": draw_private,
    "channel": draw_channel,
    "confidence": draw_confidence,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / f"concepts/{name}.svg").write_text(draw().svg(), "utf-8")
