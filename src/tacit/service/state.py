"""What all requests share: the ledger, the feed of answers, the tokens, and the run."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tacit.ledger.ledger import Ledger
from tacit.pipeline.run import Run
from tacit.service.access import Access
from tacit.service.analyses import Analyses
from tacit.service.body_room import BodyRoom
from tacit.service.count_feed import CountFeed
from tacit.service.feed import AnswerFeed
from tacit.service.inbox import Inbox
from tacit.service.openid import OpenIdLogin
from tacit.service.sessions import Sessions
from tacit.service.tokens import Tokens
from tacit.service.workflow import Workflow
from tacit.spec.specification import Specification

SAMPLES: Final = 90
SAMPLE_SECONDS: Final = 2.0


class StatusSample(NamedTuple):
    """Some counts of the run at one moment."""

    moment: float
    tuples: int
    windows: int
    rows: tuple[int, ...]
    """Rows read from each input."""


class ReleaseSignal:
    """Wakes coroutines after each release; `ring` may be called by any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self.closing = False
        """Whether the service stops: readers should end."""

    def connect(self) -> None:
        """Use the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    @property
    def next(self) -> asyncio.Event:
        """The event of the next release; take it before you read, so that you miss none."""
        return self._event

    def ring(self) -> None:
        """Wake everyone who waits."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Wake everyone for the last time."""
        self.closing = True
        self.ring()

    def _wake(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()


@dataclass
class ServiceState:
    """Everything that requests need."""

    ledger: Ledger
    name: str
    """The name of the run in the ledger."""
    initial_spec: Specification
    inbox: Inbox | None = None
    http_streams: frozenset[str] = frozenset()
    """The streams that are read from the inbox."""
    ledger_place: str = ""
    openid: OpenIdLogin | None = None
    """How to log in at an OpenID Connect provider, if there is one."""
    workflow: Workflow = field(kw_only=True)
    """Proposals and versions."""
    analyses: Analyses = field(init=False)
    """Curves and leaks, from history."""
    feed: AnswerFeed = field(init=False)
    counts: CountFeed = field(init=False)
    tokens: Tokens = field(init=False)
    access: Access = field(init=False)
    sessions: Sessions = field(init=False)
    samples: deque[StatusSample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """The status in the last minutes, for operators alone."""
    room: BodyRoom = field(default_factory=BodyRoom)
    """For bodies with tuples."""
    signal: ReleaseSignal = field(default_factory=ReleaseSignal)
    run: Run | None = None
    """None until the run is set up."""
    failed: bool = False
    """Whether the run ended with an error."""
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.analyses = Analyses(self.workflow)
        self.feed = AnswerFeed(self.ledger, self.name)
        self.counts = CountFeed(self.ledger, self.name)
        self.tokens = Tokens(self.ledger.database)
        self.feed.listen(self.tokens.refresh)  # once, not by every stream that wakes
        self.feed.listen(self.counts.announce)
        self.feed.listen(self.signal.ring)
        self.access = Access(self.tokens)
        self.sessions = Sessions(self.ledger.database, self.tokens)

    def sample(self) -> None:
        """Remember the status of this moment."""
        if self.run is not None:
            status = self.run.status
            rows = tuple(one.rows for one in self.run.input_status)
            self.samples.append(
                StatusSample(time.time(), status.tuples, status.public.windows, rows)
            )

    @property
    def spec(self) -> Specification:
        """The specification in use."""
        return self.initial_spec if self.run is None else self.run.spec

    @property
    def ready(self) -> bool:
        """Whether the run has begun and receives every tuple that is sent now."""
        return self.run is not None and not self.failed and not self.run.status.connecting
