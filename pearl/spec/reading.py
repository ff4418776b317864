"""`load`: a YAML system spec → `System`. The only place that parses text and units.

`python -m pearl.spec.reading` prints the JSON Schema of specs, stored for editors in `configs/`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic import TypeAdapter

from pearl.algorithms import ALGORITHMS, algorithm
from pearl.algorithms.fields import MODULE
from pearl.algorithms.options import Own, OwnRollout
from pearl.errors import SpecError
from pearl.spec.checks import Lines, SpecChecker, read_shipped
from pearl.spec.messages import suggest_nearest
from pearl.spec.models import Spec
from pearl.spec.system import EnvSpec, StaticSpec, System
from pearl.spec.template import init_text
from pearl.spec.trust import find_named_code
from pearl.spec.yaml_reader import (
    Document,
    Where,
    join_keys,
    parse,
    parse_scalar,
    plain,
    read_bytes,
    show,
)
from pearl_devices import Platform
from pearl_devices.validation import check_type

__all__ = [
    "EnvSpec",
    "System",
    "init_text",
    "json_schema",
    "load",
    "load_on",
    "load_static",
    "load_static_on",
    "load_watched",
    "parse_set",
    "read_shipped",
]


def load(
    spec: str | Path | Mapping[str, Any], *, set: Mapping[str, object] | None = None
) -> System:
    """Read a spec: a path, the name of a shipped one (`dqn_cartpole`), or a mapping.

    Args:
        spec: the path, the name or the mapping. gymnasium gives the sizes of the environment's
            spaces unless the spec states them.
        set: dotted key → value that overrides the spec, checked like the rest.

    Examples:
        >>> system = pearl.load("dqn_cartpole", set={"train.steps": 1000})
        >>> system.algorithm.name, system.train.steps
        ('dqn', 1000)

    Raises:
        SpecError: the spec is wrong; one line for every problem.
    """
    return load_watched(spec, set=set, watch=lambda names: nullcontext())


def load_watched(
    spec: str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, object] | None,
    watch: Callable[[str], AbstractContextManager[None]],
) -> System:
    """Load a spec as `load` does.

    watch: called with the names of the code in the spec, if it names any; that code is imported and
        tried within the result. Kinds in a file of a platform are not among these names.
    """
    stated, env = _read(spec, set, imports=True, watch=watch)
    assert env is not None
    system = System(**vars(stated), env=env)
    if policy := system.raw["limits"].get("distribution"):
        from pearl.spec.distribution import apply_policy
        from pearl.spec.user_code import build_graph

        limits = apply_policy(policy, build_graph(system), system.platform, system.limits)
        return replace(system, limits=limits)
    return system


def load_on(platform: Platform, spec: Mapping[str, Any]) -> System:
    """Load a spec, in the form of `System.raw`, on a given platform.

    The platform is that of a run in another process, or this machine if only the policy counts.
    """
    stated, env = _read(spec, None, imports=True, given=platform)
    assert env is not None
    return System(**vars(stated), env=env)


def load_static_on(platform: Platform, spec: Path) -> StaticSpec:
    """Load a spec statically, with `platform` in the place of `host` and `ray`: a cluster may be
    gone by now."""
    return _read(spec, None, imports=False, given=platform)[0]


def load_static(
    spec: str | Path | Mapping[str, Any], *, set: Mapping[str, object] | None = None
) -> StaticSpec:
    """Load a spec without importing code that it names (`pearl.spec.trust.find_named_code`).

    The options of custom modules are not checked, and custom environments are not asked for their
    spaces.
    """
    return _read(spec, set, imports=False)[0]


def _read(
    spec: str | Path | Mapping[str, Any],
    set: Mapping[str, object] | None,
    *,
    imports: bool,
    given: Platform | None = None,
    watch: Callable[[str], AbstractContextManager[None]] = lambda names: nullcontext(),
) -> tuple[StaticSpec, EnvSpec | None]:
    problems = check_type(
        "spec", spec, str | Path | Mapping, "a path, the name of a shipped spec or a mapping"
    ) + find_bad_keys("set", set, 'values, as in {"train.steps": 1000}')
    if problems:
        raise SpecError(*problems)
    document, name, path = _open(spec)
    lines: Lines = list(document.problems)
    for key, value in (set or {}).items():
        lines += _lay_over(document, key, value)
    unread = [where for where, _ in lines]
    folder = None if path is None else Path(path).parent
    check = SpecChecker(document, folder, imports=imports, given=given)
    named = find_named_code(document.data) if isinstance(document.data, Mapping) else []
    with watch(", ".join(dict.fromkeys(n.given for n in named))) if named else nullcontext():
        stated = check.check_all(name, path)
    lines += check.lines
    if lines or stated is None:
        raise SpecError(*_sort_lines(lines, unread))
    return stated, check.env


def find_bad_keys(name: str, given: object, values: str) -> list[str]:
    """Return why an argument is no mapping from dotted keys of a spec; empty for a mapping or
    None.
    """
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return []
    return check_type(name, given, NoneType, f"a mapping from dotted keys to {values}")


def parse_set(argument: str) -> tuple[str, object]:
    """Parse an argument of `--set`: `'train.steps=1000'` → `('train.steps', 1000)`.

    Values are read as in a file: `[a, b]` is a list.

    Raises:
        SpecError: the argument is not KEY=VALUE, or its value is not YAML.
    """
    key, equals, value = argument.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"set {show(argument)}: not key.path=value")
    key = key.strip()
    if value.lstrip()[:1] not in ("[", "{", '"', "'"):
        return key, parse_scalar(value.strip())
    document = parse(f"value: {value}".encode("utf-8", "replace"), f"set {key}")
    if document.problems:
        raise SpecError(*(line for _, line in document.problems))
    return key, document.data["value"]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of specs, for editors. Custom modules may have other options."""
    titles = {name: "".join(map(str.capitalize, name.split("_"))) for name in ALGORITHMS}
    models: dict[str, Any] = {title: algorithm(name).Options for name, title in titles.items()}
    models |= {"Spec": Spec, "Own": Own, "OwnRollout": OwnRollout}
    places, schema = TypeAdapter.json_schemas(
        (title, "validation", TypeAdapter(model)) for title, model in models.items()
    )
    keys = {title: place["$ref"].rpartition("/")[2] for (title, _), place in places.items()}
    found = {title: schema["$defs"][key] for title, key in keys.items()}
    inner = {key: each for key, each in schema["$defs"].items() if key not in keys.values()}
    for name, title in titles.items():
        of_name = {"const": name, **found[title]["properties"]["name"]}
        properties = {**found[title]["properties"], "name": of_name}
        inner[title] = {**found[title], "properties": properties, "title": title}
    path = {"description": "Its module.", "pattern": MODULE.pattern, "type": "string"}
    own = found["OwnRollout"]["properties"] | found["Own"]["properties"] | {"name": path}
    inner["Own"] = {**found["Own"], "properties": own}
    del inner["Own"]["additionalProperties"], inner["Acting"]
    spec = found["Spec"]
    about = spec["properties"]["algorithm"]["description"]
    one_of = [{"$ref": f"#/$defs/{title}"} for title in (*titles.values(), "Own")]
    spec["properties"]["algorithm"] = {"description": about, "oneOf": one_of}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "PEARL system spec",
        "$defs": dict(sorted(inner.items())),
        **{key: value for key, value in spec.items() if key != "title"},
    }


