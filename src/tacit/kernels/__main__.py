"""`python -m tacit.kernels PARENT [ANCESTOR FEATURE...]`: help a process to compile kernels.

They are named on standard input. With features, they are the kernels of runs with one of these, and
help continues until an ancestor of the parent has ended. So `make demo` compiles as soon as Numba
is there, while everything else is being installed, and until the demo has ended.
"""

from __future__ import annotations

import json
import os
import sys

from tacit.kernels.ahead import KernelSignature, help_compile, help_install
from tacit.kernels.needs import find_kernels

if __name__ == "__main__":
    parent, *more = sys.argv[1:]
    if more:
        ancestor, *features = more
        wanted = [kernel for one in features for kernel in find_kernels({one})]
        help_install(wanted, int(parent), int(ancestor))
    else:
        wanted = [KernelSignature.of(one) for one in json.load(sys.stdin)]
        help_compile(wanted, lambda: os.getppid() == int(parent))
