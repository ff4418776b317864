"""A GPU, measured: `python -m benchmarks.gpu [--section NAME …] [--stand-in] [--resume FILE]
[--json FILE]`. At most eight minutes, no network. On the stand-in it says pass or fail and counts,
and no times."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bars import ABSENT, AbsentError, machine, show
from benchmarks.gpu.target import Case, Target, target
from pearl.files import write_atomically
from pearl.formatting import count

SECTIONS = {
    "compiled": "registers, spills and warps of every kernel in CUDA on one multiprocessor",
    "verify": "every kernel against the CPU's",
    "kernels": "time of every kernel and its share of the roof",
    "tree": "the sum tree over the memory limit",
    "crossover": "batches from which work belongs on the GPU, predicted and measured",
    "loops": "whole training loops: CPU only, GPU only, planned, and other libraries",
    "slices": "slices of SMs against taking turns",
}
LIMIT_S = 480.0
"""Sections begin no later; what is left out then, --resume does."""
SCHEMA = 1


def identity(found: Target) -> dict[str, Any]:
    """What results must have in common to be of one file."""
    device = "the stand-in, no GPU" if found.stand_in else found.device.model
    return {"schema": SCHEMA, "benchmark": "gpu", "device": device, "stand_in": found.stand_in}


def begun(file: Path | None, about: dict[str, Any]) -> dict[str, Any]:
    """The results in a file that an earlier run began, or none yet.

    Raises:
        SystemExit: the file holds something else.
    """
    if file is None or not file.exists():
        return {**about, "machine": machine(), "sections": {}}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        same = {name: found[name] for name in about} == about and dict(found["sections"])
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{file}: no results of this benchmark ({error}); name another") from None
    if same is False:
        kept = {name: found[name] for name in about}
        raise SystemExit(f"{file}: it has results of {kept}, this is {about}; name another file")
    return dict(found)


def result(name: str, cases: list[Case], stand_in: bool) -> dict[str, Any]:
    """What the file keeps of a section. Of the stand-in no figure may come."""
    for case in cases:
        if stand_in and (case.figures or case.asked):
            raise AssertionError(f"{name}: {case.what}: figures of a stand-in: {case.figures}")
    return {
        "passed": sum(case.passed for case in cases),
        "failed": sum(not case.passed for case in cases),
        "cases": [asdict(case) for case in cases],
    }


def shown(name: str, cases: list[Case]) -> None:
    rows = [
        [
            case.what,
            ", ".join(f"{n} {v}" for n, v in case.counts.items()),
            ", ".join(f"{n} {count(v)}" for n, v in case.figures.items()),
            case.asked,
            "pass" if case.passed else "FAIL",
            case.note,
        ]
        for case in cases
    ]
    show(f"{name}: {SECTIONS[name]}", ["", "counts", "figures", "asked", "", "note"], rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--section", nargs="*", choices=SECTIONS, metavar="NAME", default=None)
    parser.add_argument("--stand-in", action="store_true", help="on the CPU, at small sizes")
    parser.add_argument("--resume", metavar="FILE", type=Path, help="go on with its results")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    try:
        found = target(options.stand_in)
    except AbsentError as error:
        print(f"absent: {error}")
        return ABSENT
    kept = begun(options.resume, identity(found))
    file = options.json or options.resume
    for name in options.section or SECTIONS:
        if name in kept["sections"]:
            print(f"{name}: done before")
            continue
        if time.monotonic() - begin > LIMIT_S:
            print(f"{name}: left out, the time is up; --resume FILE does it")
            continue
        section = importlib.import_module(f"benchmarks.gpu.{name}")
        cases = section.run(found)
        kept["sections"][name] = result(name, cases, found.stand_in)
        shown(name, cases)
        if file is not None:
            write_atomically(file, (json.dumps(kept, indent=1) + "\n").encode())
    ended = kept["sections"].values()
    passed, failed = (sum(s[what] for s in ended) for what in ("passed", "failed"))
    print(f"{identity(found)['device']}: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
