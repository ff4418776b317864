"""The results that are kept in the repository are read by today's code, and each benchmark runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept_runs
from benchmarks.advice import reliability
from benchmarks.bars import ABSENT
from pearl.formats import check_format
from pearl.planning.plans import load_plan
from pearl.spec.reading import load_static

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def plans(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every plan in a JSON value."""
    if isinstance(value, dict):
        if {"schema", "tasks", "lanes", "period_s"} <= value.keys():
            yield value
        for inner in value.values():
            yield from plans(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from plans(inner)


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_kept_result_says_its_format_and_its_plans_are_read(file: Path) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    assert "schema" in content
    check_format("benchmark result", content, file.name)
    for plan in plans(content):
        assert load_plan(plan).tasks
    if "cases" in content:
        assert kept_runs.read(file) == content["cases"]


def test_the_specs_of_the_kept_runs_of_advice_are_sound() -> None:
    kept = json.loads(reliability.KEPT.read_text())["runs"]
    assert 0 < len(kept) <= reliability.SPECS
    for run in kept.values():
        assert load_static(run["spec"]).raw
        assert load_plan(run["plan"]).rates["env_steps_per_s"] > 0


QUICKEST: dict[str, tuple[str, ...]] = {
    "advice": ("--quick",),
    "chaos": ("--quick", "--kills", "2"),
    "defaults": ("--quick",),
    "distribution": ("--quick",),
    "estimators": ("--quick",),
    "fpga": ("--quick",),
    "gpu": ("--quick",),
    "literature": ("--quick",),
    "peers": ("--quick",),
    "protocol": ("--quick",),
    "returns": ("--quick",),
    "solver": ("--quick",),
    "start": ("--quick", "--pairs", "1"),
    "two_cores": ("--quick",),
}
"""Benchmark → the arguments of its quickest form."""
APART = {"first_step"}
"""The command without one: `start` starts it."""


def test_every_benchmark_has_a_quickest_form() -> None:
    folder = ROOT / "benchmarks"
    commands = {file.stem for file in folder.glob("*.py") if '"__main__"' in file.read_text()}
    commands |= {file.parent.name for file in folder.glob("*/__main__.py")}
    assert commands == QUICKEST.keys() | APART


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICKEST)
def test_the_quickest_form_of_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    """A bar may be missed on a busy host (1), and a library or a device may be absent (3)."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *QUICKEST[name]]
    command += ["--json", str(tmp_path / "result.json")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1800, env={**os.environ}
    )
    assert done.returncode in (0, 1, ABSENT), done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout.strip()
    if (tmp_path / "result.json").exists():
        content = json.loads((tmp_path / "result.json").read_text())
        check_format("benchmark result", content, "result.json")
