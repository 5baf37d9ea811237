"""The options that the URLs of all brokers share, and a check for required packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import parse_qsl

from tacit.connectors.payloads import Coding, parse_coding, parse_types
from tacit.errors import MissingExtraError, TacitError, nearest
from tacit.events.streams import ColumnType


class UrlOptions:
    """The query part of a URL; mistakes raise the error type `wrong`."""

    def __init__(
        self, query: str, known: Sequence[str], place: str, wrong: type[TacitError]
    ) -> None:
        self.place = place
        self.wrong = wrong
        # In a topic filter and in a column a plus is literal.
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)
        self.options = dict(pairs)
        if len(self.options) < len(pairs):
            raise wrong(f"{place}: an option is given twice in the URL")
        for name in self.options:
            if name not in known:
                hint = nearest(name, known) or f" Known are {', '.join(known)}."
                raise wrong(f"{place}: there is no option '{name}'.{hint}")

    def parse_payload(self) -> Coding:
        """Parse the payload format."""
        try:
            return parse_coding(self.options.get("payload", "json"))
        except ValueError as error:
            raise self.wrong(f"{self.place}: {error}") from None

    def parse_columns(self) -> dict[str, ColumnType] | None:
        """Parse the columns with their types, if they are given."""
        text = self.options.get("columns")
        try:
            return None if text is None else parse_types(text)
        except ValueError as error:
            raise self.wrong(f"{self.place}: {error}") from None


def require_extra(module: str, extra: str) -> None:
    """Raise an error if a package of an extra is not installed."""
    if find_spec(module) is None:
        raise MissingExtraError(
            f"this URL needs the extra tacit[{extra}]: pip install 'tacit[{extra}]'"
        )
