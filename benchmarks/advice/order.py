"""What must hold of every answer, whatever the estimates: gradient steps that are on a GPU at one
size are there at a larger one, and a device more never makes a plan worse."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pearl
from benchmarks.advice.cases import learning, spec
from benchmarks.bars import Bar, Part
from pearl.advice.hardware import added
from pearl.explanation.resolve import devices_in

BATCHES = (16, 64, 256, 1024, 4096)
WIDTHS = (32, 64, 128, 256, 512, 1024)
SWEPT = ("dqn", "ddpg", "sac", "ppo")
BOUGHT = ("rtx_4090", "t4", "agilex_agf014")
LOOPS = (("dqn", 64, 64), ("dqn", 256, 256), ("sac", 256, 256), ("ppo", 64, 256))
SAME = 1e-6


def where(algorithm: str, width: int, batch: int) -> str:
    """The device of gradient steps on cpu_gpu."""
    plan = pearl.plan(pearl.load(spec(algorithm, width, batch, "cpu_gpu")), time_limit_s=10.0)
    return devices_in(plan, learning(plan))[0]


def swept(quick: bool) -> tuple[list[list[str]], int]:
    """A row a sweep, and how many go back to the CPU."""
    rows, back = [], 0
    for algorithm in SWEPT[:: 2 if quick else 1]:
        for what, sizes in (("batch", BATCHES), ("width", WIDTHS)):
            found = [
                where(algorithm, size if what == "width" else 128, size if what == "batch" else 128)
                for size in sizes
            ]
            returns = sum(a != "cpu" and b == "cpu" for a, b in pairwise(found))
            back += returns
            steps = ", ".join(f"{s}: {d}" for s, d in zip(sizes, found, strict=True))
            rows.append([f"{algorithm}, {what}", steps, "yes" if not returns else "NO"])
    return rows, back


def bought(quick: bool) -> tuple[list[list[str]], int]:
    """A row a loop and device: one and two of it more, and how many make the plan worse."""
    rows, worse = [], 0
    for algorithm, width, batch in LOOPS[:: 2 if quick else 1]:
        given: dict[str, Any] = spec(algorithm, width, batch, "cpu_gpu")
        system = pearl.load(given)
        before = pearl.plan(system, time_limit_s=10.0)
        for name in BOUGHT:
            values = [before.value]
            for n in (1, 2):
                platform, _ = added(system.platform, name, n)
                found = pearl.plan(replace(system, platform=platform), time_limit_s=10.0)
                values.append(found.value)
            falls = sum(b < a * (1 - SAME) for a, b in pairwise(values))
            worse += falls
            steps = ", ".join(f"{n}: {value:,.0f}" for n, value in enumerate(values))
            label = f"{algorithm} {width}-{width} b{batch}, {name} more"
            rows.append([label, steps, "yes" if not falls else "NO"])
    return rows, worse


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others."""
    rows, back = swept(quick)
    more, worse = bought(quick)
    bars = [
        Bar("sweeps in which gradient steps go back to the CPU", str(back), "0", back == 0),
        Bar("devices more that make a plan worse", str(worse), "0", worse == 0),
    ]
    left_out = ["half of the sweeps and loops"] if quick else []
    values = {"rows": [*rows, *more]}
    title = "What must hold of every answer"
    return Part(title, ["sweep", "found", "holds"], [*rows, *more], bars, left_out, values)
