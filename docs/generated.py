"""Pages of the site that follow from the code: commands, keys of specs, and JSON.

A hook of MkDocs, named in `mkdocs.yml`. They are made when the site is built; no file has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

SPECS = Path(__file__).parents[1] / "configs" / "spec.schema.json"
SHOWN_VALUES = 12  # of a list of allowed values


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that MkDocs read from the folder."""
    from mkdocs.structure.files import File

    for name, page in (("commands", commands), ("specs", specs), ("json", json_objects)):
        files.append(File.generated(config, f"{name}.md", content=page()))
    return files


def commands() -> str:
    """Every command with its arguments and options, as `--help` says them."""
    import typer.main
    from click import Context

    from pearl.cli import app

    group = typer.main.get_command(app)
    parts = [
        "# Commands",
        "This page is what `pearl COMMAND --help` says. [The contract](contract.md) promises exit "
        "statuses and files.",
    ]
    for name in sorted(group.commands):  # type: ignore[attr-defined]
        command = group.commands[name]  # type: ignore[attr-defined]
        if command.hidden:
            continue
        context = Context(command, info_name=f"pearl {name}")
        parts += [f"## pearl {name}", (command.help or "").strip()]
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"```\npearl {name} {usage}\n```")
        records = [p.get_help_record(context) for p in command.get_params(context)]
        rows = [(f"`{r[0]}`", r[1]) for r in records if r and "--help" not in r[0]]
        if rows:
            parts.append(table(("argument or option", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def specs() -> str:
    """Every key of a spec, from the schema that `pearl schema` prints."""
    schema = json.loads(SPECS.read_text(encoding="utf-8"))
    parts = [
        "# Specs",
        "Every key of a spec. `pearl schema` prints the JSON Schema that this page is made of, and "
        "`pearl init --full` writes a spec with every key. [Defaults](defaults.md) gives reasons.",
        "## A spec",
        rows_of(schema, schema),
    ]
    for name, part in schema["$defs"].items():
        if "properties" in part:
            parts += [f"## {name}", part.get("description", ""), rows_of(part, schema)]
    return "\n\n".join(p for p in parts if p) + "\n"


def json_objects() -> str:
    """Every key of the JSON that commands write, from the schemas in `pearl/schemas`."""
    parts = [
        "# JSON",
        "What `--json FILE` writes and what the folder of a run holds. Every object carries "
        "`schema`. All numbers are SI. `updates` are gradient steps, `samples` are updates × batch "
        "size. [The contract](contract.md) says how formats change.",
    ]
    for file in sorted(files("pearl.schemas").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".json"):
            schema = json.loads(file.read_text(encoding="utf-8"))
            rows = list(keys(schema, schema, ""))
            parts += [f"## {file.name.removesuffix('.json')}", schema.get("title", "") + "."]
            parts += [schema["description"]] if "description" in schema else []
            parts.append(table(("key", "value", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def rows_of(part: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The keys of one section of a spec as a table."""
    rows = [
        (f"`{key}`", kind(of, root), default(of), of.get("description", ""))
        for key, of in part["properties"].items()
    ]
    return table(("key", "value", "default", "meaning"), rows)


def keys(part: Mapping[str, Any], root: Mapping[str, Any], above: str) -> Iterator[tuple[str, ...]]:
    """One row for each key of an object, and for the keys of the objects in it."""
    for key, of in part.get("properties", {}).items():
        path = f"{above}{key}"
        yield f"`{path}`", kind(of, root), of.get("description", "")
        for inner in choices(of, root):
            if "items" in inner:
                for item in choices(inner["items"], root):
                    yield from keys(item, root, f"{path}[].")
            yield from keys(inner, root, f"{path}.")


def choices(of: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives of a value, with references within the schema followed."""
    alternatives = of.get("anyOf") or of.get("oneOf") or [of]
    reference = "#/$defs/"
    return [
        root["$defs"][a["$ref"].removeprefix(reference)]
        if a.get("$ref", "").startswith(reference)
        else a
        for a in alternatives
    ]


def kind(of: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The type of a value in words: a type, the values allowed, or the section that it is."""
    words = []
    for a in of.get("anyOf") or of.get("oneOf") or [of]:
        if "$ref" in a:
            words.append(a["$ref"].rpartition("/")[2].rpartition(":")[2])
        elif "enum" in a:
            shown = ", ".join(f"`{value}`" for value in a["enum"][:SHOWN_VALUES])
            words.append(shown + (", …" if len(a["enum"]) > SHOWN_VALUES else ""))
        elif "const" in a:
            words.append(f"`{a['const']}`")
        elif a.get("type") == "array":
            words.append(f"list of {kind(a.get('items', {}), root) or 'values'}")
        else:
            given = a.get("type", "")
            words.append(" or ".join(given) if isinstance(given, list) else given)
    return " or ".join(dict.fromkeys(w for w in words if w))


def default(of: Mapping[str, Any]) -> str:
    return f"`{json.dumps(of['default'], ensure_ascii=False)}`" if "default" in of else ""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown; line ends and pipes of cells are made safe."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )
