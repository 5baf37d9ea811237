"""Whether a Kafka broker answers and has the topics that a run reads."""

from __future__ import annotations

from typing import Final

from tacit.connectors.kafka.address import read_inward, read_outward
from tacit.errors import SinkError, SourceError, TacitError

_PATIENCE: Final = 5.0


def probe(url: str, *, source: bool) -> str:
    """What the broker says about the topics of a source."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    wrong: type[TacitError] = SourceError if source else SinkError
    topics: list[str] = []
    if source:
        where, inward = read_inward(url)
        topics = list(inward.topics)
    else:
        where, _ = read_outward(url)
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
