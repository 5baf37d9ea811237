"""`python -m tacit.kernels PARENT`: help a process to compile the kernels named on its input."""

from __future__ import annotations

import json
import sys

from tacit.kernels.ahead import KernelSignature, help_compile

if __name__ == "__main__":
    help_compile([KernelSignature.of(one) for one in json.load(sys.stdin)], int(sys.argv[1]))
