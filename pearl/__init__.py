"""PEARL: which part of a deep-RL training loop should run where, what that costs, and training so.

>>> trainer = pearl.compile("configs/dqn_cartpole.yaml")
>>> print(trainer.report())
>>> run = trainer.train(steps=50_000, seed=1)
>>> trainer.report(run).save("runs/dqn/report.html")

Names are imported on first use, so that `pearl --help` loads nothing that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pearl.costs import CostTable, Mode
    from pearl.errors import InfeasibleError, SpecError
    from pearl.graph import Edge, Task, TaskGraph
    from pearl.limits import Limits
    from pearl.planning import plan
    from pearl.plans import Plan
    from pearl.policy import Policy
    from pearl.report import Report
    from pearl.runs import Run
    from pearl.solvers import solve
    from pearl.solvers.pareto import pareto
    from pearl.spec import load
    from pearl.system import System
    from pearl.trainer import Trainer
    from pearl.trainer import compile as compile
    from pearl_devices import Device, Kernel, Link, Platform
    from pearl_estimators import Estimate, estimate
    from pearl_estimators.calibrated import calibrate
    from pearl_estimators.calibration import Calibration

# `compile` is public as pearl.compile; it is not listed, so that `import *` keeps the builtin.
__all__ = [
    "Calibration",
    "CostTable",
    "Device",
    "Edge",
    "Estimate",
    "InfeasibleError",
    "Kernel",
    "Limits",
    "Link",
    "Mode",
    "Plan",
    "Platform",
    "Policy",
    "Report",
    "Run",
    "SpecError",
    "System",
    "Task",
    "TaskGraph",
    "Trainer",
    "calibrate",
    "estimate",
    "load",
    "pareto",
    "plan",
    "solve",
]

_HOMES = {
    "pearl.costs": ("CostTable", "Mode"),
    "pearl.errors": ("InfeasibleError", "SpecError"),
    "pearl.graph": ("Edge", "Task", "TaskGraph"),
    "pearl.limits": ("Limits",),
    "pearl.planning": ("plan",),
    "pearl.plans": ("Plan",),
    "pearl.policy": ("Policy",),
    "pearl.report": ("Report",),
    "pearl.runs": ("Run",),
    "pearl.solvers": ("solve",),
    "pearl.solvers.pareto": ("pareto",),
    "pearl.spec": ("load",),
    "pearl.system": ("System",),
    "pearl.trainer": ("Trainer", "compile"),
    "pearl_devices": ("Device", "Kernel", "Link", "Platform"),
    "pearl_estimators": ("Estimate", "estimate"),
    "pearl_estimators.calibrated": ("calibrate",),
    "pearl_estimators.calibration": ("Calibration",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pearl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
