"""Set-up as a workflow: propose, plan, approve, live; subjects' choices; versions and undo."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

import tacit
from tacit.errors import PlanError, ServiceError
from tacit.ledger.acts import ActKind, read_acts
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tacit.pipeline.run import Run
from tacit.progress import ProgressCallback
from tacit.service.planner import PlanJob, PlannerProcess
from tacit.service.serving import SetupOptions
from tacit.service.state import ServiceState
from tacit.service.tables import PROPOSALS, TOKENS, VERSIONS
from tests.service.services import (
    PATIENCE,
    RICH,
    Running,
    join,
    running,
    write_registry,
    write_tuples,
)
from tests.services import Postgres

CATALOGUE = """
visit: {epsilon: [0.1, 3], limit: [4 per day, 1000 per day]}
c: {epsilon: [0.5, 2], limit: [4 per day, 1000 per day]}
"""
pytestmark = pytest.mark.usefixtures("forked_planner")
QUERY: dict[str, Any] = {"name": "late", "pattern": "b", "alpha": 0.5, "quality": 0.99}


class Live:
    """A service that is fed by HTTP, window after window."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.window = 0
        self.sender = self.connect("source", "sensor")

    def connect(self, role: str, name: str) -> tacit.ServiceClient:
        """Return a client with a token."""
        return tacit.connect(self.running.url, self.running.token(role, name), timeout=PATIENCE)

    def feed(self, windows: int = 1) -> None:
        """Send the tuples of some windows, and one tuple that closes them."""
        for _ in range(windows):
            self.window += 1
            rows = [
                {"who": f"t{n}", "at": 60 * self.window + n, "kind": "abc"[(self.window + n) % 3]}
                for n in range(5)
            ]
            self.sender.send("s", rows)

    def feed_until(self, done: Any) -> None:
        """Send windows, one after the other, until something is true."""

        def step() -> Any:
            self.feed()
            time.sleep(0.1)
            return done()

        self.wait(step)

    def wait(self, done: Any, seconds: float = PATIENCE) -> Any:
        """Wait until something is true; return it."""
        deadline = time.monotonic() + seconds
        while not (found := done()):
            if self.running.failures:
                raise self.running.failures[0]
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.2)  # asking takes processor time from what is waited for
        return found


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the ledger is: in a file, or for tests with `everywhere` also in a real PostgreSQL."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return str(tmp_path / "ledger.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.database(f"workflow_{uuid4().hex}")


everywhere = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
"""For tests whose steps write and read in a way of their own."""


@pytest.fixture
def live(tmp_path: Path, place: str) -> Iterator[Live]:
    """A service with history, a catalogue and no tuples yet."""
    history = write_tuples(tmp_path / "history.csv", 60)
    catalogue = tmp_path / "catalogue.yaml"
    catalogue.write_text(CATALOGUE)
    setup = SetupOptions([(None, str(history))], catalogue)
    with running(tmp_path, ledger=place, setup=setup) as service:
        found = Live(service)
        found.wait(lambda: service.service.state.ready)
        yield found


