"""New terms while a run is under way: from one window on, none lost, none answered twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.answers.answers import Answers
from tacit.errors import PlanError, SpecificationError, StateError
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.engine import Engine, RefusedRows
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows
from tacit.planning.planner import plan_without_history
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load, loads

HEAD = """
version: 1
streams: {s: {subject: who, time: at, unit: us}}
windows: {size: 10 us, lateness: 12 us, future: 1 s}
"""
OLD = (
    HEAD
    + """
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
queries:
  - {name: both, consumer: x, pattern: "AND(a, b)"}
  - {name: rising, consumer: x, pattern: "SEQ(a x, b y) WHERE y.value > x.value"}
"""
)
NEW = (
    HEAD
    + """
events:
  c: {stream: s, where: "kind = 2"}
  b: {stream: s, where: "kind = 1"}
  a: {stream: s, where: "kind = 0"}
queries:
  - {name: order, consumer: y, pattern: "SEQ(c, b, a)"}
  - {name: both, consumer: x, pattern: "AND(a, c)"}
"""
)
WHO = (1, 2, 3)

Row = tuple[int, int, int, float]
Answer = tuple[int, int, str]


@cache
def terms(text: str = OLD) -> SpecVersion:
    """A specification that keeps nothing private, so that answers are true."""
    spec = loads(text)
    return SpecVersion(spec, plan_without_history(spec, "uniform"))


def registry(names: Sequence[int] = WHO) -> Subjects:
    """These subjects."""
    subjects = Subjects()
    subjects.add(list(names))
    return subjects


def rows(some: Sequence[Row]) -> Rows:
    """Raw tuples as a batch."""
    who, at, kind, value = zip(*some, strict=True) if some else ((), (), (), ())
    table = pa.record_batch(
        {
            "who": pa.array(who, pa.int64()),
            "at": pa.array(at, pa.int64()),
            "kind": pa.array(kind, pa.int8()),
            "value": pa.array(value, pa.float64()),
        }
    )
    return Rows("s", table)


class FedEngine:
    """An engine that is fed, reloaded, killed and resumed."""

    def __init__(
        self,
        given: SpecVersion,
        learn: int = 0,
        *,
        ticking: bool = False,
        who: Sequence[int] = WHO,
    ) -> None:
        self.learn, self.ticking, self.who = learn, ticking, who
        self.answers: dict[Answer, bool] = {}
        self.refused: list[tuple[int, int]] = []
        self.engine = self.made(given)

    def made(self, given: SpecVersion) -> Engine:
        """A fresh engine."""
        noise = Noise(SeededSource(1))
        return Engine(
            given.compile(noise),
            registry(() if self.learn else self.who),
            version=given,
            noise=noise,
            learn=self.learn,
            refused=self.note,
            ticking=self.ticking,
        )

    def note(self, refused: RefusedRows) -> None:
        """Remember what was refused."""
        times, reasons = refused.times.tolist(), refused.reasons.tolist()
        self.refused += list(zip(times, reasons, strict=True))

    def take(self, some: Sequence[Row]) -> None:
        """Feed it a batch; steps of a reload are taken as soon as they are due."""
        self.keep(self.engine.push(rows(some)))
        while self.engine.due:
            self.engine.advance()

    def finish(self) -> dict[Answer, bool]:
        """Close all windows."""
        self.keep(self.engine.finish())
        return self.answers

    def keep(self, answers: object) -> None:
        """Remember answers; none may come twice."""
        for part in answers:  # type: ignore[attr-defined]
            assert isinstance(part, Answers)
            table = part.table()
            starts = table["window_start"].cast(pa.int64()).to_pylist()
            columns = (table[name].to_pylist() for name in ("subject", "query", "detected"))
            for start, subject, query, detected in zip(starts, *columns, strict=True):
                key = start, int(subject), query
                assert key not in self.answers
                self.answers[key] = detected

    def offer(self, given: SpecVersion) -> None:
        """Reload."""
        self.engine.offer(given)
        while self.engine.due:
            self.engine.advance()

    @property
    def version(self) -> SpecVersion:
        """The version in use."""
        assert self.engine.windows.version is not None
        return self.engine.windows.version

    def find_version(self, closed: ClosedWindows) -> SpecVersion:
        """The version of closed windows."""
        version = self.engine.windows.find_version(closed)
        assert version is not None
        return version

    def crash(self, given: SpecVersion | None) -> None:
        """Lose the process, and go on from its last checkpoint in another."""
        assert given is not None
        snapshot = self.engine.snapshot()
        self.engine = self.made(given)
        self.engine.restore(snapshot)
        while self.engine.due:
            self.engine.advance()


def alone(given: SpecVersion, all_rows: Sequence[Row]) -> tuple[dict[Answer, bool], FedEngine]:
    """The answers of a run that is never reloaded."""
    run = FedEngine(given)
    run.take(all_rows)
    return run.finish(), run


tuples = st.lists(
    st.tuples(
        st.sampled_from((1, 2, 3, 9)),  # 9 is not registered
        st.integers(0, 90),
        st.integers(0, 2),
        st.sampled_from((0.0, 1.0, 2.0)),
    ),
    max_size=40,
).map(lambda some: sorted(some, key=lambda row: row[1] // 15))
"""Roughly in order: some are late, some open windows lie before the newest."""
cuts = st.lists(st.integers(0, 40), max_size=6)


@settings(max_examples=40)
@given(tuples, cuts, st.integers(0, 40), st.integers(0, 40))
def test_windows_before_the_boundary_are_the_old_ones_and_from_there_on_the_new_ones(
    some: list[Row], where: list[int], reload_at: int, crash_at: int
) -> None:
    """Whatever the batches are, wherever it is reloaded, and wherever the process is lost."""
    old, new = terms(OLD), terms(NEW)
    run = FedEngine(old)
    boundary = None
    stops = sorted({0, len(some), *(min(n, len(some)) for n in (*where, reload_at, crash_at))})
    for begin, end in zip(stops, [*stops[1:], len(some)], strict=True):
        if begin == min(reload_at, len(some)):
            boundary = run.engine.clock.ended * 10 if run.engine.clock.newest is not None else None
            run.offer(new)
        if begin == min(crash_at, len(some)):
            run.crash(run.engine.latest)
        run.take(some[begin:end])
    before, plain = alone(old, some)
    after, _ = alone(new, some)
    expected = {key: yes for key, yes in before.items() if boundary and key[0] < boundary}
    expected |= {key: yes for key, yes in after.items() if not boundary or key[0] >= boundary}
    assert run.finish() == expected
    assert run.refused == plain.refused
    assert run.engine.counts.tolist() == plain.engine.counts.tolist()


FLOW = [(1, t, t % 3, float(t % 2)) for t in range(0, 100, 2)]


def test_while_old_windows_are_open_both_terms_are_used_then_the_old_ones_are_given_up() -> None:
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])  # up to 38: the windows of 20 and 30 are open
    new = terms(NEW)
    run.offer(new)
    assert run.engine.windows.next is not None
    assert run.engine.windows.next.boundary == 4
    assert run.engine.columns("s") == ("who", "at", "kind", "value")
    run.take(FLOW[20:26])  # up to 50: the window of 30 is still open
    assert run.engine.windows.next is not None
    run.take(FLOW[26:])
    assert run.engine.windows.next is None
    assert run.engine.windows.version is new
    assert run.engine.columns("s") == ("who", "at", "kind")


def test_each_window_is_answered_under_the_terms_that_it_belongs_to() -> None:
    run = FedEngine(terms(OLD))
    old, new = run.engine.windows.version, terms(NEW)
    run.take(FLOW[:20])
    run.engine.offer(new)
    run.engine.advance()
    engine = run.engine
    for handed in engine.insert(MergedBatch.from_batch(engine.extract(rows(FLOW[20:])))):
        mine = run.find_version(handed)
        assert mine is (old if handed.panes.first < 4 else new)
        assert list(engine.answer(handed).queries) == [query.name for query in mine.spec.queries]


def test_a_tuple_at_the_very_start_of_the_boundary_belongs_to_the_new_terms() -> None:
    """The window from 40 on is the first new one: what comes at 40 counts in it, and only there."""
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    run.offer(terms(NEW))
    run.take([(1, 39, 0, 0.0), (2, 39, 1, 0.0), (2, 40, 0, 0.0), (1, 40, 2, 0.0)])
    run.take([(1, 40, 0, 0.0), (3, 49, 0, 0.0), (3, 49, 2, 0.0)])
    found = run.finish()
    assert [found[40, who, "both"] for who in WHO] == [True, False, True]
    assert [found[40, who, "order"] for who in WHO] == [False] * 3
    assert [found[30, who, "both"] for who in WHO] == [True, False, False]
    assert (30, 1, "order") not in found
    assert (40, 1, "rising") not in found


def test_a_reload_before_the_first_tuple_takes_effect_at_once() -> None:
    run, new = FedEngine(terms(OLD)), terms(NEW)
    run.offer(new)
    assert run.engine.windows.version is new
    assert run.engine.windows.next is None


def test_terms_that_come_while_others_are_taken_up_wait_for_their_turn() -> None:
    """The last of them counts; those in between are never used."""
    third = terms(NEW.replace("SEQ(c, b, a)", "SEQ(a, c)"))
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    run.offer(terms(NEW))
    run.offer(terms(NEW.replace("SEQ(c, b, a)", "SEQ(b, c)")))
    run.offer(third)
    run.crash(third)
    run.take(FLOW[20:32])  # up to 62: the windows before 50 are closed
    run.take(FLOW[32:])
    answers = run.finish()
    assert run.version.digest == third.digest
    after, _ = alone(third, FLOW)
    assert {key: answers[key] for key in after if key[0] >= 70} == {
        key: yes for key, yes in after.items() if key[0] >= 70
    }
    assert len({start for start, _, _ in answers}) == 10


def test_a_specification_that_changed_while_nothing_ran_is_taken_up_at_the_next_start() -> None:
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    run.crash(terms(NEW))
    assert run.engine.windows.next is not None
    run.take(FLOW[20:])
    before, _ = alone(terms(OLD), FLOW)
    after, _ = alone(terms(NEW), FLOW)
    assert run.finish() == {k: v for k, v in before.items() if k[0] < 40} | {
        k: v for k, v in after.items() if k[0] >= 40
    }


def test_another_plan_for_the_same_specification_is_taken_up_as_well() -> None:
    private = OLD + "private: [{pattern: 'AND(a, b)', epsilon: 1}]\n"
    spec = loads(private)
    one = SpecVersion(spec, plan_without_history(spec, "uniform"))
    other = SpecVersion(spec, plan_without_history(spec, "optimal", None, {"a": 0.5, "b": 0.5}))
    assert one.digest != other.digest
    run = FedEngine(one)
    run.take(FLOW[:20])
    run.offer(other)
    run.take(FLOW[20:])
    assert run.engine.windows.version is other
    assert {start for start, _, _ in run.finish()} == set(range(0, 100, 10))


def test_who_asked_a_query_is_known_as_long_as_its_answers_may_be_on_their_way() -> None:
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    run.offer(terms(NEW))
    run.take(FLOW[20:])
    assert run.version.consumers == {"order": "y", "both": "x"}
    run.crash(run.engine.latest)
    assert run.engine.windows.consumers == {"order": "y", "both": "x", "rising": "x"}


def test_while_subjects_are_learned_new_terms_wait() -> None:
    run = FedEngine(terms(OLD), learn=30)
    run.take(FLOW[:10])
    run.offer(terms(NEW))
    assert run.engine.windows.next is None
    run.take(FLOW[10:30])
    run.take(FLOW[30:])
    assert run.version.spec.queries[0].name == "order"
    learned = {who for _, who, _ in run.finish()}
    assert learned == {1}


def test_subjects_that_are_added_have_answers_from_the_boundary_on() -> None:
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    run.offer(terms(NEW + "subjects: [1, 2, 3, 4]\n"))
    run.crash(run.engine.latest)
    run.take([(4, 39, 2, 0.0), *FLOW[20:], (4, 98, 2, 0.0)])
    answers = run.finish()
    assert {start for start, who, _ in answers if who == 4} == set(range(40, 100, 10))
    assert run.refused == [(39, 3)]


def test_terms_that_have_not_changed_are_not_taken_up_again(tmp_path: Path) -> None:
    """But subjects that were added to the file are registered, and get answers."""
    (tmp_path / "who.txt").write_text("1\n2\n3\n")
    (tmp_path / "spec.yaml").write_text(OLD + "subjects: {file: who.txt}\n")
    spec = load(tmp_path / "spec.yaml")
    run = FedEngine(SpecVersion(spec, plan_without_history(spec, "uniform")))
    run.take(FLOW[:20])
    (tmp_path / "who.txt").write_text("1\n2\n3\n4\n")
    run.offer(SpecVersion(spec, plan_without_history(spec, "uniform")))
    assert run.engine.windows.next is None
    run.take(FLOW[20:])
    answers = run.finish()
    assert {start for start, who, _ in answers if who == 4} == set(range(40, 100, 10))
    assert {k: v for k, v in answers.items() if k[1] < 4} == alone(terms(OLD), FLOW)[0]


def test_numbers_that_are_listed_are_their_digits() -> None:
    given = terms(NEW + "subjects: [1, 2, 3]\n")
    noise = Noise(SeededSource(1))
    names = Subjects()
    names.add(["1", "2"])
    engine = Engine(terms(OLD).compile(noise), names, version=terms(OLD), noise=noise)
    engine.offer(given)
    engine.advance()
    assert engine.windows.version is given
    assert engine.subjects.names.to_pylist() == ["1", "2", "3"]


def test_subjects_heard_of_too_late_to_be_learned_can_be_listed() -> None:
    run = FedEngine(terms(OLD), learn=30)
    run.take([*FLOW[:20], (7, 40, 0, 0.0), *FLOW[20:30]])
    run.take([])
    run.offer(terms(NEW + "subjects: [1, 7]\n"))
    assert run.engine.windows.next is not None
    boundary = run.engine.windows.next.boundary * 10
    run.crash(run.engine.latest)
    run.take(FLOW[30:])
    answers = run.finish()
    assert {start for start, who, _ in answers if who == 7} == set(range(boundary, 100, 10))
    assert {start for start, who, _ in answers if who == 1} == set(range(0, 100, 10))


@pytest.mark.parametrize("heard", [(), (7,), (8,), (8, 7)])
@pytest.mark.parametrize("stopped", [False, True])
def test_added_subjects_come_in_the_order_of_the_list_heard_of_or_not(
    heard: tuple[int, ...], stopped: bool
) -> None:
    """The order of rows would tell who had sent something, though it was refused."""
    run = FedEngine(terms(OLD), learn=30)
    run.take([*FLOW[:20], *[(who, 40, 0, 0.0) for who in heard], *FLOW[20:30]])
    run.take([])
    later = terms(NEW + "subjects: [1, 7, 9, 8]\n")
    if stopped:
        run.crash(later)
        run.engine.register(["1", "7", "9", "8", "7"])
    else:
        run.offer(later)
    closed = run.engine.push(rows(FLOW[30:]))
    last = list(closed)[-1].table().filter(pc.field("query") == "order")
    assert last["subject"].to_pylist()[-4:] == ["1", "7", "9", "8"]


PRIVATE = OLD + "private: [{pattern: a, epsilon: 1, subjects: [1, 7]}]\n"


def test_named_subjects_must_be_registered_when_subjects_have_been_learned() -> None:
    """A subject that is heard of too late is not registered; no window is given before."""
    late = [*FLOW[:20], (7, 40, 0, 0.0), *FLOW[20:30]]
    run = FedEngine(terms(PRIVATE), learn=30)
    with pytest.raises(SpecificationError, match="1 subject that the registry does not have: '7'"):
        run.take(late)
    assert not run.answers
    run = FedEngine(terms(PRIVATE), learn=30)
    run.take([(7, 5, 0, 0.0), *late])
    assert run.finish()


def test_an_input_that_ends_while_subjects_are_learned_is_checked_too() -> None:
    run = FedEngine(terms(PRIVATE), learn=1000)
    run.take(FLOW)
    with pytest.raises(SpecificationError, match="'7'"):
        run.finish()
    assert not run.answers


def test_terms_that_are_offered_while_subjects_are_learned_are_checked_with_the_registry() -> None:
    run = FedEngine(terms(OLD), learn=30)
    run.take(FLOW[:5])
    run.offer(terms(PRIVATE))
    with pytest.raises(SpecificationError, match="'7'"):
        run.take(FLOW[5:])
    assert not run.answers


def test_terms_that_add_whom_they_name_to_the_registry_are_right() -> None:
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    with pytest.raises(SpecificationError, match="'7'"):
        run.offer(terms(PRIVATE))
    run.offer(terms(PRIVATE + "subjects: [1, 2, 3, 7]\n"))
    run.take(FLOW[20:])
    assert run.finish()


def test_a_state_whose_own_terms_name_somebody_in_vain_is_not_gone_on_with() -> None:
    """Older versions warned of it, and released."""
    run = FedEngine(terms(PRIVATE), learn=30)
    run.engine.check_names = run.engine._check_protected = lambda: None  # type: ignore[method-assign]
    run.take(FLOW[:30])
    assert run.answers
    run.crash(terms(PRIVATE))
    with pytest.raises(SpecificationError, match="'7'"):
        run.take(FLOW[30:])


def test_what_is_offered_is_looked_at_for_names_that_look_alike() -> None:
    run = FedEngine(terms(OLD))
    run.engine.check_names()
    assert run.engine.warnings == []
    run.offer(terms(PRIVATE.replace("[1, 7]", "[1]") + "subjects: [1, 2, 3, '01']\n"))
    run.engine.check_names()
    (told,) = run.engine.warnings
    assert "'01' looks like '1'" in told


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (NEW.replace("size: 10 us", "size: 20 us"), "windows cannot be changed"),
        (NEW.replace("lateness: 12 us", "lateness: 1 us"), "windows cannot be changed"),
        (NEW.replace("who, time", "whom, time"), "streams cannot be changed"),
        (NEW.replace("consumer: x", "consumer: z"), "both belongs to another consumer"),
        (NEW + "subjects: [1, 2]\n", "1 subject would lose their answers"),
        (NEW + "subjects: [one, two, three]\n", "3 subjects would lose their answers"),
        (
            NEW + "private: [{pattern: a, epsilon: 1, subjects: ['01']}]\n",
            r"1 subject that the registry does not have: '01' \(did you mean '1'",
        ),
    ],
)
def test_what_cannot_change_while_it_runs_is_refused_and_the_old_terms_stay(
    text: str, complaint: str
) -> None:
    run = FedEngine(terms(OLD))
    run.take(FLOW[:20])
    with pytest.raises(SpecificationError, match=complaint):
        run.offer(terms(text))
    assert not run.engine.due
    run.take(FLOW[20:])
    assert run.finish() == alone(terms(OLD), FLOW)[0]


def test_every_obstacle_is_told_at_once() -> None:
    run = FedEngine(terms(OLD))
    changed = NEW.replace("10 us", "20 us").replace("who, time", "whom, time")
    with pytest.raises(SpecificationError) as error:
        run.offer(terms(changed))
    assert len(error.value.mistakes) == 2


def test_a_plan_for_another_specification_is_refused() -> None:
    run = FedEngine(terms(OLD))
    with pytest.raises(PlanError, match="another specification"):
        run.offer(SpecVersion(loads(NEW), plan_without_history(loads(OLD), "uniform")))


@pytest.mark.parametrize("ahead", [None, 6, 17, 27, 29, 30, 500])
@pytest.mark.parametrize(
    ("future", "boundary"), [("", 2), (", future: 24 us", 3), (", future: 1 d", 256)]
)
def test_windows_that_close_by_the_clock_change_where_no_tuple_can_have_reached(
    ahead: int | None, future: str, boundary: int
) -> None:
    """The clock alone decides it: not how far ahead of it somebody's tuple is."""
    ticking = HEAD.replace(", future: 1 s", f", close: clock{future}")
    run = FedEngine(terms(OLD.replace(HEAD, ticking)), ticking=True)
    engine = run.engine
    list(engine.tick(5))
    run.take([(1, 5, 0, 0.0), *([] if ahead is None else [(1, ahead, 2, 0.0)])])
    run.offer(terms(NEW.replace(HEAD, ticking)))
    assert engine.windows.next is not None
    assert engine.windows.next.boundary == boundary
    run.crash(engine.latest)
    assert run.engine.windows.next is not None
    handed = run.engine.tick(10 * boundary + 22)
    seen = [run.find_version(part).spec.queries[0].name for part in handed]
    assert (seen[0], seen[-1]) == ("both", "order")


