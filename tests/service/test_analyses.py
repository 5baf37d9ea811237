"""Curves and measured leaks: made once from history in the background, for operators alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from shutil import which

import httpx
import pytest

from tacit.errors import PlanError
from tacit.planning.plan import Plan
from tacit.service import planner as planner_module
from tacit.service.analyses import Analyses
from tacit.service.console.curves import CurveLine, draw_curves
from tacit.service.planner import JobKind, PlanJob, PlannerProcess
from tacit.service.roles import Principal, Role
from tacit.service.serving import SetupOptions
from tacit.service.tables import ProposalState
from tacit.spec.yaml_reader import loads
from tests.service.planner_forks import COMMAND
from tests.service.services import SPEC, SUBJECTS, Running, running, write_tuples
from tests.service.test_console import browser

pytestmark = pytest.mark.usefixtures("forked_planner")
WINDOWS = 4


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with history, which has read its file."""
    folder = tmp_path_factory.mktemp("analyses")
    history = write_tuples(folder / "history.csv", 60)
    source = write_tuples(folder / "tuples.csv", WINDOWS)
    with running(folder, [source], setup=SetupOptions([(None, str(history))])) as service:
        service.wait(WINDOWS * SUBJECTS * 3)
        yield service


def wait_for(client: httpx.Client, path: str) -> str:
    """The part of a page once it is computed."""
    deadline = time.monotonic() + 300
    while "in the background" in (page := client.get(path).text):
        assert "hx-trigger" in page  # it asks again by itself
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "hx-trigger" not in page
    return page


def test_the_plan_page_shows_curves_with_their_numbers(planned: Running) -> None:
    with browser(planned, "operator", "ann") as client:
        first = client.get("/console/plan").text
        assert "uniform" in first
        assert "in the background" in first
        part = wait_for(client, "/console/plan/live")
        whole = client.get("/console/plan").text
    found = planned.service.state.analyses.look(JobKind.CURVES).result
    assert found is not None
    assert 'class="curve c2"' in part
    assert part.count('class="point') == len(found["points"]) + len(found["limits"])
    for point in found["points"]:
        assert f"{point['quality']:.2f}" in part
    assert "declared: 2" in part
    assert "visit" in whole


def test_leaks_are_measured(planned: Running) -> None:
    with browser(planned, "operator", "ann") as client:
        assert "Measured leaks" in client.get("/console/checks").text
        part = wait_for(client, "/console/checks/live")
    found = planned.service.state.analyses.look(JobKind.LEAKS).result
    assert found is not None
    assert found["windows"] > 0
    for leak in found["leaks"][:20]:
        assert leak["signal"] in part
    assert "Nothing was measured" not in part


def test_an_older_version_that_returns_has_its_results_at_once(planned: Running) -> None:
    state = planned.service.state
    workflow, operator = state.workflow, Principal(Role.OPERATOR, "ann", "")
    with browser(planned, "operator", "ann") as client:
        part = wait_for(client, "/console/checks/live")
        before = state.analyses.look(JobKind.LEAKS)
        removal = workflow.propose_removal(Principal(Role.CONSUMER, "city", ""), "both")
        deadline = time.monotonic() + 300
        while workflow.read(removal.number).state is not ProposalState.READY:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        workflow.approve(removal.number, operator)
        assert state.analyses.look(JobKind.LEAKS).busy
        workflow.propose_version(operator, before.version)
        after = state.analyses.look(JobKind.LEAKS)
        assert (after.version, after.result) == (before.version + 2, before.result)
        assert "in the background" not in client.get("/console/checks/live").text
        assert client.get("/console/checks/live").text.count("<tr") == part.count("<tr")


def test_a_result_is_stored_with_its_specification_and_history(planned: Running) -> None:
    state = planned.service.state
    with browser(planned, "operator", "ann") as client:
        wait_for(client, "/console/checks/live")
    again = Analyses(state.workflow)  # as after a restart; it has no thread that could compute
    assert again.look(JobKind.LEAKS) == state.analyses.look(JobKind.LEAKS)
    other = state.workflow.history
    try:
        state.workflow.history = ((None, "elsewhere.csv"),)
        assert Analyses(state.workflow).look(JobKind.LEAKS).busy
    finally:
        state.workflow.history = other


def test_a_history_that_cannot_be_read_is_named(planned: Running) -> None:
    state = planned.service.state
    other = state.workflow.history
    try:
        state.workflow.history = ((None, "missing.csv"),)
        analyses = Analyses(state.workflow)
        analyses.begin()
        deadline = time.monotonic() + 120
        while (found := analyses.look(JobKind.LEAKS)).busy:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        analyses.stop()
    finally:
        state.workflow.history = other
    assert "missing.csv" in found.reason


def test_without_history_there_is_a_reason(served: Running) -> None:
    with browser(served, "operator", "ann") as client:
        assert "start it with --history" in client.get("/console/plan").text
        assert "start it with --history" in client.get("/console/checks").text


def test_nothing_of_it_is_for_others(served: Running) -> None:
    for role, name in (("consumer", "city"), ("subject", "t1"), ("source", "sensor")):
        with browser(served, role, name) as client:
            for path in ("plan", "plan/live", "checks", "checks/live"):
                assert client.get(f"/console/{path}").status_code == 403


def test_streams_have_rows_times_and_dead_letters(served: Running) -> None:
    with served.client("operator", "ann") as client:
        (stream,) = client.get("/v1/status").json()["streams"]
    assert (stream["stream"], stream["rows"]) == ("s", 8 * SUBJECTS)
    assert stream["source"].endswith("tuples.csv")
    assert stream["newest"] == "1970-01-01T00:07:04Z"
    assert (stream["behind_seconds"], stream["dead_letters"]) == (0, {})
    with browser(served, "operator", "ann") as client:
        assert "tuples.csv" in client.get("/console/live").text
    for role, name in (("consumer", "city"), ("subject", "t1")):
        with browser(served, role, name) as client:
            assert "tuples.csv" not in client.get("/console/live").text


def test_labels_of_lines_that_end_together_are_moved_apart() -> None:
    lines = [CurveLine(name, [(1, 0.5), (10, 0.9)]) for name in ("a", "b", "c")]
    drawn = str(draw_curves(lines, "<x>", "what", 2.0))
    heights = [float(part.split('y="')[1].split('"')[0]) for part in drawn.split('class="end')[1:]]
    assert min(abs(one - other) for one, other in pairwise(heights)) >= 13
    assert "&lt;x&gt;" in drawn


def test_a_curve_of_one_point_is_drawn() -> None:
    assert "declared: 1" in draw_curves([CurveLine("a", [(1, 1.0)])], "x", "what", 1.0)


def test_a_plan_is_made_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most tests of the service plan in forks of a process that has everything imported."""
    monkeypatch.setattr(planner_module, "COMMAND", COMMAND)
    history = write_tuples(tmp_path / "history.csv", 20)
    spec, shares = loads(SPEC), []
    job = PlanJob.of(spec, [(None, str(history))])
    made = PlannerProcess().make(job, lambda share, _: shares.append(share))
    assert Plan.from_dict(made, spec).expected is not None
    assert shares == sorted(shares)


def test_a_planner_says_whether_it_was_stopped_or_ended_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_module, "COMMAND", [which("false")])
    planner, job = PlannerProcess(), PlanJob("", "", [], [])
    with pytest.raises(PlanError, match="ended without a result"):
        planner.make(job, lambda *_: None)
    planner.stop()
    with pytest.raises(PlanError, match="was stopped"):
        planner.make(job, lambda *_: None)
