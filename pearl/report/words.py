"""Words of reports: names of calls, names of devices, and their colours."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pearl.formatting import WORD
from pearl.planning.plans import Placement, Plan
from pearl.task_names import MEANINGS, stem

ITERATION = "iteration"
"""One round of the loop, and a fused call of the whole round."""

LEARN = "learn"
"""The task that takes gradient steps, and a fused call with it."""

BLANK = "\u00a0"
"""A space without a line break: between a number and its unit."""


def meaning(task: str) -> str:
    """Return what a call of a task does, `chooses actions`; empty for a custom task."""
    return MEANINGS.get(stem(task), "")


def call_name(plan: Plan, tasks: Sequence[str]) -> str:
    """Return a call in few words: its task, `iteration` for a fused call of all tasks, `learn` for
    a call with gradient steps, else its tasks."""
    names = list(dict.fromkeys(tasks))
    if len(names) == 1:
        return names[0]
    if {t.task for t in plan.tasks} <= set(names):
        return ITERATION
    return LEARN if LEARN in names else ", ".join(names)


def times(word: str, number: float) -> str:
    """Return a word and its count: `learn × 8`; the word alone for 1."""
    return word if number == 1 else f"{word}{BLANK}×{BLANK}{number:g}"


def task_word(placement: Placement) -> str:
    """Return a task with its calls per iteration."""
    return times(placement.task, placement.firings)


def device_name(device: str, simulated: Sequence[str] = ()) -> str:
    """Return the readable name of a device: `GPU`, `FPGA (simulated)`, `CPU of node2`; other names
    as they are."""
    host, _, own = device.rpartition("/")
    found = re.fullmatch(r"([a-z]{2,4})(\d*)", own)
    name = f"{found[1].upper()} {found[2]}".strip() if found else own
    where = f" of {host}" if host else ""
    return f"{name}{where} ({WORD})" if device in simulated else f"{name}{where}"


def lane_name(plan: Plan, lane: str) -> str:
    """Return the device of a lane, with a number if the device has several lanes."""
    own = next(k for k in plan.lanes if k.lane == lane)
    if not own.width:
        return "link" if sum(not k.width for k in plan.lanes) == 1 else f"link {lane}"
    lanes = [k.lane for k in plan.lanes if k.device == own.device and k.width]
    name = device_name(own.device, plan.simulated)
    unit = " core" if own.width_unit == "cores" and own.width == 1 and WORD not in name else ""
    number = f" {lanes.index(lane) + 1}" if len(lanes) > 1 else ""
    device, of, host = name.partition(" of ")
    return f"{device}{unit}{number}{of}{host}"


def colour(plan: Plan, device: str) -> str:
    """Return the class of a device's colour: CPUs, other devices, simulated devices."""
    if device in plan.simulated:
        return "d2"
    units = {t.device: t.width_unit for t in plan.tasks}
    units |= {k.device: k.width_unit for k in plan.lanes}
    return "d0" if units.get(device, "cores") == "cores" else "d1"


def tints(plan: Plan) -> dict[str, str]:
    """Return for each task the tint of its device's colour: full for the longest task there."""
    found: dict[str, str] = {}
    for device in dict.fromkeys(t.device for t in plan.tasks):
        share: dict[str, float] = {}
        for t in plan.tasks:
            if t.device == device:
                share[t.task] = share.get(t.task, 0.0) + t.share_of_period
        ranked = sorted(share, key=lambda name: -share[name])
        found |= {name: ("t10", "t6", "t4")[min(n, 2)] for n, name in enumerate(ranked)}
    return found
