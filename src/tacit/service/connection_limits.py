"""What uvicorn takes without limit, or loses: heads, idle connections, codings, upgrades.

uvicorn limits no part of a request that comes before its handler, so anyone could fill the memory
with headers, or keep connections for ever. It also merges the trailers of a body with the headers,
and loses the body of a request that offers an upgrade which the server does not do: clients in Java
offer HTTP/2 with their first request. A compressed body (`Transfer-Encoding: gzip, chunked`) would
reach the application as it is, as if nobody had compressed it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tacit.service.problems import MEDIA_TYPE, Problem
from tacit.service.security_headers import HEADERS, HSTS

LARGEST_HEAD: Final = 64 << 10
"""About how many bytes a request may have before its body."""
REQUEST_SECONDS: Final = 60.0
"""Seconds that a connection may take for the next request, up to its body.

What is left of the last one's body must come in that time too.
"""


class LimitedProtocol(HttpToolsProtocol):
    """The protocol of uvicorn with these limits. Refusals are problem details."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._in_head = False
        self._heads = 0
        self._head_size = 0
        self._unknown_coding = False
        self._refused = False
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse a piece of a request, or of several."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        heads, in_head = self._heads, self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            if self._unknown_coding:
                self._refuse(501, "the only Transfer-Encoding that this server decodes is chunked")
            else:
                self._refuse(400, "this is not a valid HTTP/1.1 request")
            return
        if self._in_head and in_head and heads == self._heads:
            self._head_size += len(data)
            if self._head_size > LARGEST_HEAD:
                most = f"{LARGEST_HEAD >> 10} KiB"
                self._refuse(431, f"send at most {most} of address and headers")

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._in_head = True
        self._heads += 1
        self._head_size = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; a trailer is none."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to handle a request, unless it offers an upgrade: then it is read again."""
        self._in_head = False
        if not self.parser.should_upgrade():
            self._check_coding()
            self._deadline.cancel()
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._await_request()

    def _check_coding(self) -> None:
        """Raise if the parser would undo only the last of several codings of a body."""
        coded = [value for name, value in self.headers if name == b"transfer-encoding"]
        if coded and b",".join(coded).strip().lower() != b"chunked":
            self._unknown_coding = True
            raise httptools.HttpParserError

    def _await_request(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.timeout_keep_alive_handler)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request again without the upgrade that it offers, and what comes after its head.

        A server may ignore such an offer (RFC 9110, 7.8).
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "this server is no proxy")
            return
        head = [method, b" ", self.url, b" HTTP/", self.parser.get_http_version().encode(), b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.new_parser()
        self.data_received(b"".join([*head, b"\r\n", rest]))

    def new_parser(self) -> None:
        """Expect the beginning of a request next."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _refuse(self, status: int, detail: str) -> None:
        """Respond with a problem, and close the connection.

        A whole request before this one that is still handled gets its own response, and then the
        connection is closed.
        """
        self._refused = True
        current = self.cycle
        if current is not None and not current.response_complete and not current.more_body:
            current.keep_alive = False
            return
        begun = current is not None and current.response_started and not current.response_complete
        if not begun and not self.pipeline:
            self.transport.write(_format(status, detail, secure=self.scheme == "https"))
        self.transport.close()


def _format(status: int, detail: str, *, secure: bool) -> bytes:
    body = Problem(status, detail).response().body
    headers = {
        b"content-type": MEDIA_TYPE.encode(),
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
        **HEADERS,
        **(dict([HSTS]) if secure else {}),
    }
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", bytes(body)])
