"""Kernel kinds that the simulated FPGA's learner computes: kind → two `module:function`.

The first takes a kernel and a shape and returns the engine's program. The second takes a kernel,
its arrays and the size of the array, and returns the call of the engine's bit-exact model.
"""

from __future__ import annotations

from collections.abc import Mapping


def _engine(program: str, twin: str) -> tuple[str, str]:
    return f"pearl_devices.fpga.learner:of_{program}", f"pearl_devices.primitives.fpga.{twin}"


ENGINES: Mapping[str, tuple[str, str]] = {
    "inference.dqn": _engine("acting", "acting:bind_dqn"),
    "inference.ddpg": _engine("acting", "acting:bind_ddpg"),
    "update.dqn": _engine("dqn", "dqn:bind_update"),
    "update.ddpg": _engine("ddpg", "ddpg:bind_update"),
}
