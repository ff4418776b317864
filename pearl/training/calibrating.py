"""Timing the kernels that a run used, once the run is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pearl.training.run_feedback import list_calls
from pearl_estimators.cpu import split_into_leaves
from pearl_estimators.host import measuring
from pearl_estimators.host.benchmark_kernels import code_of, timed_variant
from pearl_estimators.host.calibrator import is_calibrated_here

if TYPE_CHECKING:
    from pearl.training.trainer import Trainer

LIMIT_S = 5.0
"""Largest number of seconds of the calibration."""


def find_untimed_codes(trainer: Trainer) -> list[str]:
    """Return the codes (`code_of`) of the trainer's plan that the calibration of this host lacks.

    Codes of whole calls come before codes of their parts. Kernels of these codes are compiled
    already.
    """
    made, platform = trainer.session.compiled, trainer.system.platform
    calls, inner = list[str](), list[str]()
    if made.emulate:
        return []
    for task, kernel in list_calls(made.protocol.plan.tasks, made.protocol.graph):
        device = platform.device(task.device)
        if is_calibrated_here(device):
            calls.append(code_of(kernel, timed_variant(task.variant)))
            parts = split_into_leaves(kernel, device, task.variant, task.width)
            inner += [code_of(k, timed_variant(v)) for k, v, _, _ in parts]
    return measuring.untimed_codes([*calls, *inner])


def calibrate_after(wanted: Sequence[str]) -> tuple[int, int]:
    """Time kernels of these codes for at most LIMIT_S; return how many were timed and how many
    are left.
    """
    return measuring.time_codes(wanted, LIMIT_S)
