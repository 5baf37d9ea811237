"""Plant faults in a copy of the package, and see that tests of `make test` find them.

    python -m tests.mutants                  # all of them
    python -m tests.mutants ledger/ feed     # those whose file contains one of these texts

Each fault is one change of one line in one file. Run this when tests are shortened, merged or moved
to `make soak`, on both versions: a fault that survives is one that `make test` does not find. The
checkout is not changed. Faults that open a way past a channel are planted by the suite itself:
`tests/differential/mutants.py`, `tests/privacy/test_mutants.py`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
COPIED: Final = ("src", "tests", "docs", "examples", "benchmarks", "pyproject.toml", "README.md")
LIBRARIES: Final = ("fastapi", "hypothesis.strategies", "numba", "polars", "pyarrow", "sqlalchemy")
IMPORTED: Final = "ignore::pytest.PytestAssertRewriteWarning"
PATIENCE: Final = 300.0
PROCESSES: Final = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """A change that tests must find."""

    path: str
    """Below `src/tacit`."""
    right: str
    """Text that occurs there exactly once."""
    wrong: str
    tests: tuple[str, ...]
    """Files below `tests` that should find it, the quickest first."""

    def check(self) -> None:
        """Raise SystemExit if the checkout does not have the text or the tests."""
        path = ROOT / "src" / "tacit" / self.path
        if not path.exists() or path.read_text().count(self.right) != 1:
            raise SystemExit(f"{self.path} has not exactly one {self.right!r}")
        for test in self.tests:
            if not (ROOT / "tests" / test).exists():
                raise SystemExit(f"there is no tests/{test}, which should find: {self}")

    def plant(self, root: Path) -> None:
        """Change the file in a copy of the checkout."""
        path = root / "src" / "tacit" / self.path
        path.write_text(path.read_text().replace(self.right, self.wrong))

    def __str__(self) -> str:
        return f"{self.path}: {self.right.strip()!r} -> {self.wrong.strip()!r}"


def fault(path: str, right: str, wrong: str, *tests: str) -> Fault:
    """Write a fault in one line."""
    return Fault(path, right, wrong, tests)


FAULTS: Final = (
    # events
    fault(
        "events/times.py",
        "(times >= _FIRST) & (times <= _LAST)",
        "(times >= _FIRST)",
        "events/test_times.py",
    ),
    fault("events/times.py", "0 <= hour <= 24", "0 <= hour <= 25", "events/test_times.py"),
    fault("events/areas.py", "-90 <= lat <= 90", "-91 <= lat <= 90", "events/test_areas.py"),
    fault("events/shapes.py", "(lon <= self.east)", "(lon < self.east)", "events/test_areas.py"),
    fault(
        "events/values.py",
        "((left < 0) != (right < 0))",
        "((left < 0) == (right < 0))",
        "events/test_predicates.py",
    ),
    fault(
        "events/functions.py",
        "first = _clip(start) - 1",
        "first = _clip(start)",
        "events/test_predicates.py",
        "events/test_row_locality.py",
    ),
    # patterns
    fault(
        "patterns/ternary.py",
        "return _loosen(part, known, wanted=not wanted)",
        "return _loosen(part, known, wanted=wanted)",
        "patterns/test_ternary.py",
    ),
    fault(
        "patterns/tables.py",
        'pl.col("last") - pl.col("first") <= span',
        'pl.col("last") - pl.col("first") < span',
        "patterns/test_relational.py",
    ),
    fault(
        "patterns/bits.py",
        "times[here + 1] == times[here]",
        "times[here + 1] < times[here]",
        "patterns/test_matcher.py",
    ),
    fault(
        "patterns/spans.py",
        "elif not fits(usage, one, other, 0, guard):",
        "elif False:",
        "patterns/test_matcher.py",
        "patterns/test_chains.py",
    ),
    fault(
        "patterns/tree.py", "if self.least < 1:", "if self.least < 0:", "patterns/test_language.py"
    ),
    fault(
        "patterns/intervals.py",
        "events[:count], units, (1 << (width - 1)) - 1",
        "events[:count], units, 1",
        "patterns/test_chains.py",
        "patterns/test_matcher.py",
    ),
    # windows
    fault(
        "windows/clock.py", "time - seen > future", "time - seen >= future", "windows/test_clock.py"
    ),
    fault(
        "windows/clock.py",
        "(mark - self.lateness) // self.size > state",
        "mark // self.size > state",
        "windows/test_clock.py",
    ),
    fault(
        "windows/clock.py",
        "min(quiet_to, open_from + size + lateness)",
        "min(quiet_to, open_from + 2 * size + lateness)",
        "windows/test_clock.py",
    ),
    fault(
        "windows/jumps.py",
        "other - front > future",
        "other - front > 2 * future",
        "pipeline/test_confirmation.py",
    ),
    fault(
        "windows/panes.py",
        "times[i] < start or times[i] >= stop",
        "times[i] < start or times[i] > stop",
        "pipeline/test_engine.py",
        "windows/test_panes.py",
    ),
    fault(
        "windows/sliding.py",
        "stored.end == closed.first",
        "stored.end != closed.first",
        "pipeline/test_sliding.py",
    ),
    # spec
    fault(
        "spec/epsilon_split.py",
        "return 2 * panes - 1 if len(types) > 1 else panes",
        "return panes",
        "privacy/test_sliding_guarantee.py",
    ),
    fault(
        "spec/specification.py",
        "or not 0 <= value <= 1:",
        "or not 0 <= value <= 2:",
        "spec/test_mistakes.py",
    ),
    fault(
        "spec/epsilon.py",
        "if not _LEAST <= epsilon <= _MOST:",
        "if not 0 < epsilon <= _MOST:",
        "spec/test_specification.py",
        "privacy/test_channels.py",
    ),
    fault(
        "spec/nodes.py",
        "place.line + 1, place.column + 1",
        "place.line + 1, place.column",
        "spec/test_mistakes.py",
    ),
    fault(
        "spec/columntypes.py",
        "if used.type is not None:",
        "if used.type is None:",
        "cli/test_typed_runs.py",
        "events/test_columntypes.py",
    ),
    # privacy
    fault(
        "privacy/rounding.py",
        "least = -(-part.max(axis=0) * limit.denominator // limit.numerator)",
        "least = part.max(axis=0) * limit.denominator // limit.numerator",
        "privacy/test_channels.py",
    ),
    fault(
        "privacy/channel_audit.py",
        "return all(finding.passed for finding in self.findings)",
        "return any(finding.passed for finding in self.findings)",
        "privacy/test_channels.py",
    ),
    fault(
        "privacy/sampling.py",
        "end = after if last & rest == rest else after - one",
        "end = after",
        "privacy/test_sampling.py",
    ),
    fault(
        "privacy/mechanisms/optimal/joint_expectation.py",
        "work // max(1, parts)",
        "1",
        "privacy/mechanisms/test_expectation.py",
    ),
    fault(
        "privacy/pane_counts.py",
        "np.arange(1, self.panes + 1)",
        "np.arange(0, self.panes)",
        "planning/test_sliding_expectations.py",
        "privacy/mechanisms/test_noisy_windows.py",
    ),
    fault(
        "privacy/quality.py",
        "return alpha * self.precision + (1 - alpha) * self.recall",
        "return (1 - alpha) * self.precision + alpha * self.recall",
        "privacy/test_quality.py",
    ),
    fault(
        "privacy/thresholds.py",
        "predicted = np.minimum(other.tp, counts.predict().confusion(own).tp)",
        "predicted = other.tp",
        "privacy/test_thresholds.py",
    ),
    fault(
        "privacy/pacing.py",
        '"right") - 1, 0)',
        '"left") - 1, 0)',
        "privacy/test_pacing.py",
        "pipeline/test_memory_runs.py",
    ),
    fault(
        "privacy/mechanisms/mechanism.py",
        "found = memory.since[slots] <= numbers[:, np.newaxis]",
        "found = memory.since[slots] != numbers[:, np.newaxis]",
        "engines/test_late_subjects.py",
    ),
    fault(
        "privacy/mechanisms/optimal/memory/protector.py",
        "[None if one.all() else one for one in registered]",
        "[None for one in registered]",
        "engines/test_late_subjects.py",
    ),
    fault(
        "privacy/mechanisms/optimal/memory/protector.py",
        "len(slots), words.shape[1])",
        "len(slots), -1)",
        "pipeline/test_memory_runs.py",
    ),
    fault(
        "privacy/mechanisms/optimal/memory/protector.py",
        "levels.later) or is_used(first + end - 1):",
        "levels.later):",
        "privacy/mechanisms/test_belief_pass.py",
    ),
    fault(
        "privacy/mechanisms/optimal/memory/fitting.py",
        "slots = 48 if len(np.unique(history.hours % 24)) > 1 else 1",
        "slots = 1",
        "planning/test_calibration.py",
    ),
    fault(
        "privacy/mechanisms/optimal/memory/learning.py",
        "(steps[1] + _STRENGTH) / (steps[0] + _STRENGTH)",
        "(steps[0] + _STRENGTH) / (steps[1] + _STRENGTH)",
        "privacy/mechanisms/test_memory_learning.py",
    ),
    fault(
        "privacy/mechanisms/optimal/memory/learning.py",
        "if is_used(window) and self._private:",
        "if False:",
        "privacy/mechanisms/test_memory_learning.py",
    ),
    # answers
    fault(
        "answers/codec.py", "if table[place] < 0:", "if table[place] <= 0:", "answers/test_codec.py"
    ),
    fault(
        "answers/count_estimates.py",
        "used = (opened > 0) & (unknown > 0) if",
        "used = (opened > 0) if",
        "insight/test_counts.py",
        "planning/test_count_models.py",
    ),
    fault(
        "answers/values.py",
        'absent = 0 if query.kind == "times" else len(query.values) - 1',
        "absent = 0",
        "answers/test_values.py",
    ),
    # planning
    fault(
        "planning/limits.py",
        "low, high = (low, middle) if is_enough(middle) else (middle, high)",
        "low, high = (middle, high) if is_enough(middle) else (low, middle)",
        "planning/test_limits.py",
    ),
    fault(
        "planning/count_split.py",
        "if found.loss >= best.loss:",
        "if found.loss <= best.loss:",
        "planning/test_count_split.py",
    ),
    fault(
        "planning/least_epsilon.py",
        "fits = all(found[name] <= own",
        "fits = any(found[name] <= own",
        "planning/test_planner.py",
    ),
    fault(
        "planning/combination_counts.py",
        "words = 1 if self._width <= _SHORT else -(-self._width // 64) + 1",
        "words = 1",
        "planning/test_expectations.py",
        "planning/test_planner.py",
    ),
    # ledger
    fault(
        "ledger/balances.py",
        "start > first - horizon, start <= last",
        "start > first, start <= last",
        "ledger/test_charging.py",
        "ledger/test_ledger.py",
    ),
    fault(
        "ledger/balances.py",
        "windows.get((ids, amount), 0) + times",
        "times",
        "ledger/test_charging.py",
        "ledger/test_archive.py",
    ),
    fault(
        "ledger/database.py",
        "execution_options(**{_WRITES: True})",
        'execution_options(isolation_level="AUTOCOMMIT")',
        "ledger/test_ledger.py",
    ),
    fault(
        "ledger/lease.py",
        'if row["epoch"] != self.epoch:',
        'if row["epoch"] < self.epoch:',
        "ledger/test_ledger.py",
        "ledger/test_opening.py",
        "engines/test_ledger_runs.py",
    ),
    fault(
        "ledger/lease.py", "if draft.first < until:", "if draft.first < 0:", "ledger/test_ledger.py"
    ),
    fault(
        "ledger/lease.py",
        "RELEASES.c.number <= reached,",
        "RELEASES.c.number >= 0,",
        "ledger/test_ledger.py",
    ),
    fault(
        "ledger/charges.py",
        "if before is not None and _follows(before, charge, slide):",
        "if before is not None:",
        "ledger/test_charging.py",
        "ledger/test_ledger.py",
    ),
    fault(
        "ledger/accounts.py",
        "if key[1] + key[2] + FURTHEST > until",
        "if key[1] + key[2] > until",
        "ledger/test_accounts.py",
    ),
    fault(
        "ledger/archival.py",
        'row["body"] is not None and digest(row["body"]) != row["digest"]',
        "False",
        "ledger/test_archive.py",
    ),
    fault(
        "ledger/verification.py",
        'if expected.pop(row["release"], None) != digest(row["body"]):',
        'if expected.pop(row["release"], None) is None:',
        "ledger/test_verification.py",
    ),
    # pipeline
    fault(
        "pipeline/pacing.py",
        "own[chosen] & (prices[number][chosen] > 0)",
        "own[chosen]",
        "privacy/test_pacing.py",
    ),
    fault(
        "pipeline/accountant.py",
        "exhausted = self._find_exhausted(closed, accounts, start, own, counted)",
        "exhausted = accounts.find_exhausted(start, counted)",
        "engines/test_charged_runs.py",
    ),
    fault(
        "pipeline/accountant.py",
        "counted = np.where(uncounted, 0, counted)",
        "pass",
        "engines/test_counts.py",
        "engines/test_count_memory.py",
    ),
    fault(
        "pipeline/accountant.py",
        "until=max(ends) if len(ends) == 2 else None",
        "until=max(ends, default=None)",
        "pipeline/test_accountant.py",
        "pipeline/test_versions.py",
        "ledger/test_declarations.py",
        "engines/test_charged_runs.py",
    ),
    fault(
        "pipeline/settlement.py",
        "self._engine.windows.restore_memory(memory)",
        "pass",
        "privacy/test_memory_mutants.py",
        "pipeline/test_memory_runs.py",
    ),
    fault(
        "pipeline/settlement.py",
        "                accountant.forget()\n",
        "                pass\n",
        "engines/test_ledger_runs.py",
    ),
    fault(
        "pipeline/delivery.py",
        "if number > self._delivered:",
        "if True:",
        "pipeline/test_delivery.py",
    ),
    fault(
        "pipeline/delivery.py",
        "delivery.wait(MOST_WAITING - 1, deadline)",
        "True",
        "engines/test_ledger_runs.py",
    ),
    # connectors
    fault(
        "connectors/csv.py",
        "if bytes(data[: len(BOM)]) == BOM:",
        "if False:",
        "connectors/test_csv.py",
    ),
    fault(
        "connectors/csv.py",
        "if at < len(data) and data[at] == _LF:",
        "if at < len(data):",
        "connectors/test_csv.py",
    ),
    fault(
        "connectors/jsonlines.py",
        'end = data.rfind(b"\\n") + 1',
        'end = data.rfind(b"\\n")',
        "connectors/test_jsonlines.py",
    ),
    fault(
        "connectors/appending_sink.py",
        "file.truncate(offset)",
        "pass",
        "connectors/test_resumable_sinks.py",
        "engines/test_ledger_runs.py",
    ),
    fault(
        "connectors/appending_sink.py",
        "self._encode_texts(batch.table, header=offset == 0)",
        "self._encode_texts(batch.table, header=True)",
        "connectors/test_resumable_sinks.py",
    ),
    fault(
        "connectors/mqtt/unacknowledged.py",
        "if self._counts[number] <= self._settled:",
        "if True:",
        "connectors/test_mqtt_held.py",
        "connectors/test_mqtt_source.py",
    ),
    fault(
        "connectors/mqtt/unacknowledged.py",
        "while order and order[0][0] <= count:",
        "while order:",
        "connectors/test_mqtt_held.py",
        "connectors/test_mqtt_source.py",
    ),
    fault(
        "connectors/follow_file.py",
        "if len(rest) > LONGEST_LINE:",
        "if False:",
        "connectors/test_follow_file.py",
    ),
    # engines
    fault(
        "engines/sharded/collector.py",
        "self._lasting = self._windows.panes > 1 or job.version.plan.has_memory",
        "self._lasting = self._windows.panes > 1",
        "engines/sharded/test_collecting.py",
    ),
    fault(
        "engines/sharded/collector.py",
        "if window > line.window:",
        "if window < line.window:",
        "engines/sharded/test_collecting.py",
    ),
    fault(
        "engines/sharded/collector.py",
        "if line.window >= self._next:",
        "if line.window > self._next:",
        "engines/sharded/test_collecting.py",
    ),
    fault(
        "engines/sharded/division.py",
        "part[_SLOT] -= ranges.edges[place]",
        "pass",
        "engines/sharded/test_division.py",
    ),
    fault(
        "engines/sharded/division.py",
        "(owners[inner] - edges[place]).astype",
        "(owners[inner]).astype",
        "engines/sharded/test_division.py",
    ),
    fault(
        "engines/flink/progress.py",
        "int(text) < closed - most",
        "int(text) < closed",
        "engines/flink/test_progress.py",
    ),
    # evaluation
    fault(
        "evaluation/baselines/budget_absorption.py",
        "last = noise[subject, step - 1]",
        "last = noise[subject, step]",
        "evaluation/baselines/test_w_event.py",
    ),
    fault(
        "evaluation/baselines/rescue_dp.py",
        "spent[max(0, step - setting.day + 1) :]",
        "spent[max(0, step - setting.day + 2) :]",
        "evaluation/baselines/test_count_series.py",
    ),
    fault(
        "evaluation/tdrive.py",
        "<= fastest * (seconds[there] - seconds[here])",
        "< fastest * (seconds[there] - seconds[here]) / 2",
        "evaluation/test_tdrive.py",
    ),
    # insight
    fault("insight/findings.py", "not in known:", "in known:", "insight/test_doctor.py"),
    fault(
        "insight/association.py",
        "length = max(1, subjects * words // ENOUGH)",
        "length = words",
        "insight/test_association.py",
    ),
    fault(
        "insight/attack_bounds.py",
        "first = 1 / (1 + np.exp(epsilon))",
        "first = 1 / (1 + np.exp(2 * epsilon))",
        "insight/test_attack.py",
        "insight/test_attack.py",
    ),
    fault(
        "insight/leak_report.py",
        "return self.low > 0 and not np.isinf(self.high)",
        "return self.low > 0",
        "insight/test_leaks.py",
    ),
    # service
    fault(
        "service/feed.py",
        "rows[(starts >= since) & (starts < until)]",
        "rows[(starts >= since) & (starts <= until)]",
        "service/test_answers.py",
    ),
    fault(
        "service/feed.py",
        "begin = max(after + 1 - self.first_id, 0)",
        "begin = max(after - self.first_id, 0)",
        "service/test_answers.py",
    ),
    fault(
        "service/access.py",
        "return [moment for moment in self._failures.get(key, ()) if moment > oldest]",
        "return []",
        "service/test_access.py",
    ),
    fault(
        "service/access.py",
        "key = address, public_id(text)",
        'key = address, ""',
        "service/test_access.py",
    ),
    fault(
        "service/tokens.py",
        "if expires is not None and expires <= moment:",
        "if False:",
        "service/test_access.py",
    ),
    fault(
        "service/inbox.py",
        "if self._waiting + size > self._most_waiting or self._closing:",
        "if self._closing:",
        "service/test_ingest.py",
    ),
    fault(
        "service/console/pages.py",
        'if not hmac.compare_digest(form.get("csrf", "").encode(), expected.encode()):',
        "if False:",
        "service/test_console.py",
    ),
    fault(
        "service/console/pages.py",
        'if not hmac.compare_digest(form.get("csrf", "").encode(), expected.encode()):',
        'if form.get("csrf", "") != expected:',
        "service/test_security.py",
    ),
    fault(
        "service/console/pages.py",
        'if site not in ("same-origin", "none") or not own:',
        "if not own:",
        "service/test_console.py",
    ),
    fault(
        "service/console/pages.py",
        'if site not in ("same-origin", "none") or not own:',
        'if site not in ("same-origin", "none"):',
        "service/test_console.py",
    ),
    fault(
        "service/console/pages.py",
        "def log_out(request: Request, state: State, _user: User, _form: SessionForm)",
        "def log_out(request: Request, state: State, _user: User, _form: Form)",
        "service/test_security.py",
    ),
    fault(
        "service/console/pages.py",
        "    _form: SessionForm,\n    token_id",
        "    _form: Form,\n    token_id",
        "service/test_security.py",
    ),
    fault(
        "service/console/workflow_pages.py",
        "def withdraw_policy(state: State, user: SubjectUser, form: SessionForm)",
        "def withdraw_policy(state: State, user: SubjectUser, form: Form)",
        "service/test_console.py",
    ),
    fault(
        "service/sessions.py",
        'return hmac.new(value.encode(), b"csrf", sha256).hexdigest()',
        'return hmac.new(b"tacit", b"csrf", sha256).hexdigest()',
        "service/test_console.py",
    ),
    fault(
        "service/sessions.py",
        "httponly=True",
        "httponly=False",
        "service/test_console.py",
    ),
    fault(
        "service/sessions.py",
        '        samesite="strict",\n    )',
        '        samesite="lax",\n    )',
        "service/test_console.py",
    ),
    fault(
        "service/access.py",
        "if len(times) >= _MOST_FAILURES else 0",
        "if len(times) > _MOST_FAILURES else 0",
        "service/test_access.py",
    ),
    fault(
        "service/access.py",
        "            self.failures.add(key)\n            raise unauthorised",
        "            raise unauthorised",
        "service/test_access.py",
        "service/test_console.py",
    ),
    fault(
        "service/access.py",
        "self._left[token] = left - allowed, moment",
        "self._left[token] = left, moment",
        "service/test_access.py",
    ),
    fault(
        "service/access.py",
        "left = min(_MOST_AT_ONCE, left + (moment - before) * _MOST_A_SECOND)",
        "left = left + (moment - before) * _MOST_A_SECOND",
        "service/test_access.py",
    ),
    fault(
        "service/access.py",
        "            return access.limit(principal)\n    raise",
        "            return principal\n    raise",
        "service/test_security.py",
    ),
    fault(
        "service/access.py",
        "return access.limit(await access",
        "return (await access",
        "service/test_access.py",
    ),
    fault(
        "service/console/pages.py",
        "    return state.access.limit(principal)",
        "    return principal",
        "service/test_security.py",
    ),
    fault(
        "service/console/openid_pages.py",
        "        state.access.failures.add(key)\n",
        "",
        "service/test_openid.py",
    ),
    fault(
        "service/console/openid_pages.py",
        "    if wait:",
        "    if False:",
        "service/test_openid.py",
    ),
    fault(
        "service/tokens.py",
        "if not hmac.compare_digest(digest, _hash(found[2])):",
        "if digest != _hash(found[2]):",
        "service/test_security.py",
    ),
    fault(
        "service/tokens.py",
        "        digest = _NOTHING if known is None else known.digest\n",
        "        if known is None:\n            return None\n        digest = known.digest\n",
        "service/test_security.py",
    ),
    fault(
        "service/openid.py",
        "if not hmac.compare_digest(attempt.state.encode(), state.encode()):",
        "if attempt.state != state:",
        "service/test_openid.py",
    ),
    fault(
        "service/openid.py",
        "if not hmac.compare_digest(attempt.state.encode(), state.encode()):",
        "if False:",
        "service/test_openid.py",
    ),
    fault(
        "service/openid.py",
        'if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):',
        "if False:",
        "service/test_openid.py",
    ),
    fault(
        "service/tokens.py",
        "return self.revoked is None and (self.expires is None or moment < self.expires)",
        "return self.revoked is None",
        "service/test_access.py",
    ),
    fault(
        "service/tokens.py",
        "return self.revoked is None and (self.expires is None or moment < self.expires)",
        "return self.expires is None or moment < self.expires",
        "service/test_access.py",
    ),
    fault(
        "service/tokens.py",
        "        self._forget()\n        return _to_record(row)",
        "        return _to_record(row)",
        "service/test_tokens.py",
    ),
    fault(
        "service/tokens.py",
        "FRESH_SECONDS: Final = 1.0",
        "FRESH_SECONDS: Final = 60.0",
        "service/test_tokens.py",
    ),
    fault(
        "service/sessions.py",
        "SESSIONS.c.digest == _hash(value), SESSIONS.c.expires > now()",
        "SESSIONS.c.digest == _hash(value)",
        "service/test_console.py",
    ),
    fault(
        "service/sessions.py",
        "            connection.execute(SESSIONS.delete().where(SESSIONS.c.digest == digest))\n",
        "            pass\n",
        "service/test_console.py",
    ),
    fault(
        "service/routes/event_streams.py",
        "            if not await is_valid():\n                return  # the token",
        "            if False:\n                return  # the token",
        "service/test_security.py",
    ),
    fault(
        "service/routes/event_streams.py",
        "                if not await is_valid():\n                    return\n",
        "",
        "service/test_console.py",
    ),
    fault(
        "service/access.py",
        "if principal.role not in roles:",
        "if False:",
        "service/test_access.py",
    ),
    fault(
        "service/access.py",
        'if cookie and request.method == "GET":',
        "if cookie:",
        "service/test_console.py",
    ),
    fault(
        "service/dependencies.py",
        "if not own or consumer == principal.name]",
        "if True]",
        "service/test_answers.py",
    ),
    fault(
        "service/dependencies.py",
        "    consumer = principal.name if principal.role is Role.CONSUMER else None\n",
        "    consumer = None\n",
        "service/test_answers.py",
    ),
    fault(
        "service/dependencies.py",
        "        principal.name if principal.role is Role.CONSUMER else None,\n",
        "        None,\n",
        "service/test_counts.py",
    ),
    fault(
        "service/dependencies.py",
        "        if subject is not None and set(subject) != {principal.name}:",
        "        if False:",
        "service/test_answers.py",
    ),
    fault(
        "service/dependencies.py",
        "        subject = [principal.name]\n",
        "",
        "service/test_answers.py",
    ),
    fault(
        "service/feed.py",
        "consumers = None if selection.consumer is None else (selection.consumer,)",
        "consumers = None",
        "service/test_answers.py",
    ),
    fault(
        "service/count_feed.py",
        "consumers = None if selection.consumer is None else (selection.consumer,)",
        "consumers = None",
        "service/test_counts.py",
    ),
    fault(
        "service/count_feed.py",
        '"consumer": None if self.consumer is None else (self.consumer,),',
        '"consumer": None,',
        "service/test_counts.py",
    ),
    fault(
        "service/routes/facts.py",
        "if not own or query.consumer == principal.name",
        "if True",
        "service/test_access.py",
    ),
    fault(
        "service/routes/facts.py",
        "    subject = principal.name if principal.role is Role.SUBJECT else None\n",
        "    subject = None\n",
        "service/test_workflow.py",
        "service/test_access.py",
    ),
    fault(
        "service/routes/facts.py",
        "return make_statement(state, principal.name if principal.role is Role.SUBJECT else None)",
        "return make_statement(state, None)",
        "service/test_access.py",
    ),
    fault(
        "service/routes/workflow.py",
        "    if not own and principal.role is not Role.OPERATOR:",
        "    if False:",
        "service/test_workflow.py",
    ),
    fault(
        "service/routes/workflow.py",
        "author = None if principal.role is Role.OPERATOR else principal",
        "author = None",
        "service/test_workflow.py",
    ),
    fault(
        "service/routes/workflow.py",
        "if reader.role is Role.CONSUMER and proposal.state is ProposalState.FAILED:",
        "if False:",
        "service/test_access.py",
    ),
    fault(
        "service/routes/workflow.py",
        "effect=None if proposal.effect is None or not operator else",
        "effect=None if proposal.effect is None else",
        "service/test_access.py",
    ),
    fault(
        "service/routes/workflow.py",
        'shown, reason = "refused", str(refused) if operator else explain_refusal(refused)',
        'shown, reason = "refused", str(refused)',
        "service/test_workflow.py",
    ),
    fault(
        "service/workflow.py",
        "if query.name == name and author.role is Role.CONSUMER and query.consumer == author.name",
        "if query.name == name",
        "service/test_workflow.py",
    ),
    fault(
        "service/workflow.py",
        "if (proposal.role, proposal.author) != (actor.role, actor.name):",
        "if False:",
        "service/test_security.py",
    ),
    fault(
        "service/workflow.py",
        "            if self._last_number(VERSIONS) != self._given:\n",
        "            if False:\n",
        "service/test_workflow.py",
    ),
    fault(
        "service/console/pages.py",
        "    consumer = user.name if user.role is Role.CONSUMER else None\n",
        "    consumer = None\n",
        "service/test_console.py",
    ),
    fault(
        "service/console/pages.py",
        "    if user.role is not Role.OPERATOR:",
        "    if False:",
        "service/test_console.py",
    ),
    fault(
        "service/console/views.py",
        "    tables = state.feed.read_last(FeedSelection(subjects=(subject,)), WINDOWS)",
        "    tables = state.feed.read_last(FeedSelection(), WINDOWS)",
        "service/test_security.py",
    ),
    fault(
        "service/routes/ingest.py",
        "    if principal.streams and stream not in principal.streams:",
        "    if False:",
        "service/test_ingest.py",
    ),
    # cli
    fault(
        "cli/exit_codes.py", "_exit(141)", "_exit(1)", "cli/test_commands.py", "cli/test_outputs.py"
    ),
    fault(
        "cli/log.py",
        "if record.exc_info and record.exc_info[1] is not None:",
        "if False:",
        "cli/test_log.py",
        "cli/test_monitoring.py",
    ),
    fault(
        "cli/sources.py",
        "if counts_to is not None:",
        "if counts_to is None:",
        "engines/test_counts.py",
        "engines/test_counts.py",
    ),
)


def find(found: Fault, folder: Path) -> str:
    """Return what finds a fault; an empty text if nothing does."""
    path = folder / "src" / "tacit" / found.path
    original = path.read_text()
    found.plant(folder)
    try:
        for test in found.tests:
            status, said = run_pytest(folder, f"tests/{test}")
            if status is None:
                return f"{test} does not end"
            lines = [one for one in said.splitlines() if one.startswith(("FAILED", "ERROR"))]
            if status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
                return next(iter(lines), test)
            if status != pytest.ExitCode.OK:
                raise SystemExit(f"{test} could not be run:\n{said}")
    finally:
        path.write_text(original)
    return ""


def find_in_copy(found: Fault, folder: Path) -> tuple[str, float]:
    """Return what finds a fault in this process's own copy below a folder, and the seconds."""
    own = folder / str(os.getpid())
    if not own.exists():
        own.mkdir()
        copy(own)
    started = time.monotonic()
    return find(found, own), time.monotonic() - started


