"""Timing the kernels that a run used, once the run is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pearl.training.learning import called
from pearl_estimators.cpu import parts
from pearl_estimators.host import on_demand, timed_after
from pearl_estimators.host.benchmark_kernels import timed_as
from pearl_estimators.host.linear_fit import family

if TYPE_CHECKING:
    from pearl.training.trainer import Trainer

LIMIT_S = 5.0
"""What it may take."""


def untimed(trainer: Trainer) -> list[str]:
    """Families and variants that the trainer's plan calls on CPUs of this host and a calibration
    lacks, those of whole calls before those of their parts."""
    made, platform = trainer.session.compiled, trainer.system.platform
    calls, inner = list[str](), list[str]()
    if made.emulate:
        return []
    with on_demand.as_known("the run is complete"):
        for task, kernel in called(made.protocol.plan.tasks, made.protocol.graph):
            device = platform.device(task.device)
            if on_demand.calibrated_here(device):
                way = kernel, device, task.variant, task.width
                calls.append(f"{family(kernel)} {timed_as(task.variant)}")
                inner += [p.named for p in parts(*way)]
    return timed_after.never_timed([*calls, *inner])


def calibrate_after(wanted: Sequence[str]) -> tuple[int, int]:
    """Time kernels of these families and variants for at most LIMIT_S: how many were, and how many
    are left."""
    return timed_after.time_some(wanted, LIMIT_S)
