"""Which limit is in the way when no plan meets them all: each is left out in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pearl.costs import CostTable
from pearl.errors import InfeasibleError
from pearl.graph import TaskGraph
from pearl.limits import Limits
from pearl.solvers.choices import Program, longest_s, programs


def explain(
    graph: TaskGraph,
    costs: CostTable,
    limits: Limits,
    least: Callable[[Sequence[Program], str, Limits], float],
) -> InfeasibleError:
    """Why no plan meets the limits: the first limit without which there is one.

    least: (programs, objective, limits) → least cost of any assignment, infinite if there is none.
    """
    rate = "env steps/s" if graph.env_steps else "iterations/s"
    steps = graph.env_steps or 1
    free = replace(limits, period_s=None, min_throughput_per_s=None)
    if longest_s(graph, limits) < math.inf:
        best = least(programs(graph, costs, free), "throughput", free)
        if best < math.inf:
            conflict, text = [], []
            if limits.min_throughput_per_s and steps / best < limits.min_throughput_per_s:
                asked = limits.min_throughput_per_s
                text.append(
                    f"min_throughput {asked:.6g} {rate}; "
                    f"the best reachable is at most {steps / best:.6g}"
                )
                conflict.append(("min_throughput", asked, steps / best, rate))
            if limits.period_s and best > limits.period_s:
                text.append(
                    f"period {limits.period_s:.6g} s; "
                    f"the shortest reachable is at least {best:.6g} s"
                )
                conflict.append(("period", best, limits.period_s, "s"))
            return InfeasibleError(
                f"no plan meets {' and '.join(text) or 'the limit on the period'}",
                [
                    {"kind": k, "name": graph.name, "need": n, "limit": m, "unit": u}
                    for k, n, m, u in conflict
                ],
            )
    if limits.power_w is not None:
        host = costs.platform.host
        on = sum(
            d.idle_power_w
            for d in costs.platform.devices
            if d.name == host or d.when_unused == "idle"
        )
        if (
            least(
                programs(graph, costs, replace(free, power_w=None)),
                "throughput",
                replace(free, power_w=None),
            )
            < math.inf
        ):
            return InfeasibleError(
                f"no plan stays within the power limit of {limits.power_w:.6g} W: devices that are "
                f"always on draw {on:.6g} W doing nothing",
                [
                    {
                        "kind": "power",
                        "name": graph.name,
                        "need": on,
                        "limit": limits.power_w,
                        "unit": "W",
                    }
                ],
            )
    for kind in ("memory", "lanes"):
        free = replace(free, power_w=None)
        relaxed = programs(graph, costs, free, frozenset({kind}))
        if least(relaxed, "throughput", free) < math.inf:
            if kind == "lanes":
                return InfeasibleError(
                    f"max_lanes {limits.max_lanes} is too few: the tasks need several devices",
                    [
                        {
                            "kind": "lanes",
                            "name": graph.name,
                            "need": 2,
                            "limit": limits.max_lanes,
                            "unit": "lanes",
                        }
                    ],
                )
            return _memory_together(programs(graph, costs, free)[0])
    return InfeasibleError("the limits contradict each other: no assignment meets them all", [])


def _memory_together(program: Program) -> InfeasibleError:
    total = sum(program.memory_bytes)
    used = sorted({m.device for modes in program.options for m in modes})
    x = program.expansion
    largest = max(range(len(program.classes)), key=lambda c: program.memory_bytes[c])
    names = {t for u in program.classes[largest] for t in x.units[u]}
    return InfeasibleError(
        f"memory: each task fits somewhere, but all together need {total:.3g} bytes and the limits "
        f"are {', '.join(f'{d} {program.capacity_bytes[d]:.3g} bytes' for d in used)}; the largest "
        f"share is {', '.join(sorted(names))} with {program.memory_bytes[largest]:.3g} bytes",
        [
            {
                "kind": "memory",
                "name": d,
                "need": total,
                "limit": program.capacity_bytes[d],
                "unit": "bytes",
            }
            for d in used
        ],
    )
