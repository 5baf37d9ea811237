"""URLs of MQTT brokers are understood as written, and never carry a password."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.connectors.files import open_source
from tacit.connectors.mqtt.address import DEFAULT_TOPIC, PASSWORD, parse_sink_url, parse_source_url
from tacit.connectors.mqtt.answer_messages import format_topic
from tacit.connectors.openers import open_resumable_sink
from tacit.errors import SinkError, SourceError

COLUMNS = "columns=ts:time,speed:number"


def test_a_url_says_broker_user_topics_and_options(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("swordfish\n")
    address, options = parse_source_url(
        f"mqtt://al%40ice@broker.example:1884/taxis/+/gps/#?payload=cbor&subject=topic:2&{COLUMNS}"
        f"&qos=0&client=me&receive=100&session=2 d&largest=5000&keepalive=1 min"
        f"&password_file={tmp_path}/secret"
    )
    assert (address.host, address.port, address.client) == ("broker.example", 1884, "me")
    assert (address.user, address.password, address.keepalive) == ("al@ice", "swordfish", 60)
    assert options.topics == "taxis/+/gps/#"
    assert (options.payload, options.levels, options.subject) == ("cbor", {"subject": 2}, None)
    assert options.columns == {"ts": "time", "speed": "number"}
    assert (options.qos, options.receive, options.session) == (0, 100, 2 * 86_400)
    assert options.largest == 5000


def test_what_is_not_said_has_defaults() -> None:
    address, options = parse_source_url("mqtt://host/a")
    assert (address.place, address.user, address.tls) == ("mqtt://host:1883", None, None)
    assert (options.qos, options.receive, options.payload) == (1, 65_535, "json")
    again, _ = parse_source_url("mqtt://host/a")
    other, _ = parse_source_url("mqtt://host/b")
    assert address.client == again.client != other.client
    secure, sink = parse_sink_url("mqtts://[::1]")
    assert (secure.place, secure.tls is not None) == ("mqtts://[::1]:8883", True)
    assert (sink.topic, sink.per_answer, sink.retain) == (DEFAULT_TOPIC, False, False)


def test_levels_can_be_named_and_a_shared_group_is_none_of_them() -> None:
    _, options = parse_source_url("mqtt://host/$share/group/city/{taxi}/{what}?subject=topic:2")
    assert options.topics == "$share/group/city/+/+"
    assert options.levels == {"taxi": 2, "what": 3, "subject": 2}


def test_the_password_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "swordfish")
    assert parse_source_url("mqtt://alice@host/a")[0].password == "swordfish"
    assert parse_source_url("mqtt://host/a")[0].password is None


def test_a_password_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "swordfish")
    address, options = parse_source_url(f"mqtt://alice@host/a?{COLUMNS}")
    source = open_source(f"mqtt://alice@host/a?{COLUMNS}")
    shown = f"{address} {options} {source} {source.name} {vars(source)}"
    assert "swordfish" not in shown
    assert "alice" not in source.name


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_a_password_in_a_url_is_refused_and_not_repeated(scheme: str) -> None:
    for read in (open_source, open_resumable_sink):
        with pytest.raises((SourceError, SinkError), match="must not contain a password") as caught:
            read(f"{scheme}://alice:swordfish@host/a/{{consumer}}")
        assert "swordfish" not in str(caught.value)
        assert PASSWORD in str(caught.value)
    with pytest.raises(SourceError) as caught:
        open_source(f"{scheme}://alice:sword@fish@host/a")
    assert "fish" not in str(caught.value)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("host", "the topics are missing"),
        ("host/a?payloat=json", "Did you mean 'payload'"),
        ("host/a?payload=xml", "json or cbor"),
        ("host/a?qos=2", "between 0 and 1"),
        ("host/a?receive=0", "between 1 and 65535"),
        ("host/a?session=7", "with its unit"),
        ("host/a?columns=x", "name:type"),
        ("host/a?columns=x:text&sample=y", "not both"),
        ("host/a?subject=topic:0", "from 1"),
        ("host/a/b?subject=topic:3", "have 2 levels"),
        ("host/a?qos=1&qos=0", "twice"),
        ("host/a+/b", "must be a whole level"),
        ("host/#/b", "the last one"),
        ("host/$share/g", "shared subscription"),
        ("host/{a}/{a}", "two columns"),
        ("host/x{a}", "contain a whole level"),
        ("host:99999/a", "a port"),
        ("host/a?ca=x", "for mqtts"),
        ("host/a?password_file=x", "cannot be read"),
        ("ho st:x/a", "expected a URL"),
    ],
)
def test_a_mistake_in_a_url_says_what_is_expected(rest: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(f"mqtt://{rest}")


def test_certificates_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="certificates cannot be read"):
        open_source(f"mqtts://host/a?ca={tmp_path}/none.pem")
    with pytest.raises(SourceError, match="cert="):
        open_source(f"mqtts://host/a?key={tmp_path}/none.pem")


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("a/{query}", "needs {consumer}"),
        ("a/{consumer}/{qery}", "Did you mean 'query'"),
        ("a/{consumer}/+", "without wildcards"),
        ("a/{consumer}/{subject}", "needs per=answer"),
        ("$SYS/{consumer}", "without wildcards"),
        ("a/{consumer}?per=subject", "window or answer"),
        ("a/{consumer}?retain=yes", "false or true"),
        ("a/{consumer}?qos=1", "no option"),
    ],
)
def test_a_mistake_in_a_sinks_url_says_what_is_expected(rest: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        open_resumable_sink(f"mqtt://host/{rest}")


def test_no_name_reaches_beyond_its_level_of_a_topic() -> None:
    names = {"consumer": "a/b", "query": "+#\0%", "subject": "$x ü"}
    assert format_topic("t/{consumer}/{query}/{subject}", names) == "t/a%2Fb/%2B%23%00%25/%24x ü"


def test_addresses_are_frozen() -> None:
    address, _ = parse_source_url("mqtt://host/a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        address.password = "x"  # type: ignore[misc]


def test_without_the_extra_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['paho'] = None\n"
        "from tacit.connectors.files import open_source\n"
        "from tacit.errors import MissingExtraError\n"
        "try: open_source('mqtt://host/a')\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'tacit[mqtt]'" in done.stdout
