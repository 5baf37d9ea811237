"""Check that a Kafka broker answers and has the topics that a run reads."""

from __future__ import annotations

from typing import Final

from tacit.connectors.kafka.address import parse_sink_url, parse_source_url
from tacit.errors import SinkError, SourceError, TacitError

_TIMEOUT: Final = 5.0


def probe(url: str, *, source: bool) -> str:
    """Ask the broker for the topics of a source; return the result as text."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    wrong: type[TacitError] = SourceError if source else SinkError
    topics: list[str] = []
    if source:
        address, options = parse_source_url(url)
        topics = list(options.topics)
    else:
        address, _ = parse_sink_url(url)
    place = f"kafka://{address.servers}"
    settings: dict[str, str | int | float | bool] = {
        **address.settings,
        "bootstrap.servers": address.servers,
        "log_level": 0,
    }
    try:
        found = AdminClient(settings).list_topics(timeout=_TIMEOUT).topics
    except (KafkaException, ValueError) as error:
        raise wrong(
            f"{place} does not answer ({_describe(error)}); start the broker, or check its address"
            " and the settings"
        ) from error
    missing = [name for name in topics if name not in found or found[name].error is not None]
    if missing:
        raise wrong(
            f"{place} has no topic {missing[0]} that the user may read; create it, or allow it"
        )
    return f"{place} answers" + (f", and has {', '.join(topics)}" if topics else "")


def _describe(error: Exception) -> str:
    """Describe an error of the client without its message, which may contain settings."""
    reason = error.args[0] if error.args else None
    name = getattr(reason, "name", None)
    return str(name()) if callable(name) else type(error).__name__
