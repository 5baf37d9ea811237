"""Names in the package: a class name means one thing, and a long option is written once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "tacit"
COMMANDS = SOURCE / "cli"


def count_classes(texts: list[str]) -> Counter[str]:
    """How often each class name is defined."""
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))


def count_options(texts: list[str]) -> Counter[str]:
    """How often each long option is the first argument of a `click.option`, with its help."""
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found: Counter[str] = Counter()
    for call in calls:
        if ast.unparse(call.func) == "click.option":
            names = [ast.unparse(arg) for arg in call.args if isinstance(arg, ast.Constant)]
            helps = [ast.unparse(word.value) for word in call.keywords if word.arg == "help"]
            found.update(f"{name} {text}" for name in names for text in helps)
    return found


def test_no_two_classes_have_the_same_name() -> None:
    found = count_classes([path.read_text() for path in SOURCE.rglob("*.py")])
    assert len(found) > 500
    assert [name for name, times in found.items() if times > 1] == []
    assert count_classes(["class A: ...", "class A: ..."])["A"] == 2


def test_an_option_of_several_commands_is_defined_once() -> None:
    """Options of the same name may mean different things, and then they say different things."""
    found = count_options([path.read_text() for path in COMMANDS.rglob("*.py")])
    assert len(found) > 40
    assert [option for option, times in found.items() if times > 1] == []
