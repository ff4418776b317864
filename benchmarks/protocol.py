"""The training protocol at work: `python -m benchmarks.protocol [--quick] [--json FILE] [PART …]`.

Every part prints its table; the bars of all parts come at the end.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from typing import Any

from benchmarks.bars import Bar, Part, show, verdict

PARTS = {
    "slack": "each kind of slack on and off, predicted beside measured",
    "channel": "counts and slots of the lanes beside multiprocessing.Pipe",
    "staleness": "return against policy lag and priority staleness",
}
"""Part → what it is about. A part is a module `benchmarks.protocol_PART` with `run(quick)`."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; by default all"
    )
    parser.add_argument("--quick", action="store_true", help="under 50 s in all")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    wrong = [name for name in options.parts if name not in PARTS]
    if wrong:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    bars: list[Bar] = []
    left_out: list[str] = []
    results: dict[str, Any] = {}
    for name in PARTS:
        if options.parts and name not in options.parts:
            continue
        begin = time.perf_counter()
        part: Part = importlib.import_module(f"benchmarks.protocol_{name}").run(options.quick)
        show(part.title, part.columns, part.rows)
        wall_s = time.perf_counter() - begin
        print(f"{name}: {wall_s:.1f} s", flush=True)
        bars += part.bars
        left_out += part.left_out
        table = {"title": part.title, "columns": part.columns, "rows": part.rows}
        results[name] = {**table, "wall_s": wall_s, **part.values}
    return verdict("protocol", bars, left_out, options.json, {"parts": results})


if __name__ == "__main__":
    sys.exit(main())
