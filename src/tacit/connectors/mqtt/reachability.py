"""Check that an MQTT broker would accept a run, without touching the run's session.

A client that connects under the name of a run takes its session over, so the probe uses its own
name.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from tacit.connectors.mqtt.address import MqttAddress, parse_sink_url, parse_source_url
from tacit.errors import SinkError, SourceError, TacitError

_TIMEOUT: Final = 5.0


def probe(url: str, *, source: bool) -> str:
    """Connect to the broker, and subscribe for a source; return the result as text."""
    wrong: type[TacitError] = SourceError if source else SinkError
    topics, qos = None, 1
    if source:
        address, options = parse_source_url(url)
        # A member of a shared subscription would take messages from the others.
        topics, qos = (
            (None if options.topics.startswith("$share/") else options.topics),
            options.qos,
        )
    else:
        address, _ = parse_sink_url(url)
    answers: dict[str, Any] = {}
    client = _connect(address, answers, wrong)
    try:
        if topics is not None:
            client.subscribe(topics, qos)
            granted = _await(client, answers, "granted")
            if granted is None:
                raise wrong(
                    f"{address.place} did not answer a subscription within {_TIMEOUT:.0f} s"
                )
            if granted[0].is_failure:
                raise wrong(
                    f"{address.place} refuses the subscription to {topics}: {granted[0]}; allow"
                    " the user to read these topics"
                )
    finally:
        client.disconnect()
        client.loop(0.1)
    return f"{address.place} answers" + (
        f", and accepts the subscription to {topics}" if topics else ""
    )


def _connect(address: MqttAddress, answers: dict[str, Any], wrong: type[TacitError]) -> Any:
    """Connect a client under its own name, whose session ends with it."""
    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion

    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"tacit-doctor-{secrets.token_hex(4)}",
        protocol=MQTTv5,
        reconnect_on_failure=False,
    )
    client.connect_timeout = _TIMEOUT
    client.username_pw_set(address.user, address.password)
    if address.tls is not None:
        client.tls_set_context(address.tls)
    client.on_connect = lambda _c, _u, _f, reason, _p: answers.update(connected=reason)
    client.on_subscribe = lambda _c, _u, _m, codes, _p: answers.update(granted=codes)
    try:
        client.connect(address.host, address.port, address.keepalive, clean_start=True)
    except OSError as error:
        why = getattr(error, "verify_message", None) or error.strerror or type(error).__name__
        raise wrong(
            f"{address.place} does not answer ({why}); start the broker, or check host, port and"
            " certificates"
        ) from error
    reason = _await(client, answers, "connected")
    if reason is None or reason.is_failure:
        detail = "nothing" if reason is None else str(reason)
        raise wrong(
            f"{address.place} refuses the connection: it answered {detail}; check user and password"
        )
    return client


def _await(client: Any, answers: dict[str, Any], key: str) -> Any:
    deadline = time.monotonic() + _TIMEOUT
    while key not in answers and time.monotonic() < deadline:
        if client.loop(0.1) and key not in answers:
            break  # the connection is lost
    return answers.get(key)
