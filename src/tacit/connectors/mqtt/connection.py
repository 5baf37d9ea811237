"""A connection to a broker that reconnects by itself, with its own thread.

The client library encodes and decodes the packets. Its own loop makes system calls for every packet
and writes every acknowledgement separately. This loop reads packets as long as there are any, and
writes acknowledgements in bulk.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from tacit.connectors.mqtt.address import MqttAddress

log = logging.getLogger("tacit.mqtt")

_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 10.0
_BURST: Final = 512
"""The most packets that are read before anything else happens."""
_TICK: Final = 0.5
_STABLE_SECONDS: Final = 5.0
"""Seconds after which a connection counts as stable."""
_SHORT_CONNECTIONS: Final = 3
"""After this many unstable connections in a row there is a warning."""
_TAKEN_OVER: Final = 0x8E
_FINAL: Final = frozenset((0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x95, 0x9B))
"""Reason codes of refusals that a retry does not fix."""


class Receiver(ABC):
    """What a connection passes messages to, and asks for acknowledgements; by its own thread."""

    @abstractmethod
    def on_connect(self, client: Client, resumed: bool, properties: Properties | None) -> None:
        """Handle a new connection; `resumed` is whether the broker knew the session."""

    @abstractmethod
    def on_message(self, message: MQTTMessage) -> None:
        """Handle a message."""

    @abstractmethod
    def on_idle(self) -> None:
        """Handle a pause: all packets are read, or the connection was lost."""

    @abstractmethod
    def take_packets(self) -> bytes:
        """Return packets to write."""

    @abstractmethod
    def is_full(self) -> bool:
        """Return whether reading should pause."""

    @abstractmethod
    def find_refusal(self) -> str | None:
        """Return why the connection should end for good, or None."""


class Connection:
    """Reconnects until it is closed, or finally refused."""

    def __init__(
        self, address: MqttAddress, receiver: Receiver, properties: Properties, *, clean: bool
    ) -> None:
        self.address = address
        self._refusal: str | None = None
        self._fault: BaseException | None = None
        self.client: Client | None = None
        """The client of the current connection."""
        self.failures = 0
        """The number of failed attempts to connect."""
        self._receiver = receiver
        self._properties = properties
        self._clean = clean
        self._known = False
        self._reported = False
        self._why = ""
        self._packets = 0
        self._leaving = 0.0
        self._dropped: Client | None = None
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._woken.setblocking(False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tacit-mqtt", daemon=True)

    def start(self) -> None:
        """Start the thread that connects."""
        self._thread.start()

    def find_refusal(self) -> str | None:
        """Return why the broker finally refused the connection, or None."""
        if self._fault is not None:
            raise self._fault
        return self._refusal

    def wake(self) -> None:
        """Wake the thread, to write or to continue reading."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._waking.send(b"\0")

    def drop(self, client: Client) -> None:
        """Drop this connection and make another; any thread may call it."""
        self._dropped = client
        self.wake()

    def close(self) -> None:
        """Write what is left, and disconnect."""
        self._stop.set()
        self.wake()
        self._thread.join()
        self._waking.close()
        self._woken.close()

    def _refuse(self, reason: str) -> None:
        """Stop reconnecting."""
        self._refusal = reason
        self._stop.set()

    def _run(self) -> None:
        try:
            self._connect_repeatedly()
        except BaseException as error:
            self._fault = error  # raised in the threads that wait for messages
            self._receiver.on_idle()

    def _connect_repeatedly(self) -> None:
        delay, short_connections = _FIRST_DELAY, 0
        while not self._stop.is_set():
            started = time.monotonic()
            client = self._connect()
            if client is not None:
                self._serve(client)
            connected, self.client = self.client is not None, None
            if connected and time.monotonic() - started > _STABLE_SECONDS:
                delay, short_connections = _FIRST_DELAY, 0
            elif connected:
                short_connections += 1
            if not self._stop.is_set():
                self.failures += 1
                self._report(short_connections)
            self._receiver.on_idle()
            self._stop.wait(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    def _connect(self) -> Client | None:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.address.client,
            protocol=MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = 5.0
        client.max_inflight_messages_set(0)  # the sink respects the broker's limit
        client.username_pw_set(self.address.user, self.address.password)
        if self.address.tls is not None:
            client.tls_set_context(self.address.tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        # With this the library never writes by itself.
        client.on_socket_register_write = lambda *_: self._on_write()
        try:
            client.connect(
                self.address.host,
                self.address.port,
                self.address.keepalive,
                clean_start=self._clean,
                properties=self._properties,
            )
        except ssl.SSLCertVerificationError as error:
            if not self._known:
                self._refuse(f"its certificate is not trusted: {error.verify_message}")
        except OSError as error:
            self._why = error.strerror or type(error).__name__
        else:
            self._why = "the connection was lost"
            return client
        return None

    def _serve(self, client: Client) -> None:
        """Read and write until the connection is lost or closed."""
        sock: Any = client.socket()
        rest, more, checked = b"", False, time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(sock, selectors.EVENT_READ)
            while client.socket() is sock and self._dropped is not client:
                rest = self._write(client, sock, rest)
                if self._stop.is_set() and not (rest and self._has_time()):
                    self._disconnect(client)
                    break
                if client.socket() is not sock:
                    break
                full = self._receiver.is_full()
                events = 0 if full else selectors.EVENT_READ
                events |= selectors.EVENT_WRITE if rest or client.want_write() else 0
                ready = self._wait(selector, sock, events, 0.0 if more and not full else _TICK)
                if full:
                    continue  # a reply to a ping could not be read either
                if more or ready & selectors.EVENT_READ:
                    more = self._read(client, sock)
                    if (reason := self._receiver.find_refusal()) is not None:
                        self._refuse(reason)
                    self._receiver.on_idle()
                if time.monotonic() - checked >= _TICK:
                    checked = time.monotonic()
                    client.loop_misc()
        sock.close()

    def _wait(
        self, selector: selectors.BaseSelector, sock: Any, events: int, seconds: float
    ) -> int:
        """Wait until the socket is ready, or `wake` is called."""
        registered = sock in selector.get_map()
        if not events:
            if registered:
                selector.unregister(sock)
        elif not registered:
            selector.register(sock, events)
        elif selector.get_key(sock).events != events:
            selector.modify(sock, events)
        ready = 0
        for key, events in selector.select(seconds):
            if key.fileobj is sock:
                ready = events
            else:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
        return ready

    def _read(self, client: Client, sock: Any) -> bool:
        """Read the packets that are there; return whether there may be more."""
        secure = sock if isinstance(sock, ssl.SSLSocket) else None
        for _ in range(_BURST):
            before = self._packets
            client.loop_read()
            if client.socket() is not sock:
                return False
            if self._packets == before:
                return secure is not None and secure.pending() > 0
        return True

    def _write(self, client: Client, sock: Any, rest: bytes) -> bytes:
        """Write the library's packets or ours, never mixed; return the rest of ours."""
        if not rest:
            if client.want_write():
                client.loop_write()
            if self.client is None or client.socket() is not sock or client.want_write():
                return b""
            rest = self._receiver.take_packets()
        if not rest:
            return b""
        try:
            return rest[sock.send(rest) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return rest
        except OSError:
            return b""  # reading finds that the connection is lost

    def _has_time(self) -> bool:
        """Return whether there is still time to write before the end."""
        self._leaving = self._leaving or time.monotonic() + _TICK
        return time.monotonic() < self._leaving

    def _disconnect(self, client: Client) -> None:
        if self.client is not None:
            client.disconnect()
            client.loop_write()

    def _on_connect(
        self, client: Client, _: Any, flags: Any, reason: Any, properties: Properties | None
    ) -> None:
        self._packets += 1
        if reason.is_failure:
            if not self._known and reason.value in _FINAL:
                self._refuse(
                    f"it refuses the connection: {reason}; check user, password and client"
                )
            self._why = str(reason)
            return
        if self._reported:
            log.info("%s is connected again", self.address.place)
        self._known, self._reported = True, False
        self.client = client
        self._receiver.on_connect(client, flags.session_present, properties)

    def _on_disconnect(self, _client: Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if flags.is_disconnect_packet_from_server and reason.value == _TAKEN_OVER:
            self._refuse(
                f"another connection has taken over the session '{self.address.client}'; give each "
                "run its own name with client="
            )

    def _on_message(self, _client: Client, _: Any, message: MQTTMessage) -> None:
        self._packets += 1
        self._receiver.on_message(message)

    def _on_write(self) -> None:
        if threading.current_thread() is not self._thread:
            self.wake()

    def _report(self, short_connections: int) -> None:
        """Log once that the broker is not reachable, with a likely reason."""
        if short_connections == _SHORT_CONNECTIONS:
            log.warning(
                "%s accepts connections but drops them: does another client use the name '%s'? "
                "Give each run its own name with client=",
                self.address.place,
                self.address.client,
            )
        elif not self._reported and short_connections < _SHORT_CONNECTIONS:
            log.warning(
                "%s does not answer (%s); retrying",
                self.address.place,
                self._why,
            )
        self._reported = True