def run_pytest(folder: Path, test: str) -> tuple[int | None, str]:
    """Run a test file of the copy; return the exit code, or None, and what was printed.

    In a fork of this process, which has imported the libraries, and nothing of the package.
    """
    log = folder / "log"
    child = os.fork()
    if child == 0:
        status: int = pytest.ExitCode.INTERNAL_ERROR
        try:
            with log.open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.setsid()
            os.chdir(folder)
            sys.path[:0] = [str(folder / "src"), str(folder)]
            os.environ["PYTHONPATH"] = str(folder / "src")
            sys.modules.pop("tests", None)
            status = pytest.main(
                [*("-x", "-q", "-n0", "-p", "no:cacheprovider"), *("-W", IMPORTED), test]
            )
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    deadline = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), log.read_text()
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, log.read_text()
        time.sleep(0.05)


def copy(folder: Path) -> None:
    """Copy the checkout, with bytecode and compiled kernels."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy2(source, folder / name)


def main(names: list[str]) -> int:
    """Plant the faults that were asked for; return 1 if one survives."""
    chosen = [one for one in FAULTS if not names or any(name in one.path for name in names)]
    for one in FAULTS:
        one.check()
    for library in LIBRARIES:
        importlib.import_module(library)
    survivors = 0
    forks = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(min(PROCESSES, len(chosen)), forks) as pool,
    ):
        work = partial(find_in_copy, folder=Path(temporary))
        running = {pool.submit(work, one): one for one in chosen}
        for number, ended in enumerate(as_completed(running), 1):
            one, (found_by, seconds) = running[ended], ended.result()
            survivors += not found_by
            print(f"{number}/{len(chosen)} {one}\n    {found_by or 'SURVIVED'} ({seconds:.0f} s)")
            sys.stdout.flush()
    print(f"{len(chosen)} faults, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
