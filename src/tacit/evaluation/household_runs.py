"""Run smart homes through the engine: from tuples to true and protected answers."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.evaluation.baselines.decoding import compare
from tacit.evaluation.home import Homes, load_home_specification
from tacit.evaluation.measurement import compute_mre
from tacit.evaluation.methods import Method
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics


class HomeRuns:
    """Homes whose first half of the days is history, and the second half is answered."""

    def __init__(self, homes: int, days: timedelta, seed: int) -> None:
        self.spec = load_home_specification()
        self._seed = seed
        made = Homes(homes=homes, days=days // timedelta(days=1), seed=seed)
        turn = made.start + days / 2
        self._past: dict[str, pa.Table] = {}
        self._later: dict[str, pa.Table] = {}
        for stream, table in made.tables().items():
            times = table.column(self.spec.streams[stream].time)
            earlier = pc.less(times, pa.scalar(turn, times.type))
            self._past[stream] = table.filter(earlier)
            self._later[stream] = table.filter(pc.invert(earlier))
        self._statistics: dict[bool, list[Statistics]] = {}

    @cached_property
    def truth(self) -> NDArray[np.bool_]:
        """The true answers `[query][window][subject]`."""
        return _collect_answers(Run(self.spec, _inputs(self._later)))

    def measure_error(self, method: Method, epsilon: Fraction) -> float:
        """Measure the MRE of a protected run, with this epsilon for each private pattern."""
        literal = method.decode == "literal"
        if literal not in self._statistics:
            self._statistics[literal] = survey(self.spec, _inputs(self._past), literal=literal)
        share = epsilon / max(Fraction(private.epsilon) for private in self.spec.private)
        plan = make_plan(self.spec, self._statistics[literal], method.name, method.decode, share)
        noise = Noise(SeededSource(self._seed))
        found = _collect_answers(Run(self.spec, _inputs(self._later), plan=plan, noise=noise))
        return compute_mre(compare(self.truth, found), [query.alpha for query in self.spec.queries])


def _inputs(tables: dict[str, pa.Table]) -> list[Input]:
    return [Input(stream, FrameSource(table, stream)) for stream, table in tables.items()]


def _collect_answers(run: Run) -> NDArray[np.bool_]:
    """Collect the answers of a run, `[query][window][subject]`."""
    return np.concatenate([part.detected for part in run]).swapaxes(0, 1)
