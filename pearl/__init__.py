"""PEARL: plan where each part of a deep-RL training loop runs, predict its cost, and train it so.

>>> trainer = pearl.compile("configs/dqn_cartpole.yaml")
>>> print(trainer.report())
>>> run = trainer.train(steps=50_000, seed=1)
>>> trainer.report(run).save("runs/dqn/report.html")

Names are imported on first use, so that `pearl --help` loads only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pearl.advice import advise
    from pearl.errors import InfeasibleError, SpecError
    from pearl.explanation import explain
    from pearl.graph.limits import Limits
    from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
    from pearl.planner.planner import pareto as pareto
    from pearl.planner.planner import plan as plan
    from pearl.planning.costs import CostTable, Mode
    from pearl.planning.plans import Plan
    from pearl.planning.runs import Run
    from pearl.population.population import sweep
    from pearl.population.results import Sweep
    from pearl.report.report import Report
    from pearl.solvers.solver import solve
    from pearl.spec.reading import load
    from pearl.spec.system import System
    from pearl.training.policy import Policy
    from pearl.training.steering import STOP, Callback, Progress
    from pearl.training.trainer import Trainer
    from pearl.training.trainer import compile as compile
    from pearl.verification import verify
    from pearl_devices import Device, Kernel, Link, Platform
    from pearl_estimators import Estimate, estimate
    from pearl_estimators.host.calibration import Calibration
    from pearl_estimators.host.measuring import calibrate

# `compile` is public as pearl.compile; it is not listed, so that `import *` keeps the builtin.
__all__ = [
    "STOP",
    "Calibration",
    "Callback",
    "CostTable",
    "Device",
    "Edge",
    "Estimate",
    "Fusion",
    "InfeasibleError",
    "Kernel",
    "Limits",
    "Link",
    "Mode",
    "Plan",
    "Platform",
    "Policy",
    "Progress",
    "Report",
    "Run",
    "SpecError",
    "Sweep",
    "System",
    "Task",
    "TaskGraph",
    "Trainer",
    "advise",
    "calibrate",
    "estimate",
    "explain",
    "load",
    "pareto",
    "plan",
    "solve",
    "sweep",
    "verify",
]

_HOMES = {
    "pearl.advice": ("advise",),
    "pearl.planning.costs": ("CostTable", "Mode"),
    "pearl.explanation": ("explain",),
    "pearl.errors": ("InfeasibleError", "SpecError"),
    "pearl.graph.task_graph": ("Edge", "Fusion", "Task", "TaskGraph"),
    "pearl.graph.limits": ("Limits",),
    "pearl.planner.planner": ("pareto", "plan"),
    "pearl.planning.plans": ("Plan",),
    "pearl.training.policy": ("Policy",),
    "pearl.population.population": ("sweep",),
    "pearl.population.results": ("Sweep",),
    "pearl.report.report": ("Report",),
    "pearl.planning.runs": ("Run",),
    "pearl.solvers.solver": ("solve",),
    "pearl.spec.reading": ("load",),
    "pearl.spec.system": ("System",),
    "pearl.training.steering": ("STOP", "Callback", "Progress"),
    "pearl.training.trainer": ("Trainer", "compile"),
    "pearl.verification": ("verify",),
    "pearl_devices": ("Device", "Kernel", "Link", "Platform"),
    "pearl_estimators": ("Estimate", "estimate"),
    "pearl_estimators.host.measuring": ("calibrate",),
    "pearl_estimators.host.calibration": ("Calibration",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("pearl.planning.plans").pearl_version()
    if name == "io":
        return import_module("pearl.io")
    if name not in _HOME:
        raise AttributeError(f"module 'pearl' has no attribute {name!r}")
    from pearl.rooms import use_room

    value = use_room(f"{_HOME[name]}:{name}", f"pearl.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
