"""Shorten the start of a driver: Java starts in the background, and Beam is not imported.

PyFlink talks to Flink through a Java process. It takes some seconds to start, about as long as
everything that the driver does before it needs it.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from functools import lru_cache
from typing import Any, Final

_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""Java's optimising compiler is not used: it takes longer than it saves. A driver of a cluster
lives for seconds. Flink inside the driver only moves bytes between Python processes.
"""
_OPTIONS: Final = "JVM_ARGS"
"""The variable with options for PyFlink's Java process."""
_PLUGINS: Final = "FLINK_PLUGINS_DIR"
_BEAM: Final = "apache_beam"
_EXIT_SECONDS: Final = 10.0
"""Seconds to wait at the end of this process for a start that has begun: it removes its files."""


@lru_cache(maxsize=1)
def start_gateway() -> None:
    """Start the Java process in the background, once; PyFlink waits for it where it needs it.

    Options in the variable JVM_ARGS take precedence over ours. A process has one gateway: where it
    runs already, nothing is changed.
    """
    _honour_plugins()
    thread = threading.Thread(target=_start, name="tacit-flink-gateway", daemon=True)
    thread.start()
    atexit.register(thread.join, _EXIT_SECONDS)


def skip_beam() -> None:
    """Keep PyFlink from importing Apache Beam in this process, where only workers need it.

    PyFlink imports it to find out whether its compiled coders can be used; without it, it takes
    its other ones. For a command, not for a library: coders of other jobs would be slower.
    """
    if "pyflink.fn_execution" in sys.modules or _BEAM in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules[_BEAM] = None  # an import of it fails
    try:
        importlib.import_module("pyflink.fn_execution")
    finally:
        del modules[_BEAM]


def _start() -> None:
    given = os.environ.get(_OPTIONS)
    os.environ[_OPTIONS] = f"{_JAVA_OPTIONS} {given or ''}".strip()
    try:
        from pyflink.java_gateway import get_gateway

        _load_classes(get_gateway().jvm)
    except Exception:  # PyFlink starts it again where it is needed, and reports the error
        return
    finally:
        if given is not None:
            os.environ[_OPTIONS] = given
        else:
            os.environ.pop(_OPTIONS, None)


def _honour_plugins() -> None:
    """Let Java use the plugins of the folder that FLINK_PLUGINS_DIR names.

    PyFlink replaces the variable when it looks for Flink, which it does once.
    """
    from pyflink.find_flink_home import _find_flink_home

    given = os.environ.get(_PLUGINS)
    _find_flink_home()
    if given is not None:
        os.environ[_PLUGINS] = given


def _load_classes(jvm: Any) -> None:
    """Let Java load the classes of a job's description and of a submission, before their use.

    They are loaded beside Python's imports, which take longer than the start of Java.
    """
    flink = jvm.org.apache.flink
    environments = flink.streaming.api.environment.StreamExecutionEnvironment
    environment = environments.createLocalEnvironment(1)
    environment.fromSequence(0, 1).print()
    environment.getStreamGraph().getJobGraph()
    settings = flink.configuration.Configuration()
    settings.setString("rest.address", "localhost")
    cluster = flink.client.deployment.StandaloneClusterId.getInstance()
    flink.client.program.rest.RestClusterClient(settings, cluster).close()
