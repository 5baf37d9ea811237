"""What an MQTT URL says: where the broker is, who asks, which topics, and how.

A password never stands in a URL, which is shown in logs and lists of processes. It comes from
the environment or from a file, and is shown nowhere.
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

from tacit.connectors.payloads import Coding
from tacit.connectors.placeholders import placeholders_in
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
_INWARD: Final = (*_COMMON, "subject", "columns", "sample", "qos", "receive", "session", "largest")
_OUTWARD: Final = (*_COMMON, "per", "retain")


class _TidySocket(ssl.SSLSocket):
    """Closes itself where it is not agreed on how to speak: nobody else could."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """A broker, and who connects to it."""

    host: str
    port: int
    client: str
    """The name of the session: a broker keeps what is undelivered under it. None is made up."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    keepalive: int = 30

    @property
    def place(self) -> str:
        """Where the broker is, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MqttSourceOptions:
    """What is subscribed to, and what is made of it."""

    topics: str
    """A topic filter, which may be that of a shared subscription."""
    payload: Coding = "json"
    levels: Mapping[str, int] = field(default_factory=dict)
    """Columns that levels of the topic give, counted from 1."""
    subject: str | None = None
    """The field of payloads that is the column `subject`, if it is called otherwise."""
    columns: Mapping[str, ColumnType] | None = None
    sample: str | None = None
    """A file whose columns are those of payloads."""
    qos: int = 1
    receive: int = 65_535
    session: int = 7 * 86_400
    """Seconds for which the broker keeps messages while nobody is connected."""
    largest: int = 1 << 24
    """Bytes of the largest message that is taken."""


@dataclass(frozen=True, slots=True)
class MqttSinkOptions:
    """Which topics answers go to, and how."""

    topic: str = DEFAULT_TOPIC
    payload: Coding = "json"
    per_answer: bool = False
    retain: bool = False


def read_inward(url: str) -> tuple[MqttAddress, MqttSourceOptions]:
    """The broker and the subscription of a source's URL."""
    parts = _MqttParts(url, _INWARD, SourceError)
    topics, levels = _named_levels(parts)
    inward = MqttSourceOptions(
        topics=topics,
        payload=parts.coding(),
        levels=levels | _subject_level(parts, topics),
        subject=_subject_field(parts),
        columns=parts.columns(),
        sample=parts.options.get("sample"),
        qos=parts.number("qos", 1, range(2)),
        receive=parts.number("receive", 65_535, range(1, 65_536)),
        session=parts.seconds("session", 7 * 86_400),
        largest=parts.number("largest", 1 << 24, range(1 << 10, 1 << 28)),
    )
    if inward.columns is not None and inward.sample is not None:
        raise SourceError(f"{parts.place}: give columns= or sample=, not both")
    # The same in every run, so that the broker knows the session after a restart.
    made = sha256(f"{parts.place}/{parts.user or ''}/{inward.topics}".encode()).hexdigest()[:16]
    return parts.address(f"tacit-{made}"), inward


def read_outward(url: str) -> tuple[MqttAddress, MqttSinkOptions]:
    """The broker and the topics of an outlet's URL."""
    parts = _MqttParts(url, _OUTWARD, SinkError)
    outward = MqttSinkOptions(
        topic=parts.path or DEFAULT_TOPIC,
        payload=parts.coding(),
        per_answer=parts.choice("per", ("window", "answer")) == "answer",
        retain=parts.choice("retain", ("false", "true")) == "true",
    )
    _check_topic(outward, parts.place)
    return parts.address(), outward


class _MqttParts(UrlOptions):
    """A URL taken apart; mistakes in it are errors of this kind."""

    def __init__(self, url: str, known: Sequence[str], wrong: type[TacitError]) -> None:
        self.wrong = wrong
        found = _URL.fullmatch(url)
        authority = _AUTHORITY.fullmatch(found[2]) if found else None
        if found is None or authority is None:
            # The URL is not shown: what cannot be taken apart may hold a password.
            raise wrong(
                "expected a URL such as mqtt://user@host:1883/topic?payload=json, with no password"
            )
        self.scheme = found[1]
        user = authority[1]
        if user is not None and ":" in user:
            raise wrong(
                f"{mask(url)}: a password must not stand in a URL; leave it out, and put it into "
                f"the environment variable {PASSWORD} or into a file named by password_file="
            )
        self.user = unquote(user) if user else None
        self.host = authority[2].strip("[]")
        self.port = int(authority[3] or _PORTS[self.scheme])
        place = f"{self.scheme}://{authority[2]}:{self.port}"
        if not 0 < self.port < 65_536:
            raise wrong(f"{place}: a port is between 1 and 65535")
        self.path = unquote(found[3] or "")
        super().__init__(found[4] or "", known, place, wrong)

    def address(self, client: str = "") -> MqttAddress:
        """The broker, as who connects."""
        return MqttAddress(
            self.host,
            self.port,
            self.options.get("client") or client,
            self.user,
            self._password(),
            self._tls(),
            self.seconds("keepalive", 30, 0xFFFF),
        )

    def choice(self, name: str, values: Sequence[str]) -> str:
        """An option that is one of these, the first where it is not given."""
        value: str = self.options.get(name, values[0])
        if value not in values:
            raise self.wrong(f"{self.place}: {name} is {' or '.join(values)}, not '{value}'")
        return value

    def number(self, name: str, default: int, allowed: range) -> int:
        """An option that is a whole number."""
        text = self.options.get(name, str(default))
        if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) not in allowed:
            raise self.wrong(
                f"{self.place}: {name} is a whole number between {allowed.start} and "
                f"{allowed.stop - 1}, not '{text}'"
            )
        return int(text)

    def seconds(self, name: str, default: int, most: int = 0xFFFF_FFFE) -> int:
        """An option that is a length of time."""
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
                    "who may read it"
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


def _named_levels(parts: _MqttParts) -> tuple[str, dict[str, int]]:
    """The topic filter, and the columns that its levels in braces give."""
    filtered = parts.path
    if not filtered:
        raise SourceError(f"{parts.place}: which topics? Write {parts.place}/topic/filter")
    shared = filtered.split("/")[:2] if filtered.startswith("$share/") else []
    levels = filtered.split("/")[len(shared) :]
    named: dict[str, int] = {}
    for number, level in enumerate(levels, 1):
        name = _NAMED.fullmatch(level)
        if name is None and ("{" in level or "}" in level):
            raise SourceError(f"{parts.place}: a level is named as a whole, as in taxis/{{taxi}}")
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
            f"{place}: in a topic filter + stands for one level and # for all that follow, "
            "each as a level of its own and # only at the end"
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


def _check_topic(outward: MqttSinkOptions, place: str) -> None:
    names = placeholders_in(outward.topic, place)
    plain = _NAMED.sub("", outward.topic)
    if any(sign in plain for sign in "+#{}\0") or plain.startswith("$"):
        raise SinkError(f"{place}: answers are published to a topic, without wildcards")
    if "consumer" not in names:
        # Without it nobody could say in the broker who may read what.
        raise SinkError(f"{place}: the topic needs {{consumer}}, as in {DEFAULT_TOPIC}")
    if "subject" in names and not outward.per_answer:
        raise SinkError(f"{place}: {{subject}} in a topic needs per=answer")
