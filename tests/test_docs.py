"""The documentation agrees with the command line, its links lead somewhere, it works as shown."""

from __future__ import annotations

import csv
import doctest
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tacit.cli.exit_codes import EXIT_CODES
from tacit.cli.main import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*/README.md")])
TUTORIALS = ("operators.md", "consumers.md", "planning.md", "subjects.md")

CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
FOREIGN = {"MemoryDenyWriteExecute", "ValidationError"}  # of systemd and Pydantic
FOLDERS = ("benchmarks", "docs", "examples", "tests", "src")  # the last one wins
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
}
CLASSES = {
    name: text
    for text in SOURCES.values()
    for name in re.findall(r"^class (\w+)", text, flags=re.M)
}

_HEADING = re.compile(r"^#+ (.+)$", re.M)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_OPTION_ROW = re.compile(r"^\| (`-.+?`) \|", re.M)
_STEP = re.compile(
    r"^\*\*(?P<name>[\w.-]+)\*\*\n\n```\w+\n(?P<text>.*?)^```$"
    r"|^```console\n(?P<console>.*?)^```$",
    re.M | re.S,
)
_SPEED = re.compile(r"in [\d.]+ s \([\d,]+ per second\)")


def commands(name: str = "tacit", command: click.Command = main) -> dict[str, click.Command]:
    """Every command by what is typed, at any depth, the outermost included."""
    found = {name: command}
    if isinstance(command, click.Group):
        within = click.Context(command)
        for part in command.list_commands(within):
            inner = command.get_command(within, part)
            assert inner is not None
            found |= commands(f"{name} {part}", inner)
    return found


