"""`tacit token`: create, list and revoke tokens of the service."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any

import click

from tacit.cli import options
from tacit.pipeline.times import format_time

if TYPE_CHECKING:
    from tacit.service.tokens import TokenRecord

_ROLES = ("source", "consumer", "subject", "operator")


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the service.

    A LEDGER is a file, or postgresql://USER@HOST/DATABASE. It stores only hashes of tokens. You can
    use these commands while the service runs; they take effect at once.

    \b
    Examples:
      tacit token create taxi.ledger --role consumer --name city --expires "90 d"
      tacit token list taxi.ledger
      tacit token revoke taxi.ledger 3f29c1d0a7be
    """


@token.command("create")
@options.ledger_place
@click.option("--role", type=click.Choice(_ROLES), required=True, help="What the token allows.")
@click.option("--name", metavar="NAME", required=True,
              help="The consumer, the subject, the producer, or the operator.")  # fmt: skip
@click.option("--stream", "streams", metavar="STREAM", multiple=True,
              help="For a source: it may send to this stream only. Repeatable.")  # fmt: skip
@click.option("--expires", metavar="DURATION", help="The token expires after this time.")
@click.option("--note", metavar="TEXT", default="", help="What the token is for.")
@options.as_json("Print the token and its fields as JSON.")
def create_token(
    place: str,
    role: str,
    name: str,
    streams: tuple[str, ...],
    expires: str | None,
    note: str,
    as_json: bool,
) -> None:
    """Create a token and print it.

    It is printed only now: the ledger stores its hash. The ledger is created if there is none.

    \b
    Example:
      tacit token create taxi.ledger --role subject --name 4711
    """
    from tacit.durations import parse_duration
    from tacit.ledger.database import now
    from tacit.ledger.ledger import Ledger
    from tacit.service.roles import Role
    from tacit.service.tokens import Tokens

    try:
        until = None if expires is None else now() + parse_duration(expires)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from error
    with Ledger.open(place) as ledger:
        text, record = Tokens(ledger.database).create(
            Role(role), name, creator=_user(), streams=streams, note=note, expires=until
        )
    click.echo(json.dumps({"token": text, **_to_dict(record)}, indent=2) if as_json else text)


@token.command("list")
@options.ledger_place
@options.as_json("Print the tokens as JSON.")
def list_tokens(place: str, as_json: bool) -> None:
    """List all tokens, without their secrets.

    \b
    Example:
      tacit token list taxi.ledger
    """
    from tacit.ledger.ledger import Ledger
    from tacit.service.tokens import Tokens

    with Ledger.open(place, create=False) as ledger:
        found = Tokens(ledger.database).list_all()
    if as_json:
        click.echo(json.dumps([_to_dict(record) for record in found], indent=2))
        return
    if not found:
        click.echo("There are no tokens; tacit token create makes one.")
    for record in found:
        fields = _to_dict(record)
        until = "" if record.expires is None else f", until {fields['expires']}"
        note = f" ({record.note})" if record.note else ""
        click.echo(f"{record.id}  {fields['state']:<8} {record.role} {record.name}{until}{note}")


@token.command("revoke")
@options.ledger_place
@click.argument("identity", metavar="ID")
def revoke_token(place: str, identity: str) -> None:
    """Revoke the token with this id, from now on.

    \b
    Example:
      tacit token revoke taxi.ledger 3f29c1d0a7be
    """
    from tacit.ledger.ledger import Ledger
    from tacit.service.tokens import Tokens

    with Ledger.open(place, create=False) as ledger:
        record = Tokens(ledger.database).revoke(identity, actor=_user())
    click.echo(f"Revoked {record.id}: {record.role} {record.name}")


def _user() -> str:
    try:
        return f"command line, {getpass.getuser()}"
    except (KeyError, OSError):
        return "command line"


def _to_dict(record: TokenRecord) -> dict[str, Any]:
    from tacit.ledger.database import now

    return {
        "id": record.id,
        "state": record.state(now()),
        "role": str(record.role),
        "name": record.name,
        "streams": list(record.streams),
        "note": record.note,
        "created": format_time(record.created),
        "creator": record.creator,
        "expires": None if record.expires is None else format_time(record.expires),
        "revoked": None if record.revoked is None else format_time(record.revoked),
    }
