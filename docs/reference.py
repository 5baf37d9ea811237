"""Generate pages: reference from the JSON Schema, the commands, docstrings and the HTTP API;
copies of pages from elsewhere; notebooks with their outputs.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

import tacit
from tacit.cli.main import main
from tacit.service.app import create_app
from tacit.spec.schema import json_schema

_GROUPS = {
    "Specifications": ("load", "loads", "validate", "explain", "to_yaml", "json_schema"),
    "Plans": ("plan", "least_epsilon", "curve", "audit", "Plan"),
    "Runs": ("detect", "run", "open_run", "submit", "doctor", "warm", "Run"),
    "Answers": ("CollectedAnswers", "DeliveredAnswers", "Answers"),
    "The ledger": ("show_ledger", "export_ledger", "verify_ledger", "archive_ledger", "released"),
    "Parts of a specification": (
        "Specification", "Stream", "Area", "Windows", "EventType", "Private", "Query",
    ),
    "Patterns": ("parse_pattern", "Seq", "And", "Or", "Not", "Name"),
}  # fmt: skip

_TOP = Path(__file__).parent.parent
_COPIED = ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
"""Pages of the top folder that are also pages of the site."""


def write_reference(folder: Path) -> None:
    """Write all generated pages; a page that stays the same is not touched."""
    folder.mkdir(exist_ok=True)
    pages = {
        "fields.md": "\n".join(list_fields()),
        "help.md": "\n".join(list_help(main)),
        "api.md": "\n".join(list_api()),
        "http.md": "\n".join(list_routes()),
        **{f"{name.lower()}.md": copy_page(Path(f"{name}.md")) for name in _COPIED},
        **{
            f"example-{page.parent.name}.md": copy_page(page.relative_to(_TOP))
            for page in sorted((_TOP / "examples").glob("*/README.md"))
        },
    }
    for name, text in pages.items():
        _write(folder / name, text.encode())
    for notebook in sorted((_TOP / "docs" / "notebooks").glob("*.ipynb")):
        write_notebook(notebook, folder)


def _write(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def write_notebook(notebook: Path, folder: Path) -> None:
    """Write a notebook as a page, with its stored outputs; pictures are files beside it."""
    name = f"notebook-{notebook.stem}"
    parts, pictures = [], 0
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(r"\]\(([\w-]+)\.ipynb", r"](notebook-\1.md", source)
            parts.append(source)
            continue
        parts.append(f"```ipython\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                pictures += 1
                _write(folder / f"{name}-{pictures}.png", base64.b64decode(data["image/png"]))
                size = output.get("metadata", {}).get("image/png", {})
                width = f"{{width={size['width']}px}}" if size else ""
                parts.append(f"![Output of the cell above]({name}-{pictures}.png){width}")
            elif "text/html" in data:
                html = re.sub(r"<style>.*?</style>", "", "".join(data["text/html"]), flags=re.S)
                parts.append(f'```{{raw}} html\n<div class="cell-output">{html}</div>\n```')
            else:
                text = "".join(data["text/plain"]).rstrip()
                parts.append(f"```{{code-block}} text\n:class: cell-output\n\n{text}\n```")
    link = f"{{download}}`{notebook.name} <../notebooks/{notebook.name}>`"
    parts.insert(1, f"This page is a notebook with its outputs. To run it, download {link}.")
    _write(folder / f"{name}.md", "\n\n".join(parts).encode() + b"\n")


def link_generated(text: str, folder: str) -> str:
    """Return a page whose links to examples, notebooks and pages of the top folder stay inside."""
    up = r"\]\((?:\.\./)*"
    text = re.sub(rf"{up}examples/(\w+)/README\.md", rf"]({folder}example-\1.md", text)
    text = re.sub(rf"{up}notebooks/([\w-]+)\.ipynb", rf"]({folder}notebook-\1.md", text)
    pages = "|".join(_COPIED)
    return re.sub(rf"{up}({pages})\.md", lambda m: f"]({folder}{m[1].lower()}.md", text)


def copy_page(page: Path) -> str:
    """Return a page from outside, with its links as they are from the generated folder."""
    text = (_TOP / page).read_text("utf-8")
    text = re.sub(r"\]\(\.\./(\w+)/README\.md", r"](example-\1.md", text)
    text = re.sub(r"\]\((\.\./)+(\w+\.md)", r"](\2", text)
    text = re.sub(r"\]\((\.\./)*docs/", "](../", text)
    return re.sub(rf"\]\(({'|'.join(_COPIED)})\.md", lambda m: f"]({m[1].lower()}.md", text)


def list_fields() -> Iterator[str]:
    """Yield the page of all fields, from the schema."""
    schema = json_schema()
    yield "# All fields of a specification"
    yield ""
    yield (
        f"This page is generated from the JSON Schema, whose id is `{schema['$id']}`."
        " `tacit schema` prints it. [Specification](../specification.md) explains the fields."
    )
    yield from _list_properties("The specification", schema)
    for name, part in sorted(schema["$defs"].items()):
        if "properties" in part:
            yield from _list_properties(name, part)


def _list_properties(title: str, part: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield _inline(part.get("description", ""))
    yield "\n| field | type | default | meaning |\n|---|---|---|---|"
    for name, field in part["properties"].items():
        needed = name in part.get("required", ())
        default = "required" if needed else _code(field.get("default"))
        meaning = _inline(field.get("description", ""))
        yield f"| `{name}` | {_type(field)} | {default} | {meaning} |"


def _type(field: Mapping[str, Any]) -> str:
    """Describe a type in a few words, with links to other parts."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in field:
        return " or ".join(_code(one) for one in field["enum"])
    if "const" in field:
        return _code(field["const"])
    if field.get("type") == "array":
        inner = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_type(inner)}"
    if field.get("type") == "object":
        inner = field.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, dict) else "mapping"
    kind = field.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _code(value: object) -> str:
    if value is None:
        return ""
    text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    return f"`{str(text).replace('|', chr(92) + '|')}`" if str(text).strip() else f"`{text!r}`"


