"""What every benchmark ends with: its table, the machine, and a line a bar."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ABSENT = 3
"""Exit status where something the benchmark needs is absent."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
ONE_THREAD = {
    **dict.fromkeys(THREADS, "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
"""Environment variables with which a library computes on one thread of the CPU."""


@dataclass(frozen=True)
class Bar:
    """One promise: what it is about, measured, asked, and if it is met."""

    what: str
    measured: str
    asked: str
    met: bool


def at_least(what: str, value: float, least: float, form: str = "{:.2f}") -> Bar:
    """A bar that is met from `least` on; form: how both figures are written."""
    return Bar(what, form.format(value), f"at least {form.format(least)}", value >= least)


def at_most(what: str, value: float, most: float, form: str = "{:.2f}") -> Bar:
    """A bar that is met up to `most`."""
    return Bar(what, form.format(value), f"at most {form.format(most)}", value <= most)


@dataclass
class Part:
    """One table of a benchmark with its bars. values: what the JSON keeps beside them."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    bars: list[Bar]
    left_out: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


class AbsentError(Exception):
    """Something a benchmark needs is not there; the text names it."""


def run_module(
    what: str,
    module: str,
    arguments: Iterable[str],
    *,
    python: str = sys.executable,
    env: Mapping[str, str] = ONE_THREAD,
    timeout_s: float | None = None,
) -> Any:
    """What a module of this repository, run in a process of its own, prints as its last line, read
    as JSON; an `AbsentError` where its status is ABSENT (`answer`). Exits with its last words where
    it failed; what: the beginning of these. env: variables besides those of this process."""
    done = subprocess.run(
        [python, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=str(Path(__file__).parents[1]),
        env=os.environ | env,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode == ABSENT:
        raise AbsentError(done.stderr.strip().splitlines()[-1])
    if done.returncode != 0:
        sys.exit(f"{what}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(name: str, call: Callable[[], Any]) -> int:
    """What such a module ends with: prints what `call` gives as JSON; the exit status, ABSENT and a
    line with `name` where something that it needs is not there."""
    try:
        print(json.dumps(call()))
    except (ModuleNotFoundError, AbsentError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return ABSENT
    return 0


def named_pythons(given: list[str], known: Iterable[str]) -> dict[str, str]:
    """Name → interpreter, of entries NAME=PYTHON. Exits naming an unknown name, an entry without
    `=`, or an interpreter that is no file."""
    found = {}
    for entry in given:
        name, equals, python = entry.partition("=")
        if name not in known or not equals:
            sys.exit(f"--peer {entry}: give NAME=PYTHON with a name of {', '.join(known)}")
        if not Path(python).is_file():
            sys.exit(f"--peer {entry}: there is no file {python}")
        found[name] = python
    return found


def machine() -> str:
    """CPU model, cores and Python of this machine, and the date."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [ln.partition(":")[2] for ln in info.read_text().splitlines() if "model name" in ln]
        model = f"{len(names)} × {names[0].strip()}" if names else model
    return f"{model}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    from rich.console import Console  # not at the top: a peer's environment may lack it
    from rich.table import Column, Table

    table = Table(*(Column(name, overflow="fold") for name in columns), title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=max(100, Console().width)).print(table)


def finish(
    title: str,
    columns: list[str],
    rows: list[list[str]],
    bars: list[Bar],
    left_out: list[str],
    json_path: str | None,
    values: dict[str, Any],
) -> int:
    """Print table and bars, write the JSON if asked, and return the exit status."""
    show(title, columns, rows)
    return verdict(title, bars, left_out, json_path, values)


def verdict(
    title: str, bars: list[Bar], left_out: list[str], json_path: str | None, values: dict[str, Any]
) -> int:
    """Print the machine and a line a bar, write the JSON if asked; 0 if every bar is met, else 1.

    json_path: a file, or `-` for standard output.
    """
    print(machine())
    for bar in bars:
        print(f"bar: {bar.what} | {bar.measured} | {bar.asked} | {'met' if bar.met else 'missed'}")
    for name in left_out:
        print(f"left out by --quick: {name}")
    if json_path:
        result = {
            "schema": 1,
            "benchmark": title,
            "machine": machine(),
            "bars": [asdict(b) for b in bars],
            "left_out": left_out,
            **values,
        }
        text = json.dumps(result, indent=1) + "\n"
        if json_path == "-":
            sys.stdout.write(text)
        else:
            target = Path(json_path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return 0 if all(b.met for b in bars) else 1
