"""Measure randomised response of OpenDP and diffprivlib, in a separate environment.

Prints, as JSON, the time of each in its best round, the number of bits, and the number of flips.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import numpy as np
import opendp.prelude as dp
from diffprivlib.mechanisms import Binary

# Long vectors suit OpenDP best; diffprivlib takes one bit at a time.
_VECTOR = 1 << 20
_SINGLE = 20_000


def _opendp(epsilon: float) -> int:
    """Flip bits; RAPPOR's f is twice the flip probability."""
    dp.enable_features("contrib")
    flip = dp.m.make_randomized_response_bitvec(
        dp.bitvector_domain(max_weight=_VECTOR),
        dp.discrete_distance(),
        f=2 / (1 + math.exp(epsilon)),
    )
    flipped = np.frombuffer(flip(bytes(_VECTOR // 8)), dtype=np.uint8)
    return int(np.unpackbits(flipped).sum())


def _diffprivlib(epsilon: float) -> int:
    flip = Binary(epsilon=epsilon, value0="0", value1="1").randomise
    return sum(flip("0") == "1" for _ in range(_SINGLE))


def _best(run: Callable[[float], int], epsilon: float, bits: int, rounds: int) -> dict[str, object]:
    """Return the least time of several rounds, without the first."""
    run(epsilon)
    spent = [math.inf, math.inf]
    for _ in range(rounds):
        elapsed, processor = time.perf_counter(), time.process_time()
        flipped = run(epsilon)
        now = time.perf_counter() - elapsed, time.process_time() - processor
        spent = [min(pair) for pair in zip(spent, now, strict=True)]
    return {"spent": spent, "bits": bits, "flipped": flipped}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    asked = parser.parse_args()
    found = {
        "OpenDP bit vector": _best(_opendp, asked.epsilon, _VECTOR, asked.rounds),
        "diffprivlib Binary": _best(_diffprivlib, asked.epsilon, _SINGLE, asked.rounds),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
