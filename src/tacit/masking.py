"""Secrets in addresses: mask them, and remove them from messages of libraries.

All code that shows an address uses `mask`; all code that repeats messages of a library or the
command line uses `scrub`. Both hide too much rather than too little: of a URL's query only options
that are known to be harmless are shown, and an ambiguous address is not shown at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, unquote_plus

HIDDEN: Final = "***"
"""The replacement for a secret."""
_SECRET_VARIABLE = re.compile(r"PGPASSWORD|TACIT_\w*PASSWORD")
"""The endings of environment variables that contain secrets, for all connectors."""

_START = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@,/?#\s]*)(?::[0-9]{0,5})?"
_AUTHORITY = re.compile(
    rf"(?:(?P<user>[^:@]*)(?P<password>:[^@]*)?@)?(?P<hosts>{_HOST}(?:,{_HOST})*)", re.DOTALL
)
_PIECE = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)=(?P<value>[^@]*)", re.DOTALL)
_SECRET_NAME = re.compile(
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|signature|jaas\.config|key\.pem"
    r"|(?:secret|api|access|private|client|server)[._-]?key)$",
    re.IGNORECASE,
)
_PAIR = re.compile(r"([A-Za-z0-9_.-]+)(\s*=\s*)('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s&;]+)")
_HARMLESS: Final = frozenset(
    [
        "application_name",
        "ca",
        "cert",
        "channel_binding",
        "columns",
        "config",
        "connect_timeout",
        "dbname",
        "from",
        "group",
        "host",
        "hostaddr",
        "keepalive",
        "largest",
        "passfile",
        "password_file",
        "payload",
        "per",
        "port",
        "qos",
        "receive",
        "retain",
        "sample",
        "service",
        "servicefile",
        "session",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "subject",
        "target_session_attrs",
        "user",
    ]
)
"""Options of URLs whose values may be shown."""
_SHORT: Final = 6
"""A secret shorter than this is removed from a message only as a whole word."""


@dataclass(frozen=True, slots=True)
class _UrlParts:
    """A URL in parts. `clear` is false if the URL is ambiguous."""

    scheme: str
    rest: str
    clear: bool
    user: str | None = None
    password: str | None = None
    hosts: str = ""
    path: str = ""
    query: Sequence[tuple[str, str]] = ()


def mask(address: str) -> str:
    """Replace the secrets in an address.

    >>> mask("postgresql://tacit:hunter2@db/tacit?sslmode=require&sslpassword=hunter3")
    'postgresql://tacit:***@db/tacit?sslmode=require&sslpassword=***'
    >>> mask("postgresql://tacit:hunter@2@db/tacit")
    'postgresql://***'
    >>> mask("taxi.ledger")
    'taxi.ledger'
    """
    found = _START.search(address)
    if found is None:
        return _PAIR.sub(_hide_pair, address)
    parts = _split(address[found.start() :])
    before = address[: found.start()]
    if not parts.clear:
        return f"{before}{parts.scheme}://{HIDDEN}"
    user = parts.user
    if user and not parts.scheme.startswith("postgres"):
        user = HIDDEN  # with some brokers the user name is a token
    hidden = "" if parts.password is None else f":{HIDDEN}"
    login = "" if user is None else f"{user}{hidden}@"
    query = "&".join(
        f"{name}={value if _is_harmless(name) else HIDDEN}" for name, value in parts.query
    )
    shown = f"{before}{parts.scheme}://{login}{parts.hosts}{parts.path}"
    return f"{shown}?{query}" if query else shown


def is_ambiguous(address: str) -> bool:
    """Return whether a URL is ambiguous: signs such as @ or / in a password must be encoded.

    >>> is_ambiguous("postgresql://tacit:a/b@db/tacit"), is_ambiguous("postgresql://t:a%2Fb@db/t")
    (True, False)
    """
    found = _START.search(address)
    return found is not None and not _split(address[found.start() :]).clear


def find_secrets(text: str) -> list[str]:
    """Return every secret in an argument of a command, as written and decoded."""
    found = _START.search(text)
    if found is None:
        pairs = (pair for pair in _PAIR.finditer(text) if _SECRET_NAME.search(pair[1]))
        secrets = [pair[3] for pair in pairs]
        secrets += [secret[1:-1] for secret in secrets if secret[0] in "'\""]
    else:
        secrets = list(_secrets(_split(text[found.start() :])))
    decoded = [decode(one) for one in secrets for decode in (unquote, unquote_plus)]
    return list(dict.fromkeys(filter(None, [*secrets, *decoded])))


def scrub(message: str, *given: str, secrets: Iterable[str] = ()) -> str:
    """Remove the secrets of these addresses, of the environment and in `secrets` from a message.

    >>> scrub("no route to hunter2's host", "postgresql://tacit:hunter2@db/tacit")
    "no route to ***'s host"
    """
    known = [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    known += [secret for text in given for secret in find_secrets(text)]
    known += secrets
    written = {form for secret in known if secret for form in _forms(secret)}
    for form in sorted(written, key=len, reverse=True):
        pattern = re.escape(form)
        if len(form) < _SHORT:
            pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
        message = re.sub(pattern, HIDDEN, message)
    return message


def find_exposed(arguments: Iterable[str]) -> list[str]:
    """Return the command-line arguments with secrets, masked, and what to use instead."""
    return [
        f"{mask(text)} has a secret in it, which every user of this machine can read in the list"
        f" of processes. {_suggest_safe(text)}"
        for text in arguments
        if find_secrets(text)
    ]


def _suggest_safe(text: str) -> str:
    found = _START.search(text)
    scheme = "" if found is None else found[0].removesuffix("://").lower()
    if scheme.startswith("postgres"):
        return (
            "Put the password into ~/.pgpass, a file that PGPASSFILE names, or PGPASSWORD;"
            " sslpassword into a service file (PGSERVICEFILE), named by ?service=NAME"
        )
    if scheme in ("mqtt", "mqtts"):
        return "Put the password into TACIT_MQTT_PASSWORD, or into a file: password_file=FILE"
    if scheme == "kafka":
        return "Put the password into TACIT_KAFKA_PASSWORD, or into a file of settings: config=FILE"
    return "Put it into a file or an environment variable"


def _split(url: str) -> _UrlParts:
    scheme, _, rest = url.partition("://")
    head, mark, query = rest.partition("?")
    authority, slash, path = head.partition("/")
    found = _AUTHORITY.fullmatch(authority)
    pieces = [_PIECE.fullmatch(piece) for piece in query.split("&") if piece] if mark else []
    if found is None or None in pieces or "@" in path:
        return _UrlParts(scheme, rest, clear=False)
    password = found["password"]
    return _UrlParts(
        scheme,
        rest,
        True,
        found["user"],
        None if password is None else password[1:],
        found["hosts"],
        slash + path,
        [(piece["name"], piece["value"]) for piece in pieces if piece is not None],
    )


def _secrets(parts: _UrlParts) -> Iterator[str]:
    if not parts.clear:
        yield parts.rest
        yield from re.split(r"[/@?:&=#]+", parts.rest)
        return
    if parts.password is not None:
        yield parts.password
    if parts.user and not parts.scheme.startswith("postgres") and parts.password is not None:
        yield parts.user
    yield from (value for name, value in parts.query if _SECRET_NAME.search(name))


def _is_harmless(name: str) -> bool:
    return name.lower() in _HARMLESS


def _hide_pair(pair: re.Match[str]) -> str:
    return f"{pair[1]}{pair[2]}{HIDDEN}" if _SECRET_NAME.search(pair[1]) else pair[0]


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in a message: plain, or escaped by Python, JSON or a URL."""
    yield from (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe=""))
