"""The reason of a failure is told in one line, and never with what an event held."""

from __future__ import annotations

from tacit.engines.flink.failures import Failure

JAVA = """java.lang.RuntimeException: Failed to close remote bundle
\tat org.apache.flink.streaming.api.runners.python.beam.Runner.finishBundle(Runner.java:700)
Caused by: java.util.concurrent.ExecutionException: java.lang.RuntimeException: Error
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
"""
PYTHON = """Caused by: java.lang.RuntimeException: Error received from SDK harness: \
Traceback (most recent call last):
  File "/opt/tacit/lib/worker.py", line 287, in _execute
    response = task()
  File "/opt/tacit/src/reader.py", line 41, in step
    raise {error}
{error}

\tat org.apache.beam.runners.fnexecution.control.FnApi.handle(FnApi.java:177)
"""


def test_errors_of_tacit_are_quoted() -> None:
    trace = JAVA + PYTHON.format(error="tacit.errors.SourceError: north.csv cannot be read")
    assert Failure.parse(1.0, trace) == Failure(1.0, "north.csv cannot be read")


def test_other_errors_in_python_are_told_by_kind_and_place_alone() -> None:
    trace = JAVA + PYTHON.format(error="ValueError: cannot parse 'Ada, 52.5, 13.4'")
    assert Failure.parse(1.0, trace).reason == "ValueError at /opt/tacit/src/reader.py:41"


def test_errors_with_a_module_in_their_name_are_known_too() -> None:
    trace = PYTHON.format(error="polars.exceptions.ComputeError: could not parse 'Ada'")
    reason = Failure.parse(1.0, trace).reason
    assert reason == "polars.exceptions.ComputeError at /opt/tacit/src/reader.py:41"


def test_a_python_that_lacks_a_module_is_told_with_what_to_do() -> None:
    trace = PYTHON.format(error="ModuleNotFoundError: No module named 'tacit'")
    reason = Failure.parse(1.0, trace).reason
    assert reason.startswith("Python has no module tacit there: install tacit[flink] on every")


def test_a_python_that_is_not_there_is_told_with_what_to_do() -> None:
    trace = (
        'java.io.IOException: Cannot run program "/opt/tacit/bin/python": error=2\n'
        "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)\n"
        "Caused by: java.io.IOException: error=2, No such file or directory\n"
    )
    assert Failure.parse(1.0, trace).reason.startswith("Python is not at /opt/tacit/bin/python")


def test_of_errors_of_flink_the_first_cause_is_quoted() -> None:
    trace = (
        "org.apache.flink.util.FlinkException: Could not stop\n"
        "\tat org.apache.flink.runtime.Stop.run(Stop.java:1)\n"
        "Caused by: org.apache.flink.runtime.JobMasterException: TaskManager x is gone.\n"
        "\tat org.apache.flink.runtime.Master.run(Master.java:2)\n"
    )
    expected = "org.apache.flink.runtime.JobMasterException: TaskManager x is gone."
    assert Failure.parse(1.0, trace).reason == expected


def test_what_is_no_stack_trace_is_told_by_its_first_line() -> None:
    assert Failure.parse(1.0, "Unable to load requested file.\nMore.").reason == (
        "Unable to load requested file."
    )
