"""What a Kafka URL says: where the brokers are, which topics, and how.

Whatever else the client must know, such as how to authenticate, stands in a file of its
settings; passwords may also come from the environment. Nothing secret is ever part of a URL.
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
from tacit.connectors.placeholders import placeholders_in
from tacit.connectors.urls import UrlOptions
from tacit.errors import SinkError, SourceError, TacitError
from tacit.events.streams import ColumnType
from tacit.masking import scrub

_URL = re.compile(r"kafka://([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:@,]+)(?::\d{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED = re.compile(r"\{(\w+)\}")
_INWARD: Final = ("group", "payload", "columns", "sample", "key", "from", "config")
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
    """Brokers, and what the client must know besides to be let in."""

    servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def scrub(self, message: str) -> str:
        """A message of the client without anything that stands in the file of settings."""
        return scrub(message, secrets=self.settings.values()).strip()


@dataclass(frozen=True, slots=True)
class KafkaSourceOptions:
    """Which topics are read, and what is made of their messages."""

    topics: Sequence[str]
    group: str = "tacit"
    payload: Coding = "json"
    columns: Mapping[str, ColumnType] | None = None
    sample: str | None = None
    """A file whose columns are those of payloads."""
    key: str | None = None
    """The column that messages' keys become."""
    start: Literal["beginning", "end"] = "beginning"
    """Where a group begins that has never read a topic."""


@dataclass(frozen=True, slots=True)
class KafkaSinkOptions:
    """Which topics answers go to, and under which name the client delivers them."""

    topic: str
    identity: str

    def topic_of(self, consumer: str, query: str) -> str:
        """The topic for a consumer's query."""
        topic = self.topic.format(consumer=consumer, query=query)
        if not _TOPIC.fullmatch(topic):
            raise SinkError(
                f"'{topic}' is no name of a topic: letters, digits, '.', '_' and '-' only. Write "
                "the topic without the part that is at fault, or rename the query or consumer"
            )
        return topic


def read_inward(url: str) -> tuple[KafkaAddress, KafkaSourceOptions]:
    """The brokers and the topics of a source's URL."""
    parts = _KafkaParts(url, _INWARD, SourceError)
    topics = parts.path.split(",") if parts.path else []
    wrong = [topic for topic in topics if not _TOPIC.fullmatch(topic)]
    if not topics or wrong:
        raise SourceError(f"{parts.place}: expected topics, as in {parts.place}/gps or /gps,doors")
    start = parts.options.get("from", "beginning")
    if start not in ("beginning", "end"):
        raise SourceError(f"{parts.place}: from is beginning or end, not '{start}'")
    inward = KafkaSourceOptions(
        topics=topics,
        group=parts.options.get("group", "tacit"),
        payload=parts.coding(),
        columns=parts.columns(),
        sample=parts.options.get("sample"),
        key=parts.options.get("key"),
        start=cast("Literal['beginning', 'end']", start),
    )
    if inward.columns is not None and inward.sample is not None:
        raise SourceError(f"{parts.place}: give columns= or sample=, not both")
    return parts.address(), inward


def read_outward(url: str) -> tuple[KafkaAddress, KafkaSinkOptions]:
    """The brokers and the topics of an outlet's URL."""
    parts = _KafkaParts(url, _OUTWARD, SinkError)
    topic = parts.path or DEFAULT_TOPIC
    placeholders_in(topic, parts.place, _PLACES)
    if not _TOPIC.fullmatch(_NAMED.sub("x", topic)):
        raise SinkError(f"{parts.place}: '{topic}' is no name of a topic")
    if "{consumer}" not in topic:
        # Without it nobody could say in the broker who may read what.
        raise SinkError(f"{parts.place}: the topic needs {{consumer}}, as in {DEFAULT_TOPIC}")
    made = sha256(f"{parts.place}/{topic}".encode()).hexdigest()[:16]
    return parts.address(), KafkaSinkOptions(topic, parts.options.get("id") or f"tacit-{made}")


class _KafkaParts(UrlOptions):
    """A URL taken apart; mistakes in it are errors of this kind."""

    def __init__(self, url: str, known: Sequence[str], wrong: type[TacitError]) -> None:
        found = _URL.fullmatch(url)
        servers = found[1].split(",") if found else []
        if found is None or not all(_SERVER.fullmatch(server) for server in servers):
            # The URL is not shown: what cannot be taken apart may hold a password.
            raise wrong(
                "expected a URL such as kafka://host:9092/topic, without a user or password: these "
                "stand in a file of settings, config=FILE"
            )
        self.servers = ",".join(
            server if re.search(r":\d+$", server) else f"{server}:9092" for server in servers
        )
        self.path = unquote(found[2] or "")
        super().__init__(found[3] or "", known, f"kafka://{self.servers}", wrong)

    def address(self) -> KafkaAddress:
        """The brokers, with what the file of settings says."""
        path = self.options.get("config")
        settings = {} if path is None else self._settings(path)
        for variable, name, needed in _ENVIRONMENT:
            found = os.environ.get(variable)
            if found is not None and any(one in settings for one in needed):
                settings.setdefault(name, found)
        return KafkaAddress(self.servers, settings)

    def _settings(self, path: str) -> dict[str, str]:
        """Lines such as `sasl.mechanism=PLAIN`."""
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            raise self.wrong(
                f"{self.place}: settings cannot be read from {path}; check the path and who may "
                "read it"
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