def test_terms_are_kept_with_their_files_and_come_back_under_their_fingerprint(
    tmp_path: Path,
) -> None:
    """The files may have changed when they are wanted."""
    square = {"type": "Polygon", "coordinates": [[[0, 0], [2, 0], [2, 2], [0, 2], [0, 0]]]}
    (tmp_path / "square.geojson").write_text(json.dumps(square))
    (tmp_path / "who.txt").write_text("1\n2\n")
    (tmp_path / "spec.yaml").write_text(
        """
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
areas: {square: {geojson: square.geojson}}
events: {inside: {stream: s, inside: square}}
private: [{pattern: inside, epsilon: 0.5, limit: 20 per day}]
queries: [{name: q, consumer: c, pattern: inside}]
subjects: {file: who.txt}
"""
    )
    spec = load(tmp_path / "spec.yaml")
    kept = SpecVersion(spec, plan_without_history(spec, "uniform"))
    packed = kept.packed
    (tmp_path / "square.geojson").unlink()
    (tmp_path / "who.txt").unlink()
    found = SpecVersion.unpack(packed)
    assert found.spec.fingerprint == kept.spec.fingerprint
    assert found.digest == kept.digest
    assert found.packed == packed
    assert found.plan.to_dict()["schemes"] == kept.plan.to_dict()["schemes"]
    found.compile(Noise())
    inside = found.spec.areas["square"].shape(Path())
    assert inside.contains(np.array([1.0, 3.0]), np.array([1.0, 3.0])).tolist() == [True, False]


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b'{"succession": 1, "sizes": [4]}\nabc'])
def test_a_damaged_checkpoint_is_refused(damaged: bytes) -> None:
    with pytest.raises(StateError, match="not a checkpoint"):
        FedEngine(terms(OLD)).engine.restore(damaged)


def test_specifications_in_tests_differ_in_the_order_of_their_events() -> None:
    """Else bits of one could pass for those of the other."""
    specs: list[Specification] = [loads(OLD), loads(NEW)]
    assert list(specs[0].events) != list(specs[1].events)
