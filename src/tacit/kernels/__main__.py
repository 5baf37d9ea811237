"""`python -m tacit.kernels PARENT [FEATURE...]`: help a process to compile kernels.

They are named on standard input. With features, they are those of runs with one of these; kernels
of modules that need packages which are not installed are left out. So `make demo` can compile as
soon as Numba is there, while everything else is being installed.
"""

from __future__ import annotations

import json
import sys

from tacit.kernels.ahead import KernelSignature, help_compile
from tacit.kernels.needs import find_kernels

if __name__ == "__main__":
    parent, *features = sys.argv[1:]
    wanted = (
        [kernel for one in features for kernel in find_kernels({one})]
        if features
        else [KernelSignature.of(one) for one in json.load(sys.stdin)]
    )
    help_compile(wanted, int(parent))