def _inline(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def list_help(command: click.Command, name: str = "tacit") -> Iterator[str]:
    """Yield the page with the help of all commands."""
    if name == "tacit":
        yield "# Help of all commands\n"
        yield (
            "This page is generated: it is what `--help` prints."
            " [Command line](../cli.md) explains every option."
        )
    context = click.Context(command, info_name=name, max_content_width=84, terminal_width=84)
    yield f"\n## `{name}`\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            inner = command.get_command(context, part)
            assert inner is not None
            yield from list_help(inner, f"{name} {part}")


def list_routes() -> Iterator[str]:
    """Yield the page of the HTTP API, from the OpenAPI document."""
    document = create_app(cast("Any", None)).openapi()
    yield "# HTTP API\n"
    yield (
        "This page is generated from the OpenAPI document, which a service shows at"
        " `/v1/openapi.json`. [The service](../service.md) explains roles and tokens. A token is"
        " sent as `Authorization: Bearer TOKEN`. Errors are problem details (RFC 9457)."
    )
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"\n## `{method.upper()} {path}`\n"
            yield f"**{operation['summary']}.** {' '.join(operation['description'].split())}\n"
            yield from _list_parameters(operation.get("parameters", ()))
            codes = ", ".join(
                f"`{code}` {_inline(one['description']).rstrip('.')}"
                for code, one in operation["responses"].items()
            )
            yield f"Responses: {codes}."
    yield "\n## Objects\n"
    for name, part in document["components"]["schemas"].items():
        yield f"### {name}\n\n{_inline(part.get('description', ''))}\n"
        if "enum" in part:
            yield "One of " + ", ".join(map(_code, part["enum"])) + ".\n"
        if "properties" in part:
            yield "| field | type | meaning |\n|---|---|---|"
            for field, one in part["properties"].items():
                meaning = _inline(one.get("description", ""))
                yield f"| `{field}` | {_type(one)} | {meaning} |"
            yield ""


def _list_parameters(parameters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not parameters:
        return
    yield "| parameter | in | meaning | default |\n|---|---|---|---|"
    for one in parameters:
        default = "required" if one.get("required") else _code(one["schema"].get("default"))
        meaning = _inline(one.get("description", ""))
        yield f"| `{one['name']}` | {one['in']} | {meaning} | {default} |"
    yield ""


def list_api() -> Iterator[str]:
    """Yield the page of the Python API, from docstrings."""
    yield "# Python API\n"
    yield (
        "This page is generated from docstrings. [Python](../python.md) shows how to use them."
        " Everything here is imported from `tacit`."
    )
    named = {name for names in _GROUPS.values() for name in names}
    rest = tuple(name for name in tacit.__all__ if name not in named)
    for title, names in {**_GROUPS, "Others": rest}.items():
        yield f"\n## {title}\n\n```{{eval-rst}}"
        for name in names:
            found = getattr(tacit, name)
            kind = "class" if inspect.isclass(found) else "function"
            yield f".. auto{kind}:: tacit.{name}"
            if inspect.isclass(found):
                yield "   :members:"
                yield "   :exclude-members: model_config, model_copy, checked, model_post_init"
            yield ""
        yield "```"
