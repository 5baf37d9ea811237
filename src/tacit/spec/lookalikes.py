"""Find names that look alike: they differ only in what readers do not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl
import pyarrow as pa

_INVISIBLE: Final = r"[\s\p{Cc}\p{Default_Ignorable_Code_Point}]+"
_LEADING_ZEROS: Final = r"(^|[^0-9])0+([0-9])"


def find_lookalikes(names: Sequence[str], known: pa.Array | Sequence[str]) -> dict[str, list[str]]:
    """Return for each name the known names that look like it, if there are any.

    They differ only in blanks, invisible characters, Unicode form, case or leading zeros.

    >>> find_lookalikes(["007", "Bo"], ["7", " bo", "8", "Bo"])
    {'007': ['7'], 'Bo': [' bo']}
    """
    if not names:  # so that a large registry is not read for nothing
        return {}
    asked = pl.DataFrame({"name": pl.Series(names, dtype=pl.String)})
    others = pl.DataFrame({"other": pl.Series(known, dtype=pl.String)})
    pairs = (
        asked.with_columns(look=_normalize_names(asked["name"]))
        .join(
            others.with_columns(look=_normalize_names(others["other"])),
            on="look",
            maintain_order="left",
        )
        .filter(pl.col("name") != pl.col("other"))
    )
    found: dict[str, list[str]] = {}
    for name, other in pairs.select("name", "other").iter_rows():
        found.setdefault(name, []).append(other)
    return found


def _normalize_names(names: pl.Series) -> pl.Series:
    """Names without what readers do not see: blanks, case and so on."""
    ascii_alone = names.str.len_bytes().sum() == names.str.len_chars().sum()
    if not ascii_alone:
        names = names.str.normalize("NFKC")
    bare = names.str.to_lowercase().str.replace_all(_INVISIBLE, "")
    if not ascii_alone:
        bare = bare.str.normalize("NFKC")  # what stood apart may belong together now
    return bare.str.replace_all(_LEADING_ZEROS, "${1}${2}")
