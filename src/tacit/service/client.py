"""A thin client of the service, for Python programs. It needs no extra."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import polars as pl
import pyarrow as pa

from tacit.errors import ServiceError

_ARROW: Final = "application/vnd.apache.arrow.stream"
_TRIED_AGAIN: Final = (408, 429, 503)
_UNKNOWN: Final = 503
"""The tuples may be on disk or not."""
_ATTEMPTS: Final = 8
_LONGEST_WAIT: Final = 10.0
_PLAIN: Final[dict[str, pl.DataType]] = {
    "id": pl.Int64(),
    "window_start": pl.String(),
    "window_end": pl.String(),
    "subject": pl.String(),
    "consumer": pl.String(),
    "query": pl.String(),
    "detected": pl.Boolean(),
    "value": pl.String(),
    "confidence": pl.Float32(),
    "exhausted": pl.Boolean(),
}
"""The columns of answers in JSON."""
_PLAIN_COUNTS: Final[dict[str, pl.DataType]] = {
    **dict.fromkeys(("window_start", "window_end", "consumer", "query", "group"), pl.String()),
    **dict.fromkeys(("count", "low", "high"), pl.Int64()),
    "confidence": pl.Float32(),
    **dict.fromkeys(("subjects", "left_out"), pl.Int64()),
    **dict.fromkeys(("estimate", "estimate_low", "estimate_high"), pl.Float64()),
    "method": pl.String(),
}
"""The columns of counts in JSON."""


@dataclass(frozen=True)
class ServiceClient:
    """A connection to a service, with the rights of one token. It is safe to share by threads."""

    url: str
    token: str = field(repr=False)
    timeout: float = 30.0
    """Seconds without any data after which a request fails."""

    def identity(self) -> dict[str, Any]:
        """Return role, name and streams of the token."""
        return dict(self._get("/v1/me"))

    def queries(self) -> list[dict[str, Any]]:
        """Return the queries that the token may see."""
        return list(self._get("/v1/queries"))

    def private(self) -> list[dict[str, Any]]:
        """Return the private patterns, with epsilon, limit and odds."""
        return list(self._get("/v1/private"))

    def statement(self) -> dict[str, Any]:
        """Return what was spent, for subjects and operators."""
        return dict(self._get("/v1/statement"))

    def answers(
        self,
        *,
        query: str | Sequence[str] = (),
        subject: str | Sequence[str] = (),
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        after: int = -1,
    ) -> pl.DataFrame:
        """Return all selected answers that the service still has.

        `after` selects answers with larger ids.
        """
        given = [*_select(query, subject, since, until), ("after", str(after))]
        with self._open("GET", f"/v1/answers.arrow?{urlencode(given)}") as response:
            table = pa.ipc.open_file(response.read()).read_all()
        return pl.DataFrame(table).cast({"subject": pl.String, "query": pl.String})

    def counts(
        self,
        *,
        query: str | Sequence[str] = (),
        group: str | Sequence[str] = (),
        since: datetime | str | None = None,
        until: datetime | str | None = None,
    ) -> pl.DataFrame:
        """Return all selected counts that the service still has, for consumers and operators.

        There is a row for each window, query and group, with the count and its interval.
        """
        groups = [group] if isinstance(group, str) else group
        given = [*_select(query, (), since, until), *(("group", one) for one in groups)]
        with self._open("GET", f"/v1/counts.arrow?{urlencode(given)}") as response:
            table = pa.ipc.open_file(response.read()).read_all()
        return pl.DataFrame(table).cast({"consumer": pl.String, "query": pl.String})

    def follow(
        self,
        *,
        query: str | Sequence[str] = (),
        subject: str | Sequence[str] = (),
        after: int | None = None,
    ) -> Iterator[pl.DataFrame]:
        """Yield answers as they are released, without end; connect again after a break.

        Without `after` it begins with the next release; -1 begins with the first stored answer.
        """
        chosen = _select(query, subject, None, None)
        for _, rows in self._follow("/v1/answers/stream", chosen, after):
            yield _to_frame(rows, _PLAIN)

    def follow_counts(
        self,
        *,
        query: str | Sequence[str] = (),
        group: str | Sequence[str] = (),
        after: datetime | str | None = None,
    ) -> Iterator[pl.DataFrame]:
        """Yield the counts of each window as it is released, without end.

        Without `after` it begins with the next window; else with the first that starts after it.
        """
        groups = [group] if isinstance(group, str) else group
        chosen = [*_select(query, (), None, None), *(("group", one) for one in groups)]
        first = None if after is None else str(after)
        for _, rows in self._follow("/v1/counts/stream", chosen, first):
            yield _to_frame(rows, _PLAIN_COUNTS)

    def _follow(
        self, path: str, chosen: list[tuple[str, str]], after: int | str | None
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the events of a stream; connect again after a break, behind the last event."""
        given = chosen if after is None else [*chosen, ("after", str(after))]
        headers: dict[str, str] = {}
        wait = 0.1
        while True:
            try:
                with self._open("GET", f"{path}?{urlencode(given)}", headers) as response:
                    for number, rows in _read_events(response):
                        headers["Last-Event-ID"], wait = str(number), 0.1
                        yield number, rows
            except (URLError, HTTPException, TimeoutError, ConnectionError):
                pass
            except ServiceError as error:
                if error.status not in _TRIED_AGAIN:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def send(
        self, stream: str, tuples: Any, *, sequence: int | None = None, producer: str = ""
    ) -> bool:
        """Send a frame (Polars, pandas, Arrow) or a list of dicts; return whether it is new.

        The tuples are on disk when this returns. With a `sequence` number, one more for each
        call, a lost connection is repaired by sending again, and nothing is stored twice.
        """
        headers = {"Content-Type": _ARROW}
        if sequence is not None:
            headers["Tacit-Sequence"] = str(sequence)
        if producer:
            headers["Tacit-Producer"] = producer
        place = f"/v1/streams/{quote(stream, safe='')}/tuples"
        body = _to_stream(tuples)
        for attempt in range(_ATTEMPTS):
            try:
                with self._open("POST", place, headers, body) as response:
                    return not json.load(response)["duplicate"]
            except ServiceError as error:
                unknown = error.status == _UNKNOWN and sequence is None
                if error.status not in _TRIED_AGAIN or unknown or attempt == _ATTEMPTS - 1:
                    raise
            except (HTTPException, TimeoutError, ConnectionError, URLError) as error:
                if sequence is None or attempt == _ATTEMPTS - 1:
                    raise ServiceError(f"{self.url} does not answer: {error}") from error
            time.sleep(min(0.2 * 2**attempt, _LONGEST_WAIT))
        raise AssertionError("the last attempt raises its error")

    def check_query(self, name: str, pattern: str | None = None, **asked: Any) -> dict[str, Any]:
        """Return whether a query could be proposed, and its mistakes; given as for a proposal."""
        return dict(self._call("POST", "/v1/queries/check", _describe_query(name, pattern, asked)))

    def propose_query(self, name: str, pattern: str | None = None, **asked: Any) -> dict[str, Any]:
        """Propose a query of yours; return the proposal.

        It has a `pattern`, with `alpha` and `quality` if you like; or `one_of`, a dict of patterns;
        or `times` and `up_to`; or `count`, with `by` if you like.
        """
        return dict(self._call("POST", "/v1/queries", _describe_query(name, pattern, asked)))

    def end_query(self, name: str) -> dict[str, Any]:
        """Propose that a query of yours is no longer answered."""
        return dict(self._call("DELETE", f"/v1/queries/{quote(name, safe='')}"))

    def proposals(self) -> list[dict[str, Any]]:
        """Return your proposals, the newest first; operators get all."""
        return list(self._get("/v1/proposals"))

    def proposal(self, number: int) -> dict[str, Any]:
        """Return a proposal and how far it is."""
        return dict(self._get(f"/v1/proposals/{number}"))

    def withdraw(self, number: int) -> dict[str, Any]:
        """Withdraw a proposal of yours."""
        return dict(self._call("DELETE", f"/v1/proposals/{number}"))

    def approve(self, number: int, *, note: str = "", tell_quality: bool = False) -> dict[str, Any]:
        """Approve a planned proposal, for operators; `tell_quality` adds what to expect of it."""
        given = {"note": note, "tell_quality": tell_quality}
        return dict(self._call("POST", f"/v1/proposals/{number}/approve", given))

    def reject(self, number: int, *, note: str = "") -> dict[str, Any]:
        """Reject a proposal, for operators."""
        return dict(self._call("POST", f"/v1/proposals/{number}/reject", {"note": note}))

    def catalogue(self) -> list[dict[str, Any]]:
        """Return what subjects may choose, with its bounds."""
        return list(self._get("/v1/catalogue"))

    def policies(self) -> list[dict[str, Any]]:
        """Return what applies to you as a subject, for every pattern of the catalogue."""
        return list(self._get("/v1/policies"))

    def choose(self, pattern: str, *, epsilon: str, limit: str | None = None) -> dict[str, Any]:
        """Choose epsilon and limit of a private pattern, as a subject; return the proposal."""
        given = {"epsilon": epsilon, "limit": limit}
        return dict(self._call("PUT", f"/v1/policies/{quote(pattern, safe='')}", given))

    def withdraw_choice(self, pattern: str) -> dict[str, Any]:
        """Withdraw your choice: what the operator declares applies again."""
        return dict(self._call("DELETE", f"/v1/policies/{quote(pattern, safe='')}"))

    def versions(self) -> list[dict[str, Any]]:
        """Return all versions, the newest first, for operators."""
        return list(self._get("/v1/versions"))

    def version(self, number: int) -> dict[str, Any]:
        """Return a version with its specification, for operators."""
        return dict(self._get(f"/v1/versions/{number}"))

    def version_changes(self, number: int, *, since: int | None = None) -> dict[str, Any]:
        """Compare a version with another one, by default the one before."""
        given = "" if since is None else f"?since={since}"
        return dict(self._get(f"/v1/versions/{number}/changes{given}"))

    def approve_version(self, number: int) -> dict[str, Any]:
        """Go back to an older version, for operators; return the proposal."""
        return dict(self._call("POST", f"/v1/versions/{number}/approve"))

    def acts(self, *, before: int | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return who changed what and when, the newest first, for operators."""
        given = "" if before is None else f"&before={before}"
        return list(self._get(f"/v1/acts?limit={limit}{given}"))

    def _get(self, path: str) -> Any:
        return self._call("GET", path)

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            with self._open(method, path, headers, body) as response:
                return json.load(response)
        except (HTTPException, TimeoutError, ConnectionError, URLError) as error:
            raise ServiceError(f"{self.url} does not answer: {error}") from error

    def _open(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HTTPResponse:
        given = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        request = Request(self.url + path, body, given, method=method)
        try:
            response: HTTPResponse = urlopen(request, timeout=self.timeout)
        except HTTPError as error:
            with error:
                raise _explain(error.code, error.read(65_536)) from None
        return response


def connect(url: str, token: str, *, timeout: float = 30.0) -> ServiceClient:
    """Connect to a service, such as `http://127.0.0.1:8080`, with a token; nothing is sent yet."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ServiceError("expected the address of a service, such as http://127.0.0.1:8080")
    return ServiceClient(url.rstrip("/"), token, timeout)


def _select(
    query: str | Sequence[str],
    subject: str | Sequence[str],
    since: datetime | str | None,
    until: datetime | str | None,
) -> list[tuple[str, str]]:
    queries = [query] if isinstance(query, str) else query
    subjects = [subject] if isinstance(subject, str) else subject
    times = (("since", since), ("until", until))
    return [
        *(("query", one) for one in queries),
        *(("subject", one) for one in subjects),
        *((name, str(moment)) for name, moment in times if moment is not None),
    ]


def _describe_query(name: str, pattern: str | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    given = {"name": name, "pattern": pattern, **asked}
    return {field: value for field, value in given.items() if value is not None}


def _read_events(response: HTTPResponse) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the id and the rows of each event."""
    number = -1
    for line in response:
        name, _, value = line.rstrip(b"\n").partition(b": ")
        if name == b"id":
            number = int(value)
        elif name == b"data":
            yield number, json.loads(value)


def _to_frame(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    frame = pl.DataFrame(rows, columns)
    return frame.with_columns(
        pl.col("window_start", "window_end").str.to_datetime("%+", time_unit="us", time_zone="UTC")
    )


def _to_stream(tuples: Any) -> bytes:
    table = pa.Table.from_pylist(tuples) if isinstance(tuples, list) else pa.table(tuples)
    text = io.BytesIO()
    with pa.ipc.new_stream(text, table.schema) as writer:
        writer.write_table(table)
    return text.getvalue()


def _explain(status: int, body: bytes) -> ServiceError:
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = "the service refused the request"
    return ServiceError(f"{detail} (status {status})", status)