def shown(subject: tacit.ServiceClient) -> dict[str, str]:
    """Return the epsilon of everything that is private about a subject."""
    return {one["name"]: one["epsilon"] for one in subject.private()}


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_the_story_from_a_proposal_to_an_answer_and_back(live: Live) -> None:
    city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
    live.feed(3)
    proposed = city.propose_query(**QUERY)
    assert (proposed["state"], proposed["effect"], proposed["progress"]) == ("waiting", None, None)
    number = proposed["number"]
    live.wait(lambda: ann.proposal(number)["state"] == "ready")
    assert city.proposal(number)["state"] == "waiting"  # how long planning takes is not shown
    assert (city.proposal(number)["reached"], ann.proposal(number)["reached"]) == (None, False)
    effect = ann.proposal(number)["effect"]
    (row,) = [row for row in effect["quality"] if row["query"] == "late"]
    assert (row["before"], row["required"], row["reached"]) == (None, 0.99, False)
    assert 0 < row["after"] < 0.99
    assert row["obstacles"] == ["visit"]
    (cost,) = effect["costs"]
    assert (cost["epsilon"], "late" in cost["queries_after"]) == ("2", True)
    assert ann.approve(number, note="fine", tell_quality=True)["state"] == "approved"
    assert city.proposal(number)["note"] == f"fine. Expected quality: {row['after']:.2f}."
    live.feed_until(lambda: city.answers(query="late").height if knows(city, "late") else 0)
    answers = city.answers(query="late")
    assert set(answers["query"]) == {"late"}
    live.feed_until(lambda: ann.versions()[0]["state"] == "live")
    assert [version["number"] for version in ann.versions()] == [2, 1]
    changes = ann.version_changes(2)
    assert [one["name"] for one in changes["queries"]] == ["late"]
    assert any(line.startswith("+") and "late" in line for line in changes["lines"])

    undone = ann.approve_version(1)
    assert undone["state"] == "approved"
    live.wait(lambda: [query["name"] for query in city.queries()] == ["both", "either"])
    kinds = [act.kind for act in read_acts(live.running.service.state.ledger.database)]
    assert {ActKind.PROPOSED, ActKind.APPROVED, ActKind.TOKEN_CREATED, ActKind.LIVE} <= {*kinds}
    assert verify(live.running.service.state.ledger).passed


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a registry file, that plans without history."""
    folder = tmp_path_factory.mktemp("rich")
    write_registry(folder)
    with running(folder, spec=RICH) as service:
        found = Live(service)
        found.wait(lambda: service.service.state.ready)
        yield found


@pytest.mark.parametrize(
    ("query", "asks", "mistake"),
    [
        ({"count": "AND(a, c)", "by": "fleet"}, "how many AND(a, c) by fleet", None),
        ({"one_of": {"x": "a", "y": "SEQ(b, c)"}}, "one of x: a, y: SEQ(b, c)", None),
        ({"times": "a", "up_to": 3}, "how often a, up to 3", None),
        ({"count": "a", "by": "nope"}, None, "the registry of subjects has no column 'nope'"),
        ({"count": "a", "pattern": "b"}, None, "a query has one of pattern:"),
        ({"count": "a", "quality": 0.9}, None, "the field 'quality' is for queries with pattern:"),
        ({"times": "a"}, None, "times: needs up_to:"),
        ({"one_of": {"x": "nope"}}, None, "nope"),
        ({}, None, "none of them"),
    ],
)
def test_queries_of_every_kind_are_checked(
    rich: Live, query: dict[str, Any], asks: str | None, mistake: str | None
) -> None:
    city = rich.connect("consumer", "city")
    checked = city.check_query("more", **query)
    assert checked["valid"] == (mistake is None)
    if mistake is None:
        assert checked["private"]
        proposed = city.propose_query("more", **query)
        assert (proposed["asks"], proposed["state"]) == (asks, "waiting")
        city.withdraw(proposed["number"])
    else:
        assert mistake in checked["mistakes"][0]
        with pytest.raises(ServiceError) as refused:
            city.propose_query("more", **query)
        assert refused.value.status == 422


def test_proposed_counts_and_values_become_live(rich: Live) -> None:
    city, ann = rich.connect("consumer", "city"), rich.connect("operator", "ann")
    rich.feed(2)
    asked: dict[str, dict[str, Any]] = {
        "how_many": {"count": "OR(a, b)", "by": "fleet"},
        "which": {"one_of": {"first": "a", "second": "b"}},
    }
    for number, (name, query) in enumerate(asked.items()):
        proposal = city.propose_query(name, **query)["number"]
        rich.wait(lambda own=proposal: ann.proposal(own)["state"] == "ready")
        effect = ann.proposal(proposal)["effect"]
        assert [cost["epsilon"] for cost in effect["costs"]] == ["2", "1"]  # with the counts
        (row,) = [row for row in effect["quality"] if row["query"] == name]
        assert row["expected_before"] is None
        ann.approve(proposal, note="good", tell_quality=True)
        note = city.proposal(proposal)["note"]
        if number == 0:  # how exact a count is follows from its epsilon, without history
            assert row["expected_after"].startswith("± ")
            assert note == f"good. Expected quality: {row['expected_after']}."
        else:
            assert note == "good"
    rich.feed_until(lambda: city.answers(query="which").height if knows(city, "which") else 0)
    rich.feed_until(lambda: city.counts(query="how_many").height)
    assert set(city.counts(query="how_many")["group"]) == {"f0", "f1"}
    assert set(city.answers(query="which")["value"]) <= {"first", "second", "none"}


def knows(client: tacit.ServiceClient, query: str) -> bool:
    """Return whether a query is in use."""
    return query in [one["name"] for one in client.queries()]


def test_a_subject_is_stricter_at_once_and_looser_by_approval(live: Live) -> None:
    t1, ann = live.connect("subject", "t1"), live.connect("operator", "ann")
    live.feed(2)
    live.wait(lambda: t1.answers().height)
    stricter = t1.choose("visit", epsilon="0.5", limit="10 per day")
    assert not stricter["needs_approval"]
    live.wait(lambda: t1.proposal(stricter["number"])["state"] == "approved")
    live.wait(lambda: shown(t1) == {"visit": "0.5"})
    assert t1.private()[0]["limit"] == "10 per day"
    live.feed_until(lambda: t1.statement()["horizons"][0]["limit"] == 10)
    t2 = live.connect("subject", "t2")
    assert t2.private()[0]["epsilon"] == "2"
    assert t2.statement()["horizons"][0]["limit"] == 20

    opted = t1.choose("c", epsilon="1", limit="20 per day")
    assert not opted["needs_approval"]
    live.wait(lambda: t1.proposal(opted["number"])["state"] == "approved")
    live.wait(lambda: shown(t1) == {"visit": "0.5", "c": "1"})
    assert {one["name"] for one in t2.private()} == {"visit"}

    looser = t1.choose("visit", epsilon="2.5", limit="10 per day")
    assert looser["needs_approval"]
    live.wait(lambda: ann.proposal(looser["number"])["state"] == "ready")
    assert t1.policies()[0]["pending"] == looser["number"]
    assert ann.reject(looser["number"], note="no")["state"] == "rejected"
    assert shown(t1)["visit"] == "0.5"

    # Going back to a version before the choices leaves the choices as they are.
    back = ann.approve_version(1)
    assert back["state"] == "planning"
    live.wait(lambda: ann.proposal(back["number"])["state"] == "ready")
    ann.approve(back["number"])
    live.feed_until(lambda: ann.versions()[0]["state"] == "live")
    assert shown(t1) == {"visit": "0.5", "c": "1"}

    withdrawn = t1.withdraw_choice("visit")
    live.wait(lambda: t1.proposal(withdrawn["number"])["state"] == "approved")
    live.wait(lambda: shown(t1) == {"visit": "2", "c": "1"})
    live.feed(2)
    assert verify(live.running.service.state.ledger).passed


def test_choices_outside_of_the_bounds_and_wrong_queries_are_refused(live: Live) -> None:
    t1, city = live.connect("subject", "t1"), live.connect("consumer", "city")
    live.feed(2)
    live.wait(lambda: t1.answers().height)
    for epsilon, limit in (("9", "10 per day"), ("0.01", "10 per day"), ("1", None),
                           ("1", "1 per day"), ("nan", "10 per day"), ("x", None)):  # fmt: skip
        with pytest.raises(ServiceError) as refused:
            t1.choose("visit", epsilon=epsilon, limit=limit)
        assert refused.value.status == 422
    with pytest.raises(ServiceError) as unknown:
        t1.choose("nothing", epsilon="1", limit=None)
    assert unknown.value.status == 404
    for wrong, words in (
        ({**QUERY, "pattern": "SEQ(c, nope)"}, "nope"),
        ({**QUERY, "pattern": "SEQ(c,"}, "pattern"),
        ({**QUERY, "name": "both"}, "taken"),
        ({**QUERY, "name": "open"}, "taken"),
        ({**QUERY, "name": "a b"}, "a b"),
    ):
        checked = city.check_query(**wrong)
        assert not checked["valid"]
        assert words in checked["mistakes"][0]
        with pytest.raises(ServiceError):
            city.propose_query(**wrong)
    assert city.check_query(**QUERY) == {"valid": True, "mistakes": [], "private": ["visit"]}


PLANTED: dict[str, sa.Executable] = {
    "a decision": PROPOSALS.update().where(PROPOSALS.c.number == 1).values(decider="operator eve"),
    "a state": PROPOSALS.update().where(PROPOSALS.c.number == 2).values(state="approved"),
    "a change": PROPOSALS.update().where(PROPOSALS.c.number == 2).values(change="{}"),
    "an author": PROPOSALS.update().where(PROPOSALS.c.number == 2).values(author="clinic"),
    "a version": VERSIONS.update().where(VERSIONS.c.number == 2).values(content=b"other"),
    "a summary": VERSIONS.update().where(VERSIONS.c.number == 1).values(summary="other"),
    "a role": TOKENS.update().where(TOKENS.c.name == "city").values(role="operator"),
    "a removed version": VERSIONS.delete().where(VERSIONS.c.number == 1),
    "a removed proposal": PROPOSALS.delete().where(PROPOSALS.c.number == 2),
    "a new version": VERSIONS.insert().values(
        run="spec", number=3, created=0, author="eve", summary="", content=b"", plan=""
    ),
}


@pytest.mark.cases(1)
@everywhere
def test_a_row_that_was_changed_without_an_act_is_found(tmp_path: Path, place: str) -> None:
    with running(tmp_path, ledger=place) as service:
        live = Live(service)
        city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
        first = city.propose_query(**QUERY)["number"]
        live.wait(lambda: ann.proposal(first)["state"] == "ready")
        ann.approve(first)
        second = city.propose_query(**QUERY | {"name": "other"})["number"]
        live.wait(lambda: ann.proposal(second)["state"] == "ready")
    with Ledger.open(place) as ledger:
        assert verify(ledger).passed
        tables = (PROPOSALS, VERSIONS, TOKENS)
        with ledger.database.reading() as connection:
            before = [connection.execute(sa.select(table)).mappings().all() for table in tables]
        for name, change in PLANTED.items():
            with ledger.database.writing() as connection:
                connection.execute(change)
            (fault,) = verify(ledger).faults
            assert fault.place.startswith("the row "), name
            with ledger.database.writing() as connection:
                for table, rows in zip(tables, before, strict=True):
                    connection.execute(table.delete())
                    connection.execute(table.insert(), [dict(row) for row in rows])
            assert verify(ledger).passed, name


def test_what_others_propose_is_not_shown(live: Live) -> None:
    city, clinic = live.connect("consumer", "city"), live.connect("consumer", "clinic")
    number = city.propose_query(**QUERY)["number"]
    assert clinic.proposals() == []
    for attempt in (clinic.proposal, clinic.withdraw):
        with pytest.raises(ServiceError) as unknown:
            attempt(number)
        assert unknown.value.status == 404
    with pytest.raises(ServiceError) as mine:
        clinic.end_query("both")
    assert mine.value.status == 404
    assert city.withdraw(number)["state"] == "withdrawn"
    with pytest.raises(ServiceError) as decided:
        city.withdraw(number)
    assert decided.value.status == 409


def test_a_proposal_is_planned_again_when_another_version_is_approved(live: Live) -> None:
    city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
    one = city.propose_query(**QUERY)["number"]
    other = city.propose_query(**{**QUERY, "name": "later"})["number"]
    for number in (one, other):
        live.wait(lambda number=number: ann.proposal(number)["state"] == "ready")
    ann.approve(one)
    with pytest.raises(ServiceError) as early:
        ann.approve(other)
    assert early.value.status == 409
    live.wait(lambda: ann.proposal(other)["state"] == "ready")
    ann.approve(other)
    wanted = {"both", "either", "late", "later"}
    live.wait(lambda: {query["name"] for query in city.queries()} == wanted)


def test_versions_that_wait_for_a_window_come_next_and_replaced_ones_do_not(live: Live) -> None:
    """Two approvals shortly after each other, and a third that takes the place of the second."""
    city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
    live.feed(2)
    live.wait(lambda: released_until(live.running.service.state) is not None)
    for number, name in enumerate(("first", "second", "third"), 1):
        proposal = city.propose_query(**{**QUERY, "name": name})["number"]
        live.wait(lambda own=proposal: ann.proposal(own)["state"] == "ready")
        ann.approve(proposal)
        assert list_states(ann)[0] == "next"
        live.wait(partial(has_taken_up, live, name))
        assert (
            list_states(ann)
            == [
                ["next", "live"],
                ["next", "next", "live"],
                ["next", "earlier", "next", "live"],
            ][number - 1]
        )
    wanted = {"first", "second", "third"}
    live.feed_until(lambda: wanted <= {*city.answers()["query"]})
    live.feed_until(lambda: list_states(ann) == ["live", "earlier", "earlier", "earlier"])
    starts = city.answers(query="first")["window_start"].unique().sort()
    assert (starts.diff().drop_nulls().dt.total_seconds() == 60).all()
    assert verify(live.running.service.state.ledger).passed


def test_an_older_version_again_is_live_when_its_windows_are(live: Live) -> None:
    """Its plan is that of the older one, which is still in use when it is approved."""
    city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
    live.feed(2)
    live.wait(lambda: released_until(live.running.service.state) is not None)
    proposal = city.propose_query(**QUERY)["number"]
    live.wait(lambda: ann.proposal(proposal)["state"] == "ready")
    ann.approve(proposal)
    live.wait(partial(has_taken_up, live, "late"))
    ann.approve_version(1)
    assert list_states(ann) == ["next", "next", "live"]
    live.feed_until(lambda: list_states(ann) == ["live", "earlier", "earlier"])
    assert city.answers(query="late").height >= 5  # of the version in between


def test_a_version_that_the_run_refuses_says_so_and_what_applied_before_still_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry loses a subject. When it is complete again, the version is approved again."""
    write_registry(tmp_path)
    registry = tmp_path / "subjects.csv"
    complete = registry.read_text()
    with running(tmp_path, spec=RICH) as service:
        live = Live(service)
        live.wait(lambda: service.service.state.ready)
        city, ann, t1 = (
            live.connect(*who)
            for who in (("consumer", "city"), ("operator", "ann"), ("subject", "t1"))
        )
        live.feed(2)
        live.wait(lambda: released_until(service.service.state) is not None)
        number = city.propose_query("late", "b")["number"]
        live.wait(lambda: ann.proposal(number)["state"] == "ready")
        registry.write_text("".join(complete.splitlines(keepends=True)[:-1]))
        with pytest.raises(ServiceError, match="1 subject would lose their answers") as conflict:
            ann.approve(number)
        assert (conflict.value.status, len(ann.versions())) == (409, 1)
        monkeypatch.setattr(Run, "check_version", lambda *_: None)  # it changes after the check
        ann.approve(number)
        live.wait(lambda: list_states(ann) == ["refused", "live"])
        chosen = t1.choose("visit", epsilon="0.5", limit="10 per day")["number"]
        live.wait(lambda: list_states(ann) == ["refused", "refused", "live"])
        for reader, own in ((city, number), (t1, chosen)):
            seen = reader.proposal(own)
            assert (seen["state"], seen["reached"]) == ("refused", None)
            assert "What applied before still does" in seen["reason"]
            assert "1 subject" not in seen["reason"]
            assert "1 subject would lose" in ann.proposal(own)["reason"]
        assert "1 subject would lose" in ann.versions()[0]["reason"]
        assert (shown(t1)["visit"], t1.policies()[0]["epsilon"]) == ("2", "2")
        assert t1.policies()[0]["pending"] == chosen
        check_pages_of_refused(service, ann, city, t1)
        before = released_until(service.service.state)
        live.feed(2)
        live.wait(lambda: released_until(service.service.state) != before)
        assert "late" not in {*city.answers()["query"]}
        monkeypatch.undo()
        registry.write_text(complete)
        ann.approve_version(3)
        live.feed_until(lambda: list_states(ann) == ["live", "earlier", "earlier", "earlier"])
        assert (city.proposal(number)["state"], t1.proposal(chosen)["state"]) == ("approved",) * 2
        assert (shown(t1)["visit"], t1.policies()[0]["pending"]) == ("0.5", None)
        live.feed_until(lambda: city.answers(query="late").height)
        assert "The run refused" not in read_page(service, ann, "versions")


