"""Parse Kafka URLs: the brokers, the topics and the options.

Other settings of the client, such as authentication, come from a settings file; passwords may also
come from the environment. A URL never contains a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import unquote

from tacit.connectors.payloads import Coding
from tacit.connectors.placeholders import find_placeholders
from tacit.connectors.urls import UrlOptions
from tacit.durations import parse_duration
from tacit.errors import SinkError, SourceError, TacitError
from tacit.events.streams import ColumnType
from tacit.masking import scrub

_URL = re.compile(r"kafka://([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:@,]+)(?::\d{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED = re.compile(r"\{(\w+)\}")
_INWARD: Final = ("group", "payload", "columns", "sample", "key", "from", "idle", "config")
_OUTWARD: Final = ("id", "config")
_PLACES: Final = ("consumer", "query")
_ENVIRONMENT: Final = (
    ("TACIT_KAFKA_PASSWORD", "sasl.password", ("sasl.username",)),
    (
        "TACIT_KAFKA_KEY_PASSWORD",
        "ssl.key.password",
        ("ssl.key.location", "ssl.keystore.location"),
    ),
)
"""Environment variables for settings that are secret, and the settings that they belong to."""
DEFAULT_TOPIC: Final = "tacit-answers-{consumer}"


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """The brokers, and other settings of the client."""

    servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def scrub(self, message: str) -> str:
        """Remove all values of the settings file from a message of the client."""
        return scrub(message, secrets=self.settings.values()).strip()


@dataclass(frozen=True, slots=True)
class KafkaSourceOptions:
    """The topics of a source, and how to read their messages."""

    topics: Sequence[str]
    group: str = "tacit"
    payload: Coding = "json"
    columns: Mapping[str, ColumnType] | None = None
    sample: str | None = None
    """A file with the same columns as the payloads."""
    key: str | None = None
    """The column for the keys of messages."""
    start: Literal["beginning", "end"] = "beginning"
    """Where a group starts that has never read the topic."""
    idle: float = 1.0
    """Seconds for which tuples wait for a partition that has no more messages."""


@dataclass(frozen=True, slots=True)
class KafkaSinkOptions:
    """The topics of a sink, and the name of its client."""

    topic: str
    identity: str

    def format_topic(self, consumer: str, query: str) -> str:
        """Return the topic for a consumer's query."""
        topic = self.topic.format(consumer=consumer, query=query)
        if not _TOPIC.fullmatch(topic):
            raise SinkError(
                f"'{topic}' is not a valid topic: use only letters, digits, '.', '_' and '-'. "
                "Change the topic, or rename the query or consumer"
            )
        return topic


def parse_source_url(url: str) -> tuple[KafkaAddress, KafkaSourceOptions]:
    """Parse the URL of a source."""
    parts = _KafkaParts(url, _INWARD, SourceError)
    topics = parts.path.split(",") if parts.path else []
    wrong = [topic for topic in topics if not _TOPIC.fullmatch(topic)]
    if not topics or wrong:
        raise SourceError(f"{parts.place}: expected topics, as in {parts.place}/gps or /gps,doors")
    start = parts.options.get("from", "beginning")
    if start not in ("beginning", "end"):
        raise SourceError(f"{parts.place}: from is beginning or end, not '{start}'")
    options = KafkaSourceOptions(
        topics=topics,
        group=parts.options.get("group", "tacit"),
        payload=parts.parse_payload(),
        columns=parts.parse_columns(),
        sample=parts.options.get("sample"),
        key=parts.options.get("key"),
        start=cast("Literal['beginning', 'end']", start),
        idle=parts.parse_idle(),
    )
    if options.columns is not None and options.sample is not None:
        raise SourceError(f"{parts.place}: give columns= or sample=, not both")
    return parts.parse_address(), options


def parse_sink_url(url: str) -> tuple[KafkaAddress, KafkaSinkOptions]:
    """Parse the URL of a sink."""
    parts = _KafkaParts(url, _OUTWARD, SinkError)
    topic = parts.path or DEFAULT_TOPIC
    find_placeholders(topic, parts.place, _PLACES)
    if not _TOPIC.fullmatch(_NAMED.sub("x", topic)):
        raise SinkError(f"{parts.place}: '{topic}' is not a valid topic")
    if "{consumer}" not in topic:
        # Without it the broker cannot control which consumer reads what.
        raise SinkError(f"{parts.place}: the topic needs {{consumer}}, as in {DEFAULT_TOPIC}")
    digest = sha256(f"{parts.place}/{topic}".encode()).hexdigest()[:16]
    return parts.parse_address(), KafkaSinkOptions(
        topic, parts.options.get("id") or f"tacit-{digest}"
    )


class _KafkaParts(UrlOptions):
    """The parts of a URL; mistakes raise the error type `wrong`."""

    def __init__(self, url: str, known: Sequence[str], wrong: type[TacitError]) -> None:
        found = _URL.fullmatch(url)
        servers = found[1].split(",") if found else []
        if found is None or not all(_SERVER.fullmatch(server) for server in servers):
            # The URL is not shown: one that cannot be parsed may contain a password.
            raise wrong(
                "expected a URL such as kafka://host:9092/topic, without a user or password: put "
                "these into a settings file, config=FILE"
            )
        self.servers = ",".join(
            server if re.search(r":\d+$", server) else f"{server}:9092" for server in servers
        )
        self.path = unquote(found[2] or "")
        super().__init__(found[3] or "", known, f"kafka://{self.servers}", wrong)

    def parse_address(self) -> KafkaAddress:
        """Return the brokers with the settings from the file and the environment."""
        path = self.options.get("config")
        settings = {} if path is None else self._settings(path)
        for variable, name, needed in _ENVIRONMENT:
            found = os.environ.get(variable)
            if found is not None and any(one in settings for one in needed):
                settings.setdefault(name, found)
        return KafkaAddress(self.servers, settings)

    def parse_idle(self) -> float:
        """Return how long to wait for idle partitions, in seconds."""
        text = self.options.get("idle", "1 s")
        try:
            return 0.0 if text == "0" else parse_duration(text) / 1_000_000
        except ValueError as error:
            raise self.wrong(f"{self.place}: idle: {error}") from None

    def _settings(self, path: str) -> dict[str, str]:
        """Read lines such as `sasl.mechanism=PLAIN`."""
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            raise self.wrong(
                f"{self.place}: settings cannot be read from {path}; check the path and "
                "its permissions"
            ) from None
        settings = {}
        for number, line in enumerate(lines, 1):
            name, sign, value = line.partition("=")
            if not line.strip() or line.lstrip().startswith(("#", "!")):
                continue
            if not sign:
                raise self.wrong(f"{path}:{number}: expected a setting such as name=value")
            settings[name.strip()] = value.strip()
        return settings
