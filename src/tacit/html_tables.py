"""Format rows as tables that notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def format_html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows as an HTML table; every text is escaped.

    >>> format_html_table("Q < 1", ("query",), [("jam",)])
    '<table><caption>Q &lt; 1</caption><tr><th>query</th></tr><tr><td>jam</td></tr></table>'
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{line(head, 'th')}{body}</table>"
