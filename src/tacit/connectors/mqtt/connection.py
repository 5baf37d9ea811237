"""A connection to a broker that comes back by itself, served by a thread of its own.

The client library packs and reads the packets. Its own loop asks the system before every
packet and writes every acknowledgement by itself; here packets are read as long as there are
any, and acknowledgements are written in bulk.
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
"""Packets that are read before anything else is looked at."""
_TICK: Final = 0.5
_LASTING: Final = 5.0
"""Seconds after which a connection has proved itself."""
_BRIEF: Final = 3
"""So many connections in a row that have not are told."""
_TAKEN_OVER: Final = 0x8E
_FINAL: Final = frozenset((0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x95, 0x9B))
"""Reasons to refuse a connection that do not go away by themselves."""


class Receiver(ABC):
    """What is done with a connection: all methods are called by its thread."""

    @abstractmethod
    def connected(self, client: Client, resumed: bool, properties: Properties | None) -> None:
        """The broker has taken us; `resumed` says that it knew the session."""

    @abstractmethod
    def received(self, message: MQTTMessage) -> None:
        """A message came."""

    @abstractmethod
    def rested(self) -> None:
        """All packets that were there are read, or the connection was lost."""

    @abstractmethod
    def outgoing(self) -> bytes:
        """Packets to be written."""

    @abstractmethod
    def full(self) -> bool:
        """Whether nothing more should be read for now."""


class Connection:
    """Connects again and again until it is closed, or refused for good."""

    def __init__(
        self, address: MqttAddress, receiver: Receiver, properties: Properties, *, clean: bool
    ) -> None:
        self.address = address
        self._refusal: str | None = None
        self._fault: BaseException | None = None
        self.client: Client | None = None
        """The client of the connection that stands now."""
        self.failures = 0
        """How many attempts to connect have failed."""
        self._receiver = receiver
        self._properties = properties
        self._clean = clean
        self._known = False
        self._told = False
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
        """Connect, and go on so."""
        self._thread.start()

    def refused(self) -> str | None:
        """Why the broker will never take us, if that is so."""
        if self._fault is not None:
            raise self._fault
        return self._refusal

    def wake(self) -> None:
        """Have the thread look for what is to be written, or read on."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._waking.send(b"\0")

    def drop(self, client: Client) -> None:
        """Give up this connection and make another; any thread may say so."""
        self._dropped = client
        self.wake()

    def refuse(self, reason: str) -> None:
        """Give up for good; called by the thread."""
        self._refusal = reason
        self._stop.set()

    def close(self) -> None:
        """Write what is to be written, and disconnect."""
        self._stop.set()
        self.wake()
        self._thread.join()
        self._waking.close()
        self._woken.close()

    def _run(self) -> None:
        try:
            self._go_on()
        except BaseException as error:
            self._fault = error  # raised where messages are awaited
            self._receiver.rested()

    def _go_on(self) -> None:
        delay, brief = _FIRST_DELAY, 0
        while not self._stop.is_set():
            began = time.monotonic()
            client = self._dial()
            if client is not None:
                self._serve(client)
            connected, self.client = self.client is not None, None
            if connected and time.monotonic() - began > _LASTING:
                delay, brief = _FIRST_DELAY, 0
            elif connected:
                brief += 1
            if not self._stop.is_set():
                self.failures += 1
                self._report(brief)
            self._receiver.rested()
            self._stop.wait(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    def _dial(self) -> Client | None:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.address.client,
            protocol=MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = 5.0
        client.max_inflight_messages_set(0)  # the sink keeps to the broker's limit
        client.username_pw_set(self.address.user, self.address.password)
        if self.address.tls is not None:
            client.tls_set_context(self.address.tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        # With this the library never writes by itself, only when it is told to.
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
                self.refuse(f"its certificate cannot be trusted: {error.verify_message}")
        except OSError as error:
            self._why = error.strerror or type(error).__name__
        else:
            self._why = "the connection was lost"
            return client
        return None

    def _serve(self, client: Client) -> None:
        """Read and write until the connection is lost or no longer wanted."""
        sock: Any = client.socket()
        tail, more, checked = b"", False, time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(sock, selectors.EVENT_READ)
            while client.socket() is sock and self._dropped is not client:
                tail = self._write(client, sock, tail)
                if self._stop.is_set() and not (tail and self._hurry()):
                    self._leave(client)
                    break
                if client.socket() is not sock:
                    break
                full = self._receiver.full()
                wanted = 0 if full else selectors.EVENT_READ
                wanted |= selectors.EVENT_WRITE if tail or client.want_write() else 0
                ready = self._wait(selector, sock, wanted, 0.0 if more and not full else _TICK)
                if full:
                    continue  # an answer to a ping could not be read either
                if more or ready & selectors.EVENT_READ:
                    more = self._read(client, sock)
                    self._receiver.rested()
                if time.monotonic() - checked >= _TICK:
                    checked = time.monotonic()
                    client.loop_misc()
        sock.close()

    def _wait(
        self, selector: selectors.BaseSelector, sock: Any, wanted: int, seconds: float
    ) -> int:
        """Wait until the socket is ready for something, or someone wakes us."""
        registered = sock in selector.get_map()
        if not wanted:
            if registered:
                selector.unregister(sock)
        elif not registered:
            selector.register(sock, wanted)
        elif selector.get_key(sock).events != wanted:
            selector.modify(sock, wanted)
        ready = 0
        for key, events in selector.select(seconds):
            if key.fileobj is sock:
                ready = events
            else:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
        return ready

    def _read(self, client: Client, sock: Any) -> bool:
        """Read packets while there are any; whether there may be more."""
        secure = sock if isinstance(sock, ssl.SSLSocket) else None
        for _ in range(_BURST):
            before = self._packets
            client.loop_read()
            if client.socket() is not sock:
                return False
            if self._packets == before:
                return secure is not None and secure.pending() > 0
        return True

    def _write(self, client: Client, sock: Any, tail: bytes) -> bytes:
        """Write the library's packets or ours, never one amid the other; what is left of ours."""
        if not tail:
            if client.want_write():
                client.loop_write()
            if self.client is None or client.socket() is not sock or client.want_write():
                return b""
            tail = self._receiver.outgoing()
        if not tail:
            return b""
        try:
            return tail[sock.send(tail) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return tail
        except OSError:
            return b""  # reading finds that the connection is lost

    def _hurry(self) -> bool:
        """Whether there is still time to write before we leave."""
        self._leaving = self._leaving or time.monotonic() + _TICK
        return time.monotonic() < self._leaving

    def _leave(self, client: Client) -> None:
        if self.client is not None:
            client.disconnect()
            client.loop_write()

    def _on_connect(
        self, client: Client, _: Any, flags: Any, reason: Any, properties: Properties | None
    ) -> None:
        self._packets += 1
        if reason.is_failure:
            if not self._known and reason.value in _FINAL:
                self.refuse(f"it refuses the connection: {reason}; check user, password and client")
            self._why = str(reason)
            return
        if self._told:
            log.info("%s is connected again", self.address.place)
        self._known, self._told = True, False
        self.client = client
        self._receiver.connected(client, flags.session_present, properties)

    def _on_disconnect(self, _client: Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if flags.is_disconnect_packet_from_server and reason.value == _TAKEN_OVER:
            self.refuse(
                f"another connection has taken over the session '{self.address.client}'; give each "
                "run a name of its own with client="
            )

    def _on_message(self, _client: Client, _: Any, message: MQTTMessage) -> None:
        self._packets += 1
        self._receiver.received(message)

    def _on_write(self) -> None:
        if threading.current_thread() is not self._thread:
            self.wake()

    def _report(self, brief: int) -> None:
        """Say once that the broker is away, and why that may be."""
        if brief == _BRIEF:
            log.warning(
                "%s takes connections and drops them soon: does another client use the name '%s'? "
                "Give each run a name of its own with client=",
                self.address.place,
                self.address.client,
            )
        elif not self._told and brief < _BRIEF:
            log.warning(
                "%s does not answer (%s); it is tried again until it does",
                self.address.place,
                self._why,
            )
        self._told = True
