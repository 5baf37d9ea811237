"""The options of a connector's URL, which brokers have in common, and what they need installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import parse_qsl

from tacit.connectors.payloads import Coding, parse_coding, parse_types
from tacit.errors import TacitError, nearest
from tacit.events.streams import ColumnType


class UrlOptions:
    """What stands behind the question mark; mistakes in it are errors of the given kind."""

    def __init__(
        self, query: str, known: Sequence[str], place: str, wrong: type[TacitError]
    ) -> None:
        self.place = place
        self.wrong = wrong
        # In a topic filter and in a column a plus stands for itself.
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)
        self.options = dict(pairs)
        if len(self.options) < len(pairs):
            raise wrong(f"{place}: an option stands twice in the URL")
        for name in self.options:
            if name not in known:
                hint = nearest(name, known) or f" Known are {', '.join(known)}."
                raise wrong(f"{place}: there is no option '{name}'.{hint}")

    def coding(self) -> Coding:
        """How payloads are written."""
        try:
            return parse_coding(self.options.get("payload", "json"))
        except ValueError as error:
            raise self.wrong(f"{self.place}: {error}") from None

    def columns(self) -> dict[str, ColumnType] | None:
        """The columns with their types, if they are given."""
        text = self.options.get("columns")
        try:
            return None if text is None else parse_types(text)
        except ValueError as error:
            raise self.wrong(f"{self.place}: {error}") from None


def require_extra(module: str, extra: str, wrong: type[TacitError]) -> None:
    """Refuse to go on without a package that an extra brings."""
    if find_spec(module) is None:
        raise wrong(f"this URL needs the extra tacit[{extra}]: pip install 'tacit[{extra}]'")