def _open(spec: str | Path | Mapping[str, Any]) -> tuple[Document, str, str | None]:
    """The document behind `spec`, the name of its system, and its path if it is a file."""
    if isinstance(spec, Mapping):
        return plain(spec, "<spec>"), "spec", None
    name = str(spec)
    if isinstance(spec, str) and "/" not in name and not Path(name).suffix:
        texts = read_shipped()
        if name in texts:
            return parse(texts[name].encode(), f"{name}.yaml"), name, None
        if not _exists(Path(name)):
            known = ", ".join(sorted(texts))
            near = suggest_nearest(name, texts)
            raise SpecError(f"{show(name)}: no file and no shipped spec{near}; shipped: {known}")
    path = Path(name)
    if path.stem in read_shipped() and not _exists(path):
        raise SpecError(f"{show(name)}: no such file; the shipped spec is called {path.stem}")
    return parse(read_bytes(path, name), name), path.stem or "spec", name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _lay_over(document: Document, key: str, value: object) -> Lines:
    """Set `value` at the dotted `key`. If a value on the way has no keys, that is a problem."""
    parts = tuple(key.split("."))
    if not all(parts):
        return [(parts, f"set {show(key)}: not a dotted key such as train.steps")]
    data = document.data
    for i, part in enumerate(parts[:-1]):
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            at = join_keys(parts[: i + 1])
            return [(parts, f"set {join_keys(parts)}: {at} is {show(data)}, which has no keys")]
    laid = plain(value, "set", parts)
    for old in [where for where in document.origins if where[: len(parts)] == parts]:
        del document.origins[old]
    document.origins.update(laid.origins)
    data[parts[-1]] = laid.data
    return list(laid.problems)


def _sort_lines(lines: Lines, unread: list[Where]) -> list[str]:
    """Each line once, by line number within its file, without follow-up problems of bad values."""

    def position(line: str) -> tuple[str, int]:
        file, _, rest = line.partition(":")
        if line.startswith("set "):
            file = ""
        number = rest.partition(":")[0]
        return file, int(number) if number.isdecimal() else 0

    kept: dict[str, None] = {}
    seen: set[Where] = set()
    once = set(unread)
    for where, line in lines:
        if not (where in once and where in seen):
            kept[line] = None
        seen.add(where)
    return sorted(kept, key=position)


if __name__ == "__main__":
    json.dump(json_schema(), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
