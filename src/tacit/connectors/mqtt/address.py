"""Parse MQTT URLs: the broker, the user, the topics and the options.

A URL never contains a password, because logs and process lists show URLs. Passwords come from the
environment or from a file, and are never shown.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tacit.connectors.payloads import Coding, PayloadFormat
from tacit.connectors.placeholders import find_placeholders
from tacit.connectors.urls import UrlOptions
from tacit.durations import parse_duration
from tacit.errors import SinkError, SourceError, TacitError
from tacit.events.streams import ColumnType
from tacit.masking import mask

PASSWORD: Final = "TACIT_MQTT_PASSWORD"
"""The environment variable that may hold the password."""
KEY_PASSWORD: Final = "TACIT_MQTT_KEY_PASSWORD"
"""The environment variable that may hold the passphrase of the key."""
DEFAULT_TOPIC: Final = "tacit/answers/{consumer}/{query}"
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_URL = re.compile(r"(mqtts?)://([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_AUTHORITY = re.compile(r"(?:([^@]*)@)?(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::(\d{1,5}))?")
_NAMED = re.compile(r"\{(\w+)\}")
_COMMON: Final = ("payload", "client", "keepalive", "ca", "cert", "key", "password_file")
_INWARD: Final = (
    *_COMMON,
    "subject",
    "received",
    "columns",
    "sample",
    "qos",
    "receive",
    "session",
    "largest",
)
_OUTWARD: Final = (*_COMMON, "per", "retain")


class _TidySocket(ssl.SSLSocket):
    """Closes itself if the handshake fails: no other code has it then."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """A broker, and the client that connects to it."""

    host: str
    port: int
    client: str
    """The name of the session, under which a broker keeps undelivered messages; may be empty."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    keepalive: int = 30

    @property
    def place(self) -> str:
        """The URL of the broker, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MqttSourceOptions:
    """The subscription of a source, and how to read its messages."""

    topics: str
    """A topic filter; it may be a shared subscription."""
    payload: PayloadFormat = "json"
    levels: Mapping[str, int] = field(default_factory=dict)
    """Columns from levels of the topic, counted from 1."""
    subject: str | None = None
    """The field of payloads that becomes the column `subject`, if it has another name."""
    received: str | None = None
    """The column for the time at which a message arrives, if there is one."""
    columns: Mapping[str, ColumnType] | None = None
    sample: str | None = None
    """A file with the same columns as the payloads."""
    qos: int = 1
    receive: int = 65_535
    session: int = 7 * 86_400
    """Seconds for which the broker keeps messages while the client is disconnected."""
    largest: int = 1 << 24
    """Bytes of the largest accepted message."""


@dataclass(frozen=True, slots=True)
class MqttSinkOptions:
    """The topics of a sink, and how to write its messages."""

    topic: str = DEFAULT_TOPIC
    payload: Coding = "json"
    per_answer: bool = False
    retain: bool = False


def parse_source_url(url: str) -> tuple[MqttAddress, MqttSourceOptions]:
    """Parse the URL of a source."""
    parts = _MqttParts(url, _INWARD, SourceError)
    topics, levels = _parse_levels(parts)
    options = MqttSourceOptions(
        topics=topics,
        payload="value" if parts.options.get("payload") == "value" else parts.parse_payload(),
        levels=levels | _subject_level(parts, topics),
        subject=_subject_field(parts),
        received=parts.options.get("received"),
        columns=parts.parse_columns(),
        sample=parts.options.get("sample"),
        qos=parts.parse_number("qos", 1, range(2)),
        receive=parts.parse_number("receive", 65_535, range(1, 65_536)),
        session=parts.parse_seconds("session", 7 * 86_400),
        largest=parts.parse_number("largest", 1 << 24, range(1 << 10, 1 << 28)),
    )
    if options.received is not None and options.received in {"", "topic", *options.levels}:
        raise SourceError(f"{parts.place}: received= needs a column name of its own")
    if options.columns is not None and options.sample is not None:
        raise SourceError(f"{parts.place}: give columns= or sample=, not both")
    # The same in every run, so that the broker resumes the session after a restart.
    digest = sha256(f"{parts.place}/{parts.user or ''}/{options.topics}".encode()).hexdigest()[:16]
    return parts.parse_address(f"tacit-{digest}"), options


def parse_sink_url(url: str) -> tuple[MqttAddress, MqttSinkOptions]:
    """Parse the URL of a sink."""
    parts = _MqttParts(url, _OUTWARD, SinkError)
    options = MqttSinkOptions(
        topic=parts.path or DEFAULT_TOPIC,
        payload=parts.parse_payload(),
        per_answer=parts.parse_choice("per", ("window", "answer")) == "answer",
        retain=parts.parse_choice("retain", ("false", "true")) == "true",
    )
    _check_topic(options, parts.place)
    return parts.parse_address(), options


class _MqttParts(UrlOptions):
    """The parts of a URL; mistakes raise the error type `wrong`."""

    def __init__(self, url: str, known: Sequence[str], wrong: type[TacitError]) -> None:
        self.wrong = wrong
        found = _URL.fullmatch(url)
        authority = _AUTHORITY.fullmatch(found[2]) if found else None
        if found is None or authority is None:
            # The URL is not shown: one that cannot be parsed may contain a password.
            raise wrong(
                "expected a URL such as mqtt://user@host:1883/topic?payload=json, with no password"
            )
        self.scheme = found[1]
        user = authority[1]
        if user is not None and ":" in user:
            raise wrong(
                f"{mask(url)}: a URL must not contain a password; put it into the environment "
                f"variable {PASSWORD}, or into a file and write password_file="
            )
        self.user = unquote(user) if user else None
        self.host = authority[2].strip("[]")
        self.port = int(authority[3] or _PORTS[self.scheme])
        place = f"{self.scheme}://{authority[2]}:{self.port}"
        if not 0 < self.port < 65_536:
            raise wrong(f"{place}: a port must be between 1 and 65535")
        self.path = unquote(found[3] or "")
        super().__init__(found[4] or "", known, place, wrong)

    def parse_address(self, client: str = "") -> MqttAddress:
        """Return the broker and the client."""
        return MqttAddress(
            self.host,
            self.port,
            self.options.get("client") or client,
            self.user,
            self._password(),
            self._tls(),
            self.parse_seconds("keepalive", 30, 0xFFFF),
        )

    def parse_choice(self, name: str, values: Sequence[str]) -> str:
        """Parse an option with these values; the first is the default."""
        value: str = self.options.get(name, values[0])
        if value not in values:
            raise self.wrong(f"{self.place}: {name} is {' or '.join(values)}, not '{value}'")
        return value

    def parse_number(self, name: str, default: int, allowed: range) -> int:
        """Parse an option that is a whole number."""
        text = self.options.get(name, str(default))
        if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) not in allowed:
            raise self.wrong(
                f"{self.place}: {name} is a whole number between {allowed.start} and "
                f"{allowed.stop - 1}, not '{text}'"
            )
        return int(text)

    def parse_seconds(self, name: str, default: int, most: int = 0xFFFF_FFFE) -> int:
        """Parse an option that is a duration, in seconds."""
        text = self.options.get(name)
        if text is None:
            return default
        try:
            return min(max(parse_duration(text) // 1_000_000, 1), most)
        except ValueError as error:
            raise self.wrong(f"{self.place}: {name}: {error}") from None

    def _password(self) -> str | None:
        path = self.options.get("password_file")
        if path is None:
            found = os.environ.get(PASSWORD)
        else:
            try:
                found = Path(path).read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                raise self.wrong(
                    f"{self.place}: the password cannot be read from {path}; check the path and "
                    "its permissions"
                ) from None
        if path is not None and self.user is None:
            raise self.wrong(f"{self.place}: password_file= needs a user: {self.scheme}://user@...")
        return found if self.user is not None else None

    def _tls(self) -> ssl.SSLContext | None:
        ca, cert, key = (self.options.get(name) for name in ("ca", "cert", "key"))
        if self.scheme == "mqtt":
            if ca or cert or key:
                raise self.wrong(f"{self.place}: ca=, cert= and key= are for mqtts://")
            return None
        if key and not cert:
            raise self.wrong(f"{self.place}: key= needs the certificate it belongs to, cert=")
        try:
            context = ssl.create_default_context(cafile=ca)
            context.sslsocket_class = _TidySocket
            if cert:
                secret = os.environ.get(KEY_PASSWORD, "")
                context.load_cert_chain(cert, key, password=lambda: secret)
        except (OSError, ValueError) as error:
            what = " and ".join(path for path in (ca, cert, key) if path)
            raise self.wrong(
                f"{self.place}: certificates cannot be read from {what or 'the system'}: they must "
                f"be PEM files, and the passphrase of a key must be in {KEY_PASSWORD}"
            ) from error
        return context


def _parse_levels(parts: _MqttParts) -> tuple[str, dict[str, int]]:
    """Return the topic filter, and the columns from its levels in braces."""
    topics = parts.path
    if not topics:
        raise SourceError(
            f"{parts.place}: the topics are missing; write {parts.place}/topic/filter"
        )
    shared = topics.split("/")[:2] if topics.startswith("$share/") else []
    levels = topics.split("/")[len(shared) :]
    named: dict[str, int] = {}
    for number, level in enumerate(levels, 1):
        name = _NAMED.fullmatch(level)
        if name is None and ("{" in level or "}" in level):
            raise SourceError(
                f"{parts.place}: braces must contain a whole level, as in taxis/{{taxi}}"
            )
        if name is not None and (name[1] in named or name[1] == "topic"):
            raise SourceError(f"{parts.place}: two columns would be called '{name[1]}'")
        if name is not None:
            named[name[1]] = number
            levels[number - 1] = "+"
    _check_filter(levels, shared, parts.place)
    return "/".join([*shared, *levels]), named


def _check_filter(levels: Sequence[str], shared: Sequence[str], place: str) -> None:
    wild = [level for level in levels if ("+" in level or "#" in level) and len(level) > 1]
    if wild or "#" in levels[:-1] or "\0" in "".join(levels):
        raise SourceError(
            f"{place}: in a topic filter + matches one level and # all levels that follow; "
            "each must be a whole level, and # the last one"
        )
    if shared and (len(shared) < 2 or not shared[1] or not any(levels)):
        raise SourceError(f"{place}: a shared subscription is $share/group/topic/filter")


def _subject_level(parts: _MqttParts, topics: str) -> dict[str, int]:
    given = parts.options.get("subject", "")
    if not given.startswith("topic:"):
        return {}
    text = given.removeprefix("topic:")
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise SourceError(
            f"{parts.place}: subject=topic:N is the N-th level of the topic, from 1, not '{text}'"
        )
    levels = topics.split("/")[2:] if topics.startswith("$share/") else topics.split("/")
    if int(text) > len(levels) and levels[-1] != "#":
        raise SourceError(
            f"{parts.place}: subject=topic:{text}, but topics have {len(levels)} levels"
        )
    return {"subject": int(text)}


def _subject_field(parts: _MqttParts) -> str | None:
    given = parts.options.get("subject", "")
    return None if not given or given.startswith("topic:") else given


def _check_topic(options: MqttSinkOptions, place: str) -> None:
    names = find_placeholders(options.topic, place)
    plain = _NAMED.sub("", options.topic)
    if any(sign in plain for sign in "+#{}\0") or plain.startswith("$"):
        raise SinkError(f"{place}: answers are published to a topic, without wildcards")
    if "consumer" not in names:
        # Without it the broker cannot control which consumer reads what.
        raise SinkError(f"{place}: the topic needs {{consumer}}, as in {DEFAULT_TOPIC}")
    if "subject" in names and not options.per_answer:
        raise SinkError(f"{place}: {{subject}} in a topic needs per=answer")
