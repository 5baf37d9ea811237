"""Run and serve: the durable run in the calling thread, HTTP in another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tacit.answers.answers import Answers
from tacit.connectors.openers import open_resumable_sink
from tacit.engines.ledger_run import open_prepared
from tacit.engines.setup import RunOptions
from tacit.ledger.ledger import Ledger
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.pipeline.versions import SpecVersion
from tacit.progress import ProgressCallback, ignore_progress
from tacit.service.app import create_app
from tacit.service.catalogue import load_catalogue
from tacit.service.inbox import Inbox
from tacit.service.openid import OpenIdLogin, OpenIdSettings
from tacit.service.server import Server, ServerOptions
from tacit.service.source import HttpSource
from tacit.service.state import ServiceState
from tacit.service.workflow import Workflow
from tacit.spec.specification import Specification


@dataclass
class Service:
    """A service that listens. `open_run` and `answer` run it until `stop` is called."""

    options: RunOptions
    version: SpecVersion
    inputs: Sequence[Input]
    state: ServiceState
    url: str
    _stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open_run(self, progress: ProgressCallback = ignore_progress) -> Iterator[Run]:
        """Set the run up; with `answer` it begins."""
        with ExitStack() as stack:
            opened = open_prepared(
                self.options,
                self.version,
                self.inputs,
                self.state.feed,
                progress,
                self.state.workflow.reread,
            )
            run = stack.enter_context(opened)
            if self.options.target is not None:
                run.add_sink(stack.enter_context(open_resumable_sink(self.options.target)))
            self.state.run = run
            self.state.workflow.attach(run)
            if self._stopping.is_set():
                run.stop()
            yield run

    def answer(self, run: Run, count: Callable[[Answers], None] = lambda _: None) -> None:
        """Run until `stop` is called; if the input ends, keep serving what was released."""
        try:
            for answers in run:
                count(answers)
        except BaseException:
            self.state.failed = True
            raise
        self._stopping.wait()

    def stop(self) -> None:
        """Stop the run, and then the service. Any thread may call it."""
        self._stopping.set()
        if self.state.run is not None:
            self.state.run.stop()

    def reload(self) -> None:
        """Read the specification and the plan again. Any thread may call it."""
        self.state.workflow.request_files()
        if self.state.run is not None:
            self.state.run.reload()


@dataclass(frozen=True)
class ServiceInputs:
    """The sources of a service's run, and the inbox if some of them are read from it."""

    inputs: Sequence[Input]
    inbox: Inbox | None
    streams: frozenset[str]
    """The streams that are read from the inbox."""


@dataclass(frozen=True)
class SetupOptions:
    """What the set-up workflow uses."""

    history: Sequence[tuple[str | None, str]] = ()
    """What proposals are planned from, each source with its stream if that was named."""
    catalogue: Path | None = None
    """The file with the bounds for the choices of subjects."""


@contextmanager
def _run_planner(state: ServiceState) -> Iterator[None]:
    state.workflow.begin()
    state.analyses.begin()
    try:
        yield
    finally:
        state.analyses.stop()
        state.workflow.stop()


@contextmanager
def open_inputs(options: RunOptions, spec: Specification) -> Iterator[ServiceInputs]:
    """Open the sources; streams without one, and those of a source `http`, are read from HTTP."""
    given = [(stream, source) for stream, source in options.sources if source != HttpSource.name]
    named = {stream for stream, _ in given}
    asked = {stream for stream, source in options.sources if source == HttpSource.name}
    if None in asked:
        asked = {*spec.streams}
    missing = set() if None in named else {*spec.streams} - named
    chosen = frozenset(str(stream) for stream in asked | missing)
    with ExitStack() as stack:
        inbox = None
        if chosen:
            inbox = stack.enter_context(closing(Inbox(options.ledger_place or "")))
            given += [(stream, HttpSource(inbox, stream)) for stream in sorted(chosen)]
        inputs = replace(options, sources=given).prepare(spec)
        yield ServiceInputs(inputs, inbox, chosen)


@contextmanager
def open_service(
    options: RunOptions,
    version: SpecVersion,
    opened: ServiceInputs,
    server: ServerOptions,
    setup: SetupOptions | None = None,
) -> Iterator[Service]:
    """Open the ledger and listen; it is ready once `Service.answer` has begun."""
    setup = setup or SetupOptions()
    with Ledger.open(options.ledger_place or "") as ledger:
        given = setup.catalogue
        catalogue = None if given is None else load_catalogue(given, version.spec)
        workflow = Workflow(ledger, options.run_name, options, setup.history, catalogue)
        version = workflow.start(version)
        state = ServiceState(
            ledger,
            options.run_name,
            version.spec,
            opened.inbox,
            opened.streams,
            options.ledger_place or "",
            None if server.openid is None else OpenIdLogin(OpenIdSettings.load(server.openid)),
            workflow=workflow,
        )
        with (
            Server(create_app(state), state.signal, server) as listening,
            _run_planner(state),
        ):
            yield Service(options, version, opened.inputs, state, listening.url)
