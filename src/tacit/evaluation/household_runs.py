"""Run smart homes through the engine: from tuples to true and protected answers."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.evaluation.baselines.decoding import compare
from tacit.evaluation.home import Homes, load_home_specification
from tacit.evaluation.measurement import Streams, compute_scores
from tacit.evaluation.memory_steps import drop_memory
from tacit.evaluation.methods import Method
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Where, Within
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.planner import make_plan
from tacit.privacy.evidence import Decode
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Query, Specification


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

    def measure_errors(self, method: Method, epsilon: Fraction) -> NDArray[np.float64]:
        """Measure the scores of a protected run, with this epsilon for each private pattern."""
        literal = method.decode == "literal"
        if literal not in self._statistics:
            self._statistics[literal] = survey(self.spec, _inputs(self._past), literal=literal)
        share = epsilon / max(Fraction(private.epsilon) for private in self.spec.private)
        decode: Decode = "literal" if literal else "posterior"
        statistics = self._statistics[literal]
        spec = self.spec if method.decode == "memory" else drop_memory(self.spec)
        plan = make_plan(spec, statistics, method.name, decode, share, fall_back=False)
        noise = Noise(SeededSource(self._seed))
        found = _collect_answers(Run(spec, _inputs(self._later), plan=plan, noise=noise))
        alphas = [query.alpha for query in self.spec.boolean_queries]
        return compute_scores(compare(self.truth, found), alphas)


def make_home_days(homes: int, days: int, seed: int) -> tuple[Specification, Streams, Streams, int]:
    """Make homes for methods that use presence alone: what happened in which order is ignored.

    Returns the specification, with a conjunction in place of each sequence, history and test, and
    the number of windows of a day.
    """
    spec = load_home_specification()
    made = Homes(homes=homes, days=days, seed=seed)
    every = tuple(Query(name=name, consumer="all", pattern=Name(name)) for name in spec.events)
    plain = replace_parts(spec, private=(), queries=every)
    presence = _collect_answers(Run(plain, _inputs(made.tables()))).transpose(2, 1, 0)
    windows = timedelta(days=1) // timedelta(microseconds=spec.windows.size)
    turn = days // 2 * windows
    first = int(made.start.timestamp()) * 1_000_000 // spec.windows.size
    patterns = spec.query_patterns
    queries = tuple(
        Query(
            name=query.name,
            consumer=query.consumer,
            pattern=to_presence(patterns[query.name]),
            alpha=query.alpha,
        )
        for query in spec.boolean_queries
    )
    return (
        replace_parts(spec, queries=queries),
        Streams(np.ascontiguousarray(presence[:, :turn]), first),
        Streams(np.ascontiguousarray(presence[:, turn:]), first + turn),
        windows,
    )


def replace_parts(spec: Specification, **parts: Any) -> Specification:
    """Return the specification with some fields replaced, checked again."""
    kept = {name: getattr(spec, name) for name in spec.model_fields_set}
    return Specification(**kept | parts)


def to_presence(pattern: Pattern) -> Pattern:
    """Return what remains of a pattern without order, spans and conditions."""
    match pattern:
        case Seq(parts) | And(parts):
            return And(*map(to_presence, parts))
        case Or(parts):
            return Or(*map(to_presence, parts))
        case Not(part):
            return Not(to_presence(part))
        case Repeat(part, _, _) | Within(part, _) | Where(part, _):
            return to_presence(part)
    return pattern


def _inputs(tables: dict[str, pa.Table]) -> list[Input]:
    return [Input(stream, FrameSource(table, stream)) for stream, table in tables.items()]


def _collect_answers(run: Run) -> NDArray[np.bool_]:
    """Collect the answers of a run, `[query][window][subject]`."""
    return np.concatenate([part.detected for part in run]).swapaxes(0, 1)
