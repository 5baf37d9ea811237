"""`make fuzz`: run the coverage-guided fuzzer over every parser and keep what it finds.

    python -m tests.fuzz.run [--seconds 60] [TARGET ...]

Inputs that reach new code are added to `tests/fuzz/corpus/TARGET`; one that breaks a promise is
written to `tests/fuzz/found/` and the command fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
_LONGEST = 4096


def fuzz(target: str, seconds: int) -> bool:
    """Fuzz one target in a process of its own; whether it kept its promises."""
    corpus, found = FOLDER / "corpus" / target, FOLDER / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzz.run", "--target", target,
        f"-max_total_time={seconds}", f"-max_len={_LONGEST}", "-print_final_stats=1",
        f"-artifact_prefix={found}/{target}-", str(corpus),
    ]  # fmt: skip
    print(f"{target}: {seconds} s ...", flush=True)
    # Kernels run as plain Python, so that the fuzzer sees which of their lines are reached.
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    return subprocess.run(command, check=False, env=environment).returncode == 0


def _fuzz_here(target: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["tacit"]):
        from tests.fuzz.targets import TARGETS

    atheris.Setup([sys.argv[0], *arguments], TARGETS[target])
    atheris.Fuzz()


def main() -> int:
    """Fuzz the targets that are named, by default all."""
    if "--target" in sys.argv:
        place = sys.argv.index("--target")
        _fuzz_here(sys.argv[place + 1], sys.argv[place + 2 :])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("targets", nargs="*", help="parsers to fuzz; by default all")
    options = parser.parse_args()
    from tests.fuzz.targets import TARGETS

    chosen = options.targets or list(TARGETS)
    broken = [target for target in chosen if not fuzz(target, options.seconds)]
    if broken:
        print(f"broken promises: {', '.join(broken)}; see {FOLDER / 'found'}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
