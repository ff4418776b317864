"""The command of a benchmark of several parts: `python -m benchmarks.TOPIC`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.bars import ABSENT, AbsentError, Bar, Part, show, verdict

ABOUT = (
    "Every part prints its table; the bars of all parts come at the end. Parts that read data of "
    "third parties find them in the folder given with --data or by the variable PEARL_DATA."
)


Run = Callable[[str, bool, Path | None], Part]
"""A part's name, whether it is to be quick, and the folder of data → the part."""


def main(
    topic: str, parts: Mapping[str, str], arguments: list[str] | None = None, run: Run | None = None
) -> int:
    """Runs the parts that the command line names; the exit status.

    parts: part → its subject. run: makes a part; else a part is a module `benchmarks.TOPIC.PART`
    with `run(quick: bool, data: Path | None) -> Part`.
    """
    subjects = "; ".join(f"{name}: {subject}" for name, subject in parts.items())
    parser = argparse.ArgumentParser(f"python -m benchmarks.{topic}", description=ABOUT)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all of {subjects}")
    parser.add_argument("--quick", action="store_true", help="under 50 s in all")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--data", metavar="DIR", default=os.environ.get("PEARL_DATA"))
    options = parser.parse_args(arguments)
    wrong = [name for name in options.parts if name not in parts]
    if wrong:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(parts)}")
    data = Path(options.data) if options.data else None
    if data is not None and not data.is_dir():
        parser.error(f"--data {data}: no such folder")
    bars: list[Bar] = []
    left_out: list[str] = []
    absent: list[str] = []
    results: dict[str, Any] = {}
    for name in [p for p in parts if p in options.parts or not options.parts]:
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
        bars += part.bars
        left_out += part.left_out
        table = {"title": part.title, "columns": part.columns, "rows": part.rows}
        results[name] = {**table, **took, **part.values}
    status = verdict(topic, bars, left_out, options.json, {"parts": results, "absent": absent})
    for line in absent:
        print(f"absent: {line}", file=sys.stderr)
    return ABSENT if absent else status
