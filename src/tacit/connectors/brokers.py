"""The list of connectors to brokers, by the scheme of their URLs.

To add a connector, write its module and add an entry here: see docs/extending.md. Its module is
imported only when a URL of its scheme is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tacit.errors import SinkError, SourceError, TacitError

if TYPE_CHECKING:
    from tacit.pipeline.sinks import Sink
    from tacit.pipeline.sources import Source


@dataclass(frozen=True, slots=True)
class Connector:
    """The module of a connector, and its requirements.

    The module has `open_source(url)`, `open_sink(url)` and `probe(url, *, source)`, or some of
    them: a missing function gives an error message.
    """

    module: str
    requires: Mapping[str, str] = field(default_factory=dict)
    """The Python modules that it needs, each with the extra of Tacit that installs it."""


_MQTT: Final = Connector("tacit.connectors.mqtt", {"paho": "mqtt"})

CONNECTORS: Final[dict[str, Connector]] = {
    "mqtt": _MQTT,
    "mqtts": _MQTT,
    "kafka": Connector("tacit.connectors.kafka", {"confluent_kafka": "kafka"}),
}
"""All connectors, by the scheme of their URLs."""


def is_broker(place: str) -> bool:
    """Return whether a name is a URL of a connector.

    >>> is_broker("mqtt://host/taxis/+"), is_broker("trips.csv")
    (True, False)
    """
    return "://" in place and _scheme(place) in CONNECTORS


def required_modules(place: str) -> dict[str, str]:
    """Return the Python modules that a URL needs, each with the extra that installs it."""
    if not is_broker(place):
        return {}
    connector = CONNECTORS[_scheme(place)]
    extra = next(iter(connector.requires.values()), "mqtt")
    cbor = {"cbor2": extra} if "payload=cbor" in place else {}
    return {**connector.requires, **cbor}


def open_broker_source(url: str) -> Source:
    """Open a source of tuples from a broker."""
    found: Source = _find(url, "open_source", SourceError, ", or - for JSON lines")(url)
    return found


def open_broker_sink(url: str) -> Sink:
    """Open a sink that delivers answers to a broker."""
    found: Sink = _find(url, "open_sink", SinkError)(url)
    return found


def probe(url: str, *, source: bool) -> str:
    """Check that a run could use a broker; return its reply, or raise.

    The probe does not touch the session of a run: it connects under its own name, and leaves
    nothing behind.
    """
    reply: str = _find(url, "probe", SourceError if source else SinkError)(url, source=source)
    return reply


def _find(url: str, name: str, wrong: type[TacitError], also: str = "") -> Any:
    """Find a function of the connector for a URL."""
    scheme = _scheme(url)
    kind = "source" if wrong is SourceError else "sink"
    if scheme not in CONNECTORS:
        *first, last = (f"{known}://" for known in CONNECTORS)
        raise wrong(
            f"'{scheme}://' is not a {kind}: expected a path, {', '.join(first)} or {last}{also}"
        )
    function = getattr(import_module(CONNECTORS[scheme].module), name, None)
    if function is None:
        raise wrong(f"the connector of {scheme}:// has no {name}: it cannot be used as a {kind}")
    return function


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()
