"""Whether a broker would let a run in: asked under another name, and nothing is left behind.

A run's own session must not be touched: whoever connects under its name takes it over.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from tacit.connectors.kafka import address as kafka
from tacit.connectors.mqtt import address as mqtt
from tacit.errors import SinkError, SourceError, TacitError

_PATIENCE: Final = 5.0


def probe(url: str, *, source: bool) -> str:
    """What a broker says to a source or an outlet; raises where it would not do."""
    scheme = url.partition("://")[0].lower()
    if scheme in ("mqtt", "mqtts"):
        return _probe_mqtt(url, source=source)
    return _probe_kafka(url, source=source)


def _probe_mqtt(url: str, *, source: bool) -> str:
    wrong: type[TacitError] = SourceError if source else SinkError
    topics, qos = None, 1
    if source:
        where, inward = mqtt.read_inward(url)
        # A member of a shared subscription would take messages away from the others.
        topics, qos = (None if inward.topics.startswith("$share/") else inward.topics), inward.qos
    else:
        where, _ = mqtt.read_outward(url)
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


def _connected(where: mqtt.Address, answers: dict[str, Any], wrong: type[TacitError]) -> Any:
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


def _probe_kafka(url: str, *, source: bool) -> str:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    wrong: type[TacitError] = SourceError if source else SinkError
    topics: list[str] = []
    if source:
        where, inward = kafka.read_inward(url)
        topics = list(inward.topics)
    else:
        where, _ = kafka.read_outward(url)
    place = f"kafka://{where.servers}"
    settings: dict[str, str | int | float | bool] = {
        **where.settings,
        "bootstrap.servers": where.servers,
        "log_level": 0,
    }
    try:
        found = AdminClient(settings).list_topics(timeout=_PATIENCE).topics
    except (KafkaException, ValueError) as error:
        raise wrong(
            f"{place} does not answer ({_said(error)}); start the broker, or check its address and"
            " the settings"
        ) from error
    missing = [name for name in topics if name not in found or found[name].error is not None]
    if missing:
        raise wrong(f"{place} has no topic {missing[0]} that we may read; create it, or allow it")
    return f"{place} answers" + (f", and has {', '.join(topics)}" if topics else "")


def _said(error: Exception) -> str:
    """What a client library says, without what may be secret in its settings."""
    reason = error.args[0] if error.args else None
    name = getattr(reason, "name", None)
    return str(name()) if callable(name) else type(error).__name__
