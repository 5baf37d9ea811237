"""Whether an MQTT broker would accept a run, without touching the run's own session.

A client that connects under the name of a run would take its session over, so the probe has a
name of its own.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from tacit.connectors.mqtt.address import MqttAddress, read_inward, read_outward
from tacit.errors import SinkError, SourceError, TacitError

_PATIENCE: Final = 5.0


def probe(url: str, *, source: bool) -> str:
    """What the broker says to a connection, and to the subscription of a source."""
    wrong: type[TacitError] = SourceError if source else SinkError
    topics, qos = None, 1
    if source:
        where, inward = read_inward(url)
        # A member of a shared subscription would take messages away from the others.
        topics, qos = (None if inward.topics.startswith("$share/") else inward.topics), inward.qos
    else:
        where, _ = read_outward(url)
    answers: dict[str, Any] = {}
    client = _connected(where, answers, wrong)
    try:
        if topics is not None:
            client.subscribe(topics, qos)
            granted = _awaited(client, answers, "granted")
            if granted is None:
                raise wrong(f"{where.place} did not answer a subscription within {_PATIENCE:.0f} s")
            if granted[0].is_failure:
                raise wrong(
                    f"{where.place} refuses the subscription to {topics}: {granted[0]}; let the"
                    " user read these topics"
                )
    finally:
        client.disconnect()
        client.loop(0.1)
    return f"{where.place} answers" + (
        f", and takes the subscription to {topics}" if topics else ""
    )


def _connected(where: MqttAddress, answers: dict[str, Any], wrong: type[TacitError]) -> Any:
    """A client under a name of its own, whose session ends with it."""
    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion

    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"tacit-doctor-{secrets.token_hex(4)}",
        protocol=MQTTv5,
        reconnect_on_failure=False,
    )
    client.connect_timeout = _PATIENCE
    client.username_pw_set(where.user, where.password)
    if where.tls is not None:
        client.tls_set_context(where.tls)
    client.on_connect = lambda _c, _u, _f, reason, _p: answers.update(connected=reason)
    client.on_subscribe = lambda _c, _u, _m, codes, _p: answers.update(granted=codes)
    try:
        client.connect(where.host, where.port, where.keepalive, clean_start=True)
    except OSError as error:
        why = getattr(error, "verify_message", None) or error.strerror or type(error).__name__
        raise wrong(
            f"{where.place} does not answer ({why}); start the broker, or check host, port and"
            " certificates"
        ) from error
    reason = _awaited(client, answers, "connected")
    if reason is None or reason.is_failure:
        said = "nothing" if reason is None else str(reason)
        raise wrong(f"{where.place} does not let us in: it says {said}; check user and password")
    return client


def _awaited(client: Any, answers: dict[str, Any], key: str) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while key not in answers and time.monotonic() < deadline:
        if client.loop(0.1) and key not in answers:
            break  # the connection is lost
    return answers.get(key)
