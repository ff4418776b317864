"""Datasheet roofline, overhead + max(flops / rate, bytes / bandwidth), for devices without timings.

Kernels of deep reinforcement learning stay below 1e8 flop, where the overhead of launches and calls
dominates. Without it a datasheet roofline is 75-96 % off (dense layers below 1e8 flop on V100, A100
and P100, timings published with NeuSight, ASPLOS 2025). With the right overhead, 90 % of these
layers are predicted within 12 %, so the band here is the uncertainty of the overhead.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl_devices import Device, Kernel
from pearl_devices.kernels import kind_of
from pearl_estimators.estimates import Bound, Estimate

ROOFLINE = "roofline"
"""First word of the source of every roofline estimate."""

# Measured by this project, EPYC, 2026: an empty compiled call with 40 arrays takes 1.9 us; an eager
# torch operation takes 1 us without and 4 us with gradients; a draw from a tree over 100,000 rows,
# which is 17 decisions, 137 ns.
NATIVE_CALL_S = 2e-6
TORCH_OP_S, TORCH_GRADIENT_OP_S = 1e-6, 4e-6
SERIAL_STEP_S = 8e-9

# A vector step through Python, and each environment in it: points of a calibration of that EPYC.
NATIVE_ENV_S = (1.2e-6, 0.12e-6)
VECTOR_ENTRY_S = {"CartPole-v1": (43.6e-6, 0.36e-6)}
TOGETHER = 6  # number of environments from which gymnasium steps VECTOR_ENTRY_S's in one batch
SYNC_ENV_S = {
    "CartPole-v1": (6e-6, 7.6e-6),
    "Pendulum-v1": (7.5e-6, 10e-6),
    "MountainCar-v0": (6.4e-6, 8.9e-6),
    "MountainCarContinuous-v0": (6.9e-6, 3e-6),
    "Acrobot-v1": (6.4e-6, 29e-6),
}
OWN_CALL_S = 50e-6  # a firing of a user-defined kind: about ten operations of numpy, assumed
UNKNOWN_ENV_S = (7e-6, 60e-6)  # middle of 7 us (classic control) to 1 ms (Ant) a step


@dataclass(frozen=True)
class Band:
    """The 90 % band of a latency: latency / below to latency · above.

    below, above: ends of the band over the estimate.
    """

    below: float
    above: float


KERNEL_BAND = Band(2.0, 3.0)  # assumed: costs of launches differ by host and library
ACCESS_BAND = Band(3.0, 3.0)  # assumed: caches decide
KNOWN_ENV_BAND = Band(2.0, 3.0)  # the same program, another machine: assumed
UNKNOWN_ENV_BAND = Band(8.0, 16.0)  # the spread of environments behind UNKNOWN_ENV_S


def base_variant(variant: str) -> str:
    """Return the base variant: `eager-bf16` runs as `eager`, and so does torch's own name."""
    found = variant.partition("-")[0]
    return "eager" if found == "torch" else found


def launches(kernel: Kernel, variant: str) -> float:
    """Return the operations that a firing on a CPU starts one by one: the kind's for eager torch,
    else one compiled call."""
    return kind_of(kernel).operations(kernel) if base_variant(variant) == "eager" else 1.0


def call_overhead_s(kernel: Kernel, device: Device, variant: str) -> float:
    """Seconds that one firing on a CPU spends in starting its operations.

    No device is launched. An eager torch operation costs its bookkeeping; a compiled call costs
    `Device.overhead_s`, or NATIVE_CALL_S if the platform gives 0.
    """
    if variant.startswith("torch"):
        gradients = kind_of(kernel).structure == "gradient"
        return launches(kernel, variant) * (TORCH_GRADIENT_OP_S if gradients else TORCH_OP_S)
    return launches(kernel, variant) * (device.overhead_s or NATIVE_CALL_S)


def of_terms(
    overhead: float, compute: float, memory: float, band: Band, source: str, waits: float = 0.0
) -> Estimate:
    """Return the datasheet estimate: overhead + waits + the longer of compute and memory."""
    latency = overhead + waits + max(compute, memory)
    bound: Bound = "compute" if compute >= memory + waits else "memory"
    if overhead >= max(compute, memory + waits):
        bound = "overhead"
    return Estimate(
        latency,
        low_s=latency / band.below,
        high_s=latency * band.above,
        rung="datasheet",
        bound_by=bound,
        source=source,
    )


def _env_step(kernel: Kernel, variant: str) -> Estimate:
    program, envs = kernel.program or "", kernel.dim("envs")
    band, how = KNOWN_ENV_BAND, f"{program} on another machine"
    if variant == "native":
        call_s, each_s = NATIVE_ENV_S
    elif program in VECTOR_ENTRY_S and envs >= TOGETHER:
        call_s, each_s = VECTOR_ENTRY_S[program]
    elif program in SYNC_ENV_S:
        call_s, each_s = SYNC_ENV_S[program]
    else:
        (call_s, each_s), band = UNKNOWN_ENV_S, UNKNOWN_ENV_BAND
        how = f"{program or 'an environment'} never timed"
    source = f"a call {call_s:.2g} s + {each_s:.2g} s an environment; {how}"
    return of_terms(call_s, envs * each_s, 0.0, band, source)


def cpu_roofline(
    kernel: Kernel, device: Device, variant: str, flops_per_s: float, joined_s: float = 0.0
) -> Estimate:
    """Return the datasheet estimate of a CPU: calls + max(flops / flops_per_s, bytes / bandwidth).

    Environments are not counted in flops; each costs a call and a time. Replay on a CPU waits for
    memory rather than moves it: each of its accesses adds SERIAL_STEP_S, which overlaps with
    nothing.
    flops_per_s: of the cores that the call takes; joined_s: added to each operation.
    """
    structure = kind_of(kernel).structure
    if structure == "environment":
        return _env_step(kernel, variant)
    if structure == "own":
        source = f"{OWN_CALL_S:.2g} s a call, assumed; {kernel.kind} never timed on such a CPU"
        return of_terms(OWN_CALL_S, 0.0, 0.0, UNKNOWN_ENV_BAND, source)
    waits_s = SERIAL_STEP_S * kind_of(kernel).accesses(kernel)
    return of_terms(
        call_overhead_s(kernel, device, variant) + joined_s * launches(kernel, variant),
        kernel.flops / flops_per_s,
        (kernel.bytes_in + kernel.bytes_out) / device.memory_bytes_per_s,
        ACCESS_BAND if waits_s else KERNEL_BAND,
        f"{ROOFLINE}: {launches(kernel, variant):g} launches + max(flops / rate, bytes / "
        f"bandwidth) of {device.model or device.name}; band assumed"
        + ("; passes assumed, nobody counted them" if kind_of(kernel).assumed else ""),
        waits_s,
    )
