"""Compiled kernels on disk: complete, safe to write by several processes, never trusted blindly."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kernels.programs import MODULE, Programs, start

TOTAL = """
import sums
print(sums.total(np.arange(5, dtype=np.{})), compilations())
"""
USE = "import numpy as np\n" + TOTAL
KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ALL = "import numpy as np, sums\nfor kind in {}:\n  sums.total(np.arange(5, dtype=kind))\n"
END = """
import os
from tacit.kernels.cache import KernelCache
save, saved = KernelCache.save_overload, []
def end(*given):
    if len(saved) == 2:
        os._exit(0)
    saved.append(save(*given))
KernelCache.save_overload = end
"""
"""Ends the process when it has compiled its third kernel."""


def kept(cache: Path) -> list[Path]:
    """What is in the cache."""
    return sorted(cache.rglob("*.nbc"))


def test_a_kernel_is_compiled_once(programs: Programs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert programs.run(USE.format("int64"), cache).startswith("10 ")
    assert len(kept(cache)) == 1
    assert programs.run(USE.format("int64"), cache) == "10 0"
    moved = f"# A line more.\n{MODULE}"
    assert programs.run(USE.format("int64"), cache, module=moved) == "10 0"


def test_processes_that_compile_at_once_lose_nothing(programs: Programs, tmp_path: Path) -> None:
    """Numba's own cache loses entries here: each process writes the index that it read before."""
    cache = tmp_path / "cache"
    halves = [KINDS[:4], KINDS[4:], KINDS[2:6]]
    for program in [programs.start(ALL.format(half), cache) for half in halves]:
        program.finish()
    assert programs.run(ALL.format(KINDS) + "print(compilations())", cache) == "0"


def test_of_several_processes_one_compiles_and_the_others_wait(
    programs: Programs, tmp_path: Path
) -> None:
    code = ALL.format(KINDS[:4]) + "print(compilations())"
    alone = int(programs.run(code, tmp_path / "alone"))
    started = [programs.start(code, tmp_path / "cache") for _ in range(3)]
    assert sum(int(program.finish()) for program in started) == alone


def test_a_process_that_ends_as_it_compiles_leaves_what_it_finished_and_no_lock(
    programs: Programs, tmp_path: Path
) -> None:
    """`make soak` kills processes at random."""
    cache = tmp_path / "cache"
    programs.run(END + ALL.format(KINDS), cache)
    assert len(kept(cache)) == 2
    assert programs.run(ALL.format(KINDS[:2]) + "print(compilations())", cache) == "0"
    assert int(programs.run(ALL.format(KINDS) + "print(compilations())", cache)) < len(KINDS)


def test_a_damaged_file_is_compiled_anew(programs: Programs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    programs.run(USE.format("int64"), cache)
    file = kept(cache)[0]
    whole = file.read_bytes()
    turned = bytearray(whole)
    turned[len(whole) // 2] ^= 1
    for damaged in (b"", whole[:20], whole[:-1], bytes(turned)):
        file.write_bytes(damaged)
        assert programs.run(USE.format("int64"), cache) == "10 1"
        assert file.read_bytes() != damaged


def test_a_full_disk_is_no_reason_to_stop(tmp_path: Path) -> None:
    """No file may grow beyond a kilobyte."""
    limit = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    process = start(tmp_path, limit + USE.format("int64"), tmp_path / "cache")
    output, errors = process.communicate(timeout=60)
    assert output.startswith("10 ")
    assert "could not be stored" in errors
    assert "Traceback" not in errors
    assert kept(tmp_path / "cache") == []
    assert list((tmp_path / "cache").rglob("*.tmp")) == []


def test_old_files_of_another_source_are_removed(programs: Programs, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", MODULE.replace("* 0", "* 0 + 1")
    programs.run(USE.format("int64"), cache)
    first = kept(cache)
    assert programs.run(USE.format("int64"), cache, module=other).startswith("11 ")
    assert len(kept(cache)) == 2
    os.utime(first[0], (0, 0))
    programs.run(USE.format("int32"), cache, module=other)
    assert len(kept(cache)) == 2
    assert first[0] not in kept(cache)


def test_a_folder_that_you_name_is_the_only_one(programs: Programs, tmp_path: Path) -> None:
    programs.run(USE.format("int64"), None)
    assert len(kept(tmp_path / "__pycache__")) == 1
    assert programs.run(USE.format("int64"), tmp_path / "cache") != "10 0"
    assert len(kept(tmp_path / "cache")) == 1