def check_pages_of_refused(
    service: Running, ann: tacit.ServiceClient, city: tacit.ServiceClient, t1: tacit.ServiceClient
) -> None:
    """Check that everyone's page says what the run refused."""
    for page, reader, text in (
        ("versions", ann, "The run refused version 3, and version 1 stays in use."),
        ("approvals", ann, "by the run"),
        ("", ann, "2 refused"),
        ("propose", city, "What applied before still does"),
        ("policies", t1, "A change is not in use yet."),
    ):
        assert text in read_page(service, reader, page)


def test_files_that_the_run_refuses_say_so_until_they_are_corrected(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        live = Live(service)
        ann, path = live.connect("operator", "ann"), tmp_path / "spec.yaml"
        live.wait(lambda: service.service.state.ready)
        right = path.read_text()
        path.write_text(right.replace("size: 1 min", "size: 2 min"))
        service.service.reload()
        live.wait(lambda: list_states(ann) == ["refused", "live"])
        assert "windows cannot be changed during a run" in ann.versions()[0]["reason"]
        path.write_text(right.replace("AND(a, c)", "AND(a, b)"))
        service.service.reload()
        live.feed_until(lambda: list_states(ann) == ["live", "earlier", "earlier"])
        path.write_text("version: 1\n")
        service.service.reload()
        live.wait(lambda: "The files were not read again" in read_page(service, ann, "versions"))
        assert list_states(ann) == ["live", "earlier", "earlier"]


def test_a_version_that_is_approved_while_the_run_is_set_up_becomes_live(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        live = Live(service)
        workflow = service.service.state.workflow
        live.wait(lambda: service.service.state.ready)
        city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
        run, workflow.run = workflow.run, None
        assert run is not None
        number = city.propose_query(**QUERY)["number"]
        live.wait(lambda: ann.proposal(number)["state"] == "ready")
        ann.approve(number)
        assert not knows(city, "late")
        workflow.attach(run)
        live.wait(lambda: knows(city, "late"))


def read_page(service: Running, who: tacit.ServiceClient, page: str) -> str:
    """Return a page of the console as someone sees it."""
    me = who.identity()
    with service.client() as browser:
        browser.post("/login", data={"token": service.token(me["role"], me["name"])})
        found = browser.get(f"/console/{page}".removesuffix("/"))
        assert found.status_code == 200
        return found.text


def list_states(operator: tacit.ServiceClient) -> list[str]:
    """Return the states of all versions, the newest first."""
    return [one["state"] for one in operator.versions()]


def has_taken_up(live: Live, query: str) -> bool:
    """Return whether the run uses a version with this query, or will."""
    run = live.running.service.state.run
    latest = None if run is None else run.engine.latest
    return latest is not None and query in latest.consumers


@pytest.mark.parametrize("stealing", [False, True])
def test_windows_that_were_run_are_no_history(
    live: Live, monkeypatch: pytest.MonkeyPatch, stealing: bool
) -> None:
    """The planner gets the specification and the history that was granted; it sees no tuples.

    A planted fault gives it the tuples that came in, too.
    """
    jobs: list[PlanJob] = []

    def record(_: PlannerProcess, job: PlanJob, progress: ProgressCallback) -> Any:
        progress(0.0, "")
        jobs.append(job)
        raise PlanError("enough")

    workflow = live.running.service.state.workflow
    granted = list(workflow.history)
    if stealing:
        monkeypatch.setattr(workflow, "history", (*granted, (None, "the inbox")))
    monkeypatch.setattr(PlannerProcess, "make", record)
    live.feed(3)
    live.connect("consumer", "city").propose_query(**QUERY)
    live.wait(lambda: jobs)
    job = jobs[0]
    assert (job.history == granted) != stealing
    assert "late" in job.specification
    told = {"specification", "folder", "allow_paths", "history", "kind"}
    assert asdict(job).keys() == told, "think of what the planner may see"


def test_without_history_a_proposal_says_what_is_needed(tmp_path: Path) -> None:
    from tests.service.services import SPEC

    plan = tmp_path / "plan.json"
    spec = SPEC.replace("mechanism: uniform", "mechanism: optimal")
    history = write_tuples(tmp_path / "history.csv", 60)
    tacit.plan(tacit.loads(spec), str(history), out=plan)
    with running(tmp_path, spec=spec, plan=plan) as service:
        live = Live(service)
        city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
        number = city.propose_query(**QUERY)["number"]
        live.wait(lambda: ann.proposal(number)["state"] == "failed")
        assert "--history" in ann.proposal(number)["reason"]
        assert city.proposal(number)["reason"] is None


@pytest.mark.cases(1)
@everywhere
def test_a_restarted_service_continues_with_the_approved_version(
    tmp_path: Path, place: str
) -> None:
    with running(tmp_path, ledger=place) as service:
        live = Live(service)
        city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
        number = city.propose_query(**QUERY)["number"]
        live.wait(lambda: ann.proposal(number)["state"] == "ready")
        ann.approve(number)
    with running(tmp_path, ledger=place) as service:
        live = Live(service)
        city = live.connect("consumer", "city")
        assert "late" in {query["name"] for query in city.queries()}
        live.feed(3)
        live.wait(lambda: city.answers(query="late").height)


@pytest.mark.cases(1)
@everywhere
def test_nothing_is_lost_or_released_twice_over_many_changes_under_load(
    tmp_path: Path, place: str
) -> None:
    """`make soak` makes more of them."""
    change_under_load(tmp_path, changes=4, ledger=place)


def change_under_load(folder: Path, changes: int, ledger: str | None = None) -> None:
    """Approve two versions in turn while tuples come in; every window is released once."""
    with running(folder, ledger=ledger) as service:
        live, state = Live(service), service.service.state
        city, ann = live.connect("consumer", "city"), live.connect("operator", "ann")
        number = city.propose_query(**QUERY)["number"]
        live.wait(lambda: ann.proposal(number)["state"] == "ready")
        live.feed(2)  # a version that comes after a release is recorded when it goes live
        live.wait(lambda: released_until(state) is not None)
        ann.approve(number)
        done = threading.Event()
        sending = threading.Thread(target=lambda: feed_until_set(live, done), daemon=True)
        sending.start()
        try:
            live.wait(partial(has_gone_live, state, 1))
            for change in range(changes):
                assert ann.approve_version(1 + change % 2)["state"] == "approved"
                assert sending.is_alive()
                if change < 2:  # later ones may replace each other before a window begins
                    live.wait(partial(has_gone_live, state, 2 + change))
        finally:
            done.set()
            join(sending)
        live.feed()
        live.wait(lambda: released_until(state) == 60 * live.window)
        with service.client("operator", "ann") as client:
            lines = client.get("/v1/answers.jsonl").text.splitlines()
        rows = [json.loads(line) for line in lines]
        told = Counter((row["window_start"], row["query"], row["subject"]) for row in rows)
        assert set(told.values()) == {1}
        assert sorted(row["id"] for row in rows) == list(range(len(rows)))
        asked: dict[str, set[str]] = {}
        for row in rows:
            asked.setdefault(row["window_start"], set()).add(row["query"])
        assert len(asked) == live.window - 1  # all but the open one
        usual = {"both", "either", "open"}
        assert {frozenset(queries) for queries in asked.values()} == {
            frozenset(usual),
            frozenset({*usual, "late"}),
        }
        assert len(rows) == sum(5 * len(queries) for queries in asked.values())
        assert has_gone_live(state, 3)
        assert len(ann.versions()) == changes + 2
        assert verify(state.ledger).passed


def has_gone_live(state: ServiceState, versions: int) -> bool:
    """Return whether so many versions have gone live, one after the other."""
    acts = read_acts(state.ledger.database, limit=10_000)
    return sum(act.kind is ActKind.LIVE for act in acts) >= versions


def feed_until_set(live: Live, done: threading.Event) -> None:
    """Send windows until something else is finished."""
    while not done.is_set():
        live.feed()


def released_until(state: ServiceState) -> int | None:
    """The end of the last released window, in seconds."""
    until = None if state.run is None else state.run.status.public.until
    return None if until is None else until // 1_000_000
