"""A GPU, measured: `python -m benchmarks.gpu [--stand-in] [--resume FILE] [--json FILE] [PART …]`.
At most eight minutes, no network. On the stand-in it says pass or fail and counts, and no times."""

import argparse
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.bars import ABSENT, AbsentError, Bar, Part
from benchmarks.gpu.target import Case, Target, target
from benchmarks.run import main
from pearl.formatting import count

PARTS = {
    "verify": "every kernel against the CPU's",
    "kernels": "time of every kernel and its share of the roof",
    "crossover": "batches from which work belongs on the GPU, predicted and measured",
    "loops": "whole training loops: CPU only, GPU only, planned, and other libraries",
}
"""Part → its subject."""
LIMIT_S = 480.0
"""Parts begin no later; what is left out then, --resume does."""


def device_of(of: Target) -> str:
    return "the stand-in, no GPU" if of.stand_in else of.device.model


def part(name: str, cases: list[Case], of: Target) -> Part:
    """The table of a part. Of the stand-in no figure may come."""
    for case in cases:
        if of.stand_in and (case.figures or case.asked):
            raise AssertionError(f"{name}: {case.what}: figures of a stand-in: {case.figures}")
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
    passed = sum(case.passed for case in cases)
    bar = Bar(f"{name}, {device_of(of)}", f"{passed} pass", f"{len(cases)}", passed == len(cases))
    columns, values = ["", "counts", "figures", "asked", "", "note"], [asdict(c) for c in cases]
    return Part(f"{name}: {PARTS[name]}", columns, rows, [bar], [], {"cases": values})


def command(arguments: list[str] | None = None) -> int:
    """The command; --stand-in is of all parts."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stand-in", action="store_true")
    given, rest = parser.parse_known_args(arguments)
    try:
        of = target(given.stand_in)
    except AbsentError as error:
        print(f"absent: {error}")
        return ABSENT

    def run(name: str, quick: bool, data: Path | None) -> Part:
        return part(name, import_module(f"benchmarks.gpu.{name}").run(of), of)

    return main("gpu", PARTS, rest, run, about={"device": device_of(of)}, limit_s=LIMIT_S)


if __name__ == "__main__":
    sys.exit(command())
