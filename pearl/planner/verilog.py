"""The Verilog of a plan's learners on a simulated FPGA, in folders for hardware tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.planner.planner import plan as make_plan
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_devices import backend
from pearl_devices.kernels import kind_of


@dataclass(frozen=True)
class Written:
    """A learner that was written. cycles: of one gradient step. blocks: DSP blocks."""

    task: str
    folder: str
    variant: str
    cycles: int
    blocks: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def write_verilog(
    system: System, folder: str | Path, time_limit_s: float = 20.0, seed: int = 0
) -> list[Written]:
    """Plan `system` and write the Verilog of each learner that the plan puts on a simulated FPGA.

    folder: new or empty; each learner gets a folder in it with the name of its task.

    Raises:
        SpecError: the folder is not empty, or the plan has no such learner.
        InfeasibleError: there is no plan.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SpecError(f"--out {target}: it must be a new or an empty folder")
    plan, graph = make_plan(system, time_limit_s=time_limit_s, seed=seed), build_graph(system)
    found = []
    for placed in plan.tasks:
        kernel = graph.task(placed.task).kernel
        write = getattr(backend(system.platform.device(placed.device).kind), "verilog", None)
        if write is None or kind_of(kernel).structure != "gradient":
            continue
        device = system.platform.device(placed.device)
        learner, files = write(kernel, device, placed.variant, placed.width)
        for name, text in files.items():
            write_atomically(target / placed.task / name, text.encode())
        where = str(target / placed.task)
        found.append(Written(placed.task, where, placed.variant, learner.cycles, learner.blocks()))
    if not found:
        raise SpecError(
            "the plan has no learner on an engine of a simulated FPGA, so there is no Verilog to "
            "write: take a platform with one and pin a learner of DQN or DDPG to it, such as "
            "limits.pin.update=fpga"
        )
    return found
