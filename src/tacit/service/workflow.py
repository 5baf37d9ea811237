"""Set-up as a workflow: propose, plan in the background, approve, live from the next window on.

A proposal is a change to the latest version. Whenever another version is approved, open proposals
are planned again, so what an operator approves is what becomes live. A subject's own change that
reveals no more than before, and a withdrawal, are approved as soon as they are planned.

Every step is an act in the ledger's chain, in the transaction of the step itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow.compute as pc
from pydantic import ValidationError

from tacit.engines.setup import RunOptions
from tacit.errors import OptionError, SourceError, SpecificationError, TacitError
from tacit.ledger.acts import ActKind, record_act
from tacit.ledger.alchemy import sa
from tacit.ledger.database import now
from tacit.ledger.ledger import Ledger
from tacit.pipeline.run import Run
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.policies import Policies
from tacit.service.catalogue import (
    MOST_POLICIES,
    Catalogue,
    Choice,
    apply_choices,
    check_choice,
    default_catalogue,
    find_declared,
    is_stricter,
)
from tacit.service.planner import PlanJob, PlannerProcess
from tacit.service.roles import Principal, Role
from tacit.service.tables import (
    OPEN,
    PROPOSALS,
    VERSIONS,
    ProposalState,
    cover_decision,
    cover_proposal,
    cover_version,
    create_tables,
)
from tacit.service.versions import StoredVersion, describe_effect, find_obstacles
from tacit.spec.specification import Query, Specification
from tacit.spec.subjects import SubjectFile
from tacit.spec.yaml_reader import loads
from tacit.spec.yaml_writer import to_yaml

MOST_OPEN: Final = 10
"""The most open proposals of one author."""
_FILES: Final = "the files"
log = logging.getLogger("tacit.service")


class ProposalKind(StrEnum):
    """What should change."""

    QUERY = "query"
    REMOVAL = "removal"
    """Of a query."""
    POLICY = "policy"
    """What a subject keeps private."""
    VERSION = "version"
    """Back to an older version, or to the files."""


class UnknownProposalError(TacitError):
    """There is no such proposal or version."""


class DecidedError(TacitError):
    """A proposal cannot be changed any more, or not yet."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that someone has proposed."""

    number: int
    created: int
    role: Role
    author: str
    kind: ProposalKind
    change: Mapping[str, Any]
    automatic: bool
    """Whether it needs no approval."""
    state: ProposalState
    base: int
    """The version that it was planned for."""
    reason: str
    """Why there is no plan."""
    effect: Mapping[str, Any] | None
    decided: int | None
    decider: str
    note: str
    version: int | None
    """The version that it became."""

    @property
    def summary(self) -> str:
        """What it would change, in one line."""
        match self.kind:
            case ProposalKind.QUERY:
                return f"query {self.change['name']} for {self.author}"
            case ProposalKind.REMOVAL:
                return f"no query {self.change['name']}"
            case ProposalKind.POLICY if self.change.get("epsilon") is None:
                return f"{self.author} withdraws its choice for {self.change['pattern']}"
            case ProposalKind.POLICY:
                limit = self.change.get("limit") or "no limit"
                return (
                    f"{self.change['pattern']} of {self.author}: epsilon {self.change['epsilon']},"
                    f" {limit}"
                )
            case ProposalKind.VERSION:
                number = self.change.get("version")
                return f"back to version {number}" if number else f"the changed {_FILES}"

    @property
    def asks(self) -> str | None:
        """What a proposed query asks, as text; None for other proposals."""
        if self.kind is not ProposalKind.QUERY:
            return None
        return _make_query(self.author, self.change).asks

    @property
    def expected(self) -> str | None:
        """What to expect of a proposed query, from history; None if that is not known."""
        return self._own_effect.get("expected_after")

    @property
    def reached(self) -> bool | None:
        """Whether a proposed query is expected to reach the quality that it requires."""
        return self._own_effect.get("reached")

    @property
    def _own_effect(self) -> Mapping[str, Any]:
        """The effect on the proposed query itself."""
        rows = [] if self.effect is None else self.effect["quality"]
        own = (row for row in rows if row["query"] == self.change.get("name"))
        return next(own, {})


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version, without its contents."""

    number: int
    created: int
    author: str
    summary: str
    plan: str


class Workflow:
    """The proposals and versions of one run. It is safe to use from several threads."""

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        options: RunOptions,
        history: Sequence[tuple[str | None, str]] = (),
        catalogue: Catalogue | None = None,
    ) -> None:
        self.options = options
        self.history = tuple(history)
        self.run: Run | None = None
        """The run that versions become live in; None until it is set up."""
        self.database = ledger.database
        self.name = run
        self._catalogue = catalogue
        self._files: Specification = options.load()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._files_requested = threading.Event()
        self._planner = PlannerProcess()
        self._progress: dict[int, tuple[float, str]] = {}
        self._thread = threading.Thread(target=self._work, name="tacit-workflow", daemon=True)
        self._cache: tuple[int, StoredVersion] | None = None
        self._given = 0
        """The version that the run was given last."""
        create_tables(ledger.database)

    # Versions

    def start(self, files: SpecVersion) -> SpecVersion:
        """Return the version to run with: the last approved one, unless the files have changed."""
        self._take_files(files)
        return self.read_version()

    def attach(self, run: Run) -> None:
        """Let versions become live in a run, also one that was approved while it was set up."""
        with self._lock:
            self.run = run
            if self._last_number(VERSIONS) != self._given:
                run.reload()

    @property
    def refused(self) -> dict[str, TacitError]:
        """Why the run refused versions, by the digest of their plans."""
        reloads = () if self.run is None else self.run.refused_reloads
        return {one.plan: one.error for one in reloads if one.plan is not None}

    @property
    def unreadable(self) -> TacitError | None:
        """Why the last reload could not read the files; None if it could."""
        reloads = () if self.run is None else self.run.refused_reloads
        return reloads[-1].error if reloads and reloads[-1].plan is None else None

    def begin(self) -> None:
        """Begin to plan."""
        self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Stop planning; open proposals are planned after the next start."""
        self._stopping.set()
        self._planner.stop()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def request_files(self) -> None:
        """Let the next reload read the files again."""
        self._files_requested.set()

    def reread(self) -> SpecVersion:
        """Return the latest version, for a reload of the run."""
        if self._files_requested.is_set():
            self._files_requested.clear()
            self._take_files(self.options.read())
        return self.read_version()

    def read_version(self) -> SpecVersion:
        """Return the latest version as a run uses it."""
        self._given, stored = self.latest()
        return self._to_run(stored)

    def _to_run(self, stored: StoredVersion) -> SpecVersion:
        return SpecVersion(self.options.register(stored.spec), stored.plan)

    def latest(self) -> tuple[int, StoredVersion]:
        """Return the latest version and its number."""
        with self._lock:
            number = self._last_number(VERSIONS)
            if self._cache is None or self._cache[0] != number:
                self._cache = number, self.load_version(number)
            return self._cache

    def list_versions(self) -> list[VersionRecord]:
        """Return all versions, the newest first."""
        columns = VERSIONS.c["number", "created", "author", "summary", "plan"]
        query = sa.select(*columns).where(VERSIONS.c.run == self.name)
        with self.database.reading() as connection:
            rows = connection.execute(query.order_by(VERSIONS.c.number.desc())).mappings()
            return [VersionRecord(**row) for row in rows]

    def load_version(self, number: int) -> StoredVersion:
        """Read a version."""
        mine = sa.and_(VERSIONS.c.run == self.name, VERSIONS.c.number == number)
        with self.database.reading() as connection:
            found = connection.execute(sa.select(VERSIONS.c.content).where(mine)).scalar()
        if found is None:
            raise UnknownProposalError(f"there is no version {number}")
        return StoredVersion.unpack(found, self._files)

    @property
    def catalogue(self) -> Catalogue:
        """What subjects may choose."""
        return default_catalogue(self._files) if self._catalogue is None else self._catalogue

    def choices(self, subject: str) -> dict[str, Choice]:
        """Return what a subject has chosen, by pattern."""
        stored = self.latest()[1]
        return {one.pattern: one for one in stored.choices if one.subject == subject}

    def _take_files(self, files: SpecVersion) -> None:
        """Make the files a version if they have changed since they were read last."""
        declared = self.options.load()
        plan = files.plan.to_dict()
        text = json.dumps([to_yaml(declared), plan], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        stored = StoredVersion(declared, (), plan)
        vars(stored)["plan"] = files.plan  # as it was read
        mine = VERSIONS.c.run == self.name
        query = sa.select(VERSIONS.c.number, VERSIONS.c.files)
        query = query.where(mine, VERSIONS.c.files.is_not(None))
        with self._lock:
            with self.database.reading() as connection:
                last = query.order_by(VERSIONS.c.number.desc()).limit(1)
                found = connection.execute(last).one_or_none()
            self._files = declared
            known = None if found is None else found.files
            if found is not None and known == digest:
                if found.number == self._last_number(VERSIONS):
                    self._cache = found.number, stored
                return
            choices = () if known is None else self.latest()[1].choices
            if choices:  # the plan of the files does not cover them
                change = {"base": to_yaml(declared), "files": digest}
                self._insert(Principal(Role.OPERATOR, "command line", ""), "version", change)
                return
            with self.database.writing() as connection:
                number = self._add_version(connection, stored, "command line", _FILES, digest)
            self._cache = number, stored

    def _add_version(
        self,
        connection: sa.Connection,
        stored: StoredVersion,
        author: str,
        summary: str,
        files: str | None = None,
        proposals: Sequence[int] = (),
        note: str = "",
    ) -> int:
        """Insert a version, with its act; other open proposals must be planned again."""
        number = self._last_number(VERSIONS, connection) + 1
        row = {
            "run": self.name,
            "number": number,
            "created": now(),
            "author": author,
            "summary": summary,
            "content": stored.pack(),
            "plan": stored.plan_digest,
            "files": files,
        }
        connection.execute(VERSIONS.insert().values(row))
        for proposal in proposals:
            self._write(connection, proposal, state=str(ProposalState.APPROVED), content=None,
                        decided=now(), decider=author, note=note, version=number)  # fmt: skip
        detail = {
            "run": self.name,
            "summary": summary,
            "proposal": proposals[0] if proposals else None,
            "specification": stored.spec.fingerprint,
            "plan": stored.plan_digest,
        }
        decided = (cover_decision(self.name, one) for one in proposals)
        covers = [cover_version(self.name, number), *decided]
        record_act(connection, author, ActKind.APPROVED, f"version {number}", detail, covers)
        outdated = PROPOSALS.update().where(
            PROPOSALS.c.run == self.name, PROPOSALS.c.state == str(ProposalState.READY)
        )
        connection.execute(outdated.values(state=str(ProposalState.PLANNING)))
        return number

    # Proposals

    def propose_query(self, author: Principal, query: Mapping[str, Any]) -> Proposal:
        """Propose a query of a consumer; raise SpecificationError if it has mistakes."""
        self.check_query(author.name, query)
        return self._insert(author, ProposalKind.QUERY, query)

    def check_query(self, consumer: str, query: Mapping[str, Any]) -> tuple[Query, list[str]]:
        """Return a query with the private patterns it depends on; raise if it has mistakes."""
        spec = self.latest()[1].spec
        made = _make_query(consumer, query)
        if any(one.name == made.name for one in spec.queries):
            raise OptionError(f"the name {made.name} is taken; choose another")
        if self.run is not None and made.name in self.run.engine.windows.consumers:
            raise OptionError(f"the name {made.name} was used before; choose another")
        changed = _add_query(spec, made)
        registry = changed.subjects
        if made.by is not None and isinstance(registry, SubjectFile):
            try:
                known = registry.has_column(made.by, changed.folder)
            except SourceError:
                known = False
            if not known:
                raise OptionError(f"by: the registry of subjects has no column '{made.by}'")
        return made, find_obstacles(changed, made.name)

    def propose_removal(self, author: Principal, name: str) -> Proposal:
        """Propose that a query is no longer answered."""
        own = [
            query
            for query in self.latest()[1].spec.queries
            if query.name == name and author.role is Role.CONSUMER and query.consumer == author.name
        ]
        if not own:
            raise UnknownProposalError("you have no query of this name")
        return self._insert(author, ProposalKind.REMOVAL, {"name": name})

    def choose(self, author: Principal, choice: Choice) -> Proposal:
        """Change what a subject keeps private; only what reveals more needs approval."""
        check_choice(self.catalogue, choice)
        self._check_registered(choice.subject)
        with self._lock:
            stored = self.latest()[1]
            before = find_declared(stored.spec, choice.subject, choice.pattern)
            others = [one for one in stored.choices if not _same(one, choice)]
            self._check_policies(apply_choices(stored.base, [*others, choice]))
            plain = choice.to_dict()
            del plain["subject"]
            automatic = is_stricter(before, choice)
            return self._insert(author, ProposalKind.POLICY, plain, automatic=automatic)

    def withdraw_choice(self, author: Principal, pattern: str) -> Proposal:
        """End a subject's choice: what the operator declares applies again."""
        if pattern not in self.choices(author.name):
            raise UnknownProposalError("you have chosen nothing for this pattern")
        change = {"pattern": pattern, "epsilon": None, "limit": None}
        return self._insert(author, ProposalKind.POLICY, change, automatic=True)

    def propose_version(self, author: Principal, number: int) -> Proposal:
        """Propose to go back to an older version; the choices of subjects stay as they are now."""
        stored = self.load_version(number)
        change = {"version": number, "base": to_yaml(stored.base)}
        proposal = self._insert(author, ProposalKind.VERSION, change)
        if stored.choices == self.latest()[1].choices:
            self._finish([proposal], stored, self.latest())
            return self.approve(proposal.number, author)
        return proposal

    def approve(
        self, number: int, actor: Principal, note: str = "", *, tell: bool = False
    ) -> Proposal:
        """Approve a planned proposal: it is live from the next window on.

        With `tell` the note to its author ends with what to expect of the query. That depends on
        history, so an operator decides whether to say it.
        """
        with self._lock:
            proposal = self.read(number)
            if tell and proposal.expected is not None:
                said = f"{note.rstrip('.')}. " if note else ""
                note = f"{said}Expected quality: {proposal.expected}."
            last, _ = self.latest()
            if proposal.state is not ProposalState.READY or proposal.base != last:
                raise DecidedError(
                    f"proposal {number} is {proposal.state} and cannot be approved now"
                )
            self._make_version([proposal], str(actor), note)
        return self.read(number)

    def reject(self, number: int, actor: Principal, note: str = "") -> Proposal:
        """Reject an open proposal."""
        return self._close(number, ProposalState.REJECTED, ActKind.REJECTED, actor, note)

    def withdraw(self, number: int, actor: Principal) -> Proposal:
        """Withdraw one's own open proposal."""
        proposal = self.read(number)
        if (proposal.role, proposal.author) != (actor.role, actor.name):
            raise UnknownProposalError(f"you have no proposal {number}")
        return self._close(number, ProposalState.WITHDRAWN, ActKind.WITHDRAWN, actor, "")

    def read(self, number: int) -> Proposal:
        """Return a proposal."""
        found = self._select(PROPOSALS.c.number == number)
        if not found:
            raise UnknownProposalError(f"there is no proposal {number}")
        return found[0]

    def list_proposals(self, author: Principal | None = None) -> list[Proposal]:
        """Return all proposals, or those of an author, the newest first."""
        if author is None:
            return self._select(sa.true())
        return self._select(
            sa.and_(PROPOSALS.c.role == str(author.role), PROPOSALS.c.author == author.name)
        )

    def progress(self, number: int) -> tuple[float, str]:
        """Return how much of a plan is made, and what is being done."""
        return self._progress.get(number, (0.0, "waiting for the planner"))

    def _insert(
        self, author: Principal, kind: str, change: Mapping[str, Any], *, automatic: bool = False
    ) -> Proposal:
        mine = PROPOSALS.c.run == self.name
        with self._lock, self.database.writing() as connection:
            waiting = sa.select(sa.func.count()).where(
                mine,
                PROPOSALS.c.role == str(author.role),
                PROPOSALS.c.author == author.name,
                PROPOSALS.c.state.in_([str(state) for state in OPEN]),
            )
            if connection.execute(waiting).scalar_one() >= MOST_OPEN:
                raise OptionError(
                    f"you have {MOST_OPEN} open proposals; wait, or withdraw one of them"
                )
            number = self._last_number(PROPOSALS, connection) + 1
            row = {
                "run": self.name,
                "number": number,
                "created": now(),
                "role": str(author.role),
                "author": author.name,
                "kind": str(kind),
                "change": json.dumps(dict(change)),
                "automatic": automatic,
                "state": str(ProposalState.PLANNING),
                "base": self._last_number(VERSIONS, connection),
                "reason": "",
                "decider": "",
                "note": "",
            }
            connection.execute(PROPOSALS.insert().values(row))
            changed = ActKind.POLICY_CHANGED if kind == ProposalKind.POLICY else ActKind.PROPOSED
            detail = {name: value for name, value in change.items() if name != "base"}
            detail |= {"run": self.name, "kind": str(kind)}
            covers = cover_proposal(self.name, number)
            record_act(connection, str(author), changed, f"proposal {number}", detail, covers)
        self._wake.set()
        return self.read(number)

    def _close(
        self, number: int, state: ProposalState, kind: ActKind, actor: Principal, note: str
    ) -> Proposal:
        with self._lock:
            if self.read(number).state not in OPEN:
                raise DecidedError(f"proposal {number} is decided already")
            with self.database.writing() as connection:
                self._write(connection, number, state=str(state), content=None, note=note,
                            decided=now(), decider=str(actor))  # fmt: skip
                detail, covers = {"note": note}, [cover_decision(self.name, number)]
                record_act(connection, str(actor), kind, f"proposal {number}", detail, covers)
        return self.read(number)

    def _make_version(self, proposals: Sequence[Proposal], actor: str, note: str) -> None:
        """Make planned proposals the latest version, in one transaction, and reload the run."""
        first = proposals[0]
        mine = sa.and_(PROPOSALS.c.run == self.name, PROPOSALS.c.number == first.number)
        with self.database.reading() as connection:
            content = connection.execute(sa.select(PROPOSALS.c.content).where(mine)).scalar_one()
        stored = StoredVersion.unpack(content, self._files)
        self._check_live(self._to_run(stored))
        summary = "; ".join(proposal.summary for proposal in proposals)
        with self.database.writing() as connection:
            chosen = [proposal.number for proposal in proposals]
            files = first.change.get("files")
            number = self._add_version(connection, stored, actor, summary, files, chosen, note)
        self._cache = number, stored
        if self.run is not None:
            self.run.reload()
        self._wake.set()

    def _check_live(self, version: SpecVersion) -> None:
        """Raise DecidedError if the run could not change to a version."""
        if self.run is None:
            return
        try:
            self.run.check_version(version)
        except TacitError as error:
            raise DecidedError(f"the run cannot change to this: {error}") from error

    def _check_registered(self, subject: str) -> None:
        """Raise OptionError if the run has no subject of this name, or does not know yet.

        A private pattern for a subject that the registry lacks would stop the run.
        """
        if self.run is None or self.run.engine.learning:
            raise OptionError("the service does not know all subjects yet; try again later")
        registered = self.run.engine.window_state.registered
        if not pc.any(pc.equal(registered, subject)).as_py():
            raise OptionError("the service has no subject of your name")

    def _check_policies(self, spec: Specification) -> None:
        if len(Policies(spec)) > MOST_POLICIES:
            raise OptionError(
                f"there are {MOST_POLICIES} different policies already; choose the epsilon and the"
                " limit that the operator declares"
            )

    # Planning in the background

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._stopping.is_set() and self._plan_next():
                pass

    def _plan_next(self) -> bool:
        """Plan the next proposals; return whether there were any."""
        waiting = self._select(PROPOSALS.c.state == str(ProposalState.PLANNING))[::-1]
        if not waiting:
            return False
        chosen = [proposal for proposal in waiting if proposal.automatic] or waiting[:1]
        try:
            base = self.latest()
            self._plan(chosen, base)
        except TacitError as error:
            if not self._stopping.is_set():
                self._fail(chosen, str(error))
        except Exception:
            log.exception("a proposal cannot be planned")
            self._fail(chosen, "the planner failed; the operator's log has the reason")
        return True

    def _plan(self, proposals: Sequence[Proposal], base: tuple[int, StoredVersion]) -> None:
        wanted, choices = base[1].base, base[1].choices
        for proposal in proposals:
            wanted, choices = self._apply(proposal, wanted, choices)
        spec = apply_choices(wanted, choices)
        mistakes = spec.check()
        if mistakes:
            raise SpecificationError(mistakes)

        def tell(share: float, what: str) -> None:
            for proposal in proposals:
                self._progress[proposal.number] = share, what

        plan = self._planner.make(PlanJob.of(spec, self.history), tell)
        self._finish(proposals, StoredVersion(wanted, choices, plan), base)

    def _apply(
        self, proposal: Proposal, base: Specification, choices: tuple[Choice, ...]
    ) -> tuple[Specification, tuple[Choice, ...]]:
        """Return the specification and the choices with a proposal's change."""
        change = proposal.change
        match proposal.kind:
            case ProposalKind.QUERY:
                return _add_query(base, _make_query(proposal.author, change)), choices
            case ProposalKind.REMOVAL:
                rest = tuple(query for query in base.queries if query.name != change["name"])
                return base.model_copy(update={"queries": rest}), choices
            case ProposalKind.POLICY:
                chosen = {(one.subject, one.pattern): one for one in choices}
                key = proposal.author, change["pattern"]
                chosen.pop(key, None)
                if change["epsilon"] is not None:
                    chosen[key] = Choice.from_dict({**change, "subject": proposal.author})
                return base, tuple(chosen.values())
            case ProposalKind.VERSION:
                files = self._files
                return loads(change["base"], "<version>", files.folder, files.allow_paths), choices

    def _finish(
        self,
        proposals: Sequence[Proposal],
        stored: StoredVersion,
        base: tuple[int, StoredVersion],
    ) -> None:
        """Store what was planned; approve what needs no approval."""
        effect = json.dumps(describe_effect(base[1], stored))
        packed = stored.pack()
        with self._lock:
            if self.latest()[0] != base[0]:
                return  # another version was approved meanwhile: plan again
            still = [
                one for one in map(self.read, (proposal.number for proposal in proposals))
                if one.state is ProposalState.PLANNING
            ]  # fmt: skip
            if len(still) < len(proposals):
                return  # some were withdrawn: plan the others without them
            with self.database.writing() as connection:
                for proposal in proposals:
                    self._write(connection, proposal.number, state=str(ProposalState.READY),
                                base=base[0], effect=effect, content=packed, reason="")  # fmt: skip
                    self._progress.pop(proposal.number, None)
            if all(proposal.automatic for proposal in proposals):
                who = ", ".join(dict.fromkeys(f"{one.role} {one.author}" for one in proposals))
                self._make_version(proposals, who, "")

    def _fail(self, proposals: Sequence[Proposal], reason: str) -> None:
        with self._lock, self.database.writing() as connection:
            for proposal in proposals:
                self._write(connection, proposal.number, state=str(ProposalState.FAILED),
                            reason=reason)  # fmt: skip
                self._progress.pop(proposal.number, None)

    def _select(self, condition: Any) -> list[Proposal]:
        columns = [column for column in PROPOSALS.c if column.name not in ("run", "content")]
        query = sa.select(*columns).where(PROPOSALS.c.run == self.name, condition)
        with self.database.reading() as connection:
            rows = connection.execute(query.order_by(PROPOSALS.c.number.desc())).mappings()
            return [_to_proposal(row) for row in rows]

    def _write(self, connection: sa.Connection, number: int, **values: Any) -> None:
        mine = sa.and_(PROPOSALS.c.run == self.name, PROPOSALS.c.number == number)
        connection.execute(PROPOSALS.update().where(mine).values(values))

    def _last_number(self, table: sa.Table, connection: sa.Connection | None = None) -> int:
        query = sa.select(sa.func.max(table.c.number)).where(table.c.run == self.name)
        if connection is not None:
            return int(connection.execute(query).scalar() or 0)
        with self.database.reading() as reading:
            return int(reading.execute(query).scalar() or 0)


def _make_query(consumer: str, query: Mapping[str, Any]) -> Query:
    try:
        return Query.model_validate({**query, "consumer": consumer})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise OptionError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error


def _add_query(spec: Specification, query: Query) -> Specification:
    changed = spec.model_copy(update={"queries": (*spec.queries, query)})
    mistakes = changed.check()
    if mistakes:
        raise SpecificationError(mistakes)
    return changed


def _same(one: Choice, other: Choice) -> bool:
    return (one.subject, one.pattern) == (other.subject, other.pattern)


def _to_proposal(row: Any) -> Proposal:
    plain = dict(row)
    plain["role"] = Role(plain["role"])
    plain["kind"] = ProposalKind(plain["kind"])
    plain["state"] = ProposalState(plain["state"])
    plain["change"] = json.loads(plain["change"])
    plain["effect"] = None if plain["effect"] is None else json.loads(plain["effect"])
    return Proposal(**plain)
