"""Log in with OpenID Connect: the authorization code flow with PKCE.

The provider says who someone is; the settings say which role and name that person has here. A login
makes a token that lasts as long as a session, so it can be listed and revoked like every other.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final, Self

import yaml
from pydantic import ValidationError, field_validator

from tacit.config import Config
from tacit.errors import OptionError, TacitError
from tacit.service.roles import Role

ATTEMPT_SECONDS: Final = 600
"""How long someone may take to log in at the provider."""
_DISCOVERED_FOR: Final = 3600.0
_TIMEOUT: Final = 10.0
_LARGEST: Final = 1 << 20
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
"""Signatures with a provider's public key; never `none`, never a shared secret."""


class OpenIdError(TacitError):
    """The provider cannot be reached, or its response cannot be accepted."""


class UnknownPersonError(OpenIdError):
    """The provider knows someone who has no role here."""

    def __init__(self, value: str) -> None:
        self.value = value
        """Who that is: shown to themselves, and not logged."""
        super().__init__("you have no role here; ask the operator to add you")


class Person(Config):
    """The role and the name that someone has in the service."""

    role: Role
    name: str
    """The consumer or the subject, as the specification and the registry write it, or any name."""


class OpenIdSettings(Config):
    """A provider, and the people who may log in."""

    issuer: str
    """The provider's address, as in its tokens."""
    client_id: str
    """The name under which the provider knows this service."""
    client_secret_file: Path
    """A file with the secret that the provider gave to this service."""
    claim: str = "sub"
    """The claim that says who someone is, such as `sub` or `email`; an email must be verified."""
    people: dict[str, Person]
    """Role and name, by the value of the claim."""
    url: str | None = None
    """The address of this service, if it is behind a proxy: people come back to it."""

    @field_validator("issuer")
    @classmethod
    def _check_issuer(cls, value: str) -> str:
        check_address(value)
        return value

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the settings from a YAML file; raise OptionError if they are wrong."""
        try:
            plain = yaml.safe_load(path.read_text("utf-8"))
            found = cls.model_validate(plain)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise OptionError(f"{path} cannot be read as YAML") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            raise OptionError(f"{path}: {place}: {first['msg']}") from error
        secret = path.parent / found.client_secret_file
        if not secret.is_file():
            raise OptionError(f"{path}: client_secret_file: there is no file {secret}")
        return found.model_copy(update={"client_secret_file": secret})


def check_address(url: str) -> None:
    """Raise ValueError unless an address uses TLS, or is on this machine."""
    parts = urllib.parse.urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" and parts.hostname) and not local:
        raise ValueError(f"expected an address that begins with https://; got {url}")


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """What a browser keeps while someone logs in at the provider."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def start(cls) -> LoginAttempt:
        """Draw new random values."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))

    def to_cookie(self) -> str:
        """Return the value of a cookie."""
        return ".".join((self.state, self.nonce, self.verifier))

    @classmethod
    def from_cookie(cls, value: str) -> LoginAttempt | None:
        """Read the value of a cookie; None if it has another form."""
        parts = value.split(".")
        return cls(*parts) if len(parts) == 3 and all(parts) else None


@dataclass
class OpenIdLogin:
    """Logs people in at a provider. It is safe to share by threads."""

    settings: OpenIdSettings
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: tuple[float, dict[str, Any]] | None = None
    _keys: Any = None

    def begin(self, attempt: LoginAttempt, redirect: str) -> str:
        """Return the address at the provider to which the browser goes."""
        challenge = base64.urlsafe_b64encode(sha256(attempt.verifier.encode()).digest())
        scope = "openid email" if self.settings.claim.startswith("email") else "openid profile"
        fields = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect,
            "scope": scope,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        begin = self._discover()["authorization_endpoint"]
        return f"{begin}{'&' if '?' in begin else '?'}{urllib.parse.urlencode(fields)}"

    def finish(self, attempt: LoginAttempt, state: str, code: str, redirect: str) -> Person:
        """Return who logged in; raise OpenIdError if the provider does not confirm it."""
        if not hmac.compare_digest(attempt.state.encode(), state.encode()):
            raise OpenIdError("this login was begun in another browser or tab; log in again")
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": attempt.verifier,
        }
        client = urllib.parse.quote(self.settings.client_id, safe="")
        secret = urllib.parse.quote(self.settings.client_secret_file.read_text().strip(), safe="")
        basic = base64.b64encode(f"{client}:{secret}".encode()).decode()
        found = _fetch(
            self._discover()["token_endpoint"], fields, {"Authorization": f"Basic {basic}"}
        )
        claims = self._verify(str(found.get("id_token", "")), attempt.nonce)
        return self._find_person(claims)

    def _find_person(self, claims: Mapping[str, Any]) -> Person:
        claim = self.settings.claim
        value = claims.get(claim)
        if claim == "email" and claims.get("email_verified") is not True:
            raise OpenIdError(
                "the provider has not verified your email address; verify it there, and log in"
                " again"
            )
        if not isinstance(value, str):
            raise OpenIdError(f"the provider does not tell your {claim}; tell the operator")
        person = self.settings.people.get(value)
        if person is None:
            raise UnknownPersonError(value)
        return person

    def _verify(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token with a valid signature, for us, and for this login."""
        import jwt

        try:
            key = self._find_key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                audience=self.settings.client_id,
                issuer=self.settings.issuer,
                leeway=30,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise OpenIdError("the provider's ID token is not valid; log in again") from error
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise OpenIdError("the provider's ID token belongs to another login; log in again")
        return claims

    def _find_key(self, kid: str | None) -> Any:
        """Return the provider's key of this id; without an id, its only one."""
        keys = self._load_keys()
        if kid is not None:
            return keys.get_signing_key(kid)
        known = keys.get_signing_keys()
        if len(known) != 1:
            raise OpenIdError("the provider's ID token does not say which key signed it")
        return known[0]

    def _load_keys(self) -> Any:
        """Return the provider's keys; they are fetched again when they change."""
        import jwt

        uri = self._discover()["jwks_uri"]
        with self._lock:
            if self._keys is None or self._keys.uri != uri:
                self._keys = jwt.PyJWKClient(uri, cache_keys=True, timeout=int(_TIMEOUT))
            return self._keys

    def _discover(self) -> dict[str, Any]:
        """Return what the provider says about itself."""
        with self._lock:
            if self._found is not None and time.monotonic() < self._found[0] + _DISCOVERED_FOR:
                return self._found[1]
        issuer = self.settings.issuer
        found = _fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if found.get("issuer") != issuer or not all(isinstance(found.get(n), str) for n in needed):
            raise OpenIdError("the provider's configuration is incomplete, or of another issuer")
        try:
            for name in needed:
                check_address(found[name])
        except ValueError as error:
            raise OpenIdError("an address of the provider does not use TLS") from error
        with self._lock:
            self._found = time.monotonic(), found
        return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses to send a secret to another address."""

    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: HTTPMessage,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        """Follow nothing."""
        return


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _fetch(
    url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Send a request to the provider and return the JSON object of its response."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    accept = {"Accept": "application/json"}
    request = urllib.request.Request(url, data, {**accept, **(headers or {})})
    try:
        with _OPENER.open(request, timeout=_TIMEOUT) as response:
            found = json.loads(response.read(_LARGEST))
    except urllib.error.HTTPError as error:
        raise OpenIdError(f"the provider refused the login with status {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise OpenIdError("the provider cannot be reached; try again later") from error
    if not isinstance(found, dict):
        raise OpenIdError("the provider's response is not a JSON object")
    return found
