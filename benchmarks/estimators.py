"""Estimates against measurements:
`python -m benchmarks.estimators [--quick] [--data DIR] [--json FILE] [PART …]`.

Every part prints its table; the bars of all parts come at the end. Parts that read data of third
parties find them in the folder given with `--data` or by the environment variable PEARL_DATA.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bars import ABSENT, AbsentError, Bar, Part, show, verdict

PARTS = {
    "host": "kernels of this host that no fit has seen",
    "gpu": "published timings of GPU operators",
    "plans": "whole plans of this host",
    "balance": "threads that a GPU needs",
    "actors": "one, two and four actors on this host",
}
"""Part → what it is about. A part is a module `benchmarks.estimators_PART` with
`run(quick, data)`."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; by default all"
    )
    parser.add_argument("--quick", action="store_true", help="under 50 s in all")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--data", metavar="DIR", default=os.environ.get("PEARL_DATA"))
    options = parser.parse_args(arguments)
    wrong = [name for name in options.parts if name not in PARTS]
    if wrong:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    data = Path(options.data) if options.data else None
    if data is not None and not data.is_dir():
        parser.error(f"--data {data}: no such folder")
    bars: list[Bar] = []
    left_out: list[str] = []
    absent: list[str] = []
    results: dict[str, Any] = {}
    for name in PARTS:
        if options.parts and name not in options.parts:
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        module = importlib.import_module(f"benchmarks.estimators_{name}")
        try:
            part: Part = module.run(options.quick, data)
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
    values = {"parts": results, "absent": absent}
    status = verdict("estimators", bars, left_out, options.json, values)
    for line in absent:
        print(f"absent: {line}", file=sys.stderr)
    return ABSENT if absent else status


if __name__ == "__main__":
    sys.exit(main())
