"""All answers of a run, as frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from tacit.answers.answers import Answers
from tacit.answers.count_estimates import LEVEL, AnyPlan, CountEstimates, Method, estimate
from tacit.answers.count_model import CountModel
from tacit.answers.count_sums import Per
from tacit.answers.counts import count_schema
from tacit.html_tables import format_html_table
from tacit.pictures import make_picture
from tacit.quantities import count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class CollectedAnswers:
    """All answers of a run; `protected` says whether consumers may see them."""

    def __init__(
        self,
        parts: Sequence[Answers],
        schema: pa.Schema,
        queries: Sequence[str],
        *,
        protected: bool,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        self.parts = parts
        self.queries = queries
        self.protected = protected
        self.refused = dict(refused or {})
        """The number of refused tuples by reason; only for the operator."""
        self._schema = schema

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __iter__(self) -> Iterator[Answers]:
        return iter(self.parts)

    def arrow(self) -> pa.Table:
        """Return an Arrow table with a row for each window, subject and query."""
        batches = [batch for part in self.parts for batch in part.batches()]
        return pa.Table.from_batches(batches, schema=self._schema).unify_dictionaries()

    def polars(self) -> pl.DataFrame:
        """Return a Polars frame with a row for each window, subject and query."""
        return pl.DataFrame(self.arrow())

    def pandas(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each window, subject and query."""
        return self.arrow().to_pandas()

    def wide(self) -> pl.DataFrame:
        """Return a Polars frame with a row for each window and subject, and a column per query."""
        return pl.concat([part.wide() for part in self.parts]) if self.parts else pl.DataFrame()

    def counted(self) -> pl.DataFrame:
        """Return the counts as a Polars frame: a row for each window, count query and group.

        `count` may be below 0: the noise is not cut off, so that sums over windows are unbiased.
        """
        tables = [part.counted.table() for part in self.parts if part.counted is not None]
        if not tables:
            return pl.DataFrame(count_schema().empty_table())
        return pl.DataFrame(pa.concat_tables(tables).unify_dictionaries())

    def distribution(self, query: str) -> pl.DataFrame:
        """Return how likely each value of a query with several values is.

        The frame has a row for each window and subject, and a column for each value.
        """
        parts = [part.distribution(query) for part in self.parts]
        return pl.concat(parts) if parts else pl.DataFrame()

    def counts(self) -> dict[str, int]:
        """Return how often each query was answered with yes; a value of several counts as one."""
        totals = np.zeros(len(self.queries), dtype=np.int64)
        for part in self.parts:
            totals += part.counts()
        return dict(zip(self.queries, totals.tolist(), strict=True))

    def estimate(
        self,
        plan: AnyPlan,
        *,
        model: CountModel | None = None,
        by: Mapping[str, str] | None = None,
        per: Per = "window",
        method: Method = "auto",
        level: float = LEVEL,
    ) -> CountEstimates:
        """Estimate how many subjects truly have each pattern, with intervals.

        `plan` is the plan of the run, so this is for the operator. `by` maps subjects to groups.
        `tacit.fit_counts` makes the `model` for answers that do not identify counts, from history.
        """
        return estimate(
            [self.arrow()], plan, model=model, groups=by, per=per, method=method, level=level
        )

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the answers over time; with a path, write the figure to this file too.

        There is a panel for each query. Up to 24 subjects are drawn one by one, with the
        confidence of their answers; of more, the share with a yes in each window.
        """
        from tacit.answers.answers_picture import draw_answers

        return make_picture(lambda: draw_answers(self), path)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow().__arrow_c_stream__(requested_schema)

    @property
    def kind(self) -> str:
        """The kind of answers; unprotected answers with a confidence came from a seed."""
        if self.protected:
            return "protected"
        noisy = "confidence" in self._schema.names
        return "seeded, NOT PRIVATE" if noisy else "true, unprotected"

    def __repr__(self) -> str:
        kind = self.kind
        found = ", ".join(f"{name} {times:,}" for name, times in list(self.counts().items())[:8])
        refused = "".join(f"; {text}" for text in self._list_refused())
        return f"<{len(self):,} {kind} answers; detected: {found or 'no queries'}{refused}>"

    def _repr_html_(self) -> str:
        rows = [(name, f"{times:,}") for name, times in self.counts().items()]
        caption = f"{self.kind[0].upper()}{self.kind[1:]} answers: {len(self):,}"
        notes = "".join(f"<p>{escape(text)}</p>" for text in self._list_refused())
        return format_html_table(caption, ("query", "detected"), rows) + notes

    def _list_refused(self) -> list[str]:
        """Say how many tuples were refused, and why; nothing if none were."""
        return [
            f"refused, for the operator only: {count(times, 'tuple')}, {reason}"
            for reason, times in self.refused.items()
        ]
