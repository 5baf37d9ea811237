"""`tacit doctor` finds a problem exactly where `tacit run` refuses to start, in the same words."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import tacit
from tacit.errors import TacitError
from tacit.ledger.ledger import Ledger
from tacit.pipeline.reader import Reader
from tacit.pipeline.sources import Batch, Source
from tests.cli.small_runs import SPEC, tuples

UNIFORM = SPEC + "mechanism: uniform\n"
LIMITED = UNIFORM.replace("epsilon: 2", "epsilon: 2, limit: 200 per day")
NAMED = UNIFORM.replace("epsilon: 2", "epsilon: 2, subjects: ['77']")
BY_CLOCK = UNIFORM.replace("1 min}", "1 min, close: clock}")
TWO_STREAMS = UNIFORM.replace("streams: {", "streams: {t: {subject: who, time: at}, ")


class LiveSource(Source):
    """Tuples that come as they happen."""

    name = "live"
    unit = "rows"
    textual = False
    keyed = False
    once = True
    live = True
    total = None

    def schema(self) -> pa.Schema:
        """The columns of the specification."""
        return pa.schema([("who", pa.string()), ("at", pa.int64()), ("kind", pa.string())])

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Nobody reads it here."""
        raise AssertionError("a run that is refused reads nothing")


class Place:
    """A folder with a specification and tuples; what a run is given."""

    def __init__(self, folder: Path, text: str = UNIFORM) -> None:
        self.folder = folder
        self.spec = self.write("spec.yaml", text)
        self.sent = tuples(folder / "sent.csv", seed=2, windows=5)

    def write(self, name: str, content: str | bytes) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def given(self, *sources: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `tacit.run` and `tacit.doctor`."""
        options.setdefault("to", self.folder / "answers.jsonl")
        return (self.spec, *(sources or (self.sent,))), options

    @property
    def ledger(self) -> Path:
        """Where the ledger of a run is."""
        return self.folder / "l.db"

    def run(self, **options: Any) -> Place:
        """The same place after a run with the ledger that ended well."""
        given, named = self.given(ledger=self.ledger, **options)
        tacit.run(*given, **named)
        return self


Given = tuple[tuple[Any, ...], dict[str, Any]]
Prepare = Callable[[Place], Given]
REFUSED: dict[str, Prepare] = {}
SOUND: dict[str, Prepare] = {}


def refused(prepare: Prepare) -> Prepare:
    """A set-up that a run refuses."""
    REFUSED[prepare.__name__] = prepare
    return prepare


def sound(prepare: Prepare) -> Prepare:
    """A set-up that runs."""
    SOUND[prepare.__name__] = prepare
    return prepare


def each(names: dict[str, Callable[[Place], Given]]) -> None:
    """Many short ones."""
    REFUSED.update(names)


def respecified(place: Place, text: str, *sources: Any, **options: Any) -> Given:
    """With another specification."""
    place.write("spec.yaml", text)
    return place.given(*sources, **options)


def removed(path: Path) -> Path:
    path.unlink()
    return path


# Options

each(
    {
        "a name without a ledger": lambda at: at.given(name="n"),
        "following without a ledger": lambda at: at.given(follow=True),
        "an empty name": lambda at: at.given(ledger=at.ledger, name=" "),
        "a duration to retain that is none": lambda at: at.given(ledger=at.ledger, retain="x"),
        "a ledger that is nowhere": lambda at: at.given(ledger=True),
        "two registries": lambda at: at.given(subjects=at.write("names", "0\n"), learn="1 h"),
        "a duration to learn that is none": lambda at: at.given(learn="soon"),
        "no time to learn": lambda at: at.given(learn="0 s"),
    }
)

# The specification and the plan

each(
    {
        "no specification": lambda at: (removed(at.spec), at.given())[1],
        "mistakes in the specification": lambda at: respecified(
            at, UNIFORM.replace("epsilon: 2", "epsilon: -2").replace("OR(a", "OR(aa")
        ),
        "a mechanism that needs a plan": lambda at: respecified(at, SPEC),
        "no plan": lambda at: at.given(plan=at.folder / "plan.json"),
        "a file that is no plan": lambda at: at.given(plan=at.write("plan.json", "[]")),
        "a plan with another mechanism": lambda at: at.given(plan=planned(at), mechanism="optimal"),
        "a damaged plan": lambda at: at.given(plan=damaged(planned(at))),
    }
)


def planned(place: Place) -> Path:
    """A plan in a file."""
    path = place.folder / "plan.json"
    tacit.plan(place.spec, mechanism="uniform", out=path)
    return path


def damaged(plan: Path) -> Path:
    plain = json.loads(plan.read_text())
    plain["schemes"][0].pop("components", None)
    plain["schemes"][0].pop("flips", None)
    plan.write_text(json.dumps({**plain, "windows": "many", "schemes": [{}]}))
    return plan


@refused
def a_plan_for_another_specification(place: Place) -> Given:
    plan = planned(place)
    return respecified(place, UNIFORM.replace("epsilon: 2", "epsilon: 1"), plan=plan)


# The registry

each(
    {
        "no file of subjects": lambda at: at.given(subjects=at.folder / "names"),
        "an empty file of subjects": lambda at: at.given(subjects=at.write("names", "\n")),
        "a protected name that is not registered": lambda at: respecified(
            at, NAMED, subjects=at.write("names", "0\n1\n")
        ),
        "a protected name that does not occur": lambda at: respecified(at, NAMED),
    }
)

# Sources

each(
    {
        "no source": lambda at: at.given(at.folder / "nope.csv"),
        "a file of no known kind": lambda at: at.given(at.write("sent.xls", "x")),
        "a folder without files": lambda at: at.given(at.write("in/x.xls", "x").parent),
        "files of several kinds": lambda at: at.given(
            (at.write("in/x.csv", "x\n"), at.write("in/x.jsonl", "{}\n"))[0].parent
        ),
        "a stream that is not there": lambda at: at.given({"u": at.sent}),
        "a source of an unknown stream": lambda at: respecified(at, TWO_STREAMS),
        "a stream without a source": lambda at: respecified(at, TWO_STREAMS, {"s": at.sent}),
        "standard input for two streams": lambda at: respecified(
            at, TWO_STREAMS, {"s": "-", "t": "-"}
        ),
        "an empty file": lambda at: at.given(at.write("sent.csv", "")),
        "a missing column": lambda at: at.given(at.write("sent.csv", "who,at\nu,1\n")),
        "missing columns in two sources": lambda at: at.given(
            at.write("a.csv", "who,at\nu,1\n"), at.write("b.csv", "who,kind\nu,a\n")
        ),
        "a column that is there twice": lambda at: at.given(
            at.write("sent.csv", "who,at,kind,kind\nu,1,a,b\n")
        ),
        "a file that is not what it is called": lambda at: at.given(
            at.write("sent.parquet", "PAR1, not")
        ),
        "a time that is none": lambda at: at.given(
            parquet(at, {"who": ["u"], "at": [True], "kind": ["a"]})
        ),
        "a source that is given twice": lambda at: at.given(at.sent, at.sent, ledger=at.ledger),
        "files by the clock": lambda at: respecified(at, BY_CLOCK, ledger=at.ledger),
        "a URL of no connector": lambda at: at.given("gopher://host/x", ledger=at.ledger),
        "a live source without a ledger": lambda at: at.given(LiveSource()),
        "following a kind of file that cannot grow": lambda at: at.given(
            parquet(at, {"who": ["u"], "at": [1], "kind": ["a"]}), ledger=at.ledger, follow=True
        ),
        "following a file without the columns": lambda at: at.given(
            at.write("sent.csv", "who,at\nu,1\n"), ledger=at.ledger, follow=True
        ),
    }
)


def parquet(place: Place, columns: dict[str, list[Any]], name: str = "sent.parquet") -> Path:
    path = place.folder / name
    pl.DataFrame(columns).write_parquet(path)
    return path


@refused
def a_column_of_unknown_type(place: Place) -> Given:
    text = UNIFORM.replace("""SEQ(c, d)\"""", """SEQ(c x, d y WHERE x.v = y.v)\"""")
    assert text != UNIFORM
    sent = place.write("sent.csv", "who,at,kind,v\nu,1,a,2\n")
    return respecified(place, text, sent)


@refused
def types_that_differ_between_sources(place: Place) -> Given:
    text = UNIFORM.replace("""SEQ(c, d)\"""", """SEQ(c x, d y WHERE x.v = y.v)\"""")
    row: dict[str, list[Any]] = {"who": ["u"], "at": [1], "kind": ["a"]}
    one = parquet(place, {**row, "v": [2]}, "one.parquet")
    other = parquet(place, {**row, "v": ["two"]}, "two.parquet")
    return respecified(place, text, one, other)


# The ledger

each(
    {
        "a limit without a ledger": lambda at: respecified(at, LIMITED),
        "a ledger without a folder": lambda at: at.given(ledger=at.folder / "no" / "l.db"),
        "a folder for a ledger": lambda at: at.given(ledger=at.folder),
        "a file that is no database": lambda at: at.given(ledger=at.write("l.db", "x" * 4096)),
        "another database": lambda at: at.given(ledger=changed(at, "CREATE TABLE other (x)")),
        "a ledger of a newer version": lambda at: at.given(
            ledger=(changed(at.run(), "UPDATE tacit_version SET version_num = '9999'"))
        ),
        "a URL of no ledger": lambda at: at.given(ledger="mysql://host/ledger"),
        "a damaged checkpoint": lambda at: at.given(
            ledger=(changed(at.run(), "UPDATE tacit_checkpoints SET checkpoint = x'00'"))
        ),
        "a seed for a run without": lambda at: at.run().given(ledger=at.ledger, seed=1),
        "no seed for a run with one": lambda at: at.run(seed=1).given(ledger=at.ledger),
    }
)


def changed(place: Place, statement: str) -> Path:
    """The ledger after a statement in SQL."""
    with sqlite3.connect(place.ledger) as connection:
        connection.execute(statement)
    connection.close()
    return place.ledger


@refused
def a_checkpoint_of_another_format(place: Place) -> Given:
    with Ledger.open(str(place.ledger)) as ledger:
        ledger.take_over("spec", "0" * 64).commit(b"something else")
    return place.given(ledger=place.ledger)


@refused
def other_windows_than_those_of_the_run(place: Place) -> Given:
    place.run()
    text = UNIFORM.replace("size: 1 min", "size: 2 min")
    return respecified(place, text, ledger=place.ledger)


@refused
def a_folder_without_the_file_that_was_read(place: Place) -> Given:
    folder = place.folder / "in"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        tuples(folder / name, seed=2, windows=5)
    given, named = place.given(folder, ledger=place.ledger)
    tacit.run(*given, **named)
    removed(folder / "b.csv")
    tuples(folder / "c.csv", seed=3, windows=5)
    return given, named


# Where answers go

each(
    {
        "a broker without a ledger": lambda at: at.given(to="mqtt://127.0.0.1/t/{consumer}"),
        "a file of no kind": lambda at: at.given(to=at.folder / "answers.txt"),
        "a file without a folder": lambda at: at.given(to=at.folder / "no" / "a.csv"),
        "a folder for a file": lambda at: at.given(to=at.write("a.csv/x", "").parent),
        "a template without a folder": lambda at: at.given(to=at.folder / "no" / "{consumer}.csv"),
        "an unknown placeholder": lambda at: at.given(to=at.folder / "{nobody}.csv"),
        "a file that cannot be added to": lambda at: at.given(
            to=at.folder / "a.parquet", ledger=at.ledger
        ),
        "a file of a ledger without a folder": lambda at: at.given(
            to=at.folder / "no" / "a.csv", ledger=at.ledger
        ),
        "a folder of a ledger without a folder": lambda at: at.given(
            to=f"{at.folder}/no/answers/", ledger=at.ledger
        ),
        "a template of a ledger without a folder": lambda at: at.given(
            to=at.folder / "no" / "{consumer}.csv", ledger=at.ledger
        ),
        "a URL of no sink": lambda at: at.given(to="gopher://host/x", ledger=at.ledger),
        "answers over the source": lambda at: at.given(to=at.sent),
        "answers over the plan": lambda at: at.given(
            plan=planned(at).rename(at.folder / "plan.jsonl"), to=at.folder / "plan.jsonl"
        ),
        "answers that may go over the source": lambda at: at.given(to=at.folder / "{consumer}.csv"),
        "dead letters over the subjects": lambda at: at.given(
            subjects=at.write("names", "0\n1\n"), dead_letters=at.folder / "names"
        ),
        "dead letters in place of a folder": lambda at: at.given(
            dead_letters=at.write("letters/x", "").parent
        ),
    }
)

# What runs

SOUND.update(
    {
        "files": lambda at: at.given(),
        "a ledger": lambda at: at.given(ledger=at.ledger),
        "a run that goes on": lambda at: at.run().given(ledger=at.ledger),
        "a run that goes on with another specification": lambda at: respecified(
            at.run(), UNIFORM.replace("epsilon: 2", "epsilon: 1"), ledger=at.ledger
        ),
        "a run that goes on with a seed": lambda at: at.run(seed=1).given(ledger=at.ledger, seed=1),
        "a plan": lambda at: at.given(plan=planned(at)),
        "a mechanism that needs no plan": lambda at: respecified(at, SPEC, mechanism="uniform"),
        "nothing private in a query": lambda at: respecified(
            at, SPEC.partition("queries:")[0] + "queries: [{name: q, consumer: u, pattern: d}]\n"
        ),
        "a limit that nobody counts": lambda at: respecified(at, LIMITED, ledger=False),
        "a registry in a file": lambda at: at.given(
            subjects=at.write("names", "\n".join(map(str, range(10))))
        ),
        "subjects that are learned": lambda at: at.given(learn="2 min"),
        "a protected name that occurs": lambda at: respecified(at, NAMED.replace("77", "7")),
        "an empty file beside another": lambda at: at.given(at.write("empty.csv", ""), at.sent),
        "a source that is given twice, without a ledger": lambda at: at.given(at.sent, at.sent),
        "files by the clock, without a ledger": lambda at: respecified(at, BY_CLOCK),
        "a file for each consumer": lambda at: at.given(
            to=at.write("out/x", "").parent / "{consumer}.csv", ledger=at.ledger
        ),
        "a folder of answers": lambda at: at.given(to=f"{at.folder}/answers/", ledger=at.ledger),
        "standard output": lambda at: at.given(to="-"),
    }
)


def wrong(found: tacit.insight.findings.Findings) -> list[str]:
    return [finding.says for finding in found.of("wrong")]


@pytest.mark.parametrize("prepare", REFUSED.values(), ids=REFUSED)
def test_where_a_run_is_refused_doctor_says_why_in_the_same_words(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, named = prepare(Place(tmp_path))

    def fail(*_: Any) -> None:
        raise AssertionError("the run has begun to read")

    monkeypatch.setattr(Reader, "_read_merged", fail)
    monkeypatch.setattr(Reader, "_read_live", fail)
    found = tacit.doctor(*given, **named)
    with pytest.raises(TacitError) as caught:
        tacit.run(*given, **named)
    assert "\n".join(wrong(found)) == str(caught.value)


@pytest.mark.cases(12)
@pytest.mark.parametrize("prepare", SOUND.values(), ids=SOUND)
def test_where_a_run_starts_doctor_finds_nothing_wrong(prepare: Prepare, tmp_path: Path) -> None:
    given, named = prepare(Place(tmp_path))
    assert wrong(tacit.doctor(*given, **named)) == []
    tacit.run(*given, **named)


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder, with its mode and the time of its last change."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else b"",
        )
        for path in folder.rglob("*")
    }


ALL = {**REFUSED, **SOUND}


@pytest.mark.cases(4)
@pytest.mark.parametrize("prepare", ALL.values(), ids=ALL)
def test_doctor_leaves_everything_as_it_was(
    prepare: Prepare, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    given, named = prepare(Place(tmp_path))
    before = contents(tmp_path)
    capfdbinary.readouterr()
    tacit.doctor(*given, **named)
    assert contents(tmp_path) == before
    assert capfdbinary.readouterr().out == b""
