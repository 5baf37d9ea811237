"""The page on extending works as shown: its code is taken from there, added, planned and run."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.cli.main import main
from tacit.connectors.brokers import CONNECTORS, probe
from tacit.connectors.files import open_source
from tacit.connectors.openers import open_resumable_sink
from tacit.errors import SinkError, SourceError, SpecificationError
from tacit.evaluation import methods
from tacit.evaluation.baselines import BASELINES, Baseline
from tacit.evaluation.palette import find_mechanism_style
from tacit.evaluation.synthetic import draw_data_set
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import Source
from tacit.privacy.mechanisms import load
from tacit.spec.mechanisms import MECHANISMS
from tests.connectors.checks import Feed, Receiver, SinkChecks, SourceChecks
from tests.evaluation.baselines import test_contract
from tests.privacy.mechanisms.checks import CHECKS

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
SOURCE = Path(__file__).parent.parent / "src"
SPEC = """
version: 1
mechanism: per_query
subjects: [x, y, z]
streams: {s: {subject: who, time: at, unit: us}}
windows: {size: 10 us}
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
private: [{pattern: a, epsilon: 2}]
queries:
  - {name: both, consumer: c, pattern: "AND(a, b)"}
  - {name: plain, consumer: c, pattern: b}
"""


def blocks() -> dict[str, str]:
    """The page's code, by what its first line says."""
    found = re.findall(r"^```python\n# (.+?)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return dict(found)


def test_the_files_of_the_page_fit_into_the_package() -> None:
    """No file or class of the page is there already, and no list of the package is imported."""
    files = {name: code for name, code in blocks().items() if name.endswith(".py")}
    there = {path.name for path in SOURCE.rglob("*.py")}
    assert not files.keys() & there
    classes = re.findall(r"^class (\w+)", "\n".join(files.values()), re.M)
    known = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert len(classes) >= 3
    assert not [name for name in classes if re.search(rf"^ *class {name}\b", known, re.M)]
    imports = re.findall(r"^from ([\w.]+) import", "\n".join(files.values()), re.M)
    lists = "tacit.evaluation.baselines", "tacit.connectors.brokers", "tacit.spec.mechanisms"
    assert not {*imports} & {*lists}, "the list imports the file: it would be imported in a circle"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Writes a module of the page where Python finds it, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def import_block(name: str) -> Any:
        (tmp_path / name).write_text(blocks()[name])
        return importlib.import_module(name.removesuffix(".py"))

    return import_block


@pytest.fixture
def per_query(
    modules: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Any]]:
    """The page's mechanism, in the list."""
    module = modules("per_query.py")
    exec(blocks()["an entry of MECHANISMS"], {})
    yield module.PerQuery
    del MECHANISMS["per_query"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_mechanism_of_the_page_passes_every_check(
    per_query: type[Any], check: Callable[[str], None]
) -> None:
    check("per_query")


@pytest.mark.usefixtures("per_query")
def test_the_mechanism_of_the_page_is_planned_audited_explained_and_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = pl.DataFrame(
        {
            "who": rng.choice(["x", "y", "z"], 900),
            "at": np.sort(rng.integers(0, 3000, 900)),
            "kind": rng.integers(0, 3, 900),
        }
    )
    (tmp_path / "spec.yaml").write_text(SPEC)
    spec = tacit.load(tmp_path / "spec.yaml")
    plan = tacit.plan(spec, rows)
    assert plan.mechanism == "per_query"
    plan.save(tmp_path / "plan.json")
    report = tacit.audit(tmp_path / "plan.json", spec)
    assert report.passed
    assert "query 0" in str(report)
    assert "is flipped at random" in " ".join(str(tacit.explain(spec)).split())
    rows.write_csv(tmp_path / "rows.csv")
    arguments = ["run", "spec.yaml", "rows.csv", "--plan", "plan.json", "--to", "answers.csv"]
    full = [str(tmp_path / one) if "." in one else one for one in arguments]
    main(full, standalone_mode=False)
    answers = pl.read_csv(tmp_path / "answers.csv")
    assert answers.height == 300 * 3 * 2
    assert (answers.filter(query="plain")["confidence"] == 1).all()
    flipped = answers.filter(query="both")["confidence"]
    assert 0.5 < flipped.min() < 1  # type: ignore[operator]
    assert find_mechanism_style("per_query") is not None


def test_a_mechanism_that_is_in_no_list_is_refused_by_name() -> None:
    with pytest.raises(SpecificationError, match="expected uniform, adaptive, optimal or"):
        tacit.loads(SPEC)


def test_a_wrong_share_in_the_mechanism_of_the_page_is_found(
    per_query: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks are sharp: all of epsilon for each query, and an audit that looks away."""
    module = importlib.import_module("per_query")
    monkeypatch.setattr(
        module,
        "uniform_shares",
        lambda policy: {
            name: min(p.epsilon for p in policy.patterns if name in p.elements)
            for name in policy.private
        },
    )
    monkeypatch.setattr("tacit.privacy.elements.Elements._check", lambda *_: None)
    exact = next(check for check in CHECKS if "tells_neighbours_apart_by_more" in check.__name__)
    assert load("per_query") is per_query
    with pytest.raises(AssertionError):
        exact("per_query")


@pytest.fixture
def private_bits(modules: Callable[[str], Any]) -> Baseline:
    """The page's baseline."""
    baseline: Baseline = modules("private_bits.py").PrivateBits()
    return baseline


def test_the_baseline_of_the_page_meets_the_contract(private_bits: Baseline) -> None:
    for subjects in (None, 3):
        test_contract.test_a_release_has_the_shape_of_the_presence(private_bits, subjects)
    test_contract.test_one_subject_is_the_same_with_and_without_its_own_dimension(private_bits)
    test_contract.test_the_same_seed_gives_the_same_release(private_bits)
    test_contract.test_no_window_gives_away_more_than_epsilon_unless_no_epsilon_bounds_it(
        private_bits
    )
    test_contract.test_what_is_no_epsilon_is_refused(private_bits, 0)
    test_contract.test_presence_of_another_shape_is_refused(private_bits, (5, 3))
    test_contract.test_numbers_in_place_of_truth_values_are_refused(private_bits)
    test_contract.test_no_windows_make_an_empty_release(private_bits)


def test_a_baseline_in_the_list_is_measured_in_both_decodings(
    private_bits: Baseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry is enough: methods are made from the list."""
    monkeypatch.setattr("tacit.evaluation.baselines.BASELINES", (*BASELINES, private_bits))
    try:
        extended = importlib.reload(methods)
        assert extended.Method("private bits", "literal") in extended.METHODS
        drawn = draw_data_set(1)
        share = [Fraction(3)]
        errors = extended.measure_errors(drawn.spec, drawn.history, drawn.test, share, 1)
        named = dict(zip(extended.METHODS, errors[0, :, 0], strict=True))
        own = named[extended.Method("private bits", "posterior")]
        assert own < named[extended.Method("event-level", "posterior")]
    finally:
        monkeypatch.undo()
        importlib.reload(methods)


@contextmanager
def queue_connector(folder: Path) -> Iterator[None]:
    """The page's connector, in the list."""
    (folder / "sqlite_queue.py").write_text(blocks()["sqlite_queue.py"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        exec(blocks()["an entry of CONNECTORS"], {})
        try:
            yield
        finally:
            del CONNECTORS["queue"]


class QueueFeed(Feed):
    """Puts messages into the table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "queue.db"
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("CREATE TABLE messages(number INTEGER PRIMARY KEY, payload BLOB)")

    def open(self) -> Source:
        """By its URL."""
        with queue_connector(self.folder):
            return open_source(f"queue://{self.path}")

    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        """Each as JSON."""
        self._insert([json.dumps(row).encode() for row in rows])

    def send_raw(self, payload: bytes) -> None:
        """As it is."""
        self._insert([payload])

    def _insert(self, payloads: Sequence[bytes]) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.executemany(
                "INSERT INTO messages(payload) VALUES (?)", [(p,) for p in payloads]
            )


class TestQueueSource(SourceChecks):
    """The checks for sources."""

    @pytest.fixture
    def feed(self, tmp_path: Path) -> Feed:
        """A new queue."""
        return QueueFeed(tmp_path)


class QueueReceiver(Receiver):
    """Reads the table of answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "answers.db"

    def open(self) -> Sink:
        """By its URL."""
        with queue_connector(self.folder):
            return open_resumable_sink(f"queue://{self.path}")

    def received(self) -> list[dict[str, Any]]:
        """In the order of ids."""
        with closing(sqlite3.connect(self.path)) as database:
            rows = database.execute("SELECT answer FROM answers ORDER BY id").fetchall()
        return [json.loads(row) for (row,) in rows]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Another program has locked it."""
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("BEGIN EXCLUSIVE")
            yield
            database.rollback()


class TestQueueSink(SinkChecks):
    """The checks for sinks."""

    @pytest.fixture
    def receiver(self, tmp_path: Path) -> Receiver:
        """A new file."""
        return QueueReceiver(tmp_path)


def test_the_connector_of_the_page_is_found_by_its_scheme(tmp_path: Path) -> None:
    feed = QueueFeed(tmp_path)
    with queue_connector(tmp_path):
        assert probe(f"queue://{feed.path}", source=True) == f"queue://{feed.path} is there"
        with pytest.raises(SourceError, match="is not a queue"):
            probe(f"queue://{tmp_path}/none.db", source=True)
        with pytest.raises(SinkError, match="mqtt://, mqtts://, kafka:// or queue://"):
            open_resumable_sink("http://somewhere/a")
    with pytest.raises(SourceError, match="'queue://' is not a source"):
        open_source(f"queue://{feed.path}")


def test_what_a_connector_lacks_is_said(tmp_path: Path) -> None:
    with queue_connector(tmp_path):
        module = importlib.import_module("sqlite_queue")
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(module, "open_sink")
            with pytest.raises(SinkError, match="has no open_sink"):
                open_resumable_sink("queue:///a.db")
