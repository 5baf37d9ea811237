"""`tacit doctor`: every part of a set-up, when it is right and when it is not."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tacit.cli.sources import split_streams
from tacit.engines.setup import RunOptions
from tacit.insight import environment
from tacit.insight.doctor import doctor, examine
from tacit.insight.environment import is_remote
from tacit.insight.findings import Findings
from tacit.ledger import overview as glancing
from tacit.ledger.ledger import Ledger
from tacit.ledger.overview import read_overview
from tests.cli.small_runs import SPEC, tacit, tuples
from tests.connectors.kafka_ends import KafkaFeed, config
from tests.services import Kafka, Mosquitto, Postgres, free_port

__all__ = ["config"]  # a fixture

LIMITED = SPEC.replace("epsilon: 2", "epsilon: 2, limit: 200 per day, spend: every")
REGISTERED = "subjects: [u0, u1, u2]\n"
COLUMNS = "columns=at:time,kind:text"


@pytest.fixture(autouse=True)
def closed_doors() -> Iterator[None]:
    """New files are closed to others, as in a good set-up."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A specification in a file, with a limit."""
    return written(tmp_path, LIMITED)


def written(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """Tuples in a file."""
    return tuples(tmp_path / "sent.csv", seed=2, windows=12)


@pytest.fixture
def whole(spec: Path, sent: Path, tmp_path: Path) -> RunOptions:
    """A set-up with everything, after a first run."""
    plan, ledger, out = (tmp_path / name for name in ("plan.json", "l.db", "answers.jsonl"))
    history = tuples(tmp_path / "history.csv", seed=1)
    for command in (
        ("plan", spec, "--history", history, "-o", plan),
        ("run", spec, sent, "--plan", plan, "--ledger", ledger, "--to", out),
    ):
        done = tacit(*command)
        assert done.exit_code == 0, done.output
    return a_run(spec, [str(sent)], plan, ledger=str(ledger), to=str(out))


def a_run(
    spec: Path, sources: Sequence[str] = (), plan: Path | None = None, **options: Any
) -> RunOptions:
    """A run with sources as the command line has them."""
    return RunOptions(spec, split_streams(sources), plan, **options)


def told(findings: Findings, about: str) -> list[tuple[str, str]]:
    return [(one.grade, one.says) for one in findings.all if one.about == about]


def only(findings: Findings, about: str, grade: str) -> str:
    """What is said about something; there is one finding, of this grade."""
    ((found, says),) = told(findings, about)
    assert found == grade, says
    return says


def changed(setup: RunOptions, **fields: Any) -> RunOptions:
    return replace(setup, **fields)


def test_a_good_set_up_passes_and_is_left_as_it_was(whole: Any) -> None:
    before = Path(whole.ledger).read_bytes()
    found = examine(whole)
    assert found.passed, str(found)
    assert [one.about for one in found.all] == [
        "specification", "extras", "plan", "source", "ledger", "sink", "run", "memory", "registry",
        "disk", "clock", "permissions",
    ]  # fmt: skip
    assert {one.grade for one in found.all} == {"ok"}
    assert str(found).endswith("\n\nAll is well.")
    assert Path(whole.ledger).read_bytes() == before
    assert "1 release" in only(found, "ledger", "ok") or "releases" in only(found, "ledger", "ok")
    assert "'spec' resumes" in only(found, "run", "ok")


def test_the_command_says_the_same_and_ends_accordingly(whole: Any, tmp_path: Path) -> None:
    given = [
        whole.spec,
        *(source for _, source in whole.sources),
        "--plan",
        whole.plan,
        "--ledger",
        whole.ledger,
        "--to",
    ]
    good = tacit("doctor", *given, whole.to)
    assert good.exit_code == 0, good.output
    assert "All is well." in good.stdout
    bad = tacit("doctor", *given, tmp_path / "nowhere/x.jsonl", "--json")
    assert bad.exit_code == 1
    report = json.loads(bad.stdout)
    assert (report["passed"], report["wrong"], report["warnings"]) == (False, 1, 0)
    (wrong,) = [one for one in report["findings"] if one["grade"] == "wrong"]
    assert wrong["about"] == "sink"
    assert "its folder does not exist" in wrong["says"]


def test_text_is_wrapped_and_says_how_many_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a path is not wrapped, and this one may be long
    text = str(examine(a_run(Path(written(tmp_path, SPEC).name), to="x.xyz")))
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[-1] == "2 wrong, 1 warning."


# The specification


def test_every_mistake_is_told_and_the_rest_is_looked_at_all_the_same(tmp_path: Path) -> None:
    spec = written(tmp_path, SPEC.replace("epsilon: 2", "epsilon: -2").replace("OR(a", "OR(aa"))
    found = examine(a_run(spec, ("nope.csv",), ledger=str(tmp_path / "l.db"), to="-"))
    assert len(told(found, "specification")) == 2
    assert all("spec.yaml:" in says for _, says in told(found, "specification"))
    assert "does not exist" in only(found, "source", "wrong")
    only(found, "ledger", "ok")
    only(found, "sink", "ok")


def test_a_limit_needs_a_ledger(spec: Path) -> None:
    found = examine(a_run(spec))
    assert ("wrong", "visit has a limit (200 per day), which only a ledger can enforce: set one"
            " with ledger=, or use ledger=False") in told(found, "ledger")  # fmt: skip


def test_a_specification_that_asks_or_hides_nothing_is_worth_a_word(tmp_path: Path) -> None:
    text = SPEC.partition("private:")[0]
    found = examine(a_run(written(tmp_path, text)))
    assert [grade for grade, _ in told(found, "specification")] == ["ok", "warning", "warning"]


# The plan


def test_a_plan_for_another_specification_is_wrong(whole: Any) -> None:
    whole.spec.write_text(LIMITED.replace("epsilon: 2", "epsilon: 1"))
    assert "another specification" in only(examine(whole), "plan", "wrong")


def test_a_plan_that_gives_away_too_much_is_wrong(whole: Any) -> None:
    plain = json.loads(whole.plan.read_text())
    for table in plain["schemes"][0]["components"][0]["tables"]:
        total = sum(int(entry) for entry in table[0])
        for row in table:
            row[:] = ["0"] * (len(row) - 1) + [str(total)]
        table[0][:] = [str(total)] + ["0"] * (len(table[0]) - 1)
    whole.plan.write_text(json.dumps(plain))
    only(examine(whole), "plan", "wrong")


def test_a_plan_is_needed_unless_the_mechanism_does_without(tmp_path: Path) -> None:
    assert "needs history" in only(examine(a_run(written(tmp_path, SPEC))), "plan", "wrong")
    uniform = written(tmp_path, SPEC + "mechanism: uniform\n")
    assert only(examine(a_run(uniform)), "plan", "ok") == "none is needed: uniform does without"
    public = written(tmp_path, SPEC.partition("private:")[0])
    assert only(examine(a_run(public)), "plan", "ok") == "none is needed: nothing is private"


# The registry


def test_a_registry_is_counted(tmp_path: Path) -> None:
    found = examine(a_run(written(tmp_path, SPEC + REGISTERED)))
    assert only(found, "registry", "ok") == "3 subjects"
    names = tmp_path / "names.txt"
    names.write_text("u0\nu1\n")
    found = examine(a_run(written(tmp_path, SPEC), subjects=names))
    assert only(found, "registry", "ok") == "2 subjects"


@pytest.mark.parametrize("content", ["", None])
def test_a_registry_that_cannot_be_read_is_wrong(tmp_path: Path, content: str | None) -> None:
    names = tmp_path / "names.txt"
    if content is not None:
        names.write_text(content)
    only(examine(a_run(written(tmp_path, SPEC), subjects=names)), "registry", "wrong")


def test_somebody_who_is_named_and_not_registered_is_found(tmp_path: Path) -> None:
    text = SPEC.replace("epsilon: 2", "epsilon: 2, subjects: [u7, u0]")
    names = tmp_path / "names.txt"
    names.write_text("u0\nu1\n")
    found = examine(a_run(written(tmp_path, text), subjects=names))
    assert "does not have: 'u7'" in only(found, "registry", "wrong")


# Sources


def test_a_source_must_have_the_columns(tmp_path: Path) -> None:
    (tmp_path / "sent.csv").write_text("who,at\nu1,2026-01-01T00:00:00Z\n")
    found = examine(a_run(written(tmp_path, SPEC), (str(tmp_path / "sent.csv"),)))
    assert "no column 'kind'" in only(found, "source", "wrong")


def test_an_empty_source_beside_another_and_standard_input_are_no_mistake(
    tmp_path: Path, sent: Path
) -> None:
    (tmp_path / "empty.csv").write_text("")
    spec = written(tmp_path, SPEC)
    found = examine(a_run(spec, (str(tmp_path / "empty.csv"), str(sent))))
    assert [grade for grade, _ in told(found, "source")] == ["warning", "ok"]
    assert told(found, "source")[0][1].endswith("empty.csv is empty")
    assert "standard input" in only(examine(a_run(spec, ("-",))), "source", "ok")


def test_every_stream_needs_a_source(tmp_path: Path, sent: Path) -> None:
    text = SPEC.replace("streams: {", "streams: {t: {subject: who, time: at}, ")
    spec = written(tmp_path, text)
    found = examine(a_run(spec, (f"s={sent}",)))
    assert told(found, "source")[0] == ("wrong", "no source is given for t; write t= for it")
    assert told(found, "source")[1][0] == "ok"
    found = examine(a_run(spec, (f"s={sent}", f"u={sent}", f"t={sent}")))
    assert [grade for grade, _ in told(found, "source")] == ["wrong", "ok", "ok"]


def test_files_do_not_go_by_the_clock(tmp_path: Path, sent: Path) -> None:
    spec = written(tmp_path, SPEC.replace("1 min}", "1 min, close: clock}"))
    found = examine(a_run(spec, (str(sent),), ledger=str(tmp_path / "l.db")))
    assert "close by the clock" in told(found, "source")[0][1]
    assert [grade for grade, _ in told(examine(a_run(spec, (str(sent),))), "source")] == ["ok"]


# Brokers


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker with a password, where anna may subscribe to taxis/# and to nothing else."""
    found = sorted(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"))
    if not found:
        pytest.skip("this Mosquitto cannot refuse subscriptions")
    folder = tmp_path_factory.mktemp("mosquitto")
    rights = folder / "rights.json"
    rights.write_text(json.dumps(_rights("anna", "secret", "taxis/#")))
    settings = ("allow_anonymous false", f"plugin {found[0]}", f"plugin_opt_config_file {rights}")
    with Mosquitto(folder, settings) as running:
        yield running


def _rights(user: str, password: str, topics: str) -> dict[str, Any]:
    """What Mosquitto's plugin for rights keeps."""
    salt = b"twelve bytes"
    hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    known = {
        "username": user,
        "password": base64.b64encode(hashed).decode(),
        "salt": base64.b64encode(salt).decode(),
        "iterations": 101,
        "roles": [{"rolename": "reader"}],
    }
    reading = {"acltype": "subscribePattern", "topic": topics, "allow": True}
    return {
        "defaultACLAccess": {"subscribe": False},
        "clients": [known],
        "roles": [{"rolename": "reader", "acls": [reading]}],
    }


def test_a_broker_is_asked_whether_it_lets_us_in(
    tmp_path: Path, broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = written(tmp_path, SPEC)
    place = f"mqtt://anna@127.0.0.1:{broker.port}"
    source = f"{place}/taxis/{{who}}?{COLUMNS}"
    monkeypatch.setenv("TACIT_MQTT_PASSWORD", "secret")
    found = examine(
        a_run(spec, (source,), ledger=str(tmp_path / "l.db"), to=f"{place}/tacit/{{consumer}}")
    )
    assert [grade for grade, _ in told(found, "source")] == ["ok", "ok"]
    assert "accepts the subscription to taxis/+" in told(found, "source")[1][1]
    assert "answers" in only(found, "sink", "ok")
    refused = examine(a_run(spec, (f"{place}/doors/{{who}}?{COLUMNS}",)))
    assert "refuses the subscription to doors/+" in told(refused, "source")[1][1]
    assert "secret" not in str(found) + str(refused)
    monkeypatch.setenv("TACIT_MQTT_PASSWORD", "guessed")
    refused = examine(a_run(spec, (source,)))
    assert "refuses the connection" in told(refused, "source")[1][1]
    assert "guessed" not in str(refused)


def test_the_session_of_a_run_is_not_taken_over(
    tmp_path: Path, broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion

    from tacit.connectors.mqtt.address import parse_source_url

    monkeypatch.setenv("TACIT_MQTT_PASSWORD", "secret")
    url = f"mqtt://anna@127.0.0.1:{broker.port}/taxis/{{who}}?{COLUMNS}"
    address, _ = parse_source_url(url)
    lost: list[Any] = []
    client = Client(CallbackAPIVersion.VERSION2, client_id=address.client, protocol=MQTTv5)
    client.username_pw_set("anna", "secret")
    client.on_disconnect = lambda *given: lost.append(given)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    try:
        while not client.is_connected():
            time.sleep(0.01)
        assert told(examine(a_run(written(tmp_path, SPEC), (url,))), "source")[1][0] == "ok"
        time.sleep(0.3)
        assert client.is_connected()
        assert not lost
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_broker_that_is_not_there_and_the_types_of_its_columns(tmp_path: Path) -> None:
    found = examine(a_run(written(tmp_path, SPEC), (f"mqtt://127.0.0.1:{free_port()}/a/b",)))
    (typed, away) = told(found, "source")
    assert (typed[0], away[0]) == ("ok", "wrong")
    assert "at is time (it holds the event time)" in typed[1]
    assert "kind is text (event 'a' uses it as text)" in typed[1]
    assert "does not answer (Connection refused)" in away[1]


@pytest.mark.soak
def test_a_topic_of_kafka_must_be_there(kafka: Kafka, config: Path, tmp_path: Path) -> None:
    KafkaFeed(kafka.secure, config, "doctor-gps").send_raw(b"{}")
    spec, place = written(tmp_path, SPEC), f"kafka://{kafka.secure}"
    options = f"columns=who:text,at:time,kind:text&config={config}"
    good = examine(a_run(spec, (f"{place}/doctor-gps?{options}",)))
    assert told(good, "source")[1] == ("ok", f"{place} answers, and has doctor-gps")
    bad = examine(a_run(spec, (f"{place}/doctor-gps,doctor-doors?{options}",)))
    assert "has no topic doctor-doors" in told(bad, "source")[1][1]


def test_answers_go_to_a_broker_from_a_ledger_alone(tmp_path: Path) -> None:
    found = examine(a_run(written(tmp_path, SPEC), to="mqtt://127.0.0.1/tacit/{consumer}"))
    assert "only from a ledger" in only(found, "sink", "wrong")


# The ledger


def test_where_nobody_counts_it_is_reported(tmp_path: Path) -> None:
    only(examine(a_run(written(tmp_path, SPEC))), "ledger", "warning")


def tampered(place: str, statement: str) -> None:
    with sqlite3.connect(place) as connection:
        assert connection.execute(statement).rowcount
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tacit_releases SET answers = answers + 1",
        "UPDATE tacit_charges SET amount = amount - 1",
        "DELETE FROM tacit_charges WHERE place = 0",
        "UPDATE tacit_head SET releases = releases + 1",
    ],
)
def test_a_broken_link_is_found(whole: Any, statement: str) -> None:
    tampered(whole.ledger, statement)
    assert "its last link is broken" in only(examine(whole), "ledger", "wrong")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE tacit_checkpoints SET checkpoint = x'00'", "is damaged"),
        ("UPDATE tacit_runs SET until = until + 1", "was changed"),
    ],
)
def test_a_run_that_was_changed_is_found(whole: Any, statement: str, says: str) -> None:
    tampered(whole.ledger, statement)
    assert says in only(examine(whole), "run", "wrong")


