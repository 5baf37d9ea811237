"""Secrets in addresses appear nowhere: in no name, message, finding, JSON or representation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.connectors.kafka.address import parse_source_url as read_kafka
from tacit.connectors.mqtt.address import parse_source_url as read_mqtt
from tacit.engines.setup import RunOptions
from tacit.errors import LedgerError, SourceError, TacitError
from tacit.insight.doctor import examine
from tacit.insight.findings import Findings
from tacit.ledger.database import Database
from tacit.ledger.ledger import Ledger
from tacit.masking import find_exposed, find_secrets, is_ambiguous, mask, scrub
from tests.cli.small_runs import tacit
from tests.services import Postgres

SPEC = Path(__file__).parent.parent / "examples" / "taxi.yaml"
SIGNS = "@:/?#&=%+ '\"\\[],;é\n"
word = st.text("0123456789abcdef", min_size=8, max_size=12).map(lambda text: "q" + text)
secret = st.tuples(word, st.sampled_from(["", *SIGNS]), word)
"""Two words with a sign in between that may mislead a parser; neither may ever be shown."""

PLACES = (
    "postgresql://tacit:{}@db.example/tacit",
    "postgresql://tacit:{}@/tacit?host=/tmp/socket",
    "postgres://tacit@db.example:5432/tacit?password={}",
    "postgresql://tacit@db/tacit?sslmode=require&sslpassword={}&application_name=x",
    "postgresql://tacit@db/tacit?scram_client_key={}",
    "postgresql://tacit@db/tacit?oauth_client_secret={}",
    "postgresql://tacit@db/tacit?Password={}",
    "mqtt://tacit:{}@broker/taxis/#?columns=ts:time",
    "mqtts://{}@broker/taxis/+",
    "gps=mqtt://tacit:{}@broker:1883/taxis/{{taxi}}",
    "kafka://tacit:{}@broker:9092/gps",
    "kafka://broker:9092/gps?group=a&sasl.password={}",
    "kafka://broker:9092/gps?ssl.key.password={}",
    "https://somewhere.example/data.csv?access_token={}",
    "https://somewhere.example/data.csv?X-Amz-Signature={}",
    "s3://bucket/data.csv?whatever={}",
    "--ledger=postgresql://tacit:{}@db/tacit",
)


@given(secret, st.sampled_from(PLACES), st.booleans())
def test_no_part_of_a_secret_is_shown_wherever_it_stands(
    parts: tuple[str, str, str], place: str, encoded: bool
) -> None:
    whole = "".join(parts)
    address = place.format(quote(whole, safe="") if encoded else whole)
    shown = mask(address)
    assert parts[0] not in shown
    assert parts[2] not in shown
    assert shown.startswith(address.partition("://")[0] + "://")


@given(secret, st.sampled_from(PLACES[:6]), st.booleans())
def test_a_message_that_quotes_a_secret_is_scrubbed(
    parts: tuple[str, str, str], place: str, encoded: bool
) -> None:
    whole = "".join(parts)
    address = place.format(quote(whole, safe="") if encoded else whole)
    quoted = [whole, repr(whole), quote(whole, safe=""), address, address.replace("//", "/")]
    for text in quoted if encoded or parts[1] not in "%+&=" else quoted[3:]:
        message = scrub(f"could not connect with {text} to db", address)
        assert parts[0] not in message, address
        assert parts[2] not in message, address


@given(secret)
def test_what_can_be_read_in_two_ways_is_refused_by_a_ledger(parts: tuple[str, str, str]) -> None:
    address = "postgresql://tacit:{}@db/tacit".format("".join(parts))
    assert is_ambiguous(address) == (parts[1] in ("@", "/", "?"))
    if is_ambiguous(address):
        with pytest.raises(LedgerError, match="read in two ways") as caught:
            Database(address)
        assert parts[0] not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "taxi.ledger",
        "-",
        "passengers=trips.csv",
        "postgresql://tacit@/tacit?host=/tmp/socket",
        "postgresql://tacit@db.example:5432/tacit?sslmode=require",
        "mqtt://broker/taxis/#?columns=ts:time,speed:number&password_file=secret",
        "kafka://a:9092,b:9092/gps?group=taxis&config=client.properties",
        "postgresql://[::1]:5432/tacit",
    ],
)
def test_an_address_without_a_secret_is_shown_as_it_is(address: str) -> None:
    assert mask(address) == address
    assert find_secrets(address) == []
    assert find_exposed([address]) == []


def test_a_short_secret_does_not_garble_a_message() -> None:
    address = "postgresql://tacit:a@db/tacit"
    assert scrub("a database that has no table", address) == "*** database that has no table"


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("postgresql://tacit:hunter2@db/tacit", "PGPASSFILE"),
        ("postgresql://tacit@db/tacit?sslpassword=hunter2", "PGSERVICEFILE"),
        ("mqtt://tacit:hunter2@broker/taxis", "TACIT_MQTT_PASSWORD"),
        ("kafka://tacit:hunter2@broker/taxis", "TACIT_KAFKA_PASSWORD"),
    ],
)
def test_a_secret_on_a_command_line_is_pointed_out_with_what_to_use(
    address: str, advice: str
) -> None:
    (warning,) = find_exposed(["run", address])
    assert "hunter2" not in warning
    assert "list of processes" in warning
    assert advice in warning


def test_representations_and_names_hold_no_secret(url: str) -> None:
    place = f"{url}&password=hunter2"
    with Ledger.open(place) as ledger:
        assert "hunter2" not in repr(ledger) + ledger.name
        assert ledger.name == f"{url}&password=***"
    setup = RunOptions(
        SPEC, [(None, "mqtt://u:hunter2@h/t")], ledger=place, to="mqtt://u:hunter2@h"
    )
    assert "hunter2" not in repr(setup) + repr(Findings([place]))
    assert "hunter2" not in repr(examine(setup))


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url


def test_a_connection_string_is_not_taken_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerError, match="connection string") as caught:
        Ledger.open("host=db user=tacit password=hunter2")
    assert "hunter2" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_brokers_refuse_passwords_in_urls_without_repeating_them() -> None:
    for read, scheme in ((read_mqtt, "mqtt"), (read_kafka, "kafka")):
        for login in ("user:hunter2", "user:hunter2@more"):
            with pytest.raises(SourceError, match="password") as caught:
                read(f"{scheme}://{login}@host/topic")
            assert "hunter2" not in str(caught.value)


def test_kafka_takes_its_passwords_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=tacit\nssl.key.location=key.pem\n")
    monkeypatch.setenv("TACIT_KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("TACIT_KAFKA_KEY_PASSWORD", "hunter3")
    address, _ = read_kafka(f"kafka://host/topic?config={file}")
    assert address.settings["sasl.password"] == "hunter2"
    assert address.settings["ssl.key.password"] == "hunter3"
    assert "hunter" not in repr(address)
    assert address.scrub("cannot use hunter3 as a key") == "cannot use *** as a key"
    assert read_kafka("kafka://host/topic")[0].settings == {}


SECRET = "hunter2-correct-horse"
UNREACHABLE = f"postgresql://tacit:{SECRET}@127.0.0.1:1/tacit?sslpassword={SECRET}x"
MISREAD = f"postgresql://tacit:{SECRET}/@127.0.0.1:1/tacit"
COMMANDS = (
    ("ledger", "show", "{real}", "--json"),
    ("ledger", "show", UNREACHABLE),
    ("ledger", "verify", "{real}", "--json"),
    ("ledger", "verify", MISREAD),
    ("ledger", "verify", UNREACHABLE, "--anchor", "1"),
    ("ledger", "export", UNREACHABLE, "--to", "-"),
    ("ledger", UNREACHABLE),
    ("ledger", "show", "taxi.ledger", UNREACHABLE),
    ("ledger", "show", f"host=db password={SECRET}"),
    ("validate", UNREACHABLE),
    ("validate", str(SPEC), f"--passwrod={SECRET}", UNREACHABLE),
    (
        "doctor",
        str(SPEC),
        f"mqtt://tacit:{SECRET}@127.0.0.1:1/t",
        "--ledger",
        UNREACHABLE,
        "--json",
    ),
    ("doctor", str(SPEC), "--ledger", "{real}", "--to", f"kafka://u:{SECRET}@h/t"),
    ("run", str(SPEC), f"mqtt://tacit:{SECRET}@127.0.0.1:1/t", "--ledger", "x.db"),
    ("run", str(SPEC), f"kafka://h:1/t?sasl.password={SECRET}", "--ledger", "x.db"),
    ("run", str(SPEC), "none.csv", "--mechanism", "uniform", "--ledger", UNREACHABLE + "&x=1"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(one[:2])[:20] for one in COMMANDS])
def test_no_command_shows_a_secret(
    command: tuple[str, ...], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(url):
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    real = f"{url}&password={SECRET}&sslpassword={SECRET}"
    done = tacit(*(part.replace("{real}", real) for part in command))
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert SECRET not in done.stdout + done.stderr
    assert "list of processes" in done.stderr
    assert all(SECRET not in path.name for path in tmp_path.iterdir())
    if "{real}" in command and command[0] == "ledger":
        assert done.exit_code == 0, done.output


def test_a_process_that_fails_shows_no_secret_either(tmp_path: Path) -> None:
    """Neither do libraries that write to standard error themselves, nor its end."""
    done = subprocess.run(
        [sys.executable, "-m", "tacit", *COMMANDS[-1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PGCONNECT_TIMEOUT": "2"},
    )
    said = done.stdout + done.stderr
    assert done.returncode
    assert SECRET not in said
    assert "Traceback" not in said
    assert "list of processes" in done.stderr


def test_errors_of_a_real_server_are_explained_without_the_secret(postgres: Postgres) -> None:
    place = (
        postgres.url.replace("/postgres?", "/nowhere?") + f"&password={SECRET}&nonsense={SECRET}"
    )
    with pytest.raises(TacitError) as caught:
        Ledger.open(place)
    assert SECRET not in str(caught.value)
