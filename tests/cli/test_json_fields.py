"""The fields of `--json`, and the stream that they go to, are an interface too.

`json_fields.txt` lists them. If you change one on purpose, write the new list with

    python -m tests.cli.test_json_fields

and say so in docs/cli.md and in the changelog.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.cli.small_runs import SPEC, specified, tacit, tuples

RECORDED = Path(__file__).with_name("json_fields.txt")
LIMITED = SPEC.replace("epsilon: 2}", "epsilon: 2, limit: 40 per day, spend: every}")
TELLING = SPEC.replace("where: \"kind = 'd'\"", "where: \"kind IN ('a', 'd')\"")
"""A public event type tells about a private one."""


def list_commands(folder: Path) -> Iterator[tuple[str, list[str | Path]]]:
    """List commands that print JSON, in an order in which each finds what it needs."""
    spec, source, plan = folder / "spec.yaml", folder / "in.csv", folder / "plan.json"
    ledger, sink = folder / "spent.db", folder / "out.jsonl"
    yield "validate", ["validate", spec]
    yield "validate, with mistakes", ["validate", folder / "wrong.yaml"]
    yield "explain", ["explain", spec]
    yield "plan", ["plan", spec, "--history", source, "-o", plan]
    yield "plan --quality", ["plan", spec, "--history", source, "--quality", "0.9"]
    yield "plan --mechanism auto", ["plan", spec, "--history", source, "--mechanism", "auto"]
    yield "leaks", ["leaks", spec]
    yield "leaks --history", ["leaks", folder / "telling.yaml", "--history", folder / "long.csv"]
    yield "attack", ["attack", spec, "--plan", plan, "--history", source]
    yield "audit", ["audit", plan]
    yield "audit, of a plan that is changed", ["audit", folder / "changed.json"]
    yield "detect", ["detect", spec, source, "--to", folder / "true.csv"]
    yield "run", ["run", spec, source, "--plan", plan, "--no-ledger", "--to", folder / "out.csv"]
    yield "count", ["count", folder / "out.csv", "--plan", plan]
    with_ledger: list[str | Path] = ["--plan", plan, "--ledger", ledger, "--to", sink]
    yield "doctor", ["doctor", spec, source, *with_ledger]
    yield "run --ledger", ["run", spec, source, *with_ledger]
    yield "ledger show", ["ledger", "show", ledger]
    yield "ledger show --subject", ["ledger", "show", ledger, "--subject", "1"]
    yield "ledger answers", ["ledger", "answers", ledger, "--to", folder / "again.csv"]
    yield "ledger answers, to standard output", ["ledger", "answers", ledger, "--to", "-"]
    yield "ledger verify", ["ledger", "verify", ledger]
    yield "ledger archive", ["ledger", "archive", ledger, "--before", "2020-01-01"]
    yield "warm", ["warm", spec]


def list_fields(value: Any, path: str = "") -> Iterator[str]:
    """List the paths to all values; the items of a list share one path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from list_fields(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from list_fields(inner, f"{path}[]")
    else:
        yield path


def parse_report(printed: str) -> Any:
    """Return the JSON object that is printed with indentation, whatever lines come before it."""
    start = printed.find("{\n")
    return None if start < 0 else json.JSONDecoder().raw_decode(printed[start:])[0]


def record(folder: Path) -> Iterator[str]:
    """Run the commands; list for each its exit code, its stream and its fields."""
    specified(folder, LIMITED)
    tuples(folder / "in.csv", seed=1)
    (folder / "wrong.yaml").write_text("streams: 7")
    (folder / "telling.yaml").write_text(TELLING)
    tuples(folder / "long.csv", seed=2, windows=1000)
    for name, arguments in list_commands(folder):
        if name.startswith("audit, of"):
            plain = json.loads((folder / "plan.json").read_text())
            (folder / "changed.json").write_text(json.dumps(plain | {"mechanism": "uniform"}))
        shown = tacit(*arguments, "--json")
        streams = {"stdout": parse_report(shown.stdout), "stderr": parse_report(shown.stderr)}
        found = {stream: report for stream, report in streams.items() if report is not None}
        yield f"{name} | exit code {shown.exit_code} | {' '.join(found) or 'no report'}"
        for report in found.values():
            yield from (f"  {field}" for field in sorted(set(list_fields(report))))


def test_the_fields_of_json_are_those_that_are_recorded(tmp_path: Path) -> None:
    assert [*record(tmp_path)] == RECORDED.read_text().splitlines()


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        RECORDED.write_text("\n".join(record(Path(place))) + "\n")
