"""`python -m tacit.kernels PROCESS [FEATURE...]`: help a process to compile kernels.

They are named on standard input, and the process is the parent. With features, they are the kernels
of runs with one of these, and the process is an ancestor: so `make demo` compiles as soon as Numba
is there, while everything else is being installed, and until the demo has ended.
"""

from __future__ import annotations

import json
import os
import sys

from tacit.kernels.ahead import KernelSignature, help_compile, help_install
from tacit.kernels.needs import find_kernels

if __name__ == "__main__":
    process, features = int(sys.argv[1]), sys.argv[2:]
    if features:
        help_install([kernel for one in features for kernel in find_kernels({one})], process)
    else:
        wanted = [KernelSignature.of(one) for one in json.load(sys.stdin)]
        help_compile(wanted, lambda: os.getppid() == process)
