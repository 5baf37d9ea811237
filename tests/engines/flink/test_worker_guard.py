"""A Python worker ends with its TaskManager, although a shell is in between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

WORKER = "import time\nfrom tacit.engines.flink.worker_guard import end_with_taskmanager\n"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_a_worker_ends_with_its_taskmanager(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        f"{WORKER}end_with_taskmanager()\nend_with_taskmanager()\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "shell").write_text(f"#!/bin/sh\n{sys.executable} {tmp_path / 'worker.py'}\ntrue\n")
    (tmp_path / "java").write_text(f"#!/bin/sh\n{tmp_path / 'shell'}\ntrue\n")
    for name in ("shell", "java"):
        (tmp_path / name).chmod(0o755)
    with subprocess.Popen([tmp_path / "java"], stdout=subprocess.PIPE) as taskmanager:
        assert taskmanager.stdout is not None
        assert taskmanager.stdout.readline() == b"ready\n"
        workers = psutil.Process(taskmanager.pid).children(recursive=True)
        try:
            assert len(workers) == 2
            taskmanager.kill()
            _, left = psutil.wait_procs(workers, timeout=120)
            assert not left
        finally:
            for worker in workers:
                if worker.is_running():
                    worker.kill()