def sections(page: str) -> dict[str, str]:
    """The texts under the second-level headings of a page."""
    parts = re.split(r"^## (.+)$", (DOCS / page).read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def context(name: str, command: click.Command) -> click.Context:
    """The context that a command has when it is typed."""
    return click.Context(command, info_name=name, help_option_names=["-h", "--help"])


def spellings(command: click.Command, name: str) -> set[tuple[str, ...]]:
    """The ways to write each option of a command."""
    params = command.get_params(context(name, command))
    return {tuple(p.opts + p.secondary_opts) for p in params if isinstance(p, click.Option)}


def documented(text: str) -> set[tuple[str, ...]]:
    """The ways to write each option that a section's table has."""
    cells = _OPTION_ROW.findall(text)
    return {tuple(re.findall(r"`(-[\w-]*)", cell)) for cell in cells}


def test_every_command_has_its_section_and_every_section_its_command() -> None:
    named = {heading.strip("`") for heading in sections("cli.md") if heading.startswith("`tacit")}
    assert named == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_reference_has_a_commands_options_and_no_others(name: str) -> None:
    text = sections("cli.md")[f"`{name}`"]
    assert documented(text) == spellings(commands()[name], name)


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_reference_shows_a_commands_usage(name: str) -> None:
    usage = context(name, commands()[name]).get_usage().removeprefix("Usage: ")
    assert usage in sections("cli.md")[f"`{name}`"]


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_reference_tells_the_defaults_that_help_tells(name: str) -> None:
    text = sections("cli.md")[f"`{name}`"]
    for option in commands()[name].params:
        if isinstance(option, click.Option) and option.show_default:
            row = next(line for line in text.splitlines() if f"| `{option.opts[0]}" in line)
            assert f"| `{option.default}` |" in row


def test_the_reference_has_all_exit_codes() -> None:
    told = dict(re.findall(r"^ +(\d+) +(.+)$", EXIT_CODES, re.M))
    written = dict(re.findall(r"^\| (\d+) \| (.+?) \|", sections("cli.md")["Exit codes"], re.M))
    assert written == told


def anchors(page: Path) -> set[str]:
    """The places in a page that a link may name."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}: no such heading"


_SHELL = re.compile(r"^ *```sh\n(.*?)^ *```$", re.M | re.S)
_PROGRAMS = {
    "cat", "createdb", "docker", "done", "export", "for", "install", "java", "kubectl",
    "mosquitto", "mosquitto_passwd", "mvn", "openssl", "pip", "psql", "python", "python3",
    "sqlite3", "standalone-job.sh", "systemctl", "touch", "umask", "useradd", "yarn-session.sh",
    "zcat",
}  # fmt: skip
"""Programs that pages tell people to run, besides our own."""


def typed_commands(page: Path) -> Iterator[list[str]]:
    """The words of each command in the shell blocks of a page."""
    for block in _SHELL.findall(page.read_text()):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            words = shlex.split(line, comments=True)
            while "|" in words:
                yield words[: words.index("|")]
                words = words[words.index("|") + 1 :]
            if words:
                yield words


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_classes_and_methods_that_a_page_names_exist(page: Path) -> None:
    """`windows/clock.py`, `ReleaseBatch`, `Engine.insert`."""
    for word in re.findall(r"`([^`\n]+)`", _FENCED.sub("", page.read_text())):
        if re.fullmatch(r"[\w/-]+\.py", word):
            assert any(f"/{path}".endswith(f"/{word}") for path in SOURCES), word
        elif re.fullmatch(r"[A-Z][a-z]+[A-Z]\w*", word):
            assert word in CLASSES or word in FOREIGN, word
        elif re.fullmatch(r"[A-Z][a-z]\w*\.[a-z_]\w+", word):
            name, method = word.split(".")
            assert re.search(rf"\b{method}\b", CLASSES[name]), word


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_that_a_page_names_exist(page: Path) -> None:
    known = SOURCES["src/tacit/engines/metrics.py"]
    for name in re.findall(r"`tacit_(\w+?)(?:_total)?`", page.read_text()):
        assert f'"{name}"' in known or f'"tacit_{name}"' in known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_to_type_exist_with_their_options(page: Path) -> None:
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert targets is not None
    for words in typed_commands(page):
        program, *arguments = words
        if program == "make":
            assert set(arguments) <= {*targets[1].split(), ".venv/.ready", ".flink/.ready"}
        elif program in ("tacit", ".venv/bin/tacit"):
            parse(main, "tacit", arguments)
        else:
            assert program in _PROGRAMS, f"{page.name}: {program}"


def parse(command: click.Command, name: str, arguments: list[str]) -> None:
    """Fail if a command, an option or a required argument does not exist."""
    with context(name, command) as within:
        arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
        given, _, order = command.make_parser(within).parse_args(list(arguments))
        if isinstance(command, click.Group):
            inner = command.get_command(within, arguments[0]) if arguments else None
            assert inner is not None, f"{name} {arguments}"
            parse(inner, f"{name} {arguments[0]}", arguments[1:])
            return
        for one in command.params:
            missing = one.required and given.get(one.name or "") in (None, ())
            assert not missing, f"{name} {arguments} needs {one.name}"
        assert not set(order) - set(command.params) - {command.get_help_option(within)}


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {link.partition("#")[0] for link in _LINK.findall((DOCS / "index.md").read_text())}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_the_tables_of_results_are_those_of_the_files_beside_the_figures() -> None:
    figure, checked = "", 0
    for line in (DOCS / "results.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if found := re.match(r"!\[.*\]\(results/([\w-]+)\.svg\)", line):
            figure = found[1]
        elif line.startswith("| method | decode |"):
            epsilons = [float(cell) for cell in cells[2:]]
            with (DOCS / f"results/{figure}.csv").open() as file:
                rows = list(csv.DictReader(file))
            known = {(row["method"], row["decode"], float(row["epsilon"])): row for row in rows}
        elif len(cells) > 2 and cells[1] in ("literal", "posterior"):
            for epsilon, cell in zip(epsilons, cells[2:], strict=True):
                mean = float(known[cells[0], cells[1], epsilon]["mre"])
                assert abs(mean - float(cell)) <= 0.0005 + 1e-6, f"{figure}: {line}"
                checked += 1
    assert checked > 500


# The rows of tables that name no column of their file: method, variant and decoding. The best of
# a variant is the least error of any baseline.
_ROWS: dict[str, tuple[str, str, str]] = {
    "`optimal`": ("optimal", "", "posterior"),
    "`adaptive`, posterior": ("adaptive", "", "posterior"),
    "prior alone": ("prior alone", "", "posterior"),
    "prior alone (epsilon 0)": ("prior alone", "", "posterior"),
    "prior alone, memory of public events": ("prior alone", "", "memory"),
    "best baseline as published": ("", "as published", "posterior"),
    "... on private types, Laplace noise": ("", "private types", "posterior"),
    "... on private types, randomised response": ("", "randomised response", "posterior"),
    "... and memory": ("", "randomised response", "memory"),
    "... same total over w windows": ("", "same total", "posterior"),
    "... same total over w windows, memory": ("", "same total", "memory"),
    "answers, k-ary response": ("answers, k-ary response", "", "posterior"),
    "answers, epsilon split": ("answers, epsilon split", "", "posterior"),
    "`optimal`, memory, `paced`": ("optimal", "paced", "memory"),
    "`optimal`, memory, `every` open window until exhausted": (
        "optimal", "every open window", "memory"),
    "`optimal`, memory, even epsilon per window": ("optimal", "even epsilon per window", "memory"),
    "`optimal` without memory, `every` open window until exhausted": (
        "optimal", "every open window, no memory", "posterior"),
    "best w-event baseline as published": ("", "as published", "posterior"),
    "best on private types, randomised response": (
        "", "private types, randomised response", "posterior"),
    "best on private types, randomised response, memory": (
        "", "private types, randomised response", "memory"),
}  # fmt: skip


def read_results(figure: str) -> list[dict[str, str]]:
    """The rows of the file beside a figure."""
    with (DOCS / f"results/{figure}.csv").open() as file:
        return list(csv.DictReader(file))


def test_fair_and_daily_tables_of_results_are_those_of_the_files() -> None:
    rows, checked, epsilons = list[dict[str, str]](), 0, list[float]()
    for line in (DOCS / "results.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if found := re.match(r"!\[.*\]\(results/([\w-]+)\.svg\)", line):
            compared = found[1].startswith(("day-", "fair-"))
            rows = read_results(found[1]) if compared else []
        elif rows and cells[0] == "method":
            epsilons = [float(cell) for cell in cells[1:]]
        elif rows and cells[0] in _ROWS:
            method, variant, decode = _ROWS[cells[0]]
            errors: dict[float, list[float]] = {epsilon: [] for epsilon in epsilons}
            for row in rows:
                fits = (row["variant"], row["decode"]) == (variant, decode)
                if fits and method in ("", row["method"]):
                    errors[float(row["epsilon"])].append(float(row["mre"]))
            for epsilon, cell in zip(epsilons, cells[1:], strict=True):
                assert abs(min(errors[epsilon]) - float(cell)) <= 0.0005 + 1e-6, line
                checked += 1
    assert checked > 200


def test_the_tables_of_counts_are_those_of_their_file() -> None:
    known = {
        (row["data"], row["subjects"], row["method"], float(row["epsilon_per_day"])): row["mae"]
        for row in read_results("counts")
    }
    checked = 0
    for table in re.findall(
        r"^\| (generated|T-Drive), ([\d,]+) subjects \|(.+)\|\n\|.+\n((?:\|.+\n)+)",
        (DOCS / "results.md").read_text(),
        re.M,
    ):
        data, subjects, head, rows = table
        for row in rows.splitlines():
            name, *cells = [cell.strip() for cell in row.strip("|").split("|")]
            for epsilon, cell in zip(head.split("|"), cells, strict=True):
                key = data, subjects.replace(",", ""), name.partition(" (")[0], float(epsilon)
                assert abs(float(known[key]) - float(cell)) <= 0.05 + 1e-6, f"{key}: {cell}"
                checked += 1
    assert checked == len(known)


def test_the_readmes_table_of_errors_is_that_of_the_results() -> None:
    known = {
        (row["method"], row["decode"], float(row["epsilon"])): float(row["mre"])
        for row in read_results("synthetic")
    }
    columns = [("uniform", "literal"), ("adaptive", "literal")]
    columns += [(method, "posterior") for method in ("adaptive", "optimal")]
    rows = re.findall(
        r"^\| ([\d.]+) \|((?: [\d.]+ \|){4})$", (ROOT / "README.md").read_text(), re.M
    )
    assert len(rows) == 6
    for epsilon, cells in rows:
        for column, cell in zip(columns, cells.strip(" |").split(" | "), strict=True):
            digits = len(cell.partition(".")[2])
            assert round(known[*column, float(epsilon)], digits) == float(cell)


def test_the_pictures_of_concepts_are_those_that_the_command_draws() -> None:
    drawing = runpy.run_path(str(DOCS / "draw_concepts.py"))
    page = (DOCS / "concepts.md").read_text()
    for name, draw in drawing["PICTURES"].items():
        assert (DOCS / f"concepts/{name}.svg").read_text() == draw().svg()
        assert f"(concepts/{name}.svg)" in page


def dialogue(console: str) -> Iterator[tuple[str, str]]:
    """What is typed, and what is answered."""
    for part in re.split(r"^\$ ", console, flags=re.M)[1:]:
        typed, _, answered = part.partition("\n")
        yield typed, answered


def run(typed: str, code: int, capture: pytest.CaptureFixture[str]) -> tuple[str, int]:
    """Do what a line says, after a command that ended with `code`; what it prints, and its code."""
    words = shlex.split(typed)
    if typed == "echo $?":
        return f"{code}\n", 0
    if words[0] == "cat":
        return Path(words[1]).read_text(), 0
    if words[0] != "tacit":
        raise AssertionError(f"a tutorial may type tacit, cat or echo $?; it types {typed}")
    capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(words[1:], prog_name="tacit")
    return "".join(capture.readouterr()), int(ended.value.code or 0)


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_works_as_shown(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    checker, code = doctest.OutputChecker(), 0
    for step in _STEP.finditer((DOCS / page).read_text()):
        if step["name"]:
            Path(step["name"]).write_text(step["text"])
            continue
        for typed, answered in dialogue(step["console"]):
            printed, code = run(typed, code, capfd)
            wanted, got = (_SPEED.sub("in no time", text) for text in (answered, printed))
            assert checker.check_output(wanted, got, doctest.ELLIPSIS), f"{typed}\n{printed}"
