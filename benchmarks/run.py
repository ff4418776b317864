"""The command of a benchmark of several parts: `python -m benchmarks.TOPIC`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.bars import ABSENT, AbsentError, Bar, Part, show, verdict
from pearl.files import write_atomically

ABOUT = (
    "Every part prints its table; the bars of all parts come at the end. Parts that read data of "
    "third parties find them in the folder given with --data or by the variable PEARL_DATA."
)


Run = Callable[[str, bool, Path | None], Part]
"""A part's name, whether it is to be quick, and the folder of data → the part."""


def begun(file: Path | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """The parts in a file that an earlier run began, or none yet. Exits where it holds something
    else; about: what results must have in common to be of one file."""
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        held, parts = {name: found[name] for name in about}, dict(found["parts"])
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file}: no results of this benchmark ({error}); name another")
    if held != about:
        sys.exit(f"{file}: it has results of {held}, this is {dict(about)}; name another file")
    return parts


def main(
    topic: str,
    parts: Mapping[str, str],
    arguments: list[str] | None = None,
    run: Run | None = None,
    *,
    about: Mapping[str, Any] | None = None,
    limit_s: float = math.inf,
) -> int:
    """Runs the parts that the command line names; the exit status.

    parts: part → its subject. run: makes a part; else a part is a module `benchmarks.TOPIC.PART`
    with `run(quick: bool, data: Path | None) -> Part`. about: what all results of a file must have
    in common. limit_s: parts begin no later.
    """
    subjects = "; ".join(f"{name}: {subject}" for name, subject in parts.items())
    parser = argparse.ArgumentParser(f"python -m benchmarks.{topic}", description=ABOUT)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all of {subjects}")
    parser.add_argument("--quick", action="store_true", help="under 50 s in all")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--resume",
        metavar="FILE",
        type=Path,
        help="keep each part there at once, and go on from it",
    )
    parser.add_argument("--data", metavar="DIR", default=os.environ.get("PEARL_DATA"))
    options = parser.parse_args(arguments)
    wrong = [name for name in options.parts if name not in parts]
    if wrong:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(parts)}")
    data = Path(options.data) if options.data else None
    if data is not None and not data.is_dir():
        parser.error(f"--data {data}: no such folder")
    head = {"benchmark": topic, **(about or {})}
    results, absent, begin = begun(options.resume, head), list[str](), time.monotonic()
    for name in [p for p in parts if p in options.parts or not options.parts]:
        if name in results:
            print(f"{name}: done before")
            continue
        if time.monotonic() - begin > limit_s:
            print(f"{name}: left out, the time is up; --resume FILE does it")
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            if run is None:
                part: Part = import_module(f"benchmarks.{topic}.{name}").run(options.quick, data)
            else:
                part = run(name, options.quick, data)
        except AbsentError as error:
            absent.append(f"{name}: {error}")
            continue
        show(part.title, part.columns, part.rows)
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        print(
            f"{name}: {took['wall_s']:.1f} s, of it {took['cpu_s']:.1f} s of this CPU", flush=True
        )
        results[name] = {
            "title": part.title, "columns": part.columns, "rows": part.rows, **took,
            "bars": [asdict(bar) for bar in part.bars], "left_out": part.left_out, **part.values,
        }  # fmt: skip
        if options.resume:
            text = json.dumps({**head, "parts": results}, indent=1) + "\n"
            write_atomically(options.resume, text.encode())
    bars = [Bar(**bar) for part in results.values() for bar in part["bars"]]
    left_out = [name for part in results.values() for name in part["left_out"]]
    values = {**head, "parts": results, "absent": absent}
    status = verdict(topic, bars, left_out, options.json, values)
    for line in absent:
        print(f"absent: {line}", file=sys.stderr)
    return ABSENT if absent else status
