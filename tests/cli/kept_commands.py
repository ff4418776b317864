"""What commands about plans print and write, with plans, fronts and answers that are given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from pearl.cli import app
from pearl.planner.energy_front import Front
from tests.advice.kept_advice import advices
from tests.examples import fused_plan, two_device_plan
from tests.explanation.kept_explanations import varied
from tests.report.kept_pages import SYSTEM

FRONT = [replace(fused_plan(), power_w=100.0, value=12_000.0), two_device_plan()]

COMMANDS = {
    "plan": ("plan", "my.yaml", "a=1", "--set", "b=2"),
    "plan, verbose": ("plan", "my.yaml", "--verbose", "--seed", "3", "--time-limit", "5"),
    "plan, another objective": ("plan", "my.yaml", "--objective", "makespan", "--method", "heft"),
    "plan, files": ("plan", "my.yaml", "--html", "OUT/p.html", "--json", "OUT/p.json"),
    "plan, explained": ("plan", "my.yaml", "--explain", "--runner-ups", "OUT/close",
                        "--html", "OUT/p.html", "--json", "OUT/p.json"),
    "plan, to standard output": ("plan", "my.yaml", "--explain", "--json", "-"),
    "plan, compared": ("plan", "my.yaml", "--compare", "OUT/other.json", "--html", "OUT/p.html",
                       "--json", "OUT/p.json"),
    "plan, runner-ups alone": ("plan", "my.yaml", "--runner-ups", "OUT/close", "--json", "-"),
    "pareto": ("pareto", "my.yaml", "--html", "OUT/p.html", "--json", "OUT/p.json"),
    "pareto, wide": ("pareto", "my.yaml", "--gap", "0.5", "--time-limit", "7"),
    "advise": ("advise", "my.yaml", "a=1", "--add", "rtx_4090", "--about", "buy", "--platform", "p",
               "--seed", "4", "--html", "OUT/a.html"),
    "advise, to standard output": ("advise", "my.yaml", "--json", "-"),
    "no folder": ("rtl", "my.yaml"),
    "neither": ("rtl", "--out", "OUT/x"),
    "both": ("rtl", "my.yaml", "--resources", "--out", "OUT/x"),
}  # fmt: skip


def answers(said: list[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions that the commands call, and what they answer."""

    def of(name: str, value: Any) -> Callable[..., Any]:
        def answer(*given: Any, **more: Any) -> Any:
            words = [repr(x) for x in given if isinstance(x, str | list | int)]
            words += [f"{k}={v!r}" for k, v in more.items() if k != "listener"]
            said.append(f"{name}({', '.join(words)})")
            return value

        return answer

    def advised(*given: Any, listener: Any, **more: Any) -> Any:
        said.append(f"advise({more})")
        made = next(advices())[1]
        listener("buy", ())
        listener("buy", made.verdicts[:2])
        return made

    for command in ("planning", "advising"):
        yield f"pearl.cli.{command}.load_spec", of("load", SYSTEM)
        yield f"pearl.cli.{command}.warn_of_measuring", of("warn", None)
    yield "pearl.planner.planner.plan", of("plan", two_device_plan())
    yield "pearl.planner.planner.pareto", of("pareto", Front(FRONT, [(80.0, 90.0)]))
    yield "pearl.explain", of("explain", next(varied())[1])
    yield "pearl.advice.advise", advised
    yield "pearl.report.html.today", lambda: "1 Jan 2026"
    yield "pearl.report.origin._versions", lambda: "Python 3"


def outline(value: Any) -> Any:
    """An object in short: a plan as its value, and lists of the first level by their length."""
    if not isinstance(value, dict):
        return [outline(v) for v in value] if isinstance(value, list) else value
    if "spec_sha256" not in value:
        return {k: outline(v) if k in ("plans", "status") else short(v) for k, v in value.items()}
    more = {k: outline(value[k]) for k in ("compare", "name") if k in value}
    return [
        f"plan {value['value']}",
        *more.items(),
        *(["explained"] if "explanation" in value else []),
    ]


def short(value: Any) -> Any:
    return value if len(json.dumps(value)) < 60 else f"{type(value).__name__} of {len(value)}"


def ran(words: tuple[str, ...]) -> list[str]:
    """Return what a command says and does, a line each."""
    said = list[str]()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        two_device_plan().save(f"{folder}/other.json")
        for name, answer in answers(said):
            stack.enter_context(patch(name, answer))
        result = CliRunner().invoke(app, [w.replace("OUT", folder) for w in words])
        lines = [f"status {result.exit_code}", *said]
        if words[-1] == "-":
            lines.append(f"> {json.dumps(outline(json.loads(result.stdout)))}")
        lines += [f"! {line}" for line in result.stderr.splitlines()]
        Path(folder, "other.json").unlink()
        for file in sorted(f for f in Path(folder).rglob("*") if f.is_file()):
            text = file.read_text(encoding="utf-8")
            about = re.findall(r"<h[12]>.*?</h[12]>|written [^<]*|<svg", text)
            if file.suffix == ".json":
                about = [json.dumps(outline(json.loads(text)))]
            lines.append(f"{file.relative_to(folder)}: {' '.join(about)}")
        return [
            re.sub(r"written on [^,]*", "written on HOST", x.replace(folder, "OUT")) for x in lines
        ]


def all_ran() -> str:
    return "".join(
        f"## {name}\n" + "".join(f"{line}\n" for line in ran(words))
        for name, words in COMMANDS.items()
    )