def test_a_run_of_another_specification_is_worth_a_word(whole: Any) -> None:
    whole.spec.write_text(LIMITED.replace("200 per day", "300 per day"))
    assert "another specification" in only(examine(whole), "run", "warning")
    assert told(examine(changed(whole, name="another")), "run") == []


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda path: path.write_bytes(b"something else" * 100), "not a SQLite database"),
        (lambda path: path.mkdir(), "is not a file"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE other (x)"), "not a ledger"),
    ],
)
def test_what_is_no_ledger_is_found(
    tmp_path: Path, prepare: Callable[[Path], Any], says: str
) -> None:
    path = tmp_path / "l.db"
    prepare(path)
    found = examine(a_run(written(tmp_path, SPEC), ledger=str(path)))
    assert says in only(found, "ledger", "wrong")


def test_a_ledger_of_a_newer_version_is_found(whole: Any) -> None:
    tampered(whole.ledger, "UPDATE tacit_version SET version_num = '9999'")
    assert "newer Tacit" in only(examine(whole), "ledger", "wrong")


def test_a_ledger_needs_a_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = written(tmp_path, SPEC)
    found = examine(a_run(spec, ledger=str(tmp_path / "nowhere/l.db")))
    assert "is not a folder" in only(found, "ledger", "wrong")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    found = examine(a_run(spec, ledger=str(tmp_path / "l.db"), to=str(tmp_path / "a.jsonl")))
    assert "cannot be written" in only(found, "ledger", "wrong")
    assert "cannot be written" in only(found, "sink", "wrong")


