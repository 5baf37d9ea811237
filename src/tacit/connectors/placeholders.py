"""Placeholders in topics and file names: `{consumer}`, `{query}` and `{subject}`.

A file name with placeholders means one file per name. Names are encoded so that no name leaves its
folder and no two names share a file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tacit.errors import SinkError, nearest

PLACEHOLDERS: Final = ("consumer", "query", "subject")
_PLACEHOLDER: Final = re.compile(r"\{([^{}/]*)\}")
_UNSAFE: Final = r"%/\\*?\[\]{}\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""Characters to encode in a file name: separators, wildcards, braces, control characters."""
_LONGEST: Final = 160
"""The most bytes of names in a part of a path; file systems allow 255 for the whole part."""
_EMPTY, _CUT = "%z", "%x"
"""Marks of an empty name and of a shortened one: no encoded character looks like them."""


def find_placeholders(text: str, where: str, known: Sequence[str] = PLACEHOLDERS) -> list[str]:
    """Find the placeholders in a text; raise for an unknown one."""
    found = _PLACEHOLDER.findall(text)
    for name in found:
        if name not in known:
            listed = ", ".join(f"{{{one}}}" for one in known)
            raise SinkError(
                f"{where}: there is no placeholder '{{{name}}}'.{nearest(name, known)} Known are"
                f" {listed}"
            )
    return found


def has_placeholders(target: str) -> bool:
    """Return whether a sink is a path with placeholders."""
    return "://" not in target and _PLACEHOLDER.search(target) is not None


class FileTemplate:
    """A path with placeholders: one file, or folder, for each combination of names.

    >>> template = FileTemplate("answers/{consumer}/{query}.csv")
    >>> os.path.relpath(template.path({"consumer": "../city", "query": "jam"}))
    'answers/%2E.%2Fcity/jam.csv'
    """

    def __init__(self, text: str) -> None:
        self.text = os.path.abspath(text)
        self.names = tuple(dict.fromkeys(find_placeholders(text, text)))
        """The placeholders that are used, each once."""
        parts = Path(self.text).parts
        first = next(n for n, part in enumerate(parts) if _PLACEHOLDER.search(part))
        self.base = Path(*parts[:first])
        """The folder that all files share."""
        self._parts = [_TemplatePart(part, text) for part in parts[first:]]

    def path(self, names: Mapping[str, str]) -> Path:
        """Return the file for these names."""
        return self.base.joinpath(*(part.fill(names) for part in self._parts))

    def matches(self, path: str | Path, *, folders: bool = False) -> bool:
        """Return whether a path could be one of the files; with `folders`, or of their folders."""
        own = Path(os.path.abspath(path)).parts
        if own[: len(self.base.parts)] != self.base.parts:
            return False
        rest = own[len(self.base.parts) :]
        fits = len(rest) <= len(self._parts) if folders else len(rest) == len(self._parts)
        return fits and all(
            part.regex.fullmatch(found) for part, found in zip(self._parts, rest, strict=False)
        )

    def keys(self, consumers: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the names of the files of all queries, in order; none if subjects are used.

        `consumers` maps each query to its consumer.
        """
        if "subject" in self.names:
            return []
        found = {
            tuple({"consumer": consumer, "query": query}[name] for name in self.names)
            for query, consumer in consumers.items()
        }
        return [dict(zip(self.names, names, strict=True)) for names in sorted(found)]

    def split(self, table: pa.Table) -> Iterator[tuple[dict[str, str], pa.Table]]:
        """Yield the rows for each file, in their order; `table` has a column per placeholder."""
        if not table.num_rows:
            return
        codes = np.zeros(table.num_rows, np.int64)
        values: list[list[str]] = []
        for name in self.names:
            column = table.unify_dictionaries()[name].combine_chunks()
            if not pa.types.is_dictionary(column.type):
                column = column.cast(pa.string()).fill_null("").dictionary_encode()
            values.append(column.dictionary.to_pylist())
            indices = column.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            codes = codes * len(values[-1]) + indices
        order = np.argsort(codes, kind="stable")
        found, starts = np.unique(codes[order], return_index=True)
        ordered = table.take(pa.array(order))
        edges = pairwise([*starts.tolist(), table.num_rows])
        for code, (start, end) in zip(found.tolist(), edges, strict=True):
            yield self._names(code, values), ordered.slice(start, end - start)

    def _names(self, code: int, values: Sequence[Sequence[str]]) -> dict[str, str]:
        names = {}
        for name, known in reversed(list(zip(self.names, values, strict=True))):
            code, place = divmod(code, len(known))
            names[name] = known[place]
        return names


class _TemplatePart:
    """One part of a path, between two slashes."""

    def __init__(self, text: str, whole: str) -> None:
        self._text = text
        self._pieces = _PLACEHOLDER.split(text)
        """Literal text and names of placeholders, alternating."""
        for between in self._pieces[2:-1:2]:
            # Without a separator, "ab" + "c" and "a" + "bc" would be the same file.
            if not between or between[0].isalnum() or between[0] == "%" or not between.isascii():
                raise SinkError(f"{whole}: put a separator such as - or / between two placeholders")

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The regular expression that matches every filled part."""
        return re.compile(".+".join(re.escape(piece) for piece in self._pieces[::2]), re.DOTALL)

    def fill(self, names: Mapping[str, str]) -> str:
        """Replace the placeholders by names."""
        fill = self._pieces[0]
        count = len(self._pieces) // 2
        for place in range(1, len(self._pieces), 2):
            name, after = names[self._pieces[place]], self._pieces[place + 1]
            ends = after[0] if place + 2 < len(self._pieces) else ""
            fill += encode_name(name, ends, first=not fill, longest=_LONGEST // count) + after
        return fill


def encode_name(name: str, ends: str = "", *, first: bool = True, longest: int = _LONGEST) -> str:
    """Encode a name as part of a file name; different names always differ.

    `ends` is a character that must not occur in it; a name that comes first has no leading dot.

    >>> encode_name("city/hall"), encode_name(".."), encode_name("a-b", "-"), encode_name("")
    ('city%2Fhall', '%2E.', 'a%2Db', '%z')
    """
    text = re.sub(f"[{_UNSAFE}{re.escape(ends)}]", _encode, name)
    if first and text.startswith("."):
        text = f"%2E{text[1:]}"
    if len(text.encode()) > longest:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        kept = text.encode()[: longest - 34].decode(errors="ignore")
        return re.sub("%[0-9A-F]?$", "", kept) + _CUT + digest
    return text or _EMPTY


def _encode(sign: re.Match[str]) -> str:
    return "".join(f"%{octet:02X}" for octet in sign[0].encode("utf-8", "surrogatepass"))
