"""The driver reports what the job has released; what anyone can scrape is public."""

from __future__ import annotations

import urllib.request
from inspect import signature
from pathlib import Path

import pytest

from tacit.cli.submit import submit as command_submit
from tacit.engines.flink import run as driver
from tacit.engines.flink.failures import Failure
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.job_status import JobStatus
from tacit.engines.flink.launch import RunningJob
from tacit.engines.flink.rest import Cluster
from tacit.engines.flink.run import FlinkRun
from tacit.engines.flink.submission import JobOptions, serve_metrics, submit
from tacit.errors import EngineError, OptionError, StateError
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.simulated import made
from tests.engines.sharded.test_sharded import SPEC, written
from tests.services import free_port


class Finished(RunningJob):
    """A job that has ended with its input."""

    def finish(self) -> None:
        """There is nothing to end."""


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The folder of a job that has released three windows."""
    found = Folders(tmp_path / "job")
    found.create()
    JobStatus(windows=3, answers=300).write(found.status)
    return found


class Listed(Cluster):
    """A cluster that notes what it is asked, and ends the input with a triggered checkpoint."""

    def __init__(self, folders: Folders) -> None:
        super().__init__(f"localhost:{free_port()}")
        self._folders = folders
        self.asked: list[str] = []

    def get_state(self, job: str) -> str:
        """It runs."""
        return "RUNNING"

    def list_failures(self, job: str, most: int = 5) -> list[Failure]:
        """Nothing has failed."""
        return []

    def trigger_checkpoint(self, job: str) -> str:
        """The last window is released before the checkpoint is over."""
        self.asked.append("trigger")
        JobStatus(windows=4, answers=400, finished=True).write(self._folders.status)
        return "c1"

    def is_checkpoint_over(self, job: str, request: str) -> bool:
        """It is over when it is asked for the second time."""
        self.asked.append(f"result {job} {request}")
        return len(self.asked) == 3


class Waiting(Listed):
    """A cluster whose job cannot be stopped with a savepoint; `complete` if all its tasks run."""

    def __init__(self, folders: Folders, *, complete: bool) -> None:
        super().__init__(folders)
        self._complete = complete

    def stop(self, job: str, folder: str, *, timeout: float = 600.0) -> str:
        """There is no savepoint."""
        raise EngineError("no savepoint")

    def has_all_tasks(self, job: str) -> bool:
        """There are slots for them, or not."""
        return self._complete

    def cancel(self, job: str) -> None:
        """It ends."""
        self.asked.append(f"cancel {job}")


def watching(
    folders: Folders, cluster: Cluster | None = None, *, attached: bool = True
) -> FlinkRun:
    """A driver that has found the job running."""
    spec = loads(f"{SPEC}subjects: [p1, p2]\n")
    job = made(spec, written(folders.root, 1, 1, 10), 2)
    running = Finished(cluster or Cluster(f"localhost:{free_port()}"), "7", "file:///tmp")
    return FlinkRun("home", job, folders, running, attached=attached)


def test_what_is_released_while_a_driver_watches_is_its_outcome(folders: Folders) -> None:
    run = watching(folders)
    JobStatus(
        windows=8,
        answers=800,
        until=1_700_000_460_000_000,
        released_at=1_700_000_477.7,
        taken=4711,
        refused={"late": 815},
        finished=True,
    ).write(folders.status)
    port = free_port()
    with serve_metrics(run, str(port)):
        outcome = run.run()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            text = page.read().decode()
    assert (outcome.windows, outcome.answers) == (5, 500)
    assert outcome.finished
    assert outcome.resumed
    assert (outcome.taken, outcome.refused) == (4711, {"late": 815})
    assert "tacit_windows_released_total 5.0" in text
    assert "tacit_released_until_timestamp_seconds 1.70000046e+09" in text
    assert "tacit_last_release_timestamp_seconds 1.70000046e+09" in text  # whole windows
    assert "4711" not in text
    assert "815" not in text


def test_the_result_of_the_last_checkpoint_is_fetched_so_that_a_cluster_can_end(
    folders: Folders,
) -> None:
    cluster = Listed(folders)
    assert watching(folders, cluster).run().finished
    assert cluster.asked == ["trigger", "result 7 c1", "result 7 c1"]


def test_an_attached_driver_that_is_stopped_leaves_the_job_alone(folders: Folders) -> None:
    run = watching(folders)
    run.stop()
    outcome = run.run()
    assert outcome.running
    assert not outcome.finished
    assert outcome.savepoint is None


def test_a_job_that_waits_for_slots_is_cancelled_when_it_is_stopped(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink makes no savepoint of it. A job that runs is not cancelled."""
    monkeypatch.setattr(driver, "_STOP_SECONDS", 0.0)
    monkeypatch.setattr(FlinkRun, "_release_rest", lambda _: None)
    cluster = Waiting(folders, complete=False)
    run = watching(folders, cluster, attached=False)
    run.stop()
    assert run.run().savepoint is None
    assert cluster.asked == ["cancel 7"]
    cluster = Waiting(folders, complete=True)
    run = watching(folders, cluster, attached=False)
    run.stop()
    with pytest.raises(EngineError, match="no savepoint"):
        run.run()
    assert not cluster.asked


def test_a_job_inside_this_process_cannot_be_detached(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="ends with it"):
        JobOptions("home", tmp_path, detach=True)


def test_only_flink_starts_the_program_of_an_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"application= is for a command that Flink itself"):
        JobOptions("home", tmp_path, application=True)
    monkeypatch.setenv("PYFLINK_GATEWAY_PORT", "1")
    assert JobOptions("home", tmp_path, application=True).address == "localhost:8081"
    own = JobOptions("home", tmp_path, cluster="localhost:9999", application=True, detach=True)
    assert own.address == "localhost:9999"


def test_an_address_of_metrics_that_is_none_is_refused(folders: Folders) -> None:
    with (
        pytest.raises(OptionError, match=r"expected \[HOST:\]PORT"),
        serve_metrics(watching(folders), "here"),
    ):
        pass


def test_a_status_that_is_damaged_is_refused(folders: Folders) -> None:
    folders.status.write_text("{")
    with pytest.raises(StateError, match="cannot be read"):
        JobStatus.read(folders.status)


def test_python_has_every_option_of_the_command() -> None:
    """Except what only a terminal needs, and what has a function or a result of its own.

    These are `attach`, `load` with the folders that it may read, and the numbers of refused tuples.
    """
    names = {"sink": "to", "plan_file": "plan", "ledger_place": "ledger"}
    others = {"engine", "attach", "allow_path", "log", "log_level", "as_json", "allowed"}
    command = {names.get(str(one.name), str(one.name)) for one in command_submit.params}
    assert command - others - signature(submit).parameters.keys() == set()
    assert {"true", "streams"} == signature(submit).parameters.keys() - command