def test_a_ledger_on_another_machine_s_disk_is_worth_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_remote(tmp_path)
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda p, *a: mounts if str(p) == "/proc/mounts" else read(p, *a)
    )
    found = examine(a_run(written(tmp_path, SPEC), ledger=str(tmp_path / "l.db")))
    assert [grade for grade, _ in told(found, "ledger")] == ["warning", "ok"]
    assert is_remote(tmp_path / "below")
    assert not is_remote(tmp_path.parent)


def test_a_ledger_in_postgresql(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is laid, after, when it was changed, with a clock ahead, and when it is away."""
    place = postgres.database("doctor")
    setup: Any = a_run(written(tmp_path, SPEC), ledger=place)
    assert "first run creates it" in only(examine(setup), "ledger", "ok")
    with Ledger.open(place) as ledger:
        ledger.take_over("spec", "0" * 64)
    found = examine(setup)
    assert "its last link holds: 0 releases" in only(found, "ledger", "ok")
    assert "no checkpoint yet" in only(found, "run", "ok")
    only(found, "clock", "ok")
    seen = read_overview(place, "spec")
    assert seen is not None
    assert seen.ahead is not None
    assert abs(seen.ahead) < 1
    with psycopg.connect(place) as connection:
        epoch = connection.execute("SELECT epoch FROM tacit_runs").fetchone()
        assert epoch == (1,)  # nobody was fenced
        connection.execute("UPDATE tacit_head SET releases = 7")
    assert "broken" in only(examine(setup), "ledger", "wrong")
    monkeypatch.setattr(glancing, "_measure_clock_offset", lambda _: -31.5)
    assert "31.5 s behind" in only(examine(setup), "clock", "warning")
    away = a_run(setup.spec, ledger=f"postgresql://tacit@127.0.0.1:{free_port()}/x")
    assert "does not answer" in only(examine(away), "ledger", "wrong")


# The sink, the disk, the clock, doors and extras


@pytest.mark.parametrize(
    ("name", "ledger", "grade"),
    [
        ("-", None, "ok"),
        ("answers.parquet", None, "ok"),
        ("answers.parquet", "l.db", "wrong"),  # it cannot be added to
        ("answers/", "l.db", "ok"),
        ("answers/*.csv", "l.db", "ok"),
        ("answers.txt", None, "wrong"),
    ],
)
def test_a_sink_is_of_a_kind_that_can_be_written(
    tmp_path: Path, name: str, ledger: str | None, grade: str
) -> None:
    sink = name if name == "-" else f"{tmp_path}/{name}"
    place = None if ledger is None else str(tmp_path / ledger)
    only(examine(a_run(written(tmp_path, SPEC), ledger=place, to=sink)), "sink", grade)
    assert not (tmp_path / "answers").exists()


@pytest.mark.parametrize(("days", "grade"), [(0.5, "wrong"), (3, "warning"), (100, "ok")])
def test_there_must_be_room_for_a_day_s_answers(
    tmp_path: Path, days: float, grade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,440 windows of 3 subjects and 3 queries, at 190 bytes a line."""
    need = 1440 * 3 * 3 * 190
    usage = shutil.disk_usage(tmp_path)._replace(free=int(need * days))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = examine(a_run(written(tmp_path, SPEC + REGISTERED), to=str(tmp_path / "a.jsonl")))
    assert "12,960 answers a day take about 2 MB" in only(found, "disk", grade)


def test_a_clock_that_went_back_is_found(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    says = only(examine(whole), "clock", "wrong")
    assert "behind the ledger's last release" in says
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert "it is not 1970" in told(examine(whole), "clock")[0][1]


def test_a_clock_that_nobody_keeps_matters_where_windows_go_by_it(
    tmp_path: Path, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_drifts", lambda: True)
    only(examine(a_run(written(tmp_path, SPEC), (str(sent),))), "clock", "ok")
    spec = written(tmp_path, SPEC.replace("1 min}", "1 min, close: clock}"))
    assert "NTP" in only(examine(a_run(spec)), "clock", "warning")


def test_another_time_zone_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert "UTC+5:30" in only(examine(a_run(written(tmp_path, SPEC))), "clock", "ok")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_open_doors_are_found(whole: Any) -> None:
    Path(whole.ledger).chmod(0o644)
    Path(whole.sources[0][1]).chmod(0o640)
    whole.plan.chmod(0o602)
    found = told(examine(whole), "permissions")
    assert [grade for grade, _ in found] == ["warning"] * 3
    assert f"chmod o-rwx {whole.ledger}" in found[0][1]
    assert f"chmod o-rwx {whole.plan}" in found[1][1]
    assert f"chmod o-w {whole.plan}" in found[2][1]


def test_what_is_not_installed_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    source = f"mqtt://127.0.0.1/a/{{who}}?{COLUMNS}&payload=cbor"
    setup = a_run(
        written(tmp_path, SPEC), (source,), ledger="postgresql://x@y/z", to="kafka://127.0.0.1"
    )
    found = examine(setup)
    assert [says for _, says in told(found, "extras")] == [
        f"needs the extra tacit[{extra}]: pip install 'tacit[{extra}]'"
        for extra in ("ledger", "postgres", "mqtt", "kafka")
    ]
    assert told(found, "source") == told(found, "ledger") == told(found, "sink") == []


def test_readable_files_are_no_matter_where_nothing_is_private(tmp_path: Path) -> None:
    source, spec = tmp_path / "in.csv", tmp_path / "spec.yaml"
    source.write_text("who,at,kind\nx,2026-01-01T00:00:00,a\n")
    source.chmod(0o644)
    text = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events: {a: {stream: s, where: "kind = 'a'"}}
queries: [{name: q, consumer: x, pattern: a}]
"""
    spec.write_text(text)
    assert "private events" not in str(doctor(spec, source))
    spec.write_text(f"{text}private: [{{pattern: a, epsilon: 1}}]\nmechanism: uniform\n")
    assert "private events" in str(doctor(spec, source))


def test_the_drift_of_a_run_with_memory_is_shown(
    whole: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = only(examine(whole), "memory", "ok")
    assert re.fullmatch(r"drift \d+%: .* by history; there were only \d+ of them, .*", few)
    monkeypatch.setattr("tacit.insight.doctor._ENOUGH", 1)
    for bound, grade in ((1.0, "ok"), (-1.0, "warning")):
        monkeypatch.setattr("tacit.insight.doctor._DRIFTED", bound)
        says = only(examine(whole), "memory", grade)
        assert ("Plan again from newer history" in says) is (grade == "warning")


def test_a_run_without_memory_has_no_drift(whole: RunOptions, spec: Path, tmp_path: Path) -> None:
    spec.write_text(spec.read_text() + "memory: false\n")
    plan, ledger, out = (tmp_path / name for name in ("other.json", "other.db", "other.jsonl"))
    (_, sent), *_ = whole.sources
    for command in (
        ("plan", spec, "--history", tmp_path / "history.csv", "-o", plan),
        ("run", spec, sent, "--plan", plan, "--ledger", ledger, "--to", out),
    ):
        done = tacit(*command)
        assert done.exit_code == 0, done.output
    again = a_run(spec, [str(sent)], plan, ledger=str(ledger), to=str(out))
    assert told(examine(again), "memory") == []
    assert told(examine(again), "run")
