"""Render templates: always escaped, with the values that every page needs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tacit.quantities import count
from tacit.service.roles import Principal, Role
from tacit.service.sessions import derive_csrf, read_cookie

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
_ROLE_WORDS: Final = {
    Role.SOURCE: "sends tuples",
    Role.CONSUMER: "asks queries",
    Role.SUBJECT: "is protected",
    Role.OPERATOR: "runs the service",
}


def render(
    request: Request,
    template: str,
    principal: Principal | None = None,
    code: int = 200,
    **values: Any,
) -> HTMLResponse:
    """Render a page or a part of one."""
    cookie = read_cookie(request)
    page = _ENVIRONMENT.get_template(template).render(
        principal=principal,
        role_words=None if principal is None else _ROLE_WORDS[principal.role],
        csrf=derive_csrf(cookie) if cookie else "",
        path=request.url.path,
        **values,
    )
    return HTMLResponse(page, code)


def _format_time(moment: datetime | int | None, form: str = "%d %b %Y %H:%M") -> Markup:
    """Format a time in UTC; the script shows it in the reader's zone."""
    if moment is None:
        return Markup("-")
    if isinstance(moment, int):
        moment = datetime.fromtimestamp(moment / 1_000_000, UTC)
    iso = moment.isoformat().replace("+00:00", "Z")
    kind = "long" if "%S" not in form else "precise" if "%d" in form else "clock"
    shown = Markup('<time datetime="{}" data-form="{}">{} UTC</time>')
    return shown.format(iso, kind, moment.strftime(form))


def _format_number(value: float) -> str:
    """Format a count, or an amount of epsilon with few digits.

    >>> _format_number(12345), _format_number(2.5), _format_number(3.0)
    ('12,345', '2.5', '3')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def _format_rest(share: str) -> str:
    """Format what is left of 100.

    >>> _format_rest("74"), _format_rest("99.4")
    ('26', '0.6')
    """
    return str(100 - Decimal(share))


def _format_sentence(text: str) -> str:
    """Write a message as a sentence; a name at its beginning stays as it is.

    >>> _format_sentence("the name is taken; choose another"), _format_sentence("at_x is private.")
    ('The name is taken; choose another.', 'at_x is private.')
    """
    first = text.partition(" ")[0].rstrip(",:;")
    begin = text[:1].upper() if first.isalpha() else text[:1]
    return begin + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _format_share(value: float | None) -> str:
    """Format a quality, or a dash for none.

    >>> _format_share(0.934), _format_share(None)
    ('0.93', '-')
    """
    return "-" if value is None else f"{value:.2f}"


def _make_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": _format_time,
        "number": _format_number,
        "rest": _format_rest,
        "count": count,
        "share": _format_share,
        "sentence": _format_sentence,
    }
    content = b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))
    environment.globals |= {"stamp": sha256(content).hexdigest()[:12], "version": version("tacit")}
    return environment


_ENVIRONMENT: Final = _make_environment()
