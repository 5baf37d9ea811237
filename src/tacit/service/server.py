"""Serve the application with uvicorn, in a thread beside the run."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from tacit.errors import TacitError
from tacit.service.body_protocol import BodyProtocol
from tacit.service.state import ReleaseSignal

_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 5
_UNREAD_SECONDS: Final = 60
"""Seconds after which a connection ends whose reader takes nothing."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen, and the files for TLS and for logging in."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes a free port."""
    certificate: Path | None = None
    key: Path | None = None
    openid: Path | None = None
    """A file with the settings of OpenID Connect."""


class Server:
    """Listens from `__enter__` to `__exit__`."""

    def __init__(self, app: Starlette, signal: ReleaseSignal, options: ServerOptions) -> None:
        self._signal = signal
        self._options = options
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=BodyProtocol,
                ws="none",
                log_config=None,  # our log leaves out what libraries quote
                access_log=False,
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_STOP_SECONDS,
                ssl_certfile=options.certificate,
                ssl_keyfile=options.key,
            )
        )
        self._thread = threading.Thread(target=self._run, name="tacit-http", daemon=True)
        self._socket: socket.socket | None = None

    @property
    def url(self) -> str:
        """The address to reach it at."""
        assert self._socket is not None, "the server has not been started"
        host, port = self._options.host, self._socket.getsockname()[1]
        scheme = "http" if self._options.certificate is None else "https"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def __enter__(self) -> Server:
        options = self._options
        try:
            family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
            self._socket = socket.create_server((options.host, options.port), family=family)
            # Accepted sockets inherit it. Otherwise each response waits 40 ms for the client.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: end streams that nobody reads
                timeout = 1000 * _UNREAD_SECONDS
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
            self._server.config.load()
        except (OSError, OverflowError) as error:
            raise TacitError(
                f"cannot serve at {options.host}:{options.port}: {error}; choose another address"
                " with --host and --port"
            ) from error
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise TacitError("the HTTP server did not start")
            time.sleep(0.01)
        return self

    def _run(self) -> None:
        assert self._socket is not None
        self._server.run(sockets=[self._socket])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._signal.close()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(2 * _STOP_SECONDS)
        if self._socket is not None:
            self._socket.close()
